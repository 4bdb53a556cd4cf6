//! The kubeconfig of a webhook admission plugin: the gateway's credentials for webhooks, each by the server that it is for.
//! Its clusters have no meaning.
//!
//! Follows `k8s.io/apiserver/pkg/util/webhook/authentication.go`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kube::config::AuthInfo;
use portcullis_pki::x509::CertificateKeyPair;

use super::{ConfigError, InputReader, KubeconfigReader};
use crate::authn::BearerToken;

const CREDENTIAL_FIX: &str = "give token, tokenFile, or client-certificate and client-key";

/// The users of a kubeconfig.
#[derive(Debug)]
pub(in crate::config) struct WebhookUsers {
    file: PathBuf,
    users: BTreeMap<String, AuthInfo>,
    /// The user of the current context.
    current: Option<String>,
    /// The credentials that were loaded; `None` for one with an error.
    loaded: BTreeMap<String, Option<WebhookCredential>>,
}

/// The gateway's credential for a webhook; without both parts the gateway is anonymous.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::config) struct WebhookCredential {
    pub(in crate::config) certificate: Option<CertificateKeyPair>,
    pub(in crate::config) token: Option<BearerToken>,
}

impl WebhookUsers {
    /// Reads the users. Errors go to `errors`; `None` means there were some.
    pub(in crate::config) fn load(
        key: &str,
        file: &Path,
        inputs: &mut InputReader,
        errors: &mut Vec<ConfigError>,
    ) -> Option<Self> {
        let mut reader = KubeconfigReader { key, file, before: errors.len(), inputs, errors };
        let config = reader.config()?;
        let mut users = BTreeMap::new();
        for named in config.auth_infos {
            let user = named.auth_info.unwrap_or_default();
            if users.insert(named.name.clone(), user).is_some() {
                reader.report(format!("duplicate name {:?} in users", named.name), "remove one of the two");
            }
        }
        let current = config.current_context.and_then(|name| {
            let named = config.contexts.into_iter().find(|named| named.name == name);
            named.and_then(|named| named.context).and_then(|context| context.user)
        });
        let failed = reader.failed();
        (!failed).then(|| Self { file: file.to_owned(), users, current, loaded: BTreeMap::new() })
    }

    /// The credential for a server. `None`: an error went to `errors`.
    pub(in crate::config) fn credential(
        &mut self,
        server: &str,
        key: &str,
        inputs: &mut InputReader,
        errors: &mut Vec<ConfigError>,
    ) -> Option<WebhookCredential> {
        let Some((name, user)) = self.user_for(server) else { return Some(WebhookCredential::default()) };
        if let Some(known) = self.loaded.get(name) {
            return known.clone();
        }
        let name = name.to_owned();
        let mut reader = KubeconfigReader { key, file: &self.file, before: errors.len(), inputs, errors };
        let credential = reader.webhook_credential(&name, user);
        let credential = (!reader.failed()).then_some(credential);
        self.loaded.insert(name, credential.clone());
        credential
    }

    /// The user whose name fits the server best.
    // clientConfig
    pub(in crate::config) fn user_for(&self, server: &str) -> Option<(&str, &AuthInfo)> {
        let find = |name: &str| self.users.get_key_value(name).map(|(name, user)| (name.as_str(), user));
        let by_name = |host: &str| {
            let suffixes = host.match_indices('.').filter_map(|(dot, _)| host.get(dot..));
            find(host).or_else(|| suffixes.into_iter().find_map(|suffix| find(&format!("*{suffix}"))))
        };
        by_name(server)
            .or_else(|| host_with_https_port(server).and_then(by_name))
            .or_else(|| find("*"))
            .or_else(|| self.current.as_deref().filter(|name| !name.is_empty()).and_then(find))
    }
}

/// The host, if the port is 443.
// Go: net/ipsock.go, SplitHostPort
fn host_with_https_port(server: &str) -> Option<&str> {
    let host = server.strip_suffix(":443")?;
    let inner = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!inner.contains(['[', ']'])).then_some(inner)
}

impl KubeconfigReader<'_> {
    // restConfigFromKubeconfig
    fn webhook_credential(&mut self, name: &str, user: &AuthInfo) -> WebhookCredential {
        let set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let unsupported = [
            ("auth-provider", user.auth_provider.is_some()),
            ("exec", user.exec.is_some()),
            ("username and password", set(&user.username) || user.password.is_some()),
            ("as", set(&user.impersonate)),
            ("as-uid", set(&user.impersonate_uid)),
            ("as-groups", user.impersonate_groups.is_some()),
            ("as-user-extra", user.impersonate_user_extra.is_some()),
        ];
        for (field, _) in unsupported.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = format!("user {name:?}: {field} is not supported for admission webhooks");
            self.report(problem, CREDENTIAL_FIX);
        }
        let certificate = self.client_certificate(user);
        let token = self.bearer_token(user);
        if let Some(pair) = &certificate {
            self.warn_of_dates("client-certificate", pair.certificates());
        }
        WebhookCredential { certificate, token }
    }
}
