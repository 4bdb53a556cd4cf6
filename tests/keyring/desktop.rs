//! The session of a user: a D-Bus, perhaps with a keyring, and the commands that the user runs.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use zbus::Connection;
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value};

use crate::provider::Provider;

/// Programs and their Debian packages.
const PROGRAMS: [(&str, &str); 2] = [("dbus-daemon", "dbus"), ("gnome-keyring-daemon", "gnome-keyring")];
/// The bus starts no services by itself.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path=BUS</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"#;
const SECRETS: &str = "org.freedesktop.secrets";
const SERVICE: (&str, &str) = ("/org/freedesktop/secrets", "org.freedesktop.Secret.Service");
/// Session, parameters, content, and the type of the content.
type Secret = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);
const ITEM: &str = "org.freedesktop.Secret.Item";
/// What a client that allows a login gives its exec plugin.
const INTERACTIVE: &str =
    r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":true}}"#;

/// Which program is absent.
pub(crate) fn absent() -> Option<String> {
    let missing = PROGRAMS.iter().find(|(program, _)| {
        let started =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        !started.is_ok_and(|status| status.success())
    });
    missing.map(|(program, package)| format!("{program} is absent; apt-get install {package}"))
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A bus that has put itself into the background.
struct Daemon(Pid);

impl Drop for Daemon {
    fn drop(&mut self) {
        kill_process(self.0, Signal::TERM).ok();
    }
}

/// The bus, which ends with the session.
#[expect(dead_code, reason = "ends when it is dropped")]
enum Bus {
    Foreground(Running),
    Background(Daemon),
}

/// Whether a command may ask its user.
#[derive(Clone, Copy)]
pub(crate) enum Input {
    Closed,
    /// The client says so.
    Terminal,
}

/// A command that has ended.
pub(crate) struct Finished {
    arguments: String,
    is_success: bool,
    printed: String,
    pub(crate) error: String,
}

impl Finished {
    /// The standard output of a success.
    pub(crate) fn succeeded(self) -> String {
        assert!(self.is_success, "{}: {}", self.arguments, self.error);
        self.printed
    }

    /// The standard error of a failure.
    pub(crate) fn failed(self) -> String {
        assert!(!self.is_success, "{}: {}", self.arguments, self.error);
        self.error
    }
}

pub(crate) struct Desktop {
    home: tempfile::TempDir,
    /// The address of the bus.
    pub(crate) address: String,
    /// What the commands take for its address.
    told_address: Option<String>,
    keyring: std::sync::Mutex<Option<Running>>,
    #[expect(dead_code, reason = "ends with the session")]
    bus: Bus,
}

impl Desktop {
    /// A session without a keyring.
    pub(crate) async fn new() -> Self {
        Self::with_bus(|bus| {
            let bus = bus.args(["--nofork", "--nopidfile"]).stderr(Stdio::null()).spawn().unwrap();
            Bus::Foreground(Running(bus))
        })
        .await
    }

    /// A session whose bus is no longer the process that has begun to listen.
    pub(crate) async fn with_daemon() -> Self {
        let desktop = Self::with_bus(|bus| {
            let started = bus.args(["--fork", "--nopidfile", "--print-pid"]).output().unwrap();
            let pid = String::from_utf8(started.stdout).unwrap().trim().parse().unwrap();
            Bus::Background(Daemon(Pid::from_raw(pid).unwrap()))
        });
        desktop.await
    }

    async fn with_bus(start: fn(&mut Command) -> Bus) -> Self {
        let home = tempfile::Builder::new().prefix("keyring-").tempdir().unwrap();
        let socket = home.path().join("bus");
        let configuration = home.path().join("bus.conf");
        std::fs::write(&configuration, BUS.replace("BUS", &socket.display().to_string())).unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        let mut bus = Command::new("dbus-daemon");
        let bus = start(bus.arg(format!("--config-file={}", configuration.display())));
        let address = format!("unix:path={}", socket.display());
        let desktop = Self {
            home,
            told_address: Some(address.clone()),
            address,
            keyring: std::sync::Mutex::default(),
            bus,
        };
        testkit::until("the bus", || std::os::unix::net::UnixStream::connect(&socket).is_ok()).await;
        desktop
    }

    /// A session with an unlocked keyring, whose password is an empty line.
    pub(crate) async fn with_keyring() -> Self {
        let desktop = Self::new().await;
        desktop.start_keyring().await;
        desktop
    }

    pub(crate) async fn start_keyring(&self) {
        let mut daemon = self
            .command("gnome-keyring-daemon")
            .args(["--foreground", "--unlock", "--components=secrets"])
            .arg(format!("--control-directory={}", self.path("run/keyring").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        daemon.stdin.take().unwrap().write_all(b"\n").unwrap();
        *self.keyring.lock().unwrap() = Some(Running(daemon));
        let bus = self.connect().await;
        let deadline = tokio::time::Instant::now() + testkit::TEST_TIMEOUT;
        while default_collection(&bus).await.is_none_or(|collection| collection.as_str() == "/") {
            assert!(tokio::time::Instant::now() < deadline, "no keyring");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Another daemon, which unlocks the same keyring.
    pub(crate) async fn unlock_by_restart(&self) {
        drop(self.keyring.lock().unwrap().take());
        self.start_keyring().await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn set_address(&mut self, address: Option<&str>) {
        self.told_address = address.map(str::to_owned);
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.home.path());
        command.env("XDG_RUNTIME_DIR", self.path("run")).current_dir(self.home.path());
        command.envs(self.told_address.as_ref().map(|address| ("DBUS_SESSION_BUS_ADDRESS", address)));
        command
    }

    /// Runs `portcullis` with these arguments.
    pub(crate) async fn run(&self, arguments: &[&str], input: Input) -> Finished {
        let mut command = self.command(env!("CARGO_BIN_EXE_portcullis"));
        command.args(arguments).stdin(Stdio::null());
        if matches!(input, Input::Terminal) {
            command.env("KUBERNETES_EXEC_INFO", INTERACTIVE);
        }
        let output = tokio::process::Command::from(command).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (printed, error) = (text(&output.stdout), text(&output.stderr));
        assert!(!error.contains("refresh-") && !error.contains("eyJ"), "a secret: {error}");
        Finished { arguments: arguments.join(" "), is_success: output.status.success(), printed, error }
    }

    /// Runs `portcullis` until the condition holds, then interrupts it. Returns the exit code.
    pub(crate) async fn interrupt(&self, arguments: &[&str], condition: impl Fn() -> bool) -> Option<i32> {
        let mut command = self.command(env!("CARGO_BIN_EXE_portcullis"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        testkit::until("the moment to interrupt", condition).await;
        let pid = running.id().and_then(|pid| Pid::from_raw(pid.try_into().unwrap())).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        running.wait().await.unwrap().code()
    }

    async fn run_with(&self, arguments: &[&str], provider: &Provider, input: Input) -> Finished {
        let flags = provider.flags();
        let all: Vec<&str> = arguments.iter().copied().chain(flags.iter().map(String::as_str)).collect();
        self.run(&all, input).await
    }

    /// `portcullis login` with the keyring.
    pub(crate) async fn login(&self, provider: &Provider, more: &[&str]) -> Finished {
        self.login_with(provider, "keyring", more).await
    }

    pub(crate) async fn login_with(&self, provider: &Provider, store: &str, more: &[&str]) -> Finished {
        let store = format!("--credential-store={store}");
        let own =
            ["login", "--server=https://cluster.test", "--no-review", "--kubeconfig=kubeconfig", &store];
        let all: Vec<&str> = own.iter().chain(more).copied().collect();
        self.run_with(&all, provider, Input::Closed).await
    }

    /// `portcullis credential` with the keyring.
    pub(crate) async fn credential(&self, provider: &Provider, input: Input) -> Finished {
        self.credential_with(provider, input, &[]).await
    }

    pub(crate) async fn credential_with(&self, provider: &Provider, input: Input, more: &[&str]) -> Finished {
        let own = ["credential", "--credential-store=keyring"];
        let all: Vec<&str> = own.iter().chain(more).copied().collect();
        self.run_with(&all, provider, input).await
    }

    /// The files of the cache beside the locks.
    pub(crate) fn cached_files(&self) -> Vec<PathBuf> {
        self.files_of_cache(|path| path.extension() != Some("lock".as_ref()))
    }

    pub(crate) fn lock_files(&self) -> Vec<PathBuf> {
        self.files_of_cache(|path| path.extension() == Some("lock".as_ref()))
    }

    fn files_of_cache(&self, is_wanted: fn(&PathBuf) -> bool) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.path(".cache/portcullis/login")).unwrap();
        files.map(|file| file.unwrap().path()).filter(is_wanted).collect()
    }

    async fn connect(&self) -> Connection {
        let builder = zbus::connection::Builder::address(self.address.as_str()).unwrap();
        builder.build().await.unwrap()
    }

    /// Locks the default collection.
    pub(crate) async fn lock(&self) {
        let bus = self.connect().await;
        let collection = default_collection(&bus).await.unwrap();
        let answer =
            bus.call_method(Some(SECRETS), SERVICE.0, Some(SERVICE.1), "Lock", &(vec![collection],)).await;
        answer.unwrap();
    }

    /// The secrets of all items of portcullis.
    pub(crate) async fn items(&self) -> Vec<String> {
        let bus = self.connect().await;
        let session = session(&bus).await;
        let mut secrets = Vec::new();
        for item in found(&bus).await {
            let answer =
                bus.call_method(Some(SECRETS), item.as_str(), Some(ITEM), "GetSecret", &(&session,)).await;
            let ((_, _, content, _),): (Secret,) = answer.unwrap().body().deserialize().unwrap();
            secrets.push(String::from_utf8(content).unwrap());
        }
        secrets
    }

    /// Replaces the secret of the only item.
    pub(crate) async fn replace_item(&self, content: &str) {
        let bus = self.connect().await;
        let secret = (session(&bus).await, Vec::<u8>::new(), content.as_bytes(), "application/json");
        let items = found(&bus).await;
        let answer =
            bus.call_method(Some(SECRETS), items[0].as_str(), Some(ITEM), "SetSecret", &(secret,)).await;
        answer.unwrap();
    }
}

async fn default_collection(bus: &Connection) -> Option<OwnedObjectPath> {
    let answer = bus.call_method(Some(SECRETS), SERVICE.0, Some(SERVICE.1), "ReadAlias", &("default",)).await;
    answer.ok()?.body().deserialize().ok()
}

async fn session(bus: &Connection) -> OwnedObjectPath {
    let argument = ("plain", Value::from(""));
    let answer = bus.call_method(Some(SECRETS), SERVICE.0, Some(SERVICE.1), "OpenSession", &argument).await;
    let (_, session): (OwnedValue, OwnedObjectPath) = answer.unwrap().body().deserialize().unwrap();
    session
}

async fn found(bus: &Connection) -> Vec<OwnedObjectPath> {
    let attributes = HashMap::from([("application", "portcullis")]);
    let answer =
        bus.call_method(Some(SECRETS), SERVICE.0, Some(SERVICE.1), "SearchItems", &(attributes,)).await;
    let (unlocked, locked): (Vec<OwnedObjectPath>, Vec<OwnedObjectPath>) =
        answer.unwrap().body().deserialize().unwrap();
    assert!(locked.is_empty());
    unlocked
}
