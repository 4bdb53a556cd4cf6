//! Client certificates of pods: each authenticates the service account of its pod, with the user info of a token that is bound
//! to the pod.
//!
//! Follows KEP-4317 (`--pod-client-ca-file`), which no release of kube-apiserver implements. The names and UIDs are those of
//! the PodIdentity extension, and the objects must exist with these UIDs as for a bound token, in the cluster of the
//! request. A certificate of the pod CA is never that of a plain user: no verdict on it is left to another authenticator of
//! certificates.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use portcullis_go::quote::Quoted;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use portcullis_limits::shared_lookup::{Found, Lookup, SharedLookups, Term};
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::pod_identity::PodIdentity;
use tokio::time::Instant;

use super::bound_objects::{BoundObject, BoundObjects, NodeOfPod};
use super::checks::CheckRecorder;
use super::identity;
use super::objects::within_timeout;
use crate::authn::token_getter::TokenGetter;
use crate::authn::trace::Check;
use crate::authn::x509::{ChainOwner, VerifiedChain, X509Authenticator};
use crate::authn::{
    Authenticated, AuthnError, AuthnInput, AuthnMethod, AuthnVerdict, BoxFuture, RequestAuthenticator,
};

const NAME: &str = AuthnMethod::PodCertificate.name();
/// How long the objects of a certificate count as existing after live reads, as for tokens. What a fresh watch has is
/// looked up for each request.
const EXISTENCE_TERM: Duration = Duration::from_secs(10);
/// How long a certificate waits for its check to start.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory of the verdicts on live reads, and the weight of one: the key and the places in the maps.
const VERDICTS_MEMORY: usize = 8 << 20;
const VERDICT_WEIGHT: usize = 256;
const SHARDS: usize = 16;
/// Concurrent live checks, and those that wait, as for tokens: of all, and of one client network.
const CHECKS: Shares = Shares::new(4096, 1024).with_queue(4096, 1024);
/// The part of them that the cluster of a tenant has.
const TENANT_PART: usize = 8;

/// The verdicts on the objects of certificates, by the SHA-256 of the certificate.
type Verdicts = SharedLookups<String, Result<(), AuthnError>>;

/// Authenticates certificates of pods, and leaves those of other CAs to the authenticator of users.
#[derive(Debug)]
pub(crate) struct PodCertificateAuthenticator {
    bundle: Arc<CaBundle>,
    users: Option<X509Authenticator>,
    lookup: Arc<dyn TokenGetter>,
    verdicts: Verdicts,
    places: FairLimiter,
}

impl PodCertificateAuthenticator {
    /// Trusts the CAs in `bundle` for pods, whose objects `lookup` finds; `users` decides about all other certificates.
    pub(crate) fn new(
        bundle: Arc<CaBundle>,
        users: Option<X509Authenticator>,
        lookup: Arc<dyn TokenGetter>,
        is_of_tenant: bool,
        share: &CacheShare,
    ) -> Self {
        let shares = if is_of_tenant { CHECKS.divided_by(TENANT_PART) } else { CHECKS };
        let verdicts = Verdicts::new(VERDICTS_MEMORY, SHARDS, share);
        Self { bundle, users, lookup, verdicts, places: FairLimiter::new(shares) }
    }

    // threat: pod-certificate-as-user
    async fn judge(&self, input: &AuthnInput<'_>) -> AuthnVerdict {
        if input.conn.peer_chain.is_empty() {
            return Ok(None);
        }
        let chain = match (input.conn.verdicts.verify(input, ChainOwner::Pod, &self.bundle), &self.users) {
            (Ok(chain), _) => chain,
            (Err(refusal), Some(users)) => {
                let verdict = users.judge(input);
                return if verdict.is_err() && refusal.is_of_pod() {
                    Err(refusal.of(NAME, input))
                } else {
                    verdict
                };
            }
            (Err(refusal), None) => return Err(refusal.of(NAME, input)),
        };
        let checks = CheckRecorder { name: NAME, trace: input.trace };
        checks.pass(Check::Chain, || "signed by a CA of pods, valid for client authentication".to_owned());
        let pod = chain.pod_identity().map_err(|error| {
            checks.refuse(Check::Other("pod identity"), &error, format!("certificate of a pod: {error}"))
        })?;
        checks.pass(Check::Other("pod identity"), || {
            format!("pod {}, node {}", Quoted(&pod.pod_name), Quoted(&pod.node_name))
        });
        self.check_objects(&chain, pod, checks, input).await?;
        let user = chain.pod_user(|| user(pod, chain.sha256()));
        checks.pass(Check::Other("user"), || user.name.clone());
        Ok(Some(Authenticated {
            user,
            audiences: Vec::new(),
            method: AuthnMethod::PodCertificate,
            certificates: Some(Arc::clone(chain.path())),
            expires: None,
        }))
    }

    /// Checks that the objects exist: by the watches, or by live reads that the requests with one certificate share.
    // threat: deleted-account
    async fn check_objects(
        &self,
        chain: &VerifiedChain,
        pod: &PodIdentity,
        checks: CheckRecorder<'_>,
        input: &AuthnInput<'_>,
    ) -> Result<(), AuthnError> {
        let objects = bound_objects(pod);
        let check = || objects.check(&*self.lookup, checks, input.now);
        if input.trace.keeps_steps() {
            // A shared check has no steps for those that wait for it.
            return within_timeout(checks, check()).await;
        }
        let (key, owner) = (chain.sha256().to_owned(), &input.conn.owner);
        loop {
            match self.verdicts.find(&key, owner, Instant::now(), |_| true) {
                Found::Known(verdict) => return verdict,
                Found::Pending(pending) => {
                    if let Some(verdict) = pending.result().await {
                        return verdict;
                    }
                    // The request that looked the objects up was cancelled.
                }
                Found::Vacant(lookup, _) => return self.look_up(lookup, check(), checks).await,
            }
        }
    }

    async fn look_up(
        &self,
        lookup: Lookup<String, Result<(), AuthnError>>,
        check: impl Future<Output = Result<(), AuthnError>>,
        checks: CheckRecorder<'_>,
    ) -> Result<(), AuthnError> {
        let begun = Instant::now();
        let overloaded = || {
            checks.unavailable(
                Check::Other("objects"),
                "too many certificates of pods are being checked at once",
            )
        };
        let place = self.places.acquire(lookup.owner().clone(), 1, begun + QUEUE_TIMEOUT).await;
        let (verdict, term) = if place.is_ok() {
            // Counted from the start of the check: the verdict may rest on data of that time.
            let begun = Instant::now();
            let mut check = pin!(check);
            if let Poll::Ready(verdict) = poll!(check.as_mut()) {
                // By the watches. The next request looks at them again.
                (verdict, None)
            } else {
                let verdict = within_timeout(checks, check).await;
                let term = Term { weight: VERDICT_WEIGHT, until: begun + EXISTENCE_TERM };
                let is_stored = verdict.is_ok();
                (verdict, is_stored.then_some(term))
            }
        } else {
            (Err(overloaded()), None)
        };
        drop(place);
        lookup.finish(verdict.clone(), term);
        verdict
    }
}

impl RequestAuthenticator for PodCertificateAuthenticator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(self.judge(input))
    }
}

/// The objects that must exist. Unlike a token, whose pod counts alone, a certificate names a node that the signer has
/// verified.
fn bound_objects(pod: &PodIdentity) -> BoundObjects<'_> {
    BoundObjects {
        namespace: &pod.namespace,
        service_account: BoundObject { name: &pod.service_account_name, uid: &pod.service_account_uid },
        secret: None,
        pod: Some(BoundObject { name: &pod.pod_name, uid: &pod.pod_uid }),
        node: Some(BoundObject { name: &pod.node_name, uid: &pod.node_uid }),
        node_of_pod: NodeOfPod::Checked,
    }
}

/// The user, equal to that of a token that is bound to the pod, but for the ID of the credential.
// threat: pod-certificate-as-user
fn user(pod: &PodIdentity, sha256: &str) -> UserInfo {
    let BoundObjects { pod: of_pod, node, .. } = bound_objects(pod);
    let mut user = identity::user(&pod.namespace, &pod.service_account_name, &pod.service_account_uid);
    user.extra = identity::extra(Some(format!("X509SHA256={sha256}")), of_pod, node);
    user.in_authenticated_group()
}
