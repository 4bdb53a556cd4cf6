//! A client certificate for the user of a token: a CertificateSigningRequest in the cluster, and a cached certificate
//! that is replaced before it expires.
//!
//! The cluster says who the user of the token is, and the certificate must be of the same user: what a certificate
//! cannot carry is refused, and an issued certificate for another key, subject or time is never used. The key does not
//! leave this machine. A request that is not approved in time stays pending, and the next command goes on with it.
// threat: other-user-certificate

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use kube::api::PostParams;
use portcullis_go::pem::{certificate_chain, encode_pem};
use portcullis_kubernetes::reviews::ReviewedUser;
use portcullis_kubernetes::user::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, CREDENTIAL_ID_KEY, MASTERS,
};
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::request::{CertificateRequest, build};
use portcullis_pki::issuance::signer::{KeyKind, PemKey, Signer as _};
use portcullis_pki::issuance::subject::Subject;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::UnixTime;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::{Instant, timeout};

use super::api_server::ApiServer;
use super::cache::{
    CacheEntry, CacheError, CachedCertificate, IssuedCertificate, LoginCache, PendingRequest, SecretText,
};
use super::error::LoginError;
use super::review::review;
use super::session::{LOCK_MARGIN, MAX_SKEW, Session, checked, quiet, renewal, warned};
use super::settings::CertificateSettings;
use crate::certs::progress::Spinner;
use crate::certs::requests::wait::{RequestOutcome, outcome};
use crate::certs::requests::{NewRequest, client_usages};
use crate::certs::signing::{check_user, check_visible};
use crate::cluster::{ClusterClient, is_missing_right};
use crate::print_error;

/// The time for an approval; then the command prints how to approve the request.
const NOTICE_DELAY: Duration = Duration::from_secs(2);
/// The rights of the request and of its watch.
const GRANT: &str = "\n  fix: an administrator grants it to the users of certificates:\n    \
    kubectl create clusterrole client-certificates --verb=create,list,watch \
    --resource=certificatesigningrequests.certificates.k8s.io\n    \
    kubectl create clusterrolebinding client-certificates --clusterrole=client-certificates --group=GROUP";

/// A client certificate for the cluster.
#[derive(Debug, Clone)]
pub(super) struct CertificateCredential {
    /// The certificate and its chain, PEM.
    pub(super) certificate: String,
    /// PEM.
    pub(super) key: SecretString,
    /// When to ask for another one: before the certificate expires.
    pub(super) renew_at: UnixTime,
}

/// Why there is no client certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// There is no token, or the cluster refuses it.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// Without a cache, each command would create a request.
    #[error("--client-certificate needs the login cache: {0}")]
    Cache(#[from] CacheError),
    /// A certificate cannot be of this user.
    #[error(
        "no certificate can be of the user {user:?}: {problem}\n  fix: use the token, without --client-certificate"
    )]
    User {
        /// The user of the token.
        user: String,
        /// The problem.
        problem: String,
    },
    /// The cluster does not accept the request, or does not answer.
    #[error("{0}")]
    Cluster(String),
    /// The request has no certificate yet.
    #[error(
        "certificatesigningrequest {name} has no certificate after {waited:?}: it is not approved, or {signer} has not \
         signed it\n  fix: an administrator approves it with `portcullis certs approve {name}` or `kubectl certificate \
         approve {name}`; then repeat the command, which goes on with the same request"
    )]
    Pending {
        /// The name of the request.
        name: String,
        /// The signer of the request.
        signer: String,
        /// How long the command has waited.
        waited: Duration,
    },
    /// The request was denied, has failed or was deleted.
    #[error("certificatesigningrequest {name}: {problem}")]
    Ended {
        /// The name of the request.
        name: String,
        /// The problem.
        problem: String,
    },
    /// The certificate is not the requested one, or not valid now.
    #[error("the certificate of certificatesigningrequest {name} cannot be used: {problem}")]
    Unfit {
        /// The name of the request.
        name: String,
        /// The problem.
        problem: String,
    },
}

impl CertificateError {
    /// Whether a certificate that is still valid may be used although there is no new one.
    fn is_bridged(&self) -> bool {
        !matches!(self, Self::Cache(_) | Self::User { .. })
    }

    /// Whether another process would fail alike if it tried now.
    fn is_shared(&self) -> bool {
        match self {
            Self::Login(error) => error.is_shared(),
            Self::Cluster(_) | Self::Pending { .. } => true,
            Self::Cache(_) | Self::User { .. } | Self::Ended { .. } | Self::Unfit { .. } => false,
        }
    }
}

impl From<CertificateError> for LoginError {
    fn from(error: CertificateError) -> Self {
        match error {
            CertificateError::Login(error) => error,
            CertificateError::Cache(error @ CacheError::Keyring(_)) => error.into(),
            error => Self::Other(error.to_string()),
        }
    }
}

/// How a command gets client certificates.
#[derive(Debug)]
pub(super) struct CertificateSession<'a> {
    /// How it gets tokens.
    pub(super) session: Session<'a>,
    /// Without a cache, each command would create a request.
    pub(super) cache: &'a LoginCache,
    pub(super) server: &'a ApiServer,
    pub(super) settings: &'a CertificateSettings,
    /// Get a new certificate also if the cache has one.
    pub(super) force: bool,
}

/// A request in the cluster, with its key.
struct OpenRequest {
    pending: PendingRequest,
    request: CertificateRequest,
    key: PemKey,
}

impl CertificateSession<'_> {
    /// The certificate.
    pub(super) async fn credential(&self) -> Result<CertificateCredential, CertificateError> {
        let login = self.cache.entry(self.session.settings)?;
        let entry = login.certificate(&self.key());
        // A valid certificate needs no lock: writes are atomic.
        if let Some(found) = quiet(entry.read_certificate().await)?
            && let Some(credential) = self.current(&login, &found).await?
        {
            return Ok(credential);
        }
        let limit = self.settings.timeout + self.session.settings.login_timeout + LOCK_MARGIN;
        let lock =
            entry.lock(limit, || print_error("waiting for the certificate of another process …")).await?;
        let cached = checked(entry.read_certificate().await)?;
        if let Some(found) = &cached
            && let Some(credential) = self.current(&login, found).await?
        {
            return Ok(credential);
        }
        let attempt = format!("{} {:?}", self.session.attempt(&entry), self.settings.timeout);
        let renewed = if let Some(failure) = lock.failure(&attempt).filter(|_| !self.force) {
            Err(failure.into())
        } else {
            lock.begin();
            self.renew(&login, &entry, cached.clone()).await
        };
        if let Err(error) = &renewed
            && error.is_shared()
            && !self.force
        {
            lock.fail(&attempt, error, true);
        }
        drop(lock);
        let error = match renewed {
            Err(error) if error.is_bridged() => error,
            renewed => return renewed,
        };
        // Only now: while the request waited, the old one may have expired, or its user logged out.
        if let Some(found) = &cached
            && let Some(credential) = warned(self.usable(&login, found).await).flatten()
        {
            print_error(&format!("warning: {error}"));
            return Ok(credential);
        }
        Err(error)
    }

    /// What distinguishes the certificate from others of the same login.
    fn key(&self) -> Vec<Vec<u8>> {
        vec![
            self.server.url.clone().into_bytes(),
            self.server.server_name.clone().unwrap_or_default().into_bytes(),
            self.server.authorities.clone().unwrap_or_default(),
            self.settings.signer_name.clone().into_bytes(),
            self.settings.expiration_seconds.to_be_bytes().to_vec(),
        ]
    }

    /// The cached certificate, if it is not to be replaced yet.
    async fn current(
        &self,
        login: &CacheEntry,
        cached: &CachedCertificate,
    ) -> Result<Option<CertificateCredential>, CacheError> {
        if self.force {
            return Ok(None);
        }
        let usable = self.usable(login, cached).await?;
        Ok(usable.filter(|credential| self.session.clock.now() < credential.renew_at))
    }

    /// The cached certificate, if it is valid, and of the user who is logged in.
    async fn usable(
        &self,
        login: &CacheEntry,
        cached: &CachedCertificate,
    ) -> Result<Option<CertificateCredential>, CacheError> {
        let Some(issued) = &cached.issued else { return Ok(None) };
        let now = self.session.clock.now().as_secs();
        let is_of_past = issued.received_at <= now.saturating_add(MAX_SKEW);
        let is_of_login = quiet(login.read().await)?.is_some_and(|tokens| tokens.subject == cached.subject);
        Ok((is_of_login && is_of_past && now < issued.expires_at).then(|| credential(issued)))
    }

    /// A new certificate.
    async fn renew(
        &self,
        login: &CacheEntry,
        entry: &CacheEntry,
        cached: Option<CachedCertificate>,
    ) -> Result<CertificateCredential, CertificateError> {
        let token = self.session.credential().await?;
        let user = review(self.server, &token).await?;
        let subject = subject(&user)
            .map_err(|problem| CertificateError::User { user: user.username.clone(), problem })?;
        let token_end = token.renew_at;
        let cluster = self.server.client(token.token).map_err(CertificateError::Cluster)?;
        // That of this token: another user may have logged in since.
        let logged_in = token.subject;
        let mut kept = cached
            .filter(|cached| cached.subject == logged_in)
            .unwrap_or_else(|| CachedCertificate::new(self.session.settings, &self.server.url, logged_in));
        let mut resumed = kept.pending.take().and_then(|pending| OpenRequest::of(pending, &subject));
        loop {
            let is_resumed = resumed.is_some();
            let open = if let Some(open) = resumed.take() {
                open
            } else {
                // Before there is a request: if the entry cannot be written, each command would create one.
                if !self.store(login, entry, &kept).await? {
                    let problem =
                        "the login is gone: by logout, another login, or a cache that cannot keep it";
                    return Err(LoginError::Other(problem.to_owned()).into());
                }
                self.create(&cluster, &subject).await?
            };
            kept.pending = Some(open.pending.clone());
            if !is_resumed {
                warned(self.store(login, entry, &kept).await);
            }
            let name = open.pending.name.clone();
            let ended = |problem: String| CertificateError::Ended { name: name.clone(), problem };
            let waited = self.wait(&cluster, &open.pending, token_end).await?;
            kept.pending = None;
            let issued = match waited {
                RequestOutcome::Issued(certificate) => self.accept(&certificate, &open),
                // The cluster removes requests that wait for a day, and signed ones after an hour.
                RequestOutcome::Deleted if is_resumed => continue,
                RequestOutcome::Deleted => Err(ended("the request was deleted".to_owned())),
                RequestOutcome::Never(problem) => Err(ended(problem)),
            };
            kept.issued = issued.as_ref().ok().cloned().or(kept.issued);
            warned(self.store(login, entry, &kept).await);
            return issued.map(|issued| credential(&issued));
        }
    }

    /// Creates a request with a new key.
    async fn create(
        &self,
        cluster: &ClusterClient,
        subject: &Subject,
    ) -> Result<OpenRequest, CertificateError> {
        let failed = |error: &dyn std::fmt::Display| {
            CertificateError::Cluster(format!("cannot build a certificate request: {error}"))
        };
        let key = PemKey::generate(KeyKind::EcdsaP256).map_err(|error| failed(&error))?;
        let request = build(subject, &AltNames::default(), &key).map_err(|error| failed(&error))?;
        let object = NewRequest {
            name: None,
            request: &request,
            signer_name: &self.settings.signer_name,
            expiration_seconds: Some(self.settings.expiration_seconds),
            usages: client_usages(),
        }
        .object();
        let api: Api<CertificateSigningRequest> = Api::all(cluster.client.clone());
        let parameters = PostParams::default();
        let made = cluster.ask("create a certificate signing request", async {
            match api.create(&parameters, &object).await {
                Err(kube::Error::Api(status)) if status.code == 403 => Ok(Err(status.message)),
                made => made.map(Ok),
            }
        });
        let made = made.await.map_err(CertificateError::Cluster)?.map_err(|message| {
            let fix = if is_missing_right(&message) { GRANT } else { "" };
            CertificateError::Cluster(format!(
                "the cluster does not let you request a certificate: {message}{fix}"
            ))
        })?;
        let name = made.metadata.name.unwrap_or_default();
        // It is printed as part of a command.
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')) {
            return Err(CertificateError::Cluster(format!(
                "the cluster answers with a request of the name {name:?}"
            )));
        }
        let pending = PendingRequest {
            name,
            uid: made.metadata.uid,
            request: request.to_pem(),
            key: SecretText::new(key.to_pem().expose_secret()),
        };
        Ok(OpenRequest { pending, request, key })
    }

    /// Waits until the request has ended.
    async fn wait(
        &self,
        cluster: &ClusterClient,
        pending: &PendingRequest,
        token_end: Option<UnixTime>,
    ) -> Result<RequestOutcome, CertificateError> {
        let (name, begun) = (pending.name.as_str(), Instant::now());
        let spinner = Spinner::new(&format!("waiting for {name}"));
        let api = Api::all(cluster.client.clone());
        let mut ended = std::pin::pin!(timeout(
            self.settings.timeout,
            outcome(cluster, api, name, pending.uid.as_deref(), &spinner)
        ));
        let waited = if let Ok(waited) = timeout(NOTICE_DELAY, &mut ended).await {
            waited
        } else {
            print_error(&format!(
                "waiting for the approval of certificatesigningrequest {name}: portcullis certs approve {name}"
            ));
            ended.await
        };
        // A watch is renewed within five minutes, and refused if the token has expired by then.
        let has_token_expired = token_end.is_some_and(|end| end <= self.session.clock.now());
        match waited {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(problem)) if !has_token_expired => Err(CertificateError::Cluster(problem)),
            _ => Err(CertificateError::Pending {
                name: name.to_owned(),
                signer: self.settings.signer_name.clone(),
                waited: begun.elapsed().min(self.settings.timeout),
            }),
        }
    }

    fn accept(&self, certificate: &[u8], open: &OpenRequest) -> Result<IssuedCertificate, CertificateError> {
        let now = self.session.clock.now();
        let checked = check(certificate, open.key.public_key(), open.request.subject(), now);
        let (certificate, expires_at) = checked
            .map_err(|problem| CertificateError::Unfit { name: open.pending.name.clone(), problem })?;
        Ok(IssuedCertificate {
            certificate,
            key: open.pending.key.clone(),
            expires_at,
            received_at: now.as_secs(),
        })
    }

    /// Writes the entry, unless the user has logged out meanwhile: `logout` holds the lock of the tokens, too. Returns
    /// whether the user is still logged in.
    async fn store(
        &self,
        login: &CacheEntry,
        entry: &CacheEntry,
        certificate: &CachedCertificate,
    ) -> Result<bool, CacheError> {
        let limit = self.session.settings.login_timeout + LOCK_MARGIN;
        let lock = login.lock(limit, || ()).await?;
        let is_logged_in = login.read().await?.is_some_and(|tokens| tokens.subject == certificate.subject);
        if is_logged_in {
            entry.write_certificate(certificate).await?;
        }
        drop(lock);
        Ok(is_logged_in)
    }
}

impl OpenRequest {
    /// A request of an earlier command, if it is for the same subject.
    fn of(pending: PendingRequest, subject: &Subject) -> Option<Self> {
        let key = PemKey::from_pem(pending.key.expose().as_bytes()).ok()?;
        let request = CertificateRequest::from_pem(pending.request.as_bytes()).ok()?;
        is_same(request.subject(), subject).then_some(Self { pending, request, key })
    }
}

/// The credential of a certificate, which is replaced before it expires.
fn credential(issued: &IssuedCertificate) -> CertificateCredential {
    CertificateCredential {
        certificate: issued.certificate.clone(),
        key: SecretString::from(issued.key.expose()),
        renew_at: renewal(issued.received_at, issued.expires_at),
    }
}

/// The subject of a certificate that kube-apiserver takes for the same user, or why there is none.
// apiserver: pkg/authentication/request/x509/x509.go, CommonNameUserConversion
fn subject(user: &ReviewedUser) -> Result<Subject, String> {
    if user.username.is_empty() || user.username == ANONYMOUS {
        return Err("the cluster does not know the user of the token".to_owned());
    }
    // kubernetes: plugin/pkg/admission/certificates/subjectrestriction/admission.go
    for refused in [MASTERS, ALL_UNAUTHENTICATED] {
        if user.groups.iter().any(|group| group == refused) {
            return Err(format!("Kubernetes signs no client certificate for the group {refused}"));
        }
    }
    if !user.uid.is_empty() {
        return Err("it has a UID, which a certificate would lose".to_owned());
    }
    if let Some(key) = user.extra.keys().find(|key| *key != CREDENTIAL_ID_KEY) {
        return Err(format!("it has the extra key {key}, which a certificate would lose"));
    }
    // Authentication adds it again.
    let groups = user.groups.iter().filter(|group| *group != ALL_AUTHENTICATED);
    let subject = Subject {
        common_name: user.username.clone(),
        organization: groups.cloned().collect(),
        ..Subject::default()
    };
    check_user(&subject)?;
    check_visible(&subject)?;
    Ok(subject)
}

/// Whether both are the same user. The encoding sorts the organizations.
fn is_same(one: &Subject, other: &Subject) -> bool {
    let sorted = |subject: &Subject| {
        let mut subject = subject.clone();
        subject.organization.sort();
        subject
    };
    sorted(one) == sorted(other)
}

/// Checks an issued certificate. Returns its chain as PEM without other blocks, and when it expires.
fn check(
    issued: &[u8],
    public_key: &[u8],
    subject: &Subject,
    now: UnixTime,
) -> Result<(String, u64), String> {
    let chain = certificate_chain(issued);
    let leaf = chain.first().ok_or("the signer has returned none")?;
    let leaf = Certificate::parse(leaf.clone()).map_err(|error| error.to_string())?;
    if leaf.spki != public_key {
        return Err("it is for another key".to_owned());
    }
    if !is_same(&leaf.subject.name, subject) || !leaf.subject.uids.is_empty() {
        return Err(format!("its subject is {}, not {subject}", leaf.subject.name));
    }
    let usage = &leaf.extensions.extended_key_usage;
    if usage.limited && !usage.any && !usage.client_auth {
        return Err("it is not for client authentication".to_owned());
    }
    let now = now.as_secs();
    let seconds = |time: i64| u64::try_from(time).unwrap_or_default();
    let (not_before, not_after) = (seconds(leaf.not_before), seconds(leaf.not_after));
    if now < not_before {
        return Err("it is not valid yet; check the clock of this machine".to_owned());
    }
    if now >= not_after {
        return Err("it has expired when it arrives; check the clock of this machine".to_owned());
    }
    Ok((chain.iter().map(|certificate| encode_pem("CERTIFICATE", certificate)).collect(), not_after))
}

#[cfg(test)]
mod tests;
