//! What calm users notice of a flooding one, with limits on requests in flight: latencies without and with the flood, in
//! one run. Fails if a request of a calm user is refused, or if the flood doubles their 99th percentile.
//!
//!     cargo bench --bench fairness
//!
//! For comparison, the same flood meets the limits without queues, as kube-apiserver has them without priority and
//! fairness. Both phases alternate, so that other load on the machine affects them alike.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Response, StatusCode};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, text};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(4);
const CALM_USERS: usize = 10;
/// Between two requests of a calm user.
const PAUSE: Duration = Duration::from_millis(5);
/// Requests of the flood under way at once: more than places and queue.
const FLOOD: usize = 120;
const FLOOD_CONNECTIONS: usize = 4;
/// Before the flood sends a refused request again: much less than the `Retry-After` of a second.
const RETRY: Duration = Duration::from_millis(200);
/// How long the API server takes for a request, in milliseconds: what is measured are places, not processor time. With
/// one constant time all requests of the flood would begin and end together, as those of no real user do.
const SERVICE: [u64; 2] = [20, 60];
const LIMIT: usize = 20;
const QUEUE: usize = 50;
const PATH: &str = "/api/v1/namespaces/default/pods";
/// The most that the flood may lengthen the 99th percentile of calm users.
const MAX_RATIO: f64 = 2.0;

/// The requests of all calm users in one phase.
#[derive(Default)]
struct Phase {
    latencies: Vec<Duration>,
    refused: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let pki = Pki::new();
    let received = AtomicU64::new(0);
    let backend = FakeBackend::start(&pki, H2, move |_| {
        let [least, most] = SERVICE;
        // The multiples of a prime: evenly spread, and the same in each run.
        let spread = received.fetch_add(7919, Ordering::Relaxed) % (most - least + 1);
        Box::pin(async move {
            sleep(Duration::from_millis(least + spread)).await;
            Response::new(full("ok"))
        })
    })
    .await;
    let limit = format!("--max-requests-inflight={LIMIT}");
    let start = async |more: Vec<String>| {
        let flags = flags(&pki, backend.address).into_iter().chain([limit.clone()]).chain(more);
        GatewayProcess::start(env!("CARGO_BIN_EXE_portcullis"), flags).await
    };
    let fair = start(vec![format!("--inflight-queue-length-limit={QUEUE}")]).await;
    let plain = start(Vec::new()).await;
    let calm: Vec<Issued> =
        (0..CALM_USERS).map(|number| pki.clients.leaf().cn(&format!("calm-{number}")).issue()).collect();
    let flood = pki.clients.leaf().cn("flood").issue();

    let [mut quiet, mut flooded, mut without_queues] = [(); 3].map(|()| Phase::default());
    for _ in 0..ROUNDS {
        quiet.add(run(&fair.gateway, &calm).await);
        let running = Flood::start(&fair.gateway, &flood).await;
        flooded.add(run(&fair.gateway, &calm).await);
        running.stop().await;
        let running = Flood::start(&plain.gateway, &flood).await;
        without_queues.add(run(&plain.gateway, &calm).await);
        running.stop().await;
    }
    println!(
        "{CALM_USERS} calm users, {LIMIT} places, a flood of {FLOOD} requests; {ROUNDS} rounds of {} s\n",
        ROUND.as_secs()
    );
    println!("{:<34}{:>9}{:>11}{:>11}{:>11}", "", "requests", "refused", "p50", "p99");
    for (name, phase) in [
        ("without the flood", &quiet),
        ("with the flood, fair queues", &flooded),
        ("with the flood, without queues", &without_queues),
    ] {
        phase.print(name);
    }
    let ratio = flooded.percentile(0.99).as_secs_f64() / quiet.percentile(0.99).as_secs_f64();
    println!("\nthe flood lengthens the 99th percentile {ratio:.2} times (at most {MAX_RATIO})");
    if ratio > MAX_RATIO || quiet.refused + flooded.refused > 0 {
        println!("FAILED");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// All calm users for one round, each with one request at a time.
async fn run(gateway: &Gateway, users: &[Issued]) -> Phase {
    let end = Instant::now() + ROUND;
    let user = async |identity: &Issued| {
        let mut client = gateway.http2(Some(identity)).await;
        let mut phase = Phase::default();
        while Instant::now() < end {
            let started = Instant::now();
            let response = client.get(PATH, &[]).await;
            let code = response.status();
            text(response).await;
            match code {
                StatusCode::OK => phase.latencies.push(started.elapsed()),
                StatusCode::TOO_MANY_REQUESTS => phase.refused += 1,
                code => unreachable!("{code}"),
            }
            sleep(PAUSE).await;
        }
        phase
    };
    let mut all = Phase::default();
    for phase in join_all(users.iter().map(user)).await {
        all.add(phase);
    }
    all
}

impl Phase {
    fn add(&mut self, mut other: Self) {
        self.latencies.append(&mut other.latencies);
        self.refused += other.refused;
    }

    fn percentile(&self, part: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    fn print(&self, name: &str) {
        let milliseconds = |part| format!("{:.1} ms", self.percentile(part).as_secs_f64() * 1e3);
        let all = self.latencies.len() + self.refused;
        let refused = format!("{:.1} %", self.refused as f64 / all.max(1) as f64 * 100.0);
        println!("{name:<34}{all:>9}{refused:>11}{:>11}{:>11}", milliseconds(0.5), milliseconds(0.99));
    }
}

/// A user that always has [`FLOOD`] requests under way.
struct Flood {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Starts it, and waits until it has met the limit.
    async fn start(gateway: &Gateway, identity: &Issued) -> Self {
        let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..FLOOD_CONNECTIONS {
            let connection = gateway.http2(Some(identity)).await;
            for _ in 0..FLOOD / FLOOD_CONNECTIONS {
                let mut client = connection.share();
                let (stop, refused) = (Arc::clone(&stop), Arc::clone(&refused));
                tasks.push(tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let response = client.get(PATH, &[]).await;
                        let code = response.status();
                        text(response).await;
                        if code == StatusCode::TOO_MANY_REQUESTS {
                            refused.fetch_add(1, Ordering::Relaxed);
                            sleep(RETRY).await;
                        }
                    }
                }));
            }
        }
        testkit::until("the limit", || refused.load(Ordering::Relaxed) > 0).await;
        Self { stop, tasks }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}
