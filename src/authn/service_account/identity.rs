//! The user of a service-account token.
// apiserver: pkg/authentication/serviceaccount/util.go

use std::collections::BTreeMap;

use portcullis_kubernetes::service_account;
use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, NODE_NAME_KEY, UserInfo};

use super::bound_objects::BoundObject;

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

/// The extra attributes of a credential that is bound to objects: its ID, pod and node.
pub(super) fn extra(
    credential: Option<String>,
    pod: Option<BoundObject<'_>>,
    node: Option<BoundObject<'_>>,
) -> BTreeMap<String, Vec<String>> {
    let mut extra = BTreeMap::new();
    let mut add = |key: &str, value: String| extra.insert(key.to_owned(), vec![value]);
    if let Some(credential) = credential {
        add(CREDENTIAL_ID_KEY, credential);
    }
    if let Some(pod) = pod.filter(|pod| !pod.name.is_empty() && !pod.uid.is_empty()) {
        add(POD_NAME_KEY, pod.name.to_owned());
        add(POD_UID_KEY, pod.uid.to_owned());
    }
    if let Some(node) = node.filter(|node| !node.name.is_empty()) {
        add(NODE_NAME_KEY, node.name.to_owned());
        if !node.uid.is_empty() {
            add(NODE_UID_KEY, node.uid.to_owned());
        }
    }
    extra
}
