//! `portcullis cluster-info create`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use http::Uri;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use portcullis_go::pem;
use portcullis_kubernetes::user::ANONYMOUS;
use portcullis_pki::bootstrap_tokens::cluster_info::{KUBECONFIG, NAME, NAMESPACE, kubeconfig};

use super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::token::{BootstrapError, say};
use crate::certs::named_file;

/// The field manager of the Role and the RoleBinding.
const MANAGER: &str = "portcullis";
// kubeadm: phases/bootstraptoken/clusterinfo/clusterinfo.go
const ROLE: &str = "kubeadm:bootstrap-signer-clusterinfo";

/// The flags of `portcullis cluster-info create`.
#[derive(Debug, Clone, Args)]
pub struct ClusterInfoCreateFlags {
    /// The URL at which nodes reach the cluster. Default: the server of the kubeconfig.
    #[arg(long, value_name = "URL", value_parser = super::server)]
    server: Option<Uri>,
    /// The CA of that server's certificate, PEM. Default: the CA of the kubeconfig.
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// Replace an existing ConfigMap with another content; bootstrapsigner then signs it again.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

pub(super) async fn run(flags: &ClusterInfoCreateFlags) -> Result<(), BootstrapError> {
    let given = flags.certificate_authority.as_deref().map(authorities).transpose()?;
    let cluster = flags.cluster.connect().await.map_err(BootstrapError::cluster)?;
    let ca_pem = given
        .or_else(|| cluster.config.root_cert.as_deref().filter(|roots| !roots.is_empty()).map(encoded))
        .ok_or_else(|| {
            let problem =
                "--certificate-authority: give the CA of the server's certificate: the kubeconfig contains none";
            BootstrapError::Usage(problem.to_owned())
        })?;
    let server = flags.server.as_ref().unwrap_or(cluster.server());
    let wanted = kubeconfig(server, ca_pem.as_bytes());
    let done = write(&cluster, wanted, flags.force).await?;
    say(&format!("configmap {NAMESPACE}/{NAME} {done}\n"))?;
    share(&cluster).await?;
    say(&format!("role {NAMESPACE}/{ROLE} applied\nrolebinding {NAMESPACE}/{ROLE} applied\n"))
}

/// Reads the certificates of a file; fails if it contains anything else, a key for example.
fn authorities(file: &Path) -> Result<String, BootstrapError> {
    let bad = |problem: String| {
        BootstrapError::Usage(format!("--certificate-authority {}: {problem}", file.display()))
    };
    let content = named_file::read(file).map_err(|error| bad(error.to_string()))?;
    if pem::blocks(&content).iter().any(|block| block.kind != b"CERTIFICATE") {
        return Err(bad("it contains more than certificates, and cluster-info is public".to_owned()));
    }
    let ders = pem::authorities(&content);
    if ders.is_empty() {
        return Err(bad("it contains no certificate".to_owned()));
    }
    if ders.iter().any(|der| x509_parser::parse_x509_certificate(der).is_err()) {
        return Err(bad("it contains a malformed certificate".to_owned()));
    }
    Ok(encoded(&ders))
}

/// Certificates as PEM.
fn encoded(ders: &[impl AsRef<[u8]>]) -> String {
    ders.iter().map(|der| pem::encode_pem("CERTIFICATE", der.as_ref())).collect()
}

/// Writes the ConfigMap; returns the verb for the output.
// kubeadm: phases/bootstraptoken/clusterinfo/clusterinfo.go, CreateBootstrapConfigMapIfNotExists; replaces unasked
async fn write(cluster: &ClusterClient, wanted: String, force: bool) -> Result<&'static str, BootstrapError> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let doing = |verb: &str| format!("{verb} the ConfigMap {NAMESPACE}/{NAME}");
    let found = cluster.ask(&doing("read"), maps.get_opt(NAME)).await.map_err(BootstrapError::Cluster)?;
    let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
    let Some(mut found) = found else {
        let data = Some(BTreeMap::from([(KUBECONFIG.to_owned(), wanted)]));
        let map = ConfigMap { metadata, data, ..ConfigMap::default() };
        let created = cluster.ask(&doing("create"), maps.create(&PostParams::default(), &map)).await;
        return created.map(|_| "created").map_err(BootstrapError::Cluster);
    };
    if found.data.as_ref().and_then(|data| data.get(KUBECONFIG)) == Some(&wanted) {
        return Ok("unchanged");
    }
    if !force {
        return Err(BootstrapError::Cluster(format!(
            "the ConfigMap {NAMESPACE}/{NAME} already exists with another content\n  fix: replace it with --force"
        )));
    }
    // Old signatures would make nodes give up; without signatures they wait for new ones.
    found.data = Some(BTreeMap::from([(KUBECONFIG.to_owned(), wanted)]));
    let replaced = cluster.ask(&doing("replace"), maps.replace(NAME, &PostParams::default(), &found)).await;
    replaced.map(|_| "replaced").map_err(BootstrapError::Cluster)
}

/// Allows anonymous clients to read the ConfigMap.
// kubeadm: phases/bootstraptoken/clusterinfo/clusterinfo.go, CreateClusterInfoRBACRules
async fn share(cluster: &ClusterClient) -> Result<(), BootstrapError> {
    let metadata = ObjectMeta { name: Some(ROLE.to_owned()), ..ObjectMeta::default() };
    let role = Role {
        metadata: metadata.clone(),
        rules: Some(vec![PolicyRule {
            verbs: vec!["get".to_owned()],
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["configmaps".to_owned()]),
            resource_names: Some(vec![NAME.to_owned()]),
            ..PolicyRule::default()
        }]),
    };
    let group = "rbac.authorization.k8s.io".to_owned();
    let binding = RoleBinding {
        metadata,
        role_ref: RoleRef { api_group: Some(group.clone()), kind: "Role".to_owned(), name: ROLE.to_owned() },
        subjects: Some(vec![Subject {
            api_group: Some(group),
            kind: "User".to_owned(),
            name: ANONYMOUS.to_owned(),
            namespace: None,
        }]),
    };
    let options = PatchParams::apply(MANAGER).force();
    let roles: Api<Role> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let bindings: Api<RoleBinding> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let (applied, doing) = (Patch::Apply(&role), format!("apply the Role {NAMESPACE}/{ROLE}"));
    cluster.ask(&doing, roles.patch(ROLE, &options, &applied)).await.map_err(BootstrapError::Cluster)?;
    let (applied, doing) = (Patch::Apply(&binding), format!("apply the RoleBinding {NAMESPACE}/{ROLE}"));
    cluster.ask(&doing, bindings.patch(ROLE, &options, &applied)).await.map_err(BootstrapError::Cluster)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_is_written_as_openssl_does() {
        let written = include_str!("../../../pki/src/bootstrap_tokens/cluster_info/pinned.pem");
        let ders: Vec<_> = pem::authorities(written.as_bytes()).iter().map(|der| der.to_vec()).collect();
        assert_eq!(encoded(&ders), written);
        // A full last line.
        let full = encoded(&[vec![0; 48], vec![0; 49]]);
        let line = "A".repeat(64);
        let expected = format!(
            "-----BEGIN CERTIFICATE-----\n{line}\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n{line}\nAA==\n\
             -----END CERTIFICATE-----\n"
        );
        assert_eq!(full, expected);
    }
}
