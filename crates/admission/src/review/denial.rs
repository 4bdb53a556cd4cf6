//! The statuses with which a phase ends a request.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use portcullis_go::quote::Quoted;

/// The status of a denial: the webhook's own, with a code from 400 and a message that names the webhook.
// apiserver: pkg/admission/plugin/webhook/errors/statuserror.go, ToStatusErr
pub fn denial(webhook: &str, result: Option<Status>) -> Box<Status> {
    let denied = format!("admission webhook {} denied the request", Quoted(webhook));
    let mut status = result.unwrap_or_default();
    status.code = Some(status.code.filter(|code| *code >= 400).unwrap_or(400));
    let is_failure = |text: &String| !matches!(text.as_str(), "" | "Success");
    status.status = Some(status.status.filter(is_failure).unwrap_or_else(|| "Failure".to_owned()));
    let explanation = status.message.filter(|text| !text.is_empty());
    let explanation = explanation.or_else(|| status.reason.clone().filter(|text| !text.is_empty()));
    status.message = Some(match explanation {
        Some(text) => format!("{denied}: {text}"),
        None => format!("{denied} without explanation"),
    });
    Box::new(status)
}

/// The server failed.
// apimachinery: pkg/api/errors/errors.go, NewInternalError
pub fn internal_error(text: &str) -> Box<Status> {
    let cause = StatusCause { message: Some(text.to_owned()), ..StatusCause::default() };
    let details = StatusDetails { causes: Some(vec![cause]), ..StatusDetails::default() };
    let status = failure(500, "InternalError", format!("Internal error occurred: {text}"));
    Box::new(Status { details: Some(details), ..status })
}

/// The request's deadline has passed.
// apiserver: pkg/server/filters/timeout.go
pub fn timeout() -> Box<Status> {
    let text = "Timeout: request did not complete within the allotted timeout";
    let status = failure(504, "Timeout", text.to_owned());
    Box::new(Status { details: Some(StatusDetails::default()), ..status })
}

fn failure(code: i32, reason: &str, message: String) -> Status {
    Status {
        code: Some(code),
        message: Some(message),
        reason: Some(reason.to_owned()),
        status: Some("Failure".to_owned()),
        ..Status::default()
    }
}
