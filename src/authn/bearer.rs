//! Bearer tokens in the `Authorization` header.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/bearertoken/bearertoken.go`. Decides whether the header holds a
//! bearer token. An unknown token is an error, so that its request never becomes anonymous.

use super::{
    AuthnError, AuthnInput, AuthnVerdict, BearerToken, BoxFuture, RequestAuthenticator, TokenAuthenticator,
};

const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Passes the token of the `Authorization` header to a token authenticator.
#[derive(Debug)]
pub(crate) struct BearerAuthenticator {
    tokens: Box<dyn TokenAuthenticator>,
}

/// Result of parsing an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
enum BearerHeader<'a> {
    Absent,
    /// More than one space between scheme and token.
    ExtraSpace,
    Token(&'a str),
}

impl BearerAuthenticator {
    /// Checks tokens with `tokens`, usually a union of several authenticators.
    pub(crate) fn new(tokens: Box<dyn TokenAuthenticator>) -> Self {
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
            recognized_or_error(self.tokens.authenticate(&token, input.for_tokens()).await)
        })
    }
}

/// Extracts the token of an `Authorization` header.
pub(super) fn token(header: &str) -> Option<BearerToken> {
    match parse_header(header) {
        BearerHeader::Absent | BearerHeader::ExtraSpace => None,
        BearerHeader::Token(token) => Some(BearerToken::new(token)),
    }
}

/// Warns of a header whose token is ignored because of an extra space. In kube-apiserver the authenticator of its own
/// loopback token runs first and sees every header, so every client gets the warning.
// apiserver: pkg/server/config.go, AuthorizeClientBearerToken
pub(super) fn warn_of_extra_space(input: &AuthnInput<'_>) {
    if parse_header(input.credentials.authorization.as_deref().unwrap_or_default())
        == BearerHeader::ExtraSpace
    {
        input.trace.warn(EXTRA_SPACE);
    }
}

/// Turns "no opinion" into an error, because the client did present a token.
pub(super) fn recognized_or_error(verdict: AuthnVerdict) -> AuthnVerdict {
    match verdict {
        Ok(None) => Err(AuthnError::Invalid("invalid bearer token".to_owned())),
        verdict => verdict,
    }
}

fn parse_header(header: &str) -> BearerHeader<'_> {
    let mut parts = header.trim().splitn(3, ' ');
    let (Some(scheme), Some(token)) = (parts.next(), parts.next()) else {
        return BearerHeader::Absent;
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return BearerHeader::Absent;
    }
    match (token, parts.next()) {
        ("", Some(_)) => BearerHeader::ExtraSpace,
        ("", None) => BearerHeader::Absent,
        (token, _) => BearerHeader::Token(token),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::testing::{Fixed, OneToken, TestRequest, success};
    use super::*;

    fn authenticate(
        tokens: impl TokenAuthenticator + 'static,
        header: Option<&str>,
    ) -> (AuthnVerdict, Vec<String>) {
        let mut request = TestRequest::new();
        request.credentials.authorization = header.map(str::to_owned);
        let bearer = BearerAuthenticator::new(Box::new(tokens));
        let verdict = bearer.authenticate(&request.input()).now_or_never().expect("ready");
        (verdict, request.trace.take().warnings)
    }

    #[test]
    fn headers_are_read_as_kube_apiserver_reads_them() {
        const CASES: &[(&str, BearerHeader<'_>)] = &[
            ("", BearerHeader::Absent),
            ("   ", BearerHeader::Absent),
            ("Bearer", BearerHeader::Absent),
            ("Bearer ", BearerHeader::Absent),
            ("Basic x", BearerHeader::Absent),
            ("bear tok", BearerHeader::Absent),
            ("Bearer: tok", BearerHeader::Absent),
            ("Bearertok", BearerHeader::Absent),
            ("Bearer\ttok", BearerHeader::Absent),
            ("Bearer tok", BearerHeader::Token("tok")),
            (" bEaReR tok ", BearerHeader::Token("tok")),
            ("Bearer tok extra stuff", BearerHeader::Token("tok")),
            ("Bearer tok  extra", BearerHeader::Token("tok")),
            ("Bearer \ttok", BearerHeader::Token("\ttok")),
            ("Bearer  tok", BearerHeader::ExtraSpace),
            ("Bearer   tok", BearerHeader::ExtraSpace),
        ];
        for (header, expected) in CASES {
            assert_eq!(parse_header(header), *expected, "{header:?}");
        }
    }

    #[test]
    fn no_header_is_no_opinion() {
        assert_eq!(authenticate(OneToken("tok"), None), (Ok(None), vec![]));
    }

    #[test]
    fn a_known_token_is_a_success() {
        assert_eq!(
            authenticate(OneToken("tok"), Some("Bearer tok")),
            (Ok(Some(success("alice", &[]))), vec![])
        );
    }

    #[test]
    fn an_unknown_token_is_an_error_and_not_anonymous() {
        let error = AuthnError::Invalid("invalid bearer token".to_owned());
        assert_eq!(authenticate(OneToken("tok"), Some("Bearer other")), (Err(error), vec![]));
    }

    #[test]
    fn the_error_of_the_token_authenticator_is_passed_on() {
        let error = AuthnError::Unavailable("issuer unavailable".to_owned());
        assert_eq!(authenticate(Fixed(Err(error.clone())), Some("Bearer tok")), (Err(error), vec![]));
    }

    #[test]
    fn an_extra_space_is_no_opinion() {
        assert_eq!(authenticate(OneToken("tok"), Some("Bearer  tok")), (Ok(None), vec![]));
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
