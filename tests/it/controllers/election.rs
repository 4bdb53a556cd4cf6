//! Leader election: of several gateways, only the holder of the lease runs controllers.

use std::sync::atomic::Ordering;

use testkit::{in_time, until};

use super::*;

/// A lease that expires quickly.
const SHORT: [&str; 3] = [
    "--leader-elect-lease-duration=1s",
    "--leader-elect-renew-deadline=500ms",
    "--leader-elect-retry-period=50ms",
];
/// A lease long enough not to expire on a busy machine.
const STEADY: [&str; 3] = [
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=100ms",
];

const LEADS: &str = "leader_election_master_status{cluster=\"backend\",name=\"portcullis-controllers\"}";

async fn leads(gateway: &Gateway) {
    gateway.until_counted(&format!("{LEADS} 1")).await;
}

#[tokio::test]
async fn another_gateway_takes_over_from_a_killed_one() {
    let setup = ControllerGateway::new().await;
    let first = setup.gateway("csrsigning", &STEADY);
    leads(&first).await;
    let holder = setup.cluster.holder(LEASE);
    let second = setup.gateway("csrsigning", &STEADY);
    second.checked().await;
    setup.cluster.request("first", &TestCsr::node("first").spec, &approved());
    setup.cluster.until_status("first", is_issued).await;
    assert_eq!(second.count(LEADS).await, 0, "one replica leads");
    // Dropped without a shutdown, as by SIGKILL: the lease has to expire.
    drop(first);
    setup.cluster.request("second", &TestCsr::node("second").spec, &approved());
    assert_eq!(setup.cluster.holder(LEASE), holder);
    setup.cluster.until_status("second", is_issued).await;
    leads(&second).await;
    assert_ne!(setup.cluster.holder(LEASE), holder);
    let lease = setup.cluster.get(&format!("{}/{LEASE}", testkit::fake_cluster::LEASES)).unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 1, "{lease}");
}

#[tokio::test]
async fn a_draining_gateway_releases_its_lease() {
    let setup = ControllerGateway::new().await;
    // A lease that outlives the test.
    let mut first = setup.gateway("csrsigning", &["--leader-elect-lease-duration=1h"]);
    leads(&first).await;
    let holder = setup.cluster.holder(LEASE).unwrap();
    let server = first.take_server();
    tokio::task::spawn_blocking(move || server.shut_down()).await.unwrap();
    assert_eq!(setup.cluster.holder(LEASE).as_deref(), Some(""), "released before it expired");
    let second = setup.gateway("csrsigning", &["--leader-elect-lease-duration=1h"]);
    leads(&second).await;
    let wanted = [format!("{holder} became leader"), format!("{holder} stopped leading")];
    until("the events", || {
        let events = setup.cluster.events();
        wanted.iter().all(|note| events.contains(note))
    })
    .await;
}

#[tokio::test]
async fn controllers_that_a_reload_stopped_release_their_lease_even_if_the_gateway_drains_at_once() {
    let setup = ControllerGateway::new().await;
    let head = "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\n";
    let config = setup.pki.write(
        "gateway.yaml",
        format!(
            "{head}controllerManager: {{controllers: [csrcleaner], leaderElectLeaseDuration: 1h, leaderElectRetryPeriod: 1s}}\n"
        ),
    );
    let mut flags = flags(&setup.pki, setup.backend.address);
    flags.push(format!("--config={}", config.display()));
    let mut gateway = Gateway::with(flags);
    leads(&gateway).await;
    setup.cluster.slow.store(true, Ordering::SeqCst);
    let generation = gateway.generation().await;
    replace(&config, head);
    gateway.server().reload();
    gateway.reloaded(generation).await;
    let server = gateway.take_server();
    tokio::task::spawn_blocking(move || server.shut_down()).await.unwrap();
    assert_eq!(setup.cluster.holder(LEASE).as_deref(), Some(""));
}

#[tokio::test]
async fn controllers_that_cannot_renew_the_lease_stop_before_it_expires() {
    let setup = ControllerGateway::new().await;
    let gateway = setup.gateway("csrsigning", &SHORT);
    leads(&gateway).await;
    setup.cluster.leases.store(false, Ordering::SeqCst);
    gateway.until_counted(&format!("{LEADS} 0")).await;
    setup.cluster.request("late", &TestCsr::node("late").spec, &approved());
    // No replica leads, so none has processed it.
    assert_eq!(gateway.count("workqueue_adds_total{cluster=\"backend\",name=\"csrsigning\"}").await, 0);
    assert!(!is_issued(&setup.cluster.status("late")));
    setup.cluster.leases.store(true, Ordering::SeqCst);
    leads(&gateway).await;
    setup.cluster.until_status("late", is_issued).await;
}

#[tokio::test]
async fn without_election_there_is_no_lease() {
    let setup = ControllerGateway::new().await;
    let _gateway = setup.gateway("csrsigning", &["--leader-elect=false"]);
    setup.cluster.request("one", &TestCsr::node("one").spec, &approved());
    setup.cluster.until_status("one", is_issued).await;
    assert_eq!(setup.cluster.holder(LEASE), None);
}

/// The index of the gateway that leads.
async fn leader(gateways: &[Gateway]) -> usize {
    in_time(async {
        loop {
            for (index, gateway) in gateways.iter().enumerate() {
                if gateway.count(LEADS).await == 1 {
                    return index;
                }
            }
        }
    })
    .await
}

/// The number of certificate requests during the restarts.
const REQUESTS: usize = 500;

#[tokio::test]
async fn requests_get_one_certificate_each_while_gateways_restart() {
    let setup = ControllerGateway::new().await;
    let controllers = "csrsigning,csrapproving";
    let mut gateways = vec![setup.gateway(controllers, &SHORT), setup.gateway(controllers, &SHORT)];
    until("a leader", || setup.cluster.holder(LEASE).is_some()).await;
    // All share one CSR: its content does not matter here.
    let spec = TestCsr::node("one").spec;
    for number in 0..REQUESTS {
        setup.cluster.request(&format!("csr-{number}"), &spec, &serde_json::json!({}));
        if number % 100 == 50 {
            // Kills the leader, most likely while it signs.
            let holder = setup.cluster.holder(LEASE);
            drop(gateways.remove(leader(&gateways).await));
            gateways.push(setup.gateway(controllers, &SHORT));
            until("another leader", || setup.cluster.holder(LEASE) != holder).await;
        }
        tokio::task::yield_now().await;
    }
    // A machine with other work takes its time, and goes on.
    let mut issued = 0;
    while issued < REQUESTS {
        let before = issued;
        until("another certificate", || {
            issued = setup.cluster.certificates().len();
            issued > before
        })
        .await;
    }
    assert!((0..REQUESTS).all(|number| is_issued(&setup.cluster.status(&format!("csr-{number}")))));
    let written = setup.cluster.certificates();
    assert_eq!(written.len(), REQUESTS, "each certificate was written once");
    let names: std::collections::BTreeSet<_> = written.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), REQUESTS);
}
