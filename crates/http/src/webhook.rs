//! Requests to webhooks: reviews as JSON, retried and classified as by client-go.
//!
//! Follows `k8s.io/apiserver/pkg/util/webhook`: requests to an overloaded or restarting webhook are retried with exponential
//! backoff. A response that is not a valid review is an error, never a decision.
// apimachinery: pkg/api/errors/errors.go; client-go: rest/request.go

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::rand;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use portcullis_go::duration::format_duration;
use portcullis_go::quote::Quoted;
use portcullis_kubernetes::rest::{self, MAX_ERROR_TEXT};
use portcullis_system::sync::lock;
use prometheus::IntCounter;
use rustls::crypto::CryptoProvider;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::client_tls::ClientTls;
use super::https_client::{HTTPS_TIMEOUT, HttpsClient, HttpsError, HttpsRequest, HttpsResponse};

/// Maximum number of attempts.
// apiserver: pkg/util/webhook/webhook.go, DefaultRetryBackoffWithInitialDelay
pub const MAX_ATTEMPTS: usize = 5;
const INITIAL_BACKOFF: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 500 });
const BACKOFF_FACTOR: f64 = 1.5;
const BACKOFF_JITTER: f64 = 0.2;
/// How long after a line about an answer that is no review there is no other one about the same webhook.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// A client of one webhook.
#[derive(Debug)]
pub struct WebhookClient {
    client: HttpsClient,
    url: String,
    timeout: Duration,
    missing_san: IntCounter,
    /// When an answer that is no review was logged last.
    no_review_logged: Mutex<Option<Instant>>,
}

/// Why a webhook has not decided, and whether a retry may help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookError {
    /// The text, for the log.
    pub text: String,
    /// The minimum delay before a retry; `None` if a retry would not help.
    pub retry_after: Option<Duration>,
    /// Whether the webhook was late.
    pub is_timeout: bool,
    /// Whether the text is the webhook's, not that of the connection to it.
    pub is_answered: bool,
}

/// One attempt.
#[derive(Debug)]
pub struct WebhookAttempt<'a> {
    /// The response, with any status but a redirect.
    pub answer: Result<&'a HttpsResponse, WebhookError>,
    /// The outcome, for a trace.
    pub detail: String,
    /// How long it took.
    pub took: Duration,
}

impl WebhookError {
    fn of_transport(error: &HttpsError) -> Self {
        Self {
            text: error.to_string(),
            retry_after: matches!(error, HttpsError::Lost { .. }).then_some(Duration::ZERO),
            is_timeout: matches!(error, HttpsError::Timeout { .. }),
            is_answered: false,
        }
    }

    /// An error that a retry would not resolve.
    pub fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), retry_after: None, is_timeout: false, is_answered: true }
    }
}

impl WebhookClient {
    /// Fails if the client certificate and its key do not match. `missing_san` counts connections that fail because the
    /// webhook's certificate has no subject alternative name.
    pub fn new(
        tls: &ClientTls,
        url: &str,
        timeout: Duration,
        provider: &Arc<CryptoProvider>,
        missing_san: IntCounter,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            client: HttpsClient::new(tls, provider)?,
            // client-go: rest/request.go, URL — announces the request timeout
            url: format!(
                "{url}?timeout={}",
                format_duration(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX))
            ),
            timeout,
            missing_san,
            no_review_logged: Mutex::default(),
        })
    }

    /// The URL without the query.
    pub fn url(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }

    /// Sends `body` once. The body of a success does not matter.
    pub async fn post_once(&self, bearer: Option<&str>, body: Bytes) -> Result<(), WebhookError> {
        let request = HttpsRequest::post(&self.url, body).bearer(bearer).within(self.timeout);
        let sent = self.client.send(request).await;
        if sent.as_ref().is_err_and(HttpsError::is_common_name_only) {
            self.missing_san.inc();
        }
        check_status(&sent.map_err(|error| WebhookError::of_transport(&error))?, bearer)
    }

    /// Logs, from time to time, that the webhook decides nothing because of a mistake.
    fn warn_of(&self, problem: &str) {
        let mut logged = lock(&self.no_review_logged);
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            drop(logged);
            warn!(webhook = self.url(), "the webhook decides nothing: {problem}");
        }
    }

    /// Sends `body`, and retries. `read` reads the outcome of each attempt.
    pub async fn post<T>(
        &self,
        bearer: Option<&str>,
        body: Bytes,
        mut read: impl FnMut(WebhookAttempt<'_>) -> Result<T, WebhookError>,
    ) -> Result<T, WebhookError> {
        let mut backoffs = backoffs(INITIAL_BACKOFF, random);
        loop {
            let request = HttpsRequest::post(&self.url, body.clone()).bearer(bearer).within(self.timeout);
            let began = Instant::now();
            let sent = self.client.send(request).await;
            if sent.as_ref().is_err_and(HttpsError::is_common_name_only) {
                self.missing_san.inc();
            }
            let detail = match &sent {
                Ok(answer) => format!("the webhook answered {}", answer.status),
                Err(error) => error.to_string(),
            };
            let answer = sent.as_ref().map_err(WebhookError::of_transport);
            let outcome = read(WebhookAttempt { answer, detail, took: began.elapsed() });
            let error = match outcome {
                Ok(decision) => {
                    if let Some(problem) = sent.as_ref().ok().and_then(no_review) {
                        self.warn_of(problem);
                    }
                    return Ok(decision);
                }
                Err(error) => error,
            };
            match (error.retry_after, backoffs.next()) {
                // A client would not wait for a Retry-After beyond the request timeout.
                (Some(hint), Some(wait)) if hint <= HTTPS_TIMEOUT => sleep(wait.max(hint)).await,
                _ => return Err(error),
            }
        }
    }
}

/// Why an answer that decodes as a review is probably none, for the log. As at kube-apiserver it counts as a review that
/// decides nothing, since each of its fields may be left out.
fn no_review(answer: &HttpsResponse) -> Option<&'static str> {
    let shape: AnswerShape = serde_json::from_slice(&answer.body).ok()?;
    match shape {
        AnswerShape { kind: None, status: None, result: Some(_) } => Some(
            "its answer has neither kind nor status, but `result`: it is that of the data API of Open Policy Agent; \
             set the URL to /v0/data/… in place of /v1/data/…",
        ),
        AnswerShape { kind: None, status: None, result: None } => Some(
            "its answer has neither kind nor status: check the path of the URL, and that the webhook answers with \
             the review that it was sent, with its status",
        ),
        _ => None,
    }
}

/// Whether a response is a success, whatever its body. Errors quote the webhook's texts, without `secret`.
fn check_status(answer: &HttpsResponse, secret: Option<&str>) -> Result<(), WebhookError> {
    if rest::is_success(answer.status.as_u16()) {
        return Ok(());
    }
    let error = failure(answer, secret);
    Err(WebhookError { text: truncated(redacted(secret, &error.text)), ..error })
}

/// Flattened into a struct, makes serde require a JSON object: without it, serde also accepts a list of the values.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectOnly {}

/// Decodes `null` as the zero value, like Go.
pub fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "S: Default + Deserialize<'de>"))]
struct ReviewResponse<S> {
    #[serde(deserialize_with = "or_null")]
    kind: String,
    #[serde(deserialize_with = "or_null")]
    api_version: String,
    #[serde(deserialize_with = "or_null")]
    status: S,
    #[serde(flatten)]
    _object: ObjectOnly,
}

impl<S: Default> Default for ReviewResponse<S> {
    fn default() -> Self {
        Self { kind: String::new(), api_version: String::new(), status: S::default(), _object: ObjectOnly {} }
    }
}

/// The fields that a review has, and another document has not.
#[derive(Deserialize)]
struct AnswerShape {
    kind: Option<IgnoredAny>,
    status: Option<IgnoredAny>,
    result: Option<IgnoredAny>,
}

/// A `v1` Status, with the fields that determine whether to retry.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FailureStatus {
    #[serde(deserialize_with = "or_null")]
    kind: String,
    #[serde(deserialize_with = "or_null")]
    status: String,
    #[serde(deserialize_with = "or_null")]
    message: String,
    #[serde(deserialize_with = "or_null")]
    reason: String,
    #[serde(deserialize_with = "or_null")]
    code: u16,
    details: Option<FailureDetails>,
    #[serde(flatten)]
    _object: ObjectOnly,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FailureDetails {
    #[serde(deserialize_with = "or_null")]
    retry_after_seconds: u32,
    #[serde(flatten)]
    _object: ObjectOnly,
}

/// Decodes the status of a review. Errors quote the webhook's texts, without `secret`.
pub fn read_review<S: Default + DeserializeOwned>(
    answer: &HttpsResponse,
    kind: &str,
    api_version: &str,
    secret: Option<&str>,
) -> Result<S, WebhookError> {
    let status = read_status(answer, kind, api_version, secret);
    status.map_err(|error| WebhookError { text: truncated(redacted(secret, &error.text)), ..error })
}

fn read_status<S: Default + DeserializeOwned>(
    answer: &HttpsResponse,
    kind: &str,
    api_version: &str,
    secret: Option<&str>,
) -> Result<S, WebhookError> {
    if !rest::is_success(answer.status.as_u16()) {
        return Err(failure(answer, secret));
    }
    if answer.body.is_empty() {
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Err(WebhookError::permanent(rest::empty_response(
            answer.status.as_u16(),
            content_type.unwrap_or_default(),
        )));
    }
    // The parser's message could quote the response, and the response could quote a secret.
    let review: ReviewResponse<S> = serde_json::from_slice(&answer.body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        WebhookError::permanent(format!("the answer is not a {kind}: line {line}, column {column} is wrong"))
    })?;
    let is = |text: &str, expected: &str| text.is_empty() || text == expected;
    if !is(&review.kind, kind) || !is(&review.api_version, api_version) {
        return Err(WebhookError::permanent(format!(
            "the answer is {} of {}, not a {kind} of {api_version}",
            Quoted(&review.kind),
            Quoted(&review.api_version),
        )));
    }
    Ok(review.status)
}

fn failure(answer: &HttpsResponse, secret: Option<&str>) -> WebhookError {
    let code = answer.status;
    let retry_after = rest::retry_after_seconds(&answer.headers).unwrap_or_default();
    let status = serde_json::from_slice::<FailureStatus>(&answer.body).ok();
    let status =
        status.filter(|status| matches!(status.kind.as_str(), "" | "Status") && status.status == "Failure");
    let status = status.unwrap_or_else(|| FailureStatus {
        message: rest::error_of_status_code(code.as_u16(), &text_of(&answer.body, secret)),
        reason: reason(code).to_owned(),
        code: code.as_u16(),
        details: Some(FailureDetails { retry_after_seconds: retry_after, ..FailureDetails::default() }),
        ..FailureStatus::default()
    });
    let hint = status.details.map(|details| details.retry_after_seconds);
    let is_timeout = status.reason == "Timeout" || (status.reason.is_empty() && status.code == 504);
    let retryable = is_timeout
        || matches!(status.reason.as_str(), "InternalError" | "TooManyRequests")
        || (status.reason.is_empty() && status.code == 500)
        || status.code == 429
        || (status.reason == "ServerTimeout" && hint.is_some())
        || hint.is_some_and(|seconds| seconds > 0);
    let hint = hint.unwrap_or_default().max(retry_after);
    WebhookError {
        text: status.message,
        retry_after: retryable.then(|| Duration::from_secs(hint.into())),
        is_timeout: is_timeout || code == StatusCode::GATEWAY_TIMEOUT,
        is_answered: true,
    }
}

fn text_of(body: &[u8], secret: Option<&str>) -> String {
    let text = truncated(redacted(secret, &String::from_utf8_lossy(body)));
    let text = text.trim();
    if text.is_empty() { rest::UNKNOWN_TEXT.to_owned() } else { text.to_owned() }
}

/// A text without a secret.
pub fn redacted(secret: Option<&str>, text: &str) -> String {
    let secret = secret.filter(|secret| !secret.is_empty());
    secret.map_or_else(|| text.to_owned(), |secret| text.replace(secret, "[the token]"))
}

/// A text of at most the size that an error quotes. Redact it first: a truncated secret would not be found.
pub fn truncated(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR_TEXT));
    text
}

/// The Status reason that a status code implies, for the codes that determine whether to retry.
fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        500.. => "InternalError",
        _ => "Other",
    }
}

/// Delays between the attempts; `random` returns numbers from 0 to 1.
// apimachinery: pkg/util/wait/backoff.go, Backoff.Step
fn backoffs(first: Duration, mut random: impl FnMut() -> f64) -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(first), |wait| Some(wait.mul_f64(BACKOFF_FACTOR)))
        .take(MAX_ATTEMPTS - 1)
        .map(move |wait| wait.mul_f64(1.0 + BACKOFF_JITTER * random()))
}

fn random() -> f64 {
    let mut bytes = [0; 2];
    // A failure of the random source costs the jitter only.
    if rand::fill(&mut bytes).is_err() {
        return 0.0;
    }
    f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    /// A secret that an error would quote in part is redacted before the text is cut.
    #[test]
    fn no_part_of_a_secret_is_quoted() {
        for before in MAX_ERROR_TEXT - 8..=MAX_ERROR_TEXT {
            let body = "x".repeat(before) + "s3cr3t";
            let answer =
                HttpsResponse { status: StatusCode::FORBIDDEN, headers: HeaderMap::new(), body: body.into() };
            let error = read_review::<()>(&answer, "TokenReview", "v1", Some("s3cr3t")).unwrap_err();
            assert!(!error.text.contains('s') && error.text.len() <= MAX_ERROR_TEXT, "{before}");
        }
    }

    #[test]
    fn an_answer_without_kind_and_status_is_named() {
        let cases = [
            (r#"{"result": {"status": {"allowed": true}}}"#, Some("/v0/data/")),
            (r#"{"result": {"kind": "SubjectAccessReview"}, "decision_id": "1"}"#, Some("/v0/data/")),
            ("{}", Some("check the path")),
            (r#"{"allowed": true}"#, Some("check the path")),
            (r#"{"kind": null, "status": null}"#, Some("check the path")),
            (r#"{"status": {}}"#, None),
            (r#"{"kind": "SubjectAccessReview"}"#, None),
            (r#"{"kind": "SubjectAccessReview", "status": {"allowed": false}}"#, None),
            ("no JSON", None),
            ("null", None),
        ];
        for (body, named) in cases {
            let headers = HeaderMap::new();
            let answer = HttpsResponse { status: StatusCode::OK, headers, body: body.into() };
            let problem = no_review(&answer);
            assert_eq!(problem.is_some(), named.is_some(), "{body}");
            assert!(problem.unwrap_or_default().contains(named.unwrap_or_default()), "{body}: {problem:?}");
        }
    }

    #[test]
    fn backoffs_grow_by_half_with_up_to_a_fifth_of_jitter() {
        let millis = |chance: f64| {
            backoffs(Duration::from_millis(500), move || chance)
                .map(|wait| wait.as_millis())
                .collect::<Vec<_>>()
        };
        assert_eq!(millis(0.0), [500, 750, 1125, 1687]);
        assert_eq!(millis(1.0), [600, 900, 1350, 2025]);
        assert!((0..100).map(|_| random()).all(|chance| (0.0..=1.0).contains(&chance)));
    }
}
