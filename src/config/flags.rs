//! What can be configured: kube-apiserver's flags by their names, meanings and defaults, and a few of our own. One
//! definition for both doors: `clap` reads a section from the command line, `serde` from the configuration file. Wire
//! types only; [`super::sections`] lays them over each other and [`super::resolve`] judges them.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// apiserver: pkg/server/options/{serving,authentication}.go; kubernetes: pkg/kubeapiserver/options/authentication.go

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::controller_flags::{ControllerFlags, SignerProfileKeys};
use super::sections::Given;
use crate::user::IdentityMode;

/// Every flag of `portcullis serve`.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub struct ServeFlags {
    /// The configuration file, YAML: every flag has its key there, and several clusters have their place. A flag that
    /// is given too wins over the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub serving: Given<ServingFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub authentication: Given<AuthenticationFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub backend: Given<BackendFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub controllers: Given<ControllerFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub operation: Given<OperationFlags>,
    /// Warn of kube-apiserver's flags that have no meaning here, such as --etcd-servers, and go on without them.
    #[arg(long, help_heading = "Operation")]
    pub ignore_unknown_apiserver_flags: bool,
}

/// The flags that take effect at the next start only; everything else is reloaded.
pub const RESTART: [&str; 7] = [
    "bind-address",
    "secure-port",
    "permit-port-sharing",
    "metrics-bind-address",
    "workers",
    "v",
    "logging-format",
];

/// How clients reach the gateway.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Serving")]
pub struct ServingFlags {
    /// The address to listen on.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port to serve HTTPS on. 0 picks a free port, which is then logged.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Bind with SO_REUSEPORT, so that more than one process may listen on the same address and port.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub permit_port_sharing: bool,
    /// The serving certificate, PEM, followed by its intermediates.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// The private key of --tls-cert-file, PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// A further certificate for some server names: `cert,key` or `cert,key:name1,*.name2`. Repeatable. Without
    /// names, those of the certificate are used.
    #[arg(long, value_name = "CERT,KEY[:NAMES]")]
    #[serde(rename = "tlsSNICertKey")]
    pub tls_sni_cert_key: Vec<String>,
    /// The oldest TLS version to accept: VersionTLS12 or VersionTLS13 (older ones are not supported).
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// The cipher suites to accept for TLS 1.2, by their IANA names, comma-separated. Default: all that are safe.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// How many streams a client may have open on one HTTP/2 connection. 0 means 100, as in kube-apiserver.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub http2_max_streams_per_connection: u32,
    /// How many connections clients may have open at once. 0: as many as the limit of open files allows.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_connections: usize,
    /// Directives for the Strict-Transport-Security header: max-age=SECONDS, includeSubDomains, preload.
    #[arg(long, value_name = "DIRECTIVES", value_delimiter = ',')]
    pub strict_transport_security_directives: Vec<String>,
}

/// Who clients may be.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationFlags {
    /// Clients with a certificate signed by one of these CAs are the CommonName of their certificate, and in the
    /// groups of its Organization values.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
    /// Bearer tokens: CSV lines of token,user,uid[,"group1,group2"].
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Let requests without a credential through as system:anonymous.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub anonymous_auth: bool,
    /// Identifiers of this API server, comma-separated. Tokens that are bound to audiences must name one of them.
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Take the bootstrap tokens in the backend's secrets of type bootstrap.kubernetes.io/token in kube-system.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// The issuers of service-account tokens, in their `iss` claim; may be given several times. They are the API
    /// audiences too, unless --api-audiences says otherwise.
    #[arg(long, value_name = "ISSUER")]
    pub service_account_issuer: Vec<String>,
    /// PEM files with the public or private RSA and ECDSA keys of service-account tokens; may be given several times.
    /// Default, if there is an issuer: the keys that the backend publishes (/openid/v1/jwks).
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// Ask the backend whether the secret and the service account of a token without an expiry are still there.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub service_account_lookup: bool,
    /// An AuthenticationConfiguration (apiserver.config.k8s.io): issuers of JSON Web Tokens with their rules, and where
    /// anonymous requests are let in. Excludes --oidc-* flags, and --anonymous-auth if it says where.
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// The OpenID issuer whose ID tokens are taken; an https URL.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "oidcIssuerURL")]
    pub oidc_issuer_url: Option<String>,
    /// The client that ID tokens must be issued for.
    #[arg(long, value_name = "ID")]
    #[serde(rename = "oidcClientID")]
    pub oidc_client_id: Option<String>,
    /// The CAs of the OpenID issuer's certificate. Default: those of the system.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "oidcCAFile")]
    pub oidc_ca_file: Option<PathBuf>,
    /// The claim that is the user name.
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    pub oidc_username_claim: String,
    /// What precedes the user name; `-` for nothing. Default: the issuer and a `#`, unless the claim is `email`.
    #[arg(long, value_name = "PREFIX")]
    pub oidc_username_prefix: Option<String>,
    /// The claim that holds the groups: a string or a list of strings.
    #[arg(long, value_name = "CLAIM")]
    pub oidc_groups_claim: Option<String>,
    /// What precedes each group.
    #[arg(long, value_name = "PREFIX")]
    pub oidc_groups_prefix: Option<String>,
    /// The signature algorithms that are taken, comma-separated: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384,
    /// PS512.
    #[arg(long, value_name = "ALGORITHMS", value_delimiter = ',', default_values = ["RS256"])]
    pub oidc_signing_algs: Vec<String>,
    /// A claim that ID tokens must have with this value, as claim=value; may be given several times.
    #[arg(long, value_name = "CLAIM=VALUE")]
    pub oidc_required_claim: Vec<String>,
    /// A kubeconfig for the webhook that is asked about every token nobody else knows (TokenReview).
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of TokenReview that the webhook is asked with: v1 or v1beta1.
    #[arg(long, value_name = "VERSION", default_value = "v1beta1")]
    pub authentication_token_webhook_version: String,
    /// How long the webhook's answers are remembered. Examples: 2m0s, 30s.
    #[arg(long, value_name = "DURATION", default_value = "2m0s")]
    #[serde(rename = "authenticationTokenWebhookCacheTTL")]
    pub authentication_token_webhook_cache_ttl: String,
    /// Front proxies with a certificate signed by one of these CAs may say in headers who a request is made by.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "requestheaderClientCAFile")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// The CommonNames that front proxies may have, comma-separated. Empty: any name that
    /// --requestheader-client-ca-file has signed.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// The request headers to look for the user name in, comma-separated. X-Remote-User is common.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// The request headers to look for the uid in, comma-separated. X-Remote-Uid is required if any is given.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',')]
    #[serde(rename = "requestheaderUIDHeaders")]
    pub requestheader_uid_headers: Vec<String>,
    /// The request headers to look for groups in, comma-separated. X-Remote-Group is common.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// The prefixes of request headers that carry extra attributes, comma-separated. X-Remote-Extra- is common.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

/// Where requests go.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Backend")]
pub struct BackendFlags {
    /// The API server behind the gateway: a kubeconfig whose current context has its address and CA, and the
    /// certificate with which the gateway speaks for its clients; or, with --identity=impersonate, a token, a tokenFile
    /// or an exec plugin. Without it a pod with --identity=impersonate uses its service account.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "kubeconfig")]
    pub backend_kubeconfig: Option<PathBuf>,
    /// How the backend is told who a request is made by. `requestHeader`: X-Remote-* headers, vouched for by a
    /// certificate of the backend's --requestheader-client-ca-file. `impersonate`: Impersonate-* headers with the
    /// gateway's own credential, for managed clusters.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IdentityMode::RequestHeader)]
    #[serde(with = "super::sections::by_flag_name")]
    pub identity: IdentityMode,
    /// The headers from which the backend reads user names: the value of its own --requestheader-username-headers. Only
    /// needed if the gateway may not read the config map extension-apiserver-authentication there; these headers and
    /// those of the next three flags are taken out of every request.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "requestheaderUsernameHeaders")]
    pub backend_requestheader_username_headers: Vec<String>,
    /// The headers from which the backend reads uids: its own --requestheader-uid-headers.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "requestheaderUIDHeaders")]
    pub backend_requestheader_uid_headers: Vec<String>,
    /// The headers from which the backend reads groups: its own --requestheader-group-headers.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "requestheaderGroupHeaders")]
    pub backend_requestheader_group_headers: Vec<String>,
    /// The prefixes of headers from which the backend reads extra attributes: its own
    /// --requestheader-extra-headers-prefix.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',')]
    #[serde(rename = "requestheaderExtraHeadersPrefix")]
    pub backend_requestheader_extra_headers_prefix: Vec<String>,
}

/// One of several clusters, as the file lists them.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterKeys {
    /// The cluster's name in logs, metrics and health checks: a DNS label, unique.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub backend: BackendFlags,
    /// The context of the kubeconfig to use. Default: its current context.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The replicas of the cluster's API server, when they are several: URLs without a path. Default: the server that
    /// the kubeconfig names.
    #[arg(long, value_name = "URL")]
    pub endpoints: Vec<String>,
    /// Which requests are for it: [`MatchKeys`].
    #[arg(skip)]
    #[serde(rename = "match")]
    pub routes: Option<Map<String, Value>>,
    /// What of [`AuthenticationFlags`] differs from the file's template.
    #[arg(skip)]
    pub authentication: Map<String, Value>,
    /// What of [`ControllerFlags`] differs from the file's template.
    #[arg(skip)]
    pub controller_manager: Map<String, Value>,
}

/// Which requests are for a cluster: those for one of the names, and those under the path.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MatchKeys {
    /// Names in the TLS handshake or in the Host header. `*.` stands for one label.
    #[arg(long, value_name = "NAMES")]
    pub server_names: Vec<String>,
    /// A path, such as /clusters/prod, that is cut off before the request is forwarded.
    #[arg(long, value_name = "PATH")]
    pub path_prefix: Option<String>,
}

/// How the gateway runs.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Operation")]
pub struct OperationFlags {
    /// How long a request may take, unless it is long-running (watch, exec, logs, proxy): 1m0s, 90s, …
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub request_timeout: String,
    /// How long everything is still served after SIGTERM, new connections too, while /readyz fails: as long as it
    /// takes until nobody sends new clients here.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub shutdown_delay_duration: String,
    /// Answer new requests with 429 and Retry-After once the delay is over, until those in progress have ended, instead
    /// of refusing connections.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub shutdown_send_retry_after: bool,
    /// How long requests in progress may still take after the delay. Then watches that are left end cleanly, and other
    /// requests are cut off.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    pub shutdown_grace_period: String,
    /// The time over which watches end cleanly after the delay, one after the other, at least 200 a second. 0: they end
    /// with the grace period, all at once.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub shutdown_watch_termination_grace_period: String,
    /// How long /livez takes for granted that the start is going well: that every API server is being looked at.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub livez_grace_period: String,
    /// The address of /metrics, plain HTTP. `0` turns it off.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9094")]
    pub metrics_bind_address: String,
    /// How many worker threads carry requests. 0: one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub workers: usize,
    /// How much to log: 0 errors, failed authentication, slow requests; 3 every request; 5 connections; 6 everything.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0)]
    #[serde(rename = "v")]
    pub verbosity: u8,
    /// The form of log lines on standard error.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    #[serde(with = "super::sections::by_flag_name")]
    pub logging_format: LogFormat,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line per event, for people.
    Text,
    /// One JSON object per event.
    Json,
}

impl MetricsAddress {
    /// Reads the value of `--metrics-bind-address`.
    pub fn parse(text: &str) -> Result<Self, std::net::AddrParseError> {
        if text == "0" { Ok(Self::Off) } else { text.parse().map(Self::On) }
    }
}

/// Where `/metrics` is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsAddress {
    /// Nowhere.
    Off,
    /// At this address.
    On(SocketAddr),
}
