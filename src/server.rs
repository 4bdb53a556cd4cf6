//! The life of the server, top to bottom: build the snapshot, bind, start the threads, serve, shut down.

mod admin;
mod buffers;
pub(crate) mod cluster_status;
mod controllers;
mod endpoint_discovery;
mod management;
pub(crate) mod self_check;
mod shutdown;
mod systemd;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_otlp::export::Exporter;
use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use admin::AdminServer;
use buffers::BufferLimiter;
use controllers::ControllerRunner;
use endpoint_discovery::DiscoveryRunner;
use management::{ManagementWatch, SecretReader};
use self_check::SelfCheck;
pub(crate) use shutdown::ForceShutdown;
use shutdown::{ShutdownEvents, ShutdownHandles};
pub(crate) use systemd::ServiceNotifier;
use systemd::VitalThread;

use crate::audit::Audit;
use crate::authn::revocation::watch::RevocationWatch;
use crate::backend::dials::DialLimits;
use crate::backend::pools::Pools;
use crate::cluster::authenticators::{ClusterDeps, ClusterThreads};
use crate::config::flags::MetricsAddress;
use crate::config::resolve::ResolvedConfig;
use crate::config::settings::Settings;
use crate::config::source::ConfigSource;
use crate::descriptors::{Descriptors, raise_file_limit};
use crate::listener::{
    ConnectionLimiter, Listener, ShutdownPhase, ShutdownSignals, Worker, accept_into, drain_backlog,
};
use crate::metrics::Metrics;
#[cfg(feature = "page")]
use crate::page::{self, Page, PageParts};
use crate::pipeline::Gateway;
use crate::pipeline::health::HealthChecks;
use crate::sessions::Sessions;
use crate::state::Live;
use crate::state::reload::{BuildHistory, Reloader, build_snapshot};
use crate::state::snapshot::SnapshotError;
use crate::tasks::compute::ComputePool;
use crate::tasks::{RuntimeThread, Supervisor, start_thread_pool};
use crate::telemetry::ClientLogThrottle;
use crate::traces::Tracer;

/// How often the acceptor checks whether it can stop, while it tells clients to retry elsewhere.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest pause of reload and self-check after a panic: without them a revocation does not take effect.
const CONTROL_RESTART_BACKOFF: Duration = Duration::from_secs(2);

fn bind_fix(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::AddrInUse {
        "; another program uses the port: stop it, or choose another one with --secure-port, or --metrics-bind-address"
    } else {
        ""
    }
}

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings cannot be served.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}{}", bind_fix(.source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A thread or a runtime cannot be made.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A running gateway. Dropping it aborts every connection; [`Server::shut_down`] ends it gracefully.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    page_address: Option<SocketAddr>,
    phase: watch::Sender<ShutdownPhase>,
    force_shutdown: ForceShutdown,
    shutdown_handles: Mutex<Option<ShutdownHandles>>,
    vital_threads: Vec<VitalThread>,
    shared: ProcessState,
    recordings: RecordingsEnd,
    audit: AuditEnd,
    traces: Option<TracesEnd>,
}

/// The recordings of sessions, which end after the tunnels.
#[derive(Debug)]
struct RecordingsEnd {
    sessions: Arc<Sessions>,
    phase: watch::Sender<ShutdownPhase>,
}

/// How long the recordings of the last sessions may take to be stored.
const RECORDINGS_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

impl RecordingsEnd {
    /// Waits for the recordings. Blocks.
    fn flush(&self) {
        if self.sessions.unfinished() > 0 && !ends_within(RECORDINGS_FLUSH_TIMEOUT, self.sessions.finished())
        {
            let (recordings, timeout) = (self.sessions.unfinished(), RECORDINGS_FLUSH_TIMEOUT);
            error!(
                recordings,
                ?timeout,
                "recordings of sessions lack their end: they were not stored in time"
            );
        }
        self.phase.send_replace(ShutdownPhase::Abort);
    }
}

/// The export of traces, which ends after the requests.
#[derive(Debug)]
struct TracesEnd {
    stop: CancellationToken,
    stopped: Mutex<Receiver<()>>,
}

/// How long the export of the last spans may take.
const TRACES_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl TracesEnd {
    /// Starts the thread of the exporter.
    fn start(exporter: Exporter) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let (sender, stopped) = channel();
        let stopping = stop.clone();
        RuntimeThread::new()?.start("traces", async move || {
            exporter.run(stopping.cancelled()).await;
            sender.send(()).ok();
        })?;
        Ok(Self { stop, stopped: Mutex::new(stopped) })
    }

    /// Exports the spans that still wait. Blocks.
    fn flush(&self) {
        self.stop.cancel();
        if lock(&self.stopped).recv_timeout(TRACES_FLUSH_TIMEOUT).is_err() {
            warn!(timeout = ?TRACES_FLUSH_TIMEOUT, "spans are lost: they were not exported in time");
        }
    }
}

impl Drop for TracesEnd {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The audit, which ends after the requests, whose events it stores.
#[derive(Debug)]
struct AuditEnd {
    audit: Arc<Audit>,
    phase: watch::Sender<ShutdownPhase>,
}

/// How long the events that are not stored yet may take at the end.
const AUDIT_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

impl AuditEnd {
    fn flush(&self) {
        if self.audit.pending() > 0 && !ends_within(AUDIT_FLUSH_TIMEOUT, self.audit.flush()) {
            let events = self.audit.pending();
            error!(events, timeout = ?AUDIT_FLUSH_TIMEOUT, "audit events are lost: they were not stored in time");
        }
        self.phase.send_replace(ShutdownPhase::Abort);
    }
}

/// Waits on this thread, which runs nothing else any more. Returns whether the work has ended in time; without a runtime it is not
/// waited for.
fn ends_within<T>(time: Duration, work: impl Future<Output = T>) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_or(true, |runtime| runtime.block_on(async { timeout(time, work).await.is_ok() }))
}

/// The state that the threads of the process share.
#[derive(Debug, Clone)]
struct ProcessState {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    health: Arc<HealthChecks>,
    throttle: Arc<ClientLogThrottle>,
    clock: Clock,
    shutdown: ShutdownSignals,
    tracer: Option<Arc<Tracer>>,
    dials: DialLimits,
}

impl Server {
    /// Binds, starts the threads and serves `config`, which was loaded from `source`. The port is open when this
    /// returns.
    pub fn start(config: &ResolvedConfig, source: ConfigSource) -> Result<Self, StartError> {
        let settings = &config.settings;
        raise_file_limit();
        let limits = &settings.serving.limits;
        let descriptors = Descriptors::of_process(limits.max_connections, limits.max_connections_per_tenant);
        let dials = DialLimits::new(descriptors.backends, &ByteLedger::new(usize::MAX));
        let (phase, shutdown) = shutdown_signals();
        let metrics = Arc::new(Metrics::new());
        metrics.backend.expose_connections(dials.connections().clone());
        let start = |name| start_runtime(name, shutdown.phase.clone()).map_err(StartError::Thread);
        let clock = Clock::system();
        let (audit_phase, phase_of_audit) = watch::channel(ShutdownPhase::Serving);
        let runtime = start_runtime("audit", phase_of_audit).map_err(StartError::Thread)?;
        let audit = Arc::new(Audit::new(&metrics, &clock, runtime));
        let (recordings_phase, phase_of_recordings) = watch::channel(ShutdownPhase::Serving);
        let runtime = start_runtime("sessions", phase_of_recordings).map_err(StartError::Thread)?;
        let sessions = Arc::new(Sessions::new(&metrics, &clock, runtime));
        let pool = |name| {
            let started = start_compute_pool(name, settings.operation.workers, &shutdown.phase);
            started.map_err(StartError::Thread)
        };
        let threads = ClusterThreads {
            runtime: start("tokens")?,
            checks: pool("token-check")?,
            reviewing: pool("admission")?,
            reviews: start("reviews")?,
        };
        let stores = (Arc::clone(&audit), Arc::clone(&sessions));
        let deps = ClusterDeps::new(threads, Arc::clone(&metrics), stores, dials.clone());
        let mut history = BuildHistory::default();
        let snapshot = build_snapshot(config, None, &deps, &mut history)?;
        let live = Live::new(snapshot, Arc::clone(&deps.reload));
        let (listener, metrics_listener, page_listener) = bind(settings)?;
        let address = listener.address();
        let metrics_address = metrics_listener.as_ref().map(Listener::address);
        let page_address = page_listener.as_ref().map(Listener::address);

        let traces = settings.operation.tracing.as_ref().map(|tracing| Tracer::new(tracing, clock.clone()));
        let (tracer, exporter) = traces.unzip();
        if let Some(tracer) = &tracer {
            metrics.traces.expose(tracer.export_counts());
        }
        let traces = exporter.map(TracesEnd::start).transpose().map_err(StartError::Thread)?;
        let shared = ProcessState {
            health: Arc::new(HealthChecks::new(Arc::clone(&live), shutdown.phase.clone())),
            throttle: Arc::default(),
            clock,
            live,
            metrics,
            shutdown,
            tracer,
            dials,
        };
        let revocation = Arc::clone(&deps.revocation);
        let (live, clock) = (Arc::clone(&shared.live), shared.clock.clone());
        let reloader = Reloader::new(source, settings, history, live, deps, clock);
        let workers = shared.start_workers(settings.operation.workers).map_err(StartError::Thread)?;
        let mut vital_threads = vital_workers(&workers);
        vital_threads.push(shared.start_control(reloader).map_err(StartError::Thread)?);
        shared.start_revocation(revocation).map_err(StartError::Thread)?;
        shared.start_buffer_limiter().map_err(StartError::Thread)?;
        let controllers = shared.start_controllers().map_err(StartError::Thread)?;
        if let Some(listener) = metrics_listener {
            shared.start_admin(listener).map_err(StartError::Thread)?;
        }
        #[cfg(feature = "page")]
        if let Some(listener) = page_listener {
            shared.start_page(listener).map_err(StartError::Thread)?;
        }
        let limiter = ConnectionLimiter::new(descriptors.clients, &workers, Arc::clone(&shared.metrics));
        let (acceptor, workers) =
            shared.start_acceptor(listener, workers, limiter).map_err(StartError::Thread)?;
        vital_threads.push(acceptor);
        info!(%address, metrics = ?metrics_address, page = ?page_address, "serving");

        let events = ShutdownEvents::new();
        let force_shutdown = events.force_shutdown();
        let shutdown_handles = Some(ShutdownHandles { workers, controllers, events }).into();
        let audit = AuditEnd { audit, phase: audit_phase };
        let recordings = RecordingsEnd { sessions, phase: recordings_phase };
        Ok(Self {
            address,
            metrics_address,
            page_address,
            phase,
            force_shutdown,
            shutdown_handles,
            vital_threads,
            shared,
            recordings,
            audit,
            traces,
        })
    }

    /// The address of the API.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of `/metrics`, if enabled.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The address of the page, if enabled.
    pub fn page_address(&self) -> Option<SocketAddr> {
        self.page_address
    }

    /// Reloads the configuration now, whether its files have changed or not.
    pub fn reload(&self) {
        self.shared.live.request_reload();
    }

    /// A handle that ends a graceful shutdown at once.
    pub fn force_shutdown(&self) -> ForceShutdown {
        self.force_shutdown.clone()
    }

    /// Shuts down gracefully: fails `/readyz`, keeps serving for the delay, stops accepting, ends watches one after the
    /// other, lets requests finish for the grace period, aborts the rest. Blocks.
    pub fn shut_down(self) {
        let ProcessState { live, metrics, shutdown, .. } = &self.shared;
        let settings = live.peek().shutdown;
        let shutdown_handles = lock(&self.shutdown_handles).take();
        if let Some(shutdown_handles) = shutdown_handles {
            shutdown::run(settings, &self.phase, &shutdown.watches, shutdown_handles, metrics);
        }
        self.recordings.flush();
        self.audit.flush();
        if let Some(traces) = &self.traces {
            traces.flush();
        }
        info!("shut down");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.phase.send_replace(ShutdownPhase::Abort);
    }
}

fn shutdown_signals() -> (watch::Sender<ShutdownPhase>, ShutdownSignals) {
    let (sender, phase) = watch::channel(ShutdownPhase::Serving);
    (sender, ShutdownSignals { phase, watches: Arc::default() })
}

/// Binds the addresses of the API, of the metrics and of the page.
fn bind(settings: &Settings) -> Result<(Listener, Option<Listener>, Option<Listener>), StartError> {
    let bind = |address, permit_port_sharing| {
        Listener::bind(address, permit_port_sharing).map_err(|source| StartError::Bind { address, source })
    };
    let serving = bind(settings.serving.address, settings.serving.permit_port_sharing)?;
    let metrics = match settings.operation.metrics {
        MetricsAddress::On(address) => Some(bind(address, false)?),
        MetricsAddress::Off => None,
    };
    let page = settings.page.as_ref().map(|page| bind(page.address, false)).transpose()?;
    Ok((serving, metrics, page))
}

fn vital_workers(workers: &[Worker]) -> Vec<VitalThread> {
    let named = workers.iter().enumerate();
    named
        .map(|(index, worker)| VitalThread {
            name: format!("worker-{index}"),
            runtime: worker.runtime().clone(),
        })
        .collect()
}

/// Starts a thread with a runtime of its own.
fn start_runtime(name: &'static str, phase: watch::Receiver<ShutdownPhase>) -> io::Result<Handle> {
    let thread = RuntimeThread::new()?;
    let handle = thread.handle().clone();
    thread.start(name, || aborted(phase))?;
    Ok(handle)
}

/// Starts threads for what takes long: as many compute at once as serve requests, and one is left for the network.
fn start_compute_pool(
    name: &'static str,
    workers: usize,
    phase: &watch::Receiver<ShutdownPhase>,
) -> io::Result<ComputePool> {
    let places = workers.max(1);
    let runtime = start_thread_pool(name, places + 1, aborted(phase.clone()))?;
    Ok(ComputePool::new(runtime, places))
}

/// Waits until the server aborts.
async fn aborted(mut phase: watch::Receiver<ShutdownPhase>) {
    phase.wait_for(|phase| *phase == ShutdownPhase::Abort).await.ok();
}

impl ProcessState {
    /// Starts the worker threads, each with its own connections to the backends.
    fn start_workers(&self, count: usize) -> io::Result<Vec<Worker>> {
        (0..count).map(|index| self.start_worker(index)).collect()
    }

    fn start_worker(&self, index: usize) -> io::Result<Worker> {
        let (gateway, tend_pools) = self.gateway();
        let terms = {
            let live = Arc::clone(&self.live);
            move || {
                let snapshot = live.peek();
                (Arc::clone(&snapshot.tls), snapshot.limits)
            }
        };
        let (metrics, shutdown) = (Arc::clone(&self.metrics), self.shutdown.clone());
        let name = format!("worker-{index}");
        Worker::start(name, gateway, terms, tend_pools, metrics, shutdown)
    }

    /// The request path of one thread, with its own connections to the backends, and the task that tends these.
    fn gateway(&self) -> (Arc<Gateway>, impl Future<Output = ()> + Send + use<>) {
        let pools = Arc::new(Pools::default());
        let gateway = Gateway {
            live: Arc::clone(&self.live),
            pools: Arc::clone(&pools),
            health: Arc::clone(&self.health),
            clock: self.clock.clone(),
            metrics: Arc::clone(&self.metrics),
            throttle: Arc::clone(&self.throttle),
            tracer: self.tracer.clone(),
            ledger: self.dials.ledger().clone(),
        };
        let (live, mut changes) = (Arc::clone(&self.live), self.live.subscribe_endpoints());
        changes.mark_changed();
        let tend_pools = async move {
            let follow_endpoints = async {
                while changes.changed().await.is_ok() {
                    // Before the snapshot.
                    let version = live.endpoints_version();
                    let snapshot = live.snapshot();
                    pools.retain_endpoints(version, snapshot.endpoints());
                    pools.divide_among(snapshot.tenants().count());
                }
            };
            tokio::join!(follow_endpoints, pools.close_idle_connections());
        };
        (Arc::new(gateway), tend_pools)
    }

    /// Starts the thread of the page.
    #[cfg(feature = "page")]
    fn start_page(&self, listener: Listener) -> io::Result<()> {
        let (gateway, tend_pools) = self.gateway();
        let (phase, shutdown) = (self.shutdown.phase.clone(), self.shutdown.clone());
        let parts = PageParts { gateway, shutdown, health: cluster_status::page_health };
        let page = Page::new(parts).map_err(io::Error::other)?;
        page::start(listener, page, tend_pools, phase)
    }

    /// Starts the thread that runs the reloader and the self-check.
    fn start_control(&self, reloader: Reloader) -> io::Result<VitalThread> {
        let self_check = SelfCheck::new(Arc::clone(&self.live), Arc::clone(&self.metrics));
        let discovery = DiscoveryRunner::new(Arc::clone(&self.live), Arc::clone(&self.metrics));
        let (metrics, phase) = (Arc::clone(&self.metrics), self.shutdown.phase.clone());
        let Self { live, clock, dials, .. } = self.clone();
        let reader = SecretReader { metrics: Arc::clone(&metrics), clock, dials };
        let management = ManagementWatch { live, reader };
        let thread = RuntimeThread::new()?;
        let vital = VitalThread { name: "control".to_owned(), runtime: thread.handle().clone() };
        thread.start("control", async move || {
            let supervisor = Supervisor {
                cluster: None,
                metrics: &metrics,
                stop: None,
                max_backoff: CONTROL_RESTART_BACKOFF,
            };
            tokio::select! {
                () = supervisor.run("reload", || reloader.run()) => {}
                () = supervisor.run("self-check", || self_check.run()) => {}
                () = supervisor.run("endpoint discovery", || discovery.run()) => {}
                () = supervisor.run("management cluster", || management.run()) => {}
                () = aborted(phase) => {}
            }
        })?;
        Ok(vital)
    }

    /// Starts the thread that looks at what buffers hold: on one of its own, so that nothing delays it.
    fn start_buffer_limiter(&self) -> io::Result<JoinHandle<()>> {
        let (metrics, phase) = (Arc::clone(&self.metrics), self.shutdown.phase.clone());
        let limiter = BufferLimiter { ledger: self.dials.ledger().clone(), metrics: Arc::clone(&metrics) };
        RuntimeThread::new()?.start("buffers", async move || {
            let supervisor = Supervisor {
                cluster: None,
                metrics: &metrics,
                stop: None,
                max_backoff: CONTROL_RESTART_BACKOFF,
            };
            tokio::select! {
                () = supervisor.run("buffer limit", || limiter.run()) => {}
                () = aborted(phase) => {}
            }
        })
    }

    /// Starts the thread that keeps deny lists up to date: on one of its own, so that no reload delays a revocation.
    fn start_revocation(&self, revocation: Arc<RevocationWatch>) -> io::Result<JoinHandle<()>> {
        let Self { metrics, clock, shutdown, .. } = self.clone();
        RuntimeThread::new()?.start("revocation", async move || {
            let supervisor = Supervisor {
                cluster: None,
                metrics: &metrics,
                stop: None,
                max_backoff: CONTROL_RESTART_BACKOFF,
            };
            tokio::select! {
                () = supervisor.run("revocation", || revocation.run(&metrics, &clock)) => {}
                () = aborted(shutdown.phase) => {}
            }
        })
    }

    /// Starts the threads of the controllers. The receiver gets a message when all have stopped.
    fn start_controllers(&self) -> io::Result<Receiver<()>> {
        let Self { live, metrics, clock, shutdown, .. } = self.clone();
        ControllerRunner { live, metrics, clock }.start(shutdown.phase)
    }

    /// Starts the thread of the admin listener.
    fn start_admin(&self, listener: Listener) -> io::Result<()> {
        let Self { metrics, health, live, shutdown, .. } = self.clone();
        admin::start(listener, AdminServer { metrics, health, live }, shutdown.phase)
    }

    /// Starts the thread that accepts connections. It sends the workers to the receiver when it stops.
    fn start_acceptor(
        &self,
        listener: Listener,
        workers: Vec<Worker>,
        limiter: ConnectionLimiter,
    ) -> io::Result<(VitalThread, Receiver<Vec<Worker>>)> {
        let thread = RuntimeThread::new()?;
        let vital = VitalThread { name: "acceptor".to_owned(), runtime: thread.handle().clone() };
        let listener = {
            let _entered = thread.enter();
            listener.register()?
        };
        let (sender, receiver) = channel();
        let (shared, limiter) = (self.clone(), Arc::new(limiter));
        thread.start("acceptor", async move || {
            let proxy_protocol = || shared.live.peek().proxy_protocol.clone();
            tokio::select! {
                never = accept_into(&listener, &workers, &limiter, proxy_protocol) => match never {},
                () = shared.until_accepting_ends() => {}
            }
            drain_backlog(listener, &workers, &limiter, proxy_protocol().as_ref());
            sender.send(workers).ok();
        })?;
        Ok((vital, receiver))
    }

    /// Waits until the server stops accepting. With `send_retry_after` that is when no request is in progress: until
    /// then it answers new requests with 429, which needs connections.
    async fn until_accepting_ends(&self) {
        let mut phase = self.shutdown.phase.clone();
        phase.wait_for(|phase| *phase >= ShutdownPhase::Draining).await.ok();
        while self.live.peek().shutdown.send_retry_after
            && self.metrics.requests.in_progress().requests > 0
            && *phase.borrow() == ShutdownPhase::Draining
        {
            sleep(POLL_INTERVAL).await;
        }
    }
}
