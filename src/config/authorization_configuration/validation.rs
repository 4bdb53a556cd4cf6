//! Validates an `AuthorizationConfiguration` by kube-apiserver's rules. Reports every error at once.
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/validation/validation.go`, `ValidateAuthorizationConfiguration`, and
//! `k8s.io/kubernetes/pkg/kubeapiserver/authorizer/config.go`, `LoadAndValidateData`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_cel::{CelGo, Environment, Expression, ResultType};
use portcullis_go::duration::format_duration;
use portcullis_kubernetes::names::dns_subdomain_problems;

use super::{
    AuthorizationConfiguration, AuthorizerConfiguration, WebhookConfiguration, WebhookConnectionInfo,
    WebhookMatchCondition, WireDuration,
};
use crate::authz::settings::{FailurePolicy, SubjectAccessReviewVersion};
use crate::config::apiserver_config::field::{FieldError, json_string};

/// The mode that may occur more than once.
const WEBHOOK: &str = "Webhook";
/// The modes of kube-apiserver.
pub(in crate::config) const MODES: [&str; 6] = ["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", WEBHOOK];
/// The maximum number of conditions of a webhook.
const MAX_MATCH_CONDITIONS: usize = 64;
const SECOND: i64 = 1_000_000_000;
const MAX_TIMEOUT: i64 = 30 * SECOND;
// apiserver: pkg/apis/apiserver/v1/defaults.go
const DEFAULT_AUTHORIZED_TTL: i64 = 300 * SECOND;
const DEFAULT_UNAUTHORIZED_TTL: i64 = 30 * SECOND;

/// A valid authorizer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) enum ValidAuthorizer {
    AlwaysAllow,
    AlwaysDeny,
    Webhook(ValidWebhook),
    /// One that only the backend has.
    OfBackend,
    /// A connection that a gateway cannot have.
    Unsupported,
}

/// A valid webhook, whose kubeconfig is not loaded yet.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) struct ValidWebhook {
    pub(in crate::config) name: String,
    pub(in crate::config) kubeconfig: PathBuf,
    pub(in crate::config) version: SubjectAccessReviewVersion,
    pub(in crate::config) timeout: Duration,
    /// Zero: not cached.
    pub(in crate::config) authorized_ttl: Duration,
    /// Zero: not cached.
    pub(in crate::config) unauthorized_ttl: Duration,
    pub(in crate::config) failure_policy: FailurePolicy,
    pub(in crate::config) match_conditions: Vec<Expression>,
}

/// Validates a configuration. `file_problem` returns why a path is not that of a regular file.
pub(in crate::config) fn validate(
    configuration: &AuthorizationConfiguration,
    cel_go: CelGo,
    file_problem: impl FnMut(&Path) -> Option<String>,
) -> Result<Vec<ValidAuthorizer>, Vec<FieldError>> {
    let mut validator = Validator { cel_go, file_problem, errors: Vec::new() };
    let authorizers = validator.authorizers(&configuration.authorizers);
    let mut errors = validator.errors;
    if errors.is_empty() {
        errors = name_problems(configuration);
    }
    if errors.is_empty() { Ok(authorizers) } else { Err(errors) }
}

/// The path in the file of a field in an error: errors leave out `webhook`.
pub(in crate::config) fn path_in_file(field: &str) -> String {
    match field.split_once("].") {
        Some((_, "type" | "name" | "webhook")) | None => field.to_owned(),
        Some((authorizer, rest)) => format!("{authorizer}].webhook.{rest}"),
    }
}

/// kube-apiserver requires the name that flags would give.
fn name_problems(configuration: &AuthorizationConfiguration) -> Vec<FieldError> {
    let others = configuration.authorizers.iter().enumerate().filter(|(_, one)| one.mode != WEBHOOK);
    let problems = others.filter_map(|(index, AuthorizerConfiguration { mode, name, .. })| {
        let expected = mode.to_lowercase();
        (expected != *name).then(|| {
            let problem = format!("expected name {expected} for authorizer {mode} instead of {name}");
            FieldError::plain(format!("authorizers[{index}].name"), problem)
                .fix(format!("give name: {expected}"))
        })
    });
    problems.collect()
}

struct Validator<F> {
    /// By whose rules expressions are compiled.
    cel_go: CelGo,
    file_problem: F,
    errors: Vec<FieldError>,
}

impl<F: FnMut(&Path) -> Option<String>> Validator<F> {
    fn authorizers(&mut self, authorizers: &[AuthorizerConfiguration]) -> Vec<ValidAuthorizer> {
        if authorizers.is_empty() {
            let error =
                FieldError::required("authorizers", "at least one authorization mode must be defined");
            self.errors.push(error.fix("give an authorizer, such as one with type: Webhook"));
        }
        let mut modes = BTreeSet::new();
        let mut names = BTreeSet::new();
        let mut valid = Vec::new();
        for (index, authorizer) in authorizers.iter().enumerate() {
            let field = format!("authorizers[{index}]");
            let mode = authorizer.mode.as_str();
            let mode_field = format!("{field}.type");
            if mode.is_empty() {
                let error = FieldError::required(mode_field, "");
                self.errors.push(error.fix("give Webhook, AlwaysAllow or AlwaysDeny"));
                continue;
            }
            if !MODES.contains(&mode) {
                let error = FieldError::not_supported(mode_field, mode, &MODES);
                self.errors.push(error.fix("give Webhook, AlwaysAllow or AlwaysDeny"));
                continue;
            }
            if !modes.insert(mode) && mode != WEBHOOK {
                self.errors.push(FieldError::duplicate(mode_field, mode));
                continue;
            }
            self.name(&authorizer.name, &format!("{field}.name"), !names.insert(&authorizer.name));
            valid.extend(self.authorizer(authorizer, &field));
        }
        valid
    }

    fn name(&mut self, name: &str, field: &str, is_duplicate: bool) {
        let problems = dns_subdomain_problems(name);
        if name.is_empty() {
            self.errors.push(FieldError::required(field, "").fix("give a name for metrics and logs"));
        } else if is_duplicate {
            self.errors.push(FieldError::duplicate(field, name).fix("give each authorizer its own name"));
        } else if !problems.is_empty() {
            let problem = format!("authorizer name is invalid: {}", problems.join(", "));
            let error = FieldError::invalid(field, name, &problem);
            self.errors
                .push(error.fix("give lower-case letters, digits, - and ., such as policy.example.com"));
        }
    }

    fn authorizer(
        &mut self,
        AuthorizerConfiguration { mode, name, webhook }: &AuthorizerConfiguration,
        field: &str,
    ) -> Option<ValidAuthorizer> {
        let webhook_field = || format!("{field}.webhook");
        match (mode.as_str(), webhook) {
            (WEBHOOK, None) => {
                let error = FieldError::required(webhook_field(), "required when type=Webhook");
                self.errors.push(error.fix("give timeout, failurePolicy, connectionInfo and the versions"));
                None
            }
            (WEBHOOK, Some(webhook)) => self.webhook(name, webhook, field),
            (mode, webhook) => {
                if webhook.is_some() {
                    let problem = "may only be specified when type=Webhook";
                    let error = FieldError::invalid(webhook_field(), "non-null", problem);
                    self.errors.push(error.fix("remove it, or give type: Webhook"));
                }
                Some(match mode {
                    "AlwaysAllow" => ValidAuthorizer::AlwaysAllow,
                    "AlwaysDeny" => ValidAuthorizer::AlwaysDeny,
                    _ => ValidAuthorizer::OfBackend,
                })
            }
        }
    }

    // ValidateWebhookConfiguration
    fn webhook(
        &mut self,
        name: &str,
        webhook: &WebhookConfiguration,
        field: &str,
    ) -> Option<ValidAuthorizer> {
        let WebhookConfiguration { cache_authorized_requests, cache_unauthorized_requests, .. } = webhook;
        let field = |name: &str| format!("{field}.{name}");
        let timeout = self.timeout(webhook.timeout, &field("timeout"));
        let (ttl, default) = (webhook.authorized_ttl, DEFAULT_AUTHORIZED_TTL);
        let authorized_ttl = self.ttl(ttl, default, *cache_authorized_requests, &field("authorizedTTL"));
        let (ttl, default) = (webhook.unauthorized_ttl, DEFAULT_UNAUTHORIZED_TTL);
        let unauthorized_ttl =
            self.ttl(ttl, default, *cache_unauthorized_requests, &field("unauthorizedTTL"));
        let version =
            self.version(&webhook.subject_access_review_version, &field("subjectAccessReviewVersion"));
        self.condition_version(webhook, &field("matchConditionSubjectAccessReviewVersion"));
        let failure_policy = self.failure_policy(&webhook.failure_policy, &field("failurePolicy"));
        let kubeconfig = self.connection(&webhook.connection_info, &field("connectionInfo"));
        let match_conditions = self.match_conditions(&webhook.match_conditions, &field("matchConditions"));
        if webhook.connection_info.mode == "InClusterConfig" {
            return Some(ValidAuthorizer::Unsupported);
        }
        Some(ValidAuthorizer::Webhook(ValidWebhook {
            name: name.to_owned(),
            kubeconfig: kubeconfig?,
            version: version?,
            timeout: timeout?,
            authorized_ttl: authorized_ttl?,
            unauthorized_ttl: unauthorized_ttl?,
            failure_policy: failure_policy?,
            match_conditions,
        }))
    }

    fn timeout(&mut self, WireDuration(timeout): WireDuration, field: &str) -> Option<Duration> {
        let fix = "give a duration of at most 30s, such as 3s";
        if timeout == 0 {
            return self.fail(FieldError::required(field, "").fix(fix));
        }
        let duration = u64::try_from(timeout).ok().map(Duration::from_nanos);
        let Some(duration) = duration.filter(|_| timeout <= MAX_TIMEOUT) else {
            let error = FieldError::invalid(field, &format_duration(timeout), "must be > 0s and <= 30s");
            return self.fail(error.fix(fix));
        };
        Some(duration)
    }

    /// The time for which a decision is cached, zero if it is not.
    // Zero in the file is the default, so that it is never missing.
    fn ttl(
        &mut self,
        WireDuration(given): WireDuration,
        default: i64,
        caches: Option<bool>,
        field: &str,
    ) -> Option<Duration> {
        let ttl = if given == 0 { default } else { given };
        let Ok(ttl) = u64::try_from(ttl) else {
            let error = FieldError::invalid(field, &format_duration(ttl), "must be > 0s");
            return self.fail(error.fix("give a duration such as 30s"));
        };
        Some(if caches == Some(false) { Duration::ZERO } else { Duration::from_nanos(ttl) })
    }

    fn version(&mut self, version: &str, field: &str) -> Option<SubjectAccessReviewVersion> {
        if version.is_empty() {
            return self.fail(FieldError::required(field, "").fix("give v1"));
        }
        let parsed = SubjectAccessReviewVersion::parse(version);
        parsed.or_else(|| self.fail(FieldError::not_supported(field, version, &["v1", "v1beta1"])))
    }

    fn condition_version(&mut self, webhook: &WebhookConfiguration, field: &str) {
        match webhook.match_condition_subject_access_review_version.as_str() {
            "" if webhook.match_conditions.is_empty() => {}
            "" => {
                let error = FieldError::required(field, "required if match conditions are specified");
                self.errors.push(error.fix("give v1"));
            }
            "v1" => {}
            version => self.errors.push(FieldError::not_supported(field, version, &["v1"])),
        }
    }

    fn failure_policy(&mut self, policy: &str, field: &str) -> Option<FailurePolicy> {
        match policy {
            "" => {
                let fix = "give Deny to refuse requests while the webhook fails, or NoOpinion to ask the next authorizer";
                self.fail(FieldError::required(field, "").fix(fix))
            }
            "NoOpinion" => Some(FailurePolicy::NoOpinion),
            "Deny" => Some(FailurePolicy::Deny),
            policy => self.fail(FieldError::not_supported(field, policy, &["NoOpinion", "Deny"])),
        }
    }

    /// The path of the kubeconfig. Its content is validated when it is loaded.
    fn connection(&mut self, connection: &WebhookConnectionInfo, field: &str) -> Option<PathBuf> {
        let WebhookConnectionInfo { mode, kube_config_file } = connection;
        let mode_field = format!("{field}.type");
        let file_field = format!("{field}.kubeConfigFile");
        let fix = "give the absolute path of the webhook's kubeconfig";
        match (mode.as_str(), kube_config_file.as_deref()) {
            ("", _) => self.fail(FieldError::required(mode_field, "").fix("give KubeConfigFile")),
            ("InClusterConfig", None) => None,
            ("InClusterConfig", Some(file)) => {
                let problem = "can only be set when type=KubeConfigFile";
                self.fail(FieldError::invalid(file_field, file, problem).fix("give type: KubeConfigFile"))
            }
            ("KubeConfigFile", None | Some("")) => self.fail(FieldError::required(file_field, "").fix(fix)),
            ("KubeConfigFile", Some(file)) if !file.starts_with('/') => {
                self.fail(FieldError::invalid(file_field, file, "must be an absolute path").fix(fix))
            }
            ("KubeConfigFile", Some(file)) => match (self.file_problem)(Path::new(file)) {
                Some(problem) => self.fail(FieldError::invalid(file_field, file, &problem).fix(fix)),
                None => Some(PathBuf::from(file)),
            },
            (mode, file) => {
                // kube-apiserver prints its internal type, whose fields begin with capitals.
                let file = file.map_or("null".to_owned(), json_string);
                let value = format!("{{\"Type\":{},\"KubeConfigFile\":{file}}}", json_string(mode));
                let modes = ["InClusterConfig", "KubeConfigFile"];
                let error = FieldError::not_supported_json(mode_field, &value, &modes);
                self.fail(error.fix("give KubeConfigFile"))
            }
        }
    }

    // compileMatchConditions
    fn match_conditions(&mut self, conditions: &[WebhookMatchCondition], field: &str) -> Vec<Expression> {
        if conditions.len() > MAX_MATCH_CONDITIONS {
            let error = FieldError::too_many(field, conditions.len(), MAX_MATCH_CONDITIONS);
            self.errors.push(error.fix("join conditions with &&"));
            return Vec::new();
        }
        let mut seen = BTreeSet::new();
        let mut compiled = Vec::new();
        for (index, WebhookMatchCondition { expression: text }) in conditions.iter().enumerate() {
            let field = format!("{field}[{index}].expression");
            let fix = "give a CEL expression over request that is true or false";
            if text.trim().is_empty() {
                self.errors.push(FieldError::required(field, "").fix(fix));
            } else if !seen.insert(text) {
                self.errors.push(FieldError::duplicate(field, text));
            } else {
                let environment = Environment::SUBJECT_ACCESS_REVIEW.of(self.cel_go);
                match Expression::compile(text, environment, ResultType::Bool) {
                    Ok(expression) => compiled.push(expression),
                    Err(error) => {
                        let fix = error.fix().unwrap_or(fix).to_owned();
                        self.errors.push(FieldError::invalid(field, text, &error.to_string()).fix(fix));
                    }
                }
            }
        }
        compiled
    }

    fn fail<T>(&mut self, error: FieldError) -> Option<T> {
        self.errors.push(error);
        None
    }
}
