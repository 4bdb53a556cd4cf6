//! An API server that can fall silent in every way, and an account that is deleted while it does.

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
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::service_fn;

use super::super::*;
use crate::authn::cache::{CacheLimits, CachePolicy, CachedTokens};
use crate::authn::testing::success;
use crate::authn::trace::AuthnTrace;
use crate::authn::{AuthnError, AuthnVerdict, BearerToken, TokenAuthenticator, TokenContext};
use crate::backend::testing::backend;

/// The bound that docs/authentication.md states, without the 10 s for which verdicts are remembered.
const BOUND: Duration = Duration::from_secs(20);

/// How the API server treats a kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// As kube-apiserver does.
    Well,
    /// Well, but it sends no bookmarks.
    WithoutBookmarks,
    /// 502, at once.
    BadGateway,
    /// It accepts the request and never answers.
    Never,
    /// A good head, and nothing after it.
    OnlyHead,
    /// A good head, and the end at once.
    Empty,
    /// A good head, and then the connection is lost.
    Lost,
    /// 410, and for a watch that was answered well the same as an event.
    Gone,
    /// An event each half second of what was long ago; the deletion comes far behind. It ends when it is asked to.
    Backlog,
    /// As [`Answers::Well`], but a bookmark is 10 s on its way, and so is the end.
    LateBookmark,
    /// As [`Answers::Well`], but 25 s pass until the body of a single object: a backend, or a proxy, that is slow.
    SlowBody,
    /// As [`Answers::Well`], after this time.
    After(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Behaviour {
    lists: Answers,
    watches: Answers,
    reads: Answers,
}

struct ApiServer {
    behaviour: Mutex<Behaviour>,
    /// The version of everything, and with which version the account was deleted.
    version: Mutex<u64>,
    deleted: Mutex<Option<u64>>,
    /// With which version another account was changed.
    touched: Mutex<u64>,
    /// Of each request, its path and query.
    requests: Mutex<Vec<String>>,
}

const WELL: Behaviour = Behaviour { lists: Answers::Well, watches: Answers::Well, reads: Answers::Well };

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

    /// Goes back to a backup from before the account was there.
    fn restore(&self) {
        *self.version.lock().unwrap() = 2;
        *self.deleted.lock().unwrap() = Some(1);
    }

    /// Whether a watch from this version is told of the deletion.
    fn tells_of_deletion(&self, from: u64) -> bool {
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
            Answers::BadGateway => return plain(502, &json!({"kind": "Status", "code": 502})),
            Answers::Never => std::future::pending().await,
            Answers::OnlyHead => return Ok(Response::new(body(stream::pending()))),
            Answers::Empty => return Ok(Response::new(body(stream::empty()))),
            Answers::Lost => {
                let lost = stream::once(async { Err(std::io::Error::other("the connection was lost")) });
                return Ok(Response::new(body(lost)));
            }
            Answers::Gone => {
                return plain(
                    410,
                    &json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}),
                );
            }
            Answers::After(time) => sleep(time).await,
            Answers::Well
            | Answers::WithoutBookmarks
            | Answers::Backlog
            | Answers::LateBookmark
            | Answers::SlowBody => {}
        }
        let is_accounts = path.ends_with("/serviceaccounts");
        if is_watch {
            let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds=")).unwrap();
            let seconds = Duration::from_secs(seconds.parse().unwrap());
            let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap();
            let from = from.parse().unwrap();
            return Ok(Response::new(match answers {
                Answers::Backlog => backlog(seconds, from),
                Answers::LateBookmark => self.late_bookmark(from),
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
            if answers == Answers::SlowBody {
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

    /// A watch that lasts as long as it was asked to, and sends a bookmark two seconds before its end if there is anything
    /// to tell: what is not newer than `start` is not told. Once watches are not answered well, those that are open say
    /// nothing more: their connection is frozen.
    fn watch(self: Arc<Self>, seconds: Duration, start: u64, is_accounts: bool) -> AnswerBody {
        let began = Instant::now();
        let frozen = {
            let server = Arc::clone(&self);
            async move || {
                if !matches!(server.behaviour().watches, Answers::Well | Answers::WithoutBookmarks) {
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
                    // Deletions are told within a second.
                    if is_accounts && server.tells_of_deletion(from) {
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
                    let has_news = server.behaviour().watches == Answers::Well && version > start;
                    if has_news && !has_bookmark && left <= Duration::from_secs(2) {
                        return Some((line("BOOKMARK", &bookmark(version)), (true, version)));
                    }
                    sleep(left.min(Duration::from_secs(1))).await;
                }
            }
        });
        body(steps)
    }

    /// A bookmark that is sent after a second and comes 10 s later, and the end of the watch with it. What is sent after
    /// watches are no longer answered does not come.
    fn late_bookmark(self: Arc<Self>, from: u64) -> AnswerBody {
        let steps = stream::unfold(0, move |step| {
            let server = Arc::clone(&self);
            async move {
                if step == 0 {
                    sleep(Duration::from_secs(1)).await;
                    if server.behaviour().watches == Answers::LateBookmark {
                        let version = server.version().max(from + 1);
                        sleep(Duration::from_secs(10)).await;
                        return Some((line("BOOKMARK", &bookmark(version)), 1));
                    }
                }
                if server.behaviour().watches != Answers::LateBookmark {
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

/// See [`Answers::Backlog`].
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

#[expect(clippy::unnecessary_wraps, reason = "what a body is made of")]
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

struct Scene {
    server: Arc<ApiServer>,
    lookups: TokenObjectCache,
    metrics: Arc<Metrics>,
}

impl Scene {
    fn start(behaviour: Behaviour) -> Self {
        let (backend, metrics) = (Arc::new(backend()), Arc::new(Metrics::new()));
        let endpoint = &backend.endpoints()[0];
        assert!(endpoint.set_trusted(endpoint.trust()));
        let server = Arc::new(ApiServer {
            behaviour: Mutex::new(behaviour),
            version: Mutex::new(5),
            deleted: Mutex::new(None),
            touched: Mutex::new(0),
            requests: Mutex::default(),
        });
        let asked = Arc::clone(&server);
        let client = Client::new(service_fn(move |request| Arc::clone(&asked).answer(request)), "default");
        let needs = TokenObjectKinds { bootstrap_tokens: false, service_accounts: true };
        let lookups = TokenObjectCache::asking(client, "c", &backend, needs, &Handle::current(), &metrics);
        Self { server, lookups, metrics }
    }

    /// One whose watches have told of the account.
    async fn watching() -> Self {
        let scene = Self::start(WELL);
        sleep(Duration::from_secs(5)).await;
        assert!(scene.is_known_without_a_read().await, "the watch has told of the account");
        scene
    }

    /// Whether the account is vouched for; an error says that this could not be found out.
    async fn is_known(&self) -> Result<bool, TokenGetterError> {
        let began = Instant::now();
        let found = self.lookups.service_account("team", "builder").await;
        assert!(began.elapsed() <= READ_TIMEOUT, "a read took {:?}", began.elapsed());
        Ok(found?.is_some())
    }

    async fn is_known_without_a_read(&self) -> bool {
        let before = self.live_reads();
        self.is_known().await == Ok(true) && self.live_reads() == before
    }

    fn live_reads(&self) -> u64 {
        self.metrics.token_objects.lookups.with_label_values(&["c", "serviceaccounts", "live"]).get()
    }

    /// How long the account is vouched for, when looked at each second for so long: from now until the last time that it
    /// was.
    async fn believed(&self, during: Duration) -> Option<Duration> {
        let began = Instant::now();
        let mut last = None;
        while began.elapsed() < during {
            let at = began.elapsed();
            if self.is_known().await.is_ok_and(|known| known) {
                last = Some(at);
            }
            sleep(Duration::from_secs(1)).await;
        }
        last
    }
}

const FAULTS: [Answers; 6] =
    [Answers::BadGateway, Answers::Never, Answers::OnlyHead, Answers::Empty, Answers::Lost, Answers::Gone];

/// How long a read of a single object may take as a whole.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_deleted_account_is_not_believed_for_longer_than_stated_however_watches_fail() {
    let mut failures = Vec::new();
    for lists in [Answers::Well, Answers::BadGateway, Answers::Never, Answers::OnlyHead, Answers::Lost] {
        for watches in FAULTS.into_iter().chain([Answers::Backlog]) {
            for reads in [Answers::Well, Answers::Never] {
                let scene = Scene::watching().await;
                sleep(Duration::from_secs(40)).await;
                // A list that is answered well tells of the deletion, so that one comes after it only.
                scene.server.set(Behaviour { lists, watches, reads });
                scene.server.delete();
                let believed = scene.believed(Duration::from_mins(4)).await;
                if believed.is_some_and(|believed| believed > BOUND) {
                    failures
                        .push(format!("lists {lists:?}, watches {watches:?}, reads {reads:?}: {believed:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "believed for too long:\n{}", failures.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn an_account_that_is_refused_is_not_accepted_again_because_failures_turn_to_silence() {
    let scene = Scene::watching().await;
    let reads = Answers::Well;
    scene.server.set(Behaviour { lists: Answers::BadGateway, watches: Answers::BadGateway, reads });
    scene.server.delete();
    sleep(Duration::from_secs(12)).await;
    scene.server.set(Behaviour { lists: Answers::Never, watches: Answers::Never, reads });
    let believed = scene.believed(Duration::from_mins(10)).await;
    assert!(believed.is_none_or(|believed| believed <= BOUND), "{believed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_nothing_happens_on_is_good_and_costs_no_reads() {
    for watches in [Answers::Well, Answers::WithoutBookmarks] {
        let scene = Scene::start(Behaviour { watches, ..WELL });
        sleep(Duration::from_secs(5)).await;
        for second in 0..1800 {
            assert!(scene.is_known_without_a_read().await, "{watches:?}, after {second} s");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Now and then something happens, at any time of a watch.
#[tokio::test(start_paused = true)]
async fn a_watch_with_a_few_events_is_good_and_costs_no_reads() {
    let scene = Scene::watching().await;
    for round in 0..200 {
        scene.server.touch();
        for _ in 0..round % 12 {
            assert!(scene.is_known_without_a_read().await, "in round {round}");
            sleep(Duration::from_millis(900)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_a_watch_tells_of_counts_at_once() {
    let scene = Scene::watching().await;
    scene.server.delete();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(scene.is_known().await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn watches_are_good_again_once_they_are_answered_well() {
    for watches in FAULTS {
        let scene = Scene::watching().await;
        scene.server.set(Behaviour { watches, ..WELL });
        sleep(Duration::from_mins(3)).await;
        // Lists are good, though, and come often enough.
        let is_known = watches == Answers::Gone;
        assert_eq!(scene.is_known_without_a_read().await, is_known, "{watches:?}");
        scene.server.set(WELL);
        sleep(Duration::from_mins(1)).await;
        assert!(scene.is_known_without_a_read().await, "{watches:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_is_not_asked_in_a_loop() {
    for watches in FAULTS {
        for lists in [Answers::Well, watches] {
            let scene = Scene::watching().await;
            scene.server.set(Behaviour { lists, watches, reads: Answers::Well });
            sleep(Duration::from_secs(30)).await;
            scene.server.requests();
            sleep(Duration::from_mins(10)).await;
            let requests = scene.server.requests().len();
            // Four watches, each tried again after some 15 s with a list before it at most.
            assert!(
                (4..=480).contains(&requests),
                "lists {lists:?}, watches {watches:?}: {requests} requests"
            );
        }
    }
}

/// The deletion is far behind what the watches are told, one after the other.
#[tokio::test(start_paused = true)]
async fn events_of_long_ago_are_no_evidence_for_now() {
    let scene = Scene::watching().await;
    *scene.server.version.lock().unwrap() = 10_000;
    scene.server.set(Behaviour { watches: Answers::Backlog, ..WELL });
    scene.server.delete();
    let believed = scene.believed(Duration::from_mins(10)).await;
    assert!(believed.is_none_or(|believed| believed <= BOUND), "{believed:?}");
}

/// The account is deleted after a bookmark was sent and before it has come.
#[tokio::test(start_paused = true)]
async fn a_bookmark_that_comes_late_is_evidence_for_when_it_was_sent() {
    let mut failures = Vec::new();
    for second in 0..20 {
        let scene = Scene::watching().await;
        scene.server.set(Behaviour { watches: Answers::LateBookmark, ..WELL });
        sleep(Duration::from_secs(60 + second)).await;
        scene.server.set(Behaviour { lists: Answers::Never, watches: Answers::Never, reads: Answers::Well });
        scene.server.delete();
        let believed = scene.believed(Duration::from_mins(2)).await;
        if believed.is_some_and(|believed| believed > BOUND) {
            failures.push(format!("after {second} s: {believed:?}"));
        }
    }
    assert!(failures.is_empty(), "believed for too long:\n{}", failures.join("\n"));
}

/// After a restore from a backup a watch from the version that is known is silent and ends in good order.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_went_back_is_listed_anew() {
    for watches in [Answers::Well, Answers::WithoutBookmarks] {
        let scene = Scene::watching().await;
        scene.server.set(Behaviour { watches, ..WELL });
        sleep(Duration::from_mins(1)).await;
        scene.server.restore();
        let believed = scene.believed(Duration::from_mins(3)).await;
        assert!(believed.is_none_or(|believed| believed <= BOUND), "{watches:?}: {believed:?}");
        // The watches go on from the version of the restored API server.
        scene.server.requests();
        sleep(Duration::from_mins(1)).await;
        let watched = scene.server.requests();
        let watched: Vec<_> = watched.iter().filter(|path| path.contains("watch=true")).collect();
        assert!(watched.iter().all(|path| path.ends_with("resourceVersion=2")), "{watched:?}");
        assert!(!watched.is_empty());
    }
}

/// Each list is followed by a watch that is refused because of its version.
#[tokio::test(start_paused = true)]
async fn watches_that_always_expire_do_not_list_everything_in_a_loop() {
    let scene = Scene::watching().await;
    scene.server.set(Behaviour { watches: Answers::Gone, ..WELL });
    sleep(Duration::from_mins(1)).await;
    scene.server.requests();
    sleep(Duration::from_mins(10)).await;
    let requests = scene.server.requests();
    let lists = requests.iter().filter(|path| path.contains("/serviceaccounts?") && path.contains("limit="));
    let lists = lists.count();
    assert!((1..=40).contains(&lists), "{lists} lists in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn secrets_come_in_small_pages() {
    let scene = Scene::watching().await;
    let requests = scene.server.requests();
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

/// Vouches for a token while its account is there.
#[derive(Debug)]
struct OfAccount(Arc<TokenObjectCache>);

impl TokenAuthenticator for OfAccount {
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

/// The bound of docs/authentication.md as a whole: 20 s for a watch that says nothing, and 10 s for a read or for a verdict
/// that is remembered, both of which begin with the lookup.
#[tokio::test(start_paused = true)]
async fn a_token_is_not_let_in_for_longer_than_stated_however_slow_reads_are() {
    const SUM: Duration = Duration::from_secs(30);
    let mut failures = Vec::new();
    let late = [2, 9, 11, 29].map(|seconds| Answers::After(Duration::from_secs(seconds)));
    for reads in [Answers::Well, Answers::Never, Answers::OnlyHead, Answers::SlowBody].into_iter().chain(late)
    {
        // A slow read and what is remembered of it take 35 s: the account is deleted at any time of that.
        for second in (20..56).step_by(3) {
            let Scene { server, lookups, metrics } = Scene::watching().await;
            let lookups = Arc::new(lookups);
            let cache = CachedTokens::new(
                Arc::new(OfAccount(Arc::clone(&lookups))),
                CachePolicy::TOKENS,
                Handle::current(),
                &metrics.token_cache,
                CacheLimits::CLUSTER,
            );
            let cache = Arc::new(cache);
            server.set(Behaviour { lists: Answers::Never, watches: Answers::Never, reads });
            let deleted = Arc::new(Mutex::new(None::<Instant>));
            let last = Arc::new(Mutex::new(Duration::ZERO));
            for step in 0..2 * second + 100 {
                if step == 2 * second {
                    server.delete();
                    *deleted.lock().unwrap() = Some(Instant::now());
                }
                let (cache, deleted, last) = (Arc::clone(&cache), Arc::clone(&deleted), Arc::clone(&last));
                tokio::spawn(async move {
                    let (token, remarks) = (BearerToken::new("token"), AuthnTrace::default());
                    let context = TokenContext { audiences: &[], now: UnixTime::ZERO, trace: &remarks };
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
    assert!(failures.is_empty(), "let in for too long:\n{}", failures.join("\n"));
}
