//! Keeps clusters apart: a CA that signs for one cluster must never be trusted by another, or sign for it.
//!
//! The approvers of a cluster decide which certificates its CA signs, and so does its API server, which may present any
//! request as approved. They could therefore act as any user of another cluster that trusts the CA.
//! kube-controller-manager serves one cluster and has no such rule; here it is an error that no key disables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;

use super::error::{ConfigError, FilePosition};
use crate::authn::settings::Authentication;

const FIX: &str = "give each cluster a signing CA of its own, in its own controllerManager, and name it in the \
                   clientCAFile of no other cluster";

const FIX_OF_PODS: &str =
    "give the signer of pods a CA of its own, which nothing trusts for users or front proxies";

/// Whose certificates a CA signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SigningPurpose {
    /// Those of `kubernetes.io` signers, which API servers trust.
    Kubernetes,
    /// Those of pods, which a template names, without the name of the cluster.
    Pods,
    /// Others. Only a CA that signs for no other purpose in any cluster may sign for several clusters: the gateway does not know
    /// the purpose of its certificates.
    Own,
}

/// A CA that signs for a cluster, and its place in the configuration.
#[derive(Debug, Clone)]
pub(super) struct SigningCa {
    pub(super) key: String,
    file: PathBuf,
    position: Option<FilePosition>,
    authority: Arc<CertificateAuthority>,
    purpose: SigningPurpose,
    /// Whether its certificates name service accounts.
    names_accounts: bool,
}

impl SigningCa {
    /// A CA for signers of Kubernetes, whose certificate is `file`, which `key` names.
    pub(super) fn of_kubernetes((key, file): (&str, &Path), authority: &Arc<CertificateAuthority>) -> Self {
        let (key, file, authority) = (key.to_owned(), file.to_owned(), Arc::clone(authority));
        Self {
            key,
            file,
            position: None,
            authority,
            purpose: SigningPurpose::Kubernetes,
            names_accounts: false,
        }
    }

    /// The same for other signers.
    pub(super) fn of_own(certificate: (&str, &Path), authority: &Arc<CertificateAuthority>) -> Self {
        Self { purpose: SigningPurpose::Own, ..Self::of_kubernetes(certificate, authority) }
    }

    /// The same for signers of pods. `names_accounts`: whether the certificates name service accounts.
    pub(super) fn of_pods(
        certificate: (&str, &Path),
        authority: &Arc<CertificateAuthority>,
        names_accounts: bool,
    ) -> Self {
        Self { purpose: SigningPurpose::Pods, names_accounts, ..Self::of_kubernetes(certificate, authority) }
    }

    pub(super) fn is_at(&mut self, position: FilePosition) {
        self.position = Some(position);
    }

    fn certificate(&self) -> &Certificate {
        self.authority.certificate()
    }

    fn error(&self, problem: String) -> ConfigError {
        let error = ConfigError::new(&self.key, problem).in_file(&self.file).fix(FIX);
        ConfigError { position: self.position.clone(), ..error }
    }
}

/// The CAs that sign for a cluster, and those that it trusts.
#[derive(Debug, Clone)]
pub(crate) struct ClusterAuthorities {
    cluster: String,
    signing: Vec<SigningCa>,
    client_ca: Option<Arc<CaBundle>>,
    pod_ca: Option<Arc<CaBundle>>,
    front_proxy_ca: Option<Arc<CaBundle>>,
}

impl ClusterAuthorities {
    pub(super) fn new(cluster: &str, signing: Vec<SigningCa>, authentication: &Authentication) -> Self {
        let front_proxy_ca = authentication.request_header.as_ref().map(|proxies| Arc::clone(&proxies.ca));
        Self {
            cluster: cluster.to_owned(),
            signing,
            client_ca: authentication.client_ca.clone(),
            pod_ca: authentication.pod_client_ca.clone(),
            front_proxy_ca,
        }
    }

    /// The certificates that it trusts, and those that sign for it.
    fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        let trusted = self.client_ca.iter().chain(&self.pod_ca).chain(&self.front_proxy_ca);
        let signing = self.signing.iter().map(SigningCa::certificate);
        trusted.flat_map(|bundle| bundle.certificates()).chain(signing)
    }
}

/// An error for each CA that signs for one of these clusters and is trusted by another or signs for it too.
// threat: signing-ca-of-another-cluster
pub(crate) fn shared_authorities(clusters: &[&ClusterAuthorities]) -> Vec<ConfigError> {
    shared_by_pairs(clusters, |_, _| true)
}

/// The same for each CA that `cluster` shares with another one.
pub(crate) fn authorities_shared_with<'a>(
    cluster: &'a ClusterAuthorities,
    others: impl Iterator<Item = &'a ClusterAuthorities>,
) -> Vec<ConfigError> {
    let mut all: Vec<_> = others.collect();
    let index = all.len();
    all.push(cluster);
    shared_by_pairs(&all, |one, other| one == index || other == index)
}

fn shared_by_pairs(
    clusters: &[&ClusterAuthorities],
    is_compared: impl Fn(usize, usize) -> bool,
) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    if clusters.iter().all(|cluster| cluster.signing.is_empty()) {
        return errors;
    }
    let signing: Vec<&Certificate> =
        clusters.iter().flat_map(|cluster| &cluster.signing).map(SigningCa::certificate).collect();
    for (index, cluster) in clusters.iter().enumerate() {
        for ca in &cluster.signing {
            let ancestors = std::cell::OnceCell::new();
            let ancestors = || ancestors.get_or_init(|| ancestors_of(ca.certificate(), cluster, &signing));
            if is_compared(index, index)
                && let Some(problem) = conflict_within(cluster, ca, ancestors)
            {
                errors.push(ca.error(problem).fix(FIX_OF_PODS));
            }
            let is_other = |other: &usize| *other != index && is_compared(index, *other);
            let mut others = clusters.iter().enumerate().filter(|(other, _)| is_other(other)).peekable();
            if others.peek().is_none() {
                continue;
            }
            for (other, others) in others {
                // A CA shared by two clusters is reported once.
                if let Some((problem, is_mutual)) = conflict(cluster, ca, others, ancestors())
                    && (!is_mutual || index < other)
                {
                    errors.push(ca.error(problem));
                }
            }
        }
    }
    errors
}

/// The conflict of a signing CA of `cluster` with another cluster, and whether it is the same from the other side.
fn conflict(
    cluster: &ClusterAuthorities,
    ca: &SigningCa,
    other: &ClusterAuthorities,
    ancestors: &[&Certificate],
) -> Option<(String, bool)> {
    let certificate = ca.certificate();
    let (one, two) = (&cluster.cluster, &other.cluster);
    let danger = match ca.purpose {
        SigningPurpose::Pods => format!("pods of {one} could act as any user in {two}"),
        _ => format!("certificates approved in {one} could act as any user in {two}"),
    };
    let same = other.signing.iter().filter(|theirs| theirs.certificate().spki == certificate.spki);
    let purposes = same.map(|theirs| [ca.purpose, theirs.purpose]);
    let unlike = purposes.filter(|purposes| *purposes != [SigningPurpose::Own; 2]);
    // That of the greatest danger.
    if let Some(purposes) = unlike.min_by_key(|purposes| !purposes.contains(&SigningPurpose::Kubernetes)) {
        let danger = if purposes.contains(&SigningPurpose::Kubernetes) {
            danger
        } else {
            format!("pods of {one} could have the names of those of {two}")
        };
        let problem = format!("clusters {one} and {two} sign with the same CA: {danger}");
        return Some((problem, true));
    }
    let is_trusted =
        |bundle: &Option<Arc<CaBundle>>| bundle.as_ref().is_some_and(|bundle| leads_to(ancestors, bundle));
    if is_trusted(&other.client_ca) {
        return Some((format!("cluster {two} accepts client certificates of this CA: {danger}"), false));
    }
    if is_trusted(&other.front_proxy_ca) {
        let problem = format!("cluster {two} accepts front proxies with certificates of this CA: {danger}");
        return Some((problem, false));
    }
    // The API server of a cluster decides which UIDs its objects have, and could take those of another.
    if is_trusted(&other.pod_ca) {
        let problem = format!(
            "cluster {two} accepts certificates of pods of this CA: the API server of {one} could have one signed for each \
             pod of {two}"
        );
        return Some((problem, false));
    }
    None
}

/// The conflict of a CA that signs for pods with its own cluster: requests of pods have no approval, and the authors of pods choose a
/// part of the names.
fn conflict_within<'a>(
    cluster: &ClusterAuthorities,
    ca: &SigningCa,
    ancestors: impl Fn() -> &'a Vec<&'a Certificate>,
) -> Option<String> {
    if ca.purpose != SigningPurpose::Pods {
        return None;
    }
    let name = &cluster.cluster;
    let is_of_kubernetes = |theirs: &SigningCa| {
        theirs.purpose == SigningPurpose::Kubernetes && theirs.certificate().spki == ca.certificate().spki
    };
    if cluster.signing.iter().any(is_of_kubernetes) {
        return Some(format!(
            "the kubernetes.io signers of cluster {name} sign with the same CA as that of pods"
        ));
    }
    // threat: pod-certificate-as-user
    if ca.names_accounts && cluster.client_ca.as_ref().is_some_and(|users| leads_to(ancestors(), users)) {
        return Some(format!(
            "cluster {name} accepts client certificates of this CA as those of users, and its signer names service accounts: \
             they would be accepted after the end of their pods (name the CA in podClientCAFile alone)"
        ));
    }
    let proxies = cluster.front_proxy_ca.as_ref()?;
    let problem = format!(
        "cluster {name} accepts front proxies with certificates of this CA: its pods could act as any user"
    );
    leads_to(ancestors(), proxies).then_some(problem)
}

/// A signing CA of `cluster`, and the certificates above it: among those of the cluster, and among the CAs that sign for any
/// cluster (`signing`). Ignores purpose and validity of the certificates: a chain that is invalid today may be valid
/// tomorrow.
///
/// Reads no bundle of another cluster. With hundreds of certificates of one subject it would cost that many signatures at each
/// step.
// threat: many-authorities
fn ancestors_of<'a>(
    ca: &'a Certificate,
    cluster: &'a ClusterAuthorities,
    signing: &[&'a Certificate],
) -> Vec<&'a Certificate> {
    let known: Vec<&Certificate> = cluster.certificates().chain(signing.iter().copied()).collect();
    // Each certificate of the same CA may have another issuer.
    let mut path: Vec<&Certificate> = vec![ca];
    path.extend(known.iter().copied().filter(|one| is_same_ca(ca, one) && one.der != ca.der));
    let mut next = 0;
    while let Some(child) = path.get(next).copied() {
        for parent in &known {
            if !path.iter().any(|seen| seen.der == parent.der) && is_issued_by(child, parent) {
                path.push(parent);
            }
        }
        next += 1;
    }
    path
}

/// Whether a root of the bundle is one of these certificates, or has issued one of them.
fn leads_to(path: &[&Certificate], bundle: &CaBundle) -> bool {
    let is_trusted = |child: &&Certificate| {
        bundle.certificates().iter().any(|root| is_same_ca(child, root) || is_issued_by(child, root))
    };
    path.iter().any(is_trusted)
}

/// A CA of the first bundle that has the key of one in the second, or has issued it, or is issued by it.
pub(super) fn related_ca<'a>(one: &'a CaBundle, other: &CaBundle) -> Option<&'a Certificate> {
    let is_related = |own: &Certificate, theirs: &Certificate| {
        own.spki == theirs.spki || is_issued_by(own, theirs) || is_issued_by(theirs, own)
    };
    one.certificates().iter().find(|own| other.certificates().iter().any(|theirs| is_related(own, theirs)))
}

fn is_same_ca(one: &Certificate, other: &Certificate) -> bool {
    one.spki == other.spki && one.raw_subject == other.raw_subject
}

fn is_issued_by(child: &Certificate, parent: &Certificate) -> bool {
    child.issuer == parent.raw_subject
        && parent.public_key.verify(child.algorithm, &child.tbs, &child.signature).is_ok()
}
