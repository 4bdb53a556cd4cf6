//! The backends behind their interface, with upstream's tables.

mod logs;
mod queue;
mod reload;
mod shares;
mod webhooks;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use portcullis_kubernetes::user::{EncodedUser, UserInfo};
use portcullis_limits::Owner;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::runtime::Handle;

use super::*;
use crate::event::{ObjectReference, ResponseStatus, Stage};

/// The only owner of the events, as of kube-apiserver's.
static ALICE: LazyLock<EventOwner> = LazyLock::new(|| EventOwner::new(Owner::flow("prod", "alice"), "prod"));

/// Counts what is reported.
#[derive(Debug, Default)]
struct Counts(Mutex<BTreeMap<String, i64>>);

impl Counts {
    fn add(&self, name: String, count: i64) {
        *self.0.lock().unwrap().entry(name).or_default() += count;
    }

    fn of(&self, name: &str) -> i64 {
        self.0.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

impl Observer for Counts {
    fn event(&self) {
        self.add("event".to_owned(), 1);
    }

    fn rejected(&self) {
        self.add("rejected".to_owned(), 1);
    }

    fn error(&self, plugin: Plugin, events: u64) {
        self.add(format!("error {}", plugin.as_str()), i64::try_from(events).unwrap());
    }

    fn dropped(&self, sink: SinkKind, cause: DropCause, cluster: &str, events: u64) {
        let events = i64::try_from(events).unwrap();
        self.add(format!("{} {}", sink.as_str(), cause.as_str()), events);
        self.add(format!("{} {} of {cluster}", sink.as_str(), cause.as_str()), events);
    }

    fn truncated(&self, sink: SinkKind) {
        self.add(format!("{} truncated", sink.as_str()), 1);
    }

    fn queue_changed(&self, sink: SinkKind, events: i64, bytes: i64) {
        self.add(format!("{} queue", sink.as_str()), events);
        self.add(format!("{} bytes", sink.as_str()), bytes);
    }
}

fn registry() -> (SinkRegistry, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let clock = WallClock::new(|| Duration::from_hours(438_288)).in_utc();
    let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
    (SinkRegistry::new(observer, clock, Handle::current()), counts)
}

/// An event as small as can be, as Go's zero value is.
fn empty_event(id: &str) -> Event<'static> {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_577_836_800, 123_456_789);
    Event {
        level: Level::Metadata,
        audit_id: id.to_owned().into(),
        stage: Stage::RequestReceived,
        request_uri: "".into(),
        verb: "".into(),
        user: EncodedUser::unknown(),
        impersonated_user: None,
        authentication_metadata: None,
        source_ips: Vec::new().into(),
        user_agent: "".into(),
        object_ref: None,
        response_status: None,
        request_object: None,
        response_object: None,
        request_received_timestamp: time,
        stage_timestamp: time,
        annotations: Cow::default(),
    }
}

fn event(id: &str) -> Event<'static> {
    empty_event(id)
}

/// An event with an object of about this size.
fn large_event(id: &str, size: usize) -> Event<'static> {
    let object = RawValue::from_string(format!("\"{}\"", "A".repeat(size))).unwrap();
    Event { level: Level::Request, request_object: Some(object.into()), ..empty_event(id) }
}

/// The audit IDs of lines of JSON or of lists.
fn ids(text: &[u8]) -> Vec<String> {
    let id = |event: &Value| event["auditID"].as_str().unwrap().to_owned();
    let values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    let values = values.map(|value| value.expect("the text is whole JSON values"));
    values
        .flat_map(|value| value["items"].as_array().cloned().unwrap_or(vec![value]))
        .map(|e| id(&e))
        .collect()
}

// apiserver: plugin/pkg/audit/log/backend_test.go, TestLogEventsLegacy
#[test]
fn legacy_lines_are_kube_apiservers() {
    let full = Event {
        response_status: Some(Cow::Owned(ResponseStatus { code: 200, ..ResponseStatus::default() })),
        request_uri: "/apis/rbac.authorization.k8s.io/v1/roles".into(),
        source_ips: vec![IpAddr::from([127, 0, 0, 1])].into(),
        verb: "get".into(),
        user: &EncodedUser::from(UserInfo {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            ..UserInfo::default()
        }),
        user_agent: "kube-admin".into(),
        object_ref: Some(ObjectReference { namespace: "default".into(), ..ObjectReference::default() }),
        ..empty_event("1")
    };
    let of_object = Event {
        object_ref: Some(ObjectReference {
            resource: "foo".into(),
            api_version: "v1".into(),
            subresource: "bar".into(),
            ..ObjectReference::default()
        }),
        ..empty_event("1")
    };
    let plain = r#"2020-01-01T00:00:00.123456789Z AUDIT: id="1" stage="RequestReceived" ip="<unknown>" method="" user="<none>" groups="<none>" as="<self>" asgroups="<lookup>" user-agent="" namespace="<none>" uri="" response="<deferred>""#;
    let expected = r#"2020-01-01T00:00:00.123456789Z AUDIT: id="1" stage="RequestReceived" ip="127.0.0.1" method="get" user="admin" groups="\"system:masters\",\"system:authenticated\"" as="<self>" asgroups="<lookup>" user-agent="kube-admin" namespace="default" uri="/apis/rbac.authorization.k8s.io/v1/roles" response="200""#;
    for (event, expected) in [(empty_event("1"), plain), (full, expected), (of_object, plain)] {
        assert_eq!(event.legacy_line(&TimeZone::UTC), format!("{expected}\n"));
    }
}

// apiserver: plugin/pkg/audit/truncate/truncate_test.go, TestTruncatingEvents
#[tokio::test]
async fn events_that_are_too_large_lose_their_objects_or_are_dropped() {
    let max = 100 << 10;
    let annotated = |level, size| {
        let annotations = BTreeMap::from([("key".to_owned(), "A".repeat(size))]);
        Event { level, annotations: Cow::Owned(annotations), ..empty_event("1") }
    };
    // Events, and whether they are stored and cut.
    let cases = [
        (event("1"), true, false),
        (large_event("1", max), true, true),
        (annotated(Level::Metadata, max), false, false),
        (annotated(Level::Request, max), false, false),
        (large_event("1", max - 1000), true, false),
        (Event { level: Level::Metadata, ..large_event("1", max) }, false, false),
    ];
    for (at, (event, is_stored, is_cut)) in cases.into_iter().enumerate() {
        let (registry, counts) = registry();
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            truncate: Some(TruncateOptions { max_event_size: max, ..TruncateOptions::default() }),
            // Too large is no failure to store.
            mode: Mode::BlockingStrict,
            ..LogOptions::new(dir.path().join("audit.log"))
        };
        let sinks = registry.generation().open(Some(&options), None).unwrap();
        sinks.store_first(&ALICE, &event).await.unwrap();
        let text = std::fs::read(&options.path).unwrap();
        assert_eq!(ids(&text).len(), usize::from(is_stored), "{at}");
        if is_stored {
            let event: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(event["annotations"]["audit.k8s.io/truncated"] == "true", is_cut, "{at}");
            assert_eq!(event.get("requestObject").is_none(), is_cut || at == 0, "{at}");
        }
        assert_eq!(counts.of("error truncate"), i64::from(!is_stored), "{at}");
        assert_eq!(
            (counts.of("log too_large"), counts.of("log truncated")),
            (i64::from(!is_stored), i64::from(is_cut))
        );
    }
}

#[tokio::test]
async fn without_a_backend_nothing_is_stored_and_nothing_waits() {
    let sinks = Sinks::default();
    assert!(sinks.is_empty());
    sinks.ready(&ALICE).await;
    sinks.store_first(&ALICE, &event("1")).await.unwrap();
    sinks.store(&ALICE, &event("1"));
    sinks.flush().await;
    let (registry, _) = registry();
    assert!(registry.generation().open(None, None).unwrap().is_empty());
}
