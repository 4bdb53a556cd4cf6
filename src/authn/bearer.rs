//! Bearer tokens in the `Authorization` header.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/bearertoken/bearertoken.go`. Decides whether the header holds a
//! bearer token at all; a token that nobody knows is an error, so that it never makes an anonymous request.

use super::{
    AuthnError, AuthnInput, AuthnVerdict, BearerToken, BoxFuture, RequestAuthenticator, TokenAuthenticator,
};

const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Hands the token of the `Authorization` header to a token authenticator.
#[derive(Debug)]
pub struct BearerAuthenticator {
    tokens: Box<dyn TokenAuthenticator>,
}

/// What an `Authorization` header says about bearer tokens.
#[derive(Debug, PartialEq, Eq)]
enum Found<'a> {
    Nothing,
    /// There is more than one blank where one belongs.
    ExtraSpace,
    Token(&'a str),
}

impl BearerAuthenticator {
    /// Checks tokens with the given authenticator, usually a union of several.
    pub fn new(tokens: Box<dyn TokenAuthenticator>) -> Self {
        Self { tokens }
    }
}

impl RequestAuthenticator for BearerAuthenticator {
    fn name(&self) -> &'static str {
        "bearer"
    }

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            let Some(token) = token(input.credentials.authorization.as_deref().unwrap_or_default()) else {
                return Ok(None);
            };
            known_or_error(self.tokens.authenticate(&token, input.for_tokens()).await)
        })
    }
}

/// The token of an `Authorization` header.
pub(super) fn token(header: &str) -> Option<BearerToken> {
    match find(header) {
        Found::Nothing | Found::ExtraSpace => None,
        Found::Token(token) => Some(BearerToken::new(token)),
    }
}

/// Warns of a header whose token is ignored because of a blank too many. In kube-apiserver the authenticator of its own
/// loopback token comes before all others and sees every header, so the warning comes whoever the client is.
// apiserver: pkg/server/config.go, AuthorizeClientBearerToken
pub(super) fn warn_of_extra_space(input: &AuthnInput<'_>) {
    if find(input.credentials.authorization.as_deref().unwrap_or_default()) == Found::ExtraSpace {
        input.trace.warn(EXTRA_SPACE);
    }
}

/// Turns "not my token" into an error: the client did present one.
pub(super) fn known_or_error(verdict: AuthnVerdict) -> AuthnVerdict {
    match verdict {
        Ok(None) => Err(AuthnError::Invalid("invalid bearer token".to_owned())),
        verdict => verdict,
    }
}

fn find(header: &str) -> Found<'_> {
    let mut parts = header.trim().splitn(3, ' ');
    let (Some(scheme), Some(token)) = (parts.next(), parts.next()) else {
        return Found::Nothing;
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Found::Nothing;
    }
    match (token, parts.next()) {
        ("", Some(_)) => Found::ExtraSpace,
        ("", None) => Found::Nothing,
        (token, _) => Found::Token(token),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::testing::{Fixed, Knows, TestRequest, success};
    use super::*;

    fn judge(tokens: impl TokenAuthenticator + 'static, header: Option<&str>) -> (AuthnVerdict, Vec<String>) {
        let mut request = TestRequest::new();
        request.credentials.authorization = header.map(str::to_owned);
        let bearer = BearerAuthenticator::new(Box::new(tokens));
        let verdict = bearer.authenticate(&request.input()).now_or_never().expect("ready");
        (verdict, request.trace.take().warnings)
    }

    #[test]
    fn headers_are_read_as_kube_apiserver_reads_them() {
        const CASES: &[(&str, Found<'_>)] = &[
            ("", Found::Nothing),
            ("   ", Found::Nothing),
            ("Bearer", Found::Nothing),
            ("Bearer ", Found::Nothing),
            ("Basic x", Found::Nothing),
            ("bear tok", Found::Nothing),
            ("Bearer: tok", Found::Nothing),
            ("Bearertok", Found::Nothing),
            ("Bearer\ttok", Found::Nothing),
            ("Bearer tok", Found::Token("tok")),
            (" bEaReR tok ", Found::Token("tok")),
            ("Bearer tok extra stuff", Found::Token("tok")),
            ("Bearer tok  extra", Found::Token("tok")),
            ("Bearer \ttok", Found::Token("\ttok")),
            ("Bearer  tok", Found::ExtraSpace),
            ("Bearer   tok", Found::ExtraSpace),
        ];
        for (header, expected) in CASES {
            assert_eq!(find(header), *expected, "{header:?}");
        }
    }

    #[test]
    fn no_header_is_no_opinion() {
        assert_eq!(judge(Knows("tok"), None), (Ok(None), vec![]));
    }

    #[test]
    fn a_known_token_is_a_success() {
        assert_eq!(judge(Knows("tok"), Some("Bearer tok")), (Ok(Some(success("alice", &[]))), vec![]));
    }

    #[test]
    fn an_unknown_token_is_an_error_and_not_anonymous() {
        let error = AuthnError::Invalid("invalid bearer token".to_owned());
        assert_eq!(judge(Knows("tok"), Some("Bearer other")), (Err(error), vec![]));
    }

    #[test]
    fn the_error_of_the_token_authenticator_is_passed_on() {
        let error = AuthnError::Unavailable("issuer is away".to_owned());
        assert_eq!(judge(Fixed(Err(error.clone())), Some("Bearer tok")), (Err(error), vec![]));
    }

    #[test]
    fn an_extra_space_is_no_opinion() {
        assert_eq!(judge(Knows("tok"), Some("Bearer  tok")), (Ok(None), vec![]));
    }

    #[test]
    fn an_extra_space_is_warned_of() {
        for (header, warnings) in [("Bearer  tok", vec![EXTRA_SPACE.to_owned()]), ("Bearer tok", vec![])] {
            let mut request = TestRequest::new();
            request.credentials.authorization = Some(header.to_owned());
            warn_of_extra_space(&request.input());
            assert_eq!(request.trace.take().warnings, warnings, "{header:?}");
        }
    }
}
