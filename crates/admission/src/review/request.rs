//! The body of a review, as kube-apiserver writes it.
// apiserver: pkg/admission/plugin/webhook/request/admissionreview.go; api: admission/v1/types.go

use bytes::Bytes;
use portcullis_go::json;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Attributes, GroupVersionKind, GroupVersionResource, Objects, Operation, ReviewVersion, UserInfo,
};

/// A review to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReviewRequest {
    /// The UID that the response must repeat.
    pub uid: String,
    /// What the request does.
    pub operation: Operation,
    /// Its resource.
    pub resource: GroupVersionResource,
    /// Its subresource; empty if there is none.
    pub subresource: String,
    /// The body.
    pub body: Bytes,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'static str,
    api_version: &'static str,
    request: AdmissionRequest<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest<'a> {
    uid: &'a str,
    kind: &'a GroupVersionKind,
    resource: &'a GroupVersionResource,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: &'a GroupVersionKind,
    request_resource: &'a GroupVersionResource,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: Operation,
    user_info: &'a UserInfo,
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
    dry_run: bool,
    options: Option<&'a Value>,
}

impl ReviewRequest {
    /// A review with a new UID. `dry_run` is that of the attributes, except for a shadow webhook.
    pub fn new(version: ReviewVersion, attributes: &Attributes, objects: &Objects, dry_run: bool) -> Self {
        Self::with_uid(uuid::Uuid::new_v4().to_string(), version, attributes, objects, dry_run)
    }

    pub(crate) fn with_uid(
        uid: String,
        version: ReviewVersion,
        attributes: &Attributes,
        objects: &Objects,
        dry_run: bool,
    ) -> Self {
        // Objects are not converted here, so both kinds are the request's own.
        let Attributes { kind, resource, subresource, .. } = attributes;
        let review = Review {
            kind: "AdmissionReview",
            api_version: version.api_version(),
            request: AdmissionRequest {
                uid: &uid,
                kind,
                resource,
                sub_resource: subresource,
                request_kind: kind,
                request_resource: resource,
                request_sub_resource: subresource,
                name: &attributes.name,
                namespace: &attributes.namespace,
                operation: attributes.operation,
                user_info: &attributes.user,
                object: objects.object.as_ref(),
                old_object: objects.old_object.as_ref(),
                dry_run,
                options: attributes.options.as_ref(),
            },
        };
        let mut body = json::encode(&review);
        body.push(b'\n');
        Self {
            uid,
            operation: attributes.operation,
            resource: resource.clone(),
            subresource: subresource.clone(),
            body: body.into(),
        }
    }
}
