//! Revocation: refuses credentials that are valid in themselves. kube-apiserver has nothing like it; opt-in.
//!
//! Two sources: the CRLs of client CAs ([`crls`]), which change with the configuration, and a deny list ([`deny_list`](portcullis_pki::revocation::deny_list)),
//! which takes effect within a second ([`watch`]). The chain of authenticators calls [`ClusterRevocation::admit`] for
//! every success, after every cache, and only its result can become an identity. A denied user cannot be impersonated,
//! either: `Identified::impersonate` in `pipeline/stages.rs`.

pub(crate) mod crls;
pub(crate) mod watch;

use std::ops::Deref;
use std::sync::Arc;

use portcullis_kubernetes::user::UserInfo;
use portcullis_pki::revocation::path::CertificatePath;
use portcullis_system::clock::UnixTime;
use tokio::sync::watch::Receiver;

use super::Authenticated;
use crate::metrics::Metrics;
use crls::ClientCrls;
use watch::{LoadedDenyList, RevocationWatch, WatchedDenyList};

/// What revokes the credentials of a cluster.
#[derive(Debug, Clone, Default)]
pub struct RevocationSettings {
    /// The CRLs of client and front-proxy CAs.
    pub crls: Option<Arc<ClientCrls>>,
    /// The deny list.
    pub deny_list: Option<LoadedDenyList>,
}

/// Decides whether credentials of a cluster are revoked.
#[derive(Debug, Clone)]
pub(crate) struct ClusterRevocation {
    crls: Option<Arc<ClientCrls>>,
    deny_list: Option<Arc<WatchedDenyList>>,
    metrics: Option<Arc<Metrics>>,
    changes: Option<Receiver<u64>>,
}

/// What revoked a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RevocationSource {
    /// A CRL lists a certificate.
    Crl,
    /// A CRL is stale.
    StaleCrl,
    /// The deny list.
    DenyList,
}

impl RevocationSource {
    /// The label in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crl => "crl",
            Self::StaleCrl => "stale_crl",
            Self::DenyList => "deny_list",
        }
    }
}

/// A credential is revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Revoked {
    source_kind: RevocationSource,
    text: String,
}

impl Revoked {
    pub(super) fn new(source_kind: RevocationSource, text: String) -> Self {
        Self { source_kind, text }
    }

    /// What revoked it.
    pub(crate) fn source(&self) -> RevocationSource {
        self.source_kind
    }

    /// The reason, for the log.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// A credential that is not revoked. Only [`ClusterRevocation::admit`] makes one.
#[derive(Debug)]
pub(crate) struct UnrevokedCredential(Authenticated);

impl UnrevokedCredential {
    pub(super) fn into_inner(self) -> Authenticated {
        self.0
    }
}

impl Deref for UnrevokedCredential {
    type Target = Authenticated;

    fn deref(&self) -> &Authenticated {
        &self.0
    }
}

impl ClusterRevocation {
    /// Revokes nothing.
    #[cfg(test)]
    pub(crate) fn disabled() -> Self {
        Self { crls: None, deny_list: None, metrics: None, changes: None }
    }

    /// By these settings; `watch` keeps the deny list up to date.
    pub(crate) fn new(
        settings: &RevocationSettings,
        watch: &RevocationWatch,
        metrics: &Arc<Metrics>,
    ) -> Self {
        if let Some(crls) = &settings.crls {
            watch.observe_crls(crls);
        }
        Self {
            crls: settings.crls.clone(),
            deny_list: settings.deny_list.as_ref().map(|loaded| watch.deny_list(loaded)),
            metrics: Some(Arc::clone(metrics)),
            changes: Some(watch.subscribe()),
        }
    }

    /// Whether credentials can be revoked at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.crls.is_some() || self.deny_list.is_some()
    }

    /// Whether there is a deny list.
    pub(crate) fn has_deny_list(&self) -> bool {
        self.deny_list.is_some()
    }

    /// Notifies of each change of a deny list or of the CRLs: then a credential that was admitted before may be revoked.
    pub(crate) fn changes(&self) -> Option<Receiver<u64>> {
        self.changes.clone()
    }

    /// Lets a credential pass that is not revoked.
    // threat: revoked-credential
    pub(crate) fn admit(&self, found: Authenticated, now: UnixTime) -> Result<UnrevokedCredential, Revoked> {
        self.counted(self.check_parts(&found.user, found.certificates.as_deref(), now))?;
        Ok(UnrevokedCredential(found))
    }

    /// Refuses a user that another server authenticated, or that a client wants to impersonate, if the deny list has the name
    /// or the credential.
    pub(crate) fn check_user(&self, user: &UserInfo, now: UnixTime) -> Result<(), Revoked> {
        self.counted(self.check_parts(user, None, now))
    }

    fn check_parts(
        &self,
        user: &UserInfo,
        certificates: Option<&CertificatePath>,
        now: UnixTime,
    ) -> Result<(), Revoked> {
        if let Some(watched) = &self.deny_list {
            let list = watched.list();
            let entry = list.denies_user(user, now);
            let entry = entry.or_else(|| list.denies_path(certificates?, now));
            if let Some(entry) = entry {
                let text = format!("the credential is on the deny list, line {}", entry.line);
                return Err(Revoked::new(RevocationSource::DenyList, text));
            }
            // threat: re-encoded-certificate
            let odd = certificates.iter().flat_map(|path| path.certificates()).any(|one| !one.is_regular);
            if odd {
                let text = "the certificate is encoded irregularly, which would hide it from the deny list";
                return Err(Revoked::new(RevocationSource::DenyList, text.to_owned()));
            }
        }
        match (&self.crls, certificates) {
            (Some(crls), Some(path)) => crls.check(path, now),
            _ => Ok(()),
        }
    }

    fn counted(&self, result: Result<(), Revoked>) -> Result<(), Revoked> {
        if let (Err(revoked), Some(metrics)) = (&result, &self.metrics) {
            metrics.revocation.revoked.with_label_values(&[revoked.source().name()]).inc();
        }
        result
    }
}

#[cfg(test)]
mod tests;
