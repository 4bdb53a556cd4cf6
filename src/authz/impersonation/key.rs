//! Keys of the impersonations that are kept: everything that an answer depends on.
// apiserver: pkg/endpoints/filters/impersonation/cache.go, buildKey

use std::cell::Cell;
use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};

use super::{Impersonation, Mode, WantedUser};
use crate::user::UserInfo;

/// Longer keys are hashed: clients choose how long they are.
const MAX_BYTES: usize = 2048;
/// What a hashed key begins with. Others begin with the length of a mode's name.
const DIGEST: u8 = 0xff;

thread_local! {
    /// The memory of the last key that was only looked up, for the next one.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An impersonation: all parts, each prefixed with its length, or their SHA-256 digest.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ImpersonationKey(Vec<u8>);

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

    /// The key without spare memory, to keep it.
    pub(super) fn exact(mut self) -> Self {
        self.0.shrink_to_fit();
        self
    }

    /// Its memory.
    pub(super) fn weight(&self) -> usize {
        size_of::<Self>() + self.0.capacity()
    }
}

impl Drop for ImpersonationKey {
    fn drop(&mut self) {
        if self.0.capacity() <= 2 * MAX_BYTES {
            BUFFER.set(std::mem::take(&mut self.0));
        }
    }
}

/// Parts, each prefixed with its length, and lists with theirs.
struct Parts(Vec<u8>);

impl Parts {
    fn of(mode: Mode, asked: &Impersonation<'_>) -> Self {
        let mut parts = Self(BUFFER.take());
        parts.0.clear();
        parts.text(mode.name());
        let UserInfo { name, uid, groups, extra } = &**asked.requester;
        parts.user(name, uid.as_deref().unwrap_or_default(), groups, extra);
        let WantedUser { name, uid, groups, extra } = asked.wanted;
        parts.user(name, uid, groups, extra);
        parts
    }

    fn user<T: AsRef<str>>(&mut self, name: &str, uid: &str, groups: &[T], extra: &BTreeMap<String, Vec<T>>) {
        self.text(name);
        self.text(uid);
        self.list(groups);
        self.length(extra.len());
        for (key, values) in extra {
            self.text(key);
            self.list(values);
        }
    }

    fn list(&mut self, texts: &[impl AsRef<str>]) {
        self.length(texts.len());
        for text in texts {
            self.text(text.as_ref());
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
        let Self(bytes) = self;
        if bytes.len() <= MAX_BYTES {
            return ImpersonationKey(bytes);
        }
        ImpersonationKey([&[DIGEST], digest(&SHA256, &bytes).as_ref()].concat())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::authz::NO_TRACE;
    use crate::request::info::RequestInfo;

    fn user<'a>(
        name: &'a str,
        uid: &'a str,
        groups: &[&'a str],
        extra: &[(&str, &[&'a str])],
    ) -> WantedUser<'a> {
        let texts = |texts: &[&'a str]| texts.iter().map(|text| (*text).into()).collect();
        WantedUser {
            name: name.into(),
            uid: uid.into(),
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
                name: requester.name.to_string(),
                uid: Some(requester.uid.to_string()),
                groups: requester.owned_groups(),
                extra: requester.owned_extra(),
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
