//! Resolves the issuers of JSON Web Tokens, from `--oidc-*` flags or an `AuthenticationConfiguration`, and the paths
//! open to anonymous requests.
//!
//! Follows `k8s.io/kubernetes/pkg/kubeapiserver/options/authentication.go`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use portcullis_go::quote::Quoted;
use portcullis_openid::jwt::keys::JwsAlgorithm;
use portcullis_pki::x509::CaBundle;

use super::super::{ConfigResolver, listed};
use crate::authn::anonymous::AnonymousAuth;
use crate::authn::oidc::settings::JwtAuthenticator;
use crate::config::apiserver_config::decode::decode;
use crate::config::apiserver_config::field::FieldError;
use crate::config::authentication_configuration::validation::validate;
use crate::config::authentication_configuration::{
    self as wire, AnonymousAuthConfig, AuthenticationConfiguration,
};
use crate::config::error::ConfigError;
use crate::config::flags::AuthenticationFlags;
use crate::config::sections::{KeyLocation, MergedSection};

const ISSUER: &str = "oidc-issuer-url";
const CLIENT: &str = "oidc-client-id";
const CA: &str = "oidc-ca-file";
const REQUIRED_CLAIM: &str = "oidc-required-claim";
const ALGORITHMS: &str = "oidc-signing-algs";
const USERNAME: &str = "oidc-username-claim";
const GROUPS: &str = "oidc-groups-claim";
const FLAGS: [&str; 9] =
    [ISSUER, CLIENT, CA, USERNAME, "oidc-username-prefix", GROUPS, GROUPS_PREFIX, ALGORITHMS, REQUIRED_CLAIM];

const GROUPS_PREFIX: &str = "oidc-groups-prefix";

type Issuers = Vec<Arc<JwtAuthenticator>>;

impl ConfigResolver<'_> {
    /// The issuers, and the paths open to anonymous requests.
    pub(super) fn issuers(&mut self, given: &MergedSection<AuthenticationFlags>) -> (Issuers, AnonymousAuth) {
        let flags = &given.values;
        let anonymous = if flags.anonymous_auth { AnonymousAuth::AllPaths } else { AnonymousAuth::Disabled };
        let oidc: Vec<&str> = FLAGS.into_iter().filter(|flag| given.is_given(flag)).collect();
        let Some(file) = &flags.authentication_config else {
            if oidc.is_empty() {
                return (Issuers::new(), anonymous);
            }
            return (self.issuer_of_flags(given).unwrap_or_default(), anonymous);
        };
        let place = given.place("authentication-config");
        if let [first, ..] = oidc.as_slice() {
            let problem = "authentication-config file and oidc-* flags are mutually exclusive";
            let keys: Vec<String> = oidc.iter().map(|flag| given.key(flag)).collect();
            let fix = format!("remove {}, and configure the issuer in {}", keys.join(", "), file.display());
            self.errors.push(ConfigError::new(given.key(first), problem).fix(fix));
        }
        let Some((issuers, configured)) =
            self.authentication_configuration(&place, file, &flags.service_account_issuer)
        else {
            return (Issuers::new(), anonymous);
        };
        let Some(configured) = configured else { return (issuers, anonymous) };
        if given.is_given("anonymous-auth") {
            let problem = "--anonymous-auth flag cannot be set when anonymous field is configured in authentication \
                           configuration file";
            let error = FieldError::forbidden("anonymous", problem).to_string();
            let fix = format!("remove it, or remove anonymous from {}", file.display());
            self.errors.push(ConfigError::new(given.key("anonymous-auth"), error).fix(fix));
        }
        (issuers, configured)
    }

    fn authentication_configuration(
        &mut self,
        place: &KeyLocation,
        file: &Path,
        disallowed: &[String],
    ) -> Option<(Issuers, Option<AnonymousAuth>)> {
        let file = &place.path(file);
        let text = self.read(&place.key, file)?;
        let decoded = decode::<AuthenticationConfiguration>(&text).map_err(|error| {
            // The text names the file, as kube-apiserver's does.
            let file = Quoted(&file.display().to_string()).to_string();
            let problem =
                format!("failed to load authentication configuration from file {file}: {}", error.problem);
            ConfigError::new(&place.key, problem).fix(error.fix)
        });
        let (configuration, lines) = self.ok(decoded)?;
        let config_error = |error: &FieldError| {
            let fix = format!("line {}: {}", lines.of(&error.field), error.fix);
            invalid(&place.key, error).in_file(file).fix(fix)
        };
        // As in kube-apiserver, the key determines the algorithm, so all are allowed.
        let issuers = match validate(&configuration, disallowed, &JwsAlgorithm::ALL, self.cel_go()) {
            Ok(issuers) => issuers,
            Err(errors) => {
                self.errors.extend(errors.iter().map(config_error));
                return None;
            }
        };
        for (index, authenticator) in configuration.jwt.iter().enumerate() {
            if let Ok(bundle) = CaBundle::from_pem(authenticator.issuer.certificate_authority.as_bytes()) {
                let field = format!("jwt[{index}].issuer.certificateAuthority");
                self.warn_of_dates(&place.key, file, &field, bundle.certificates());
            }
            let selector = &authenticator.issuer.egress_selector_type;
            if !selector.is_empty() {
                let field = format!("jwt[{index}].issuer.egressSelectorType");
                // apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, egressLookupForType without a lookup
                let problem =
                    format!("oidc: egress lookup required with egress selector type {}", Quoted(selector));
                let fix = format!(
                    "line {}: remove {field}; the gateway connects to issuers directly",
                    lines.of(&field)
                );
                self.errors.push(ConfigError::new(&place.key, problem).in_file(file).fix(fix));
            }
        }
        let anonymous = configuration.anonymous.map(anonymous_of);
        Some((issuers.into_iter().map(Arc::new).collect(), anonymous))
    }

    fn issuer_of_flags(&mut self, given: &MergedSection<AuthenticationFlags>) -> Option<Issuers> {
        let flags = &given.values;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let (url, client) = (text(&flags.oidc_issuer_url), text(&flags.oidc_client_id));
        if url.is_empty() || client.is_empty() {
            let problem =
                "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
            let missing = if url.is_empty() { ISSUER } else { CLIENT };
            let fix = format!("give {} and {}", given.key(ISSUER), given.key(CLIENT));
            return self.fail(ConfigError::new(given.key(missing), problem).fix(fix));
        }
        if !text(&flags.oidc_groups_prefix).is_empty() && text(&flags.oidc_groups_claim).is_empty() {
            self.warn_of_no_effect(given, GROUPS_PREFIX, GROUPS);
        }
        let algorithms = self.algorithms(&given.key(ALGORITHMS), &flags.oidc_signing_algs);
        let rules = self.required_claims(&given.key(REQUIRED_CLAIM), &flags.oidc_required_claim);
        let certificate_authority = match &flags.oidc_ca_file {
            Some(file) => self.issuer_ca(&given.place(CA), file),
            None => Some(String::new()),
        };
        let authenticator = wire::JwtAuthenticator {
            issuer: wire::Issuer {
                certificate_authority: certificate_authority?,
                audiences: vec![client],
                ..issuer_at(&url)
            },
            claim_validation_rules: rules?,
            claim_mappings: wire::ClaimMappings {
                username: wire::PrefixedClaimOrExpression {
                    prefix: Some(username_prefix(flags, &url)),
                    ..claim(&flags.oidc_username_claim)
                },
                groups: wire::PrefixedClaimOrExpression {
                    prefix: Some(text(&flags.oidc_groups_prefix)),
                    ..claim(flags.oidc_groups_claim.as_deref().unwrap_or_default())
                },
                ..wire::ClaimMappings::default()
            },
            user_validation_rules: Vec::new(),
        };
        let configuration = AuthenticationConfiguration { jwt: vec![authenticator], ..Default::default() };
        match validate(&configuration, &flags.service_account_issuer, &algorithms?, self.cel_go()) {
            Ok(issuers) => Some(issuers.into_iter().map(Arc::new).collect()),
            Err(errors) => {
                self.errors.extend(errors.iter().map(|error| {
                    let (flag, fix) = flag_of(error);
                    invalid(&given.key(flag), error).fix(fix)
                }));
                None
            }
        }
    }

    fn algorithms(&mut self, key: &str, names: &[String]) -> Option<Vec<JwsAlgorithm>> {
        let names = listed(names);
        let mut known = Vec::new();
        for name in &names {
            let Some(algorithm) = JwsAlgorithm::named(name) else {
                let all = JwsAlgorithm::ALL.map(JwsAlgorithm::name).join(", ");
                let problem = format!("oidc: unsupported signing alg: {}", Quoted(name));
                return self.fail(ConfigError::new(key, problem).fix(format!("give some of {all}")));
            };
            known.push(algorithm);
        }
        if known.is_empty() {
            known.push(JwsAlgorithm::RS256);
        }
        Some(known)
    }

    // component-base: cli/flag/map_string_string.go, without splitting at commas
    fn required_claims(&mut self, key: &str, pairs: &[String]) -> Option<Vec<wire::ClaimValidationRule>> {
        let mut required = BTreeMap::new();
        for pair in pairs {
            let Some((claim, value)) = pair.split_once('=') else {
                let error = ConfigError::new(key, "malformed pair, expect string=string");
                return self.fail(error.fix("give CLAIM=VALUE, once for each claim"));
            };
            required.insert(claim.trim().to_owned(), value.trim().to_owned());
        }
        let rules = required.into_iter().map(|(claim, required_value)| wire::ClaimValidationRule {
            claim,
            required_value,
            ..Default::default()
        });
        Some(rules.collect())
    }

    /// The PEM text of the issuer's CAs. Rejects an empty file, which would mean the system's CAs. Reads the file once,
    /// so that a replacement in progress cannot have the same effect.
    fn issuer_ca(&mut self, place: &KeyLocation, file: &Path) -> Option<String> {
        let (_, pem) = self.ca_bundle_and_pem(place, file)?;
        Some(String::from_utf8_lossy(&pem).into_owned())
    }
}

fn invalid(key: &str, error: &FieldError) -> ConfigError {
    ConfigError::new(key, format!("invalid authentication configuration: {error}"))
}

fn issuer_at(url: &str) -> wire::Issuer {
    wire::Issuer { url: url.to_owned(), ..Default::default() }
}

fn claim(name: &str) -> wire::PrefixedClaimOrExpression {
    wire::PrefixedClaimOrExpression { claim: name.to_owned(), ..Default::default() }
}

fn username_prefix(flags: &AuthenticationFlags, issuer: &str) -> String {
    match flags.oidc_username_prefix.as_deref().unwrap_or_default() {
        "-" => String::new(),
        "" if flags.oidc_username_claim != "email" => format!("{issuer}#"),
        prefix => prefix.to_owned(),
    }
}

/// The flag that sets a field, and the fix.
fn flag_of(error: &FieldError) -> (&'static str, &str) {
    let flags = [
        (".issuer.audiences", CLIENT, &*error.fix),
        (".issuer.certificateAuthority", CA, &*error.fix),
        (".claimValidationRules", REQUIRED_CLAIM, "give CLAIM=VALUE"),
        (".claimMappings.username", USERNAME, "give a claim, such as sub"),
        (".claimMappings.groups", GROUPS, "give a claim, such as groups"),
    ];
    let found = flags.into_iter().find(|(field, ..)| error.field.contains(field));
    found.map_or((ISSUER, &*error.fix), |(_, flag, fix)| (flag, fix))
}

fn anonymous_of(configured: AnonymousAuthConfig) -> AnonymousAuth {
    match configured {
        AnonymousAuthConfig { enabled: false, .. } => AnonymousAuth::Disabled,
        AnonymousAuthConfig { conditions, .. } if conditions.is_empty() => AnonymousAuth::AllPaths,
        AnonymousAuthConfig { conditions, .. } => {
            AnonymousAuth::Paths(conditions.into_iter().map(|condition| condition.path).collect())
        }
    }
}
