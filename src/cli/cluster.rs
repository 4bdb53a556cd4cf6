//! The API server that a command asks: found as `kubectl` finds it, and its refusals in words that help.
//!
//! A kubeconfig may hold credentials: no error quotes it.

use std::error::Error as _;
use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Uri;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::runtime::Runtime;

use crate::config::kubeconfig::unreadable;

const VARIABLE: &str = "KUBECONFIG";
/// How long a connection may take to be there.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one answer may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Which cluster a command asks.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ClusterFlags {
    /// A kubeconfig of the cluster. Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
}

/// There is no cluster to ask.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    #[error("{origin}: {problem}")]
    Unreadable { origin: String, problem: String },
    #[error("{origin}: there is no context {context:?} with a cluster in it; it has {known}")]
    NoContext { origin: String, context: String, known: String },
    #[error("{origin}: it has no current context; give --context, one of {known}")]
    NoCurrentContext { origin: String, known: String },
    #[error(
        "no cluster to ask: there is no ~/.kube/config, and this is no pod ({0}); give --kubeconfig FILE, or set \
         KUBECONFIG"
    )]
    Nowhere(#[source] InClusterError),
    #[error("{0}: cannot make a client of it: {1}")]
    Unusable(Uri, String),
}

/// A cluster, and how it is reached.
#[derive(Clone)]
pub(super) struct ClusterClient {
    pub(super) client: Client,
    pub(super) config: Config,
}

impl ClusterFlags {
    /// The cluster and its client. Asks nothing yet.
    pub(super) async fn connect(&self) -> Result<ClusterClient, ClusterError> {
        let mut config = self.config().await?;
        config.connect_timeout = Some(DIAL_TIMEOUT);
        let unusable = |error: kube::Error| ClusterError::Unusable(config.cluster_url.clone(), chain(&error));
        let client = Client::try_from(config.clone()).map_err(unusable)?;
        Ok(ClusterClient { client, config })
    }

    // client-go: tools/clientcmd/loader.go and client_config.go
    async fn config(&self) -> Result<Config, ClusterError> {
        let home = || std::env::home_dir().map(|home| home.join(".kube").join("config"));
        let (origin, read) = if let Some(file) = &self.kubeconfig {
            (format!("--kubeconfig {}", file.display()), Kubeconfig::read_from(file).map(Some))
        } else if let Some(files) = std::env::var_os(VARIABLE).filter(|files| !files.is_empty()) {
            (format!("${VARIABLE} ({})", files.display()), Kubeconfig::from_env())
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
            Ok(None) => return Config::incluster().map_err(ClusterError::Nowhere),
            Err(error) => return Err(ClusterError::Unreadable { origin, problem: in_words(&error) }),
        };
        let known = names(&read);
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        Config::from_custom_kubeconfig(read, &options).await.map_err(|error| match error {
            KubeconfigError::CurrentContextNotSet => ClusterError::NoCurrentContext { origin, known },
            KubeconfigError::LoadContext(context) => ClusterError::NoContext { origin, context, known },
            error => ClusterError::Unreadable { origin, problem: in_words(&error) },
        })
    }
}

/// The contexts that can be named.
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
    /// Where it is.
    pub(super) fn server(&self) -> &Uri {
        &self.config.cluster_url
    }

    /// Asks it something, for a while. An error says what was not possible, and what to do about it.
    pub(super) async fn ask<T>(
        &self,
        doing: &str,
        question: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(CALL_TIMEOUT, question).await {
            Ok(answer) => answer.map_err(|error| self.refusal(doing, &error)),
            Err(_) => Err(format!(
                "cannot {doing}: {} does not answer for {} s",
                self.server(),
                CALL_TIMEOUT.as_secs()
            )),
        }
    }

    /// What an answer says, for people.
    pub(super) fn refusal(&self, doing: &str, error: &kube::Error) -> String {
        let kube::Error::Api(status) = error else {
            return format!("cannot {doing}: no answer from {}: {}", self.server(), chain(error));
        };
        let message = if status.message.is_empty() { status.reason.as_str() } else { &status.message };
        let fix = match status.code {
            401 => {
                "\n  fix: the credential of the kubeconfig is not accepted; give another with --kubeconfig or --context"
            }
            403 => missing_right(message),
            _ => "",
        };
        format!("cannot {doing}: {} answers {}: {message}{fix}", self.server(), status.code)
    }
}

/// How to give the right that a 403 is for want of. Admission refuses with 403 too, and no Role changes that.
// apiserver: pkg/endpoints/handlers/responsewriters/errors.go, forbiddenMessage
// kubernetes: plugin/pkg/admission/certificates/approval/admission.go
fn missing_right(message: &str) -> &'static str {
    if message.contains(": User \"") && message.contains(" cannot ") {
        "\n  fix: have a Role or ClusterRole with that verb on that resource bound to that user"
    } else if message.contains("user not permitted to approve requests with signerName") {
        "\n  fix: have a ClusterRole with the verb approve on the resource signers of certificates.k8s.io, for that \
         signer's name, bound to that user"
    } else {
        ""
    }
}

/// An error and what caused it, without what is said twice.
pub(super) fn chain(error: &kube::Error) -> String {
    let mut cause = match error {
        // What kube puts before these means nothing to people.
        kube::Error::Service(error) => {
            let cause: &dyn std::error::Error = &**error;
            Some(cause)
        }
        error => error.source(),
    };
    let mut text = cause.map_or_else(|| error.to_string(), ToString::to_string);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What commands run on.
pub(super) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
