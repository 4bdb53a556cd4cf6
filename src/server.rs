//! Load, build the snapshot, bind, announce, serve, drain: the life of the process, top to bottom.

mod admin;
mod controllers;
pub(crate) mod self_check;
mod shutdown;
mod supervise;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::info;

use admin::Observed;
pub use shutdown::Hasten;
use shutdown::{Ending, Events};
use supervise::supervise;

use crate::backend::pools::Pools;
use crate::clock::Clock;
use crate::cluster::authenticators::Means;
use crate::config::flags::MetricsAddress;
use crate::config::settings::Settings;
use crate::config::source::ConfigSource;
use crate::listener::{
    Drain, Draining, Gate, Listener, WatchTermination, Worker, accept_into, accept_the_rest, raise_file_limit,
};
use crate::metrics::Metrics;
use crate::pipeline::health::Health;
use crate::pipeline::{Gateway, LogThrottle};
use crate::server::self_check::SelfCheck;
use crate::state::reload::{Reloader, Signals};
use crate::state::snapshot::{Snapshot, SnapshotError};

/// How often a server that tells clients to come back later looks whether it can end.
const LOOK: Duration = Duration::from_millis(50);

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings cannot be served.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's words.
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
    drain: watch::Sender<Drain>,
    watches: Arc<WatchTermination>,
    hasten: Hasten,
    ending: Mutex<Option<Ending>>,
    metrics: Arc<Metrics>,
    snapshot: Arc<ArcSwap<Snapshot>>,
    reload: Arc<Notify>,
}

impl Server {
    /// Binds, starts the threads and serves `settings`, which `source` was resolved to. The port is open when this
    /// returns.
    pub fn start(settings: &Settings, source: ConfigSource) -> Result<Self, StartError> {
        raise_file_limit();
        let metrics = Arc::new(Metrics::new());
        let (drain, draining) = watch::channel(Drain::Serving);
        let reload = Arc::new(Notify::new());
        let runtime = tokens(draining.clone()).map_err(StartError::Thread)?;
        let means = Means::new(runtime, Arc::clone(&metrics), Arc::clone(&reload));
        let snapshot = Snapshot::build(settings, None, &means)?;
        let serving = &settings.serving;
        let bind = |address, share| {
            Listener::bind(address, share).map_err(|source| StartError::Bind { address, source })
        };
        let listener = bind(serving.address, serving.permit_port_sharing)?;
        let metrics_listener = match settings.operation.metrics {
            MetricsAddress::On(address) => Some(bind(address, false)?),
            MetricsAddress::Off => None,
        };
        let address = listener.address();
        let metrics_address = metrics_listener.as_ref().map(Listener::address);

        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let health = Arc::new(Health::new(Arc::clone(&snapshot), draining.clone()));
        let watches = Arc::<WatchTermination>::default();
        let shutdown = Draining { phase: draining.clone(), watches: Arc::clone(&watches) };
        let throttle = Arc::<LogThrottle>::default();
        let workers: Vec<Worker> = (0..settings.operation.workers)
            .map(|index| {
                let gateway = Gateway {
                    snapshot: Arc::clone(&snapshot),
                    pools: Pools::default(),
                    health: Arc::clone(&health),
                    clock: Clock::system(),
                    metrics: Arc::clone(&metrics),
                    throttle: Arc::clone(&throttle),
                };
                worker(index, gateway, shutdown.clone())
            })
            .collect::<io::Result<_>>()
            .map_err(StartError::Thread)?;
        let (refused, swapped, controlled) =
            (Arc::default(), Arc::<Notify>::default(), Arc::<Notify>::default());
        let check = SelfCheck {
            current: Arc::clone(&snapshot),
            metrics: Arc::clone(&metrics),
            swapped: Arc::clone(&swapped),
            reload: Arc::clone(&reload),
            refused: Arc::clone(&refused),
        };
        let swapped = [swapped, Arc::clone(&controlled)];
        let signals = Signals { asked: Arc::clone(&reload), refused, swapped };
        let current = Arc::clone(&snapshot);
        let reloader = Reloader::new(source, settings, current, means, Clock::system(), signals);
        let counted = Arc::clone(&metrics);
        let controlling =
            async move { tokio::join!(supervise(reloader, &counted), supervise(check, &counted)) };
        control(controlling, draining.clone()).map_err(StartError::Thread)?;
        let controllers = controllers::Running {
            current: Arc::clone(&snapshot),
            swapped: controlled,
            metrics: Arc::clone(&metrics),
            clock: Clock::system(),
        };
        let controllers = controllers.start(draining.clone()).map_err(StartError::Thread)?;
        let gate = Gate::new(&serving.limits, Arc::clone(&metrics));
        if let Some(listener) = metrics_listener {
            let observed = Observed { metrics: Arc::clone(&metrics), health };
            admin::start(listener, observed, draining.clone()).map_err(StartError::Thread)?;
        }
        let current = Arc::clone(&snapshot);
        let counted = Arc::clone(&metrics);
        let workers =
            accept(listener, workers, gate, current, counted, draining).map_err(StartError::Thread)?;
        info!(%address, metrics = ?metrics_address, "serving");
        let events = Events::new();
        let hasten = events.hasten();
        let ending = Some(Ending { workers, controllers, events }).into();
        Ok(Self { address, metrics_address, drain, watches, hasten, ending, metrics, snapshot, reload })
    }

    /// The address that is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of `/metrics`, if it is served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Reads the configuration again now, whether it seems to have changed or not.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// What ends a shutdown at once.
    pub fn hasten(&self) -> Hasten {
        self.hasten.clone()
    }

    /// Fails `/readyz`, serves on for the delay, stops accepting, ends watches one after the other, lets requests finish
    /// for the grace period, and ends what is left. Blocks.
    pub fn shut_down(self) {
        let settings = self.snapshot.load().shutdown;
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ending) = ending {
            shutdown::run(settings, &self.drain, &self.watches, ending, &self.metrics);
        }
        info!("shut down");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.drain.send_replace(Drain::Abort);
    }
}

/// A worker thread with connections of its own to the backend.
fn worker(index: usize, gateway: Gateway, shutdown: Draining) -> io::Result<Worker> {
    let (current, metrics) = (Arc::clone(&gateway.snapshot), Arc::clone(&gateway.metrics));
    let terms = move || {
        let snapshot = current.load();
        (Arc::clone(&snapshot.tls), snapshot.limits)
    };
    Worker::start(format!("worker-{index}"), Arc::new(gateway), terms, metrics, shutdown)
}

/// The thread that carries no requests: reload, self-check. It ends when the server does.
fn control(
    controlling: impl Future<Output = ((), ())> + Send + 'static,
    mut drain: watch::Receiver<Drain>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                ((), ()) = controlling => {}
                _ = drain.wait_for(|phase| *phase == Drain::Abort) => {}
            }
        });
    })
}

/// The thread on which tokens are judged, with all that has to be asked for it.
fn tokens(mut drain: watch::Receiver<Drain>) -> io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("tokens".to_owned()).spawn(move || {
        runtime.block_on(async { drain.wait_for(|phase| *phase == Drain::Abort).await.ok() });
    })?;
    Ok(handle)
}

/// The thread that accepts connections. It gives the workers away when it stops.
fn accept(
    listener: Listener,
    workers: Vec<Worker>,
    gate: Gate,
    snapshot: Arc<ArcSwap<Snapshot>>,
    metrics: Arc<Metrics>,
    mut drain: watch::Receiver<Drain>,
) -> io::Result<Receiver<Vec<Worker>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _registered = runtime.enter();
        listener.register()?
    };
    let (given_back, receiver) = channel();
    let accepting = async move {
        let refusing = async {
            drain.wait_for(|phase| *phase >= Drain::Draining).await.ok();
            // Those who come are told to come back later, as long as there is something to wait for.
            while snapshot.load().shutdown.send_retry_after
                && metrics.requests.in_progress().requests > 0
                && *drain.borrow() == Drain::Draining
            {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            never = accept_into(&listener, &workers, &gate) => match never {},
            () = refusing => {}
        }
        accept_the_rest(listener, &workers, &gate);
        given_back.send(workers).ok();
    };
    std::thread::Builder::new().name("acceptor".to_owned()).spawn(move || runtime.block_on(accepting))?;
    Ok(receiver)
}
