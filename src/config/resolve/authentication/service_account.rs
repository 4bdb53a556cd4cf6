//! Resolves the settings of service account tokens.
// kubernetes: pkg/kubeapiserver/options/authentication.go, BuiltInAuthenticationOptions.Validate and ToAuthenticationConfig

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use portcullis_go::quote::Quoted;
use portcullis_go::url::{Url, UrlError};
use portcullis_openid::jwt::key_file;
use portcullis_openid::jwt::keys::VerificationKey;

use super::ConfigResolver;
use crate::authn::service_account::{ServiceAccountKeys, ServiceAccountSettings};
use crate::config::error::ConfigError;
use crate::config::flags::AuthenticationFlags;
use crate::config::sections::{KeyLocation, MergedSection};

impl ConfigResolver<'_> {
    /// The settings; `None` without an issuer and a key.
    pub(super) fn service_accounts(
        &mut self,
        given: &MergedSection<AuthenticationFlags>,
    ) -> Option<ServiceAccountSettings> {
        let flags = &given.values;
        self.check_issuers(&given.key("service-account-issuer"), &flags.service_account_issuer);
        let place = given.place("service-account-key-file");
        let keys: Vec<_> = flags
            .service_account_key_file
            .iter()
            .filter_map(|file| self.service_account_keys(&place, file))
            .flatten()
            .collect();
        let keys = match (keys.is_empty(), flags.service_account_issuer.is_empty()) {
            (true, true) => {
                let lookup = "service-account-lookup";
                if given.is_given(lookup) {
                    self.warn_of_no_effect(given, lookup, "service-account-issuer");
                }
                return None;
            }
            (true, false) => ServiceAccountKeys::Backend,
            (false, _) => ServiceAccountKeys::Files(Arc::new(keys)),
        };
        Some(ServiceAccountSettings {
            issuers: flags.service_account_issuer.clone(),
            keys,
            lookup: flags.service_account_lookup,
        })
    }

    fn check_issuers(&mut self, key: &str, issuers: &[String]) {
        let mut seen = HashSet::new();
        for issuer in issuers {
            let (problem, fix) = if let Some(reason) = url_problem(issuer) {
                let text = format!(
                    "service-account-issuer {} contained a ':' but was not a valid URL: {reason}",
                    Quoted(issuer)
                );
                (text, "give the issuer as it is in the iss claim of tokens")
            } else if issuer.is_empty() {
                let text = "service-account-issuer should not be an empty string".to_owned();
                (text, "give the issuer as it is in the iss claim of tokens")
            } else if !seen.insert(issuer) {
                (format!("service-account-issuer {} is already specified", Quoted(issuer)), "give it once")
            } else {
                continue;
            };
            self.errors.push(ConfigError::new(key, problem).fix(fix));
        }
    }

    fn service_account_keys(&mut self, place: &KeyLocation, file: &Path) -> Option<Vec<VerificationKey>> {
        let file = &place.path(file);
        let pem = self.read(&place.key, file)?;
        let keys = key_file::read(&pem).map_err(|error| {
            ConfigError::new(&place.key, error.to_string())
                .in_file(file)
                .fix("give PEM with public keys, certificates, or private keys (ECDSA: EC PRIVATE KEY alone)")
        });
        self.ok(keys)
    }
}

/// The error if an issuer with a colon is not a URL.
// kubernetes: pkg/kubeapiserver/options/authentication.go, BuiltInAuthenticationOptions.Validate
fn url_problem(issuer: &str) -> Option<UrlError> {
    if issuer.contains(':') { Url::parse(issuer).err() } else { None }
}
