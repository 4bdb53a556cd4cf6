//! The `matchConditions` of a webhook, over `request`.
// apiserver: pkg/authorization/cel/{compile,matcher}.go

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use portcullis_cel::{Bindings, Expression, Value as CelValue};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::authz::authorizer::aggregate;
use crate::metrics::Metrics;

/// Up to this many groups and extra values, conditions are evaluated where requests are served.
const MAX_SMALL_VALUES: usize = 64;
/// The same for the length of all texts of the user.
const MAX_SMALL_BYTES: usize = 8 << 10;

/// All conditions of a webhook. Cheap to clone.
#[derive(Clone)]
pub(super) struct MatchConditions {
    webhook: Arc<str>,
    all: Arc<[Expression]>,
    metrics: Arc<Metrics>,
}

impl MatchConditions {
    pub(super) fn new(webhook: &str, all: &[Expression], metrics: &Arc<Metrics>) -> Self {
        Self { webhook: webhook.into(), all: all.into(), metrics: Arc::clone(metrics) }
    }

    /// Whether all conditions hold. One that is false decides, whatever the errors of others.
    // matcher.go, Eval
    pub(super) fn match_request(&self, question: &SubjectAccessReviewSpec) -> Result<bool, String> {
        if self.all.is_empty() {
            return Ok(true);
        }
        let metrics = &self.metrics.authorization;
        let began = Instant::now();
        let matched = self.evaluate(&Bindings::default().with("request", &request(question)));
        metrics.conditions_evaluated(&self.webhook, began.elapsed());
        match &matched {
            Ok(true) => {}
            Ok(false) => metrics.excluded_by_conditions(&self.webhook),
            Err(_) => metrics.conditions_failed(&self.webhook),
        }
        matched
    }

    fn evaluate(&self, bindings: &Bindings) -> Result<bool, String> {
        let mut errors: Vec<String> = Vec::new();
        for condition in &*self.all {
            let problem = match condition.evaluate(bindings) {
                Ok(CelValue::Bool(true)) => continue,
                Ok(CelValue::Bool(false)) => return Ok(false),
                Ok(_) => "its result is not a bool".to_owned(),
                Err(error) => error.to_string(),
            };
            let text = condition.text();
            let error = format!("cel evaluation error: expression '{text}' resulted in error: {problem}");
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        aggregate(&errors).map_or(Ok(true), Err)
    }
}

/// Whether the evaluation may take long: the client controls the number of values, and conditions may combine them.
pub(super) fn is_large(question: &SubjectAccessReviewSpec) -> bool {
    let groups = question.groups.iter().flatten();
    let extra = question.extra.iter().flatten().flat_map(|(key, values)| std::iter::once(key).chain(values));
    let mut values = 0;
    let mut bytes = 0;
    groups.chain(extra).any(|text| {
        values += 1;
        bytes += text.len();
        values > MAX_SMALL_VALUES || bytes > MAX_SMALL_BYTES
    })
}

/// The value of `request`: all fields of the user and all strings, also empty ones.
// compile.go, convertObjectToUnstructured
fn request(question: &SubjectAccessReviewSpec) -> Value {
    let mut request = Map::new();
    let mut set = |name: &str, value: Value| request.insert(name.to_owned(), value);
    set("user", text(question.user.as_ref()));
    set("groups", json!(question.groups.clone().unwrap_or_default()));
    set("uid", text(question.uid.as_ref()));
    set("extra", json!(question.extra.clone().unwrap_or_default()));
    if let Some(on) = &question.resource_attributes {
        set("resourceAttributes", resource_attributes(on));
    }
    if let Some(on) = &question.non_resource_attributes {
        set("nonResourceAttributes", json!({"path": text(on.path.as_ref()), "verb": text(on.verb.as_ref())}));
    }
    Value::Object(request)
}

fn resource_attributes(on: &ResourceAttributes) -> Value {
    let texts = [
        ("namespace", &on.namespace),
        ("verb", &on.verb),
        ("group", &on.group),
        ("version", &on.version),
        ("resource", &on.resource),
        ("subresource", &on.subresource),
        ("name", &on.name),
    ];
    let mut attributes: Map<String, Value> =
        texts.into_iter().map(|(name, value)| (name.to_owned(), text(value.as_ref()))).collect();
    let fields = on.field_selector.as_ref().and_then(|selector| selector.requirements.as_ref());
    let fields =
        fields.map(|all| all.iter().map(|each| requirement(&each.key, &each.operator, &each.values)));
    if let Some(all) = fields {
        attributes.insert("fieldSelector".to_owned(), json!({"requirements": all.collect::<Value>()}));
    }
    let labels = on.label_selector.as_ref().and_then(|selector| selector.requirements.as_ref());
    let labels =
        labels.map(|all| all.iter().map(|each| requirement(&each.key, &each.operator, &each.values)));
    if let Some(all) = labels {
        attributes.insert("labelSelector".to_owned(), json!({"requirements": all.collect::<Value>()}));
    }
    Value::Object(attributes)
}

#[expect(clippy::ref_option, reason = "the type of a field")]
fn requirement(key: &str, operator: &str, values: &Option<Vec<String>>) -> Value {
    json!({"key": key, "operator": operator, "values": values.clone().unwrap_or_default()})
}

fn text(field: Option<&String>) -> Value {
    Value::from(field.map_or("", String::as_str))
}

impl fmt::Debug for MatchConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(Expression::text)).finish()
    }
}
