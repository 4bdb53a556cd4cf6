//! The user that `Impersonate-*` headers ask for.
// apiserver: pkg/endpoints/filters/impersonation/constrained_impersonation.go, processImpersonationHeaders

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::extra_key::decode_extra_key;
use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, UserInfo};

use crate::authz::access_review::given;

const EXTRA_PREFIX: &str = "impersonate-extra-";
/// The longest value: hundreds of access reviews may wait, and each holds one.
const MAX_VALUE_BYTES: usize = 16 << 10;

/// The user as asked for, without any default. It borrows from the headers: most impersonations are known, and are only
/// looked up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedUser<'a> {
    /// The user name; not empty.
    pub(super) name: Cow<'a, str>,
    /// The UID, or nothing.
    pub(super) uid: Cow<'a, str>,
    /// The groups, in order.
    pub(super) groups: WantedGroups<'a>,
    /// The extra attributes.
    pub(super) extra: WantedExtra<'a>,
}

/// Groups as asked for, mostly few.
pub(super) type WantedGroups<'a> = SmallVec<[Cow<'a, str>; 2]>;

/// Extra attributes as asked for.
pub(super) type WantedExtra<'a> = BTreeMap<String, Vec<Cow<'a, str>>>;

/// Why headers ask for no user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadImpersonation {
    /// Attributes without a user name, as Go prints them.
    #[error("requested {0} without impersonating a user name")]
    NoName(String),
    /// A value that no access review could carry as it is.
    #[error("the value of an impersonation header is not UTF-8")]
    NotText,
    /// A value that would make each access review about it large.
    #[error("the value of an impersonation header is longer than {MAX_VALUE_BYTES} bytes")]
    TooLong,
}

impl<'a> WantedUser<'a> {
    /// The user that the headers of a request ask for; `None` if they ask for none. Of several names or UIDs, the first counts.
    pub(crate) fn of(
        headers: impl IntoIterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    ) -> Result<Option<Self>, BadImpersonation> {
        let (mut name, mut uid) = (None, None);
        let mut wanted = Self::default();
        for (header, value) in headers {
            match header.as_str() {
                "impersonate-user" if name.is_none() => name = Some(text(value)?),
                "impersonate-uid" if uid.is_none() => uid = Some(text(value)?),
                "impersonate-group" => wanted.groups.push(text(value)?),
                header => {
                    if let Some(key) = header.strip_prefix(EXTRA_PREFIX) {
                        let key = decode_extra_key(key).map_err(|_| BadImpersonation::NotText)?;
                        wanted.extra.entry(key).or_default().push(text(value)?);
                    }
                }
            }
        }
        wanted.name = name.unwrap_or_default();
        wanted.uid = uid.unwrap_or_default();
        let has_attributes = !wanted.uid.is_empty() || !wanted.groups.is_empty() || !wanted.extra.is_empty();
        match (wanted.name.is_empty(), has_attributes) {
            (true, true) => Err(BadImpersonation::NoName(wanted.to_string())),
            (true, false) => Ok(None),
            (false, _) => Ok(Some(wanted)),
        }
    }
}

impl WantedUser<'_> {
    /// The user, without what an impersonation adds.
    pub(crate) fn user(&self) -> UserInfo {
        UserInfo {
            name: self.name.to_string(),
            uid: given(&self.uid),
            groups: self.owned_groups(),
            extra: self.owned_extra(),
        }
    }

    /// What of the user a deny list may name.
    pub(crate) fn deniable(&self) -> UserInfo {
        let ids = self.extra.get_key_value(CREDENTIAL_ID_KEY);
        let owned = |values: &Vec<Cow<'_, str>>| values.iter().map(Cow::to_string).collect();
        UserInfo {
            extra: ids.map(|(key, values)| (key.clone(), owned(values))).into_iter().collect(),
            ..UserInfo::named(&*self.name)
        }
    }

    /// The same without the headers.
    pub(crate) fn into_owned(self) -> WantedUser<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let Self { name, uid, groups, extra } = self;
        let groups = groups.into_iter().map(own).collect();
        let own_values = |values: Vec<Cow<'_, str>>| values.into_iter().map(own).collect();
        let extra = extra.into_iter().map(|(key, values)| (key, own_values(values))).collect();
        WantedUser { name: own(name), uid: own(uid), groups, extra }
    }

    pub(super) fn owned_groups(&self) -> Vec<String> {
        self.groups.iter().map(Cow::to_string).collect()
    }

    pub(super) fn owned_extra(&self) -> BTreeMap<String, Vec<String>> {
        let owned = |values: &Vec<Cow<'_, str>>| values.iter().map(Cow::to_string).collect();
        self.extra.iter().map(|(key, values)| (key.clone(), owned(values))).collect()
    }
}

// threat: review-flood
fn text(value: &HeaderValue) -> Result<Cow<'_, str>, BadImpersonation> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(BadImpersonation::TooLong);
    }
    std::str::from_utf8(value.as_bytes()).map(Cow::Borrowed).map_err(|_| BadImpersonation::NotText)
}

/// As Go prints it with `%#v`.
// apiserver: pkg/authentication/user/user.go, DefaultInfo
impl fmt::Display for WantedUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, uid, groups, extra } = self;
        let list = |texts: &[Cow<'_, str>]| {
            let quoted: Vec<String> = texts.iter().map(|text| Quoted(text).to_string()).collect();
            format!("[]string{{{}}}", quoted.join(", "))
        };
        let groups = if groups.is_empty() { "[]string(nil)".to_owned() } else { list(groups) };
        let extra: Vec<String> =
            extra.iter().map(|(key, values)| format!("{}:{}", Quoted(key), list(values))).collect();
        let extra = if extra.is_empty() { "(nil)".to_owned() } else { format!("{{{}}}", extra.join(", ")) };
        let (name, uid) = (Quoted(name), Quoted(uid));
        write!(
            f,
            "&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:map[string][]string{extra}}}"
        )
    }
}
