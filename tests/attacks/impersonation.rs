//! Attacks by `Impersonate-*` headers, in both identity modes. The gateway decides them by access reviews; what the API
//! server receives must be exactly the client, or exactly the user as whom it may act.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, frame, header_block, read_frame};
use testkit::self_check::percent_decoded;
use testkit::{ReceivedRequest, in_time};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep};

use crate::attacks::{Attack, CAROL, Identity, expected, get};
use crate::environment::{Answer, AttackEnvironment, LOST, Needs, REVIEWS, identity, is_question};

const ALL: &str = "system:authenticated";
const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
/// Longer than an allowing answer counts, 10 s.
const AFTER_TTL: Duration = Duration::from_millis(10_500);

/// Header lines of HTTP/1.1 that a proxy or an API server may read as an impersonation.
const FORMS: &[&str] = &[
    "Impersonate-User: eve",
    "IMPERSONATE-USER: eve",
    "impersonate_user: eve",
    "Impersonate.User: eve",
    "Impersonate_Group: system:masters\r\nimpersonate.uid: 0\r\nImpersonate_Extra_Scopes: all",
    "Impersonate-User: eve\r\nimpersonate-user: carol",
    "Impersonate-User: carol\r\nIMPERSONATE-USER: eve",
    "Impersonate-User:\r\nImpersonate-User: eve",
    "Impersonate-User: eve\r\nImpersonate-User:",
    "Impersonate-Group: system:masters",
    "Impersonate-Uid: 0",
    "Impersonate-Uid:",
    "Impersonate-Extra-Scopes: all",
    "Impersonate-Extra-%73copes: all",
    "Impersonate-Extra-a%2Fb: c",
    "Impersonate-Extra-a%252Fb: c",
    "Impersonate-Extra-%zz: c",
    "Impersonate-Extra-: c",
    "Impersonate-User_: eve",
    "Impersonate-User.: eve",
    "Impersonate-User~: eve",
    "Impersonate-User': eve",
    "Impersonate-User|: eve",
    "Impersonate-Users: eve",
    "Impersonate--User: eve",
    "Impersonate-User : eve",
    "Impersonate-User\t: eve",
    "Impersonate-User\u{b}: eve",
    "Impersonate-User\0: eve",
    "Impersonate-User;: eve",
    "\u{131}mpersonate-User: eve",
    " Impersonate-User: eve",
    "X-A: b\r\n Impersonate-User: eve",
    "X-A: b\r\n\tImpersonate-User: eve",
    "X-A: b\rImpersonate-User: eve",
    "X-A: b\nImpersonate-User: eve",
    "X-A: b\0\r\nImpersonate-User: eve",
    "Connection: Impersonate-User\r\nImpersonate-User: eve",
    "Connection: close, impersonate_user\r\nImpersonate_User: eve",
    "Connection: Impersonate-Group\r\nImpersonate-User: eve\r\nImpersonate-Group: system:masters",
    "Connection: Impersonate-User",
];

/// Header names and values of HTTP/2, also such as HTTP/1.1 cannot carry.
const HTTP2_FORMS: &[(&str, &str)] = &[
    ("impersonate-user", "eve"),
    ("impersonate_user", "eve"),
    ("Impersonate-User", "eve"),
    ("impersonate-user ", "eve"),
    (" impersonate-user", "eve"),
    ("impersonate-user\t", "eve"),
    ("impersonate-user\0", "eve"),
    ("impersonate-user:", "eve"),
    ("impersonate-user~", "eve"),
    ("impersonate-user\r\nimpersonate-group", "system:masters"),
    ("x-a", "b\r\nImpersonate-User: eve"),
    ("x-a", "b\nImpersonate-User: eve"),
    ("x-a", "b\0Impersonate-User: eve"),
    (":impersonate-user", "eve"),
    (":protocol", "impersonate-user"),
    ("connection", "impersonate-user"),
    ("impersonate-group", "system:masters"),
    ("impersonate-extra-a%2fb", "c"),
];

/// What of a user a request names: name, UID, groups, and extra attributes by header name.
type Named =
    (&'static str, &'static str, &'static [&'static str], &'static [(&'static str, &'static [&'static str])]);

/// Header lines, and the user that they name.
const ALLOWED: &[(&str, Named)] = &[
    ("Impersonate-User: bob", ("bob", "", &[ALL], &[])),
    ("Impersonate-User: bob\r\nIMPERSONATE-USER: eve", ("bob", "", &[ALL], &[])),
    (
        "impersonate_user: eve\r\nImpersonate-User: bob\r\nImpersonate.Group: system:masters",
        ("bob", "", &[ALL], &[]),
    ),
    (
        "Impersonate-User: bob\r\nX-Remote-User: eve\r\nX-Remote-Group: system:masters\r\nX-Remote-Uid: 0",
        ("bob", "", &[ALL], &[]),
    ),
    (
        "Impersonate-User: bob\r\nImpersonate-Group: g\r\nIMPERSONATE-GROUP: h\r\nImpersonate-Uid: 9",
        ("bob", "9", &["g", "h", ALL], &[]),
    ),
    (
        "Impersonate-User: bob\r\nImpersonate-Group: g\r\nConnection: Impersonate-User, Impersonate-Group",
        ("bob", "", &["g", ALL], &[]),
    ),
    (
        "Impersonate-User: bob\r\nImpersonate-Extra-a%2fb: 1\r\nimpersonate-extra-A%2Fb: 2",
        ("bob", "", &[ALL], &[("a%2fb", &["1", "2"])]),
    ),
    ("Impersonate-User: bob\r\nImpersonate-Extra-a%252fb: 1", ("bob", "", &[ALL], &[("a%252fb", &["1"])])),
    ("Impersonate-User: bob\r\nImpersonate-Extra-%zz: 1", ("bob", "", &[ALL], &[("%25zz", &["1"])])),
];

/// The prefix of the headers in which the API server receives identities.
fn prefix(environment: &AttackEnvironment) -> &'static str {
    if environment.impersonates { "impersonate-" } else { "x-remote-" }
}

fn carol(environment: &AttackEnvironment) -> Identity {
    expected(prefix(environment), "carol", &["7"], &["a", "b", ALL])
}

/// Checks that a question of the proxy has its own identity, and nothing of the client's headers.
fn check_question(environment: &AttackEnvironment, seen: &ReceivedRequest) -> Result<(), String> {
    let found = identity(seen);
    let is_of_gateway = |(name, values): (&String, &Vec<String>)| match name.as_str() {
        "x-remote-user" => values == &["system:portcullis"],
        name => name.starts_with("x-remote-") && !values.iter().any(|value| value.contains("masters")),
    };
    // The rules of a user are asked for as the user.
    if found.iter().all(is_of_gateway) || found == carol(environment) {
        return Ok(());
    }
    Err(format!("a question arrived as {found:?}"))
}

/// The client that the API server sees. Where it decides on impersonations, what the client asks for is beside it, in the
/// standard spelling alone.
fn client_of(environment: &AttackEnvironment, seen: &ReceivedRequest) -> Result<Identity, String> {
    let mut found = identity(seen);
    if environment.leaves_impersonation {
        let asked: Vec<String> =
            found.keys().filter(|name| !name.starts_with("x-remote-")).cloned().collect();
        for name in asked {
            let known = ["impersonate-user", "impersonate-uid", "impersonate-group"].contains(&&*name)
                || name.starts_with("impersonate-extra-");
            if !known {
                return Err(format!("{name} arrived"));
            }
            found.remove(&name);
        }
    }
    Ok(found)
}

/// Checks that all requests that arrived, if any, have this identity; and the proxy's questions its own.
fn arrived_only_as(environment: &AttackEnvironment, expected: &Identity) -> Result<(), String> {
    while let Some(seen) = environment.backend.take_any() {
        if is_question(&seen) {
            check_question(environment, &seen)?;
        } else if client_of(environment, &seen)? != *expected {
            return Err(format!("{} arrived as {:?}", seen.target, identity(&seen)));
        }
    }
    let trailers = environment.backend.trailers();
    if trailers.is_empty() { Ok(()) } else { Err(format!("trailers arrived: {trailers:?}")) }
}

/// No form, plain or in an upgrade, makes a request that arrives as anyone but carol, who may act as nobody else.
async fn forms_change_nothing(environment: &mut AttackEnvironment, upgrades: &[&str]) -> Result<(), String> {
    for form in FORMS {
        for upgrade in upgrades {
            let path = "/api/v1/namespaces/n/pods/p/exec?command=id";
            environment.send_request(&get(path, &format!("{CAROL}{upgrade}{form}\r\n"))).await;
            let carol = carol(environment);
            arrived_only_as(environment, &carol).map_err(|got| format!("{form:?} {upgrade:?}: {got}"))?;
        }
    }
    Ok(())
}

async fn trailers_change_nothing(environment: &mut AttackEnvironment) -> Result<(), String> {
    let carol = carol(environment);
    let trailers = "Impersonate-User: eve\r\nImpersonate-Group: system:masters\r\nimpersonate_uid: 0\r\n";
    for announced in ["", "Trailer: Impersonate-User, Impersonate-Group\r\n"] {
        let head =
            format!("POST /api HTTP/1.1\r\nHost: a\r\n{CAROL}{announced}Transfer-Encoding: chunked\r\n");
        environment.send_request(&format!("{head}\r\n2\r\n{{}}\r\n0\r\n{trailers}\r\n")).await;
        arrived_only_as(environment, &carol)?;
    }
    let block = [header_block("POST", "/api"), literal("authorization", "Bearer good-token")].concat();
    let plain = [frame(HEADERS, END_HEADERS, 1, &block), frame(DATA, END_STREAM, 1, b"{}")];
    if !send_frames(environment, &plain.concat()).await {
        return Ok(());
    }
    environment.only()?;
    for name in ["impersonate-user", "impersonate_user", "x-remote-user"] {
        let request = [
            frame(HEADERS, END_HEADERS, 1, &block),
            frame(DATA, 0, 1, b"{}"),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal(name, "eve")),
        ];
        send_frames(environment, &request.concat()).await;
        arrived_only_as(environment, &carol).map_err(|got| format!("{name}, over HTTP/2: {got}"))?;
    }
    Ok(())
}

/// A header field without compression; its texts are shorter than 127 bytes.
// RFC 7541, section 6.2.2
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// Sends frames over HTTP/2 and waits for the response on stream 1, or the end of the connection. Returns whether the proxy
/// speaks HTTP/2.
async fn send_frames(environment: &AttackEnvironment, bytes: &[u8]) -> bool {
    let mut stream = environment.gateway().frames(None, 65_535).await;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return false;
    }
    stream.write_all(bytes).await.ok();
    let ended = async {
        while let Ok((kind, id, _)) = read_frame(&mut stream).await {
            if kind == frames::GOAWAY || id == 1 && [HEADERS, frames::RST_STREAM].contains(&kind) {
                return;
            }
        }
    };
    in_time(ended).await;
    true
}

async fn http2_forms_change_nothing(environment: &mut AttackEnvironment) -> Result<(), String> {
    let authorization = literal("authorization", "Bearer good-token");
    // The same request without a form arrives.
    let plain = [header_block("GET", "/api"), authorization.clone()].concat();
    if !send_frames(environment, &frame(HEADERS, END_HEADERS | END_STREAM, 1, &plain)).await {
        return Ok(());
    }
    environment.only()?;
    for (name, value) in HTTP2_FORMS {
        let form = literal(name, value);
        // At the end, before the other headers, and in a second frame.
        let blocks = [
            [header_block("GET", "/api"), authorization.clone(), form.clone()],
            [header_block("GET", "/api"), form.clone(), authorization.clone()],
        ];
        for block in blocks.map(|block| block.concat()) {
            let whole = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
            let (first, rest) = block.split_at(block.len() - form.len() / 2);
            let split =
                [frame(HEADERS, END_STREAM, 1, first), frame(frames::CONTINUATION, END_HEADERS, 1, rest)]
                    .concat();
            for request in [whole, split] {
                send_frames(environment, &request).await;
                let carol = carol(environment);
                arrived_only_as(environment, &carol).map_err(|got| format!("{name:?} {value:?}: {got}"))?;
            }
        }
    }
    Ok(())
}

/// What arrives as another user is exactly what the headers name, and the API server was asked about all of it.
async fn allowed_users_arrive_alone(environment: &mut AttackEnvironment) -> Result<(), String> {
    environment.backend.allow(|spec| spec["user"] == "carol");
    let mut asked = Vec::new();
    for (lines, (user, uid, groups, extra)) in ALLOWED {
        let uid: &[&str] = if uid.is_empty() { &[] } else { &[uid] };
        let mut wanted = expected(prefix(environment), user, uid, groups);
        for (key, values) in *extra {
            let name = format!("{}extra-{key}", prefix(environment));
            wanted.insert(name, values.iter().map(ToString::to_string).collect());
        }
        for upgrade in ["", WEBSOCKET, SPDY] {
            let request = get("/api/v1/namespaces/n/pods/p/exec", &format!("{CAROL}{upgrade}{lines}\r\n"));
            environment.send_request(&request).await;
            let describe = |got: String| format!("{lines:?} {upgrade:?}: {got}");
            let mut arrived = 0;
            while let Some(seen) = environment.backend.take_any() {
                if is_question(&seen) {
                    check_question(environment, &seen).map_err(describe)?;
                    continue;
                }
                arrived += 1;
                if identity(&seen) != wanted {
                    return Err(describe(format!("it arrived as {:?}", identity(&seen))));
                }
            }
            if arrived != 1 {
                return Err(describe(LOST.to_owned()));
            }
        }
        asked.extend(environment.backend.asked());
        was_asked_about(&asked, prefix(environment), &wanted).map_err(|got| format!("{lines:?}: {got}"))?;
    }
    Ok(())
}

/// Checks that these access reviews are about every attribute of the user. Answers count for some time, so they include
/// those of earlier requests.
fn was_asked_about(asked: &[Value], prefix: &str, user: &Identity) -> Result<(), String> {
    let has = |resource: &str, subresource: &str, name: &str| {
        asked.iter().any(|spec| {
            let of = &spec["resourceAttributes"];
            let verb = of["verb"].as_str().unwrap_or_default();
            let text = |field: &str| of[field].as_str().unwrap_or_default();
            verb.starts_with("impersonate")
                && [text("resource"), text("subresource"), text("name")] == [resource, subresource, name]
        })
    };
    for (name, values) in user {
        for value in values.iter().filter(|value| *value != ALL) {
            let attribute = name.trim_start_matches(prefix);
            let known = match attribute {
                "user" => has("users", "", value),
                "group" => has("groups", "", value),
                "uid" => has("uids", "", value),
                extra => has("userextras", &percent_decoded(extra.trim_start_matches("extra-")), value),
            };
            if !known {
                return Err(format!("{name}: {value} arrived without a question"));
            }
        }
    }
    Ok(())
}

/// A refused request sends the API server questions alone.
async fn refused_requests_send_questions_alone(environment: &mut AttackEnvironment) -> Result<(), String> {
    let many = (0..6).map(|n| format!("Impersonate-Group: g{n}\r\nImpersonate-Extra-k{n}: v\r\n"));
    let many = many.collect::<Vec<_>>().concat();
    let eve = "Impersonate-User: eve\r\n";
    let post = |headers: &str| {
        let body = r#"{"secret":"swordfish"}"#;
        format!(
            "POST /api/v1/namespaces/n/secrets HTTP/1.1\r\nHost: a\r\n{CAROL}{eve}{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let exec = "/api/v1/namespaces/n/pods/p/exec?command=id";
    let requests = [
        get("/api", &format!("{CAROL}{eve}")),
        get("/api", &format!("{CAROL}{eve}{many}")),
        get("/api", &format!("{CAROL}{eve}Impersonate-Group: system:masters\r\n")),
        get("/api", &format!("{CAROL}Impersonate-User: system:serviceaccount:kube-system:default\r\n")),
        get("/api", &format!("{CAROL}Impersonate-User: system:node:n1\r\n")),
        get("/api", &format!("{CAROL}Impersonate-User: system:portcullis\r\n")),
        get("/api", &format!("{CAROL}Impersonate-User: system:anonymous\r\n")),
        get("/api/v1/pods?watch=true", &format!("{CAROL}{eve}")),
        get("/livez", &format!("{CAROL}{eve}")),
        get(exec, &format!("{CAROL}{eve}{WEBSOCKET}")),
        get(exec, &format!("{CAROL}{eve}{SPDY}")),
        post(""),
        post("Expect: 100-continue\r\n"),
    ];
    for request in requests {
        let Answer { code, .. } = environment.send_request(&request).await;
        let line = request.lines().next();
        while let Some(seen) = environment.backend.take_any() {
            if !is_question(&seen) {
                return Err(format!("{line:?}: {} arrived as {:?}", seen.target, identity(&seen)));
            }
            check_question(environment, &seen)?;
        }
        let asked = environment.backend.asked();
        if asked.iter().any(|spec| spec["user"] != "carol" || spec.to_string().contains("swordfish")) {
            return Err(format!("{line:?}: the API server was asked {asked:?}"));
        }
        if code != 403 {
            return Err(format!("{line:?} is answered with {code}"));
        }
    }
    Ok(())
}

/// An access review of a client is a request like any other: it neither arrives as the proxy's own, nor does its answer
/// count for the proxy.
async fn reviews_of_clients_are_requests(environment: &mut AttackEnvironment) -> Result<(), String> {
    let question = |verb: &str, group: &str| {
        json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": {
            "user": "carol", "uid": "7", "groups": ["a", "b", ALL],
            "resourceAttributes": {"group": group, "verb": verb, "version": "v1", "resource": "users", "name": "bob"},
        }})
    };
    let post = |headers: &str, body: &Value| {
        let body = body.to_string();
        format!(
            "POST {REVIEWS} HTTP/1.1\r\nHost: a\r\n{CAROL}{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let carol = carol(environment);
    let as_gateway = [
        "Impersonate-User: system:portcullis\r\n",
        "Impersonate-User: eve\r\nImpersonate-Group: system:masters\r\n",
        "Impersonate_User: system:portcullis\r\n",
        "X-Remote-User: system:portcullis\r\n",
        "Connection: X-Remote-User, X-Remote-Group, Impersonate-User, Impersonate-Group\r\n",
    ];
    for headers in as_gateway {
        let review = question("get", "");
        environment.backend.asked();
        environment.send_request(&post(headers, &review)).await;
        // Of the client: the proxy asks about impersonations alone.
        let is_of_client = |spec: &Value| spec["resourceAttributes"]["verb"] == "get";
        let of_client = environment.backend.asked().iter().filter(|spec| is_of_client(spec)).count();
        let mut as_carol = 0;
        while let Some(seen) = environment.backend.take_any() {
            as_carol += usize::from(identity(&seen) == carol);
            if !is_question(&seen) && identity(&seen) != carol {
                return Err(format!("{headers:?}: it arrived as {:?}", identity(&seen)));
            }
        }
        if of_client != as_carol {
            return Err(format!("{headers:?}: the review of a client arrived as the proxy's own"));
        }
    }
    // The API server would now allow all; the client learns that, the proxy does not.
    environment.backend.allow(|_| true);
    for (verb, group) in [("impersonate", ""), ("impersonate:user-info", "authentication.k8s.io")] {
        environment.send_request(&post("", &question(verb, group))).await;
    }
    environment.backend.allow(|_| false);
    while environment.backend.take_any().is_some() {}
    environment.send_request(&get("/api", &format!("{CAROL}Impersonate-User: bob\r\n"))).await;
    arrived_only_as(environment, &carol)
}

/// A front proxy's request of dave, who acts as bob.
fn dave(user: &str, uid: &str, groups: &[&str], scopes: &[&str]) -> String {
    let mut headers = format!("X-Remote-User: {user}\r\nX-Remote-Uid: {uid}\r\nImpersonate-User: bob\r\n");
    for group in groups {
        headers.extend(["X-Remote-Group: ", group, "\r\n"]);
    }
    for scope in scopes {
        headers.extend(["X-Remote-Extra-Scopes: ", scope, "\r\n"]);
    }
    get("/api", &headers)
}

/// An impersonation that one requester may is not allowed to another one who differs in any attribute.
async fn answers_count_for_one_requester(environment: &mut AttackEnvironment) -> Result<(), String> {
    environment.backend.allow(|spec| {
        spec["user"] == "dave"
            && spec["uid"] == "1"
            && spec["groups"] == json!(["ops", "dev", ALL])
            && spec["extra"]["scopes"] == json!(["all"])
    });
    let proxy = environment.pki.client_front.leaf().cn("proxy").issue();
    let warm = dave("dave", "1", &["ops", "dev"], &["all"]);
    let others = [
        dave("dave", "1", &["dev"], &["all"]),
        dave("dave", "1", &["opsdev"], &["all"]),
        dave("dave", "1", &["ops,dev"], &["all"]),
        dave("dave", "1", &["dev", "ops"], &["all"]),
        dave("dave", "1", &["ops", "dev", "more"], &["all"]),
        dave("dave", "2", &["ops", "dev"], &["all"]),
        dave("dave", "", &["ops", "dev"], &["all"]),
        dave("dave", "1", &["ops", "dev"], &[]),
        dave("dave", "1", &["ops", "dev"], &["some"]),
        dave("dave", "1", &["ops", "dev"], &["all", "more"]),
        dave("dave1", "", &["ops", "dev"], &["all"]),
        dave("eve", "1", &["ops", "dev"], &["all"]),
    ];
    for (number, request) in others.iter().enumerate() {
        let warmed = environment.send_request_as(Some(&proxy), &warm).await;
        if warmed.code != 200 || environment.backend.take().is_none() {
            return Err(LOST.to_owned());
        }
        environment.send_request_as(Some(&proxy), request).await;
        environment.nothing().map_err(|got| format!("requester {number}: {got}"))?;
    }
    Ok(())
}

/// An impersonation that one cluster allows is refused by another, whose requester has the same name and groups.
async fn answers_count_for_one_cluster(environment: &mut AttackEnvironment) -> Result<(), String> {
    let other = environment.other.as_ref().unwrap();
    other.allow(|_| true);
    let bob = |path: &str, token: &str| {
        get(path, &format!("Authorization: Bearer {token}\r\nImpersonate-User: bob\r\n"))
    };
    for turn in 0..3 {
        let warmed = environment.send_request(&bob("/clusters/other/api", "other-carol")).await;
        if warmed.code != 200 || other.take().is_none() {
            return Err(format!("turn {turn}: {LOST}"));
        }
        environment.send_request(&bob("/clusters/own/api", "good-token")).await;
        environment.nothing()?;
    }
    Ok(())
}

/// A right that was revoked ends with the answer, however often it is used.
async fn answers_end(environment: &mut AttackEnvironment) -> Result<(), String> {
    let bob = get("/api", &format!("{CAROL}Impersonate-User: bob\r\n"));
    environment.backend.allow(|_| true);
    let started = Instant::now();
    if environment.send_request(&bob).await.code != 200 {
        return Err(LOST.to_owned());
    }
    environment.backend.allow(|_| false);
    let revoked = started.elapsed();
    while started.elapsed() < revoked + AFTER_TTL {
        environment.send_request(&bob).await;
        sleep(Duration::from_millis(250)).await;
    }
    while environment.backend.take_any().is_some() {}
    environment.send_request(&bob).await;
    environment.nothing()
}

pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "other spellings of Impersonate-User",
        case: "CVE-2025-64484, GHSA-f59h-q822-g45g",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(forms_change_nothing(environment, &[""])),
    },
    Attack {
        name: "other spellings of Impersonate-User, to a backend that decides on it",
        case: "CVE-2025-64484, GHSA-f59h-q822-g45g",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| Box::pin(forms_change_nothing(environment, &[""])),
    },
    Attack {
        name: "other spellings of Impersonate-User, to a backend that reads it",
        case: "CVE-2025-64484, GHSA-f59h-q822-g45g",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| Box::pin(forms_change_nothing(environment, &[""])),
    },
    Attack {
        name: "Impersonate-User in an upgrade",
        case: "envoy#44525, kobe#69",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(forms_change_nothing(environment, &[WEBSOCKET, SPDY])),
    },
    Attack {
        name: "Impersonate-User in an upgrade, to a backend that decides on it",
        case: "envoy#44525, kobe#69",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| Box::pin(forms_change_nothing(environment, &[WEBSOCKET, SPDY])),
    },
    Attack {
        name: "Impersonate-User in an upgrade, to a backend that reads it",
        case: "envoy#44525, kobe#69",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| Box::pin(forms_change_nothing(environment, &[WEBSOCKET, SPDY])),
    },
    Attack {
        name: "Impersonate-User in malformed headers of HTTP/2",
        case: "RFC 9113, 8.2.1",
        needs: Needs::ImpersonationDecision,
        naive: Err("it speaks HTTP/1.1 alone"),
        attempt: |environment| Box::pin(http2_forms_change_nothing(environment)),
    },
    Attack {
        name: "Impersonate-User in malformed headers of HTTP/2, to a backend that decides on it",
        case: "RFC 9113, 8.2.1",
        needs: Needs::Nothing,
        naive: Err("it speaks HTTP/1.1 alone"),
        attempt: |environment| Box::pin(http2_forms_change_nothing(environment)),
    },
    Attack {
        name: "Impersonate-User in malformed headers of HTTP/2, to a backend that reads it",
        case: "RFC 9113, 8.2.1",
        needs: Needs::Impersonation,
        naive: Err("it speaks HTTP/1.1 alone"),
        attempt: |environment| Box::pin(http2_forms_change_nothing(environment)),
    },
    Attack {
        name: "Impersonate-User in trailers",
        case: "RFC 9110, 6.5.1",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(trailers_change_nothing(environment)),
    },
    Attack {
        name: "Impersonate-User in trailers, to a backend that decides on it",
        case: "RFC 9110, 6.5.1",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| Box::pin(trailers_change_nothing(environment)),
    },
    Attack {
        name: "Impersonate-User in trailers, to a backend that reads it",
        case: "RFC 9110, 6.5.1",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| Box::pin(trailers_change_nothing(environment)),
    },
    Attack {
        name: "more than the impersonated user",
        case: "OCM#335",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(allowed_users_arrive_alone(environment)),
    },
    Attack {
        name: "more than the impersonated user, to a backend that reads Impersonate-User",
        case: "OCM#335",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| Box::pin(allowed_users_arrive_alone(environment)),
    },
    Attack {
        name: "a refused impersonation",
        case: "GHSA-c7xh-gjv4-4jgv, kobe#69",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(refused_requests_send_questions_alone(environment)),
    },
    Attack {
        name: "a refused impersonation, to a backend that reads Impersonate-User",
        case: "GHSA-c7xh-gjv4-4jgv, kobe#69",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| Box::pin(refused_requests_send_questions_alone(environment)),
    },
    Attack {
        name: "impersonation by an access review",
        case: "GHSA-c7xh-gjv4-4jgv",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(reviews_of_clients_are_requests(environment)),
    },
    Attack {
        name: "impersonation by an access review, to a backend that reads Impersonate-User",
        case: "GHSA-c7xh-gjv4-4jgv",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| Box::pin(reviews_of_clients_are_requests(environment)),
    },
    Attack {
        name: "the answer to another requester",
        case: "caches keyed by name",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(answers_count_for_one_requester(environment)),
    },
    Attack {
        name: "the answer of another cluster",
        case: "caches shared between clusters",
        needs: Needs::Clusters,
        naive: Err("it has one cluster"),
        attempt: |environment| Box::pin(answers_count_for_one_cluster(environment)),
    },
    Attack {
        name: "an impersonation that is no longer allowed",
        case: "caches without an end",
        needs: Needs::ImpersonationDecision,
        naive: Ok(()),
        attempt: |environment| Box::pin(answers_end(environment)),
    },
];
