//! Why a login fails, in sentences that a user understands, with a fix where one is known.
//!
//! The texts of a provider are shown, without control characters and shortened; tokens and secrets never are.

use std::time::Duration;

use portcullis_http::https_client::HttpsError;
use portcullis_system::text::sanitized;

use super::answers::{ErrorAnswer, FailedAnswer};
use super::id_token::IdTokenError;

/// The longest text of a provider in an error.
const MAX_PROVIDER_TEXT: usize = 300;

/// The grant of the device flow.
// RFC 8628, section 3.4
pub(crate) const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The flags, the environment or a file that they name is invalid.
    #[error("{0}")]
    Usage(String),
    /// A login is needed, but the command must not ask the user for one.
    #[error(
        "{0}, and this command must not ask for a login: standard input is not a terminal, or the client does not allow \
         it, and no browser is there or may be opened now (--open-browser)\n  fix: run `portcullis login`, then repeat the \
         command; for machines, use --flow client-credentials or token-file"
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
    /// The provider cannot answer for the moment.
    #[error("cannot {doing}: {answer}; try again later")]
    Unavailable {
        /// What was attempted.
        doing: &'static str,
        /// Its answer.
        answer: ErrorAnswer,
    },
    /// The provider does not renew the login: a new one is needed.
    #[error("{}", refused_refresh(.0))]
    RefreshRefused(ErrorAnswer),
    /// A login is not renewed for the moment, and stays as it is.
    #[error("{0}\n  the login is kept: repeat the command later; if this lasts, run `portcullis login`")]
    NotRenewed(Box<Self>),
    /// The provider revokes the tokens of other clients only.
    #[error(
        "the refresh token is not revoked: the provider revokes tokens only for clients that have a secret \
         (revocation_endpoint_auth_methods_supported), and this client has none\n  fix: end the session at the provider{}",
        session_page(.page.as_deref())
    )]
    PublicRevocation {
        /// The page that ends the session of the browser.
        page: Option<String>,
    },
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
    /// The browser has not come back from the provider.
    #[error(
        "the login was not completed within {limit:?}: the browser was closed, the page was left, or the provider does not \
         redirect to {redirect}\n  fix: repeat the command, or give a longer --login-timeout; if the provider has shown an \
         error about this address, it compares the port: choose one by --callback-port, and register the address with it"
    )]
    NoRedirect {
        /// How long the command has waited.
        limit: Duration,
        /// The redirect address.
        redirect: String,
    },
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
    /// The start address was opened by another user of the machine.
    #[error(
        "another user of this machine has opened the address of the login, and was refused\n  fix: repeat the command; open \
         the address as the user who runs it"
    )]
    OtherUser,
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

impl ProviderRefusal {
    /// Whether the code says that the same may succeed later.
    // RFC 6749, section 4.1.2.1, whose codes providers answer to token requests, too; RFC 8628, section 3.5
    pub fn is_temporary(&self) -> bool {
        matches!(self.code.as_str(), "temporarily_unavailable" | "server_error" | "slow_down")
    }

    /// Whether the provider refuses the flow to this client.
    fn is_of_flow(&self) -> bool {
        let names_grant = || self.description.as_deref().is_some_and(|text| text.contains(DEVICE_GRANT));
        match self.code.as_str() {
            // Keycloak: unauthorized_client, by default
            "unauthorized_client" | "unsupported_grant_type" => true,
            // oidc-provider 9.13.3: "urn:ietf:params:oauth:grant-type:device_code is not allowed for this client"
            "invalid_request" => names_grant(),
            _ => false,
        }
    }
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

    /// Whether the provider has refused to renew the login, so that only a new one helps. Providers say so in many words: any
    /// refusal counts, whatever its code, status or body.
    pub fn is_login_needed(&self) -> bool {
        matches!(self, Self::RefreshRefused(_))
    }

    /// Whether the provider says that a refresh token is no longer valid. Other refusals may be of this request alone.
    pub fn is_invalid_grant(&self) -> bool {
        matches!(self, Self::RefreshRefused(answer) if answer.is("invalid_grant"))
    }

    /// Whether the provider refuses the device flow to this client, which another flow may be open to.
    pub fn is_flow_refused(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_of_flow(),
            Self::NoEndpoint(_) => true,
            _ => false,
        }
    }

    /// Whether the provider refuses a scope, such as `offline_access`.
    // RFC 6749, section 5.2; keycloak: services/…/oidc/TokenManager.java, `not_allowed`
    pub fn is_scope_refused(&self) -> bool {
        matches!(self, Self::Refused(refusal) if matches!(refusal.code.as_str(), "invalid_scope" | "not_allowed"))
    }

    /// Whether the same may succeed later: until then, a token that is still valid is used.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Http { .. } | Self::Answer { .. } | Self::Unavailable { .. } | Self::Unkept(_) => true,
            Self::NotRenewed(cause) => cause.is_temporary(),
            Self::OtherProcess { is_temporary, .. } => *is_temporary,
            Self::Refused(refusal) => refusal.is_temporary(),
            _ => false,
        }
    }

    /// Whether another process that attempts the same would fail alike if it tried now: for the provider, or for what the
    /// user has just decided. Not for its flags, its terminal or its secret.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Http { .. }
            | Self::Answer { .. }
            | Self::Unavailable { .. }
            | Self::Timeout(_)
            | Self::NoRedirect { .. }
            | Self::AnotherUser { .. } => true,
            Self::NotRenewed(cause) => cause.is_shared(),
            Self::Refused(refusal) => {
                self.is_temporary() || matches!(refusal.code.as_str(), "access_denied" | "expired_token")
            }
            _ => false,
        }
    }

    /// The error of an answer that does not have what was asked for.
    pub(crate) fn of_answer(doing: &'static str, failed: FailedAnswer) -> Self {
        match failed {
            FailedAnswer::Error(ErrorAnswer { refusal: Some(refusal), .. }) if refusal.is_temporary() => {
                Self::Refused(refusal)
            }
            FailedAnswer::Error(answer) if answer.is_temporary() => Self::Unavailable { doing, answer },
            FailedAnswer::Error(ErrorAnswer { refusal: Some(refusal), .. }) => Self::Refused(refusal),
            failed => Self::answer(doing, failed),
        }
    }

    /// The error of a refresh.
    pub(crate) fn of_refresh(doing: &'static str, failed: FailedAnswer) -> Self {
        match failed {
            FailedAnswer::Error(answer) if !answer.is_temporary() => Self::RefreshRefused(answer),
            failed => Self::of_answer(doing, failed),
        }
    }
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

/// The sentence of a refresh that the provider refuses. It does not say whose error it is: providers answer the end of a
/// session with codes that stand for malformed requests.
fn refused_refresh(answer: &ErrorAnswer) -> String {
    match &answer.refusal {
        Some(refusal) if refusal.code == "invalid_grant" => sentence(refusal),
        Some(refusal) => with_words("the provider does not renew this login", refusal),
        None => format!("the provider does not renew this login: {answer}"),
    }
}

/// Where a session ends.
fn session_page(page: Option<&str>) -> String {
    match page {
        Some(page) => format!(", by `portcullis logout --end-session` or this page:\n  {}", shortened(page)),
        None => ", on the page of your account there; without that, the token is valid until it expires"
            .to_owned(),
    }
}

/// The sentence of each code.
fn sentence(refusal: &ProviderRefusal) -> String {
    let code = match refusal.code.as_str() {
        "invalid_request" if refusal.is_of_flow() => "unauthorized_client",
        code => code,
    };
    let text = match code {
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
    with_words(text, refusal)
}

/// A text with the provider's words in parentheses.
pub(crate) fn with_words(text: &str, refusal: &ProviderRefusal) -> String {
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
    fn a_provider_that_allows_no_codes_to_a_client_refuses_the_flow() {
        let refused = |code: &str, description: Option<&str>| {
            let description = description.map(str::to_owned);
            LoginError::Refused(ProviderRefusal { code: code.to_owned(), description })
        };
        let of_grant = "urn:ietf:params:oauth:grant-type:device_code is not allowed for this client";
        for (code, description, expected) in [
            ("unauthorized_client", None, true),
            ("invalid_request", Some(of_grant), true),
            ("invalid_request", Some("missing parameter: scope"), false),
            ("invalid_request", None, false),
            ("access_denied", Some(of_grant), false),
        ] {
            let error = refused(code, description);
            assert_eq!(error.is_flow_refused(), expected, "{error}");
            assert_eq!(error.to_string().contains("choose another --flow"), expected, "{error}");
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
    fn what_is_temporary_is_no_refusal_of_a_refresh() {
        let error = |status, code: Option<&str>| {
            let refusal = code.map(|code| ProviderRefusal { code: code.to_owned(), description: None });
            LoginError::of_refresh(
                "refresh the token",
                FailedAnswer::Error(ErrorAnswer::new(status, refusal)),
            )
        };
        let cases = [
            (400, Some("invalid_grant"), true, false),
            (400, Some("invalid_request"), true, false),
            (401, None, true, false),
            (200, Some("invalid_grant"), true, false),
            (400, Some("slow_down"), false, true),
            (400, Some("server_error"), false, true),
            (503, Some("temporarily_unavailable"), false, true),
            (500, Some("invalid_request"), false, true),
            (429, None, false, true),
        ];
        for (status, code, is_login_needed, is_temporary) in cases {
            let error = error(status, code);
            assert_eq!(
                (error.is_login_needed(), error.is_temporary()),
                (is_login_needed, is_temporary),
                "{error}"
            );
            assert!(!error.to_string().contains("an error of portcullis"), "{error}");
        }
        let kept = LoginError::NotRenewed(Box::new(error(503, None)));
        assert!(
            kept.is_temporary() && kept.is_shared() && kept.to_string().contains("the login is kept"),
            "{kept}"
        );
    }
}
