//! What clients share while their writes are reviewed: memory, the calls of webhooks, and threads. Each with one client that takes
//! all it can, and another one.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{join, join_all};
use hyper::body::Frame;
use testkit::body::fed;
use testkit::in_time;
use testkit::pki::Issued;

use super::*;
use crate::gateway::start_process;

fn object(name: &str, data: &str) -> String {
    let metadata = format!(r#"{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"5"}}"#);
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{metadata},"data":{data}}}"#)
}

/// An object of this many elements, each of which takes many times its text in memory.
fn sized(name: &str, elements: usize, element: &str) -> String {
    object(name, &format!("[{}0]", element.repeat(elements)))
}

/// An object of this many levels.
fn deep(name: &str, levels: usize) -> String {
    object(name, &format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels)))
}

const SMALL_MAP: &str = r#"{"a":1},"#;
const FIELD: &str = r#"{"name":"an ordinary field of a resource","value":"its value, of some length"},"#;

/// What the API server shows at a path: `sized-N` with so many kilobytes of objects of one entry, `sized-N-fields` of larger ones,
/// `deep-N` with so many levels.
pub(super) fn serve(method: &Method, path: &str) -> Response<BoxedBody> {
    let name = path.rsplit('/').find(|part| part.contains('-')).unwrap();
    let number: usize = name.split('-').nth(1).unwrap().parse().unwrap();
    let object = if name.starts_with("deep") {
        deep(name, number)
    } else {
        let element = if name.ends_with("fields") { FIELD } else { SMALL_MAP };
        sized(name, (number << 10) / element.len(), element)
    };
    let code = if *method == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(full(object)).unwrap()
}

/// A review that is nested more deeply than `serde_json` reads.
pub(super) fn deep_review(body: &[u8]) -> Value {
    let text = std::str::from_utf8(body).unwrap();
    let uid = text.split(r#""request":{"uid":""#).nth(1).unwrap().split('"').next().unwrap();
    json!({"request": {"uid": uid, "name": "deep", "size": text.len()}})
}

fn user(admitting: &Admitting, name: &str) -> Issued {
    admitting.pki.clients.leaf().cn(name).issue()
}

fn users(admitting: &Admitting, count: usize) -> Vec<Issued> {
    (0..count).map(|number| user(admitting, &format!("user-{number}"))).collect()
}

fn request(method: Method, target: &str, content_type: &str) -> http::request::Builder {
    let request = Request::builder().method(method).uri(format!("https://localhost{target}"));
    request.header("content-type", content_type)
}

/// Sends a request as this user; `None` for the anonymous one.
async fn send_as(gateway: &Gateway, user: Option<&Issued>, request: Request<BoxedBody>) -> (u16, String) {
    let mut client = Box::pin(gateway.http2(user)).await;
    let response = client.send(request).await.unwrap();
    (response.status().as_u16(), text(response).await)
}

async fn create(gateway: &Gateway, user: &Issued) -> (u16, String) {
    let request = request(Method::POST, MAPS, "application/json").body(full(map())).unwrap();
    in_time(send_as(gateway, Some(user), request)).await
}

async fn patch(gateway: &Gateway, user: &Issued, name: &str) -> (u16, String) {
    let request = request(Method::PATCH, &format!("{MAPS}/{name}"), "application/merge-patch+json");
    send_as(gateway, Some(user), request.body(full("{}")).unwrap()).await
}

/// Bodies that are announced, and do not come: each of `users` sends so many. Never completes.
async fn stall(gateway: &Gateway, users: &[Option<Issued>], each: usize, sent: usize) {
    let stalled = users.iter().map(async |user| {
        let client = gateway.http2(user.as_ref()).await;
        let requests = (0..each).map(|_| {
            let (frames, body, _) = fed();
            frames.send(Frame::data(Bytes::from(vec![b' '; sent]))).unwrap();
            let request = request(Method::POST, MAPS, "application/json").header("content-length", "3145728");
            let mut client = client.share();
            async move {
                let answered = client.send(request.body(body).unwrap()).await;
                drop(frames);
                answered.map(|response| response.status().as_u16())
            }
        });
        join_all(requests).await
    });
    let answers = join_all(stalled).await;
    panic!("bodies that never come are answered: {answers:?}");
}

/// As the finding: more idle bodies than the memory for bodies once held. Another user and an administrator are served at once.
#[tokio::test]
async fn bodies_that_do_not_come_take_nothing_from_other_users() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway("pinnedDryRun");
    let bob = user(&admitting, "bob");
    let master = admitting.pki.clients.leaf().cn("root").org("system:masters").issue();
    let abusers: Vec<_> = users(&admitting, 15).into_iter().map(Some).collect();
    let asked = || {
        let received = admitting.received.lock().unwrap();
        received.iter().filter(|received| received.target.starts_with(REVIEWS)).count()
    };
    let others = async {
        // Each user is asked about once.
        until("the abusers are authorized", || asked() >= 15).await;
        for _ in 0..3 {
            for user in [&bob, &master] {
                let (code, body) = create(&gateway, user).await;
                assert_eq!(code, 201, "{body}");
            }
        }
        assert_eq!(asked(), 15, "a small body costs no access review");
    };
    tokio::select! {
        () = stall(&gateway, &abusers, 4, 13) => {}
        () = others => {}
    }
}

/// The gateway refuses a client that may not make the request before it reads the body.
#[tokio::test]
async fn a_client_without_rights_is_refused_before_its_body_is_read() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway("pinnedDryRun");
    let (frames, body, _) = fed();
    frames.send(Frame::data(Bytes::from_static(b"{"))).unwrap();
    let slow = request(Method::POST, MAPS, "application/json").header("content-length", "3145728");
    let (code, text) = in_time(send_as(&gateway, None, slow.body(body).unwrap())).await;
    assert_eq!(code, 403, "{text}");
    assert!(text.contains("configmaps is forbidden: User \\\"system:anonymous\\\" cannot create"), "{text}");
    // The API server refuses a small one, which nothing is asked about.
    admitting.received.lock().unwrap().clear();
    let small = request(Method::POST, MAPS, "application/json").body(full(map())).unwrap();
    in_time(send_as(&gateway, None, small)).await;
    let received = admitting.received.lock().unwrap();
    assert!(!received.iter().any(|received| received.target.starts_with(REVIEWS)));
}

/// What arrives of bodies counts among the bytes in buffers: the user with the most gives way, and no other.
#[tokio::test]
async fn the_user_whose_bodies_hold_the_most_gives_way() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 5);
    let gateway = admitting.gateway_with("pinnedDryRun", &["--max-buffered-bytes=6000000"]);
    let (mallory, bob) = (user(&admitting, "mallory"), user(&admitting, "bob"));
    let slow = |sent: usize| {
        let (frames, body, _) = fed();
        frames.send(Frame::data(Bytes::from(vec![b' '; sent]))).unwrap();
        (frames, request(Method::POST, MAPS, "application/json").body(body).unwrap())
    };
    let send = async |user, request| send_as(&gateway, Some(user), request).await.0;
    let (rest, request) = slow(100_000);
    let calm = send(&bob, request);
    let (frames, requests): (Vec<_>, Vec<_>) = (0..4).map(|_| slow(2_000_000)).unzip();
    let flood: Vec<_> = requests.into_iter().map(|request| send(&mallory, request)).collect();
    let gave_way = async {
        let mut flood: futures_util::stream::FuturesUnordered<_> = flood.into_iter().collect();
        let first = flood.next().await.unwrap();
        assert_eq!(first, 429);
        rest.send(Frame::data(Bytes::from(map()))).unwrap();
        drop(rest);
        flood
    };
    let (code, flood) = in_time(join(calm, gave_way)).await;
    assert_eq!(code, 201);
    drop((flood, frames));
}

/// Users whose writes wait for a webhook delay no writes that it does not see.
#[tokio::test]
async fn a_silent_webhook_delays_no_writes_that_another_webhook_sees() {
    let is_secret = |review: &Value| review["request"]["resource"]["resource"] == "secrets";
    let admitting = Admitting::start(move |review| (!is_secret(review)).then(|| allow(review))).await;
    let ca = admitting.ca_bundle();
    let webhook = |resource: &str| {
        json!({"name": format!("{resource}.example.com"),
            "clientConfig": {"url": format!("https://{}/{resource}", admitting.webhook.address), "caBundle": ca},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}],
            "failurePolicy": "Fail", "timeoutSeconds": 30, "sideEffects": "None", "admissionReviewVersions": ["v1"]})
    };
    let manifest = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "policy.static.k8s.io"}, "webhooks": [webhook("secrets"), webhook("configmaps")]});
    admitting.write_manifest(&manifest.to_string());
    let gateway = admitting.gateway("pinnedDryRun");
    let bob = user(&admitting, "bob");
    let mut abusers = users(&admitting, 8);
    abusers.push(admitting.pki.clients.leaf().cn("root").org("system:masters").issue());
    let flood = join_all(abusers.iter().map(async |user| {
        let client = gateway.http2(Some(user)).await;
        let secrets = "/api/v1/namespaces/n/secrets";
        let requests = (0..34).map(|_| {
            let request = request(Method::POST, secrets, "application/json").body(full(map())).unwrap();
            let mut client = client.share();
            async move { client.send(request).await }
        });
        join_all(requests).await
    }));
    let calm = async {
        // All that the webhook has.
        let rehearsed = || {
            let received = admitting.received.lock().unwrap();
            received.iter().filter(|received| received.target.contains("/secrets?dryRun=All")).count()
        };
        until("a flood of reviews", || rehearsed() == 9 * 34).await;
        create(&gateway, &bob).await
    };
    tokio::select! {
        _ = flood => panic!("the webhook has answered"),
        (code, body) = calm => assert_eq!(code, 201, "{body}"),
    }
}

/// Users whose large objects wait for a webhook take no memory from small ones, nor from an administrator; and an administrator who
/// does the same takes none from users.
#[tokio::test]
async fn large_objects_that_wait_delay_neither_small_ones_nor_those_of_other_users() {
    let silent =
        |review: &Value| review["request"]["userInfo"]["username"].as_str().unwrap().starts_with("user-");
    let admitting = Admitting::start(move |review| (!silent(review)).then(|| allow(review))).await;
    admitting.write("Fail", 30);
    let gateway = admitting.gateway_with("pinnedDryRun", &["--max-buffered-bytes=134217728"]);
    let bob = user(&admitting, "bob");
    let master = admitting.pki.clients.leaf().cn("root").org("system:masters").issue();
    let masters = |name: &str| admitting.pki.clients.leaf().cn(name).org("system:masters").issue();
    let flood = |abusers: Vec<Issued>| {
        let gateway = &gateway;
        async move {
            join_all(
                abusers
                    .iter()
                    .map(async |user| join_all((0..6).map(|_| patch(gateway, user, "sized-14"))).await),
            )
            .await
        }
    };
    let waiting = |count: usize| {
        let reviews = &admitting.reviews;
        async move { until("a flood of reviews", || reviews.lock().unwrap().len() >= count).await }
    };
    tokio::select! {
        _ = flood(users(&admitting, 5)) => panic!("the webhook has answered"),
        () = async {
            waiting(10).await;
            let (code, body) = create(&gateway, &bob).await;
            assert_eq!(code, 201, "{body}");
            let (code, body) = in_time(patch(&gateway, &master, "sized-14")).await;
            assert_eq!(code, 200, "{body}");
        } => {}
    }
    admitting.reviews();
    tokio::select! {
        _ = flood(vec![masters("user-root")]) => panic!("the webhook has answered"),
        () = async {
            waiting(3).await;
            for name in ["sized-14", "m"] {
                let (code, body) = in_time(patch(&gateway, &bob, name)).await;
                assert_eq!(code, 200, "{body}");
            }
        } => {}
    }
}

/// The memory of the process stays within the documented figure, whatever objects are made of.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_memory_of_reviews_is_bounded_by_what_objects_take_in_memory() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 20);
    let limit: u64 = 512 << 20;
    let process =
        start_process(admitting.flags("pinnedDryRun", &[&format!("--max-buffered-bytes={limit}")])).await;
    let gateway = &process.gateway;
    let mallory = user(&admitting, "mallory");
    let most = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let before = most();
    let dry_run = |element: &str| {
        let body = sized("m", (3 << 20) / element.len() - 100, element);
        let target = format!("{MAPS}?dryRun=All");
        request(Method::POST, &target, "application/json").body(full(body)).unwrap()
    };
    // Larger in memory than any owner may have, and a fifth of that.
    let (code, body) = send_as(gateway, Some(&mallory), dry_run(SMALL_MAP)).await;
    assert_eq!(code, 413, "{}", &body[..body.len().min(300)]);
    assert!(body.contains("the review of its object takes"), "{body}");
    let (code, body) = send_as(gateway, Some(&mallory), dry_run("{},")).await;
    assert_eq!(code, 201, "{}", &body[..body.len().min(300)]);
    let patches = |name| join_all((0..8).map(|_| patch(gateway, &mallory, name)));
    for (code, body) in patches("sized-950").await {
        assert_eq!(code, 413, "{body}");
    }
    let answers = patches("sized-950-fields").await;
    assert!(answers.iter().all(|(code, _)| [200, 429].contains(code)), "{answers:?}");
    assert!(answers.iter().any(|(code, _)| *code == 200));
    let taken = most() - before;
    println!("{} MiB before, {} MiB more", before >> 20, taken >> 20);
    assert!(taken < limit, "{} MiB", taken >> 20);
}

/// As deep as kube-apiserver reads.
#[tokio::test]
async fn deeply_nested_objects_are_reviewed() {
    let admitting = Admitting::start(|review| Some(allow(review))).await;
    admitting.write("Fail", 20);
    let gateway = admitting.gateway("pinnedDryRun");
    let bob = user(&admitting, "bob");
    let own = format!("{MAPS}/deep-9900");
    let json = "application/json";
    for (method, target, content_type, body) in [
        (Method::POST, own.clone(), json, deep("deep-9900", 9900)),
        (Method::PUT, own.clone(), json, deep("deep-9900", 9900)),
        (Method::PATCH, own.clone(), "application/merge-patch+json", "{}".to_owned()),
        (Method::DELETE, own, json, String::new()),
    ] {
        let sent = request(method.clone(), &target, content_type).body(full(body)).unwrap();
        let (code, text) = in_time(send_as(&gateway, Some(&bob), sent)).await;
        assert!((200..300).contains(&code), "{method}: {code} {}", &text[..text.len().min(300)]);
        let reviews = std::mem::take(&mut *admitting.reviews.lock().unwrap());
        assert!(
            reviews.iter().all(|review| review["request"]["size"].as_u64().unwrap() > 9900 * 6),
            "{method}"
        );
        assert_eq!(reviews.len(), 1, "{method}");
    }
}
