//! The documents of a session: who did what where, written when it begins, and how it ended.
//!
//! They are two, since nothing that was written is changed later: a store may allow no change, and the hash chain has both.

use portcullis_system::text::shortened;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the documents.
pub const API_VERSION: &str = "portcullis.dev/v1alpha1";

/// The maximum length of the parser's text in an error: it may quote the document.
const MAX_REASON: usize = 200;

/// Why a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is not JSON, or has a value of another type. The text may have parts of the document.
    #[error("cannot be read: {0}")]
    Invalid(String),
    /// It is another document.
    #[error("is not a {kind} of {API_VERSION}")]
    OtherKind {
        /// The kind that it should have.
        kind: &'static str,
    },
}

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
    /// Whether something of the session is not in it.
    #[serde(skip_serializing_if = "is_false")]
    pub incomplete: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl SessionStart {
    /// The kind of the document.
    pub const KIND: &str = "SessionStart";

    /// Reads a document.
    pub fn from_json(json: &[u8]) -> Result<Self, DocumentError> {
        from_json(json, Self::KIND, |document: &Self| (&document.api_version, &document.kind))
    }

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

    /// Reads a document.
    pub fn from_json(json: &[u8]) -> Result<Self, DocumentError> {
        from_json(json, Self::KIND, |document: &Self| (&document.api_version, &document.kind))
    }

    /// The document as it is stored.
    pub fn to_json(&self) -> Vec<u8> {
        let document =
            Self { api_version: API_VERSION.to_owned(), kind: Self::KIND.to_owned(), ..self.clone() };
        to_json(&document)
    }
}

/// Reads a document of this version and kind. Keys of later versions are ignored.
fn from_json<D: DeserializeOwned>(
    json: &[u8],
    kind: &'static str,
    names: impl Fn(&D) -> (&String, &String),
) -> Result<D, DocumentError> {
    let document: D = serde_json::from_slice(json)
        .map_err(|error| DocumentError::Invalid(shortened(&error.to_string(), MAX_REASON)))?;
    let (version, found) = names(&document);
    if version != API_VERSION || found != kind {
        return Err(DocumentError::OtherKind { kind });
    }
    Ok(document)
}

/// Indented JSON. A document of strings and numbers has no error.
fn to_json(document: &impl Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(document).unwrap_or_default();
    json.push(b'\n');
    json
}
