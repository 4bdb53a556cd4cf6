//! Keys of the impersonations that are kept: everything that a decision depends on.
// apiserver: pkg/endpoints/filters/impersonation/cache.go, buildKey

use std::cell::Cell;

use aws_lc_rs::digest::{SHA256, digest};
use portcullis_http::identity::Parts;

use super::{Impersonation, Mode, WantedUser};

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
    pub(super) fn of_request(mode: Mode, asked: &Impersonation<'_, '_>) -> Self {
        let mut parts = user_parts(mode, asked);
        parts.text("request");
        parts.text(asked.info.verb());
        parts.text(asked.info.path());
        if let Some((fields, labels)) = asked.info.selectors() {
            parts.text(fields);
            parts.text(labels);
            parts.text(asked.info.object_name());
        }
        Self::of(parts)
    }

    /// Of a mode, a requester and a wanted user.
    pub(super) fn of_user(mode: Mode, asked: &Impersonation<'_, '_>) -> Self {
        Self::of(user_parts(mode, asked))
    }

    fn of(parts: Parts) -> Self {
        let bytes = parts.into_bytes();
        if bytes.len() <= MAX_BYTES {
            return Self(bytes);
        }
        Self([&[DIGEST], digest(&SHA256, &bytes).as_ref()].concat())
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

/// The parts of a mode, a requester and a wanted user. The requester may have hundreds of groups, which are the same in all
/// its requests.
fn user_parts(mode: Mode, asked: &Impersonation<'_, '_>) -> Parts {
    let mut parts = Parts::within(BUFFER.take());
    parts.text(mode.name());
    parts.digest(asked.requester.digest());
    let WantedUser { name, uid, groups, extra } = asked.wanted;
    parts.user(name, uid, groups, extra);
    parts
}

#[cfg(test)]
mod tests {
    use http::Method;
    use portcullis_kubernetes::user::UserInfo;

    use super::*;
    use crate::authz::NO_TRACE;
    use crate::request::info::RequestInfo;

    fn user<'a>(
        name: &'a str,
        uid: &'a str,
        groups: &[&'a str],
        extra: &[(&str, &[&'a str])],
    ) -> WantedUser<'a> {
        let values = |values: &[&'a str]| values.iter().map(|value| (*value).into()).collect();
        WantedUser {
            name: name.into(),
            uid: uid.into(),
            groups: groups.iter().map(|group| (*group).into()).collect(),
            extra: extra.iter().map(|(key, texts)| ((*key).to_owned(), values(texts))).collect(),
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
        let requests = [
            ("GET", "/api/v1/pods", None),
            ("GET", "/api/v1/pods", Some("fieldSelector=spec.nodeName%3Da")),
            ("GET", "/api/v1/pods", Some("labelSelector=spec.nodeName%3Da")),
            ("GET", "/api/v1/pods", Some("fieldSelector=metadata.name%3Da")),
            ("GET", "/api/v1/nodes", None),
            ("DELETE", "/api/v1/pods", None),
            ("GET", "/x", None),
        ];
        let infos = requests.map(|(method, path, query)| {
            RequestInfo::parse(&Method::from_bytes(method.as_bytes()).unwrap(), path, query).unwrap()
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
                        let asked =
                            Impersonation { flow: "", requester: &requester, wanted, info, trace: &NO_TRACE };
                        keys.push(ImpersonationKey::of_request(mode, &asked));
                    }
                    let info = infos.first().unwrap();
                    let asked =
                        Impersonation { flow: "", requester: &requester, wanted, info, trace: &NO_TRACE };
                    keys.push(ImpersonationKey::of_user(mode, &asked));
                }
            }
        }
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(keys.iter().all(|key| key.weight() < 4 * MAX_BYTES));
    }

    /// A key that is only looked up takes the memory of the one before.
    #[test]
    fn nothing_of_a_longer_key_is_in_the_next() {
        let requester = UserInfo::named("requester").into();
        let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", None).unwrap();
        let key = |name: &str| {
            let wanted = user(name, "", &[], &[]);
            let asked = Impersonation {
                flow: "",
                requester: &requester,
                wanted: &wanted,
                info: &info,
                trace: &NO_TRACE,
            };
            ImpersonationKey::of_request(Mode::UserInfo, &asked)
        };
        let fresh = std::thread::scope(|scope| scope.spawn(|| key("a")).join().unwrap());
        for length in [1, 1000, MAX_BYTES] {
            let longer = key(&"x".repeat(length));
            let memory = longer.0.as_ptr();
            drop(longer);
            let next = key("a");
            assert_eq!(next, fresh, "after a name of {length} bytes");
            if length < MAX_BYTES {
                assert_eq!(next.0.as_ptr(), memory, "after a name of {length} bytes");
            }
        }
    }
}
