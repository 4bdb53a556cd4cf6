//! The mixed load: reads, writes, watches and tunnels, over both versions of HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::balancer::Balancer;
use super::client::{Call, Client};
use super::record::Recorder;
use super::tunnels::Tunnel;
use super::watches::{Ledger, Watch, version_of};

/// How many of each kind; half of them use HTTP/2.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Clients that read.
    pub readers: usize,
    /// Clients that write.
    pub writers: usize,
    /// Watches. Ten watches over HTTP/2 share a connection.
    pub watches: usize,
    /// Tunnels.
    pub tunnels: usize,
    /// The pause of a client between two requests.
    pub pause: Duration,
}

/// The namespaces over which writes and watches are spread.
pub const NAMESPACES: usize = 10;
/// Watches over HTTP/2 that share a connection.
const WATCHES_PER_CONNECTION: usize = 10;

const TURNS_PER_CONNECTION: usize = 10;

/// The loads so far: no two create objects of the same name, so a 409 shows that a write was sent twice.
static LOADS: AtomicUsize = AtomicUsize::new(0);

/// The running clients.
pub struct Load {
    /// What they see.
    pub recorder: Arc<Recorder>,
    /// The successful writes.
    pub ledger: Arc<Ledger>,
    /// The watches.
    pub watches: Vec<Watch>,
    /// The tunnels.
    pub tunnels: Vec<Tunnel>,
    /// Numbers that have come back through tunnels.
    pub echoes: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts all clients.
    pub fn start(balancer: &Arc<Balancer>, amount: Amount) -> Self {
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let recorder = Arc::new(Recorder::default());
        let ledger = Arc::new(Ledger::default());
        let echoes = Arc::new(AtomicUsize::new(0));
        let client = |http2| Client::new(balancer, http2, &recorder);
        let mut clients = Vec::new();
        for number in 0..amount.readers {
            clients.push(tokio::spawn(read(client(number % 2 == 1), number, amount.pause)));
        }
        for number in 0..amount.writers {
            let ledger = Arc::clone(&ledger);
            clients.push(tokio::spawn(write(client(number % 2 == 1), (load, number), amount.pause, ledger)));
        }
        let mut shared = client(true);
        let watches = (0..amount.watches).map(|number| {
            let http2 = number % 2 == 1;
            if http2 && (number / 2) % WATCHES_PER_CONNECTION == 0 {
                shared = client(true);
            }
            let client = if http2 { shared.clone() } else { client(false) };
            Watch::start(client, number % NAMESPACES, Arc::clone(&recorder))
        });
        let watches = watches.collect();
        let tunnel = |_| Tunnel::start(Arc::clone(balancer), Arc::clone(&recorder), Arc::clone(&echoes));
        let tunnels = (0..amount.tunnels).map(tunnel).collect();
        Self { recorder, ledger, watches, tunnels, echoes, clients }
    }

    /// Whether all streams are open.
    pub fn is_complete(&self) -> bool {
        self.watches.iter().all(Watch::has_begun) && self.tunnels.iter().all(Tunnel::is_open)
    }

    /// Ends the short requests, so that the watches can catch up.
    pub fn stop_requests(&mut self) {
        self.clients.drain(..).for_each(|client| client.abort());
    }

    /// Waits until each watch has shown all successful writes so far. Returns the number of those that are missing
    /// after `limit`, over all watches.
    pub async fn lost_events(&self, limit: Duration) -> usize {
        let writes = self.ledger.len();
        let deadline = Instant::now() + limit;
        loop {
            let missing = self.watches.iter().map(|watch| watch.missing(&self.ledger, writes)).sum();
            if missing == 0 || Instant::now() > deadline {
                return missing;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// The events of all watches.
    pub fn events(&self) -> usize {
        self.watches.iter().map(Watch::events).sum()
    }

    /// How often a watch had to list again.
    pub fn relists(&self) -> usize {
        self.watches.iter().map(Watch::relists).sum()
    }

    /// Numbers that have come back through tunnels.
    pub fn echoed(&self) -> usize {
        self.echoes.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop_requests();
    }
}

/// Every other pair of clients connects again now and then, as short-lived programs do.
async fn reconnect(client: &Client, number: usize, turn: usize) {
    if number % 4 >= 2 && turn.is_multiple_of(TURNS_PER_CONNECTION) {
        client.disconnect().await;
    }
}

/// Gets one object and lists some, in turn.
async fn read(client: Client, number: usize, pause: Duration) {
    for turn in number.. {
        reconnect(&client, number, turn).await;
        let namespace = turn % NAMESPACES;
        let path = if turn % 2 == 0 {
            format!("/api/v1/namespaces/load-{namespace}")
        } else {
            format!("/api/v1/namespaces/load-{namespace}/configmaps?limit=20")
        };
        client.call(&Call::get(&path)).await;
        sleep(pause).await;
    }
}

/// Creates an object, changes it, and deletes it, in turn.
async fn write(client: Client, (load, number): (usize, usize), pause: Duration, ledger: Arc<Ledger>) {
    for turn in 0.. {
        reconnect(&client, number, turn).await;
        let namespace = (number + turn) % NAMESPACES;
        let maps = format!("/api/v1/namespaces/load-{namespace}/configmaps");
        let object = format!("{maps}/w{load}-{number}-{turn}");
        let created = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"w{load}-{number}-{turn}"}},"data":{{"turn":"{turn}"}}}}"#
        );
        let note = |body: Option<bytes::Bytes>| {
            let version = body.and_then(|body| version_of(&body))?;
            ledger.add(namespace, version);
            Some(())
        };
        let create = client.call(&Call::write(Method::POST, &maps, "application/json", &created)).await;
        sleep(pause).await;
        // If the outcome of the creation is unknown, the object may not exist.
        if note(create).is_none() {
            continue;
        }
        let change = r#"{"data":{"changed":"yes"}}"#;
        let patch = Call::write(Method::PATCH, &object, "application/merge-patch+json", change);
        note(client.call(&patch).await);
        sleep(pause).await;
        if turn % 4 == 0 {
            client.call(&Call::write(Method::DELETE, &object, "", "")).await;
            sleep(pause).await;
        }
    }
}
