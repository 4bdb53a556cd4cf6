//! Rate limit and refresh of key fetches, and parsing of key sets.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{advance, sleep};

use super::*;

/// A slow source that can fail and counts its fetches.
#[derive(Debug, Default)]
struct CountingSource {
    fetches: AtomicUsize,
    takes: Duration,
    error: Mutex<Option<String>>,
    keys: Mutex<Vec<Value>>,
}

impl JwksSource for Arc<CountingSource> {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async {
            self.fetches.fetch_add(1, Ordering::Relaxed);
            sleep(self.takes).await;
            let keys = json!({"keys": *self.keys.lock().unwrap()}).to_string().into_bytes();
            self.error.lock().unwrap().clone().map_or(Ok(keys), Err)
        })
    }

    fn name(&self) -> String {
        "test".to_owned()
    }
}

impl CountingSource {
    fn new(takes: Duration) -> (Arc<Self>, KeySet) {
        let source = Arc::new(Self { takes, ..Self::default() });
        (Arc::clone(&source), KeySet::new(Box::new(source)))
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }
}

/// The client of most tests.
const OWNER: Owner = Owner::Gateway;
/// The tokens of one client that wait at once.
const MAX_WAITING: usize = WAITING.per_owner();

/// A token with an invalid signature and the key ID `x`.
const UNKNOWN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.e30.AAAA";
const TAKES: Duration = Duration::from_millis(300);

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_one_fetch() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let start = Instant::now();
    let found = join_all((0..MAX_WAITING).map(|_| keys.verify(&token, &OWNER))).await;
    assert!(found.iter().all(|found| *found == Err(KeySetError::NotSigned)));
    assert_eq!(source.fetches(), 1);
    assert_eq!(start.elapsed(), TAKES);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_keys_fetches_once_per_second() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let start = Instant::now();
    // Each client sends its next token after the verdict for the last one.
    let client = async || {
        while start.elapsed() < Duration::from_secs(10) {
            assert_eq!(keys.verify(&token, &OWNER).await, Err(KeySetError::NotSigned));
        }
    };
    join_all((0..MAX_WAITING).map(|_| client())).await;
    assert_eq!(source.fetches(), 11, "one at once, and one per started second");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_arrives_during_a_fetch_gets_the_next_one() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let late = async {
        sleep(Duration::from_millis(100)).await;
        let requested = Instant::now();
        assert_eq!(keys.verify(&token, &OWNER).await, Err(KeySetError::NotSigned));
        requested.elapsed()
    };
    let (_, waited) = tokio::join!(keys.verify(&token, &OWNER), late);
    assert_eq!(source.fetches(), 2, "the issuer may have published the key after the first fetch began");
    assert_eq!(waited, Duration::from_millis(900) + TAKES);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_fetch_counts_for_the_rate_limit() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    for _ in 0..100 {
        assert_eq!(keys.verify(&token, &OWNER).now_or_never(), None);
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(source.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shared_and_retried_a_second_later() {
    let (source, keys) = CountingSource::new(TAKES);
    *source.error.lock().unwrap() = Some("away".to_owned());
    let away = Err(KeySetError::Unavailable("away".to_owned()));
    assert_eq!(join_all((0..10).map(|_| keys.initialize())).await, vec![away; 10]);
    assert_eq!(source.fetches(), 1);
    assert!(keys.known().is_none());
    *source.error.lock().unwrap() = None;
    let start = Instant::now();
    assert_eq!(keys.initialize().await, Ok(()));
    assert_eq!(start.elapsed(), MIN_FETCH_INTERVAL);
    assert!(keys.known().is_some());
    assert_eq!(keys.initialize().await, Ok(()));
    assert_eq!(source.fetches(), 2);
}

/// The first token comes just before the gateway fetches the keys ahead of it.
#[tokio::test(start_paused = true)]
async fn a_fetch_that_a_token_has_begun_is_not_repeated() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let ahead = async {
        sleep(TAKES / 2).await;
        keys.initialize().await
    };
    let (_, initialized) = tokio::join!(keys.verify(&token, &OWNER), ahead);
    assert_eq!((initialized, source.fetches()), (Ok(()), 1));
}

#[tokio::test(start_paused = true)]
async fn a_revoked_key_is_removed_by_the_periodic_refresh() {
    let (source, keys) = CountingSource::new(TAKES);
    let key =
        |id: &str| json!({"kty": "RSA", "kid": id, "n": URL_SAFE_NO_PAD.encode([0xff; 256]), "e": "AQAB"});
    let known = || keys.known().unwrap().iter().map(|key| key.id().to_owned()).collect::<Vec<_>>();
    *source.keys.lock().unwrap() = vec![key("old"), key("new")];
    let beside = async {
        keys.initialize().await.unwrap();
        *source.keys.lock().unwrap() = vec![key("new")];
        *source.error.lock().unwrap() = Some("away".to_owned());
        sleep(REFRESH_INTERVAL * 3).await;
        assert_eq!(known(), ["old", "new"], "the issuer is unreachable");
        *source.error.lock().unwrap() = None;
        sleep(REFRESH_INTERVAL + TAKES).await;
        assert_eq!(known(), ["new"]);
        assert_eq!(source.fetches(), 4);
    };
    tokio::select! {
        () = keys.keep_fresh() => {}
        () = beside => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_number_of_waiting_tokens_is_limited() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let start = Instant::now();
    let client = async || (keys.verify(&token, &OWNER).await, start.elapsed());
    let mut found = join_all((0..1000).map(|_| client())).await;
    let at_once = found.split_off(MAX_WAITING);
    assert!(found.iter().all(|found| *found == (Err(KeySetError::NotSigned), TAKES)));
    let refused = Err(KeySetError::Unavailable("refused: too many tokens are waiting".to_owned()));
    assert!(at_once.iter().all(|found| *found == (refused.clone(), Duration::ZERO)));
    assert_eq!(source.fetches(), 1);
    assert_eq!(keys.verify(&token, &OWNER).await, Err(KeySetError::NotSigned), "a slot is free again");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_with_many_tokens_leaves_places_to_others() {
    let (source, keys) = CountingSource::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let network = |last| Owner::Network([10, 0, 0, last].into());
    let flood = network(1);
    let flooding = join_all((0..10 * WAITING.total()).map(|_| keys.verify(&token, &flood)));
    let calm = async {
        sleep(Duration::from_millis(1)).await;
        keys.verify(&token, &network(2)).await
    };
    let (_, calm) = tokio::join!(flooding, calm);
    assert_eq!(calm, Err(KeySetError::NotSigned), "its token was compared with fetched keys");
    assert_eq!(source.fetches(), 2, "the second one began after its request");
}

#[test]
fn a_key_set_must_have_a_list_of_keys() {
    for json in ["", "{}", "[]", "null", r#"{"keys":null}"#, r#"{"keys":{}}"#, r#"{"keys":[]"#, "[[]]"] {
        assert!(read(json.as_bytes()).is_err(), "{json}");
    }
    for json in [r#"{"keys":[]}"#, r#"{"keys":[null,5,{}],"more":true}"#] {
        assert!(read(json.as_bytes()).unwrap().is_empty(), "{json}");
    }
}

#[test]
fn rsa_keys_with_costly_parameters_are_skipped() {
    let encoded = |length: usize| URL_SAFE_NO_PAD.encode(vec![0xff; length]);
    for (modulus, exponent, taken) in [
        (128, 3, 0),
        (256, 3, 1),
        (256, 4, 0),
        (256, 5, 0),
        (256, 256, 0),
        (1024, 3, 1),
        (1025, 3, 0),
        (2048, 3, 0),
        (1 << 19, 3, 0),
    ] {
        let key = json!({"kty": "RSA", "n": encoded(modulus), "e": encoded(exponent)});
        let keys = read(json!({"keys": [key]}).to_string().as_bytes()).unwrap();
        assert_eq!(keys.len(), taken, "{modulus} and {exponent} bytes");
    }
}

#[test]
fn a_skipped_key_of_a_supported_type_is_a_problem_for_the_log() {
    let encoded = |length: usize| URL_SAFE_NO_PAD.encode(vec![0xff; length]);
    let rsa = |modulus, exponent| json!({"kty": "RSA", "n": encoded(modulus), "e": encoded(exponent)});
    let cases = [
        (rsa(128, 3), Some(UnsupportedKey::RsaBits(1024))),
        (rsa(1025, 3), Some(UnsupportedKey::RsaBits(8200))),
        (rsa(256, 4), Some(UnsupportedKey::RsaExponentBits(32))),
        (rsa(256, 3), None),
        (json!({"kty": "oct", "k": "c2VjcmV0"}), None),
    ];
    for (key, expected) in cases {
        let parsed = parse(json!({"keys": [key]}).to_string().as_bytes()).unwrap();
        let problem = parsed.problem().map(|(_, problem)| problem);
        assert_eq!(problem, expected.map(UnusableKey::Unsupported), "{key}");
    }
    let malformed = json!({"kty": "RSA", "kid": "k", "n": 5, "e": "AQAB"});
    let parsed = parse(json!({"keys": [malformed]}).to_string().as_bytes()).unwrap();
    assert_eq!(parsed.problem(), Some(("k", UnusableKey::Member("n"))));
}

#[test]
fn a_key_encoded_as_a_string_is_not_parsed() {
    let key = json!({"kty": "EC", "crv": "P-256", "kid": "k",
        "x": "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY", "y": "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"});
    let keys = |key: &Value| read(json!({"keys": [key]}).to_string().as_bytes()).unwrap().len();
    assert_eq!(keys(&key), 1);
    assert_eq!(keys(&json!({"$serde_json::private::RawValue": key.to_string()})), 0);
}
