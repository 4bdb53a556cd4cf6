//! Notifies systemd of the state of the process, as a service of `Type=notify` or `notify-reload` does: ready, reloading,
//! stopping, and alive. Does nothing where no service manager waits for it.
//!
//! The watchdog is not fed by a timer alone. Each message follows an answer of every thread without which the gateway does
//! not serve: the acceptor, the workers, and the thread of reloads and self-checks. If one of them stands still, systemd
//! ends the process and starts it anew.
// systemd: sd_notify(3), systemd.service(5), WatchdogSec=
// kube-apiserver: staging/src/k8s.io/apiserver/pkg/server/genericapiserver.go, NonBlockingRunWithContext

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::sync::lock;
use sd_notify::NotifyState;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, warn};

use super::Server;
use crate::state::ReloadProgress;
use crate::tasks::RuntimeThread;

/// The watchdog's time has this many intervals, so that one late message does not end the process.
const MESSAGES_PER_WATCHDOG: u32 = 4;
/// How long a thread may take for its first answer before that is logged.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The text of `systemctl status` after a reload.
const RELOADED: &str = "serving";
const RELOAD_FAILED: &str =
    "serving with the old configuration: the last reload failed, the log has the error";

/// A thread without which the gateway does not serve.
#[derive(Debug, Clone)]
pub(super) struct VitalThread {
    /// The name, for the log.
    pub(super) name: String,
    /// Its runtime.
    pub(super) runtime: Handle,
}

/// The messages to the service manager.
#[derive(Debug, Clone)]
pub(crate) struct ServiceNotifier(Arc<Mutex<Stage>>);

/// What systemd knows of the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// After this, nothing but the watchdog is of interest.
    Stopping,
}

impl ServiceNotifier {
    /// Notifies systemd that `server` is ready, once its threads answer; then of reloads, and that it is alive.
    pub(crate) fn start(server: &Server) -> io::Result<Self> {
        let notifier = Self(Arc::new(Mutex::new(Stage::Running)));
        if is_awaited() {
            let notifying = Notifying {
                notifier: notifier.clone(),
                threads: server.vital_threads.clone(),
                reloads: server.shared.live.subscribe_reloads(),
            };
            RuntimeThread::new()?.start("systemd", async move || notifying.run().await)?;
        }
        Ok(notifier)
    }

    /// Notifies systemd that the process shuts down.
    pub(crate) fn stopping(&self) {
        let mut stage = lock(&self.0);
        *stage = Stage::Stopping;
        send(&[NotifyState::Stopping]);
    }

    fn is_stopping(&self) -> bool {
        *lock(&self.0) == Stage::Stopping
    }

    /// Sends a message about the service, unless it is stopping: systemd would take it for running again.
    fn send_while_running(&self, message: &[NotifyState<'_>]) {
        // The lock keeps the order of this message and `STOPPING=1`.
        let stage = lock(&self.0);
        if *stage == Stage::Running {
            send(message);
        }
    }
}

/// Whether a service manager waits for messages.
fn is_awaited() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

fn send(message: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(message) {
        warn!(%error, "cannot notify systemd, which may end the process: check NOTIFY_SOCKET");
    }
}

/// The thread that notifies.
struct Notifying {
    notifier: ServiceNotifier,
    threads: Vec<VitalThread>,
    reloads: watch::Receiver<ReloadProgress>,
}

impl Notifying {
    async fn run(self) {
        if !self.threads_answer(START_TIMEOUT).await {
            return;
        }
        self.notifier.send_while_running(&[NotifyState::Ready, NotifyState::Status(RELOADED)]);
        tokio::join!(self.follow_reloads(), self.feed_watchdog());
    }

    async fn follow_reloads(&self) {
        let mut reloads = self.reloads.clone();
        let mut notified = ReloadProgress::default();
        loop {
            let now = *reloads.borrow_and_update();
            // A short reload may have ended already: systemd waits for both messages.
            if now.begun > notified.begun {
                self.notify_of_begin();
            }
            if now.ended > notified.ended && now.ended == now.begun {
                let status = if now.failed { RELOAD_FAILED } else { RELOADED };
                self.notifier.send_while_running(&[NotifyState::Ready, NotifyState::Status(status)]);
            }
            notified = now;
            if reloads.changed().await.is_err() {
                return;
            }
        }
    }

    fn notify_of_begin(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.notifier.send_while_running(&[NotifyState::Reloading, now]),
            Err(error) => warn!(%error, "cannot notify systemd of a reload: no monotonic clock"),
        }
    }

    /// Sends the messages that the watchdog expects, each after an answer of every thread.
    async fn feed_watchdog(&self) {
        let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return };
        let pause = limit / MESSAGES_PER_WATCHDOG;
        let mut ticks = interval(pause.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.threads_answer(pause).await {
                return;
            }
            send(&[NotifyState::Watchdog]);
        }
    }

    /// Waits until every thread has run a task, and logs which one takes longer than `slow`. `false`: one has ended, while
    /// the process does not shut down.
    async fn threads_answer(&self, slow: Duration) -> bool {
        for VitalThread { name, runtime } in &self.threads {
            let mut answer = pin!(runtime.spawn(async {}));
            let answered = if let Ok(answered) = timeout(slow, answer.as_mut()).await {
                answered
            } else {
                error!(thread = name, ?slow, "a thread does not answer: the systemd watchdog is not fed");
                answer.await
            };
            if answered.is_err() && !self.notifier.is_stopping() {
                error!(thread = name, "a thread has ended: the systemd watchdog is not fed any more");
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn notifying(threads: Vec<VitalThread>) -> Notifying {
        let (_, reloads) = watch::channel(ReloadProgress::default());
        Notifying { notifier: ServiceNotifier(Arc::new(Mutex::new(Stage::Running))), threads, reloads }
    }

    /// A thread that ends with the sender. With `stands_still` it runs no task before a message.
    fn thread(stands_still: bool) -> (VitalThread, mpsc::Sender<()>, std::thread::JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = RuntimeThread::new().unwrap();
        let vital = VitalThread { name: "vital".to_owned(), runtime: thread.handle().clone() };
        let joined = thread.start("vital", async move || {
            if stands_still {
                receiver.recv().ok();
            }
            tokio::task::spawn_blocking(move || receiver.recv().ok()).await.ok();
        });
        (vital, sender, joined.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_stands_still_keeps_the_watchdog_waiting() {
        let (calm, end_calm, _) = thread(false);
        let (still, end_still, _) = thread(true);
        let notifying = notifying(vec![calm, still]);
        let slow = Duration::from_secs(1);
        let mut answered = pin!(notifying.threads_answer(slow));
        assert!(timeout(slow * 100, answered.as_mut()).await.is_err(), "one of two answers");
        end_still.send(()).unwrap();
        assert!(answered.await);
        drop((end_calm, end_still));
    }

    #[tokio::test]
    async fn a_thread_that_has_ended_matters_until_the_shutdown() {
        let (vital, end, joined) = thread(false);
        drop(end);
        tokio::task::spawn_blocking(|| joined.join().unwrap()).await.unwrap();
        let notifying = notifying(vec![vital]);
        assert!(!notifying.threads_answer(START_TIMEOUT).await);
        notifying.notifier.stopping();
        assert!(notifying.threads_answer(START_TIMEOUT).await);
    }
}
