//! Leader election with an API server that answers late, or never.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::super::testing::FakeCluster;
use super::*;

/// An API server with one lease.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    /// The number of writes of the lease.
    writes: Arc<AtomicUsize>,
}

impl Server {
    fn holder(&self) -> Option<String> {
        let lease = self.lease.lock().unwrap();
        lease.as_ref()?["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    /// Applies a request at once, and answers the write with number `n` after `delay(n)`.
    async fn answer(
        self,
        request: Request<Body>,
        delay: fn(usize) -> Option<Duration>,
    ) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        if !head.uri.path().contains("/leases") {
            return Ok(Response::new(Body::from(b"{}".to_vec())));
        }
        let not_found = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
        if head.method == Method::GET {
            let lease = self.lease.lock().unwrap().clone();
            let code = if lease.is_some() { 200 } else { 404 };
            let body = Body::from(lease.unwrap_or(not_found).to_string().into_bytes());
            return Ok(Response::builder().status(code).body(body).unwrap());
        }
        let number = self.writes.fetch_add(1, Ordering::SeqCst);
        let mut lease: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
        lease["metadata"]["resourceVersion"] = (number + 1).to_string().into();
        *self.lease.lock().unwrap() = Some(lease.clone());
        match delay(number) {
            Some(delay) => sleep(delay).await,
            None => std::future::pending().await,
        }
        Ok(Response::new(Body::from(lease.to_string().into_bytes())))
    }

    /// A context for an elector of this server.
    fn context(&self, delay: fn(usize) -> Option<Duration>) -> ControllerContext {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| server.clone().answer(request, delay));
        let mut context = FakeCluster::new().context();
        context.client = Client::new(service, "default");
        let mut settings = super::super::settings::ControllerSettings::clone(&context.settings);
        settings.election = Some(LeaderElectionSettings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            name: "controllers".to_owned(),
            namespace: "kube-system".to_owned(),
        });
        context.settings = Arc::new(settings);
        context
    }
}

#[tokio::test(start_paused = true)]
async fn one_renewal_without_an_answer_does_not_cost_the_lease() {
    let server = Server::default();
    let context = server.context(|number| (number != 3).then_some(Duration::ZERO));
    let (begun, stop) = (AtomicUsize::new(0), CancellationToken::new());
    let leading = lead(&context, &stop, |_| async {
        begun.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>().await;
    });
    assert!(timeout(Duration::from_mins(1), leading).await.is_err());
    assert_eq!(begun.load(Ordering::SeqCst), 1, "led without interruption");
    assert!(server.writes.load(Ordering::SeqCst) > 10);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_while_it_takes_the_lease_releases_it() {
    let server = Server::default();
    let context = server.context(|number| Some(Duration::from_secs(if number == 0 { 3 } else { 0 })));
    let stop = CancellationToken::new();
    let stopping = async {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(server.holder().as_deref(), Some("test"), "written and not yet answered");
        stop.cancel();
    };
    tokio::join!(lead(&context, &stop, |_| std::future::pending()), stopping);
    assert_eq!(server.holder().as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_elector_has_no_gauge() {
    let server = Server::default();
    let context = server.context(|_| Some(Duration::ZERO));
    let counted = || context.metrics.render().0.contains("leader_election_master_status{");
    let stop = CancellationToken::new();
    let stopping = async {
        sleep(Duration::from_secs(1)).await;
        assert!(counted());
        stop.cancel();
    };
    tokio::join!(lead(&context, &stop, |_| std::future::pending()), stopping);
    assert!(!counted());
}

#[tokio::test(start_paused = true)]
async fn an_elector_retries_until_it_can_read_the_lease() {
    let begun = Instant::now();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = Server::default();
    let answering = server.clone();
    // Accepts requests, and answers none for ten minutes.
    let service = service_fn(move |request: Request<Body>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let server = answering.clone();
        async move {
            if begun.elapsed() < Duration::from_mins(10) {
                std::future::pending::<()>().await;
            }
            server.answer(request, |_| Some(Duration::ZERO)).await
        }
    });
    let mut context = server.context(|_| None);
    context.client = Client::new(service, "default");
    let (led, stop) = (Mutex::new(None), CancellationToken::new());
    let leading = lead(&context, &stop, |_| async {
        led.lock().unwrap().get_or_insert(begun.elapsed());
        std::future::pending::<()>().await;
    });
    assert!(timeout(Duration::from_mins(11), leading).await.is_err());
    let led = led.lock().unwrap().expect("leads in the end");
    assert!(led >= Duration::from_mins(10) && led < Duration::from_secs(610), "{led:?}");
    assert!(asked.load(Ordering::SeqCst) > 50, "retried all the time");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_renewals_are_never_answered_stops_in_time_and_leads_again() {
    let server = Server::default();
    // The second to the twentieth write are applied but not answered.
    let context = server.context(|number| (!(1..20).contains(&number)).then_some(Duration::ZERO));
    let (times, stop, begun) = (Mutex::new(Vec::new()), CancellationToken::new(), Instant::now());
    let leading = lead(&context, &stop, |mut stopping| {
        times.lock().unwrap().push(("begins", begun.elapsed()));
        let times = &times;
        async move {
            let grace = stopping.requested().await;
            assert_eq!(grace, Duration::ZERO, "no grace for writes in flight");
            times.lock().unwrap().push(("ends", begun.elapsed()));
        }
    });
    assert!(timeout(Duration::from_mins(5), leading).await.is_err());
    let times = times.into_inner().unwrap();
    let steps: Vec<&str> = times.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps[..3], ["begins", "ends", "begins"], "{times:?}");
    assert!(times[1].1 <= times[0].1 + Duration::from_secs(10), "{times:?}");
}

/// Blocks its thread until the test has seen enough.
fn blocking(
    _: super::super::settings::ControllerName,
    context: ControllerContext,
) -> futures_util::future::BoxFuture<'static, Infallible> {
    Box::pin(async move {
        while context.metrics.panics.get() == 0 {
            std::thread::yield_now();
        }
        std::future::pending().await
    })
}

#[test]
fn work_that_blocks_its_threads_delays_no_renewal() {
    let workers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let leases = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::default();
    let seen = server.clone();
    leases.block_on(async {
        let mut context = server.context(|_| Some(Duration::ZERO));
        let mut settings = super::super::settings::ControllerSettings::clone(&context.settings);
        settings.names = [super::super::settings::ControllerName::CsrCleaner].into();
        let election = settings.election.as_mut().unwrap();
        election.retry_period = Duration::from_millis(1);
        context.settings = Arc::new(settings);
        let (stop, metrics) = (CancellationToken::new(), Arc::clone(&context.metrics));
        let handle = workers.handle();
        let work = |stopping| super::super::work_on(handle, context.clone(), blocking, stopping);
        let looking = async {
            while seen.writes.load(Ordering::SeqCst) < 20 {
                tokio::task::yield_now().await;
            }
            metrics.panics.inc();
            stop.cancel();
        };
        tokio::join!(lead(&context, &stop, work), looking);
    });
    assert_eq!(server.holder().as_deref(), Some(""), "released, and never lost");
}
