//! Why the page cannot do what was asked, in sentences that a user understands. Causes that concern the operator are in the
//! log alone.

use std::borrow::Cow;

use http::StatusCode;
use portcullis_openid::error::{LoginError, ProviderRefusal, shortened};
use portcullis_openid::id_token::IdTokenError;

use super::login_rate::TooManyLogins;
use super::sealing::UnusableKey;

/// A problem, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) title: &'static str,
    pub(super) text: Cow<'static, str>,
    /// What the provider says, shortened.
    pub(super) detail: Option<String>,
    /// What the user may do next.
    pub(super) next: Next,
    /// The cause, for the log.
    pub(super) cause: Option<String>,
}

/// What the user may do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    SignIn,
    Clusters,
    /// Open the redirect with this query again.
    Again(String),
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        title: &'static str,
        text: impl Into<Cow<'static, str>>,
        next: Next,
    ) -> Self {
        Self { status, title, text: text.into(), detail: None, next, cause: None }
    }

    pub(super) fn not_found() -> Self {
        let text = "There is no such page here, or no such cluster for you.";
        Self::new(StatusCode::NOT_FOUND, "Not found", text, Next::Clusters)
    }

    pub(super) fn signed_out() -> Self {
        let text = "You are not signed in, or your session has ended.";
        Self::new(StatusCode::UNAUTHORIZED, "Please sign in", text, Next::SignIn)
    }

    /// A redirect that belongs to no login of this browser.
    pub(super) fn unknown_login() -> Self {
        let text = "This sign-in was not begun in this browser, was used already, or has taken longer than ten minutes.";
        Self::new(StatusCode::BAD_REQUEST, "Sign-in not completed", text, Next::SignIn)
    }

    /// A redirect that another provider has sent.
    pub(super) fn other_issuer() -> Self {
        let text = "The answer comes from another login provider than the one that was asked.";
        Self::new(StatusCode::BAD_REQUEST, "Sign-in not completed", text, Next::SignIn)
    }

    pub(super) fn too_large(bytes: usize) -> Self {
        let text = format!(
            "The token that the login provider gives you is too large for this page ({bytes} bytes, at most about 8,000). \
             Ask your administrator to leave out claims, such as groups that no cluster needs."
        );
        Self::new(StatusCode::BAD_GATEWAY, "Sign-in not completed", text, Next::SignIn)
    }

    /// A redirect that has to wait for its turn. `query` is that of the redirect, which stays valid.
    pub(super) fn no_turn(which: TooManyLogins, query: &str) -> Self {
        let text = match which {
            TooManyLogins::OfNetwork => {
                "Many people of your network are signing in. Try again in a few seconds; you need not sign in again."
            }
            TooManyLogins::OfAll => {
                "Many people are signing in at this moment. Try again in a few seconds; you need not sign in again."
            }
        };
        let status = StatusCode::TOO_MANY_REQUESTS;
        Self::new(status, "Too many sign-ins", text, Next::Again(query.to_owned()))
    }

    /// The provider has not answered in time.
    pub(super) fn silent_provider() -> Self {
        let text = "The login provider does not answer. Try again in a minute.";
        let problem = Self::new(StatusCode::GATEWAY_TIMEOUT, "Sign-in not possible now", text, Next::SignIn);
        Self { cause: Some("the OpenID provider does not answer in time".to_owned()), ..problem }
    }

    /// A login that fails at the provider.
    pub(super) fn of_login(error: &LoginError) -> Self {
        Self { cause: Some(error.to_string()), ..Self::of_error(error) }
    }

    fn of_error(error: &LoginError) -> Self {
        let failed =
            |status, text: &'static str| Self::new(status, "Sign-in not completed", text, Next::SignIn);
        match error {
            LoginError::Refused(refusal) => Self::of_refusal(refusal),
            LoginError::Http { .. } => {
                let text = "The login provider cannot be reached. Try again in a minute.";
                Self::new(StatusCode::BAD_GATEWAY, "Sign-in not possible now", text, Next::SignIn)
            }
            LoginError::IdToken(IdTokenError::Expired(_)) => failed(
                StatusCode::BAD_GATEWAY,
                "The login provider has given an ID token that has expired already. Its clock, or the gateway's, is wrong.",
            ),
            LoginError::IdToken(_) => failed(
                StatusCode::BAD_GATEWAY,
                "The login provider has not given a valid ID token for this page. Your administrator finds the reason in the log of the gateway.",
            ),
            _ => failed(
                StatusCode::BAD_GATEWAY,
                "The login provider has given an answer that cannot be used. Your administrator finds the reason in the log of the gateway.",
            ),
        }
    }

    /// An error response of the provider.
    pub(super) fn of_refusal(refusal: &ProviderRefusal) -> Self {
        let (status, text) = sentence(&refusal.code);
        let code = shortened(&refusal.code);
        let description = refusal.description.as_deref().map(shortened).filter(|text| !text.is_empty());
        let detail = description.map_or_else(|| code.clone(), |description| format!("{code}: {description}"));
        let mut problem = Self::new(status, "Sign-in not completed", text, Next::SignIn);
        problem.detail = Some(detail);
        problem
    }
}

impl From<UnusableKey> for Problem {
    fn from(error: UnusableKey) -> Self {
        let text = "The gateway has an internal error. Try again later.";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let problem = Self::new(status, "Sign-in not completed", text, Next::SignIn);
        Self { cause: Some(error.to_string()), ..problem }
    }
}

/// The sentence of each code.
fn sentence(code: &str) -> (StatusCode, &'static str) {
    const ADMINISTRATOR: StatusCode = StatusCode::BAD_GATEWAY;
    match code {
        // RFC 6749, section 4.1.2.1
        "access_denied" => (
            StatusCode::FORBIDDEN,
            "The sign-in was refused: by you, or because the login provider does not let you use this page.",
        ),
        "invalid_request" => (
            ADMINISTRATOR,
            "The login provider cannot read the request of this page. Tell your administrator.",
        ),
        "unauthorized_client" | "unsupported_response_type" => (
            ADMINISTRATOR,
            "The login provider does not allow this page to sign users in with an authorization code. Tell your administrator.",
        ),
        "invalid_scope" => (
            ADMINISTRATOR,
            "The login provider does not allow this page one of its scopes. Tell your administrator.",
        ),
        "server_error" => {
            (StatusCode::BAD_GATEWAY, "The login provider has an internal error. Try again later.")
        }
        "temporarily_unavailable" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The login provider is overloaded or under maintenance. Try again later.",
        ),
        // RFC 6749, section 5.2
        "invalid_client" => (
            ADMINISTRATOR,
            "The login provider does not know this page, or the page's secret is wrong. Tell your administrator.",
        ),
        "invalid_grant" => (
            StatusCode::BAD_REQUEST,
            "The login provider no longer accepts this sign-in: it has expired, or was used already.",
        ),
        "unsupported_grant_type" => (
            ADMINISTRATOR,
            "The login provider does not support authorization codes. Tell your administrator.",
        ),
        // OpenID Connect Core 1.0, section 3.1.2.6
        "interaction_required" | "login_required" | "account_selection_required" | "consent_required" => {
            (StatusCode::BAD_REQUEST, "The login provider wants to ask you something. Sign in again.")
        }
        _ => (StatusCode::BAD_GATEWAY, "The login provider refuses the sign-in."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_protocol_has_a_sentence() {
        let unknown = sentence("unknown");
        for code in [
            "access_denied",
            "invalid_request",
            "unauthorized_client",
            "unsupported_response_type",
            "invalid_scope",
            "server_error",
            "temporarily_unavailable",
            "invalid_client",
            "invalid_grant",
            "unsupported_grant_type",
            "interaction_required",
            "login_required",
            "account_selection_required",
            "consent_required",
        ] {
            assert_ne!(sentence(code).1, unknown.1, "{code}");
        }
    }

    #[test]
    fn a_text_of_the_provider_is_shortened() {
        let refusal = ProviderRefusal {
            code: "x\u{1b}[2J".to_owned(),
            description: Some(format!("\u{202e}{}", "long ".repeat(200))),
        };
        let detail = Problem::of_refusal(&refusal).detail.unwrap();
        assert!(!detail.contains(['\u{1b}', '\u{202e}']) && detail.chars().count() < 700, "{detail}");
    }
}
