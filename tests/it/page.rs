//! The page on which users find their clusters: with a provider and clusters in this process, and a browser that keeps
//! cookies as one does.

mod attacks;
mod configuration;
mod logins;
mod proxy_protocol;
mod sharing;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustls_pki_types::ServerName;
use serde_json::json;
use testkit::issuer::{CONFIGURATION, KEYS, SigningKey, key_set, respond};
use testkit::wire::handshake_over;
use testkit::{FakeBackend, Gateway, Http1, Pki, ResponseFuture, now, text};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket};
use url::Url;

use crate::gateway::InProcess as _;

const HOST: &str = "clusters.test";
const ORIGIN: &str = "https://clusters.test";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The cookies of logins that have begun begin with it.
const LOGIN: &str = "__Host-portcullis-login-";
/// A code that the provider never answers.
const SLOW_CODE: &str = "slow";

/// What the provider knows of its logins.
#[derive(Default)]
struct ProviderState {
    /// The nonce and the PKCE challenge of each code.
    codes: Mutex<BTreeMap<String, (String, String)>>,
    /// The user who logs in.
    user: Mutex<String>,
    /// Further claims of the user.
    claims: Mutex<serde_json::Map<String, serde_json::Value>>,
    /// Whether it never answers again.
    is_silent: AtomicBool,
    /// Whether it has no discovery document for now.
    is_broken: AtomicBool,
}

/// A provider in this process.
struct TestProvider {
    url: String,
    state: Arc<ProviderState>,
    server: FakeBackend,
}

impl TestProvider {
    async fn start(pki: &Pki) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let state =
            Arc::new(ProviderState { user: Mutex::new("alice".to_owned()), ..ProviderState::default() });
        let (answers, issuer, key) = (Arc::clone(&state), url.clone(), Arc::new(SigningKey::new("k")));
        let server = FakeBackend::without_client_auth(pki, listener, move |request| {
            let (state, issuer, key) = (Arc::clone(&answers), issuer.clone(), Arc::clone(&key));
            Box::pin(async move {
                if state.is_silent.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                let (status, body) = state.answer(&issuer, &key, request).await;
                respond(status, "application/json", body.to_string())
            })
        });
        Self { url, state, server }
    }

    /// The user logs in at the provider: the redirect to the page.
    fn redirect(&self, asked: &Url) -> String {
        let query: BTreeMap<_, _> = asked.query_pairs().into_owned().collect();
        assert_eq!((&*query["response_type"], &*query["code_challenge_method"]), ("code", "S256"));
        assert_eq!(query["redirect_uri"], format!("{ORIGIN}/callback"));
        let code = format!("code-{}", self.state.codes.lock().unwrap().len());
        let login = (query["nonce"].clone(), query["code_challenge"].clone());
        self.state.codes.lock().unwrap().insert(code.clone(), login);
        let mut redirect = Url::parse(&query["redirect_uri"]).unwrap();
        redirect.query_pairs_mut().extend_pairs([
            ("code", &code),
            ("state", &query["state"]),
            ("iss", &self.url),
        ]);
        format!("{}?{}", redirect.path(), redirect.query().unwrap())
    }
}

impl ProviderState {
    async fn answer(
        &self,
        issuer: &str,
        key: &SigningKey,
        request: Request<Incoming>,
    ) -> (u16, serde_json::Value) {
        match request.uri().path() {
            CONFIGURATION if self.is_broken.load(Ordering::SeqCst) => (503, json!({})),
            CONFIGURATION => {
                let document = json!({
                    "issuer": issuer,
                    "authorization_endpoint": format!("{issuer}/auth"),
                    "token_endpoint": format!("{issuer}/token"),
                    "jwks_uri": format!("{issuer}{KEYS}"),
                    "end_session_endpoint": format!("{issuer}/end"),
                    "authorization_response_iss_parameter_supported": true,
                });
                (200, document)
            }
            KEYS => (200, key_set(&[key])),
            "/token" => {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let form: BTreeMap<_, _> = url::form_urlencoded::parse(&body).into_owned().collect();
                if form["code"] == SLOW_CODE {
                    std::future::pending::<()>().await;
                }
                let Some((nonce, challenge)) = self.codes.lock().unwrap().remove(&form["code"]) else {
                    return (
                        400,
                        json!({"error": "invalid_grant", "error_description": "<b>used</b> twice"}),
                    );
                };
                let verifier = digest::digest(&digest::SHA256, form["code_verifier"].as_bytes());
                assert_eq!(URL_SAFE_NO_PAD.encode(verifier), challenge);
                let user = self.user.lock().unwrap().clone();
                let mut claims = json!({"iss": issuer, "aud": "page", "sub": user, "nonce": nonce,
                    "iat": now(), "exp": now() + 600, "email": format!("{user}@example.test")});
                claims.as_object_mut().unwrap().extend(self.claims.lock().unwrap().clone());
                let token = key.sign(&claims);
                (
                    200,
                    json!({"access_token": "a", "token_type": "Bearer", "id_token": token,
                    "refresh_token": "never-kept"}),
                )
            }
            _ => (404, json!({})),
        }
    }
}

/// How a cluster answers to users of the page.
type ClusterAnswer = fn(user: &str) -> ResponseFuture;

fn review(allowed: bool) -> ResponseFuture {
    let body = json!({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}});
    Box::pin(async move { respond(201, "application/json", body.to_string()) })
}

fn only_alice(user: &str) -> ResponseFuture {
    review(user == "alice")
}

fn nobody(_: &str) -> ResponseFuture {
    review(false)
}

fn broken(_: &str) -> ResponseFuture {
    Box::pin(async { respond(500, "application/json", "{}") })
}

fn silent(_: &str) -> ResponseFuture {
    Box::pin(std::future::pending())
}

async fn backend(pki: &Pki, answer: ClusterAnswer) -> FakeBackend {
    FakeBackend::start(pki, testkit::H2, move |request: Request<Incoming>| {
        if (request.method(), request.uri().path()) != (&Method::POST, REVIEWS) {
            // A readiness probe.
            return Box::pin(async { respond(200, "text/plain", "ok") });
        }
        assert!(!request.headers().contains_key("authorization"));
        answer(request.headers()["x-remote-user"].to_str().unwrap())
    })
    .await
}

/// How many users of the page were asked about.
fn reviews(backend: &FakeBackend) -> usize {
    std::iter::from_fn(|| backend.take()).filter(|seen| seen.target == REVIEWS).count()
}

/// A gateway with a page.
struct PageSetup {
    pki: Pki,
    provider: TestProvider,
    backends: Vec<FakeBackend>,
    flags: Vec<String>,
    gateway: Gateway,
    /// The page, as another gateway.
    page: Gateway,
    _webhook: TcpListener,
}

/// The clusters, by name; `names` are served by name, the others by path.
async fn start(clusters: &[(&str, ClusterAnswer)]) -> PageSetup {
    let pki = Pki::new();
    let provider = TestProvider::start(&pki).await;
    pki.write("servers-ca.crt", pki.servers.cert_pem());
    pki.write_pair("page", &pki.servers.server(&[HOST]));
    let ca = pki.servers.cert_pem();
    let authentication = |issuer: &str| {
        json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": issuer, "certificateAuthority": ca, "audiences": ["page"]},
                "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
            }],
        })
        .to_string()
    };
    pki.write("authentication.yaml", authentication(&provider.url));
    pki.write("other.yaml", authentication("https://other.test"));
    // It accepts connections, and never answers.
    let webhook = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", webhook.local_addr().unwrap())}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
    });
    pki.write("hook.kubeconfig", hook.to_string());
    let (mut backends, mut addresses, mut entries) = (Vec::new(), Vec::new(), String::new());
    for (name, answer) in clusters {
        let backend = backend(&pki, *answer).await;
        addresses.push((*name, backend.address.to_string()));
        backends.push(backend);
        let routes = match *name {
            "prod" => "serverNames: [prod.api.test]".to_owned(),
            name => format!("pathPrefix: /clusters/{name}"),
        };
        let authentication = match *name {
            "foreign" => "authenticationConfig: other.yaml",
            "hooked" => "authenticationTokenWebhookConfigFile: hook.kubeconfig",
            _ => "authenticationConfig: authentication.yaml",
        };
        writeln!(
            entries,
            "- {{name: {name}, kubeconfig: {name}.kubeconfig, match: {{{routes}}}, authentication: {{{authentication}}}}}"
        )
        .unwrap();
    }
    let mut flags = testkit::cluster_flags(&pki, &["api.test"], &addresses, &entries);
    let file = |name: &str| pki.directory.path().join(name).display().to_string();
    flags.extend([
        "--page-bind-address=127.0.0.1:0".to_owned(),
        format!("--page-url={ORIGIN}"),
        format!("--page-tls-cert-file={}", file("page.crt")),
        format!("--page-tls-private-key-file={}", file("page.key")),
        format!("--page-oidc-issuer-url={}", provider.url),
        "--page-oidc-client-id=page".to_owned(),
        format!("--page-oidc-ca-file={}", file("servers-ca.crt")),
        "--page-oidc-scopes=email,groups,offline_access".to_owned(),
        "--page-api-server-url=https://api.test:6443".to_owned(),
        format!("--page-api-server-ca-file={}", file("servers-ca.crt")),
    ]);
    let (gateway, page) = with_page(&flags);
    for (name, address) in &addresses {
        let line = format!("portcullis_endpoint_trusted{{cluster=\"{name}\",endpoint=\"{address}\"}} 1");
        gateway.until_counted(&line).await;
    }
    until_issuers_are_known(&gateway, clusters).await;
    PageSetup { pki, provider, backends, flags, gateway, page, _webhook: webhook }
}

/// Waits until the clusters have the keys of the provider: before that they refuse its tokens.
async fn until_issuers_are_known(gateway: &Gateway, clusters: &[(&str, ClusterAnswer)]) {
    for (name, _) in clusters.iter().filter(|(name, _)| !["foreign", "hooked"].contains(name)) {
        let path = format!("/readyz/cluster-{name}/issuer-0");
        testkit::in_time(async { while !gateway.metrics(&path).await.starts_with("HTTP/1.1 200 ") {} }).await;
    }
}

/// A gateway, and its page.
fn with_page(flags: &[String]) -> (Gateway, Gateway) {
    let gateway = Gateway::with(flags.to_vec());
    let page = gateway.server().page_address().unwrap();
    (gateway, Gateway::at(page, None))
}

/// A page that a browser has received.
struct Seen {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Seen {
    fn location(&self) -> &str {
        self.headers["location"].to_str().unwrap()
    }
}

/// A browser: it keeps the cookies of the page and sends them back.
#[derive(Default, Clone)]
struct Browser {
    cookies: BTreeMap<String, String>,
    /// The last byte of its address, 127.0.0.x; 0: any.
    from: u8,
    /// What a load balancer at this address writes before its bytes.
    proxy_header: Vec<u8>,
}

impl Browser {
    fn from(host: u8) -> Self {
        Self { from: host, ..Self::default() }
    }

    /// Behind a load balancer.
    fn behind(balancer: u8, proxy_header: &str) -> Self {
        Self { proxy_header: proxy_header.as_bytes().to_vec(), ..Self::from(balancer) }
    }

    /// A connection; `None`: the page does not accept it.
    async fn connect(&self, page: &Gateway) -> Option<Http1> {
        if self.from == 0 {
            return Some(page.http1(None).await);
        }
        let mut stream = connect_from(page, self.from).await;
        stream.write_all(&self.proxy_header).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let tls = handshake_over(name, stream, b"http/1.1", None).await.ok()?;
        Some(page.http1_over(tls).await)
    }

    async fn send(&mut self, page: &Gateway, request: http::request::Builder, body: &str) -> Seen {
        let mut connection = self.connect(page).await.unwrap();
        let mut request = request.body(testkit::full(body.to_owned())).unwrap();
        request.headers_mut().entry("host").or_insert(HOST.parse().unwrap());
        if !self.cookies.is_empty() {
            let pairs = self.cookies.iter().map(|(name, value)| format!("{name}={value}"));
            let line = pairs.collect::<Vec<_>>().join("; ");
            request.headers_mut().entry("cookie").or_insert(line.parse().unwrap());
        }
        let response = connection.send(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        for cookie in headers.get_all("set-cookie") {
            let (name, rest) = cookie.to_str().unwrap().split_once('=').unwrap();
            let (value, attributes) = rest.split_once(';').unwrap();
            if attributes.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        Seen { status, headers, text: text(response).await }
    }

    async fn get(&mut self, page: &Gateway, target: &str) -> Seen {
        self.send(page, Request::get(target), "").await
    }

    /// Begins a login: the URL at the provider.
    async fn begin(&mut self, page: &Gateway) -> Url {
        let begun = self.get(page, "/sign-in").await;
        assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.text);
        Url::parse(begun.location()).unwrap()
    }

    /// Begins a login, and comes back with a code that the provider does not know.
    async fn fail(&mut self, setup: &PageSetup, page: &Gateway) -> Seen {
        let redirect = setup.provider.redirect(&self.begin(page).await);
        let (_, rest) = redirect.split_once("&state=").unwrap();
        self.get(page, &format!("/callback?code=unknown&state={rest}")).await
    }

    /// The names and the values of the cookies of logins that have begun.
    fn begun(&self) -> Vec<(String, String)> {
        let cookies = self.cookies.iter().filter(|(name, _)| name.starts_with(LOGIN));
        cookies.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Logs in.
    async fn login(&mut self, setup: &PageSetup) {
        let asked = self.begin(&setup.page).await;
        let back = self.get(&setup.page, &setup.provider.redirect(&asked)).await;
        assert_eq!((back.status, back.location()), (StatusCode::SEE_OTHER, "/"), "{}", back.text);
    }

    /// The value of the hidden field of the form on the page.
    async fn form(&mut self, page: &Gateway) -> String {
        let shown = self.get(page, "/").await.text;
        let (_, rest) = shown.split_once("name=\"form\" value=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }
}

/// The clusters in the table of a page, with their health.
fn table(page: &str) -> Vec<(String, String)> {
    let rows = page.split("<th scope=\"row\">").skip(1);
    rows.map(|row| {
        let name = row.split('<').next().unwrap().to_owned();
        let state = row.split("</span>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        (name, state)
    })
    .collect()
}

fn row(name: &str, state: &str) -> (String, String) {
    (name.to_owned(), state.to_owned())
}

#[tokio::test]
async fn a_user_sees_the_clusters_that_let_the_user_in_and_no_other() {
    let clusters: &[(&str, ClusterAnswer)] =
        &[("prod", only_alice), ("staging", only_alice), ("vault", nobody), ("foreign", only_alice)];
    let setup = start(clusters).await;
    let mut alice = Browser::default();
    let welcome = alice.get(&setup.page, "/").await;
    assert_eq!(welcome.status, StatusCode::OK);
    for (name, _) in clusters {
        assert!(!welcome.text.contains(name), "{name}");
    }
    alice.login(&setup).await;
    let page = alice.get(&setup.page, "/").await;
    assert_eq!(table(&page.text), [row("prod", "Ready"), row("staging", "Ready")], "{}", page.text);
    assert!(page.text.contains("alice@example.test") && page.text.contains("v1.37.2"));
    assert!(!page.text.contains("vault") && !page.text.contains("foreign"));
    // The cluster of another issuer has not even seen the token.
    for result in ["error", "failure"] {
        let refused = setup.gateway.count(&format!("authentication_attempts{{result=\"{result}\"}}")).await;
        assert_eq!(refused, 0, "{result}");
    }
    let asked: Vec<_> = setup.backends.iter().map(reviews).collect();
    assert_eq!(asked, [1, 1, 1, 0]);

    setup.provider.state.user.lock().unwrap().replace_range(.., "bob");
    let mut bob = Browser::default();
    bob.login(&setup).await;
    let page = bob.get(&setup.page, "/").await;
    assert!(page.text.contains("There are no clusters for you") && table(&page.text).is_empty());
    for target in ["/kubeconfig", "/kubeconfig/prod", "/kubeconfig/absent"] {
        assert_eq!(bob.get(&setup.page, target).await.status, StatusCode::NOT_FOUND, "{target}");
    }
}

#[tokio::test]
async fn a_download_is_what_the_command_prints() {
    let setup = start(&[("prod", only_alice), ("staging", only_alice), ("vault", nobody)]).await;
    let mut alice = Browser::default();
    assert_eq!(alice.get(&setup.page, "/kubeconfig").await.status, StatusCode::UNAUTHORIZED);
    alice.login(&setup).await;
    let ca = setup.pki.directory.path().join("servers-ca.crt").display().to_string();
    let printed = |clusters: &str| {
        let output = std::process::Command::new(crate::gateway::PORTCULLIS)
            .arg("kubeconfig")
            .args(&setup.flags)
            .args([
                "--server=https://api.test:6443",
                "--client-id=page",
                "--scope=email,groups,offline_access",
            ])
            .args([format!("--certificate-authority={ca}"), format!("--issuer-certificate-authority={ca}")])
            .arg(format!("--cluster={clusters}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for (target, clusters, name) in
        [("/kubeconfig", "prod,staging", "clusters"), ("/kubeconfig/staging", "staging", "staging")]
    {
        let download = alice.get(&setup.page, target).await;
        assert_eq!(download.status, StatusCode::OK);
        assert_eq!(download.text, printed(clusters));
        let disposition = download.headers["content-disposition"].to_str().unwrap();
        assert_eq!(disposition, format!("attachment; filename=\"{name}.kubeconfig\""));
        // No token, of the user or of the gateway.
        for secret in ["eyJ", "token:", "client-key", "password", "PRIVATE"] {
            assert!(!download.text.contains(secret), "{secret}");
        }
    }
    assert_eq!(alice.get(&setup.page, "/kubeconfig/vault").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_cluster_that_cannot_be_asked_is_named_only_to_users_of_its_provider() {
    let setup = start(&[("prod", only_alice), ("staging", broken), ("foreign", broken)]).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    let page = alice.get(&setup.page, "/").await;
    assert_eq!(table(&page.text), [row("prod", "Ready"), row("staging", "Cannot be asked now")]);
    assert!(!page.text.contains("foreign"));
    assert_eq!(alice.get(&setup.page, "/kubeconfig/staging").await.status, StatusCode::NOT_FOUND);
    assert!(!alice.get(&setup.page, "/kubeconfig").await.text.contains("staging"));
}

#[tokio::test]
async fn a_silent_cluster_delays_the_page_by_its_deadline_and_hides_no_other() {
    let setup = start(&[("prod", only_alice), ("staging", silent), ("hooked", only_alice)]).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    // Several at once ask each cluster once. Whether the one with a webhook knows her is unknown: its name is none of
    // her business.
    let mut tabs: Vec<_> = (0..4).map(|_| alice.clone()).collect();
    let pages = tabs.iter_mut().map(|tab| tab.get(&setup.page, "/"));
    for page in futures_util::future::join_all(pages).await {
        assert_eq!(table(&page.text), [row("prod", "Ready"), row("staging", "Cannot be asked now")]);
    }
    // Once more at most, if the configuration was loaded again in between.
    assert!(reviews(&setup.backends[0]) <= 2);
}

#[tokio::test]
async fn many_silent_clusters_leave_time_for_the_last_one() {
    let names: Vec<String> = (0..33).map(|index| format!("silent-{index}")).collect();
    let mut clusters: Vec<(&str, ClusterAnswer)> = Vec::new();
    clusters.extend(names.iter().map(|name| -> (&str, ClusterAnswer) { (name, silent) }));
    clusters.push(("prod", only_alice));
    let setup = start(&clusters).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    let shown = table(&alice.get(&setup.page, "/").await.text);
    assert_eq!(shown.len(), 34);
    assert_eq!(shown.last(), Some(&row("prod", "Ready")), "in the order of the configuration");
    assert!(shown[..33].iter().all(|(_, state)| state == "Cannot be asked now"));
}

#[tokio::test]
async fn a_user_signs_out_here_and_is_shown_the_way_at_the_provider() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    let form = alice.form(&setup.page).await;
    let request = || Request::post("/sign-out").header("origin", ORIGIN);
    let out = alice.send(&setup.page, request(), &format!("form={form}")).await;
    assert_eq!((out.status, out.location()), (StatusCode::SEE_OTHER, "/signed-out"));
    assert!(alice.cookies.is_empty(), "{:?}", alice.cookies.keys());
    let page = alice.get(&setup.page, "/signed-out").await.text;
    // Also of a gateway that has not asked the provider before.
    let other = with_page(&setup.flags);
    assert_eq!(alice.get(&other.1, "/signed-out").await.text, page);
    let end = format!(
        "{}/end?client_id=page&amp;post_logout_redirect_uri=https%3A%2F%2Fclusters.test%2F",
        setup.provider.url
    );
    assert!(page.replace("&#38;", "&amp;").contains(&end), "{page}");
    assert!(alice.get(&setup.page, "/").await.text.contains("Sign in"));
    // Once more, from a tab that was left open.
    assert_eq!(
        alice.send(&setup.page, request(), &format!("form={form}")).await.status,
        StatusCode::SEE_OTHER
    );
}

#[tokio::test]
async fn replicas_share_sessions_by_their_key_and_no_other_process_reads_them() {
    let setup = start(&[("prod", only_alice)]).await;
    let key = setup.pki.write("cookie.key", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n");
    let mut flags = setup.flags.clone();
    flags.push(format!("--page-cookie-key-file={}", key.display()));
    let (replica, other) = (with_page(&flags), with_page(&flags));
    for gateway in [&replica.0, &other.0] {
        gateway.checked().await;
    }
    let mut alice = Browser::default();
    // The login begins at one replica and ends at the other.
    let asked = alice.begin(&replica.1).await;
    let back = alice.get(&other.1, &setup.provider.redirect(&asked)).await;
    assert_eq!((back.status, back.location()), (StatusCode::SEE_OTHER, "/"), "{}", back.text);
    for page in [&replica.1, &other.1] {
        assert!(alice.get(page, "/").await.text.contains("alice@example.test"));
    }
    assert!(alice.get(&setup.page, "/").await.text.contains("Sign in"), "it has a key of its own");
}

#[tokio::test]
async fn a_reload_changes_the_certificate_and_the_key_of_cookies() {
    let setup = start(&[("prod", only_alice)]).await;
    let key = setup.pki.write("cookie.key", [1, 2].repeat(16));
    let mut flags = setup.flags.clone();
    flags.push(format!("--page-cookie-key-file={}", key.display()));
    let (gateway, page) = with_page(&flags);
    gateway.checked().await;
    let mut alice = Browser::default();
    let asked = alice.begin(&page).await;
    alice.get(&page, &setup.provider.redirect(&asked)).await;
    assert!(alice.get(&page, "/").await.text.contains("alice@example.test"));
    // The certificate of another name, and another key.
    let served =
        async || page.tls(b"http/1.1", None).await.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let before = served().await;
    setup.pki.write_pair("page", &setup.pki.servers.server(&["other.test"]));
    setup.pki.write("cookie.key", [2, 3].repeat(16));
    gateway.server().reload();
    let changed = async { while served().await == before {} };
    testkit::in_time(changed).await;
    assert!(!alice.get(&page, "/").await.text.contains("alice@example.test"), "its key has changed");
}

#[tokio::test]
async fn a_large_token_is_split_and_one_too_large_is_explained() {
    let setup = start(&[("prod", only_alice)]).await;
    let groups = |count: usize| {
        let groups: Vec<_> = (0..count).map(|index| format!("group-number-{index:05}")).collect();
        setup.provider.state.claims.lock().unwrap().insert("groups".to_owned(), json!(groups));
    };
    groups(200);
    let mut alice = Browser::default();
    alice.login(&setup).await;
    assert_eq!(alice.cookies.len(), 3, "{:?}", alice.cookies.keys());
    assert_eq!(table(&alice.get(&setup.page, "/").await.text).len(), 1);
    // A smaller one deletes the parts that are left.
    groups(1);
    alice.login(&setup).await;
    assert_eq!(alice.cookies.len(), 1);
    assert_eq!(table(&alice.get(&setup.page, "/").await.text).len(), 1);
    groups(500);
    let mut bob = Browser::default();
    let asked = bob.begin(&setup.page).await;
    let page = bob.get(&setup.page, &setup.provider.redirect(&asked)).await;
    assert_eq!(page.status, StatusCode::BAD_GATEWAY);
    assert!(page.text.contains("too large for this page") && bob.cookies.is_empty(), "{}", page.text);
}

/// A client at 127.0.0.`host`.
async fn connect_from(page: &Gateway, host: u8) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0))).unwrap();
    socket.connect(page.address).await.unwrap()
}
