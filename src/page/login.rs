//! The authorization code flow with PKCE: RFC 6749, section 4.1, RFC 7636 and OpenID Connect Core 1.0, section 3.1.
//!
//! What a login must remember (state, nonce and PKCE verifier) is sealed in a cookie of the browser that began it. The
//! code of a redirect is exchanged only if the redirect has the state of that cookie. Only such redirects with a code count
//! for the limits: whoever visits `/sign-in`, or comes back with an error, costs the provider nothing, and must not keep
//! others from logging in.
// threat: page-forged-callback

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::Bytes;
use http::header::{LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use openidconnect::PkceCodeVerifier;
use openidconnect::url::form_urlencoded;
use portcullis_openid::SecretText;
use portcullis_openid::error::{LoginError, ProviderRefusal};
use portcullis_openid::id_token::{self, ExpectedIdToken, IdTokenError};
use portcullis_openid::provider::{LoginProvider, OpenIdClientSettings};
use portcullis_system::clock::UnixTime;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::problem::Problem;
use super::sealing::Purpose;
use super::session::Session;
use super::{Page, PageInForce, cookies};

pub(super) const CALLBACK: &str = "/callback";
/// How long a user may take at the provider.
const LOGIN_TIMEOUT: Duration = Duration::from_mins(10);
/// How long the provider may take for its discovery document, and for the code and the keys together.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(8);
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a signed-out user waits for the discovery document.
const END_SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a discovery document is used, and how long a provider without one is left alone: requests of anonymous
/// clients must not become a flood at the provider.
const DISCOVERY_LIFETIME: Duration = Duration::from_mins(5);
const FAILURE_LIFETIME: Duration = Duration::from_secs(2);
/// Logins of one browser that may be in progress, each in a tab. The oldest one gives way.
const MAX_LOGINS: usize = 4;
/// Cookies that one response deletes. A browser has more only if another host of the past has set them.
const MAX_DELETED: usize = 16;
/// The longest query of a redirect: codes have some hundred bytes.
const MAX_QUERY: usize = 8 << 10;

/// What a login that has begun remembers.
#[derive(Debug, Serialize, Deserialize)]
struct BegunLogin {
    state: SecretText,
    nonce: SecretText,
    verifier: SecretText,
    /// When it ends, in seconds since 1970.
    until: u64,
}

/// The provider, or why it has no usable discovery document.
type DiscoveryOutcome = Result<Arc<LoginProvider>, Arc<LoginError>>;

/// The last outcome, and until when it is used.
#[derive(Debug, Default)]
pub(super) struct ProviderCache(Mutex<Option<(Instant, DiscoveryOutcome)>>);

/// Why there is no provider now.
#[derive(Debug)]
enum ProviderUnknown {
    /// It does not answer.
    Silent,
    Failed(Arc<LoginError>),
}

impl From<ProviderUnknown> for Problem {
    fn from(cause: ProviderUnknown) -> Self {
        match cause {
            ProviderUnknown::Silent => Self::silent_provider(),
            ProviderUnknown::Failed(error) => Self::of_login(&error),
        }
    }
}

impl ProviderCache {
    /// The provider. One request fetches its document, others wait for it.
    // threat: page-silent-provider, page-provider-flood
    async fn get(&self, client: &OpenIdClientSettings) -> Result<Arc<LoginProvider>, ProviderUnknown> {
        let discovered = async {
            let mut known = self.0.lock().await;
            if let Some((until, outcome)) = &*known
                && Instant::now() < *until
            {
                return outcome.clone();
            }
            let outcome = LoginProvider::discover(client.clone()).await.map(Arc::new).map_err(Arc::new);
            let lifetime = if outcome.is_ok() { DISCOVERY_LIFETIME } else { FAILURE_LIFETIME };
            *known = Some((Instant::now() + lifetime, outcome.clone()));
            outcome
        };
        let discovered = timeout(DISCOVERY_TIMEOUT, discovered).await.map_err(|_| ProviderUnknown::Silent)?;
        discovered.map_err(ProviderUnknown::Failed)
    }
}

/// The page of the provider that ends its own session, if it has one and answers soon.
pub(super) async fn end_session_url(in_force: &PageInForce) -> Option<String> {
    let provider = timeout(END_SESSION_TIMEOUT, in_force.provider.get(&in_force.settings.client)).await;
    provider.ok()?.ok()?.end_session_url_back_to(&format!("{}/", in_force.settings.origin))
}

/// The redirect from the provider.
#[derive(Debug, Default, PartialEq, Eq)]
struct Callback {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    description: Option<String>,
    issuer: Option<String>,
}

impl Callback {
    /// Reads a query. `None`: it is too long, or has a parameter twice.
    // RFC 6749, section 3.1: parameters must not be included more than once
    fn read(query: &str) -> Option<Self> {
        if query.len() > MAX_QUERY {
            return None;
        }
        let mut callback = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let field = match &*name {
                "state" => &mut callback.state,
                "code" => &mut callback.code,
                "error" => &mut callback.error,
                "error_description" => &mut callback.description,
                "iss" => &mut callback.issuer,
                _ => continue,
            };
            if field.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        Some(callback)
    }
}

/// Sends the browser to the provider.
pub(super) async fn begin(
    page: &Page,
    in_force: &PageInForce,
    headers: &HeaderMap,
) -> Result<Response<Full<Bytes>>, Problem> {
    let provider = in_force.provider.get(&in_force.settings.client).await?;
    let now = page.clock().now();
    let until = now + LOGIN_TIMEOUT;
    let request = provider.authorization(&redirect(in_force)).map_err(|error| Problem::of_login(&error))?;
    let begun = BegunLogin {
        state: SecretText::new(request.state.secret()),
        nonce: SecretText::new(request.nonce.secret()),
        verifier: SecretText::new(request.verifier.secret()),
        until: until.as_secs(),
    };
    let sealed = in_force.key.seal(Purpose::Login, &in_force.scope, &begun, until)?;
    let name = cookies::login_name(begun.state.expose());
    let cookie = cookies::set(&name, &sealed, LOGIN_TIMEOUT.as_secs());
    Ok(see_other(request.url.as_str(), cookie.into_iter().chain(surplus_logins(in_force, headers, now))))
}

/// Deletes the logins of a browser that cannot be completed any more, and the oldest ones that leave no room for another.
fn surplus_logins(in_force: &PageInForce, headers: &HeaderMap, now: UnixTime) -> Vec<HeaderValue> {
    let mut begun: Vec<(Option<u64>, &str)> = cookies::logins(headers)
        .map(|(name, sealed)| {
            let begun: Option<BegunLogin> = in_force.key.open(Purpose::Login, &in_force.scope, sealed, now);
            (begun.map(|begun| begun.until), name)
        })
        .collect();
    // The newest ones first.
    begun.sort_by(|one, other| other.cmp(one));
    let surplus =
        begun.iter().enumerate().filter(|(place, (until, _))| until.is_none() || *place >= MAX_LOGINS - 1);
    surplus.filter_map(|(_, (_, name))| cookies::delete(name)).take(MAX_DELETED).collect()
}

/// Completes the login of a redirect.
pub(super) async fn complete(
    page: &Page,
    in_force: &PageInForce,
    client: IpAddr,
    query: &str,
    headers: &HeaderMap,
) -> Result<Response<Full<Bytes>>, Problem> {
    let now = page.clock().now();
    let callback = Callback::read(query).ok_or_else(Problem::unknown_login)?;
    let state = callback.state.as_deref().unwrap_or_default();
    let cookie = cookies::login_name(state);
    let sealed = cookies::get(headers, &cookie).ok_or_else(Problem::unknown_login)?;
    let begun: Option<BegunLogin> = in_force.key.open(Purpose::Login, &in_force.scope, sealed, now);
    let begun = begun.ok_or_else(Problem::unknown_login)?;
    // A wrong redirect changes nothing: the right one may still come.
    verify_slices_are_equal(state.as_bytes(), begun.state.expose().as_bytes())
        .map_err(|_| Problem::unknown_login())?;
    let exchanged = match accepted_code(in_force, callback).await {
        Ok((provider, code)) => {
            // Neither the cookie nor the code is used: the same redirect counts in a moment.
            let turn = page.rate.turn(client).await.map_err(|which| Problem::no_turn(which, query))?;
            let exchanged = exchange(page, in_force, &provider, &code, &begun).await;
            drop(turn);
            exchanged
        }
        Err(problem) => Err(problem),
    };
    let completed = match exchanged {
        Ok(session) => match session.cookies(in_force, now)? {
            Some(cookies) => Ok(see_other("/", cookies)),
            None => Err(Problem::too_large(session.token.expose().len())),
        },
        Err(problem) => Err(problem),
    };
    // The state counts once, whatever came of it.
    let mut response = completed.unwrap_or_else(|problem| page.refuse(&problem, client));
    response.headers_mut().extend(cookies::delete(&cookie).map(|cookie| (SET_COOKIE, cookie)));
    Ok(response)
}

/// The code of a redirect, and the provider that issued it. Takes no turn: nothing is asked but the discovery document, which
/// all share.
async fn accepted_code(
    in_force: &PageInForce,
    callback: Callback,
) -> Result<(Arc<LoginProvider>, String), Problem> {
    let settings = &in_force.settings.client;
    let provider = in_force.provider.get(settings).await?;
    // RFC 9207, section 2.4
    match callback.issuer.as_deref() {
        Some(issuer) if issuer != settings.issuer => return Err(Problem::other_issuer()),
        None if provider.announces_issuer() => return Err(Problem::other_issuer()),
        _ => {}
    }
    if let Some(code) = callback.error {
        return Err(Problem::of_refusal(&ProviderRefusal { code, description: callback.description }));
    }
    let code = callback.code.ok_or_else(Problem::unknown_login)?;
    Ok((provider, code))
}

/// Exchanges the code for an ID token, and verifies it.
async fn exchange(
    page: &Page,
    in_force: &PageInForce,
    provider: &LoginProvider,
    code: &str,
    begun: &BegunLogin,
) -> Result<Session, Problem> {
    let settings = &in_force.settings.client;
    let redirect = redirect(in_force);
    let verified = async {
        let verifier = PkceCodeVerifier::new(begun.verifier.expose().to_owned());
        let tokens = provider.exchange(code, &redirect, verifier).await?;
        let token = tokens.id_token.ok_or(IdTokenError::Missing)?;
        let now = page.clock().now();
        let expected = ExpectedIdToken {
            issuer: &settings.issuer,
            client_id: &settings.client_id,
            nonce: Some(begun.nonce.expose()),
            subject: None,
            now,
        };
        let claims = id_token::verify(token.expose(), &provider.keys().await?, &expected)?;
        Ok::<_, LoginError>((token, claims, now))
    };
    let verified = timeout(EXCHANGE_TIMEOUT, verified).await.map_err(|_| Problem::silent_provider())?;
    let (token, claims, now) = verified.map_err(|error| Problem::of_login(&error))?;
    Ok(Session::begin(&token, &claims, now)?)
}

fn redirect(in_force: &PageInForce) -> String {
    format!("{}{CALLBACK}", in_force.settings.origin)
}

/// Sends the browser elsewhere, with cookies.
pub(super) fn see_other(
    location: &str,
    cookies: impl IntoIterator<Item = HeaderValue>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    // Both are URLs without characters that a header cannot have.
    headers.extend(HeaderValue::try_from(location).ok().map(|location| (LOCATION, location)));
    headers.extend(cookies.into_iter().map(|cookie| (SET_COOKIE, cookie)));
    response
}

#[cfg(test)]
mod tests {
    use portcullis_http::client_tls::TrustedRoots;
    use portcullis_openid::provider::ScopeChoice;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_accepts_and_never_answers_ends_with_the_deadline_for_all_who_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = OpenIdClientSettings {
            issuer: format!("https://{}", listener.local_addr().unwrap()),
            client_id: "page".to_owned(),
            secret: None,
            roots: TrustedRoots::none(),
            scopes: ScopeChoice::These(Vec::new()),
            extra: Vec::new(),
            user: None,
        };
        let (cache, begun) = (ProviderCache::default(), Instant::now());
        let (one, other) = tokio::join!(cache.get(&client), cache.get(&client));
        assert_eq!(begun.elapsed(), DISCOVERY_TIMEOUT);
        for outcome in [one, other] {
            let problem = Problem::from(outcome.unwrap_err());
            assert_eq!(problem.status, StatusCode::GATEWAY_TIMEOUT);
        }
    }

    #[test]
    fn a_redirect_has_each_parameter_once() {
        let read = Callback::read("state=s&code=c%2B%3D&iss=https%3A%2F%2Fi.test&other=1&other=2").unwrap();
        assert_eq!(
            (read.state.as_deref(), read.code.as_deref(), read.issuer.as_deref()),
            (Some("s"), Some("c+="), Some("https://i.test"))
        );
        for twice in ["state=s&state=s", "code=a&code=b", "iss=a&iss=b", "error=a&error=a"] {
            assert_eq!(Callback::read(twice), None, "{twice}");
        }
        assert_eq!(Callback::read(&"x".repeat(MAX_QUERY + 1)), None);
    }
}
