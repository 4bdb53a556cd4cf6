//! Whether the objects that a credential of a service account is bound to exist: the same checks for bound tokens and for the
//! certificates of pods.
// kubernetes: pkg/serviceaccount/claims.go, validator

use std::time::Duration;

use portcullis_system::clock::UnixTime;

use super::checks::CheckRecorder;
use super::objects::ObjectLookup;
use crate::authn::token_getter::{GetResult, ObjectIdentity, ServiceAccount, TokenGetter};
use crate::authn::trace::Check;
use crate::authn::{AuthnError, BoxFuture};

/// Accepted clock skew, and how long a credential stays valid after the deletion of a bound object.
pub(super) const LEEWAY: Duration = Duration::from_mins(1);
const INVALIDATED: &str = "service account token has been invalidated";

/// Name and UID of an object that a credential is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundObject<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
}

/// Whether the node of a pod must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeOfPod {
    /// As for tokens: only the pod.
    Unchecked,
    /// Also the node.
    Checked,
}

/// The objects that a credential is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct BoundObjects<'a> {
    pub(super) namespace: &'a str,
    pub(super) service_account: BoundObject<'a>,
    pub(super) secret: Option<BoundObject<'a>>,
    pub(super) pod: Option<BoundObject<'a>>,
    pub(super) node: Option<BoundObject<'a>>,
    pub(super) node_of_pod: NodeOfPod,
}

impl BoundObjects<'_> {
    /// Checks that every bound object exists.
    pub(super) async fn check(
        self,
        lookup: &dyn TokenGetter,
        checks: CheckRecorder<'_>,
        now: UnixTime,
    ) -> Result<(), AuthnError> {
        let Self { namespace, service_account: account, secret, pod, node, node_of_pod } = self;
        let objects = BoundObjectChecks { now, checks };
        objects.service_account(namespace, account, lookup.service_account(namespace, account.name)).await?;
        if let Some(claim) = secret {
            let found = lookup.secret(namespace, claim.name);
            objects.check_object("secret", Some(namespace), claim, found, |secret| &secret.identity).await?;
        }
        if let Some(claim) = pod {
            let found = lookup.pod(namespace, claim.name);
            objects.check_object("pod", Some(namespace), claim, found, |pod| pod).await?;
        }
        match (node, pod) {
            (Some(_), Some(_)) if node_of_pod == NodeOfPod::Unchecked => {
                checks.skip(Check::Other("node"), "not checked: the token is bound to a pod");
            }
            (Some(claim), _) => {
                objects.check_object("node", None, claim, lookup.node(claim.name), |node| node).await?;
            }
            (None, _) => {}
        }
        Ok(())
    }
}

/// Checks single objects.
#[derive(Clone, Copy)]
struct BoundObjectChecks<'a> {
    now: UnixTime,
    checks: CheckRecorder<'a>,
}

impl BoundObjectChecks<'_> {
    async fn service_account(
        self,
        namespace: &str,
        claim: BoundObject<'_>,
        lookup: BoxFuture<'_, GetResult<ServiceAccount>>,
    ) -> Result<(), AuthnError> {
        let Self { checks, .. } = self;
        let check = Check::ServiceAccount;
        let object = ObjectLookup { kind: "serviceaccount", namespace: Some(namespace), name: claim.name };
        let found =
            object.get(lookup, checks).await?.map_err(|problem| checks.invalid(check.clone(), problem))?;
        let live = &found.identity;
        if live.uid != claim.uid {
            let text = format!("service account UID ({}) does not match claim ({})", live.uid, claim.uid);
            return Err(checks.invalid(check.clone(), text));
        }
        if self.is_gone(live) {
            let text = format!("service account {namespace}/{} has been deleted", claim.name);
            return Err(checks.invalid(check.clone(), text));
        }
        checks.pass(check, || format!("{namespace}/{}, uid {}", claim.name, claim.uid));
        Ok(())
    }

    /// Checks that the object exists, with the UID in the claim, and is not deleted.
    async fn check_object<T>(
        self,
        kind: &'static str,
        namespace: Option<&str>,
        claim: BoundObject<'_>,
        lookup: BoxFuture<'_, GetResult<T>>,
        identity: impl Fn(&T) -> &ObjectIdentity,
    ) -> Result<(), AuthnError> {
        let Self { checks, .. } = self;
        let object = ObjectLookup { kind, namespace, name: claim.name };
        let found = object.get(lookup, checks).await?;
        let found = found.map_err(|problem| checks.refuse(Check::BoundObject(kind), problem, INVALIDATED))?;
        let live = identity(&found);
        if live.uid != claim.uid {
            let text = format!(
                "{kind} UID ({}) does not match service account {kind} ref claim ({})",
                live.uid, claim.uid
            );
            return Err(checks.invalid(Check::BoundObject(kind), text));
        }
        if self.is_gone(live) {
            return Err(checks.refuse(
                Check::BoundObject(kind),
                format_args!("{} has been deleted", claim.name),
                INVALIDATED,
            ));
        }
        checks.pass(Check::BoundObject(kind), || format!("{}, uid {}", claim.name, claim.uid));
        Ok(())
    }

    fn is_gone(self, object: &ObjectIdentity) -> bool {
        object.deleted.is_some_and(|deleted| deleted.saturating_add(LEEWAY) < self.now)
    }
}
