//! Anonymous authentication of requests without a credential.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/anonymous/anonymous.go`. The authenticator is not a member of
//! the chain's union; it runs after the union, and never for a request whose credential was refused. Conditions compare
//! the decoded path exactly.

use std::collections::BTreeSet;

use portcullis_http::identity::Identity;
use portcullis_kubernetes::user::UserInfo;

use super::{Authenticated, AuthnInput, AuthnMethod};

/// Which requests are accepted without a credential.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AnonymousAuth {
    /// None.
    #[default]
    Disabled,
    /// Requests for every path.
    AllPaths,
    /// Requests for these paths.
    Paths(BTreeSet<String>),
}

impl AnonymousAuth {
    /// The authenticator; `None` if it would accept no request.
    pub fn authenticator(&self) -> Option<AnonymousAuthenticator> {
        match self {
            Self::Disabled => None,
            Self::AllPaths => Some(AnonymousAuthenticator::new([])),
            // An empty list of conditions must not mean every path.
            Self::Paths(paths) if paths.is_empty() => None,
            Self::Paths(paths) => Some(AnonymousAuthenticator::new(paths.iter().cloned())),
        }
    }
}

/// Authenticates requests as `system:anonymous`, for every path or for certain paths.
#[derive(Debug)]
pub struct AnonymousAuthenticator {
    /// Empty for every path.
    paths: BTreeSet<String>,
    user: Identity,
}

impl AnonymousAuthenticator {
    /// Accepts requests for these paths; for every path if the list is empty.
    pub fn new(paths: impl IntoIterator<Item = String>) -> Self {
        Self { paths: paths.into_iter().collect(), user: UserInfo::anonymous().into() }
    }

    /// Returns the anonymous user if the path is accepted.
    pub fn authenticate(&self, input: &AuthnInput<'_>) -> Option<Authenticated> {
        // U+FFFD replaces any byte that is not UTF-8, so a path that contains it must not match a configured path.
        let listed = self.paths.contains(input.path) && !input.path.contains(char::REPLACEMENT_CHARACTER);
        if !listed && !self.paths.is_empty() {
            return None;
        }
        Some(Authenticated {
            user: self.user.clone(),
            audiences: input.audiences.to_vec(),
            method: AuthnMethod::Anonymous,
            certificates: None,
            expires: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestRequest, audiences_of};
    use super::*;

    #[test]
    fn conditions_compare_whole_paths() {
        const CASES: &[(&[&str], &str, bool)] = &[
            (&[], "/anything", true),
            (&[], "", true),
            (&["/livez"], "/livez", true),
            (&["/healthz", "/livez"], "/livez", true),
            (&["/livez"], "/livez/", false),
            (&["/livez"], "/livez/etcd", false),
            (&["/livez"], "/LIVEZ", false),
            (&["/livez"], "/", false),
            (&["/a\u{fffd}"], "/a\u{fffd}", false),
        ];
        for (paths, path, accepted) in CASES {
            let mut request = TestRequest::new();
            (*path).clone_into(&mut request.path);
            let anonymous = AnonymousAuthenticator::new(paths.iter().map(|path| (*path).to_owned()));
            assert_eq!(anonymous.authenticate(&request.input()).is_some(), *accepted, "{paths:?} {path}");
        }
    }

    #[test]
    fn the_identity_is_that_of_kube_apiserver() {
        let request = TestRequest::new().audiences(&["api"]);
        let found = AnonymousAuthenticator::new([]).authenticate(&request.input()).expect("accepted");
        assert_eq!(*found.user, UserInfo::anonymous());
        assert_eq!(found.audiences, audiences_of(&["api"]));
    }
}
