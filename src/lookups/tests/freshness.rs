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
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::service_fn;

use super::super::*;
use crate::clusters::upstream::testing::upstream;

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
}

#[derive(Debug, Clone, Copy)]
struct Behaviour {
    lists: Answers,
    watches: Answers,
    reads: Answers,
}

struct ApiServer {
    behaviour: Mutex<Behaviour>,
    exists: Mutex<bool>,
    requests: Mutex<usize>,
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
        *self.exists.lock().unwrap() = false;
    }

    fn account(&self) -> Option<Value> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": "team", "name": "builder", "uid": "1", "resourceVersion": "5"},
        });
        self.exists.lock().unwrap().then_some(account)
    }

    async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<Response<AnswerBody>, Infallible> {
        *self.requests.lock().unwrap() += 1;
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
            Answers::Well | Answers::WithoutBookmarks => {}
        }
        let is_accounts = path.ends_with("/serviceaccounts");
        if is_watch {
            let seconds = query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds=")).unwrap();
            let seconds = Duration::from_secs(seconds.parse().unwrap());
            return Ok(Response::new(self.watch(seconds, is_accounts)));
        }
        if is_list {
            let items: Vec<_> = self.account().filter(|_| is_accounts).into_iter().collect();
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items});
            return plain(200, &list);
        }
        if let Some(account) = self.account().filter(|_| path.ends_with("/serviceaccounts/builder")) {
            return plain(200, &account);
        }
        plain(404, &json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}))
    }

    /// A watch that lasts as long as it was asked to, and sends a bookmark two seconds before its end. Once watches are
    /// not answered well, those that are open say nothing more: their connection is frozen.
    fn watch(self: Arc<Self>, seconds: Duration, is_accounts: bool) -> AnswerBody {
        let began = Instant::now();
        let had_account = self.account().is_some();
        let frozen = {
            let server = Arc::clone(&self);
            async move || {
                if !matches!(server.behaviour().watches, Answers::Well | Answers::WithoutBookmarks) {
                    std::future::pending::<()>().await;
                }
            }
        };
        let steps = stream::unfold((0, had_account), move |(step, had_account)| {
            let (server, frozen) = (Arc::clone(&self), frozen.clone());
            async move {
                if is_accounts && had_account && server.account().is_none() {
                    frozen().await;
                }
                let before_end = seconds.saturating_sub(Duration::from_secs(2));
                if step == 0 {
                    // Deletions are told within a second.
                    while Instant::now() < began + before_end {
                        sleep(Duration::from_secs(1)).await;
                        frozen().await;
                        if is_accounts && had_account && server.account().is_none() {
                            let object = json!({
                                "apiVersion": "v1", "kind": "ServiceAccount",
                                "metadata": {"namespace": "team", "name": "builder", "uid": "1", "resourceVersion": "6"},
                            });
                            return Some((line("DELETED", &object), (0, false)));
                        }
                    }
                    if server.behaviour().watches == Answers::Well {
                        let object =
                            json!({"kind": "X", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}});
                        return Some((line("BOOKMARK", &object), (1, had_account)));
                    }
                }
                sleep_until(began + seconds).await;
                frozen().await;
                None
            }
        });
        body(steps)
    }
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
    lookups: Lookups,
    metrics: Arc<Metrics>,
}

impl Scene {
    fn start(behaviour: Behaviour) -> Self {
        let (upstream, metrics) = (Arc::new(upstream()), Arc::new(Metrics::new()));
        let target = &upstream.targets()[0];
        assert!(target.set_trusted(target.trust()));
        let server = Arc::new(ApiServer {
            behaviour: Mutex::new(behaviour),
            exists: Mutex::new(true),
            requests: Mutex::new(0),
        });
        let asked = Arc::clone(&server);
        let client = Client::new(service_fn(move |request| Arc::clone(&asked).answer(request)), "default");
        let needs = Needs { bootstrap_tokens: false, service_accounts: true };
        let lookups = Lookups::asking(client, "c", &upstream, needs, &Handle::current(), &metrics);
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
    async fn is_known(&self) -> Result<bool, LookupError> {
        // A read ends in time by itself: see the tests of the client.
        let reading = timeout(Duration::from_secs(10), self.lookups.service_account("team", "builder"));
        let found = reading.await.unwrap_or_else(|_| Err(LookupError("no answer".to_owned())));
        Ok(found?.is_some())
    }

    async fn is_known_without_a_read(&self) -> bool {
        let before = self.live_reads();
        self.is_known().await == Ok(true) && self.live_reads() == before
    }

    fn live_reads(&self) -> u64 {
        self.metrics.lookups.with_label_values(&["c", "serviceaccounts", "live"]).get()
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

const FAULTS: [Answers; 5] =
    [Answers::BadGateway, Answers::Never, Answers::OnlyHead, Answers::Empty, Answers::Lost];

#[tokio::test(start_paused = true)]
async fn a_deleted_account_is_not_believed_for_longer_than_stated_however_watches_fail() {
    let mut failures = Vec::new();
    for lists in [Answers::Well, Answers::BadGateway, Answers::Never, Answers::OnlyHead, Answers::Lost] {
        for watches in FAULTS {
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
        assert!(!scene.is_known_without_a_read().await, "{watches:?}");
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
            *scene.server.requests.lock().unwrap() = 0;
            sleep(Duration::from_mins(10)).await;
            let requests = *scene.server.requests.lock().unwrap();
            // Four watches, each tried again after some 15 s with a list before it at most.
            assert!(
                (4..=480).contains(&requests),
                "lists {lists:?}, watches {watches:?}: {requests} requests"
            );
        }
    }
}
