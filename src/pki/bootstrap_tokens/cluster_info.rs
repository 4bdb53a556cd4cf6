//! The `ConfigMap` `kube-public/cluster-info`: where the cluster is and what its certificates are signed with, for
//! everybody to read, signed by every token that signs. Who knows a token can tell whether to believe it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use kube::config::Kubeconfig;
use rustls_pki_types::CertificateDer;

use super::jws;
use super::pins::PublicKeyPins;
use super::token::{BootstrapToken, TokenId};
use crate::go::pem;

/// Its namespace.
pub const NAMESPACE: &str = "kube-public";
/// Its name.
pub const NAME: &str = "cluster-info";
/// The key of what is signed.
pub const KUBECONFIG: &str = "kubeconfig";
/// What the keys of signatures begin with; the id of the token follows.
pub const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

/// What the data of the `ConfigMap` is to be, if it is to be changed: a signature of each of these keys, and none of any
/// other. Without a kubeconfig there is nothing to sign, and nothing is changed.
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

/// Why a node does not believe what it was told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterInfoError {
    /// There is no kubeconfig in it.
    #[error(
        "there is no kubeconfig in the ConfigMap {NAMESPACE}/{NAME}: this cluster is not set up for tokens"
    )]
    NoKubeconfig,
    /// The token has not signed it.
    #[error(
        "the token {0} has not signed the ConfigMap {NAMESPACE}/{NAME}: it is no token of this cluster, has \
         expired or may not sign, or no bootstrapsigner runs"
    )]
    NotSigned(TokenId),
    /// Somebody else has.
    #[error(
        "the signature of the token {0} is not that of the ConfigMap {NAMESPACE}/{NAME}: this is not the cluster of the token"
    )]
    BadSignature(TokenId),
    /// What is signed makes no sense.
    #[error("the kubeconfig in the ConfigMap {NAMESPACE}/{NAME} {0}")]
    Malformed(&'static str),
    /// The CA is another.
    #[error("none of the CA's public keys is pinned: they are {0}")]
    NotPinned(String),
    /// It was told two different things.
    #[error(
        "the ConfigMap {NAMESPACE}/{NAME} read over verified TLS is not the one that was read before: somebody is in between"
    )]
    Changed,
}

/// The kubeconfig, if the token has signed it.
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

/// Where a cluster is, and the CAs of its certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterLocation {
    /// Its URL.
    pub server: String,
    /// The CAs, as they were given.
    pub ca_pem: Vec<u8>,
    /// The CAs.
    pub authorities: Vec<CertificateDer<'static>>,
}

impl ClusterLocation {
    /// What a kubeconfig says of the cluster: of the unnamed one, else that of its current context.
    // kubeadm: util/kubeconfig/kubeconfig.go, GetClusterFromKubeConfig
    pub fn of(kubeconfig: &str) -> Result<Self, ClusterInfoError> {
        let config = Kubeconfig::from_yaml(kubeconfig).map_err(|_| ClusterInfoError::Malformed("is none"))?;
        let current = config.current_context.as_deref().unwrap_or_default();
        let context = config.contexts.iter().find(|context| context.name == current);
        let context = context.and_then(|context| context.context.as_ref()).map(|context| &*context.cluster);
        let named = |name| config.clusters.iter().find(|cluster| cluster.name == name);
        let cluster = named("").or_else(|| named(context?)).and_then(|cluster| cluster.cluster.as_ref());
        let cluster = cluster.ok_or(ClusterInfoError::Malformed("names no cluster"))?;
        let server =
            cluster.server.clone().ok_or(ClusterInfoError::Malformed("does not say where the cluster is"))?;
        let no_ca = ClusterInfoError::Malformed("holds no CA certificate");
        let ca = cluster.certificate_authority_data.as_deref().ok_or_else(|| no_ca.clone())?;
        let ca_pem = STANDARD.decode(ca).map_err(|_| no_ca.clone())?;
        let authorities = pem::authorities(&ca_pem);
        if authorities.is_empty() {
            return Err(no_ca);
        }
        Ok(Self { server, ca_pem, authorities })
    }

    /// Whether one of its CAs is pinned.
    // kubeadm: discovery/token/token.go, validateClusterCA
    pub fn is_pinned(&self, pins: &PublicKeyPins) -> Result<(), ClusterInfoError> {
        if pins.match_any(&self.authorities) {
            return Ok(());
        }
        let keys: Vec<String> = self.authorities.iter().filter_map(|ca| PublicKeyPins::of(ca)).collect();
        Err(ClusterInfoError::NotPinned(keys.join(", ")))
    }
}

/// The kubeconfig of a cluster: where it is and its CAs, and nobody's credentials. In the very words of client-go, for
/// the text is what is signed. `server` is a URL: nothing in it needs quotes in YAML.
// kubeadm: phases/bootstraptoken/clusterinfo/clusterinfo.go, CreateBootstrapConfigMapIfNotExists
// client-go: tools/clientcmd/loader.go, Write
pub fn kubeconfig(server: &Uri, ca_pem: &[u8]) -> String {
    let (ca, server) = (STANDARD.encode(ca_pem), server.to_string());
    // What is only a path of `/` is not written.
    let server = server.trim_end_matches('/');
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {server}\n  \
         name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n"
    )
}

#[cfg(test)]
mod tests;
