//! Which requests are refused while all places are taken, and with which response, compared with kube-apiserver's own
//! filters.

use http::Method;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::{Pki, empty, text};

use super::{HELD, Holding, send};

const NAMESPACED: &str = "/api/v1/namespaces/n";

fn targets() -> Vec<String> {
    let plain = [
        "/",
        "/api",
        "/apis/apps/v1",
        "/healthz",
        "/livez/ping",
        "/version",
        "/metrics",
        "/logs/x",
        "/openapi/v2",
    ];
    let resources = [
        "/pods",
        "/pods/p",
        "/pods/p/status",
        "/pods/p/log",
        "/pods/p/log?follow=true",
        "/pods/p/exec?command=x",
        "/pods/p/attach",
        "/pods/p/portforward",
        "/pods/p/proxy/a/b",
        "/pods/p/eviction",
        "/services/s/proxy",
        "/pods?watch=true",
        "/pods?watch=1",
        "/pods?watch=false",
        "/pods?watch=0",
        "/pods?watch",
        "/pods/p?watch=true",
        "/pods?fieldSelector=metadata.name%3Dp&watch=true",
        "/pods?limit=1&dryRun=All",
    ];
    let cluster = ["/api/v1/watch/pods", "/api/v1/proxy/nodes/x", "/api/v1/nodes/x/proxy/metrics"];
    let reviews = ["/apis/authentication.k8s.io/v1/selfsubjectreviews"];
    let resources = resources.iter().map(|rest| format!("{NAMESPACED}{rest}"));
    let others = plain.iter().chain(&cluster).chain(&reviews).map(ToString::to_string);
    others.chain(resources).collect()
}

#[tokio::test]
async fn the_same_requests_are_refused_as_by_kube_apiserver_with_the_same_response() {
    let Some(program) = GoProgram::build("maxinflight") else { return };
    let pki = Pki::new();
    let holding = Holding::start(&pki).await;
    let limits = ["--max-requests-inflight=1", "--max-mutating-requests-inflight=1"];
    let gateway = holding.gateway(&pki, &limits);
    let users = [
        ("alice", vec![]),
        ("admin", vec!["system:masters"]),
        ("node", vec!["system:nodes", "system:masters"]),
        ("other", vec!["System:masters", "system:master"]),
    ];
    let alice = pki.clients.leaf().cn("holder").issue();
    let client = gateway.http2(Some(&alice)).await;
    let _held = ["GET", "POST"].map(|method| send(&client, method, HELD, &[]));
    holding.received(2).await;
    let mut questions = Vec::new();
    let mut answers = Vec::new();
    for (name, groups) in users {
        let mut leaf = pki.clients.leaf().cn(name);
        for group in &groups {
            leaf = leaf.org(group);
        }
        let mut client = gateway.http1(Some(&leaf.issue())).await;
        for target in targets() {
            for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                let request = http::Request::builder().method(Method::try_from(method).unwrap()).uri(&target);
                let response = client.send(request.body(empty()).unwrap()).await.unwrap();
                let code = response.status().as_u16();
                let header = |name: &str| {
                    response
                        .headers()
                        .get_all(name)
                        .iter()
                        .map(|value| value.to_str().unwrap().to_owned())
                        .collect::<Vec<_>>()
                };
                let header = [
                    "content-type",
                    "content-length",
                    "retry-after",
                    "x-content-type-options",
                    "cache-control",
                ]
                .map(header);
                let body = text(response).await;
                answers.push((code, header, body));
                questions.push(json!({"method": method, "target": target, "groups": groups}));
            }
        }
    }
    let references = program.ask(&questions);
    let mut refused = 0;
    for ((question, reference), (code, header, body)) in questions.iter().zip(&references).zip(answers) {
        let is_refused = reference["code"] == 429;
        assert_eq!(code == 429, is_refused, "{question}: {code}, {body}");
        if !is_refused {
            continue;
        }
        refused += 1;
        let names =
            ["Content-Type", "Content-Length", "Retry-After", "X-Content-Type-Options", "Cache-Control"];
        for (name, value) in names.into_iter().zip(header) {
            let expected: Vec<&str> = reference["header"][name]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            assert_eq!(value, expected, "{question}: {name}");
        }
        assert_eq!(json!(body), reference["body"], "{question}");
    }
    assert!(refused > 200 && refused < questions.len() - 200, "{refused} of {}", questions.len());
}
