//! The rules of following, against an API server that answers as each test says.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::{BoxError, service_fn};

use super::*;
use crate::backend::response_size::ResponseSize;

const SECOND: Duration = Duration::from_secs(1);
const PATH: &str = "/api/v1/namespaces/n/configmaps";

const POLICY: FollowPolicy = FollowPolicy {
    page_size: 2,
    list: TimeLimit::Each(Duration::from_secs(4)),
    watch_seconds: 10,
    head_timeout: Duration::from_secs(5),
    watch: TimeLimit::Whole(Duration::from_secs(15)),
    first_backoff: SECOND,
    max_backoff: Duration::from_secs(8),
    ..FollowPolicy::DEFAULT
};

/// A request to the API server, and when it came.
#[derive(Debug, Clone)]
struct Asked {
    at: Instant,
    query: BTreeMap<String, String>,
}

impl Asked {
    fn get(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    fn is_watch(&self) -> bool {
        self.get("watch") == "true"
    }

    /// Whether it reads the current version.
    fn is_version(&self) -> bool {
        self.get("limit") == "1" && self.get("fieldSelector").is_empty()
    }

    fn limit(&self) -> usize {
        self.get("limit").parse().unwrap()
    }
}

/// How the API server answers a request.
enum Answer {
    Whole(u16, Value),
    /// Pieces of the body, each after a pause, and then the end.
    Pieces(Vec<(Duration, String)>),
    /// The same, without an end.
    Endless(Vec<(Duration, String)>),
    /// Always another event.
    Flood,
    NoHead,
    /// More than the client accepts.
    TooLarge,
}

type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

impl Answer {
    async fn response(self) -> Result<Response<AnswerBody>, BoxError> {
        let (pieces, ends) = match self {
            Self::NoHead => std::future::pending().await,
            Self::TooLarge => return Err(ResponseSize::new(false, 0).add(b"x").unwrap_err().into()),
            Self::Whole(code, body) => {
                let body = Full::from(body.to_string()).map_err(|never: Infallible| match never {});
                return Ok(Response::builder().status(code).body(body.boxed_unsync()).unwrap());
            }
            Self::Flood => {
                let line = Bytes::from(added("flood", 9));
                let lines = stream::repeat_with(move || Ok(Frame::data(line.clone())));
                return Ok(Response::new(StreamBody::new(lines).boxed_unsync()));
            }
            Self::Pieces(pieces) => (pieces, true),
            Self::Endless(pieces) => (pieces, false),
        };
        let pieces = stream::unfold(pieces.into_iter(), move |mut pieces| async move {
            let Some((pause, piece)) = pieces.next() else {
                return if ends { None } else { std::future::pending().await };
            };
            sleep(pause).await;
            Some((Ok(Frame::data(Bytes::from(piece))), pieces))
        });
        Ok(Response::new(StreamBody::new(pieces).boxed_unsync()))
    }
}

/// A resource that is followed, and the requests for it.
struct Followed {
    follow: Follower,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Followed {
    /// `answer` has the number of the request.
    fn start(policy: FollowPolicy, answer: impl Fn(usize, &Asked) -> Answer + Send + 'static) -> Self {
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let seen = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            assert_eq!(request.uri().path(), PATH);
            let query = url::form_urlencoded::parse(request.uri().query().unwrap().as_bytes());
            let request = Asked { at: Instant::now(), query: query.into_owned().collect() };
            let mut seen = seen.lock().unwrap();
            let answer = answer(seen.len(), &request);
            seen.push(request);
            answer.response()
        });
        let field_selector = Some("a=b".to_owned());
        let resource =
            FollowedResource { path: PATH.to_owned(), field_selector, ..FollowedResource::default() };
        Self { follow: Follower::new(Client::new(service, "default"), resource, policy), asked }
    }

    /// The next event, or the error.
    async fn next(&mut self) -> String {
        let names =
            |page: Vec<ConfigMap>| page.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(",");
        match self.follow.next::<ConfigMap>().await {
            Ok(FollowEvent::ListBegins) => "list".to_owned(),
            Ok(FollowEvent::Page(page)) => format!("page {}", names(page)),
            Ok(FollowEvent::Listed { .. }) => "listed".to_owned(),
            Ok(FollowEvent::Applied(object)) => format!("applied {}", object.name_any()),
            Ok(FollowEvent::Deleted(object)) => format!("deleted {}", object.name_any()),
            Ok(FollowEvent::Skipped) => "skipped".to_owned(),
            Ok(FollowEvent::Bookmark { .. }) => "bookmark".to_owned(),
            Ok(FollowEvent::WatchEnded { .. }) => "ended".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    async fn next_are(&mut self, expected: &[&str]) {
        for (index, expected) in expected.iter().enumerate() {
            assert_eq!(self.next().await, *expected, "event {index}");
        }
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn object(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn added(name: &str, version: u64) -> String {
    line("ADDED", &object(name, version))
}

fn bookmark(version: u64) -> String {
    line("BOOKMARK", &json!({"kind": "ConfigMap", "metadata": {"resourceVersion": version.to_string()}}))
}

fn list(version: u64, names: &[&str], next: &str) -> Answer {
    let items: Vec<Value> = names.iter().map(|name| object(name, 1)).collect();
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
    Answer::Whole(200, json!({"metadata": metadata, "items": items}))
}

fn refused(code: u16) -> Answer {
    Answer::Whole(code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "refused"}))
}

/// A watch that is silent and ends regularly.
fn quiet() -> Answer {
    Answer::Pieces(vec![(10 * SECOND, String::new())])
}

/// Whether a back-off of `expected` was made, with its jitter.
fn is_backoff(pause: Duration, expected: Duration) -> bool {
    (expected..=expected.mul_f64(1.2) + Duration::from_millis(10)).contains(&pause)
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_in_pages_and_a_watch_begins_at_its_version() {
    let mut followed = Followed::start(POLICY, |_, asked| match (asked.is_watch(), asked.get("continue")) {
        (true, _) => Answer::Endless(vec![
            (SECOND, added("d", 8)),
            (SECOND, line("MODIFIED", &object("a", 9))),
            (SECOND, line("DELETED", &object("b", 10)) + &bookmark(11)),
        ]),
        (false, "") => list(7, &["a", "b"], "more"),
        (false, _) => list(7, &["c"], ""),
    });
    followed.next_are(&["list", "page a,b", "page c", "listed"]).await;
    followed.next_are(&["applied d", "applied a", "deleted b", "bookmark"]).await;
    let asked = followed.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|asked| asked.get("fieldSelector") == "a=b"), "{asked:?}");
    assert_eq!(["limit", "continue"].map(|name| asked[0].get(name)), ["2", ""]);
    assert_eq!(["limit", "continue"].map(|name| asked[1].get(name)), ["2", "more"]);
    let of_watch = ["resourceVersion", "timeoutSeconds", "allowWatchBookmarks"];
    assert_eq!(of_watch.map(|name| asked[2].get(name)), ["7", "10", "true"]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_large_is_requested_in_parts() {
    let policy = FollowPolicy { page_size: 500, ..POLICY };
    let mut followed = Followed::start(policy, |_, asked| {
        if asked.is_watch() {
            return Answer::NoHead;
        }
        if asked.limit() > 7 {
            return Answer::TooLarge;
        }
        let from: usize = asked.get("continue").parse().unwrap_or_default();
        let names: Vec<String> = (from..40.min(from + asked.limit())).map(|n| n.to_string()).collect();
        let next = from + names.len();
        let next = if next < 40 { next.to_string() } else { String::new() };
        list(7, &names.iter().map(String::as_str).collect::<Vec<_>>(), &next)
    });
    let mut found = Vec::new();
    assert_eq!(followed.next().await, "list");
    loop {
        let event = followed.next().await;
        let Some(page) = event.strip_prefix("page ") else { break assert_eq!(event, "listed") };
        found.extend(page.split(',').map(str::to_owned));
    }
    assert_eq!(found, (0..40).map(|number| number.to_string()).collect::<Vec<_>>());
    let limits: Vec<usize> = followed.asked().iter().map(Asked::limit).collect();
    assert_eq!(limits[..7], [500, 62, 7, 14, 1, 2, 4], "{limits:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_large_by_itself_fails_and_is_not_asked_for_in_a_loop() {
    let mut followed = Followed::start(POLICY, |_, _| Answer::TooLarge);
    assert_eq!(followed.next().await, "list");
    assert!(followed.next().await.contains("larger than"), "a page of one object");
    assert_eq!(followed.asked().iter().map(Asked::limit).collect::<Vec<_>>(), [2, 1]);
    let began = Instant::now();
    assert_eq!(followed.next().await, "list");
    assert!(is_backoff(began.elapsed(), SECOND), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_regularly_is_followed_by_one_from_the_last_version() {
    let mut followed = Followed::start(POLICY, |number, _| match number {
        0 => list(7, &[], ""),
        1 => Answer::Pieces(vec![(SECOND, added("a", 8)), (9 * SECOND, String::new())]),
        2 => Answer::Pieces(vec![(SECOND, added("b", 9) + &bookmark(12)), (9 * SECOND, String::new())]),
        // A server that ends watches at once.
        _ => Answer::Pieces(vec![]),
    });
    followed.next_are(&["list", "page ", "listed", "applied a", "ended"]).await;
    followed.next_are(&["applied b", "bookmark", "ended", "ended", "ended"]).await;
    let asked = followed.asked();
    let versions: Vec<_> = asked[1..].iter().map(|asked| asked.get("resourceVersion")).collect();
    assert_eq!(versions, ["7", "8", "12", "12"]);
    assert_eq!(asked[4].at - asked[3].at, MIN_INTERVAL, "the pause after a watch that ends at once");
    assert!(!followed.follow.is_failing());
}

#[tokio::test(start_paused = true)]
async fn a_policy_may_list_again_after_each_watch_with_a_new_client() {
    let policy = FollowPolicy { resumes: false, ..POLICY };
    let mut followed =
        Followed::start(policy, |_, asked| if asked.is_watch() { quiet() } else { list(7, &["a"], "") });
    let connects = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&connects);
    let connect = std::mem::replace(&mut followed.follow.connect, Box::new(|| unreachable!()));
    followed.follow.connect = Box::new(move || {
        let mut count = counted.lock().unwrap();
        *count += 1;
        if *count == 3 { Err(FollowError::Description("no connection".to_owned())) } else { connect() }
    });
    for _ in 0..2 {
        followed.next_are(&["list", "page a", "listed", "ended"]).await;
    }
    followed.next_are(&["no connection", "list", "page a", "listed"]).await;
    assert_eq!(*connects.lock().unwrap(), 4);
}

/// As the status of a watch, and as an event of one.
#[tokio::test(start_paused = true)]
async fn an_expired_version_is_followed_by_a_list_and_never_by_lists_in_a_loop() {
    for is_event in [false, true] {
        let mut followed = Followed::start(POLICY, move |number, asked| {
            let status = json!({"kind": "Status", "code": 410, "message": "too old resource version"});
            match number {
                1 if is_event => Answer::Pieces(vec![(SECOND, added("a", 8) + &line("ERROR", &status))]),
                _ if !asked.is_watch() => list(20, &[], ""),
                _ if is_event => Answer::Pieces(vec![(Duration::ZERO, line("ERROR", &status))]),
                _ => refused(410),
            }
        });
        followed.next_are(&["list", "page ", "listed"]).await;
        if is_event {
            followed.next_are(&["applied a"]).await;
        }
        let expired = "the resourceVersion of the watch is too old";
        for pause in [1, 2, 4, 8, 8].map(Duration::from_secs) {
            followed.next_are(&[expired]).await;
            assert!(followed.follow.is_failing());
            let began = Instant::now();
            followed.next_are(&["list"]).await;
            assert!(is_backoff(began.elapsed(), pause), "after {:?}, not {pause:?}", began.elapsed());
            followed.next_are(&["page ", "listed"]).await;
        }
        let watches = followed.asked().into_iter().filter(Asked::is_watch);
        let versions: Vec<_> = watches.map(|asked| asked.get("resourceVersion").to_owned()).collect();
        assert_eq!(versions, ["20"; 5], "event {is_event}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_until_a_watch_works() {
    let fails = Arc::new(Mutex::new([true, true]));
    let now = Arc::clone(&fails);
    let mut followed = Followed::start(POLICY, move |_, asked| {
        let [lists, watches] = *now.lock().unwrap();
        match asked.is_watch() {
            false if lists => refused(500),
            false => list(7, &[], ""),
            true if watches => refused(500),
            true => Answer::Pieces(vec![(SECOND, added("a", 8))]),
        }
    });
    let set = |lists, watches| *fails.lock().unwrap() = [lists, watches];
    followed.next_are(&["list"]).await;
    for pause in [1, 2, 4, 8, 8].map(Duration::from_secs) {
        assert!(followed.next().await.starts_with("the list failed: "));
        let began = Instant::now();
        followed.next_are(&["list"]).await;
        assert!(is_backoff(began.elapsed(), pause), "after {:?}, not {pause:?}", began.elapsed());
    }
    // Only lists had failed.
    set(false, true);
    followed.next_are(&["page ", "listed"]).await;
    assert!(!followed.follow.is_failing());
    for pause in [1, 2, 4].map(Duration::from_secs) {
        assert!(followed.next().await.starts_with("the watch failed: "));
        followed.follow.list_again();
        let began = Instant::now();
        followed.next_are(&["list", "page ", "listed"]).await;
        assert!(is_backoff(began.elapsed(), pause), "after {:?}, not {pause:?}", began.elapsed());
        // A list does not show that watches work.
        assert!(followed.follow.is_failing());
    }
    set(true, false);
    followed.next_are(&["applied a", "ended"]).await;
    assert!(!followed.follow.is_failing());
    set(true, true);
    assert!(followed.next().await.starts_with("the watch failed: "));
    set(true, false);
    let began = Instant::now();
    followed.next_are(&["applied a"]).await;
    assert!(is_backoff(began.elapsed(), 2 * SECOND), "one second after the back-off: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_far_end_that_falls_silent_is_given_up_at_each_step() {
    let cases = [
        ("list head", 0, "a page of the list did not arrive within 4s", 4, "list"),
        ("list body", 0, "a page of the list did not arrive within 4s", 4, "list"),
        ("watch head", 1, "no response to the watch within 5s", 5, "again"),
        ("watch body", 1, "the watch of 10s did not end, even 5s later", 15, "again"),
    ];
    for (case, silent, error, seconds, after) in cases {
        let mut followed = Followed::start(POLICY, move |number, asked| {
            if number == silent {
                return if case.ends_with("head") { Answer::NoHead } else { Answer::Endless(vec![]) };
            }
            if asked.is_watch() {
                Answer::Endless(vec![(SECOND, added("again", 9))])
            } else {
                list(7, &[], "")
            }
        });
        followed.next_are(&["list"]).await;
        if silent == 1 {
            followed.next_are(&["page ", "listed"]).await;
        }
        let began = Instant::now();
        assert_eq!(followed.next().await, error, "{case}");
        assert_eq!(began.elapsed(), Duration::from_secs(seconds), "{case}");
        let next = followed.next().await;
        assert_eq!(next.trim_start_matches("applied "), after, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_is_for_each_event_or_page_or_for_all_of_them() {
    let slowly = |number: u64| (4 * SECOND, added("a", 8 + number));
    for (is_whole, events) in [(true, 3), (false, 20)] {
        let limit = |seconds| {
            let kind = if is_whole { TimeLimit::Whole } else { TimeLimit::Each };
            kind(Duration::from_secs(seconds))
        };
        let policy = FollowPolicy { watch: limit(15), list: limit(7), ..POLICY };
        let mut followed = Followed::start(policy, move |number, asked| match (asked.is_watch(), number) {
            (true, _) => Answer::Endless((0..20).map(slowly).collect()),
            (false, 0..3) => {
                let body = json!({"metadata": {"continue": number.to_string()}, "items": []}).to_string();
                Answer::Pieces(vec![(3 * SECOND, body)])
            }
            (false, _) => list(7, &[], ""),
        });
        followed.next_are(&["list", "page ", "page "]).await;
        if is_whole {
            followed.next_are(&["a page of the list did not arrive within 7s", "list"]).await;
            followed.next_are(&["page ", "listed"]).await;
        } else {
            followed.next_are(&["page ", "page ", "listed"]).await;
        }
        for _ in 0..events {
            assert_eq!(followed.next().await, "applied a");
        }
        followed.next_are(&["the watch of 10s did not end, even 5s later"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_an_event_always_ready_ends_at_its_deadline() {
    let mut followed =
        Followed::start(POLICY, |number, _| if number == 1 { Answer::Flood } else { list(7, &[], "") });
    followed.next_are(&["list", "page ", "listed", "applied flood", "applied flood"]).await;
    tokio::time::advance(15 * SECOND).await;
    followed.next_are(&["the watch of 10s did not end, even 5s later"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_page_with_more_objects_than_the_policy_permits_fails() {
    for (count, fits) in [(3, true), (4, false)] {
        let policy = FollowPolicy { max_objects: 3, ..POLICY };
        let mut followed = Followed::start(policy, move |_, _| list(7, &["a", "b", "c", "d"][..count], ""));
        followed.next_are(&["list"]).await;
        let next = followed.next().await;
        assert_eq!(next.starts_with("page a,b,c"), fits, "{next}");
        assert_eq!(next.contains("at most 3 objects"), !fits, "{next}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_without_items_is_no_empty_list() {
    for (items, expected) in [(None, false), (Some(json!(null)), true), (Some(json!("a")), false)] {
        let mut body = json!({"metadata": {"resourceVersion": "7"}});
        if let Some(items) = items {
            body["items"] = items;
        }
        let mut followed = Followed::start(POLICY, move |_, _| Answer::Whole(200, body.clone()));
        followed.next_are(&["list"]).await;
        let next = followed.next().await;
        assert_eq!(next == "page ", expected, "{next}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_too_large_is_skipped_or_everything_is_listed_again() {
    for skips_large_events in [true, false] {
        let policy = FollowPolicy { max_event: 200, skips_large_events, ..POLICY };
        let mut followed = Followed::start(policy, move |_, asked| {
            if !asked.is_watch() {
                return list(7, &[], "");
            }
            let large = added(&"x".repeat(1000), 8);
            let (part, rest) = large.split_at(500);
            let pieces = [part.to_owned(), rest.to_owned() + &added("small", 9)];
            Answer::Endless(pieces.map(|piece| (SECOND, piece)).into())
        });
        followed.next_are(&["list", "page ", "listed"]).await;
        let refused = ["an event of the watch is larger than 200 bytes", "list"];
        let skipped = ["skipped", "applied small"];
        followed.next_are(&if skips_large_events { skipped } else { refused }).await;
    }
}

/// Objects that cannot be read, or have no version.
#[tokio::test(start_paused = true)]
async fn an_event_that_would_fail_again_is_followed_by_a_list() {
    let nameless = json!({"metadata": {"name": "a"}});
    for (event, error) in [
        ("{}\n".to_owned(), "the watch failed: "),
        (line("ADDED", &json!({"metadata": 1})), "the watch failed: "),
        (line("OTHER", &object("a", 8)), "the watch failed: "),
        (line("ADDED", &nameless), "the list has no resourceVersion"),
        (line("ERROR", &json!({"code": 500, "message": "no"})), "the watch ended with no"),
    ] {
        let sent = event.clone();
        let mut followed = Followed::start(POLICY, move |number, _| match number {
            1 => Answer::Pieces(vec![(SECOND, sent.clone())]),
            2 => Answer::NoHead,
            _ => list(7, &[], ""),
        });
        followed.next_are(&["list", "page ", "listed"]).await;
        let found = followed.next().await;
        assert!(found.starts_with(error), "{event}: {found}");
        let is_list = error != "the watch ended with no";
        assert_eq!(followed.next().await == "list", is_list, "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_without_room_are_listed_again_after_the_back_off() {
    let mut followed =
        Followed::start(POLICY, |_, asked| if asked.is_watch() { quiet() } else { list(7, &["a", "b"], "") });
    let mut seen = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        loop {
            let taken = followed.follow.next_into(|event: FollowEvent<ConfigMap>| {
                seen.push(began.elapsed().as_secs());
                match event {
                    FollowEvent::Page(_) => Err(FollowError::Description("full".to_owned())),
                    _ => Ok(()),
                }
            });
            if let Err(error) = taken.await {
                break assert_eq!(error.to_string(), "full");
            }
        }
    }
    assert_eq!(seen, [0, 0, 1, 1, 2, 2], "each list begins after the back-off");
}

#[tokio::test(start_paused = true)]
async fn a_failure_may_be_forgiven() {
    let mut followed =
        Followed::start(POLICY, |_, asked| if asked.is_watch() { refused(500) } else { list(7, &[], "") });
    followed.next_are(&["list", "page ", "listed"]).await;
    for _ in 0..5 {
        assert!(followed.next().await.starts_with("the watch failed"));
        followed.follow.forgive();
        assert!(!followed.follow.is_failing());
    }
    let watches: Vec<_> = followed.asked()[1..].iter().map(|asked| asked.at).collect();
    assert!(watches.windows(2).all(|pair| pair[1] - pair[0] == MIN_INTERVAL), "{watches:?}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_told_from_other_failures() {
    for (code, watch, expected) in
        [(403, false, true), (403, true, true), (401, true, false), (500, false, false)]
    {
        let mut followed =
            Followed::start(
                POLICY,
                move |_, asked| {
                    if asked.is_watch() == watch { refused(code) } else { list(7, &[], "") }
                },
            );
        let error = loop {
            if let Err(error) = followed.follow.next::<ConfigMap>().await {
                break error;
            }
        };
        assert_eq!(error.is_forbidden(), expected, "{error}");
        assert!(error.of_request().is_some());
    }
}

/// Each piece of an event arrives while another future is ready first.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_loses_nothing() {
    let mut followed = Followed::start(POLICY, |number, _| {
        if number == 0 {
            return list(7, &["a"], "");
        }
        let text = added("b", 8) + &added("c", 9) + &bookmark(10);
        let pieces = text.as_bytes().chunks(7).map(|piece| String::from_utf8(piece.to_vec()).unwrap());
        Answer::Endless(pieces.map(|piece| (Duration::from_millis(30), piece)).collect())
    });
    let mut seen = Vec::new();
    while seen.len() < 6 {
        tokio::select! {
            biased;
            () = sleep(Duration::from_millis(7)) => {}
            event = followed.next() => seen.push(event),
        }
    }
    assert_eq!(seen, ["list", "page a", "listed", "applied b", "applied c", "bookmark"]);
    assert_eq!(followed.asked().len(), 2);
}

const PROVEN: FollowPolicy = FollowPolicy { proves: true, ..POLICY };

/// What a watch must show before it proves that no event is missing.
#[tokio::test(start_paused = true)]
async fn only_a_complete_watch_proves_that_no_event_is_missing() {
    let busy = || (0..20).map(|number| (SECOND / 2, added("x", 8 + number))).collect::<Vec<_>>();
    let cases: [(&str, Answer, Answer, &str, bool); 9] = [
        ("a bookmark", pieces(8, bookmark(9), 2), Answer::NoHead, "ended", false),
        ("silence, and the same version", quiet(), list(7, &[], ""), "ended", true),
        ("silence, and a later version", quiet(), list(20, &[], ""), "ended", true),
        (
            "an earlier version",
            quiet(),
            list(6, &[], ""),
            "the API server is at resourceVersion \"6\", before \"7\", which it reported earlier",
            true,
        ),
        ("no version", quiet(), Answer::NoHead, "no response to the watch within 5s", true),
        ("an early end", pieces(3, bookmark(9), 1), Answer::NoHead, "the watch ended before its time", false),
        (
            "no pause",
            Answer::Pieces(busy()),
            list(99, &[], ""),
            "the watch sent events without a pause, and no bookmark",
            false,
        ),
        ("a pause before the events", pieces(6, added("x", 9), 4), list(9, &[], ""), "ended", true),
        (
            "no end",
            Answer::Endless(vec![]),
            Answer::NoHead,
            "the watch of 10s did not end, even 5s later",
            false,
        ),
    ];
    for (case, watch, version, expected, reads_version) in cases {
        let answers = Mutex::new(vec![version, watch, list(7, &[], "")]);
        let mut followed =
            Followed::start(PROVEN, move |_, _| answers.lock().unwrap().pop().unwrap_or(Answer::NoHead));
        followed.next_are(&["list", "page ", "listed"]).await;
        let mut next = followed.next().await;
        while next.starts_with("applied") || next == "bookmark" {
            next = followed.next().await;
        }
        assert_eq!(next, expected, "{case}");
        assert_eq!(followed.asked().last().unwrap().is_version(), reads_version, "{case}");
        assert_eq!(followed.follow.is_failing(), expected != "ended", "{case}");
    }
}

/// A pause, a piece, and another pause before the end.
fn pieces(before: u32, piece: String, after: u32) -> Answer {
    Answer::Pieces(vec![(before * SECOND, piece), (after * SECOND, String::new())])
}

/// A bookmark, or the end, that is late on its way proves nothing of the time of its way.
#[tokio::test(start_paused = true)]
async fn evidence_is_of_the_time_of_the_request() {
    let mut followed = Followed::start(PROVEN, |number, _| match number {
        0 => Answer::Pieces(vec![(
            3 * SECOND,
            json!({"metadata": {"resourceVersion": "7"}, "items": []}).to_string(),
        )]),
        _ => pieces(12, bookmark(9), 2),
    });
    let (mut evidence, mut began) = (Vec::new(), Vec::new());
    while evidence.len() < 3 {
        match followed.follow.next::<ConfigMap>().await.unwrap() {
            FollowEvent::Listed { requested_at, .. }
            | FollowEvent::Bookmark { requested_at }
            | FollowEvent::WatchEnded { requested_at } => evidence.push(requested_at),
            _ => {}
        }
    }
    began.extend(followed.asked().iter().map(|asked| asked.at));
    assert_eq!(evidence, [began[0], began[1], began[1]]);
    assert!(Instant::now() - evidence[2] >= 14 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn versions_that_go_back_cause_a_list_where_proof_is_demanded() {
    for proves in [true, false] {
        for (event, expected) in [(added("a", 6), "applied a"), (bookmark(6), "bookmark")] {
            let mut followed =
                Followed::start(FollowPolicy { proves, ..POLICY }, move |number, _| match number {
                    1 => Answer::Endless(vec![(SECOND, event.clone())]),
                    _ => list(7, &[], ""),
                });
            followed.next_are(&["list", "page ", "listed"]).await;
            let error = "the API server is at resourceVersion \"6\", before \"7\", which it reported earlier";
            let expected = if proves { vec![error, "list"] } else { vec![expected] };
            followed.next_are(&expected).await;
        }
    }
}

/// An event arrives before each failure.
#[tokio::test(start_paused = true)]
async fn where_proof_is_demanded_an_event_does_not_end_the_back_off() {
    for (proves, expected) in [(true, [1, 2, 4]), (false, [1, 1, 1])] {
        let mut followed = Followed::start(FollowPolicy { proves, ..POLICY }, |number, _| match number {
            0 => list(7, &[], ""),
            _ => Answer::Pieces(vec![(
                SECOND,
                added("a", 8) + &line("ERROR", &json!({"code": 500, "message": "no"})),
            )]),
        });
        followed.next_are(&["list", "page ", "listed", "applied a"]).await;
        for pause in expected.map(Duration::from_secs) {
            followed.next_are(&["the watch ended with no"]).await;
            let began = Instant::now();
            followed.next_are(&["applied a"]).await;
            let waited = began.elapsed().saturating_sub(SECOND);
            assert!(is_backoff(waited, pause), "{waited:?}, not {pause:?}");
        }
    }
}

#[test]
fn versions_are_numbers_of_any_length() {
    for (version, other, expected) in [
        ("9", "10", true),
        ("10", "9", false),
        ("10", "10", false),
        ("18446744073709551616", "18446744073709551615", false),
        ("", "1", true),
        ("1", "", true),
        ("x", "1", true),
        ("-1", "1", true),
    ] {
        assert_eq!(is_before(version, other), expected, "{version:?} and {other:?}");
    }
}
