//! `portcullis dev --full` and `--tour`, as a stranger starts them: with nothing else in the PATH.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use portcullis::internal::{Clock, Dev, DevError, DevOptions};

const STEPS: [(&str, &[&str]); 11] = [
    ("A client certificate", &["alice", "developers", "selfsubjectreviews"]),
    ("A bearer token", &["bob", "testers", "Bearer $(cat "]),
    ("Impersonation", &["carol", "testers", "Impersonate-User: carol"]),
    ("Many clusters", &["only-in-green", "/clusters/green/api/v1/namespaces"]),
    ("A credential of another cluster", &["Unauthorized", "401"]),
    ("Why was it refused?", &["refused (401 Unauthorized) for cluster green", "portcullis explain --config"]),
    ("A login", &["alice@example.com", "login:developers", "portcullis login", "--issuer https://"]),
    ("The page", &["Signed in as alice@example.com", "blue", "green", "Ready"]),
    ("A mutating webhook", &["\"demo.portcullis.dev/written-by\": \"alice\""]),
    ("The audit event", &["\"verb\": \"create\"", "mutation.webhook.admission.k8s.io"]),
    ("Revocation", &["user=bob >>", "Unauthorized"]),
];

/// A command of `portcullis dev` in this directory, without kubectl.
fn dev(home: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(["dev", "--port=0"]).args(flags).current_dir(home).env_clear();
    command.env("HOME", home).env("PATH", home.join("bin")).stdin(Stdio::null());
    command
}

fn texts(output: &Output) -> (String, String) {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8(text.clone()).unwrap());
    (out, err)
}

#[test]
fn the_tour_keeps_each_promise_with_nothing_else_installed() {
    let home = tempfile::tempdir().unwrap();
    let output = dev(home.path(), &["--tour"]).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}\n{err}");
    assert!(!out.contains('\u{1b}'), "colours are for terminals");
    let mut rest = out.as_str();
    for (number, (title, promises)) in STEPS.into_iter().enumerate() {
        let head = format!("\n{}/{} {title} ", number + 1, STEPS.len());
        let (_, from) = rest.split_once(&head).unwrap_or_else(|| panic!("{head}: {out}"));
        let step = from.split("\n  ✓ ").next().unwrap();
        assert!(step.contains("\n  $ "), "{title} has no command: {step}");
        for promise in promises {
            assert!(step.contains(promise), "{title}: no {promise}: {step}");
        }
        rest = from;
    }
    assert!(rest.contains("That was the tour."), "{rest}");
    let of_the_tour =
        |line: &&str| !line.starts_with("  ") || line.starts_with("  $") || line.ends_with('\\');
    assert!(out.lines().filter(of_the_tour).all(|line| line.chars().count() <= 100), "{out}");

    let files = home.path().join(".portcullis");
    let token = fs::read_to_string(files.join("bob.token")).unwrap();
    let log = fs::read_to_string(files.join("gateway.log")).unwrap();
    for text in [&out, &err, &log] {
        assert!(!text.contains(token.trim()), "a token is printed");
    }
    assert!(log.contains("serving") && !err.contains("serving"), "{log}{err}");
    assert!(!home.path().join(".kube").exists() && !home.path().join(".cache").exists(), "outside its files");
    let again = dev(home.path(), &["--tour"]).output().unwrap();
    assert!(again.status.success(), "a second tour in the same directory: {:?}", texts(&again));
}

#[test]
fn a_tour_that_breaks_its_promise_names_the_step() {
    let home = tempfile::tempdir().unwrap();
    let kubectl = home.path().join("bin/kubectl");
    fs::create_dir(home.path().join("bin")).unwrap();
    for (script, want) in [
        ("#!/bin/sh\necho nothing of the kind\n", "its output has no \"alice\""),
        ("#!/bin/sh\necho no route >&2; exit 7\n", "no route"),
    ] {
        fs::write(&kubectl, script).unwrap();
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
        let output = dev(home.path(), &["--tour"]).output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        assert!(err.contains("\"A client certificate\"") && err.contains(want), "{err}");
        assert!(!out.contains("2/11"), "the first failure is the end: {out}");
    }
}

#[test]
fn a_tour_that_cannot_be_printed_fails() {
    let home = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = dev(home.path(), &["--tour"]).stdout(full).output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("the tour cannot be printed: No space left on device"), "{err}");

    let mut child =
        dev(home.path(), &["--tour"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("the tour cannot be printed: Broken pipe"), "{err}");
}

/// Plays the tour on a terminal, which `script` of util-linux provides: these keys, one at each pause. Tests that run in the background
/// of a shell ignore Ctrl-C, and so would the tour.
fn on_a_terminal(environment: &str, keys: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let portcullis = env!("CARGO_BIN_EXE_portcullis");
    let tour = format!(
        "env -i --default-signal=INT HOME=. PATH=/nonexistent {environment} {portcullis} dev --tour --port=0"
    );
    let mut command = Command::new("script");
    command.args([
        "--quiet",
        "--flush",
        "--command",
        &format!("trap : INT; {tour}; echo \"code $?.\""),
        "/dev/null",
    ]);
    let mut script =
        command.current_dir(home.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keyboard, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (mut seen, mut buffer, mut pressed) = (String::new(), [0; 4096], 0);
    while !seen.contains("code ") {
        let length = screen.read(&mut buffer).unwrap();
        assert!(length > 0, "the terminal closed: {seen}");
        seen += &String::from_utf8_lossy(&buffer[..length]);
        if seen.matches("Enter: the next step").count() > pressed {
            keyboard.write_all(keys[pressed].as_bytes()).unwrap();
            pressed += 1;
        }
    }
    drop(keyboard);
    screen.read_to_string(&mut seen).unwrap();
    script.wait().unwrap();
    assert_eq!(pressed, keys.len(), "{seen}");
    seen
}

#[test]
fn on_a_terminal_the_tour_waits_for_enter_and_has_colours() {
    const END_OF_INPUT: &str = "\u{4}";
    const CTRL_C: &str = "\u{3}";
    let seen = on_a_terminal("", &["\n", "\n", END_OF_INPUT]);
    assert!(seen.contains("That was the tour.") && seen.contains("code 0."), "the rest runs through: {seen}");
    assert!(seen.contains("\u{1b}[1mA client certificate\u{1b}[0m"), "{seen}");
    let seen = on_a_terminal("NO_COLOR=1", &["\n", CTRL_C]);
    assert!(!seen.contains('\u{1b}') && !seen.contains("3/11"), "{seen}");
    assert!(seen.contains("code 130."), "{seen}");
}

/// A running `portcullis dev --full`.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn the_commands_of_full_can_be_pasted() {
    let home = tempfile::tempdir().unwrap();
    let mut command = dev(home.path(), &["--full"]);
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut announced = Vec::new();
    while announced.last().is_none_or(|line: &String| !line.starts_with("Ctrl-C stops everything.")) {
        announced.push(lines.next().expect("the announcement ends"));
    }
    assert!(announced.len() <= 48, "more than a screen: {}", announced.join("\n"));
    let text = announced.join("\n");
    for wanted in
        ["clusters/blue", "clusters/green", "https://localhost:", "provider", "any user of this machine"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let explain = announced.iter().find(|line| line.contains(" explain --config")).unwrap();
    let shell = |line: &str| {
        let output = Command::new("/bin/sh").args(["-c", line]).current_dir(home.path()).output().unwrap();
        (output.status.code(), texts(&output))
    };
    let (code, (out, err)) = shell(explain);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.starts_with("refused (401 Unauthorized) for cluster green"), "{out}");
    let deny = announced.iter().find(|line| line.contains("echo user=bob")).unwrap();
    assert_eq!(shell(deny).0, Some(0));
    let of_blue = explain.replace("--cluster green", "--cluster blue");
    let (_, (out, _)) = shell(&of_blue);
    assert!(out.starts_with("refused") && out.contains("deny list"), "{out}");
    // The same directory is in use.
    let second = dev(home.path(), &["--full"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        texts(&second).1.contains("another `portcullis dev` is using .portcullis"),
        "{:?}",
        texts(&second)
    );
}

#[tokio::test]
async fn a_port_of_the_page_or_the_provider_in_use_is_an_error_with_a_fix() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("dev");
    // The port before a taken one, which must be free itself.
    let (taken, free) = loop {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        if let Ok(before) = std::net::TcpListener::bind(("127.0.0.1", port - 1)) {
            break (taken, before);
        }
    };
    drop(free);
    let port = taken.local_addr().unwrap().port() - 1;
    let start = async |port| {
        let options = DevOptions { dir: dir.clone(), port, full: true, tour: false };
        Dev::start(&options, Clock::system()).await.unwrap_err()
    };
    let error = start(port).await;
    assert!(matches!(error, DevError::PortTaken(_, "the page")), "{error}");
    assert!(
        error.to_string().contains(&format!("port {} ", port + 1)) && error.to_string().contains("--port")
    );
    for port in [65_534, 65_535] {
        let error = start(port).await;
        // Either may be in use.
        assert!(matches!(error, DevError::PortTooHigh(_) | DevError::PortTaken(..)), "{error}");
    }
    assert!(!dir.exists(), "nothing is written before the ports are known to be free");
}
