//! Which requests count as one user's.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use portcullis_http::peer::client_network;
use portcullis_kubernetes::service_account;
use portcullis_kubernetes::user::{ANONYMOUS, UserInfo};

/// Between the anonymous user and its network.
const AT: &str = " at ";

/// The name of a flow: requests that share one queue and one fair share of the places.
pub(crate) type FlowName = Arc<str>;

/// The flow of a client's requests, and the share in which what it makes the gateway ask for and keep counts: its own user name,
/// not that of an impersonated user; of a service account the namespace, because a user who may create one service account
/// there may create many; of an anonymous client its network.
// threat: inflight-flood, review-flood
pub(crate) fn flow_of(requester: &UserInfo, client: IpAddr) -> Cow<'_, str> {
    if requester.is_unauthenticated() {
        return format!("{ANONYMOUS}{AT}{}", client_network(client)).into();
    }
    service_account::namespace_prefix(&requester.name).unwrap_or(&requester.name).into()
}

/// Whether a flow is that of anonymous clients. A user whose name is like one is treated as one, and gets less.
pub(crate) fn is_anonymous(flow: &str) -> bool {
    flow.strip_prefix(ANONYMOUS).is_some_and(|rest| rest.starts_with(AT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_users_namespaces_and_networks() {
        let flow = |user: UserInfo, client: &str| flow_of(&user, client.parse().unwrap()).to_string();
        let cases = [
            ("alice", "10.0.0.1", "alice"),
            ("system:node:one", "10.0.0.1", "system:node:one"),
            ("system:serviceaccount:ci:builder", "10.0.0.1", "system:serviceaccount:ci"),
            ("system:serviceaccount:ci:deployer", "10.0.0.2", "system:serviceaccount:ci"),
            // Not the name of a service account.
            ("system:serviceaccount:ci", "10.0.0.1", "system:serviceaccount:ci"),
            ("system:serviceaccount:C_I:x", "10.0.0.1", "system:serviceaccount:C_I:x"),
        ];
        for (user, client, expected) in cases {
            assert_eq!(flow(UserInfo::named(user), client), expected);
        }
        assert_eq!(flow(UserInfo::anonymous(), "10.0.0.1"), "system:anonymous at 10.0.0.1");
        assert_eq!(flow(UserInfo::anonymous(), "::ffff:10.0.0.1"), "system:anonymous at 10.0.0.1");
        assert_eq!(
            flow(UserInfo::anonymous(), "2001:db8::1"),
            flow(UserInfo::anonymous(), "2001:db8::2:3"),
            "one /64 is one client"
        );
        for (flow, expected) in
            [("system:anonymous at 10.0.0.1", true), ("system:anonymous", false), ("alice at home", false)]
        {
            assert_eq!(is_anonymous(flow), expected, "{flow}");
        }
    }
}
