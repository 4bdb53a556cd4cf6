//! A tenant whose API server publishes costly keys, and whose clients send tokens that name none of them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_openid::jwt::key_set::{JwksSource, KeySet};
use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::authn::cache::{CacheLimits, CachePolicy, CachedTokens};
use crate::tasks::compute::ComputePool;

const CLAIMS: &str =
    r#"{"iss":"iss","aud":"api","kubernetes.io":{"namespace":"ns","serviceaccount":{"name":"s","uid":"u"}}}"#;

/// The key set of the tenant's API server.
#[derive(Debug)]
struct CostlyKeys;

impl JwksSource for CostlyKeys {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        let modulus = URL_SAFE_NO_PAD.encode([0xff; 1024]);
        let keys: Vec<_> = [0xff_u8, 0x7f]
            .into_iter()
            .flat_map(|first| std::iter::repeat_n(URL_SAFE_NO_PAD.encode([first, 0xff, 0xff, 0xff]), 100))
            .map(|exponent| json!({"kty": "RSA", "n": modulus, "e": exponent}))
            .collect();
        Box::pin(async move { Ok(json!({"keys": keys}).to_string().into_bytes()) })
    }

    fn name(&self) -> String {
        "the tenant's API server".to_owned()
    }
}

/// Notes when the first turn of each check begins.
#[derive(Debug)]
struct Noting {
    cluster: &'static str,
    delegate: BoundTokenAuthenticator,
    order: Arc<Mutex<Vec<&'static str>>>,
}

impl TokenAuthenticator for Noting {
    fn name(&self) -> &'static str {
        self.cluster
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            self.order.lock().unwrap().push(self.cluster);
            self.delegate.authenticate(token, context).await
        })
    }
}

fn begin(cache: &Arc<CachedTokens>, token: String, network: u8, now: UnixTime) -> JoinHandle<AuthnVerdict> {
    let (cache, owner) = (Arc::clone(cache), Owner::Network([10, 0, 0, network].into()));
    tokio::spawn(async move {
        let trace = AuthnTrace::default();
        let context = TokenContext { audiences: &[], owner: &owner, now, trace: &trace };
        cache.authenticate(&BearerToken::new(token), context).await
    })
}

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_valid_token_of_another_cluster_waits_for_one_of_them() {
    let bed = TestBed::new(FakeApiServer {
        accounts: BTreeMap::from([("ns/s".to_owned(), account("u"))]),
        ..FakeApiServer::default()
    });
    let (pool, order) = (ComputePool::of_test(), Arc::<Mutex<Vec<_>>>::default());
    let cache = |cluster, keys, limits| {
        let deps = AccountTokenDeps { keys, ..bed.deps() };
        let delegate = BoundTokenAuthenticator::new(vec!["iss".to_owned()], deps);
        let delegate = Arc::new(Noting { cluster, delegate, order: Arc::clone(&order) });
        let checks = pool.of_cluster(cluster);
        let metrics = Metrics::new();
        Arc::new(CachedTokens::new(
            delegate,
            CachePolicy::TOKENS,
            checks,
            &metrics.token_cache,
            limits,
            &CacheShare::UNBOUNDED,
        ))
    };
    let published = KeyRing::Fetched(Arc::new(KeySet::new(Box::new(CostlyKeys))));
    let tenant = cache("tenant", published, CacheLimits::TENANT);
    let prod = cache("prod", bed.deps().keys, CacheLimits::CLUSTER);
    let input = |number: usize| {
        let header = format!(r#"{{"alg":"RS256","nonce":"{number}"}}"#);
        format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(CLAIMS))
    };
    let signature = URL_SAFE_NO_PAD.encode([0x7f; 1024]);
    let held = pool.hold();
    let flood: Vec<_> = (0..400_usize)
        .map(|number| {
            let network = u8::try_from(number % 8).unwrap();
            begin(&tenant, format!("{}.{signature}", input(number)), network, bed.now)
        })
        .collect();
    settle().await;
    let valid = bed.signer.sign(&bed.signer.header(), CLAIMS);
    let valid = begin(&prod, valid, 1, bed.now);
    settle().await;
    drop(held);
    assert_eq!(describe(&valid.await.unwrap()), r#"system:serviceaccount:ns:s for ["api"]"#);
    let turns = order.lock().unwrap().iter().position(|cluster| *cluster == "prod");
    assert_eq!(turns, Some(1), "the tenant's first token came before");
    let flood: Vec<_> = join_all(flood).await.into_iter().map(Result::unwrap).collect();
    assert!(flood.iter().all(Result::is_err), "{flood:?}");
}
