//! Reads the names of the headers from which an API server takes identities, which it publishes in a ConfigMap. The
//! gateway removes these headers from every request, because the API server may prefer one to the gateway's own.
// kubernetes: pkg/controlplane/controller/clusterauthenticationtrust/cluster_authentication_trust_controller.go

use std::collections::BTreeMap;

use http::{HeaderName, StatusCode};
use portcullis_http::identity::IdentityMode;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_kubernetes::user::UserInfo;
use serde::Deserialize;

use crate::backend::probe::ProbeClient;

const KUBE_SYSTEM: &str = "/api/v1/namespaces/kube-system";
const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// The longest UID. Kubernetes' have 36 bytes; they are in the log if those of two endpoints differ.
const MAX_UID_BYTES: usize = 256;

/// The identity headers that an API server publishes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublishedHeaderNames {
    /// All names, and the UID of the ConfigMap, which tells clusters apart.
    All(RequestHeaderNames, Option<String>),
    /// The ConfigMap does not exist: the server is not kube-apiserver.
    NotFound,
    /// The gateway is not permitted to read the ConfigMap.
    Forbidden,
}

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    uid: Option<String>,
}

/// Reads the names. After an error, a later attempt may succeed.
// threat: further-identity-headers
pub(super) async fn read(
    client: &ProbeClient,
    identity: IdentityMode,
) -> Result<PublishedHeaderNames, String> {
    let (status, body) = get(client, identity, CONFIG_MAP).await?;
    parse(status, &body)
}

/// The UID of the namespace `kube-system`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NamespaceUid {
    /// The UID.
    Known(String),
    /// The server has no such namespace, or no UIDs.
    NotFound,
    /// The gateway is not permitted to read it.
    Forbidden,
}

/// Reads the UID of `kube-system`. After an error, a later attempt may succeed.
// threat: mixed-clusters
pub(super) async fn read_namespace(
    client: &ProbeClient,
    identity: IdentityMode,
) -> Result<NamespaceUid, String> {
    let failed = |cause: String| format!("the namespace kube-system cannot be read: {cause}");
    let (status, body) = get(client, identity, KUBE_SYSTEM).await.map_err(failed)?;
    parse_namespace(status, &body).map_err(failed)
}

/// Like all of the gateway's own reads: in identity mode `impersonate`, as the user of its credential.
async fn get(
    client: &ProbeClient,
    identity: IdentityMode,
    path: &str,
) -> Result<(StatusCode, Vec<u8>), String> {
    let portcullis = UserInfo::portcullis();
    let user = (identity == IdentityMode::RequestHeader).then_some(&portcullis);
    client.send(user, path, None).await.map_err(|error| error.to_string())
}

fn parse_namespace(status: StatusCode, body: &[u8]) -> Result<NamespaceUid, String> {
    match status {
        StatusCode::OK => {
            let object: ConfigMap =
                serde_json::from_slice(body).map_err(|_| format!("{KUBE_SYSTEM} cannot be parsed"))?;
            let uid = object.metadata.known_uid().ok_or_else(|| "its UID is too long".to_owned())?;
            Ok(uid.map_or(NamespaceUid::NotFound, NamespaceUid::Known))
        }
        StatusCode::NOT_FOUND => Ok(NamespaceUid::NotFound),
        StatusCode::FORBIDDEN => Ok(NamespaceUid::Forbidden),
        status => Err(format!("HTTP status {status}")),
    }
}

fn parse(status: StatusCode, body: &[u8]) -> Result<PublishedHeaderNames, String> {
    match status {
        StatusCode::OK => {
            let (names, uid) = names(body).ok_or_else(|| format!("{CONFIG_MAP} cannot be parsed"))?;
            Ok(PublishedHeaderNames::All(names, uid))
        }
        StatusCode::NOT_FOUND => Ok(PublishedHeaderNames::NotFound),
        StatusCode::FORBIDDEN => Ok(PublishedHeaderNames::Forbidden),
        status => Err(format!("HTTP status {status}")),
    }
}

fn names(body: &[u8]) -> Option<(RequestHeaderNames, Option<String>)> {
    let map: ConfigMap = serde_json::from_slice(body).ok()?;
    let list = |key: &str| -> Option<Vec<String>> {
        let json = map.data.get(key).map(String::as_str).filter(|json| !json.is_empty());
        let names: Option<Vec<String>> = serde_json::from_str(json.unwrap_or("null")).ok()?;
        // A value that is not a header name cannot arrive as one.
        let is_header_name = |name: &String| HeaderName::try_from(name.trim()).is_ok();
        Some(names.unwrap_or_default().into_iter().filter(is_header_name).collect())
    };
    let names = RequestHeaderNames::new(
        &list("requestheader-username-headers")?,
        &list("requestheader-uid-headers")?,
        &list("requestheader-group-headers")?,
        &list("requestheader-extra-headers-prefix")?,
    );
    Some((names.ok()?, map.metadata.known_uid()?))
}

impl Metadata {
    /// The UID, if there is one; `None` if it is none of Kubernetes.
    #[expect(clippy::option_option, reason = "absent and invalid are different")]
    fn known_uid(self) -> Option<Option<String>> {
        let uid = self.uid.filter(|uid| !uid.is_empty());
        uid.as_ref().is_none_or(|uid| uid.len() <= MAX_UID_BYTES).then_some(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_identifies_a_cluster_if_it_may_be_read() {
        let long = format!(r#"{{"metadata":{{"uid":"{}"}}}}"#, "u".repeat(MAX_UID_BYTES + 1));
        let cases = [
            (200, &*long, None),
            (200, r#"{"metadata":{"uid":"u"}}"#, Some(NamespaceUid::Known("u".to_owned()))),
            (200, r#"{"metadata":{}}"#, Some(NamespaceUid::NotFound)),
            (200, "ok", None),
            (404, "", Some(NamespaceUid::NotFound)),
            (403, "", Some(NamespaceUid::Forbidden)),
            (401, "", None),
            (500, "", None),
        ];
        for (code, body, expected) in cases {
            let uid = parse_namespace(StatusCode::from_u16(code).unwrap(), body.as_bytes());
            assert_eq!(uid.ok(), expected, "{code} {body}");
        }
    }

    fn names(users: &[&str], groups: &[&str]) -> PublishedHeaderNames {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        PublishedHeaderNames::All(
            RequestHeaderNames::new(&owned(users), &[], &owned(groups), &[]).unwrap(),
            None,
        )
    }

    #[test]
    fn only_a_valid_response_names_the_headers() {
        let map = |data: &str| format!(r#"{{"kind":"ConfigMap","data":{data}}}"#);
        let users =
            r#""requestheader-username-headers":"[\"X-Remote-User\",\"X-Corp-User\",\"no header\",\"\"]""#;
        let both = ["X-Remote-User", "X-Corp-User"];
        let cases = [
            (200, map(&format!("{{{users}}}")), Some(names(&both, &[]))),
            (
                200,
                map(&format!(
                    r#"{{{users},"requestheader-group-headers":"null","requestheader-uid-headers":""}}"#
                )),
                Some(names(&both, &[])),
            ),
            (200, map("{}"), Some(names(&[], &[]))),
            (200, r#"{"kind":"ConfigMap"}"#.to_owned(), Some(names(&[], &[]))),
            (200, map(&format!(r#"{{{users},"requestheader-group-headers":"X-Corp-Group"}}"#)), None),
            (200, map(r#"{"requestheader-username-headers":"{}"}"#), None),
            (200, format!(r#"{{"metadata":{{"uid":"{}"}}}}"#, "u".repeat(MAX_UID_BYTES + 1)), None),
            (200, "<html>".to_owned(), None),
            (404, String::new(), Some(PublishedHeaderNames::NotFound)),
            (403, String::new(), Some(PublishedHeaderNames::Forbidden)),
            (401, String::new(), None),
            (429, String::new(), None),
            (500, String::new(), None),
            (302, String::new(), None),
        ];
        for (code, body, expected) in cases {
            let published = parse(StatusCode::from_u16(code).unwrap(), body.as_bytes());
            assert_eq!(published.ok(), expected, "{code} {body}");
        }
    }
}
