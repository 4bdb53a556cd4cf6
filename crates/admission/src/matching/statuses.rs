//! The errors that matching ends with, as `Status` objects.
// apimachinery: pkg/api/errors/errors.go

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use portcullis_go::quote::Quoted;

use crate::Attributes;

/// A 403 about the object of a request.
// errors.go, NewForbidden
pub(super) fn forbidden(attributes: &Attributes, error: &str) -> Box<Status> {
    let (group, resource) = (&attributes.resource.group, &attributes.resource.resource);
    let qualified = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
    let name = &attributes.name;
    let message = if resource.is_empty() && group.is_empty() {
        format!("forbidden: {error}")
    } else if name.is_empty() {
        format!("{qualified} is forbidden: {error}")
    } else {
        format!("{qualified} {} is forbidden: {error}", Quoted(name))
    };
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Box::new(Status {
        status: Some("Failure".to_owned()),
        code: Some(403),
        reason: Some("Forbidden".to_owned()),
        message: Some(message),
        details: Some(StatusDetails {
            name: text(name),
            group: text(group),
            kind: text(resource),
            ..StatusDetails::default()
        }),
        ..Status::default()
    })
}

/// A 500.
// errors.go, NewInternalError
pub(super) fn internal_error(error: &str) -> Box<Status> {
    let cause = StatusCause { message: Some(error.to_owned()), ..StatusCause::default() };
    Box::new(Status {
        status: Some("Failure".to_owned()),
        code: Some(500),
        reason: Some("InternalError".to_owned()),
        message: Some(format!("Internal error occurred: {error}")),
        details: Some(StatusDetails { causes: Some(vec![cause]), ..StatusDetails::default() }),
        ..Status::default()
    })
}

/// Several errors as one; `None` if there are none.
// apimachinery: pkg/util/errors/errors.go, aggregate.Error
pub(super) fn aggregate(errors: &[String]) -> Option<String> {
    let mut distinct: Vec<&str> = Vec::new();
    for error in errors {
        if !distinct.contains(&error.as_str()) {
            distinct.push(error);
        }
    }
    match distinct.as_slice() {
        [] => None,
        [error] => Some((*error).to_owned()),
        _ => Some(format!("[{}]", distinct.join(", "))),
    }
}
