//! The `matchConditions` of a webhook, over `request`.
// apiserver: pkg/authorization/cel/{compile,matcher}.go

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use portcullis_cel::{Bindings, Expression, Outcome, Value as CelValue};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::authz::ReviewError;
use crate::authz::authorizer::aggregate;
use crate::authz::settings::FailurePolicy;
use crate::metrics::Metrics;

/// Up to this many texts, conditions are evaluated where requests are served.
const MAX_SMALL_VALUES: usize = 64;
/// The same for the length of all texts.
const MAX_SMALL_BYTES: usize = 8 << 10;

/// All conditions of a webhook. Cheap to clone.
#[derive(Clone)]
pub(super) struct MatchConditions {
    webhook: Arc<str>,
    all: Arc<[Expression]>,
    /// Whether the `failurePolicy` ignores their errors.
    ignores_errors: bool,
    /// Whether any condition reads the field selector, and the label selector.
    uses_selectors: (bool, bool),
    metrics: Arc<Metrics>,
}

impl MatchConditions {
    pub(super) fn new(
        webhook: &str,
        (all, policy): (&[Expression], FailurePolicy),
        metrics: &Arc<Metrics>,
    ) -> Self {
        let uses = |field| all.iter().any(|condition| condition.selects(field));
        let uses_selectors = (uses("fieldSelector"), uses("labelSelector"));
        let ignores_errors = policy == FailurePolicy::NoOpinion;
        let (webhook, all, metrics) = (webhook.into(), all.into(), Arc::clone(metrics));
        Self { webhook, all, ignores_errors, uses_selectors, metrics }
    }

    /// Whether the evaluation may take long: the client controls the number of values, and conditions may combine them.
    pub(super) fn may_take_long(&self, spec: &SubjectAccessReviewSpec) -> bool {
        !self.all.is_empty() && (is_large(spec) || self.all.iter().any(Expression::needs_thread))
    }

    /// Whether all conditions hold. One that is false decides, whatever the errors of others. What is beyond a bound of the gateway is no
    /// error of a condition, which the `failurePolicy` could ignore: a client may cause it.
    // matcher.go, Eval
    pub(super) fn match_request(
        &self,
        spec: &SubjectAccessReviewSpec,
    ) -> Result<Result<bool, String>, ReviewError> {
        if self.all.is_empty() {
            return Ok(Ok(true));
        }
        let metrics = &self.metrics.authorization;
        let began = Instant::now();
        let mut errors = Vec::new();
        let request = request(spec, self.uses_selectors);
        let matched = self.evaluate(&Bindings::default().with("request", &request), &mut errors)?;
        metrics.conditions_evaluated(&self.webhook, began.elapsed());
        if !errors.is_empty() {
            metrics.conditions_failed(&self.webhook);
        }
        if !matched {
            metrics.excluded_by_conditions(&self.webhook);
            return Ok(Ok(false));
        }
        Ok(aggregate(&errors).map_or(Ok(true), Err))
    }

    /// Whether no condition is false. Collects the errors of the others.
    fn evaluate(&self, bindings: &Bindings, errors: &mut Vec<String>) -> Result<bool, ReviewError> {
        for condition in &*self.all {
            let text = condition.text();
            let evaluated = condition.evaluate_with(bindings, &[]);
            let problem = match evaluated.outcome {
                Outcome::Value(CelValue::Bool(true)) => continue,
                Outcome::Value(CelValue::Bool(false)) => return Ok(false),
                Outcome::Unsupported(error) => {
                    return Err(ReviewError::Unavailable(format!("cannot evaluate '{text}': {error}")));
                }
                // Its price may be higher than kube-apiserver's.
                Outcome::Error(error)
                    if self.ignores_errors && evaluated.may_be_within && error.is_of_cost() =>
                {
                    return Err(ReviewError::Unavailable(format!("cannot evaluate '{text}': {error}")));
                }
                Outcome::Error(error) => error.to_string(),
                // The type checker permits no others, and these expressions have no authorizer and no variables.
                Outcome::Value(_) | Outcome::Patch(_) | Outcome::Review(_) | Outcome::Variable(_) => {
                    "its result is not a bool".to_owned()
                }
            };
            errors.push(format!("cel evaluation error: expression '{text}' resulted in error: {problem}"));
        }
        Ok(true)
    }
}

/// Whether an access review has many values, or long ones.
fn is_large(spec: &SubjectAccessReviewSpec) -> bool {
    let SubjectAccessReviewSpec { user, uid, groups, extra, resource_attributes, non_resource_attributes } =
        spec;
    let groups = groups.iter().flatten();
    let extra = extra.iter().flatten().flat_map(|(key, values)| std::iter::once(key).chain(values));
    let path = non_resource_attributes.iter().flat_map(|on| [&on.path, &on.verb]).flatten();
    let resource = resource_attributes.iter().flat_map(|on| {
        [&on.namespace, &on.verb, &on.group, &on.version, &on.resource, &on.subresource, &on.name]
    });
    let fields = resource_attributes.iter().flat_map(|on| &on.field_selector);
    let fields = fields.flat_map(|selector| selector.requirements.iter().flatten());
    let fields = fields.flat_map(|each| std::iter::once(&each.key).chain(each.values.iter().flatten()));
    let labels = resource_attributes.iter().flat_map(|on| &on.label_selector);
    let labels = labels.flat_map(|selector| selector.requirements.iter().flatten());
    let labels = labels.flat_map(|each| std::iter::once(&each.key).chain(each.values.iter().flatten()));
    let texts = user.iter().chain(uid).chain(groups).chain(extra).chain(path).chain(resource.flatten());
    let mut values = 0;
    let mut bytes = 0;
    texts.chain(fields).chain(labels).any(|text| {
        values += 1;
        bytes += text.len();
        values > MAX_SMALL_VALUES || bytes > MAX_SMALL_BYTES
    })
}

/// The value of `request`: all fields of the user and all strings, also empty ones.
// compile.go, convertObjectToUnstructured
fn request(spec: &SubjectAccessReviewSpec, uses_selectors: (bool, bool)) -> Value {
    let mut request = Map::new();
    let mut set = |name: &str, value: Value| request.insert(name.to_owned(), value);
    set("user", text(spec.user.as_ref()));
    set("groups", json!(spec.groups.clone().unwrap_or_default()));
    set("uid", text(spec.uid.as_ref()));
    set("extra", json!(spec.extra.clone().unwrap_or_default()));
    if let Some(on) = &spec.resource_attributes {
        set("resourceAttributes", resource_attributes(on, uses_selectors));
    }
    if let Some(on) = &spec.non_resource_attributes {
        set("nonResourceAttributes", json!({"path": text(on.path.as_ref()), "verb": text(on.verb.as_ref())}));
    }
    Value::Object(request)
}

fn resource_attributes(on: &ResourceAttributes, (uses_fields, uses_labels): (bool, bool)) -> Value {
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
    let fields = on
        .field_selector
        .as_ref()
        .filter(|_| uses_fields)
        .and_then(|selector| selector.requirements.as_ref());
    let fields =
        fields.map(|all| all.iter().map(|each| requirement(&each.key, &each.operator, &each.values)));
    if let Some(all) = fields {
        attributes.insert("fieldSelector".to_owned(), json!({"requirements": all.collect::<Value>()}));
    }
    let labels = on
        .label_selector
        .as_ref()
        .filter(|_| uses_labels)
        .and_then(|selector| selector.requirements.as_ref());
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
