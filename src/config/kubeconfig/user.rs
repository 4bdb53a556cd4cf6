//! The user of a kubeconfig's context: the gateway's own credential for the backend. Supports client certificates,
//! tokens, token files and exec plugins.

use kube::config::{AuthInfo, Cluster, ExecAuthCluster, ExecConfig};
use portcullis_pki::x509::CertificateKeyPair;
use secrecy::{ExposeSecret as _, SecretString};

use super::credential::{ClientCredential, CredentialError, NamedContent, bearer_token, client_certificate};
use super::exec::{ExecPlugin, PluginError};
use super::{KubeconfigReader, is_in_secret};
use crate::authn::BearerToken;

/// The cluster extension whose content is passed to plugins.
// client-go: tools/clientcmd/api/types.go
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

impl KubeconfigReader<'_> {
    /// The credential of `user`; `None` if this kubeconfig has any error.
    pub(super) fn credential(&mut self, cluster: &Cluster, user: &AuthInfo) -> Option<ClientCredential> {
        self.refuse_other_credentials(user);
        let certificate = self.client_certificate(user);
        let token = self.bearer_token(user);
        let plugin = match &user.exec {
            Some(exec) => self.plugin(exec, cluster),
            None => None,
        };
        // Does not run the plugin of an invalid kubeconfig.
        if self.failed() {
            return None;
        }
        match plugin {
            // As client-go: runs the plugin only if the user has no other credential.
            Some(plugin) if certificate.is_none() && token.is_none() => {
                let issued = self.inputs.credential(&plugin);
                self.accepted(issued).map(|issued| issued.credential)
            }
            _ => {
                if let Some(pair) = &certificate {
                    self.warn_of_dates("client-certificate", pair.certificates());
                }
                Some(ClientCredential { certificate, token })
            }
        }
    }

    pub(super) fn client_certificate(&mut self, user: &AuthInfo) -> Option<CertificateKeyPair> {
        let certificate = self.material(
            "client-certificate",
            user.client_certificate_data.as_deref(),
            user.client_certificate.as_deref(),
        );
        let key_data = user.client_key_data.as_ref().map(SecretString::expose_secret);
        let key = self.material("client-key", key_data, user.client_key.as_deref());
        let pair = match (certificate?, key?) {
            (Some(certificate), Some(key)) => client_certificate(certificate, key),
            (None, None) => return None,
            (Some(_), None) => {
                self.report("the user has a client-certificate but no client-key", "give both");
                return None;
            }
            (None, Some(_)) => {
                self.report("the user has a client-key but no client-certificate", "give both");
                return None;
            }
        };
        self.usable(pair)
    }

    pub(super) fn bearer_token(&mut self, user: &AuthInfo) -> Option<BearerToken> {
        // As client-go: tokenFile takes precedence over token, and only its content is trimmed.
        if let Some(path) = user.token_file.as_deref().filter(|path| !path.is_empty()) {
            let NamedContent { name, bytes } = self.file("tokenFile", path)?;
            let token = match str::from_utf8(&bytes) {
                Ok(text) => bearer_token(&name, text.trim()),
                Err(_) => Err(CredentialError::Token(name)),
            };
            return self.usable(token);
        }
        let token = user.token.as_ref().map(SecretString::expose_secret).filter(|token| !token.is_empty())?;
        self.usable(bearer_token("token", token))
    }

    fn plugin(&mut self, exec: &ExecConfig, cluster: &Cluster) -> Option<ExecPlugin> {
        // threat: secret-names-file
        if is_in_secret(self.file) {
            self.report(
                "exec cannot be used in a Secret: the gateway would run a program that the Secret chooses",
                "give a client certificate or a token",
            );
            return None;
        }
        let cluster_info = if exec.provide_cluster_info { Some(self.exec_cluster(cluster)?) } else { None };
        let mut exec = exec.clone();
        // client-go: tools/clientcmd/loader.go, GetAuthInfoFileReferences: a name without a slash is looked up in PATH
        if let Some(command) = exec.command.as_mut().filter(|command| command.contains('/')) {
            *command = self.path(command).display().to_string();
        }
        self.accepted(ExecPlugin::new(&exec, cluster_info))
    }

    /// The cluster as a plugin with provideClusterInfo receives it.
    fn exec_cluster(&mut self, cluster: &Cluster) -> Option<ExecAuthCluster> {
        let data = cluster.certificate_authority_data.as_deref();
        let ca = self.material("certificate-authority", data, cluster.certificate_authority.as_deref())?;
        let mut extensions = cluster.extensions.iter().flatten();
        let config = extensions.find(|extension| extension.name == EXEC_EXTENSION);
        Some(ExecAuthCluster {
            server: cluster.server.clone(),
            certificate_authority_data: ca.map(|ca| ca.bytes),
            tls_server_name: cluster.tls_server_name.clone(),
            config: config.map(|extension| extension.extension.clone()),
            ..ExecAuthCluster::default()
        })
    }

    fn refuse_other_credentials(&mut self, user: &AuthInfo) {
        let set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if let Some(provider) = &user.auth_provider {
            self.report(
                format!("auth-provider {:?} was removed from Kubernetes in 1.26", provider.name),
                "give exec with the provider's credential plugin, a client certificate or a tokenFile",
            );
        }
        if set(&user.username) || user.password.is_some() {
            self.report(
                "username and password were removed from Kubernetes in 1.19",
                "give a client certificate, a token, a tokenFile or exec",
            );
        }
        let impersonated = [
            ("as", set(&user.impersonate)),
            ("as-uid", set(&user.impersonate_uid)),
            ("as-groups", user.impersonate_groups.is_some()),
            ("as-user-extra", user.impersonate_user_extra.is_some()),
        ];
        for (field, _) in impersonated.into_iter().filter(|(_, set)| *set) {
            self.report(
                format!(
                    "the user's field {field} would make the gateway impersonate that user for every client"
                ),
                "remove it, and give the credential of the gateway's own user",
            );
        }
    }

    fn usable<T>(&mut self, result: Result<T, CredentialError>) -> Option<T> {
        result.map_err(|error| self.report(error.to_string(), error.fix())).ok()
    }

    fn accepted<T>(&mut self, result: Result<T, PluginError>) -> Option<T> {
        result.map_err(|error| self.report(format!("exec: {error}"), error.fix())).ok()
    }
}
