//! Floods of unsigned tokens must not delay valid ones.

use futures_util::future::join_all;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_openid::jwt;
use serde_json::json;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::support::{
    FakeWeb, KEYS, RSA, authenticate, authenticator, claims, new, settings, unsigned, user,
};
use crate::authn::cache::{CacheLimits, CachePolicy, CachedTokens};
use crate::authn::testing::TestRequest;
use crate::authn::{BearerToken, TokenAuthenticator as _};
use crate::metrics::Metrics;
use crate::tasks::compute::ComputePool;

/// Any client can send a large token: it is parsed once, not once per issuer.
#[tokio::test]
async fn a_large_token_is_not_parsed_by_each_issuer() {
    const ISSUERS: u32 = 64;
    let web = FakeWeb::of_issuer(&[]);
    let other = |number| {
        let mut settings = settings();
        settings.issuer.url = format!("https://{number}.example");
        new(settings, &web, &Metrics::new())
    };
    let issuers: Vec<_> = (0..ISSUERS).map(other).collect();
    let text = unsigned(
        &json!({"alg": "RS256"}),
        format!("{{{}\"iss\":\"x\"}}", r#""a":0,"#.repeat(50_000)).as_bytes(),
    );
    let token = BearerToken::new(text + ".");
    let begun = cpu_time();
    for _ in 0..ISSUERS / 4 {
        assert!(jwt::unverified_issuer(token.expose()).is_some());
    }
    let quarter = cpu_time().saturating_sub(begun);
    let begun = cpu_time();
    let request = TestRequest::new();
    for issuer in &issuers {
        assert_eq!(issuer.authenticate(&token, request.input().for_tokens()).await, Ok(None));
    }
    let all = cpu_time().saturating_sub(begun);
    assert!(all < quarter, "{all:?}, and {quarter:?} for a quarter of the issuers");
}

/// The processor time of this thread so far, which does not depend on what else the machine does.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

#[tokio::test(start_paused = true)]
async fn tokens_with_cached_keys_do_not_wait_behind_unknown_keys() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(settings(), &web).await;
    let jane = Ok(Some(user("jane", &[])));
    let token = |number: usize| RSA.token("RS256", &claims(&json!({"number": number})));
    assert_eq!(authenticate(&*authenticator, &token(0)).await, jane, "the keys are cached");
    web.hang(KEYS);
    sleep(Duration::from_secs(5)).await;
    let metrics = Metrics::new();
    let cached = CachedTokens::new(
        authenticator,
        CachePolicy::TOKENS,
        ComputePool::of_test().of_cluster("c"),
        &metrics.token_cache,
        CacheLimits::CLUSTER,
        &CacheShare::UNBOUNDED,
    );
    let body = claims(&json!({})).to_string();
    let unknown: Vec<_> = (0..1000)
        .map(|key| unsigned(&json!({"alg": "RS256", "kid": key.to_string()}), body.as_bytes()) + ".AAAA")
        .collect();
    let flood =
        timeout(Duration::from_secs(20), join_all(unknown.iter().map(|token| authenticate(&cached, token))));
    let honest = async {
        // The paused clock advances when all tasks wait.
        sleep(Duration::from_millis(1)).await;
        let begun = Instant::now();
        (authenticate(&cached, &token(1)).await, begun.elapsed())
    };
    let (_, found) = tokio::join!(flood, honest);
    assert_eq!(found, (jane, Duration::ZERO));
}
