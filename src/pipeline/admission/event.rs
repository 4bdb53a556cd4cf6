//! Events: the same objects in two groups, `v1` and `events.k8s.io/v1`, whose fields have other names. The gateway renames them
//! itself: the API server has no request that converts a new object, and the API for `events.k8s.io` allows fewer changes of an event
//! that is stored.
// kubernetes: pkg/apis/events/v1/conversion.go; api: core/v1/types.go, Event, EventSeries; events/v1/types.go, Event, EventSeries

use serde_json::{Map, Value, json};

/// The groups, in the order of [`Field::names`].
const GROUP_VERSIONS: [&str; 2] = ["v1", "events.k8s.io/v1"];
const KIND: &str = "Event";

/// A field of an event.
struct Field {
    /// Its name in each group.
    names: [&'static str; 2],
    empty: Empty,
    /// Whether it is there when it is empty, in each group.
    is_there: [bool; 2],
}

/// What Go writes for the zero value of a field.
#[derive(Clone, Copy)]
enum Empty {
    Text,
    Number,
    Struct,
    /// A time, or a pointer.
    Null,
}

const fn field(names: [&'static str; 2], empty: Empty, is_there: [bool; 2]) -> Field {
    Field { names, empty, is_there }
}

const fn same(name: &'static str, empty: Empty, is_there: [bool; 2]) -> Field {
    field([name, name], empty, is_there)
}

const ALWAYS: [bool; 2] = [true, true];
const NEVER: [bool; 2] = [false, false];
const IN_CORE: [bool; 2] = [true, false];
const IN_EVENTS: [bool; 2] = [false, true];

const FIELDS: [Field; 14] = [
    same("eventTime", Empty::Null, ALWAYS),
    same("series", Empty::Null, NEVER),
    field(["reportingComponent", "reportingController"], Empty::Text, IN_CORE),
    same("reportingInstance", Empty::Text, IN_CORE),
    same("action", Empty::Text, NEVER),
    same("reason", Empty::Text, NEVER),
    field(["involvedObject", "regarding"], Empty::Struct, ALWAYS),
    same("related", Empty::Null, NEVER),
    field(["message", "note"], Empty::Text, NEVER),
    same("type", Empty::Text, NEVER),
    field(["source", "deprecatedSource"], Empty::Struct, ALWAYS),
    field(["firstTimestamp", "deprecatedFirstTimestamp"], Empty::Null, ALWAYS),
    field(["lastTimestamp", "deprecatedLastTimestamp"], Empty::Null, ALWAYS),
    field(["count", "deprecatedCount"], Empty::Number, NEVER),
];

const SERIES: [Field; 2] =
    [same("count", Empty::Number, IN_EVENTS), same("lastObservedTime", Empty::Null, ALWAYS)];

impl Empty {
    fn value(self) -> Value {
        match self {
            Self::Text => json!(""),
            Self::Number => json!(0),
            Self::Struct => json!({}),
            Self::Null => Value::Null,
        }
    }

    fn is(self, value: &Value) -> bool {
        // Null is the zero value of every field.
        value.is_null() || *value == self.value()
    }
}

/// An event of the one group as the API server shows it in the other one, `to`, a group and version. `None` if the object is no event,
/// or that is no such group.
pub(super) fn converted(object: &Value, to: &str) -> Option<Value> {
    let group = |name: &str| GROUP_VERSIONS.iter().position(|known| *known == name);
    let fields = object.as_object()?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    if text("kind") != Some(KIND) {
        return None;
    }
    let (from, to) = (group(text("apiVersion")?)?, group(to)?);
    let mut event = renamed(fields, &FIELDS, from, to);
    if let Some(Value::Object(series)) = event.get("series") {
        let series = renamed(series, &SERIES, from, to);
        event.insert("series".to_owned(), series.into());
    }
    event.insert("kind".to_owned(), KIND.into());
    event.insert("apiVersion".to_owned(), (*GROUP_VERSIONS.get(to)?).into());
    event.insert("metadata".to_owned(), fields.get("metadata").cloned().unwrap_or_else(|| json!({})));
    Some(event.into())
}

/// The fields that the type has, under the names of another group.
fn renamed(object: &Map<String, Value>, fields: &[Field], from: usize, to: usize) -> Map<String, Value> {
    let in_group = |field: &Field| {
        let (old, new) = (field.names.get(from)?, field.names.get(to)?);
        let value = object.get(*old).filter(|value| !field.empty.is(value));
        let value = match value {
            Some(value) => value.clone(),
            None if *field.is_there.get(to)? => field.empty.value(),
            None => return None,
        };
        Some(((*new).to_owned(), value))
    };
    fields.iter().filter_map(in_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_other_names_in_the_other_group_and_comes_back() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod"},
            "reason": "Because", "message": "a note", "source": {}, "firstTimestamp": null,
            "lastTimestamp": "2026-01-02T03:04:05Z", "count": 2, "type": "Normal", "eventTime": null,
            "series": {"lastObservedTime": null}, "reportingComponent": "", "reportingInstance": ""});
        let events = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod"}, "reason": "Because", "note": "a note", "deprecatedSource": {},
            "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": "2026-01-02T03:04:05Z", "deprecatedCount": 2,
            "type": "Normal", "eventTime": null, "series": {"count": 0, "lastObservedTime": null}});
        assert_eq!(converted(&core, "events.k8s.io/v1"), Some(events.clone()));
        assert_eq!(converted(&events, "v1"), Some(core));
    }

    #[test]
    fn what_the_type_does_not_have_is_left_out_and_zero_values_are_as_go_writes_them() {
        let changed = json!({"apiVersion": "v1", "kind": "Event", "count": 0, "message": "", "unknown": 1});
        let expected = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {}, "regarding": {},
            "deprecatedSource": {}, "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null, "eventTime": null});
        assert_eq!(converted(&changed, "events.k8s.io/v1"), Some(expected));
    }

    #[test]
    fn other_objects_and_versions_are_not_events() {
        let event = json!({"apiVersion": "v1", "kind": "Event"});
        for (object, to) in [
            (json!({"apiVersion": "v1", "kind": "Pod"}), "events.k8s.io/v1"),
            (json!({"apiVersion": "events.k8s.io/v1beta1", "kind": "Event"}), "v1"),
            (event.clone(), "events.k8s.io/v1beta1"),
            (json!([]), "v1"),
        ] {
            assert_eq!(converted(&object, to), None, "{object} {to}");
        }
        assert!(converted(&event, "events.k8s.io/v1").is_some());
    }
}
