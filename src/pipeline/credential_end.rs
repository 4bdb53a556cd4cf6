//! Ends long-running responses with the credential that opened them (`--terminate-streams-on-credential-expiry`).
//!
//! kube-apiserver authenticates a watch, a log or an `exec` once, when it begins. Here its credential is authenticated
//! again: when it expires by itself, with each new configuration, and regularly, since a token may depend on objects of the
//! cluster. Only the kind of credential counts by which the client
//! was authenticated. The stream ends when it is refused, or is that of another identity, or when the impersonated user is
//! denied. It goes on while nothing can be said, because an issuer or a webhook is away.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portcullis_http::body::BodyEnd;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::user::UserInfo;
use portcullis_system::clock::{Clock, UnixTime};
use tokio::sync::watch::Receiver;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use crate::authn::trace::AuthnTrace;
use crate::authn::{AuthnInput, AuthnMethod, ProvenIdentity, expiry};
use crate::listener::Connection;
use crate::metrics::Metrics;
use crate::request::credentials::Credentials;
use crate::state::Live;

/// How often a credential is authenticated again. The caches of tokens hold their verdicts for longer.
const INTERVAL: Duration = Duration::from_secs(5);

/// The credential by which a long-running request was authenticated.
pub(super) struct StreamCredential {
    live: Arc<Live>,
    clock: Clock,
    metrics: Arc<Metrics>,
    connection: Arc<Connection>,
    cluster: String,
    path: Box<str>,
    credentials: Credentials,
    method: AuthnMethod,
    identity: Identity,
    /// The impersonated user, who may be denied, too.
    impersonated: OnceLock<UserInfo>,
    /// When it is accepted no longer, as far as it says so itself.
    expires: Option<UnixTime>,
}

/// What authentication says of the credential now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CredentialStatus {
    Accepted,
    Unknown,
    Refused,
}

/// What a [`StreamCredential`] is made of.
pub(super) struct StreamParts<'a> {
    pub(super) live: &'a Arc<Live>,
    pub(super) clock: &'a Clock,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) connection: &'a Arc<Connection>,
    pub(super) cluster: &'a str,
    pub(super) path: &'a str,
}

impl StreamCredential {
    /// The credential that has proven an identity.
    pub(super) fn new(
        parts: &StreamParts<'_>,
        credentials: Credentials,
        proven: &ProvenIdentity,
    ) -> Arc<Self> {
        let StreamParts { live, clock, metrics, connection, cluster, path } = *parts;
        Arc::new(Self {
            live: Arc::clone(live),
            clock: clock.clone(),
            metrics: Arc::clone(metrics),
            expires: expiry::expiry(proven.method(), &credentials, connection.certificate_not_after),
            connection: Arc::clone(connection),
            cluster: cluster.to_owned(),
            path: path.into(),
            credentials: expiry::only(credentials, proven.method()),
            method: proven.method(),
            identity: proven.identity().clone(),
            impersonated: OnceLock::new(),
        })
    }

    /// Records the impersonated user of the request.
    pub(super) fn note_impersonated(&self, user: UserInfo) {
        // A request impersonates one user.
        self.impersonated.get_or_init(|| user);
    }

    /// Completes when the credential is accepted no longer.
    // threat: outlived-credential
    pub(super) fn end(self: &Arc<Self>) -> BodyEnd {
        // A task of its own: an authenticator's future cannot be shared as a body is.
        let task = AbortOnDropHandle::new(tokio::spawn(Arc::clone(self).watch()));
        Box::pin(async move {
            // A task that has panicked ends the stream, too.
            task.await.ok();
        })
    }

    async fn watch(self: Arc<Self>) {
        let mut generations = self.live.subscribe();
        let mut revocations = self.revocations();
        let reason = loop {
            if self.is_expired() {
                break "expired";
            }
            tokio::select! {
                () = sleep(self.next_check()) => {}
                () = next_change(&mut revocations) => {}
                changed = generations.changed() => if changed.is_err() {
                    // The server has ended.
                    return;
                }
            }
            // Boxed: it is seldom needed, and streams are many.
            if !self.is_expired() && Box::pin(self.check()).await == CredentialStatus::Refused {
                break "refused";
            }
        };
        let (cluster, user) = (&self.cluster, &self.identity.name);
        let (path, peer) = (&self.path, self.connection.info.peer);
        info!(cluster, user, %peer, path, reason, "ended a stream with its credential");
        self.metrics.connections.ended_streams.with_label_values(&[reason]).inc();
    }

    /// The changes of what is revoked, which all generations of the configuration share.
    fn revocations(&self) -> Option<Receiver<u64>> {
        let mut changes = self.live.peek().cluster(&self.cluster)?.authn.chain.revocation().changes()?;
        // The credential was checked before: a change since then would be missed.
        changes.mark_changed();
        Some(changes)
    }

    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| self.clock.now() >= expires)
    }

    fn next_check(&self) -> Duration {
        let left = self.expires.map_or(INTERVAL, |expires| expires.saturating_sub(self.clock.now()));
        left.clamp(Duration::from_millis(1), INTERVAL)
    }

    async fn check(&self) -> CredentialStatus {
        let snapshot = self.live.snapshot();
        let Some(cluster) = snapshot.cluster(&self.cluster) else { return CredentialStatus::Refused };
        let trace = AuthnTrace::default();
        let input = AuthnInput {
            conn: &self.connection.info,
            credentials: &self.credentials,
            path: &self.path,
            audiences: &cluster.authn.audiences,
            generation: snapshot.generation,
            now: self.clock.now(),
            trace: &trace,
        };
        match cluster.authn.chain.authenticate(&input).await {
            Ok(proven) if *proven.user() == *self.identity => {
                let revocation = cluster.authn.chain.revocation();
                let denied = |user| revocation.check_user(user, input.now).is_err();
                if self.impersonated.get().is_some_and(denied) {
                    CredentialStatus::Refused
                } else {
                    CredentialStatus::Accepted
                }
            }
            Err(error) if error.is_inconclusive_for(self.method) => CredentialStatus::Unknown,
            // Also another identity.
            Ok(_) | Err(_) => CredentialStatus::Refused,
        }
    }
}

async fn next_change(changes: &mut Option<Receiver<u64>>) {
    if let Some(receiver) = changes
        && receiver.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
