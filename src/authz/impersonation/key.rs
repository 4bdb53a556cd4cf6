//! Keys of the impersonations that are kept: everything that an answer depends on.
// apiserver: pkg/endpoints/filters/impersonation/cache.go, buildKey

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};

use super::{Impersonation, Mode, WantedUser};
use crate::user::UserInfo;

/// Longer keys are hashed: clients choose how long they are.
const MAX_BYTES: usize = 2048;

/// An impersonation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum ImpersonationKey {
    /// All parts, each prefixed with its length.
    Parts(Vec<u8>),
    /// Their SHA-256 digest.
    Digest([u8; 32]),
}

impl ImpersonationKey {
    /// Of a mode, a requester, a wanted user, and a request.
    pub(super) fn of_request(mode: Mode, asked: &Impersonation<'_>) -> Self {
        let mut parts = Parts::of(mode, asked);
        parts.text("request");
        parts.text(asked.info.verb());
        parts.text(asked.info.path());
        if let Some(resource) = asked.info.resource() {
            parts.text(resource.field_selector);
            parts.text(resource.label_selector);
            parts.text(asked.info.object_name());
        }
        parts.finish()
    }

    /// Of a mode, a requester and a wanted user.
    pub(super) fn of_user(mode: Mode, asked: &Impersonation<'_>) -> Self {
        Parts::of(mode, asked).finish()
    }

    /// Its memory.
    pub(super) fn weight(&self) -> usize {
        let bytes = match self {
            Self::Parts(parts) => parts.capacity(),
            Self::Digest(_) => 0,
        };
        size_of::<Self>() + bytes
    }
}

/// Parts, each prefixed with its length, and lists with theirs.
struct Parts(Vec<u8>);

impl Parts {
    fn of(mode: Mode, asked: &Impersonation<'_>) -> Self {
        let mut parts = Self(Vec::with_capacity(512));
        parts.text(mode.name());
        let UserInfo { name, uid, groups, extra } = &**asked.requester;
        parts.user(name, uid.as_deref().unwrap_or_default(), groups, extra);
        let WantedUser { name, uid, groups, extra } = asked.wanted;
        parts.user(name, uid, groups, extra);
        parts
    }

    fn user(&mut self, name: &str, uid: &str, groups: &[String], extra: &BTreeMap<String, Vec<String>>) {
        self.text(name);
        self.text(uid);
        self.list(groups);
        self.length(extra.len());
        for (key, values) in extra {
            self.text(key);
            self.list(values);
        }
    }

    fn list(&mut self, texts: &[String]) {
        self.length(texts.len());
        for text in texts {
            self.text(text);
        }
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn length(&mut self, length: usize) {
        // No request is as long as its largest value.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_be_bytes());
    }

    fn finish(self) -> ImpersonationKey {
        if self.0.len() > MAX_BYTES {
            ImpersonationKey::Digest(sha256(&self.0))
        } else {
            ImpersonationKey::Parts(self.0)
        }
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    // A SHA-256 digest has 32 bytes.
    key.iter_mut().zip(digest(&SHA256, bytes).as_ref()).for_each(|(to, from)| *to = *from);
    key
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::authz::NO_TRACE;
    use crate::request::info::RequestInfo;

    fn user(name: &str, uid: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> WantedUser {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        WantedUser {
            name: name.to_owned(),
            uid: uid.to_owned(),
            groups: texts(groups),
            extra: extra.iter().map(|(key, values)| ((*key).to_owned(), texts(values))).collect(),
        }
    }

    /// Two impersonations that differ in anything have different keys, also where their texts joined are the same.
    #[test]
    fn different_impersonations_have_different_keys() {
        let long = "x".repeat(MAX_BYTES);
        let users = [
            user("ab", "", &[], &[]),
            user("a", "b", &[], &[]),
            user("a", "", &["b"], &[]),
            user("a", "", &["b", ""], &[]),
            user("a", "", &["", "b"], &[]),
            user("a", "", &[], &[("b", &[])]),
            user("a", "", &[], &[("b", &["c"])]),
            user("a", "", &[], &[("b", &["c", "d"])]),
            user("a", "", &[], &[("b", &["c"]), ("d", &[])]),
            user("a", "", &["b", "c"], &[]),
            user("a", "", &["bc"], &[]),
            user("a", "request", &[], &[]),
            user("a", "", &["request"], &[]),
            user(&long, "", &[], &[]),
            user(&long, "y", &[], &[]),
        ];
        let requests =
            [("GET", "/api/v1/pods"), ("GET", "/api/v1/nodes"), ("DELETE", "/api/v1/pods"), ("GET", "/x")];
        let infos = requests.map(|(method, path)| {
            RequestInfo::parse(&Method::from_bytes(method.as_bytes()).unwrap(), path, None).unwrap()
        });
        let mut keys = Vec::new();
        for requester in &users {
            let requester = UserInfo {
                name: requester.name.clone(),
                uid: Some(requester.uid.clone()),
                groups: requester.groups.clone(),
                extra: requester.extra.clone(),
            };
            let requester = requester.into();
            for wanted in &users {
                for mode in Mode::ALL {
                    for info in &infos {
                        let asked = Impersonation {
                            asker: "",
                            requester: &requester,
                            wanted,
                            info,
                            trace: &NO_TRACE,
                        };
                        keys.push(ImpersonationKey::of_request(mode, &asked));
                    }
                    let info = infos.first().unwrap();
                    let asked =
                        Impersonation { asker: "", requester: &requester, wanted, info, trace: &NO_TRACE };
                    keys.push(ImpersonationKey::of_user(mode, &asked));
                }
            }
        }
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(keys.iter().all(|key| key.weight() < 4 * MAX_BYTES));
    }
}
