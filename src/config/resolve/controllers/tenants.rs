//! Keeps clusters apart: a CA that signs for one cluster must never be trusted by another, or sign for it.
//!
//! The approvers of a cluster decide which certificates its CA signs, and so does its API server, which may present any
//! request as approved. They could therefore act as any user of another cluster that trusts the CA.
//! kube-controller-manager serves one cluster and has no such rule; here it is an error that no key disables.

use std::path::PathBuf;
use std::sync::Arc;

use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;

use crate::authn::settings::Authentication;
use crate::config::error::{ConfigError, FilePosition};
use crate::config::resolve::ConfigResolver;

use super::authority::AuthorityFiles;

const FIX: &str = "give each cluster a signing CA of its own, in its own controllerManager, and name it in the \
                   clientCAFile of no other cluster";

/// A CA that signs for a cluster, and its place in the configuration.
#[derive(Debug, Clone)]
pub(in crate::config::resolve) struct SigningCa {
    key: String,
    file: PathBuf,
    position: Option<FilePosition>,
    authority: Arc<CertificateAuthority>,
    /// Whether it signs for `kubernetes.io` signers, whose certificates API servers trust. Only a CA that signs for
    /// none of them in any cluster may sign for several clusters: the gateway does not know the purpose of its
    /// certificates.
    is_kubernetes: bool,
}

impl SigningCa {
    pub(super) fn of_kubernetes(files: &AuthorityFiles, authority: &Arc<CertificateAuthority>) -> Self {
        Self::new(files, authority, true)
    }

    pub(super) fn of_own(files: &AuthorityFiles, authority: &Arc<CertificateAuthority>) -> Self {
        Self::new(files, authority, false)
    }

    fn new(files: &AuthorityFiles, authority: &Arc<CertificateAuthority>, is_kubernetes: bool) -> Self {
        let (key, file) = files.certificate();
        let authority = Arc::clone(authority);
        Self { key: key.to_owned(), file: file.to_owned(), position: None, authority, is_kubernetes }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
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
pub(in crate::config) struct Tenant {
    pub(in crate::config::resolve) name: String,
    pub(in crate::config::resolve) signing: Vec<SigningCa>,
    pub(in crate::config::resolve) client_ca: Option<Arc<CaBundle>>,
    pub(in crate::config::resolve) front_proxy_ca: Option<Arc<CaBundle>>,
}

impl Tenant {
    pub(in crate::config::resolve) fn new(
        name: &str,
        signing: Vec<SigningCa>,
        authentication: &Authentication,
    ) -> Self {
        let front_proxy_ca = authentication.request_header.as_ref().map(|proxies| Arc::clone(&proxies.ca));
        Self { name: name.to_owned(), signing, client_ca: authentication.client_ca.clone(), front_proxy_ca }
    }

    fn bundles(&self) -> impl Iterator<Item = &CaBundle> {
        self.client_ca.iter().chain(&self.front_proxy_ca).map(|bundle| &**bundle)
    }
}

impl ConfigResolver<'_> {
    /// Reports an error for each CA that signs for one cluster and is trusted by another or signs for it too.
    // threat: signing-ca-of-another-cluster
    pub(in crate::config::resolve) fn keep_tenants_apart(&mut self, tenants: &[Tenant]) {
        let bundles = tenants.iter().flat_map(Tenant::bundles);
        let mut known: Vec<Certificate> =
            bundles.flat_map(|bundle| bundle.certificates().iter().cloned()).collect();
        known.extend(tenants.iter().flat_map(|tenant| &tenant.signing).map(|ca| ca.certificate().clone()));
        for (index, tenant) in tenants.iter().enumerate() {
            for ca in &tenant.signing {
                for (other, others) in tenants.iter().enumerate().filter(|(other, _)| *other != index) {
                    let problem = conflict(tenant, ca, others, &known);
                    // A CA shared by two clusters is reported once.
                    if let Some((problem, is_mutual)) = problem
                        && (!is_mutual || index < other)
                    {
                        self.errors.push(ca.error(problem));
                    }
                }
            }
        }
    }
}

/// The conflict of a signing CA of `tenant` with another cluster, and whether it is the same from the other side.
fn conflict(
    tenant: &Tenant,
    ca: &SigningCa,
    other: &Tenant,
    known: &[Certificate],
) -> Option<(String, bool)> {
    let certificate = ca.certificate();
    let is_same = |theirs: &SigningCa| {
        (ca.is_kubernetes || theirs.is_kubernetes) && theirs.certificate().spki == certificate.spki
    };
    let (one, two) = (&tenant.name, &other.name);
    let danger = format!("certificates approved in {one} could act as any user in {two}");
    if other.signing.iter().any(is_same) {
        let problem = format!("clusters {one} and {two} sign with the same CA: {danger}");
        return Some((problem, true));
    }
    let is_trusted = |bundle: &Option<Arc<CaBundle>>| {
        bundle.as_ref().is_some_and(|bundle| leads_to(certificate, bundle, known))
    };
    if is_trusted(&other.client_ca) {
        return Some((format!("cluster {two} accepts client certificates of this CA: {danger}"), false));
    }
    if is_trusted(&other.front_proxy_ca) {
        let problem = format!("cluster {two} accepts front proxies with certificates of this CA: {danger}");
        return Some((problem, false));
    }
    None
}

/// Whether a chain leads from a CA to a root of the bundle through the certificates of the configuration. Ignores
/// purpose and validity of the certificates: a chain that is invalid today may be valid tomorrow.
fn leads_to(ca: &Certificate, bundle: &CaBundle, known: &[Certificate]) -> bool {
    let is_one = |one: &Certificate, other: &Certificate| {
        one.spki == other.spki && one.raw_subject == other.raw_subject
    };
    // Each certificate of the same CA may have another issuer.
    let mut path: Vec<&Certificate> = known.iter().filter(|one| is_one(ca, one)).collect();
    path.push(ca);
    let mut next = 0;
    while let Some(child) = path.get(next).copied() {
        if bundle.certificates().iter().any(|root| is_one(child, root)) {
            return true;
        }
        let parents = known.iter().filter(|parent| {
            child.issuer == parent.raw_subject
                && parent.public_key.verify(child.algorithm, &child.tbs, &child.signature).is_ok()
        });
        let new: Vec<&Certificate> =
            parents.filter(|parent| !path.iter().any(|seen| seen.der == parent.der)).collect();
        path.extend(new);
        next += 1;
    }
    false
}
