//! Bearer tokens in the list of WebSocket subprotocols: browsers cannot send an `Authorization` header with a WebSocket
//! handshake.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/websocket/protocol.go`. The token is removed from the request
//! before authentication; the forwarded request lists only the other subprotocols.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};

use super::bearer::recognized_or_error;
use super::{
    AuthnError, AuthnInput, AuthnVerdict, BearerToken, BoxFuture, RequestAuthenticator, TokenAuthenticator,
};
use crate::request::credentials::BEARER_PROTOCOL_PREFIX;

/// Unpadded; like Go's decoder it ignores the unused bits of the last character.
const TOKEN_ENCODING: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Passes the token among the subprotocols to a token authenticator.
#[derive(Debug)]
pub(crate) struct WebSocketAuthenticator {
    tokens: Box<dyn TokenAuthenticator>,
}

impl WebSocketAuthenticator {
    /// Checks tokens with `tokens`, usually the authenticator of `Authorization` headers.
    pub(crate) fn new(tokens: Box<dyn TokenAuthenticator>) -> Self {
        Self { tokens }
    }
}

impl RequestAuthenticator for WebSocketAuthenticator {
    fn name(&self) -> &'static str {
        "websocket"
    }

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            let token = token_of(&input.credentials.websocket_protocols)
                .map_err(|problem| AuthnError::Invalid(problem.to_owned()))?;
            match token {
                Some(token) => {
                    recognized_or_error(self.tokens.authenticate(&token, input.for_tokens()).await)
                }
                None => Ok(None),
            }
        })
    }
}

/// Extracts the token from the subprotocols.
pub(super) fn token_of(protocols: &[String]) -> Result<Option<BearerToken>, &'static str> {
    let mut token = None;
    for encoded in protocols.iter().filter_map(|protocol| protocol.strip_prefix(BEARER_PROTOCOL_PREFIX)) {
        if token.is_some() {
            return Err("multiple base64.bearer.authorization tokens specified");
        }
        let decoded = TOKEN_ENCODING
            .decode(encoded)
            .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
        let text = String::from_utf8(decoded).map_err(|_| "invalid base64.bearer.authorization token")?;
        token = Some(text);
    }
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return Ok(None);
    };
    // The server's answer must select another subprotocol.
    if protocols.iter().all(|protocol| protocol.starts_with(BEARER_PROTOCOL_PREFIX)) {
        return Err("missing additional subprotocol");
    }
    Ok(Some(BearerToken::new(token)))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::testing::{OneToken, TestRequest, success};
    use super::*;

    #[test]
    fn protocols_are_read_as_kube_apiserver_reads_them() {
        const P: &str = BEARER_PROTOCOL_PREFIX;
        let invalid = |text: &str| Err(AuthnError::Invalid(text.to_owned()));
        let multiple = "multiple base64.bearer.authorization tokens specified";
        let encoding = "invalid base64.bearer.authorization token encoding";
        let cases: Vec<(&str, Vec<String>, AuthnVerdict)> = vec![
            ("none", vec![], Ok(None)),
            ("others", vec!["a".into(), "b".into()], Ok(None)),
            ("empty", vec![P.into(), "b".into()], Ok(None)),
            ("token and another", vec![format!("{P}dG9r"), "b".into()], Ok(Some(success("alice", &[])))),
            ("token last", vec!["a".into(), format!("{P}dG9r")], Ok(Some(success("alice", &[])))),
            ("unused bits", vec!["a".into(), format!("{P}dG8"), "b".into()], invalid("invalid bearer token")),
            ("alone", vec![format!("{P}dG9r")], invalid("missing additional subprotocol")),
            ("two", vec![format!("{P}dG9r"), format!("{P}dG9r"), "b".into()], invalid(multiple)),
            ("empty first", vec![P.into(), format!("{P}dG9r"), "b".into()], invalid(multiple)),
            ("padded", vec![format!("{P}dG9yLg=="), "b".into()], invalid(encoding)),
            ("no base64", vec![format!("{P}!"), "b".into()], invalid(encoding)),
            (
                "no text",
                vec![format!("{P}_w"), "b".into()],
                invalid("invalid base64.bearer.authorization token"),
            ),
            ("unknown", vec![format!("{P}b3RoZXI"), "b".into()], invalid("invalid bearer token")),
        ];
        for (name, protocols, expected) in cases {
            let mut request = TestRequest::new();
            request.credentials.websocket_protocols = protocols;
            let authenticator = WebSocketAuthenticator::new(Box::new(OneToken("tok")));
            let verdict = authenticator.authenticate(&request.input()).now_or_never().expect("ready");
            assert_eq!(verdict, expected, "{name}");
        }
    }
}
