//! Rules that end sessions, or refuse them.

use http::StatusCode;
use serde_json::{Value, json};
use testkit::{get, status};

use super::recordings::{Recorded, assert_ends_with};
use super::{V5, annotations, exchange, masked, message, opened};

const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec?command=sh";

async fn assert_ends(rule: Value, reason: &str, told: &str, is_warned: bool) {
    let recorded = Recorded::start(&[message(1, "output")], &json!([rule]), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    let warning = assert_ends_with(&mut tunnel, told).await;
    assert_eq!(warning.contains("warning: "), is_warned, "{warning:?}");
    assert!(is_warned || warning.is_empty(), "{warning:?}");
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
    assert_ends(json!({"level": "None", "maxDuration": "500ms"}), "duration", told, true).await;
}

#[tokio::test]
async fn a_session_ends_when_it_is_idle() {
    let told = "the session has ended: it was idle for as long as the session policy permits";
    assert_ends(json!({"level": "None", "idleTimeout": "500ms"}), "idle", told, false).await;
}

/// Of what the gateway says in a session, the recording has a marker alone.
#[tokio::test]
async fn a_user_is_warned_on_the_terminal_and_the_recording_tells_it_from_output() {
    let told = "the session has ended: it took as long as the session policy permits";
    for (tty, [before, after], code) in
        [(true, ["\u{1}\r\n", "\r\n"], "m"), (false, ["\u{2}", "\n"], "notice")]
    {
        let rule = json!([{"level": "Output", "maxDuration": "500ms"}]);
        let recorded = Recorded::start(&[message(1, "output")], &rule, &[]).await;
        let mut tunnel = recorded.open(&format!("{EXEC}&tty={tty}")).await;
        exchange(&mut tunnel, &masked(0, "a"), &message(1, "output")).await;
        let warning = assert_ends_with(&mut tunnel, told).await;
        let line =
            warning.find(before).and_then(|at| warning[at..].strip_prefix(before)?.strip_suffix(after));
        let line = line.unwrap_or_else(|| panic!("{warning:?}"));
        assert!(
            line.starts_with("warning: the session ends in ") && line.ends_with("policy permits"),
            "{line}"
        );
        let recording = recorded.ended().await;
        let marker = if tty { format!("notice: {line}") } else { line.to_owned() };
        let output = if tty { "o" } else { "stdout" };
        assert_eq!(Value::from(recording.events()), json!([[output, "output"], [code, marker]]));
        assert_eq!(recording.end.unwrap().server_bytes, 6);
    }
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
