//! OIDC discovery of an issuer, and its keys.
//!
//! Follows `NewProvider` of `github.com/coreos/go-oidc`, which reads two members of the discovery document and ignores
//! the others; the types of the `openidconnect` crate would require every member that the standard does.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use http::Uri;
use portcullis_go::json::Object;
use portcullis_go::quote::Quoted;
use portcullis_openid::jwt::key_set::{self, JwksSource, KeySet};
use portcullis_system::sync::lock;
use serde::Deserialize;
use tokio::time::Instant;

use super::fetch::DocumentFetcher;
use crate::authn::BoxFuture;
use crate::metrics::jwt::JwtIssuerMetrics;

/// Path of the discovery document below the issuer URL.
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// Minimum time between two discovery attempts.
pub(super) const DISCOVERY_BACKOFF: Duration = Duration::from_secs(10);

/// An issuer and, after discovery, its keys.
#[derive(Debug)]
pub(super) struct OidcProvider {
    issuer: String,
    configuration: String,
    fetch: Arc<dyn DocumentFetcher>,
    metrics: Option<JwtIssuerMetrics>,
    keys: OnceLock<KeySet>,
    problem: Mutex<String>,
    last: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: Option<String>,
    jwks_uri: Option<String>,
}

impl OidcProvider {
    /// An issuer before discovery. `discovery_url` overrides the default below the issuer URL.
    pub(super) fn new(
        issuer: String,
        discovery_url: Option<String>,
        fetch: Arc<dyn DocumentFetcher>,
        metrics: Option<JwtIssuerMetrics>,
    ) -> Self {
        let below = || format!("{}{DISCOVERY_PATH}", issuer.strip_suffix('/').unwrap_or(&issuer));
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

    /// The HTTP client.
    pub(super) fn fetch(&self) -> Arc<dyn DocumentFetcher> {
        Arc::clone(&self.fetch)
    }

    /// The keys, once discovery has succeeded.
    pub(super) fn keys(&self) -> Option<&KeySet> {
        self.keys.get()
    }

    /// The last discovery error, until discovery succeeds.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = || lock(&self.problem).clone();
        self.keys.get().is_none().then(problem)
    }

    /// Attempts discovery unless it has succeeded or the last attempt is within [`DISCOVERY_BACKOFF`].
    pub(super) async fn initialize(&self) -> Option<&KeySet> {
        let mut last = self.last.lock().await;
        let now = Instant::now();
        if self.keys.get().is_none() && last.is_none_or(|last| now.duration_since(last) >= DISCOVERY_BACKOFF)
        {
            // Recorded before the attempt: a cancelled caller must not let the next one retry at once.
            *last = Some(now);
            match self.discover().await {
                Ok(url) => {
                    let (issuer, fetch) = (self.issuer.clone(), Arc::clone(&self.fetch));
                    let source = HttpJwksSource { issuer, url, fetch, metrics: self.metrics.clone() };
                    self.keys.get_or_init(|| KeySet::new(Box::new(source)));
                }
                Err(error) => {
                    tracing::error!(issuer = %self.issuer, %error, "OIDC discovery failed");
                    *lock(&self.problem) = error;
                }
            }
        }
        self.keys.get()
    }

    /// Fetches the discovery document and returns `jwks_uri`.
    async fn discover(&self) -> Result<String, String> {
        let answer = self.fetch.get(&self.configuration, None).await?;
        if answer.status != 200 {
            return Err(answer.status_line());
        }
        let Object(found): Object<DiscoveryDocument> = serde_json::from_slice(&answer.body)
            .map_err(|error| format!("oidc: failed to decode provider discovery object: {error}"))?;
        let issuer = found.issuer.unwrap_or_default();
        if issuer != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {} got {}",
                Quoted(&self.issuer),
                Quoted(&issuer)
            ));
        }
        let url = found.jwks_uri.filter(|url| !url.is_empty());
        let url = url.ok_or_else(|| "provider did not return JWKS URL".to_owned())?;
        Ok(by_tls(&url, [&self.issuer, &self.configuration]).unwrap_or(url))
    }
}

/// The same path of the issuer by TLS, for an `http://` URL with the host of one of these `https://` URLs: providers behind
/// a proxy that ends TLS list such URLs. Keys that come without TLS would be those of anyone on the way.
fn by_tls(url: &str, own: [&str; 2]) -> Option<String> {
    let url: Uri = url.parse().ok().filter(|url: &Uri| url.scheme_str() == Some("http"))?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    own.into_iter().find_map(|own| {
        let own: Uri = own.parse().ok()?;
        let is_same = own.scheme_str() == Some("https") && own.host()?.eq_ignore_ascii_case(url.host()?);
        if !is_same {
            return None;
        }
        Some(format!("https://{}{path}", own.authority()?))
    })
}

/// Fetches the keys of an issuer from its `jwks_uri`.
#[derive(Debug)]
struct HttpJwksSource {
    issuer: String,
    url: String,
    fetch: Arc<dyn DocumentFetcher>,
    metrics: Option<JwtIssuerMetrics>,
}

impl JwksSource for HttpJwksSource {
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
