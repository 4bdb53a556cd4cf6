use std::sync::{OnceLock, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use testkit::pki::Ca;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::*;
use crate::authn::jwt::keys::JwsAlgorithm;
use crate::authn::oidc::settings::AttributeMapping;
use crate::authn::testing::TestRequest;
use crate::authn::{AuthnError, BearerToken};
use crate::http::https_client::testing::{H2, TestServer, reply};
use crate::metrics::Metrics;
use crate::pki::x509::CaBundle;

/// Nobody is there.
const NOWHERE: &str = "https://127.0.0.1:1/";

/// Issuers at one address, each with a path of its own.
struct Bed {
    ca: Ca,
    peer: TestServer,
    deps: AuthnDeps,
}

impl Bed {
    async fn new() -> Self {
        let ca = Ca::new("issuers");
        let address = Arc::new(OnceLock::new());
        let own = Arc::clone(&address);
        let peer = TestServer::of(&ca, H2, move |asked| {
            let Some((path, _)) = asked.target.split_once("/.well-known") else {
                return reply(200, json!({"keys": []}).to_string());
            };
            let url = |path: &str| format!("https://{}{path}", own.get().unwrap());
            let issuer = url(path.strip_suffix("/moved").unwrap_or(path));
            reply(200, json!({"issuer": issuer, "jwks_uri": url(path) + "/keys"}).to_string())
        })
        .await;
        address.set(peer.address).unwrap();
        let deps = AuthnDeps::new(Handle::current(), Arc::new(Metrics::new()));
        Self { ca, peer, deps }
    }

    /// An issuer that takes tokens of one algorithm.
    fn issuer(&self, path: &str, algorithm: JwsAlgorithm) -> JwtAuthenticator {
        let bundle = CaBundle::from_pem(self.ca.cert_pem().as_bytes()).unwrap();
        JwtAuthenticator {
            issuer: IssuerSettings {
                url: self.peer.url(path),
                discovery_url: None,
                certificate_authority: Some(TrustedRoots::from_bundle(&bundle).unwrap()),
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

    /// Issuers of which everything is known.
    async fn known(&self, settings: &[JwtAuthenticator]) -> JwtIssuers {
        let issuers = self.after(&JwtIssuers::default(), settings);
        timeout(Duration::from_secs(10), self.deps.reload.notified()).await.unwrap();
        for settings in settings {
            issuers.try_initialize(&settings.issuer.url).await;
        }
        assert_eq!(issuers.waiting().count(), 0);
        issuers
    }

    /// What is said of an unsigned token of an issuer; it tells the algorithms that are in force.
    async fn said(&self, issuers: &JwtIssuers, path: &str) -> Vec<String> {
        self.said_by(&issuers.authenticators(), "none", path).await
    }

    async fn said_by(&self, all: &[Box<dyn TokenAuthenticator>], algorithm: &str, path: &str) -> Vec<String> {
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let token =
            [part(json!({"alg": algorithm})), part(json!({"iss": self.peer.url(path)})), part(json!(0))];
        let token = BearerToken::new(token.join("."));
        let request = TestRequest::new();
        let input = request.input();
        let mut said = Vec::new();
        for authenticator in all {
            match authenticator.authenticate(&token, input.for_tokens()).await {
                Ok(found) => assert_eq!(found, None),
                Err(AuthnError::Invalid(text) | AuthnError::Unavailable(text)) => said.push(text),
                Err(error) => panic!("{error}"),
            }
        }
        said
    }
}

fn waiting(issuers: &JwtIssuers) -> Vec<String> {
    issuers.waiting().map(|(issuer, _)| issuer.rsplit_once('/').unwrap().1.to_owned()).collect()
}

fn expected(algorithm: &str) -> Vec<String> {
    vec![format!(
        "oidc: verify token: oidc: id token signed with unsupported algorithm, expected [\"{algorithm}\"] got \"none\""
    )]
}

#[tokio::test]
async fn an_issuer_that_is_removed_is_not_believed_while_another_is_away() {
    let bed = Bed::new().await;
    let before =
        bed.known(&[bed.issuer("/a", JwsAlgorithm::RS256), bed.issuer("/b", JwsAlgorithm::RS256)]).await;
    assert_eq!(bed.said(&before, "/b").await, expected("RS256"));
    let mut away = bed.issuer("/c", JwsAlgorithm::RS256);
    away.issuer.discovery_url = Some(NOWHERE.to_owned());
    let after = bed.after(&before, &[bed.issuer("/a", JwsAlgorithm::RS256), away]);
    assert_eq!(waiting(&after), ["c"]);
    assert_eq!(bed.said(&after, "/a").await, expected("RS256"), "the other one is");
    assert_eq!(bed.said(&after, "/b").await, [""; 0]);
}

#[tokio::test]
async fn new_rules_count_at_once_wherever_the_issuer_is() {
    let bed = Bed::new().await;
    let before = bed.known(&[bed.issuer("/a", JwsAlgorithm::RS256)]).await;
    bed.peer.take();
    let same = bed.after(&before, &[bed.issuer("/a", JwsAlgorithm::RS384)]);
    assert_eq!(waiting(&same), [""; 0]);
    assert_eq!(bed.said(&same, "/a").await, expected("RS384"));

    let mut moved = bed.issuer("/a", JwsAlgorithm::RS512);
    moved.issuer.discovery_url = Some(NOWHERE.to_owned());
    let moving = bed.after(&same, &[moved.clone()]);
    assert_eq!(waiting(&moving), ["a"]);
    assert_eq!(bed.said(&moving, "/a").await, expected("RS512"));
    let again = bed.after(&moving, &[moved]);
    assert_eq!(bed.said(&again, "/a").await, expected("RS512"), "still");
    assert_eq!(waiting(&again), ["a"]);
    assert!(bed.peer.take().is_empty(), "what is known is not asked for again");

    let settings = bed.issuer("/a", JwsAlgorithm::RS384);
    let back = bed.after(&again, std::slice::from_ref(&settings));
    timeout(Duration::from_secs(10), back.try_initialize(&settings.issuer.url)).await.unwrap();
    assert_eq!(waiting(&back), [""; 0]);
    assert_eq!(bed.said(&back, "/a").await, expected("RS384"));
}

#[tokio::test]
async fn an_issuer_that_is_found_where_it_has_moved_to_is_not_believed_by_its_old_keys() {
    let bed = Bed::new().await;
    let before = bed.known(&[bed.issuer("/a", JwsAlgorithm::RS256)]).await;
    let mut moved = bed.issuer("/a", JwsAlgorithm::RS256);
    moved.issuer.discovery_url = Some(bed.peer.url("/a/moved/.well-known/configuration"));
    let moving = bed.after(&before, std::slice::from_ref(&moved));
    // As the chain of a generation has them: no reload follows.
    let all = moving.authenticators();
    let keys_of = || {
        let asked = bed.peer.take().into_iter().map(|asked| asked.target);
        asked.filter(|target| target.ends_with("/keys")).collect::<Vec<_>>()
    };
    let not_signed = ["oidc: verify token: failed to verify signature: failed to verify id token signature"];
    assert_eq!(bed.said_by(&all, "RS256", "/a").await, not_signed);
    assert_eq!(keys_of(), ["/a/keys"], "it was not found yet");
    moving.try_initialize(&moved.issuer.url).await;
    assert_eq!(bed.said_by(&all, "RS256", "/a").await, not_signed);
    assert_eq!(keys_of(), ["/a/moved/keys"]);
}

#[tokio::test]
async fn nobody_looks_for_an_issuer_that_is_removed() {
    let bed = Bed::new().await;
    let mut away = bed.issuer("/a", JwsAlgorithm::RS256);
    away.issuer.discovery_url = Some(NOWHERE.to_owned());
    let before = bed.after(&JwtIssuers::default(), &[away.clone()]);
    let searched: Weak<_> = Arc::downgrade(&before.0[0].judge.authenticator);
    let same = bed.after(&before, &[away]);
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
