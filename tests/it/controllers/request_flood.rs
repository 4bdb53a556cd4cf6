//! Thousands of pending requests delay the requester that made them, but not the lease or other requesters, and do not
//! grow memory.

use serde_json::json;
use testkit::fake_cluster::STRANGER;
use testkit::pki::Ca;
use testkit::{kubeconfig, until};

use super::*;

/// Renews the lease often; it is lost after four seconds without a renewal.
const ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=500ms",
];
const KUBELETS: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// P-521 signatures take the longest to verify: together these take longer than the lease lasts.
const FOR_ANOTHER_SIGNER: usize = 20_000;
const FOR_KUBELETS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_pending_requests_costs_neither_the_lease_nor_a_kubelets_certificate() {
    let setup = ControllerGateway::new().await;
    let spec = |signer: &str, user: &str| {
        let mut csr = TestCsr::with_key(KeyKind::P521, signer, "system:node:victim", &["system:nodes"], &[]);
        csr.spec["username"] = json!(user);
        csr.spec
    };
    let (other, kubelets) = (spec("example.com/other", STRANGER), spec(KUBELETS, STRANGER));
    for number in 0..FOR_ANOTHER_SIGNER {
        setup.cluster.request(&format!("a-{number:06}"), &other, &json!({}));
    }
    for number in 0..FOR_KUBELETS {
        setup.cluster.request(&format!("b-{number:06}"), &kubelets, &json!({}));
    }
    // The last in the order of the list.
    setup.cluster.request("z-before", &TestCsr::node("before").spec, &json!({}));
    let gateway = setup.gateway("csrsigning,csrapproving", &ELECTION);
    setup.cluster.until_status("z-before", is_issued).await;
    let waiting = gateway.count("workqueue_depth{cluster=\"backend\",name=\"csrapproving\"}").await;
    setup.cluster.request("after", &TestCsr::node("after").spec, &json!({}));
    setup.cluster.until_status("after", is_issued).await;
    assert!(waiting > 0, "the kubelets' requests waited for the strangers'");
    // The first pass over the strangers' requests has ended.
    gateway.until_counted("workqueue_depth{cluster=\"backend\",name=\"csrapproving\"} 0").await;
    until("the lease", || setup.cluster.holder(LEASE).is_some_and(|holder| !holder.is_empty())).await;
    assert!(
        !setup.cluster.events().iter().any(|note| note.ends_with("stopped leading")),
        "the lease was lost"
    );
    let lease = setup.cluster.get(&format!("{}/{LEASE}", testkit::fake_cluster::LEASES)).unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 0, "{lease}");
    assert_eq!(setup.cluster.certificates().len(), 2);
}

/// Each cluster has its own signing authority, connections and work queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_requests_in_one_cluster_delay_no_certificate_in_another() {
    let pki = Pki::new();
    let (cert, key) = pki.write_pair("front", &pki.front.leaf().cn("portcullis").issue());
    let server_ca = pki.write("servers-ca.crt", pki.servers.cert_pem());
    pki.write_pair("gateway", &pki.servers.server(&["flooded.example.com", "quiet.example.com"]));
    let mut text = "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\n\
                    serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}\n\
                    operation: {metricsBindAddress: '127.0.0.1:0', workers: 1}\nclusters:\n"
        .to_owned();
    let (flooded, quiet) = (FakeCluster::new(), FakeCluster::new());
    let mut backends = Vec::new();
    for (name, cluster) in [("flooded", &flooded), ("quiet", &quiet)] {
        let backend = cluster.serve(&pki).await;
        pki.write(&format!("{name}.kubeconfig"), kubeconfig(backend.address, &server_ca, &cert, &key));
        backends.push(backend);
        let ca = Ca::new(name);
        pki.write(&format!("{name}-ca.crt"), ca.cert_pem());
        pki.write(&format!("{name}-ca.key"), ca.key_pem());
        let cluster = format!(
            "- name: {name}\n  kubeconfig: {name}.kubeconfig\n  match: {{serverNames: [{name}.example.com]}}\n  \
             authentication: {{clientCAFile: {name}-ca.crt}}\n  controllerManager: {{controllers: [csrsigning, \
             csrapproving], clusterSigningCertFile: {name}-ca.crt, clusterSigningKeyFile: {name}-ca.key}}\n"
        );
        text.push_str(&cluster);
    }
    let mut csr = TestCsr::with_key(KeyKind::P521, KUBELETS, "system:node:victim", &["system:nodes"], &[]);
    csr.spec["username"] = json!(STRANGER);
    for number in 0..FOR_KUBELETS / 2 {
        flooded.request(&format!("a-{number:06}"), &csr.spec, &json!({}));
    }
    let file = pki.write("gateway.yaml", text);
    let gateway = Gateway::with(vec![format!("--config={}", file.display())]);
    let depth = "workqueue_depth{cluster=\"flooded\",name=\"csrapproving\"}";
    gateway.until_counted_as(depth, |line| line.starts_with(depth) && !line.ends_with(" 0")).await;
    quiet.request("first", &TestCsr::node("first").spec, &json!({}));
    quiet.until_status("first", is_issued).await;
    let waiting = gateway.count(depth).await;
    assert!(waiting > 0, "the request waited for the other cluster's");
    assert_eq!((quiet.certificates().len(), flooded.certificates().len()), (1, 0));
}
