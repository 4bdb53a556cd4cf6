//! Client for the API server of a command: resolves the kubeconfig as `kubectl` does, and adds a fix to API errors.
//!
//! A kubeconfig may contain credentials: errors never quote it.

use std::error::Error as _;
use std::ffi::OsStr;
use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Uri;
use kube::config::{AuthInfo, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use secrecy::SecretString;

use portcullis_http::client_tls::refusal;
use portcullis_http::https_client::{Cause, cause_of, text_of};
use portcullis_http::proxy::{ProxyChoice, ProxyError};
use portcullis_kubernetes::kubeconfig::unreadable;
use portcullis_pki::x509::ServerCertError;
use portcullis_system::platform;

use crate::kube_client;

const VARIABLE: &str = "KUBECONFIG";
/// Timeout for the TCP and TLS connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for one API call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags that select the cluster of a command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterFlags {
    /// The kubeconfig to use. Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig context to use. Default: its current context.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
}

/// The flags and environment yield no usable cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("{origin}: {problem}")]
    Unreadable { origin: String, problem: String },
    #[error("{origin}: there is no context {context:?} with a cluster; the contexts are {known}")]
    NoContext { origin: String, context: String, known: String },
    #[error("{origin}: no current context is set; give --context, one of {known}")]
    NoCurrentContext { origin: String, known: String },
    #[error(
        "no cluster configured: ~/.kube/config does not exist, and this is not running in a pod ({0}); give \
         --kubeconfig FILE, or set KUBECONFIG"
    )]
    Nowhere(#[source] InClusterError),
    #[error("{0}: cannot create a client: {1}")]
    Unusable(Uri, String),
}

/// A client, and the configuration that it was built from.
#[derive(Clone)]
pub(crate) struct ClusterClient {
    pub(crate) client: Client,
    pub(crate) config: Config,
}

impl ClusterFlags {
    /// Builds the client; connects on the first call.
    pub(crate) async fn connect(&self) -> Result<ClusterClient, ClusterError> {
        let (config, proxy) = self.config().await?;
        ClusterClient::of(config, &proxy)
    }

    // client-go: tools/clientcmd/loader.go and client_config.go
    async fn config(&self) -> Result<(Config, ProxyChoice), ClusterError> {
        let home = || platform::user_home().map(|home| home.join(".kube").join("config"));
        let (origin, read) = if let Some(file) = &self.kubeconfig {
            (format!("--kubeconfig {}", file.display()), Kubeconfig::read_from(file).map(Some))
        } else if let Some(files) = std::env::var_os(VARIABLE).filter(|files| !files.is_empty()) {
            (format!("${VARIABLE} ({})", files.display()), from_variable(&files))
        } else if let Some(file) = home() {
            let read = match Kubeconfig::read_from(&file) {
                Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => Ok(None),
                read => read.map(Some),
            };
            (file.display().to_string(), read)
        } else {
            (String::new(), Ok(None))
        };
        let read = match read {
            Ok(Some(read)) => read,
            Ok(None) => {
                let config = Config::incluster().map_err(ClusterError::Nowhere)?;
                return Ok((config, ProxyChoice::default()));
            }
            Err(error) => return Err(ClusterError::Unreadable { origin, problem: in_words(&error) }),
        };
        let known = names(&read);
        let proxy = self.proxy(&read).map_err(|error| {
            let problem = format!("proxy-url: {error}");
            ClusterError::Unreadable { origin: origin.clone(), problem }
        })?;
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(read, &options).await.map_err(|error| match error {
            KubeconfigError::CurrentContextNotSet => ClusterError::NoCurrentContext { origin, known },
            KubeconfigError::LoadContext(context) => ClusterError::NoContext { origin, context, known },
            error => ClusterError::Unreadable { origin, problem: in_words(&error) },
        })?;
        Ok((config, proxy))
    }

    /// The proxy of the context's cluster; without one, that of the environment.
    fn proxy(&self, read: &Kubeconfig) -> Result<ProxyChoice, ProxyError> {
        let name = self.context.as_ref().or(read.current_context.as_ref());
        let context = read.contexts.iter().find(|named| Some(&named.name) == name);
        let context = context.and_then(|named| named.context.as_ref());
        let cluster = read.clusters.iter().find(|named| context.is_some_and(|one| one.cluster == named.name));
        let cluster = cluster.and_then(|named| named.cluster.as_ref());
        ProxyChoice::of_kubeconfig(cluster.and_then(|cluster| cluster.proxy_url.as_deref()))
    }
}

/// The files of the variable, merged. Absent ones are skipped, unless all are.
// client-go: tools/clientcmd/loader.go, Load
fn from_variable(files: &OsStr) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let (mut merged, mut absent) = (None::<Kubeconfig>, None);
    for file in std::env::split_paths(files).filter(|file| !file.as_os_str().is_empty()) {
        let mut read = match Kubeconfig::read_from(&file) {
            Err(KubeconfigError::ReadConfig(error, file)) if error.kind() == ErrorKind::NotFound => {
                absent.get_or_insert(KubeconfigError::ReadConfig(error, file));
                continue;
            }
            read => read?,
        };
        read.current_context = read.current_context.filter(|name| !name.is_empty());
        merged = Some(match merged {
            Some(merged) => merged.merge(read)?,
            None => read,
        });
    }
    match absent {
        Some(error) if merged.is_none() => Err(error),
        _ => Ok(merged),
    }
}

/// The names of the contexts, for an error.
fn names(config: &Kubeconfig) -> String {
    let names: Vec<&str> = config.contexts.iter().map(|context| context.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn in_words(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => format!("cannot be read: {error}"),
        error => unreadable(error),
    }
}

impl ClusterClient {
    fn of(mut config: Config, proxy: &ProxyChoice) -> Result<Self, ClusterError> {
        config.connect_timeout = Some(DIAL_TIMEOUT);
        let unusable = |problem| ClusterError::Unusable(config.cluster_url.clone(), problem);
        let client = kube_client::client(&config, proxy).map_err(unusable)?;
        Ok(Self { client, config })
    }

    /// A client that authenticates with a bearer token. `authorities` are the DER of the server's CAs; `None`: those of
    /// the system.
    pub(crate) fn with_token(
        server: Uri,
        authorities: Option<Vec<Vec<u8>>>,
        tls_server_name: Option<String>,
        token: SecretString,
        proxy: &ProxyChoice,
    ) -> Result<Self, ClusterError> {
        let mut config = Config::new(server);
        config.root_cert = authorities;
        config.tls_server_name = tls_server_name;
        config.auth_info = AuthInfo { token: Some(token), ..AuthInfo::default() };
        Self::of(config, proxy)
    }

    /// The URL of the API server.
    pub(crate) fn server(&self) -> &Uri {
        &self.config.cluster_url
    }

    /// Runs one API call with a timeout. An error names the failed operation and a fix.
    pub(crate) async fn ask<T>(
        &self,
        doing: &str,
        question: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(CALL_TIMEOUT, question).await {
            Ok(answer) => answer.map_err(|error| self.refusal(doing, &error)),
            Err(_) => Err(format!(
                "cannot {doing}: {} did not answer within {} s",
                self.server(),
                CALL_TIMEOUT.as_secs()
            )),
        }
    }

    /// Describes a failed call, with a fix where one is known.
    pub(crate) fn refusal(&self, doing: &str, error: &kube::Error) -> String {
        let kube::Error::Api(status) = error else {
            let fix = server_fix(error).map_or_else(String::new, |fix| format!("\n  fix: {fix}"));
            return format!("cannot {doing}: no answer from {}: {}{fix}", self.server(), chain(error));
        };
        let message = if status.message.is_empty() { status.reason.as_str() } else { &status.message };
        let fix = match status.code {
            401 => {
                "\n  fix: the API server rejects the credential of the kubeconfig; give another --kubeconfig or --context"
            }
            403 => missing_right(message),
            _ => "",
        };
        format!("cannot {doing}: {} answers {}: {message}{fix}", self.server(), status.code)
    }
}

/// The fix for a 403 by RBAC. Admission refuses with 403 too, and no Role changes that.
// apiserver: pkg/endpoints/handlers/responsewriters/errors.go, forbiddenMessage
// kubernetes: plugin/pkg/admission/certificates/approval/admission.go
fn missing_right(message: &str) -> &'static str {
    if is_missing_right(message) {
        "\n  fix: bind a Role or ClusterRole with that verb on that resource to that user"
    } else if message.contains("user not permitted to approve requests with signerName") {
        "\n  fix: bind a ClusterRole with the verb approve on the resource signers of certificates.k8s.io, for that \
         signer's name, to that user"
    } else {
        ""
    }
}

/// Whether the message of a 403 is that of the authorizer.
pub(crate) fn is_missing_right(message: &str) -> bool {
    message.contains(": User \"") && message.contains(" cannot ")
}

/// What to do about a server's certificate that is refused.
fn server_fix(error: &kube::Error) -> Option<&'static str> {
    let kube::Error::Service(error) = error else { return None };
    let first: Cause<'_> = &**error;
    let mut causes = std::iter::successors(Some(first), |error| cause_of(*error));
    causes.find_map(|cause| cause.downcast_ref().and_then(refusal)).map(ServerCertError::fix)
}

/// The messages of an error and its causes, without repetitions.
pub(crate) fn chain(error: &kube::Error) -> String {
    let mut cause = match error {
        // kube's prefix adds no information.
        kube::Error::Service(error) => {
            let cause: &dyn std::error::Error = &**error;
            Some(cause)
        }
        error => error.source(),
    };
    let mut text = cause.map_or_else(|| error.to_string(), text_of);
    while let Some(error) = cause {
        let more = text_of(error);
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = cause_of(error);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_file_of_the_variable_is_skipped() {
        let home = tempfile::tempdir().unwrap();
        let [absent, first, second] = ["absent", "first", "second"].map(|name| home.path().join(name));
        std::fs::write(&first, "{kind: Config, current-context: '', users: [{name: u, user: {token: a}}]}")
            .unwrap();
        std::fs::write(&second, "{kind: Config, current-context: c, users: [{name: u, user: {token: b}}]}")
            .unwrap();
        let read = |files: &[&PathBuf]| from_variable(&std::env::join_paths(files).unwrap());
        let merged = read(&[&absent, &first, &second]).unwrap().unwrap();
        assert_eq!((merged.current_context.as_deref(), merged.auth_infos.len()), (Some("c"), 1));
        assert!(matches!(read(&[&absent]), Err(KubeconfigError::ReadConfig(..))));
        assert!(read(&[]).unwrap().is_none());
        std::fs::write(&first, "[").unwrap();
        assert!(read(&[&first, &second]).is_err());
    }
}
