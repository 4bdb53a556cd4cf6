//! From which headers an API server reads identities: it says so itself, to those who may read a config map of it.
//! They are taken out of every request, since it may believe one of them before the gateway's own.
// kubernetes: pkg/controlplane/controller/clusterauthenticationtrust/cluster_authentication_trust_controller.go

use std::collections::BTreeMap;

use http::{HeaderName, StatusCode};
use serde::Deserialize;

use crate::backend::probe::ProbeClient;
use crate::http::identity_headers::RequestHeaderNames;
use crate::user::{IdentityMode, UserInfo};

const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// What an API server says of its identity headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// These are all of them.
    Names(RequestHeaderNames),
    /// It has no such config map: it is not one of Kubernetes' own.
    Unknown,
    /// The gateway may not know.
    Forbidden,
}

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// Asks for them. An error says why there is no answer; there may be one later.
// threat: further-identity-headers
pub(super) async fn ask(line: &ProbeClient, identity: IdentityMode) -> Result<Answer, String> {
    // As all that the gateway reads for itself: where identities are impersonated, as what its credential is.
    let portcullis = UserInfo::portcullis();
    let user = (identity == IdentityMode::RequestHeader).then_some(&portcullis);
    let answer = line.ask(user, CONFIG_MAP, None).await;
    let (status, body) = answer.map_err(|error| error.to_string())?;
    judge(status, &body)
}

fn judge(status: StatusCode, body: &[u8]) -> Result<Answer, String> {
    match status {
        StatusCode::OK => names(body).map(Answer::Names).ok_or_else(|| "it is not understood".to_owned()),
        StatusCode::NOT_FOUND => Ok(Answer::Unknown),
        StatusCode::FORBIDDEN => Ok(Answer::Forbidden),
        status => Err(format!("it answered {status}")),
    }
}

fn names(body: &[u8]) -> Option<RequestHeaderNames> {
    let map: ConfigMap = serde_json::from_slice(body).ok()?;
    let list = |key: &str| -> Option<Vec<String>> {
        let json = map.data.get(key).map(String::as_str).filter(|json| !json.is_empty());
        let names: Option<Vec<String>> = serde_json::from_str(json.unwrap_or("null")).ok()?;
        // What cannot be the name of a header does not arrive as one.
        let can_be = |name: &String| HeaderName::try_from(name.trim()).is_ok();
        Some(names.unwrap_or_default().into_iter().filter(can_be).collect())
    };
    RequestHeaderNames::new(
        &list("requestheader-username-headers")?,
        &list("requestheader-uid-headers")?,
        &list("requestheader-group-headers")?,
        &list("requestheader-extra-headers-prefix")?,
    )
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(users: &[&str], groups: &[&str]) -> Answer {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        Answer::Names(RequestHeaderNames::new(&owned(users), &[], &owned(groups), &[]).unwrap())
    }

    #[test]
    fn only_an_answer_says_which_headers_there_are() {
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
            (200, "<html>".to_owned(), None),
            (404, String::new(), Some(Answer::Unknown)),
            (403, String::new(), Some(Answer::Forbidden)),
            (401, String::new(), None),
            (429, String::new(), None),
            (500, String::new(), None),
            (302, String::new(), None),
        ];
        for (code, body, expected) in cases {
            let answer = judge(StatusCode::from_u16(code).unwrap(), body.as_bytes());
            assert_eq!(answer.ok(), expected, "{code} {body}");
        }
    }
}
