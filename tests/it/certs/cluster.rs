//! Certificate signing requests in a cluster: each command against a small fake API server.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::ambiguous_pem::ambiguous;
use testkit::body::{Frames, fed};
use testkit::self_check::percent_decoded;
use testkit::transcript;
use testkit::{BoxedBody, FakeBackend, Pki, full, in_time, until};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::task::spawn_blocking;

use super::{CommandOutput, certs, command, mode, names, normal, shell};

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The error messages of authorization and of admission.
const FORBIDDEN: &str = "certificatesigningrequests.certificates.k8s.io is forbidden: User \"carol\" cannot create \
    resource \"certificatesigningrequests\" in API group \"certificates.k8s.io\" at the cluster scope";
const MASTERS: &str = "certificatesigningrequests.certificates.k8s.io \"masters\" is forbidden: use of \
    kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";

/// The requests and their watchers.
#[derive(Default)]
struct Store {
    requests: Vec<Value>,
    version: u64,
    watchers: Vec<Frames>,
    /// How many more updates fail with a conflict.
    conflicts: usize,
    /// The request by which another client replaces the one that is being approved or denied.
    replacement: Option<Value>,
    /// The name of the object that every response contains, if set.
    answers_with: Option<String>,
}

impl Store {
    fn put(&mut self, kind: &str, request: &Value) {
        self.version += 1;
        let mut request = request.clone();
        request["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.requests.retain(|known| known["metadata"]["name"] != request["metadata"]["name"]);
        let event = event(kind, &request);
        self.watchers.retain(|watcher| watcher.send(Frame::data(event.clone())).is_ok());
        if kind != "DELETED" {
            self.requests.push(request);
        }
    }

    fn find(&self, name: &str) -> Option<Value> {
        self.requests.iter().find(|known| known["metadata"]["name"] == name).cloned()
    }
}

/// The name in a field selector, without its escapes.
// apimachinery: pkg/fields/selector.go, UnescapeValue
fn selected_name(query: &str) -> Option<String> {
    let selector = url::form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "fieldSelector")?.1;
    let value = selector.strip_prefix("metadata.name=").unwrap();
    let mut name = String::new();
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        assert!(!matches!(c, ',' | '='), "{value} is more than one term");
        name.extend(if c == '\\' { characters.next() } else { Some(c) });
    }
    Some(name)
}

/// A watch event.
fn event(kind: &str, request: &Value) -> Bytes {
    Bytes::from(json!({"type": kind, "object": request}).to_string() + "\n")
}

pub(super) struct Cluster {
    pki: Pki,
    store: Arc<Mutex<Store>>,
    _server: FakeBackend,
}

fn refuse(code: StatusCode, reason: &str, message: &str) -> Response<BoxedBody> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": message, "code": code.as_u16()});
    respond(code, &status)
}

fn respond(code: StatusCode, body: &Value) -> Response<BoxedBody> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(full(body.to_string())).unwrap()
}

async fn answer(store: &Mutex<Store>, request: Request<Incoming>) -> Response<BoxedBody> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let rest = head.uri.path().strip_prefix(PATH).unwrap().trim_start_matches('/');
    let rest = percent_decoded(rest);
    let mut store = store.lock().unwrap();
    if let Some(other) = store.answers_with.clone() {
        return respond(StatusCode::OK, &store.find(&other).unwrap());
    }
    let query = head.uri.query().unwrap_or_default();
    match (&head.method, rest.as_str()) {
        (&Method::GET, "") if query.contains("watch=true") => {
            let (frames, body, _) = fed();
            let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
            let from: u64 = from.unwrap().parse().unwrap();
            for known in &store.requests {
                let version: u64 = known["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                if version > from {
                    frames.send(Frame::data(event("MODIFIED", known))).unwrap();
                }
            }
            store.watchers.push(frames);
            Response::builder().header("content-type", "application/json").body(body).unwrap()
        }
        (&Method::GET, "") => {
            let of_one = selected_name(query);
            let items: Vec<&Value> = store
                .requests
                .iter()
                .filter(|known| of_one.as_ref().is_none_or(|name| known["metadata"]["name"] == **name))
                .collect();
            let list = json!({"kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1",
                "metadata": {"resourceVersion": store.version.to_string()}, "items": items});
            respond(StatusCode::OK, &list)
        }
        (&Method::POST, "") => {
            let mut made: Value = serde_json::from_slice(&body).unwrap();
            let prefix = made["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
            let name = made["metadata"]["name"].as_str().map_or(prefix + "x7k2p", str::to_owned);
            if store.find(&name).is_some() {
                return refuse(StatusCode::CONFLICT, "AlreadyExists", "it already exists");
            }
            if name == "forbidden" {
                return refuse(StatusCode::FORBIDDEN, "Forbidden", FORBIDDEN);
            }
            if name == "masters" {
                return refuse(StatusCode::FORBIDDEN, "Forbidden", MASTERS);
            }
            made["metadata"] = json!({"name": name, "uid": format!("uid-{}", store.version),
                "creationTimestamp": "2026-01-01T00:00:00Z"});
            made["spec"]["username"] = "carol".into();
            made["spec"]["groups"] = json!(["ops"]);
            store.put("ADDED", &made);
            respond(StatusCode::CREATED, &store.find(&name).unwrap())
        }
        (&Method::GET, name) => match store.find(name) {
            Some(found) => respond(StatusCode::OK, &found),
            None => refuse(StatusCode::NOT_FOUND, "NotFound", &format!("{name} not found")),
        },
        (&Method::PUT, rest) => {
            let name = rest.strip_suffix("/approval").unwrap();
            let given: Value = serde_json::from_slice(&body).unwrap();
            let mut found = store.find(name).unwrap();
            if store.conflicts > 0 {
                store.conflicts -= 1;
                store.put("MODIFIED", &found);
                return refuse(StatusCode::CONFLICT, "Conflict", "the object has been modified");
            }
            if let Some(other) = store.replacement.take() {
                store.put("MODIFIED", &other);
                return refuse(StatusCode::CONFLICT, "Conflict", "the object has been modified");
            }
            assert_eq!(given["metadata"]["resourceVersion"], found["metadata"]["resourceVersion"]);
            found["status"]["conditions"] = given["status"]["conditions"].clone();
            store.put("MODIFIED", &found);
            respond(StatusCode::OK, &found)
        }
        other => panic!("{other:?}"),
    }
}

/// Waits for the end of a command.
async fn finished(child: Child) -> CommandOutput {
    CommandOutput::of(in_time(child.wait_with_output()).await.unwrap())
}

/// Sends SIGINT, as Ctrl-C does.
fn interrupt(child: &Child) {
    let id = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
}

/// The certificate for a request, in base64.
fn signed(authority: &Path, request: &Value) -> String {
    let pem = STANDARD.decode(request["spec"]["request"].as_str().unwrap()).unwrap();
    std::fs::write(authority.join("signed.csr"), pem).unwrap();
    if !authority.join("pki").exists() {
        certs(authority, &["init"]).succeeds();
    }
    certs(authority, &["sign", "signed.csr", "--profile", "client", "--force"]).succeeds();
    STANDARD.encode(std::fs::read(authority.join("signed.crt")).unwrap())
}

impl Cluster {
    pub(super) async fn start() -> Self {
        let pki = Pki::new();
        let store = Arc::new(Mutex::new(Store::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::clone(&store);
        let server = FakeBackend::without_client_auth(&pki, listener, move |request| {
            let store = Arc::clone(&shared);
            Box::pin(async move { answer(&store, request).await })
        });
        pki.write("servers-ca.crt", pki.servers.cert_pem());
        pki.write(
            "config",
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: b, cluster: {{server: \
                 'https://{}', certificate-authority: servers-ca.crt}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n\
                 contexts: [{{name: c, context: {{cluster: b, user: u}}}}]\n",
                server.address
            ),
        );
        Self { pki, store, _server: server }
    }

    fn dir(&self) -> &Path {
        self.pki.directory.path()
    }

    /// Runs a command to its end.
    pub(super) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        finished(self.begin(arguments)).await
    }

    /// Starts a command, which is killed when it is dropped.
    pub(super) fn begin(&self, arguments: &[&str]) -> Child {
        let mut command = command(self.dir(), &[arguments, &["--kubeconfig", "config"]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap()
    }

    pub(super) fn found(&self, name: &str) -> Option<Value> {
        self.store.lock().unwrap().find(name)
    }

    /// Adds a request that another client made.
    pub(super) fn add(&self, name: &str, subject: &str) {
        self.add_with(name, subject, "");
    }

    /// The same, with additional options of `openssl req`; the last of each counts.
    pub(super) fn add_with(&self, name: &str, subject: &str, options: &str) {
        let line = format!(
            "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout 'key of {name}' -subj '{subject}' \
             -addext subjectAltName=DNS:{}.test {options} 2>/dev/null",
            name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
        );
        let pem = shell(self.dir(), &line);
        let request = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client",
                "username": "carol", "groups": ["ops", "system:authenticated"], "expirationSeconds": 86_400,
                "usages": ["digital signature", "client auth"]}});
        self.store.lock().unwrap().put("ADDED", &request);
    }

    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut store = self.store.lock().unwrap();
        let mut request = store.find(name).unwrap();
        change(&mut request);
        store.put("MODIFIED", &request);
    }

    /// Answers every request with this object from now on.
    pub(super) fn answer_with(&self, name: &str) {
        self.store.lock().unwrap().answers_with = Some(name.to_owned());
    }

    /// Approves and signs it, as the controllers do.
    async fn sign(&self, name: &str) {
        let (found, dir) = (self.found(name).unwrap(), self.dir().to_owned());
        let certificate = spawn_blocking(move || signed(&dir, &found)).await.unwrap();
        self.change(name, |request| {
            request["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}],
                "certificate": certificate});
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_listed_as_kubectl_does() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.run(&["list"]).await.succeeds(), "No resources found\n");
    cluster.add("alice", "/O=dev/CN=alice");
    cluster.add("bob", "/CN=bob");
    cluster
        .change("bob", |bob| bob["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]}));
    // The width of a column depends on its content.
    let blanks = regex::Regex::new(" +").unwrap();
    let listed = days(&cluster.run(&["list"]).await);
    insta::assert_snapshot!("certs_list", blanks.replace_all(&listed, " "));
    let pending = cluster.run(&["list", "--pending"]).await.succeeds();
    assert!(pending.contains("alice") && !pending.contains("bob"), "{pending}");
    let json: Value = serde_json::from_str(&cluster.run(&["list", "-o", "json"]).await.succeeds()).unwrap();
    assert_eq!(json[0]["name"], "alice");
    assert_eq!(json[0]["request"]["altNames"], json!(["DNS:alice.test"]));
    assert_eq!(json[1]["condition"], "Denied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approve_and_deny_show_the_request_and_write_a_condition() {
    let cluster = Cluster::start().await;
    cluster.add("alice", "/O=dev/CN=alice");
    cluster.add("root", "/O=system:masters/CN=root");
    cluster.run(&["approve", "alice"]).await.fails(64, &["with --yes"]);
    cluster.run(&["approve", "alice", "nobody", "--yes"]).await.fails(1, &["nobody not found"]);
    assert!(cluster.found("alice").unwrap().get("status").is_none());
    cluster.store.lock().unwrap().conflicts = 2;
    insta::assert_snapshot!("certs_approve", days(&cluster.run(&["approve", "alice", "--yes"]).await));
    let condition = cluster.found("alice").unwrap()["status"]["conditions"][0].clone();
    assert_eq!(condition["type"], "Approved");
    assert_eq!(condition["status"], "True");
    assert_eq!(condition["reason"], "PortcullisApprove");
    assert!(condition["lastUpdateTime"].is_string(), "{condition}");
    // Approving again changes nothing.
    cluster.run(&["approve", "alice", "--yes"]).await.succeeds();
    assert_eq!(cluster.found("alice").unwrap()["status"]["conditions"].as_array().unwrap().len(), 1);

    let deny = ["deny", "root", "--yes", "--reason", "TooMuch", "--message", "ask for less"];
    let output = cluster.run(&deny).await.succeeds();
    assert!(output.contains("has full access") && output.ends_with("/root denied\n"), "{output}");
    let condition = cluster.found("root").unwrap()["status"]["conditions"][0].clone();
    let fields = ["type", "reason", "message"].map(|key| condition[key].as_str().unwrap().to_owned());
    assert_eq!(fields, ["Denied", "TooMuch", "ask for less"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ambiguous_request_can_be_denied_but_not_approved() {
    let cluster = Cluster::start().await;
    cluster.add("harmless", "/O=dev/CN=harmless");
    cluster.add("attacker", "/O=system:masters/CN=attacker");
    let pem = |name: &str| {
        let request = cluster.found(name).unwrap()["spec"]["request"].as_str().unwrap().to_owned();
        String::from_utf8(STANDARD.decode(request).unwrap()).unwrap()
    };
    for (name, text) in ambiguous(&pem("harmless"), &pem("attacker")) {
        cluster.add("odd", "/CN=odd");
        cluster.change("odd", |odd| odd["spec"]["request"] = STANDARD.encode(&text).into());
        let output = cluster.run(&["approve", "odd", "--yes"]).await;
        output.fails(1, &["odd is not approved: the certificate request is not one PEM block alone"]);
        assert!(cluster.found("odd").unwrap().get("status").is_none(), "{name}");
    }
    cluster.run(&["deny", "odd", "--yes"]).await.succeeds();
    assert_eq!(cluster.found("odd").unwrap()["status"]["conditions"][0]["type"], "Denied");
}

fn days(output: &CommandOutput) -> String {
    regex::Regex::new(r"\b(\d+y)?\d+d\b").unwrap().replace_all(&output.normal(), "99d").into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_conflicts_are_reported() {
    let cluster = Cluster::start().await;
    cluster.add("alice", "/CN=alice");
    cluster.store.lock().unwrap().conflicts = 1000;
    cluster
        .run(&["approve", "alice", "--yes"])
        .await
        .fails(1, &["alice: other clients keep updating the request"]);
}

/// A change of a request by another client.
type Change = fn(&mut Value);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_recreated_is_not_approved() {
    let cluster = Cluster::start().await;
    let others: [(&str, Change); 5] = [
        ("another signer", |other| other["spec"]["signerName"] = "example.com/other".into()),
        ("other usages", |other| other["spec"]["usages"] = json!(["client auth", "server auth"])),
        ("a longer life", |other| other["spec"]["expirationSeconds"] = 31_536_000.into()),
        ("somebody else's", |other| other["spec"]["username"] = "mallory".into()),
        ("another one that asks for the same", |other| other["metadata"]["uid"] = "other".into()),
    ];
    for (name, change) in others {
        cluster.add("alice", "/O=dev/CN=alice");
        let mut other = cluster.found("alice").unwrap();
        change(&mut other);
        cluster.store.lock().unwrap().replacement = Some(other);
        cluster.run(&["approve", "alice", "--yes"]).await.fails(1, &["recreated meanwhile; review it again"]);
        assert!(cluster.found("alice").unwrap().get("status").is_none(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requested_certificate_is_written_with_its_key() {
    let cluster = Cluster::start().await;
    let request = ["request", "--cn", "alice", "-O", "dev", "--out-cert", "a.crt", "--out-key", "a.key"];
    let more = ["--expiration-seconds", "3600"];
    let child = cluster.begin(&[&request[..], &more].concat());
    until("the request", || cluster.found("portcullis-x7k2p").is_some()).await;
    let spec = cluster.found("portcullis-x7k2p").unwrap()["spec"].clone();
    assert_eq!(spec["signerName"], "kubernetes.io/kube-apiserver-client");
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
    assert_eq!(spec["expirationSeconds"], 3600);
    cluster.sign("portcullis-x7k2p").await;
    let output = finished(child).await;
    insta::assert_snapshot!("certs_request", normal(&output.normal()));
    let dir = cluster.dir();
    assert_eq!((mode(&dir.join("a.crt")), mode(&dir.join("a.key"))), (0o600, 0o600));
    shell(dir, "diff <(openssl pkey -in a.key -pubout) <(openssl x509 -in a.crt -noout -pubkey)");
    assert!(!names(dir).iter().any(|name| name.starts_with('.')));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_is_written_for_the_cluster_of_the_request() {
    let cluster = Cluster::start().await;
    let child = cluster.begin(&[
        "request",
        "--cn",
        "alice",
        "--name",
        "alice",
        "--out-kubeconfig",
        "alice.kubeconfig",
    ]);
    until("the request", || cluster.found("alice").is_some()).await;
    // The key is stored before the request is sent.
    assert_eq!(mode(&cluster.dir().join("alice.kubeconfig.key")), 0o600);
    cluster.sign("alice").await;
    let output = finished(child).await;
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(!cluster.dir().join("alice.kubeconfig.key").exists());
    let file = cluster.dir().join("alice.kubeconfig");
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap();
    assert!(server.starts_with("https://127.0.0.1:"), "{server}");
    let listed = certs(cluster.dir(), &["list", "--kubeconfig", "alice.kubeconfig"]).succeeds();
    assert!(listed.contains("Approved,Issued"), "{listed}");
    let inspected = certs(cluster.dir(), &["inspect", "alice.kubeconfig"]).succeeds();
    assert!(inspected.contains("no problems found"), "{inspected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_request_is_resumed() {
    let cluster = Cluster::start().await;
    let request = ["request", "--cn", "alice", "--out-cert", "a.crt"];
    let with_key = [&request[..], &["--out-key", "a.key"]].concat();
    let child = cluster.begin(&with_key);
    until("the watch", || !cluster.store.lock().unwrap().watchers.is_empty()).await;
    interrupt(&child);
    let output = finished(child).await;
    output.fails(
        130,
        &[
            "interrupted; the request still exists and the key is in a.key",
            "--name portcullis-x7k2p --key a.key",
        ],
    );
    // A request with another key does not match.
    let other = [
        "request",
        "--cn",
        "alice",
        "--name",
        "portcullis-x7k2p",
        "--out-cert",
        "b.crt",
        "--out-key",
        "b.key",
    ];
    cluster.run(&other).await.fails(1, &["portcullis-x7k2p: the request already exists with another key"]);
    let again = [&request[..], &["--name", "portcullis-x7k2p", "--key", "a.key"]].concat();
    let slow = cluster.run(&[&again[..], &["--timeout", "1s"]].concat()).await;
    slow.fails(1, &["no certificate after 1 s", "--key a.key"]);
    cluster.sign("portcullis-x7k2p").await;
    assert_eq!(cluster.run(&again).await.code, 0);
    shell(cluster.dir(), "diff <(openssl pkey -in a.key -pubout) <(openssl x509 -in a.crt -noout -pubkey)");
    assert!(!names(cluster.dir()).iter().any(|name| name.starts_with("b.")));
}

/// The change of a request by another client.
type End = fn(&Cluster);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_leaves_no_files() {
    let cluster = Cluster::start().await;
    let ends: [(&str, End, &str); 3] = [
        (
            "denied",
            |cluster| {
                cluster.change("denied", |request| {
                    request["status"] = json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No",
                        "message": "not\u{1b}[31m you"}]});
                });
            },
            // The approver's message, with its terminal escapes replaced.
            "denied: the request was denied: No: not\u{fffd}[31m you",
        ),
        (
            "failed",
            |cluster| {
                cluster.change("failed", |request| {
                    request["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}, {"type": "Failed",
                        "status": "True", "reason": "SignerValidationFailure", "message": "bad usages"}]});
                });
            },
            "failed: the signer refused the request: SignerValidationFailure: bad usages",
        ),
        (
            "deleted",
            |cluster| {
                let mut store = cluster.store.lock().unwrap();
                let gone = store.find("deleted").unwrap();
                store.put("DELETED", &gone);
            },
            "deleted: the request was deleted",
        ),
    ];
    for (name, end, error) in ends {
        let child = cluster.begin(&[
            "request",
            "--cn",
            "a",
            "--name",
            name,
            "--out-cert",
            "a.crt",
            "--out-key",
            "a.key",
        ]);
        until("the watch", || !cluster.store.lock().unwrap().watchers.is_empty()).await;
        end(&cluster);
        let output = finished(child).await;
        output.fails(1, &[error]);
        assert_eq!(names(cluster.dir()), ["config", "servers-ca.crt"], "{name}");
        cluster.store.lock().unwrap().watchers.clear();
    }
    let forbidden = ["request", "--cn", "a", "--name", "forbidden", "--out-kubeconfig", "a"];
    cluster.run(&forbidden).await.fails(1, &["User \"carol\" cannot create", "Role"]);
    let cases: [(&[&str], &str); 4] = [
        (&["request", "--cn", "a", "--out-cert", "a.crt"], "--out-key"),
        (&["request", "--cn", "a"], "--out-cert"),
        (&["request", "--cn", "a", "--out-kubeconfig", "a", "--signer-name", "example.com/a"], "--usages"),
        (&["request", "--cn", "a", "--out-kubeconfig", "a", "--expiration-seconds", "10"], "600"),
    ];
    for (arguments, error) in cases {
        cluster.run(arguments).await.fails(64, &[error]);
    }
    assert_eq!(names(cluster.dir()), ["config", "servers-ca.crt"]);
    // No RBAC fix is suggested for a refusal by admission.
    let masters = ["request", "--cn", "a", "--name", "masters", "--out-kubeconfig", "a"];
    let output = cluster.run(&masters).await.fails(1, &["system:masters group is not allowed"]);
    assert!(!output.contains("fix:"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_key_is_restored_if_the_request_fails() {
    let cluster = Cluster::start().await;
    let key = cluster.dir().join("a.key");
    std::fs::write(&key, "the old one").unwrap();
    let replace = ["request", "--cn", "a", "--out-cert", "a.crt", "--out-key", "a.key", "--force"];
    let forbidden = [&replace[..], &["--name", "forbidden"]].concat();
    cluster.run(&forbidden).await.fails(1, &["answers 403"]);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "the old one");
    let no_request = [&replace[..], &["--dns", "é.example"]].concat();
    cluster.run(&no_request).await.fails(64, &["--dns"]);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "the old one");
    let child = cluster.begin(&[&replace[..], &["--name", "denied"]].concat());
    until("the watch", || !cluster.store.lock().unwrap().watchers.is_empty()).await;
    assert!(std::fs::read_to_string(&key).unwrap().contains("PRIVATE KEY"));
    cluster.change("denied", |request| {
        request["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]});
    });
    finished(child).await.fails(1, &["denied: the request was denied"]);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "the old one");
    assert_eq!(names(cluster.dir()), ["a.key", "config", "servers-ca.crt"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_prints_changes() {
    let cluster = Cluster::start().await;
    cluster.add("alice", "/CN=alice");
    let mut child = cluster.begin(&["watch"]);
    until("the watch", || !cluster.store.lock().unwrap().watchers.is_empty()).await;
    cluster.change("alice", |alice| alice["metadata"]["labels"] = json!({"a": "b"}));
    cluster.add("bob", "/CN=bob");
    cluster.change("alice", |alice| {
        alice["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    });
    let gone = cluster.found("bob").unwrap();
    cluster.store.lock().unwrap().put("DELETED", &gone);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed = String::new();
    for _ in 0..5 {
        printed += &(in_time(lines.next_line()).await.unwrap().unwrap() + "\n");
    }
    insta::assert_snapshot!("certs_watch", normal(&printed));
    interrupt(&child);
    let ended = in_time(child.wait()).await.unwrap();
    assert_eq!((ended.code(), ended.signal()), (Some(0), None));
}

/// `tests/signers` checks the blocks that need a real cluster.
#[test]
fn the_page_on_certificates_is_the_output_of_the_commands() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/certificates.md");
    let directory = tempfile::tempdir().unwrap();
    let programs = Path::new(crate::gateway::PORTCULLIS).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let commands = transcript::replay(Path::new(page), &[], directory.path(), |command| {
        command.env("PATH", &path).env_remove("KUBECONFIG").env("HOME", directory.path());
    });
    let commands = commands.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(commands > 20, "{commands}");
}
