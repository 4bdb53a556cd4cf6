//! The commands of people's machines behind the proxies of their company: `HTTPS_PROXY` for the provider, `proxy-url` of the
//! kubeconfig for the cluster. The rules of `NO_PROXY` have tests in `portcullis_http`.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program: a panic is a failed test")]

use std::path::Path;
use std::process::Output;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_http::https_client::testing::{H1, RecordedRequest, Reply, TestServer, reply, serving};
use serde_json::{Value, json};
use testkit::pki::Ca;
use testkit::proxy_server::{CONNECTED, ProxyKind, ProxyServer};
use tokio::process::Command;

const ISSUER: &str = "https://issuer.test";
/// The arguments of the provider, beside its CA.
const PROVIDER: [&str; 5] = [
    "--issuer=https://issuer.test",
    "--client-id=machine",
    "--client-secret-from-environment",
    "--flow=client-credentials",
    "--scope=openid",
];

fn json_reply(body: &Value) -> Reply {
    let mut answer = reply(200, body.to_string())?;
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    Ok(answer)
}

fn provider(request: &RecordedRequest) -> Reply {
    match request.target.as_str() {
        "/.well-known/openid-configuration" => json_reply(&json!({
            "issuer": ISSUER,
            "token_endpoint": format!("{ISSUER}/token"),
            "jwks_uri": format!("{ISSUER}/jwks"),
            "end_session_endpoint": format!("{ISSUER}/end"),
        })),
        "/token" => {
            json_reply(&json!({"access_token": "machine-token", "token_type": "Bearer", "expires_in": 300}))
        }
        _ => reply(404, ""),
    }
}

fn cluster(request: &RecordedRequest) -> Reply {
    let is_known = request.headers["authorization"] == "Bearer machine-token";
    let user = json!({"username": "machine", "groups": ["system:authenticated"]});
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "status": {"userInfo": user}});
    if is_known { json_reply(&review) } else { reply(401, "{}") }
}

async fn server(ca: &Ca, name: &str, answer: fn(&RecordedRequest) -> Reply) -> TestServer {
    TestServer::start(serving(&ca.server(&[name]), None, H1), "127.0.0.1:0", move |request| {
        let answer = answer(&request);
        Box::pin(async { answer })
    })
    .await
}

/// A machine that reaches the servers through proxies alone.
struct Machine {
    home: tempfile::TempDir,
    authority: String,
    /// The value of `HTTPS_PROXY`.
    proxy: String,
}

impl Machine {
    async fn run(&self, arguments: &[&str]) -> Output {
        let authority = format!("--issuer-certificate-authority-data={}", self.authority);
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-login"));
        command.args(arguments).env_clear().env("HOME", self.home.path()).env("HTTPS_PROXY", &self.proxy);
        command.env("PORTCULLIS_CLIENT_SECRET", "secret").env("BROWSER", "true");
        if arguments[0] != "login" {
            command.args(PROVIDER).arg(authority);
        }
        command.output().await.unwrap()
    }

    /// A kubeconfig whose cluster has a proxy of its own.
    fn write_kubeconfig(&self, path: &Path, proxy_url: &str) {
        let mut arguments = vec!["credential".to_owned()];
        arguments.extend(PROVIDER.map(str::to_owned));
        arguments.push(format!("--issuer-certificate-authority-data={}", self.authority));
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "portcullis", "args": arguments});
        let cluster = json!({"server": "https://cluster.test", "certificate-authority-data": self.authority,
            "proxy-url": proxy_url});
        let file = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"exec": exec}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        std::fs::write(path, file.to_string()).unwrap();
    }
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

fn assert_connects(proxy: &ProxyServer, target: &str) {
    let heads = proxy.take();
    assert!(!heads.is_empty(), "nothing came for {target}");
    for head in heads {
        assert!(head.starts_with(&format!("CONNECT {target} ")), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic dXNlcjpzM2NyM3Q=\r\n"), "{head}");
    }
}

#[tokio::test]
async fn commands_of_people_go_through_their_proxies() {
    let ca = Ca::new("servers");
    let (provider, cluster) =
        (server(&ca, "issuer.test", provider).await, server(&ca, "cluster.test", cluster).await);
    let to_provider = ProxyServer::start(ProxyKind::Connect(CONNECTED), provider.address).await;
    let to_cluster = ProxyServer::start(ProxyKind::Connect(CONNECTED), cluster.address).await;
    let socks = ProxyServer::start(ProxyKind::Socks, cluster.address).await;
    let machine = Machine {
        home: tempfile::tempdir().unwrap(),
        authority: STANDARD.encode(ca.cert_pem()),
        proxy: format!("http://user:s3cr3t@{}", to_provider.address),
    };
    let kubeconfig = machine.home.path().join("kubeconfig");
    let flag = format!("--kubeconfig={}", kubeconfig.display());

    machine.write_kubeconfig(&kubeconfig, &format!("http://user:s3cr3t@{}", to_cluster.address));
    let login = machine.run(&["login", &flag]).await;
    assert!(login.status.success() && text(&login).contains("machine"), "{}", text(&login));
    assert_connects(&to_provider, "issuer.test:443");
    assert_connects(&to_cluster, "cluster.test:443");

    machine.write_kubeconfig(&kubeconfig, &format!("socks5://user:s3cr3t@{}", socks.address));
    let login = machine.run(&["login", &flag]).await;
    assert!(login.status.success(), "{}", text(&login));
    assert_eq!(socks.take(), ["user s3cr3t cluster.test:443"]);
    to_provider.take();

    let credential = machine.run(&["credential", "--no-cache"]).await;
    assert!(
        credential.status.success() && text(&credential).contains("machine-token"),
        "{}",
        text(&credential)
    );
    assert_connects(&to_provider, "issuer.test:443");
    machine.run(&["logout", "--end-session"]).await;
    assert_connects(&to_provider, "issuer.test:443");
}

#[tokio::test]
async fn a_proxy_that_fails_is_named_without_its_password() {
    let ca = Ca::new("servers");
    // Bound but not listening: no other process gets the port.
    let unheard = tokio::net::TcpSocket::new_v4().unwrap();
    unheard.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = unheard.local_addr().unwrap();
    let machine = Machine {
        home: tempfile::tempdir().unwrap(),
        authority: STANDARD.encode(ca.cert_pem()),
        proxy: format!("http://user:s3cr3t@{address}"),
    };
    let kubeconfig = machine.home.path().join("kubeconfig");
    machine.write_kubeconfig(&kubeconfig, &machine.proxy);
    let flag = format!("--kubeconfig={}", kubeconfig.display());
    for arguments in
        [&["login", flag.as_str()][..], &["credential", "--no-cache"], &["logout", "--end-session"]]
    {
        let failed = machine.run(arguments).await;
        let text = text(&failed);
        assert!(
            !failed.status.success() && text.contains(&format!("the proxy http://{address}: ")),
            "{text}"
        );
        assert!(text.contains("fix: check the proxy") && !text.contains("s3cr3t"), "{text}");
    }

    // The review, behind the proxy of its cluster.
    let provider = server(&ca, "issuer.test", provider).await;
    let to_provider = ProxyServer::start(ProxyKind::Connect(CONNECTED), provider.address).await;
    let machine = Machine { proxy: format!("user:s3cr3t@{}", to_provider.address), ..machine };
    let failed = machine.run(&["login", &flag]).await;
    let text = text(&failed);
    assert!(
        text.contains("ask the cluster who you are") && text.contains(&format!("http://{address}: ")),
        "{text}"
    );
    assert!(!text.contains("s3cr3t"), "{text}");
}
