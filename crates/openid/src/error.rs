//! Why a login fails, in sentences that a user understands, with a fix where one is known.
//!
//! The texts of a provider are shown, without control characters and shortened; tokens and secrets never are.

use std::time::Duration;

use openidconnect::core::CoreErrorResponseType;
use openidconnect::{DeviceCodeErrorResponse, RequestTokenError, StandardErrorResponse};
use portcullis_http::https_client::HttpsError;
use portcullis_system::text::sanitized;

use super::id_token::IdTokenError;

/// The longest text of a provider in an error.
const MAX_PROVIDER_TEXT: usize = 300;

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The flags, the environment or a file that they name is invalid.
    #[error("{0}")]
    Usage(String),
    /// A login is needed, but the command must not ask the user for one.
    #[error(
        "{0}, and this command must not ask for a login: standard input is not a terminal, or the client does not allow \
         it\n  fix: run `portcullis login`, then repeat the command; for machines, use --flow client-credentials or \
         token-file"
    )]
    LoginRequired(String),
    /// A document or token of the provider could not be fetched.
    #[error("cannot {doing}: {cause}{}", network_fix(.cause))]
    Http {
        /// What was attempted.
        doing: &'static str,
        /// The cause.
        cause: HttpsError,
    },
    /// The provider answers with something else than the protocol demands.
    #[error("cannot {doing}: {problem}")]
    Answer {
        /// What was attempted.
        doing: &'static str,
        /// The problem.
        problem: String,
    },
    /// The provider refuses.
    #[error("{}", sentence(.0))]
    Refused(ProviderRefusal),
    /// The ID token is not for this client, or not valid now.
    #[error("the ID token of the provider cannot be used: {0}")]
    IdToken(#[from] IdTokenError),
    /// The redirect from the browser.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// The user has not completed the login.
    #[error(
        "the login was not completed within {0:?}: the browser was closed, or the page was left\n  fix: repeat the \
         command, or give a longer --login-timeout"
    )]
    Timeout(Duration),
    /// The user has logged in with another account than before.
    #[error(
        "you have logged in as {}, but the login of this context is of {}\n  fix: repeat the command and log in as that \
         user, or run `portcullis login` to change the user, with --context if it is not that of the current context",
        .user, .earlier
    )]
    AnotherUser {
        /// The user of the new login, for people, shortened.
        user: String,
        /// The user of the cached login, as well.
        earlier: String,
    },
    /// A provider that replaces refresh tokens would accept the cached one no longer.
    #[error(
        "the token is not refreshed, because the login cache could not keep the new refresh token: {0}\n  fix: make the \
         cache writable, with space on its disk; or choose a directory on a file system with locks by --cache-dir or \
         $XDG_CACHE_HOME; or give --no-cache; then repeat the command"
    )]
    Unkept(String),
    /// The login of another process, for which this one has waited, has failed.
    #[error("the login of another process, for which this one has waited, has failed: {problem}")]
    OtherProcess {
        /// Its error.
        problem: String,
        /// Whether the same may succeed later.
        is_temporary: bool,
    },
    /// The provider lacks a flow.
    #[error("the provider has no {0}; choose another --flow")]
    NoEndpoint(&'static str),
    /// Another failure.
    #[error("{0}")]
    Other(String),
}

/// Why the redirect is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum CallbackError {
    /// No port for the redirect can be bound.
    #[error(
        "cannot listen for the browser on {host}, ports {ports}: {cause}\n  fix: give free ports by --callback-port, or \
         use --flow device"
    )]
    Ports {
        /// The address to listen on, or both of localhost.
        host: String,
        /// The ports that were tried.
        ports: String,
        /// The operating system's error for the last one.
        cause: std::io::Error,
    },
    /// The redirect names another issuer.
    #[error("the redirect from the browser names the issuer {0:?} (RFC 9207): another provider has sent it")]
    Issuer(String),
    /// The redirect names no issuer, and the provider announces that it does.
    #[error(
        "the redirect from the browser does not name the issuer, which the provider announces (RFC 9207)"
    )]
    NoIssuer,
    /// The redirect has no code.
    #[error("the redirect from the browser has no code")]
    NoCode,
    /// The start address was opened by two.
    #[error(
        "the address of the login was opened twice: by you in a second browser, or by another user or program of this \
         machine, who could have logged you in as someone else\n  fix: repeat the command, and open the address once"
    )]
    StartedTwice,
    /// The listener has ended.
    #[error("the listener for the browser has ended")]
    Ended,
}

/// An error response of the provider: RFC 6749, sections 4.1.2.1 and 5.2, and RFC 8628, section 3.5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRefusal {
    /// The error code.
    pub code: String,
    /// The provider's text for people.
    pub description: Option<String>,
}

impl LoginError {
    /// An error of the command line.
    pub fn usage(problem: &str) -> Self {
        Self::Usage(problem.to_owned())
    }

    /// A response that cannot be used; `doing` says what for.
    #[expect(clippy::needless_pass_by_value, reason = "what `map_err` takes")]
    pub fn answer(doing: &'static str, problem: impl ToString) -> Self {
        Self::Answer { doing, problem: problem.to_string() }
    }

    /// Another failure.
    #[expect(clippy::needless_pass_by_value, reason = "what `map_err` takes")]
    pub fn other(error: impl ToString) -> Self {
        Self::Other(error.to_string())
    }

    /// Whether the provider says that a refresh token, code or client grant is no longer valid.
    pub fn is_invalid_grant(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == "invalid_grant")
    }

    /// Whether the same may succeed later: until then, a token that is still valid is used.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Http { .. } | Self::Answer { .. } | Self::Unkept(_) => true,
            Self::OtherProcess { is_temporary, .. } => *is_temporary,
            // RFC 6749, section 4.1.2.1, which providers answer to token requests, too
            Self::Refused(refusal) => {
                matches!(refusal.code.as_str(), "temporarily_unavailable" | "server_error")
            }
            _ => false,
        }
    }

    /// Whether another process that attempts the same would fail alike if it tried now: for the provider, or for what the
    /// user has just decided. Not for its flags, its terminal or its secret.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Http { .. } | Self::Answer { .. } | Self::Timeout(_) | Self::AnotherUser { .. } => true,
            Self::Refused(refusal) => {
                self.is_temporary() || matches!(refusal.code.as_str(), "access_denied" | "expired_token")
            }
            _ => false,
        }
    }

    /// The error of a request to the token endpoint.
    pub fn of_token(
        doing: &'static str,
        error: RequestTokenError<HttpsError, StandardErrorResponse<CoreErrorResponseType>>,
    ) -> Self {
        let refusal = |response: StandardErrorResponse<CoreErrorResponseType>| ProviderRefusal {
            code: response.error().as_ref().to_owned(),
            description: response.error_description().cloned(),
        };
        Self::of_request(doing, error, refusal)
    }

    pub(crate) fn of_device(
        doing: &'static str,
        error: RequestTokenError<HttpsError, DeviceCodeErrorResponse>,
    ) -> Self {
        let refusal = |response: DeviceCodeErrorResponse| ProviderRefusal {
            code: response.error().as_ref().to_owned(),
            description: response.error_description().cloned(),
        };
        Self::of_request(doing, error, refusal)
    }

    fn of_request<R: openidconnect::ErrorResponse + 'static>(
        doing: &'static str,
        error: RequestTokenError<HttpsError, R>,
        refusal: impl FnOnce(R) -> ProviderRefusal,
    ) -> Self {
        match error {
            RequestTokenError::ServerResponse(response) => Self::Refused(refusal(response)),
            RequestTokenError::Request(cause) => Self::Http { doing, cause },
            RequestTokenError::Parse(error, body) => Self::answer(doing, unreadable(&error, &body)),
            RequestTokenError::Other(problem) => Self::answer(doing, shortened(&problem)),
        }
    }
}

/// A body that is not the JSON of the protocol. It may contain a token: only its kind is shown.
fn unreadable(error: &serde_path_to_error::Error<serde_json::Error>, body: &[u8]) -> String {
    if is_html(body) {
        return "the provider answers with a web page instead of JSON; check --issuer, and proxies on the way".to_owned();
    }
    let field = shortened(&error.path().to_string());
    format!("the provider's answer is not as OAuth 2.0 demands (field {field})")
}

/// Whether a body is a web page.
pub(crate) fn is_html(body: &[u8]) -> bool {
    let start = body.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or_default();
    body.get(start) == Some(&b'<')
}

/// A text of the provider, for people.
pub fn shortened(text: &str) -> String {
    let text = sanitized(text);
    match text.char_indices().nth(MAX_PROVIDER_TEXT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn network_fix(error: &HttpsError) -> &'static str {
    match error {
        HttpsError::Connect { cause, .. } if cause.contains("certificate") => {
            "\n  fix: give the provider's CA by --issuer-certificate-authority, and check the clock of this machine"
        }
        HttpsError::Proxy { error, .. } if !error.to_string().contains("fix: ") => {
            "\n  fix: check the proxy, of HTTPS_PROXY or of the cluster's proxy-url; NO_PROXY names hosts that HTTPS_PROXY is not for"
        }
        HttpsError::Connect { .. } | HttpsError::Timeout { .. } => {
            "\n  fix: check the network, and whether the provider is up; then repeat the command"
        }
        _ => "",
    }
}

/// The sentence of each code.
fn sentence(refusal: &ProviderRefusal) -> String {
    let text = match refusal.code.as_str() {
        // RFC 6749, section 5.2
        "invalid_request" => {
            "the provider cannot read the request of this client; this is an error of portcullis, of an --extra-parameter, or of the provider"
        }
        "invalid_client" => {
            "the provider does not know this client, or its secret is wrong; check --client-id and the client secret, of --client-secret-file or --client-secret-from-environment"
        }
        "invalid_grant" => {
            "the provider no longer accepts this login: it has expired, was revoked, or was used twice; log in again"
        }
        "unauthorized_client" => {
            "the provider does not allow this client to log in this way; allow the flow for the client at the provider, or choose another --flow"
        }
        "unsupported_grant_type" => {
            "the provider does not support this way of logging in; choose another --flow"
        }
        "invalid_scope" => "the provider does not allow this client one of the scopes; check --scope",
        // RFC 6749, section 4.1.2.1
        "access_denied" => {
            "the login was refused: by you, or because the provider does not let you use this client"
        }
        "unsupported_response_type" => {
            "the provider does not allow this client the authorization code flow; choose --flow device"
        }
        "server_error" => "the provider has an internal error; try again later",
        "temporarily_unavailable" => "the provider is overloaded or under maintenance; try again later",
        // RFC 8628, section 3.5
        "authorization_pending" => "the code was not entered in time; repeat the command",
        "slow_down" => {
            "the provider finds that this client asks too often; wait a minute and repeat the command"
        }
        "expired_token" => "the code has expired before it was entered; repeat the command for a new one",
        // OpenID Connect Core 1.0, section 3.1.2.6
        "interaction_required" | "login_required" | "account_selection_required" | "consent_required" => {
            "the provider wants you to log in with its web page; repeat the command with --flow browser"
        }
        // RFC 7009, section 2.2.1
        "unsupported_token_type" => "the provider cannot revoke this kind of token",
        _ => "the provider refuses the login",
    };
    let code = shortened(&refusal.code);
    match refusal.description.as_deref().map(shortened).filter(|description| !description.is_empty()) {
        Some(description) => format!("{text} ({code}: {description})"),
        None => format!("{text} ({code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_protocol_has_its_own_sentence() {
        let unknown = sentence(&ProviderRefusal { code: "unknown".to_owned(), description: None });
        for code in [
            "invalid_request",
            "invalid_client",
            "invalid_grant",
            "unauthorized_client",
            "unsupported_grant_type",
            "invalid_scope",
            "access_denied",
            "unsupported_response_type",
            "server_error",
            "temporarily_unavailable",
            "authorization_pending",
            "slow_down",
            "expired_token",
            "interaction_required",
            "login_required",
            "account_selection_required",
            "consent_required",
            "unsupported_token_type",
        ] {
            let sentence = sentence(&ProviderRefusal { code: code.to_owned(), description: None });
            assert_ne!(sentence.replace(code, "unknown"), unknown, "{code}");
            assert!(sentence.ends_with(&format!("({code})")), "{sentence}");
        }
    }

    #[test]
    fn a_text_of_the_provider_is_harmless_and_short() {
        let refusal = ProviderRefusal {
            code: "x\u{1b}[2J".to_owned(),
            description: Some(format!("\u{202e}{}", "long ".repeat(200))),
        };
        let sentence = sentence(&refusal);
        assert!(!sentence.contains(['\u{1b}', '\u{202e}']), "{sentence}");
        assert!(sentence.len() < 2 * MAX_PROVIDER_TEXT, "{sentence}");
    }

    #[test]
    fn a_web_page_instead_of_json_is_named() {
        let body = b" \n<!doctype html><p>Bad gateway".to_vec();
        let error: Result<u8, _> =
            serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(&body));
        let error = LoginError::of_token("fetch a token", RequestTokenError::Parse(error.unwrap_err(), body));
        assert!(error.to_string().contains("a web page instead of JSON"), "{error}");
    }

    #[test]
    fn the_name_of_an_unreadable_field_is_harmless_and_short() {
        let body = format!(r#"{{"\u001b[2J{}": 1, "x": }}"#, "x".repeat(30_000)).into_bytes();
        let read = |body: &[u8]| {
            let mut json = serde_json::Deserializer::from_slice(body);
            serde_path_to_error::deserialize::<_, std::collections::BTreeMap<String, String>>(&mut json)
        };
        let problem = RequestTokenError::Parse(read(&body).unwrap_err(), body);
        let error = LoginError::of_token("fetch a token", problem).to_string();
        assert!(!error.contains('\u{1b}') && error.len() < 1000, "{error}");
    }
}
