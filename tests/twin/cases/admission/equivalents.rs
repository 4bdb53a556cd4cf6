//! `matchPolicy: Equivalent`: webhooks whose rules match another version or group than the request's. The label `only` selects the
//! webhook.

use serde_json::{Value, json};

use super::{WIDGETS, by_admin};
use crate::case::Case;

const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// An object that is served in two versions or groups.
struct Kind {
    name: &'static str,
    /// The collections in the version that the requests use, and in that of the rules.
    collections: [&'static str; 2],
    object: fn() -> Value,
    /// A field that an update changes.
    patch: fn() -> Value,
    validating: &'static str,
    mutating: &'static str,
    /// A webhook for deletions alone.
    deleting: &'static str,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "a scaler of v2",
        collections: [
            "/apis/autoscaling/v2/namespaces/twin/horizontalpodautoscalers",
            "/apis/autoscaling/v1/namespaces/twin/horizontalpodautoscalers",
        ],
        object: || {
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}"},
                "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"},
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
                    "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
                        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}}]}})
        },
        patch: || json!({"spec": {"maxReplicas": 6}}),
        validating: "vequivalent",
        mutating: "mequivalent",
        deleting: "vgone1",
    },
    Kind {
        name: "a scaler of v1",
        collections: [
            "/apis/autoscaling/v1/namespaces/twin/horizontalpodautoscalers",
            "/apis/autoscaling/v2/namespaces/twin/horizontalpodautoscalers",
        ],
        object: || {
            json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}"},
                "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 60,
                    "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}})
        },
        patch: || json!({"spec": {"maxReplicas": 6}}),
        validating: "vscalers2",
        mutating: "mscalers2",
        deleting: "vgone2",
    },
    Kind {
        name: "an event",
        collections: ["/apis/events.k8s.io/v1/namespaces/twin/events", "/api/v1/namespaces/twin/events"],
        object: || {
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "{unique}"}, "note": "a note",
                "regarding": {"kind": "Pod", "name": "p", "namespace": "twin"}, "type": "Normal", "reason": "Because",
                "action": "Act", "reportingController": "twin.test/c", "reportingInstance": "i",
                "eventTime": "2026-01-02T03:04:05.000000Z"})
        },
        patch: || json!({"series": {"count": 3, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}}),
        validating: "vcoreevents",
        mutating: "mcoreevents",
        deleting: "vgone1",
    },
    Kind {
        name: "a widget of v2",
        collections: [
            "/apis/twin.test/v2/namespaces/twin/widgets",
            "/apis/twin.test/v1/namespaces/twin/widgets",
        ],
        object: || {
            json!({"apiVersion": "twin.test/v2", "kind": "Widget", "metadata": {"name": "{unique}"},
                "spec": {"replicas": 1, "parts": ["a"], "free": {"b": [1, null, {"c": {}}]}}})
        },
        patch: || json!({"spec": {"replicas": 2}}),
        validating: "vwidgets",
        mutating: "mwidgets",
        deleting: "vgone1",
    },
];

impl Kind {
    fn own(&self) -> String {
        format!("{}/{{unique}}", self.collections[0])
    }

    fn with(&self, webhook: &str, asks: &str) -> Value {
        let mut object = (self.object)();
        object["metadata"]["labels"] = json!({"only": webhook});
        object["metadata"]["annotations"] = json!({"asks": asks});
        object
    }

    fn patch_with(&self, webhook: &str, asks: &str) -> Value {
        let mut patch = (self.patch)();
        patch["metadata"] = json!({"labels": {"only": webhook}, "annotations": {"asks": asks}});
        patch
    }

    fn created(&self, what: &str) -> Case {
        by_admin(&format!("{}: {what}", self.name), "POST", self.collections[0])
            .json(&(self.object)().to_string())
            .answers(201)
    }

    /// The same object, read at the path of the request and at that of the rules.
    fn read(&self, case: Case, status: u16) -> Case {
        let other = format!("{}/{{unique}}", self.collections[1]);
        case.then("GET", &self.own()).answers(status).then("GET", &other).answers(status)
    }

    /// Updates in all forms.
    fn updates(&self) -> Vec<Case> {
        let (own, mut cases) = (self.own(), Vec::new());
        let (validating, mutating) = (self.validating, self.mutating);
        for (what, webhook, asks, status) in [
            ("allowed", validating, String::new(), 200),
            ("denied", validating, format!("{validating}=deny;"), 403),
            ("changed", mutating, format!("{mutating}=label;"), 200),
            ("changed twice", mutating, format!("{mutating}=label;m1=annotation;"), 200),
        ] {
            let patch = self.patch_with(webhook, &asks);
            let mut replaced = self.with(webhook, &asks);
            if self.name.contains("scaler") {
                replaced["spec"]["maxReplicas"] = json!(7);
            }
            replaced["metadata"]["resourceVersion"] = json!("{version}");
            let operations = json!([{"op": "add", "path": "/metadata/annotations", "value": {"asks": asks}},
                {"op": "add", "path": "/metadata/labels", "value": {"only": webhook}}]);
            let apply = format!("{own}?fieldManager=twin&force=true");
            let merge = self.created(&format!("merge patch {what}")).then("PATCH", &own);
            cases.push(self.read(merge.body(MERGE, patch.to_string().as_bytes()).answers(status), 200));
            if matches!(what, "allowed" | "changed twice") {
                continue;
            }
            let put = self.created(&format!("PUT {what}")).then("PUT", &own).json(&replaced.to_string());
            let json_patch = self.created(&format!("JSON patch {what}")).then("PATCH", &own);
            let applied = self.created(&format!("apply {what}")).then("PATCH", &apply);
            cases.push(self.read(put.answers(status), 200));
            cases.push(
                self.read(
                    json_patch.body(JSON_PATCH, operations.to_string().as_bytes()).answers(status),
                    200,
                ),
            );
            let configuration = self.with(webhook, &asks).to_string();
            cases.push(self.read(applied.body(APPLY, configuration.as_bytes()).answers(status), 200));
        }
        cases
    }

    /// Deletions of an object and of a collection.
    fn deletions(&self) -> Vec<Case> {
        let (own, webhook, mut cases) = (self.own(), self.deleting, Vec::new());
        for (what, asks, status, after) in
            [("allowed", String::new(), 200, 404), ("denied", format!("{webhook}=deny;"), 403, 200)]
        {
            let mut object = self.with(webhook, &asks);
            object["metadata"]["labels"]["x"] = json!("{unique}");
            let created = |how: &str| {
                by_admin(&format!("{}: {how} {what}", self.name), "POST", self.collections[0])
                    .json(&object.to_string())
                    .answers(201)
            };
            let deleted = created("DELETE").then("DELETE", &own).answers(status);
            cases.push(self.read(deleted, after));
            let collection = format!("{}?labelSelector=x%3D{{unique}}", self.collections[0]);
            let deleted = created("DELETE of a collection").then("DELETE", &collection).answers(status);
            cases.push(self.read(deleted, after));
        }
        cases
    }
}

pub(super) fn cases() -> Vec<Case> {
    let kinds = KINDS.iter().flat_map(|kind| [kind.updates(), kind.deletions()].concat());
    kinds
        .chain(widgets())
        .chain(scalers())
        .chain([core_event()])
        .chain(new_events())
        .chain(new_scalers())
        .collect()
}

/// A scaler of `v2` with metrics of all sources and quantities that are not in their canonical form.
fn detailed_scaler() -> Value {
    let web = json!({"kind": "Service", "name": "<web>", "apiVersion": "v1"});
    let metric = json!({"name": "requests", "selector": {"matchLabels": {"a": "b"},
        "matchExpressions": [{"key": "c", "operator": "In", "values": ["d", "e"]}]}});
    let value = |of: &str, field: &str, value: Value| json!({"type": of, field: value});
    json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}"},
        "spec": {"maxReplicas": 7, "minReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"},
            "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 30}], "tolerance": "0.050"}},
            "metrics": [
                {"type": "Object", "object": {"describedObject": web, "metric": metric, "target": value("Value", "value", json!("2000m"))}},
                {"type": "Object", "object": {"describedObject": web, "metric": metric, "target": value("AverageValue", "averageValue", json!(3))}},
                {"type": "Resource", "resource": {"name": "cpu", "target": value("Utilization", "averageUtilization", json!(60))}},
                {"type": "Resource", "resource": {"name": "cpu", "target": value("AverageValue", "averageValue", json!("0.5"))}},
                {"type": "Resource", "resource": {"name": "memory", "target": value("AverageValue", "averageValue", json!("1024Mi"))}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "app",
                    "target": value("Utilization", "averageUtilization", json!(70))}},
                {"type": "Pods", "pods": {"metric": metric, "target": value("AverageValue", "averageValue", json!("1e3"))}},
                {"type": "External", "external": {"metric": metric, "target": value("Value", "value", json!("1500.5"))}},
                {"type": "External", "external": {"metric": metric, "target": value("AverageValue", "averageValue", json!("30"))}}]}})
}

/// A scaler of `v1` with what only `v2` has fields for in annotations.
fn annotated_scaler() -> Value {
    let metrics = json!([{"type": "Pods", "pods": {"metricName": "requests", "targetAverageValue": "1500m"}},
        {"type": "Object", "object": {"target": {"kind": "Service", "name": "web"}, "metricName": "<m>", "targetValue": "0", "averageValue": "5"}}]);
    let behavior = json!({"ScaleUp": {"StabilizationWindowSeconds": 10, "SelectPolicy": "Min",
            "Policies": [{"Type": "Percent", "Value": 50, "PeriodSeconds": 60}], "Tolerance": "50m"},
        "ScaleDown": {"StabilizationWindowSeconds": 20, "SelectPolicy": "Max",
            "Policies": [{"Type": "Pods", "Value": 1, "PeriodSeconds": 60}], "Tolerance": null}});
    json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}", "annotations": {
            "autoscaling.alpha.kubernetes.io/metrics": metrics.to_string(),
            "autoscaling.alpha.kubernetes.io/behavior": behavior.to_string()}},
        "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 45,
            "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}})
}

/// The same in YAML.
fn yaml(object: &Value) -> String {
    fn write(value: &Value, indent: usize, out: &mut String) {
        let line = |out: &mut String, text: &str| {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            out.push_str(text);
        };
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                line(out, &format!("{name}: "));
                write(value, indent + 2, out);
            }),
            Value::Array(items) => items.iter().for_each(|item| {
                line(out, "- ");
                write(item, indent + 2, out);
            }),
            scalar => out.push_str(&scalar.to_string()),
        }
    }
    let mut text = String::new();
    write(object, 0, &mut text);
    text
}

/// New scalers of both versions, with webhooks for the other one.
fn new_scalers() -> Vec<Case> {
    let [of_v2, of_v1] = [&KINDS[0], &KINDS[1]];
    let with = |object: &Value, webhook: &str, asks: &str| {
        let mut object = object.clone();
        object["metadata"]["labels"] = json!({"only": webhook});
        object["metadata"]["annotations"]["asks"] = json!(asks);
        object
    };
    let mut cases = Vec::new();
    for (kind, form, object, changes) in [
        (of_v2, "simple", (of_v2.object)(), ["annotated-metrics", "no-minimum", "cpu"]),
        (of_v2, "detailed", detailed_scaler(), ["annotated-metrics", "no-minimum", "cpu"]),
        (of_v1, "simple", (of_v1.object)(), ["metrics", "no-metrics", "behavior"]),
        (of_v1, "annotated", annotated_scaler(), ["metrics", "no-metrics", "behavior"]),
    ] {
        let (validating, mutating) = (kind.validating, kind.mutating);
        let mut answers = vec![
            ("allowed".to_owned(), validating, String::new(), 201),
            ("denied".to_owned(), validating, format!("{validating}=deny;"), 403),
            ("labelled".to_owned(), mutating, format!("{mutating}=label;"), 201),
            (
                "changed and seen by others".to_owned(),
                mutating,
                format!("{mutating}=label;m1=annotation;v1=warn;"),
                201,
            ),
        ];
        answers.extend(changes.map(|change| {
            (
                format!("changed by {change}"),
                mutating,
                format!("m1=label;{mutating}={change};m2=annotation;"),
                201,
            )
        }));
        for (what, webhook, asks, status) in answers {
            let name = |how: &str| format!("new, {how}: {} ({form}): {what}", kind.name);
            let object = with(&object, webhook, &asks);
            let after = if status == 201 { 200 } else { 404 };
            let created = by_admin(&name("JSON"), "POST", kind.collections[0]).json(&object.to_string());
            cases.push(kind.read(created.answers(status), after));
            let created = by_admin(&name("YAML"), "POST", kind.collections[0]);
            cases.push(
                kind.read(created.body("application/yaml", yaml(&object).as_bytes()).answers(status), after),
            );
            let applied = by_admin(&name("apply"), "PATCH", &format!("{}?fieldManager=twin", kind.own()));
            let applied = applied.body(APPLY, object.to_string().as_bytes()).answers(status);
            cases.push(kind.read(applied, after));
        }
        let object = with(&object, mutating, &format!("{mutating}=label;"));
        let dry_run = format!("{}?dryRun=All", kind.collections[0]);
        let dry_run = by_admin(&format!("new, a dry run: {} ({form})", kind.name), "POST", &dry_run);
        cases.push(kind.read(dry_run.json(&object.to_string()).answers(201), 404));
        let put = by_admin(&format!("new, PUT: {} ({form})", kind.name), "PUT", &kind.own());
        cases.push(kind.read(put.json(&object.to_string()).answers(404).unreviewed(), 404));
        let mut generated = object;
        generated["metadata"]["generateName"] = json!("{unique}-");
        generated["metadata"].as_object_mut().expect("an object").remove("name");
        cases.push(
            by_admin(&format!("new, a generated name: {} ({form})", kind.name), "POST", kind.collections[0])
                .json(&generated.to_string())
                .answers(201),
        );
    }
    let mut of_memory = with(&(of_v2.object)(), "mequivalent", "mequivalent=label;");
    of_memory["spec"]["metrics"] = json!([{"type": "Resource",
        "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}}]);
    let kept = with(&(of_v2.object)(), "mequivalent", "mequivalent=no-behavior;");
    let unknown = with(&(of_v2.object)(), "mequivalent", "mequivalent=extra-field;m2=annotation;");
    for (what, object) in [
        ("metrics of memory alone", of_memory),
        ("a behavior that a webhook removes", kept),
        ("an unknown field of a webhook", unknown),
    ] {
        let created = by_admin(&format!("new: {what}"), "POST", of_v2.collections[0]);
        cases.push(of_v2.read(created.json(&object.to_string()).answers(201), 200));
    }
    let mut of_annotation = with(&annotated_scaler(), "mscalers2", "m1=label;mscalers2=annotation;");
    of_annotation["spec"].as_object_mut().expect("an object").remove("targetCPUUtilizationPercentage");
    let created = by_admin("new: metrics in an annotation alone", "POST", of_v1.collections[0]);
    cases.push(of_v1.read(created.json(&of_annotation.to_string()).answers(422), 404));
    let mistyped = with(&(of_v2.object)(), "mequivalent", "mequivalent=replicas-type;").to_string();
    let created = by_admin("new: a field of another type", "POST", of_v2.collections[0]);
    cases.push(of_v2.read(created.json(&mistyped).answers(500), 404));
    cases
}

/// New events of both groups, with webhooks for the other one.
fn new_events() -> Vec<Case> {
    let kind = &KINDS[2];
    let minimal = |mut object: Value| {
        for field in ["note", "message"] {
            object.as_object_mut().expect("an object").remove(field);
        }
        object
    };
    let mut cases = Vec::new();
    for (what, webhook, asks, status) in [
        ("allowed", "vcoreevents", "", 201),
        ("denied", "vcoreevents", "vcoreevents=deny;", 403),
        ("changed", "mcoreevents", "mcoreevents=label;", 201),
        ("changed and seen by others", "mcoreevents", "mcoreevents=label;m1=annotation;v1=warn;", 201),
    ] {
        let after = if status == 201 { 200 } else { 404 };
        for (form, object) in
            [("whole", kind.with(webhook, asks)), ("without a note", minimal(kind.with(webhook, asks)))]
        {
            let created = by_admin(&format!("a new event, {form}: {what}"), "POST", kind.collections[0]);
            cases.push(kind.read(created.json(&object.to_string()).answers(status), after));
            let apply = format!("{}?fieldManager=twin", kind.own());
            let applied = by_admin(&format!("a new event by apply, {form}: {what}"), "PATCH", &apply);
            cases.push(kind.read(applied.body(APPLY, object.to_string().as_bytes()).answers(status), after));
        }
    }
    let mistyped = kind.with("mcoreevents", "mcoreevents=message-type;").to_string();
    let created = by_admin("a new event: a field of another type", "POST", kind.collections[0]);
    cases.push(kind.read(created.json(&mistyped).answers(500), 404));
    for (what, asks, status) in [("allowed", "", 201), ("denied", "vevents=deny;", 403)] {
        let mut event = in_core(kind.with("vevents", asks));
        event["count"] = json!(3);
        event["firstTimestamp"] = json!("2026-01-02T03:04:05Z");
        event["source"] = json!({"component": "c", "host": "h"});
        for (form, event) in [("whole", event.clone()), ("without a message", minimal(event))] {
            let name = format!("a new event of the core group, {form}: {what}");
            cases.push(by_admin(&name, "POST", kind.collections[1]).json(&event.to_string()).answers(status));
        }
    }
    cases
}

/// An event with the names of the core group.
fn in_core(mut event: Value) -> Value {
    for (old, new) in
        [("note", "message"), ("regarding", "involvedObject"), ("reportingController", "reportingComponent")]
    {
        event[new] = event[old].take();
        event.as_object_mut().expect("an object").remove(old);
    }
    event["apiVersion"] = json!("v1");
    event
}

/// An event that the core group changes, as a webhook for the other group sees it.
fn core_event() -> Case {
    let event = in_core((KINDS[2].object)());
    let own = "/api/v1/namespaces/twin/events/{unique}";
    let patch =
        json!({"metadata": {"labels": {"only": "vevents"}, "annotations": {"asks": "vevents=deny;"}}});
    by_admin("an event of the core group", "POST", "/api/v1/namespaces/twin/events")
        .json(&event.to_string())
        .answers(201)
        .then("PATCH", own)
        .body(MERGE, patch.to_string().as_bytes())
        .answers(403)
}

/// New custom resources, of which the gateway knows that their versions differ in `apiVersion` alone.
fn widgets() -> Vec<Case> {
    let kind = &KINDS[3];
    let mut cases = Vec::new();
    for (what, webhook, asks, status) in [
        ("allowed", "vwidgets", "", 201),
        ("denied", "vwidgets", "vwidgets=deny;", 403),
        ("changed", "mwidgets", "mwidgets=spec;", 201),
        ("changed and seen by others", "mwidgets", "mwidgets=label;m1=annotation;v1=warn;", 201),
    ] {
        let object = kind.with(webhook, asks).to_string();
        let after = if status == 201 { 200 } else { 404 };
        let created = by_admin(&format!("a new widget of v2: {what}"), "POST", kind.collections[0]);
        cases.push(kind.read(created.json(&object).answers(status), after));
        let apply = format!("{}?fieldManager=twin", kind.own());
        let applied = by_admin(&format!("a new widget of v2 by apply: {what}"), "PATCH", &apply);
        cases.push(kind.read(applied.body(APPLY, object.as_bytes()).answers(status), after));
    }
    let status = |name: &str, asks: &str, code: u16| {
        let mut object = (kind.object)();
        object["metadata"]["labels"] = json!({"only": "vwidgets"});
        let patch = json!({"status": {"phase": asks}});
        by_admin(&format!("a status of a widget of v2: {name}"), "POST", WIDGETS)
            .json(&object.to_string().replace("/v2", "/v1"))
            .answers(201)
            .then("PATCH", &format!("{}/status", kind.own()))
            .body(MERGE, patch.to_string().as_bytes())
            .answers(code)
    };
    cases.extend([
        kind.read(status("allowed", "fine", 200), 200),
        kind.read(status("denied", "vwidgets=deny;", 403), 200),
    ]);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "{unique}", "namespace": "twin",
        "annotations": {"asks": "vwidgets=warn;"}}, "spec": {"replicas": 4}});
    let labelled = kind.with("vwidgets", "").to_string();
    cases.push(
        by_admin("a scale of a widget of v2", "POST", kind.collections[0])
            .json(&labelled)
            .answers(201)
            .then("PUT", &format!("{}/scale", kind.own()))
            .json(&scale.to_string())
            .answers(200),
    );
    cases
}

/// An update by a user who may not patch the object: the API server would convert it in a patch.
fn by_updater(kind: &Kind) -> Case {
    let mut object = kind.with("vequivalent", "");
    object["metadata"]["resourceVersion"] = json!("{version}");
    kind.created("a user who may not patch it")
        .then("PUT", &kind.own())
        .cert("updater")
        .json(&object.to_string())
}

fn scalers() -> Vec<Case> {
    let kind = &KINDS[0];
    let own = kind.own();
    let patched = |name: &str, patch: Value, status: u16| {
        let case = kind.created(name).then("PATCH", &own);
        kind.read(case.body(MERGE, patch.to_string().as_bytes()).answers(status), 200)
    };
    let status = json!({"metadata": {"labels": {"only": "vscalers"}}, "status": {"currentReplicas": 1, "desiredReplicas": 2,
        "conditions": [{"type": "AbleToScale", "status": "True", "reason": "vscalers=deny;"}]}});
    let mut of_memory = kind.patch_with("mequivalent", "mequivalent=label;");
    of_memory["spec"]["metrics"] = json!([{"type": "Resource",
        "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}}]);
    vec![
        patched("metrics of memory alone", of_memory, 200),
        patched(
            "a field that only the version of the rules has",
            kind.patch_with("mequivalent", "mequivalent=cpu;"),
            200,
        ),
        patched("a condition", kind.patch_with("vconverted", "vconverted=deny;"), 403),
        patched("ignored failures", kind.patch_with("vequivalentlax", "vequivalentlax=close;"), 200),
        patched("ignored, and denied", kind.patch_with("vequivalentlax", "vequivalentlax=deny;"), 403),
        patched("an exact policy", kind.patch_with("vexact", "vexact=deny;"), 200),
        kind.created("a status")
            .then("PATCH", &format!("{own}/status"))
            .body(MERGE, json!({"metadata": {"labels": {"only": "vscalers"}}}).to_string().as_bytes())
            .answers(200)
            .then("PATCH", &format!("{own}/status"))
            .body(MERGE, status.to_string().as_bytes())
            .answers(403),
        patched(
            "several versions, and called again",
            kind.patch_with("mequivalent", "mequivalent=third;m1=label;m2=annotation;"),
            200,
        ),
        by_updater(kind).answers(200),
    ]
}
