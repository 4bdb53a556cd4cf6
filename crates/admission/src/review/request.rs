//! The body of a review, as kube-apiserver writes it.
// apiserver: pkg/admission/plugin/webhook/request/admissionreview.go; api: admission/v1/types.go

use bytes::Bytes;
use portcullis_go::json;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Attributes, GroupVersionKind, GroupVersionResource, Objects, Operation, ReviewVersion, ServedResource,
    SharedObjects, UserInfo,
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
    /// The beginning of the body, with the UID.
    pub head: Bytes,
    /// The rest of the body.
    pub rest: Bytes,
}

/// What the reviews of a request for all webhooks have in common: everything behind the UID, as text. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReviewText(Bytes);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest<'a> {
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

impl ReviewText {
    /// The text for these objects, which are in the form of `seen`. `dry_run` is that of the attributes, except for a shadow webhook.
    pub(crate) fn new(
        attributes: &Attributes,
        seen: &ServedResource,
        objects: &SharedObjects,
        dry_run: bool,
    ) -> Self {
        let subresource = &attributes.subresource;
        let request = AdmissionRequest {
            kind: &seen.kind,
            resource: &seen.resource,
            sub_resource: subresource,
            request_kind: &attributes.kind,
            request_resource: &attributes.resource,
            request_sub_resource: subresource,
            name: &attributes.name,
            namespace: &attributes.namespace,
            operation: attributes.operation,
            user_info: &attributes.user,
            object: objects.object.as_deref(),
            old_object: objects.old_object.as_deref(),
            dry_run,
            options: attributes.options.as_ref(),
        };
        let mut text = json::encode(&request);
        text.extend_from_slice(b"}\n");
        Self(Bytes::from(text).slice(1..))
    }
}

impl ReviewRequest {
    /// A review with a new UID. `dry_run` is that of the attributes, except for a shadow webhook.
    pub fn new(version: ReviewVersion, attributes: &Attributes, objects: &Objects, dry_run: bool) -> Self {
        let objects = SharedObjects::take(&mut objects.clone());
        let text = ReviewText::new(attributes, &attributes.requested(), &objects, dry_run);
        Self::with_text(version, attributes, &text)
    }

    /// A review with a new UID, whose text other webhooks receive as well.
    pub(crate) fn with_text(version: ReviewVersion, attributes: &Attributes, text: &ReviewText) -> Self {
        Self::with_uid(uuid::Uuid::new_v4().to_string(), version, attributes, text)
    }

    pub(crate) fn with_uid(
        uid: String,
        version: ReviewVersion,
        attributes: &Attributes,
        text: &ReviewText,
    ) -> Self {
        let api_version = version.api_version();
        let head =
            format!(r#"{{"kind":"AdmissionReview","apiVersion":"{api_version}","request":{{"uid":"{uid}","#);
        Self {
            uid,
            operation: attributes.operation,
            resource: attributes.resource.clone(),
            subresource: attributes.subresource.clone(),
            head: head.into(),
            rest: text.0.clone(),
        }
    }

    /// The whole body.
    pub fn body(&self) -> Vec<u8> {
        [&*self.head, &*self.rest].concat()
    }
}
