//! Replaces what differs between two equal clusters, and compares the rest.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;

/// Something that is compared: its name, and what it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    pub(crate) name: String,
    text: String,
}

/// The replacements of one side.
pub(crate) struct Normal {
    address: String,
    patterns: Vec<(Regex, &'static str)>,
    /// The prefixes of generated names.
    generated: Vec<Regex>,
}

const PATTERNS: [(&str, &str); 11] = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "<time>"),
    (r"X509SHA256=[0-9a-f]{64}", "<certificate>"),
    // client-go says whether a watch met its end, or the end of the program.
    (r"(?m)^[IWE]\d{4} .* reflector\.go:\d+\] .*context canceled.*\n", ""),
    // Helm's.
    (r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d( [A-Z]+)? \d{4}", "<time>"),
    (r#""(createdAt|modifiedAt)":"\d+""#, r#""$1":"<time>""#),
    (r#""release":"[^"]+""#, r#""release":"<release>""#),
    (r#""resourceVersion":"\d+""#, r#""resourceVersion":"<version>""#),
    (r#""10\.0\.0\.\d+""#, r#""<ip>""#),
    (r#""(nodePort|healthCheckNodePort)":\d+"#, r#""$1":"<port>""#),
    (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-<generated>"),
];

impl Normal {
    /// The replacements for a side with this address, and with objects of these generated names.
    pub(crate) fn new(address: String, generated: &BTreeSet<String>) -> Self {
        let regex = |pattern: &str| Regex::new(pattern).unwrap();
        Self {
            address,
            patterns: PATTERNS.map(|(pattern, by)| (regex(pattern), by)).into(),
            generated: generated
                .iter()
                .map(|prefix| regex(&format!(r"({})[a-z0-9]{{5}}\b", regex::escape(prefix))))
                .collect(),
        }
    }

    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.replace(&self.address, "{address}");
        for (pattern, by) in &self.patterns {
            text = pattern.replace_all(&text, *by).into_owned();
        }
        for pattern in &self.generated {
            text = pattern.replace_all(&text, "$1<generated>").into_owned();
        }
        text
    }

    pub(crate) fn item(&self, name: &str, mut value: Value) -> Item {
        sort_managers(&mut value);
        Item { name: self.text(name), text: self.text(&value.to_string()) }
    }
}

/// The order of managers is by time, in whole seconds.
fn sort_managers(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Array(entries)) = fields.get_mut("managedFields") {
                for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                    entry.remove("time");
                }
                entries.sort_by_key(ToString::to_string);
            }
            fields.values_mut().for_each(sort_managers);
        }
        Value::Array(items) => items.iter_mut().for_each(sort_managers),
        _ => {}
    }
}

/// The differences between the items of both sides, in any order.
pub(crate) fn differences(reference: &[Item], subject: &[Item]) -> Vec<String> {
    let only = |of: &[Item], others: &[Item]| {
        let mut others = others.to_vec();
        let mut left: Vec<Item> = of.to_vec();
        left.retain(|item| match others.iter().position(|other| other == item) {
            Some(at) => {
                others.swap_remove(at);
                false
            }
            None => true,
        });
        left
    };
    let missing = only(reference, subject);
    let mut added = only(subject, reference);
    let mut found = Vec::new();
    for item in missing {
        match added.iter().position(|other| other.name == item.name) {
            Some(at) => {
                let other = added.swap_remove(at);
                found.push(format!("{}: {}", item.name, paths(&item.text, &other.text)));
            }
            None => found.push(format!("only the reference: {}: {}", item.name, item.text)),
        }
    }
    found.extend(added.iter().map(|item| format!("only the subject: {}: {}", item.name, item.text)));
    found
}

/// The places where two objects differ.
fn paths(reference: &str, subject: &str) -> String {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let mut found = Vec::new();
    compare("", &parsed(reference), &parsed(subject), &mut found);
    if found.is_empty() {
        found.push(format!("the order of members: {reference} | {subject}"));
    }
    found.join("\n    ")
}

fn compare(path: &str, reference: &Value, subject: &Value, found: &mut Vec<String>) {
    match (reference, subject) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                compare(&format!("{path}/{key}"), &reference[key], &subject[key], found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (number, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path}/{number}"), left, right, found);
            }
        }
        _ if reference == subject => {}
        _ => found.push(format!("{path}: {reference} | {subject}")),
    }
}
