//! The documents of a session: who did what where, written when it begins, and how it ended.
//!
//! They are two, since nothing that was written is changed later: a store may allow no change, and the hash chain has both.

use serde::{Deserialize, Serialize};

/// The version of the documents.
pub const API_VERSION: &str = "portcullis.dev/v1alpha1";

/// The document that is written before the session begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionStart {
    /// The version of the document.
    pub api_version: String,
    /// `SessionStart`.
    pub kind: String,
    /// The ID of the request in the audit log.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The user as the backend sees it.
    pub user: SessionUser,
    /// The client, if it impersonates the user. Rules match the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<SessionUser>,
    /// The ID of the credential of the client, such as `X509SHA256=…`.
    #[serde(rename = "credentialID", skip_serializing_if = "Option::is_none")]
    pub credential_id: Option<String>,
    /// The cluster's name in the gateway's configuration.
    pub cluster: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The subresource: `exec`, `attach` or `portforward`.
    pub subresource: String,
    /// The container; absent if the request names none, and then the pod's default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The image of the container, if it is one for debugging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_image: Option<String>,
    /// The command and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Whether the session has a terminal.
    pub tty: bool,
    /// Whether standard input is connected.
    pub stdin: bool,
    /// The level of the recording.
    pub level: String,
    /// The time of the start, in RFC 3339 with milliseconds.
    pub start: String,
}

/// A user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionUser {
    /// The name.
    pub name: String,
    /// The groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// The document that is written after the session has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionEnd {
    /// The version of the document.
    pub api_version: String,
    /// `SessionEnd`.
    pub kind: String,
    /// The time of the end, in RFC 3339 with milliseconds.
    pub end: String,
    /// The duration in milliseconds.
    pub duration_milliseconds: u64,
    /// The reason of the end.
    pub reason: String,
    /// The exit code of the process, if the server has told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The server's message of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Bytes of standard input, or of clients of forwarded connections.
    pub client_bytes: u64,
    /// Bytes of the outputs, or of servers of forwarded connections.
    pub server_bytes: u64,
    /// The number of forwarded connections.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections: u64,
    /// The number of parts of the recording.
    pub parts: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl SessionStart {
    /// The kind of the document.
    pub const KIND: &str = "SessionStart";

    /// The document as it is stored.
    pub fn to_json(&self) -> Vec<u8> {
        let document =
            Self { api_version: API_VERSION.to_owned(), kind: Self::KIND.to_owned(), ..self.clone() };
        to_json(&document)
    }
}

impl SessionEnd {
    /// The kind of the document.
    pub const KIND: &str = "SessionEnd";

    /// The document as it is stored.
    pub fn to_json(&self) -> Vec<u8> {
        let document =
            Self { api_version: API_VERSION.to_owned(), kind: Self::KIND.to_owned(), ..self.clone() };
        to_json(&document)
    }
}

/// Indented JSON. A document of strings and numbers has no error.
fn to_json(document: &impl Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(document).unwrap_or_default();
    json.push(b'\n');
    json
}
