//! Runs kubectl against both sides: standard output, standard error and exit code must be equal.
//!
//! Each side of each case has its own home directory, so kubectl shares no discovery cache.

mod admission;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::authenticators::Setting;
use crate::case::{Declared, ExpectedReviews, Values};
use crate::client::{digest, line_ends};
use crate::compare;
use crate::kubelet::noise;
use crate::run::{Compared, reviews, side_of};
use crate::servers::{Side, TwinServers};

/// The timeout of a command.
const DEADLINE: Duration = Duration::from_secs(90);

/// From this size on, standard output is compared by its digest.
const LONG: usize = 1 << 20;

/// A sequence of commands by one user.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    user: User,
    commands: Vec<Invocation>,
    /// Whether the case needs kube-controller-manager.
    pub(crate) controllers: bool,
    /// Whether the case impersonates, and so runs in both identity modes.
    pub(crate) impersonates: bool,
    pub(crate) declared: Option<Declared>,
    pub(crate) setting: Setting,
}

#[derive(Clone, Copy, Debug)]
enum User {
    Certificate(&'static str),
    Token(&'static str),
    Anonymous,
}

/// One command. Text may contain the placeholders of `case.rs`.
#[derive(Clone, Debug)]
struct Invocation {
    arguments: Vec<String>,
    stdin: Input,
    environment: Vec<(&'static str, &'static str)>,
    /// Files of noise in the home directory, by name and length.
    files: Vec<(&'static str, usize)>,
    /// The exit code of the reference's kubectl.
    code: i32,
    contains: Vec<String>,
    /// Actions while the command runs, each after this many lines of output.
    actions: Vec<(usize, Action)>,
    /// The command is stopped after this many lines of output and all actions.
    lines: Option<usize>,
    /// Whether the command is stopped with SIGINT instead of SIGKILL.
    interrupted: bool,
    /// Files that the command writes, compared as part of its output.
    written: Vec<&'static str>,
    /// Whether the order of lines, and of words in a line, varies between runs against the same server.
    unordered: bool,
}

#[derive(Clone, Debug)]
enum Input {
    Text(String),
    /// This many bytes of noise, which the command must echo to standard output.
    Noise(usize),
}

/// An action while a command runs.
#[derive(Clone, Debug)]
enum Action {
    /// Another kubectl command, which must succeed.
    Kubectl(String),
    /// A connection to the port that the command has printed: sends this many bytes. The response is part of the
    /// output.
    Dial(usize),
    /// A GET request to that port. The response is part of the output.
    Get(&'static str),
}

/// A case of one command, which must succeed. The command line is split at blanks.
fn kubectl(name: &str, user: &'static str, command: &str) -> Case {
    Case {
        name: name.to_owned(),
        user: User::Certificate(user),
        commands: vec![Invocation::new(command)],
        controllers: false,
        impersonates: false,
        declared: None,
        setting: Setting::Config,
    }
}

impl Invocation {
    fn new(command: &str) -> Self {
        Self {
            arguments: command.split_whitespace().map(str::to_owned).collect(),
            stdin: Input::Text(String::new()),
            environment: Vec::new(),
            files: Vec::new(),
            code: 0,
            contains: Vec::new(),
            actions: Vec::new(),
            lines: None,
            interrupted: false,
            written: Vec::new(),
            unordered: false,
        }
    }
}

impl Case {
    fn last(&mut self) -> &mut Invocation {
        self.commands.last_mut().expect("a case has a command")
    }

    fn token(mut self, token: &'static str) -> Self {
        self.user = User::Token(token);
        self
    }

    fn without_credentials(mut self) -> Self {
        self.user = User::Anonymous;
        self
    }

    /// Adds an argument that may contain blanks.
    fn argument(mut self, argument: &str) -> Self {
        self.last().arguments.push(argument.to_owned());
        self
    }

    fn stdin(mut self, text: &str) -> Self {
        self.last().stdin = Input::Text(text.to_owned());
        self
    }

    /// Sends noise of this length to standard input, and expects the same on standard output.
    fn echoes(mut self, length: usize) -> Self {
        self.last().stdin = Input::Noise(length);
        self
    }

    fn file(mut self, name: &'static str, length: usize) -> Self {
        self.last().files.push((name, length));
        self
    }

    fn writes(mut self, name: &'static str) -> Self {
        self.last().written.push(name);
        self
    }

    /// Adds an action after this many lines of output.
    fn after(mut self, lines: usize, action: Action) -> Self {
        self.last().actions.push((lines, action));
        self
    }

    fn interrupted(mut self) -> Self {
        self.last().interrupted = true;
        self
    }

    fn environment(mut self, name: &'static str, value: &'static str) -> Self {
        self.last().environment.push((name, value));
        self
    }

    fn exits(mut self, code: i32) -> Self {
        self.last().code = code;
        self
    }

    /// The reference's standard output or error must contain this text.
    fn prints(mut self, text: &str) -> Self {
        self.last().contains.push(text.to_owned());
        self
    }

    /// Stops the command after this many lines.
    fn lines(mut self, lines: usize) -> Self {
        self.last().lines = Some(lines);
        self
    }

    /// Ignores the order of lines and of words in them.
    fn unordered(mut self) -> Self {
        self.last().unordered = true;
        self
    }

    /// Uses the servers with admission webhooks.
    fn by_admission(mut self) -> Self {
        self.setting = Setting::Admission;
        self
    }

    fn with_controllers(mut self) -> Self {
        self.controllers = true;
        self
    }

    fn then(mut self, command: &str) -> Self {
        self.commands.push(Invocation::new(command));
        self
    }
}

/// The result of a command.
struct Output {
    /// `None` if the command was killed.
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// The name of an action and its output.
type ActionOutput = (String, Vec<u8>);

/// Runs the case on both sides and returns the differences.
pub(crate) fn run(servers: &TwinServers, case: &Case, side: Side) -> Result<Compared, Failed> {
    if case.controllers {
        servers.controllers()?;
    }
    let reference = Home::new(servers, case.user, Side::Reference.with(case.setting))?;
    let subject = Home::new(servers, case.user, side.with(case.setting))?;
    let mut found = Vec::new();
    let mut last = 0;
    for command in &case.commands {
        let (left, right) = std::thread::scope(|scope| {
            let left = scope.spawn(|| reference.run(servers, command));
            let right = subject.run(servers, command);
            (left.join().expect("no panic while kubectl runs"), right)
        });
        let (mut left, mut right) = (left?, right?);
        let shown = format!(
            "kubectl {}\nreference: exit {:?}\n{}{}\nsubject: exit {:?}\n{}{}",
            command.arguments.join(" "),
            left.code,
            left.stdout,
            left.stderr,
            right.code,
            right.stdout,
            right.stderr
        );
        if (command.lines.is_none() || command.interrupted) && left.code != Some(command.code) {
            return Err(
                format!("the reference's kubectl does not exit with {}\n{shown}", command.code).into()
            );
        }
        for text in &command.contains {
            if !left.stdout.contains(text) && !left.stderr.contains(text) {
                return Err(format!("the reference's kubectl does not print {text}\n{shown}").into());
            }
        }
        if let Input::Noise(length) = command.stdin
            && !left.stdout.contains(&digest(&noise(length)))
        {
            return Err(format!("the reference's kubectl does not print its input\n{shown}").into());
        }
        if command.unordered {
            for text in [&mut left.stdout, &mut left.stderr, &mut right.stdout, &mut right.stderr] {
                *text = sorted(text);
            }
        }
        last = u16::try_from(right.code.unwrap_or_default()).unwrap_or(u16::MAX);
        let differs: Vec<&str> = [
            ("exit code", left.code != right.code),
            ("standard output", left.stdout != right.stdout),
            ("standard error", left.stderr != right.stderr),
        ]
        .into_iter()
        .filter_map(|(output, differs)| differs.then_some(output))
        .collect();
        if !differs.is_empty() {
            found.push(format!("{} differ\n{shown}", differs.join(", ")));
        }
    }
    if case.setting == Setting::Admission {
        // A patch is admitted again if the object in the watch cache was old, which depends on time.
        let values = (&reference.values, &subject.values);
        found.extend(reviews(servers, values, false, ExpectedReviews::Repeated)?);
    }
    Ok(Compared { differences: found, last })
}

/// A kubeconfig with alice's certificate, for other clients than kubectl.
pub(crate) fn kubeconfig_of_alice(servers: &TwinServers, side: Side) -> Result<PathBuf, Failed> {
    Ok(Home::new(servers, User::Certificate("alice"), side)?.dir.join("config"))
}

/// A home directory with a kubeconfig.
struct Home {
    dir: PathBuf,
    values: Values,
}

impl Home {
    fn new(servers: &TwinServers, user: User, side: Side) -> Result<Self, Failed> {
        let (target, values) = side_of(servers, side)?;
        let dir = servers.dir.join("kubectl").join(&values.unique);
        fs::create_dir_all(&dir)?;
        let user = match user {
            User::Certificate(name) => {
                let issued =
                    servers.issued(name).ok_or_else(|| format!("people.rs has no client called {name}"))?;
                fs::write(dir.join("client.crt"), issued.cert_pem())?;
                fs::write(dir.join("client.key"), issued.key_pem())?;
                serde_json::json!({"client-certificate": dir.join("client.crt"), "client-key": dir.join("client.key")})
            }
            User::Token(token) => serde_json::json!({"token": token}),
            User::Anonymous => serde_json::json!({}),
        };
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "twin"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", target.address),
                "certificate-authority": servers.dir.join("server-ca.crt")}}],
            "users": [{"name": "u", "user": user}],
        });
        fs::write(dir.join("config"), config.to_string())?;
        Ok(Self { dir, values })
    }

    fn run(&self, servers: &TwinServers, command: &Invocation) -> Result<Output, Failed> {
        let (stdout, stderr, stdin) =
            (self.dir.join("stdout"), self.dir.join("stderr"), self.dir.join("stdin"));
        match &command.stdin {
            Input::Text(text) => fs::write(&stdin, self.values.fill(text))?,
            Input::Noise(length) => fs::write(&stdin, noise(*length))?,
        }
        for (name, length) in &command.files {
            let path = self.dir.join(name);
            fs::create_dir_all(path.parent().ok_or("a file without a directory")?)?;
            fs::write(path, noise(*length))?;
        }
        let mut child = Command::new(&servers.programs.kubectl)
            .args(command.arguments.iter().map(|argument| self.values.fill(argument)))
            .env_clear()
            .env("HOME", &self.dir)
            .env("KUBECONFIG", self.dir.join("config"))
            .env("TZ", "UTC")
            .envs(command.environment.iter().copied())
            .current_dir(&self.dir)
            .stdin(Stdio::from(File::open(&stdin)?))
            .stdout(Stdio::from(File::create(&stdout)?))
            .stderr(Stdio::from(File::create(&stderr)?))
            .spawn()?;
        let watched = self.watch(servers, command, &mut child, &stdout);
        if watched.is_err() {
            child.kill().ok();
            child.wait().ok();
        }
        let (code, action_outputs) = watched?;
        let bytes = fs::read(&stdout)?;
        let port = printed_port(&bytes).map(|port| port.to_string());
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let text = port.as_ref().map_or(text.clone(), |port| text.replace(port, "{port}"));
            normalise(&text, &self.values, &self.dir)
        };
        let mut output = if bytes.len() < LONG { text(&bytes) } else { digest(&bytes) };
        for (action, bytes) in action_outputs {
            output.push_str(&format!(
                "--- {action}\n{}",
                if bytes.len() < LONG { text(&bytes) } else { digest(&bytes) }
            ));
        }
        for name in &command.written {
            let content =
                fs::read(self.dir.join(name)).map_or_else(|error| error.to_string(), |bytes| digest(&bytes));
            output.push_str(&format!("--- {name}: {content}\n"));
        }
        Ok(Output { code, stdout: output, stderr: text(&fs::read(&stderr)?) })
    }

    /// Runs the actions, then waits for the command to exit or stops it. Returns the exit code and the actions'
    /// outputs.
    fn watch(
        &self,
        servers: &TwinServers,
        command: &Invocation,
        child: &mut Child,
        stdout: &Path,
    ) -> Result<(Option<i32>, Vec<ActionOutput>), Failed> {
        let started = Instant::now();
        let printed = || fs::read(stdout).map_or(0, |text| line_ends(&text));
        let mut actions = command.actions.iter();
        let mut next = actions.next();
        let mut stopped = false;
        let mut outputs = Vec::new();
        loop {
            if let Some(status) = child.try_wait()? {
                let killed = stopped && !command.interrupted;
                return Ok((if killed { None } else { status.code() }, outputs));
            }
            if let Some((lines, action)) = next {
                if printed() >= *lines {
                    outputs.push((format!("{action:?}"), self.perform(servers, action, &fs::read(stdout)?)?));
                    next = actions.next();
                    continue;
                }
            } else if !stopped && command.lines.is_some_and(|lines| printed() >= lines) {
                if command.interrupted {
                    rustix::process::kill_process(
                        rustix::process::Pid::from_child(child),
                        rustix::process::Signal::INT,
                    )?;
                } else {
                    child.kill()?;
                }
                stopped = true;
            }
            if started.elapsed() > DEADLINE {
                return Err(format!("kubectl {:?} did not end in time", command.arguments).into());
            }
            std::thread::park_timeout(Duration::from_millis(15));
        }
    }

    fn perform(&self, servers: &TwinServers, action: &Action, printed: &[u8]) -> Result<Vec<u8>, Failed> {
        let dial = || -> Result<TcpStream, Failed> {
            let port = printed_port(printed).ok_or("the output has no port")?;
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.set_write_timeout(Some(DEADLINE))?;
            Ok(stream)
        };
        let mut answer = Vec::new();
        match action {
            Action::Kubectl(arguments) => {
                let done = Command::new(&servers.programs.kubectl)
                    .args(self.values.fill(arguments).split(' '))
                    .env_clear()
                    .env("HOME", &self.dir)
                    .env("KUBECONFIG", self.dir.join("config"))
                    .output()?;
                if !done.status.success() {
                    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
                    return Err(format!("kubectl {arguments} during the command: {stderr}").into());
                }
                answer = done.stdout;
            }
            Action::Dial(length) => {
                let mut stream = dial()?;
                let mut writer = stream.try_clone()?;
                let bytes = noise(*length);
                std::thread::scope(|scope| {
                    // The write fails if the kubelet refuses the port.
                    scope.spawn(move || {
                        writer.write_all(&bytes).and_then(|()| writer.shutdown(Shutdown::Write)).ok()
                    });
                    stream.read_to_end(&mut answer).ok();
                });
                answer = digest(&answer).into_bytes();
            }
            Action::Get(path) => {
                let mut stream = dial()?;
                stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
                stream.read_to_end(&mut answer)?;
                let text = String::from_utf8_lossy(&answer).into_owned();
                let (head, body) = text.split_once("\r\n\r\n").ok_or("no response")?;
                let kept = head.lines().enumerate().filter(|(number, line)| {
                    *number == 0 || line.starts_with("Content-Type:") || line.starts_with("Cache-Control:")
                });
                let mut kept: Vec<&str> = kept.map(|(_, line)| line).collect();
                kept.push(body);
                answer = kept.join("\n").into_bytes();
            }
        }
        Ok(answer)
    }
}

/// The port of the first loopback address in the output.
fn printed_port(printed: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(printed);
    let (_, rest) = text.split_once("127.0.0.1:")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Normalises output like bodies, and also ages, tokens, the home directory, log prefixes, and the column widths that
/// depend on them.
fn normalise(text: &str, values: &Values, dir: &Path) -> String {
    let text = text.replace(&dir.display().to_string(), "{home}");
    let text = compare::normalise(&text, values);
    text.lines().map(line).collect()
}

fn sorted(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let words = |line: &str| {
        let mut words: Vec<&str> = line.split([' ', '[', ']']).filter(|word| !word.is_empty()).collect();
        words.sort_unstable();
        words.join(" ")
    };
    let mut lines: Vec<String> = text.lines().map(words).collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

fn line(line: &str) -> String {
    // klog: E1121 00:12:54.123456   12345 memcache.go:265] message
    let logged = line.len() > 30
        && line.starts_with(['E', 'W', 'I'])
        && line.get(1..5).is_some_and(|date| date.bytes().all(|byte| byte.is_ascii_digit()));
    if let (true, Some((_, message))) = (logged, line.split_once("] ")) {
        return format!("<log> {message}\n");
    }
    let body = line.trim_start();
    let mut out = line.get(..line.len() - body.len()).unwrap_or_default().to_owned();
    let mut blanks = 0;
    for word in body.split(' ') {
        if word.is_empty() {
            blanks += 1;
            continue;
        }
        if !out.trim_start().is_empty() {
            out.push_str(if blanks > 0 { "  " } else { " " });
        }
        blanks = 0;
        if compare::is_age(word) {
            out.push_str("<age>");
        } else if word.starts_with("eyJ") {
            out.push_str("<token>");
        } else {
            out.push_str(word);
        }
    }
    out.push('\n');
    out
}

const CONFIG_MAP: &str =
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"1"}}"#;
const CHANGED_MAP: &str =
    r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"2","b":"3"}}"#;

const SIGNING_REQUEST: &str = r#"{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest",
    "metadata":{"name":"{unique}"},
    "spec":{"signerName":"example.com/twin","usages":["client auth"],"request":"{csr}"}}"#;

/// A certificate signing request for `CN=twin`, base64 of PEM:
/// `openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=twin`.
const CSR: &[&str] = &[
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISk1IRUNBUUF3RHpFTk1Bc0dBMVVFQXd3RWRIZHBiakJaTUJN",
    "R0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSApBMElBQk15ZG5JMGpvb1BWMm84R2E2NEcwNU0veVZoQm5iN3FrVWxsMEFacEJqRklq",
    "VkpNVHE2a1VGL3B6RkVMCllIeFRKaVd5b1dtU0YrK2E2dHFKN3FTOGlDMmdBREFLQmdncWhrak9QUVFEQWdOSUFEQkZBaUFzVk5T",
    "aEVZL1YKQ0NaeE9SalVJMDIyL3p4OFl2Zk1wVGFLSWREVGh1UUZ5QUloQUlZOUV4UDJFOFp1T3p6RVRhWUhONS9Ha21JTQpkSjdU",
    "N3FVcStTUmlrRnBxCi0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=",
];

/// Every kubectl case.
pub(crate) fn all() -> Vec<Case> {
    // First: the namespace controller waits five seconds before it deletes the content of a namespace.
    [namespaces(), objects(), impersonation(), streams(), admission::cases()].concat()
}

/// `--as`, `--as-group` and `--as-uid`. The message of a 403 depends on earlier decisions for the same requester, so only
/// requesters whose permissions are for one mode, or none, are refused.
fn impersonation() -> Vec<Case> {
    let as_dev = "--as alice --as-group devs";
    let exec = |command: &str| format!("exec -n twin-fixed {command}");
    let cases = vec![
        kubectl("impersonate", "impersonator", "auth whoami --as bob --as-group g1").prints("bob"),
        kubectl("impersonate uid", "legacy-impersonator", "auth whoami --as bob --as-uid uid-9")
            .prints("uid-9"),
        kubectl("impersonate group without user", "impersonator", "get cm -n twin-fixed --as-group g1")
            .exits(1),
        kubectl("impersonate user group uid", "admin", "--as alice --as-group dev --as-uid 7 auth whoami")
            .prints("dev")
            .then("--as alice --as-group dev --as-uid 7 auth whoami -o json")
            .prints(r#""uid": "7""#),
        kubectl(
            "impersonate a service account",
            "admin",
            "auth whoami --as system:serviceaccount:twin:default",
        )
        .prints("system:serviceaccounts:twin"),
        kubectl("impersonate by token", "admin", "auth whoami --as bob").token("tok-admin").prints("bob"),
        kubectl(
            "impersonate can-i yes",
            "legacy-impersonator",
            "auth can-i list configmaps -n twin-fixed --as bob",
        )
        .prints("yes"),
        kubectl(
            "impersonate can-i no",
            "legacy-impersonator",
            "auth can-i create configmaps -n twin-fixed --as bob",
        )
        .exits(1)
        .prints("no"),
        kubectl("impersonate can-i list", "admin", "auth can-i --list -n twin-fixed --as bob --as-group x")
            .unordered()
            .prints("configmaps"),
        kubectl("impersonate can-i forbidden", "nobody", "auth can-i list configmaps -n twin-fixed --as bob")
            .exits(1)
            .prints("impersonate"),
        kubectl("impersonate forbidden", "alice", "get cm -n twin-fixed --as bob")
            .exits(1)
            .prints("Forbidden"),
        kubectl(
            "impersonate raw forbidden",
            "impersonator",
            "get --raw /api/v1/namespaces/twin-fixed/configmaps/alpha --as eve",
        )
        .exits(1)
        .prints("Forbidden"),
        kubectl("impersonate other user forbidden", "impersonator", "auth whoami --as eve")
            .exits(1)
            .prints("do not have permission"),
        kubectl(
            "impersonate masters forbidden",
            "impersonator",
            "auth whoami --as bob --as-group system:masters",
        )
        .exits(1)
        .prints("do not have permission"),
        kubectl(
            "impersonate without the right of the user",
            "legacy-impersonator",
            "get secrets -n twin-fixed --as bob",
        )
        .exits(1)
        .prints(r#"User "bob" cannot list"#),
        kubectl("impersonate create", "admin", &format!("create cm {{unique}} {as_dev}"))
            .prints("created")
            .then(&format!("delete cm {{unique}} {as_dev}"))
            .prints("deleted"),
        kubectl("impersonate exec", "admin", &exec(&format!("placed {as_dev} -- echo hello world")))
            .prints("ran echo hello world"),
        kubectl("impersonate exec with input", "admin", &exec(&format!("-i running {as_dev} -- pipe")))
            .echoes(1 << 20),
        kubectl("impersonate exec over spdy", "admin", &exec(&format!("-i placed {as_dev} -- cat")))
            .environment("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .stdin("over spdy\n")
            .prints("over spdy"),
        kubectl("impersonate exec forbidden", "nobody", &exec(&format!("placed {as_dev} -- true")))
            .exits(1)
            .prints("Forbidden"),
        kubectl(
            "impersonate exec without the right of the user",
            "legacy-impersonator",
            &exec("placed --as bob -- true"),
        )
        .exits(1)
        .prints("pods/exec"),
        kubectl("impersonate logs followed", "admin", &format!("logs -f -n twin-fixed placed {as_dev}"))
            .prints("second line"),
        kubectl("impersonate watch", "legacy-impersonator", "get cm -n twin-fixed alpha -w --as bob")
            .lines(2)
            .prints("alpha"),
        kubectl("impersonate watch a change", "admin", &format!("create cm {{unique}} {as_dev}"))
            .then(&format!("get cm {{unique}} -w --output-watch-events {as_dev}"))
            .after(2, Action::Kubectl(format!("label cm {{unique}} step=two {as_dev}")))
            .after(3, Action::Kubectl(format!("delete cm {{unique}} {as_dev}")))
            .lines(4)
            .prints("MODIFIED")
            .prints("DELETED"),
        kubectl("impersonate watch forbidden", "nobody", "get cm -n twin-fixed -w --as bob")
            .exits(1)
            .prints("Forbidden"),
        kubectl(
            "impersonate watch without the right of the user",
            "legacy-impersonator",
            "get secrets -n twin-fixed -w --as bob",
        )
        .exits(1)
        .prints(r#"User "bob" cannot list"#),
    ];
    cases.into_iter().map(|case| Case { impersonates: true, ..case }).collect()
}

/// The namespace and service account controllers, which connect through the gateway if there is one.
fn namespaces() -> Vec<Case> {
    vec![
        kubectl("a namespace gets its service account", "admin", "create ns {unique}")
            .with_controllers()
            .then("wait -n {unique} sa/default --for=create --timeout=60s")
            .prints("condition met"),
        kubectl("a namespace is deleted", "admin", "create ns {unique}")
            .with_controllers()
            .then("create cm inside -n {unique}")
            .then("delete ns {unique} --timeout=60s")
            .prints("deleted")
            .then("get ns {unique}")
            .exits(1)
            .prints("NotFound"),
    ]
}

/// Streams to the fake kubelet, over WebSocket (kubectl's default) and SPDY.
fn streams() -> Vec<Case> {
    let mut cases = vec![
        kubectl("attach", "alice", "attach -n twin-fixed running").prints("ran"),
        kubectl("attach with input", "alice", "attach -i -n twin-fixed running")
            .stdin("typed\n")
            .prints("typed"),
        kubectl("attach to a pod that does not run", "alice", "attach -n twin-fixed idle").exits(1),
        kubectl("attach forbidden", "viewer", "attach -n twin-fixed running").exits(1).prints("forbidden"),
        kubectl("exec closed by the kubelet", "alice", "exec -n twin-fixed running -- leave")
            .prints("ran leave"),
        kubectl("exec refused by the kubelet", "alice", "exec -n twin-fixed running -- refuse 403").exits(1),
        kubectl("exec in a broken kubelet", "alice", "exec -n twin-fixed running -- refuse 500").exits(1),
        kubectl("exec redirected", "alice", "exec -n twin-fixed running -- redirect").exits(1),
        kubectl("copy from a pod", "alice", "cp twin-fixed/running:data/tree got")
            .writes("got/one.txt")
            .writes("got/deep/two.bin"),
        kubectl("copy to a pod", "alice", "cp up twin-fixed/running:/tmp/up")
            .file("up/small", 10)
            .file("up/deep/large", 300_000)
            .prints("received up/deep/large: 300000 bytes"),
        kubectl("exec of 8 MiB", "alice", "exec -i -n twin-fixed running -- pipe").echoes(8 << 20),
        kubectl("port forward", "alice", "port-forward --address 127.0.0.1 -n twin-fixed running :80")
            .after(1, Action::Dial(20))
            .lines(2)
            .interrupted()
            .prints("20 bytes"),
        kubectl(
            "port forward of much",
            "alice",
            "port-forward --address 127.0.0.1 -n twin-fixed running :8080",
        )
        .after(1, Action::Dial(2 << 20))
        .after(2, Action::Dial(0))
        .lines(3)
        .interrupted()
        .prints("2097152 bytes"),
        kubectl(
            "port forward refused",
            "alice",
            "port-forward --address 127.0.0.1 -n twin-fixed running :81",
        )
        .after(1, Action::Dial(0))
        .exits(1)
        .prints("port 81 is refused"),
        kubectl(
            "port forward closed by the far end",
            "alice",
            "port-forward --address 127.0.0.1 -n twin-fixed running :82",
        )
        .after(1, Action::Dial(0))
        .lines(2)
        .interrupted()
        .prints("9 bytes"),
        kubectl("port forward to a pod that does not run", "alice", "port-forward -n twin-fixed idle :80")
            .exits(1),
        kubectl("port forward forbidden", "viewer", "port-forward -n twin-fixed running :80")
            .exits(1)
            .prints("forbidden"),
    ];
    let over_spdy: Vec<Case> = cases
        .iter()
        .map(|case| {
            let mut case = case.clone();
            case.name.push_str(" over spdy");
            case.environment("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
                .environment("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
        })
        .collect();
    // For this node, kube-apiserver forwards the WebSocket to the kubelet without translation.
    let passed_through: Vec<Case> = cases
        .iter()
        .filter(|case| case.commands.iter().any(|command| command.arguments.concat().contains("running")))
        .map(|case| {
            let mut case = case.clone();
            case.name.push_str(" of a modern kubelet");
            for argument in &mut case.last().arguments {
                *argument = argument.replace("running", "modern");
            }
            if case.name.starts_with("exec closed by the kubelet") {
                // Without translation, kubectl reports an abnormal closure; the order of its messages varies.
                return case.exits(1).unordered().prints("1006");
            }
            case
        })
        .collect();
    cases.extend(over_spdy);
    cases.extend(passed_through);
    cases.extend([
        kubectl("exec failing over spdy", "alice", "exec -n twin-fixed running -- fail")
            .environment("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .exits(7)
            .prints("to stderr"),
        kubectl(
            "logs followed until the client leaves",
            "alice",
            "logs -f -n twin-fixed running --limit-bytes=1",
        )
        .lines(2)
        .prints("second line"),
        kubectl("logs followed to their end", "alice", "logs -f -n twin-fixed running").prints("second line"),
        kubectl("proxy", "alice", "proxy --port=0")
            .after(1, Action::Get("/api/v1/namespaces/twin-fixed/configmaps/alpha"))
            .after(1, Action::Get("/api/v1/namespaces/twin-fixed/pods/running/log?follow=true"))
            .after(1, Action::Get("/api/v1/secrets"))
            .lines(1)
            .prints("second line"),
        kubectl("watch a change", "alice", "create cm {unique} --from-literal=a=1")
            .then("get cm {unique} -w --output-watch-events")
            .after(2, Action::Kubectl("label cm {unique} step=two".to_owned()))
            .after(3, Action::Kubectl("delete cm {unique}".to_owned()))
            .lines(4)
            .prints("MODIFIED")
            .prints("DELETED"),
        kubectl("watch a creation", "alice", "get cm --field-selector metadata.name={unique} -w -o name")
            .after(0, Action::Kubectl("create cm {unique}".to_owned()))
            .lines(1)
            .prints("configmap/{unique}"),
    ]);
    cases
}

fn objects() -> Vec<Case> {
    vec![
        kubectl("version", "alice", "version -o yaml").prints("v1."),
        kubectl("get namespaces", "admin", "get ns twin twin-fixed default").prints("twin-fixed"),
        kubectl("get wide", "alice", "get pods -n twin-fixed -o wide").prints("placed"),
        kubectl("get json", "alice", "get cm -n twin-fixed alpha -o json").prints(r"\u003ca"),
        kubectl("get yaml", "alice", "get cm -n twin-fixed -l parity=even -o yaml").prints("epsilon"),
        kubectl("get jsonpath", "alice", "get cm -n twin-fixed alpha -o jsonpath={.data.number}").prints("0"),
        kubectl("get in chunks", "alice", "get cm -n twin-fixed --chunk-size=2 -o name")
            .prints("configmap/epsilon"),
        kubectl("get missing", "alice", "get cm -n twin-fixed none").exits(1).prints("NotFound"),
        kubectl("get unknown type", "alice", "get gizmos").exits(1).prints("the server doesn't have"),
        kubectl("get forbidden", "nobody", "get secrets -n twin-fixed").exits(1).prints("Forbidden"),
        kubectl("get all namespaces forbidden", "alice", "get cm -A").exits(1).prints("cluster scope"),
        kubectl("watch", "alice", "get cm -n twin-fixed alpha -w").lines(2).prints("alpha"),
        kubectl("watch as json", "alice", "get cm -n twin-fixed alpha -w -o json --output-watch-events")
            .lines(1)
            .prints("ADDED"),
        kubectl("describe", "alice", "describe cm -n twin-fixed alpha").prints("<a&b>"),
        kubectl("api resources", "alice", "api-resources -o wide --sort-by=name").prints("configmaps"),
        kubectl("api resources as nobody", "nobody", "api-resources --sort-by=name").prints("configmaps"),
        kubectl("api versions", "alice", "api-versions").prints("apps/v1"),
        kubectl("explain", "alice", "explain pods.spec.nodeName").prints("nodeName"),
        kubectl("explain openapi v3 of a group", "alice", "explain deployments.spec.replicas")
            .prints("replicas"),
        kubectl("auth whoami", "alice", "auth whoami").prints("devs"),
        kubectl("auth whoami json", "uid", "auth whoami -o json").prints("u-1"),
        kubectl("auth whoami by token", "alice", "auth whoami").token("tok-alice").prints("uid-alice"),
        kubectl("auth can-i list", "alice", "auth can-i --list -n twin").unordered().prints("configmaps"),
        kubectl("auth can-i yes", "alice", "auth can-i create configmaps -n twin").prints("yes"),
        kubectl("auth can-i no", "alice", "auth can-i create nodes").exits(1).prints("no"),
        kubectl("get raw", "alice", "get --raw /api/v1/namespaces/twin-fixed/configmaps/alpha")
            .prints("alpha"),
        kubectl("get raw version", "nobody", "get --raw /version").prints("gitVersion"),
        kubectl("get raw forbidden", "nobody", "get --raw /metrics").exits(1).prints("Forbidden"),
        kubectl("get raw not found", "admin", "get --raw /nothing/here").exits(1).prints("NotFound"),
        kubectl("apply twice", "alice", "apply -f -")
            .stdin(CONFIG_MAP)
            .prints("created")
            .then("apply -f -")
            .stdin(CHANGED_MAP)
            .prints("configured")
            .then("apply -f -")
            .stdin(CHANGED_MAP)
            .prints("unchanged")
            .then("get cm {unique} -o yaml")
            .prints("b: \"3\""),
        kubectl("apply server side", "alice", "apply --server-side -f -")
            .stdin(CONFIG_MAP)
            .prints("serverside-applied")
            .then("apply --server-side --field-manager other -f -")
            .stdin(CHANGED_MAP)
            .exits(1)
            .prints("conflict")
            .then("apply --server-side --field-manager other --force-conflicts -f -")
            .stdin(CHANGED_MAP)
            .then("get cm {unique} -o yaml --show-managed-fields")
            .prints("manager: other"),
        kubectl("apply dry run", "alice", "apply --dry-run=server -f -")
            .stdin(CONFIG_MAP)
            .prints("server dry run")
            .then("get cm {unique}")
            .exits(1),
        kubectl("apply without validation", "alice", "apply --validate=false -f -").stdin(CONFIG_MAP),
        kubectl("apply with an unknown field", "alice", "apply -f -")
            .stdin(
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"dada":{"a":"1"}}"#,
            )
            .exits(1)
            .prints("unknown field"),
        kubectl("create twice", "alice", "create -f -")
            .stdin(CONFIG_MAP)
            .then("create -f -")
            .stdin(CONFIG_MAP)
            .exits(1)
            .prints("AlreadyExists"),
        kubectl("create forbidden", "nobody", "create -n twin cm {unique} --from-literal=a=b")
            .exits(1)
            .prints("forbidden"),
        kubectl("create in a missing namespace", "admin", "create -n none cm {unique}").exits(1),
        kubectl("diff", "alice", "create -f -")
            .stdin(CONFIG_MAP)
            .then("label cm {unique} x=y")
            .prints("labeled")
            .then("annotate cm {unique} note=here")
            .then("patch cm {unique} --type=merge -p")
            .argument(r#"{"data":{"c":"4"}}"#)
            .prints("patched")
            .then("patch cm {unique} --type=json -p")
            .argument(r#"[{"op":"remove","path":"/data/c"}]"#)
            .then("patch cm {unique} -p")
            .argument(r#"{"data":{"d":"5"}}"#)
            .then("get cm {unique} -o yaml")
            .prints("x: \"y\"")
            .then("delete cm {unique}")
            .prints("deleted")
            .then("delete cm {unique}")
            .exits(1)
            .then("delete cm {unique} --ignore-not-found"),
        kubectl("invalid patch", "alice", "patch cm -n twin-fixed alpha --dry-run=server --type=json -p")
            .argument(r#"[{"op":"remove","path":"/data/none"}]"#)
            .exits(1),
        kubectl("replace with a stale version", "alice", "replace -n twin-fixed --dry-run=server -f -")
            .stdin(concat!(
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":"#,
                r#"{"name":"alpha","namespace":"twin-fixed","resourceVersion":"1"}}"#
            ))
            .exits(1)
            .prints("Conflict"),
        kubectl("certificate approve", "admin", "create -f -")
            .stdin(&SIGNING_REQUEST.replace("{csr}", &CSR.concat()))
            .then("certificate approve {unique}")
            .prints("approved")
            .then("get csr {unique}")
            .prints("Approved"),
        kubectl("create token", "admin", "create token default -n twin --duration=1h").prints("<token>"),
        kubectl("create token forbidden", "nobody", "create token default -n twin")
            .exits(1)
            .prints("forbidden"),
        kubectl("exec", "alice", "exec -n twin-fixed placed -- echo hello world")
            .prints("ran echo hello world"),
        kubectl("exec with input", "alice", "exec -i -n twin-fixed placed -- cat")
            .stdin("from stdin\n")
            .prints("from stdin"),
        kubectl("exec failing", "alice", "exec -n twin-fixed placed -- fail").exits(7).prints("exit code 7"),
        kubectl("exec over spdy", "alice", "exec -i -n twin-fixed placed -- cat")
            .environment("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .stdin("over spdy\n")
            .prints("over spdy"),
        kubectl("exec in a pod without node", "alice", "exec -n twin-fixed idle -- true").exits(1),
        kubectl("exec forbidden", "viewer", "exec -n twin-fixed placed -- true").exits(1).prints("forbidden"),
        kubectl("logs", "alice", "logs -n twin-fixed placed").prints("second line"),
        kubectl("logs followed", "alice", "logs -f -n twin-fixed placed").prints("second line"),
        kubectl("logs of a missing container", "alice", "logs -n twin-fixed placed -c none").exits(1),
        kubectl("expired certificate", "expired", "get cm").exits(1).prints("must be logged in"),
        kubectl("foreign certificate", "stranger", "auth whoami").exits(1),
        kubectl("unknown token", "alice", "get cm")
            .token("no-such-token")
            .exits(1)
            .prints("must be logged in"),
        kubectl("no credentials", "alice", "get cm --username x --password y").without_credentials().exits(1),
        kubectl("anonymous version", "alice", "get --raw /livez --username x --password y")
            .without_credentials()
            .prints("ok"),
        kubectl("events", "alice", "events -n twin-fixed"),
        kubectl("wait", "alice", "wait -n twin-fixed cm/alpha --for=jsonpath={.data.number}=0 --timeout=20s")
            .prints("condition met"),
        kubectl("scale missing", "alice", "scale deployment/none --replicas=2").exits(1).prints("NotFound"),
    ]
}
