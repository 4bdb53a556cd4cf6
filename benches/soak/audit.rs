//! Audit under load, with a log that rotates and a webhook that fails half of the time: every request is in the log
//! exactly once, and every event has either reached the webhook or is counted as dropped.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::{FakeBackend, Pki, empty, flags, full, sum_metric, text};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::backend::{self, LIST, WATCH};
use crate::memory::Memory;

/// Clients per version of HTTP.
const CLIENTS: usize = 4;
/// Watches that are open for the whole time.
const WATCHES: usize = 100;
/// How long the webhook accepts events, and then fails.
const PHASE: Duration = Duration::from_secs(1);
/// Every such request is a large list that its client leaves at once.
const LEAVES: u64 = 50;
/// How long the queue of the webhook may take to empty after the load has ended.
const FLUSH: Duration = Duration::from_mins(1);

/// The events of the webhook, by stage and audit ID.
type Received = Arc<Mutex<HashMap<(String, String), usize>>>;

struct Webhook {
    server: FakeBackend,
    received: Received,
    refused: Arc<AtomicUsize>,
}

impl Webhook {
    /// Fails in every second [`PHASE`].
    async fn start(pki: &Pki) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (received, refused) = (Received::default(), Arc::new(AtomicUsize::new(0)));
        let (known, failed, start) = (Arc::clone(&received), Arc::clone(&refused), Instant::now());
        let server = FakeBackend::without_client_auth(pki, listener, move |request: Request<Incoming>| {
            let (known, failed) = (Arc::clone(&known), Arc::clone(&failed));
            Box::pin(async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let fails = !(start.elapsed().as_secs() / PHASE.as_secs()).is_multiple_of(2);
                let mut response = Response::new(full("{}"));
                if fails {
                    failed.fetch_add(1, Ordering::Relaxed);
                    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                    return response;
                }
                let list: Value = serde_json::from_slice(&body).unwrap();
                let mut known = known.lock().unwrap();
                for event in list["items"].as_array().unwrap() {
                    *known.entry(key(event)).or_default() += 1;
                }
                response
            })
        });
        Self { server, received, refused }
    }

    fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: w, cluster: {{server: 'https://{}', certificate-authority: servers-ca.crt}}}}]\n\
             contexts: [{{name: c, context: {{cluster: w}}}}]\n",
            self.server.address
        )
    }
}

fn key(event: &Value) -> (String, String) {
    let field = |name: &str| event[name].as_str().unwrap().to_owned();
    (field("stage"), field("auditID"))
}

/// The audit IDs of requests: of those with a whole response, and of those that their clients left.
#[derive(Default)]
struct Sent {
    finished: Mutex<Vec<String>>,
    left: Mutex<Vec<String>>,
    failed: AtomicUsize,
    next: AtomicU64,
}

impl Sent {
    fn next_id(&self) -> (u64, String) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number, format!("soak-{number}"))
    }

    fn fail(&self, what: &str) {
        println!("a request has failed, and its client ends: {what}");
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs the load, and compares what was sent with what was written.
pub(crate) async fn run(seconds: u64) -> ExitCode {
    let pki = Pki::new();
    let backend = backend::start(&pki).await;
    let webhook = Webhook::start(&pki).await;
    let log = pki.directory.path().join("audit");
    std::fs::create_dir(&log).unwrap();
    let process = start(&pki, &backend, &webhook, &log).await;
    let alice = pki.clients.leaf().cn("alice").issue();
    let before = Memory::of(process.id());

    let sent = Arc::new(Sent::default());
    let (ending, end) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for http2 in [false, true] {
        for _ in 0..CLIENTS {
            let client = Client::connect(&process.gateway, http2, Some(&alice)).await;
            tasks.spawn(send_requests(client, Arc::clone(&sent), end.clone()));
        }
    }
    let watches = open_watches(&process, &alice, &sent).await;
    let mut peak = before.rss;
    for _ in 0..seconds {
        sleep(Duration::from_secs(1)).await;
        peak = peak.max(Memory::of(process.id()).rss);
        // Discards the requests that the fake backend records.
        while backend.take().is_some() {}
        while webhook.server.take().is_some() {}
    }
    ending.send_replace(true);
    tasks.join_all().await;
    drop(watches);
    let metrics = until_flushed(&process).await;
    let (exit_status, said) = process.end().await;

    let mut verdict = Verdict::default();
    verdict.log(&log, &sent);
    verdict.webhook(&webhook, &metrics);
    verdict.expect("requests fail", sent.failed.load(Ordering::Relaxed) == 0);
    verdict.expect("the gateway exits with an error", exit_status.success());
    verdict.expect("the gateway panics", !said.contains("panic"));
    println!("memory: {} MiB before, {} MiB at most", before.rss / 1024, peak / 1024);
    verdict.print()
}

async fn start(pki: &Pki, backend: &FakeBackend, webhook: &Webhook, log: &Path) -> GatewayProcess {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
        {"level": "Request", "verbs": ["create"]}, {"level": "Metadata"}]});
    let policy = pki.write("audit-policy.yaml", policy.to_string());
    let kubeconfig = pki.write("audit-webhook.kubeconfig", webhook.kubeconfig());
    let flags = flags(pki, backend.address).into_iter().chain([
        "--workers=0".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.join("audit.log").display()),
        "--audit-log-maxsize=1".to_owned(),
        "--audit-log-maxbackup=0".to_owned(),
        format!("--audit-webhook-config-file={}", kubeconfig.display()),
        "--audit-webhook-initial-backoff=200ms".to_owned(),
        "--audit-webhook-batch-max-wait=200ms".to_owned(),
        "--audit-webhook-batch-throttle-qps=50".to_owned(),
    ]);
    GatewayProcess::start(crate::PORTCULLIS, flags).await
}

/// One request after another: reads, writes, and lists that the client leaves.
async fn send_requests(client: Client, sent: Arc<Sent>, end: watch::Receiver<bool>) {
    let mut client = client;
    let is_http2 = matches!(client, Client::Two(_));
    while !*end.borrow() {
        let (number, id) = sent.next_id();
        let leaves = is_http2 && number.is_multiple_of(LEAVES);
        let (method, path, body) = match number % 4 {
            _ if leaves => (Method::GET, LIST, empty()),
            0 => (
                Method::POST,
                "/api/v1/namespaces/n/configmaps",
                full(format!(r#"{{"metadata":{{"name":"{id}"}}}}"#)),
            ),
            1 => (Method::DELETE, "/api/v1/namespaces/n/configmaps/one", empty()),
            _ => (Method::GET, "/api/v1/namespaces/n/configmaps/one", empty()),
        };
        let request = Request::builder()
            .method(method)
            .uri(if is_http2 { format!("https://localhost{path}") } else { path.to_owned() })
            .header("host", "localhost")
            .header("audit-id", &id)
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        let response = match client.send(request).await {
            Ok(response) if response.status() == StatusCode::OK => response,
            Ok(response) => return sent.fail(&format!("{id}: {}", response.status())),
            Err(error) => return sent.fail(&format!("{id}: {error:?}")),
        };
        if leaves {
            sent.left.lock().unwrap().push(id);
        } else {
            text(response).await;
            sent.finished.lock().unwrap().push(id);
        }
    }
}

/// Watches over HTTP/2, with the connection that they share.
async fn open_watches(
    process: &GatewayProcess,
    alice: &Issued,
    sent: &Sent,
) -> (Client, Vec<Response<Incoming>>) {
    let mut client = Client::connect(&process.gateway, true, Some(alice)).await;
    let mut open = Vec::new();
    for _ in 0..WATCHES {
        let (_, id) = sent.next_id();
        let response = client.get(WATCH, &[("audit-id", &id)]).await;
        assert_eq!(response.status(), 200);
        // Its events are small: they fit into the window.
        open.push(response);
        sent.finished.lock().unwrap().push(id);
    }
    (client, open)
}

/// The metrics when all requests have ended and the queues are empty.
async fn until_flushed(process: &GatewayProcess) -> String {
    let deadline = Instant::now() + FLUSH;
    loop {
        let metrics = process.gateway.metrics("/metrics").await;
        let left = [
            "apiserver_current_inflight_requests",
            "apiserver_longrunning_requests",
            "portcullis_audit_queue_events",
        ]
        .map(|name| sum_metric(&metrics, name, &[]));
        if left.iter().sum::<u64>() == 0 || Instant::now() > deadline {
            return metrics;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[derive(Default)]
struct Verdict {
    /// Events of the stage `ResponseComplete` or `ResponseStarted` in the log.
    logged: usize,
    faults: Vec<&'static str>,
}

impl Verdict {
    fn expect(&mut self, fault: &'static str, holds: bool) {
        if !holds {
            self.faults.push(fault);
        }
    }

    /// Each finished request is complete exactly once in all files of the log.
    fn log(&mut self, directory: &Path, sent: &Sent) {
        let (mut events, mut files, mut bytes) = (HashMap::<(String, String), usize>::new(), 0, 0);
        for file in std::fs::read_dir(directory).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            (files, bytes) = (files + 1, bytes + text.len());
            for line in text.lines() {
                *events.entry(key(&serde_json::from_str(line).unwrap())).or_default() += 1;
            }
        }
        self.logged = events.values().sum();
        let times = |id: &str| {
            events.get(&("ResponseComplete".to_owned(), id.to_owned())).copied().unwrap_or_default()
        };
        let (finished, left) = (sent.finished.lock().unwrap(), sent.left.lock().unwrap());
        let missing = finished.iter().chain(&*left).filter(|id| times(id) == 0).count();
        let repeated = events.values().filter(|times| **times > 1).count();
        println!(
            "requests: {} finished, {} left by their clients, {WATCHES} of them watches",
            finished.len(),
            left.len()
        );
        println!(
            "log: {} events in {files} files of {} MiB together; {missing} requests missing, {repeated} events repeated",
            self.logged,
            bytes >> 20
        );
        self.expect("requests are missing in the log", missing == 0);
        self.expect("events are repeated in the log", repeated == 0);
        self.expect("the log did not rotate", files > 2);
    }

    /// Each event of the log has reached the webhook once, or is counted as dropped.
    fn webhook(&mut self, webhook: &Webhook, metrics: &str) {
        let received = webhook.received.lock().unwrap();
        let repeated = received.values().filter(|times| **times > 1).count();
        let refused = webhook.refused.load(Ordering::Relaxed);
        let dropped = sum_metric(metrics, "portcullis_audit_events_dropped_total", &["sink=\"webhook\""]);
        let dropped = usize::try_from(dropped).unwrap();
        println!(
            "webhook: {} events, {refused} requests refused; {dropped} events dropped and counted, {repeated} repeated",
            received.len()
        );
        self.expect("the webhook did not fail", refused > 0);
        self.expect("events are lost uncounted", received.len() + dropped == self.logged);
        self.expect("the webhook received events twice", repeated == 0);
    }

    fn print(&self) -> ExitCode {
        if self.faults.is_empty() {
            println!("verdict: passed");
            return ExitCode::SUCCESS;
        }
        println!("verdict: {}", self.faults.join(", "));
        ExitCode::FAILURE
    }
}
