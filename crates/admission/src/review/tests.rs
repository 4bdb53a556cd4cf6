//! Upstream's tables: `request/admissionreview_test.go` and `errors/statuserror_test.go`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use serde_json::{Value, json};

use super::*;
use crate::{
    Attributes, GroupVersionKind, GroupVersionResource, Objects, Operation, ReviewVersion, SharedObjects,
    UserInfo, WebhookKind, WebhookResponse,
};
use ReviewVersion::{V1, V1Beta1};
use WebhookKind::{Mutating, Validating};

/// `[{"op":"add","path":"/foo","value":"bar"}]`
const PATCH: &str = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2ZvbyIsInZhbHVlIjoiYmFyIn1d";

fn patch() -> Vec<u8> {
    br#"[{"op":"add","path":"/foo","value":"bar"}]"#.to_vec()
}

fn read(version: ReviewVersion, kind: WebhookKind, body: &Value) -> Result<ReviewResponse, String> {
    let body = body.to_string().into();
    let response = WebhookResponse { status: 200, content_type: "application/json".to_owned(), body };
    ReviewResponse::read(version, kind, "123", &response).map_err(|error| error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "each is written in place")]
fn v1(response: Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn allowed() -> ReviewResponse {
    ReviewResponse { allowed: true, ..ReviewResponse::default() }
}

#[test]
fn valid_responses_are_accepted() {
    let annotated =
        || ReviewResponse { audit_annotations: [("foo".to_owned(), "bar".to_owned())].into(), ..allowed() };
    let patched =
        |patch_type: &str| ReviewResponse { patch: patch(), patch_type: patch_type.to_owned(), ..allowed() };
    let refused = || ReviewResponse {
        result: Some(Status {
            status: Some("Failure".to_owned()),
            message: Some("Foo".to_owned()),
            code: Some(401),
            ..Status::default()
        }),
        ..ReviewResponse::default()
    };
    let result = json!({"status": "Failure", "message": "Foo", "code": 401});
    let cases: &[(&str, ReviewVersion, WebhookKind, Value, ReviewResponse)] = &[
        (
            "v1beta1 allowed validating",
            V1Beta1,
            Validating,
            json!({"response": {"allowed": true}}),
            allowed(),
        ),
        ("v1 allowed validating", V1, Validating, v1(json!({"uid": "123", "allowed": true})), allowed()),
        ("v1beta1 allowed mutating", V1Beta1, Mutating, json!({"response": {"allowed": true}}), allowed()),
        ("v1 allowed mutating", V1, Mutating, v1(json!({"uid": "123", "allowed": true})), allowed()),
        (
            "v1beta1 auditAnnotations",
            V1Beta1,
            Validating,
            json!({"response": {"allowed": true, "auditAnnotations": {"foo": "bar"}}}),
            annotated(),
        ),
        (
            "v1 auditAnnotations",
            V1,
            Validating,
            v1(json!({"uid": "123", "allowed": true, "auditAnnotations": {"foo": "bar"}})),
            annotated(),
        ),
        (
            "v1beta1 patch",
            V1Beta1,
            Mutating,
            json!({"response": {"allowed": true, "patch": PATCH}}),
            patched("JSONPatch"),
        ),
        (
            "v1 patch",
            V1,
            Mutating,
            v1(json!({"uid": "123", "allowed": true, "patch": PATCH, "patchType": "JSONPatch"})),
            patched("JSONPatch"),
        ),
        (
            "v1beta1 result",
            V1Beta1,
            Validating,
            json!({"response": {"allowed": false, "status": result}}),
            refused(),
        ),
        (
            "v1 result",
            V1,
            Validating,
            v1(json!({"uid": "123", "allowed": false, "status": result})),
            refused(),
        ),
        (
            "v1 invalid patch type",
            V1,
            Mutating,
            v1(json!({"uid": "123", "allowed": true, "patch": PATCH, "patchType": "Foo"})),
            patched("Foo"),
        ),
        (
            "v1beta1 wrong uid",
            V1Beta1,
            Validating,
            json!({"response": {"uid": "1234", "allowed": true}}),
            allowed(),
        ),
        (
            "v1beta1 validating returns patch/patchType",
            V1Beta1,
            Validating,
            json!({"response": {"uid": "1234", "allowed": true, "patch": PATCH, "patchType": "JSONPatch"}}),
            allowed(),
        ),
        (
            "v1beta1 empty patch type",
            V1Beta1,
            Mutating,
            json!({"response": {"allowed": true, "patch": PATCH, "patchType": ""}}),
            patched("JSONPatch"),
        ),
        (
            "v1beta1 invalid patchType",
            V1Beta1,
            Mutating,
            json!({"response": {"allowed": true, "patch": PATCH, "patchType": "Foo"}}),
            patched("JSONPatch"),
        ),
    ];
    for (name, version, kind, body, expected) in cases {
        assert_eq!(read(*version, *kind, body).as_ref(), Ok(expected), "{name}");
    }
}

#[test]
fn invalid_responses_are_refused() {
    let kind = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "response": {"uid": "123", "allowed": true}});
    let cases: &[(&str, ReviewVersion, WebhookKind, Value, &str)] = &[
        (
            "v1beta1 no response",
            V1Beta1,
            Validating,
            json!({}),
            "received invalid webhook response: webhook response was absent",
        ),
        (
            "v1 no response",
            V1,
            Validating,
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
            "received invalid webhook response: webhook response was absent",
        ),
        // The decoder refuses other versions and kinds before they are compared.
        (
            "v1 wrong group",
            V1,
            Validating,
            kind("admission.k8s.io2/v1", "AdmissionReview"),
            r#"failed to call webhook: no kind "AdmissionReview" is registered for version "admission.k8s.io2/v1" in scheme "pkg/runtime/scheme.go:111""#,
        ),
        (
            "v1 wrong version",
            V1,
            Validating,
            kind("admission.k8s.io/v2", "AdmissionReview"),
            r#"failed to call webhook: no kind "AdmissionReview" is registered for version "admission.k8s.io/v2" in scheme "pkg/runtime/scheme.go:111""#,
        ),
        (
            "v1 wrong kind",
            V1,
            Validating,
            kind("admission.k8s.io/v1", "AdmissionReview2"),
            r#"failed to call webhook: no kind "AdmissionReview2" is registered for version "admission.k8s.io/v1" in scheme "pkg/runtime/scheme.go:111""#,
        ),
        (
            "v1beta1 wrong group/version/kind",
            V1Beta1,
            Validating,
            kind("admission.k8s.io2/v2", "AdmissionReview2"),
            r#"failed to call webhook: no kind "AdmissionReview2" is registered for version "admission.k8s.io2/v2" in scheme "pkg/runtime/scheme.go:111""#,
        ),
        (
            "v1 without version and kind",
            V1,
            Validating,
            json!({"response": {"uid": "123", "allowed": true}}),
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
        ),
        (
            "v1 wrong uid",
            V1,
            Validating,
            v1(json!({"uid": "1234", "allowed": true})),
            r#"received invalid webhook response: expected response.uid="123", got "1234""#,
        ),
        (
            "v1 patch without patch type",
            V1,
            Mutating,
            v1(json!({"uid": "123", "allowed": true, "patch": PATCH})),
            "received invalid webhook response: webhook returned response.patch but not response.patchType",
        ),
        (
            "v1 patch type without patch",
            V1,
            Mutating,
            v1(json!({"uid": "123", "allowed": true, "patchType": "JSONPatch"})),
            "received invalid webhook response: webhook returned response.patchType but not response.patch",
        ),
        (
            "v1 empty patch type",
            V1,
            Mutating,
            v1(json!({"uid": "123", "allowed": true, "patch": PATCH, "patchType": ""})),
            r#"received invalid webhook response: webhook returned invalid response.patchType of """#,
        ),
        (
            "v1 patch for validating webhook",
            V1,
            Validating,
            v1(json!({"uid": "123", "allowed": true, "patch": PATCH})),
            "received invalid webhook response: validating webhook may not return response.patch",
        ),
        (
            "v1 patch type for validating webhook",
            V1,
            Validating,
            v1(json!({"uid": "123", "allowed": true, "patchType": "Foo"})),
            "received invalid webhook response: validating webhook may not return response.patchType",
        ),
        (
            "bad base64",
            V1,
            Mutating,
            v1(json!({"uid": "123", "patch": "!", "patchType": "JSONPatch"})),
            "failed to call webhook: illegal base64 data at input byte 0",
        ),
        (
            "a type of v1beta1",
            V1,
            Validating,
            kind("admission.k8s.io/v1beta1", "AdmissionReview"),
            "failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion",
        ),
    ];
    for (name, version, kind, body, expected) in cases {
        assert_eq!(read(*version, *kind, body), Err((*expected).to_owned()), "{name}");
    }
}

/// Names are case-sensitive, and of repeated ones the last counts.
#[test]
fn fields_are_read_as_kubernetes_reads_them() {
    let body = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
        "response":{"uid":"x","Allowed":true,"allowed":true,"unknown":[1,{"a":2}]},"response":{"uid":"123","allowed":false}}"#;
    let response = WebhookResponse { status: 200, content_type: String::new(), body: body.as_slice().into() };
    assert_eq!(ReviewResponse::read(V1, Validating, "123", &response), Ok(ReviewResponse::default()));
}

fn attributes() -> Attributes {
    Attributes {
        operation: Operation::Update,
        kind: GroupVersionKind { group: "apps".into(), version: "v1".into(), kind: "Deployment".into() },
        resource: GroupVersionResource {
            group: "apps".into(),
            version: "v1".into(),
            resource: "deployments".into(),
        },
        subresource: String::new(),
        name: "myname".into(),
        namespace: "myns".into(),
        user: UserInfo {
            username: "myuser".into(),
            uid: "myuid".into(),
            groups: vec!["mygroup".into()],
            extra: [("extrakey".to_owned(), vec!["value1".to_owned(), "value2".to_owned()])].into(),
        },
        dry_run: false,
        options: Some(
            json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "foo"}),
        ),
    }
}

// Upstream's other rows convert objects, or concern webhooks that accept no known version: such ones cannot be configured.
#[test]
fn reviews_have_the_fields_of_upstream_in_its_order() {
    let object = |version: &str| json!({"metadata": {"name": "<a>", "resourceVersion": version}});
    let objects = Objects { object: Some(object("2")), old_object: Some(object("1")) };
    let expected = r#"{"kind":"AdmissionReview","apiVersion":"VERSION","request":{"uid":"u","kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1","resource":"deployments"},"requestKind":{"group":"apps","version":"v1","kind":"Deployment"},"requestResource":{"group":"apps","version":"v1","resource":"deployments"},"name":"myname","namespace":"myns","operation":"UPDATE","userInfo":{"username":"myuser","uid":"myuid","groups":["mygroup"],"extra":{"extrakey":["value1","value2"]}},"object":{"metadata":{"name":"\u003ca\u003e","resourceVersion":"2"}},"oldObject":{"metadata":{"name":"\u003ca\u003e","resourceVersion":"1"}},"dryRun":false,"options":{"apiVersion":"meta.k8s.io/v1","fieldManager":"foo","kind":"UpdateOptions"}}}"#;
    for version in [V1, V1Beta1] {
        let review = review(version, &attributes(), objects.clone(), false);
        let expected = expected.replace("VERSION", version.api_version()) + "\n";
        assert_eq!(String::from_utf8(review.body()).unwrap(), expected);
    }
}

fn review(
    version: ReviewVersion,
    attributes: &Attributes,
    mut objects: Objects,
    dry_run: bool,
) -> ReviewRequest {
    let text =
        ReviewText::new(attributes, &attributes.requested(), &SharedObjects::take(&mut objects), dry_run);
    ReviewRequest::with_uid("u".to_owned(), version, attributes, &text)
}

#[test]
fn absent_objects_are_null_and_empty_names_are_left_out() {
    let attributes = Attributes {
        operation: Operation::Connect,
        name: String::new(),
        namespace: String::new(),
        subresource: "exec".to_owned(),
        user: UserInfo::default(),
        options: None,
        ..attributes()
    };
    let review = review(V1, &attributes, Objects::default(), true);
    let body = String::from_utf8(review.body()).unwrap();
    let end = r#""requestSubResource":"exec","operation":"CONNECT","userInfo":{},"object":null,"oldObject":null,"dryRun":true,"options":null}}"#;
    assert!(body.contains(r#""subResource":"exec","requestKind""#), "{body}");
    assert!(body.trim_end().ends_with(end), "{body}");
}

#[test]
fn each_review_has_a_uid_of_its_own() {
    let uid = || ReviewRequest::new(V1, &attributes(), &Objects::default(), false).uid;
    assert_ne!(uid(), uid());
}

#[test]
fn denials_have_the_status_of_upstream() {
    const DENIED: &str = "admission webhook \"foo\" denied the request";
    let status = |fields: Value| Some(serde_json::from_value::<Status>(fields).unwrap());
    let cases: &[(&str, Option<Status>, &str, i32, &str)] = &[
        ("nil result", None, " without explanation", 400, "Failure"),
        (
            "only message",
            status(json!({"message": "you shall not pass"})),
            ": you shall not pass",
            400,
            "Failure",
        ),
        ("only reason", status(json!({"reason": "Forbidden"})), ": Forbidden", 400, "Failure"),
        (
            "message and reason",
            status(json!({"message": "you shall not pass", "reason": "Forbidden"})),
            ": you shall not pass",
            400,
            "Failure",
        ),
        ("no message, no reason", status(json!({})), " without explanation", 400, "Failure"),
        ("custom 4xx status code", status(json!({"code": 401})), " without explanation", 401, "Failure"),
        ("custom 5xx status code", status(json!({"code": 500})), " without explanation", 500, "Failure"),
        ("200 status code", status(json!({"code": 200})), " without explanation", 400, "Failure"),
        ("300 status code", status(json!({"code": 300})), " without explanation", 400, "Failure"),
        ("399 status code", status(json!({"code": 399})), " without explanation", 400, "Failure"),
        ("missing status", status(json!({})), " without explanation", 400, "Failure"),
        (
            "success status overridden",
            status(json!({"status": "Success"})),
            " without explanation",
            400,
            "Failure",
        ),
        (
            "failure status preserved",
            status(json!({"status": "Failure"})),
            " without explanation",
            400,
            "Failure",
        ),
        (
            "custom status preserved",
            status(json!({"status": "custom"})),
            " without explanation",
            400,
            "custom",
        ),
    ];
    for (name, result, text, code, expected) in cases {
        let denial = denial("foo", result.clone());
        assert_eq!(denial.message, Some(format!("{DENIED}{text}")), "{name}");
        assert_eq!((denial.code, denial.status.as_deref()), (Some(*code), Some(*expected)), "{name}");
    }
}

#[test]
fn a_denial_keeps_reason_and_details() {
    let result = json!({"reason": "Mine", "code": 599, "details": {
        "name": "n", "retryAfterSeconds": 7, "causes": [{"reason": "r", "message": "m", "field": "f"}]}});
    let response = read(V1, Validating, &v1(json!({"uid": "123", "status": result}))).unwrap();
    let denial = denial("foo", response.result);
    let text = |text: &str| Some(text.to_owned());
    let cause = StatusCause { reason: text("r"), message: text("m"), field: text("f") };
    let details = StatusDetails {
        name: text("n"),
        retry_after_seconds: Some(7),
        causes: Some(vec![cause]),
        ..StatusDetails::default()
    };
    assert_eq!((denial.code, denial.reason, denial.details), (Some(599), text("Mine"), Some(details)));
}
