//! Service-account tokens: the tables of Kubernetes' own tests, and more.

mod bound;
mod flood;
mod form;
mod keys;
mod legacy;
mod pod_certificate;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use portcullis_limits::Owner;
use portcullis_openid::jwt::testing::Signer;
use portcullis_system::clock::UnixTime;
use secrecy::SecretSlice;
use serde_json::{Value, json};

use super::super::testing::audiences_of;
use super::super::{AuthnError, AuthnVerdict, BearerToken, BoxFuture, TokenContext};
use super::*;
use crate::authn::token_getter::{GetResult, ObjectIdentity, Secret, ServiceAccount, TokenGetterError};
use crate::authn::trace::{AuthnTrace, StepOutcome, TraceRecord};
use crate::metrics::Metrics;

/// 2023-11-14 22:13:20 UTC.
const NOW: i64 = 1_700_000_000;

/// A fake API server that records lookups.
#[derive(Debug, Default)]
struct FakeApiServer {
    accounts: BTreeMap<String, ServiceAccount>,
    secrets: BTreeMap<String, Secret>,
    pods: BTreeMap<String, ObjectIdentity>,
    nodes: BTreeMap<String, ObjectIdentity>,
    /// The kind of objects whose lookups fail.
    away: &'static str,
    lookups: Mutex<Vec<String>>,
    labels: Mutex<Vec<String>>,
}

impl FakeApiServer {
    fn found<T: Clone>(&self, kind: &str, all: &BTreeMap<String, T>, key: &str) -> GetResult<T> {
        let found = all.get(key).cloned().map(Arc::new);
        self.lookups.lock().unwrap().push(format!("{kind} {key}"));
        if self.away == kind { Err(TokenGetterError(format!("cannot ask for {key}"))) } else { Ok(found) }
    }

    fn lookups(&self) -> Vec<String> {
        std::mem::take(&mut *self.lookups.lock().unwrap())
    }
}

impl TokenGetter for FakeApiServer {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, GetResult<ServiceAccount>> {
        Box::pin(async move { self.found("serviceaccount", &self.accounts, &format!("{namespace}/{name}")) })
    }
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(async move { self.found("secret", &self.secrets, &format!("{namespace}/{name}")) })
    }
    fn bootstrap_secret<'a>(&'a self, name: &'a str, _: &'a Owner) -> BoxFuture<'a, GetResult<Secret>> {
        self.secret("kube-system", name)
    }
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(async move { self.found("pod", &self.pods, &format!("{namespace}/{name}")) })
    }
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(async move { self.found("node", &self.nodes, name) })
    }
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String) {
        self.labels.lock().unwrap().push(format!("{namespace}/{name} {label}={value}"));
    }
}

fn identity(uid: &str) -> ObjectIdentity {
    ObjectIdentity { uid: uid.to_owned(), deleted: None }
}

fn account(uid: &str) -> ServiceAccount {
    ServiceAccount { identity: identity(uid), secrets: Vec::new() }
}

fn seconds(seconds: i64) -> UnixTime {
    Duration::from_secs(seconds.try_into().unwrap())
}

/// Merges members into `base`.
fn with(mut base: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { panic!("{changes}") };
    for (key, value) in changes {
        base[key] = value;
    }
    base
}

/// Authenticators with a signing key, a fake API server and metrics.
struct TestBed {
    signer: Signer,
    cluster: Arc<FakeApiServer>,
    audiences: Vec<Audience>,
    counters: ServiceAccountMetrics,
    now: UnixTime,
}

/// A verdict as text, with the trace and the user.
#[derive(Debug)]
struct AuthnOutcome {
    verdict: String,
    noted: TraceRecord,
    identity: Option<portcullis_kubernetes::user::UserInfo>,
}

impl TestBed {
    fn new(cluster: FakeApiServer) -> Self {
        Self {
            signer: Signer::new("ES256"),
            cluster: Arc::new(cluster),
            audiences: audiences_of(&["api"]),
            counters: Metrics::new().service_accounts,
            now: seconds(NOW),
        }
    }

    fn deps(&self) -> AccountTokenDeps {
        AccountTokenDeps {
            keys: KeyRing::Fixed(Arc::new(vec![self.signer.public.clone()])),
            lookup: Arc::<FakeApiServer>::clone(&self.cluster),
            audiences: self.audiences.clone(),
            counters: self.counters.clone(),
        }
    }

    fn bound(&self) -> BoundTokenAuthenticator {
        BoundTokenAuthenticator::new(vec!["iss".to_owned(), "https://other.example".to_owned()], self.deps())
    }

    fn legacy(&self, lookup: bool) -> LegacyTokenAuthenticator {
        LegacyTokenAuthenticator::new(lookup, self.deps())
    }

    fn token(&self, claims: &Value) -> String {
        self.signer.sign(&self.signer.header(), &claims.to_string())
    }

    fn authenticate(&self, authenticator: &dyn TokenAuthenticator, token: &str) -> AuthnOutcome {
        self.authenticate_for(authenticator, token, &[])
    }

    fn authenticate_for(
        &self,
        authenticator: &dyn TokenAuthenticator,
        token: &str,
        audiences: &[&str],
    ) -> AuthnOutcome {
        let trace = AuthnTrace::with_steps();
        let audiences = audiences_of(audiences);
        let context =
            TokenContext { audiences: &audiences, owner: &Owner::Gateway, now: self.now, trace: &trace };
        let bearer = BearerToken::new(token);
        let verdict = authenticator.authenticate(&bearer, context).now_or_never().expect("does not wait");
        let noted = trace.take();
        let last = noted.steps.last().unwrap_or_else(|| panic!("no step on the way to {verdict:?}"));
        let expected = match &verdict {
            Ok(Some(_)) => StepOutcome::Passed,
            Ok(None) => StepOutcome::NotApplicable,
            Err(AuthnError::Unavailable(_)) => StepOutcome::Unavailable,
            Err(_) => StepOutcome::Failed,
        };
        assert_eq!(last.outcome, expected, "{last:?}");
        assert_eq!(last.authenticator, authenticator.name());
        let signature = token.rsplit('.').next().unwrap_or_default();
        let leaked = |text: &str| signature.len() > 8 && text.contains(signature);
        assert!(!leaked(&format!("{verdict:?}{noted:?}")), "the signature leaked");
        let identity = verdict.as_ref().ok().and_then(Option::as_ref).map(|found| (*found.user).clone());
        AuthnOutcome { verdict: describe(&verdict), noted, identity }
    }
}

fn describe(verdict: &AuthnVerdict) -> String {
    match verdict {
        Ok(Some(found)) => {
            let audiences: Vec<_> = found.audiences.iter().map(|audience| audience.0.as_str()).collect();
            format!("{} for {audiences:?}", found.user.name)
        }
        Ok(None) => "no opinion".to_owned(),
        Err(AuthnError::Unavailable(text)) => format!("unavailable: {text}"),
        Err(AuthnError::Invalid(text)) => text.clone(),
        Err(other) => panic!("{other:?}"),
    }
}
