//! The backends of a process, across reloads: one writer for each file, however many clusters and generations of the
//! configuration use it.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use super::clock::WallClock;
use super::log::{Log, LogStream, LogTarget};
use super::log_file::{LogFile, directory, ensure_log_file};
use super::observer::{Losses, Observer, SinkKind};
use super::options::{
    BatchOptions, DEFAULT_MAX_BATCH_SIZE, Format, LogOptions, Mode, STANDARD_OUTPUT, WebhookOptions,
};
use super::queue::{Queue, QueueOptions};
use super::webhook::{Post, Webhook};
use super::{Outlet, Sinks};

/// About how much the log writes at once.
const WRITE_SIZE: usize = 1 << 20;

/// All backends of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SinkRegistry(pub(super) Arc<Registry>);

pub(super) struct Registry {
    observer: Arc<dyn Observer>,
    clock: WallClock,
    runtime: Handle,
    open: Mutex<HashMap<SinkKey, OpenSink>>,
}

/// What is the same backend.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum SinkKey {
    /// By the path of the file, with all links to its directory resolved. A link in the place of the file is not: the
    /// first rotation replaces it.
    Log(PathBuf),
    /// By its name.
    Webhook(String),
}

#[derive(Debug)]
struct OpenSink {
    /// How many [`Sinks`] were made for it and are still there.
    users: usize,
    sink: Sink,
}

#[derive(Debug, Clone)]
enum Sink {
    Log(Arc<Log>),
    Webhook(Arc<Webhook>),
}

/// Why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The log cannot be opened.
    // apiserver: pkg/server/options/audit.go, getWriter
    #[error("cannot open the audit log {path}: {error}")]
    Log {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// One file or webhook, with different options.
    #[error("the audit {kind} {name} is configured twice, with different options")]
    Conflict {
        /// `log` or `webhook`.
        kind: &'static str,
        /// The path or the name.
        name: String,
    },
    /// The thread of the log does not start.
    #[error("cannot start the thread of the audit log: {0}")]
    Thread(io::Error),
}

/// The backends of one generation of the configuration. What it changes in those that are open already takes effect with
/// [`Self::commit`].
pub struct Generation {
    registry: Arc<Registry>,
    logs: HashMap<SinkKey, LogOptions>,
    webhooks: HashMap<SinkKey, (WebhookOptions, Arc<dyn Post>)>,
    /// Whether other options than those of this generation are ignored, and no error.
    adopts: bool,
    /// Keeps all of them open until the commit.
    users: Vec<Arc<SinkUser>>,
}

/// Keeps a backend open.
#[derive(Debug)]
pub(super) struct SinkUser {
    registry: Arc<Registry>,
    key: SinkKey,
}

impl SinkRegistry {
    /// No backend is open. Webhooks run on `runtime`.
    pub fn new(observer: Arc<dyn Observer>, clock: WallClock, runtime: Handle) -> Self {
        Self(Arc::new(Registry { observer, clock, runtime, open: Mutex::default() }))
    }

    /// Begins a generation of the configuration.
    pub fn generation(&self) -> Generation {
        Generation {
            registry: Arc::clone(&self.0),
            logs: HashMap::new(),
            webhooks: HashMap::new(),
            adopts: false,
            users: Vec::new(),
        }
    }

    /// Waits until everything that was handed over to any backend is stored or given up, also to those of earlier
    /// generations.
    pub async fn flush(&self) {
        let queues: Vec<_> = self.0.lock().values().map(|open| Arc::clone(open.sink.queue())).collect();
        for queue in queues {
            queue.flush().await;
        }
    }

    /// The events that wait or are being stored.
    pub fn pending(&self) -> usize {
        self.0.lock().values().map(|open| open.sink.queue().held()).sum()
    }
}

impl Generation {
    /// Decides what [`Self::open`] does with options that differ from those that this generation has for the same backend:
    /// with `true` it ignores them. For clusters that keep an earlier configuration, which must not stop a change of others.
    pub fn adopt(&mut self, adopts: bool) {
        self.adopts = adopts;
    }

    /// Opens the backends of a cluster. Fails if the log cannot be opened, unless it is open already, or if this generation has
    /// the same file or webhook with other options, unless it [adopts](Self::adopt) these. A cluster for which it fails
    /// leaves no options to others.
    pub fn open(
        &mut self,
        log: Option<&LogOptions>,
        webhook: Option<(&WebhookOptions, Arc<dyn Post>)>,
    ) -> Result<Sinks, SinkError> {
        // The webhook fails for its options alone, which come first.
        let webhook = webhook.map(|(options, post)| self.known_webhook(options, post)).transpose()?;
        let log = log.map(|options| self.log(options)).transpose()?;
        let webhook = webhook.map(|(options, post)| self.webhook(options, post)).transpose()?;
        Ok(Sinks::new(log, webhook, Arc::clone(&self.registry.observer)))
    }

    fn log(&mut self, options: &LogOptions) -> Result<Outlet, SinkError> {
        let path = options.path.clone();
        let key = self.registry.log_key(&path).map_err(|error| SinkError::Log { path, error })?;
        let known = self.logs.get(&key).unwrap_or(options);
        if *known != (LogOptions { path: known.path.clone(), ..options.clone() }) && !self.adopts {
            let name = options.path.display().to_string();
            return Err(SinkError::Conflict { kind: "log", name });
        }
        let options = &known.clone();
        let start = |registry: &Arc<Registry>, key: &SinkKey| registry.start_log(options, key);
        let (user, sink) = self.registry.open(key.clone(), start)?;
        self.logs.entry(key).or_insert_with(|| options.clone());
        let LogOptions { mode, format, truncate, .. } = *options;
        let (queue, zone) = (Arc::clone(sink.queue()), self.registry.clock.zone().clone());
        let user = Arc::new(user);
        self.users.push(Arc::clone(&user));
        Ok(Outlet { kind: SinkKind::Log, mode, format, truncate, zone, queue, _user: user })
    }

    /// The options of this generation for a webhook.
    fn known_webhook(
        &self,
        options: &WebhookOptions,
        post: Arc<dyn Post>,
    ) -> Result<(WebhookOptions, Arc<dyn Post>), SinkError> {
        match self.webhooks.get(&SinkKey::Webhook(options.name.clone())) {
            Some((known, _)) if known != options && !self.adopts => {
                Err(SinkError::Conflict { kind: "webhook", name: options.name.clone() })
            }
            Some((known, post)) => Ok((known.clone(), Arc::clone(post))),
            None => Ok((options.clone(), post)),
        }
    }

    fn webhook(&mut self, options: WebhookOptions, post: Arc<dyn Post>) -> Result<Outlet, SinkError> {
        let key = SinkKey::Webhook(options.name.clone());
        let start = |registry: &Arc<Registry>, key: &SinkKey| {
            Ok(registry.start_webhook(&options, &post, key.clone()))
        };
        let (user, sink) = self.registry.open(key.clone(), start)?;
        let WebhookOptions { mode, truncate, .. } = options;
        self.webhooks.entry(key).or_insert((options, post));
        let (queue, zone) = (Arc::clone(sink.queue()), self.registry.clock.zone().clone());
        let user = Arc::new(user);
        self.users.push(Arc::clone(&user));
        let format = Format::Json;
        Ok(Outlet { kind: SinkKind::Webhook, mode, format, truncate, zone, queue, _user: user })
    }

    /// Uses the options of this generation in all its backends.
    pub fn commit(self) {
        let open = self.registry.lock();
        for (key, options) in &self.logs {
            if let Some(Sink::Log(log)) = open.get(key).map(|open| &open.sink) {
                log.queue.set_options(log_queue(options));
                log.set_rotation(options.rotation);
            }
        }
        for (key, (options, post)) in &self.webhooks {
            if let Some(Sink::Webhook(webhook)) = open.get(key).map(|open| &open.sink) {
                webhook.queue.set_options(webhook_queue(options));
                webhook.set_connection(Arc::clone(post), options.initial_backoff);
            }
        }
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<SinkKey, OpenSink>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no sink is open.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.lock().is_empty()
    }

    /// The identity of a log, which is made if it does not exist. If that fails, an open one goes on: its writer counts what it
    /// cannot write, and its volume may be back in a moment.
    fn log_key(&self, path: &Path) -> io::Result<SinkKey> {
        if path == Path::new(STANDARD_OUTPUT) {
            return Ok(SinkKey::Log(path.to_owned()));
        }
        let made = ensure_log_file(path);
        let key = directory(path)
            .canonicalize()
            .map(|directory| SinkKey::Log(directory.join(path.file_name().unwrap_or_default())));
        match (made, key) {
            (Ok(()), key) => key,
            (Err(_), Ok(key)) if self.lock().contains_key(&key) => Ok(key),
            (Err(error), _) => Err(error),
        }
    }

    /// The sink with this key, started if there is none.
    fn open(
        self: &Arc<Self>,
        key: SinkKey,
        start: impl FnOnce(&Arc<Self>, &SinkKey) -> Result<Sink, SinkError>,
    ) -> Result<(SinkUser, Sink), SinkError> {
        let mut open = self.lock();
        let sink = if let Some(known) = open.get_mut(&key) {
            known.users += 1;
            known.sink.queue().reopen();
            known.sink.clone()
        } else {
            let sink = start(self, &key)?;
            open.insert(key.clone(), OpenSink { users: 1, sink: sink.clone() });
            sink
        };
        Ok((SinkUser { registry: Arc::clone(self), key }, sink))
    }

    fn start_log(self: &Arc<Self>, options: &LogOptions, key: &SinkKey) -> Result<Sink, SinkError> {
        let path = options.path.clone();
        let target = if path == Path::new(STANDARD_OUTPUT) {
            LogTarget::Stream(LogStream::new(io::stdout()))
        } else {
            LogTarget::File(LogFile::new(path, options.rotation, self.clock.clone()))
        };
        let losses = self.losses(SinkKind::Log, options.path.display().to_string());
        let log = Arc::new(Log::new(Queue::new(log_queue(options), losses), options.rotation));
        log.start(target, self.ends(key.clone())).map_err(SinkError::Thread)?;
        Ok(Sink::Log(log))
    }

    fn start_webhook(self: &Arc<Self>, options: &WebhookOptions, post: &Arc<dyn Post>, key: SinkKey) -> Sink {
        let losses = self.losses(SinkKind::Webhook, options.name.clone());
        let queue = Queue::new(webhook_queue(options), losses);
        let webhook = Arc::new(Webhook::new(queue, Arc::clone(post), options.initial_backoff));
        self.runtime.spawn(Arc::clone(&webhook).run(self.ends(key)));
        Sink::Webhook(webhook)
    }

    fn losses(&self, sink: SinkKind, name: String) -> Losses {
        Losses::new(sink, name, Arc::clone(&self.observer))
    }

    /// Removes a sink that has nothing left to do, unless it is used again.
    fn ends(self: &Arc<Self>, key: SinkKey) -> impl Fn() -> bool + Send + 'static {
        let registry = Arc::clone(self);
        move || {
            let mut open = registry.lock();
            let ends = open.get(&key).is_none_or(|open| open.users == 0 && open.sink.queue().is_finished());
            if ends {
                open.remove(&key);
            }
            ends
        }
    }
}

impl Sink {
    fn queue(&self) -> &Arc<Queue> {
        match self {
            Self::Log(log) => &log.queue,
            Self::Webhook(webhook) => &webhook.queue,
        }
    }
}

impl Drop for SinkUser {
    fn drop(&mut self) {
        let mut open = self.registry.lock();
        if let Some(open) = open.get_mut(&self.key) {
            open.users -= 1;
            if open.users == 0 {
                open.sink.queue().close();
            }
        }
    }
}

fn log_queue(options: &LogOptions) -> QueueOptions {
    let batch = collected(options.mode, options.batch);
    // A throttle counts batches.
    let max_batch_bytes = if batch.throttle.is_some() { usize::MAX } else { WRITE_SIZE };
    QueueOptions { batch, max_batch_bytes, takes_all: true }
}

fn webhook_queue(options: &WebhookOptions) -> QueueOptions {
    let max = options.truncate.map_or(DEFAULT_MAX_BATCH_SIZE, |truncate| truncate.max_batch_size);
    QueueOptions { batch: collected(options.mode, options.batch), max_batch_bytes: max, takes_all: false }
}

/// Requests that wait for a backend wait for no other event.
fn collected(mode: Mode, batch: BatchOptions) -> BatchOptions {
    match mode {
        Mode::Batch => batch,
        Mode::Blocking | Mode::BlockingStrict => BatchOptions::LOG,
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("open", &self.open).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("logs", &self.logs).finish_non_exhaustive()
    }
}
