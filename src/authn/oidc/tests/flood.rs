//! Tokens that nobody has signed must not take the room of those that somebody has.

use futures_util::future::join_all;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::support::{KEYS, RSA, Web, authenticator, claims, judge, settings, unsigned, user};
use crate::authn::cache::{CachedTokens, Keep};
use crate::metrics::Metrics;

#[tokio::test(start_paused = true)]
async fn known_keys_are_not_behind_unknown_ones() {
    let web = Web::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(settings(), &web).await;
    let jane = Ok(Some(user("jane", &[])));
    let token = |number: usize| RSA.token("RS256", &claims(&json!({"number": number})));
    assert_eq!(judge(&*authenticator, &token(0)).await, jane, "the keys are known");
    web.hang(KEYS);
    sleep(Duration::from_secs(5)).await;
    let metrics = Metrics::new();
    let cached = CachedTokens::new(authenticator, Keep::TOKENS, Handle::current(), &metrics.token_cache);
    let body = claims(&json!({})).to_string();
    let unknown: Vec<_> = (0..1000)
        .map(|key| unsigned(&json!({"alg": "RS256", "kid": key.to_string()}), body.as_bytes()) + ".AAAA")
        .collect();
    let flood = timeout(Duration::from_secs(20), join_all(unknown.iter().map(|token| judge(&cached, token))));
    let honest = async {
        // Time goes on when all of them wait.
        sleep(Duration::from_millis(1)).await;
        let begun = Instant::now();
        (judge(&cached, &token(1)).await, begun.elapsed())
    };
    let (_, found) = tokio::join!(flood, honest);
    assert_eq!(found, (jane, Duration::ZERO));
}
