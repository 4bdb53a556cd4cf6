//! The flags of the controllers, with kube-controller-manager's names, meanings and defaults, and the keys of
//! SignerProfiles and PodSignerProfiles files.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// kubernetes: cmd/kube-controller-manager/app/options; k8s.io/component-base/config/options/leaderelectionconfig.go

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::controllers::signing_log::LogFailurePolicy;

/// The controllers to run, and their settings.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Controllers")]
pub struct ControllerFlags {
    /// The controllers to enable, comma-separated: csrsigning, csrapproving, csrcleaner, tokencleaner, bootstrapsigner,
    /// podcertificaterequest-signing, clustertrustbundle-publishing, or kube-controller-manager's longer names. `*` enables
    /// the first three, `-foo`
    /// disables foo. Default: none.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// File containing the CA certificate of all kubernetes.io signers, PEM. Mutually exclusive with the more specific
    /// --cluster-signing-* files.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-cert-file: a PEM file, or the pkcs11: URI of a key in a token.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_key_file: Option<String>,
    /// The maximum duration of signed certificates, and the default of requests without spec.expirationSeconds.
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s")]
    pub cluster_signing_duration: String,
    /// File containing the CA certificate of the signer kubernetes.io/kubelet-serving, PEM. Mutually exclusive with
    /// --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-kubelet-serving-cert-file: a PEM file, or a pkcs11: URI.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_key_file: Option<String>,
    /// File containing the CA certificate of the signer kubernetes.io/kube-apiserver-client-kubelet, PEM. Mutually
    /// exclusive with --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-kubelet-client-cert-file: a PEM file, or a pkcs11: URI.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_key_file: Option<String>,
    /// File containing the CA certificate of the signer kubernetes.io/kube-apiserver-client, PEM. Mutually exclusive
    /// with --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-kube-apiserver-client-cert-file: a PEM file, or a pkcs11: URI.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_key_file: Option<String>,
    /// File containing the CA certificate of the signer kubernetes.io/legacy-unknown, PEM. Mutually exclusive with
    /// --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-legacy-unknown-cert-file: a PEM file, or a pkcs11: URI.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_key_file: Option<String>,
    /// File with SignerProfiles: custom signers, each with its CA and the rules for the certificates it signs.
    #[arg(long, value_name = "FILE")]
    pub signer_profiles: Option<PathBuf>,
    /// File with PodSignerProfiles: signers for the certificates of pods, each with its CA, its rules and the names of
    /// its certificates.
    #[arg(long, value_name = "FILE")]
    pub pod_signer_profiles: Option<PathBuf>,
    /// File with the CA certificates by which clients verify the gateway's serving certificate, PEM. The controller
    /// clustertrustbundle-publishing publishes them in the bundle kubernetes.io:kube-apiserver-serving:portcullis.
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "clusterTrustBundleServingCAFile")]
    pub cluster_trust_bundle_serving_ca_file: Option<PathBuf>,
    /// Directory of the log of issued certificates, which `portcullis certs log init` creates, with its keys beside it. Each
    /// certificate is in it before it is issued.
    #[arg(long, value_name = "DIR")]
    pub certificate_log: Option<PathBuf>,
    /// Whether a certificate that cannot be logged is refused until it can be (Fail), or issued (Ignore).
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = LogFailurePolicy::Fail)]
    #[serde(with = "super::sections::by_flag_name")]
    pub certificate_log_failure_policy: LogFailurePolicy,
    /// Run controllers only while holding a leader election lease, so that they run in one of several replicas.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long non-leader candidates wait after the last observed renewal before they try to acquire the lease.
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub leader_elect_lease_duration: String,
    /// How long the leader retries to renew its lease before it stops its controllers. Must be less than
    /// --leader-elect-lease-duration.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub leader_elect_renew_deadline: String,
    /// How long to wait between attempts to acquire or renew the lease.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub leader_elect_retry_period: String,
    /// The name of the lease, which is created in each cluster.
    #[arg(long, value_name = "NAME", default_value = "portcullis-controllers")]
    pub leader_elect_resource_name: String,
    /// The namespace of the lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
}

/// The keys of one signer in a SignerProfiles file. The signer refuses every name and usage that is not listed.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignerProfileKeys {
    /// The signer's name, the spec.signerName of its requests, such as example.com/service. Not a name in
    /// kubernetes.io. Required.
    #[arg(long, value_name = "NAME")]
    pub signer_name: Option<String>,
    /// File containing the signer's CA certificate, PEM. Required.
    #[arg(long, value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// The private key of certFile: a PEM file, or the pkcs11: URI of a key in a token. Required.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<String>,
    /// File with further CA certificates that clustertrustbundle-publishing publishes beside certFile, PEM: that of the next
    /// CA, before it signs.
    #[arg(long, value_name = "FILE")]
    pub trust_anchors_file: Option<PathBuf>,
    /// The allowed common names. In this and the other patterns one `*`, at the beginning or at the end, matches any
    /// text. It does not match names that begin with system: or kubeadm:, whose prefix a pattern must spell out.
    #[arg(long, value_name = "PATTERNS")]
    pub common_names: Vec<String>,
    /// Whether a request must have a common name. kube-apiserver reads the user from it; servers and workloads are named by
    /// their alternative names, and need none.
    #[arg(long)]
    pub require_common_name: bool,
    /// The allowed organizations, which are a client's groups. Only a pattern without `*` matches system:masters.
    #[arg(long, value_name = "PATTERNS")]
    pub organizations: Vec<String>,
    /// The allowed DNS names. `*.` at the beginning matches any number of labels, a `*` at the end the rest of one
    /// label.
    #[arg(long, value_name = "PATTERNS")]
    pub dns_names: Vec<String>,
    /// Whether to also sign wildcard names below dnsNames, such as `*.example.com`.
    #[arg(long)]
    pub allow_wildcards: bool,
    /// The allowed ranges of IP addresses, such as 10.0.0.0/8.
    #[arg(long, value_name = "RANGES")]
    pub ip_ranges: Vec<String>,
    /// The allowed email addresses, such as `*@example.com`.
    #[arg(long, value_name = "PATTERNS")]
    pub emails: Vec<String>,
    /// The allowed URIs, such as `spiffe://example.com/ns/a/*`. Scheme and host must be spelled out.
    #[arg(long, value_name = "PATTERNS")]
    pub uris: Vec<String>,
    /// The key usages that a request may have, such as client auth. Required.
    #[arg(long, value_name = "USAGES")]
    pub allowed_usages: Vec<String>,
    /// The key usages that a request must have.
    #[arg(long, value_name = "USAGES")]
    pub required_usages: Vec<String>,
    /// The maximum duration of a certificate. Default: --cluster-signing-duration.
    #[arg(long, value_name = "DURATION")]
    pub max_duration: Option<String>,
    /// The duration of a certificate whose request has no spec.expirationSeconds. Default: maxDuration.
    #[arg(long, value_name = "DURATION")]
    pub default_duration: Option<String>,
}

/// The keys of one signer in a PodSignerProfiles file. The expressions are in CEL, over `request`, `pod`,
/// `serviceAccount`, `namespaceObject` and `node`.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSignerKeys {
    /// The signer's name, the spec.signerName of its requests, such as example.com/workload. Not a name in
    /// kubernetes.io. Required.
    #[arg(long, value_name = "NAME")]
    pub signer_name: Option<String>,
    /// File containing the signer's CA certificate, PEM. Unless it is a root, it is in the chain of each pod. Required.
    #[arg(long, value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// The private key of certFile: a PEM file, or the pkcs11: URI of a key in a token. Required.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<String>,
    /// File with further CA certificates that clustertrustbundle-publishing publishes beside certFile, PEM: that of the next
    /// CA, before it signs.
    #[arg(long, value_name = "FILE")]
    pub trust_anchors_file: Option<PathBuf>,
    /// The usages of each certificate, such as digital signature, client auth and server auth. Required.
    #[arg(long, value_name = "USAGES")]
    pub usages: Vec<String>,
    /// The accepted types of keys: some of ED25519, ECDSAP256, ECDSAP384, ECDSAP521, RSA3072, RSA4096. Default: all.
    #[arg(long, value_name = "TYPES")]
    pub key_types: Vec<String>,
    /// The maximum lifetime of a certificate, from one hour to 2184h (91 days). A pod may ask for less.
    #[arg(long, value_name = "DURATION", default_value = "24h0m0s")]
    pub max_duration: String,
    /// The keys of userAnnotations that pods may set in their volume. A request with another one is denied.
    #[arg(long, value_name = "KEYS")]
    pub user_annotations: Vec<String>,
    /// File that lists the certificates of the signer, with their pods: each has a line in it before it is issued. Named
    /// NAME.index.jsonl, in a directory that the gateway can write to; beside NAME.crt of the CA, `certs index` and `certs
    /// revoke` read it, too.
    #[arg(long, value_name = "FILE")]
    pub index_file: Option<PathBuf>,
    /// File for the CRL of the signer's CA, which the gateway writes: with the certificates of pods that were deleted, and those
    /// that `certs revoke` has revoked in the index. Requires indexFile.
    #[arg(long, value_name = "FILE")]
    pub crl_file: Option<PathBuf>,
    /// The time until the nextUpdate of the CRL, from 1h to 720h. It is signed again after half of it.
    #[arg(long, value_name = "DURATION", default_value = "24h0m0s")]
    pub crl_lifetime: String,
    /// Rules of which each must be true, or the request is denied: a list of expression and message. Without rules,
    /// each pod of the cluster gets a certificate.
    #[arg(skip)]
    pub rules: Vec<Map<String, Value>>,
    /// Makes the certificates those of the pod's service account: with its user name and groups in the subject, and the
    /// PodIdentity extension, which --pod-client-ca-file reads. Critical: only a server that knows the extension accepts them.
    /// NonCritical: others do, too, and do not see the end of the pod. Without commonName, organizations, dnsNames and uris.
    #[arg(long, value_name = "FORM")]
    pub pod_identity: Option<String>,
    /// Expression for the common name, a string.
    #[arg(long, value_name = "CEL")]
    pub common_name: Option<String>,
    /// Expression for the organizations, a list of strings.
    #[arg(long, value_name = "CEL")]
    pub organizations: Option<String>,
    /// Expression for the DNS names, a list of strings.
    #[arg(long, value_name = "CEL")]
    pub dns_names: Option<String>,
    /// Expression for the URIs, a list of strings.
    #[arg(long, value_name = "CEL")]
    pub uris: Option<String>,
}

/// The keys of one rule of a signer in a PodSignerProfiles file.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRuleKeys {
    /// The expression, a boolean. Required.
    #[arg(long, value_name = "CEL")]
    pub expression: Option<String>,
    /// What the condition of a denied request says, for the author of the pod. Default: the expression.
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
}
