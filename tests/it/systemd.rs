//! The gateway as a service of systemd: its messages on `NOTIFY_SOCKET`.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::gateway_process::GatewayProcess;
use testkit::{FakeBackend, Pki, flags};

use crate::gateway::PORTCULLIS;

/// How long a message may take: generous, for a busy machine.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The watchdog is fed each fourth of this.
const WATCHDOG: Duration = Duration::from_millis(400);

/// The service manager's end.
struct Systemd(UnixDatagram);

impl Systemd {
    fn listen(path: &std::path::Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(MESSAGE_TIMEOUT)).unwrap();
        Self(socket)
    }

    /// The lines of the next message, whichever it is.
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let size = self.0.recv(&mut buffer).unwrap_or_else(|error| panic!("no message: {error}"));
        let text = str::from_utf8(&buffer[..size]).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The next message that is not the watchdog's.
    async fn next_of_service(self) -> (Self, Vec<String>) {
        let wait = move || loop {
            let message = self.next();
            if message != ["WATCHDOG=1"] {
                return (self, message);
            }
        };
        tokio::task::spawn_blocking(wait).await.unwrap()
    }

    /// Drops the messages that have arrived.
    fn forget(&self) {
        self.0.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        while self.0.recv(&mut buffer).is_ok() {}
        assert_eq!(self.0.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        self.0.set_nonblocking(false).unwrap();
    }
}

/// Microseconds of the monotonic clock, as systemd reads it.
fn monotonic() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

async fn start(pki: &Pki, backend: &FakeBackend, watchdog: Option<Duration>) -> (GatewayProcess, Systemd) {
    let socket = pki.directory.path().join("notify");
    let systemd = Systemd::listen(&socket);
    let mut command = Command::new(PORTCULLIS);
    command.arg("serve").args(flags(pki, backend.address)).env("NOTIFY_SOCKET", &socket);
    if let Some(watchdog) = watchdog {
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
    }
    let process = GatewayProcess::serve(command).await;
    (process, systemd)
}

/// The time of the message about the begin of a reload.
fn reload_began(message: &[String]) -> i64 {
    assert_eq!((message.len(), message[0].as_str()), (2, "RELOADING=1"), "{message:?}");
    message[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap()
}

#[tokio::test]
async fn systemd_is_notified_of_start_reload_and_shutdown() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let (process, systemd) = start(&pki, &backend, None).await;

    let (systemd, ready) = systemd.next_of_service().await;
    assert_eq!(ready, ["READY=1", "STATUS=serving"]);
    let mut client = Client::connect(&process.gateway, true, None).await;
    assert_eq!(client.code(&[("authorization", "Bearer good-token")]).await, 200, "it serves");

    // By a signal, as `Type=notify-reload` does: the begin is after the signal.
    let signalled = monotonic();
    process.signal(Signal::HUP);
    let (systemd, began) = systemd.next_of_service().await;
    assert!((signalled..=monotonic()).contains(&reload_began(&began)));
    let (systemd, ended) = systemd.next_of_service().await;
    assert_eq!(ended, ["READY=1", "STATUS=serving"]);

    // By a change of a file, which is wrong, and then right.
    let tokens = pki.directory.path().join("tokens.csv");
    let mut systemd = systemd;
    for (content, status) in [("too,short\n", "the last reload failed"), ("good-token,carol,7\n", "serving")]
    {
        replace(&tokens, content);
        let (next, began) = systemd.next_of_service().await;
        reload_began(&began);
        let (next, ended) = next.next_of_service().await;
        assert_eq!(ended[0], "READY=1", "a failed reload ends, too");
        assert!(ended[1].contains(status), "{ended:?}");
        systemd = next;
    }

    process.signal(Signal::TERM);
    let (_, stopping) = systemd.next_of_service().await;
    assert_eq!(stopping, ["STOPPING=1"]);
    assert!(process.end().await.0.success());
}

#[tokio::test]
async fn the_watchdog_is_fed_for_as_long_as_the_process_runs() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let (process, systemd) = start(&pki, &backend, Some(WATCHDOG)).await;
    let messages = tokio::task::spawn_blocking(move || {
        systemd.forget();
        let messages: Vec<_> = (0..5).map(|_| systemd.next()).collect();
        assert!(messages.iter().all(|message| message == &["WATCHDOG=1"]), "{messages:?}");
        systemd
    });
    let systemd = messages.await.unwrap();

    // A process that stands still feeds it no more.
    process.signal(Signal::STOP);
    let silent = tokio::task::spawn_blocking(move || {
        systemd.forget();
        systemd.0.set_read_timeout(Some(WATCHDOG * 2)).unwrap();
        let mut buffer = [0; 64];
        // One may have been on its way.
        let received = (0..3).map_while(|_| systemd.0.recv(&mut buffer).ok()).count();
        assert!(received < 3, "{received}");
        systemd
    });
    let systemd = silent.await.unwrap();
    process.signal(Signal::CONT);
    systemd.0.set_read_timeout(Some(MESSAGE_TIMEOUT)).unwrap();
    let again = tokio::task::spawn_blocking(move || systemd.next());
    assert_eq!(again.await.unwrap(), ["WATCHDOG=1"]);
}

#[test]
fn the_unit_leaves_the_directories_of_the_documented_logs_writable() {
    let read = |name: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
    };
    let unit = read("deploy/portcullis.service");
    for (setting, directory, page, flag) in [
        (
            "StateDirectory",
            "/var/lib",
            "docs/certificate-log.md",
            "--certificate-log=/var/lib/portcullis/log",
        ),
        ("LogsDirectory", "/var/log", "docs/audit.md", "--audit-log-path=/var/log/portcullis/audit.log"),
    ] {
        assert!(read(page).contains(flag), "{page}: {flag}");
        let name = unit.lines().find_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
        let writable = format!("{directory}/{}/", name.unwrap_or_default());
        assert!(flag.contains(&writable), "{setting}: {writable} of {flag}");
    }
}
