//! The flags of the controllers, by kube-controller-manager's names, meanings and defaults, and what a file of signer
//! profiles is made of.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// kubernetes: cmd/kube-controller-manager/app/options; k8s.io/component-base/config/options/leaderelectionconfig.go

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Which controllers run, and by what.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Controllers")]
pub struct ControllerFlags {
    /// The controllers to run, comma-separated: csrsigning, csrapproving, csrcleaner, tokencleaner, bootstrapsigner, or
    /// kube-controller-manager's longer names for them. `*` stands for the first three, `-name` is without that one.
    /// Default: none.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// The CA certificate, PEM, of all kubernetes.io signers. Excludes the more specific --cluster-signing-* files.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-cert-file: a PEM file, or the pkcs11: URI of a key in a token.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_key_file: Option<String>,
    /// The longest life of a certificate, and that of one whose request names none.
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s")]
    pub cluster_signing_duration: String,
    /// The CA certificate, PEM, of the signer kubernetes.io/kubelet-serving. Excludes --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-kubelet-serving-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_key_file: Option<String>,
    /// The CA certificate, PEM, of the signer kubernetes.io/kube-apiserver-client-kubelet. Excludes
    /// --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-kubelet-client-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_key_file: Option<String>,
    /// The CA certificate, PEM, of the signer kubernetes.io/kube-apiserver-client. Excludes
    /// --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-kube-apiserver-client-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_key_file: Option<String>,
    /// The CA certificate, PEM, of the signer kubernetes.io/legacy-unknown. Excludes --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// The private key of --cluster-signing-legacy-unknown-cert-file.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_key_file: Option<String>,
    /// Signers of your own, each with its CA and with what it may sign: a file of SignerProfiles.
    #[arg(long, value_name = "FILE")]
    pub signer_profiles: Option<PathBuf>,
    /// Let controllers work only while a lease is held, so that of several gateways one works.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long others wait for a leader that renews its lease no more before one of them takes it.
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub leader_elect_lease_duration: String,
    /// How long a leader tries to renew its lease before its controllers stop. Less than the lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub leader_elect_renew_deadline: String,
    /// How long to wait between two attempts to take or renew the lease.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub leader_elect_retry_period: String,
    /// The name of the lease, one in each cluster.
    #[arg(long, value_name = "NAME", default_value = "portcullis-controllers")]
    pub leader_elect_resource_name: String,
    /// The namespace of the lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
}

/// One signer of a file of SignerProfiles. What is not listed is refused.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignerProfileKeys {
    /// The signer's name as requests have it in spec.signerName, such as example.com/service; not one of kubernetes.io.
    #[arg(long, value_name = "NAME")]
    pub signer_name: Option<String>,
    /// The signer's CA certificate, PEM.
    #[arg(long, value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// The private key of certFile: a PEM file, or the pkcs11: URI of a key in a token.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<String>,
    /// What the common name may be. Here and below one `*`, at the beginning or at the end, stands for anything but
    /// names that begin with system: or kubeadm:, which a pattern must spell out so far.
    #[arg(long, value_name = "PATTERNS")]
    pub common_names: Vec<String>,
    /// What organisations, which are a client's groups, may be. system:masters is only what is spelt so.
    #[arg(long, value_name = "PATTERNS")]
    pub organizations: Vec<String>,
    /// What DNS names may be. `*.` at the beginning stands for any labels, a `*` at the end for the rest of one.
    #[arg(long, value_name = "PATTERNS")]
    pub dns_names: Vec<String>,
    /// Also sign wildcards below them, such as `*.example.com`.
    #[arg(long)]
    pub allow_wildcards: bool,
    /// Where IP addresses may lie, such as 10.0.0.0/8.
    #[arg(long, value_name = "RANGES")]
    pub ip_ranges: Vec<String>,
    /// What mail addresses may be, such as `*@example.com`.
    #[arg(long, value_name = "PATTERNS")]
    pub emails: Vec<String>,
    /// What URIs may be, such as `spiffe://example.com/ns/a/*`; the scheme and the host are written out.
    #[arg(long, value_name = "PATTERNS")]
    pub uris: Vec<String>,
    /// The usages that may be asked for, such as client auth.
    #[arg(long, value_name = "USAGES")]
    pub allowed_usages: Vec<String>,
    /// The usages that must be asked for.
    #[arg(long, value_name = "USAGES")]
    pub required_usages: Vec<String>,
    /// The longest life of a certificate. Default: --cluster-signing-duration.
    #[arg(long, value_name = "DURATION")]
    pub max_duration: Option<String>,
    /// The life of a certificate whose request names none. Default: the longest.
    #[arg(long, value_name = "DURATION")]
    pub default_duration: Option<String>,
}
