//! Rows of `jwt_test.go` that are about keys; keys of the API server itself; issuers.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::super::jwt::key_set::KeySource;
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

fn bed() -> Bed {
    Bed::new(Cluster { accounts: BTreeMap::from([("ns/s".to_owned(), account("u"))]), ..Cluster::default() })
}

fn with_keys(bed: &Bed, keys: &[&Signer]) -> BoundTokens {
    let keys = keys.iter().map(|signer| signer.public.clone()).collect();
    let grounds = Grounds { keys: KeyRing::Fixed(Arc::new(keys)), ..bed.grounds() };
    BoundTokens::new(vec!["iss".to_owned(), "second".to_owned()], grounds)
}

#[test]
fn the_key_that_is_named_must_have_signed() {
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
        ("none named, by the empty name", unnamed(&ec, r#"{"alg":"ES256","kid":""}"#), vec![&ec], OK),
        ("none named, by null", unnamed(&ec, r#"{"alg":"ES256","kid":null}"#), vec![&ec], OK),
        ("none named, other keys", unnamed(&ec, r#"{"alg":"ES256"}"#), vec![&other, &rsa], BAD_SIGNATURE),
        ("another one named", misnamed.clone(), vec![&other, &ec], BAD_SIGNATURE),
        ("an unknown one named", misnamed, vec![&ec], NO_KEYS),
        ("names are compared as they are", unnamed(&ec, r#"{"alg":"ES256","KID":"x"}"#), vec![&ec], OK),
    ];
    for (name, token, keys, expected) in cases {
        assert_eq!(bed.ask(&with_keys(&bed, &keys), &token).verdict, expected, "{name}");
    }
}

#[test]
fn every_algorithm_of_a_key_is_taken() {
    let bed = bed();
    for algorithm in ["RS256", "RS384", "PS256", "ES256", "ES384", "ES512"] {
        let signer = Signer::new(algorithm);
        let token = signer.sign(&signer.header(), &claims("iss"));
        assert_eq!(bed.ask(&with_keys(&bed, &[&signer]), &token).verdict, OK, "{algorithm}");
    }
}

#[test]
fn every_issuer_counts_and_no_other() {
    let bed = bed();
    let authenticator = with_keys(&bed, &[&bed.signer]);
    let cases =
        [("iss", OK), ("second", OK), ("foo", "no opinion"), ("", "no opinion"), ("ISS", "no opinion")];
    for (issuer, expected) in cases {
        let token = bed.signer.sign(&bed.signer.header(), &claims(issuer));
        assert_eq!(bed.ask(&authenticator, &token).verdict, expected, "{issuer:?}");
    }
}

#[test]
fn each_setting_makes_its_authenticators() {
    let bed = bed();
    let names = |issuers: &[&str]| -> Vec<_> {
        let settings = ServiceAccounts {
            issuers: issuers.iter().map(|issuer| (*issuer).to_owned()).collect(),
            keys: Keys::Files(Arc::new(vec![bed.signer.public.clone()])),
            lookup: true,
        };
        let Grounds { lookup, audiences, counters, .. } = bed.grounds();
        let keys = || panic!("the keys are in files");
        authenticators(&settings, keys, lookup, audiences, counters).iter().map(|one| one.name()).collect()
    };
    assert_eq!(names(&["iss"]), ["legacy-service-account", "service-account"]);
    assert_eq!(names(&[]), ["legacy-service-account"]);
}

/// A key set that is given, and how often it was fetched.
#[derive(Debug)]
struct Published(Result<String, String>, Arc<AtomicUsize>);

impl KeySource for Published {
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
    let settings = ServiceAccounts { issuers: vec!["iss".to_owned()], keys: Keys::Backend, lookup: false };
    let Grounds { lookup, audiences, counters, .. } = bed.grounds();
    let both = authenticators(&settings, || Arc::clone(&set), lookup, audiences, counters);
    let [legacy, bound] = both.as_slice() else { panic!("{both:?}") };
    let ask = async |authenticator: &dyn TokenAuthenticator, token: String| {
        let remarks = Remarks::default();
        let context = TokenContext { audiences: &[], now: bed.now, remarks: &remarks };
        told(&authenticator.authenticate(&BearerToken::new(token), context).await)
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
    assert_eq!(fetches.load(Ordering::Relaxed), 1, "tokens of others fetch nothing, nor do known keys");
    assert_eq!(ask(&**bound, sign(r#"{"alg":"ES256","kid":"x"}"#, &claims("iss"))).await, NO_KEYS);
    let stranger = Signer::new("ES256");
    let forged = stranger.sign(&bed.signer.header(), &claims("iss"));
    assert_eq!(ask(&**bound, forged).await, BAD_SIGNATURE);
}

#[tokio::test(start_paused = true)]
async fn keys_that_cannot_be_fetched_make_no_bad_token() {
    let bed = bed();
    for source in [Err("connection refused".to_owned()), Ok("no JSON".to_owned())] {
        let set = Arc::new(KeySet::new(Box::new(Published(source.clone(), Arc::default()))));
        let grounds = Grounds { keys: KeyRing::Fetched(set), ..bed.grounds() };
        let bound = BoundTokens::new(vec!["iss".to_owned()], grounds);
        let remarks = Remarks::default();
        let context = TokenContext { audiences: &[], now: bed.now, remarks: &remarks };
        let token = BearerToken::new(bed.signer.sign(&bed.signer.header(), &claims("iss")));
        let verdict = told(&bound.authenticate(&token, context).await);
        assert!(verdict.starts_with("unavailable: fetching keys "), "{source:?}: {verdict}");
    }
}
