//! Random `HorizontalPodAutoscaler`s of `autoscaling/v1` and `autoscaling/v2`, valid and odd ones, converted to the other version as
//! webhooks see them; and random quantities. kube-apiserver's own types and conversions must lead to the same objects, and refuse the
//! same ones. `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change the seed and the number of each.

use portcullis::internal::converted_autoscaler;
use serde_json::{Map, Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const ANNOTATION: &str = "autoscaling.alpha.kubernetes.io/";
const TEXTS: &[&str] = &["cpu", "memory", "a", "", "<é>&\u{2028}", "\"\\\u{7}\n", "Resource", "cpu "];
const SOURCES: &[(&str, &str)] = &[
    ("Resource", "resource"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("ContainerResource", "containerResource"),
    ("External", "external"),
];
const TIMES: &[&str] = &[
    "2026-01-02T03:04:05Z",
    "2026-01-02T03:04:05.999999999Z",
    "2026-01-02T03:04:05+02:30",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00.5Z",
    "9999-12-31T23:59:59-01:00",
];
const ODD_TIMES: &[&str] = &["", "2026-01-02", "2026-01-02T03:04:60Z"];
const QUANTITIES: &[&str] = &["0", "100m", "1500m", "1.5", "2Gi", "8Ki", "1024Mi", "1e3", "500"];
const ODD_QUANTITIES: &[&str] = &["", "1x", "Ki", "1.2.3", "--1", "1e", "0x1"];
const SUFFIXES: &[&str] = &[
    "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2", "e+7",
    "e1", "E", "e-9", "e20",
];

/// What the objects of one run have, and how odd they are.
struct Generator {
    rng: Rng,
    /// One of so many values is odd.
    odd: usize,
}

impl Generator {
    fn is_odd(&mut self) -> bool {
        self.rng.one_in(self.odd)
    }

    /// A value of another type now and then.
    fn or_odd(&mut self, value: Value) -> Value {
        if !self.is_odd() {
            return value;
        }
        let others = [
            json!(null),
            json!(null),
            json!(null),
            json!(true),
            json!(1.5),
            json!("1"),
            json!([]),
            json!({}),
            json!(-7),
        ];
        self.rng.pick(&others).clone()
    }

    fn text(&mut self, usual: &[&str]) -> Value {
        let list = if self.rng.one_in(6) { TEXTS } else { usual };
        let text = *self.rng.pick(list);
        self.or_odd(text.into())
    }

    fn int(&mut self) -> Value {
        let numbers = [0, 1, 5, 60, 80, -3, i64::from(i32::MAX), i64::from(i32::MIN)];
        let number = if self.is_odd() { i64::from(i32::MAX) + 1 } else { *self.rng.pick(&numbers) };
        self.or_odd(number.into())
    }

    fn digits(&mut self, most: usize) -> String {
        let digits = ['0', '0', '0', '1', '2', '5', '8', '9', '7'];
        (0..self.rng.below(most + 1)).map(|_| *self.rng.pick(&digits)).collect()
    }

    fn quantity_text(&mut self) -> String {
        if self.rng.one_in(3) {
            return (*self.rng.pick(QUANTITIES)).to_owned();
        }
        if self.is_odd() {
            return (*self.rng.pick(ODD_QUANTITIES)).to_owned();
        }
        let sign = *self.rng.pick(&["", "", "", "", "-", "+"]);
        let most = *self.rng.pick(&[2, 4, 6, 20, 25]);
        let whole = self.digits(most);
        let point = if self.rng.one_in(3) { format!(".{}", self.digits(most)) } else { String::new() };
        let suffix = *self.rng.pick(SUFFIXES);
        let space = if self.rng.one_in(30) { " " } else { "" };
        format!("{space}{sign}{whole}{point}{suffix}{space}")
    }

    fn quantity(&mut self) -> Value {
        let value = match self.rng.below(12) {
            0 => json!(self.rng.below(3000)),
            1 => self.rng.pick(&[json!(0.5), json!(1.25), json!(-100.5)]).clone(),
            _ => self.quantity_text().into(),
        };
        self.or_odd(value)
    }

    fn time(&mut self) -> Value {
        let list = if self.is_odd() { ODD_TIMES } else { TIMES };
        let time = *self.rng.pick(list);
        self.or_odd(time.into())
    }

    /// Sets a field of an object in most cases, and adds an unknown one now and then.
    fn put(&mut self, object: &mut Value, name: &str, value: Value) {
        if self.rng.one_in(6) {
            return;
        }
        object[name] = value;
        if self.is_odd() {
            object["unknown"] = json!({"a": [1]});
        }
    }

    fn pick_put(&mut self, object: &mut Value, name: &str, value: fn(&mut Self) -> Value) {
        if self.rng.one_in(2) {
            let value = value(self);
            self.put(object, name, value);
        }
    }

    fn texts(&mut self) -> Value {
        let texts: Map<String, Value> =
            (0..self.rng.below(3)).map(|_| ((*self.rng.pick(TEXTS)).to_owned(), self.text(&["x"]))).collect();
        self.or_odd(texts.into())
    }

    fn list(&mut self, of: fn(&mut Self) -> Value) -> Value {
        let most = *self.rng.pick(&[1, 2, 4]);
        let list: Value = (0..self.rng.below(most + 1))
            .map(|_| {
                let item = of(self);
                self.or_odd(item)
            })
            .collect();
        self.or_odd(list)
    }

    fn selector(&mut self) -> Value {
        let mut selector = json!({});
        self.pick_put(&mut selector, "matchLabels", Self::texts);
        self.pick_put(&mut selector, "matchExpressions", |g| {
            g.list(|g| {
                let mut requirement = json!({});
                let (key, operator) = (g.text(&["a"]), g.text(&["In", "Exists"]));
                g.put(&mut requirement, "key", key);
                g.put(&mut requirement, "operator", operator);
                g.pick_put(&mut requirement, "values", |g| g.list(|g| g.text(&["v"])));
                requirement
            })
        });
        self.or_odd(selector)
    }

    fn reference(&mut self) -> Value {
        let mut reference = json!({});
        for (name, usual) in [("kind", "Deployment"), ("name", "web"), ("apiVersion", "apps/v1")] {
            let value = self.text(&[usual]);
            self.put(&mut reference, name, value);
        }
        self.or_odd(reference)
    }

    fn metric(&mut self) -> Value {
        let mut metric = json!({});
        let name = self.text(&["requests"]);
        self.put(&mut metric, "name", name);
        self.pick_put(&mut metric, "selector", Self::selector);
        self.or_odd(metric)
    }

    /// The target or the current value of a metric.
    fn values(&mut self) -> Value {
        let mut values = json!({});
        let of = self.text(&["Utilization", "Value", "AverageValue"]);
        self.put(&mut values, "type", of);
        self.pick_put(&mut values, "value", Self::quantity);
        self.pick_put(&mut values, "averageValue", Self::quantity);
        self.pick_put(&mut values, "averageUtilization", Self::int);
        self.or_odd(values)
    }

    /// A metric with the source that its type names, and others now and then.
    fn with_sources(&mut self, source: fn(&mut Self, &str) -> Value) -> Value {
        let (of, field) = *self.rng.pick(SOURCES);
        let of = self.text(&[of]);
        let mut metric = json!({});
        self.put(&mut metric, "type", of);
        let own = source(self, field);
        self.put(&mut metric, field, own);
        if self.rng.one_in(5) {
            let (_, other) = *self.rng.pick(SOURCES);
            let value = source(self, other);
            self.put(&mut metric, other, value);
        }
        metric
    }

    /// A source of `v2`; `values` is the name of its values.
    fn source_v2(&mut self, field: &str, values: &str) -> Value {
        let mut source = json!({});
        let of_values = self.values();
        self.put(&mut source, values, of_values);
        if field.ends_with("esource") {
            let name = self.text(&["cpu", "cpu", "memory"]);
            self.put(&mut source, "name", name);
        } else {
            let metric = self.metric();
            self.put(&mut source, "metric", metric);
        }
        self.pick_put(&mut source, "describedObject", Self::reference);
        self.pick_put(&mut source, "container", |g| g.text(&["app"]));
        self.or_odd(source)
    }

    fn metric_spec_v2(&mut self) -> Value {
        self.with_sources(|g, field| g.source_v2(field, "target"))
    }

    fn metric_status_v2(&mut self) -> Value {
        self.with_sources(|g, field| g.source_v2(field, "current"))
    }

    /// A source of an annotation, with the fields of all sources.
    fn source_v1(&mut self) -> Value {
        let mut source = json!({});
        for name in ["metricName", "name", "container"] {
            let value = self.text(&["cpu", "requests"]);
            self.put(&mut source, name, value);
        }
        self.pick_put(&mut source, "target", Self::reference);
        for name in ["selector", "metricSelector"] {
            self.pick_put(&mut source, name, Self::selector);
        }
        for name in
            ["targetValue", "averageValue", "targetAverageValue", "currentValue", "currentAverageValue"]
        {
            self.pick_put(&mut source, name, Self::quantity);
        }
        for name in ["targetAverageUtilization", "currentAverageUtilization"] {
            self.pick_put(&mut source, name, Self::int);
        }
        self.or_odd(source)
    }

    fn metric_v1(&mut self) -> Value {
        self.with_sources(|g, _| g.source_v1())
    }

    fn condition(&mut self) -> Value {
        let mut condition = json!({});
        for (name, usual) in
            [("type", "AbleToScale"), ("status", "True"), ("reason", "Because"), ("message", "a text")]
        {
            let value = self.text(&[usual]);
            self.put(&mut condition, name, value);
        }
        self.pick_put(&mut condition, "lastTransitionTime", Self::time);
        self.pick_put(&mut condition, "observedGeneration", Self::int);
        condition
    }

    fn rules(&mut self) -> Value {
        let mut rules = json!({});
        self.pick_put(&mut rules, "stabilizationWindowSeconds", Self::int);
        self.pick_put(&mut rules, "selectPolicy", |g| g.text(&["Max", "Min", "Disabled"]));
        self.pick_put(&mut rules, "tolerance", Self::quantity);
        self.pick_put(&mut rules, "policies", |g| {
            g.list(|g| {
                let mut policy = json!({});
                let of = g.text(&["Pods", "Percent"]);
                g.put(&mut policy, "type", of);
                g.pick_put(&mut policy, "value", Self::int);
                g.pick_put(&mut policy, "periodSeconds", Self::int);
                policy
            })
        });
        self.or_odd(rules)
    }

    fn behavior(&mut self) -> Value {
        let mut behavior = json!({});
        self.pick_put(&mut behavior, "scaleUp", Self::rules);
        self.pick_put(&mut behavior, "scaleDown", Self::rules);
        self.or_odd(behavior)
    }

    /// The text of an annotation: with names in other letters, repeated ones and what is no JSON now and then.
    fn annotation(&mut self, value: &Value) -> Value {
        let mut text =
            if self.rng.one_in(4) { serde_json::to_string_pretty(value).unwrap() } else { value.to_string() };
        if self.rng.one_in(2) {
            for name in [
                "type",
                "scaleUp",
                "scaleDown",
                "policies",
                "value",
                "resource",
                "name",
                "tolerance",
                "status",
            ] {
                let other = match self.rng.below(4) {
                    0 => name.to_uppercase(),
                    1 => name[..1].to_uppercase() + &name[1..],
                    2 => name.replace('s', "\u{17f}").replace('k', "\u{212a}"),
                    _ => continue,
                };
                text =
                    text.replacen(&format!("\"{name}\":"), &format!("\"{other}\":"), 1 + self.rng.below(3));
            }
        }
        if self.is_odd() {
            let repeated = format!("{{\"type\":{},", self.text(&["Pods"]));
            text = text.replacen('{', &repeated, 1);
        }
        match self.rng.below(10 * self.odd) {
            0 => text
                .truncate(text.char_indices().map(|(at, _)| at).nth(text.chars().count() / 2).unwrap_or(0)),
            1 => text.push_str(" x"),
            2 => text = String::new(),
            3 => text = text.replacen('"', "\"\\ud800", 1),
            _ => {}
        }
        self.or_odd(text.into())
    }

    fn annotations(&mut self, of_v1: bool) -> Value {
        let mut annotations = self.texts();
        if !annotations.is_object() {
            return annotations;
        }
        // Those of `v1` are only dropped in `v2`.
        let chance = if of_v1 { 2 } else { 12 };
        for name in ["metrics", "current-metrics", "conditions", "behavior", "scale-up-tolerance"] {
            if !self.rng.one_in(chance) {
                continue;
            }
            let value = match name {
                "metrics" | "current-metrics" => self.list(Self::metric_v1),
                "conditions" => self.list(Self::condition),
                "behavior" => self.behavior(),
                _ => "0.1".into(),
            };
            annotations[format!("{ANNOTATION}{name}")] = self.annotation(&value);
        }
        annotations
    }

    fn metadata(&mut self, of_v1: bool) -> Value {
        let mut metadata = json!({"name": "web"});
        let annotations = self.annotations(of_v1);
        self.put(&mut metadata, "annotations", annotations);
        self.pick_put(&mut metadata, "labels", Self::texts);
        if self.rng.one_in(4) {
            for name in ["generateName", "namespace", "uid", "resourceVersion", "selfLink"] {
                self.pick_put(&mut metadata, name, |g| g.text(&["n"]));
            }
            for name in ["creationTimestamp", "deletionTimestamp"] {
                self.pick_put(&mut metadata, name, Self::time);
            }
            for name in ["generation", "deletionGracePeriodSeconds"] {
                self.pick_put(&mut metadata, name, Self::int);
            }
            self.pick_put(&mut metadata, "finalizers", |g| g.list(|g| g.text(&["f"])));
            self.pick_put(&mut metadata, "ownerReferences", |g| {
                g.list(|g| {
                    let mut owner = json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"});
                    g.pick_put(&mut owner, "controller", |g| g.or_odd(true.into()));
                    g.pick_put(&mut owner, "blockOwnerDeletion", |g| g.or_odd(false.into()));
                    g.pick_put(&mut owner, "uid", |g| g.text(&["u"]));
                    owner
                })
            });
            self.pick_put(&mut metadata, "managedFields", |g| {
                g.list(|g| {
                    let mut entry = json!({"manager": "m", "operation": "Update", "fieldsType": "FieldsV1",
                        "fieldsV1": {"f:spec": {".": {}, "k:{\"a\":\"<\"}": null}}});
                    g.pick_put(&mut entry, "time", Self::time);
                    g.pick_put(&mut entry, "subresource", |g| g.text(&["status"]));
                    entry
                })
            });
        }
        metadata
    }

    fn object(&mut self, version: &str) -> Value {
        let is_v1 = version == "v1";
        let (mut spec, mut status) = (json!({}), json!({}));
        let (target, most) = (self.reference(), self.int());
        self.put(&mut spec, "scaleTargetRef", target);
        self.put(&mut spec, "maxReplicas", most);
        self.pick_put(&mut spec, "minReplicas", Self::int);
        for name in ["observedGeneration", "currentReplicas", "desiredReplicas"] {
            self.pick_put(&mut status, name, Self::int);
        }
        self.pick_put(&mut status, "lastScaleTime", Self::time);
        if is_v1 {
            self.pick_put(&mut spec, "targetCPUUtilizationPercentage", Self::int);
            self.pick_put(&mut status, "currentCPUUtilizationPercentage", Self::int);
        } else {
            self.pick_put(&mut spec, "metrics", |g| g.list(Self::metric_spec_v2));
            self.pick_put(&mut spec, "behavior", Self::behavior);
            self.pick_put(&mut status, "currentMetrics", |g| g.list(Self::metric_status_v2));
            self.pick_put(&mut status, "conditions", |g| g.list(Self::condition));
        }
        let mut object =
            json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler"});
        let (spec, status) = (self.or_odd(spec), self.or_odd(status));
        let metadata = self.metadata(is_v1);
        let metadata = self.or_odd(metadata);
        for (name, value) in [("metadata", metadata), ("spec", spec), ("status", status)] {
            self.put(&mut object, name, value);
        }
        object
    }
}

fn other(version: &str) -> &'static str {
    if version == "v1" { "v2" } else { "v1" }
}

/// What a converted object has.
fn word(version: &str, object: &Value) -> &'static str {
    let annotations = &object["metadata"]["annotations"];
    let has = |name: &str| annotations.get(format!("{ANNOTATION}{name}")).is_some();
    match version {
        "v1" if has("behavior") => "to v1 with a behavior",
        "v1" if has("metrics") => "to v1 with metrics",
        "v1" => "to v1",
        _ if object["spec"]["behavior"].is_object() => "to v2 with a behavior",
        _ if object["spec"]["metrics"].as_array().is_some_and(|metrics| metrics.len() > 1) => {
            "to v2 with metrics"
        }
        _ => "to v2",
    }
}

#[test]
fn autoscalers_are_converted_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("autoscalers") else { return };
    let mut generator = Generator { rng: Rng(seed()), odd: 1 };
    let all: Vec<(&str, Value)> = (0..inputs(8_000))
        .map(|_| {
            generator.odd = *generator.rng.pick(&[60, 600, 1_000_000]);
            let version = *generator.rng.pick(&["v1", "v2"]);
            (version, generator.object(version))
        })
        .collect();
    let question =
        |(version, object): &(&str, Value)| json!({"from": version, "to": other(version), "object": object});
    let judge = |(version, object): &(&str, Value), answer: &Value| -> Compared {
        let to = other(version);
        let ours = converted_autoscaler(object, &format!("autoscaling/{to}"));
        match (ours, answer.get("object")) {
            (None, None) => Ok("refused"),
            (Some(ours), Some(theirs)) if ours == *theirs => Ok(word(to, theirs)),
            (ours, theirs) => {
                let (ours, theirs) = (ours.unwrap_or_default(), theirs.cloned().unwrap_or_default());
                Err(format!("ours:     {ours}\n  expected: {theirs} {}", answer["error"]))
            }
        }
    };
    let words = program.compare("autoscalers", &all, question, |(_, object)| object.to_string(), judge);
    words.occurred(&[
        "refused",
        "to v1",
        "to v1 with metrics",
        "to v1 with a behavior",
        "to v2",
        "to v2 with metrics",
        "to v2 with a behavior",
    ]);
}

#[test]
fn quantities_are_printed_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("autoscalers") else { return };
    let mut generator = Generator { rng: Rng(seed()), odd: 30 };
    let all: Vec<String> = (0..inputs(20_000)).map(|_| generator.quantity_text().trim().to_owned()).collect();
    let question = |text: &String| json!({"quantity": text});
    let judge = |text: &String, answer: &Value| -> Compared {
        match (portcullis_cel::canonical_quantity(text), answer.get("quantity")) {
            (Err(_), None) => Ok("refused"),
            (Ok(ours), Some(theirs)) if *theirs == ours.as_str() => {
                Ok(if ours == *text { "kept" } else { "in another form" })
            }
            (ours, _) => Err(format!("ours:     {ours:?}\n  expected: {answer}")),
        }
    };
    let words = program.compare("quantities", &all, question, String::clone, judge);
    words.occurred(&["refused", "kept", "in another form"]);
}
