//! Asks the cluster who the user is: a `SelfSubjectReview` with the token of the login.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::ServerName;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::Value;

use super::error::{LoginError, shortened};
use super::session::Credential;
use super::settings::roots;
use crate::http::client_tls::{ClientTls, TrustedRoots};
use crate::http::https_client::{HttpsClient, HttpsRequest};
use crate::input_file;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// The user, as the cluster sees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ReviewedUser {
    #[serde(default)]
    pub(super) username: String,
    #[serde(default)]
    pub(super) groups: Vec<String>,
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    user_info: ReviewedUser,
}

/// The part of a `Status` that people read.
#[derive(Deserialize)]
struct RefusedReview {
    message: String,
}

/// Asks the cluster of a kubeconfig entry. Relative files are relative to `directory`, as in kubectl.
pub(super) async fn review(
    cluster: &Value,
    directory: &Path,
    credential: &Credential,
) -> Result<ReviewedUser, LoginError> {
    const DOING: &str = "ask the cluster who you are";
    let server = cluster.get("server").and_then(Value::as_str).unwrap_or_default().trim_end_matches('/');
    let tls = tls(cluster, directory).map_err(|problem| LoginError::answer(DOING, problem))?;
    let http = HttpsClient::new(&tls, &Arc::new(default_provider()))
        .map_err(|error| LoginError::answer(DOING, error))?;
    let url = format!("{server}{REVIEWS}");
    let request = HttpsRequest::post(&url, REVIEW).bearer(Some(credential.token.expose_secret()));
    let response = http.send(request).await.map_err(|cause| LoginError::Http { doing: DOING, cause })?;
    match response.status {
        StatusCode::OK | StatusCode::CREATED => {
            let review = serde_json::from_slice::<Review>(&response.body);
            let user = review.map(|review| review.status.user_info);
            user.map_err(|_| {
                LoginError::answer(DOING, format!("{server} does not answer with a SelfSubjectReview"))
            })
        }
        StatusCode::UNAUTHORIZED => Err(LoginError::answer(
            DOING,
            format!(
                "{server} does not accept the token of the provider\n  fix: the administrator compares --issuer and \
                 --client-id with the cluster's configuration; `portcullis explain` says why a token is refused"
            ),
        )),
        status => {
            let refusal = serde_json::from_slice::<RefusedReview>(&response.body);
            let message = refusal.map(|refusal| shortened(&refusal.message)).unwrap_or_default();
            Err(LoginError::answer(DOING, format!("{server} answers {status}: {message}")))
        }
    }
}

fn tls(cluster: &Value, directory: &Path) -> Result<ClientTls, String> {
    let text = |key: &str| cluster.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
        return Err("insecure-skip-tls-verify would send the token to anyone; give the CA instead".to_owned());
    }
    if text("proxy-url").is_some() {
        return Err("proxy-url is not supported; give --no-review".to_owned());
    }
    let pem = match (text("certificate-authority-data"), text("certificate-authority")) {
        (Some(data), _) => {
            Some(STANDARD.decode(data).map_err(|_| "certificate-authority-data is not base64".to_owned())?)
        }
        (None, Some(file)) => {
            let file = directory.join(file);
            Some(input_file::read(&file).map_err(|error| format!("{}: {error}", file.display()))?)
        }
        (None, None) => None,
    };
    let name = text("tls-server-name").map(|name| ServerName::try_from(name.to_owned())).transpose();
    Ok(ClientTls {
        roots: pem.as_deref().map_or_else(|| Ok(TrustedRoots::system()), roots)?,
        client_certificate: None,
        server_name: name.map_err(|_| "tls-server-name is not a host name".to_owned())?,
    })
}
