//! The flags of `portcullis serve`: kube-apiserver's, with its names, meanings and defaults, and a few of our own. One
//! definition serves the command line (`clap`) and the configuration file (`serde`). Wire types only:
//! [`super::sections`] merges them and [`super::resolve`] validates them.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// apiserver: pkg/server/options/{serving,authentication}.go; kubernetes: pkg/kubeapiserver/options/authentication.go

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use portcullis_http::identity::IdentityMode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::admission_flags::AdmissionFlags;
pub use super::audit_flags::AuditFlags;
pub use super::authorization_flags::AuthorizationFlags;
pub use super::controller_flags::{ControllerFlags, PodRuleKeys, PodSignerKeys, SignerProfileKeys};
use super::error::ConfigError;
pub use super::limit_flags::LimitFlags;
pub use super::page_flags::PageFlags;
use super::sections::GivenFlags;
pub use super::session_flags::SessionFlags;
use crate::authn::revocation::crls::CrlFailurePolicy;
use crate::authz::impersonation::ImpersonationBy;
use crate::backend::settings::EndpointDiscovery;

/// Every flag of `portcullis serve`.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub struct ServeFlags {
    /// The configuration file, YAML: it has a key for each flag, and lists one or more clusters. A flag on the command
    /// line overrides the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub serving: GivenFlags<ServingFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub authentication: GivenFlags<AuthenticationFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub authorization: GivenFlags<AuthorizationFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub admission: GivenFlags<AdmissionFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub audit: GivenFlags<AuditFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub sessions: GivenFlags<SessionFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub limits: GivenFlags<LimitFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub backend: GivenFlags<BackendFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub controllers: GivenFlags<ControllerFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub operation: GivenFlags<OperationFlags>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub page: GivenFlags<PageFlags>,
    /// Take kube-apiserver's own command line: leave to the backend, with a warning for each, the flags that the gateway
    /// does not have, such as --etcd-servers, and what only the backend decides by: the authorizers Node, RBAC and ABAC,
    /// and admission plugins other than webhooks, also in files. Without this flag they are errors.
    #[arg(long, help_heading = "Operation")]
    pub ignore_unknown_apiserver_flags: bool,
    /// What the command line has besides values.
    #[arg(skip)]
    pub(crate) command_line: CommandLineFindings,
}

/// What was found in the words of a command line before the values of its flags were read.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommandLineFindings {
    /// The errors of single flags. Their values are absent from the other fields of [`ServeFlags`].
    pub(crate) errors: Vec<ConfigError>,
    /// The flags that the user has probably misspelt. They are not reported as missing, too.
    pub(crate) meant: Vec<String>,
    /// The flags that were left out.
    pub(crate) warnings: Vec<String>,
}

/// The flags that take effect only at the next start; all others are reloaded. `state::reload` warns of a change.
pub const RESTART: [&str; 11] = [
    "bind-address",
    "secure-port",
    "permit-port-sharing",
    "max-connections",
    "max-connections-per-tenant",
    "metrics-bind-address",
    "workers",
    "v",
    "logging-format",
    "tracing-config-file",
    "page-bind-address",
];

/// How clients reach the gateway.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Serving")]
pub struct ServingFlags {
    /// The IP address on which to listen for --secure-port. 0.0.0.0 or :: listens on all interfaces.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port on which to serve HTTPS. 0 picks a free port and logs it.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Use SO_REUSEPORT when binding the port, so that more than one instance can bind the same address and port.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub permit_port_sharing: bool,
    /// File containing the default serving certificate for HTTPS, PEM, followed by its intermediates. Required.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// File containing the private key matching --tls-cert-file, PEM. Required.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// A certificate and private key file, optionally followed by the server names it serves: `cert,key` or
    /// `cert,key:name1,*.name2`. Without names, those of the certificate are used. Repeat for several certificates.
    #[arg(long, value_name = "CERT,KEY[:NAMES]")]
    #[serde(rename = "tlsSNICertKey")]
    pub tls_sni_cert_key: Vec<String>,
    /// The minimum TLS version: VersionTLS12 or VersionTLS13. Default: VersionTLS12. Older versions are not supported.
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// The cipher suites for TLS 1.2, by IANA name, comma-separated. Default: all secure ones. The suites of TLS 1.3
    /// cannot be configured.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// The maximum number of concurrent streams that a client may open on one HTTP/2 connection. 0: 100, as in
    /// kube-apiserver.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub http2_max_streams_per_connection: u32,
    /// The maximum number of open client connections. When authenticated ones have taken all but a sixteenth (of
    /// few, all but 16), one of the user or tenant with the most is closed for another one's. 0: as many as the open-file
    /// limit allows.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_connections: usize,
    /// The maximum number of open connections of the clients of one cluster that a Secret of the management cluster
    /// configures. A connection counts until one of its requests has authenticated at a cluster of the operator. 0: an
    /// eighth of --max-connections.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_connections_per_tenant: usize,
    /// Directives of the Strict-Transport-Security header, comma-separated: max-age=SECONDS, includeSubDomains,
    /// preload. Default: the header is not sent.
    #[arg(long, value_name = "DIRECTIVES", value_delimiter = ',')]
    pub strict_transport_security_directives: Vec<String>,
    /// The origins whose scripts may read responses in a browser (CORS), comma-separated regular expressions of Go's
    /// syntax. Each must match the whole host name: begin with `^` or `//`, end with `$` or `:`, such as
    /// `//example\.com(:|$)`. A preflight request of such an origin is answered before authentication. Default: none.
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    pub cors_allowed_origins: Vec<String>,
    /// The PROXY protocol, by which a layer-4 load balancer names the client of each connection. `v1`, `v2`, `any`:
    /// connections from --proxy-protocol-trusted-networks must begin with a header of that version; other connections
    /// must not. `off`: no connection has one.
    #[arg(long, value_enum, value_name = "VERSION", default_value_t = ProxyProtocolMode::Off)]
    #[serde(with = "super::sections::by_flag_name")]
    pub proxy_protocol: ProxyProtocolMode,
    /// The networks of the load balancers that send PROXY protocol headers, in CIDR notation, comma-separated. A host in
    /// them can claim any client address. Required with --proxy-protocol.
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub proxy_protocol_trusted_networks: Vec<String>,
}

/// The value of `--proxy-protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProxyProtocolMode {
    /// No connection has a header.
    Off,
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
    /// Both versions.
    Any,
}

/// How clients authenticate.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Authentication")]
pub struct AuthenticationFlags {
    /// Clients with a certificate signed by one of these CAs are authenticated as its CommonName, with its
    /// Organizations as groups. PEM.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
    /// Clients with a certificate signed by one of these CAs are pods: each is authenticated as the service account in the
    /// PodIdentity extension of its certificate, while pod, service account and node exist. PEM. A CA in --client-ca-file or
    /// --requestheader-client-ca-file must not be among them.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "podClientCAFile")]
    pub pod_client_ca_file: Option<PathBuf>,
    /// File with CRLs of the CAs in --client-ca-file, --pod-client-ca-file and --requestheader-client-ca-file, PEM or DER. Repeat for several
    /// files. A chain with a certificate on one of them is refused. Certificates of a CA without a CRL are not checked.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "clientCACRLFile")]
    pub client_ca_crl_file: Vec<PathBuf>,
    /// The URL of a CRL that is the only one of its CA, although its issuingDistributionPoint names the URL (step-ca). Without
    /// this such a CRL is an error: it might be about a part of the certificates. Repeat for several.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "clientCACRLCompleteURL")]
    pub client_ca_crl_complete_url: Vec<String>,
    /// What to do with client certificates while the CRL of their CA is stale, because its nextUpdate has passed. `Fail`:
    /// refuse them. `Ignore`: accept those that the stale CRL does not list.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = CrlFailurePolicy::Fail)]
    #[serde(rename = "clientCACRLFailurePolicy", with = "super::sections::by_flag_name")]
    pub client_ca_crl_failure_policy: CrlFailurePolicy,
    /// File with denied credentials, a line for each: X509SHA256=HEX, JTI=ID (as in the extra value
    /// authentication.kubernetes.io/credential-id), serial=HEX issuer="NAME", or user=NAME. Changes take effect within a
    /// second.
    #[arg(long, value_name = "FILE")]
    pub credential_deny_list_file: Option<PathBuf>,
    /// File with static bearer tokens: CSV lines of token,user,uid[,"group1,group2"].
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Enable anonymous requests: a request without credentials is forwarded as system:anonymous, in the group
    /// system:unauthenticated.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub anonymous_auth: bool,
    /// End watches, logs, exec, attach and port-forward when the credential that opened them expires or is refused by
    /// the configuration in force. kube-apiserver authenticates them only once, when they begin.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub terminate_streams_on_credential_expiry: bool,
    /// Identifiers of the API, comma-separated. A token with audiences must be bound to at least one of them. Default:
    /// the values of --service-account-issuer.
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Accept bootstrap tokens: the backend's secrets of type bootstrap.kubernetes.io/token in the kube-system
    /// namespace.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// An issuer of service account tokens, the value of their `iss` claim. Repeat for several issuers. Also the
    /// default of --api-audiences.
    #[arg(long, value_name = "ISSUER")]
    pub service_account_issuer: Vec<String>,
    /// File containing PEM-encoded RSA or ECDSA private or public keys that verify service account tokens. Repeat for
    /// several files. Default, with --service-account-issuer: the keys that the backend publishes at /openid/v1/jwks.
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// Reject a service account token without an expiry once the backend no longer has its secret or service account.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub service_account_lookup: bool,
    /// File with an AuthenticationConfiguration (apiserver.config.k8s.io): JWT issuers, and the paths open to anonymous
    /// requests. Mutually exclusive with the --oidc-* flags, and with --anonymous-auth if the file configures
    /// anonymous.
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// The URL of the OpenID issuer, https only. Its ID tokens authenticate users; requires --oidc-client-id.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "oidcIssuerURL")]
    pub oidc_issuer_url: Option<String>,
    /// The client ID that ID tokens must have as an audience; required with --oidc-issuer-url.
    #[arg(long, value_name = "ID")]
    #[serde(rename = "oidcClientID")]
    pub oidc_client_id: Option<String>,
    /// File with the CAs that verify the OpenID issuer's serving certificate, PEM. Default: the system's CAs.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "oidcCAFile")]
    pub oidc_ca_file: Option<PathBuf>,
    /// The OpenID claim to use as the user name. Claims other than sub are not guaranteed to be unique and immutable.
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    pub oidc_username_claim: String,
    /// The prefix of all user names; `-` disables prefixing. Default: the issuer URL and `#`, or none if the claim is
    /// `email`.
    #[arg(long, value_name = "PREFIX")]
    pub oidc_username_prefix: Option<String>,
    /// The OpenID claim with the user's groups: a string or an array of strings. Default: no groups.
    #[arg(long, value_name = "CLAIM")]
    pub oidc_groups_claim: Option<String>,
    /// The prefix of all groups, which prevents conflicts with groups of other authentication strategies. Default:
    /// none.
    #[arg(long, value_name = "PREFIX")]
    pub oidc_groups_prefix: Option<String>,
    /// The allowed JOSE signing algorithms, comma-separated: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384,
    /// PS512.
    #[arg(long, value_name = "ALGORITHMS", value_delimiter = ',', default_values = ["RS256"])]
    pub oidc_signing_algs: Vec<String>,
    /// A claim=value pair that ID tokens must have. Repeat for several claims.
    #[arg(long, value_name = "CLAIM=VALUE")]
    pub oidc_required_claim: Vec<String>,
    /// File with the token authentication webhook, in kubeconfig format. The gateway sends it a TokenReview for each
    /// bearer token that no other authenticator accepts.
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The API version of the TokenReview sent to the webhook: v1 or v1beta1.
    #[arg(long, value_name = "VERSION", default_value = "v1beta1")]
    pub authentication_token_webhook_version: String,
    /// How long to cache responses from the token webhook, such as 2m0s or 30s.
    #[arg(long, value_name = "DURATION", default_value = "2m0s")]
    #[serde(rename = "authenticationTokenWebhookCacheTTL")]
    pub authentication_token_webhook_cache_ttl: String,
    /// The CAs that verify the client certificates of front proxies, PEM. A front proxy names the user of a request in
    /// the --requestheader-*-headers.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "requestheaderClientCAFile")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// The CommonNames of front-proxy client certificates, comma-separated. Empty: every certificate signed by
    /// --requestheader-client-ca-file is allowed.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// The request headers to inspect for user names, comma-separated. X-Remote-User is common. Required with
    /// --requestheader-client-ca-file.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// The request headers to inspect for UIDs, comma-separated. If set, it must include X-Remote-Uid.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',')]
    #[serde(rename = "requestheaderUIDHeaders")]
    pub requestheader_uid_headers: Vec<String>,
    /// The request headers to inspect for groups, comma-separated. X-Remote-Group is common.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// The prefixes of request headers to inspect for extra attributes, comma-separated. X-Remote-Extra- is common.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

/// The API servers that requests are forwarded to.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Backend")]
pub struct BackendFlags {
    /// File with the address, the CA and the credential for the backend, in kubeconfig format. The user of its current
    /// context is the front-proxy client certificate; with --identity=impersonate, it may also be a token, a tokenFile
    /// or an exec plugin. Default, in a pod with --identity=impersonate: its service account.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "kubeconfig")]
    pub backend_kubeconfig: Option<PathBuf>,
    /// How to forward the user of a request to the backend. `requestHeader`: in X-Remote-* headers, which the backend
    /// accepts from a client certificate signed by its --requestheader-client-ca-file. `impersonate`: in Impersonate-*
    /// headers, with the gateway's own credential, for managed clusters.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IdentityMode::RequestHeader)]
    #[serde(with = "super::sections::by_flag_name")]
    pub identity: IdentityMode,
    /// Who decides on the Impersonate-* headers of clients. `backend`: the backend, which receives the headers and audits
    /// both users; only with --identity=requestHeader. `gateway`: the gateway, by SubjectAccessReviews at the backend, which
    /// deploy/rbac.yaml allows; the backend receives, and audits, the impersonated user alone. Default: `backend`, unless the
    /// gateway itself needs the impersonated user: with --identity=impersonate, authorizers, admission webhooks or an audit
    /// policy of its own, or the cluster's limits of requests in flight.
    #[arg(long, value_enum, value_name = "MODE")]
    #[serde(with = "super::sections::by_optional_flag_name")]
    pub impersonation: Option<ImpersonationBy>,
    /// The backend's --requestheader-username-headers. Set the four flags --backend-requestheader-* if the gateway may
    /// not read the backend's config map extension-apiserver-authentication; headers of these names are removed from
    /// client requests.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "requestheaderUsernameHeaders")]
    pub backend_requestheader_username_headers: Vec<String>,
    /// The backend's --requestheader-uid-headers.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "requestheaderUIDHeaders")]
    pub backend_requestheader_uid_headers: Vec<String>,
    /// The backend's --requestheader-group-headers.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "requestheaderGroupHeaders")]
    pub backend_requestheader_group_headers: Vec<String>,
    /// The backend's --requestheader-extra-headers-prefix.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',')]
    #[serde(rename = "requestheaderExtraHeadersPrefix")]
    pub backend_requestheader_extra_headers_prefix: Vec<String>,
    /// How further endpoints (API servers) of the backend are found. `none`: the configured ones are all. `dns`: each
    /// address of a configured host name is one; the name is resolved again every 10 seconds. `kubernetes`: the
    /// EndpointSlices of service default/kubernetes list them, which deploy/rbac.yaml allows to read. Their certificates
    /// must have the configured host name, or the kubeconfig's tls-server-name.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = EndpointDiscovery::None)]
    #[serde(rename = "endpointDiscovery", with = "super::sections::by_flag_name")]
    pub backend_endpoint_discovery: EndpointDiscovery,
    /// The maximum number of requests in progress at one endpoint, except long-running ones. Beyond it the gateway uses
    /// other endpoints; if all have that many, it refuses requests with 503 and a Retry-After header. Beyond half of it,
    /// one user may begin an eighth. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[serde(rename = "maxRequestsPerEndpoint")]
    pub backend_max_requests_per_endpoint: u32,
    /// The same of long-running requests: watches, logs, exec and port forwarding. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 65536)]
    #[serde(rename = "maxWatchesPerEndpoint")]
    pub backend_max_watches_per_endpoint: u32,
    /// End a few of the oldest watches at an endpoint that has far more of them than another one, so that their clients
    /// move there, after an endpoint has returned or was found. Clients resume their watches. Logs and tunnels stay.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    #[serde(rename = "moveWatches")]
    pub backend_move_watches: bool,
    /// The prefixes of User-Agent headers, comma-separated, of clients whose watches the backend must not compress; `*`: all.
    /// API servers of Kubernetes 1.37 compress watches that begin with a list, each flush as a gzip member of its own, and
    /// some HTTP libraries fail or lose every event after the first member: python-httpx, okhttp/.
    #[arg(long, value_name = "PREFIXES", value_delimiter = ',')]
    #[serde(rename = "uncompressedWatches")]
    pub backend_uncompressed_watches: Vec<String>,
}

/// The keys of an entry of `clusters` in the configuration file.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterKeys {
    /// The cluster's name in logs, metrics and health checks: a DNS label, unique in the file. Required.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened groups speak for themselves")]
    pub backend: BackendFlags,
    /// The kubeconfig context to use. Default: its current-context.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The URLs of the cluster's API servers, without a path. Default: the server of the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub endpoints: Vec<String>,
    /// The requests routed to this cluster: [`MatchKeys`].
    #[arg(skip)]
    #[serde(rename = "match")]
    pub routes: Option<Map<String, Value>>,
    /// The [`AuthenticationFlags`] that differ from the file's template.
    #[arg(skip)]
    pub authentication: Map<String, Value>,
    /// The [`AuthorizationFlags`] that differ from the file's template.
    #[arg(skip)]
    pub authorization: Map<String, Value>,
    /// The [`AdmissionFlags`] that differ from the file's template.
    #[arg(skip)]
    pub admission: Map<String, Value>,
    /// The [`AuditFlags`] that differ from the file's template.
    #[arg(skip)]
    pub audit: Map<String, Value>,
    /// The [`SessionFlags`] that differ from the file's template.
    #[arg(skip)]
    pub sessions: Map<String, Value>,
    /// The [`LimitFlags`] that differ from the file's template.
    #[arg(skip)]
    pub limits: Map<String, Value>,
    /// The [`ControllerFlags`] that differ from the file's template.
    #[arg(skip)]
    pub controller_manager: Map<String, Value>,
}

/// The requests routed to a cluster: those for one of the server names, and those below the path prefix.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MatchKeys {
    /// Server names of the TLS handshake or the Host header. `*.` at the beginning matches one label.
    #[arg(long, value_name = "NAMES")]
    pub server_names: Vec<String>,
    /// A path prefix, such as /clusters/prod, which is removed before the request is forwarded.
    #[arg(long, value_name = "PATH")]
    pub path_prefix: Option<String>,
}

/// How the gateway runs.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Operation")]
pub struct OperationFlags {
    /// The release of Kubernetes whose rules the gateway follows where it answers a request itself, such as 1.36 or
    /// kube=1.36: 1.34 to 1.37. What the API servers answer does not depend on it. Default: 1.37.
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    pub emulated_version: Vec<String>,
    /// How long a request may take before it times out, such as 1m0s or 90s. Long-running requests (watch, exec, logs,
    /// proxy) are exempt.
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pub request_timeout: String,
    /// The maximum number of requests of all clusters in flight, reads and writes together, except long-running ones.
    /// Beyond it, requests are refused with 429 without waiting; system:masters of the operator's clusters is always
    /// served. A cluster that a Secret configures has an eighth of it, all of these half, a user of the other clusters
    /// three quarters; a tenth is for system:masters and system:nodes of the other clusters. Give more than the sum of
    /// the clusters' own limits, so that a flood at one cluster takes nothing from the others. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_requests_inflight_total: u32,
    /// How many requests of a cluster that a Secret configures begin in a second, watches too; of one of its users half as
    /// many. Further ones wait, at most ten seconds, and its users take turns; clients without a credential are one user.
    /// What would wait longer is refused with 429. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub max_requests_per_second_per_tenant: u32,
    /// The maximum number of bytes in buffers: bodies and headers that wait for a client or an API server to read them.
    /// Beyond it, streams of the tenant, user or network with the most are reset, and no others. 0: a quarter of the
    /// memory limit of the process's control group, or an eighth of the machine's memory.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub max_buffered_bytes: usize,
    /// How long to delay termination after SIGTERM. The gateway keeps serving, new connections included, while /readyz
    /// fails, so that load balancers can stop sending traffic to it.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub shutdown_delay_duration: String,
    /// After the shutdown delay, keep listening until all requests in flight have finished, and reject new requests
    /// with 429 and a Retry-After header. Otherwise new connections are refused.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub shutdown_send_retry_after: bool,
    /// How long requests in flight may still take after the shutdown delay. Then the remaining watches end cleanly, and
    /// other requests are aborted.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    pub shutdown_grace_period: String,
    /// The period after the shutdown delay over which watches end cleanly one after another, at a rate of at least 200
    /// a second. 0: all at once, at the end of the grace period.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub shutdown_watch_termination_grace_period: String,
    /// How long after the start /livez reports success while the first backend self-checks run.
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub livez_grace_period: String,
    /// The IP:PORT on which to serve /metrics and the health checks over plain HTTP. `0` disables it.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9094")]
    pub metrics_bind_address: String,
    /// Show the status of the clusters to every client of --metrics-bind-address: /clusters, and the reasons of failed
    /// checks such as /readyz/cluster-NAME. It has names, addresses, paths of files and error texts. Without this flag,
    /// only clients on the gateway's own machine see it, over the loopback interface.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub metrics_expose_cluster_status: bool,
    /// The number of worker threads that serve requests. 0: one per CPU core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub workers: usize,
    /// The log level verbosity. 0: errors, failed authentication, slow requests. 3: every request. 5: connections. 6:
    /// everything.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0)]
    #[serde(rename = "v")]
    pub verbosity: u8,
    /// The log format on standard error.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    #[serde(with = "super::sections::by_flag_name")]
    pub logging_format: LogFormat,
    /// File with a TracingConfiguration (apiserver.config.k8s.io): the collector of traces and the sampling rate. Spans
    /// are exported by OTLP over gRPC, in clear text as by kube-apiserver. Default: no traces.
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,
}

/// The log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
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

/// Where to serve `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsAddress {
    /// `/metrics` is disabled.
    Off,
    /// At this address.
    On(SocketAddr),
}
