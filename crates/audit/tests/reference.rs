//! Encodings of events and the replacement of log files, compared with kube-apiserver's own code
//! (`tests/go/auditevents`).
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of random events.

#![expect(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]
#![allow(clippy::print_stderr, missing_docs, reason = "the output of a test program")]

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use portcullis_audit::event::{
    AuthenticationMetadata, EncodedEvent, Event, Level, ObjectReference, ResponseStatus, Stage,
};
use portcullis_audit::sink::{
    EventOwner, LogOptions, Mode, NoObserver, RotationOptions, SinkRegistry, WallClock,
};
use portcullis_kubernetes::user::{EncodedUser, UserInfo};
use portcullis_limits::Owner;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const TEXTS: &[&str] = &[
    "",
    "admin",
    "system:serviceaccount:kube-system:default",
    "<b>&'\"\\/",
    "\u{2028}\u{2029}\u{2027}\u{feff}",
    "\0\u{1}\u{8}\u{c}\n\r\t\u{b}\u{1f}\u{7f}\u{80}\u{9f}",
    "\u{e9}\u{65e5}\u{672c}\u{1f600}\u{fffd}\u{e000}\u{10ffff}",
    "e\u{301} \u{a0}\u{ad}\u{200b}\u{202e}",
    "/api/v1/namespaces/default/pods?watch=1&fieldSelector=a%3Db",
    "kubectl/v1.36.3 (linux/amd64) kubernetes/abcdef",
];

const OBJECTS: &[&str] = &[
    "null",
    "{}",
    r#"{"kind":"Pod","metadata":{"name":"a<b>&c"}}"#,
    " { \"a\" : [ 1 , 2.50e+7 , -0 , \"x  y\\n\\u003c\\\" <\" ] ,\r\n\t\"a\" : null } ",
    "[{\"op\":\"add\",\"path\":\"/metadata\\/x\",\"value\":\"\u{2028}\u{e9}\u{1f600}\\ud83d\\ude00\\ud800\"}]",
    "\"\\\\\"",
    "123456789012345678901234567890.0",
];

const ZONES: &[&str] = &["UTC", "Asia/Kolkata", "America/St_Johns", "Europe/Vienna", "Africa/Monrovia"];

fn text(rng: &mut Rng) -> String {
    if rng.one_in(4) {
        // Go and Rust know the same characters of these blocks as printable; in others one knows a newer Unicode.
        return (0..rng.below(12))
            .filter_map(|_| char::from_u32(u32::try_from(rng.below(0x800)).unwrap()))
            .collect();
    }
    let (one, other) = (*rng.pick(TEXTS), *rng.pick(TEXTS));
    if rng.one_in(3) { format!("{one}{other}") } else { one.to_owned() }
}

fn texts(rng: &mut Rng) -> Vec<String> {
    (0..rng.below(4)).map(|_| text(rng)).collect()
}

fn addresses(rng: &mut Rng) -> Vec<IpAddr> {
    let octet = |rng: &mut Rng| u8::try_from(rng.below(256)).unwrap();
    let address = |rng: &mut Rng| match rng.below(3) {
        0 => IpAddr::from([0x20; 16].map(|first| first | octet(rng) & 1)),
        1 => IpAddr::from([0, 10, 100, octet(rng)]),
        _ => IpAddr::from([0; 4].map(|_| octet(rng))),
    };
    (0..rng.below(4)).map(|_| address(rng)).collect()
}

/// A user that lives as long as the test.
fn user(rng: &mut Rng) -> &'static EncodedUser {
    let extra = (0..rng.below(3)).map(|_| (text(rng), texts(rng))).collect();
    let user = UserInfo { name: text(rng), uid: Some(text(rng)), groups: texts(rng), extra };
    Box::leak(Box::new(user.into()))
}

fn time(rng: &mut Rng) -> SystemTime {
    let nanoseconds = [0, 1, 999, 1000, 120_000_000, 999_999_999, rng.below(1_000_000_000)];
    let nanoseconds = u32::try_from(*rng.pick(&nanoseconds)).unwrap();
    // Until 2100.
    let seconds = u64::try_from(rng.below(4_102_444_800)).unwrap();
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
}

fn object(rng: &mut Rng) -> Option<Arc<RawValue>> {
    if rng.one_in(3) {
        return None;
    }
    let object = if rng.one_in(3) { json!(text(rng)).to_string() } else { (*rng.pick(OBJECTS)).to_owned() };
    Some(RawValue::from_string(object.trim().to_owned()).unwrap().into())
}

fn status(rng: &mut Rng) -> ResponseStatus {
    let name = serde_json::to_string(&text(rng)).unwrap();
    let details =
        format!(r#"{{"name":{name},"kind":"pods","causes":[{{"message":{name}}}],"retryAfterSeconds":3}}"#);
    let details = details.replace("\"name\":\"\",", "").replace("\"message\":\"\"", "");
    ResponseStatus {
        status: text(rng),
        message: text(rng),
        reason: text(rng),
        details: (!rng.one_in(2)).then(|| RawValue::from_string(details).unwrap()),
        code: u16::try_from(*rng.pick(&[0, 200, 401, 65535])).unwrap(),
    }
}

fn event(rng: &mut Rng) -> Event<'static> {
    let levels = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];
    let stages = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];
    Event {
        level: *rng.pick(&levels),
        audit_id: text(rng).into(),
        stage: *rng.pick(&stages),
        request_uri: text(rng).into(),
        verb: text(rng).into(),
        user: user(rng),
        impersonated_user: rng.one_in(2).then(|| user(rng)),
        authentication_metadata: rng
            .one_in(2)
            .then(|| AuthenticationMetadata { impersonation_constraint: format!("x{}", text(rng)).into() }),
        source_ips: addresses(rng).into(),
        user_agent: text(rng).into(),
        object_ref: rng.one_in(2).then(|| ObjectReference {
            resource: text(rng).into(),
            namespace: text(rng).into(),
            name: text(rng).into(),
            uid: text(rng).into(),
            api_group: text(rng).into(),
            api_version: text(rng).into(),
            resource_version: text(rng).into(),
            subresource: text(rng).into(),
        }),
        response_status: rng.one_in(2).then(|| Cow::Owned(status(rng))),
        request_object: object(rng),
        response_object: object(rng),
        request_received_timestamp: time(rng),
        stage_timestamp: time(rng),
        annotations: Cow::Owned((0..rng.below(4)).map(|_| (text(rng), text(rng))).collect()),
    }
}

/// The event as a question. `serde_json` encodes it: our encoding is what is compared.
fn question(event: &Event<'_>, zone: &str) -> Value {
    let user = |user: &UserInfo| {
        // Empty groups are left out in our events; Go tells an empty list from none.
        let groups = (!user.groups.is_empty()).then_some(&user.groups);
        json!({"username": user.name, "uid": user.uid.as_deref().unwrap_or_default(), "groups": groups, "extra": user.extra})
    };
    let status = |status: &ResponseStatus| {
        let ResponseStatus { status, message, reason, details, code } = status;
        let details: Option<Value> =
            details.as_ref().map(|details| serde_json::from_str(details.get()).unwrap());
        json!({"status": status, "message": message, "reason": reason, "details": details, "code": code})
    };
    let reference = |object: &ObjectReference<'_>| {
        json!({
            "resource": object.resource,
            "namespace": object.namespace,
            "name": object.name,
            "uid": object.uid,
            "apiGroup": object.api_group,
            "apiVersion": object.api_version,
            "resourceVersion": object.resource_version,
            "subresource": object.subresource,
        })
    };
    let plain = json!({
        "level": event.level.as_str(),
        "auditID": event.audit_id,
        "stage": event.stage.as_str(),
        "requestURI": event.request_uri,
        "verb": event.verb,
        "user": user(event.user),
        "impersonatedUser": event.impersonated_user.map(|found| user(found)),
        "authenticationMetadata": event.authentication_metadata.as_ref().map(|metadata| {
            json!({"impersonationConstraint": metadata.impersonation_constraint})
        }),
        "sourceIPs": event.source_ips,
        "userAgent": event.user_agent,
        "objectRef": event.object_ref.as_ref().map(reference),
        "responseStatus": event.response_status.as_deref().map(status),
        "annotations": event.annotations,
    });
    let since = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        json!([since.as_secs(), since.subsec_nanos()])
    };
    json!({
        "of": "event",
        "event": plain,
        "requestObject": event.request_object.as_ref().map(|object| object.get()),
        "responseObject": event.response_object.as_ref().map(|object| object.get()),
        "received": since(event.request_received_timestamp),
        "stage": since(event.stage_timestamp),
        "zone": zone,
    })
}

#[test]
fn events_are_encoded_as_kube_apiserver_does() {
    let Some(program) = GoProgram::build("auditevents") else { return };
    let mut rng = Rng(seed());
    let events: Vec<_> = (0..inputs(4000)).map(|_| (event(&mut rng), *rng.pick(ZONES))).collect();
    let questions: Vec<_> = events.iter().map(|(event, zone)| question(event, zone)).collect();
    let mut different = 0;
    for ((event, zone), answer) in events.iter().zip(program.ask(&questions)) {
        let line = event.encode();
        let line = line.line();
        let ours = [
            ("json", String::from_utf8(line.to_vec()).unwrap()),
            ("list", String::from_utf8(EncodedEvent::list([line, line]).to_vec()).unwrap()),
            ("legacy", event.legacy_line(&TimeZone::get(zone).unwrap())),
        ];
        for (form, ours) in ours {
            let theirs = answer[form].as_str().unwrap();
            if ours != theirs {
                different += 1;
                if different <= 10 {
                    eprintln!("{form} in {zone}\n  ours:   {ours:?}\n  theirs: {theirs:?}");
                }
            }
        }
    }
    eprintln!("{} events", events.len());
    assert_eq!(different, 0, "{different} encodings differ");
}

const MIB: usize = 1 << 20;

fn sizes(dir: &Path) -> Vec<usize> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| usize::try_from(file.metadata().unwrap().len()).unwrap()).collect()
}

/// An event whose line has exactly this length.
fn event_of(size: usize) -> Event<'static> {
    let plain = Event {
        level: Level::Metadata,
        audit_id: "1".into(),
        stage: Stage::RequestReceived,
        request_uri: "".into(),
        verb: "get".into(),
        user: EncodedUser::unknown(),
        impersonated_user: None,
        authentication_metadata: None,
        source_ips: Vec::new().into(),
        user_agent: "".into(),
        object_ref: None,
        response_status: None,
        request_object: None,
        response_object: None,
        request_received_timestamp: SystemTime::UNIX_EPOCH,
        stage_timestamp: SystemTime::UNIX_EPOCH,
        annotations: Cow::default(),
    };
    let rest = size.checked_sub(plain.encode().line().len()).unwrap();
    Event { request_uri: "x".repeat(rest).into(), ..plain }
}

#[tokio::test]
async fn log_files_are_replaced_as_by_lumberjack() {
    let Some(program) = GoProgram::build("auditevents") else { return };
    let mut rng = Rng(seed());
    let near = [300, 1000, MIB / 2, MIB / 2 + 1, MIB - 1000, MIB - 300, MIB - 1, MIB, MIB + 1, 2 * MIB];
    let size = |rng: &mut Rng| if rng.one_in(2) { *rng.pick(&near) } else { 300 + rng.below(MIB) };
    // Upstream makes the file before lumberjack sees it.
    let cases: Vec<(usize, Vec<usize>)> = (0..inputs(40))
        .map(|_| {
            let existing = if rng.one_in(3) { 0 } else { size(&mut rng) };
            (existing, (0..=rng.below(6)).map(|_| size(&mut rng)).collect())
        })
        .collect();
    let questions: Vec<_> = cases
        .iter()
        .map(|(existing, writes)| json!({"of": "log", "existing": existing, "writes": writes}))
        .collect();
    let clock = WallClock::new(|| Duration::from_hours(438_288));
    let registry = SinkRegistry::new(Arc::new(NoObserver), clock, tokio::runtime::Handle::current());
    for ((existing, writes), answer) in cases.iter().zip(program.ask(&questions)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::fs::write(&path, vec![0; *existing]).unwrap();
        let rotation = RotationOptions { max_size: 1, max_age: 0, max_backups: 0, compress: false };
        let options = LogOptions { mode: Mode::BlockingStrict, rotation, ..LogOptions::new(&path) };
        let sinks = registry.generation().open(Some(&options), None).unwrap();
        let (mut failed, owner) = (Vec::new(), EventOwner::new(Owner::Gateway, "prod"));
        for size in writes {
            failed.push(sinks.store_first(&owner, &event_of(*size)).await.is_err());
        }
        let ours = json!({"failed": failed, "sizes": sizes(dir.path())});
        assert_eq!(ours, answer, "{existing} {writes:?}");
    }
}
