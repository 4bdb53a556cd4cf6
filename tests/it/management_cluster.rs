//! Clusters in the Secrets of a management cluster: they come and go with them, stay while it is away, and name nothing of
//! the gateway.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::body::{Frames, fed};
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::self_check::respond;
use testkit::{FakeBackend, Gateway, H2, Http1, Pki, ResponseFuture, in_time, kubeconfig, text};
use tokio::sync::{mpsc, watch};

use crate::gateway::{InProcess as _, resolved};
use crate::streams::{self, Streams, tunnel};

/// Of no two Secrets, of whichever management cluster.
static NEXT_UID: AtomicUsize = AtomicUsize::new(1);

const PATH: &str = "/api/v1/namespaces/tenants/secrets";

/// A fake management cluster: each watch ends with the next change, after which everything is listed again.
pub(crate) struct Management {
    secrets: Arc<Mutex<BTreeMap<String, Value>>>,
    revision: watch::Sender<u64>,
    ends_watches: Arc<AtomicBool>,
    lists: Arc<AtomicUsize>,
    pub(crate) server: FakeBackend,
}

impl Management {
    pub(crate) async fn start(pki: &Pki) -> Self {
        let secrets: Arc<Mutex<BTreeMap<String, Value>>> = Arc::default();
        let revision = watch::Sender::new(1);
        let (stored, sender) = (Arc::clone(&secrets), revision.clone());
        let (ends_watches, lists) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (ends, listed) = (Arc::clone(&ends_watches), Arc::clone(&lists));
        let answer = move |request: Request<Incoming>| -> ResponseFuture {
            assert_eq!(request.uri().path(), PATH);
            let query = request.uri().query().unwrap_or_default().to_owned();
            assert!(query.contains("labelSelector=portcullis.dev"), "{query}");
            if query.contains("watch=true") {
                let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
                let from: u64 = from.unwrap().parse().unwrap();
                let mut changes = sender.subscribe();
                let (frames, body, _) = fed();
                let ends = ends.load(Ordering::Relaxed);
                return Box::pin(async move {
                    tokio::spawn(async move {
                        changes.wait_for(|now| ends || *now > from).await.ok();
                        drop(frames);
                    });
                    Response::new(body)
                });
            }
            listed.fetch_add(1, Ordering::Relaxed);
            let items: Vec<Value> = stored.lock().unwrap().values().cloned().collect();
            let revision = sender.borrow().to_string();
            let list = json!({"apiVersion": "v1", "kind": "SecretList", "metadata": {"resourceVersion": revision},
                "items": items});
            Box::pin(async move { respond(StatusCode::OK, &list) })
        };
        let server = FakeBackend::start(pki, H2, answer).await;
        Self { secrets, revision, ends_watches, lists, server }
    }

    /// Writes a Secret, or creates it.
    pub(crate) fn put(&self, name: &str, data: &[(&str, &str)]) {
        let uid = self.secrets.lock().unwrap().get(name).map(|secret| secret["metadata"]["uid"].clone());
        self.store(name, data, uid);
    }

    /// Deletes a Secret, and creates one of its name, before the gateway looks.
    fn put_again(&self, name: &str, data: &[(&str, &str)]) {
        self.store(name, data, None);
    }

    fn store(&self, name: &str, data: &[(&str, &str)], uid: Option<Value>) {
        let data: BTreeMap<_, _> = data.iter().map(|(key, value)| (*key, STANDARD.encode(value))).collect();
        let uid = uid.unwrap_or_else(|| NEXT_UID.fetch_add(1, Ordering::Relaxed).to_string().into());
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "uid": uid,
            "labels": {"portcullis.dev/secret-type": "cluster"}}, "data": data});
        self.secrets.lock().unwrap().insert(name.to_owned(), secret);
        self.revision.send_modify(|revision| *revision += 1);
    }

    fn delete(&self, name: &str) {
        self.secrets.lock().unwrap().remove(name).unwrap();
        self.revision.send_modify(|revision| *revision += 1);
    }
}

/// The streams of one client of a cluster, and the connections that carry them.
async fn open_streams(
    gateway: &Gateway,
    name: &str,
    opened: &mut mpsc::UnboundedReceiver<Frames>,
) -> (Streams, (Vec<Client>, Http1)) {
    const TOKEN: (&str, &str) = ("authorization", "Bearer one");
    let (mut watches, mut connections) = (Vec::new(), Vec::new());
    for http2 in [false, true] {
        let mut client = Client::connect(gateway, http2, None).await;
        let path = format!("/clusters/{name}/api/v1/pods?watch=true");
        let response = client.get(&path, &[TOKEN]).await;
        assert_eq!(response.status(), StatusCode::OK);
        watches.push((response.into_body(), in_time(opened.recv()).await.unwrap()));
        connections.push(client);
    }
    let mut upgraded = gateway.http1(None).await;
    let path = format!("/clusters/{name}/api/v1/namespaces/n/pods/p/exec");
    let tunnel = tunnel(&mut upgraded, &path, &[TOKEN]).await;
    (Streams { watches, tunnel }, (connections, upgraded))
}

const HEAD: &str = "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\n";
pub(crate) const DOCUMENT: &str = "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\n\
                        authentication: {tokenAuthFile: tokens}\n";

/// A kubeconfig with everything in it.
pub(crate) fn inline(pki: &Pki, backend: &FakeBackend) -> String {
    inline_at(pki, backend.address)
}

/// The same for an API server at this address.
pub(crate) fn inline_at(pki: &Pki, backend: std::net::SocketAddr) -> String {
    let front = pki.front.leaf().cn("portcullis").issue();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: b, cluster: {{server: 'https://{}', certificate-authority-data: {}, tls-server-name: backend.test}}}}]\n\
         users: [{{name: u, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: b, user: u}}}}]\n",
        backend,
        STANDARD.encode(pki.servers.cert_pem()),
        STANDARD.encode(front.cert_pem()),
        STANDARD.encode(front.key_pem()),
    )
}

/// A kubeconfig with a client certificate that only `other` accepts.
fn with_refused_credential(config: &str, other: &Pki) -> String {
    let front = other.front.leaf().cn("portcullis").issue();
    let user = config.split("users: ").nth(1).unwrap().split('\n').next().unwrap();
    let (cert, key) = (STANDARD.encode(front.cert_pem()), STANDARD.encode(front.key_pem()));
    let users = format!("[{{name: u, user: {{client-certificate-data: {cert}, client-key-data: {key}}}}}]");
    config.replace(user, &users)
}

#[tokio::test]
async fn a_secret_that_takes_over_a_name_gets_no_connection_of_its_predecessor() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    // The same API server, with a credential that it does not accept.
    let good = inline(&pki, &backend);
    let bad = with_refused_credential(&good, &other);
    management.put("prod", &[("value", &bad), ("cluster", DOCUMENT), ("tokens", "thief,root,1\n")]);
    let flags = flags(&pki, management.server.address);
    let main = pki.directory.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&main).unwrap();
    std::fs::write(&main, format!("{text}clusterDirectory: clusters.d\n")).unwrap();
    let directory = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("config"), &good).unwrap();
    std::fs::write(directory.join("tokens"), "one,carol,7\n").unwrap();
    let file = format!("{DOCUMENT}name: prod\nkubeconfig: config\nmatch: {{pathPrefix: /clusters/prod}}\n");
    std::fs::write(directory.join("prod.yaml"), file).unwrap();
    let gateway = Gateway::with(flags);
    trusted(&gateway, "prod").await;
    gateway.until_counted("portcullis_clusters_refused 1").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    let before = gateway.generation().await;
    std::fs::remove_file(directory.join("prod.yaml")).unwrap();
    gateway.reloaded(before).await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "thief").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::UNAUTHORIZED);
}

/// The flags of a gateway whose clusters are in Secrets.
pub(crate) fn flags(pki: &Pki, management: std::net::SocketAddr) -> Vec<String> {
    let (cert, key) = pki.write_pair("front", &pki.front.leaf().cn("portcullis").issue());
    let ca = pki.write("servers-ca.crt", pki.servers.cert_pem());
    pki.write("management.kubeconfig", kubeconfig(management, &ca, &cert, &key));
    pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
    pki.write("tokens.csv", "gateway-token,of-the-gateway,7\n");
    let file = pki.write(
        "gateway.yaml",
        "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}
operation: {metricsBindAddress: '127.0.0.1:0', workers: 1}
authentication: {anonymousAuth: false}
managementCluster: {kubeconfig: management.kubeconfig, namespace: tenants, pathPrefix: /clusters, domain: clusters.example.com,
  allowLocalAddresses: true}
",
    );
    vec![format!("--config={}", file.display())]
}

/// Adds the cluster `own` of the operator, below `/own`, to the configuration file.
pub(crate) fn add_own_cluster(pki: &Pki, config: &str, tokens: &str) {
    pki.write("of-operator.kubeconfig", config);
    pki.write("of-operator.csv", tokens);
    let main = pki.directory.path().join("gateway.yaml");
    let head = std::fs::read_to_string(&main).unwrap();
    let own = "clusters: [{name: own, kubeconfig: of-operator.kubeconfig, match: {pathPrefix: /own}, \
               authentication: {tokenAuthFile: of-operator.csv}}]\n";
    std::fs::write(&main, format!("{head}{own}")).unwrap();
}

async fn code(gateway: &Gateway, path: &str, token: &str) -> StatusCode {
    let mut client = Client::connect(gateway, false, None).await;
    client.code_at(path, &[("authorization", &format!("Bearer {token}"))]).await
}

pub(crate) async fn trusted(gateway: &Gateway, name: &str) {
    let start = format!("portcullis_endpoint_trusted{{cluster=\"{name}\"");
    gateway.until_counted_as(&start, |line| line.starts_with(&start) && line.ends_with(" 1")).await;
}

#[tokio::test]
async fn clusters_come_change_and_go_with_their_secrets() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    let gateway = Gateway::with(flags(&pki, management.server.address));
    trusted(&gateway, "prod").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    assert_eq!(code(&gateway, "/clusters/test/api", "one").await, StatusCode::NOT_FOUND);

    management.put("test", &[("kubeconfig", &config), ("cluster", DOCUMENT), ("tokens", "two,dave,7\n")]);
    trusted(&gateway, "test").await;
    assert_eq!(code(&gateway, "/clusters/test/api", "two").await, StatusCode::OK);
    assert_eq!(code(&gateway, "/clusters/prod/api", "two").await, StatusCode::UNAUTHORIZED);
    assert_eq!(gateway.count("portcullis_clusters_rebuilt_total").await, 2);

    let before = gateway.generation().await;
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "three,carol,7\n")]);
    gateway.reloaded(before).await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "three").await, StatusCode::OK);
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::UNAUTHORIZED);

    let before = gateway.generation().await;
    management.delete("prod");
    gateway.reloaded(before).await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "three").await, StatusCode::NOT_FOUND);
    assert_eq!(code(&gateway, "/clusters/test/api", "two").await, StatusCode::OK);

    // The management cluster goes away: what is known stays.
    drop(management);
    gateway
        .until_counted_as("a failed read", |line| {
            line.strip_prefix("portcullis_management_cluster_syncs_total{result=\"failure\"} ")
                .is_some_and(|count| count != "0")
        })
        .await;
    assert_eq!(code(&gateway, "/clusters/test/api", "two").await, StatusCode::OK);
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 200"));
}

/// A management cluster by its name, which ends each watch at once.
#[tokio::test]
async fn a_name_that_ends_watches_at_once_is_read_once_in_a_second() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    management.ends_watches.store(true, Ordering::Relaxed);
    let tokens = ("tokens", "one,carol,7\n");
    management.put("prod", &[("value", &inline(&pki, &backend)), ("cluster", DOCUMENT), tokens]);
    let flags = flags(&pki, management.server.address);
    let file = pki.directory.path().join("management.kubeconfig");
    let by_address = std::fs::read_to_string(&file).unwrap();
    let by_name = by_address.replace("https://127.0.0.1:", "https://localhost:");
    assert_ne!(by_name, by_address);
    std::fs::write(&file, by_name).unwrap();
    let began = Instant::now();
    let gateway = Gateway::with(flags);
    served(&gateway, "/clusters/prod/api", "one").await;
    // It is never ready before the clusters of the Secrets are.
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 200"));
    in_time(Box::pin(async {
        while management.lists.load(Ordering::Relaxed) < 4 {
            gateway.metrics("/livez").await;
        }
    }))
    .await;
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
}

/// Whoever asks before the Secrets are read does not make the gateway ready too early.
#[tokio::test]
async fn a_gateway_is_ready_when_the_clusters_of_its_secrets_are() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let tokens = ("tokens", "one,carol,7\n");
    management.put("prod", &[("value", &inline(&pki, &backend)), ("cluster", DOCUMENT), tokens]);
    // One whose self-check does not end, because nothing is answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let hung = inline(&pki, &backend).replace(&backend.address.to_string(), &address);
    management.put("hung", &[("value", &hung), ("cluster", DOCUMENT), tokens]);
    let gateway = Gateway::with(flags(&pki, management.server.address));
    // As a startup probe does.
    assert!(gateway.metrics("/livez").await.starts_with("HTTP/1.1 200"));
    trusted(&gateway, "prod").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    let answer = gateway.metrics("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("[-]poststarthook/self-check"), "{answer}");
    assert!(gateway.metrics("/livez").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_cluster_of_a_secret_makes_no_gateway_ready_that_is_cut_off_from_its_own() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let (own, of_secret) = (FakeBackend::plain(&pki).await, inline(&pki, &backend));
    let tokens = ("tokens", "one,carol,7\n");
    management.put("prod", &[("value", &of_secret), ("cluster", DOCUMENT), tokens]);
    let flags = flags(&pki, management.server.address);
    std::fs::write(pki.directory.path().join("own"), inline(&pki, &own)).unwrap();
    let entry = "{name: own, kubeconfig: own, match: {pathPrefix: /own}, authentication: {tokenAuthFile: tokens.csv}}";
    edit(&pki, |text| format!("{text}clusters: [{entry}]\n"));
    let gateway = Gateway::with(flags);
    trusted(&gateway, "own").await;
    trusted(&gateway, "prod").await;
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 200"));
    drop(own);
    let is_over = async || gateway.metrics("/readyz").await.starts_with("HTTP/1.1 500");
    in_time(Box::pin(async { while !is_over().await {} })).await;
    assert!(gateway.metrics("/readyz/clusters").await.contains("no usable API server"));
    assert_eq!(
        code(&gateway, "/clusters/prod/api", "one").await,
        StatusCode::OK,
        "it is served all the same"
    );
    assert!(gateway.metrics("/livez").await.starts_with("HTTP/1.1 200"));
    // Without clusters of the operator, that of the Secret decides.
    let before = gateway.generation().await;
    edit(&pki, |text| text.split("clusters: [").next().unwrap().to_owned());
    gateway.reloaded(before).await;
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_key_that_is_added_to_a_secret_is_a_change() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    let tokens = ("tokens", "one,carol,7\n");
    // Nothing authenticates its clients.
    management.put("prod", &[("value", &config), tokens]);
    let gateway = Gateway::with(flags(&pki, management.server.address));
    gateway.until_counted("portcullis_clusters_refused 1").await;
    management.put("prod", &[("value", &config), tokens, ("cluster", DOCUMENT)]);
    gateway.until_counted("portcullis_clusters_refused 0").await;
    trusted(&gateway, "prod").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    // This key counts before `value`.
    let broken = ("kubeconfig", "not a kubeconfig");
    management.put("prod", &[broken, ("value", &config), tokens, ("cluster", DOCUMENT)]);
    gateway.until_counted("portcullis_clusters_refused 1").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK, "the old state stays");
}

#[tokio::test]
async fn a_secret_names_nothing_of_the_gateway_and_chooses_no_route() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    let directory = pki.directory.path().display().to_string();
    let head = "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\n";
    let ca_data = format!("certificate-authority-data: {}", STANDARD.encode(pki.servers.cert_pem()));
    assert!(config.contains(&ca_data));
    let foreign_ca = config.replace(&ca_data, &format!("certificate-authority: {directory}/servers-ca.crt"));
    let user = config.split("users: ").nth(1).unwrap().split('\n').next().unwrap();
    let user_is = |text: &str| config.replace(user, &format!("[{{name: u, user: {{{text}}}}}]"));
    let token_file = user_is(&format!("tokenFile: {directory}/tokens.csv"));
    let exec = user_is(&format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: {directory}/run}}"
    ));
    pki.write("run", "#!/bin/sh\ntouch \"$(dirname \"$0\")/was-run\"\n");
    let document = |more: &str| format!("{head}{more}\n");
    let tokens = |file: &str| document(&format!("authentication: {{tokenAuthFile: {file}}}"));
    let impersonate = document("identity: impersonate\nauthentication: {tokenAuthFile: tokens}");
    let with_password =
        config.replace(&format!("https://{}", backend.address), "https://user:s3cr3t@host:6443");
    let many: Vec<String> = (1..=17).map(|index| format!("'https://192.0.2.{index}'")).collect();
    let large = format!("{config}# {}", "x".repeat(256 << 10));
    let authorities = |index: usize| testkit::pki::Ca::new(&format!("{index:060}")).cert_pem();
    let authorities: String = (0..60).map(authorities).collect();
    let cases: Vec<(&str, &str, String, &str)> = vec![
        ("absolute", &config, tokens(&format!("{directory}/tokens.csv")), "the Secret has no such key"),
        ("above", &config, tokens("../other/tokens"), "the Secret has no such key"),
        ("foreign", &config, tokens("secret:/good/tokens"), "the Secret has no such key"),
        ("ca", &foreign_ca, DOCUMENT.to_owned(), "the Secret has no such key"),
        ("token", &token_file, impersonate.clone(), "the Secret has no such key"),
        ("exec", &exec, impersonate, "exec cannot be used in a Secret"),
        (
            "route",
            &config,
            document("match: {serverNames: [good.clusters.example.com]}"),
            "match: cannot be set by a Secret",
        ),
        ("named", &config, document("name: good"), "name: cannot be set by a Secret"),
        ("audited", &config, document("audit: {auditLogPath: /tmp/x}"), "audit: cannot be set by a Secret"),
        ("file", &config, document("kubeconfig: tokens"), "kubeconfig: cannot be set by a Secret"),
        (
            "called",
            &config,
            document("authentication: {authenticationTokenWebhookConfigFile: value}"),
            "authentication.authenticationTokenWebhookConfigFile: cannot be set by a Secret",
        ),
        ("userinfo", &with_password, DOCUMENT.to_owned(), "server \"host:6443\": a user name in the URL"),
        (
            "endless",
            &config,
            document(&format!("endpoints: [{}]", many.join(", "))),
            "has 17 endpoints, more than 16",
        ),
        ("large", &large, DOCUMENT.to_owned(), "has more than 262144 bytes"),
        (
            "names",
            &config,
            document("authentication: {clientCAFile: cas}"),
            "the names of the client CAs have",
        ),
        ("two.labels", &config, DOCUMENT.to_owned(), "is not a DNS label"),
    ];
    management.put("good", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    management.put("empty", &[("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    for (name, config, document, _) in &cases {
        let tokens = ("tokens", "s3cr3t,mallory,7\n");
        management.put(name, &[("value", config), ("cluster", document), tokens, ("cas", &authorities)]);
    }
    let gateway = Gateway::with(flags(&pki, management.server.address));
    trusted(&gateway, "good").await;
    gateway.until_counted(&format!("portcullis_clusters_refused {}", cases.len() + 1)).await;
    let answer = gateway.metrics("/clusters").await;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let status: Value = serde_json::from_str(body).unwrap();
    let error = |name: &str| {
        let source = format!("Secret tenants/{name}");
        let items = status["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["source"] == source.as_str()).expect(name);
        item["lastError"].as_str().unwrap_or_default().to_owned()
    };
    for (name, _, _, expected) in &cases {
        assert!(error(name).contains(expected), "{name}: {}", error(name));
    }
    assert!(error("empty").contains("has no kubeconfig"), "{}", error("empty"));
    assert!(!pki.directory.path().join("was-run").exists());
    for secret in ["s3cr3t", "gateway-token", "BEGIN", "of-the-gateway"] {
        assert!(!answer.contains(secret), "{secret}");
    }
    assert_eq!(code(&gateway, "/clusters/good/api", "one").await, StatusCode::OK);
    assert_eq!(code(&gateway, "/clusters/good/api", "s3cr3t").await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn without_the_management_cluster_a_new_gateway_is_not_ready_and_says_why() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    management.put(
        "prod",
        &[("value", &inline(&pki, &backend)), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")],
    );
    // A port on which nothing listens.
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::with(flags(&pki, away));
    let reason = "Secrets cannot be listed";
    gateway
        .until_counted_as("a failed read", |line| {
            line.starts_with("portcullis_management_cluster_syncs_total{result=\"failure\"}")
        })
        .await;
    let single = gateway.metrics("/readyz/management-cluster").await;
    assert!(single.contains(reason), "{single}");
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 500"));
    assert!(gateway.metrics("/livez").await.starts_with("HTTP/1.1 200"));

    // Its kubeconfig is corrected.
    flags(&pki, management.server.address);
    trusted(&gateway, "prod").await;
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 200"));
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
}

/// Waits until a request is answered with 200.
async fn served(gateway: &Gateway, path: &str, token: &str) {
    in_time(Box::pin(async { while code(gateway, path, token).await != StatusCode::OK {} })).await;
}

/// Adds text to the configuration file, or replaces some of it.
fn edit(pki: &Pki, change: impl FnOnce(String) -> String) {
    let file = pki.directory.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, change(text));
}

/// Routes, the error of the Secret, and what writes the cluster of the operator.
type Step<'a> = (&'a str, &'a str, &'a dyn Fn(&str));

#[tokio::test]
async fn no_secret_stops_a_change_of_the_operator() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    management.put("billing", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    let flags = flags(&pki, management.server.address);
    let directory = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&directory).unwrap();
    edit(&pki, |text| format!("{text}clusterDirectory: clusters.d\n"));
    let gateway = Gateway::with(flags);
    trusted(&gateway, "billing").await;
    for path in [directory.join("own"), pki.directory.path().join("own")] {
        std::fs::write(path, &config).unwrap();
    }
    let keys = |routes: &str| format!("name: billing\nkubeconfig: own\nmatch: {routes}\n");
    let own = "authentication: {tokenAuthFile: ../tokens.csv}\n";
    let write_file = |routes: &str| {
        replace(&directory.join("billing.yaml"), format!("{HEAD}{}{own}", keys(routes)));
    };
    let write_main = |routes: &str| {
        let entry = keys(routes).trim_end().replace('\n', ", ");
        let own = "authentication: {tokenAuthFile: tokens.csv}";
        edit(&pki, |text| format!("{text}clusters: [{{{entry}, {own}}}]\n"));
    };
    // The name in a file, the path in a file, and both in the configuration file.
    let steps: [Step<'_>; 4] = [
        ("{pathPrefix: /own}", "name \\\"billing\\\" is already used by ", &write_file),
        ("{serverNames: [billing.clusters.example.com]}", "is already used by ", &write_file),
        ("{pathPrefix: /own}", "name \\\"billing\\\" is already used by clusters[0].name", &write_main),
        ("{pathPrefix: /clusters/billing}", "is already used by clusters[0]", &write_main),
    ];
    for (routes, problem, write) in steps {
        assert_eq!(code(&gateway, "/clusters/billing/api", "one").await, StatusCode::OK, "{routes}");
        let before = gateway.generation().await;
        write(routes);
        gateway.reloaded(before).await;
        gateway.until_counted("portcullis_clusters_refused 1").await;
        assert_ne!(code(&gateway, "/clusters/billing/api", "one").await, StatusCode::OK, "{routes}");
        if routes.contains("/own") {
            served(&gateway, "/own/api", "gateway-token").await;
        }
        let status = gateway.metrics("/clusters").await;
        assert!(status.contains(problem), "{problem}: {status}");
        // The operator gives it up: the Secret is served again.
        let before = gateway.generation().await;
        std::fs::remove_file(directory.join("billing.yaml")).ok();
        edit(&pki, |text| text.split("clusters: [").next().unwrap().to_owned());
        gateway.reloaded(before).await;
        gateway.until_counted("portcullis_clusters_refused 0").await;
        served(&gateway, "/clusters/billing/api", "one").await;
    }
}

#[test]
fn clusters_of_the_operator_leave_the_routes_of_secrets_alone() {
    let pki = Pki::new();
    let flags = flags(&pki, std::net::SocketAddr::from(([192, 0, 2, 1], 6443)));
    let main = pki.directory.path().join("gateway.yaml");
    let base = std::fs::read_to_string(&main).unwrap();
    let directory = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&directory).unwrap();
    let cases = [
        ("{serverNames: ['*.clusters.example.com']}", Some("includes managementCluster.domain")),
        ("{pathPrefix: /clusters}", Some("includes managementCluster.pathPrefix")),
        ("{serverNames: ['*.example.com', clusters.example.com, a.clusters.example.com]}", None),
        ("{pathPrefix: /clusters/a}", None),
        ("{pathPrefix: /cluster}", None),
    ];
    for (routes, expected) in cases {
        let keys = |kubeconfig: &str| {
            format!(
                "name: own, kubeconfig: {kubeconfig}, match: {routes}, authentication: {{anonymousAuth: true}}"
            )
        };
        std::fs::write(&main, format!("{base}clusters: [{{{}}}]\n", keys("management.kubeconfig"))).unwrap();
        let error = resolved(flags.clone()).err().map(|errors| errors.to_string());
        let file = format!(
            "{{apiVersion: portcullis.dev/v1alpha1, kind: ClusterConfiguration, {}}}",
            keys("../management.kubeconfig")
        );
        std::fs::write(directory.join("own.yaml"), file).unwrap();
        std::fs::write(&main, format!("{base}clusterDirectory: clusters.d\n")).unwrap();
        let config = resolved(flags.clone()).unwrap();
        let of_file = config.refused().next().map(|refused| refused.errors[0].to_string());
        for error in [error, of_file] {
            match (&error, expected) {
                (Some(error), Some(expected)) => assert!(error.contains(expected), "{routes}: {error}"),
                (error, expected) => assert_eq!(error.as_deref(), expected, "{routes}"),
            }
        }
    }
}

#[tokio::test]
async fn a_secret_takes_no_part_of_the_routes_of_a_file_in_force() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "thief,root,1\n")]);
    let flags = flags(&pki, management.server.address);
    let directory = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("own"), &config).unwrap();
    let file = "name: own\nkubeconfig: own\nmatch: {pathPrefix: /clusters}\n\
                authentication: {tokenAuthFile: ../tokens.csv}\n";
    std::fs::write(directory.join("own.yaml"), format!("{HEAD}{file}")).unwrap();
    let mut managed = String::new();
    edit(&pki, |text| {
        let (rest, section) = text.split_once("managementCluster:").unwrap();
        managed = format!("managementCluster:{section}");
        format!("{rest}clusterDirectory: clusters.d\n")
    });
    let gateway = Gateway::with(flags);
    trusted(&gateway, "own").await;
    edit(&pki, |text| format!("{text}{managed}"));
    // The file, which includes the routes of Secrets now, and the Secret.
    gateway.until_counted("portcullis_clusters_refused 2").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "gateway-token").await, StatusCode::OK);
    assert_eq!(code(&gateway, "/clusters/prod/api", "thief").await, StatusCode::UNAUTHORIZED);
    let status = gateway.metrics("/clusters").await;
    assert!(status.contains("is a part of \\\"/clusters\\\", which "), "{status}");
}

#[tokio::test]
async fn clusters_stay_until_the_secrets_of_a_new_scope_were_read() {
    let pki = Pki::new();
    let (management, other) = (Management::start(&pki).await, Management::start(&pki).await);
    let backend = FakeBackend::plain(&pki).await;
    let config = inline(&pki, &backend);
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    let gateway = Gateway::with(flags(&pki, management.server.address));
    trusted(&gateway, "prod").await;
    // Nothing listens at its new address, for now.
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let before = gateway.generation().await;
    flags(&pki, away);
    gateway.reloaded(before).await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    assert!(gateway.metrics("/readyz").await.starts_with("HTTP/1.1 200"));
    // What all clusters inherit still changes.
    let before = gateway.generation().await;
    edit(&pki, |text| text.replace("pathPrefix: /clusters", "pathPrefix: /managed"));
    gateway.reloaded(before).await;
    assert_eq!(code(&gateway, "/managed/prod/api", "one").await, StatusCode::OK);
    // The new one has no Secret at all.
    flags(&pki, other.server.address);
    gateway.until_counted("portcullis_clusters 0").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn secrets_are_read_anew_when_the_management_cluster_comes_back() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    let flags = flags(&pki, management.server.address);
    let directory = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&directory).unwrap();
    let own = "name: own\nkubeconfig: kubeconfig\nmatch: {pathPrefix: /own}\n";
    std::fs::write(directory.join("kubeconfig"), &config).unwrap();
    let document = DOCUMENT.replace("tokens", "../tokens.csv");
    std::fs::write(directory.join("own.yaml"), format!("{document}{own}")).unwrap();
    edit(&pki, |text| {
        text.replace("managementCluster: ", "clusterDirectory: clusters.d\nmanagementCluster: ")
    });
    let with = std::fs::read_to_string(pki.directory.path().join("gateway.yaml")).unwrap();
    let gateway = Gateway::with(flags);
    trusted(&gateway, "prod").await;
    let before = gateway.generation().await;
    edit(&pki, |text| text.split("managementCluster: ").next().unwrap().to_owned());
    gateway.reloaded(before).await;
    gateway.until_counted("portcullis_clusters 1").await;
    // Its API server refuses the gateway now.
    pki.write_pair("front", &other.front.leaf().cn("portcullis").issue());
    let before = gateway.generation().await;
    edit(&pki, |_| with);
    gateway.reloaded(before).await;
    assert_eq!(gateway.count("portcullis_clusters").await, 1);
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_secret_of_another_management_cluster_gets_no_connection_of_its_namesake() {
    let (pki, other_pki) = (Pki::new(), Pki::new());
    let (management, other) = (Management::start(&pki).await, Management::start(&pki).await);
    let backend = FakeBackend::plain(&pki).await;
    let config = inline(&pki, &backend);
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    let refused = with_refused_credential(&config, &other_pki);
    other.put("prod", &[("value", &refused), ("cluster", DOCUMENT), ("tokens", "thief,root,1\n")]);
    let gateway = Gateway::with(flags(&pki, management.server.address));
    trusted(&gateway, "prod").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    flags(&pki, other.server.address);
    in_time(Box::pin(async {
        while code(&gateway, "/clusters/prod/api", "one").await != StatusCode::UNAUTHORIZED {}
    }))
    .await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "thief").await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_secret_that_was_created_again_gets_nothing_of_its_predecessor() {
    let (pki, other_pki) = (Pki::new(), Pki::new());
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    let tokens = ("tokens", "one,carol,7\n");
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), tokens]);
    let gateway = Gateway::with(flags(&pki, management.server.address));
    trusted(&gateway, "prod").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    // A change by the same owner: its cluster stays although its credential is refused, or the Secret is broken.
    let refused = with_refused_credential(&config, &other_pki);
    let before = gateway.generation().await;
    management.put("prod", &[("value", &refused), ("cluster", DOCUMENT), tokens]);
    gateway.reloaded(before).await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    management.put("prod", &[("value", "broken"), ("cluster", DOCUMENT), tokens]);
    gateway.until_counted("portcullis_clusters_refused 1").await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "one").await, StatusCode::OK);
    // The same by another owner: neither the cluster nor its users stay, nor the connections and the credential.
    management.put_again("prod", &[("value", "broken"), ("cluster", DOCUMENT), tokens]);
    in_time(Box::pin(async {
        while code(&gateway, "/clusters/prod/api", "one").await != StatusCode::NOT_FOUND {}
    }))
    .await;
    management.put("prod", &[("value", &config), ("cluster", DOCUMENT), tokens]);
    served(&gateway, "/clusters/prod/api", "one").await;
    let thief = ("tokens", "thief,root,1\n");
    management.put_again("prod", &[("value", &refused), ("cluster", DOCUMENT), thief]);
    in_time(Box::pin(async {
        while code(&gateway, "/clusters/prod/api", "one").await != StatusCode::UNAUTHORIZED {}
    }))
    .await;
    assert_eq!(code(&gateway, "/clusters/prod/api", "thief").await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn the_api_server_of_a_secret_is_not_at_a_local_address() {
    let pki = Pki::new();
    let (management, backend) = (Management::start(&pki).await, FakeBackend::plain(&pki).await);
    let config = inline(&pki, &backend);
    let named = config.replace("https://127.0.0.1:", "https://localhost:");
    for (name, config) in [("address", &config), ("named", &named)] {
        management.put(name, &[("value", config), ("cluster", DOCUMENT), ("tokens", "one,carol,7\n")]);
    }
    let flags = flags(&pki, management.server.address);
    edit(&pki, |text| text.replace("allowLocalAddresses: true", "allowLocalAddresses: false"));
    let gateway = Gateway::with(flags);
    for name in ["address", "named"] {
        let shown = async || {
            let check = gateway.metrics(&format!("/readyz/cluster-{name}")).await;
            check.contains("is a loopback address, to which the gateway does not connect")
        };
        in_time(async {
            while !shown().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    assert!(backend.take().is_none());
    // The operator permits it.
    edit(&pki, |text| text.replace("allowLocalAddresses: false", "allowLocalAddresses: true"));
    trusted(&gateway, "address").await;
    trusted(&gateway, "named").await;
}

/// A cluster of a Secret ends with it, and that of another Secret of its name is another one.
#[tokio::test]
async fn the_streams_of_a_deleted_secret_end() {
    let pki = Pki::new();
    let management = Management::start(&pki).await;
    let (backend, mut opened) = streams::backend(&pki).await;
    let config = inline(&pki, &backend);
    let tokens = ("tokens", "one,carol,7\n");
    let names = ["deleted", "again", "stays"];
    for name in names {
        management.put(name, &[("value", &config), ("cluster", DOCUMENT), tokens]);
    }
    let gateway = Gateway::with(flags(&pki, management.server.address));
    let (mut open, mut connections) = (Vec::new(), Vec::new());
    for name in names {
        trusted(&gateway, name).await;
        let (streams, carried_by) = open_streams(&gateway, name, &mut opened).await;
        open.push(streams);
        connections.push(carried_by);
    }
    // Those of a Secret that changes go on.
    let before = gateway.generation().await;
    management.put("stays", &[("value", &config), ("cluster", DOCUMENT), ("tokens", "one,carol,8\n")]);
    gateway.reloaded(before).await;
    for streams in &mut open {
        streams.go_on().await;
    }
    management.delete("deleted");
    management.put_again("again", &[("value", &config), ("cluster", DOCUMENT), tokens]);
    let [deleted, again, mut stays] = open.try_into().ok().unwrap();
    deleted.end().await;
    again.end().await;
    stays.go_on().await;
    served(&gateway, "/clusters/again/api", "one").await;
    assert_eq!(code(&gateway, "/clusters/deleted/api", "one").await, StatusCode::NOT_FOUND);
}

/// Also while the Secret has a credential that its API server refuses, so that its new settings are pending.
#[tokio::test]
async fn a_local_address_that_is_no_longer_permitted_is_left_at_once() {
    let (pki, other) = (Pki::new(), Pki::new());
    let management = Management::start(&pki).await;
    let (backend, mut opened) = streams::backend(&pki).await;
    let config = inline(&pki, &backend);
    let tokens = ("tokens", "one,carol,7\n");
    for name in ["prod", "pending"] {
        management.put(name, &[("value", &config), ("cluster", DOCUMENT), tokens]);
    }
    let gateway = Gateway::with(flags(&pki, management.server.address));
    let (mut open, mut connections) = (Vec::new(), Vec::new());
    for name in ["prod", "pending"] {
        trusted(&gateway, name).await;
        let (streams, carried_by) = open_streams(&gateway, name, &mut opened).await;
        open.push(streams);
        connections.push(carried_by);
    }
    let refused = with_refused_credential(&config, &other);
    management.put("pending", &[("value", &refused), ("cluster", DOCUMENT), tokens]);
    gateway.until_counted("portcullis_cluster_stale{cause=\"pending\",cluster=\"pending\"} 1").await;
    let before = gateway.generation().await;
    edit(&pki, |text| text.replace("allowLocalAddresses: true", "allowLocalAddresses: false"));
    gateway.reloaded(before).await;
    let received = backend.pending();
    for name in ["prod", "pending"] {
        let path = format!("/clusters/{name}/api");
        assert_eq!(code(&gateway, &path, "one").await, StatusCode::SERVICE_UNAVAILABLE, "{name}");
    }
    assert_eq!(backend.pending(), received);
    for streams in open {
        streams.are_cut_off().await;
    }
    // The operator permits it again.
    edit(&pki, |text| text.replace("allowLocalAddresses: false", "allowLocalAddresses: true"));
    served(&gateway, "/clusters/prod/api", "one").await;
}

#[tokio::test]
async fn clients_of_a_cluster_do_not_see_why_the_management_cluster_is_not_read() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let flags = flags(&pki, away);
    std::fs::write(pki.directory.path().join("own"), inline(&pki, &backend)).unwrap();
    let entry = "{name: own, kubeconfig: own, match: {pathPrefix: /own}, authentication: {tokenAuthFile: tokens.csv}}";
    edit(&pki, |text| format!("{text}clusters: [{entry}]\n"));
    let gateway = Gateway::with(flags);
    trusted(&gateway, "own").await;
    gateway
        .until_counted_as("a failed read", |line| {
            line.starts_with("portcullis_management_cluster_syncs_total{result=\"failure\"}")
        })
        .await;
    assert!(gateway.metrics("/readyz/management-cluster").await.contains("Secrets cannot be listed"));
    let mut client = Client::connect(&gateway, false, None).await;
    let token = [("authorization", "Bearer gateway-token")];
    let answer = text(client.get("/own/readyz/management-cluster", &token).await).await;
    assert_eq!(answer, "ok", "it is the backend's");
    let all = text(client.get("/own/readyz?verbose", &token).await).await;
    assert!(all.contains("[-]management-cluster failed: reason withheld"), "{all}");
}
