//! Which service-account tokens are taken.
// kubernetes: pkg/kubeapiserver/options/authentication.go, BuiltInAuthenticationOptions.Validate and ToAuthenticationConfig

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use url::{ParseError, Url};

use super::Resolver;
use crate::authn::jwt::key_file;
use crate::authn::jwt::keys::PublicKey;
use crate::authn::service_account::{Keys, ServiceAccounts};
use crate::config::error::ConfigError;
use crate::config::flags::AuthenticationFlags;
use crate::config::sections::{Place, Section};
use crate::go::quote::Quoted;

impl Resolver<'_> {
    /// What the flags ask for; nothing if there is neither an issuer nor a key.
    pub(super) fn service_accounts(
        &mut self,
        given: &Section<AuthenticationFlags>,
    ) -> Option<ServiceAccounts> {
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
            (true, false) => Keys::Backend,
            (false, _) => Keys::Files(Arc::new(keys)),
        };
        Some(ServiceAccounts {
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

    fn service_account_keys(&mut self, place: &Place, file: &Path) -> Option<Vec<PublicKey>> {
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

/// Why an issuer with a colon is no URL.
// Go: net/url, Parse — a reference without a scheme is one too, unless its first segment has a colon
fn url_problem(issuer: &str) -> Option<String> {
    if !issuer.contains(':') {
        return None;
    }
    match Url::parse(issuer) {
        Ok(_) => None,
        Err(ParseError::RelativeUrlWithoutBase) => {
            let first = issuer.split('/').next().unwrap_or_default();
            first.contains(':').then(|| "first path segment in URL cannot contain colon".to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}
