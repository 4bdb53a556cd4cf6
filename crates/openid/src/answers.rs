//! What providers write: tokens, device codes, errors and discovery documents.
//!
//! Providers deviate from the standards in what most clients do not notice: numbers as text, a missing `token_type`, `null`
//! for an absent member, a form instead of JSON. This reader accepts what golang.org/x/oauth2 and go-oidc accept, with which
//! kubectl's other login plugins are built. It decides nothing: who is logged in, the verified ID token says.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use openidconnect::http::StatusCode;
use openidconnect::url::form_urlencoded;
use portcullis_go::json::JsonObject;
use serde_json::{Map, Value};

use crate::error::{ProviderRefusal, shortened, with_words};
use crate::secret_text::SecretText;

/// The interval between two requests with a device code, if the provider names none.
// RFC 8628, section 3.2
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// The longest lifetime that is read; longer ones are cut to it.
// x/oauth2: internal/token.go, expirationTime.UnmarshalJSON
const MAX_SECONDS: u64 = 0x7fff_ffff;

/// An answer of an endpoint of the provider.
#[derive(Debug, Clone, Copy)]
pub struct ProviderAnswer<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its `Content-Type`, if it has one.
    pub content_type: Option<&'a str>,
    /// Its body.
    pub body: &'a [u8],
}

/// Why an answer does not have what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailedAnswer {
    /// The provider says that it refuses, by the status or by an error code.
    Error(ErrorAnswer),
    /// The answer is a web page.
    WebPage,
    /// The answer is not as the standard demands; the member that is absent or of another type.
    Unreadable(&'static str),
}

impl fmt::Display for FailedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(answer) => answer.fmt(f),
            Self::WebPage => f.write_str(
                "the provider answers with a web page instead of JSON; check --issuer, and proxies on the way",
            ),
            Self::Unreadable(member) => {
                write!(f, "the provider's answer is not as OAuth 2.0 demands (field {member})")
            }
        }
    }
}

/// An answer that is an error.
// RFC 6749, section 5.2
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorAnswer {
    /// The status.
    pub status: StatusCode,
    /// The error code and description, if the body has them.
    pub refusal: Option<ProviderRefusal>,
    is_page: bool,
}

impl ErrorAnswer {
    /// An error answer of a test.
    #[cfg(test)]
    pub(crate) fn new(status: u16, refusal: Option<ProviderRefusal>) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self { status, refusal, is_page: false }
    }

    /// Whether the same request may succeed later. The code alone does not decide: Dex answers its own failures with 500 and
    /// `invalid_request`.
    pub fn is_temporary(&self) -> bool {
        let is_code = self.refusal.as_ref().is_some_and(ProviderRefusal::is_temporary);
        // Request Timeout, Too Early, Too Many Requests
        is_code || self.status.is_server_error() || matches!(self.status.as_u16(), 408 | 425 | 429)
    }

    /// Whether there is nothing at this URL that speaks OAuth.
    pub(crate) fn is_absent(&self) -> bool {
        self.refusal.is_none() && matches!(self.status.as_u16(), 404 | 405 | 410 | 501)
    }

    /// Whether the error code is this one.
    pub fn is(&self, code: &str) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.code == code)
    }
}

impl fmt::Display for ErrorAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("the provider answers {}", self.status);
        match &self.refusal {
            Some(refusal) => f.write_str(&with_words(&text, refusal)),
            None if self.is_page => write!(f, "{text} with a web page"),
            None => f.write_str(&text),
        }
    }
}

/// The tokens of an answer, none of them verified.
// RFC 6749, section 5.1
#[derive(Clone)]
pub struct LoginTokens {
    access_token: SecretText,
    token_type: Option<String>,
    /// The lifetime of the access token.
    pub expires_in: Option<Duration>,
    /// The refresh token.
    pub refresh_token: Option<SecretText>,
    /// The ID token, unverified.
    pub id_token: Option<SecretText>,
}

impl LoginTokens {
    /// The access token; `None` if it is of another type than `Bearer`, which no API server accepts.
    pub fn bearer_token(&self) -> Option<&SecretText> {
        let kind = self.token_type.as_deref().unwrap_or("bearer");
        kind.eq_ignore_ascii_case("bearer").then_some(&self.access_token)
    }
}

impl fmt::Debug for LoginTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginTokens")
    }
}

/// A code that the user enters on another device.
// RFC 8628, section 3.2
#[derive(Debug, Clone)]
pub struct DeviceAuthorization {
    pub(crate) device_code: SecretText,
    /// The code to enter.
    pub user_code: String,
    /// Where to enter it.
    pub verification_uri: String,
    /// The same with the code in it.
    pub verification_uri_complete: Option<String>,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) interval: Duration,
}

/// The discovery document, as far as a login needs it.
// OpenID Connect Discovery 1.0, section 3; RFC 8414, section 2; RFC 9207, section 3
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderDocument {
    /// `authorization_endpoint`
    pub authorization_endpoint: Option<String>,
    /// `token_endpoint`
    pub token_endpoint: Option<String>,
    /// `jwks_uri`
    pub jwks_uri: Option<String>,
    pub(crate) device_authorization_endpoint: Option<String>,
    pub(crate) revocation_endpoint: Option<String>,
    pub(crate) revocation_methods: Vec<String>,
    pub(crate) end_session_endpoint: Option<String>,
    pub(crate) scopes: Vec<String>,
    pub(crate) token_methods: Vec<String>,
    pub(crate) has_issuer_in_redirects: bool,
}

impl ProviderDocument {
    /// Reads the document of an issuer.
    // go-oidc: oidc.go, NewProvider
    pub fn parse(json: &[u8], issuer: &str) -> Result<Self, String> {
        let document = Members::parse(json)?;
        let text = |name| document.text(name).map_err(|name| format!("{name} is not a text"));
        let found = text("issuer")?.ok_or("it names no issuer")?;
        // OpenID Connect Discovery 1.0, section 4.3: exactly equal
        if found != issuer {
            let other = shortened(&found);
            return Err(format!("it is of the issuer {other:?}, not {issuer:?}; check --issuer"));
        }
        Ok(Self {
            authorization_endpoint: text("authorization_endpoint")?,
            token_endpoint: text("token_endpoint")?,
            jwks_uri: text("jwks_uri")?,
            device_authorization_endpoint: document.optional_text("device_authorization_endpoint"),
            revocation_endpoint: document.optional_text("revocation_endpoint"),
            revocation_methods: document.texts("revocation_endpoint_auth_methods_supported"),
            end_session_endpoint: document.optional_text("end_session_endpoint"),
            scopes: document.texts("scopes_supported"),
            token_methods: document.texts("token_endpoint_auth_methods_supported"),
            has_issuer_in_redirects: document.is_true("authorization_response_iss_parameter_supported"),
        })
    }
}

/// Reads the answer of the token endpoint.
// x/oauth2: internal/token.go, doTokenRoundTrip
pub fn tokens(answer: ProviderAnswer<'_>) -> Result<LoginTokens, FailedAnswer> {
    let members = answer.members()?;
    let text = |name| members.text(name).map_err(FailedAnswer::Unreadable);
    let secret = |name| text(name).map(|text| text.as_deref().map(SecretText::new));
    Ok(LoginTokens {
        token_type: members.optional_text("token_type"),
        expires_in: members.seconds("expires_in").map(Duration::from_secs),
        refresh_token: secret("refresh_token")?,
        id_token: members.exact_text("id_token").map(SecretText::new),
        access_token: secret("access_token")?.ok_or(FailedAnswer::Unreadable("access_token"))?,
    })
}

/// Reads the answer of the device authorization endpoint.
// x/oauth2: deviceauth.go, DeviceAuthResponse.UnmarshalJSON
pub fn device_authorization(answer: ProviderAnswer<'_>) -> Result<DeviceAuthorization, FailedAnswer> {
    let members = answer.members()?;
    let text = |name| members.optional_text(name);
    let needed = |name: &'static str| text(name).ok_or(FailedAnswer::Unreadable(name));
    Ok(DeviceAuthorization {
        device_code: SecretText::new(&needed("device_code")?),
        user_code: needed("user_code")?,
        // Google's has the name that was used before RFC 8628.
        verification_uri: needed("verification_uri")
            .or_else(|missing| text("verification_url").ok_or(missing))?,
        verification_uri_complete: text("verification_uri_complete"),
        expires_in: members.seconds("expires_in").map(Duration::from_secs),
        interval: members.seconds("interval").map_or(DEFAULT_INTERVAL, Duration::from_secs),
    })
}

/// Reads an answer without a body, such as that of the revocation endpoint.
// RFC 7009, section 2.2: clients ignore the body
pub(crate) fn success(answer: ProviderAnswer<'_>) -> Result<(), FailedAnswer> {
    if answer.status.is_success() {
        return Ok(());
    }
    answer.members().map(drop)
}

impl ProviderAnswer<'_> {
    /// The members of an answer that is no error.
    fn members(&self) -> Result<Members, FailedAnswer> {
        let members =
            if self.is_form() { Ok(Members::of_form(self.body)) } else { Members::parse(self.body) };
        let refusal = members.as_ref().ok().and_then(Members::refusal);
        let is_page = is_html(self.body);
        // Some providers answer errors with 200.
        if refusal.is_some() || !self.status.is_success() {
            return Err(FailedAnswer::Error(ErrorAnswer { status: self.status, refusal, is_page }));
        }
        members.map_err(|_| if is_page { FailedAnswer::WebPage } else { FailedAnswer::Unreadable("JSON") })
    }

    /// Whether the body is a form: some providers label JSON as text.
    fn is_form(&self) -> bool {
        if first_byte(self.body) == Some(b'{') {
            return false;
        }
        let kind = self.content_type.and_then(|kind| kind.split(';').next()).unwrap_or_default();
        let is = |known: &str| kind.trim().eq_ignore_ascii_case(known);
        is("application/x-www-form-urlencoded") || is("text/plain")
    }
}

/// The members of a JSON object, or of a form.
struct Members {
    values: Map<String, Value>,
    /// Whether names count in any case: in Go, those of JSON do.
    is_json: bool,
}

impl Members {
    // go: encoding/json, Unmarshal: null is no object, and sets nothing; bytes that are not UTF-8 are replaced
    fn parse(json: &[u8]) -> Result<Self, String> {
        let text = String::from_utf8_lossy(json);
        let object = serde_json::from_str::<Option<JsonObject>>(&text);
        let object = object.map_err(|error| shortened(&error.to_string()))?;
        Ok(Self { values: object.unwrap_or_default().0, is_json: true })
    }

    /// The first value of each name.
    // net/url: Values.Get
    fn of_form(body: &[u8]) -> Self {
        let mut values = Map::new();
        for (name, value) in form_urlencoded::parse(body) {
            values.entry(name.into_owned()).or_insert_with(|| Value::String(value.into_owned()));
        }
        Self { values, is_json: false }
    }

    /// A member by its name; `None` if it is absent or `null`.
    fn get(&self, name: &str) -> Option<&Value> {
        let in_another_case = || {
            let mut members = self.values.iter().filter(|_| self.is_json);
            members.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        self.values.get(name).or_else(in_another_case).filter(|value| !value.is_null())
    }

    /// A text; none if it is empty. Fails if the member is of another type.
    fn text(&self, name: &'static str) -> Result<Option<String>, &'static str> {
        let text = self.get(name).map(|value| value.as_str().ok_or(name)).transpose()?;
        Ok(text.filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// The same of a member that a login can do without: another type counts as absent.
    fn optional_text(&self, name: &'static str) -> Option<String> {
        self.text(name).ok().flatten()
    }

    /// The same by the exact name: x/oauth2 takes the ID token from a map.
    fn exact_text(&self, name: &str) -> Option<&str> {
        self.values.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// A number of seconds, also as text. Zero counts as absent, and so does what is no such number.
    fn seconds(&self, name: &str) -> Option<u64> {
        let value = self.get(name)?;
        let text = value.as_str().map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
        text.parse().ok().filter(|seconds| *seconds > 0).map(|seconds: u64| seconds.min(MAX_SECONDS))
    }

    /// The texts of a list.
    fn texts(&self, name: &str) -> Vec<String> {
        let list = self.get(name).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| *value == true || *value == "true")
    }

    fn refusal(&self) -> Option<ProviderRefusal> {
        let code = self.optional_text("error")?;
        Some(ProviderRefusal { code, description: self.optional_text("error_description") })
    }
}

/// Whether a body is a web page.
pub(crate) fn is_html(body: &[u8]) -> bool {
    first_byte(body) == Some(b'<')
}

/// The first byte that is no white space.
fn first_byte(body: &[u8]) -> Option<u8> {
    body.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests;
