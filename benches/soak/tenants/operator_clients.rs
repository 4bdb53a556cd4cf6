//! Well-behaved clients beside an attack: the operator's, its probes and its reloads, and those of two other tenants. They
//! send at fixed times, whether or not earlier requests were answered, so that a slow answer delays no other.

mod probes;
mod reloads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use testkit::pki::Issued;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::audit_trail::ID_PREFIX;
use super::connection::{Sender, SharedConnection, Version, cause};
use super::figures::REQUEST_TIMEOUT;
use super::outcomes::{ClientKind, Outcomes};
use super::site::{CALM, CALM_TOKEN, Site};
use crate::backend::WATCH;

/// Between two requests of the operator's token, and of its certificate.
const REQUEST_INTERVAL: Duration = Duration::from_millis(10);
/// Between two requests of a calm tenant.
const TENANT_INTERVAL: Duration = Duration::from_millis(100);
/// Between two new connections.
const CONNECTION_INTERVAL: Duration = Duration::from_secs(1);
/// A watch without events for this long has failed; it has one each second.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
const PATH: &str = "/api/v1/namespaces/default/configmaps/one";

/// The running clients.
pub(crate) struct OperatorClients {
    tasks: JoinSet<()>,
    ending: watch::Sender<bool>,
}

#[derive(Clone)]
struct ClientContext {
    site: Arc<Site>,
    outcomes: Arc<Outcomes>,
    ending: watch::Receiver<bool>,
    next_id: Arc<AtomicU64>,
}

impl OperatorClients {
    pub(crate) fn start(site: &Arc<Site>, outcomes: &Arc<Outcomes>) -> Self {
        let (ending, end) = watch::channel(false);
        let (site, outcomes) = (Arc::clone(site), Arc::clone(outcomes));
        let context = ClientContext { site, outcomes, ending: end, next_id: Arc::default() };
        let mut tasks = JoinSet::new();
        for kind in [ClientKind::Token, ClientKind::Certificate] {
            tasks.spawn(context.clone().request_regularly(kind));
        }
        for number in 0..CALM.len() {
            tasks.spawn(context.clone().request_as_tenant(number));
        }
        tasks.spawn(context.clone().request_directly());
        tasks.spawn(context.clone().connect_regularly());
        tasks.spawn(context.clone().watch());
        tasks.spawn(context.clone().probe_regularly());
        tasks.spawn(context.reload_regularly());
        Self { tasks, ending }
    }

    /// Stops them, and waits for the requests in progress.
    pub(crate) async fn end(mut self) {
        self.ending.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                eprintln!("a client has ended: {error}");
            }
        }
    }
}

impl ClientContext {
    /// Waits for the next tick; `false` at the end.
    async fn tick(&mut self, ticks: &mut Interval) -> bool {
        tokio::select! {
            biased;
            _ = self.ending.wait_for(|ending| *ending) => false,
            _ = ticks.tick() => true,
        }
    }

    /// Runs `each` in a task of its own with each tick, and waits for all at the end.
    async fn regularly<F>(mut self, every: Duration, mut each: impl FnMut(Self) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (mut ticks, mut tasks) = (regular(every), JoinSet::new());
        while self.tick(&mut ticks).await {
            tasks.spawn(each(self.clone()));
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// The next audit ID.
    fn audit_id(&self) -> (u64, String) {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        (number, format!("{ID_PREFIX}{number}"))
    }

    async fn request_regularly(self, kind: ClientKind) {
        let identity = (kind == ClientKind::Certificate).then_some(&self.site.alice);
        let connection = SharedConnection::new(self.site.address(), identity);
        let each = move |context: Self| context.request(kind, Arc::clone(&connection));
        self.regularly(REQUEST_INTERVAL, each).await;
    }

    /// A request of the operator with its own audit ID.
    async fn request(self, kind: ClientKind, connection: Arc<SharedConnection>) {
        let (number, id) = self.audit_id();
        let bearer = format!("Bearer {}", self.site.accounts.token());
        let mut headers = vec![("audit-id", id.as_str())];
        headers.extend((kind == ClientKind::Token).then_some(("authorization", bearer.as_str())));
        let path = format!("/own{PATH}");
        let error = self.timed(kind, get(&connection, &path, &headers)).await;
        if error.is_none() {
            self.outcomes.answered(number);
        }
    }

    /// Runs a request, and records its outcome.
    async fn timed(
        &self,
        kind: ClientKind,
        request: impl Future<Output = Result<(), String>>,
    ) -> Option<String> {
        let started = Instant::now();
        let outcome = timeout(REQUEST_TIMEOUT, request).await;
        let error = outcome.unwrap_or_else(|_| Err("no answer in time".to_owned())).err();
        self.outcomes.record(kind, started.elapsed(), error.clone());
        error
    }

    async fn request_directly(self) {
        let (address, front) = &self.site.own;
        let connection = SharedConnection::new(*address, Some(front));
        let each = move |context: Self| {
            let connection = Arc::clone(&connection);
            async move {
                context.timed(ClientKind::Direct, get(&connection, PATH, &[])).await;
            }
        };
        self.regularly(REQUEST_INTERVAL, each).await;
    }

    async fn request_as_tenant(self, number: usize) {
        let connection = SharedConnection::new(self.site.address(), None);
        let path = Arc::new(format!("/clusters/{}{PATH}", CALM[number]));
        let each = move |context: Self| {
            let (connection, path) = (Arc::clone(&connection), Arc::clone(&path));
            async move {
                let token = match number {
                    0 => CALM_TOKEN.to_owned(),
                    _ => context.site.calm_accounts.token(),
                };
                let bearer = format!("Bearer {token}");
                let headers = [("authorization", bearer.as_str())];
                context.timed(ClientKind::Tenant, get(&connection, &path, &headers)).await;
            }
        };
        self.regularly(TENANT_INTERVAL, each).await;
    }

    /// Opens a connection, of each version in turn, with a certificate or a token in turn.
    async fn connect_regularly(self) {
        let mut number = 0_usize;
        let each = move |context: Self| {
            number += 1;
            let version = if number.is_multiple_of(2) { Version::Http2 } else { Version::Http1 };
            let identity = (number % 4 < 2).then(|| Arc::clone(&context.site.alice));
            async move {
                let request = context.use_new_connection(version, identity.as_deref());
                context.timed(ClientKind::NewConnection, request).await;
            }
        };
        self.regularly(CONNECTION_INTERVAL, each).await;
    }

    /// Sends a request, and opens a watch, on a new connection.
    async fn use_new_connection(&self, version: Version, identity: Option<&Issued>) -> Result<(), String> {
        let mut sender = Sender::connect(self.site.address(), version, identity).await?;
        let bearer = format!("Bearer {}", self.site.accounts.token());
        let headers = [("authorization", bearer.as_str())];
        let headers = if identity.is_some() { &[][..] } else { &headers[..] };
        let response = sender.get(&format!("/own{PATH}"), headers).await?;
        read(succeeded(response)?).await?;
        let response = sender.get(&format!("/own{WATCH}"), headers).await?;
        next_data(&mut succeeded(response)?).await.map(drop)
    }

    /// Reads a watch, and opens it again when it has failed.
    async fn watch(mut self) {
        while !*self.ending.borrow() {
            let (started, mut ending) = (Instant::now(), self.ending.clone());
            let error = tokio::select! {
                outcome = self.read_watch() => outcome.err(),
                _ = ending.wait_for(|ending| *ending) => None,
            };
            self.outcomes.record(ClientKind::Watch, started.elapsed(), error.clone());
            if error.is_some() {
                timeout(EVENT_TIMEOUT, self.ending.wait_for(|ending| *ending)).await.ok();
            }
        }
    }

    async fn read_watch(&self) -> Result<(), String> {
        let late = |_| Err("no answer in time".to_owned());
        let connection = SharedConnection::new(self.site.address(), Some(&self.site.alice));
        let path = format!("/own{WATCH}");
        let response = timeout(REQUEST_TIMEOUT, connection.get(&path, &[])).await.unwrap_or_else(late)?;
        let (mut body, mut text, mut expected) = (succeeded(response)?, Vec::new(), 0_u64);
        loop {
            let data = timeout(EVENT_TIMEOUT, next_data(&mut body)).await;
            text.extend(data.unwrap_or_else(|_| Err("no event in time".to_owned()))?);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                if String::from_utf8_lossy(&line).trim() != expected.to_string() {
                    return Err("an event is missing".to_owned());
                }
                expected += 1;
            }
        }
    }
}

fn regular(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// A request whose response is read to the end.
async fn get(connection: &SharedConnection, path: &str, headers: &[(&str, &str)]) -> Result<(), String> {
    read(succeeded(connection.get(path, headers).await?)?).await
}

/// The body of a response of 200.
fn succeeded(response: http::Response<Incoming>) -> Result<Incoming, String> {
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        code => Err(code.as_u16().to_string()),
    }
}

async fn read(body: Incoming) -> Result<(), String> {
    body.collect().await.map(drop).map_err(|error| cause(&error))
}

/// The next data of a body.
async fn next_data(body: &mut Incoming) -> Result<bytes::Bytes, String> {
    match body.frame().await {
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => Err(cause(&error)),
        None => Err("the response ended".to_owned()),
    }
}
