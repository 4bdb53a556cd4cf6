//! Resolves the gateway's own authorizers, from flags or an `AuthorizationConfiguration`. The rules between flags and
//! their error texts are kube-apiserver's.
//!
//! Follows `k8s.io/kubernetes/pkg/kubeapiserver/options/authorization.go`.

pub(super) mod compared;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use portcullis_go::quote::{Quoted, QuotedList};
use portcullis_http::client_tls::PlainHttp;
use portcullis_system::input_file::ReadFileError;

use super::{ConfigResolver, listed};
use crate::authz::settings::{
    Authorization, AuthorizationWebhook, AuthorizerSettings, FailurePolicy, SubjectAccessReviewVersion,
};
use crate::config::apiserver_config::decode::decode;
use crate::config::apiserver_config::field::FieldError;
use crate::config::authorization_configuration::chain::GatewayChain;
use crate::config::authorization_configuration::gateway::{self, BACKEND_MODES};
use crate::config::authorization_configuration::validation::{
    MODES, ValidAuthorizer, ValidWebhook, path_in_file, validate,
};
use crate::config::authorization_configuration::{AuthorizationConfiguration, AuthorizerConfiguration};
use crate::config::error::ConfigError;
use crate::config::flags::AuthorizationFlags;
use crate::config::inputs::InputReader;
use crate::config::kubeconfig::{WebhookServer, load_remote};
use crate::config::sections::{KeyLocation, MergedSection};

const CONFIG: &str = "authorization-config";
const MODE: &str = "authorization-mode";
const FILE: &str = "authorization-webhook-config-file";
const VERSION: &str = "authorization-webhook-version";
const AUTHORIZED_TTL: &str = "authorization-webhook-cache-authorized-ttl";
const UNAUTHORIZED_TTL: &str = "authorization-webhook-cache-unauthorized-ttl";
/// The flags that an `AuthorizationConfiguration` excludes.
const FLAGS: [&str; 5] = [MODE, FILE, VERSION, AUTHORIZED_TTL, UNAUTHORIZED_TTL];

/// The name of the webhook that flags configure.
const WEBHOOK_OF_FLAGS: &str = "default";
/// Its timeout.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// An authorizer of a chain.
struct ListedAuthorizer {
    mode: String,
    /// The mode, and the name of a webhook, for warnings.
    label: String,
    /// `None` for one of the backend.
    settings: Option<AuthorizerSettings>,
}

impl ConfigResolver<'_> {
    /// The authorizers; `None` if the backend alone decides. Leaves out invalid ones; `self.errors` has the errors, and
    /// the configuration then fails as a whole.
    pub(super) fn authorization(
        &mut self,
        given: &MergedSection<AuthorizationFlags>,
    ) -> Option<Arc<Authorization>> {
        let (key, authorizers) = match &given.values.authorization_config {
            Some(file) => {
                self.excluded_flags(given, file);
                let place = given.place(CONFIG);
                let authorizers = self.authorization_configuration(&place, file)?;
                (place.key, authorizers)
            }
            None => (given.key(MODE), self.authorizers_of_flags(given)?),
        };
        if matches!(authorizers.as_slice(), [AuthorizerSettings::AlwaysAllow]) {
            return None;
        }
        let mut behind =
            authorizers.iter().skip_while(|one| **one != AuthorizerSettings::AlwaysAllow).skip(1);
        if behind.next().is_some() {
            self.warnings.push(format!(
                "{key}: AlwaysAllow leaves every request to the backend, so the authorizers behind it are never asked; \
                 move it to the end"
            ));
        }
        Some(Arc::new(Authorization { authorizers }))
    }

    fn excluded_flags(&mut self, given: &MergedSection<AuthorizationFlags>, file: &Path) {
        let excluded: Vec<&str> = FLAGS.into_iter().filter(|flag| given.is_given(flag)).collect();
        if let [first, ..] = excluded.as_slice() {
            let problem = format!(
                "--{CONFIG} can not be specified when --{MODE} or --authorization-webhook-* flags are defined"
            );
            let keys: Vec<String> = excluded.iter().map(|flag| given.key(flag)).collect();
            let fix =
                format!("remove {}, and configure the authorizers in {}", keys.join(", "), file.display());
            self.errors.push(ConfigError::new(given.key(first), problem).fix(fix));
        }
    }

    fn authorization_configuration(
        &mut self,
        place: &KeyLocation,
        file: &Path,
    ) -> Option<Vec<AuthorizerSettings>> {
        let file = &place.path(file);
        let text = self.read(&place.key, file)?;
        let decoded = decode::<AuthorizationConfiguration>(&text).map_err(|error| {
            let problem = format!("failed to load AuthorizationConfiguration from file: {}", error.problem);
            ConfigError::new(&place.key, problem).in_file(file).fix(error.fix)
        });
        let (configuration, lines) = self.ok(decoded)?;
        let validated = validate(&configuration, self.cel_go(), |file| kubeconfig_problem(file, self.inputs));
        let (authorizers, mut errors) = match validated {
            Ok(authorizers) => (authorizers, Vec::new()),
            Err(errors) => (Vec::new(), errors),
        };
        errors.extend(gateway::problems(&configuration, self.leaves_to_backend));
        self.errors.extend(errors.iter().map(|error: &FieldError| {
            let fix = format!("line {}: {}", lines.of(&path_in_file(&error.field)), error.fix);
            ConfigError::new(&place.key, error.to_string()).in_file(file).fix(fix)
        }));
        if !errors.is_empty() {
            return None;
        }
        // Loads every kubeconfig, so that the errors of all are reported.
        let listed = configuration.authorizers.iter().zip(authorizers);
        let loaded: Vec<_> =
            listed.map(|(configured, valid)| self.load_authorizer(configured, valid, &place.key)).collect();
        let chain = loaded.into_iter().collect::<Option<Vec<_>>>()?;
        Some(self.gateway_authorizers(&place.key, chain))
    }

    fn load_authorizer(
        &mut self,
        AuthorizerConfiguration { mode, name, .. }: &AuthorizerConfiguration,
        authorizer: ValidAuthorizer,
        key: &str,
    ) -> Option<ListedAuthorizer> {
        let mut label = mode.clone();
        let settings = match authorizer {
            ValidAuthorizer::AlwaysAllow => Some(AuthorizerSettings::AlwaysAllow),
            ValidAuthorizer::AlwaysDeny => Some(AuthorizerSettings::AlwaysDeny),
            ValidAuthorizer::Webhook(webhook) => {
                label = format!("{mode} {}", Quoted(name));
                Some(self.load_webhook(webhook, key)?)
            }
            ValidAuthorizer::OfBackend => None,
            // Reported by `gateway::problems`.
            ValidAuthorizer::Unsupported => return None,
        };
        Some(ListedAuthorizer { mode: mode.clone(), label, settings })
    }

    /// The gateway's part of a chain. Warns of the authorizers that the backend has, and of others that are asked in
    /// another order.
    fn gateway_authorizers(&mut self, key: &str, chain: Vec<ListedAuthorizer>) -> Vec<AuthorizerSettings> {
        let modes: Vec<&str> = chain.iter().map(|one| one.mode.as_str()).collect();
        let Some(parts) = GatewayChain::of(&modes) else {
            return chain.into_iter().filter_map(|one| one.settings).collect();
        };
        let labels = |indices: &mut dyn Iterator<Item = usize>| {
            let labels = indices.filter_map(|index| chain.get(index)).map(|one| one.label.as_str());
            labels.collect::<Vec<_>>().join(" and ")
        };
        let of_backend = labels(&mut parts.of_backend.iter().copied());
        let verb = if parts.of_backend.len() == 1 { "it" } else { "they" };
        self.warnings.push(format!(
            "{key}: the backend decides by {of_backend}, after the gateway; {verb} must be among its own authorizers"
        ));
        for index in parts.overtaking().filter(|index| modes.get(*index) == Some(&"Webhook")) {
            let before = labels(&mut parts.of_backend.iter().copied().filter(|one| *one < index));
            let webhook = labels(&mut std::iter::once(index));
            self.warnings.push(format!(
                "{key}: {webhook} is asked about every request and can refuse it, also one that {before} before it would \
                 allow: only the backend knows what {before} decides"
            ));
        }
        if !parts.behind.is_empty() {
            let behind = labels(&mut parts.behind.iter().copied());
            self.warnings.push(format!(
                "{key}: the gateway does not ask {behind}, behind {of_backend}: a request that only {behind} would allow \
                 needs the same authorizer at the backend"
            ));
        }
        let mut authorizers: Vec<_> = chain
            .into_iter()
            .enumerate()
            .filter(|(index, _)| parts.asked.contains(index))
            .filter_map(|(_, one)| one.settings)
            .collect();
        if !authorizers.contains(&AuthorizerSettings::AlwaysAllow) {
            authorizers.push(AuthorizerSettings::AlwaysAllow);
        }
        authorizers
    }

    fn load_webhook(&mut self, webhook: ValidWebhook, key: &str) -> Option<AuthorizerSettings> {
        let remote = load_remote(key, &webhook.kubeconfig, PlainHttp::Never, self.inputs, &mut self.errors);
        let WebhookServer { url, tls, bearer_token } = remote?;
        let ValidWebhook { name, kubeconfig: _, version, timeout, .. } = webhook;
        Some(AuthorizerSettings::Webhook(Box::new(AuthorizationWebhook {
            name,
            url,
            tls,
            bearer_token,
            version,
            timeout,
            authorized_ttl: webhook.authorized_ttl,
            unauthorized_ttl: webhook.unauthorized_ttl,
            failure_policy: webhook.failure_policy,
            match_conditions: webhook.match_conditions,
        })))
    }

    // BuiltInAuthorizationOptions.Validate, buildAuthorizationConfiguration
    fn authorizers_of_flags(
        &mut self,
        given: &MergedSection<AuthorizationFlags>,
    ) -> Option<Vec<AuthorizerSettings>> {
        let mut modes = listed(&given.values.authorization_mode);
        if modes.is_empty() {
            modes.push("AlwaysAllow".to_owned());
        }
        let before = self.errors.len();
        self.mode_problems(given, &modes);
        let webhook = self.webhook_of_flags(given, modes.iter().any(|mode| mode == "Webhook"));
        if self.errors.len() > before {
            return None;
        }
        let chain = modes.into_iter().map(|mode| ListedAuthorizer {
            settings: match mode.as_str() {
                "AlwaysAllow" => Some(AuthorizerSettings::AlwaysAllow),
                "AlwaysDeny" => Some(AuthorizerSettings::AlwaysDeny),
                "Webhook" => webhook.clone(),
                _ => None,
            },
            label: mode.clone(),
            mode,
        });
        Some(self.gateway_authorizers(&given.key(MODE), chain.collect()))
    }

    fn mode_problems(&mut self, given: &MergedSection<AuthorizationFlags>, modes: &[String]) {
        let key = given.key(MODE);
        for mode in modes.iter().filter(|mode| !MODES.contains(&mode.as_str())) {
            let problem = format!("{MODE} {} is not a valid mode", Quoted(mode));
            let fix = "give Webhook, AlwaysDeny or AlwaysAllow";
            self.errors.push(ConfigError::new(&key, problem).fix(fix));
        }
        let distinct: BTreeSet<&str> = modes.iter().map(String::as_str).collect();
        if distinct.len() < modes.len() {
            let problem = format!("{MODE} {} has mode specified more than once", QuotedList(modes));
            self.errors.push(ConfigError::new(&key, problem).fix("give each mode once"));
        }
        let of_backend: Vec<&str> =
            BACKEND_MODES.into_iter().filter(|mode| distinct.contains(mode)).collect();
        if !of_backend.is_empty() && !self.leaves_to_backend {
            let names = of_backend.join(" and ");
            let problem = format!("the backend decides by {names}, after the gateway");
            let fix = format!(
                "give AlwaysAllow, once, in place of {names}: it leaves requests to the backend; or give \
                 --ignore-unknown-apiserver-flags"
            );
            self.errors.push(ConfigError::new(&key, problem).fix(fix));
        }
    }

    /// The webhook, if it is a mode. Reports the errors of its flags.
    fn webhook_of_flags(
        &mut self,
        given: &MergedSection<AuthorizationFlags>,
        is_mode: bool,
    ) -> Option<AuthorizerSettings> {
        let flags = &given.values;
        let authorized_ttl =
            self.duration(&given.key(AUTHORIZED_TTL), &flags.authorization_webhook_cache_authorized_ttl);
        let unauthorized_ttl =
            self.duration(&given.key(UNAUTHORIZED_TTL), &flags.authorization_webhook_cache_unauthorized_ttl);
        let file = flags.authorization_webhook_config_file.as_deref();
        let (file, version) = match (file, is_mode) {
            (Some(file), true) => (given.place(FILE).path(file), &flags.authorization_webhook_version),
            (None, true) => {
                let problem = format!("{MODE} Webhook's authorization config file not passed");
                let error = ConfigError::new(given.key(FILE), problem);
                return self.fail(error.fix("give the kubeconfig of the webhook"));
            }
            (Some(_), false) => {
                let problem = format!("cannot specify --{FILE} without mode Webhook");
                let fix = format!("add Webhook to {}, or remove it", given.key(MODE));
                return self.fail(ConfigError::new(given.key(FILE), problem).fix(fix));
            }
            (None, false) => {
                // As kube-apiserver, checks the version only with a webhook.
                let unused = [VERSION, AUTHORIZED_TTL, UNAUTHORIZED_TTL].into_iter();
                for flag in unused.filter(|flag| given.is_given(flag)) {
                    self.warn_of_no_effect(given, flag, FILE);
                }
                return None;
            }
        };
        let version = SubjectAccessReviewVersion::parse(version).ok_or_else(|| {
            let problem = format!(
                "unsupported webhook authorizer version {}, supported versions are \"v1\", \"v1beta1\"",
                Quoted(version)
            );
            ConfigError::new(given.key(VERSION), problem)
                .fix("give the SubjectAccessReview version of the webhook")
        });
        let version = self.ok(version);
        let webhook = ValidWebhook {
            name: WEBHOOK_OF_FLAGS.to_owned(),
            kubeconfig: file,
            version: version.unwrap_or(SubjectAccessReviewVersion::V1Beta1),
            timeout: WEBHOOK_TIMEOUT,
            authorized_ttl: authorized_ttl.unwrap_or_default(),
            unauthorized_ttl: unauthorized_ttl.unwrap_or_default(),
            failure_policy: FailurePolicy::NoOpinion,
            match_conditions: Vec::new(),
        };
        // Loads it in any case, so that its errors are reported, too.
        let loaded = self.load_webhook(webhook, &given.key(FILE));
        version.and(authorized_ttl).and(unauthorized_ttl).and(loaded)
    }
}

/// Why a path is not that of a regular file, in kube-apiserver's words. Reads the file, so that the configuration is
/// loaded again when it appears.
// apiserver: pkg/apis/apiserver/validation/validation.go, ValidateWebhookConfiguration
fn kubeconfig_problem(file: &Path, inputs: &mut InputReader) -> Option<String> {
    match inputs.read(file) {
        Err(ReadFileError::NotRegular(_)) => Some("must be a regular file".to_owned()),
        // A file that exists but cannot be read is reported when it is loaded.
        Err(ReadFileError::Io(error)) if std::fs::metadata(file).is_err() => {
            Some(format!("error loading file: stat {}: {}", file.display(), errno_text(&error)))
        }
        Ok(_) | Err(_) => None,
    }
}

/// The text of an error of the operating system as Go prints it: without its number, in lower case.
pub(super) fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}
