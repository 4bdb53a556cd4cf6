//! Random writes with admission webhooks and random policies, in every form and content type, with nulls and lists: each side answers the same status
//! and object, stores the same, and what the gateway stores is what its validating webhook has seen.
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of writes.

use futures_util::StreamExt as _;
use futures_util::stream;
use libtest_mimic::Failed;
use serde_json::{Map, Value, json};
use testkit::random::{Rng, inputs, seed};

use crate::authenticators::Setting;
use crate::case::{Case, Values, case};
use crate::client::{self, Version};
use crate::compare::{self, Outcome};
use crate::outside::Review;
use crate::random_policies;
use crate::run::{Compared, side_of};
use crate::servers::{Side, TwinServers};

const USUAL_WRITES: usize = 400;
/// The writes of one object.
const WRITES: usize = 4;
/// The objects that are written at once.
const AT_ONCE: usize = 8;
/// The most differences that are reported.
const MAX_REPORTED: usize = 5;

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// What webhooks do.
const ASKS: [&str; 7] =
    ["", "", "", "m1=label;", "m1=annotation;m2=label;", "m2=label;v1=deny;", "m1=label;v1=warn;"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Map,
    Widget,
}

impl Kind {
    fn collection(self) -> &'static str {
        match self {
            Self::Map => "/api/v1/namespaces/twin/configmaps",
            Self::Widget => "/apis/twin.test/v1/namespaces/twin/widgets",
        }
    }

    fn object(self, content: Map<String, Value>) -> Value {
        let (version, kind) = match self {
            Self::Map => ("v1", "ConfigMap"),
            Self::Widget => ("twin.test/v1", "Widget"),
        };
        let mut object = content;
        object.insert("apiVersion".to_owned(), version.into());
        object.insert("kind".to_owned(), kind.into());
        Value::Object(object)
    }

    /// Random content; with `removes`, nulls stand for removals.
    fn content(self, rng: &mut Rng, removes: bool) -> Map<String, Value> {
        let mut content = Map::new();
        let null = |rng: &mut Rng, value: Value| if removes && rng.one_in(6) { Value::Null } else { value };
        match self {
            Self::Map => {
                let mut data = Map::new();
                for _ in 0..rng.below(4) {
                    let value = Value::from(*rng.pick(&["", "1", "x\ny", "☃ <&>"]));
                    data.insert((*rng.pick(&["a", "b", "c.d", "e-f"])).to_owned(), null(rng, value));
                }
                content.insert("data".to_owned(), null(rng, Value::Object(data)));
            }
            Self::Widget => {
                let mut spec = Map::new();
                let fields: [(&str, Value); 5] = [
                    ("replicas", rng.below(9).into()),
                    ("color", (*rng.pick(&["red", "", "green"])).into()),
                    ("parts", ["a", "b", "c"].iter().filter(|_| rng.one_in(2)).copied().collect()),
                    ("listeners", (0..rng.below(4)).map(|_| listener(rng)).collect()),
                    ("free", free(rng, 0)),
                ];
                for (field, value) in fields {
                    if rng.one_in(2) {
                        spec.insert(field.to_owned(), null(rng, value));
                    }
                }
                content.insert("spec".to_owned(), Value::Object(spec));
            }
        }
        content
    }

    /// A place that a JSON patch changes, and a value for it.
    fn operation(self, rng: &mut Rng) -> Value {
        let (path, value) = match self {
            Self::Map => (*rng.pick(&["/data/a", "/data/b", "/data", "/binaryData"]), json!("x")),
            Self::Widget => (
                *rng.pick(&[
                    "/spec/listeners/0",
                    "/spec/listeners/-",
                    "/spec/free",
                    "/spec/free/0",
                    "/spec/color",
                ]),
                if rng.one_in(2) { listener(rng) } else { free(rng, 1) },
            ),
        };
        let value = if self == Self::Map && !path.contains("a/") { json!({"p": "x"}) } else { value };
        match rng.below(4) {
            0 => json!({"op": "remove", "path": path}),
            1 => json!({"op": "replace", "path": path, "value": value}),
            2 => json!({"op": "test", "path": path, "value": null}),
            _ => json!({"op": "add", "path": path, "value": value}),
        }
    }
}

fn listener(rng: &mut Rng) -> Value {
    match rng.below(4) {
        0 => json!({"name": "n", "mode": null}),
        1 => json!({"name": "n"}),
        2 => json!({"name": "m", "mode": "private"}),
        _ => json!({}),
    }
}

/// Any value.
fn free(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth < 3 { 9 } else { 7 }) {
        0 => Value::Null,
        1 => true.into(),
        2 => rng.below(1000).into(),
        3 => json!(-1.5),
        4 => json!(1e21),
        5 => "".into(),
        6 => "text".into(),
        7 => (0..rng.below(4)).map(|_| free(rng, depth + 1)).collect(),
        _ => {
            let fields = (0..rng.below(4)).map(|number| (format!("f{number}"), free(rng, depth + 1)));
            Value::Object(fields.collect())
        }
    }
}

/// Random writes of one object, after its creation.
fn writes(rng: &mut Rng) -> Case {
    let kind = *rng.pick(&[Kind::Map, Kind::Widget]);
    let own = format!("{}/{{unique}}", kind.collection());
    let asks = |rng: &mut Rng| json!({"asks": *rng.pick(&ASKS), "{unique}": "x"});
    let named = |rng: &mut Rng, removes: bool| {
        let mut object = kind.object(kind.content(rng, removes));
        object["metadata"] =
            json!({"name": "{unique}", "annotations": asks(rng), "labels": random_policies::labels(rng)});
        object
    };
    let text = |rng: &mut Rng, object: &Value, content_type: &'static str| {
        let is_yaml = content_type == YAML || content_type == APPLY && rng.one_in(3);
        if is_yaml { format!("# {{unique}}\n{object}\n") } else { object.to_string() }
    };
    let first = named(rng, false);
    let content_type = *rng.pick(&[JSON, JSON, YAML]);
    let mut case = if rng.one_in(3) {
        let body = text(rng, &first, APPLY);
        case("", "", "PATCH", &format!("{own}?fieldManager=one&force=true")).body(APPLY, body.as_bytes())
    } else {
        let body = text(rng, &first, content_type);
        case("", "", "POST", kind.collection()).body(content_type, body.as_bytes())
    };
    case = case.cert("admin");
    for _ in 1..WRITES {
        let manager = *rng.pick(&["one", "two", "three"]);
        let dry = if rng.one_in(12) { "&dryRun=All" } else { "" };
        let target = format!("{own}?fieldManager={manager}{dry}");
        case = match rng.below(6) {
            0 => {
                let mut object = named(rng, false);
                if kind == Kind::Widget || rng.one_in(2) {
                    object["metadata"]["resourceVersion"] = json!("{version}");
                }
                let content_type = *rng.pick(&[JSON, JSON, YAML]);
                let body = text(rng, &object, content_type);
                case.then("PUT", &target).body(content_type, body.as_bytes())
            }
            1 => {
                let operations: Vec<Value> = (0..rng.below(3)).map(|_| kind.operation(rng)).collect();
                let annotations = json!({"op": "add", "path": "/metadata/annotations", "value": asks(rng)});
                let operations: Value = operations.into_iter().chain([annotations]).collect();
                case.then("PATCH", &target).body(JSON_PATCH, operations.to_string().as_bytes())
            }
            2 => {
                let object = named(rng, false);
                let body = text(rng, &object, APPLY);
                case.then("PATCH", &format!("{target}&force=true")).body(APPLY, body.as_bytes())
            }
            number => {
                let mut patch = Value::Object(kind.content(rng, true));
                patch["metadata"] = json!({"annotations": asks(rng)});
                if rng.one_in(6) {
                    patch["metadata"]["labels"] = Value::Null;
                }
                let content_type = if number == 3 && kind == Kind::Map { STRATEGIC } else { MERGE };
                case.then("PATCH", &target).body(content_type, patch.to_string().as_bytes())
            }
        };
        case = case.then("GET", &own);
    }
    case
}

pub(crate) async fn run(servers: &TwinServers) -> Result<Compared, Failed> {
    let mut rng = Rng(seed());
    let cases: Vec<Case> = (0..inputs(USUAL_WRITES).div_ceil(WRITES)).map(|_| writes(&mut rng)).collect();
    let comparing = stream::iter(cases.iter().enumerate())
        .map(async |(number, case)| compare_one(servers, case, number).await)
        .buffer_unordered(AT_ONCE);
    let results: Vec<Result<(Vec<String>, usize), Failed>> = comparing.collect().await;
    let (mut differences, mut stored) = (Vec::new(), 0);
    for result in results {
        let (found, written) = result?;
        differences.extend(found);
        stored += written;
    }
    if stored < cases.len() {
        differences.push(format!("of {} writes only {stored} are stored", cases.len() * WRITES));
    }
    differences.truncate(MAX_REPORTED);
    Ok(Compared { differences, last: 0 })
}

/// The differences, and how many writes are stored.
async fn compare_one(
    servers: &TwinServers,
    case: &Case,
    number: usize,
) -> Result<(Vec<String>, usize), Failed> {
    let (reference, mut left_values) = side_of(servers, Side::Reference.with(Setting::Admission))?;
    let (subject, mut right_values) = side_of(servers, Side::AdmissionGateway)?;
    let identity = servers.identity("admin");
    let (mut differences, mut written) = (Vec::new(), 0);
    let mut is_counted_otherwise = false;
    for step in &case.steps {
        let send = async |target, values: &Values| -> Outcome {
            client::exchange(target, identity, &step.request(Version::H1, values)).await
        };
        let (left, right) = tokio::join!(send(reference, &left_values), send(subject, &right_values));
        for (outcome, values) in [(&left, &mut left_values), (&right, &mut right_values)] {
            if let Some(version) = object_of(outcome)["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut values.version);
            }
        }
        let is_stored = |outcome: &Outcome| outcome.as_ref().is_ok_and(|answer| answer.status < 300);
        let compare = |left: &Outcome, right: &Outcome| {
            compare::differences(step, (left, &left_values), (right, &right_values), true)
        };
        let mut found = compare(&left, &right);
        // D-admission-generation: from such a write on, the generations stay different.
        let is_only_counted = || {
            !found.is_empty() && compare(&without_generation(&left), &without_generation(&right)).is_empty()
        };
        if (is_counted_otherwise || step.describe().contains(APPLY)) && is_only_counted() {
            is_counted_otherwise = true;
            found.clear();
        }
        // The messages of refusals are compared by the cases.
        if !is_stored(&left) && !is_stored(&right) {
            found.retain(|text| text.starts_with("status"));
        }
        if is_stored(&right) {
            written += 1;
            let reviews = servers.outside.admission.seen(&right_values.unique);
            let object = object_of(&right);
            if !reviews.iter().any(|review| is_reviewed(review, &object)) {
                found.push("no webhook has seen it".to_owned());
            }
        }
        if !found.is_empty() {
            differences.push(format!(
                "object {number}: {}\nsent: {}\nreference: {}\nsubject: {}",
                found.join("\n"),
                step.describe(),
                compare::show(&left),
                compare::show(&right)
            ));
            break;
        }
    }
    for values in [&left_values, &right_values] {
        servers.outside.admission.take(&values.unique);
    }
    Ok((differences, written))
}

fn object_of(outcome: &Outcome) -> Value {
    let body = outcome.as_ref().map(|answer| answer.body.clone()).unwrap_or_default();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// The response without the `generation` of its object.
fn without_generation(outcome: &Outcome) -> Outcome {
    let mut object = object_of(outcome);
    object["metadata"].as_object_mut().map(|metadata| metadata.remove("generation"));
    outcome.clone().map(|answer| client::Answer { body: object.to_string().into_bytes(), ..answer })
}

/// Whether the object is that of a review of the validating webhook, but for what the API server decides in the write.
fn is_reviewed((webhook, review): &Review, object: &Value) -> bool {
    let form = |object: &Value| {
        let mut object = object.clone();
        for field in ["uid", "creationTimestamp", "resourceVersion", "generation", "managedFields"] {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
        }
        object
    };
    webhook == "v1" && form(&review["request"]["object"]) == form(object)
}
