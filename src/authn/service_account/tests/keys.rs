//! Rows of Kubernetes' `jwt_test.go` on keys; the API server's key set; issuers.

use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_openid::jwt::key_set::JwksSource;

use super::*;

const OK: &str = "system:serviceaccount:ns:s for [\"api\"]";
const NO_KEYS: &str = "invalid signature, no keys found";
const BAD_SIGNATURE: &str = "go-jose/go-jose: error in cryptographic primitive";

fn claims(issuer: &str) -> String {
    json!({
        "iss": issuer, "aud": "api",
        "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "s", "uid": "u"}},
    })
    .to_string()
}

fn bed() -> TestBed {
    TestBed::new(FakeApiServer {
        accounts: BTreeMap::from([("ns/s".to_owned(), account("u"))]),
        ..FakeApiServer::default()
    })
}

fn with_keys(bed: &TestBed, keys: &[&Signer]) -> BoundTokenAuthenticator {
    let keys = keys.iter().map(|signer| signer.public.clone()).collect();
    let deps = AccountTokenDeps { keys: KeyRing::Fixed(Arc::new(keys)), ..bed.deps() };
    BoundTokenAuthenticator::new(vec!["iss".to_owned(), "second".to_owned()], deps)
}

#[test]
fn the_key_named_by_kid_must_verify_the_signature() {
    let bed = bed();
    let [rsa, ec, other] = ["RS256", "ES256", "ES256"].map(Signer::new);
    let named = |signer: &Signer| signer.sign(&signer.header(), &claims("iss"));
    let unnamed = |signer: &Signer, header: &str| signer.sign(header, &claims("iss"));
    let misnamed = ec.sign(&other.header(), &claims("iss"));
    let cases = [
        ("no keys", named(&rsa), vec![], NO_KEYS),
        ("no keys, none named", unnamed(&ec, r#"{"alg":"ES256"}"#), vec![], NO_KEYS),
        ("other keys", named(&rsa), vec![&other, &ec], NO_KEYS),
        ("its key", named(&rsa), vec![&rsa], OK),
        ("rotated keys", named(&rsa), vec![&other, &ec, &rsa], OK),
        ("rotated keys, ECDSA", named(&ec), vec![&other, &rsa, &ec], OK),
        ("none named", unnamed(&ec, r#"{"alg":"ES256"}"#), vec![&other, &rsa, &ec], OK),
        ("none named, kid empty", unnamed(&ec, r#"{"alg":"ES256","kid":""}"#), vec![&ec], OK),
        ("none named, kid null", unnamed(&ec, r#"{"alg":"ES256","kid":null}"#), vec![&ec], OK),
        ("none named, other keys", unnamed(&ec, r#"{"alg":"ES256"}"#), vec![&other, &rsa], BAD_SIGNATURE),
        ("another one named", misnamed.clone(), vec![&other, &ec], BAD_SIGNATURE),
        ("an unknown one named", misnamed, vec![&ec], NO_KEYS),
        ("header names are case-sensitive", unnamed(&ec, r#"{"alg":"ES256","KID":"x"}"#), vec![&ec], OK),
    ];
    for (name, token, keys, expected) in cases {
        assert_eq!(bed.authenticate(&with_keys(&bed, &keys), &token).verdict, expected, "{name}");
    }
}

#[test]
fn every_algorithm_of_a_key_is_accepted() {
    let bed = bed();
    for algorithm in ["RS256", "RS384", "PS256", "ES256", "ES384", "ES512"] {
        let signer = Signer::new(algorithm);
        let token = signer.sign(&signer.header(), &claims("iss"));
        assert_eq!(bed.authenticate(&with_keys(&bed, &[&signer]), &token).verdict, OK, "{algorithm}");
    }
}

#[test]
fn only_configured_issuers_are_accepted() {
    let bed = bed();
    let authenticator = with_keys(&bed, &[&bed.signer]);
    let cases =
        [("iss", OK), ("second", OK), ("foo", "no opinion"), ("", "no opinion"), ("ISS", "no opinion")];
    for (issuer, expected) in cases {
        let token = bed.signer.sign(&bed.signer.header(), &claims(issuer));
        assert_eq!(bed.authenticate(&authenticator, &token).verdict, expected, "{issuer:?}");
    }
}

#[test]
fn settings_select_the_authenticators() {
    let bed = bed();
    let names = |issuers: &[&str]| -> Vec<_> {
        let settings = ServiceAccountSettings {
            issuers: issuers.iter().map(|issuer| (*issuer).to_owned()).collect(),
            keys: ServiceAccountKeys::Files(Arc::new(vec![bed.signer.public.clone()])),
            lookup: true,
        };
        let AccountTokenDeps { lookup, audiences, counters, .. } = bed.deps();
        let keys = || panic!("the keys are in files");
        authenticators(&settings, keys, lookup, audiences, counters).iter().map(|one| one.name()).collect()
    };
    assert_eq!(names(&["iss"]), ["legacy-service-account", "service-account"]);
    assert_eq!(names(&[]), ["legacy-service-account"]);
}

/// A fixed fetch result and the number of fetches.
#[derive(Debug)]
struct Published(Result<String, String>, Arc<AtomicUsize>);

impl JwksSource for Published {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { self.0.clone().map(String::into_bytes) })
    }

    fn name(&self) -> String {
        "test".to_owned()
    }
}

/// The key set of an API server with this key.
fn published(signer: &Signer, point: &[u8]) -> String {
    use base64::Engine as _;
    let encode = |bytes| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let (x, y) = point.split_at(32);
    json!({"keys": [
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "EC", "crv": "P-256", "use": "sig", "kid": signer.public.id(), "alg": "ES256", "x": encode(x), "y": encode(y)},
    ]})
    .to_string()
}

#[tokio::test(start_paused = true)]
async fn keys_of_the_api_server_are_fetched_once_for_both_kinds_of_tokens() {
    let bed = bed();
    let fetches = Arc::new(AtomicUsize::new(0));
    let source = Published(Ok(published(&bed.signer, &bed.signer.point())), Arc::clone(&fetches));
    let set = Arc::new(KeySet::new(Box::new(source)));
    let settings = ServiceAccountSettings {
        issuers: vec!["iss".to_owned()],
        keys: ServiceAccountKeys::Backend,
        lookup: false,
    };
    let AccountTokenDeps { lookup, audiences, counters, .. } = bed.deps();
    let both = authenticators(&settings, || Arc::clone(&set), lookup, audiences, counters);
    let [legacy, bound] = both.as_slice() else { panic!("{both:?}") };
    let ask = async |authenticator: &dyn TokenAuthenticator, token: String| {
        let trace = AuthnTrace::default();
        let context = TokenContext { audiences: &[], owner: &Owner::Gateway, now: bed.now, trace: &trace };
        describe(&authenticator.authenticate(&BearerToken::new(token), context).await)
    };
    let sign = |header: &str, payload: &str| bed.signer.sign(header, payload);
    let legacy_claims = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:ns:s",
        "kubernetes.io/serviceaccount/namespace": "ns",
        "kubernetes.io/serviceaccount/secret.name": "t",
        "kubernetes.io/serviceaccount/service-account.name": "s",
        "kubernetes.io/serviceaccount/service-account.uid": "u",
    });
    assert_eq!(ask(&**bound, sign(&bed.signer.header(), &claims("iss"))).await, OK);
    assert_eq!(ask(&**legacy, sign(&bed.signer.header(), &legacy_claims.to_string())).await, OK);
    assert_eq!(ask(&**bound, sign(&bed.signer.header(), &claims("foo"))).await, "no opinion");
    assert_eq!(fetches.load(Ordering::Relaxed), 1, "tokens of other issuers and cached keys cause no fetch");
    assert_eq!(ask(&**bound, sign(r#"{"alg":"ES256","kid":"x"}"#, &claims("iss"))).await, NO_KEYS);
    let stranger = Signer::new("ES256");
    let forged = stranger.sign(&bed.signer.header(), &claims("iss"));
    assert_eq!(ask(&**bound, forged).await, BAD_SIGNATURE);
}

#[tokio::test(start_paused = true)]
async fn a_failed_key_fetch_is_unavailable_not_invalid() {
    let bed = bed();
    for source in [Err("connection refused".to_owned()), Ok("no JSON".to_owned())] {
        let set = Arc::new(KeySet::new(Box::new(Published(source.clone(), Arc::default()))));
        let deps = AccountTokenDeps { keys: KeyRing::Fetched(set), ..bed.deps() };
        let bound = BoundTokenAuthenticator::new(vec!["iss".to_owned()], deps);
        let trace = AuthnTrace::default();
        let context = TokenContext { audiences: &[], owner: &Owner::Gateway, now: bed.now, trace: &trace };
        let token = BearerToken::new(bed.signer.sign(&bed.signer.header(), &claims("iss")));
        let verdict = describe(&bound.authenticate(&token, context).await);
        assert!(verdict.starts_with("unavailable: fetching keys "), "{source:?}: {verdict}");
    }
}
