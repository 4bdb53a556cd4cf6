use http::StatusCode;

use super::*;
use crate::status::{Attempt, AttemptTarget, Reason};

fn accept(accept: &str) -> Negotiation<'_> {
    Negotiation { accept: accept.into(), ..Negotiation::default() }
}

fn body(status: &Status, negotiation: &Negotiation<'_>) -> String {
    String::from_utf8(render(status, negotiation).into_body().to_vec()).expect("text")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

const UNAUTHORIZED: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;

#[test]
fn an_answer_is_json_unless_asked_otherwise() {
    let response = render(&Status::unauthorized(), &Negotiation::default());
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(response.headers().len(), 1);
    assert_eq!(response.body(), &format!("{UNAUTHORIZED}\n"));
    assert_eq!(response.body().len(), 129);
}

#[test]
fn accept_is_negotiated_as_kube_apiserver_negotiates_it() {
    use Encoding::{Json, PrettyJson, Protobuf, RawJson, Yaml};
    const CASES: &[(&str, Encoding)] = &[
        ("", Json),
        ("*/*", Json),
        ("*", Json),
        ("application/*", Json),
        ("application/json", Json),
        ("application/yaml", Yaml),
        ("application/vnd.kubernetes.protobuf", Protobuf),
        ("application/vnd.kubernetes.protobuf,application/json", Protobuf),
        ("application/vnd.kubernetes.protobuf, */*", Protobuf),
        ("application/json;q=0.5, application/yaml", Yaml),
        ("application/json;q=0.5,application/yaml;q=0.9", Yaml),
        ("application/yaml;q=0", Yaml),
        ("*/*, application/yaml;q=0.1", Yaml),
        ("text/html", RawJson),
        ("text/html, */*", Json),
        ("application/cbor", RawJson),
        ("Application/JSON", RawJson),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", RawJson),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Json),
        ("application/json;v=v1", RawJson),
        ("application/json;as=", Json),
        ("application/json;pretty=1", PrettyJson),
        ("application/json;pretty=true", Json),
        ("application/json;stream=watch", Json),
        ("application/json;stream=other", RawJson),
        ("application/yaml;stream=watch", RawJson),
        ("application/*;stream=watch", Json),
        ("application/json;sv=v1", RawJson),
        ("application/json;unknown=1", Json),
        ("application/json;charset=utf-8", Json),
        ("application", RawJson),
        ("application/json/x, application/yaml", Yaml),
        (" application/json ; q=0.1 , application/yaml ; q=0.2", Yaml),
        ("application/json;q=x,application/yaml;q=0.1", Yaml),
        (",", RawJson),
    ];
    let mut failed = Vec::new();
    for (header, expected) in CASES {
        let found = accept(header).encoding();
        if found != *expected {
            failed.push(format!("{header}: {found:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn people_get_indented_json() {
    const CASES: &[(Option<&str>, &str, bool)] = &[
        (None, "", false),
        (None, "curl/8.5", true),
        (None, "Wget/1", true),
        (None, "Mozilla/5.0 (X11)", true),
        (None, "Mozilla/4.0", false),
        (None, "kubectl/v1.36", false),
        (Some("pretty=true"), "", true),
        (Some("pretty=1"), "", true),
        (Some("pretty=T"), "", true),
        (Some("pretty=yes"), "curl/8.5", false),
        (Some("pretty=false"), "curl/8.5", false),
        (Some("pretty"), "curl/8.5", true),
        (Some("pretty="), "", false),
        (Some("pretty=&pretty=true"), "", false),
        (Some("x=pretty"), "curl/8.5", true),
        (Some("%70retty=true"), "", false),
    ];
    for (query, agent, pretty) in CASES {
        let negotiation =
            Negotiation { query: *query, user_agent: (*agent).into(), ..Negotiation::default() };
        let expected = if *pretty { Encoding::PrettyJson } else { Encoding::Json };
        assert_eq!(negotiation.encoding(), expected, "{query:?} {agent}");
    }
}

#[test]
fn indented_json_has_no_newline_at_its_end() {
    let expected = "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \"message\": \"away\\nfor now\",\n  \"reason\": \"ServiceUnavailable\",\n  \"details\": {\n    \"retryAfterSeconds\": 7\n  },\n  \"code\": 503\n}";
    let status = Status::service_unavailable("away\nfor now", Some(7));
    assert_eq!(body(&status, &accept("application/json;pretty=1")), expected);
    assert_eq!(body(&status, &accept("text/html")), expected);
}

#[test]
fn an_unacceptable_accept_keeps_the_code() {
    let response = render(&Status::unauthorized(), &accept("text/html"));
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
}

/// Statuses with what kube-apiserver's serializers make of them (printed by apimachinery v0.36.3).
fn golden() -> Vec<(Status, &'static str, &'static str, &'static str)> {
    let forbidden =
        |message: &str, details| Status { details: Some(details), ..Status::new(Reason::Forbidden, message) };
    vec![
        (
            Status::unauthorized(),
            UNAUTHORIZED,
            "apiVersion: v1\ncode: 401\nkind: Status\nmessage: Unauthorized\nmetadata: {}\nreason: Unauthorized\nstatus: Failure\n",
            "6b3873000a0c0a027631120653746174757312300a060a0012001a0012074661696c7572651a0c556e617574686f72697a6564220c556e617574686f72697a65643091031a002200",
        ),
        (
            forbidden(
                "pods.g< \"x\" is forbidden: User \"y<\\u2028\\x01\\x7f&é\" cannot get",
                Details { name: "x".into(), group: "g<".into(), kind: "pods".into(), ..Details::default() },
            ),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods.g\u003c \"x\" is forbidden: User \"y\u003c\\u2028\\x01\\x7f\u0026é\" cannot get","reason":"Forbidden","details":{"name":"x","group":"g\u003c","kind":"pods"},"code":403}"#,
            "apiVersion: v1\ncode: 403\ndetails:\n  group: g<\n  kind: pods\n  name: x\nkind: Status\nmessage: 'pods.g< \"x\" is forbidden: User \"y<\\u2028\\x01\\x7f&é\" cannot get'\nmetadata: {}\nreason: Forbidden\nstatus: Failure\n",
            "6b3873000a0c0a027631120653746174757312730a060a0012001a0012074661696c7572651a3f706f64732e673c2022782220697320666f7262696464656e3a20557365722022793c5c75323032385c7830315c78376626c3a9222063616e6e6f74206765742209466f7262696464656e2a110a01781202673c1a04706f6473280032003093031a002200",
        ),
        (
            Status::forbidden(
                &Attempt { user: "y", verb: "get", on: AttemptTarget::Path("/x") },
                "a long reason that goes on and on for more than eighty columns, so that it is folded",
            ),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"forbidden: User \"y\" cannot get path \"/x\": a long reason that goes on and on for more than eighty columns, so that it is folded","reason":"Forbidden","details":{},"code":403}"#,
            "apiVersion: v1\ncode: 403\ndetails: {}\nkind: Status\nmessage: 'forbidden: User \"y\" cannot get path \"/x\": a long reason that goes on and\n  on for more than eighty columns, so that it is folded'\nmetadata: {}\nreason: Forbidden\nstatus: Failure\n",
            "6b3873000a0c0a027631120653746174757312ab010a060a0012001a0012074661696c7572651a7e666f7262696464656e3a2055736572202279222063616e6e6f7420676574207061746820222f78223a2061206c6f6e6720726561736f6e207468617420676f6573206f6e20616e64206f6e20666f72206d6f7265207468616e2065696768747920636f6c756d6e732c20736f207468617420697420697320666f6c6465642209466f7262696464656e2a0a0a0012001a00280032003093031a002200",
        ),
        (
            Status {
                details: Some(Details { retry_after_seconds: 300, ..Details::default() }),
                ..Status::new(Reason::TooManyRequests, "slow down, wait")
            },
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"slow down, wait","reason":"TooManyRequests","details":{"retryAfterSeconds":300},"code":429}"#,
            "apiVersion: v1\ncode: 429\ndetails:\n  retryAfterSeconds: 300\nkind: Status\nmessage: slow down, wait\nmetadata: {}\nreason: TooManyRequests\nstatus: Failure\n",
            "6b3873000a0c0a027631120653746174757312430a060a0012001a0012074661696c7572651a0f736c6f7720646f776e2c2077616974220f546f6f4d616e7952657175657374732a0b0a0012001a0028ac02320030ad031a002200",
        ),
    ]
}

#[test]
fn json_and_protobuf_have_kube_apiservers_bytes_and_yaml_its_value() {
    let value = |yaml: &str| serde_saphyr::from_str::<serde_json::Value>(yaml).expect("YAML");
    for (status, json, yaml, protobuf) in golden() {
        assert_eq!(body(&status, &accept("application/json")), format!("{json}\n"));
        // D-yaml-style: the value is the same.
        assert_eq!(value(&body(&status, &accept("application/yaml"))), value(yaml));
        let response = render(&status, &accept("application/vnd.kubernetes.protobuf"));
        assert_eq!(hex(response.body()), protobuf, "{}", status.message);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/vnd.kubernetes.protobuf");
    }
}

#[test]
fn yaml_folds_no_lines() {
    let text = |number: usize| body(&golden()[number].0, &accept("application/yaml"));
    // Short messages have the same bytes.
    assert_eq!(text(0), golden()[0].2);
    let folded = "goes on and\n  on for more";
    assert!(golden()[2].2.contains(folded));
    assert!(!text(2).contains(folded), "the declared difference D-yaml-style no longer occurs");
}

#[test]
fn special_answers_keep_their_odd_shapes() {
    struct Case {
        status: Status,
        code: u16,
        content_type: &'static str,
        nosniff: bool,
        retry_after: Option<&'static str>,
        body: &'static str,
    }
    let cases = [
        Case {
            status: Status::timeout(),
            code: 504,
            content_type: "text/plain; charset=utf-8",
            nosniff: false,
            retry_after: None,
            body: "{\"metadata\":{},\"status\":\"Failure\",\"message\":\"Timeout: request did not complete within the allotted timeout\",\"reason\":\"Timeout\",\"details\":{},\"code\":504}\n",
        },
        Case {
            status: Status::shutting_down_try_later(),
            code: 429,
            content_type: "text/plain; charset=utf-8",
            nosniff: true,
            retry_after: Some("5"),
            body: "The apiserver is shutting down, please try again later.\n",
        },
        Case {
            status: Status::too_many_requests(1),
            code: 429,
            content_type: "text/plain; charset=utf-8",
            nosniff: true,
            retry_after: Some("1"),
            body: "Too many requests, please try again later.\n",
        },
        Case {
            status: Status::panicked(),
            code: 500,
            content_type: "text/plain; charset=utf-8",
            nosniff: true,
            retry_after: None,
            body: "This request caused apiserver to panic. Look in the logs for details.\n",
        },
        Case {
            status: Status::service_unavailable("away", Some(7)),
            code: 503,
            content_type: "application/json",
            nosniff: false,
            retry_after: Some("7"),
            body: "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"away\",\"reason\":\"ServiceUnavailable\",\"details\":{\"retryAfterSeconds\":7},\"code\":503}\n",
        },
        Case {
            status: Status::misdirected(),
            code: 421,
            content_type: "application/json",
            nosniff: false,
            retry_after: None,
            body: "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"the requested host is not served on this connection\",\"code\":421}\n",
        },
    ];
    for case in &cases {
        let response = render(&case.status, &Negotiation::default());
        let message = &case.status.message;
        assert_eq!(response.status().as_u16(), case.code, "{message}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], case.content_type, "{message}");
        assert_eq!(response.headers().contains_key("x-content-type-options"), case.nosniff, "{message}");
        let retry_after = response.headers().get("retry-after").map(|value| value.to_str().expect("text"));
        assert_eq!(retry_after, case.retry_after, "{message}");
        assert_eq!(response.body(), case.body, "{message}");
    }
}

#[test]
fn a_long_accept_header_is_still_answered() {
    let header = "text/html;q=0.1,".repeat(50_000) + "application/yaml";
    assert_eq!(accept(&header).encoding(), Encoding::Yaml);
}
