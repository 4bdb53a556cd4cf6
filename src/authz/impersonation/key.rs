//! Keys of the impersonations that are kept: hashes of everything that an answer depends on.
// apiserver: pkg/endpoints/filters/impersonation/cache.go, buildKey

use aws_lc_rs::digest::{Context, SHA256};

use super::{Impersonation, Mode, WantedUser};
use crate::user::UserInfo;

/// An impersonation, by hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ImpersonationKey([u8; 32]);

/// The name of a requester, by hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RequesterKey([u8; 32]);

impl RequesterKey {
    pub(super) fn of(name: &str) -> Self {
        let mut hasher = Hasher(Context::new(&SHA256));
        hasher.text(name);
        Self(hasher.finish())
    }
}

impl ImpersonationKey {
    /// Of a mode, a requester, a wanted user, and a request.
    pub(super) fn of_request(mode: Mode, asked: &Impersonation<'_>) -> Self {
        let mut hasher = Hasher::of(mode, asked);
        hasher.text("request");
        hasher.text(asked.info.verb());
        hasher.text(asked.info.path());
        if let Some(resource) = asked.info.resource() {
            hasher.text(resource.field_selector);
            hasher.text(resource.label_selector);
            hasher.text(asked.info.object_name());
        }
        Self(hasher.finish())
    }

    /// Of a mode, a requester and a wanted user.
    pub(super) fn of_user(mode: Mode, asked: &Impersonation<'_>) -> Self {
        Self(Hasher::of(mode, asked).finish())
    }
}

/// Each part is prefixed with its length.
struct Hasher(Context);

impl Hasher {
    fn of(mode: Mode, asked: &Impersonation<'_>) -> Self {
        let mut hasher = Self(Context::new(&SHA256));
        hasher.text(mode.name());
        let UserInfo { name, uid, groups, extra } = &**asked.requester;
        hasher.user(name, uid.as_deref().unwrap_or_default(), groups, extra);
        let WantedUser { name, uid, groups, extra } = asked.wanted;
        hasher.user(name, uid, groups, extra);
        hasher
    }

    fn user(
        &mut self,
        name: &str,
        uid: &str,
        groups: &[String],
        extra: &std::collections::BTreeMap<String, Vec<String>>,
    ) {
        self.text(name);
        self.text(uid);
        self.list(groups);
        self.0.update(&extra.len().to_be_bytes());
        for (key, values) in extra {
            self.text(key);
            self.list(values);
        }
    }

    fn list(&mut self, texts: &[String]) {
        self.0.update(&texts.len().to_be_bytes());
        for text in texts {
            self.text(text);
        }
    }

    fn text(&mut self, text: &str) {
        self.0.update(&text.len().to_be_bytes());
        self.0.update(text.as_bytes());
    }

    fn finish(self) -> [u8; 32] {
        let mut key = [0; 32];
        // A SHA-256 digest has 32 bytes.
        key.iter_mut().zip(self.0.finish().as_ref()).for_each(|(to, from)| *to = *from);
        key
    }
}
