//! Cross-origin requests of browsers, as kube-apiserver's filter answers them.
// apiserver: pkg/server/filters/cors.go; pkg/server/options/server_run_options.go, validateCorsAllowedOriginList

use std::fmt;
use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use portcullis_go::regexp::{self, Pattern};

/// The headers of every response to an allowed origin, except for the origin.
const HEADERS: [(HeaderName, &str); 4] = [
    (ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE, PATCH"),
    (
        ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
    ),
    (ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
    (ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
];

/// The origins whose scripts may read responses; none by default.
#[derive(Clone, Default)]
pub(crate) struct AllowedOrigins(Vec<Arc<Pattern>>);

/// The origin of a request, which is allowed.
#[derive(Debug, Clone)]
pub(crate) struct AllowedOrigin(HeaderValue);

/// Why a pattern is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OriginPatternError {
    /// It is empty.
    #[error("an expression is empty")]
    Empty,
    /// It is no regular expression.
    #[error("{0}")]
    Syntax(String),
    /// It may match a part of another host's name.
    #[error("{0:?} does not pin to start/end of host in the origin header")]
    NotPinned(String),
}

impl AllowedOrigins {
    /// Origins that one of these regular expressions matches, in Go's syntax. All errors at once.
    // threat: foreign-origin
    pub(crate) fn new(patterns: &[String]) -> Result<Self, Vec<OriginPatternError>> {
        let (mut compiled, mut errors) = (Vec::new(), Vec::new());
        for pattern in patterns {
            match compile(pattern) {
                Ok(pattern) => compiled.push(pattern),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(Self(compiled)) } else { Err(errors) }
    }

    /// The origin of a request, if it has one that is allowed.
    pub(crate) fn find(&self, headers: &HeaderMap) -> Option<AllowedOrigin> {
        if self.0.is_empty() {
            return None;
        }
        let origin = headers.get(ORIGIN).filter(|origin| !origin.is_empty())?;
        let text = String::from_utf8_lossy(origin.as_bytes());
        let is_allowed = self.0.iter().any(|pattern| pattern.is_match(&*text));
        is_allowed.then(|| AllowedOrigin(origin.clone()))
    }
}

impl AllowedOrigin {
    /// Lets the browser show the response to the scripts of the origin.
    pub(crate) fn allow_in(&self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
}

fn compile(pattern: &str) -> Result<Arc<Pattern>, OriginPatternError> {
    if pattern.is_empty() {
        return Err(OriginPatternError::Empty);
    }
    let compiled = regexp::compile(pattern).map_err(OriginPatternError::Syntax)?;
    let has = |markers: [&str; 2]| markers.iter().any(|marker| pattern.contains(marker));
    if has(["^", "//"]) && has(["$", ":"]) {
        Ok(compiled)
    } else {
        Err(OriginPatternError::NotPinned(pattern.to_owned()))
    }
}

impl fmt::Debug for AllowedOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllowedOrigins({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(patterns: &[&str]) -> Result<AllowedOrigins, Vec<OriginPatternError>> {
        AllowedOrigins::new(&patterns.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn an_origin_is_allowed_by_a_pattern() {
        let origins = origins(&[r"^https://app\.example\.com(:|$)", r"//localhost(:|$)"]).unwrap();
        let allowed = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ORIGIN, HeaderValue::from_static(value));
            }
            origins.find(&headers).is_some()
        };
        for origin in ["https://app.example.com", "https://app.example.com:8443", "http://localhost:3000"] {
            assert!(allowed(&[origin]), "{origin}");
        }
        for origin in ["", "null", "https://app.example.com.evil.test", "https://evil.test/app.example.com"] {
            assert!(!allowed(&[origin]), "{origin}");
        }
        assert!(!allowed(&[]));
        // Go reads the first of several.
        assert!(!allowed(&["https://evil.test", "http://localhost"]));
        assert!(AllowedOrigins::default().find(&HeaderMap::new()).is_none());
    }

    #[test]
    fn patterns_that_are_not_accepted_are_named_together() {
        let errors = origins(&["", "(", "example.com", "^https://a.test", "//a.test$"]).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "an expression is empty",
                "error parsing regexp: missing closing ): `(`",
                "\"example.com\" does not pin to start/end of host in the origin header",
            ]
        );
    }
}
