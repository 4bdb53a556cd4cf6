//! A process that has run out of file descriptors, and clients that would make it do so.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use testkit::client::Client;
use testkit::gateway_process::GatewayProcess;
use testkit::{FakeBackend, Gateway, H1, Http2, Pki, flags, full, in_time, status, text, until};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::management_cluster::{self, DOCUMENT, Management, add_own_cluster, inline, trusted};

/// The CPU time of a process, in hundredths of a second.
fn processor_time(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name may contain any character and ends at the last parenthesis; user and system time are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// A gateway that may open so many files.
async fn with_files(limit: usize, flags: Vec<String>) -> GatewayProcess {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\""), crate::gateway::PORTCULLIS])
        .arg("serve")
        .args(flags);
    GatewayProcess::serve(command).await
}

#[tokio::test]
async fn without_file_descriptors_the_gateway_pauses_accepting_and_then_resumes() {
    // A gateway takes some 49 for its threads and itself.
    const LIMIT: usize = 76;
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut flags = flags(&pki, backend.address);
    flags.push("--max-connections=1000".to_owned());
    let process = with_files(LIMIT, flags).await;
    let gateway = &process.gateway;
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut known = gateway.http2(Some(&alice)).await;
    assert_eq!(known.get("/api", &[]).await.status(), StatusCode::OK);

    let mut silent = Vec::new();
    for _ in 0..2 * LIMIT {
        silent.push(TcpStream::connect(process.gateway.address).await.unwrap());
    }
    until("the last file descriptor", || open_files(process.id()) >= LIMIT).await;
    let before = processor_time(process.id());
    let waiting = std::time::Instant::now();
    while waiting.elapsed() < Duration::from_secs(1) {
        assert_eq!(known.get("/api", &[]).await.status(), StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (used, whole) = (processor_time(process.id()) - before, waiting.elapsed());
    // Retrying accept in a loop would use a whole core.
    assert!(
        Duration::from_millis(used * 10) < whole.mul_f64(0.6),
        "{used} hundredths of a second in {whole:?}"
    );

    drop(silent);
    let mut new = in_time(gateway.http1(Some(&alice))).await;
    assert_eq!(new.get("/api", &[]).await.status(), StatusCode::OK);
    let (ended, log) = process.end().await;
    assert!(ended.success());
    let lines = log.matches("cannot accept connections").count();
    assert_eq!(lines, 1, "{log}");
    assert!(log.contains("the limit of open files does not allow so many connections"), "{log}");
}

/// The files of the gateways below, and how many of them are connections to API servers, as `docs/limits.md` divides them.
const FILES: usize = 256;
const BACKENDS: usize = 112;
const OF_USER: usize = BACKENDS / 4;
const OF_TENANT: usize = BACKENDS / 8;
/// More requests than any of these.
const FLOOD: usize = 60;

/// An API server that speaks HTTP/1.1, and so takes a connection for each request. It holds those with `held` in their path.
async fn one_request_each(pki: &Pki) -> (FakeBackend, Arc<Semaphore>) {
    let released = Arc::new(Semaphore::new(0));
    let releases = Arc::clone(&released);
    let backend = FakeBackend::start(pki, H1, move |request: Request<Incoming>| {
        let releases = Arc::clone(&releases);
        Box::pin(async move {
            if request.uri().path().contains("held") {
                releases.acquire().await.unwrap().forget();
            }
            Response::new(full("ok"))
        })
    })
    .await;
    (backend, released)
}

/// Sends many requests at once over one connection. Those that are refused end with the reason.
fn flood(client: &Http2, path: &'static str, headers: &'static [(&str, &str)]) -> JoinSet<Option<String>> {
    let mut requests = JoinSet::new();
    for _ in 0..FLOOD {
        let mut client = client.share();
        requests.spawn(async move {
            let response = client.get(path, headers).await;
            if response.status() == StatusCode::OK {
                text(response).await;
                return None;
            }
            assert_eq!(response.headers()["retry-after"], "1");
            let (code, body) = status(response).await;
            assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
            Some(body["message"].as_str().unwrap().to_owned())
        });
    }
    requests
}

/// Waits until so many requests are refused, all for want of a connection.
async fn refused(requests: &mut JoinSet<Option<String>>, count: usize) {
    for _ in 0..count {
        let message = in_time(requests.join_next()).await.unwrap().unwrap().expect("refused");
        assert!(message.contains("no further connection to the API servers"), "{message}");
    }
}

async fn counted(gateway: &Gateway, metric: &str) -> usize {
    usize::try_from(gateway.count(metric).await).unwrap()
}

async fn connections(gateway: &Gateway, owner: &str) -> usize {
    counted(gateway, &format!("portcullis_backend_connections{{owner=\"{owner}\"}}")).await
}

// threat: backend-connection-flood
#[tokio::test]
async fn a_user_whose_requests_take_a_connection_each_leaves_descriptors_to_others() {
    let pki = Pki::new();
    let (backend, released) = one_request_each(&pki).await;
    let process = with_files(FILES, flags(&pki, backend.address)).await;
    let gateway = &process.gateway;
    let [mallory, alice] = ["mallory", "alice"].map(|name| pki.clients.leaf().cn(name).issue());
    let client = gateway.http2(Some(&mallory)).await;
    let mut requests = flood(&client, "/api/v1/namespaces/n/held", &[]);
    refused(&mut requests, FLOOD - OF_USER).await;
    until("the others at the API server", || backend.pending() == OF_USER).await;
    assert_eq!(connections(gateway, "user").await, OF_USER);
    assert_eq!(counted(gateway, "portcullis_backend_max_connections").await, BACKENDS);
    for http2 in [false, true] {
        let mut other = Client::connect(gateway, http2, Some(&alice)).await;
        assert_eq!(other.code(&[]).await, StatusCode::OK);
    }
    assert!(gateway.metrics("/livez").await.starts_with("HTTP/1.1 200"));
    assert!(open_files(process.id()) < FILES / 2);
    let cause = "portcullis_backend_errors_total{cause=\"no_connection_left\"}";
    assert_eq!(counted(gateway, cause).await, FLOOD - OF_USER);
    // Connections that are kept are used again, by whoever comes next.
    released.add_permits(OF_USER);
    while let Some(ended) = in_time(requests.join_next()).await {
        assert_eq!(ended.unwrap(), None);
    }
    let mut again = Client::connect(gateway, true, Some(&mallory)).await;
    assert_eq!(again.code(&[]).await, StatusCode::OK);
    assert!(process.end().await.0.success());
}

// threat: backend-connection-flood
#[tokio::test]
async fn a_tenant_whose_api_server_takes_a_connection_for_each_request_leaves_them_to_others() {
    let pki = Pki::new();
    let (management, (backend, released)) = (Management::start(&pki).await, one_request_each(&pki).await);
    let config = inline(&pki, &backend);
    for (name, tokens) in [("flood", "one,mallory,7\n"), ("calm", "two,carol,7\n")] {
        management.put(name, &[("value", &config), ("cluster", DOCUMENT), ("tokens", tokens)]);
    }
    let flags = management_cluster::flags(&pki, management.server.address);
    add_own_cluster(&pki, &config, "three,alice,7\n");
    let process = with_files(FILES, flags).await;
    let gateway = &process.gateway;
    for name in ["flood", "calm", "own"] {
        trusted(gateway, name).await;
    }
    let of_tenants = connections(gateway, "tenant").await;
    assert!((2..=OF_TENANT).contains(&of_tenants), "the gateway's own at both: {of_tenants}");
    let client = gateway.http2(None).await;
    let flood_path = "/clusters/flood/api/v1/namespaces/n/held";
    let mut requests = flood(&client, flood_path, &[("authorization", "Bearer one")]);
    refused(&mut requests, FLOOD - OF_TENANT).await;
    let held = connections(gateway, "tenant").await;
    assert!((OF_TENANT..2 * OF_TENANT).contains(&held), "{held}");
    let served = async |path: &str, token: &str| {
        let mut client = Client::connect(gateway, false, None).await;
        client.code_at(path, &[("authorization", &format!("Bearer {token}"))]).await
    };
    assert_eq!(served("/clusters/calm/api", "two").await, StatusCode::OK);
    assert_eq!(served("/own/api", "three").await, StatusCode::OK);
    // Secrets are read, and their API servers checked.
    management.put("new", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "four,dave,7\n")]);
    trusted(gateway, "new").await;
    assert_eq!(served("/clusters/new/api", "four").await, StatusCode::OK);
    assert!(open_files(process.id()) < FILES / 2);
    released.add_permits(FLOOD);
    while let Some(ended) = in_time(requests.join_next()).await {
        ended.unwrap();
    }
    assert_eq!(served("/clusters/flood/api", "one").await, StatusCode::OK);
    assert!(process.end().await.0.success());
}
