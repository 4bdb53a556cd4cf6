//! What is tried with each release. A row shows a few words for the table: `equal` if the API server itself has answered the same
//! requests alike.

use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use testkit::Gateway;
use testkit::csr::Csr;
use testkit::pki::{Key, KeyKind};
use testkit::real::{Kubelet, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::release::{
    BY_GATEWAY, BY_SERVER, Call, POD_SIGNER, PodRequestVersion, Release, TOKEN, kubeconfig,
};
use crate::webhooks::HELD;

type Outcome = Result<String, String>;
type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) run: for<'a> fn(&'a Release) -> Running<'a>,
}

pub(crate) const ROWS: &[Row] = &[
    Row { name: "self-check, and the version that it reads", run: |release| Box::pin(self_check(release)) },
    Row { name: "users with a UID, by token", run: |release| Box::pin(uid(release)) },
    Row { name: "watch", run: |release| Box::pin(watch(release)) },
    Row { name: "exec, by SPDY and by WebSocket", run: |release| Box::pin(exec(release)) },
    Row { name: "admission webhooks that change and refuse", run: |release| Box::pin(webhooks(release)) },
    Row { name: "impersonation with `impersonate`", run: |release| Box::pin(impersonation(release)) },
    Row { name: "impersonation with constrained verbs alone", run: |release| Box::pin(constrained(release)) },
    Row { name: "bootstrap token", run: |release| Box::pin(bootstrap_token(release)) },
    Row { name: "CSR of a kubelet, by the gateway's controllers", run: |release| Box::pin(signing(release)) },
    Row { name: "certificate of a pod, by the gateway's controller", run: |release| Box::pin(pod(release)) },
    Row {
        name: "certificate in a volume, by the kubelet of the release",
        run: |release| Box::pin(volume(release)),
    },
    Row { name: "audit event", run: |release| Box::pin(audit(release)) },
    Row { name: "limit on requests in flight", run: |release| Box::pin(limits(release)) },
    Row { name: "kubectl get, apply --server-side, auth whoami", run: |release| Box::pin(kubectl(release)) },
];

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const EQUAL: &str = "equal";

fn review() -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
}

fn expect(holds: bool, found: impl std::fmt::Debug) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{found:?}")) }
}

async fn self_check(release: &Release) -> Outcome {
    let administrator = Some(release.replicas.user());
    let (_, version) = release.same(&Call { identity: administrator, ..Call::get("/version") }).await?;
    expect(version["gitVersion"] == release.version, &version)?;
    let [_, address] = release.both();
    let gateway = Gateway::at(address, Some(release.replicas.health(0)));
    let expected = format!("\"serverVersion\":\"{}\"", release.version);
    // On a busy machine the next self-check reads it.
    eventually("the version", async || Ok(gateway.metrics("/clusters").await.contains(&expected))).await?;
    let log = release.replicas.gateways[0].log();
    expect(log.contains("self-check passed: the backend accepts forwarded identities"), &log)?;
    // It is among the releases that are tested.
    expect(!log.contains("docs/releases.md"), &log)?;
    Ok(release.version.trim_start_matches('v').to_owned())
}

async fn uid(release: &Release) -> Outcome {
    let token = format!("Bearer {TOKEN}");
    let call = Call { headers: vec![("authorization", &token)], ..Call::post(REVIEWS, &review()) };
    let (code, body) = release.same(&call).await?;
    let is_dave = body["status"]["userInfo"]["uid"] == "1234";
    expect(code == StatusCode::CREATED && is_dave, (code, body))?;
    Ok(EQUAL.to_owned())
}

async fn watch(release: &Release) -> Outcome {
    let map = json!({"metadata": {"name": "watched"}});
    release.create("/api/v1/namespaces/load-3/configmaps", &map).await?;
    let administrator = Some(release.replicas.user());
    // Once with a first list in the watch.
    for how in [
        "resourceVersion=0",
        "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan",
    ] {
        let path = format!(
            "/api/v1/namespaces/load-3/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dwatched&{how}"
        );
        let call = Call { identity: administrator, ..Call::get(&path) };
        let mut answers = Vec::new();
        for address in release.both() {
            let (code, body) = call.send(address).await;
            // One event is a JSON value of its own.
            let text = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
            let events =
                text.lines().map(|line| without_version(serde_json::from_str(line).unwrap_or_default()));
            answers.push((code, events.collect::<Vec<Value>>()));
        }
        let is_added = answers[0].1.first().is_some_and(|event| event["type"] == "ADDED");
        expect(answers[0] == answers[1] && answers[0].0 == StatusCode::OK && is_added, &answers)?;
    }
    Ok(EQUAL.to_owned())
}

/// An event without the version of a bookmark, which grows.
fn without_version(mut event: Value) -> Value {
    event["object"]["metadata"]["resourceVersion"] = Value::Null;
    event
}

/// To a kubelet that echoes. Bytes of a tunnel are those of the client, whatever its protocol.
async fn exec(release: &Release) -> Outcome {
    const PATH: &str = "/api/v1/namespaces/load-0/pods/tunnelled/exec?command=echo&stdin=true&stdout=true";
    let spdy = "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n";
    let websocket = "GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                     Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
    for (request, protocol) in [(spdy, "spdy/3.1"), (websocket, "websocket")] {
        for address in release.both() {
            let mut stream = Gateway::at(address, None).tls(b"http/1.1", Some(release.replicas.user())).await;
            let talk = async {
                stream.write_all(request.replace("{PATH}", PATH).as_bytes()).await?;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && head.len() < 8 << 10 {
                    head.push(stream.read_u8().await?);
                }
                let head = String::from_utf8_lossy(&head).to_lowercase();
                if !head.starts_with("http/1.1 101 ") || !head.contains(&format!("upgrade: {protocol}\r\n")) {
                    return Ok(Err(head));
                }
                // First the number of the API server.
                stream.read_u64().await?;
                stream.write_u64(7).await?;
                stream.flush().await?;
                let echoed = stream.read_u64().await?;
                Ok::<_, std::io::Error>(if echoed == 7 { Ok(()) } else { Err(format!("echoed {echoed}")) })
            };
            testkit::in_time(talk).await.map_err(|error| format!("{protocol} at {address}: {error}"))??;
        }
    }
    Ok(EQUAL.to_owned())
}

/// The webhooks of the API server see one namespace, those of the gateway another one.
async fn webhooks(release: &Release) -> Outcome {
    let [server, gateway] = release.both();
    for (name, labels, code) in [
        ("allowed", json!({}), StatusCode::CREATED),
        ("denied", json!({"denied": "yes"}), StatusCode::FORBIDDEN),
    ] {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels}, "data": {"key": "value"}});
        let mut answers = Vec::new();
        for (address, namespace) in [(server, BY_SERVER), (gateway, BY_GATEWAY)] {
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            let call = Call { identity: Some(release.replicas.user()), ..Call::post(&path, &object) };
            let (found, body) = call.send(address).await;
            answers.push((found, body.to_string().replace(namespace, "namespace")));
        }
        let is_stamped = code == StatusCode::FORBIDDEN || answers[0].1.contains("\"stamped\":\"yes\"");
        expect(answers[0] == answers[1] && answers[0].0 == code && is_stamped, &answers)?;
    }
    Ok(EQUAL.to_owned())
}

async fn impersonation(release: &Release) -> Outcome {
    release
        .allow("plain", &json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}]))
        .await?;
    for (user, expected) in [("plain", StatusCode::CREATED), ("without-rights", StatusCode::FORBIDDEN)] {
        let identity = release.replicas.client(user);
        let call = Call {
            identity: Some(&identity),
            headers: vec![("impersonate-user", "bob")],
            ..Call::post(REVIEWS, &review())
        };
        settled(release, &call, expected).await?;
        release.same(&call).await?;
    }
    Ok(EQUAL.to_owned())
}

/// To an API server before 1.36 these verbs mean nothing.
async fn constrained(release: &Release) -> Outcome {
    release
        .allow(
            "constrained",
            &json!([
                {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"]},
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["impersonate-on:user-info:list"]},
            ]),
        )
        .await?;
    release
        .allow("bob", &json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]))
        .await?;
    let minor = release.version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    let is_known = minor.is_some_and(|minor| minor >= 36);
    let expected = if is_known { StatusCode::OK } else { StatusCode::FORBIDDEN };
    let identity = release.replicas.client("constrained");
    let call = Call {
        identity: Some(&identity),
        headers: vec![("impersonate-user", "bob")],
        ..Call::get("/api/v1/namespaces/load-4/configmaps?resourceVersion=0")
    };
    settled(release, &call, expected).await?;
    let (code, _) = release.same(&call).await?;
    Ok(format!("{EQUAL}, {}", code.as_u16()))
}

/// Waits until the API server itself follows new roles, and the gateway has not remembered what was decided before.
async fn settled(release: &Release, call: &Call<'_>, expected: StatusCode) -> Result<(), String> {
    eventually(call.path, async || Ok(call.send(release.direct()).await.0 == expected)).await
}

async fn bootstrap_token(release: &Release) -> Outcome {
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:skew"},
    });
    release.create("/api/v1/namespaces/kube-system/secrets", &secret).await?;
    let call = |token: &'static str| Call {
        headers: vec![("authorization", token)],
        ..Call::post(REVIEWS, &review())
    };
    let good = call("Bearer abcdef.0123456789abcdef");
    // Both follow the secrets with a delay.
    for address in release.both() {
        eventually("the bootstrap token", async || Ok(good.send(address).await.0 == StatusCode::CREATED))
            .await?;
    }
    let (_, body) = release.same(&good).await?;
    expect(body["status"]["userInfo"]["username"] == "system:bootstrap:abcdef", &body)?;
    let (code, body) = release.same(&call("Bearer abcdef.0123456789abcdee")).await?;
    expect(code == StatusCode::UNAUTHORIZED, (code, body))?;
    Ok(EQUAL.to_owned())
}

async fn signing(release: &Release) -> Outcome {
    const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    release
        .allow(
            "joining",
            &json!([
                {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
                    "verbs": ["create", "get", "list", "watch"]},
                {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/nodeclient"],
                    "verbs": ["create"]},
            ]),
        )
        .await?;
    let identity = release.replicas.client("joining");
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "node-csr"},
        "spec": {"request": BASE64_STANDARD.encode(Csr::node("worker").pem()),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"]},
    });
    let [_, gateway] = release.both();
    let create = Call { identity: Some(&identity), ..Call::post(REQUESTS, &request) };
    eventually("the role", async || {
        let (code, body) = create.send(gateway).await;
        match code {
            StatusCode::CREATED => Ok(true),
            StatusCode::FORBIDDEN => Ok(false),
            _ => Err(format!("{code} {body}")),
        }
    })
    .await?;
    let path = format!("{REQUESTS}/node-csr");
    let get = Call { identity: Some(&identity), ..Call::get(&path) };
    eventually(
        "the certificate",
        async || Ok(get.send(gateway).await.1["status"]["certificate"].is_string()),
    )
    .await?;
    Ok("approved and signed".to_owned())
}

/// By v1, or by v1beta1 where the release serves no other.
async fn pod(release: &Release) -> Outcome {
    const NAMESPACE: &str = "/api/v1/namespaces/load-4";
    let Some(version) = PodRequestVersion::of(&release.version) else {
        let log = release.replicas.gateways[0].log();
        expect(log.contains("the API server serves no requests of pods, the controller waits"), &log)?;
        return Ok("not served".to_owned());
    };
    let node = release.create_whole("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await?;
    let account = json!({"metadata": {"name": "web"}});
    let account = release.create_whole(&format!("{NAMESPACE}/serviceaccounts"), &account).await?;
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "web", "automountServiceAccountToken": false,
            // A kubelet mounts the volumes that a container uses.
            "containers": [{"name": "web", "image": "example.com/web",
                "volumeMounts": [{"name": "v", "mountPath": "/run/v"}]}],
            "volumes": [{"name": "v", "projected": {"sources": [{"podCertificate":
                {"signerName": POD_SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem"}}]}}],
        },
    });
    let mut created = Value::Null;
    // The admission of service accounts learns of them with a delay.
    eventually("the pod", async || {
        let made = release.create_whole(&format!("{NAMESPACE}/pods"), &pod).await;
        created = made.unwrap_or_default();
        Ok(created.is_object())
    })
    .await?;
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    let mut spec = json!({
        "signerName": POD_SIGNER, "podName": "web", "podUID": uid(&created), "serviceAccountName": "web",
        "serviceAccountUID": uid(&account), "nodeName": "n1", "nodeUID": uid(&node),
    });
    let key = Key::generate(KeyKind::P256);
    if release.minor() < 36 {
        // As their kubelets write it.
        let pod_uid = uid(&created);
        let proof = key.sign(key.default_algorithm(), pod_uid.as_str().unwrap_or_default().as_bytes());
        spec["pkixPublicKey"] = BASE64_STANDARD.encode(key.spki()).into();
        spec["proofOfPossession"] = BASE64_STANDARD.encode(proof).into();
    } else {
        let request = Csr::new().with_key(Arc::clone(&key));
        spec["stubPKCS10Request"] = BASE64_STANDARD.encode(request.der()).into();
    }
    let requests =
        format!("/apis/certificates.k8s.io/{}/namespaces/load-4/podcertificaterequests", version.as_str());
    release.create(&requests, &json!({"metadata": {"name": "web"}, "spec": spec})).await?;
    let path = format!("{requests}/web");
    let get = Call { identity: Some(release.replicas.user()), ..Call::get(&path) };
    eventually("the certificate", async || {
        let (_, request) = get.send(release.direct()).await;
        Ok(request["status"]["certificateChain"].is_string())
    })
    .await?;
    Ok(version.as_str().to_owned())
}

/// The kubelet of the release works through the gateway, and writes the certificate that its request has got.
async fn volume(release: &Release) -> Outcome {
    let Some(version) = PodRequestVersion::of(&release.version) else { return Ok("not served".to_owned()) };
    let more: &[&str] = match version {
        PodRequestVersion::V1Beta1 => &["--feature-gates=PodCertificateRequest=true"],
        PodRequestVersion::V1 => &[],
    };
    let program = release.kubelet()?;
    // The API servers have no authorizer of nodes.
    release
        .allow("system:node:n1", &json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]))
        .await?;
    let [server, gateway] = release.both();
    let config = release.node_kubeconfig(gateway);
    let dir = release.dir.path();
    let mut kubelet = Kubelet::start((dir, "kubelet"), &program, ("n1", &config), more).await?;
    let get =
        Call { identity: Some(release.replicas.user()), ..Call::get("/api/v1/namespaces/load-4/pods/web") };
    let (_, pod) = get.send_whole(server).await;
    let bundle = kubelet.file(&pod, "v", "bundle.pem").await?;
    let parts = ["-----BEGIN PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----"];
    expect(parts.iter().all(|part| bundle.contains(part)), "a bundle without its parts")?;
    let leaf = CertificateDer::from_pem_slice(bundle.as_bytes()).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&leaf).into_owned();
    expect(text.contains("spiffe://example.com/pod/web"), text)?;
    Ok("written".to_owned())
}

/// The same request has the same event in the log of the API server, and in that of the gateway.
async fn audit(release: &Release) -> Outcome {
    let [server, gateway] = release.both();
    let mut events = Vec::new();
    for (address, log, id) in [
        (server, "server-audit.log", "9a1c0b5e-0000-4000-8000-000000000001"),
        (gateway, "gateway-audit.log", "9a1c0b5e-0000-4000-8000-000000000002"),
    ] {
        let call = Call {
            identity: Some(release.replicas.user()),
            headers: vec![("audit-id", id), ("user-agent", "skew")],
            ..Call::get("/api/v1/namespaces/load-5/configmaps/none")
        };
        call.send(address).await;
        let mut found = Value::Null;
        eventually("the audit event", async || {
            let log = std::fs::read_to_string(release.dir.path().join(log)).unwrap_or_default();
            let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let is_it = |event: &Value| event["auditID"] == id && event["stage"] == "ResponseComplete";
            let Some(event) = events.into_iter().find(is_it) else { return Ok(false) };
            found = event;
            Ok(true)
        })
        .await?;
        let fields = [
            "apiVersion",
            "level",
            "verb",
            "requestURI",
            "user",
            "sourceIPs",
            "userAgent",
            "objectRef",
            "responseStatus",
        ];
        events.push(Value::from_iter(fields.map(|field| (field, found[field].clone()))));
    }
    // The fingerprint of the certificate is in both.
    expect(events[0] == events[1] && events[0]["responseStatus"]["code"] == 404, &events)?;
    Ok(EQUAL.to_owned())
}

/// A webhook holds the only write that the gateway admits.
async fn limits(release: &Release) -> Outcome {
    let limited = release.replicas.gateways[1].address;
    let path = format!("/api/v1/namespaces/{BY_GATEWAY}/configmaps");
    // Of an administrator no request is refused.
    release
        .allow("writer", &json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]))
        .await?;
    let writer = release.replicas.client("writer");
    let user = Some(&writer);
    let object = |name: &str| json!({"metadata": {"name": name}});
    let held = Call { identity: user, ..Call::post(&path, &object(HELD)) };
    let other = Call { identity: user, ..Call::post(&path, &object("other")) };
    let dry_run = format!("{path}?dryRun=All");
    settled(release, &Call { identity: user, ..Call::post(&dry_run, &object("other")) }, StatusCode::CREATED)
        .await?;
    let during = async {
        release.webhooks.held.acquire().await.unwrap().forget();
        let refused = other.send(limited).await;
        release.webhooks.released.add_permits(1);
        refused
    };
    let (first, refused) = tokio::join!(held.send(limited), testkit::in_time(during));
    expect(first.0 == StatusCode::CREATED, &first)?;
    let text = refused.1.to_string();
    let is_refused = refused.0 == StatusCode::TOO_MANY_REQUESTS;
    expect(is_refused && text.contains("Too many requests, please try again later."), &refused)?;
    Ok("429".to_owned())
}

async fn kubectl(release: &Release) -> Outcome {
    let manifest =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "b"}});
    let input = release.dir.path().join("manifest.json");
    std::fs::write(&input, manifest.to_string()).unwrap();
    let mut shown = Vec::new();
    for (version, program) in &release.kubectls {
        for arguments in [
            &["apply", "--server-side", "--filename", &input.display().to_string(), "--namespace=load-6"][..],
            &["get", "configmaps", "--namespace=load-6", "--output=name"],
            &["get", "nodes", "--output=wide"],
            &["auth", "whoami", "--output=yaml"],
        ] {
            let mut outputs = Vec::new();
            for address in release.both() {
                let output = Command::new(program)
                    .env_clear()
                    .env("HOME", release.dir.path().join(format!("home-{version}")))
                    .arg("--kubeconfig")
                    .arg(kubeconfig(address, release.dir.path(), "kubectl"))
                    .args(arguments)
                    .stdin(Stdio::null())
                    .output()
                    .await
                    .map_err(|error| error.to_string())?;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                outputs.push((
                    output.status.code(),
                    without_times(&text(&output.stdout)),
                    text(&output.stderr),
                ));
            }
            expect(outputs[0] == outputs[1] && outputs[0].0 == Some(0), (version, arguments, &outputs))?;
        }
        shown.push(version.trim_start_matches('v'));
    }
    Ok(format!("{EQUAL} with {}", shown.join(" and ")))
}

/// The time and the age of objects.
fn without_times(text: &str) -> String {
    let is_time = |line: &&str| !line.contains("creationTimestamp");
    let words = |line: &str| {
        let word = |word: &str| {
            let is_age = word.starts_with(|first: char| first.is_ascii_digit())
                && word.ends_with(['s', 'm', 'h'])
                && word.chars().all(|one| one.is_ascii_digit() || "smh".contains(one));
            if is_age { "AGE".to_owned() } else { word.to_owned() }
        };
        line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    };
    text.lines().filter(is_time).map(words).collect::<Vec<_>>().join("\n")
}
