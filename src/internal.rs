//! The parts of the crate that its tests and benchmarks use. No stability promise.

pub use crate::authn::anonymous::AnonymousAuth;
pub use crate::authn::oidc::compared::StaticIdTokenAuthenticator;
pub use crate::authn::oidc::settings::{
    AttributeMapping, ClaimRule, ExpressionRule, IssuerSettings, JwtAuthenticator,
};
pub use crate::authn::service_account::compared::StaticAccountAuthenticator;
pub use crate::authn::service_account::{ServiceAccountKeys, ServiceAccountSettings};
pub use crate::authn::settings::Authentication;
pub use crate::authn::token_getter::{GetResult, ObjectIdentity, Secret, ServiceAccount, TokenGetter};
pub use crate::authn::webhook::settings::{TokenReviewVersion, WebhookSettings};
pub use crate::authn::x509::{UnverifiedChain, parse_chain_for_handshake, parse_for_handshake};
pub use crate::authn::{Audience, BearerToken, BoxFuture};
pub use crate::authz::settings::{
    Authorization, AuthorizationWebhook, AuthorizerSettings, FailurePolicy, SubjectAccessReviewVersion,
};
pub use crate::backend::settings::Backend as BackendSettings;

pub use crate::cli::command as command_line;
pub use crate::config::error::ConfigErrors;
pub use crate::config::flags::{
    AdmissionFlags, AuditFlags, AuthenticationFlags, AuthorizationFlags, ClusterKeys, ControllerFlags,
    LimitFlags, MatchKeys, OperationFlags, PageFlags, PodRuleKeys, PodSignerKeys, RESTART, ServeFlags,
    ServingFlags, SessionFlags, SignerProfileKeys,
};
pub use crate::config::inputs::{CredentialUser, InputReader};
pub use crate::config::management_cluster::{ManagementClusterKeys, ManagementSettings, SecretStore};
pub use crate::config::resolve::{
    ResolvedConfig, admission_configuration_errors, authorization_configuration_error, resolve,
    webhook_manifest, webhook_request,
};
pub use crate::config::sections::key_of;
pub use crate::config::settings::{Cluster as ClusterSettings, ClusterOrigin, Routes, Settings};
pub use crate::config::source::ConfigSource;
#[cfg(feature = "dev")]
pub use crate::dev::{Dev, DevError, DevOptions};
pub use crate::listener::proxy_protocol::read_complete_header as read_proxy_header;
pub use crate::listener::settings::ClientLimits;
pub use crate::request::info::RequestInfo;
pub use crate::request::wellformed::check as check_well_formed;
pub use crate::server::Server;
pub use crate::state::cluster_outcome::RefusedCluster;
pub use crate::state::effective_config::EffectiveConfig;
pub use portcullis_admission::{Webhook, WebhookKind};
pub use portcullis_go::pem::{Block as PemBlock, decode as decode_pem, is_bare as is_bare_pem};
pub use portcullis_go::url::query::pairs as query_pairs;
pub use portcullis_go::url::{Url, decode_path};
pub use portcullis_http::identity::IdentityMode;
pub use portcullis_http::proxy::{ProxyChoice, ProxyRules};
pub use portcullis_kubernetes::extra_key::{decode_extra_key, encode_extra_key};
pub use portcullis_kubernetes::user::UserInfo;
pub use portcullis_openid::jwt::key_file::read as read_key_file;
pub use portcullis_openid::jwt::keys::{JwsAlgorithm, VerificationKey};
pub use portcullis_pki::bootstrap_tokens::pins::PublicKeyPins;
pub use portcullis_pki::issuance::alt_names::AltNames;
pub use portcullis_pki::issuance::authority::{AbsentToken, AuthorityKeySource, CertificateAuthority};
pub use portcullis_pki::issuance::issue::{
    IssuanceRequest, IssueError, IssuedCertificate, PreparedCertificate,
};
pub use portcullis_pki::issuance::profile::CertificateProfile;
pub use portcullis_pki::issuance::request::{CertificateRequest, RequestError, build as build_request};
#[cfg(feature = "pkcs11")]
pub use portcullis_pki::issuance::signer::pkcs11::Pkcs11Key;
pub use portcullis_pki::issuance::signer::{KeyKind, PemKey, Signer, SigningAlgorithm};
pub use portcullis_pki::issuance::subject::Subject;
pub use portcullis_pki::x509::crl::{Crl, CrlError, RevokedEntry};
pub use portcullis_pki::x509::handshake::offered_schemes;
pub use portcullis_pki::x509::key_pair::CertificateKeyPair;
pub use portcullis_pki::x509::pod_identity::PodIdentity;
pub use portcullis_pki::x509::server::verify_server;
pub use portcullis_pki::x509::{BundleError, CaBundle, ServerCertError};
pub use portcullis_system::clock::{Clock, UnixTime};

/// The labels of every metric of the process, by its name.
pub fn metric_labels() -> std::collections::BTreeMap<String, Vec<String>> {
    crate::metrics::Metrics::new().labels
}

/// A `HorizontalPodAutoscaler` in another version of its group, as webhooks see it.
pub fn converted_autoscaler(object: &serde_json::Value, to: &str) -> Option<serde_json::Value> {
    crate::pipeline::converted_autoscaler(object, to)
}

/// An exposition of metrics in `OpenMetrics`, with an exemplar.
pub fn open_metrics() -> String {
    use portcullis_system::clock::UnixTime;

    use crate::metrics::{Exemplar, Exposition, Metrics};
    let metrics = Metrics::new();
    let exemplar = Exemplar { trace_id: [0xab; 16], span_id: [1; 8], at: UnixTime::from_secs(1) };
    metrics.requests.ended("GET", 200);
    metrics.requests.answered("GET", UnixTime::from_millis(30), Some(exemplar));
    metrics.authentication.attempts.of("success").inc();
    metrics.expose(Exposition::OpenMetrics).0
}

/// The flags of kube-apiserver that the gateway does not have, and whether each is a switch, which needs no value.
pub fn foreign_apiserver_flags() -> impl Iterator<Item = (&'static str, bool)> {
    crate::cli::foreign_flags::ALL.iter().map(|flag| (flag.name, flag.is_switch))
}
