//! What a request does to which resource, as admission sees it.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};
use portcullis_admission::{GroupVersionResource, Operation};
use portcullis_http::hop_by_hop::requested_upgrade;

use crate::backend::sharing::extension_group;
use crate::request::info::{RequestInfo, RequestResource};

/// A request that webhooks may be interested in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) action: Action,
    pub(super) resource: GroupVersionResource,
    /// Empty if there is none.
    pub(super) subresource: String,
    /// The name in the path; empty if there is none.
    pub(super) name: String,
    /// The namespace; of a Namespace object its own name.
    pub(super) namespace: String,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Create,
    Update,
    Patch(PatchKind),
    Delete,
    DeleteCollection,
    /// A connection to a pod, a node or a service.
    Connect,
    /// An upgrade that an API server other than kube-apiserver may answer: what its options are is unknown.
    ForeignConnect,
}

/// Whether a patch is an applied configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchKind {
    Apply,
    /// A JSON patch, merge patch or strategic merge patch.
    Other,
}

/// The resources that kube-apiserver connects to.
// kubernetes: pkg/registry/core/{pod,node,service}/…, rest.Connecter
const CONNECTS: [(&str, &str); 6] = [
    ("pods", "attach"),
    ("pods", "exec"),
    ("pods", "portforward"),
    ("pods", "proxy"),
    ("services", "proxy"),
    ("nodes", "proxy"),
];

impl Subject {
    pub(super) fn new(action: Action, resource: &RequestResource<'_>) -> Self {
        Self {
            action,
            resource: GroupVersionResource {
                group: resource.group.to_owned(),
                version: resource.version.to_owned(),
                resource: resource.resource.to_owned(),
            },
            subresource: resource.subresource.to_owned(),
            name: resource.name.to_owned(),
            namespace: resource.namespace.to_owned(),
        }
    }
}

impl Action {
    /// The action of a request on a resource; `None` if kube-apiserver has no admission for it.
    pub(super) fn of(
        method: &Method,
        headers: &HeaderMap,
        info: &RequestInfo,
        resource: &RequestResource<'_>,
    ) -> Option<Self> {
        let RequestResource { group, version, resource, subresource, .. } = *resource;
        if group.is_empty() && version == "v1" && CONNECTS.contains(&(resource, subresource)) {
            return Some(Self::Connect);
        }
        let is_read = matches!(*method, Method::GET | Method::HEAD) && info.verb() != "watch";
        if is_read && extension_group(info.path()).is_some() && requested_upgrade(headers).is_some() {
            return Some(Self::ForeignConnect);
        }
        Some(match *method {
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch(patch_kind(headers)),
            Method::DELETE if info.verb() == "deletecollection" => Self::DeleteCollection,
            Method::DELETE => Self::Delete,
            _ => return None,
        })
    }

    /// The operations that it may turn out to be: a write to an absent name may create it, unless it is a patch that is no applied
    /// configuration.
    // apiserver: pkg/endpoints/handlers/patch.go, createNewObject
    pub(super) fn operations(self) -> &'static [Operation] {
        match self {
            Self::Create => &[Operation::Create],
            Self::Update | Self::Patch(PatchKind::Apply) => &[Operation::Update, Operation::Create],
            Self::Patch(PatchKind::Other) => &[Operation::Update],
            Self::Delete | Self::DeleteCollection => &[Operation::Delete],
            Self::Connect | Self::ForeignConnect => &[Operation::Connect],
        }
    }
}

// apiserver: pkg/endpoints/handlers/patch.go, PatchResource
fn patch_kind(headers: &HeaderMap) -> PatchKind {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default();
    if content_type.starts_with("application/apply-patch+") { PatchKind::Apply } else { PatchKind::Other }
}

#[cfg(test)]
mod tests {
    use http::header::{CONNECTION, UPGRADE};

    use super::*;

    fn subject(method: &Method, target: &str, headers: &[(http::HeaderName, &str)]) -> Option<Subject> {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let info = RequestInfo::parse(method, path, query).unwrap();
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        let resource = info.resource()?;
        Some(Subject::new(Action::of(method, &headers, &info, &resource)?, &resource))
    }

    #[test]
    fn every_write_and_connection_has_an_action() {
        type Case<'a> = (Method, &'a str, &'a [(http::HeaderName, &'a str)], Option<Action>);
        let upgrade = [(CONNECTION, "Upgrade"), (UPGRADE, "websocket")];
        let apply = [(CONTENT_TYPE, "application/apply-patch+yaml; charset=utf-8")];
        let merge = [(CONTENT_TYPE, "application/merge-patch+json")];
        let cases: &[Case<'_>] = &[
            (Method::POST, "/api/v1/namespaces/n/pods", &[], Some(Action::Create)),
            (Method::POST, "/api/v1/namespaces/n/pods/p/eviction", &[], Some(Action::Create)),
            (Method::PUT, "/api/v1/namespaces/n/pods/p/status", &[], Some(Action::Update)),
            (Method::PATCH, "/api/v1/namespaces/n", &apply, Some(Action::Patch(PatchKind::Apply))),
            (Method::PATCH, "/api/v1/namespaces/n", &merge, Some(Action::Patch(PatchKind::Other))),
            (Method::PATCH, "/api/v1/namespaces/n", &[], Some(Action::Patch(PatchKind::Other))),
            (Method::DELETE, "/api/v1/namespaces/n/pods/p", &[], Some(Action::Delete)),
            (Method::DELETE, "/api/v1/namespaces/n/pods", &[], Some(Action::DeleteCollection)),
            (Method::DELETE, "/api/v1/namespaces/n/pods/", &[], Some(Action::DeleteCollection)),
            (Method::GET, "/api/v1/namespaces/n/pods/p", &[], None),
            (Method::HEAD, "/api/v1/namespaces/n/pods/p", &[], None),
            (Method::GET, "/api/v1/namespaces/n/pods?watch=1", &upgrade, None),
            (Method::GET, "/api/v1/namespaces/n/pods/p/log", &[], None),
            (Method::GET, "/api/v1/namespaces/n/pods/p/exec", &upgrade, Some(Action::Connect)),
            (Method::POST, "/api/v1/namespaces/n/pods/p/exec", &[], Some(Action::Connect)),
            (Method::DELETE, "/api/v1/namespaces/n/services/s/proxy/x", &[], Some(Action::Connect)),
            (Method::HEAD, "/api/v1/nodes/n/proxy/", &[], Some(Action::Connect)),
            (
                Method::GET,
                "/apis/sub.kubevirt.io/v1/namespaces/n/v/w/console",
                &upgrade,
                Some(Action::ForeignConnect),
            ),
            (Method::GET, "/apis/kubevirt.io/v1/namespaces/n/v?watch=1", &upgrade, None),
            (Method::POST, "/apis/apps/v1", &[], None),
            (Method::POST, "/healthz", &[], None),
        ];
        for (method, target, headers, expected) in cases {
            let action = subject(method, target, headers).map(|subject| subject.action);
            assert_eq!(action, *expected, "{method} {target}");
        }
    }

    #[test]
    fn a_namespace_object_is_in_the_namespace_of_its_name() {
        let subject = subject(&Method::PUT, "/api/v1/namespaces/n/status", &[]).unwrap();
        assert_eq!((subject.namespace.as_str(), subject.name.as_str()), ("n", "n"));
        assert_eq!(
            (subject.resource.resource.as_str(), subject.subresource.as_str()),
            ("namespaces", "status")
        );
    }
}
