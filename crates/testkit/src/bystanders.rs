//! Well-behaved clients that send requests while another client, or the backend, misbehaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::task::JoinHandle;

use crate::gateway::Gateway;
use crate::messages::text;
use crate::pki::Issued;
use crate::waiting::{TEST_TIMEOUT, in_time};

/// The maximum duration of their requests, on a busy machine.
const UNDISTURBED: Duration = Duration::from_secs(10);

/// One client that keeps its connection, and one that reconnects for each request.
pub struct Bystanders {
    answered: [Arc<AtomicUsize>; 2],
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Duration>>,
}

impl Bystanders {
    /// Starts to send requests for `path`, which must be answered with 200.
    pub async fn start(gateway: &Arc<Gateway>, identity: &Arc<Issued>, path: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let mut kept = gateway.http2(Some(identity)).await;
        assert_eq!(kept.get(path, &[]).await.status(), StatusCode::OK);
        let mut tasks = Vec::new();
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered[0]));
        tasks.push(tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                let response = kept.get(path, &[]).await;
                assert_eq!(response.status(), StatusCode::OK, "on a connection that was open before");
                text(response).await;
                longest = longest.max(started.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
            }
            longest
        }));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered[1]));
        let (gateway, identity) = (Arc::clone(gateway), Arc::clone(identity));
        tasks.push(tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                let mut new = gateway.http1(Some(&identity)).await;
                let response = new.get(path, &[]).await;
                assert_eq!(response.status(), StatusCode::OK, "on a new connection");
                text(response).await;
                longest = longest.max(started.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
            }
            longest
        }));
        Self { answered, stop, tasks }
    }

    /// Waits for further responses to both; panics if a request failed or was delayed.
    pub async fn go_on(&self) {
        let goal = self.answered.each_ref().map(|count| count.load(Ordering::Relaxed) + 5);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.answered.iter().zip(goal).any(|(count, goal)| count.load(Ordering::Relaxed) < goal) {
            let failed = self.tasks.iter().any(JoinHandle::is_finished);
            assert!(!failed && Instant::now() < deadline, "another client is disturbed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops both; panics if a request failed or was delayed.
    pub async fn were_undisturbed(self) {
        self.go_on().await;
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let longest = in_time(task).await.unwrap();
            assert!(longest < UNDISTURBED, "a well-behaved client waited for {longest:?}");
        }
    }
}
