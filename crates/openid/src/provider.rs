//! The OpenID provider: its discovery document, and the requests of each flow.
//!
//! The transport is the gateway's own HTTPS client, which limits size and time and follows no redirect. [`answers`] reads what
//! the provider writes, and [`super::id_token`] verifies ID tokens.
// threat: malicious-login-provider

mod device;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use openidconnect::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use openidconnect::http::{Method, Request};
use openidconnect::url::{Url, form_urlencoded};
use openidconnect::{CsrfToken, Nonce, PkceCodeChallenge, PkceCodeVerifier};
use portcullis_http::client_tls::{ClientTls, TrustedRoots};
use portcullis_http::https_client::{HttpsClient, HttpsError, HttpsRequest, HttpsResponse};
use rustls::crypto::aws_lc_rs::default_provider;
use secrecy::{ExposeSecret, SecretString};

use super::answers::{self, FailedAnswer, ProviderAnswer, ProviderDocument, is_html};
pub use super::answers::{DeviceAuthorization, LoginTokens};
use super::error::{LoginError, shortened};
use super::secret_text::SecretText;
use crate::jwt::key_set;
use crate::jwt::keys::VerificationKey;

const OFFLINE: &str = "offline_access";
const OPENID: &str = "openid";
/// The longest name of a host.
// RFC 1035, section 2.3.4, without the length of the first label and the root
const MAX_HOST_BYTES: usize = 253;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// A client of a provider, as it is registered there.
#[derive(Debug, Clone)]
pub struct OpenIdClientSettings {
    /// The issuer.
    pub issuer: String,
    /// The client ID.
    pub client_id: String,
    /// The client secret, if the client has one.
    pub secret: Option<SecretString>,
    /// The CAs of the provider.
    pub roots: TrustedRoots,
    /// Without `openid`.
    pub scopes: ScopeChoice,
    /// Further parameters of the authorization and token requests.
    pub extra: Vec<(String, String)>,
    /// The account to log in with, as a hint.
    pub user: Option<String>,
}

/// The scopes beside `openid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopeChoice {
    /// `offline_access`, where the provider has it.
    Offline,
    /// These, which may be none.
    These(Vec<String>),
}

/// A provider that was discovered.
#[derive(Debug)]
pub struct LoginProvider {
    settings: OpenIdClientSettings,
    http: HttpsClient,
    document: ProviderDocument,
    /// `prompt` of the authorization requests.
    prompt: Option<String>,
    /// Whether the provider has refused `offline_access`.
    is_offline_refused: bool,
}

/// An authorization request, and the secrets that its redirect is verified by.
#[derive(Debug)]
pub struct AuthorizationRequest {
    /// The URL for the browser.
    pub url: Url,
    /// The state that the redirect must return.
    pub state: CsrfToken,
    /// The nonce that the ID token must have.
    pub nonce: Nonce,
    /// The verifier that proves the origin of the code, RFC 7636.
    pub verifier: PkceCodeVerifier,
}

impl LoginProvider {
    /// Fetches the discovery document.
    pub async fn discover(settings: OpenIdClientSettings) -> Result<Self, LoginError> {
        const DOING: &str = "read the provider's discovery document";
        let tls = ClientTls::trusting(settings.roots.clone());
        let http = HttpsClient::new(&tls, &Arc::new(default_provider()))
            .map_err(|error| LoginError::answer(DOING, error))?;
        let url = format!("{}/.well-known/openid-configuration", settings.issuer.trim_end_matches('/'));
        let body = fetch(&http, DOING, &url).await?;
        let document = ProviderDocument::parse(&body, &settings.issuer)
            .map_err(|problem| LoginError::answer(DOING, format!("{url}: {problem}")))?;
        Ok(Self { settings, http, document, prompt: None, is_offline_refused: false })
    }

    /// The same with a `prompt` for the authorization requests. Without one, the provider decides whether it asks.
    #[must_use]
    pub fn with_prompt(self, prompt: Option<&str>) -> Self {
        Self { prompt: prompt.map(str::to_owned), ..self }
    }

    /// The same without `offline_access`, which the provider has refused to this client or user.
    #[must_use]
    pub fn without_offline_access(self) -> Self {
        Self { is_offline_refused: true, ..self }
    }

    /// Whether requests ask for `offline_access`.
    pub fn asks_for_offline_access(&self) -> bool {
        self.scopes().contains(&OFFLINE)
    }

    /// Fetches the keys that sign ID tokens.
    pub async fn keys(&self) -> Result<Vec<VerificationKey>, LoginError> {
        const DOING: &str = "read the provider's keys";
        let url = self.document.jwks_uri.as_deref().ok_or(LoginError::NoEndpoint("jwks_uri"))?;
        endpoint(Some(url), "jwks_uri")?;
        let body = fetch(&self.http, DOING, url).await?;
        key_set::read(&body).map_err(|problem| LoginError::answer(DOING, shortened(&problem)))
    }

    /// Whether the provider has a device authorization endpoint, RFC 8628.
    pub fn has_device_flow(&self) -> bool {
        self.document.device_authorization_endpoint.is_some()
    }

    /// Whether the provider has a revocation endpoint, RFC 7009.
    pub fn has_revocation(&self) -> bool {
        self.document.revocation_endpoint.is_some()
    }

    /// Whether redirects name the issuer, RFC 9207.
    pub fn announces_issuer(&self) -> bool {
        self.document.has_issuer_in_redirects
    }

    /// The page that ends the browser's session. Without an ID token as a hint: a token in a URL ends in histories and
    /// process lists.
    // OpenID Connect RP-Initiated Logout 1.0, section 2
    pub fn end_session_url(&self) -> Option<String> {
        let mut url = Url::parse(self.document.end_session_endpoint.as_deref()?).ok()?;
        url.query_pairs_mut().append_pair("client_id", &self.settings.client_id);
        (url.scheme() == "https").then(|| url.into())
    }

    /// The page that ends the browser's session and then leads back, if the provider knows the URL.
    // OpenID Connect RP-Initiated Logout 1.0, section 3
    pub fn end_session_url_back_to(&self, back_to: &str) -> Option<String> {
        let mut url = Url::parse(&self.end_session_url()?).ok()?;
        url.query_pairs_mut().append_pair("post_logout_redirect_uri", back_to);
        Some(url.into())
    }

    /// The scopes beside `openid`.
    fn scopes(&self) -> Vec<&str> {
        let mut scopes: Vec<&str> = match &self.settings.scopes {
            ScopeChoice::Offline if self.document.scopes.iter().any(|scope| scope == OFFLINE) => {
                vec![OFFLINE]
            }
            ScopeChoice::Offline => Vec::new(),
            ScopeChoice::These(scopes) => scopes.iter().map(String::as_str).collect(),
        };
        scopes.retain(|scope| *scope != OFFLINE || !self.is_offline_refused);
        scopes
    }

    fn scopes_with_openid(&self) -> String {
        let mut scopes = vec![OPENID];
        scopes.extend(self.scopes());
        scopes.join(" ")
    }

    fn extra(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.extra.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn prompt(&self) -> Option<(&str, &str)> {
        self.prompt.as_deref().map(|prompt| ("prompt", prompt))
    }

    /// The URL for the browser.
    // OpenID Connect Core 1.0, section 3.1.2.1; RFC 7636, section 4.3
    pub fn authorization(&self, redirect: &str) -> Result<AuthorizationRequest, LoginError> {
        let mut url = endpoint(self.document.authorization_endpoint.as_deref(), "authorization_endpoint")?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (state, nonce) = (CsrfToken::new_random_len(32), Nonce::new_random_len(32));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("state", state.secret())
            .append_pair("code_challenge", challenge.as_str())
            .append_pair("code_challenge_method", challenge.method().as_str())
            .append_pair("redirect_uri", redirect)
            .append_pair("scope", &self.scopes_with_openid())
            .append_pair("nonce", nonce.secret())
            .extend_pairs(self.prompt())
            .extend_pairs(self.settings.user.as_deref().map(|user| ("login_hint", user)))
            .extend_pairs(self.extra());
        Ok(AuthorizationRequest { url, state, nonce, verifier })
    }

    /// Exchanges the code of a redirect.
    // RFC 6749, section 4.1.3; RFC 7636, section 4.5
    pub async fn exchange(
        &self,
        code: &str,
        redirect: &str,
        verifier: PkceCodeVerifier,
    ) -> Result<LoginTokens, LoginError> {
        const DOING: &str = "exchange the code of the login for tokens";
        let grant = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("code_verifier", verifier.secret()),
            ("redirect_uri", redirect),
        ];
        self.tokens(DOING, &grant, &[]).await?.map_err(|failed| LoginError::of_answer(DOING, failed))
    }

    /// Exchanges a refresh token.
    // RFC 6749, section 6
    pub async fn refresh(&self, token: &SecretText) -> Result<LoginTokens, LoginError> {
        const DOING: &str = "refresh the token";
        let grant = [("grant_type", "refresh_token"), ("refresh_token", token.expose())];
        self.tokens(DOING, &grant, &[]).await?.map_err(|failed| LoginError::of_refresh(DOING, failed))
    }

    /// A token for the client itself.
    // RFC 6749, section 4.4.2
    pub async fn client_credentials(&self) -> Result<LoginTokens, LoginError> {
        const DOING: &str = "get a token for the client";
        let scopes = match &self.settings.scopes {
            ScopeChoice::Offline => String::new(),
            ScopeChoice::These(scopes) => scopes.join(" "),
        };
        let scopes = [("scope", scopes.as_str())];
        let scopes = if scopes == [("scope", "")] { &[][..] } else { &scopes };
        let tokens = self.tokens(DOING, &[("grant_type", "client_credentials")], scopes).await?;
        tokens.map_err(|failed| LoginError::of_answer(DOING, failed))
    }

    /// Revokes a refresh token, RFC 7009.
    pub async fn revoke(&self, token: &str) -> Result<(), LoginError> {
        const DOING: &str = "revoke the login";
        let url = endpoint(self.document.revocation_endpoint.as_deref(), "revocation endpoint")?;
        let form = [("token", token), ("token_type_hint", "refresh_token")];
        let response =
            self.post(&url, form).await.map_err(|cause| LoginError::Http { doing: DOING, cause })?;
        match answers::success(answer(&response)) {
            Err(FailedAnswer::Error(error)) if self.is_too_public_to_revoke() && !error.is_temporary() => {
                Err(LoginError::PublicRevocation { page: self.end_session_url() })
            }
            outcome => outcome.map_err(|failed| LoginError::of_answer(DOING, failed)),
        }
    }

    /// Whether the provider says that it revokes tokens for clients with a secret only, and this client has none. Keycloak says
    /// so and revokes all the same: the request decides.
    // RFC 8414, section 2
    fn is_too_public_to_revoke(&self) -> bool {
        let methods = &self.document.revocation_methods;
        self.settings.secret.is_none()
            && !methods.is_empty()
            && !methods.iter().any(|method| method == "none")
    }

    /// The tokens of a grant.
    async fn tokens(
        &self,
        doing: &'static str,
        grant: &[(&str, &str)],
        scopes: &[(&str, &str)],
    ) -> Result<Result<LoginTokens, FailedAnswer>, LoginError> {
        let url = endpoint(self.document.token_endpoint.as_deref(), "token_endpoint")?;
        let form = grant.iter().chain(scopes).copied().chain(self.extra());
        let response = self.post(&url, form).await.map_err(|cause| LoginError::Http { doing, cause })?;
        Ok(answers::tokens(answer(&response)))
    }

    /// The body of a request, and its `Authorization`: the client authenticates in one or the other.
    // RFC 6749, section 2.3.1
    fn authenticated<'a>(
        &self,
        form: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(String, Option<HeaderValue>), HttpsError> {
        let mut body = form_urlencoded::Serializer::new(String::new());
        let (id, secret) = (&self.settings.client_id, self.settings.secret.as_ref());
        let header = match secret.map(ExposeSecret::expose_secret) {
            Some(secret) if !self.has_secret_in_form() => Some(basic(id, secret)?),
            secret => {
                body.append_pair("client_id", id)
                    .extend_pairs(secret.map(|secret| ("client_secret", secret)));
                None
            }
        };
        body.extend_pairs(form);
        Ok((body.finish(), header))
    }

    /// Posts a form as this client.
    // RFC 6749, section 2.3.1
    async fn post<'a>(
        &'a self,
        url: &Url,
        form: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<HttpsResponse, HttpsError> {
        let (body, header) = self.authenticated(form)?;
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.as_str().parse().map_err(|_| HttpsError::Url("it is not a URL"))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, JSON);
        headers.insert(CONTENT_TYPE, FORM);
        headers.extend(header.map(|header| (AUTHORIZATION, header)));
        self.http.send_http(request).await
    }

    /// Whether the provider takes the client secret in the form alone.
    fn has_secret_in_form(&self) -> bool {
        let has = |method: &str| self.document.token_methods.iter().any(|known| known == method);
        // OpenID Connect Discovery 1.0: absent means client_secret_basic
        has("client_secret_post") && !has("client_secret_basic")
    }
}

/// The header with a client's secret.
fn basic(id: &str, secret: &str) -> Result<HeaderValue, HttpsError> {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let credentials = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let header = HeaderValue::try_from(format!("Basic {credentials}"));
    let mut header = header.map_err(|_| HttpsError::Bearer)?;
    header.set_sensitive(true);
    Ok(header)
}

/// A response, for the reader of answers.
fn answer(response: &HttpsResponse) -> ProviderAnswer<'_> {
    let content_type = response.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    ProviderAnswer { status: response.status, content_type, body: &response.body }
}

fn endpoint(url: Option<&str>, name: &'static str) -> Result<Url, LoginError> {
    let url = Url::parse(url.ok_or(LoginError::NoEndpoint(name))?);
    // Errors name the host: what is longer than any name of a host is none.
    let has_host = |url: &Url| url.host_str().is_some_and(|host| (1..=MAX_HOST_BYTES).contains(&host.len()));
    let url = url.ok().filter(|url| url.scheme() == "https" && has_host(url));
    url.ok_or_else(|| LoginError::answer("use the provider", format!("its {name} is not an https:// URL")))
}

async fn fetch(http: &HttpsClient, doing: &'static str, url: &str) -> Result<Bytes, LoginError> {
    let response =
        http.send(HttpsRequest::get(url)).await.map_err(|cause| LoginError::Http { doing, cause })?;
    if !response.status.is_success() {
        let problem = format!("{} answers {}; check --issuer", shortened(url), response.status);
        return Err(LoginError::answer(doing, problem));
    }
    if is_html(&response.body) {
        return Err(LoginError::answer(
            doing,
            format!(
                "{} answers with a web page instead of JSON; check --issuer, and proxies on the way",
                shortened(url)
            ),
        ));
    }
    Ok(response.body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_with_the_name_of_a_host() {
        let long = format!("https://{}.test/", "x".repeat(500));
        for (url, is_one) in [
            ("https://issuer.test/token", true),
            ("https://[::1]:8443/token", true),
            ("http://issuer.test/token", false),
            ("issuer.test", false),
            (long.as_str(), false),
        ] {
            let found = endpoint(Some(url), "token_endpoint");
            assert_eq!(found.is_ok(), is_one, "{url}");
            assert!(found.err().is_none_or(|error| error.to_string().len() < 200), "{url}");
        }
    }
}
