//! Patches, responses and reviews, compared with kube-apiserver's own code (`tests/go/admission`).
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of random patches.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program: a panic is a failed test")]
#![allow(clippy::print_stderr, missing_docs, reason = "the output of a test program")]

use portcullis_admission::review::{Patch, ReviewRequest, ReviewResponse};
use portcullis_admission::{
    Attributes, GroupVersionKind, GroupVersionResource, Objects, Operation, ReviewVersion, UserInfo,
    WebhookKind, WebhookResponse,
};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = usize::try_from(word >> (18 - 6 * at) & 63).unwrap();
            text.push(if at <= chunk.len() { char::from(BASE64[digit]) } else { '=' });
        }
    }
    text
}

fn from_base64(value: &Value) -> Vec<u8> {
    let Some(text) = value.as_str() else { return Vec::new() };
    let digit = |byte: u8| u32::try_from(BASE64.iter().position(|digit| *digit == byte).unwrap()).unwrap();
    let mut bytes = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let word = chunk.iter().fold(0, |word, byte| word << 6 | digit(*byte)) << (6 * (4 - chunk.len()));
        bytes.extend(word.to_be_bytes().iter().skip(1).take(chunk.len() - 1));
    }
    bytes
}

/// What became of a patch.
#[derive(Debug, PartialEq)]
enum PatchResult {
    Empty,
    /// The document and the operations as the audit log shows them.
    Applied(String, String),
    Failed(String),
    /// kube-apiserver panics; here the patch fails.
    Panic,
}

fn our_patch(patch: &[u8], document: &Value) -> PatchResult {
    let patch = match Patch::decode(patch) {
        Ok(patch) if patch.is_empty() => return PatchResult::Empty,
        Ok(patch) => patch,
        Err(error) => return PatchResult::Failed(format!("decode: {error}")),
    };
    // The documents have no characters that Go's encoder escapes in another way, except for those in `escaped`.
    let text = escaped(&document.to_string());
    match patch.apply(text.into_bytes()) {
        Ok(document) => {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            PatchResult::Applied(text(&document), text(&patch.to_json()))
        }
        Err(error) if error.to_string().contains("kube-apiserver panics") => PatchResult::Panic,
        Err(error) => PatchResult::Failed(format!("apply: {error}")),
    }
}

fn escaped(text: &str) -> String {
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn their_patch(answer: &Value) -> PatchResult {
    let text = |field: &str| String::from_utf8_lossy(&from_base64(&answer[field])).into_owned();
    match answer["error"].as_str().unwrap() {
        _ if answer.get("panic").is_some() => PatchResult::Panic,
        "" if answer["empty"] == true => PatchResult::Empty,
        "" => PatchResult::Applied(text("document"), text("operations")),
        error => PatchResult::Failed(error.to_owned()),
    }
}

fn compare_patches(cases: &[(Vec<u8>, Value)]) {
    let Some(program) = GoProgram::build("admission") else { return };
    let questions: Vec<Value> = cases
        .iter()
        .map(|(patch, document)| json!({"of": "patch", "patch": to_base64(patch), "document": document}))
        .collect();
    let (mut applied, mut failed, mut different) = (0, 0, 0);
    for ((patch, document), answer) in cases.iter().zip(program.ask(&questions)) {
        let (ours, theirs) = (our_patch(patch, document), their_patch(&answer));
        match theirs {
            PatchResult::Applied(..) | PatchResult::Empty => applied += 1,
            _ => failed += 1,
        }
        // Go compares the members of objects in random order: a difference or a panic may come first.
        let is_refusal = |result: &PatchResult| matches!(result, PatchResult::Failed(_) | PatchResult::Panic);
        let one_panics = ours == PatchResult::Panic || theirs == PatchResult::Panic;
        if ours != theirs && !(one_panics && is_refusal(&ours) && is_refusal(&theirs)) {
            different += 1;
            if different <= 40 {
                let patch = String::from_utf8_lossy(patch);
                eprintln!("{patch} on {document}\n  ours:   {ours:?}\n  theirs: {theirs:?}");
            }
        }
    }
    eprintln!("{} patches: {applied} apply, {failed} fail", cases.len());
    assert_eq!(different, 0, "{different} patches have another result");
}

const KEYS: &[&str] = &["a", "b", "c", "", "a/b", "~", "0", "<", "\u{e9}"];

fn value(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth == 0 { 6 } else { 10 }) {
        0 => Value::Null,
        1 => json!(rng.one_in(2)),
        2 => json!(rng.below(3)),
        3 => json!(1.5),
        4 => json!("<&>"),
        5 => json!("text"),
        6 | 7 => (0..rng.below(4)).map(|_| value(rng, depth - 1)).collect(),
        _ => {
            let fields = (0..rng.below(4)).map(|_| ((*rng.pick(KEYS)).to_owned(), value(rng, depth - 1)));
            Value::Object(fields.collect())
        }
    }
}

/// A path that mostly leads to a value of the document, or beside one.
fn path(rng: &mut Rng, document: &Value) -> String {
    let mut path = String::new();
    let mut at = document;
    loop {
        let (key, next) = match at {
            Value::Object(fields) if !fields.is_empty() => {
                let keys: Vec<_> = fields.keys().collect();
                let key = (*rng.pick(&keys)).clone();
                (key.replace('~', "~0").replace('/', "~1"), &fields[&key])
            }
            Value::Array(items) if !items.is_empty() => {
                let index = rng.below(items.len());
                let key = if rng.one_in(4) { format!("-{}", items.len() - index) } else { index.to_string() };
                (key, &items[index])
            }
            _ => break,
        };
        path = format!("{path}/{key}");
        at = next;
        if rng.one_in(3) {
            break;
        }
    }
    match rng.below(12) {
        0 => format!("{path}/{}", rng.pick(KEYS)),
        1 => format!("{path}/-"),
        2 => format!("{path}/{}", rng.below(4)),
        3 => format!("{path}/-{}", rng.below(4)),
        4 => format!(
            "{path}/{}",
            rng.pick(&["01", "+1", "1.0", "99999999999999999999", "~2", "~01", "~", "\u{e9}"])
        ),
        5 if rng.one_in(3) => String::new(),
        6 if rng.one_in(3) => path.trim_start_matches('/').to_owned(),
        _ => path,
    }
}

fn operation(rng: &mut Rng, document: &Value) -> Value {
    let kind =
        *rng.pick(&["add", "add", "remove", "replace", "replace", "move", "copy", "copy", "test", "test"]);
    let mut operation = json!({"op": kind, "path": path(rng, document)});
    if matches!(kind, "move" | "copy") {
        operation["from"] = json!(path(rng, document));
    }
    if matches!(kind, "add" | "replace" | "test") {
        let there = document.pointer(operation["path"].as_str().unwrap()).cloned();
        operation["value"] = match there {
            Some(there) if kind == "test" && !rng.one_in(4) => there,
            _ => value(rng, 2),
        };
    }
    match rng.below(60) {
        0 => operation["op"] = json!("frobnicate"),
        1 => operation["op"] = Value::Null,
        2 => operation["path"] = json!(7),
        3 => drop(operation.as_object_mut().unwrap().remove("path")),
        4 => drop(operation.as_object_mut().unwrap().remove("value")),
        5 => drop(operation.as_object_mut().unwrap().remove("from")),
        6 => operation["value"] = Value::Null,
        7 => operation = (*rng.pick(&[json!(null), json!(1), json!("x"), json!([])])).clone(),
        _ => {}
    }
    operation
}

/// The text of a patch, now and then broken or written in another way.
fn patch_text(rng: &mut Rng, operations: Vec<Value>) -> Vec<u8> {
    let mut text = Value::Array(operations).to_string().into_bytes();
    match rng.below(20) {
        0 => text.truncate(rng.below(text.len() + 1)),
        1 => {
            let at = rng.below(text.len());
            text[at] = *rng.pick(b"{}[]\",:\\x0-. \n\xff\x01tn");
        }
        2 => {
            text =
                String::from_utf8(text).unwrap().replace(',', " ,\n\t").replace("1.5", "15e-1").into_bytes();
        }
        3 => text = String::from_utf8(text).unwrap().replace('t', "\\u0074").into_bytes(),
        4 => text.extend_from_slice(rng.pick(&[" ", "x", "[]"]).as_bytes()),
        _ => {}
    }
    text
}

#[test]
fn random_patches_apply_as_in_the_api_server() {
    let seed = seed();
    eprintln!("seed {seed}");
    let mut rng = Rng(seed);
    let cases: Vec<_> = (0..inputs(8000))
        .map(|_| {
            let document = loop {
                let document = value(&mut rng, 4);
                if document.is_object() {
                    break document;
                }
            };
            let operations = (0..rng.below(5)).map(|_| operation(&mut rng, &document)).collect();
            (patch_text(&mut rng, operations), document)
        })
        .collect();
    compare_patches(&cases);
}

#[test]
fn particular_patches_apply_as_in_the_api_server() {
    const PATCHES: &[&str] = &[
        "",
        " ",
        "null",
        "{}",
        "1",
        "true",
        "\"x\"",
        "[]",
        "[null]",
        "[1]",
        "[[]]",
        "[{}]",
        "[{",
        "-",
        "[1.",
        "[tru]",
        r#"["\u00"]"#,
        r#"["\q"]"#,
        "[01]",
        "[1e]",
        "[-]",
        "[,]",
        "[{]",
        r#"[{"a"}]"#,
        r#"[{"a":1,}]"#,
        "[]]",
        "{'a'}",
        r#"[{"op":"add","path":"/x","value":1,"path":"/y"}]"#,
        r#"[{"op":"test","path":"/n","value":1.0}]"#,
        r#"[{"op":"test","path":"/n","value":1}]"#,
        r#"[{"op":"test","path":"/s","value":"<"}]"#,
        r#"[{"op":"test","path":"/s","value":"\u003c"}]"#,
        r#"[{"op":"copy","from":"/s","path":"/t"},{"op":"test","path":"/t","value":"<"}]"#,
        r#"[{"op":"add","path":"/t","value":"<"},{"op":"test","path":"/t","value":"<"}]"#,
        r#"[{"op":"add","path":"/t","value":"<"},{"op":"copy","from":"/t","path":"/u"},{"op":"test","path":"/u","value":"<"}]"#,
        r#"[{"op":"copy","from":"/missing","path":"/t"}]"#,
        r#"[{"op":"replace","path":"/missing","value":1}]"#,
        r#"[{"op":"remove","path":"/missing"}]"#,
        r#"[{"op":"test","path":"/missing"}]"#,
        r#"[{"op":"test","path":"/missing","value":null}]"#,
        r#"[{"op":"test","path":"/null","value":null}]"#,
        r#"[{"op":"test","path":"/list","value":[1,null]}]"#,
        r#"[{"op":"test","path":"","value":{}}]"#,
        r#"[{"op":"test","path":""}]"#,
        r#"[{"op":"replace","path":"","value":{"a":1}}]"#,
        r#"[{"op":"replace","path":"","value":[1]},{"op":"add","path":"/-","value":2}]"#,
        r#"[{"op":"replace","path":"","value":1}]"#,
        r#"[{"op":"replace","path":"","value":null}]"#,
        r#"[{"op":"replace","path":""}]"#,
        r#"[{"op":"remove","path":""}]"#,
        r#"[{"op":"add","path":"","value":{}}]"#,
        r#"[{"op":"add","path":"/new","value":null},{"op":"copy","from":"/new","path":"/b"},{"op":"add","path":"/b/c","value":1}]"#,
        r#"[{"op":"add","path":"/new","value":null},{"op":"copy","from":"/new","path":"/b"},{"op":"test","path":"/b","value":{}}]"#,
        r#"[{"op":"add","path":"/new","value":null},{"op":"copy","from":"/new","path":"/b"},{"op":"test","path":"/b","value":null}]"#,
        r#"[{"op":"add","path":"/new","value":null},{"op":"copy","from":"/new","path":"/b"},{"op":"remove","path":"/b/c"}]"#,
        r#"[{"op":"add","path":"/new","value":null},{"op":"test","path":"/new","value":null}]"#,
        r#"[{"op":"add","path":"/list/2","value":7},{"op":"add","path":"/list/-1","value":8},{"op":"remove","path":"/list/-4"}]"#,
        r#"[{"op":"add","path":"/list/4","value":7}]"#,
        r#"[{"op":"add","path":"/list/-4","value":7}]"#,
        r#"[{"op":"remove","path":"/list/2"}]"#,
        r#"[{"op":"replace","path":"/list/-2","value":7}]"#,
        r#"[{"op":"move","from":"/list","path":"/list/0"}]"#,
        r#"[{"op":"add","path":"/\ud800","value":"\udc00\ud83d\ude00\u2028"}]"#,
        "[{\"op\":\"add\",\"path\":\"/u\",\"value\":\"\u{2028}\u{2029}\"}]",
    ];
    let document = json!({"n": 1, "s": "<", "null": null, "list": [1, null]});
    let mut cases: Vec<_> =
        PATCHES.iter().map(|patch| (patch.as_bytes().to_vec(), document.clone())).collect();
    cases.push((b"[{\"op\":\"add\",\"path\":\"/\xe2\x82\",\"value\":\"\xff\xfe\"}]".to_vec(), document));
    // Copies that double: the limit is reached at the same one.
    let mut operations = vec![json!({"op": "add", "path": "/a", "value": "x".repeat(1000)})];
    for _ in 0..14 {
        operations.push(json!({"op": "add", "path": "/b", "value": []}));
        operations.push(json!({"op": "copy", "from": "/a", "path": "/b/-"}));
        operations.push(json!({"op": "copy", "from": "/a", "path": "/b/-"}));
        operations.push(json!({"op": "move", "from": "/b", "path": "/a"}));
    }
    cases.push((Value::Array(operations).to_string().into_bytes(), json!({})));
    compare_patches(&cases);
}

/// A response and the text of its failure, or what matters of it.
fn our_response(version: ReviewVersion, kind: WebhookKind, response: &WebhookResponse) -> Value {
    match ReviewResponse::read(version, kind, "u", response) {
        Err(error) => json!({"error": error.text, "code": error.code}),
        Ok(review) => json!({
            "allowed": review.allowed,
            "patch": to_base64(&review.patch),
            "patchType": review.patch_type,
            "annotations": review.audit_annotations,
            "warnings": review.warnings,
            "status": review.result.map(|status| json!({
                "status": status.status.unwrap_or_default(),
                "message": status.message.unwrap_or_default(),
                "reason": status.reason.unwrap_or_default(),
                "code": status.code.unwrap_or_default(),
                "details": status.details,
            })),
        }),
    }
}

fn their_response(answer: &Value) -> Value {
    if answer["error"] != "" {
        return json!({"error": answer["error"], "code": answer.get("code").unwrap_or(&json!(0))});
    }
    let response = &answer["response"];
    let or = |value: &Value, otherwise: Value| if value.is_null() { otherwise } else { value.clone() };
    let status = answer.get("result").map(|status| {
        json!({
            "status": or(&status["status"], json!("")),
            "message": or(&status["message"], json!("")),
            "reason": or(&status["reason"], json!("")),
            "code": or(&status["code"], json!(0)),
            "details": status["details"],
        })
    });
    json!({
        "allowed": response["Allowed"],
        "patch": or(&response["Patch"], json!("")),
        "patchType": response["PatchType"],
        "annotations": or(&response["AuditAnnotations"], json!({})),
        "warnings": or(&response["Warnings"], json!([])),
        "status": status,
    })
}

#[test]
fn responses_are_read_as_in_the_api_server() {
    const RESPONSES: &[&str] = &[
        r#"{"uid":"u","allowed":true}"#,
        r#"{"uid":"u","allowed":"x"}"#,
        r#"{"uid":1}"#,
        r#"{"uid":"v"}"#,
        "null",
        "[]",
        "7",
        r#"{"uid":"u","UID":"v","Allowed":true}"#,
        r#"{"uid":"u","allowed":true,"allowed":false}"#,
        r#"{"uid":"u","allowed":null}"#,
        r#"{"uid":"u","unknown":{"a":[1,"]"]}}"#,
        r#"{"uid":"u","patch":"W10=","patchType":"JSONPatch"}"#,
        r#"{"uid":"u","patch":"W10="}"#,
        r#"{"uid":"u","patch":"W1\n0\r=","patchType":"Merge"}"#,
        r#"{"uid":"u","patchType":"JSONPatch"}"#,
        r#"{"uid":"u","patch":"W10=","patchType":""}"#,
        r#"{"uid":"u","patch":"","patchType":null}"#,
        r#"{"uid":"u","patch":"W10"}"#,
        r#"{"uid":"u","patch":"W1"}"#,
        r#"{"uid":"u","patch":"W1="}"#,
        r#"{"uid":"u","patch":"W"}"#,
        r#"{"uid":"u","patch":"W1==="}"#,
        r#"{"uid":"u","patch":"W10=x"}"#,
        r#"{"uid":"u","patch":"=W10"}"#,
        r#"{"uid":"u","patch":"W_0="}"#,
        r#"{"uid":"u","patch":"W1=0"}"#,
        r#"{"uid":"u","patch":[91,93],"patchType":"JSONPatch"}"#,
        r#"{"uid":"u","patch":[]}"#,
        r#"{"uid":"u","patch":[91,93,300]}"#,
        r#"{"uid":"u","patch":["x"]}"#,
        r#"{"uid":"u","patch":{}}"#,
        r#"{"uid":"u","patch":true}"#,
        r#"{"uid":"u","patchType":1}"#,
        r#"{"uid":"u","auditAnnotations":{"a":"1","b":null,"a":"2"}}"#,
        r#"{"uid":"u","auditAnnotations":{"a":1}}"#,
        r#"{"uid":"u","auditAnnotations":[]}"#,
        r#"{"uid":"u","warnings":["a",null]}"#,
        r#"{"uid":"u","warnings":"x"}"#,
        r#"{"uid":"u","warnings":[1]}"#,
        r#"{"uid":"u","status":{}}"#,
        r#"{"uid":"u","status":null}"#,
        r#"{"uid":"u","status":{"status":"Success","message":"m","reason":"r","code":418}}"#,
        r#"{"uid":"u","status":{"code":403.5}}"#,
        r#"{"uid":"u","status":{"code":2147483648}}"#,
        r#"{"uid":"u","status":{"code":-1,"metadata":{"selfLink":"s","remainingItemCount":5}}}"#,
        r#"{"uid":"u","status":{"metadata":{"remainingItemCount":1.5}}}"#,
        r#"{"uid":"u","status":{"metadata":[]}}"#,
        r#"{"uid":"u","status":{"details":{"name":"n","group":"g","kind":"k","uid":"i","retryAfterSeconds":7,"causes":[{"reason":"r","message":"m","field":"f"}]}}}"#,
        r#"{"uid":"u","status":{"details":{"causes":{}}}}"#,
        r#"{"uid":"u","status":{"details":{"causes":[{"reason":1}]}}}"#,
        r#"{"uid":"u","status":{"message":"a"},"status":{"code":500}}"#,
        r#"{"uid":"u"},"response":{"allowed":true}"#,
    ];
    const BODIES: &[&str] = &[
        "",
        "{",
        "{}",
        "[]",
        "null",
        " {\"response\":null}",
        "{} x",
        r#"{"response":1}"#,
        r#"{"Kind":"Foo"}"#,
        r#"{"kind":1}"#,
        r#"{"kind":"Foo","apiVersion":"admission.k8s.io/v1"}"#,
        r#"{"kind":"Status","apiVersion":"v1"}"#,
        r#"{"kind":"Status","apiVersion":"x/v9"}"#,
        r#"{"kind":"ListOptions","apiVersion":"admission.k8s.io/v1beta1"}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"a/b/c"}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"v1"}"#,
        r#"{"apiVersion":"admission.k8s.io/v1","response":{"uid":"u"}}"#,
        r#"{"kind":"AdmissionReview","response":{"uid":"u"}}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/","response":{"uid":"u"}}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"/","response":{"uid":"u"}}"#,
    ];
    const ERRORS: &[(u16, &str, &str)] = &[
        (500, "text/plain", "boom\n"),
        (500, "", "boom"),
        (500, "application/json", "boom"),
        (502, "text/html; a=b", "<a>"),
        (400, "text/plain", "b"),
        (401, "", ""),
        (403, "text/plain", "no way"),
        (403, "text/plain", ""),
        (404, "", "x"),
        (405, "", "x"),
        (406, "", "x"),
        (406, "application/json", "x"),
        (409, "", "x"),
        (415, "application/json", ""),
        (422, "", "x"),
        (429, "", "x"),
        (503, "", "x"),
        (504, "", "x"),
        (599, "", "x"),
        (207, "application/json", "{}"),
        (204, "application/json", ""),
        (206, "application/json", "{}"),
        (304, "", ""),
        (
            500,
            "application/json",
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"m","code":418}"#,
        ),
        (500, "text/plain", r#"{"kind":"Status","status":"Failure","message":"m"}"#),
        (500, "application/json", r#"{"status":"Failure","message":"m"}"#),
        (500, "application/json", r#"{"kind":"Status","status":"Success","message":"m"}"#),
        (500, "application/json", r#"{"kind":"Status","status":"Failure","code":"x"}"#),
    ];
    let Some(program) = GoProgram::build("admission") else { return };
    let mut responses: Vec<(u16, &str, String)> = Vec::new();
    for version in ["v1", "v1beta1"] {
        let review = |response: &&str| {
            format!(
                r#"{{"apiVersion":"admission.k8s.io/{version}","kind":"AdmissionReview","response":{response}}}"#
            )
        };
        responses.extend(RESPONSES.iter().map(review).map(|body| (200, "application/json", body)));
    }
    responses.extend(BODIES.iter().map(|body| (200, "", (*body).to_owned())));
    responses.extend(ERRORS.iter().map(|(status, kind, body)| (*status, *kind, (*body).to_owned())));
    let mut different = 0;
    for (version, name) in [(ReviewVersion::V1, "v1"), (ReviewVersion::V1Beta1, "v1beta1")] {
        for kind in [WebhookKind::Mutating, WebhookKind::Validating] {
            let questions: Vec<Value> = responses
                .iter()
                .map(|(status, content_type, body)| {
                    json!({"of": "response", "version": name, "mutating": kind == WebhookKind::Mutating, "uid": "u",
                        "status": status, "contentType": content_type, "body": to_base64(body.as_bytes())})
                })
                .collect();
            for ((status, content_type, body), answer) in responses.iter().zip(program.ask(&questions)) {
                let content_type = (*content_type).to_owned();
                let response = WebhookResponse { status: *status, content_type, body: body.clone().into() };
                let (ours, theirs) = (our_response(version, kind, &response), their_response(&answer));
                if ours != theirs {
                    eprintln!("{name} {kind:?} {status} {body}\n  ours:   {ours}\n  theirs: {theirs}");
                    different += 1;
                }
            }
        }
    }
    assert_eq!(different, 0, "{different} responses are read differently");
}

#[test]
fn reviews_are_written_as_by_the_api_server() {
    let Some(program) = GoProgram::build("admission") else { return };
    let object = json!({"kind": "Pod", "apiVersion": "v1", "a": "<&>\u{2028}\u{1}\u{8}\u{7f}\"\\", "f": 1.5, "z": 1e21, "m": 1e-7,
        "large": 9_007_199_254_740_991_i64, "q": null, "list": [1, [], {}]});
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "<x>"});
    for (version, name) in [(ReviewVersion::V1, "v1"), (ReviewVersion::V1Beta1, "v1beta1")] {
        for full in [true, false] {
            let text = |text: &str| if full { text.to_owned() } else { String::new() };
            let given = |value: &Value| full.then(|| value.clone());
            let attributes = Attributes {
                operation: Operation::Create,
                kind: GroupVersionKind { group: String::new(), version: "v1".into(), kind: "Pod".into() },
                resource: GroupVersionResource {
                    group: String::new(),
                    version: "v1".into(),
                    resource: "pods".into(),
                },
                subresource: text("status"),
                name: text("n"),
                namespace: text("ns"),
                user: UserInfo {
                    username: text("a"),
                    uid: text("b"),
                    groups: if full { vec!["g".to_owned()] } else { Vec::new() },
                    extra: full.then(|| ("k".to_owned(), vec!["v".to_owned()])).into_iter().collect(),
                },
                dry_run: full,
                options: given(&options),
            };
            let objects = Objects { object: given(&object), old_object: given(&object) };
            let question = json!({"of": "request", "version": name, "attributes": {
                "operation": "CREATE", "kind": attributes.kind, "resource": attributes.resource,
                "subresource": attributes.subresource, "name": attributes.name, "namespace": attributes.namespace,
                "username": attributes.user.username, "userUID": attributes.user.uid, "groups": attributes.user.groups,
                "extra": attributes.user.extra, "dryRun": attributes.dry_run, "options": attributes.options,
                "object": objects.object, "oldObject": objects.old_object}});
            let theirs = String::from_utf8(from_base64(&program.ask(&[question])[0]["body"])).unwrap();
            let uid = serde_json::from_str::<Value>(&theirs).unwrap()["request"]["uid"]
                .as_str()
                .unwrap()
                .to_owned();
            let ours = ReviewRequest::new(version, &attributes, &objects, attributes.dry_run);
            let body = String::from_utf8(ours.body()).unwrap();
            assert_eq!(body.replace(&ours.uid, "UID"), theirs.replace(&uid, "UID"));
        }
    }
}
