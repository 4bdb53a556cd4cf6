//! The user of a service-account token.
// apiserver: pkg/authentication/serviceaccount/util.go

use std::collections::BTreeMap;

use portcullis_kubernetes::service_account;
use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, NODE_NAME_KEY, UserInfo};

use super::claims::ClaimedObject;

const POD_NAME_KEY: &str = "authentication.kubernetes.io/pod-name";
const POD_UID_KEY: &str = "authentication.kubernetes.io/pod-uid";
const NODE_UID_KEY: &str = "authentication.kubernetes.io/node-uid";

/// The user for a service account.
pub(super) fn user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    let mut user = UserInfo::named(service_account::name(namespace, name));
    user.uid = (!uid.is_empty()).then(|| uid.to_owned());
    user.groups = service_account::groups(namespace);
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
