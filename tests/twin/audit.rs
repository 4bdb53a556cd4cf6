//! The audit events of [`Setting::Audit`](crate::authenticators::Setting): the reference and the gateway have the same policy, and each
//! writes its events to a file. The events of a request are found by the `Audit-Id` of its response.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Map, Value, json};
use testkit::real::test_name;

use crate::case::{Case, Values};
use crate::compare;
use crate::servers::Side;

/// How many seconds ago the tokens with a `warnafter` in the past should have been replaced.
pub(crate) const WARNED_BEFORE: u64 = 600;
/// The file of the policy.
const POLICY: &str = "audit-policy.yaml";
/// The groups of cases whose events are compared, too.
const GROUPS: [&str; 20] = [
    "bootstrap",
    "front_proxy",
    "health",
    "impersonation",
    "legacy_account",
    "methods",
    "negotiation",
    "oidc",
    "paths",
    "pretty",
    "review",
    "service_account",
    "spoofing",
    "streams",
    "token_file",
    "tokens",
    "watch",
    "webhook",
    "writes",
    "x509",
];

/// The cases of these groups that are not compared, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    // The modes of impersonation are tried in an order that depends on the requests before.
    ("impersonation", "by_masters"),
    ("impersonation", "by_token"),
    ("review", "by_an_administrator_with_impersonation"),
    // Their response differs between two equal servers.
    ("writes", "generated_name"),
    ("writes", "rules_review"),
    // They fail before a server audits them.
    ("paths", "proxy_prefix_too_short"),
    ("paths", "watch_prefix_too_short"),
    ("paths", "watch_prefix_too_short__anonymous"),
    // Their fixtures are of one server.
    ("legacy_account", "use_is_recorded"),
    ("legacy_account", "use_of_a_listed_token_is_recorded"),
    ("legacy_account", "use_of_a_marked_token_is_recorded"),
    // D-audit-source: a client cannot name other addresses than its own.
    ("spoofing", "forwarded_for"),
    ("spoofing", "real_ip"),
    // D-audit-head: the response to HEAD has no body, which has the reason.
    ("methods", "HEAD_of_an_object"),
    ("methods", "HEAD_of_a_list"),
    ("methods", "HEAD_of_version"),
    ("health", "HEAD_of_livez_by_anonymous"),
    // Request headers cannot carry an extra key without values.
    ("webhook", "extra_without_values"),
];

/// Rules of Kubernetes' documentation and of its tests for their users and namespaces, and everything else whole.
// kubernetes.io/docs/tasks/debug/debug-cluster/audit; apiserver: pkg/audit/policy/checker_test.go
fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [
            {"level": "None", "users": ["system:apiserver", "system:portcullis"]},
            {"level": "None", "userGroups": ["audit-none"]},
            {"level": "Metadata", "userGroups": ["audit-metadata"]},
            {"level": "Request", "userGroups": ["audit-request"]},
            {"level": "Request", "userGroups": ["audit-managed"], "omitManagedFields": true},
            {"level": "RequestResponse", "userGroups": ["audit-unmanaged"], "omitManagedFields": true},
            {"level": "RequestResponse", "userGroups": ["audit-complete"], "omitStages": ["RequestReceived", "ResponseStarted"]},
            {"level": "RequestResponse", "userGroups": ["audit-received"], "omitStages": ["ResponseComplete", "ResponseStarted"]},
            {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets", "serviceaccounts/token"]},
                {"group": "authentication.k8s.io", "resources": ["tokenreviews"]}]},
            {"level": "RequestResponse"},
        ],
    })
}

/// Writes the policy.
pub(crate) fn write(dir: &Path) -> std::io::Result<()> {
    fs::write(dir.join(POLICY), policy().to_string())
}

fn log_path(dir: &Path, side: Side) -> PathBuf {
    dir.join(format!("{}-audit.log", side.name()))
}

/// The flags of the reference and the gateway.
pub(crate) fn flags(dir: &Path, side: Side) -> Vec<String> {
    vec![
        format!("--audit-policy-file={}", dir.join(POLICY).display()),
        format!("--audit-log-path={}", log_path(dir, side).display()),
    ]
}

/// The cases of other groups, for their events.
pub(crate) fn of_others(cases: &[Case]) -> Vec<Case> {
    let suited = |case: &&Case| {
        GROUPS.contains(&case.group)
            && case.setting == crate::authenticators::Setting::Config
            && case.declared.is_none()
            && !LEFT_OUT.contains(&(case.group, test_name(&case.name).as_str()))
            && case.steps.iter().all(|step| step.audit_id().is_none())
    };
    cases.iter().filter(suited).map(|case| case.clone().by_audit()).collect()
}

/// The events of all servers.
#[derive(Debug)]
pub(crate) struct AuditLogs {
    dir: PathBuf,
    read: Mutex<BTreeMap<Side, AuditLog>>,
}

#[derive(Debug, Default)]
struct AuditLog {
    offset: u64,
    rest: Vec<u8>,
    events: BTreeMap<String, Vec<Value>>,
}

impl AuditLogs {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), read: Mutex::default() }
    }

    /// The events of a request so far.
    fn of(&self, side: Side, id: &str) -> Result<Vec<Value>, String> {
        let mut read = self.read.lock().map_err(|_| "a test has panicked")?;
        let log = read.entry(side).or_default();
        let path = log_path(&self.dir, side);
        // A server without audit has no file.
        if !path.exists() {
            return Ok(Vec::new());
        }
        let mut file = fs::File::open(path).map_err(|error| error.to_string())?;
        file.seek(SeekFrom::Start(log.offset)).map_err(|error| error.to_string())?;
        let count = file.read_to_end(&mut log.rest).map_err(|error| error.to_string())?;
        log.offset += u64::try_from(count).map_err(|error| error.to_string())?;
        while let Some(end) = log.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = log.rest.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).map_err(|error| {
                format!("a line of {} is no JSON: {error}: {}", side.name(), String::from_utf8_lossy(&line))
            })?;
            let id = event["auditID"].as_str().unwrap_or_default().to_owned();
            log.events.entry(id).or_default().push(event);
        }
        Ok(log.events.get(id).cloned().unwrap_or_default())
    }

    /// Whether a request has no event. The servers write the first before they respond.
    pub(crate) fn is_absent(&self, side: Side, id: &str) -> Result<bool, String> {
        Ok(self.of(side, id)?.is_empty())
    }

    /// All events of a request, once the last has been written.
    pub(crate) async fn complete(&self, side: Side, id: &str) -> Result<Vec<Value>, String> {
        let mut events = Vec::new();
        testkit::real::eventually("the last event", async || {
            events = self.of(side, id)?;
            Ok(events.iter().any(is_last))
        })
        .await
        .map_err(|error| format!("{error}: of {} {events:?}", side.name()))?;
        Ok(events)
    }
}

/// Whether no event follows.
fn is_last(event: &Value) -> bool {
    match event["stage"].as_str() {
        Some("ResponseComplete" | "Panic") => true,
        // The policy omits the others.
        Some("RequestReceived") => {
            event["user"]["groups"].as_array().is_some_and(|groups| groups.contains(&json!("audit-received")))
        }
        // The request has failed before its client was authenticated.
        Some("ResponseStarted") => event["user"] == json!({}),
        _ => false,
    }
}

/// The events of a request, normalised.
pub(crate) fn normalised(events: &[Value], values: &Values) -> Vec<Value> {
    events
        .iter()
        .map(|event| {
            let mut event = event.clone();
            for field in ["auditID", "requestReceivedTimestamp", "stageTimestamp"] {
                let removed = event.as_object_mut().and_then(|event| event.remove(field));
                assert!(removed.is_some_and(|value| value.as_str().is_some_and(|text| !text.is_empty())));
            }
            // The API server chooses any of the bindings that allow a request.
            if let Some(reason) = event.pointer_mut("/annotations/authorization.k8s.io~1reason") {
                *reason = json!("<reason>");
            }
            if let Some(annotations) = event.get_mut("annotations").and_then(Value::as_object_mut) {
                // Only slow requests have them.
                annotations.retain(|key, _| !key.starts_with("apiserver.latency.k8s.io/"));
                if let Some(Value::String(stale)) = annotations.get_mut("authentication.k8s.io/stale-token") {
                    *stale = without_elapsed(stale);
                }
            }
            let text = compare::normalise(&event.to_string(), values);
            serde_json::from_str(&text).expect("normalised JSON")
        })
        .collect()
}

/// The seconds after the warning threshold, as they were when the case began: each server counts them when its request
/// arrives.
fn without_elapsed(stale: &str) -> String {
    const CASE: u64 = 60;
    let (text, seconds) = stale.rsplit_once(' ').expect("it ends with the seconds");
    let seconds: u64 = seconds.parse().expect("whole seconds");
    format!(
        "{text} {}",
        if (WARNED_BEFORE..WARNED_BEFORE + CASE).contains(&seconds) { WARNED_BEFORE } else { seconds }
    )
}

/// Removes what `docs/conformance.md` declares.
pub(crate) fn without_declared(reference: &mut [Value], gateway: &mut [Value]) {
    for event in reference.iter_mut() {
        // D-audit-annotations: those of the API server are in its own log.
        retain_annotations(event, |key| key.starts_with("authentication.k8s.io/"));
    }
    for (reference, gateway) in reference.iter_mut().zip(gateway) {
        // D-audit-sessions: what the reference lacks, on the requests alone that open a session.
        if matches!(gateway["objectRef"]["subresource"].as_str(), Some("exec" | "attach" | "portforward")) {
            retain_annotations(gateway, |key| !key.starts_with("audit.portcullis.dev/session-"));
        }
        let code = gateway["responseStatus"]["code"].as_u64().unwrap_or_default();
        if code >= 400 {
            // D-audit-refused: the gateway cannot tell whether the API server has read the object.
            for field in ["name", "uid", "resourceVersion"] {
                if reference["objectRef"].get(field).is_none()
                    && let Some(object) = gateway.get_mut("objectRef").and_then(Value::as_object_mut)
                {
                    object.remove(field);
                }
            }
            if reference.get("requestObject").is_none()
                && let Some(event) = gateway.as_object_mut()
            {
                event.remove("requestObject");
            }
        }
        // D-audit-delete-options: the API server shows a version that is internal to it.
        for event in [&mut *reference, &mut *gateway] {
            if let Some(object) = event.get_mut("requestObject").and_then(Value::as_object_mut)
                && object.get("kind") == Some(&json!("DeleteOptions"))
            {
                object.remove("apiVersion");
            }
        }
        // D-audit-as-sent: the API server shows the object with its defaults, and without unknown fields.
        if let (Some(theirs), Some(ours)) = (reference.get("requestObject"), gateway.get("requestObject"))
            && (ours.is_null() || is_part(ours, theirs))
        {
            gateway["requestObject"] = theirs.clone();
        }
    }
}

fn retain_annotations(event: &mut Value, keep: impl Fn(&str) -> bool) {
    let Some(event) = event.as_object_mut() else { return };
    let Some(Value::Object(annotations)) = event.remove("annotations") else { return };
    let kept: Map<String, Value> = annotations.into_iter().filter(|(key, _)| keep(key)).collect();
    if !kept.is_empty() {
        event.insert("annotations".to_owned(), kept.into());
    }
}

/// Whether every value of an object is in another, which has more.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(key, value)| {
            value.is_null() || whole.get(key).is_some_and(|other| is_part(value, other)) || is_empty(value)
        }),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_part(part, whole))
        }
        (part, whole) => part == whole,
    }
}

/// Whether Go omits a value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.values().all(is_empty),
    }
}

/// Differences between the events of a request.
pub(crate) fn differences(reference: &[Value], subject: &[Value]) -> Vec<String> {
    let stages = |events: &[Value]| {
        events.iter().map(|event| event["stage"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let (left, right) = (stages(reference), stages(subject));
    if left != right {
        return vec![format!("the events: {left:?} | {right:?}")];
    }
    let mut found = Vec::new();
    for ((left, right), stage) in reference.iter().zip(subject).zip(stages(reference)) {
        let keys: std::collections::BTreeSet<&String> =
            [left, right].into_iter().filter_map(Value::as_object).flat_map(Map::keys).collect();
        for key in keys {
            let (left, right) = (left.get(key), right.get(key));
            if left != right {
                let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
                found.push(format!("the event {stage}: {key}: {} | {}", shown(left), shown(right)));
            }
        }
    }
    found
}
