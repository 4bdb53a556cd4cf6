//! Parses the conditions of a request and keeps only a summary: a hundred thousand conditions take no more memory than
//! one.

use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{APPROVED, DENIED, FAILED};

/// Go's zero time, 0001-01-01T00:00:00Z, in Unix seconds.
pub(super) const GO_ZERO_TIME: i64 = -62_135_596_800;

/// A time of an object, or `None` for the zero time and for any time that [`Timestamp`] cannot represent. Go accepts
/// times beyond its range (9999-12-31T23:59:59Z), and a client may write one: the rest of the object stays readable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LenientTime(pub(super) Option<Timestamp>);

impl<'de> Deserialize<'de> for LenientTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimeVisitor)
    }
}

/// Accepts a time as text, or null.
struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = LenientTime;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time")
    }

    fn visit_unit<E>(self) -> Result<LenientTime, E> {
        Ok(LenientTime(None))
    }

    fn visit_str<E>(self, text: &str) -> Result<LenientTime, E> {
        let time = text.parse::<Timestamp>().ok();
        Ok(LenientTime(time.filter(|time| time.as_second() != GO_ZERO_TIME)))
    }
}

/// All conditions of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::controllers) struct Conditions {
    /// Whether there is a condition of any type.
    pub(in crate::controllers) is_any: bool,
    pub(in crate::controllers) approved: ConditionState,
    pub(in crate::controllers) denied: ConditionState,
    pub(super) failed: ConditionState,
}

/// The conditions of one type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::controllers) struct ConditionState {
    /// Whether there is one, with any status.
    pub(in crate::controllers) is_there: bool,
    /// Whether one is true; an empty status counts as true.
    pub(super) is_true: bool,
    /// The oldest `lastUpdateTime`.
    pub(super) oldest: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConditionFields {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_update_time: LenientTime,
}

impl Conditions {
    fn add(&mut self, condition: &ConditionFields) {
        self.is_any = true;
        let kind = match condition.kind.as_str() {
            APPROVED => &mut self.approved,
            DENIED => &mut self.denied,
            FAILED => &mut self.failed,
            _ => return,
        };
        kind.is_there = true;
        kind.is_true |= matches!(condition.status.as_str(), "" | "True");
        let LenientTime(updated) = condition.last_update_time;
        kind.oldest = kind.oldest.into_iter().chain(updated).min();
    }
}

impl<'de> Deserialize<'de> for Conditions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConditionsVisitor)
    }
}

/// Accepts a list of conditions, or null.
struct ConditionsVisitor;

impl<'de> Visitor<'de> for ConditionsVisitor {
    type Value = Conditions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("conditions")
    }

    fn visit_unit<E>(self) -> Result<Conditions, E> {
        Ok(Conditions::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Conditions, A::Error> {
        let mut conditions = Conditions::default();
        while let Some(condition) = list.next_element()? {
            conditions.add(&condition);
        }
        Ok(conditions)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn conditions_are_summarized_as_they_are_parsed() {
        let condition = |kind: &str, status: &str, updated: Value| json!({"type": kind, "status": status, "reason": "r", "lastUpdateTime": updated});
        let (old, new) = ("2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z");
        let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let kind = |is_true, oldest| ConditionState { is_there: true, is_true, oldest };
        let none = Conditions::default();
        let cases = [
            ("no list", json!(null), none),
            ("an empty list", json!([]), none),
            (
                "another type",
                json!([condition("Looked", "True", json!(old))]),
                Conditions { is_any: true, ..none },
            ),
            (
                "an empty status is true, and null is not a time",
                json!([condition(DENIED, "", json!(null))]),
                Conditions { is_any: true, denied: kind(true, None), ..none },
            ),
            (
                "Go's zero time is not a time",
                json!([condition(FAILED, "Unknown", json!("0001-01-01T00:00:00Z"))]),
                Conditions { is_any: true, failed: kind(false, None), ..none },
            ),
            (
                "a time that only Go can represent is not a time, nor is other text",
                json!([
                    condition(DENIED, "True", json!("9999-12-31T23:59:59Z")),
                    condition(FAILED, "True", json!("later")),
                    condition(FAILED, "True", json!(old)),
                ]),
                Conditions { is_any: true, denied: kind(true, None), failed: kind(true, time(old)), ..none },
            ),
            (
                "the oldest time, and true if any is",
                json!([
                    condition(APPROVED, "True", json!(new)),
                    condition(APPROVED, "False", json!(old)),
                    condition(APPROVED, "False", json!(null)),
                    condition(DENIED, "False", json!(new)),
                ]),
                Conditions {
                    is_any: true,
                    approved: kind(true, time(old)),
                    denied: kind(false, time(new)),
                    ..none
                },
            ),
        ];
        for (name, list, expected) in cases {
            let read: Conditions = serde_json::from_str(&list.to_string()).unwrap();
            assert_eq!(read, expected, "{name}");
        }
        assert!(serde_json::from_str::<Conditions>("{}").is_err());
    }
}
