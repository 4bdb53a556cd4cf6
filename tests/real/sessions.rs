//! Sessions of a real kubectl through a gateway that must record them, in front of a real API server and of the streaming server of
//! container runtimes (`tests/go/podstreams`).
//!
//! Each command runs twice, through a gateway without a session policy, too: its output and its exit code are equal. The recording,
//! as `portcullis sessions` reads it, is what kubectl got and sent, byte for byte.

mod ports;
mod recorded;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, seed};
use testkit::real::{ServerProcess, certificate_kubeconfig, eventually, free_ports};

use crate::servers::{FRONT_PROXY, HeaderFlags, RealGateway, RealServers};
use recorded::Recorded;

/// The size of the files that are copied and printed.
const LARGE: usize = 5 << 20;

/// What carries the streams of kubectl.
#[derive(Clone, Copy)]
enum Transport {
    WebSocket,
    Spdy,
}

/// The servers of a trial.
struct Sessions<'a> {
    servers: &'a RealServers,
    transport: Transport,
    /// Has the kubeconfigs, the files of the commands, and the recordings.
    home: tempfile::TempDir,
    namespace: String,
    recording: RealGateway,
    plain: RealGateway,
    _kubelet: ServerProcess,
}

/// A scenario in these servers.
type Scenario = fn(&Sessions<'_>) -> Result<(), String>;

/// What a command left.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// The tests of this group.
pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    vec![
        trial("kubectl over a WebSocket", Box::new(|servers| all(servers, Transport::WebSocket))),
        trial("kubectl over SPDY", Box::new(|servers| all(servers, Transport::Spdy))),
    ]
}

fn all(servers: &RealServers, transport: Transport) -> Result<(), String> {
    let sessions = Sessions::start(servers, transport)?;
    let scenarios: [(&str, Scenario); 6] = [
        ("exec with input", exec_with_input),
        ("exec with much output", exec_with_much_output),
        ("exec with a terminal", exec_with_a_terminal),
        ("attach", attach),
        ("cp", copy),
        ("port-forward", ports::forward),
    ];
    for (name, run) in scenarios {
        run(&sessions).map_err(|error| format!("{name}: {error}"))?;
    }
    sessions.verify()
}

fn exec_with_input(sessions: &Sessions<'_>) -> Result<(), String> {
    let pod = sessions.pod("input")?;
    // Every byte, and no UTF-8.
    let input = noise(700_000);
    let command = ["exec", "-i", &pod, "--", "sh", "-c", "cat; echo warning >&2; exit 3"];
    let outcome = sessions.both(&command, &input)?;
    equal("standard output", &outcome.stdout, &input)?;
    equal("standard error", &outcome.stderr, b"warning\ncommand terminated with exit code 3\n")?;
    let recorded = sessions.one_of(&pod)?;
    recorded.ended("exited", Some(3), input.len(), input.len() + 8)?;
    let channels = recorded.channels()?;
    equal("recorded input", &channels.stdin, &input)?;
    equal("recorded output", &channels.stdout, &outcome.stdout)?;
    equal("recorded errors", &channels.stderr, b"warning\n")
}

fn exec_with_much_output(sessions: &Sessions<'_>) -> Result<(), String> {
    let pod = sessions.pod("output")?;
    let file = sessions.file("output.bin", &noise(LARGE));
    let outcome = sessions.both(&["exec", &pod, "--", "cat", &file], b"")?;
    equal("standard output", &outcome.stdout, &fs::read(&file).unwrap())?;
    let recorded = sessions.one_of(&pod)?;
    recorded.ended("exited", Some(0), 0, LARGE)?;
    equal("recorded output", &recorded.channels()?.stdout, &outcome.stdout)
}

fn exec_with_a_terminal(sessions: &Sessions<'_>) -> Result<(), String> {
    const TYPED: &[u8] = "ls \u{1f980}\t\u{7f}\r".as_bytes();
    let pod = sessions.pod("terminal")?;
    let program =
        r#"printf '\033[1mready\033[0m\n'; stty size; read line; printf 'got \303\251 %s\n' "$line"; exit 5"#;
    let run = |gateway: &RealGateway| {
        let kubectl = sessions.kubectl(gateway, &["exec", "-it", &pod, "--", "sh", "-c", program])?;
        let quoted = |argument: &OsStr| format!("'{}'", argument.to_string_lossy().replace('\'', r"'\''"));
        let arguments: Vec<_> = kubectl.get_args().map(quoted).collect();
        let line = format!(
            "stty cols 101 rows 31; exec {} {}",
            sessions.servers.kubectl()?.display(),
            arguments.join(" ")
        );
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]);
        for (name, value) in kubectl.get_envs() {
            script.env(name, value.unwrap_or_default());
        }
        let mut script = Running::start(script)?;
        // Kubectl's terminal is raw from then on: nothing but the process writes what is typed.
        let mut shown = script.until(b"31 101")?;
        script.type_in(TYPED)?;
        let outcome = script.finish()?;
        shown.extend(outcome.stdout);
        Ok::<_, String>(Outcome { stdout: shown, ..outcome })
    };
    let (plain, outcome) = (run(&sessions.plain)?, run(&sessions.recording)?);
    equal("the terminal without a recording", &plain.stdout, &outcome.stdout)?;
    let recorded = sessions.one_of(&pod)?;
    let terminal = recorded.terminal()?;
    // Kubectl's own line follows on the terminal.
    let shown = [&terminal.output, "command terminated with exit code 5\r\n"].concat();
    equal("the recorded terminal", shown.as_bytes(), &outcome.stdout)?;
    equal("recorded input", terminal.input.as_bytes(), TYPED)?;
    if (terminal.size.as_str(), plain.code, outcome.code) != ("101x31", Some(5), Some(5)) {
        return Err(format!("{} {:?} {:?}", terminal.size, plain.code, outcome.code));
    }
    recorded.ended("exited", Some(5), TYPED.len(), terminal.output.len())
}

fn attach(sessions: &Sessions<'_>) -> Result<(), String> {
    let pod = sessions.pod("attach")?;
    let outcome = sessions.both(&["attach", "-qi", &pod], b"typed\n")?;
    equal("standard output", &outcome.stdout, b"attached\ntyped\n")?;
    let recorded = sessions.one_of(&pod)?;
    let channels = recorded.channels()?;
    equal("recorded input", &channels.stdin, b"typed\n")?;
    equal("recorded output", &channels.stdout, &outcome.stdout)?;
    equal("recorded errors", &channels.stderr, &outcome.stderr)?;
    recorded.ended("exited", Some(0), 6, 24)
}

fn copy(sessions: &Sessions<'_>) -> Result<(), String> {
    let content = noise(LARGE);
    let local = sessions.file("sent.bin", &content);
    let (from, to) = (sessions.pod("copy-from")?, sessions.pod("copy-to")?);
    let remote = |name: &str| sessions.home.path().join(name).display().to_string();
    sessions.both(&["cp", &local, &format!("{to}:{}", remote("received.bin"))], b"")?;
    equal("the file in the pod", &fs::read(remote("received.bin")).unwrap(), &content)?;
    sessions.both(&["cp", &format!("{from}:{local}"), &remote("fetched.bin")], b"")?;
    equal("the file from the pod", &fs::read(remote("fetched.bin")).unwrap(), &content)?;
    let sent = sessions.of_command(&to, "tar")?;
    equal("the file in the recorded input", &untar(&sent.channels()?.stdin)?, &content)?;
    let fetched = sessions.of_command(&from, "tar")?;
    equal("the file in the recorded output", &untar(&fetched.channels()?.stdout)?, &content)
}

impl<'a> Sessions<'a> {
    fn start(servers: &'a RealServers, transport: Transport) -> Result<Self, String> {
        let (namespace, name) = match transport {
            Transport::WebSocket => ("sessions-websocket", "sessions over a WebSocket"),
            Transport::Spdy => ("sessions-spdy", "sessions over SPDY"),
        };
        let server = servers.server(HeaderFlags::Good)?;
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = |name: &str| home.path().join(name);
        for (name, content) in
            [("alice.crt", servers.alice().cert_pem()), ("alice.key", servers.alice().key_pem())]
        {
            fs::write(path(name), content).unwrap();
        }
        fs::copy(servers.file("servers-ca.crt")?, path("ca.crt")).unwrap();
        let policy = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "SessionPolicy",
            "rules": [{"level": "InputAndOutput", "required": true}],
        });
        fs::write(path("policy.yaml"), policy.to_string()).unwrap();
        private_directory(&path("recordings"))?;
        let flags = [
            format!("--session-policy-file={}", path("policy.yaml").display()),
            format!("--session-recording-directory={}", path("recordings").display()),
        ];
        let recording =
            servers.gateway_with(&format!("{name} recorded"), server.address, &FRONT_PROXY, &flags)?;
        let plain = servers.gateway(name, server.address, &FRONT_PROXY)?;
        let (port, kubelet) = start_kubelet(servers, namespace, home.path())?;
        for gateway in [&recording, &plain] {
            gateway.line_with(&["self-check passed"])?;
            let kubeconfig = certificate_kubeconfig(gateway.address, &path("ca.crt"), "alice");
            fs::write(path(&gateway.address.port().to_string()), kubeconfig).unwrap();
        }
        let sessions = Self {
            servers,
            transport,
            home,
            namespace: namespace.to_owned(),
            recording,
            plain,
            _kubelet: kubelet,
        };
        sessions.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))?;
        sessions.create(
            &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            &json!({"metadata": {"name": "default"}}),
        )?;
        sessions.create(
            "/api/v1/nodes",
            &json!({"metadata": {"name": namespace}, "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }}),
        )?;
        Ok(sessions)
    }

    fn create(&self, path: &str, object: &Value) -> Result<(), String> {
        let server = self.servers.server(HeaderFlags::Good)?.address;
        self.servers.runtime().block_on(self.servers.create(server, path, &object.to_string()))
    }

    /// Creates a running pod; returns its name.
    fn pod(&self, name: &str) -> Result<String, String> {
        let pods = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let pod = json!({"metadata": {"name": name}, "spec": {
            "nodeName": self.namespace, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/none", "stdin": true}],
        }});
        self.create(&pods, &pod)?;
        let running = r#"--patch={"status":{"phase":"Running"}}"#;
        let outcome = self.run(
            &self.plain,
            &["patch", "pod", name, "--subresource=status", "--type=merge", running],
            b"",
        )?;
        if outcome.code == Some(0) { Ok(name.to_owned()) } else { Err(format!("{outcome:?}")) }
    }

    /// Writes a file of commands; returns its path.
    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.home.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn kubectl(&self, gateway: &RealGateway, arguments: &[&str]) -> Result<Command, String> {
        let mut kubectl = Command::new(self.servers.kubectl()?);
        kubectl
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", std::env::var_os("PATH").unwrap())
            .arg("--kubeconfig")
            .arg(self.home.path().join(gateway.address.port().to_string()))
            .args(["--namespace", &self.namespace])
            .args(arguments);
        if let Transport::Spdy = self.transport {
            for name in ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"] {
                kubectl.env(name, "false");
            }
        }
        Ok(kubectl)
    }

    fn run(&self, gateway: &RealGateway, arguments: &[&str], input: &[u8]) -> Result<Outcome, String> {
        let mut kubectl = Running::start(self.kubectl(gateway, arguments)?)?;
        kubectl.feed(input);
        kubectl.finish()
    }

    /// Runs a command through each gateway. Returns what it left, which is the same.
    fn both(&self, arguments: &[&str], input: &[u8]) -> Result<Outcome, String> {
        let plain = self.run(&self.plain, arguments, input)?;
        let outcome = self.run(&self.recording, arguments, input)?;
        equal("standard output with a recording", &outcome.stdout, &plain.stdout)?;
        equal("standard error with a recording", &outcome.stderr, &plain.stderr)?;
        if outcome.code == plain.code { Ok(outcome) } else { Err(format!("{outcome:?} {plain:?}")) }
    }

    fn recordings(&self) -> PathBuf {
        self.home.path().join("recordings")
    }

    /// The only recorded session of a pod.
    fn one_of(&self, pod: &str) -> Result<Recorded, String> {
        self.find(pod, |_| true)
    }

    /// The recorded session of a pod with this program.
    fn of_command(&self, pod: &str, program: &str) -> Result<Recorded, String> {
        self.find(pod, |session| session["start"]["command"][0] == program)
    }

    fn find(&self, pod: &str, is_it: impl Fn(&Value) -> bool) -> Result<Recorded, String> {
        let mut found = None;
        let directory = self.recordings();
        // The end is stored after kubectl has it.
        self.servers.runtime().block_on(eventually("the end of the recording", async || {
            let list = portcullis(&directory, "list", &["--output", "json"])?;
            let list: Vec<Value> = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
            let mut of_pod =
                list.into_iter().filter(|session| session["start"]["pod"] == pod && is_it(session));
            let (session, other) = (of_pod.next(), of_pod.next());
            if other.is_some() {
                return Err(format!("two sessions: {session:?} {other:?}"));
            }
            found = session.filter(|session| session["state"] == "ended");
            Ok(found.is_some())
        }))?;
        Ok(Recorded::new(directory, found.unwrap_or_default()))
    }

    /// All recordings are whole, and no session of the gateway was left out.
    fn verify(&self) -> Result<(), String> {
        let directory = self.recordings();
        let verified = String::from_utf8(portcullis(&directory, "verify", &["--all"])?).unwrap();
        // `cp` to a pod asks first whether the destination is a directory.
        let whole = verified.lines().filter(|line| line.contains("  whole  ")).count();
        if whole != 8 || verified.lines().count() != 9 {
            return Err(verified);
        }
        if self.recording.line_with_now(&["a session is not recorded"]) {
            return Err("the log has a session that is not recorded".to_owned());
        }
        Ok(())
    }
}

/// Starts the streaming server; returns its port.
fn start_kubelet(servers: &RealServers, name: &str, home: &Path) -> Result<(u16, ServerProcess), String> {
    let program = GoProgram::build("podstreams").ok_or("Go is required here")?;
    let [port] = free_ports()?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let certificate = [servers.file("server.crt")?, servers.file("server.key")?];
    let arguments =
        [address.to_string()].into_iter().chain(certificate.map(|path| path.display().to_string()));
    let mut kubelet = ServerProcess::start(home, name, program.path(), arguments)?;
    servers.runtime().block_on(eventually("the streaming server", async || {
        kubelet.check()?;
        Ok(TcpStream::connect(address).is_ok())
    }))?;
    Ok((port, kubelet))
}

fn private_directory(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().mode(0o700).create(path).map_err(|error| error.to_string())
}

/// Bytes that cannot be compressed, nor decoded as UTF-8.
fn noise(length: usize) -> Vec<u8> {
    let mut rng = Rng(seed());
    (0..length.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(length).collect()
}

/// The content of the only file of an archive.
fn untar(archive: &[u8]) -> Result<Vec<u8>, String> {
    let mut tar = Command::new("tar");
    tar.args(["-x", "-O", "-f", "-"]);
    let mut tar = Running::start(tar)?;
    tar.feed(archive);
    Ok(tar.finish()?.stdout)
}

/// The output of `portcullis sessions`.
fn portcullis(directory: &Path, command: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut portcullis = Command::new(crate::PORTCULLIS);
    portcullis.args(["sessions", command, "--directory"]).arg(directory).args(arguments);
    let Outcome { code, stdout, stderr } = Running::start(portcullis)?.finish()?;
    if code == Some(0) { Ok(stdout) } else { Err(String::from_utf8_lossy(&stderr).into_owned()) }
}

/// Long contents are not printed.
fn equal(what: &str, is: &[u8], expected: &[u8]) -> Result<(), String> {
    if is == expected {
        return Ok(());
    }
    let same = is.iter().zip(expected).take_while(|(is, expected)| is == expected).count();
    let shown = |bytes: &[u8]| {
        let from = &bytes[same.saturating_sub(20)..];
        String::from_utf8_lossy(&from[..from.len().min(300)]).into_owned()
    };
    let (is_long, expected_long) = (is.len(), expected.len());
    Err(format!(
        "{what}: {is_long} bytes instead of {expected_long}, equal up to {same}: {:?} instead of {:?}",
        shown(is),
        shown(expected)
    ))
}

/// A running command.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Running {
    fn start(mut command: Command) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin })
    }

    /// Reads standard output up to this text.
    fn until(&mut self, text: &[u8]) -> Result<Vec<u8>, String> {
        let stdout = self.child.stdout.as_mut().ok_or("no standard output")?;
        let (mut read, mut byte) = (Vec::new(), [0]);
        while !read.ends_with(text) {
            if stdout.read(&mut byte).map_err(|error| error.to_string())? == 0 {
                return Err(format!("it ended after {:?}", String::from_utf8_lossy(&read)));
            }
            read.push(byte[0]);
        }
        Ok(read)
    }

    /// Writes to its input, which stays open: on a terminal the end of the input is a character.
    fn type_in(&mut self, input: &[u8]) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("its input is closed")?;
        stdin.write_all(input).map_err(|error| error.to_string())
    }

    /// Gives it all its input, while it writes.
    fn feed(&mut self, input: &[u8]) {
        let (stdin, input) = (self.stdin.take(), input.to_vec());
        std::thread::spawn(move || {
            // A command that reads none may have ended.
            stdin.map(|mut stdin| stdin.write_all(&input).ok());
        });
    }

    /// Waits for its end.
    fn finish(self) -> Result<Outcome, String> {
        let Self { child, stdin } = self;
        let Output { status, stdout, stderr } =
            child.wait_with_output().map_err(|error| error.to_string())?;
        drop(stdin);
        Ok(Outcome { code: status.code(), stdout, stderr })
    }
}
