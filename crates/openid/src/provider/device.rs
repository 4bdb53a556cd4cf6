//! The device flow: a code that the user enters on another device, RFC 8628.
//!
//! Between the code and the tokens the user types for minutes. What a balancer or a proxy answers meanwhile ends nothing: only
//! an error code of OAuth does, or the end of the code's lifetime.

use std::time::Duration;

use portcullis_http::https_client::{HttpsError, HttpsResponse};
use tokio::time::{Instant, sleep, timeout};

use super::{LoginProvider, answer, endpoint};
use crate::answers::{self, DeviceAuthorization, FailedAnswer, LoginTokens};
use crate::error::{DEVICE_GRANT, LoginError, ProviderRefusal, shortened};

/// The longest interval that a provider may ask for.
const MAX_DEVICE_INTERVAL: Duration = Duration::from_hours(1);
/// The shortest interval between two requests with a device code, whatever the provider says, and the longest one that it has
/// not asked for itself.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_mins(1);
/// By how much `slow_down` extends the interval.
// RFC 8628, section 3.5
const SLOW_DOWN: Duration = Duration::from_secs(5);
/// How often failures in a row double the interval.
const MAX_DOUBLINGS: u32 = 5;

impl LoginProvider {
    /// Logs in by a code that the user enters on another device. `show` shows it; the call ends when it was entered or expires.
    pub async fn device(
        &self,
        limit: Duration,
        show: impl FnOnce(&DeviceAuthorization),
    ) -> Result<LoginTokens, LoginError> {
        let began = Instant::now();
        let device = timeout(limit, self.device_code()).await.map_err(|_| LoginError::Timeout(limit))??;
        show(&device);
        let url = endpoint(self.document.token_endpoint.as_deref(), "token_endpoint")?;
        let send = || {
            let grant = [("grant_type", DEVICE_GRANT), ("device_code", device.device_code.expose())];
            self.post(&url, grant)
        };
        poll(&device, began, limit, send).await
    }

    // RFC 8628, section 3.1
    async fn device_code(&self) -> Result<DeviceAuthorization, LoginError> {
        const DOING: &str = "get a code for the login";
        const NAME: &str = "device authorization endpoint";
        let url = endpoint(self.document.device_authorization_endpoint.as_deref(), NAME)?;
        let scopes = self.scopes_with_openid();
        let form = [("scope", scopes.as_str())].into_iter().chain(self.prompt()).chain(self.extra());
        let response =
            self.post(&url, form).await.map_err(|cause| LoginError::Http { doing: DOING, cause })?;
        let device = answers::device_authorization(answer(&response));
        let device = device.map_err(|failed| match failed {
            // Some documents list an endpoint that the operator has switched off.
            FailedAnswer::Error(error) if error.is_absent() => LoginError::NoEndpoint(NAME),
            failed => LoginError::of_answer(DOING, failed),
        })?;
        if device.interval > MAX_DEVICE_INTERVAL {
            return Err(LoginError::answer(DOING, "its interval is too long"));
        }
        Ok(device)
    }
}

/// What an answer to a device code means.
enum PollOutcome {
    Tokens(LoginTokens),
    Pending,
    SlowDown,
    /// No answer of the protocol: the next one may be.
    Failed(String),
    Refused(LoginError),
}

/// Asks until the user has entered the code or it expires.
// RFC 8628, sections 3.4 and 3.5
async fn poll<F: Future<Output = Result<HttpsResponse, HttpsError>>>(
    device: &DeviceAuthorization,
    began: Instant,
    limit: Duration,
    send: impl Fn() -> F,
) -> Result<LoginTokens, LoginError> {
    let expires = device.expires_in.map(|lifetime| Instant::now() + lifetime);
    let end = expires.map_or(began + limit, |expires| expires.min(began + limit));
    let max_interval = MAX_POLL_INTERVAL.max(device.interval);
    let mut interval = MIN_POLL_INTERVAL.max(device.interval);
    let mut failures = 0;
    loop {
        let problem = match outcome(send().await) {
            PollOutcome::Tokens(tokens) => return Ok(tokens),
            PollOutcome::Refused(error) => return Err(error),
            PollOutcome::Failed(cause) => Some(cause),
            PollOutcome::Pending => None,
            PollOutcome::SlowDown => {
                interval = (interval + SLOW_DOWN).min(max_interval);
                None
            }
        };
        failures = if problem.is_some() { MAX_DOUBLINGS.min(failures + 1) } else { 0 };
        let pause = (interval * 2_u32.pow(failures)).min(max_interval);
        let now = Instant::now();
        if now >= end {
            // Not "the code was not entered" where the provider has not answered at last.
            return Err(problem.map_or_else(
                || if expires == Some(end) { expired() } else { LoginError::Timeout(limit) },
                |problem| LoginError::answer("wait for the login", problem),
            ));
        }
        // Once more at the end, for the user who has entered the code since.
        sleep(pause.min(end - now)).await;
    }
}

fn expired() -> LoginError {
    LoginError::Refused(ProviderRefusal { code: "expired_token".to_owned(), description: None })
}

fn outcome(response: Result<HttpsResponse, HttpsError>) -> PollOutcome {
    let response = match response {
        Ok(response) => response,
        Err(error) => return PollOutcome::Failed(shortened(&error.to_string())),
    };
    match answers::tokens(answer(&response)) {
        Ok(tokens) => PollOutcome::Tokens(tokens),
        Err(FailedAnswer::Error(error)) if error.is("authorization_pending") => PollOutcome::Pending,
        Err(FailedAnswer::Error(error)) if error.is("slow_down") => PollOutcome::SlowDown,
        Err(FailedAnswer::Error(error)) if error.is_temporary() || error.refusal.is_none() => {
            PollOutcome::Failed(error.to_string())
        }
        Err(FailedAnswer::WebPage) => PollOutcome::Failed(FailedAnswer::WebPage.to_string()),
        // Tokens that cannot be read: the provider does not give them twice.
        Err(failed) => PollOutcome::Refused(LoginError::of_answer("wait for the login", failed)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use openidconnect::http::{HeaderMap, StatusCode};

    use super::*;
    use crate::secret_text::SecretText;

    const LIMIT: Duration = Duration::from_mins(5);
    const TOKENS: (u16, &str) = (200, r#"{"access_token":"a"}"#);
    const PENDING: (u16, &str) = (400, r#"{"error":"authorization_pending"}"#);

    fn response((status, body): (u16, &'static str)) -> Result<HttpsResponse, HttpsError> {
        if status == 0 {
            return Err(HttpsError::Timeout { host: "issuer.test".to_owned(), timeout: LIMIT });
        }
        let status = StatusCode::from_u16(status).unwrap();
        Ok(HttpsResponse { status, headers: HeaderMap::new(), body: Bytes::from(body) })
    }

    fn device(expires_in: Option<u64>) -> DeviceAuthorization {
        DeviceAuthorization {
            device_code: SecretText::new("d"),
            user_code: "u".to_owned(),
            verification_uri: "https://v.test".to_owned(),
            verification_uri_complete: None,
            expires_in: expires_in.map(Duration::from_secs),
            interval: Duration::from_secs(5),
        }
    }

    /// The outcome of these answers, of which the last one stays, and how many seconds it took.
    async fn polled(
        device: &DeviceAuthorization,
        answers: &[(u16, &'static str)],
    ) -> (Result<LoginTokens, LoginError>, u64) {
        let (begin, next) = (Instant::now(), Mutex::new(0));
        let send = || {
            let mut next = next.lock().unwrap();
            let answer = answers[(*next).min(answers.len() - 1)];
            *next += 1;
            std::future::ready(response(answer))
        };
        let outcome = poll(device, begin, LIMIT, send).await;
        (outcome, begin.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_answer_while_the_user_types_ends_nothing() {
        let bad: [(u16, &str); 11] = [
            (502, "<html>Bad gateway"),
            (503, ""),
            (429, r#"{"error":"too_many_requests"}"#),
            (500, r#"{"error":"invalid_request"}"#),
            (400, r#"{"error":"server_error"}"#),
            (400, r#"{"error":"temporarily_unavailable"}"#),
            (400, "<html>"),
            (403, ""),
            (200, "<html>sign in to the network"),
            (404, "not found"),
            (0, "no answer"),
        ];
        for answer in bad {
            let (outcome, seconds) = polled(&device(Some(600)), &[PENDING, answer, PENDING, TOKENS]).await;
            assert!(outcome.is_ok(), "{answer:?}: {outcome:?}");
            assert_eq!(seconds, 5 + 10 + 5, "{answer:?}: slower once");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_are_asked_about_less_often() {
        let failures = [(503, ""); 6];
        let (outcome, seconds) = polled(&device(Some(600)), &[&failures[..], &[TOKENS]].concat()).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(seconds, 10 + 20 + 40 + 60 + 60 + 60);
        let slow = (400, r#"{"error":"slow_down"}"#);
        let (outcome, seconds) = polled(&device(Some(600)), &[slow, slow, PENDING, TOKENS]).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(seconds, 10 + 15 + 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_that_is_entered_at_the_last_moment_counts() {
        let slow = (400, r#"{"error":"slow_down"}"#);
        for (expires_in, answers, seconds) in [
            (7, &[PENDING, PENDING, TOKENS][..], 7),
            (12, &[slow, PENDING, TOKENS], 12),
            (30, &[(503, ""), (503, ""), TOKENS], 30),
            (400, &[&[PENDING; 60][..], &[TOKENS]].concat(), 300),
        ] {
            let (outcome, took) = polled(&device(Some(expires_in)), answers).await;
            assert!(outcome.is_ok(), "{expires_in} {answers:?}: {outcome:?}");
            assert_eq!(took, seconds, "{answers:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_is_not_asked_more_often_than_it_wants() {
        let slow = (400, r#"{"error":"slow_down"}"#);
        let rare = |seconds| DeviceAuthorization { interval: Duration::from_secs(seconds), ..device(None) };
        for (device, answers, seconds) in [
            (rare(90), &[PENDING, slow, (503, ""), TOKENS][..], 270),
            (rare(58), &[slow, slow, TOKENS], 120),
            (rare(0), &[PENDING, TOKENS], 1),
        ] {
            let (outcome, took) = polled(&device, answers).await;
            assert!(outcome.is_ok(), "{device:?}: {outcome:?}");
            assert_eq!(took, seconds, "{device:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_ends_when_it_expires_or_the_provider_says_so() {
        for (expires_in, answer, seconds, part) in [
            (Some(60), PENDING, 60, "the code has expired"),
            (None, PENDING, 300, "was not completed within 300s"),
            (Some(900), PENDING, 300, "was not completed within 300s"),
            (Some(60), (503, ""), 60, "503 Service Unavailable"),
            (Some(60), (400, r#"{"error":"expired_token"}"#), 0, "the code has expired"),
            (Some(60), (400, r#"{"error":"access_denied"}"#), 0, "the login was refused"),
            (Some(60), (401, r#"{"error":"invalid_client"}"#), 0, "does not know this client"),
            (Some(60), (200, "{}"), 0, "not as OAuth 2.0 demands (field access_token)"),
        ] {
            let (outcome, took) = polled(&device(expires_in), &[answer]).await;
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(part), "{answer:?}: {error}");
            assert_eq!(took, seconds, "{answer:?}");
        }
    }
}
