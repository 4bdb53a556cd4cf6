//! How often keys are fetched, whatever tokens come.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{advance, sleep};

use super::*;

/// Takes a while, fails at times, and counts.
#[derive(Debug, Default)]
struct Counted {
    fetches: AtomicUsize,
    takes: Duration,
    error: Mutex<Option<String>>,
    keys: Mutex<Vec<Value>>,
}

impl KeySource for Arc<Counted> {
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

impl Counted {
    fn new(takes: Duration) -> (Arc<Self>, KeySet) {
        let source = Arc::new(Self { takes, ..Self::default() });
        (Arc::clone(&source), KeySet::new(Box::new(source)))
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }
}

/// A token that nobody has signed, naming the key `x`.
const UNKNOWN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.e30.AAAA";
const TAKES: Duration = Duration::from_millis(300);

#[tokio::test(start_paused = true)]
async fn all_who_wait_share_one_fetch() {
    let (source, keys) = Counted::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let start = Instant::now();
    let found = join_all((0..WAITING).map(|_| keys.verify(&token))).await;
    assert!(found.iter().all(|found| *found == Err(KeyError::NotSigned)));
    assert_eq!(source.fetches(), 1);
    assert_eq!(start.elapsed(), TAKES);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_keys_fetches_once_in_a_second() {
    let (source, keys) = Counted::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let start = Instant::now();
    // Some clients, each of which sends its next token when the last one was judged.
    let client = async || {
        while start.elapsed() < Duration::from_secs(10) {
            assert_eq!(keys.verify(&token).await, Err(KeyError::NotSigned));
        }
    };
    join_all((0..WAITING).map(|_| client())).await;
    assert_eq!(source.fetches(), 11, "one at once, and one for each second begun");
}

#[tokio::test(start_paused = true)]
async fn who_comes_during_a_fetch_gets_the_next_one() {
    let (source, keys) = Counted::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let late = async {
        sleep(Duration::from_millis(100)).await;
        let asked = Instant::now();
        assert_eq!(keys.verify(&token).await, Err(KeyError::NotSigned));
        asked.elapsed()
    };
    let (_, waited) = tokio::join!(keys.verify(&token), late);
    assert_eq!(source.fetches(), 2, "the key may have come after the first one began");
    assert_eq!(waited, Duration::from_millis(900) + TAKES);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_for_a_fetch_makes_no_room_for_another() {
    let (source, keys) = Counted::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    for _ in 0..100 {
        assert_eq!(keys.verify(&token).now_or_never(), None);
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(source.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shared_and_tried_again_a_second_later() {
    let (source, keys) = Counted::new(TAKES);
    *source.error.lock().unwrap() = Some("away".to_owned());
    let away = Err(KeyError::Unavailable("away".to_owned()));
    assert_eq!(join_all((0..10).map(|_| keys.initialize())).await, vec![away; 10]);
    assert_eq!(source.fetches(), 1);
    assert!(keys.known().is_none());
    *source.error.lock().unwrap() = None;
    let start = Instant::now();
    assert_eq!(keys.initialize().await, Ok(()));
    assert_eq!(start.elapsed(), FLOOR);
    assert!(keys.known().is_some());
    assert_eq!(keys.initialize().await, Ok(()));
    assert_eq!(source.fetches(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_withdrawn_is_not_believed_until_another_is_named() {
    let (source, keys) = Counted::new(TAKES);
    let key =
        |id: &str| json!({"kty": "RSA", "kid": id, "n": URL_SAFE_NO_PAD.encode([0xff; 256]), "e": "AQAB"});
    let known = || keys.known().unwrap().iter().map(|key| key.id().to_owned()).collect::<Vec<_>>();
    *source.keys.lock().unwrap() = vec![key("old"), key("new")];
    let beside = async {
        keys.initialize().await.unwrap();
        *source.keys.lock().unwrap() = vec![key("new")];
        *source.error.lock().unwrap() = Some("away".to_owned());
        sleep(REFRESH_INTERVAL * 3).await;
        assert_eq!(known(), ["old", "new"], "the issuer is away");
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
async fn only_so_many_wait_for_keys() {
    let (source, keys) = Counted::new(TAKES);
    let token = Jwt::parse(UNKNOWN).unwrap();
    let start = Instant::now();
    let client = async || (keys.verify(&token).await, start.elapsed());
    let mut found = join_all((0..1000).map(|_| client())).await;
    let at_once = found.split_off(WAITING);
    assert!(found.iter().all(|found| *found == (Err(KeyError::NotSigned), TAKES)));
    let refused = Err(KeyError::Unavailable("is what too many wait for".to_owned()));
    assert!(at_once.iter().all(|found| *found == (refused.clone(), Duration::ZERO)));
    assert_eq!(source.fetches(), 1);
    assert_eq!(keys.verify(&token).await, Err(KeyError::NotSigned), "there is room again");
}

#[test]
fn a_key_set_has_a_list_of_keys() {
    for json in ["", "{}", "[]", "null", r#"{"keys":null}"#, r#"{"keys":{}}"#, r#"{"keys":[]"#, "[[]]"] {
        assert!(read(json.as_bytes()).is_err(), "{json}");
    }
    for json in [r#"{"keys":[]}"#, r#"{"keys":[null,5,{}],"more":true}"#] {
        assert!(read(json.as_bytes()).unwrap().is_empty(), "{json}");
    }
}

#[test]
fn keys_that_would_be_costly_are_left_out() {
    let encoded = |length: usize| URL_SAFE_NO_PAD.encode(vec![0xff; length]);
    for (modulus, exponent, taken) in [
        (128, 3, 0),
        (256, 3, 1),
        (256, 4, 1),
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
fn a_key_in_a_text_is_no_key() {
    let key = json!({"kty": "EC", "crv": "P-256", "kid": "k",
        "x": "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY", "y": "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"});
    let keys = |key: &Value| read(json!({"keys": [key]}).to_string().as_bytes()).unwrap().len();
    assert_eq!(keys(&key), 1);
    assert_eq!(keys(&json!({"$serde_json::private::RawValue": key.to_string()})), 0);
}
