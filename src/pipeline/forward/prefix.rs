//! Path prefixes: the one in the backend's URL, and the one that the gateway cuts off the client's path. Finds paths
//! that could escape the first, and rewrites redirects for the client.
// threat: backend-path-prefix

use http::header::{HeaderValue, LOCATION};
use http::uri::Authority;
use http::{HeaderMap, Request};
use portcullis_http::body::Body;

use crate::backend::Backend;

/// Whether a decoded path has a dot segment. A backslash counts as a slash, and a segment ends at a semicolon, as in
/// some servers.
// RFC 3986, section 5.2.4
pub(super) fn has_dot_segment(decoded_path: &str) -> bool {
    decoded_path
        .split(['/', '\\'])
        .map(|segment| segment.split(';').next().unwrap_or_default())
        .any(|segment| segment == "." || segment == "..")
}

/// The difference between the paths of the client and of the backend.
#[derive(Debug)]
pub(super) struct PathPrefixes {
    /// The authority of the forwarded request.
    pub(super) authority: Authority,
    /// The path prefix of the backend's URL.
    pub(super) backend: String,
    /// The prefix that was cut off the client's path.
    pub(super) client: Option<Box<str>>,
}

impl PathPrefixes {
    /// The prefixes of a request; `None` if it has none.
    pub(super) fn between(
        backend: &Backend,
        request: &Request<Body>,
        cut_prefix: Option<Box<str>>,
    ) -> Option<Self> {
        if cut_prefix.is_none() && backend.path_prefix().is_empty() {
            return None;
        }
        let authority = request.uri().authority()?.clone();
        Some(Self { authority, backend: backend.path_prefix().to_owned(), client: cut_prefix })
    }

    /// Rewrites a redirect to the same server, so that it leads through the gateway. Any other stays unchanged.
    pub(super) fn restore_location(&self, headers: &mut HeaderMap) {
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let Some(restored) = location.and_then(|location| self.restored(location)) else { return };
        if let Ok(restored) = HeaderValue::try_from(restored) {
            headers.insert(LOCATION, restored);
        }
    }

    fn restored(&self, location: &str) -> Option<String> {
        let path = match location.strip_prefix("https://") {
            Some(rest) => {
                let (host, path) = rest.split_at_checked(rest.find(['/', '?', '#']).unwrap_or(rest.len()))?;
                host.eq_ignore_ascii_case(self.authority.as_str()).then_some(path)?
            }
            None => location,
        };
        let rest = path.strip_prefix(self.backend.as_str())?;
        let is_path = rest.starts_with('/') && !rest.starts_with("//") && !rest.starts_with("/\\");
        is_path.then(|| format!("{}{rest}", self.client.as_deref().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_segments_are_found_in_every_form() {
        for path in ["/../x", "/a/..", "/a/./b", "/..", "/.", "/a\\..\\b", "/..;x/b", "/.;/b"] {
            assert!(has_dot_segment(path), "{path}");
        }
        for path in ["/", "/a", "/...", "/a..b/.c/d.", "/..a", "/a;..", ""] {
            assert!(!has_dot_segment(path), "{path}");
        }
    }

    #[test]
    fn redirects_to_the_same_server_lead_through_the_gateway() {
        let cases = [
            ("", Some("/clusters/a"), "/api/v1/x/proxy/", Some("/clusters/a/api/v1/x/proxy/")),
            ("", Some("/clusters/a"), "https://api.test/x?y#z", Some("/clusters/a/x?y#z")),
            ("", Some("/clusters/a"), "https://API.test/x", Some("/clusters/a/x")),
            ("", Some("/clusters/a"), "https://api.test.evil/x", None),
            ("", Some("/clusters/a"), "https://elsewhere/x", None),
            ("", Some("/clusters/a"), "http://api.test/x", None),
            ("", Some("/clusters/a"), "//elsewhere/x", None),
            ("", Some("/clusters/a"), "x", None),
            ("", Some("/clusters/a"), "", None),
            ("/k8s/c-1", Some("/clusters/a"), "/k8s/c-1/api/", Some("/clusters/a/api/")),
            ("/k8s/c-1", None, "/k8s/c-1/api/", Some("/api/")),
            ("/k8s/c-1", None, "https://api.test/k8s/c-1/api/", Some("/api/")),
            ("/k8s/c-1", None, "/k8s/c-1//elsewhere/", None),
            ("/k8s/c-1", None, "/k8s/c-1/\\elsewhere/", None),
            ("/k8s/c-1", None, "/k8s/c-12/api", None),
            ("/k8s/c-1", None, "/login", None),
        ];
        for (backend, client, location, expected) in cases {
            let prefixes = PathPrefixes {
                authority: Authority::from_static("api.test"),
                backend: backend.to_owned(),
                client: client.map(Into::into),
            };
            assert_eq!(prefixes.restored(location).as_deref(), expected, "{backend} {client:?} {location}");
        }
    }
}
