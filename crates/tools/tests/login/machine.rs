//! A provider, a cluster, and a machine that logs in with a secret of its own.

use std::path::{Path, PathBuf};
use std::process::Output;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_http::https_client::testing::{H1, RecordedRequest, Reply, TestServer, reply, serving};
use serde_json::{Value, json};
use testkit::pki::Ca;
use tokio::process::Command;

fn json_reply(body: &Value) -> Reply {
    let mut answer = reply(200, body.to_string())?;
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    Ok(answer)
}

/// Answers as a provider that gives machines a token.
pub(crate) fn provider(request: &RecordedRequest) -> Reply {
    let issuer = format!("https://{}", request.headers["host"].to_str().unwrap());
    match request.target.as_str() {
        "/.well-known/openid-configuration" => json_reply(&json!({
            "issuer": issuer,
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/jwks"),
            "end_session_endpoint": format!("{issuer}/end"),
        })),
        "/token" => {
            json_reply(&json!({"access_token": "machine-token", "token_type": "Bearer", "expires_in": 300}))
        }
        _ => reply(404, ""),
    }
}

/// Answers as a cluster that knows the token.
pub(crate) fn cluster(request: &RecordedRequest) -> Reply {
    if request.headers["authorization"] != "Bearer machine-token" {
        return reply(401, "{}");
    }
    let user = json!({"username": "machine", "groups": ["system:authenticated"]});
    json_reply(&json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
        "status": {"userInfo": user}}))
}

/// A server with a certificate for this name.
pub(crate) async fn server(ca: &Ca, name: &str, answer: fn(&RecordedRequest) -> Reply) -> TestServer {
    TestServer::start(serving(&ca.server(&[name]), None, H1), "127.0.0.1:0", move |request| {
        let answer = answer(&request);
        Box::pin(async { answer })
    })
    .await
}

/// The path of the binary.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_portcullis-login");

/// A machine, with a home directory of its own.
pub(crate) struct Machine {
    home: tempfile::TempDir,
    authority: String,
    issuer: String,
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Machine {
    pub(crate) fn new(ca: &Ca, issuer: &str) -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            authority: STANDARD.encode(ca.cert_pem()),
            issuer: issuer.to_owned(),
            variables: Vec::new(),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The flags of the login.
    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            format!("--issuer={}", self.issuer),
            format!("--issuer-certificate-authority-data={}", self.authority),
            "--client-id=machine".to_owned(),
            "--client-secret-from-environment".to_owned(),
            "--flow=client-credentials".to_owned(),
        ]
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        self.run_program(Path::new(PROGRAM), arguments).await
    }

    pub(crate) async fn run_program(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir(self.home.path());
        command
            .env("HOME", self.home.path())
            .env("PORTCULLIS_CLIENT_SECRET", "secret")
            .env("BROWSER", "true");
        command.envs(self.variables.iter().map(|(name, value)| (name, value.as_str())));
        command.stdin(std::process::Stdio::null()).output().await.unwrap()
    }

    /// The same with the flags of the login.
    pub(crate) async fn run_with_flags(&self, arguments: &[&str]) -> Output {
        let flags = self.flags();
        let all: Vec<&str> = arguments.iter().copied().chain(flags.iter().map(String::as_str)).collect();
        self.run(&all).await
    }

    /// A kubeconfig with one context, which is the current one, and whose cluster has these fields, too.
    pub(crate) fn kubeconfig(&self, name: &str, cluster: &Value) -> Value {
        let arguments: Vec<String> = std::iter::once("credential".to_owned()).chain(self.flags()).collect();
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "portcullis", "args": arguments});
        let mut fields = json!({"certificate-authority-data": self.authority});
        fields.as_object_mut().unwrap().extend(cluster.as_object().unwrap().clone());
        json!({"apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": name, "cluster": fields}],
            "users": [{"name": name, "user": {"exec": exec}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}]})
    }

    pub(crate) fn write(&self, name: &str, content: &Value) {
        std::fs::write(self.file(name), content.to_string()).unwrap();
    }
}

/// What a command has printed.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// A file as text.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
