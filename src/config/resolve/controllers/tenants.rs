//! Whether the CAs that sign for one cluster are any other's, or believed by one.
//!
//! What a CA signs is decided in one cluster: by those who approve requests there, and by its API server, which may
//! present any request as approved. A cluster that believes the CA of another is theirs. kube-controller-manager serves
//! one cluster and has no such rule; here it is an error, and no key allows it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::authn::settings::Authentication;
use crate::config::error::{ConfigError, Position};
use crate::config::resolve::Resolver;
use crate::pki::issuance::authority::CertificateAuthority;
use crate::pki::x509::CaBundle;
use crate::pki::x509::certificate::Certificate;

use super::authority::Files;

const FIX: &str = "give each cluster a signing CA of its own, in its own controllerManager, and name it in the \
                   clientCAFile of no other cluster";

/// A CA that signs for a cluster, and where the configuration names it.
#[derive(Debug, Clone)]
pub(in crate::config::resolve) struct SigningCa {
    key: String,
    file: PathBuf,
    position: Option<Position>,
    authority: Arc<CertificateAuthority>,
    /// Whether it signs for signers of `kubernetes.io`, whose certificates API servers believe. Only one that signs for
    /// none of them anywhere may sign for several clusters: what it is good for is not the gateway's to know.
    is_kubernetes: bool,
}

impl SigningCa {
    pub(super) fn of_kubernetes(files: &Files, authority: &Arc<CertificateAuthority>) -> Self {
        Self::new(files, authority, true)
    }

    pub(super) fn of_own(files: &Files, authority: &Arc<CertificateAuthority>) -> Self {
        Self::new(files, authority, false)
    }

    fn new(files: &Files, authority: &Arc<CertificateAuthority>, is_kubernetes: bool) -> Self {
        let (key, file) = files.certificate();
        let authority = Arc::clone(authority);
        Self { key: key.to_owned(), file: file.to_owned(), position: None, authority, is_kubernetes }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn is_at(&mut self, position: Position) {
        self.position = Some(position);
    }

    fn certificate(&self) -> Option<Certificate> {
        let bundle = CaBundle::from_pem(self.authority.certificate_pem().as_bytes()).ok()?;
        bundle.certificates().first().cloned()
    }

    fn error(&self, problem: String) -> ConfigError {
        let error = ConfigError::new(&self.key, problem).in_file(&self.file).fix(FIX);
        ConfigError { position: self.position.clone(), ..error }
    }
}

/// A cluster, as far as this rule goes.
#[derive(Debug)]
pub(in crate::config::resolve) struct Tenant {
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

impl Resolver<'_> {
    /// Refuses what one cluster signs and another believes.
    // threat: signing-ca-of-another-cluster
    pub(in crate::config::resolve) fn keep_tenants_apart(&mut self, tenants: &[Tenant]) {
        let bundles = tenants.iter().flat_map(Tenant::bundles);
        let mut known: Vec<Certificate> =
            bundles.flat_map(|bundle| bundle.certificates().iter().cloned()).collect();
        known.extend(tenants.iter().flat_map(|tenant| &tenant.signing).filter_map(SigningCa::certificate));
        for (index, tenant) in tenants.iter().enumerate() {
            for ca in &tenant.signing {
                let Some(certificate) = ca.certificate() else { continue };
                for (other, others) in tenants.iter().enumerate().filter(|(other, _)| *other != index) {
                    let problem = between(tenant, ca, &certificate, others, &known);
                    // What two share is told once.
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

/// What is wrong with a CA of `tenant` in the eyes of another one, and whether that is so the other way round, too.
fn between(
    tenant: &Tenant,
    ca: &SigningCa,
    certificate: &Certificate,
    other: &Tenant,
    known: &[Certificate],
) -> Option<(String, bool)> {
    let is_same = |theirs: &SigningCa| {
        (ca.is_kubernetes || theirs.is_kubernetes)
            && theirs.certificate().is_some_and(|theirs| theirs.spki == certificate.spki)
    };
    let (one, two) = (&tenant.name, &other.name);
    let danger = format!("what is approved in {one} would be anybody in {two}");
    if other.signing.iter().any(is_same) {
        let problem = format!("clusters {one} and {two} would sign with the same CA: {danger}");
        return Some((problem, true));
    }
    let is_believed = |bundle: &Option<Arc<CaBundle>>| {
        bundle.as_ref().is_some_and(|bundle| leads_to(certificate, bundle, known))
    };
    if is_believed(&other.client_ca) {
        return Some((format!("cluster {two} accepts client certificates of this CA: {danger}"), false));
    }
    if is_believed(&other.front_proxy_ca) {
        let problem = format!("cluster {two} accepts front proxies with certificates of this CA: {danger}");
        return Some((problem, false));
    }
    None
}

/// Whether a chain leads from a CA to one of a bundle, through any that the configuration knows. Whether each may sign
/// for clients, and until when, does not matter: a chain that is bad today is no reason to begin.
fn leads_to(ca: &Certificate, bundle: &CaBundle, known: &[Certificate]) -> bool {
    let is_one = |one: &Certificate, other: &Certificate| {
        one.spki == other.spki && one.raw_subject == other.raw_subject
    };
    // Each certificate of the same CA has an issuer of its own.
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
