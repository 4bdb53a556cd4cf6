//! An upgrade: API servers of the oldest release and of the newest share one etcd behind one gateway, then the old one is replaced.
//! Clients read, write, watch and hold tunnels all the time, and no request of theirs fails.

use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use testkit::real::{Source, eventually, older_releases};
use testkit::replicas::{Amount, Layout, Load, Outcome, Replicas, Setup, direct};

use crate::release::{Call, apply_permissions, directory, kube_apiserver, role_of};
use crate::webhooks::Webhooks;

const AMOUNT: Amount =
    Amount { readers: 4, writers: 4, watches: 20, tunnels: 4, pause: Duration::from_millis(100) };
const LAYOUT: Layout = Layout { servers: 2, gateways: 1, goaway_chance: 0.0 };
/// How long watches may take to catch up, on a busy machine.
const CATCH_UP_TIMEOUT: Duration = Duration::from_mins(1);
/// Requests of each question: both API servers get some.
const REPETITIONS: usize = 10;
/// The namespace of the objects that the webhooks see.
const REVIEWED: &str = "reviewed";

pub(crate) fn run(source: &Source) -> Result<(), String> {
    let programs = source.programs()?;
    let oldest = older_releases().into_iter().next().ok_or("no older release is pinned")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut dir = directory()?;
    let upgraded = runtime.block_on(async {
        // The old one starts first, so that it chooses how objects are stored.
        let setup = Setup {
            kube_apiservers: vec![kube_apiserver(&programs, &oldest)?, programs.kube_apiserver.clone()],
            ..Setup::default()
        };
        let mut replicas = Replicas::start_servers(LAYOUT, &setup, &programs, dir.path()).await?;
        apply_permissions(&programs, &replicas, dir.path())?;
        let webhooks = Webhooks::start().await;
        let gateway = json!({
            "admission": webhooks.write(dir.path(), REVIEWED),
            "clusters": [{"impersonation": "gateway"}],
        });
        replicas.add_gateway(Path::new(crate::PORTCULLIS), &gateway).await?;
        replicas.until_all_are_trusted().await?;
        upgrade(&mut replicas, &programs.kube_apiserver).await
    });
    if upgraded.is_err() || std::env::var_os("PORTCULLIS_KEEP_TWIN").is_some() {
        dir.disable_cleanup(true);
        eprintln!("logs: {}", dir.path().display());
    }
    upgraded
}

async fn upgrade(replicas: &mut Replicas, newest: &Path) -> Result<(), String> {
    create_objects(replicas).await?;
    let balancer = replicas.balancer();
    let mut load = Load::start(&balancer, AMOUNT);
    eventually("the load", async || Ok(load.is_complete())).await?;
    // While one API server is older, constrained verbs do not count at either.
    check(replicas, StatusCode::FORBIDDEN, 1).await?;
    replicas.replace_server(0, newest).await?;
    // On a busy machine a later self-check reads the version.
    let (gateway, requester) = (replicas.gateways[0].address, replicas.client("constrained"));
    eventually("constrained impersonation", async || {
        let call = Call {
            identity: Some(&requester),
            headers: vec![("impersonate-user", "bob"), ("impersonate-group", "readers")],
            ..Call::get("/api/v1/namespaces/load-1/configmaps?limit=1")
        };
        Ok(call.send(gateway).await.0 == StatusCode::OK)
    })
    .await?;
    check(replicas, StatusCode::OK, 2).await?;
    load.stop_requests();
    let lost = load.lost_events(CATCH_UP_TIMEOUT).await;
    let (writes, events, echoes) = (load.ledger.len(), load.events(), load.echoed());
    let (operations, _) = load.recorder.take();
    let failed: Vec<String> = operations
        .iter()
        .filter(|one| one.outcome != Outcome::Success)
        .map(|one| format!("{one:?}"))
        .take(5)
        .collect();
    eprintln!("upgrade: {} requests, {writes} writes, {events} events, {echoes} echoes", operations.len());
    if !failed.is_empty() {
        return Err(format!("requests failed: {failed:#?}"));
    }
    if lost > 0 {
        return Err(format!("{lost} watch events were lost"));
    }
    if writes == 0 || events == 0 || echoes == 0 {
        return Err("there was no load".to_owned());
    }
    let log = replicas.gateways[0].log();
    if log.contains("docs/releases.md") {
        return Err(format!("both releases are tested: {log}"));
    }
    Ok(())
}

/// Discovery, a write with webhooks, and constrained impersonation, each so often that both API servers answer.
async fn check(replicas: &Replicas, constrained: StatusCode, step: usize) -> Result<(), String> {
    let gateway = replicas.gateways[0].address;
    let administrator = Some(replicas.user());
    let requester = replicas.client("constrained");
    for turn in 0..REPETITIONS {
        for path in ["/api", "/apis", "/openapi/v3", "/apis/apps/v1"] {
            let (code, body) = Call { identity: administrator, ..Call::get(path) }.send(gateway).await;
            if code != StatusCode::OK {
                return Err(format!("{path}: {code} {body}"));
            }
        }
        let path = format!("/api/v1/namespaces/{REVIEWED}/configmaps");
        for (what, labels, expected) in [
            ("allowed", json!({}), StatusCode::CREATED),
            ("denied", json!({"denied": "yes"}), StatusCode::FORBIDDEN),
        ] {
            let object = json!({"metadata": {"name": format!("{what}-{step}-{turn}"), "labels": labels}});
            let (code, body) =
                Call { identity: administrator, ..Call::post(&path, &object) }.send(gateway).await;
            let is_stamped = !code.is_success() || body["metadata"]["annotations"]["stamped"] == "yes";
            if code != expected || !is_stamped {
                return Err(format!("a reviewed write: {code} {body}"));
            }
        }
        // Other users each time: decisions are remembered.
        let user = format!("bob-{step}-{turn}");
        let path = "/api/v1/namespaces/load-1/configmaps?limit=1";
        let call = Call {
            identity: Some(&requester),
            headers: vec![("impersonate-user", &user), ("impersonate-group", "readers")],
            ..Call::get(path)
        };
        let (code, body) = call.send(gateway).await;
        if code != constrained {
            return Err(format!("constrained impersonation in step {step}: {code} {body}"));
        }
    }
    Ok(())
}

async fn create_objects(replicas: &Replicas) -> Result<(), String> {
    let constrained = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["users", "groups"], "verbs": ["impersonate:user-info"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["impersonate-on:user-info:list"]},
    ]);
    let readers = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let roles = [role_of("User", "constrained", &constrained), role_of("Group", "readers", &readers)];
    let namespace = ("/api/v1/namespaces", json!({"metadata": {"name": REVIEWED}}));
    for (path, object) in roles.into_iter().flatten().chain([namespace]) {
        let (code, body) =
            direct(replicas.servers[0].address, replicas.user(), "POST", path, Some(&object)).await?;
        if code != StatusCode::CREATED {
            return Err(format!("{path}: {code} {body}"));
        }
    }
    // The newest itself knows the verbs: the 403 before the upgrade is the gateway's.
    let call = Call {
        identity: Some(&replicas.client("constrained")),
        headers: vec![("impersonate-user", "bob"), ("impersonate-group", "readers")],
        ..Call::get("/api/v1/namespaces/load-1/configmaps?limit=1")
    };
    for (index, expected) in [(0, StatusCode::FORBIDDEN), (1, StatusCode::OK)] {
        let address = replicas.servers[index].address;
        eventually("the roles", async || Ok(call.send(address).await.0 == expected)).await?;
    }
    Ok(())
}
