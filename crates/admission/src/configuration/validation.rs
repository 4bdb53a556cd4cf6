//! Applies the defaults of a configuration and validates it by kube-apiserver's rules for new objects. Reports every error
//! at once.
//!
//! Follows `k8s.io/kubernetes/pkg/apis/admissionregistration/validation/validation.go` and
//! `pkg/apis/admissionregistration/v1/defaults.go`.

mod client_config;
mod rules;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_kubernetes::field::{FieldError, json_string, json_strings};
use portcullis_kubernetes::labels::{LabelSelector as WireSelector, label_key_errors, selector_errors};
use portcullis_kubernetes::metadata::cluster_object_errors;
use portcullis_kubernetes::names::{dns_1035_label_problems, dns_subdomain_problems};

use super::ValidationContext;
use super::wire::{WebhookConfiguration, WireMatchCondition, WireWebhook};
use crate::matching::{LabelSelector, MatchCondition};
use crate::{
    FailurePolicy, MatchPolicy, ReinvocationPolicy, ReviewVersion, SideEffects, Webhook, WebhookKind,
};

const MAX_MATCH_CONDITIONS: usize = 64;
const DEFAULT_TIMEOUT_SECONDS: i32 = 10;
const QUALIFIED_NAME_FIX: &str = "give a name of at least three parts, such as pods.policy.example.com";

/// The webhooks, or every error.
pub(super) fn webhooks(
    kind: WebhookKind,
    configuration: &WebhookConfiguration,
    context: &mut ValidationContext,
) -> Result<Vec<Webhook>, Vec<FieldError>> {
    let errors = cluster_object_errors(&configuration.metadata, "metadata", context.release);
    let mut validator = Validator { errors, context };
    let name = &configuration.metadata.name;
    let mut names = BTreeSet::new();
    let mut valid = Vec::new();
    for (index, webhook) in configuration.webhooks.iter().enumerate() {
        let field = format!("webhooks[{index}]");
        valid.extend(validator.webhook(kind, name, webhook, &field));
        if !webhook.name.is_empty() && !names.insert(&webhook.name) {
            validator.errors.push(FieldError::duplicate(format!("{field}.name"), &webhook.name));
        }
    }
    let Validator { errors, .. } = validator;
    if errors.is_empty() { Ok(valid) } else { Err(errors) }
}

/// Validates the parts of a configuration, or of a policy.
pub(super) struct Validator<'a> {
    pub(super) errors: Vec<FieldError>,
    pub(super) context: &'a mut ValidationContext,
}

impl Validator<'_> {
    // validateMutatingWebhook, validateValidatingWebhook
    fn webhook(
        &mut self,
        kind: WebhookKind,
        configuration: &str,
        webhook: &WireWebhook,
        field: &str,
    ) -> Option<Webhook> {
        let field = |name: &str| format!("{field}.{name}");
        self.fully_qualified_name(&webhook.name, &field("name"));
        let rules = self.rules(&webhook.rules, &field("rules"));
        let policies = [("Fail", FailurePolicy::Fail), ("Ignore", FailurePolicy::Ignore)];
        let failure_policy = self.choice(
            webhook.failure_policy.as_deref(),
            FailurePolicy::Fail,
            &policies,
            &field("failurePolicy"),
        );
        let policies = [("Equivalent", MatchPolicy::Equivalent), ("Exact", MatchPolicy::Exact)];
        let match_policy = self.choice(
            webhook.match_policy.as_deref(),
            MatchPolicy::Equivalent,
            &policies,
            &field("matchPolicy"),
        );
        let side_effects = self.side_effects(webhook.side_effects.as_deref(), &field("sideEffects"));
        let timeout = self.timeout(webhook.timeout_seconds, &field("timeoutSeconds"));
        let namespace_selector = self.selector(&webhook.namespace_selector, &field("namespaceSelector"));
        let object_selector = self.selector(&webhook.object_selector, &field("objectSelector"));
        let policies = [("IfNeeded", ReinvocationPolicy::IfNeeded), ("Never", ReinvocationPolicy::Never)];
        let reinvocation_policy = match kind {
            WebhookKind::Mutating => self.choice(
                webhook.reinvocation_policy.as_deref(),
                ReinvocationPolicy::Never,
                &policies,
                &field("reinvocationPolicy"),
            ),
            WebhookKind::Validating => Some(ReinvocationPolicy::Never),
        };
        let url = self.client_config(&webhook.client_config, &field("clientConfig"));
        let match_conditions = self.match_conditions(&webhook.match_conditions, &field("matchConditions"));
        let review_version =
            self.review_version(&webhook.admission_review_versions, &field("admissionReviewVersions"));
        Some(Webhook {
            shadow: false,
            configuration: configuration.to_owned(),
            name: webhook.name.clone(),
            kind,
            url: url?,
            ca_bundle: webhook.client_config.ca_bundle.0.clone(),
            rules: rules?,
            failure_policy: failure_policy?,
            match_policy: match_policy?,
            namespace_selector: namespace_selector?,
            object_selector: object_selector?,
            side_effects: side_effects?,
            timeout: timeout?,
            review_version: review_version?,
            match_conditions,
            reinvocation_policy: reinvocation_policy?,
        })
    }

    pub(super) fn fail<T>(&mut self, error: FieldError) -> Option<T> {
        self.errors.push(error);
        None
    }

    // apimachinery: pkg/util/validation/validation.go, IsFullyQualifiedName
    fn fully_qualified_name(&mut self, name: &str, field: &str) {
        let problems = dns_subdomain_problems(name);
        let error = if name.is_empty() {
            FieldError::required(field, "")
        } else if !problems.is_empty() {
            FieldError::invalid(field, name, &problems.join(","))
        } else if name.split('.').count() < 3 {
            let problem = "should be a domain with at least three segments separated by dots";
            FieldError::invalid(field, name, problem)
        } else {
            return;
        };
        self.errors.push(error.fix(QUALIFIED_NAME_FIX));
    }

    /// One of several values; `choices` are in alphabetical order.
    pub(super) fn choice<T: Copy>(
        &mut self,
        given: Option<&str>,
        default: T,
        choices: &[(&str, T)],
        field: &str,
    ) -> Option<T> {
        let Some(given) = given else { return Some(default) };
        let chosen = choices.iter().find(|(name, _)| *name == given);
        chosen.map(|(_, value)| *value).or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.fail(FieldError::not_supported_json(field, &json_string(given), &names))
        })
    }

    fn side_effects(&mut self, given: Option<&str>, field: &str) -> Option<SideEffects> {
        let choices = [("None", SideEffects::None), ("NoneOnDryRun", SideEffects::NoneOnDryRun)];
        if given.is_none() {
            let error = FieldError::required(field, "must specify one of None, NoneOnDryRun");
            return self.fail(error.fix("give None if the webhook changes nothing but its response"));
        }
        self.choice(given, SideEffects::None, &choices, field)
    }

    fn timeout(&mut self, seconds: Option<i32>, field: &str) -> Option<Duration> {
        let seconds = seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let timeout = u64::try_from(seconds).ok().filter(|seconds| (1..=30).contains(seconds));
        timeout.map(Duration::from_secs).or_else(|| {
            let problem = "the timeout value must be between 1 and 30 seconds";
            let error = FieldError::invalid_json(field, &seconds.to_string(), problem);
            self.fail(error.fix("give a number from 1 to 30"))
        })
    }

    pub(super) fn selector(&mut self, selector: &WireSelector, field: &str) -> Option<LabelSelector> {
        let before = self.errors.len();
        selector_errors(selector, field, &mut self.errors);
        if self.errors.len() > before {
            return None;
        }
        let requirements =
            selector.match_expressions.iter().map(|requirement| meta::LabelSelectorRequirement {
                key: requirement.key.clone(),
                operator: requirement.operator.clone(),
                values: Some(requirement.values.clone()),
            });
        let compiled = LabelSelector::new(&meta::LabelSelector {
            match_labels: Some(selector.match_labels.clone()),
            match_expressions: Some(requirements.collect()),
        });
        compiled.map_err(|error| self.errors.push(FieldError::plain(field, format!("{field}: {error}")))).ok()
    }

    // validateMatchConditions, validateMatchCondition
    pub(super) fn match_conditions(
        &mut self,
        conditions: &[WireMatchCondition],
        field: &str,
    ) -> Vec<MatchCondition> {
        if conditions.len() > MAX_MATCH_CONDITIONS {
            let error = FieldError::too_many(field, conditions.len(), MAX_MATCH_CONDITIONS);
            self.errors.push(error.fix("join conditions with &&"));
        }
        let mut names = BTreeSet::new();
        let mut compiled = Vec::with_capacity(conditions.len());
        for (index, WireMatchCondition { name, expression }) in conditions.iter().enumerate() {
            let field = |name: &str| format!("{field}[{index}].{name}");
            if let Some(expression) = self.expression(expression.trim(), &field("expression")) {
                compiled.push(MatchCondition { name: name.clone(), expression });
            }
            let field = field("name");
            if name.is_empty() {
                self.errors.push(FieldError::required(&field, "").fix("give a name for metrics and logs"));
            } else {
                label_key_errors(name, &field, &mut self.errors);
                if !names.insert(name) {
                    self.errors.push(FieldError::duplicate(field, name));
                }
            }
        }
        compiled
    }

    fn expression(&mut self, text: &str, field: &str) -> Option<portcullis_cel::Expression> {
        let fix = "give a CEL expression over request, object and oldObject that is true or false";
        if text.is_empty() {
            return self.fail(FieldError::required(field, "").fix(fix));
        }
        match self.context.compile(text) {
            Ok(expression) => Some(expression),
            Err(error) => {
                let fix = error.fix().unwrap_or(fix).to_owned();
                self.fail(FieldError::invalid(field, text, &error.to_string()).fix(fix))
            }
        }
    }

    // validateAdmissionReviewVersions
    fn review_version(&mut self, versions: &[String], field: &str) -> Option<ReviewVersion> {
        let fix = "give [v1]";
        if versions.is_empty() {
            let error = FieldError::required(field, "must specify one of v1, v1beta1");
            return self.fail(error.fix(fix));
        }
        let mut seen = BTreeSet::new();
        for (index, version) in versions.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if !seen.insert(version) {
                self.errors.push(FieldError::invalid(field, version, "duplicate version").fix("remove one"));
                continue;
            }
            let problems = dns_1035_label_problems(version).into_iter();
            let invalid = problems.map(|problem| FieldError::invalid(&field, version, problem).fix(fix));
            self.errors.extend(invalid);
        }
        let known = versions.iter().find_map(|version| match version.as_str() {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1Beta1),
            _ => None,
        });
        known.or_else(|| {
            let problem = "must include at least one of v1, v1beta1";
            let error = FieldError::invalid_json(field, &json_strings(versions), problem);
            self.fail(error.fix(fix))
        })
    }
}
