use std::sync::{OnceLock, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portcullis_http::https_client::testing::{H2, TestServer, reply};
use portcullis_openid::jwt::keys::JwsAlgorithm;
use portcullis_pki::x509::CaBundle;
use serde_json::json;
use testkit::pki::Ca;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::*;
use crate::authn::oidc::settings::AttributeMapping;
use crate::authn::testing::TestRequest;
use crate::authn::{AuthnError, BearerToken};

/// Refuses connections.
const NOWHERE: &str = "https://127.0.0.1:1/";

/// A server with several issuers, each at its own path.
struct Fixture {
    ca: Ca,
    server: TestServer,
    deps: ClusterDeps,
}

impl Fixture {
    async fn new() -> Self {
        let ca = Ca::new("issuers");
        let address = Arc::new(OnceLock::new());
        let own = Arc::clone(&address);
        let server = TestServer::of(&ca, H2, move |request| {
            let Some((path, _)) = request.target.split_once("/.well-known") else {
                return reply(200, json!({"keys": []}).to_string());
            };
            let url = |path: &str| format!("https://{}{path}", own.get().unwrap());
            let issuer = url(path.strip_suffix("/moved").unwrap_or(path));
            reply(200, json!({"issuer": issuer, "jwks_uri": url(path) + "/keys"}).to_string())
        })
        .await;
        address.set(server.address).unwrap();
        let deps = ClusterDeps::idle(&Handle::current());
        Self { ca, server, deps }
    }

    /// An issuer that accepts one signature algorithm.
    fn issuer(&self, path: &str, algorithm: JwsAlgorithm) -> JwtAuthenticator {
        let bundle = CaBundle::from_pem(self.ca.cert_pem().as_bytes()).unwrap();
        JwtAuthenticator {
            issuer: IssuerSettings {
                url: self.server.url(path),
                discovery_url: None,
                certificate_authority: Some(TrustedRoots::from_bundle(bundle)),
                audiences: vec!["client".to_owned()],
            },
            algorithms: vec![algorithm],
            claim_rules: Vec::new(),
            username: AttributeMapping::Claim { name: "sub".to_owned(), prefix: String::new() },
            groups: None,
            uid: None,
            extra: Vec::new(),
            user_rules: Vec::new(),
        }
    }

    fn after(&self, before: &JwtIssuers, settings: &[JwtAuthenticator]) -> JwtIssuers {
        let settings: Vec<_> = settings.iter().cloned().map(Arc::new).collect();
        JwtIssuers::new(&settings, Some(before), &self.deps).unwrap()
    }

    /// Issuers that are initialized.
    async fn initialized(&self, settings: &[JwtAuthenticator]) -> JwtIssuers {
        let issuers = self.after(&JwtIssuers::default(), settings);
        timeout(Duration::from_secs(10), self.deps.reload.notified()).await.unwrap();
        for settings in settings {
            issuers.try_initialize(&settings.issuer.url).await;
        }
        assert_eq!(issuers.uninitialized().count(), 0);
        issuers
    }

    /// The errors about an unsigned token of an issuer, which name the algorithm in force.
    async fn errors(&self, issuers: &JwtIssuers, path: &str) -> Vec<String> {
        self.errors_of(&issuers.authenticators(), "none", path).await
    }

    async fn errors_of(
        &self,
        all: &[Box<dyn TokenAuthenticator>],
        algorithm: &str,
        path: &str,
    ) -> Vec<String> {
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let token =
            [part(json!({"alg": algorithm})), part(json!({"iss": self.server.url(path)})), part(json!(0))];
        let token = BearerToken::new(token.join("."));
        let request = TestRequest::new();
        let input = request.input();
        let mut errors = Vec::new();
        for authenticator in all {
            match authenticator.authenticate(&token, input.for_tokens()).await {
                Ok(found) => assert_eq!(found, None),
                Err(AuthnError::Invalid(text) | AuthnError::Unavailable(text)) => errors.push(text),
                Err(error) => panic!("{error}"),
            }
        }
        errors
    }
}

fn uninitialized(issuers: &JwtIssuers) -> Vec<String> {
    issuers.uninitialized().map(|(issuer, _)| issuer.rsplit_once('/').unwrap().1.to_owned()).collect()
}

fn expected(algorithm: &str) -> Vec<String> {
    vec![format!(
        "oidc: verify token: oidc: id token signed with unsupported algorithm, expected [\"{algorithm}\"] got \"none\""
    )]
}

#[tokio::test]
async fn a_removed_issuer_is_not_trusted_while_another_is_unavailable() {
    let fixture = Fixture::new().await;
    let before = fixture
        .initialized(&[fixture.issuer("/a", JwsAlgorithm::RS256), fixture.issuer("/b", JwsAlgorithm::RS256)])
        .await;
    assert_eq!(fixture.errors(&before, "/b").await, expected("RS256"));
    let mut unavailable = fixture.issuer("/c", JwsAlgorithm::RS256);
    unavailable.issuer.discovery_url = Some(NOWHERE.to_owned());
    let after = fixture.after(&before, &[fixture.issuer("/a", JwsAlgorithm::RS256), unavailable]);
    assert_eq!(uninitialized(&after), ["c"]);
    assert_eq!(fixture.errors(&after, "/a").await, expected("RS256"), "the other one stays");
    assert_eq!(fixture.errors(&after, "/b").await, [""; 0]);
}

#[tokio::test]
async fn new_rules_take_effect_at_once_wherever_the_issuer_is() {
    let fixture = Fixture::new().await;
    let before = fixture.initialized(&[fixture.issuer("/a", JwsAlgorithm::RS256)]).await;
    fixture.server.take();
    let same = fixture.after(&before, &[fixture.issuer("/a", JwsAlgorithm::RS384)]);
    assert_eq!(uninitialized(&same), [""; 0]);
    assert_eq!(fixture.errors(&same, "/a").await, expected("RS384"));

    let mut moved = fixture.issuer("/a", JwsAlgorithm::RS512);
    moved.issuer.discovery_url = Some(NOWHERE.to_owned());
    let moving = fixture.after(&same, &[moved.clone()]);
    assert_eq!(uninitialized(&moving), ["a"]);
    assert_eq!(fixture.errors(&moving, "/a").await, expected("RS512"));
    let again = fixture.after(&moving, &[moved]);
    assert_eq!(fixture.errors(&again, "/a").await, expected("RS512"), "still");
    assert_eq!(uninitialized(&again), ["a"]);
    assert!(fixture.server.take().is_empty(), "keys are not fetched again");

    let settings = fixture.issuer("/a", JwsAlgorithm::RS384);
    let back = fixture.after(&again, std::slice::from_ref(&settings));
    timeout(Duration::from_secs(10), back.try_initialize(&settings.issuer.url)).await.unwrap();
    assert_eq!(uninitialized(&back), [""; 0]);
    assert_eq!(fixture.errors(&back, "/a").await, expected("RS384"));
}

#[tokio::test]
async fn the_old_keys_of_a_moved_issuer_do_not_count_after_its_discovery() {
    let fixture = Fixture::new().await;
    let before = fixture.initialized(&[fixture.issuer("/a", JwsAlgorithm::RS256)]).await;
    let mut moved = fixture.issuer("/a", JwsAlgorithm::RS256);
    moved.issuer.discovery_url = Some(fixture.server.url("/a/moved/.well-known/configuration"));
    let moving = fixture.after(&before, std::slice::from_ref(&moved));
    // As in the chain of a generation: no reload follows.
    let all = moving.authenticators();
    let keys_of = || {
        let requests = fixture.server.take().into_iter().map(|request| request.target);
        requests.filter(|target| target.ends_with("/keys")).collect::<Vec<_>>()
    };
    let not_signed = ["oidc: verify token: failed to verify signature: failed to verify id token signature"];
    assert_eq!(fixture.errors_of(&all, "RS256", "/a").await, not_signed);
    assert_eq!(keys_of(), ["/a/keys"], "discovery has not succeeded yet");
    moving.try_initialize(&moved.issuer.url).await;
    assert_eq!(fixture.errors_of(&all, "RS256", "/a").await, not_signed);
    assert_eq!(keys_of(), ["/a/moved/keys"]);
}

#[tokio::test]
async fn discovery_of_a_removed_issuer_ends() {
    let fixture = Fixture::new().await;
    let mut unavailable = fixture.issuer("/a", JwsAlgorithm::RS256);
    unavailable.issuer.discovery_url = Some(NOWHERE.to_owned());
    let before = fixture.after(&JwtIssuers::default(), &[unavailable.clone()]);
    let searched: Weak<_> = Arc::downgrade(&before.0[0].current.authenticator);
    let same = fixture.after(&before, &[unavailable]);
    drop(before);
    assert!(searched.upgrade().is_some(), "it is still configured");
    drop(same);
    let gone = async {
        while searched.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.unwrap();
}
