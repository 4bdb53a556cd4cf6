//! Rules that end sessions, or refuse them.

use http::StatusCode;
use serde_json::{Value, json};
use testkit::{get, status};

use super::recordings::{Recorded, assert_ends_with};
use super::{V5, annotations, message, opened};

const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec?command=sh";

async fn assert_ends(rule: Value, reason: &str, told: &str) {
    let recorded = Recorded::start(&[message(1, "output")], &json!([rule]), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    assert_ends_with(&mut tunnel, told).await;
    let annotations = annotations(&recorded.log, "ResponseComplete").await;
    assert_eq!(annotations["reason"], reason);
    assert_eq!(annotations.get("recording"), None, "the rule records nothing");
    recorded
        .gateway
        .until_counted(&format!("portcullis_sessions_ended_total{{kind=\"exec\",reason=\"{reason}\"}} 1"))
        .await;
}

#[tokio::test]
async fn a_session_ends_after_its_longest_duration() {
    let told = "the session has ended: it took as long as the session policy permits";
    assert_ends(json!({"level": "None", "maxDuration": "500ms"}), "duration", told).await;
}

#[tokio::test]
async fn a_session_ends_when_it_is_idle() {
    let told = "the session has ended: it was idle for as long as the session policy permits";
    assert_ends(json!({"level": "None", "idleTimeout": "500ms"}), "idle", told).await;
}

#[tokio::test]
async fn a_user_has_as_many_sessions_as_its_rule_permits_and_takes_none_of_another() {
    let rules = json!([{"level": "None", "maxSessionsPerUser": 2}]);
    let recorded = Recorded::start(&[message(1, "output")], &rules, &[]).await;
    let first = recorded.open(EXEC).await;
    let second = recorded.open("/api/v1/namespaces/n/pods/p/attach").await;
    let response = recorded.ask(EXEC, &[]).await;
    assert_eq!(response.headers()["retry-after"], "10");
    let (code, body) = status(response).await;
    assert_eq!((code, &body["reason"]), (StatusCode::TOO_MANY_REQUESTS, &json!("TooManyRequests")));
    assert_eq!(body["details"]["retryAfterSeconds"], 10);
    recorded
        .gateway
        .until_counted("portcullis_sessions_refused_total{kind=\"exec\",reason=\"sessions\"} 1")
        .await;

    let bob = recorded.pki.clients.leaf().cn("bob").issue();
    let headers = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", V5)];
    let of_bob = recorded.gateway.http1(Some(&bob)).await.send(get(EXEC, &headers)).await.unwrap();
    let of_bob = opened(of_bob).await;

    drop(first);
    let ended = "portcullis_sessions_ended_total{kind=\"exec\",reason=\"client\"} 1";
    recorded.gateway.until_counted(ended).await;
    let third = recorded.open(EXEC).await;
    drop((second, third, of_bob));
}
