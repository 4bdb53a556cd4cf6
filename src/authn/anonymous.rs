//! Requests without a credential.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/anonymous/anonymous.go`. It is no member of the chain's union
//! but stands behind it: a credential that was refused never comes here. Conditions compare the decoded path exactly.

use std::collections::BTreeSet;

use super::{Authenticated, AuthnInput};
use crate::user::{Identity, UserInfo};

/// Which requests are let in without a credential.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AnonymousAuth {
    /// None.
    #[default]
    Disabled,
    /// Those for any path.
    AllPaths,
    /// Those for these paths.
    Paths(BTreeSet<String>),
}

impl AnonymousAuth {
    /// What lets them in, unless none is.
    pub fn authenticator(&self) -> Option<AnonymousAuthenticator> {
        match self {
            Self::Disabled => None,
            Self::AllPaths => Some(AnonymousAuthenticator::new([])),
            // No path at all is not every path.
            Self::Paths(paths) if paths.is_empty() => None,
            Self::Paths(paths) => Some(AnonymousAuthenticator::new(paths.iter().cloned())),
        }
    }
}

/// Lets requests in as `system:anonymous`, all of them or those for certain paths.
#[derive(Debug)]
pub struct AnonymousAuthenticator {
    /// Empty: every path.
    paths: BTreeSet<String>,
    user: Identity,
}

impl AnonymousAuthenticator {
    /// Lets in requests for these paths; for every path if there are none.
    pub fn new(paths: impl IntoIterator<Item = String>) -> Self {
        Self { paths: paths.into_iter().collect(), user: UserInfo::anonymous().into() }
    }

    /// The identity, unless the path is not one of those let in.
    pub fn authenticate(&self, input: &AuthnInput<'_>) -> Option<Authenticated> {
        // U+FFFD may stand for any byte that is no text, so a path that has one equals no configured path.
        let listed = self.paths.contains(input.path) && !input.path.contains(char::REPLACEMENT_CHARACTER);
        if !listed && !self.paths.is_empty() {
            return None;
        }
        Some(Authenticated {
            user: self.user.clone(),
            audiences: input.audiences.to_vec(),
            method: "anonymous",
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
        for (paths, path, let_in) in CASES {
            let mut request = TestRequest::new();
            (*path).clone_into(&mut request.path);
            let anonymous = AnonymousAuthenticator::new(paths.iter().map(|path| (*path).to_owned()));
            assert_eq!(anonymous.authenticate(&request.input()).is_some(), *let_in, "{paths:?} {path}");
        }
    }

    #[test]
    fn the_identity_is_that_of_kube_apiserver() {
        let request = TestRequest::new().audiences(&["api"]);
        let found = AnonymousAuthenticator::new([]).authenticate(&request.input()).expect("let in");
        assert_eq!(*found.user, UserInfo::anonymous());
        assert_eq!(found.audiences, audiences_of(&["api"]));
    }
}
