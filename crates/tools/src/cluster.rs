//! Client for the API server of a command: resolves the kubeconfig as `kubectl` does, and adds a fix to API errors.
//!
//! A kubeconfig may contain credentials: errors never quote it.

mod retry;

use std::error::Error as _;
use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::{Request, Uri};
use kube::client::{Body, ClientBuilder};
use kube::config::{AuthInfo, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use portcullis_kubernetes::kubeconfig::unreadable;
use secrecy::SecretString;
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;

use retry::RetryAfter;

const VARIABLE: &str = "KUBECONFIG";
/// Timeout for the TCP and TLS connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The most calls at once.
const MAX_CALLS: usize = 64;
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
        ClusterClient::of(self.config().await?)
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

/// A client that repeats requests as client-go does.
pub(crate) fn client(config: &Config) -> kube::Result<Client> {
    let mut config = config.clone();
    config.default_retry = false;
    // A request that is repeated needs a service that can be cloned.
    let shared = BufferLayer::<Request<Body>>::new(MAX_CALLS);
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&shared)
        .with_layer(&RetryLayer::new(RetryAfter::default()))
        .build())
}

impl ClusterClient {
    fn of(mut config: Config) -> Result<Self, ClusterError> {
        config.connect_timeout = Some(DIAL_TIMEOUT);
        let unusable = |error: kube::Error| ClusterError::Unusable(config.cluster_url.clone(), chain(&error));
        let client = client(&config).map_err(unusable)?;
        Ok(Self { client, config })
    }

    /// A client that authenticates with a bearer token. `authorities` are the DER of the server's CAs; `None`: those of
    /// the system.
    pub(crate) fn with_token(
        server: Uri,
        authorities: Option<Vec<Vec<u8>>>,
        tls_server_name: Option<String>,
        token: SecretString,
    ) -> Result<Self, ClusterError> {
        let mut config = Config::new(server);
        config.root_cert = authorities;
        config.tls_server_name = tls_server_name;
        config.auth_info = AuthInfo { token: Some(token), ..AuthInfo::default() };
        Self::of(config)
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
            return format!("cannot {doing}: no answer from {}: {}", self.server(), chain(error));
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
