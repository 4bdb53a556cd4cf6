//! The user of a service-account token.
// apiserver: pkg/authentication/serviceaccount/util.go

use std::collections::BTreeMap;

use super::claims::ClaimedObject;
use crate::user::{CREDENTIAL_ID_KEY, UserInfo};

const USER_PREFIX: &str = "system:serviceaccount:";
const GROUP: &str = "system:serviceaccounts";
const POD_NAME_KEY: &str = "authentication.kubernetes.io/pod-name";
const POD_UID_KEY: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME_KEY: &str = "authentication.kubernetes.io/node-name";
const NODE_UID_KEY: &str = "authentication.kubernetes.io/node-uid";

/// The user for a service account.
pub(super) fn user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    let mut user = UserInfo::named(format!("{USER_PREFIX}{namespace}:{name}"));
    user.uid = (!uid.is_empty()).then(|| uid.to_owned());
    user.groups = vec![GROUP.to_owned(), format!("{GROUP}:{namespace}")];
    user
}

/// The extra attributes of a bound token: its ID, pod and node.
pub(super) fn extra(
    token_id: &str,
    pod: Option<&ClaimedObject>,
    node: Option<&ClaimedObject>,
) -> BTreeMap<String, Vec<String>> {
    let mut extra = BTreeMap::new();
    let mut add = |key: &str, value: String| extra.insert(key.to_owned(), vec![value]);
    if !token_id.is_empty() {
        add(CREDENTIAL_ID_KEY, format!("JTI={token_id}"));
    }
    if let Some(pod) = pod.filter(|pod| !pod.name.is_empty() && !pod.uid.is_empty()) {
        add(POD_NAME_KEY, pod.name.clone());
        add(POD_UID_KEY, pod.uid.clone());
    }
    if let Some(node) = node.filter(|node| !node.name.is_empty()) {
        add(NODE_NAME_KEY, node.name.clone());
        if !node.uid.is_empty() {
            add(NODE_UID_KEY, node.uid.clone());
        }
    }
    extra
}

/// Splits the user name of a service account into namespace and name.
pub(super) fn split(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    (is_label(namespace) && is_subdomain(name)).then_some((namespace, name))
}

/// Whether the text is an RFC 1123 label, as apimachinery validates it.
// apimachinery: pkg/util/validation/validation.go, IsDNS1123Label and IsDNS1123Subdomain
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_label_of_any_length(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_any_length)
}

fn is_label_of_any_length(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(plain)) && text.bytes().all(|byte| plain(byte) || byte == b'-')
}
