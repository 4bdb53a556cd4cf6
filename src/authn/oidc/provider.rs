//! An issuer: its configuration, found once, and its keys.
//!
//! Follows `NewProvider` of `github.com/coreos/go-oidc`. Of the configuration two members are read and the others may be
//! what they like, as there; the types of the `openidconnect` crate demand all that the standard does.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::fetch::Fetch;
use crate::authn::BoxFuture;
use crate::authn::jwt::key_set::{self, KeySet, KeySource};
use crate::go::json::Object;
use crate::go::quote::Quoted;
use crate::metrics::jwt::JwtIssuerMetrics;

/// Where a configuration is, below the issuer.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// The least time between two attempts to find the configuration.
pub(super) const RETRY: Duration = Duration::from_secs(10);

/// An issuer.
#[derive(Debug)]
pub(super) struct Provider {
    issuer: String,
    configuration: String,
    fetch: Arc<dyn Fetch>,
    metrics: Option<JwtIssuerMetrics>,
    keys: OnceLock<KeySet>,
    problem: Mutex<String>,
    last: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Deserialize)]
struct Configuration {
    issuer: Option<String>,
    jwks_uri: Option<String>,
}

impl Provider {
    /// An issuer of which nothing is known yet; the configuration is below it unless said otherwise.
    pub(super) fn new(
        issuer: String,
        discovery_url: Option<String>,
        fetch: Arc<dyn Fetch>,
        metrics: Option<JwtIssuerMetrics>,
    ) -> Self {
        let below = || format!("{}{WELL_KNOWN}", issuer.strip_suffix('/').unwrap_or(&issuer));
        let configuration = discovery_url.unwrap_or_else(below);
        let problem =
            Mutex::new(format!("oidc: authenticator for issuer {} is not initialized", Quoted(&issuer)));
        let (keys, last) = (OnceLock::new(), tokio::sync::Mutex::new(None));
        Self { issuer, configuration, fetch, metrics, keys, problem, last }
    }

    /// The value of `iss`.
    pub(super) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// How it is asked.
    pub(super) fn fetch(&self) -> Arc<dyn Fetch> {
        Arc::clone(&self.fetch)
    }

    /// The keys, once the configuration is known.
    pub(super) fn keys(&self) -> Option<&KeySet> {
        self.keys.get()
    }

    /// Why the configuration is not known.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = || self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.keys.get().is_none().then(problem)
    }

    /// Finds the configuration, if it is not known and was not looked for a moment ago.
    pub(super) async fn initialize(&self) -> Option<&KeySet> {
        let mut last = self.last.lock().await;
        let now = Instant::now();
        if self.keys.get().is_none() && last.is_none_or(|last| now.duration_since(last) >= RETRY) {
            // Why before: who gives up waiting must not make the next one ask at once.
            *last = Some(now);
            match self.discover().await {
                Ok(url) => {
                    let (issuer, fetch) = (self.issuer.clone(), Arc::clone(&self.fetch));
                    let source = Keys { issuer, url, fetch, metrics: self.metrics.clone() };
                    self.keys.get_or_init(|| KeySet::new(Box::new(source)));
                }
                Err(error) => {
                    tracing::error!(issuer = %self.issuer, %error, "cannot find the configuration of an issuer");
                    *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = error;
                }
            }
        }
        self.keys.get()
    }

    /// The address of the keys.
    async fn discover(&self) -> Result<String, String> {
        let answer = self.fetch.get(&self.configuration, None).await?;
        if answer.status != 200 {
            return Err(answer.status_line());
        }
        let Object(found): Object<Configuration> = serde_json::from_slice(&answer.body)
            .map_err(|error| format!("oidc: failed to decode provider discovery object: {error}"))?;
        let issuer = found.issuer.unwrap_or_default();
        if issuer != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {} got {}",
                Quoted(&self.issuer),
                Quoted(&issuer)
            ));
        }
        found
            .jwks_uri
            .filter(|url| !url.is_empty())
            .ok_or_else(|| "provider did not return JWKS URL".to_owned())
    }
}

/// The keys of an issuer, at their address.
#[derive(Debug)]
struct Keys {
    issuer: String,
    url: String,
    fetch: Arc<dyn Fetch>,
    metrics: Option<JwtIssuerMetrics>,
}

impl KeySource for Keys {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async {
            let fetched = match self.fetch.get(&self.url, None).await {
                Ok(answer) if answer.status == 200 => Ok(answer.body),
                Ok(answer) => Err(format!("oidc: get keys failed: {}", answer.status_line())),
                Err(error) => Err(format!("oidc: get keys failed {error}")),
            };
            if let Some(metrics) = &self.metrics {
                metrics.keys_fetched(fetched.as_deref().ok().filter(|json| key_set::read(json).is_ok()));
            }
            fetched
        })
    }

    fn name(&self) -> String {
        self.issuer.clone()
    }
}
