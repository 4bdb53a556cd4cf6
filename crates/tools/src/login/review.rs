//! Asks the cluster who the user is: a `SelfSubjectReview` with the token of the login.

use std::sync::Arc;

use http::StatusCode;
use portcullis_http::https_client::{HttpsClient, HttpsRequest};
use portcullis_kubernetes::reviews::{ReviewedUser, reviewed_user};
use rustls::crypto::aws_lc_rs::default_provider;
use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::api_server::ApiServer;
use super::error::{LoginError, shortened};
use super::session::Credential;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// The part of a `Status` that people read.
#[derive(Deserialize)]
struct RefusedReview {
    message: String,
}

/// What `review` does, for errors.
pub(super) const DOING: &str = "ask the cluster who you are";

/// Asks the cluster.
pub(super) async fn review(server: &ApiServer, credential: &Credential) -> Result<ReviewedUser, LoginError> {
    let tls = server.tls().map_err(|problem| LoginError::answer(DOING, problem))?;
    let server = &server.url;
    let http = HttpsClient::new(&tls, &Arc::new(default_provider()))
        .map_err(|error| LoginError::answer(DOING, error))?;
    let url = format!("{server}{REVIEWS}");
    let request = HttpsRequest::post(&url, REVIEW).bearer(Some(credential.token.expose_secret()));
    let response = http.send(request).await.map_err(|cause| LoginError::Http { doing: DOING, cause })?;
    match response.status {
        StatusCode::OK | StatusCode::CREATED => reviewed_user(&response.body).map_err(|_| {
            LoginError::answer(DOING, format!("{server} does not answer with a SelfSubjectReview"))
        }),
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
