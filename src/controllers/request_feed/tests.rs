//! The keys that a feed delivers, and its handling of an API server that answers late, with too much, or not at all.

use std::sync::Mutex;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Request as HttpRequest, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::service_fn;
use tracing::instrument::WithSubscriber as _;

use super::*;
use crate::backend::bounded_client::bounded;
use crate::backend::follow::PagedList;
use crate::controllers::csr::summary::CsrSummary;
use crate::controllers::csr::testing::CapturedLog;
use crate::controllers::csr::{APPROVED, DENIED, PATH, requests};
use crate::controllers::testing::{FakeCluster, Silent};

const SIGNER: &str = "example.com/mine";

fn request(signer: &str, user: &str, status: &Value) -> Value {
    json!({"spec": {"signerName": signer, "username": user, "request": "AA=="}, "status": status})
}

fn conditions(kinds: &[&str]) -> Value {
    let each = kinds.iter().map(|kind| json!({"type": kind, "status": "True"}));
    json!({"conditions": each.collect::<Vec<_>>()})
}

fn is_approved(summary: &CsrSummary) -> bool {
    let conditions = summary.conditions();
    conditions.approved.is_there && !conditions.denied.is_there && !summary.is_issued()
}

/// A feed of the signer's approved requests.
fn feed<'a>(context: &'a ControllerContext, forgotten: &'a AtomicU64) -> RequestFeed<'a, CsrSummary> {
    RequestFeed {
        context,
        controller: ControllerName::CsrSigning,
        path: PATH,
        signers: vec![SIGNER.to_owned()],
        is_wanted: is_approved,
        forgotten,
        absent: None,
    }
}

/// The names that a feed delivers within `lasting`.
async fn names(context: &ControllerContext, lasting: Duration) -> Vec<String> {
    let forgotten = AtomicU64::new(0);
    let (keys, feeding) = feed(context, &forgotten).start();
    let mut names = Vec::new();
    let taking = keys.for_each(|key| {
        names.push(key.name.to_string());
        std::future::ready(())
    });
    timeout(lasting, async { tokio::join!(taking, feeding) }).await.unwrap_err();
    names
}

#[tokio::test(start_paused = true)]
async fn only_requests_that_need_work_are_delivered() {
    let cluster = FakeCluster::new();
    let mut issued = conditions(&[APPROVED]);
    issued["certificate"] = json!("AA==");
    for (name, signer, status) in [
        ("approved", SIGNER, conditions(&[APPROVED])),
        ("pending", SIGNER, json!({})),
        ("denied", SIGNER, conditions(&[APPROVED, DENIED])),
        ("issued", SIGNER, issued),
        ("another", "example.com/other", conditions(&[APPROVED])),
    ] {
        cluster.put(&format!("{PATH}/{name}"), request(signer, "alice", &status));
    }
    let context = cluster.context();
    let later = async {
        sleep(Duration::from_secs(5)).await;
        cluster.put(&format!("{PATH}/pending"), request(SIGNER, "alice", &conditions(&[APPROVED])));
    };
    let (names, ()) = tokio::join!(names(&context, Duration::from_secs(10)), later);
    assert_eq!(names, ["approved", "pending"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_stops_answering_is_logged_once_and_retried_until_it_answers() {
    for far_end in Silent::ALL {
        let cluster = FakeCluster::new();
        cluster.put(&format!("{PATH}/listed"), request(SIGNER, "alice", &conditions(&[APPROVED])));
        let mut context = cluster.context();
        context.client = far_end.client(context.client);
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let failing = || {
            let labels = ["c", "csrsigning", SIGNER];
            context.metrics.controllers.watch_failing.with_label_values(&labels).get()
        };
        let seen = Mutex::new(Vec::new());
        let looking = async {
            sleep(Duration::from_mins(5)).await;
            seen.lock().unwrap().push(failing());
            sleep(Duration::from_mins(7)).await;
            cluster.put(&format!("{PATH}/watched"), request(SIGNER, "alice", &conditions(&[APPROVED])));
            sleep(Duration::from_mins(1)).await;
            seen.lock().unwrap().push(failing());
        };
        let names = names(&context, Duration::from_mins(14)).with_subscriber(log);
        let (names, ()) = tokio::join!(names, looking);
        assert_eq!(*seen.lock().unwrap(), [1, 0], "{far_end:?}: the metric");
        assert!(
            ["listed", "watched"].iter().all(|name| names.contains(&(*name).to_owned())),
            "{far_end:?}: {names:?}"
        );
        let text = lines.text();
        let logged = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!((logged("cannot watch"), logged("watching again")), (1, 1), "{far_end:?}: {text}");
        assert!(text.contains("does not answer in time"), "{far_end:?}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_always_expire_do_not_cause_lists_in_a_loop() {
    let lists = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lists);
    let service = service_fn(move |request: HttpRequest<Body>| {
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
        counted.fetch_add(u64::from(!is_watch), Ordering::Relaxed);
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": []});
        let expired = json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410});
        let (code, body) = if is_watch { (410, expired) } else { (200, list) };
        let body = Body::from(body.to_string().into_bytes());
        let response = Response::builder().status(code).body(body).unwrap();
        async move {
            sleep(Duration::from_millis(1)).await;
            Ok::<_, Infallible>(response)
        }
    });
    let mut context = FakeCluster::new().context();
    context.client = kube::Client::new(service, "default");
    assert_eq!(names(&context, Duration::from_mins(10)).await, [""; 0]);
    let lists = lists.load(Ordering::Relaxed);
    assert!((15..=30).contains(&lists), "{lists} lists in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_page_of_large_objects_is_requested_again_with_a_smaller_limit() {
    const OBJECTS: usize = 40;
    let limits = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&limits);
    let service = service_fn(move |request: HttpRequest<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let query: std::collections::BTreeMap<_, _> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let limit: usize = query["limit"].parse().unwrap();
        let from: usize = query.get("continue").map_or(0, |token| token.parse().unwrap());
        asked.lock().unwrap().push(limit);
        let to = (from + limit).min(OBJECTS);
        let object = |number| {
            json!({"metadata": {"name": format!("csr-{number}")},
                "spec": {"signerName": SIGNER, "request": "A".repeat(500_000)}})
        };
        let items: Vec<Value> = (from..to).map(object).collect();
        let token = if to < OBJECTS { to.to_string() } else { String::new() };
        let list = json!({"metadata": {"resourceVersion": "7", "continue": token}, "items": items});
        let body = Body::from(list.to_string().into_bytes());
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let client = bounded(kube::Client::new(service, "default"));
    let mut pages = PagedList::new(requests(None), &POLICY);
    let mut names = Vec::new();
    while let Some(page) = pages.next::<CsrSummary>(&client).await.unwrap() {
        names.extend(page.into_iter().map(|summary| summary.key_text().into_owned()));
    }
    assert_eq!(names.len(), OBJECTS);
    assert_eq!(pages.version(), "7");
    let limits = limits.lock().unwrap();
    assert_eq!(limits[..4], [500, 62, 7, 14], "{limits:?}");
}

/// A client of an API server whose list and watch have one large object: 1.5 MiB in etcd, six times as much in Go's
/// JSON.
fn with_a_large_object(watched: usize) -> kube::Client {
    let object = |name: &str, version: u32, filler: &str| {
        format!(
            r#"{{"metadata":{{"generateName":"{filler}","name":"{name}","resourceVersion":"{version}"}},"spec":{{"signerName":"{SIGNER}"}},"status":{}}}"#,
            conditions(&[APPROVED])
        )
    };
    let filler = r"\u003c".repeat(3 << 19);
    let listed = [object("large", 1, &filler), object("listed", 2, "")];
    let events = [object("large-too", 8, &r"\u003c".repeat(watched)), object("watched", 9, "")];
    let events = events.map(|object| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n"));
    let (listed, events) = (Arc::new(listed), Arc::new(events));
    let service = service_fn(move |request: HttpRequest<Body>| {
        let query: std::collections::BTreeMap<_, _> =
            url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let body = if query.contains_key("watch") {
            let missed = if query["resourceVersion"] == "7" { events.concat() } else { String::new() };
            let sent = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(missed)))]);
            StreamBody::new(sent.chain(futures_util::stream::pending())).boxed_unsync()
        } else {
            let limit: usize = query["limit"].parse().unwrap();
            let from: usize = query.get("continue").map_or(0, |token| token.parse().unwrap());
            let to = (from + limit).min(listed.len());
            let token = if to < listed.len() { to.to_string() } else { String::new() };
            let items = listed[from..to].join(",");
            let list =
                format!(r#"{{"metadata":{{"resourceVersion":"7","continue":"{token}"}},"items":[{items}]}}"#);
            Full::new(Bytes::from(list)).boxed_unsync()
        };
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    bounded(kube::Client::new(service, "default"))
}

#[tokio::test(start_paused = true)]
async fn an_object_of_the_maximum_size_does_not_block_others() {
    // The largest object that etcd stores, and an event larger than any API server sends: the latter causes a new list.
    for (watched, expected) in
        [(3 << 19, &["large", "listed", "watched"][..]), (3 << 20, &["large", "listed", "large", "listed"])]
    {
        let mut context = FakeCluster::new().context();
        context.client = with_a_large_object(watched);
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let names = names(&context, Duration::from_millis(1500)).with_subscriber(log).await;
        assert_eq!(names, expected);
        let text = lines.text();
        assert_eq!(text.lines().filter(|line| line.contains("WARN")).count(), 1, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_name_is_too_long_is_skipped() {
    let cluster = FakeCluster::new();
    let longest = "n".repeat(253);
    for name in [&longest, &"o".repeat(254), &"p".repeat(100_000)] {
        cluster.put(&format!("{PATH}/{name}"), request(SIGNER, "alice", &conditions(&[APPROVED])));
    }
    let context = cluster.context();
    let lines = CapturedLog::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let names = names(&context, Duration::from_secs(5)).with_subscriber(log).await;
    assert_eq!(names, [longest]);
    let text = lines.text();
    assert_eq!((text.lines().count(), text.contains("WARN")), (1, true), "{text}");
    assert!(text.len() < 2000, "{text}");
}

/// Go's continue token after an object whose name is `character` repeated `count` times.
fn go_token(character: &str, count: usize) -> String {
    let name = character.repeat(count).replace('<', r"\u003c");
    let token = format!(r#"{{"v":"meta.k8s.io/v1","rv":7,"start":"{name}\u0000"}}"#);
    BASE64_URL_SAFE_NO_PAD.encode(token)
}

#[tokio::test(start_paused = true)]
async fn a_list_continues_after_a_name_that_is_too_long_for_a_url() {
    for (character, count, next) in
        [("a", 1_000_000, "b"), ("<", 100_000, "="), (".", 100_000, "0"), ("\u{10ffff}", 100_000, "")]
    {
        let starts = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&starts);
        let service = service_fn(move |request: HttpRequest<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let query: std::collections::BTreeMap<_, _> =
                url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
            let token = match query.get("continue") {
                None => go_token(character, count),
                Some(token) => {
                    let token = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap();
                    let token: Value = serde_json::from_slice(&token).unwrap();
                    assert_eq!((&token["v"], &token["rv"]), (&json!("meta.k8s.io/v1"), &json!(7)));
                    asked.lock().unwrap().push(token["start"].as_str().unwrap().to_owned());
                    String::new()
                }
            };
            let list = json!({"metadata": {"continue": token}, "items": [{"metadata": {"name": "one"}}]});
            let body = Body::from(list.to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let client = bounded(kube::Client::new(service, "default"));
        let mut pages = PagedList::new(requests(None), &POLICY);
        let mut found = 0;
        while let Some(page) = pages.next::<CsrSummary>(&client).await.unwrap() {
            found += page.len();
        }
        let starts = starts.lock().unwrap();
        if next.is_empty() {
            // No name can follow.
            assert_eq!((found, starts.len()), (1, 0));
            continue;
        }
        assert_eq!((found, starts.len()), (2, 1));
        let (start, name) = (&starts[0], character.repeat(count));
        // After that name, and before all names with another prefix.
        assert!(*start > name && start.len() >= 254 && start.ends_with(next), "{}", start.len());
        assert!(name.starts_with(start.strip_suffix(next).unwrap()));
    }
}

/// A client of an API server that lists these names in pages of one, with Go's continue tokens, and at most 20 pages.
fn with_names(names: &[&[u8]], pages: Arc<AtomicU64>) -> kube::Client {
    let mut names: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
    names.sort();
    let service = service_fn(move |request: HttpRequest<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let query: std::collections::BTreeMap<_, _> =
            url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let start = query.get("continue").map_or(String::new(), |token| {
            let token = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap();
            let token: Value = serde_json::from_slice(&token).unwrap();
            token["start"].as_str().unwrap().to_owned()
        });
        let clean = ![".", ".."].contains(&start.as_str());
        let mut rest = names.iter().filter(|name| name.as_slice() >= start.as_bytes());
        let mut items = Vec::new();
        let mut token = String::new();
        if let Some(name) = rest.next().filter(|_| clean) {
            let name = String::from_utf8_lossy(name);
            if rest.next().is_some() && pages.fetch_add(1, Ordering::Relaxed) < 20 {
                token = go_token(&name, 1);
            }
            let metadata = json!({"name": name, "resourceVersion": "1"});
            items.push(json!({"metadata": metadata, "spec": {"signerName": SIGNER}, "status": conditions(&[APPROVED])}));
        }
        let list = json!({"metadata": {"resourceVersion": "7", "continue": token}, "items": items});
        let answer = Response::builder().status(if clean { 200 } else { 400 });
        std::future::ready(Ok::<_, Infallible>(
            answer.body(Body::from(list.to_string().into_bytes())).unwrap(),
        ))
    });
    bounded(kube::Client::new(service, "default"))
}

#[tokio::test(start_paused = true)]
async fn a_list_continues_after_a_name_that_is_not_utf_8() {
    let cases: [(&[&[u8]], &[&str]); 5] = [
        (&[b"a\xff0", b"a\xff1", b"ab", b"b"], &["ab", "a\u{fffd}0", "b"]),
        (
            &[b"a\x80\x80", b"a\xc3(", "a\u{e9}".as_bytes(), b"az", b"b\xffb", b"c"],
            &["az", "a\u{fffd}\u{fffd}", "b\u{fffd}b", "c"],
        ),
        (
            &[b"-\xff0", b"-\xff1", b".\xff", b".-\xff", b"..\xff", b"0"],
            &["-\u{fffd}0", ".-\u{fffd}", "..\u{fffd}", ".\u{fffd}", "0"],
        ),
        (&[b"z", b"\xff0", b"\xff1"], &["z", "\u{fffd}0"]),
        (&["a\u{fffd}".as_bytes(), b"b"], &["a\u{fffd}", "b"]),
    ];
    for (names, expected) in cases {
        let pages = Arc::new(AtomicU64::new(0));
        let mut context = FakeCluster::new().context();
        context.client = with_names(names, Arc::clone(&pages));
        let lines = CapturedLog::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let feed = RequestFeed {
            context: &context,
            controller: ControllerName::CsrSigning,
            path: PATH,
            signers: vec![SIGNER.to_owned()],
            is_wanted: is_approved,
            forgotten: &AtomicU64::new(0),
            absent: None,
        };
        let (sender, mut receiver) = mpsc::channel(100);
        let requesters = RandomState::new();
        let mut follower = SignerFollower {
            feed: &feed,
            signer: SIGNER,
            requesters: &requesters,
            sender,
            follow: feed.follow(SIGNER),
            listed: Instant::now(),
            forgotten: 0,
            has_logged_skip: false,
        };
        let listing = async {
            while follower.follow.listed_version().is_none() {
                follower.step().await;
            }
        };
        listing.with_subscriber(log).await;
        assert_eq!(follower.follow.listed_version(), Some("7"));
        drop(follower);
        let mut found = Vec::new();
        while let Some(key) = receiver.recv().await {
            found.push(key.name.to_string());
        }
        assert_eq!(found, expected);
        let text = lines.text();
        assert_eq!((text.lines().count(), text.contains("not UTF-8")), (1, true), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_continue_token_does_not_advance_fails() {
    let go = |name: &str| go_token(name, 1);
    let cases = [
        ("the same token", vec![go("b"), go("b")], false),
        ("an earlier token", vec![go("b"), go("a")], false),
        ("a later token", vec![go("a"), go("b"), String::new()], true),
        ("the same token in another format", vec!["x".to_owned(), "x".to_owned()], false),
        ("another token in another format", vec!["y".to_owned(), "x".to_owned(), String::new()], true),
    ];
    for (case, tokens, expected) in cases {
        let asked = AtomicU64::new(0);
        let service = service_fn(move |_: HttpRequest<Body>| {
            let number = usize::try_from(asked.fetch_add(1, Ordering::Relaxed)).unwrap();
            let token = tokens.get(number).cloned().unwrap_or_default();
            let list = json!({"metadata": {"continue": token}, "items": []});
            let body = Body::from(list.to_string().into_bytes());
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let client = kube::Client::new(service, "default");
        let mut pages = PagedList::new(requests(None), &POLICY);
        let end = loop {
            match pages.next::<CsrSummary>(&client).await {
                Ok(Some(_)) => {}
                end => break end,
            }
        };
        assert_eq!(end.is_ok(), expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_page_with_more_objects_than_the_limit_fails() {
    for (count, expected) in [(500, true), (501, false)] {
        let list = format!(r#"{{"metadata":{{}},"items":[{}]}}"#, vec!["{}"; count].join(","));
        let service = service_fn(move |_: HttpRequest<Body>| {
            let body = Body::from(list.clone().into_bytes());
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let page = PagedList::new(requests(None), &POLICY)
            .next::<CsrSummary>(&kube::Client::new(service, "default"))
            .await;
        assert_eq!(page.is_ok(), expected, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_the_queue_dropped_are_listed_again() {
    let cluster = FakeCluster::new();
    cluster.put(&format!("{PATH}/one"), request(SIGNER, "alice", &conditions(&[APPROVED])));
    let context = cluster.context();
    let forgotten = AtomicU64::new(0);
    let (keys, feeding) = feed(&context, &forgotten).start();
    let mut keys = std::pin::pin!(keys);
    let testing = async {
        assert_eq!(&*keys.next().await.unwrap().name, "one");
        forgotten.fetch_add(1, Ordering::Relaxed);
        // The feed checks the count when an event arrives; at the latest, that is a bookmark.
        cluster.put(&format!("{PATH}/two"), request(SIGNER, "bob", &conditions(&[APPROVED])));
        assert_eq!(&*keys.next().await.unwrap().name, "two");
        let begun = Instant::now();
        assert_eq!(&*keys.next().await.unwrap().name, "one");
        assert!(begun.elapsed() <= RELIST_INTERVAL);
    };
    tokio::select! {
        () = testing => {}
        never = feeding => match never {},
    }
}
