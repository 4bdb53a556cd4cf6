//! Load, build the snapshot, bind, announce, serve, drain: the life of the process, top to bottom.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::config::flags::MetricsAddress;
use crate::config::settings::Settings;
use crate::config::source::Source;
use crate::forward::body::Body;
use crate::forward::pools::Pools;
use crate::listen::{Drain, Listener, Worker, accept_into, raise_file_limit};
use crate::metrics::Metrics;
use crate::pipeline::Gateway;
use crate::reload::Reloader;
use crate::self_check::SelfCheck;
use crate::snapshot::{Snapshot, SnapshotError};

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
    acceptor: Option<JoinHandle<Vec<Worker>>>,
    snapshot: Arc<ArcSwap<Snapshot>>,
    reload: Arc<Notify>,
}

impl Server {
    /// Binds, starts the threads and serves `settings`, which `source` was resolved to. The port is open when this
    /// returns.
    pub fn start(settings: &Settings, source: Source) -> Result<Self, StartError> {
        raise_file_limit();
        let snapshot = Snapshot::build(settings, None)?;
        let metrics = Arc::new(Metrics::new());
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
        let (drain, draining) = watch::channel(Drain::Serving);
        let workers: Vec<Worker> = (0..settings.operation.workers)
            .map(|index| worker(index, &snapshot, &metrics, draining.clone()))
            .collect::<io::Result<_>>()
            .map_err(StartError::Thread)?;
        let reload = Arc::new(Notify::new());
        let (asked, refused) = (Arc::clone(&reload), Arc::new(Notify::new()));
        let swapped = Arc::new(Notify::new());
        let reloader = Reloader::new(
            source,
            settings,
            Arc::clone(&snapshot),
            Arc::clone(&metrics),
            Clock::system(),
            Arc::clone(&swapped),
        );
        let check = SelfCheck {
            current: Arc::clone(&snapshot),
            metrics: Arc::clone(&metrics),
            swapped,
            reload: Arc::clone(&reload),
            refused: Arc::clone(&refused),
        };
        let controlling = async move { tokio::join!(reloader.run(asked, refused), check.run()) };
        control(controlling, draining.clone()).map_err(StartError::Thread)?;
        let acceptor =
            accept(listener, metrics_listener, workers, metrics, draining).map_err(StartError::Thread)?;
        info!(%address, metrics = ?metrics_address, "serving");
        Ok(Self { address, metrics_address, drain, acceptor: Some(acceptor), snapshot, reload })
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

    /// Stops accepting, lets requests finish for the grace period, and ends what is left. Blocks.
    pub fn shut_down(mut self) {
        let grace = self.snapshot.load().shutdown_grace_period;
        info!(?grace, "shutting down: no new connections, requests in progress may finish");
        self.drain.send_replace(Drain::Draining);
        let Some(workers) = self.acceptor.take().and_then(|acceptor| acceptor.join().ok()) else {
            return;
        };
        let (ended, all_ended) = std::sync::mpsc::channel::<()>();
        let joining = std::thread::spawn(move || {
            workers.into_iter().for_each(Worker::join);
            drop(ended);
        });
        // The channel never carries anything: it closes when the last worker has ended.
        if all_ended.recv_timeout(grace) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            warn!("the grace period is over, ending what is left");
        }
        self.drain.send_replace(Drain::Abort);
        if joining.join().is_err() {
            warn!("a thread panicked while shutting down");
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
fn worker(
    index: usize,
    snapshot: &Arc<ArcSwap<Snapshot>>,
    metrics: &Arc<Metrics>,
    drain: watch::Receiver<Drain>,
) -> io::Result<Worker> {
    let gateway = Gateway {
        snapshot: Arc::clone(snapshot),
        pools: Pools::default(),
        clock: Clock::system(),
        metrics: Arc::clone(metrics),
    };
    let current = Arc::clone(snapshot);
    let terms = move || {
        let snapshot = current.load();
        (Arc::clone(&snapshot.tls), snapshot.limits)
    };
    Worker::start(format!("worker-{index}"), Arc::new(gateway), terms, Arc::clone(metrics), drain)
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

/// The thread that accepts connections and answers `/metrics`. It gives the workers back when it stops accepting.
fn accept(
    listener: Listener,
    metrics_listener: Option<Listener>,
    workers: Vec<Worker>,
    metrics: Arc<Metrics>,
    mut drain: watch::Receiver<Drain>,
) -> io::Result<JoinHandle<Vec<Worker>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (listener, metrics_listener) = {
        let _registered = runtime.enter();
        (listener.register()?, metrics_listener.map(Listener::register).transpose()?)
    };
    std::thread::Builder::new().name("acceptor".to_owned()).spawn(move || {
        runtime.block_on(async {
            if let Some(listener) = metrics_listener {
                tokio::spawn(serve_metrics(listener, metrics));
            }
            tokio::select! {
                never = accept_into(&listener, &workers) => match never {},
                _ = drain.wait_for(|phase| *phase != Drain::Serving) => {}
            }
        });
        workers
    })
}

/// `/metrics`, plain HTTP.
async fn serve_metrics(listener: TcpListener, metrics: Arc<Metrics>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = metrics_response(&request, &metrics);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10));
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

fn metrics_response(request: &Request<Incoming>, metrics: &Metrics) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if request.method() == Method::GET || request.method() == Method::HEAD {
        let (text, content_type) = metrics.render();
        *response.body_mut() = Body::bytes(text);
        response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    } else {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    }
    response
}
