//! The `ConfigMap` `kube-public/cluster-info`: the URL and the CAs of the cluster, readable without authentication and
//! signed with every signing token. A node with one of these tokens can verify it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use kube::config::Kubeconfig;
use portcullis_go::{base64 as go_base64, pem};
use rustls_pki_types::CertificateDer;

use super::jws;
use super::pins::PublicKeyPins;
use super::token::{BootstrapToken, TokenId};

/// The namespace of the `ConfigMap`.
pub const NAMESPACE: &str = "kube-public";
/// The name of the `ConfigMap`.
pub const NAME: &str = "cluster-info";
/// The key of the signed kubeconfig.
pub const KUBECONFIG: &str = "kubeconfig";
/// The prefix of the signatures' keys; the token ID follows.
pub(crate) const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

/// The data of the `ConfigMap` with a signature by each of these keys and no others; `None` if that changes nothing.
/// Without a kubeconfig there is nothing to sign, and the data stays as it is.
// kube-controller-manager: pkg/controller/bootstrap/bootstrapsigner.go, signConfigMap
pub fn wanted(
    data: &BTreeMap<String, String>,
    keys: &BTreeMap<TokenId, &[u8]>,
) -> Option<BTreeMap<String, String>> {
    let payload = data.get(KUBECONFIG)?;
    let mut wanted = data.clone();
    wanted.retain(|key, _| !key.starts_with(SIGNATURE_PREFIX));
    wanted.extend(
        keys.iter().map(|(id, secret)| (format!("{SIGNATURE_PREFIX}{id}"), jws::sign(payload, id, secret))),
    );
    (wanted != *data).then_some(wanted)
}

/// Why a node does not trust the `ConfigMap`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterInfoError {
    /// The `ConfigMap` has no kubeconfig.
    #[error(
        "the ConfigMap {NAMESPACE}/{NAME} has no kubeconfig: this API server is not set up for token bootstrapping"
    )]
    NoKubeconfig,
    /// The `ConfigMap` has no signature by the token.
    #[error(
        "the ConfigMap {NAMESPACE}/{NAME} has no signature by the token {0}: the token does not exist in this \
        cluster, has expired or lacks the usage signing, or the bootstrapsigner is not running"
    )]
    NotSigned(TokenId),
    /// The signature by the token does not verify.
    #[error(
        "the signature by the token {0} does not verify for the ConfigMap {NAMESPACE}/{NAME}: the ConfigMap was \
        modified, or the token belongs to another cluster"
    )]
    BadSignature(TokenId),
    /// The signed kubeconfig cannot be used.
    #[error("the kubeconfig in the ConfigMap {NAMESPACE}/{NAME} {0}")]
    Malformed(&'static str),
    /// None of the CAs is pinned.
    #[error("none of the cluster CA's public keys is pinned: found {0}")]
    NotPinned(String),
    /// Two reads gave different kubeconfigs.
    #[error(
        "the ConfigMap {NAMESPACE}/{NAME} read over verified TLS differs from the first read: possible \
        man-in-the-middle attack"
    )]
    Changed,
}

/// The kubeconfig, if the signature by the token verifies.
// kubeadm: discovery/token/token.go, validateClusterInfoToken
// threat: impersonated-cluster
pub fn verified_kubeconfig<'a>(
    data: &'a BTreeMap<String, String>,
    token: &BootstrapToken,
) -> Result<&'a str, ClusterInfoError> {
    let BootstrapToken { id, secret } = token;
    let kubeconfig =
        data.get(KUBECONFIG).filter(|text| !text.is_empty()).ok_or(ClusterInfoError::NoKubeconfig)?;
    let signature = data.get(&format!("{SIGNATURE_PREFIX}{id}")).filter(|text| !text.is_empty());
    let signature = signature.ok_or_else(|| ClusterInfoError::NotSigned(id.clone()))?;
    if jws::verify(signature, kubeconfig, id, secret.expose().as_bytes()) {
        Ok(kubeconfig)
    } else {
        Err(ClusterInfoError::BadSignature(id.clone()))
    }
}

/// The URL and the CAs of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterLocation {
    /// The URL of the API server.
    pub server: String,
    /// The CAs in PEM, as in the kubeconfig.
    pub ca_pem: Vec<u8>,
    /// The parsed CAs.
    pub authorities: Vec<CertificateDer<'static>>,
}

impl ClusterLocation {
    /// Reads the unnamed cluster of a kubeconfig, else the cluster of its current context.
    // kubeadm: util/kubeconfig/kubeconfig.go, GetClusterFromKubeConfig
    pub fn of(kubeconfig: &str) -> Result<Self, ClusterInfoError> {
        let config =
            Kubeconfig::from_yaml(kubeconfig).map_err(|_| ClusterInfoError::Malformed("is not valid"))?;
        let current = config.current_context.as_deref().unwrap_or_default();
        let context = config.contexts.iter().find(|context| context.name == current);
        let context = context.and_then(|context| context.context.as_ref()).map(|context| &*context.cluster);
        let named = |name| config.clusters.iter().find(|cluster| cluster.name == name);
        let cluster = named("").or_else(|| named(context?)).and_then(|cluster| cluster.cluster.as_ref());
        let cluster = cluster.ok_or(ClusterInfoError::Malformed("has no cluster"))?;
        let server = cluster.server.clone().ok_or(ClusterInfoError::Malformed("has no server URL"))?;
        let no_ca = ClusterInfoError::Malformed("has no CA certificate");
        let ca = cluster.certificate_authority_data.as_deref().ok_or_else(|| no_ca.clone())?;
        let ca_pem = go_base64::decode(ca).map_err(|_| no_ca.clone())?;
        let authorities = pem::authorities(&ca_pem);
        if authorities.is_empty() {
            return Err(no_ca);
        }
        Ok(Self { server, ca_pem, authorities })
    }

    /// Checks that one of the CAs is pinned.
    // kubeadm: discovery/token/token.go, validateClusterCA
    pub fn is_pinned(&self, pins: &PublicKeyPins) -> Result<(), ClusterInfoError> {
        if pins.match_any(&self.authorities) {
            return Ok(());
        }
        let keys: Vec<String> = self.authorities.iter().filter_map(|ca| PublicKeyPins::of(ca)).collect();
        Err(ClusterInfoError::NotPinned(keys.join(", ")))
    }
}

/// The kubeconfig of a cluster: its URL and CAs, without credentials. Byte for byte as client-go writes it, because the
/// signatures cover the text. `server` is a URL and needs no quotes in YAML.
// kubeadm: phases/bootstraptoken/clusterinfo/clusterinfo.go, CreateBootstrapConfigMapIfNotExists
// client-go: tools/clientcmd/loader.go, Write
pub fn kubeconfig(server: &Uri, ca_pem: &[u8]) -> String {
    let (ca, server) = (STANDARD.encode(ca_pem), server.to_string());
    // Omits a path of `/`, which `Uri` adds.
    let server = server.trim_end_matches('/');
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {server}\n  \
         name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n"
    )
}

#[cfg(test)]
mod tests;
