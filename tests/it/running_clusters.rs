//! `portcullis clusters` and a running gateway: the table, the formats for programs, and `--watch`.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::Mutex;

use http::{Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::body::fed;
use testkit::{FakeBackend, Gateway, H2, full, in_time};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpSocket;
use tokio::process::{Child, ChildStdout, Command};

use crate::cluster_directory::Directory;
use crate::endpoints::trusts_at;
use crate::gateway::{InProcess as _, PORTCULLIS};

const ROUTES: &str = "{pathPrefix: /c}";

/// A gateway with the cluster `c`, whose file is in a directory, and one watch in progress.
struct Running {
    directory: Directory,
    gateway: Gateway,
    address: SocketAddr,
    _backend: FakeBackend,
    _watch: Box<dyn std::any::Any>,
}

impl Running {
    async fn start() -> Self {
        let directory = Directory::new();
        let watches = Mutex::new(Vec::new());
        let backend = FakeBackend::start(&directory.pki, H2, move |request| {
            let mut response = Response::new(full("ok"));
            if request.uri().query() == Some("watch=true") {
                let (frames, body, _) = fed();
                // Open for as long as the backend.
                watches.lock().unwrap().push(frames);
                response = Response::new(body);
            }
            Box::pin(async { response })
        })
        .await;
        directory.prepare("c", &backend, &directory.pki);
        directory.put("c.yaml", "c", ROUTES, "");
        let gateway = Gateway::with(directory.flags());
        trusts_at(&gateway, backend.address, true).await;
        let mut client = gateway.http1(None).await;
        let response = client.get("/c/api/v1/pods?watch=true", &[("authorization", "Bearer c-token")]).await;
        assert_eq!(response.status(), StatusCode::OK);
        let address = backend.address;
        Self { directory, gateway, address, _backend: backend, _watch: Box::new((client, response)) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        command(self.gateway.metrics.unwrap(), arguments)
    }

    async fn printed(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = in_time(self.command(arguments).output()).await.unwrap();
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }
}

fn command(metrics: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(PORTCULLIS);
    command.args(["clusters", "--metrics-address", &metrics.to_string()]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// The fields of a line.
fn fields(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test]
async fn the_clusters_of_a_running_gateway_are_printed() {
    let running = Running::start().await;
    let table = running.printed(&[]).await;
    let [heading, row] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert_eq!(fields(heading)[..4], ["NAME", "HEALTH", "CONFIG", "VERSION"]);
    assert_eq!(fields(row)[..3], ["c", "Ready", "Current"]);
    // Endpoints, requests, watches.
    assert_eq!(fields(row)[4..7], ["1/1", "0", "1"], "{table}");

    let wide = running.printed(&["--output", "wide"]).await;
    let address = running.address.to_string();
    let endpoint = wide.lines().find(|line| line.trim_start().starts_with(&address)).expect(&wide);
    assert_eq!(fields(endpoint)[..2], [address.as_str(), "Ready"]);
    let file = running.directory.path.join("c.yaml").display().to_string();
    assert!(wide.contains(&file), "{wide}");

    let json: Value = serde_json::from_str(&running.printed(&["--output=json"]).await).unwrap();
    assert_eq!(json["kind"], "ClusterStatusList");
    let cluster = &json["items"][0];
    assert_eq!((&cluster["name"], &cluster["health"]), (&"c".into(), &"Ready".into()));
    assert_eq!(cluster["requests"]["watches"], 1);
    assert_eq!(cluster["endpoints"][0]["address"], Value::from(address));
    let yaml: Value = serde_saphyr::from_str(&running.printed(&["--output=yaml"]).await).unwrap();
    let answer = running.gateway.metrics("/clusters").await;
    let (_, document) = answer.split_once("\r\n\r\n").unwrap();
    for other in [yaml, serde_json::from_str(document).unwrap()] {
        assert_eq!(without_version(other), without_version(json.clone()));
    }
}

/// The gateway reads the version of the API servers some time after the first self-check.
fn without_version(mut list: Value) -> Value {
    list["items"][0]["serverVersion"] = Value::Null;
    list
}

/// A running `portcullis clusters --watch`.
struct Watching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for a line that begins with these fields.
    async fn until(&mut self, first: &[&str]) {
        in_time(async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the output goes on");
                if fields(&line).starts_with(first) {
                    break;
                }
            }
        })
        .await;
    }

    /// Ends it as Ctrl-C does.
    async fn end(mut self) {
        let id = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
        assert!(in_time(self.child.wait()).await.unwrap().success());
    }
}

#[tokio::test]
async fn a_watch_prints_each_change() {
    let running = Running::start().await;
    let mut table = Watching::start(running.command(&["-w"]));
    let mut yaml = Watching::start(running.command(&["--watch", "--output=yaml"]));
    table.until(&["c", "Ready", "Current"]).await;
    yaml.until(&["configuration:", "Current"]).await;
    std::fs::write(running.directory.path.join("c.yaml"), "{").unwrap();
    table.until(&["c", "Ready", "Stale"]).await;
    yaml.until(&["configuration:", "Stale"]).await;
    running.directory.put("c.yaml", "c", ROUTES, "");
    table.until(&["c", "Ready", "Current"]).await;
    yaml.until(&["---"]).await;
    yaml.until(&["configuration:", "Current"]).await;
    table.end().await;
    yaml.end().await;
}

#[tokio::test]
async fn without_a_gateway_the_address_is_named() {
    // Bound but not listening: connections are refused, and no other process can take the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    let output = in_time(command(address, &[]).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("cannot connect to {address}")), "{error}");
    assert!(error.contains("--metrics-address"), "{error}");
}
