//! Logins, refreshes and failures with a provider in this process, and a clock that tests set.

mod new_logins;
mod refusals;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use openidconnect::url::form_urlencoded;
use portcullis_http::https_client::testing::{H1, RecordedRequest, Reply, TestServer, reply};
use portcullis_openid::jwt::testing::Signer;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use testkit::pki::Ca;

use super::*;
use crate::login::TerminationSignal;
use crate::login::cache::CredentialStoreKind;
use crate::login::settings::tests::flags;

pub(in crate::login) const START: u64 = 1_800_000_000;
/// The lifetime of ID tokens.
const LIFETIME: u64 = 600;

/// What a test does while the provider answers.
type Event = Box<dyn FnOnce() + Send>;

/// What the provider answers to token requests, beside good tokens.
type TokenAnswer = fn() -> Reply;

/// A provider, and the machine of a user.
pub(in crate::login) struct Setup {
    pub(in crate::login) server: TestServer,
    pub(in crate::login) state: Arc<ProviderState>,
    pub(in crate::login) home: tempfile::TempDir,
    authority: String,
    clock: Clock,
    pub(in crate::login) time: Arc<AtomicU64>,
}

pub(in crate::login) struct ProviderState {
    signer: Signer,
    time: Arc<AtomicU64>,
    /// By how much the provider's clock is ahead.
    ahead: AtomicU64,
    /// The refresh token that is accepted.
    refresh: Mutex<Option<String>>,
    issued: AtomicUsize,
    logins: AtomicUsize,
    /// The answer to every refresh.
    refusal: Mutex<Option<(u16, &'static str)>>,
    /// The next answers of the token endpoint.
    answers: Mutex<Vec<TokenAnswer>>,
    /// Runs once, before the next request for this path is answered.
    before: Mutex<Option<(&'static str, Event)>>,
    /// Documents that are replaced.
    documents: Mutex<BTreeMap<&'static str, Vec<u8>>>,
    /// Changes to the claims.
    pub(in crate::login) claims: Mutex<Value>,
}

fn error(code: &str) -> Reply {
    json_reply(400, &json!({"error": code, "error_description": "of the test"}))
}

pub(in crate::login) fn json_reply(status: u16, body: &Value) -> Reply {
    let mut answer = reply(status, body.to_string())?;
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    Ok(answer)
}

/// The refresh tokens that were revoked since the last call.
pub(in crate::login) fn revoked(server: &TestServer) -> Vec<String> {
    let asked = server.take().into_iter().filter(|request| request.target == "/revoke");
    let bodies = asked.map(|request| String::from_utf8(request.body.to_vec()).unwrap());
    bodies
        .map(|body| body.split('&').find_map(|part| part.strip_prefix("token=").map(str::to_owned)).unwrap())
        .collect()
}

impl ProviderState {
    fn answer(&self, request: &RecordedRequest) -> Reply {
        let issuer = format!("https://{}", request.headers["host"].to_str().unwrap());
        let path = request.target.split('?').next().unwrap();
        let event = self.before.lock().unwrap().take_if(|(before, _)| *before == path);
        if let Some((_, event)) = event {
            event();
        }
        if let Some((_, body)) = self.documents.lock().unwrap().iter().find(|(known, _)| **known == path) {
            return reply(200, body.clone());
        }
        match path {
            "/.well-known/openid-configuration" => json_reply(
                200,
                &json!({
                    "issuer": issuer,
                    "authorization_endpoint": format!("{issuer}/auth"),
                    "token_endpoint": format!("{issuer}/token"),
                    "jwks_uri": format!("{issuer}/jwks"),
                    "device_authorization_endpoint": format!("{issuer}/device"),
                    "revocation_endpoint": format!("{issuer}/revoke"),
                    "scopes_supported": ["openid", "offline_access"],
                }),
            ),
            "/jwks" => {
                let point = self.signer.point();
                let (x, y) = point.split_at(32);
                json_reply(
                    200,
                    &json!({"keys": [{
                        "kty": "EC", "crv": "P-256", "use": "sig", "kid": self.signer.public.id(),
                        "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
                    }]}),
                )
            }
            "/device" => {
                self.logins.fetch_add(1, Ordering::SeqCst);
                json_reply(
                    200,
                    &json!({"device_code": "d", "user_code": "ABCD-EFGH", "verification_uri": format!("{issuer}/d"),
                        "expires_in": 600, "interval": 1}),
                )
            }
            "/token" => self.token(&issuer, request),
            "/revoke" => {
                *self.refresh.lock().unwrap() = None;
                reply(200, "")
            }
            _ => reply(404, ""),
        }
    }

    fn token(&self, issuer: &str, request: &RecordedRequest) -> Reply {
        if let Some(answer) = self.answers.lock().unwrap().pop() {
            return answer();
        }
        if let Some((status, body)) = &*self.refusal.lock().unwrap()
            && String::from_utf8_lossy(&request.body).contains("grant_type=refresh_token")
        {
            return reply(*status, *body);
        }
        let form: BTreeMap<_, _> = form_urlencoded::parse(&request.body).into_owned().collect();
        if form["grant_type"] == "client_credentials" {
            let basic = format!("Basic {}", STANDARD.encode("kubernetes:machine-secret"));
            let is_known = request.headers.get("authorization").is_some_and(|value| *value == basic.as_str());
            if !is_known {
                return error("invalid_client");
            }
            return json_reply(
                200,
                &json!({"access_token": "machine-token", "token_type": "BEARER", "expires_in": 300}),
            );
        }
        if form["grant_type"] == "refresh_token"
            && Some(&form["refresh_token"]) != self.refresh.lock().unwrap().as_ref()
        {
            return error("invalid_grant");
        }
        let number = self.issued.fetch_add(1, Ordering::SeqCst);
        let refresh = format!("refresh-{number}");
        *self.refresh.lock().unwrap() = Some(refresh.clone());
        let now = self.time.load(Ordering::SeqCst) + self.ahead.load(Ordering::SeqCst);
        let mut claims = json!({"iss": issuer, "aud": "kubernetes", "sub": "alice", "iat": now, "exp": now + LIFETIME,
            "jti": number});
        for (name, value) in self.claims.lock().unwrap().as_object().unwrap() {
            claims[name] = value.clone();
        }
        let token = self.signer.sign(&self.signer.header(), &claims.to_string());
        json_reply(
            200,
            &json!({"access_token": "access", "token_type": "Bearer", "id_token": token, "refresh_token": refresh}),
        )
    }
}

impl Setup {
    pub(in crate::login) async fn new() -> Self {
        let ca = Ca::new("provider");
        let time = Arc::new(AtomicU64::new(START));
        let state = Arc::new(ProviderState {
            signer: Signer::new("ES256"),
            time: Arc::clone(&time),
            ahead: AtomicU64::new(0),
            refresh: Mutex::default(),
            issued: AtomicUsize::new(0),
            logins: AtomicUsize::new(0),
            refusal: Mutex::default(),
            answers: Mutex::default(),
            before: Mutex::default(),
            documents: Mutex::default(),
            claims: Mutex::new(json!({})),
        });
        let answers = Arc::clone(&state);
        let server = TestServer::of(&ca, H1, move |request| answers.answer(request)).await;
        let of_test = Arc::clone(&time);
        let clock = Clock::from_fn(move || UnixTime::from_secs(of_test.load(Ordering::SeqCst)));
        let authority = STANDARD.encode(ca.as_leaf().cert_pem());
        Self { server, state, home: tempfile::tempdir().unwrap(), authority, clock, time }
    }

    /// The flags of the provider.
    pub(in crate::login) fn flags(&self) -> Vec<String> {
        vec![
            format!("--issuer=https://{}", self.server.address),
            format!("--issuer-certificate-authority-data={}", self.authority),
        ]
    }

    fn settings(&self, more: &[&str], secret: Option<&str>) -> ClientSettings {
        let own = self.flags();
        let all: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        flags(&all).settings(secret.map(str::to_owned)).unwrap()
    }

    /// Another answer to requests for this path.
    pub(in crate::login) fn replace_document(&self, path: &'static str, body: Vec<u8>) {
        self.state.documents.lock().unwrap().insert(path, body);
    }

    pub(in crate::login) fn device(&self) -> ClientSettings {
        self.settings(&["--flow=device"], None)
    }

    pub(in crate::login) async fn ask(
        &self,
        settings: &ClientSettings,
        interactive: bool,
    ) -> Result<Credential, LoginError> {
        let cache = self.cache();
        self.session(settings, &cache, interactive).credential().await
    }

    pub(in crate::login) fn session<'a>(
        &'a self,
        settings: &'a ClientSettings,
        cache: &'a LoginCache,
        interactive: bool,
    ) -> Session<'a> {
        Session {
            settings,
            cache: Some(cache),
            clock: &self.clock,
            user: UserAccess { is_attended: interactive, typed: TypedLines::Absent, has_screen: false },
            force: false,
            browser: BrowserEnvironment::default(),
        }
    }

    /// The claim `jti` of the credential: how many tokens were issued before it.
    async fn number(&self, settings: &ClientSettings, interactive: bool) -> u64 {
        let credential = self.ask(settings, interactive).await.unwrap();
        let claims = Jwt::parse(credential.token.expose_secret()).unwrap().claims().unwrap();
        claims["jti"].as_u64().unwrap()
    }

    /// The provider accepts no refresh token that it has issued.
    pub(in crate::login) fn revoke(&self) {
        *self.state.refresh.lock().unwrap() = None;
    }

    pub(in crate::login) fn pass(&self, seconds: u64) {
        self.time.fetch_add(seconds, Ordering::SeqCst);
    }

    fn logins(&self) -> usize {
        self.state.logins.load(Ordering::SeqCst)
    }

    pub(in crate::login) fn entry(&self, settings: &ClientSettings) -> CacheEntry {
        self.cache().entry(settings).unwrap()
    }

    pub(in crate::login) fn cache(&self) -> LoginCache {
        let directory = self.home.path().join("cache");
        LoginCache::open(Some(&directory), CredentialStoreKind::File, false).unwrap()
    }
}

#[tokio::test]
async fn one_login_serves_for_hours() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let first = setup.ask(&settings, true).await.unwrap();
    assert_eq!(first.renew_at, Some(UnixTime::from_secs(START + LIFETIME - 60)));
    assert_eq!(setup.logins(), 1);
    for _ in 0..3 {
        assert_eq!(setup.number(&settings, false).await, 0);
    }
    // A day later, by refreshes alone, with a refresh token that changes each time.
    for refreshes in 1..20 {
        setup.pass(LIFETIME - 61);
        assert_eq!(setup.number(&settings, false).await, refreshes - 1, "not yet");
        setup.pass(1);
        assert_eq!(setup.number(&settings, false).await, refreshes);
    }
    assert_eq!(setup.logins(), 1);
}

#[tokio::test]
async fn a_revoked_login_is_named_and_repeated() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.revoke();
    setup.pass(LIFETIME);
    let error = setup.ask(&settings, false).await.unwrap_err().to_string();
    for part in ["the provider no longer accepts this login", "invalid_grant", "portcullis login"] {
        assert!(error.contains(part), "{error}");
    }
    let kept = setup.entry(&settings).read().await.unwrap().unwrap();
    assert_eq!((setup.logins(), kept.refresh_token), (1, None));
    setup.ask(&settings, true).await.unwrap();
    assert_eq!(setup.logins(), 2);
    setup.revoke();
    setup.pass(LIFETIME);
    setup.ask(&settings, true).await.unwrap();
    assert_eq!(setup.logins(), 3, "refused, and logged in at once");
}

#[tokio::test]
async fn only_portcullis_login_changes_the_user() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.revoke();
    *setup.state.claims.lock().unwrap() = json!({"sub": "bob"});
    setup.pass(LIFETIME);
    // A command that must not ask comes first: the user is known all the same.
    setup.ask(&settings, false).await.unwrap_err();
    for _ in 0..2 {
        let error = setup.ask(&settings, true).await.unwrap_err().to_string();
        for part in ["logged in as bob", "is of alice", "run `portcullis login` to change"] {
            assert!(error.contains(part), "{error}");
        }
    }
    let cache = setup.cache();
    let login = Session { force: true, ..setup.session(&settings, &cache, true) };
    assert_eq!(login.credential().await.unwrap().subject.as_deref(), Some("bob"));
    assert_eq!(setup.ask(&settings, false).await.unwrap().subject.as_deref(), Some("bob"));
}

#[tokio::test]
async fn twenty_at_once_cause_one_login_and_one_refresh() {
    let setup = Setup::new().await;
    let settings = setup.device();
    for (interactive, issued) in [(true, 1), (false, 2)] {
        let all = futures_util::future::join_all((0..20).map(|_| setup.ask(&settings, interactive))).await;
        let tokens: std::collections::BTreeSet<_> =
            all.into_iter().map(|credential| credential.unwrap().token.expose_secret().to_owned()).collect();
        assert_eq!((tokens.len(), setup.state.issued.load(Ordering::SeqCst)), (1, issued));
        setup.pass(LIFETIME);
    }
    assert_eq!(setup.logins(), 1);
}

/// Twenty commands of which one occupies the lock, and how many asked the provider.
async fn twenty(
    setup: &Setup,
    settings: &ClientSettings,
    force: bool,
) -> (Vec<Result<Credential, LoginError>>, usize) {
    let cache = setup.cache();
    let ask = |number| {
        let session = Session { force: force && number == 10, ..setup.session(settings, &cache, true) };
        async move { session.credential().await }
    };
    setup.server.take();
    let all = futures_util::future::join_all((0..20).map(ask)).await;
    (all, setup.server.take().len())
}

#[tokio::test]
async fn those_that_wait_for_a_failing_login_share_its_failure() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.replace_document("/.well-known/openid-configuration", b"<html>".to_vec());
    // A later one tries itself, and so does `portcullis login`, which shares no failure with commands that may refresh.
    for (force, requests) in [(false, 1..2), (false, 1..2), (true, 2..4)] {
        let (all, asked) = twenty(&setup, &settings, force).await;
        assert!(requests.contains(&asked), "{asked}");
        let errors: Vec<_> = all.into_iter().map(|one| one.unwrap_err().to_string()).collect();
        assert!(errors.iter().all(|error| error.contains("a web page instead of JSON")), "{errors:?}");
        let shared = errors.iter().filter(|error| error.starts_with("the login of another process"));
        assert_eq!(shared.count(), 20 - asked, "{errors:?}");
    }
    setup.state.documents.lock().unwrap().clear();
    setup.ask(&settings, true).await.unwrap();
    // While the token lives, the failure is no error to any of them.
    setup.replace_document("/.well-known/openid-configuration", b"<html>".to_vec());
    setup.pass(LIFETIME - 30);
    let (all, asked) = twenty(&setup, &settings, false).await;
    assert!(all.iter().all(Result::is_ok) && asked == 1, "{all:?}");
}

#[tokio::test]
async fn a_failure_of_one_command_alone_is_not_shared() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let entry = setup.entry(&settings);
    let limit = Duration::from_mins(1);
    let held = entry.lock(limit, || ()).await.unwrap();
    let waiting = async {
        // The first one must not ask the user; the second one may.
        let (first, second) = tokio::join!(setup.ask(&settings, false), setup.ask(&settings, true));
        assert!(matches!(first, Err(LoginError::LoginRequired(_))), "{first:?}");
        second.unwrap();
    };
    let release = async {
        tokio::task::yield_now().await;
        drop(held);
    };
    tokio::join!(waiting, release);
    // What is no failure in a lock file is none.
    let lock = setup.home.path().join("cache").read_dir().unwrap();
    let lock =
        lock.map(|file| file.unwrap().path()).find(|path| path.extension().is_some_and(|it| it == "lock"));
    let held = entry.lock(limit, || ()).await.unwrap();
    let release = async {
        tokio::task::yield_now().await;
        std::fs::write(lock.unwrap(), "{}").unwrap();
        drop(held);
    };
    setup.pass(LIFETIME);
    tokio::join!(async { setup.ask(&settings, true).await.unwrap() }, release);
}

#[tokio::test]
async fn a_command_that_must_not_ask_gives_up_on_the_login_of_another_process() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let held = setup.entry(&settings).lock(Duration::from_mins(1), || ()).await.unwrap();
    for (is_login, interactive, limit) in [
        (false, false, settings.login_timeout + LOCK_MARGIN),
        (true, false, OTHER_LOGIN_TIMEOUT),
        (true, true, settings.login_timeout + LOCK_MARGIN),
    ] {
        if is_login {
            held.begin_login();
        }
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let error = setup.ask(&settings, interactive).await.unwrap_err().to_string();
        let waited = began.elapsed();
        tokio::time::resume();
        assert!((limit..limit + Duration::from_secs(1)).contains(&waited), "{is_login}: {waited:?}");
        assert!(error.contains(&format!("`kill {}`", std::process::id())), "{error}");
    }
}

#[tokio::test]
async fn nobody_is_asked_when_the_client_forbids_it() {
    let setup = Setup::new().await;
    for flow in ["--flow=auto", "--flow=browser", "--flow=device"] {
        let error = setup.ask(&setup.settings(&[flow], None), false).await.unwrap_err();
        assert!(matches!(error, LoginError::LoginRequired(_)), "{error}");
    }
    assert!(setup.server.take().is_empty(), "the provider is not even asked");
}

#[tokio::test]
async fn a_login_that_is_not_completed_ends() {
    let setup = Setup::new().await;
    // A browser that the user closes.
    let settings = setup.settings(&["--browser-command=true", "--login-timeout=7m"], None);
    tokio::time::pause();
    let begin = tokio::time::Instant::now();
    let error = setup.ask(&settings, true).await.unwrap_err();
    assert!(matches!(error, LoginError::NoRedirect { .. }), "{error}");
    for part in
        ["the browser was closed", "does not redirect to http://127.0.0.1:", "/callback", "--callback-port"]
    {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(begin.elapsed() >= Duration::from_mins(7));
    // Another process can log in. A program that another test starts may have inherited the lock for an instant.
    tokio::time::resume();
    setup.entry(&settings).lock(Duration::from_mins(1), || ()).await.unwrap();
}

/// Sends a GET without a body; returns the whole answer.
async fn get(url: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_browser_logs_in_at_an_address_of_the_command() {
    use std::os::unix::fs::PermissionsExt as _;

    let setup = Setup::new().await;
    let [url, browser] = ["url", "browser"].map(|name| setup.home.path().join(name));
    let script = format!("#!/bin/sh\nprintf '%s' \"$1\" > {0}.new && mv {0}.new {0}\n", url.display());
    std::fs::write(&browser, script).unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o700)).unwrap();
    let settings = setup.settings(&[&format!("--browser-command={}", browser.display())], None);
    // A program of the desktop fetches the address before the browser does.
    let times = if cfg!(target_os = "linux") { 2 } else { 1 };
    let login = setup.ask(&settings, true);
    let browse = async {
        testkit::until("the browser to be started", || url.exists()).await;
        let start = std::fs::read_to_string(&url).unwrap();
        assert!(
            start.starts_with("http://127.0.0.1:"),
            "no secret of the login in the process list: {start}"
        );
        let mut answer = String::new();
        for _ in 0..times {
            answer = get(&start).await;
        }
        let location = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
        assert!(location.starts_with(&format!("{}/auth?", settings.issuer)), "{location}");
        let query = location.split_once('?').unwrap().1;
        let parameters: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        *setup.state.claims.lock().unwrap() = json!({"nonce": parameters["nonce"], "email": "alice@a.test"});
        get(&format!("{}?code=c&state={}", parameters["redirect_uri"], parameters["state"])).await;
    };
    let (credential, ()) = tokio::join!(login, browse);
    assert_eq!(credential.unwrap().subject.as_deref(), Some("alice"));
    let kept = setup.entry(&settings).read().await.unwrap().unwrap();
    assert_eq!(kept.user().as_deref(), Some("alice@a.test (alice)"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_never_answers_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("--issuer=https://{}", silent.local_addr().unwrap());
    let settings = flags(&[&issuer]).settings(None).unwrap();
    let error = LoginProvider::discover(settings.client()).await.unwrap_err().to_string();
    assert!(
        error.contains("no response from 127.0.0.1") && error.contains("whether the provider is up"),
        "{error}"
    );
}

#[tokio::test]
async fn a_machine_uses_its_secret() {
    let setup = Setup::new().await;
    let machine = |secret| setup.settings(&["--flow=client-credentials"], Some(secret));
    let credential = setup.ask(&machine("machine-secret"), false).await.unwrap();
    assert_eq!(credential.token.expose_secret(), "machine-token");
    assert_eq!(credential.renew_at, Some(UnixTime::from_secs(START + 300 - 30)));
    setup.server.take();
    setup.ask(&machine("machine-secret"), false).await.unwrap();
    assert!(setup.server.take().is_empty(), "cached");
    setup.pass(300);
    let error = setup.ask(&machine("wrong"), false).await.unwrap_err().to_string();
    assert!(error.contains("invalid_client") && error.contains("its secret is wrong"), "{error}");
    assert!(!error.contains("wrong)") && !error.contains("machine-secret"), "{error}");
}

#[tokio::test]
async fn codes_of_the_device_flow_are_sentences() {
    let setup = Setup::new().await;
    let cases: [(TokenAnswer, &str); 4] = [
        (|| error("access_denied"), "the login was refused"),
        (|| error("expired_token"), "the code has expired"),
        (|| error("invalid_client"), "does not know this client"),
        (|| json_reply(200, &json!({"access_token": 5})), "not as OAuth 2.0 demands (field access_token)"),
    ];
    for (answer, part) in cases {
        setup.state.answers.lock().unwrap().push(answer);
        let error = setup.ask(&setup.device(), true).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // Pending once, and a balancer in between; then entered.
    setup.state.answers.lock().unwrap().push(|| error("authorization_pending"));
    setup.state.answers.lock().unwrap().push(|| reply(502, "<html>Bad gateway"));
    assert_eq!(setup.number(&setup.device(), true).await, 0);
    // Of another type than Bearer, an access token is none.
    setup
        .state
        .answers
        .lock()
        .unwrap()
        .push(|| json_reply(200, &json!({"access_token": "a", "token_type": "mac"})));
    let error =
        setup.ask(&setup.settings(&["--flow=device", "--token=access"], None), true).await.unwrap_err();
    assert!(error.to_string().contains("another type than Bearer"), "{error}");
}

// OpenID Connect Core 1.0, section 12.2
#[tokio::test]
async fn a_refresh_without_an_id_token_is_of_the_same_user() {
    let setup = Setup::new().await;
    let settings = setup.settings(&["--flow=device", "--token=access"], None);
    setup.ask(&settings, true).await.unwrap();
    setup.pass(LIFETIME);
    setup.state.answers.lock().unwrap().push(|| {
        json_reply(
            200,
            &json!({"access_token": "next", "token_type": "Bearer", "refresh_token": "refresh-9"}),
        )
    });
    let refreshed = setup.ask(&settings, false).await.unwrap();
    assert_eq!(refreshed.token.expose_secret(), "next");
    assert_eq!(refreshed.subject.as_deref(), Some("alice"));
    assert_eq!(setup.entry(&settings).read().await.unwrap().unwrap().subject.as_deref(), Some("alice"));
}

#[tokio::test]
async fn a_provider_that_misbehaves_is_named() {
    let setup = Setup::new().await;
    let discovery = "/.well-known/openid-configuration";
    let document = |changes: Value| {
        let issuer = format!("https://{}", setup.server.address);
        let mut document = json!({"issuer": issuer, "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/jwks"), "device_authorization_endpoint": format!("{issuer}/device")});
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        document.to_string().into_bytes()
    };
    let cases: [(&'static str, Vec<u8>, &str); 9] = [
        (discovery, b"<!doctype html>".to_vec(), "a web page instead of JSON"),
        (discovery, b"{}".to_vec(), "names no issuer"),
        (discovery, document(json!({"issuer": "https://other.test"})), "not \"https://127.0.0.1"),
        (
            discovery,
            document(json!({"token_endpoint": "http://plain.test"})),
            "token_endpoint is not an https:// URL",
        ),
        (
            discovery,
            document(json!({"device_authorization_endpoint": null})),
            "has no device authorization endpoint",
        ),
        (discovery, vec![b' '; 2 << 20], "larger than"),
        ("/device", vec![b' '; 2 << 20], "larger than"),
        ("/jwks", b"{\"keys\": []}".to_vec(), "none of the provider's published keys"),
        ("/jwks", b"[]".to_vec(), "read the provider's keys"),
    ];
    for (path, body, part) in cases {
        setup.state.documents.lock().unwrap().insert(path, body);
        let error = setup.ask(&setup.device(), true).await.unwrap_err().to_string();
        assert!(error.contains(part), "{path}: {error}");
        setup.state.documents.lock().unwrap().clear();
    }
    assert_eq!(setup.entry(&setup.device()).read().await.unwrap(), None, "none of it is cached");
}

#[tokio::test]
async fn an_id_token_of_another_user_or_time_is_refused() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.pass(LIFETIME);
    *setup.state.claims.lock().unwrap() = json!({"sub": "mallory"});
    let error = setup.ask(&settings, false).await.unwrap_err().to_string();
    assert!(error.contains("another user than before"), "{error}");
    *setup.state.claims.lock().unwrap() = json!({});
    setup.entry(&settings).remove().await.unwrap();
    // This machine's clock is an hour behind: the token is used for as long as it lives.
    setup.state.ahead.store(3600, Ordering::SeqCst);
    let credential = setup.ask(&settings, true).await.unwrap();
    assert_eq!(credential.renew_at, Some(setup.clock.now() + Duration::from_secs(LIFETIME - 60)));
    // An hour ahead: every token has expired when it arrives.
    setup.entry(&settings).remove().await.unwrap();
    setup.state.ahead.store(0, Ordering::SeqCst);
    *setup.state.claims.lock().unwrap() =
        json!({"iat": setup.clock.now().as_secs() - 3600, "exp": setup.clock.now().as_secs() - 3000});
    let error = setup.ask(&settings, true).await.unwrap_err().to_string();
    assert!(error.contains("60 minutes ahead") && error.contains("set the clock"), "{error}");
}

#[tokio::test]
async fn an_outage_of_the_provider_is_bridged_while_the_token_lives() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.state.documents.lock().unwrap().insert("/.well-known/openid-configuration", b"<html>".to_vec());
    setup.pass(LIFETIME - 30);
    assert_eq!(setup.number(&settings, false).await, 0);
    let refusals: [TokenAnswer; 2] = [|| error("temporarily_unavailable"), || error("server_error")];
    let documents = std::mem::take(&mut *setup.state.documents.lock().unwrap());
    for refusal in refusals {
        setup.state.answers.lock().unwrap().push(refusal);
        assert_eq!(setup.number(&settings, false).await, 0);
    }
    *setup.state.documents.lock().unwrap() = documents;
    setup.pass(30);
    assert!(setup.ask(&settings, false).await.is_err());
    setup.state.documents.lock().unwrap().clear();
    assert_eq!(setup.number(&settings, false).await, 1, "the refresh token is kept");
}

#[tokio::test]
async fn a_cache_that_cannot_be_used_costs_logins_only() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let cache: PathBuf = setup.home.path().join("cache");
    std::fs::write(&cache, "not a directory").unwrap();
    for logins in 1..3 {
        setup.ask(&settings, true).await.unwrap();
        assert_eq!(setup.logins(), logins);
    }
    std::fs::remove_file(&cache).unwrap();
    setup.ask(&settings, true).await.unwrap();
    setup.ask(&settings, true).await.unwrap();
    assert_eq!(setup.logins(), 3);
}

#[tokio::test]
async fn a_keyring_without_locks_is_an_error_before_the_login() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let directory = setup.home.path().join("cache");
    let cache = LoginCache::failing_after(&directory, usize::MAX);
    let login =
        || async { setup.session(&settings, &cache, true).credential().await.unwrap_err().to_string() };
    std::fs::write(&directory, "not a directory").unwrap();
    let no_directory = login().await;
    std::fs::remove_file(&directory).unwrap();
    drop(cache.entry(&settings).unwrap().lock(LOCK_MARGIN, || ()).await.unwrap());
    let lock = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    for error in [no_directory, login().await] {
        for part in ["cannot use", "fix: --credential-store=keyring has its locks in", "set XDG_CACHE_HOME"] {
            assert!(error.contains(part), "{error}");
        }
    }
    assert_eq!(setup.logins(), 0);
}

#[tokio::test]
async fn a_login_that_the_keyring_does_not_keep_is_an_error_and_is_revoked() {
    let setup = Setup::new().await;
    let settings = setup.device();
    // One write: that of the first login.
    let cache = LoginCache::failing_after(&setup.home.path().join("cache"), 1);
    let session = |force| Session { force, ..setup.session(&settings, &cache, true) };
    setup.cache().entry(&settings).unwrap();
    session(false).credential().await.unwrap();
    setup.server.take();
    let error = session(true).credential().await.unwrap_err();
    assert!(matches!(error, LoginError::Other(_) | LoginError::Usage(_)), "{error}");
    let revoked = setup.server.take().into_iter().find(|request| request.target == "/revoke").unwrap();
    assert!(String::from_utf8_lossy(&revoked.body).contains("token=refresh-1"));
    let kept = setup.entry(&settings).read().await.unwrap().unwrap();
    assert_eq!(kept.refresh_token, Some(SecretText::new("refresh-0")), "the earlier login stays");
}

/// Whether a refresh token was sent since the last call.
fn is_refreshed(setup: &Setup) -> bool {
    let sent = setup.server.take();
    sent.iter().any(|request| String::from_utf8_lossy(&request.body).contains("grant_type=refresh_token"))
}

#[tokio::test]
async fn a_login_of_another_user_revokes_the_earlier_one() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let cache = setup.cache();
    for (user, expected) in [("alice", &[][..]), ("alice", &[]), ("bob", &["refresh-1"])] {
        *setup.state.claims.lock().unwrap() = json!({"sub": user});
        let login = Session { force: true, ..setup.session(&settings, &cache, true) };
        login.credential().await.unwrap();
        assert_eq!(revoked(&setup.server), expected, "{user}");
    }
}

#[tokio::test]
async fn a_file_that_others_can_read_is_revoked_before_the_login_that_replaces_it() {
    use std::os::unix::fs::PermissionsExt as _;

    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    let files = std::fs::read_dir(setup.home.path().join("cache")).unwrap().map(|file| file.unwrap().path());
    for file in files {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    setup.ask(&settings, false).await.unwrap_err();
    assert_eq!(revoked(&setup.server), [""; 0], "no login follows");
    setup.ask(&settings, true).await.unwrap();
    assert_eq!(revoked(&setup.server), ["refresh-0"]);
    setup.pass(LIFETIME);
    assert_eq!(setup.number(&settings, false).await, 2, "the new login is refreshed");
}

#[tokio::test]
async fn the_refresh_token_of_a_login_that_is_refused_is_revoked() {
    let setup = Setup::new().await;
    let settings = setup.device();
    *setup.state.claims.lock().unwrap() = json!({"aud": "other"});
    setup.ask(&settings, true).await.unwrap_err();
    assert_eq!(revoked(&setup.server), ["refresh-0"]);
    assert_eq!(setup.entry(&settings).read().await.unwrap(), None);
}

#[tokio::test]
async fn a_refresh_token_is_not_spent_if_no_other_can_be_kept() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    let failing = LoginCache::failing_after(&setup.home.path().join("cache"), 0);
    let locks =
        || std::fs::read_dir(setup.home.path().join("cache")).unwrap().map(|file| file.unwrap().path());
    let lock = locks().find(|file| file.extension() == Some("lock".as_ref())).unwrap();
    setup.pass(LIFETIME - 30);
    let keyring = setup.session(&settings, &failing, false).credential().await;
    assert_eq!(keyring.unwrap().renew_at, Some(UnixTime::from_secs(START + LIFETIME - 60)), "it still lives");
    setup.pass(30);
    let keyring = setup.session(&settings, &failing, false).credential().await.unwrap_err().to_string();
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let locked = setup.ask(&settings, false).await.unwrap_err().to_string();
    for error in [keyring, locked] {
        for part in ["is not refreshed", "could not keep", "fix: make the cache writable"] {
            assert!(error.contains(part), "{error}");
        }
    }
    assert!(!is_refreshed(&setup));
    std::fs::remove_dir(&lock).unwrap();
    assert_eq!(setup.number(&settings, false).await, 1, "the refresh token is as good as before");
}

#[tokio::test]
async fn a_user_logs_in_again_where_no_refresh_token_can_be_kept() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    let files = std::fs::read_dir(setup.home.path().join("cache")).unwrap().map(|file| file.unwrap().path());
    for lock in files.filter(|file| file.extension() == Some("lock".as_ref())) {
        std::fs::remove_file(&lock).unwrap();
        std::fs::create_dir(&lock).unwrap();
    }
    setup.pass(LIFETIME);
    assert_eq!(setup.number(&settings, true).await, 1, "by a login");
    assert!(!is_refreshed(&setup));
}

/// Some providers revoke all tokens that a client has of a user.
#[tokio::test]
async fn a_login_that_is_refused_does_not_end_the_one_that_is_cached() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    *setup.state.claims.lock().unwrap() = json!({"aud": "other"});
    let cache = setup.cache();
    let session = Session { force: true, ..setup.session(&settings, &cache, true) };
    session.credential().await.unwrap_err();
    assert_eq!(revoked(&setup.server), [""; 0]);
}

#[tokio::test]
async fn no_signal_loses_the_refresh_token_that_the_provider_accepts() {
    let moments = ["/.well-known/openid-configuration", "/token", "/jwks"];
    for signal in [TerminationSignal::Hangup, TerminationSignal::Interrupt, TerminationSignal::Terminate] {
        for moment in moments {
            let setup = Setup::new().await;
            let settings = setup.device();
            setup.ask(&settings, true).await.unwrap();
            setup.pass(LIFETIME);
            let arrived = Arc::new(tokio::sync::Notify::new());
            let arrival = Arc::clone(&arrived);
            *setup.state.before.lock().unwrap() = Some((moment, Box::new(move || arrival.notify_one())));
            let interrupted = || async {
                arrived.notified().await;
                signal
            };
            let outcome = Box::pin(crate::login::completed(setup.ask(&settings, false), interrupted)).await;
            assert!(matches!(outcome, Ok(Ok(_)) | Err(_)), "{signal:?} at {moment}");
            // What other tests renew is waited for, too: the command may be done first.
            assert!(
                outcome.err().is_none_or(|received| received == signal),
                "{signal:?} at {moment}: it ends the command"
            );
            setup.ask(&settings, false).await.unwrap();
            assert_eq!(setup.logins(), 1, "{signal:?} at {moment}");
        }
    }
    // Before a refresh and after it, nothing is waited for.
    let endless = std::future::pending::<()>();
    let interrupted = || std::future::ready(TerminationSignal::Interrupt);
    assert_eq!(crate::login::completed(endless, interrupted).await, Err(TerminationSignal::Interrupt));
}

/// A provider that does not answer keeps no user who insists, but a closed terminal may send its signal twice.
#[tokio::test]
async fn only_a_second_ctrl_c_ends_the_wait_for_a_refresh() {
    use TerminationSignal::{Hangup, Interrupt, Terminate};

    for (signals, ends) in [
        (&[Interrupt, Interrupt][..], true),
        (&[Terminate, Interrupt], true),
        (&[Hangup, Hangup, Terminate], false),
        (&[Terminate], false),
    ] {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        for signal in signals {
            sender.send(*signal).await.unwrap();
        }
        let receiver = tokio::sync::Mutex::new(receiver);
        let interrupted = || async { receiver.lock().await.recv().await.unwrap() };
        let held = REFRESHING.read().await;
        let mut ended = std::pin::pin!(crate::login::completed(std::future::pending::<()>(), interrupted));
        let at_once = futures_util::poll!(&mut ended).is_ready();
        assert_eq!(at_once, ends, "{signals:?}");
        drop(held);
        if !at_once {
            assert_eq!(ended.await, Err(signals[0]), "{signals:?}: it ends after the refresh");
        }
    }
}

#[tokio::test]
async fn a_revocation_ends_the_refresh_token() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    let provider = LoginProvider::discover(settings.client()).await.unwrap();
    provider.revoke("refresh-0").await.unwrap();
    let revoked = setup.server.take().into_iter().find(|request| request.target == "/revoke").unwrap();
    let body = String::from_utf8_lossy(&revoked.body).into_owned();
    assert!(body.contains("token=refresh-0") && body.contains("token_type_hint=refresh_token"), "{body}");
}

#[test]
fn a_token_file_is_read_again_every_minute() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let now = UnixTime::from_secs(START);
    let jwt = |exp: u64| {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2ln", part(json!({"alg": "RS256"})), part(json!({"exp": exp})))
    };
    for (content, seconds) in [
        ("opaque\n".to_owned(), Some(60)),
        (jwt(START + 20), Some(20)),
        (jwt(START + 3600) + "\n", Some(60)),
        (String::new(), None),
        ("two tokens".to_owned(), None),
    ] {
        std::fs::write(&file, &content).unwrap();
        let renew_at = from_file(&file, now).ok().and_then(|credential| credential.renew_at);
        assert_eq!(renew_at, seconds.map(|seconds| now + Duration::from_secs(seconds)), "{content}");
    }
    assert!(from_file(&directory.path().join("absent"), now).is_err());
}
