//! Service-account tokens, by rows of upstream's own tables and beyond.

mod bound;
mod form;
mod keys;
mod legacy;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use prometheus::Registry;
use secrecy::SecretSlice;
use serde_json::{Value, json};

use super::super::jwt::tests::Signer;
use super::super::testing::audiences_of;
use super::super::{AuthnError, BearerToken, BoxFuture, TokenContext, Verdict};
use super::*;
use crate::authn::token_getter::{Found, Identity, LookupError, Secret, ServiceAccount};
use crate::authn::trace::{Noted, Outcome, Remarks};
use crate::clock::UnixTime;

/// 2023-11-14, a quarter past ten in the evening, UTC.
const NOW: i64 = 1_700_000_000;

/// What an API server has, and what it was asked for.
#[derive(Debug, Default)]
struct Cluster {
    accounts: BTreeMap<String, ServiceAccount>,
    secrets: BTreeMap<String, Secret>,
    pods: BTreeMap<String, Identity>,
    nodes: BTreeMap<String, Identity>,
    /// The kind of objects it does not answer for.
    away: &'static str,
    asked: Mutex<Vec<String>>,
    labels: Mutex<Vec<String>>,
}

impl Cluster {
    fn found<T: Clone>(&self, kind: &str, all: &BTreeMap<String, T>, key: &str) -> Found<T> {
        let found = all.get(key).cloned().map(Arc::new);
        self.asked.lock().unwrap().push(format!("{kind} {key}"));
        if self.away == kind { Err(LookupError(format!("cannot ask for {key}"))) } else { Ok(found) }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Lookup for Cluster {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Found<ServiceAccount>> {
        Box::pin(async move { self.found("serviceaccount", &self.accounts, &format!("{namespace}/{name}")) })
    }
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Found<Secret>> {
        Box::pin(async move { self.found("secret", &self.secrets, &format!("{namespace}/{name}")) })
    }
    fn bootstrap_secret<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found<Secret>> {
        self.secret("kube-system", name)
    }
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Found<Identity>> {
        Box::pin(async move { self.found("pod", &self.pods, &format!("{namespace}/{name}")) })
    }
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Found<Identity>> {
        Box::pin(async move { self.found("node", &self.nodes, name) })
    }
    fn label_secret(&self, namespace: &str, name: &str, label: &'static str, value: String) {
        self.labels.lock().unwrap().push(format!("{namespace}/{name} {label}={value}"));
    }
}

fn identity(uid: &str) -> Identity {
    Identity { uid: uid.to_owned(), deleted: None }
}

fn account(uid: &str) -> ServiceAccount {
    ServiceAccount { identity: identity(uid), secrets: Vec::new() }
}

fn seconds(seconds: i64) -> UnixTime {
    Duration::from_secs(seconds.try_into().unwrap())
}

/// `base` with further or other members.
fn with(mut base: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { panic!("{changes}") };
    for (key, value) in changes {
        base[key] = value;
    }
    base
}

/// Authenticators with a key of their own, and what they leave.
struct Bed {
    signer: Signer,
    cluster: Arc<Cluster>,
    audiences: Vec<Audience>,
    counters: Counters,
    now: UnixTime,
}

/// A verdict in words, and what was left beside it.
#[derive(Debug)]
struct Said {
    verdict: String,
    noted: Noted,
    identity: Option<crate::user::UserInfo>,
}

impl Bed {
    fn new(cluster: Cluster) -> Self {
        Self {
            signer: Signer::new("ES256"),
            cluster: Arc::new(cluster),
            audiences: audiences_of(&["api"]),
            counters: Counters::new(&Registry::new()).unwrap(),
            now: seconds(NOW),
        }
    }

    fn grounds(&self) -> Grounds {
        Grounds {
            keys: KeyRing::Fixed(Arc::new(vec![self.signer.public.clone()])),
            lookup: Arc::<Cluster>::clone(&self.cluster),
            audiences: self.audiences.clone(),
            counters: self.counters.clone(),
        }
    }

    fn bound(&self) -> BoundTokens {
        BoundTokens::new(vec!["iss".to_owned(), "https://other.example".to_owned()], self.grounds())
    }

    fn legacy(&self, lookup: bool) -> LegacyTokens {
        LegacyTokens::new(lookup, self.grounds())
    }

    fn token(&self, claims: &Value) -> String {
        self.signer.sign(&self.signer.header(), &claims.to_string())
    }

    fn ask(&self, authenticator: &dyn TokenAuthenticator, token: &str) -> Said {
        self.ask_for(authenticator, token, &[])
    }

    fn ask_for(&self, authenticator: &dyn TokenAuthenticator, token: &str, audiences: &[&str]) -> Said {
        let remarks = Remarks::traced();
        let audiences = audiences_of(audiences);
        let context = TokenContext { audiences: &audiences, now: self.now, remarks: &remarks };
        let bearer = BearerToken::new(token);
        let verdict =
            authenticator.authenticate(&bearer, context).now_or_never().expect("nothing to wait for");
        let noted = remarks.take();
        let last = noted.steps.last().unwrap_or_else(|| panic!("no step on the way to {verdict:?}"));
        let expected = match &verdict {
            Ok(Some(_)) => Outcome::Passed,
            Ok(None) => Outcome::NotApplicable,
            Err(_) => Outcome::Failed,
        };
        assert_eq!(last.outcome, expected, "{last:?}");
        assert_eq!(last.authenticator, authenticator.name());
        let signature = token.rsplit('.').next().unwrap_or_default();
        let leaked = |text: &str| signature.len() > 8 && text.contains(signature);
        assert!(!leaked(&format!("{verdict:?}{noted:?}")), "the signature is told");
        let identity = verdict.as_ref().ok().and_then(Option::as_ref).map(|found| (*found.user).clone());
        Said { verdict: told(&verdict), noted, identity }
    }
}

fn told(verdict: &Verdict) -> String {
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
