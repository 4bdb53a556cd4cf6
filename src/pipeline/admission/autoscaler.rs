//! `HorizontalPodAutoscaler`s in `autoscaling/v1` and `autoscaling/v2`. The gateway converts them itself, as kube-apiserver does
//! between two webhooks of different versions: it decodes and defaults the object, converts it to the internal type and from there to
//! the other version. The API server has no request that converts a new object, and one that converts a stored object needs a right
//! to `patch` it.
//!
//! The internal type is that of `v2`, except for annotations: in `v1`, what this version has no fields for is in annotations, as JSON.
// kubernetes: pkg/apis/autoscaling/v1/conversion.go, v1/defaults.go, v2/conversion.go, v2/defaults.go, annotations.go, helpers.go

mod fields;

use portcullis_go::json::raw;
use serde_json::{Map, Value, json};

use self::fields::{CONDITION_V1, METRIC_SPEC_V1, METRIC_STATUS_V1, OBJECT_V1, OBJECT_V2, RULES_OF_BEHAVIOR};
use super::splice::Encoding;
use super::typed::{Names, Type, Undecoded};

const KIND: &str = "HorizontalPodAutoscaler";

/// The version that shows all.
pub(super) const V2: &str = "autoscaling/v2";
/// The prefix of the names of the annotations of `v1`. After it is a slash, which a JSON pointer escapes.
const PREFIX: &str = "autoscaling.alpha.kubernetes.io";
/// The annotations of `v1`.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const ANNOTATIONS: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// The utilization of CPU at which an object without metrics is scaled, in percent.
const DEFAULT_UTILIZATION: i32 = 80;

/// A version of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// How a field of a metric is called in the annotations of `v1` and in the internal type.
struct Move {
    v1: &'static str,
    /// A JSON pointer.
    internal: &'static str,
    /// Whether `v1` has no way to leave out this quantity.
    is_always_there: bool,
}

/// A source of metrics, and of their current values.
struct Source {
    name: &'static str,
    spec: &'static [Move],
    status: &'static [Move],
}

/// The place of the values of a metric, and of the type of its target.
const TARGET_TYPE: &str = "/target/type";
const TARGET_VALUE: &str = "/target/value";
const TARGET_AVERAGE: &str = "/target/averageValue";
const TARGET_UTILIZATION: &str = "/target/averageUtilization";

const fn moved(v1: &'static str, internal: &'static str) -> Move {
    Move { v1, internal, is_always_there: false }
}

const fn always(v1: &'static str, internal: &'static str) -> Move {
    Move { v1, internal, is_always_there: true }
}

const SOURCES: [Source; 5] = [
    Source {
        name: "object",
        spec: &[
            moved("target", "/describedObject"),
            moved("metricName", "/metric/name"),
            always("targetValue", TARGET_VALUE),
            moved("selector", "/metric/selector"),
            moved("averageValue", TARGET_AVERAGE),
        ],
        status: &[
            moved("target", "/describedObject"),
            moved("metricName", "/metric/name"),
            always("currentValue", "/current/value"),
            moved("selector", "/metric/selector"),
            moved("averageValue", "/current/averageValue"),
        ],
    },
    Source {
        name: "pods",
        spec: &[
            moved("metricName", "/metric/name"),
            always("targetAverageValue", TARGET_AVERAGE),
            moved("selector", "/metric/selector"),
        ],
        status: &[
            moved("metricName", "/metric/name"),
            always("currentAverageValue", "/current/averageValue"),
            moved("selector", "/metric/selector"),
        ],
    },
    Source {
        name: "resource",
        spec: &[
            moved("name", "/name"),
            moved("targetAverageUtilization", TARGET_UTILIZATION),
            moved("targetAverageValue", TARGET_AVERAGE),
        ],
        status: &[
            moved("name", "/name"),
            moved("currentAverageUtilization", "/current/averageUtilization"),
            always("currentAverageValue", "/current/averageValue"),
        ],
    },
    Source {
        name: "containerResource",
        spec: &[
            moved("name", "/name"),
            moved("targetAverageUtilization", TARGET_UTILIZATION),
            moved("targetAverageValue", TARGET_AVERAGE),
            moved("container", "/container"),
        ],
        status: &[
            moved("name", "/name"),
            moved("currentAverageUtilization", "/current/averageUtilization"),
            always("currentAverageValue", "/current/averageValue"),
            moved("container", "/container"),
        ],
    },
    Source {
        name: "external",
        spec: &[
            moved("metricName", "/metric/name"),
            moved("metricSelector", "/metric/selector"),
            moved("targetValue", TARGET_VALUE),
            moved("targetAverageValue", TARGET_AVERAGE),
        ],
        status: &[
            moved("metricName", "/metric/name"),
            moved("metricSelector", "/metric/selector"),
            always("currentValue", "/current/value"),
            moved("currentAverageValue", "/current/averageValue"),
        ],
    },
];

impl Version {
    fn of(api_version: &str) -> Option<Self> {
        match api_version {
            "autoscaling/v1" => Some(Self::V1),
            "autoscaling/v2" => Some(Self::V2),
            _ => None,
        }
    }

    /// That of an object, if it is of this kind.
    fn of_object(object: &Value) -> Option<Self> {
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        if text("kind") != Some(KIND) {
            return None;
        }
        Self::of(text("apiVersion")?)
    }

    fn fields(self) -> &'static Type {
        match self {
            Self::V1 => &OBJECT_V1,
            Self::V2 => &OBJECT_V2,
        }
    }
}

/// Whether an object is one in one of these versions.
pub(super) fn is_one(object: &Value) -> bool {
    Version::of_object(object).is_some()
}

/// Whether it is one in `v1`: not all that may be stored. Of several utilizations of CPU it shows the first, the other metrics in
/// another order, and of targets with several values one.
pub(super) fn is_reduced(object: &Value) -> bool {
    Version::of_object(object) == Some(Version::V1)
}

/// Whether it is one, and the gateway knows all of its fields. Those of a later release would be lost.
pub(super) fn is_known(object: &Value) -> bool {
    has_known_fields(object) && has_known_annotations(object)
}

/// The same, but for fields in annotations.
pub(super) fn has_known_fields(object: &Value) -> bool {
    Version::of_object(object).is_some_and(|version| version.fields().has_all_fields_of(object))
}

/// Whether the gateway knows all fields in annotations. These may be large.
pub(super) fn has_known_annotations(object: &Value) -> bool {
    annotations(object).all(|(name, text)| is_known_annotation(name, text))
}

/// The annotations that stand for fields which `v1` does not have.
fn annotations(object: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    let texts = all.filter_map(|(name, text)| Some((name.as_str(), text.as_str()?)));
    texts.filter(|(name, _)| name.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('/')))
}

/// Whether the gateway knows all fields in such an annotation.
fn is_known_annotation(name: &str, text: &str) -> bool {
    let of = match name {
        METRICS => &Type::List(&METRIC_SPEC_V1),
        CURRENT_METRICS => &Type::List(&METRIC_STATUS_V1),
        CONDITIONS => &Type::List(&CONDITION_V1),
        BEHAVIOR => &RULES_OF_BEHAVIOR,
        // kube-apiserver drops them.
        name => return ANNOTATIONS.contains(&name),
    };
    // Go reads nothing of another text.
    raw::check(text.as_bytes()).is_err() || of.has_all_fields_in(text.as_bytes(), Names::Folded)
}

/// The texts of these annotations, which are values once they are converted.
pub(super) fn annotated_texts(object: &Value) -> Vec<Vec<u8>> {
    annotations(object).map(|(_, text)| text.as_bytes().to_vec()).collect()
}

/// Whether a request may have such an annotation: then the API server may store more than it shows in `v1`.
// threat: unreviewed-write
pub(super) fn may_be_annotated(body: &[u8], encoding: Encoding) -> bool {
    encoding.may_mention(body, PREFIX)
}

/// An object in `v1` without what no form in `v1` can have after it is stored, so that another version shows the same.
pub(super) fn normalized(object: &Value) -> Option<Value> {
    if !is_known(object) {
        return None;
    }
    converted(&converted(object, V2)?, "autoscaling/v1")
}

/// Whether `v1` has all that an object in `v2` says of how it is scaled. The order of metrics does not count.
pub(super) fn is_kept(object: &Value, in_v1: &Value) -> bool {
    let form = |object: &Value| {
        let mut spec = converted(object, V2)?.get("spec")?.clone();
        let mut metrics: Vec<String> = list(&spec, "/metrics").iter().map(Value::to_string).collect();
        metrics.sort();
        put(&mut spec, "/metrics", metrics.into());
        Some(spec)
    };
    form(object).is_some_and(|spec| Some(spec) == form(in_v1))
}

/// The object in the version `to`, as the API server shows it there; without fields that the types do not have. `None` if it is not an
/// object of this kind, or that is not a version of it, or a field has a value that its type cannot have.
pub(crate) fn converted(object: &Value, to: &str) -> Option<Value> {
    let (from, version) = (Version::of_object(object)?, Version::of(to)?);
    // Not in Go's form: a number that was written with a fraction is none of a whole number's.
    let text = serde_json::to_vec(object).ok()?;
    let mut scaler = from.fields().decode(&text, Names::Exact).ok()?;
    set_defaults(from, &mut scaler);
    if from == Version::V1 {
        to_internal(&mut scaler).ok()?;
    }
    remove_annotations(&mut scaler);
    if version == Version::V1 {
        from_internal(&mut scaler);
    }
    put(&mut scaler, "/apiVersion", to.into());
    let mut text = Vec::new();
    version.fields().encode(Some(&scaler), Names::Exact, &mut text);
    raw::decode(&text).ok()
}

/// Fills in what a version has defaults for.
// kubernetes: pkg/apis/autoscaling/v1/defaults.go, v2/defaults.go
fn set_defaults(version: Version, scaler: &mut Value) {
    if scaler.pointer("/spec/minReplicas").is_none() {
        put(scaler, "/spec/minReplicas", 1.into());
    }
    if version == Version::V1 {
        return;
    }
    add_default_metric(scaler);
    if let Some(behavior) = scaler.pointer_mut("/spec/behavior").and_then(Value::as_object_mut) {
        let policy = |of: &str, value: i32| json!({"type": of, "value": value, "periodSeconds": 15});
        let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
            "policies": [policy("Pods", 4), policy("Percent", 100)]});
        let down = json!({"selectPolicy": "Max", "policies": [policy("Percent", 100)]});
        for (direction, default) in [("scaleUp", up), ("scaleDown", down)] {
            let mut rules = default.as_object().cloned().unwrap_or_default();
            if let Some(Value::Object(own)) = behavior.remove(direction) {
                rules.extend(own);
            }
            behavior.insert(direction.to_owned(), rules.into());
        }
    }
}

fn add_default_metric(scaler: &mut Value) {
    if list(scaler, "/spec/metrics").is_empty() {
        put(scaler, "/spec/metrics", json!([metric_of_cpu(&DEFAULT_UTILIZATION.into())]));
    }
}

fn metric_of_cpu(utilization: &Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": utilization}}})
}

/// Moves the fields and the annotations of `v1` to where the internal type has them.
// kubernetes: pkg/apis/autoscaling/v1/conversion.go, Convert_v1_HorizontalPodAutoscaler_To_autoscaling_HorizontalPodAutoscaler
fn to_internal(scaler: &mut Value) -> Result<(), Undecoded> {
    let utilization = take(scaler, "/spec", "targetCPUUtilizationPercentage");
    let of_cpu = utilization.as_ref().map(metric_of_cpu);
    let metrics = match annotated(scaler, METRICS, &Type::List(&METRIC_SPEC_V1))? {
        Some(others) => {
            let others = items(others);
            let others = others.iter().map(|metric| metric_to_internal(metric, spec_to_internal));
            Some(others.chain(of_cpu).collect())
        }
        None => of_cpu.map(|metric| vec![metric]),
    };
    if let Some(metrics) = metrics {
        put(scaler, "/spec/metrics", Value::Array(metrics));
    }
    if let Some(behavior) = annotated(scaler, BEHAVIOR, &RULES_OF_BEHAVIOR)?
        && behavior.as_object().is_some_and(|behavior| !behavior.is_empty())
    {
        put(scaler, "/spec/behavior", behavior);
    }
    if let Some(utilization) = take(scaler, "/status", "currentCPUUtilizationPercentage") {
        let current = json!({"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": utilization}}});
        put(scaler, "/status/currentMetrics", json!([current]));
    }
    if let Some(metrics) = annotated(scaler, CURRENT_METRICS, &Type::List(&METRIC_STATUS_V1))? {
        let metrics = items(metrics);
        let metrics = metrics.iter().map(|metric| metric_to_internal(metric, status_to_internal));
        put(scaler, "/status/currentMetrics", metrics.collect());
    }
    add_default_metric(scaler);
    if let Some(conditions) = annotated(scaler, CONDITIONS, &Type::List(&CONDITION_V1))? {
        put(scaler, "/status/conditions", Value::Array(items(conditions)));
    }
    Ok(())
}

/// The value in an annotation; `None` if there is none, or it is not of the type. A `null` is one.
fn annotated(scaler: &Value, name: &str, of: &Type) -> Result<Option<Value>, Undecoded> {
    let annotations = scaler.pointer("/metadata/annotations");
    let Some(text) = annotations.and_then(|annotations| annotations.get(name)?.as_str()) else {
        return Ok(None);
    };
    if raw::check(text.as_bytes()).is_err() {
        return Ok(None);
    }
    match of.decode(text.as_bytes(), Names::Folded) {
        Ok(value) => Ok(Some(value)),
        Err(Undecoded::Mismatch) => Ok(None),
        Err(unsupported @ Undecoded::Unsupported) => Err(unsupported),
    }
}

/// A metric of an annotation in the internal type.
fn metric_to_internal(metric: &Value, of_source: fn(&Source, &Value) -> Value) -> Value {
    let mut internal = Map::new();
    if let Some(text) = metric.get("type") {
        internal.insert("type".to_owned(), text.clone());
    }
    for source in &SOURCES {
        if let Some(values) = metric.get(source.name) {
            internal.insert(source.name.to_owned(), of_source(source, values));
        }
    }
    internal.into()
}

fn spec_to_internal(source: &Source, values: &Value) -> Value {
    let mut internal = moved_to_internal(source.spec, values);
    let has = |internal: &Value, place: &str| internal.pointer(place).is_some();
    let target = match source.name {
        "object" if has(&internal, TARGET_AVERAGE) => {
            if internal.pointer(TARGET_VALUE).and_then(Value::as_str) == Some("0") {
                take(&mut internal, "/target", "value");
            }
            "AverageValue"
        }
        "object" => "Value",
        "external" if has(&internal, TARGET_VALUE) => "Value",
        "resource" | "containerResource" if has(&internal, TARGET_UTILIZATION) => "Utilization",
        _ => "AverageValue",
    };
    put(&mut internal, TARGET_TYPE, target.into());
    internal
}

fn status_to_internal(source: &Source, values: &Value) -> Value {
    moved_to_internal(source.status, values)
}

fn moved_to_internal(moves: &[Move], values: &Value) -> Value {
    let mut internal = json!({});
    for Move { v1, internal: place, is_always_there } in moves {
        let zero = is_always_there.then(|| Value::from("0"));
        if let Some(value) = values.get(*v1).cloned().or(zero) {
            put(&mut internal, place, value);
        }
    }
    internal
}

/// Moves what `v1` has no fields for into annotations.
// kubernetes: pkg/apis/autoscaling/v1/conversion.go, Convert_autoscaling_HorizontalPodAutoscaler_To_v1_HorizontalPodAutoscaler
fn from_internal(scaler: &mut Value) {
    let metrics = take(scaler, "/spec", "metrics").map(items).unwrap_or_default();
    if let Some(utilization) = metrics.iter().find_map(utilization_of_cpu) {
        put(scaler, "/spec/targetCPUUtilizationPercentage", utilization.clone());
    }
    let others = metrics.iter().filter(|metric| utilization_of_cpu(metric).is_none());
    let others: Vec<_> = others.map(|metric| metric_from_internal(metric, |source| source.spec)).collect();
    annotate_list(scaler, METRICS, &METRIC_SPEC_V1, others);

    let current = take(scaler, "/status", "currentMetrics").map(items).unwrap_or_default();
    let mut of_cpu =
        current.iter().filter_map(|metric| resource_of_cpu(metric)?.pointer("/current/averageUtilization"));
    if let Some(utilization) = of_cpu.next_back() {
        put(scaler, "/status/currentCPUUtilizationPercentage", utilization.clone());
    }
    let current: Vec<_> =
        current.iter().map(|metric| metric_from_internal(metric, |source| source.status)).collect();
    annotate_list(scaler, CURRENT_METRICS, &METRIC_STATUS_V1, current);

    if let Some(behavior) = take(scaler, "/spec", "behavior") {
        let mut text = Vec::new();
        RULES_OF_BEHAVIOR.encode(Some(&behavior), Names::OfGo, &mut text);
        annotate(scaler, BEHAVIOR, &text);
    }
    let conditions = take(scaler, "/status", "conditions").map(items).unwrap_or_default();
    annotate_list(scaler, CONDITIONS, &CONDITION_V1, conditions);
}

fn resource_of_cpu(metric: &Value) -> Option<&Value> {
    let resource = metric.get("resource")?;
    let is_cpu = resource.get("name").is_some_and(|name| name == "cpu");
    (is_cpu && metric.get("type").is_some_and(|of| of == "Resource")).then_some(resource)
}

/// The target of a metric that `v1` has a field for.
fn utilization_of_cpu(metric: &Value) -> Option<&Value> {
    resource_of_cpu(metric)?.pointer(TARGET_UTILIZATION)
}

/// A metric as an annotation has it.
fn metric_from_internal(metric: &Value, moves: fn(&Source) -> &'static [Move]) -> Value {
    let mut v1 = Map::new();
    if let Some(text) = metric.get("type") {
        v1.insert("type".to_owned(), text.clone());
    }
    for source in &SOURCES {
        let Some(internal) = metric.get(source.name) else { continue };
        let moved = moves(source).iter().filter_map(|Move { v1, internal: place, .. }| {
            Some(((*v1).to_owned(), internal.pointer(place)?.clone()))
        });
        v1.insert(source.name.to_owned(), moved.collect());
    }
    v1.into()
}

fn annotate_list(scaler: &mut Value, name: &str, of: &'static Type, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    let mut text = Vec::new();
    Type::List(of).encode(Some(&Value::Array(items)), Names::Exact, &mut text);
    annotate(scaler, name, &text);
}

fn annotate(scaler: &mut Value, name: &str, text: &[u8]) {
    let text = String::from_utf8_lossy(text).into_owned();
    let mut annotations = take(scaler, "/metadata", "annotations").unwrap_or_else(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(name.to_owned(), text.into());
    }
    put(scaler, "/metadata/annotations", annotations);
}

// kubernetes: pkg/apis/autoscaling/helpers.go, DropRoundTripHorizontalPodAutoscalerAnnotations
fn remove_annotations(scaler: &mut Value) {
    if let Some(annotations) = scaler.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !ANNOTATIONS.contains(&name.as_str()));
    }
}

fn list<'a>(value: &'a Value, place: &str) -> &'a [Value] {
    value.pointer(place).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn items(list: Value) -> Vec<Value> {
    if let Value::Array(items) = list { items } else { Vec::new() }
}

fn take(value: &mut Value, object: &str, field: &str) -> Option<Value> {
    value.pointer_mut(object)?.as_object_mut()?.remove(field)
}

/// Sets the value at a JSON pointer, with the objects on the way.
fn put(value: &mut Value, place: &str, new: Value) {
    let mut at = value;
    for name in place.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        let Some(fields) = at.as_object_mut() else { return };
        at = fields.entry(name.to_owned()).or_insert(Value::Null);
    }
    *at = new;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(annotations: &Value, spec: &Value) -> Value {
        json!({"apiVersion": "autoscaling/v1", "kind": KIND, "metadata": {"name": "n", "annotations": annotations}, "spec": spec,
            "status": {"currentReplicas": 0, "desiredReplicas": 0}})
    }

    fn v2(spec: &Value) -> Value {
        json!({"apiVersion": "autoscaling/v2", "kind": KIND, "metadata": {"name": "n", "annotations": {"a": "b"}}, "spec": spec,
            "status": {"desiredReplicas": 0, "currentMetrics": null}})
    }

    #[test]
    fn what_v1_has_no_fields_for_is_in_annotations_and_comes_back() {
        let target = json!({"kind": "Deployment", "name": "x"});
        let pods = json!({"type": "Pods", "pods": {"metric": {"name": "<m>"}, "target": {"type": "AverageValue", "averageValue": "500m"}}});
        let rules = json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
        let behavior = json!({"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "tolerance": "50m",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}, "scaleDown": rules});
        let spec = |metrics: Value| json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3, "metrics": metrics, "behavior": behavior});
        let annotations = json!({"a": "b",
        METRICS: r#"[{"type":"Pods","pods":{"metricName":"\u003cm\u003e","targetAverageValue":"500m"}}]"#,
        BEHAVIOR: concat!(
            r#"{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","#,
            r#""Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":"50m"},"#,
            r#""ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","#,
            r#""Policies":[{"Type":"Percent","Value":100,"PeriodSeconds":15}],"Tolerance":null}}"#
        )});
        let in_v1 = v1(
            &annotations,
            &json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3,
            "targetCPUUtilizationPercentage": 60}),
        );
        let cpu = metric_of_cpu(&60.into());
        assert_eq!(converted(&v2(&spec(json!([cpu, pods]))), "autoscaling/v1"), Some(in_v1.clone()));
        assert_eq!(converted(&in_v1, "autoscaling/v2"), Some(v2(&spec(json!([pods, cpu])))));
    }

    #[test]
    fn the_utilization_of_cpu_is_80_percent_without_metrics() {
        let bare = json!({"maxReplicas": 3});
        let target = json!({"kind": "", "name": ""});
        let filled = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3,
            "targetCPUUtilizationPercentage": 80});
        assert_eq!(converted(&v2(&bare), "autoscaling/v1"), Some(v1(&json!({"a": "b"}), &filled)));
        let metrics = json!([metric_of_cpu(&80.into())]);
        let filled =
            json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3, "metrics": metrics});
        assert_eq!(converted(&v1(&json!({"a": "b"}), &bare), "autoscaling/v2"), Some(v2(&filled)));
    }

    #[test]
    fn annotations_that_are_not_of_the_type_count_as_none() {
        let digits = "1".repeat(1001);
        let long = format!(r#"[{{"type":"Pods","pods":{{"targetAverageValue":"{digits}"}}}}]"#);
        let metrics = |text: &str| {
            let converted = converted(&v1(&json!({METRICS: text}), &json!({})), "autoscaling/v2")?;
            Some(list(&converted, "/spec/metrics").len())
        };
        for (text, expected) in [
            (r#"[{"TYPE":"Pods"},null]"#, Some(2)),
            ("[]", Some(1)),
            ("null", Some(1)),
            ("{}", Some(1)),
            ("[", Some(1)),
            (r#"[{"type":"Pods"},{"type":1}]"#, Some(1)),
            // The webhook must not see the object without it.
            (long.as_str(), None),
        ] {
            assert_eq!(metrics(text), expected, "{text}");
        }
    }

    #[test]
    fn other_objects_versions_and_values_are_not_converted() {
        let object = v2(&json!({}));
        let with = |field: &str, value: Value| {
            let mut object = object.clone();
            object[field] = value;
            object
        };
        for (object, to) in [
            (with("kind", "Scale".into()), "autoscaling/v1"),
            (with("apiVersion", "autoscaling/v2beta2".into()), "autoscaling/v1"),
            (with("spec", json!({"maxReplicas": "1"})), "autoscaling/v1"),
            (with("spec", json!({"maxReplicas": 1.0})), "autoscaling/v1"),
            (with("metadata", json!([])), "autoscaling/v1"),
            (object.clone(), "autoscaling/v2beta2"),
            (json!([]), "autoscaling/v1"),
        ] {
            assert_eq!(converted(&object, to), None, "{object} {to}");
        }
        assert!(converted(&with("else", json!(1)), "autoscaling/v1").is_some());
    }

    #[test]
    fn an_object_with_a_field_of_a_later_release_is_not_known() {
        let policy = |more: &Value| {
            let mut policy = json!({"type": "Pods", "value": 1, "periodSeconds": 1});
            policy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            v2(&json!({"behavior": {"scaleUp": {"policies": [policy]}}}))
        };
        assert!(is_known(&policy(&json!({}))));
        assert!(!is_known(&policy(&json!({"later": 1}))));
        assert!(!is_known(&json!({"apiVersion": "v1", "kind": "Pod"})));
    }

    #[test]
    fn metrics_that_v1_cannot_show_are_found() {
        let target = json!({"kind": "Deployment", "name": "x"});
        let cpu = |percent: i32| metric_of_cpu(&percent.into());
        let memory = json!({"type": "Resource", "resource": {"name": "memory",
            "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
        for (metrics, is_shown) in [
            (json!([cpu(80)]), true),
            (json!([cpu(80), memory]), true),
            (json!([memory, cpu(80)]), true),
            (json!([cpu(80), cpu(60)]), false),
            (
                json!([{"type": "Object", "object": {"describedObject": target, "metric": {"name": "m"},
                "target": {"type": "Value", "value": "5", "averageValue": "3"}}}]),
                false,
            ),
        ] {
            let object = v2(&json!({"maxReplicas": 2, "scaleTargetRef": target, "metrics": metrics}));
            let shown = converted(&object, "autoscaling/v1").unwrap();
            assert_eq!(is_kept(&object, &shown), is_shown, "{metrics}");
            assert_eq!(normalized(&shown), Some(shown), "what is written is what is shown then");
        }
    }

    #[test]
    fn what_is_stored_is_what_is_shown_of_a_normalized_object() {
        let hidden = r#"[{"type":"Resource","resource":{"name":"cpu","targetAverageUtilization":80}}]"#;
        let spec = json!({"maxReplicas": 2, "targetCPUUtilizationPercentage": 1, "scaleTargetRef": {"kind": "D", "name": "x"}});
        let object = v1(&json!({METRICS: hidden}), &spec);
        let stored = converted(&object, "autoscaling/v2").unwrap();
        assert_eq!(list(&stored, "/spec/metrics").len(), 2);
        let normal = normalized(&object).unwrap();
        assert_eq!(normal.pointer("/spec/targetCPUUtilizationPercentage"), Some(&json!(80)));
        assert_eq!(list(&converted(&normal, "autoscaling/v2").unwrap(), "/spec/metrics").len(), 1);
    }

    #[test]
    fn a_body_that_may_have_such_an_annotation() {
        let (json, protobuf) = (Encoding::Json, Encoding::Protobuf);
        for (encoding, body, expected) in [
            (json, &br#"{"metadata":{"annotations":{"a":"b"}}}"#[..], false),
            (json, br#" [{"op":"remove","path":"/spec"}]"#, false),
            (protobuf, b"k8s\0\n\x01a", false),
            (protobuf, br#"{"metadata":{}}"#, true),
            (protobuf, b"k8s\0 autoscaling.alpha.kubernetes.io/x", true),
            (json, br#"{"metadata":{"annotations":{"autoscaling.alpha.kubernetes.io/x":"b"}}}"#, true),
            (
                json,
                br#"[{"op":"add","path":"/metadata/annotations/autoscaling.alpha.kubernetes.io~1metrics"}]"#,
                true,
            ),
            (json, br#"{"\u0061":"b"}"#, true),
            (json, b"kind: X", true),
            (json, b"{kind: X}", true),
            (json, b"{\"kind\": \"\xff\"}", true),
            (json, b"", true),
            (Encoding::Other, br#"{"metadata":{}}"#, true),
        ] {
            assert_eq!(
                may_be_annotated(body, encoding),
                expected,
                "{encoding:?} {}",
                String::from_utf8_lossy(body)
            );
        }
    }

    #[test]
    fn fields_of_a_later_release_in_annotations_are_not_known() {
        let spec = json!({"maxReplicas": 2, "scaleTargetRef": {"kind": "D", "name": "x"}});
        for (name, text, expected) in [
            (METRICS, r#"[{"type":"Pods","pods":{"METRICNAME":"m"}}]"#, true),
            (METRICS, r#"[{"type":"Pods","pods":{"later":"m"}}]"#, false),
            (BEHAVIOR, r#"{"ScaleUp":{"SelectPolicy":"Max"}}"#, true),
            (BEHAVIOR, r#"{"ScaleUp":{"Later":1}}"#, false),
            (METRICS, "no JSON", true),
            ("autoscaling.alpha.kubernetes.io/scale-up-tolerance", "1", true),
            ("autoscaling.alpha.kubernetes.io/later", "1", false),
            ("other.example.com/later", "1", true),
        ] {
            assert_eq!(is_known(&v1(&json!({name: text}), &spec)), expected, "{name}: {text}");
        }
    }
}
