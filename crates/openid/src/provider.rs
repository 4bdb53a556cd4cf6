//! The OpenID provider: its discovery document, and the requests of each flow.
//!
//! `openidconnect` builds the requests and reads the answers; the transport is the gateway's own HTTPS client, which
//! limits size and time and follows no redirect. ID tokens are not given to the library: [`super::id_token`] verifies
//! them.
// threat: malicious-login-provider

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreAuthenticationFlow, CoreDeviceAuthorizationResponse,
    CoreErrorResponseType, CoreGenderClaim, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm,
    CoreJwsSigningAlgorithm, CoreRevocableToken, CoreRevocationErrorResponse, CoreTokenIntrospectionResponse,
    CoreTokenType,
};
use openidconnect::url::Url;
use openidconnect::{
    AccessToken, AsyncHttpClient, AuthType, AuthUrl, AuthorizationCode, Client, ClientId, ClientSecret,
    CsrfToken, DeviceAuthorizationUrl, EmptyAdditionalClaims, EndpointNotSet, EndpointSet, HttpRequest,
    HttpResponse, IdToken, IssuerUrl, JsonWebKeySet, LoginHint, Nonce, OAuth2TokenResponse,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RefreshToken, RequestTokenError,
    RevocationErrorResponseType, RevocationUrl, Scope, StandardErrorResponse, TokenResponse, TokenUrl,
};
use portcullis_http::client_tls::{ClientTls, TrustedRoots};
use portcullis_http::https_client::{HttpsClient, HttpsError, HttpsRequest};
use rustls::crypto::aws_lc_rs::default_provider;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::error::{LoginError, ProviderRefusal, is_html, shortened};
use super::secret_text::SecretText;
use crate::jwt::key_set;
use crate::jwt::keys::VerificationKey;

const OFFLINE: &str = "offline_access";
/// The longest interval that a provider may ask for.
const MAX_DEVICE_INTERVAL: Duration = Duration::from_hours(1);
/// The shortest and the longest interval between two requests with a device code, whatever the provider says.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_mins(1);

/// The discovery document, as far as a login needs it.
// OpenID Connect Discovery 1.0, section 3; RFC 8414, section 2; RFC 9207, section 3
#[derive(Debug, Deserialize)]
struct ProviderDocument {
    issuer: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    jwks_uri: Option<String>,
    device_authorization_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
    end_session_endpoint: Option<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

impl ProviderDocument {
    /// Reads the document of an issuer.
    fn parse(json: &[u8], issuer: &str) -> Result<Self, String> {
        let document: Self = serde_json::from_slice(json).map_err(|error| shortened(&error.to_string()))?;
        // OpenID Connect Discovery 1.0, section 4.3: exactly equal
        if document.issuer != issuer {
            let other = shortened(&document.issuer);
            return Err(format!("it is of the issuer {other:?}, not {issuer:?}; check --issuer"));
        }
        Ok(document)
    }
}

/// A token response. The library's own reads the ID token's claims more strictly than kube-apiserver does.
// RFC 6749, section 5.1
#[derive(Clone, Serialize, Deserialize)]
pub struct LoginTokens {
    access_token: AccessToken,
    token_type: BearerType,
    #[serde(default)]
    expires_in: Option<u64>,
    #[serde(default)]
    refresh_token: Option<RefreshToken>,
    /// The ID token, unverified.
    #[serde(default)]
    pub id_token: Option<SecretText>,
}

/// `token_type`: any case of `Bearer`; another type could not be used as a bearer token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct BearerType(CoreTokenType);

impl TryFrom<String> for BearerType {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if name.eq_ignore_ascii_case("bearer") {
            Ok(Self(CoreTokenType::Bearer))
        } else {
            Err("not a bearer token")
        }
    }
}

impl From<BearerType> for String {
    fn from(_: BearerType) -> Self {
        "Bearer".to_owned()
    }
}

impl std::fmt::Debug for LoginTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoginTokens")
    }
}

impl OAuth2TokenResponse for LoginTokens {
    type TokenType = CoreTokenType;

    fn access_token(&self) -> &AccessToken {
        &self.access_token
    }

    fn token_type(&self) -> &CoreTokenType {
        &self.token_type.0
    }

    fn expires_in(&self) -> Option<Duration> {
        self.expires_in.map(Duration::from_secs)
    }

    fn refresh_token(&self) -> Option<&RefreshToken> {
        self.refresh_token.as_ref()
    }

    fn scopes(&self) -> Option<&Vec<Scope>> {
        None
    }
}

impl
    TokenResponse<
        EmptyAdditionalClaims,
        CoreGenderClaim,
        CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm,
    > for LoginTokens
{
    /// Never given to the library.
    fn id_token(
        &self,
    ) -> Option<
        &IdToken<
            EmptyAdditionalClaims,
            CoreGenderClaim,
            CoreJweContentEncryptionAlgorithm,
            CoreJwsSigningAlgorithm,
        >,
    > {
        None
    }
}

type OpenIdClient<Auth, Device, Revocation> = Client<
    EmptyAdditionalClaims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    LoginTokens,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    Auth,
    Device,
    EndpointNotSet,
    Revocation,
    EndpointSet,
    EndpointNotSet,
>;

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

impl ScopeChoice {
    fn chosen(&self) -> &[String] {
        match self {
            Self::Offline => &[],
            Self::These(scopes) => scopes,
        }
    }
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
        Ok(Self { settings, http, document })
    }

    /// Fetches the keys that sign ID tokens.
    pub async fn keys(&self) -> Result<Vec<VerificationKey>, LoginError> {
        const DOING: &str = "read the provider's keys";
        let url = self.document.jwks_uri.as_deref().ok_or(LoginError::NoEndpoint("jwks_uri"))?;
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
        self.document.authorization_response_iss_parameter_supported
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

    /// Without `openid`, which the library adds where it belongs.
    fn scopes(&self) -> Vec<Scope> {
        let scopes: Vec<&String> = match &self.settings.scopes {
            ScopeChoice::Offline => {
                self.document.scopes_supported.iter().filter(|scope| *scope == OFFLINE).take(1).collect()
            }
            ScopeChoice::These(scopes) => scopes.iter().collect(),
        };
        scopes.into_iter().cloned().map(Scope::new).collect()
    }

    fn client(&self) -> Result<OpenIdClient<EndpointNotSet, EndpointNotSet, EndpointNotSet>, LoginError> {
        let issuer = IssuerUrl::new(self.settings.issuer.clone())
            .map_err(|_| LoginError::usage("--issuer: must be a URL"))?;
        let url = endpoint(self.document.token_endpoint.as_deref(), "token_endpoint")?;
        let id = ClientId::new(self.settings.client_id.clone());
        let client = Client::new(id, issuer, JsonWebKeySet::default()).set_token_uri(TokenUrl::from_url(url));
        let Some(secret) = &self.settings.secret else { return Ok(client) };
        let methods = &self.document.token_endpoint_auth_methods_supported;
        let has = |method: &str| methods.iter().any(|known| known == method);
        // OpenID Connect Discovery 1.0: absent means client_secret_basic
        let only_post = has("client_secret_post") && !has("client_secret_basic");
        Ok(client
            .set_client_secret(ClientSecret::new(secret.expose_secret().to_owned()))
            .set_auth_type(if only_post { AuthType::RequestBody } else { AuthType::BasicAuth }))
    }

    /// The URL for the browser.
    pub fn authorization(&self, redirect: &str) -> Result<AuthorizationRequest, LoginError> {
        let url = endpoint(self.document.authorization_endpoint.as_deref(), "authorization_endpoint")?;
        let redirect = RedirectUrl::new(redirect.to_owned()).map_err(LoginError::other)?;
        let client = self.client()?.set_auth_uri(AuthUrl::from_url(url)).set_redirect_uri(redirect);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let random = || CsrfToken::new_random_len(32);
        let nonce = || Nonce::new_random_len(32);
        let scopes = self.scopes();
        let mut request = client
            .authorize_url(CoreAuthenticationFlow::AuthorizationCode, random, nonce)
            .set_pkce_challenge(challenge);
        if scopes.iter().any(|scope| scope.as_str() == OFFLINE) {
            // OpenID Connect Core 1.0, section 11: no refresh token without it
            request = request.add_prompt(CoreAuthPrompt::Consent);
        }
        if let Some(user) = &self.settings.user {
            request = request.set_login_hint(LoginHint::new(user.clone()));
        }
        for (name, value) in &self.settings.extra {
            request = request.add_extra_param(name.as_str(), value.as_str());
        }
        let (url, state, nonce) = request.add_scopes(scopes).url();
        Ok(AuthorizationRequest { url, state, nonce, verifier })
    }

    /// Exchanges the code of a redirect.
    pub async fn exchange(
        &self,
        code: &str,
        redirect: &str,
        verifier: PkceCodeVerifier,
    ) -> Result<LoginTokens, LoginError> {
        let redirect = RedirectUrl::new(redirect.to_owned()).map_err(LoginError::other)?;
        let client = self.client()?.set_redirect_uri(redirect);
        let mut request =
            client.exchange_code(AuthorizationCode::new(code.to_owned())).set_pkce_verifier(verifier);
        for (name, value) in &self.settings.extra {
            request = request.add_extra_param(name.as_str(), value.as_str());
        }
        let tokens = request.request_async(self).await;
        tokens.map_err(|error| LoginError::of_token("exchange the code of the login for tokens", error))
    }

    /// Exchanges a refresh token.
    pub async fn refresh(&self, token: &SecretText) -> Result<LoginTokens, LoginError> {
        let (client, token) = (self.client()?, RefreshToken::new(token.expose().to_owned()));
        let mut request = client.exchange_refresh_token(&token);
        for (name, value) in &self.settings.extra {
            request = request.add_extra_param(name.as_str(), value.as_str());
        }
        let tokens = request.request_async(self).await;
        tokens.map_err(|error| LoginError::of_token("refresh the token", error))
    }

    /// A token for the client itself.
    pub async fn client_credentials(&self) -> Result<LoginTokens, LoginError> {
        let client = self.client()?.disable_openid_scope();
        let scopes = self.settings.scopes.chosen().iter().cloned().map(Scope::new);
        let mut request = client.exchange_client_credentials().add_scopes(scopes);
        for (name, value) in &self.settings.extra {
            request = request.add_extra_param(name.as_str(), value.as_str());
        }
        let tokens = request.request_async(self).await;
        tokens.map_err(|error| LoginError::of_token("get a token for the client", error))
    }

    /// A code that the user enters on another device. `show` shows it; the call ends when it was entered or expires.
    // RFC 8628
    pub async fn device(
        &self,
        limit: Duration,
        show: impl FnOnce(&CoreDeviceAuthorizationResponse),
    ) -> Result<LoginTokens, LoginError> {
        let url = endpoint(
            self.document.device_authorization_endpoint.as_deref(),
            "device authorization endpoint",
        )?;
        let client = self.client()?.set_device_authorization_url(DeviceAuthorizationUrl::from_url(url));
        let mut request = client.exchange_device_code().add_scopes(self.scopes());
        if self.scopes().iter().any(|scope| scope.as_str() == OFFLINE) {
            request = request.add_extra_param("prompt", "consent");
        }
        for (name, value) in &self.settings.extra {
            request = request.add_extra_param(name.as_str(), value.as_str());
        }
        let device: Result<CoreDeviceAuthorizationResponse, _> = request.request_async(self).await;
        let device = device.map_err(|error| LoginError::of_token("get a code for the login", error))?;
        // oauth2 adds to it.
        if device.interval() > MAX_DEVICE_INTERVAL {
            return Err(LoginError::answer("get a code for the login", "its interval is too long"));
        }
        show(&device);
        let sleep =
            |interval: Duration| tokio::time::sleep(interval.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL));
        let request = client.exchange_device_access_token(&device);
        let tokens = request.request_async(self, sleep, Some(limit)).await;
        tokens.map_err(|error| LoginError::of_device("wait for the login", error))
    }

    /// Revokes a refresh token, RFC 7009.
    pub async fn revoke(&self, token: &str) -> Result<(), LoginError> {
        const DOING: &str = "revoke the login";
        let url = endpoint(self.document.revocation_endpoint.as_deref(), "revocation endpoint")?;
        let client = self.client()?.set_revocation_url(RevocationUrl::from_url(url));
        let token = CoreRevocableToken::RefreshToken(RefreshToken::new(token.to_owned()));
        let request = client.revoke_token(token).map_err(LoginError::other)?;
        let revoked = request.request_async(self).await;
        revoked.map_err(|error| match error {
            RequestTokenError::ServerResponse(response) => LoginError::Refused(ProviderRefusal {
                code: match response.error() {
                    RevocationErrorResponseType::UnsupportedTokenType => "unsupported_token_type".to_owned(),
                    RevocationErrorResponseType::Basic(code) => code.as_ref().to_owned(),
                },
                description: response.error_description().cloned(),
            }),
            RequestTokenError::Request(cause) => LoginError::Http { doing: DOING, cause },
            RequestTokenError::Parse(..) | RequestTokenError::Other(_) => {
                LoginError::answer(DOING, "the provider's answer is not as RFC 7009 demands")
            }
        })
    }
}

/// Sends the requests of the library.
impl<'c> AsyncHttpClient<'c> for LoginProvider {
    type Error = HttpsError;
    type Future = BoxFuture<'c, Result<HttpResponse, HttpsError>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        async move {
            let response = self.http.send_http(request.map(Bytes::from)).await?;
            let mut answer = HttpResponse::new(response.body.to_vec());
            *answer.status_mut() = response.status;
            *answer.headers_mut() = response.headers;
            Ok(answer)
        }
        .boxed()
    }
}

fn endpoint(url: Option<&str>, name: &'static str) -> Result<Url, LoginError> {
    let url = Url::parse(url.ok_or(LoginError::NoEndpoint(name))?);
    let url = url.ok().filter(|url| url.scheme() == "https" && url.has_host());
    url.ok_or_else(|| LoginError::answer("use the provider", format!("its {name} is not an https:// URL")))
}

async fn fetch(http: &HttpsClient, doing: &'static str, url: &str) -> Result<Bytes, LoginError> {
    let response =
        http.send(HttpsRequest::get(url)).await.map_err(|cause| LoginError::Http { doing, cause })?;
    if !response.status.is_success() {
        return Err(LoginError::answer(doing, format!("{url} answers {}; check --issuer", response.status)));
    }
    if is_html(&response.body) {
        return Err(LoginError::answer(
            doing,
            format!("{url} answers with a web page instead of JSON; check --issuer, and proxies on the way"),
        ));
    }
    Ok(response.body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_provider_writes_is_harmless_and_short_in_errors() {
        let long = format!("\u{1b}[2J{}", "x".repeat(500_000));
        for document in [
            serde_json::json!({"issuer": long}),
            serde_json::json!({"issuer": "https://issuer.test", "scopes_supported": long}),
            serde_json::json!({"issuer": "https://issuer.test", "jwks_uri": {long: 1}}),
        ] {
            let json = document.to_string();
            let problem = ProviderDocument::parse(json.as_bytes(), "https://issuer.test").unwrap_err();
            assert!(!problem.contains('\u{1b}') && problem.len() < 1000, "{} bytes", problem.len());
        }
    }
}
