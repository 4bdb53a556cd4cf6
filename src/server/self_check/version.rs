//! Reads the version of an API server: for the status of its cluster, and for the rules of impersonation that it has
//! (`backend/server_version.rs`). Decides nothing.

use std::time::Duration;

use http::StatusCode;
use portcullis_kubernetes::release::minor_of_server;
use portcullis_kubernetes::user::UserInfo;
use serde::Deserialize;
use tokio::time::timeout;

use crate::backend::probe::ProbeClient;

const PATH: &str = "/version";
/// How long the version may delay the use of an API server that has passed the self-check. A version that comes later is
/// not known.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between the release that counts and the version of an API server that emulates it.
const EMULATED_BY: &str = "+emulated.by.";
/// The longest version that is kept.
const MAX_LENGTH: usize = 64;

// apimachinery: pkg/version/types.go
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    git_version: String,
    /// Of the release whose feature gates it has (`--emulated-version`), from 1.34 on.
    emulation_major: Option<String>,
    emulation_minor: Option<String>,
}

/// Reads the version as the user of the self-check, whom every cluster allows to read it by default; `None` if the API
/// server does not say.
// kubernetes: plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go, system:public-info-viewer
pub(super) async fn read(client: &ProbeClient, user: &UserInfo) -> Option<String> {
    let (status, body) = timeout(TIMEOUT, client.send(Some(user), PATH, None)).await.ok()?.ok()?;
    if status == StatusCode::OK { parse(&body) } else { None }
}

/// What the API server is, also if it emulates an older release.
pub(super) fn own(version: &str) -> &str {
    version.split_once(EMULATED_BY).map_or(version, |(_, own)| own)
}

fn parse(body: &[u8]) -> Option<String> {
    let Info { git_version: version, emulation_major, emulation_minor } =
        serde_json::from_slice(body).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+-_".contains(&byte);
    if version.is_empty() || version.len() > MAX_LENGTH || !version.bytes().all(is_plain) {
        return None;
    }
    // What it does by an older release counts, and not what it is.
    // threat: unauthorized-impersonation
    let [major, minor] =
        [emulation_major, emulation_minor].map(|number| number.filter(|number| !number.is_empty()));
    let emulated = match (major.as_deref(), minor) {
        (None, None) => return Some(version),
        (Some("1"), Some(minor)) => minor.parse::<u32>().ok()?,
        _ => return None,
    };
    let is_older = minor_of_server(&version).is_none_or(|own| emulated < own);
    Some(if is_older { format!("v1.{emulated}.0{EMULATED_BY}{version}") } else { version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_short_and_plain() {
        let long = format!(r#"{{"gitVersion":"{}"}}"#, "1".repeat(MAX_LENGTH + 1));
        let cases = [
            (r#"{"major":"1","gitVersion":"v1.36.3-eks-a1b2+dirty"}"#, Some("v1.36.3-eks-a1b2+dirty")),
            (r#"{"gitVersion":"v1\u001b[2J"}"#, None),
            (r#"{"gitVersion":""}"#, None),
            (r#"{"gitVersion":1}"#, None),
            ("ok", None),
            (&long, None),
            (r#"{"gitVersion":"v1.37.2","emulationMajor":"1","emulationMinor":"37"}"#, Some("v1.37.2")),
            (
                r#"{"gitVersion":"v1.37.2","emulationMajor":"1","emulationMinor":"35"}"#,
                Some("v1.35.0+emulated.by.v1.37.2"),
            ),
            (r#"{"gitVersion":"v1.35.2","emulationMajor":"1","emulationMinor":"37"}"#, Some("v1.35.2")),
            (r#"{"gitVersion":"v1.37.2","emulationMajor":"1","emulationMinor":"x"}"#, None),
            (r#"{"gitVersion":"v1.37.2","emulationMinor":"37"}"#, None),
        ];
        for (body, expected) in cases {
            assert_eq!(parse(body.as_bytes()).as_deref(), expected, "{body}");
        }
        assert_eq!(own("v1.35.0+emulated.by.v1.37.2"), "v1.37.2");
        assert_eq!(own("v1.37.2+k3s1"), "v1.37.2+k3s1");
    }
}
