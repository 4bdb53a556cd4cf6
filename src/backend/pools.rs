//! The connections of one worker thread: a pool per endpoint, failover between endpoints, and retries of requests that
//! were not written.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, poll_immediate, select};
use http::{Request, Response};
use portcullis_http::body::{Body, EventTracker, REPLAY_SHARES};
use portcullis_limits::budget::{Budget, BudgetPermit};
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};
use portcullis_system::sync::lock;
use tokio::time::{Instant, sleep};

use super::author::RequestAuthor;
use super::balance::{EjectionCause, Load, LoadTicket, MovableWatch, Random};
use super::connect_error::is_of_this_machine;
use super::pool::{Pool, QUEUE_TIMEOUT, SendError, SendOutcome, UpgradeConnection};
use super::sharing::SharingClass;
use crate::backend::endpoint::{ConnectError, Endpoint};
use crate::backend::{Backend, contains};

/// Bodies of anonymous requests, which are read completely before they are sent, in KiB.
const BODY_BUFFERS: Shares = Shares::new(64 << 10, 8 << 10).with_queue(512, 128);

/// An HTTP/2 connection that is idle for one to two of these intervals is closed: hundreds of clusters must not keep
/// the connections of their busiest time.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(45);

/// A pool for each endpoint in use.
#[derive(Debug)]
pub(crate) struct Pools {
    /// The version of `current`, to be read without its lock.
    version: AtomicU64,
    current: Mutex<KnownPools>,
    body_buffers: FairLimiter<IpAddr>,
    /// For bodies that may have to be sent again.
    replays: Budget,
    /// Of this worker thread, so that threads do not share a cache line for it.
    random: Random,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            current: Mutex::default(),
            body_buffers: FairLimiter::new(BODY_BUFFERS),
            replays: Budget::new(REPLAY_SHARES),
            random: Random::default(),
        }
    }
}

#[derive(Debug, Default)]
struct KnownPools {
    version: u64,
    /// The endpoints of that version.
    endpoints: Vec<Arc<Endpoint>>,
    pools: Vec<Arc<Pool>>,
}

impl Pools {
    /// Drops, once per version of the endpoints in force, the pools of those that are no longer among them. Open streams
    /// continue to their end. Costs one load when the version is known.
    pub(crate) fn retain_endpoints(&self, version: u64, endpoints: impl Iterator<Item = Arc<Endpoint>>) {
        if version <= self.version.load(Ordering::Acquire) {
            return;
        }
        let mut known = lock(&self.current);
        // Never back to an older version.
        if version <= known.version {
            return;
        }
        let KnownPools { endpoints: current, pools, .. } = &mut *known;
        *current = endpoints.collect();
        pools.retain(|pool| contains(current, pool.endpoint()));
        known.version = version;
        self.version.store(version, Ordering::Release);
    }

    /// Divides what bodies of tenants' requests may hold among so many tenants.
    pub(crate) fn divide_among(&self, tenants: usize) {
        self.replays.divide_among(tenants);
    }

    /// Closes the idle connections of all pools every [`IDLE_CHECK_INTERVAL`]. Never returns.
    pub(crate) async fn close_idle_connections(&self) {
        loop {
            sleep(IDLE_CHECK_INTERVAL).await;
            self.close_idle();
        }
    }

    pub(super) fn close_idle(&self) {
        let pools = lock(&self.current).pools.clone();
        for pool in pools {
            pool.close_idle();
        }
    }

    #[cfg(test)]
    pub(super) fn open_connections(&self, class: SharingClass<'_>) -> usize {
        lock(&self.current).pools.iter().map(|pool| pool.open_connections(class)).sum()
    }

    fn of(&self, endpoint: &Arc<Endpoint>) -> Arc<Pool> {
        let mut known = lock(&self.current);
        if let Some(pool) = known.pools.iter().find(|pool| Arc::ptr_eq(pool.endpoint(), endpoint)) {
            return Arc::clone(pool);
        }
        let pool = Pool::new(Arc::clone(endpoint));
        // A request to an endpoint that was removed gets a pool that is not kept: no later request would use its connections.
        if contains(&known.endpoints, endpoint) {
            known.pools.push(Arc::clone(&pool));
        }
        pool
    }

    /// Sends a request of the gateway itself. Tries another connection if nothing of the request was written; a request of
    /// which a part was written is for the caller to retry.
    pub(crate) async fn send(
        &self,
        backend: &Backend,
        request: Box<Request<Body>>,
        class: SharingClass<'_>,
    ) -> Result<Response<Body>, SendError> {
        let load = if class == SharingClass::Long { Load::Long } else { Load::Short };
        let mut attempt = Attempt::new(load, RequestAuthor::Gateway);
        Ok(*self.send_attempt(backend, request, class, &mut attempt).await?)
    }

    /// Sends a request of a client. After a failure, `attempt` names the endpoint, so that the next attempt prefers another one.
    pub(crate) async fn send_attempt(
        &self,
        backend: &Backend,
        mut request: Box<Request<Body>>,
        class: SharingClass<'_>,
        attempt: &mut Attempt,
    ) -> Result<Box<Response<Body>>, SendError> {
        let mut attempts_left: Option<usize> = None;
        loop {
            let author = &attempt.author;
            let (pool, connection, ticket) = self
                .first_reachable(backend, attempt, |pool, ticket| async move {
                    let connection = pool.reserve(class, author).await?;
                    Ok((pool, connection, ticket))
                })
                .await?;
            let sending = pool.send(connection, request, ticket);
            let sent = if attempt.leaves_silence && backend.endpoints().len() > 1 {
                tokio::select! {
                    biased;
                    sent = sending => sent,
                    () = backend.until_worth_leaving(pool.endpoint(), class) => Err(SendError::Silent),
                }
            } else {
                sending.await
            };
            attempt.record(pool.endpoint(), class, sent.as_ref().err());
            let (unsent, error) = match sent? {
                SendOutcome::Response(mut response) => {
                    if attempt.may_be_refused {
                        attempt.answered = Some(Arc::clone(pool.endpoint()));
                    }
                    let balance = pool.endpoint().balance();
                    balance.note_answer();
                    if attempt.is_movable
                        && backend.watch_moves().is_some()
                        && let Some(events) = EventTracker::of(response.headers())
                    {
                        let watch = MovableWatch::begin(balance, Instant::now());
                        let moved = Box::pin(watch.moved());
                        response = Box::new(response.map(|body| body.end_between_events(moved, events)));
                    }
                    return Ok(response);
                }
                SendOutcome::NotWritten(request, error) => (request, error),
            };
            // All idle connections may have been closed, as they are when the API server restarts.
            let attempts = attempts_left.unwrap_or_else(|| pool.open_connections(class) + 1);
            if attempts == 0 {
                return Err(SendError::Broken(error));
            }
            attempts_left = Some(attempts - 1);
            backend.retries(class).note_not_written();
            request = unsent;
        }
    }

    /// Reserves memory for the body of an anonymous request while it is read and until it is sent.
    pub(crate) async fn reserve_body_buffer(
        &self,
        client: IpAddr,
        bytes: u64,
    ) -> Result<Permit<IpAddr>, SendError> {
        let weight = usize::try_from(bytes.div_ceil(1 << 10)).map_err(|_| SendError::Busy)?;
        let until = Instant::now() + QUEUE_TIMEOUT;
        self.body_buffers.acquire(client, weight, until).await.map_err(|_| SendError::Busy)
    }

    /// Memory for the body of a request until its response begins, in the share of its client.
    // threat: retained-bodies
    pub(crate) fn replay_memory(&self, attempt: &Attempt, backend: &Backend) -> BudgetPermit {
        self.replays.reserve(attempt.author.owner(&backend.owner))
    }

    /// Connects for one upgrade.
    pub(crate) async fn connect_for_upgrade(
        &self,
        backend: &Backend,
        class: SharingClass<'_>,
        attempt: Attempt,
    ) -> Result<UpgradeConnection, SendError> {
        let author = &attempt.author;
        let connect =
            |pool: Arc<Pool>, ticket| async move { pool.connect_for_upgrade(class, author, ticket).await };
        self.first_reachable(backend, &attempt, connect).await
    }

    /// Calls `reserve` with the pools of trusted endpoints, the best first, until one can be connected to. Leaves out those
    /// with as many requests as they may have. Nothing was sent to the others, so these attempts cost no retry.
    async fn first_reachable<T, F>(
        &self,
        backend: &Backend,
        attempt: &Attempt,
        reserve: impl Fn(Arc<Pool>, LoadTicket) -> F,
    ) -> Result<T, SendError>
    where
        F: Future<Output = Result<T, SendError>>,
    {
        let mut skipped = Skipped::default();
        while let Some(endpoint) =
            backend.choose(attempt.load, &attempt.tried, &skipped.endpoints, &self.random)
        {
            let trust = endpoint.trust_version();
            // It may have been found, or have passed its self-check, since the impersonation was decided.
            // threat: unauthorized-impersonation
            if attempt.is_constrained && !endpoint.has_constrained_impersonation() {
                skipped.endpoints.push(endpoint);
                continue;
            }
            let limit = if attempt.author.is_gateway() { usize::MAX } else { backend.max_load(attempt.load) };
            let flow = || attempt.author.flow_name();
            let Some(ticket) = endpoint.balance().begin_within(attempt.load, limit, flow) else {
                skipped.add_full(endpoint);
                continue;
            };
            let reserved = {
                // One that has failed for this request is no reason to leave the last one.
                let outdone = backend.until_outdone(&endpoint, &skipped.endpoints);
                let mut reserving = pin!(reserve(self.of(&endpoint), ticket));
                if let Some(reserved) = poll_immediate(reserving.as_mut()).await {
                    Some(reserved)
                } else {
                    let waiting = endpoint.counts().wait();
                    let began = Instant::now();
                    // An endpoint that hangs accepts connections, and answers no handshake. Boxed: few requests wait here.
                    let reserved = match select(reserving, Box::pin(outdone)).await {
                        Either::Left((reserved, _)) => Some(reserved),
                        Either::Right(_) => None,
                    };
                    drop(waiting);
                    backend.timings.connection_wait.observe(began.elapsed());
                    reserved
                }
            };
            let Some(reserved) = reserved else {
                skipped.endpoints.push(endpoint);
                continue;
            };
            match reserved {
                Err(SendError::Connect(error)) => skipped.add(endpoint, error),
                // A connection may take seconds. Another process may listen there since.
                // threat: backend-ignores-identity
                Ok(_) if !endpoint.is_trusted_since(trust) => skipped.endpoints.push(endpoint),
                // Its name may have an older address since.
                Ok(_) if attempt.is_constrained && !endpoint.has_constrained_impersonation() => {
                    skipped.endpoints.push(endpoint);
                }
                Ok(_) if !attempt.author.is_current(backend) => return Err(SendError::NotTrusted),
                outcome => return outcome,
            }
        }
        Err(skipped.into_error(backend))
    }
}

/// The endpoints to which a request was not sent, and why.
#[derive(Default)]
struct Skipped {
    endpoints: Vec<Arc<Endpoint>>,
    is_full: bool,
    lacks_place: bool,
    last_error: Option<ConnectError>,
}

impl Skipped {
    /// One with as many requests as it may have.
    fn add_full(&mut self, endpoint: Arc<Endpoint>) {
        self.is_full = true;
        self.endpoints.push(endpoint);
    }

    /// One to which there is no connection.
    fn add(&mut self, endpoint: Arc<Endpoint>, error: ConnectError) {
        match error {
            ConnectError::TooManyWaiting { .. } => self.is_full = true,
            // Another endpoint may have an open connection.
            ConnectError::NoPlace { .. } => self.lacks_place = true,
            error => {
                tracing::debug!(%error, "endpoint skipped");
                self.last_error = Some(error);
            }
        }
        self.endpoints.push(endpoint);
    }

    fn into_error(self, backend: &Backend) -> SendError {
        if self.lacks_place {
            return SendError::NoPlace;
        }
        if self.is_full {
            return SendError::Overloaded;
        }
        // A connection error tells the operator more than "not trusted".
        let known = || backend.endpoints().iter().find_map(|endpoint| endpoint.last_error());
        self.last_error.or_else(known).map_or(SendError::NotTrusted, SendError::Connect)
    }
}

/// The attempts to send one request.
#[derive(Debug)]
pub(crate) struct Attempt {
    load: Load,
    author: RequestAuthor,
    /// Whether the request can be sent again while it waits for a response.
    pub(crate) leaves_silence: bool,
    /// Whether the response may end early, because the client sends the request again: only a watch.
    pub(crate) is_movable: bool,
    /// Set when the request body fails, which breaks the stream: no failure of the endpoint.
    pub(crate) body_failed: Arc<AtomicBool>,
    /// Whether the API server may refuse it in a response because it shuts down, so that it can be sent again.
    pub(crate) may_be_refused: bool,
    /// Whether the gateway has allowed it by the verbs of constrained impersonation, so that no API server may get it to
    /// which they mean nothing.
    pub(crate) is_constrained: bool,
    /// The endpoints at which it has failed.
    tried: Vec<Arc<Endpoint>>,
    /// The endpoint that has answered.
    answered: Option<Arc<Endpoint>>,
}

impl Attempt {
    /// The first attempt.
    pub(crate) fn new(load: Load, author: RequestAuthor) -> Self {
        Self {
            load,
            author,
            leaves_silence: false,
            is_movable: false,
            body_failed: Arc::default(),
            may_be_refused: false,
            is_constrained: false,
            tried: Vec::new(),
            answered: None,
        }
    }

    /// Leaves the endpoint that has answered, if there is a trusted one that this request has not tried.
    pub(crate) fn leave_endpoint(&mut self, backend: &Backend) -> bool {
        self.tried.extend(self.answered.take());
        let endpoints = backend.endpoints();
        endpoints.iter().any(|endpoint| endpoint.is_trusted() && !contains(&self.tried, endpoint))
    }

    /// Records a failure at an endpoint.
    fn record(&mut self, endpoint: &Arc<Endpoint>, class: SharingClass<'_>, error: Option<&SendError>) {
        let Some(error) = error else { return };
        self.tried.push(Arc::clone(endpoint));
        // Pods, aggregated API servers and clients could break connections at will, and so eject every endpoint.
        let is_own = class.is_answered_by_backend() && !self.body_failed.load(Ordering::Relaxed);
        if matches!(error, SendError::Broken(_)) && is_own && !is_of_this_machine(error) {
            endpoint.balance().note_failure(EjectionCause::Broken, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::balance::Readiness;
    use crate::backend::testing::{backend, settings, with_settings};
    use crate::limits::testing::assert_the_last_of_nine_tenants_has;

    #[tokio::test]
    async fn an_endpoint_that_is_distrusted_while_a_request_waits_does_not_get_it() {
        let (backend, pools) = (backend(), Pools::default());
        let endpoint = &backend.endpoints()[0];
        let attempt = Attempt::new(Load::Short, RequestAuthor::Gateway);
        for regains_trust in [false, true] {
            assert!(endpoint.set_trusted(endpoint.trust_version()));
            let at_once = pools.first_reachable(&backend, &attempt, |_, _| std::future::ready(Ok(()))).await;
            assert!(at_once.is_ok());
            let reserved = pools
                .first_reachable(&backend, &attempt, |_, _| async {
                    tokio::task::yield_now().await;
                    endpoint.distrust();
                    // Another process, which passes, is not the one that the connection leads to.
                    if regains_trust {
                        endpoint.set_trusted(endpoint.trust_version());
                    }
                    Ok(())
                })
                .await;
            assert!(matches!(reserved, Err(SendError::NotTrusted)), "{regains_trust}: {reserved:?}");
        }
    }

    /// Whatever the gateway has decided before: the endpoint may have been found, or have passed its check, since.
    #[tokio::test]
    async fn a_constrained_impersonation_goes_to_no_api_server_that_may_not_know_it() {
        let (backend, pools) = (backend(), Pools::default());
        let endpoint = &backend.endpoints()[0];
        let sent = async |is_constrained| {
            let mut attempt = Attempt::new(Load::Short, RequestAuthor::Gateway);
            attempt.is_constrained = is_constrained;
            let reserved = pools.first_reachable(&backend, &attempt, |_, _| std::future::ready(Ok(())));
            reserved.await.is_ok()
        };
        let version = |text: &str| Some(text.to_owned());
        for (versions, expected) in [
            (vec![], false),
            (vec![version("v1.34.4")], false),
            (vec![version("v1.37.2"), None], false),
            (vec![version("v1.37.2")], true),
        ] {
            endpoint.distrust();
            let before = endpoint.trust_version();
            endpoint.learn_version(before, &versions);
            assert!(endpoint.set_trusted(before));
            assert_eq!(sent(true).await, expected, "{versions:?}");
            assert_eq!(backend.has_constrained_impersonation(), expected, "{versions:?}");
            assert!(sent(false).await, "{versions:?}");
        }
        endpoint.distrust();
        assert!(endpoint.set_trusted(endpoint.trust_version()));
        assert!(!sent(true).await, "another process may listen there");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_does_not_leave_the_last_endpoint_for_one_that_it_has_left() {
        let mut settings = settings();
        let mut second = settings.endpoints[0].clone();
        second.address.port += 1;
        settings.endpoints.push(second);
        let (backend, pools) = (with_settings(&settings), Pools::default());
        for endpoint in backend.endpoints().iter() {
            assert!(endpoint.set_trusted(endpoint.trust_version()));
        }
        // Both are slow, in turn: while the request waits for one, the other one answers probes again.
        let slow = |pool: Arc<Pool>, _| {
            let endpoints = backend.endpoints();
            async move {
                for endpoint in endpoints.iter() {
                    let is_silent = Arc::ptr_eq(endpoint, pool.endpoint());
                    let readiness = if is_silent { Readiness::Silent } else { Readiness::Ready };
                    endpoint.balance().set_readiness(readiness);
                }
                sleep(Duration::from_secs(4)).await;
                Ok(())
            }
        };
        let attempt = Attempt::new(Load::Short, RequestAuthor::Gateway);
        let reserved = pools.first_reachable(&backend, &attempt, slow).await;
        assert!(reserved.is_ok(), "{reserved:?}");
    }

    #[test]
    fn however_many_tenants_fill_the_memory_of_bodies_one_more_has_its_part() {
        let pools = Pools::default();
        pools.divide_among(9);
        assert_the_last_of_nine_tenants_has(REPLAY_SHARES.tenants() / 2 / 9, &pools.replays);
    }

    #[test]
    fn pools_of_removed_endpoints_are_dropped() {
        let (before, after) = (backend(), backend());
        let endpoint = &before.endpoints()[0];
        let pools = Pools::default();
        pools.retain_endpoints(1, before.endpoints().iter().cloned());
        let kept = pools.of(endpoint);
        assert!(Arc::ptr_eq(&kept, &pools.of(endpoint)), "requests share it");
        pools.retain_endpoints(2, after.endpoints().iter().cloned());
        // A request of the generation before.
        assert!(!Arc::ptr_eq(&kept, &pools.of(endpoint)));
        pools.retain_endpoints(1, before.endpoints().iter().cloned());
        assert!(pools.current.lock().unwrap().pools.is_empty());
    }
}
