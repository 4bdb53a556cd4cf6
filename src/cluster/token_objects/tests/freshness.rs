//! How long a deleted service account stays trusted while its API server fails in every way that watches can.

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use portcullis_limits::Owner;
use portcullis_limits::cache_budget::CacheShare;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::service_fn;

use super::super::*;
use crate::authn::cache::{CacheLimits, CachePolicy, CachedTokens};
use crate::authn::testing::success;
use crate::authn::trace::AuthnTrace;
use crate::authn::{AuthnError, AuthnVerdict, BearerToken, TokenAuthenticator, TokenContext};
use crate::backend::testing::backend;
use crate::tasks::compute::ComputePool;

/// The bound that docs/authentication.md states, without the 10 s for which verdicts are cached.
const BOUND: Duration = Duration::from_secs(20);

/// How the API server answers one type of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerMode {
    /// Like kube-apiserver.
    Well,
    /// Like kube-apiserver, without bookmarks.
    WithoutBookmarks,
    /// 502.
    BadGateway,
    /// No response.
    Never,
    /// A head without a body.
    OnlyHead,
    /// A head and an empty body.
    Empty,
    /// A head, and then the connection breaks.
    Lost,
    /// 410.
    Gone,
    /// An old event every half second; the deletion is far behind in the backlog. The watch ends at its timeout.
    Backlog,
    /// As [`AnswerMode::Well`], but the bookmark and the end of the watch are delayed by 10 s.
    LateBookmark,
    /// As [`AnswerMode::Well`], but the body of a single object takes 25 s.
    SlowBody,
    /// As [`AnswerMode::Well`], after this time.
    After(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Behaviour {
    lists: AnswerMode,
    watches: AnswerMode,
    reads: AnswerMode,
}

struct ApiServer {
    behaviour: Mutex<Behaviour>,
    /// The current resourceVersion.
    version: Mutex<u64>,
    /// The version at which the account was deleted.
    deleted: Mutex<Option<u64>>,
    /// The version at which another account was changed.
    touched: Mutex<u64>,
    /// The path and query of each request.
    requests: Mutex<Vec<String>>,
}

const WELL: Behaviour =
    Behaviour { lists: AnswerMode::Well, watches: AnswerMode::Well, reads: AnswerMode::Well };

impl ApiServer {
    fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn behaviour(&self) -> Behaviour {
        *self.behaviour.lock().unwrap()
    }

    fn delete(&self) {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        *self.deleted.lock().unwrap() = Some(*version);
    }

    fn touch(&self) {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        *self.touched.lock().unwrap() = *version;
    }

    fn version(&self) -> u64 {
        *self.version.lock().unwrap()
    }

    /// Restores a backup from before the account was created.
    fn restore(&self) {
        *self.version.lock().unwrap() = 2;
        *self.deleted.lock().unwrap() = Some(1);
    }

    /// Whether a watch from this version reports the deletion.
    fn reports_deletion(&self, from: u64) -> bool {
        self.deleted.lock().unwrap().is_some_and(|deleted| deleted > from)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    fn account(&self) -> Option<Value> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": "team", "name": "builder", "uid": "1", "resourceVersion": "5"},
        });
        self.deleted.lock().unwrap().is_none().then_some(account)
    }

    async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<Response<AnswerBody>, Infallible> {
        self.requests.lock().unwrap().push(request.uri().to_string());
        let query = request.uri().query().unwrap_or_default().to_owned();
        let path = request.uri().path().to_owned();
        let Behaviour { lists, watches, reads } = self.behaviour();
        let (is_watch, is_list) = (query.contains("watch=true"), query.contains("limit="));
        let answers = if is_watch {
            watches
        } else if is_list {
            lists
        } else {
            reads
        };
        let plain = |status: u16, body: &Value| {
            let body = Full::from(body.to_string()).map_err(|never| match never {}).boxed_unsync();
            Ok(Response::builder().status(status).body(body).unwrap())
        };
        match answers {
            AnswerMode::BadGateway => return plain(502, &json!({"kind": "Status", "code": 502})),
            AnswerMode::Never => std::future::pending().await,
            AnswerMode::OnlyHead => return Ok(Response::new(body(stream::pending()))),
            AnswerMode::Empty => return Ok(Response::new(body(stream::empty()))),
            AnswerMode::Lost => {
                let lost = stream::once(async { Err(std::io::Error::other("the connection was lost")) });
                return Ok(Response::new(body(lost)));
            }
            AnswerMode::Gone => {
                return plain(
                    410,
                    &json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}),
                );
            }
            AnswerMode::After(time) => sleep(time).await,
            AnswerMode::Well
            | AnswerMode::WithoutBookmarks
            | AnswerMode::Backlog
            | AnswerMode::LateBookmark
            | AnswerMode::SlowBody => {}
        }
        let is_accounts = path.ends_with("/serviceaccounts");
        if is_watch {
            let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds=")).unwrap();
            let seconds = Duration::from_secs(seconds.parse().unwrap());
            let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap();
            let from = from.parse().unwrap();
            return Ok(Response::new(match answers {
                AnswerMode::Backlog => backlog(seconds, from),
                AnswerMode::LateBookmark => self.late_bookmark(from),
                _ => self.watch(seconds, from, is_accounts),
            }));
        }
        if is_list {
            let items: Vec<_> = self.account().filter(|_| is_accounts).into_iter().collect();
            let version = self.version().to_string();
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items});
            return plain(200, &list);
        }
        if let Some(account) = self.account().filter(|_| path.ends_with("/serviceaccounts/builder")) {
            if answers == AnswerMode::SlowBody {
                let bytes = Bytes::from(account.to_string());
                let slowly = stream::once(async move {
                    sleep(Duration::from_secs(25)).await;
                    Ok(Frame::data(bytes))
                });
                return Ok(Response::new(body(slowly)));
            }
            return plain(200, &account);
        }
        plain(404, &json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}))
    }

    /// A watch that ends at its timeout, and sends a bookmark two seconds before if anything is newer than `start`.
    /// When the fake API server stops behaving well, open watches freeze: their connections carry no more data.
    fn watch(self: Arc<Self>, seconds: Duration, start: u64, is_accounts: bool) -> AnswerBody {
        let began = Instant::now();
        let frozen = {
            let server = Arc::clone(&self);
            async move || {
                if !matches!(server.behaviour().watches, AnswerMode::Well | AnswerMode::WithoutBookmarks) {
                    std::future::pending::<()>().await;
                }
            }
        };
        let steps = stream::unfold((false, start), move |(has_bookmark, from)| {
            let (server, frozen) = (Arc::clone(&self), frozen.clone());
            async move {
                loop {
                    frozen().await;
                    let version = server.version();
                    // Deletions are reported within a second.
                    if is_accounts && server.reports_deletion(from) {
                        let object = json!({
                            "apiVersion": "v1", "kind": "ServiceAccount",
                            "metadata": {"namespace": "team", "name": "builder", "uid": "1", "resourceVersion": version.to_string()},
                        });
                        return Some((line("DELETED", &object), (has_bookmark, version)));
                    }
                    let touched = *server.touched.lock().unwrap();
                    if is_accounts && touched > from {
                        return Some((line("MODIFIED", &other(touched)), (has_bookmark, touched)));
                    }
                    let left = (began + seconds).saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let has_news = server.behaviour().watches == AnswerMode::Well && version > start;
                    if has_news && !has_bookmark && left <= Duration::from_secs(2) {
                        return Some((line("BOOKMARK", &bookmark(version)), (true, version)));
                    }
                    sleep(left.min(Duration::from_secs(1))).await;
                }
            }
        });
        body(steps)
    }

    /// A bookmark that is sent after a second and arrives 10 s later, with the end of the watch. Nothing arrives that
    /// is sent after the behaviour of watches has changed.
    fn late_bookmark(self: Arc<Self>, from: u64) -> AnswerBody {
        let steps = stream::unfold(0, move |step| {
            let server = Arc::clone(&self);
            async move {
                if step == 0 {
                    sleep(Duration::from_secs(1)).await;
                    if server.behaviour().watches == AnswerMode::LateBookmark {
                        let version = server.version().max(from + 1);
                        sleep(Duration::from_secs(10)).await;
                        return Some((line("BOOKMARK", &bookmark(version)), 1));
                    }
                }
                if server.behaviour().watches != AnswerMode::LateBookmark {
                    std::future::pending::<()>().await;
                }
                None
            }
        });
        body(steps)
    }
}

/// Another account.
fn other(version: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"namespace": "team", "name": "other", "uid": "2", "resourceVersion": version.to_string()},
    })
}

fn bookmark(version: u64) -> Value {
    json!({"kind": "X", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string()}})
}

/// See [`AnswerMode::Backlog`].
fn backlog(seconds: Duration, from: u64) -> AnswerBody {
    let began = Instant::now();
    body(stream::unfold(from, move |version| async move {
        sleep(Duration::from_millis(500)).await;
        if began.elapsed() >= seconds {
            return None;
        }
        let version = version + 1;
        Some((line("MODIFIED", &other(version)), version))
    }))
}

#[expect(clippy::unnecessary_wraps, reason = "the item type of a body")]
fn line(kind: &str, object: &Value) -> Result<Frame<Bytes>, std::io::Error> {
    let mut line = json!({"type": kind, "object": object}).to_string();
    line.push('\n');
    Ok(Frame::data(Bytes::from(line)))
}

fn body<S>(frames: S) -> AnswerBody
where
    S: futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static,
{
    StreamBody::new(frames).map_err(BoxedError::from).boxed_unsync()
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;
type AnswerBody = UnsyncBoxBody<Bytes, BoxedError>;

struct Fixture {
    server: Arc<ApiServer>,
    cache: TokenObjectCache,
    metrics: Arc<Metrics>,
}

impl Fixture {
    fn start(behaviour: Behaviour) -> Self {
        let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
        let endpoint = &backend.endpoints()[0];
        assert!(endpoint.set_trusted(endpoint.trust_version()));
        let server = Arc::new(ApiServer {
            behaviour: Mutex::new(behaviour),
            version: Mutex::new(5),
            deleted: Mutex::new(None),
            touched: Mutex::new(0),
            requests: Mutex::default(),
        });
        let answering = Arc::clone(&server);
        let client =
            Client::new(service_fn(move |request| Arc::clone(&answering).answer(request)), "default");
        let kinds = TokenObjectKinds { bootstrap_tokens: false, service_accounts: true };
        let cache = TokenObjectCache::with_client(client, "c", &backend, kinds, &Handle::current(), &metrics);
        Self { server, cache, metrics }
    }

    /// A fixture whose watches have reported the account.
    async fn watching() -> Self {
        let fixture = Self::start(WELL);
        sleep(Duration::from_secs(5)).await;
        assert!(fixture.exists_without_a_read().await, "the watch has reported the account");
        fixture
    }

    /// Whether the account exists; an error if that could not be determined.
    async fn exists(&self) -> Result<bool, TokenGetterError> {
        let began = Instant::now();
        let found = self.cache.service_account("team", "builder").await;
        assert!(began.elapsed() <= READ_TIMEOUT, "a read took {:?}", began.elapsed());
        Ok(found?.is_some())
    }

    async fn exists_without_a_read(&self) -> bool {
        let before = self.live_reads();
        self.exists().await == Ok(true) && self.live_reads() == before
    }

    fn live_reads(&self) -> u64 {
        self.metrics.token_objects.lookups.with_label_values(&["c", "serviceaccounts", "live"]).get()
    }

    /// When the account was last found to exist, checked every second of `during`.
    async fn last_found(&self, during: Duration) -> Option<Duration> {
        let began = Instant::now();
        let mut last = None;
        while began.elapsed() < during {
            let at = began.elapsed();
            if self.exists().await.is_ok_and(|known| known) {
                last = Some(at);
            }
            sleep(Duration::from_secs(1)).await;
        }
        last
    }
}

const FAULTS: [AnswerMode; 6] = [
    AnswerMode::BadGateway,
    AnswerMode::Never,
    AnswerMode::OnlyHead,
    AnswerMode::Empty,
    AnswerMode::Lost,
    AnswerMode::Gone,
];

/// How long a live read may take in total.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_deleted_account_is_not_trusted_for_longer_than_documented_however_watches_fail() {
    let mut failures = Vec::new();
    for lists in
        [AnswerMode::Well, AnswerMode::BadGateway, AnswerMode::Never, AnswerMode::OnlyHead, AnswerMode::Lost]
    {
        for watches in FAULTS.into_iter().chain([AnswerMode::Backlog]) {
            for reads in [AnswerMode::Well, AnswerMode::Never] {
                let fixture = Fixture::watching().await;
                sleep(Duration::from_secs(40)).await;
                // First the behaviour: a successful list would report the deletion.
                fixture.server.set(Behaviour { lists, watches, reads });
                fixture.server.delete();
                let last_found = fixture.last_found(Duration::from_mins(4)).await;
                if last_found.is_some_and(|after| after > BOUND) {
                    failures.push(format!(
                        "lists {lists:?}, watches {watches:?}, reads {reads:?}: {last_found:?}"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "trusted for too long:\n{}", failures.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_account_is_not_accepted_again_when_failures_turn_to_silence() {
    let fixture = Fixture::watching().await;
    let reads = AnswerMode::Well;
    fixture.server.set(Behaviour { lists: AnswerMode::BadGateway, watches: AnswerMode::BadGateway, reads });
    fixture.server.delete();
    sleep(Duration::from_secs(12)).await;
    fixture.server.set(Behaviour { lists: AnswerMode::Never, watches: AnswerMode::Never, reads });
    let last_found = fixture.last_found(Duration::from_mins(10)).await;
    assert!(last_found.is_none_or(|after| after <= BOUND), "{last_found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_events_is_fresh_and_costs_no_reads() {
    for watches in [AnswerMode::Well, AnswerMode::WithoutBookmarks] {
        let fixture = Fixture::start(Behaviour { watches, ..WELL });
        sleep(Duration::from_secs(5)).await;
        for second in 0..1800 {
            assert!(fixture.exists_without_a_read().await, "{watches:?}, after {second} s");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// An event now and then, at any time of a watch.
#[tokio::test(start_paused = true)]
async fn a_watch_with_a_few_events_is_fresh_and_costs_no_reads() {
    let fixture = Fixture::watching().await;
    for round in 0..200 {
        fixture.server.touch();
        for _ in 0..round % 12 {
            assert!(fixture.exists_without_a_read().await, "in round {round}");
            sleep(Duration::from_millis(900)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reported_deletion_counts_at_once() {
    let fixture = Fixture::watching().await;
    fixture.server.delete();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.exists().await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn watches_recover_with_the_api_server() {
    for watches in FAULTS {
        let fixture = Fixture::watching().await;
        fixture.server.set(Behaviour { watches, ..WELL });
        sleep(Duration::from_mins(3)).await;
        // Lists succeed, and are frequent enough.
        let exists = watches == AnswerMode::Gone;
        assert_eq!(fixture.exists_without_a_read().await, exists, "{watches:?}");
        fixture.server.set(WELL);
        sleep(Duration::from_mins(1)).await;
        assert!(fixture.exists_without_a_read().await, "{watches:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_to_a_failing_api_server_back_off() {
    for watches in FAULTS {
        for lists in [AnswerMode::Well, watches] {
            let fixture = Fixture::watching().await;
            fixture.server.set(Behaviour { lists, watches, reads: AnswerMode::Well });
            sleep(Duration::from_secs(30)).await;
            fixture.server.requests();
            sleep(Duration::from_mins(10)).await;
            let requests = fixture.server.requests().len();
            // Four watches, each retried after about 15 s, with at most one list before it.
            assert!(
                (4..=480).contains(&requests),
                "lists {lists:?}, watches {watches:?}: {requests} requests"
            );
        }
    }
}

/// The deletion is far behind in the backlog of events.
#[tokio::test(start_paused = true)]
async fn old_events_are_not_evidence() {
    let fixture = Fixture::watching().await;
    *fixture.server.version.lock().unwrap() = 10_000;
    fixture.server.set(Behaviour { watches: AnswerMode::Backlog, ..WELL });
    fixture.server.delete();
    let last_found = fixture.last_found(Duration::from_mins(10)).await;
    assert!(last_found.is_none_or(|after| after <= BOUND), "{last_found:?}");
}

/// The account is deleted after a bookmark was sent and before it arrives.
#[tokio::test(start_paused = true)]
async fn a_late_bookmark_is_evidence_for_the_time_of_its_request() {
    let mut failures = Vec::new();
    for second in 0..20 {
        let fixture = Fixture::watching().await;
        fixture.server.set(Behaviour { watches: AnswerMode::LateBookmark, ..WELL });
        sleep(Duration::from_secs(60 + second)).await;
        fixture.server.set(Behaviour {
            lists: AnswerMode::Never,
            watches: AnswerMode::Never,
            reads: AnswerMode::Well,
        });
        fixture.server.delete();
        let last_found = fixture.last_found(Duration::from_mins(2)).await;
        if last_found.is_some_and(|after| after > BOUND) {
            failures.push(format!("after {second} s: {last_found:?}"));
        }
    }
    assert!(failures.is_empty(), "trusted for too long:\n{}", failures.join("\n"));
}

/// After a restore from a backup, a watch from the known version is silent and ends regularly.
#[tokio::test(start_paused = true)]
async fn a_restored_api_server_is_listed_again() {
    for watches in [AnswerMode::Well, AnswerMode::WithoutBookmarks] {
        let fixture = Fixture::watching().await;
        fixture.server.set(Behaviour { watches, ..WELL });
        sleep(Duration::from_mins(1)).await;
        fixture.server.restore();
        let last_found = fixture.last_found(Duration::from_mins(3)).await;
        assert!(last_found.is_none_or(|after| after <= BOUND), "{watches:?}: {last_found:?}");
        // The watches continue from the version of the restored API server.
        fixture.server.requests();
        sleep(Duration::from_mins(1)).await;
        let watched = fixture.server.requests();
        let watched: Vec<_> = watched.iter().filter(|path| path.contains("watch=true")).collect();
        assert!(watched.iter().all(|path| path.ends_with("resourceVersion=2")), "{watched:?}");
        assert!(!watched.is_empty());
    }
}

/// Every watch after a list is refused because of its version.
#[tokio::test(start_paused = true)]
async fn watches_that_always_expire_do_not_cause_lists_in_a_loop() {
    let fixture = Fixture::watching().await;
    fixture.server.set(Behaviour { watches: AnswerMode::Gone, ..WELL });
    sleep(Duration::from_mins(1)).await;
    fixture.server.requests();
    sleep(Duration::from_mins(10)).await;
    let requests = fixture.server.requests();
    let lists = requests.iter().filter(|path| path.contains("/serviceaccounts?") && path.contains("limit="));
    let lists = lists.count();
    assert!((1..=40).contains(&lists), "{lists} lists in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn secrets_are_listed_in_small_pages() {
    let fixture = Fixture::watching().await;
    let requests = fixture.server.requests();
    let limit = |resource: &str| {
        let (path, start) = (format!("/api/v1/{resource}?"), "limit=");
        let of_list = |request: &String| {
            let query = request.strip_prefix(&path)?;
            query.split('&').find_map(|pair| pair.strip_prefix(start)).map(str::to_owned)
        };
        requests.iter().find_map(of_list).unwrap_or_else(|| panic!("{resource}: {requests:?}"))
    };
    assert_eq!([limit("secrets"), limit("pods")], ["50", "500"]);
}

/// Accepts any token while the account exists.
#[derive(Debug)]
struct AccountTokens(Arc<TokenObjectCache>);

impl TokenAuthenticator for AccountTokens {
    fn name(&self) -> &'static str {
        "account"
    }

    fn authenticate<'a>(&'a self, _: &'a BearerToken, _: TokenContext<'a>) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async {
            let found = self.0.service_account("team", "builder").await;
            let found = found.map_err(|error| AuthnError::Unavailable(error.0))?;
            Ok(found.map(|_| success("builder", &[])))
        })
    }
}

/// The whole bound of docs/authentication.md: 20 s for a silent watch, and 10 s for a read or a cached verdict, both of
/// which count from the start of the read.
#[tokio::test(start_paused = true)]
async fn a_token_is_not_accepted_for_longer_than_documented_however_slow_reads_are() {
    const SUM: Duration = Duration::from_secs(30);
    let mut failures = Vec::new();
    let late = [2, 9, 11, 29].map(|seconds| AnswerMode::After(Duration::from_secs(seconds)));
    for reads in [AnswerMode::Well, AnswerMode::Never, AnswerMode::OnlyHead, AnswerMode::SlowBody]
        .into_iter()
        .chain(late)
    {
        // A slow read and its cached verdict take 35 s; the account is deleted at any time in between.
        for second in (20..56).step_by(3) {
            let Fixture { server, cache, metrics } = Fixture::watching().await;
            let objects = Arc::new(cache);
            let cache = CachedTokens::new(
                Arc::new(AccountTokens(Arc::clone(&objects))),
                CachePolicy::TOKENS,
                ComputePool::of_test().of_cluster("c"),
                &metrics.token_cache,
                CacheLimits::CLUSTER,
                &CacheShare::UNBOUNDED,
            );
            let cache = Arc::new(cache);
            server.set(Behaviour { lists: AnswerMode::Never, watches: AnswerMode::Never, reads });
            let deleted = Arc::new(Mutex::new(None::<Instant>));
            let last = Arc::new(Mutex::new(Duration::ZERO));
            for step in 0..2 * second + 100 {
                if step == 2 * second {
                    server.delete();
                    *deleted.lock().unwrap() = Some(Instant::now());
                }
                let (cache, deleted, last) = (Arc::clone(&cache), Arc::clone(&deleted), Arc::clone(&last));
                tokio::spawn(async move {
                    let (token, trace) = (BearerToken::new("token"), AuthnTrace::default());
                    let context = TokenContext {
                        audiences: &[],
                        owner: &Owner::Gateway,
                        now: UnixTime::ZERO,
                        trace: &trace,
                    };
                    let verdict = cache.authenticate(&token, context).await;
                    let deleted = *deleted.lock().unwrap();
                    if let (Ok(Some(_)), Some(deleted)) = (verdict, deleted) {
                        let mut last = last.lock().unwrap();
                        *last = last.max(deleted.elapsed());
                    }
                });
                sleep(Duration::from_millis(500)).await;
            }
            let last = *last.lock().unwrap();
            if last > SUM {
                failures.push(format!("reads {reads:?}, watches silent {second} s before: {last:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "accepted for too long:\n{}", failures.join("\n"));
}
