//! `portcullis cluster-info create`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use http::Uri;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use rustls_pki_types::CertificateDer;

use super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::token::{BootstrapError, say};
use crate::go::pem;
use crate::pki::bootstrap_tokens::cluster_info::{KUBECONFIG, NAME, NAMESPACE, kubeconfig};
use crate::user::ANONYMOUS;

/// Who makes the role and its binding.
const MANAGER: &str = "portcullis";
// kubeadm: phases/bootstraptoken/clusterinfo/clusterinfo.go
const ROLE: &str = "kubeadm:bootstrap-signer-clusterinfo";

/// The flags of `portcullis cluster-info create`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ClusterInfoCreateFlags {
    /// Where nodes reach the cluster. Default: what the kubeconfig says.
    #[arg(long, value_name = "URL", value_parser = super::server)]
    server: Option<Uri>,
    /// The CA of that server's certificate, PEM. Default: what the kubeconfig says.
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// Replace what the ConfigMap says now; its signatures go, and bootstrapsigner makes new ones.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
}

pub(super) async fn run(flags: &ClusterInfoCreateFlags) -> Result<(), BootstrapError> {
    let given = flags.certificate_authority.as_deref().map(authorities).transpose()?;
    let cluster = flags.cluster.connect().await.map_err(BootstrapError::cluster)?;
    let ca_pem = given
        .or_else(|| cluster.config.root_cert.as_deref().filter(|roots| !roots.is_empty()).map(pem))
        .ok_or_else(|| {
            let problem =
                "--certificate-authority: give the CA of the server's certificate: the kubeconfig has none";
            BootstrapError::Usage(problem.to_owned())
        })?;
    let server = flags.server.as_ref().unwrap_or(cluster.server());
    let wanted = kubeconfig(server, ca_pem.as_bytes());
    let done = write(&cluster, wanted, flags.force).await?;
    say(&format!("configmap {NAMESPACE}/{NAME} {done}\n"))?;
    share(&cluster).await?;
    say(&format!("role {NAMESPACE}/{ROLE} applied\nrolebinding {NAMESPACE}/{ROLE} applied\n"))
}

/// The certificates of a file, and nothing else that may be in it.
fn authorities(file: &Path) -> Result<String, BootstrapError> {
    let bad = |problem: String| {
        BootstrapError::Usage(format!("--certificate-authority {}: {problem}", file.display()))
    };
    let content = std::fs::read(file).map_err(|error| bad(error.to_string()))?;
    if pem::blocks(&content).iter().any(|block| block.kind != b"CERTIFICATE") {
        return Err(bad("there is more than certificates in it, and everybody would read it".to_owned()));
    }
    let ders: Vec<Vec<u8>> = pem::authorities(&content).iter().map(|der| der.to_vec()).collect();
    if ders.is_empty() {
        return Err(bad("there is no certificate in it".to_owned()));
    }
    if ders.iter().any(|der| x509_parser::parse_x509_certificate(der).is_err()) {
        return Err(bad("there is a certificate in it that cannot be read".to_owned()));
    }
    Ok(pem(&ders))
}

/// Certificates as PEM.
// RFC 7468, section 5
fn pem(certificates: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for der in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let mut line = 0;
        for letter in STANDARD.encode(CertificateDer::from(der.as_slice())).chars() {
            text.push(letter);
            line = (line + 1) % 64;
            if line == 0 {
                text.push('\n');
            }
        }
        text.push_str(if line == 0 {
            "-----END CERTIFICATE-----\n"
        } else {
            "\n-----END CERTIFICATE-----\n"
        });
    }
    text
}

/// Writes the ConfigMap; says what was done.
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
            "there is a ConfigMap {NAMESPACE}/{NAME} already, and it says something else\n  fix: --force, to replace it"
        )));
    }
    // Signatures of what was there before would make nodes give up; without any they wait for new ones.
    found.data = Some(BTreeMap::from([(KUBECONFIG.to_owned(), wanted)]));
    let replaced = cluster.ask(&doing("replace"), maps.replace(NAME, &PostParams::default(), &found)).await;
    replaced.map(|_| "replaced").map_err(BootstrapError::Cluster)
}

/// Lets everybody read it.
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
        let written = include_str!("../../pki/bootstrap_tokens/cluster_info/pinned.pem");
        let ders: Vec<_> = pem::authorities(written.as_bytes()).iter().map(|der| der.to_vec()).collect();
        assert_eq!(pem(&ders), written);
        // A last line that is full.
        let full = pem(&[vec![0; 48], vec![0; 49]]);
        let line = "A".repeat(64);
        let expected = format!(
            "-----BEGIN CERTIFICATE-----\n{line}\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n{line}\nAA==\n\
             -----END CERTIFICATE-----\n"
        );
        assert_eq!(full, expected);
    }
}
