//! Tokens of ten seconds with a real kubectl: its watch ends with each token, and goes on with the next one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use http::{HeaderValue, Method};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::issuer::{Issuer, SigningKey};
use testkit::real::{eventually, free_ports};
use testkit::{Gateway, Pki, now, status};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::servers::{FRONT_PROXY, HeaderFlags, RealServers, post};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// In seconds.
const LIFETIME: i64 = 10;

pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    vec![trial("kubectl watches on with its next token", Box::new(kubectl_watches_on))]
}

fn kubectl_watches_on(servers: &RealServers) -> Result<(), String> {
    let server = servers.server(HeaderFlags::Good)?;
    let pki = Pki::new();
    let key = SigningKey::new("one");
    let issuer = servers.runtime().block_on(Issuer::start(&pki, &[&key]));
    let [metrics] = free_ports()?;
    let flags = [
        format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        "--terminate-streams-on-credential-expiry".to_owned(),
        format!("--oidc-issuer-url={}", issuer.url),
        format!("--oidc-ca-file={}", pki.write("issuer-ca.crt", pki.servers.cert_pem()).display()),
        "--oidc-client-id=kubernetes".to_owned(),
        "--oidc-groups-claim=groups".to_owned(),
        "--oidc-signing-algs=ES256".to_owned(),
    ];
    let gateway = servers.gateway_with("credential end", server.address, &FRONT_PROXY, &flags)?;
    gateway.line_with(&["self-check passed"])?;
    let client = Gateway::at(gateway.address, Some(([127, 0, 0, 1], metrics).into()));

    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let write_token = || {
        let expires = now() + LIFETIME;
        let claims = json!({
            "iss": issuer.url, "aud": "kubernetes", "sub": "carol", "groups": ["system:masters"], "exp": expires,
        });
        write_credential(home.path(), &key.sign(&claims), expires);
    };
    write_token();
    let kubeconfig = home.path().join("kubeconfig");
    let credential = home.path().join("credential");
    fs::write(&kubeconfig, exec_kubeconfig(&gateway.address.to_string(), servers, &credential)?).unwrap();

    servers.runtime().block_on(async {
        let mut alice = client.http1(Some(servers.alice())).await;
        let created = post(CONFIG_MAPS, r#"{"metadata":{"name":"signal"}}"#);
        let created = alice.send(created).await.map_err(|error| error.to_string())?;
        let (code, body) = status(created).await;
        if !code.is_success() {
            return Err(format!("{code} {body}"));
        }
        let mut kubectl = Command::new(servers.kubectl()?);
        let kubectl =
            kubectl.env_clear().env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap());
        let kubectl = kubectl.arg(format!("--kubeconfig={}", kubeconfig.display()));
        let wait = ["wait", "configmap/signal", "--for=jsonpath={.data.done}=yes", "--timeout=120s"];
        let mut kubectl = kubectl
            .args(wait)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        // Two of its watches end: the second one was opened with another token than the first.
        let ended = eventually("the end of two watches", async || {
            write_token();
            let ended = client.count_all("portcullis_streams_ended_with_credential_total", &[]).await;
            Ok(ended >= 2)
        })
        .await;
        let mut done = post(&format!("{CONFIG_MAPS}/signal"), r#"{"data":{"done":"yes"}}"#);
        *done.method_mut() = Method::PATCH;
        let merge = HeaderValue::from_static("application/merge-patch+json");
        done.headers_mut().insert("content-type", merge);
        alice = client.http1(Some(servers.alice())).await;
        alice.send(done).await.map_err(|error| error.to_string())?;
        if ended.is_err() {
            kubectl.kill().ok();
        }
        let output = kubectl.wait_with_output().map_err(|error| error.to_string())?;
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ended.map_err(|error| format!("{error}; kubectl printed {printed:?}"))?;
        if printed == "configmap/signal condition met\n" { Ok(()) } else { Err(printed) }
    })
}

/// Replaces what kubectl's credential plugin prints.
fn write_credential(directory: &Path, token: &str, expires: i64) {
    let expires = OffsetDateTime::from_unix_timestamp(expires).unwrap().format(&Rfc3339).unwrap();
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token, "expirationTimestamp": expires},
    });
    let new = directory.join("credential.new");
    fs::write(&new, credential.to_string()).unwrap();
    fs::rename(new, directory.join("credential")).unwrap();
}

/// A kubeconfig whose credential plugin prints a file.
fn exec_kubeconfig(gateway: &str, servers: &RealServers, credential: &Path) -> Result<String, String> {
    let exec: Value = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [credential],
        "interactiveMode": "Never",
    });
    let cluster = json!({
        "server": format!("https://{gateway}"),
        "certificate-authority": servers.file("servers-ca.crt")?,
    });
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"exec": exec}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    })
    .to_string())
}
