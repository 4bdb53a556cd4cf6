use serde_json::json;

use super::*;

fn with_rules(rules: &Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND, "rules": rules})
}

fn problems(document: &Value) -> Vec<String> {
    match SessionPolicy::parse(document) {
        Ok(_) => Vec::new(),
        Err(SessionPolicyError::Undecodable(problem, fix)) => {
            assert!(!fix.is_empty(), "{problem}");
            vec![problem]
        }
        Err(SessionPolicyError::Fields(errors)) => {
            assert!(errors.iter().all(|error| !error.fix.is_empty()), "{errors:?}");
            errors.iter().map(ToString::to_string).collect()
        }
    }
}

#[test]
fn all_errors_are_told_at_once() {
    let rules = json!([
        {"level": "output", "subresources": ["exec", "logs"]},
        {"users": ["*"], "userGroups": [""], "namespaces": ["*", "Prod"]},
        {"level": "None", "required": true, "maxDuration": "1 h", "idleTimeout": "-5m", "maxSessionsPerUser": 0},
        {"level": "Output", "maxDuration": "0", "idleTimeout": "10000h", "maxSessionsPerUser": 4_294_967_296_i64},
    ]);
    let levels = r#"supported values: "None", "Metadata", "Output", "InputAndOutput""#;
    let subresources = r#"supported values: "exec", "attach", "portforward""#;
    let range = "must be more than 0 and at most 8760h0m0s";
    let expected = vec![
        format!(r#"rules[0].level: Unsupported value: "output": {levels}"#),
        format!(r#"rules[0].subresources[1]: Unsupported value: "logs": {subresources}"#),
        "rules[1].level: Required value".to_owned(),
        r#"rules[1].users[0]: Invalid value: "*": must be a name: there are no wildcards"#.to_owned(),
        r#"rules[1].userGroups[0]: Invalid value: "": must be a name: there are no wildcards"#.to_owned(),
        r#"rules[1].namespaces[0]: Invalid value: "*": must be a name: there are no wildcards"#.to_owned(),
        r#"rules[1].namespaces[1]: Invalid value: "Prod": must be the name of a namespace"#.to_owned(),
        "rules[2].required: Forbidden: level None records nothing".to_owned(),
        r#"rules[2].maxDuration: Invalid value: "1 h": time: unknown unit " h" in duration "1 h""#.to_owned(),
        format!(r#"rules[2].idleTimeout: Invalid value: "-5m": {range}"#),
        "rules[2].maxSessionsPerUser: Invalid value: 0: must be between 1 and 4294967295".to_owned(),
        format!(r#"rules[3].maxDuration: Invalid value: "0": {range}"#),
        format!(r#"rules[3].idleTimeout: Invalid value: "10000h": {range}"#),
        "rules[3].maxSessionsPerUser: Invalid value: 4294967296: must be between 1 and 4294967295".to_owned(),
    ];
    assert_eq!(problems(&with_rules(&rules)), expected);
}

#[test]
fn another_document_is_refused() {
    let unknown = json!([{"level": "Output", "namespace": ["a"]}, {"level": "Output", "idletimeout": "1m"}]);
    for (document, problem) in [
        (json!({}), "is not a SessionPolicy of portcullis.dev/v1alpha1"),
        (
            json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": []}),
            "is not a SessionPolicy of portcullis.dev/v1alpha1",
        ),
        (with_rules(&json!([])), "rules: Required value"),
        (
            with_rules(&unknown),
            r#"strict decoding error: unknown field "rules[0].namespace", unknown field "rules[1].idletimeout""#,
        ),
        (with_rules(&json!([{"level": 1}])), "rules[0].level: invalid type: integer `1`, expected a string"),
    ] {
        assert_eq!(problems(&document), [problem], "{document}");
    }
}

#[test]
fn the_file_of_the_documentation_is_valid() {
    let documentation = include_str!("../policy.rs").lines().filter_map(|line| line.strip_prefix("//! "));
    let file: Vec<&str> = documentation
        .skip_while(|line| *line != "```yaml")
        .skip(1)
        .take_while(|line| *line != "```")
        .collect();
    let document = portcullis_kubernetes::yaml::value(file.join("\n").as_bytes()).unwrap();
    assert_eq!(SessionPolicy::parse(&document).unwrap().rules().len(), 3);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = json!([
        {"level": "None", "users": ["robot"]},
        {"level": "Metadata", "namespaces": ["payments"], "subresources": ["portforward"]},
        {"level": "InputAndOutput", "namespaces": ["payments", "ledger"], "required": true, "maxDuration": "1h", "idleTimeout": "90s",
         "maxSessionsPerUser": 3},
        {"level": "Output", "userGroups": ["admins", "operators"]},
        {"level": "Metadata", "users": ["alice"], "userGroups": ["admins"]},
    ]);
    let policy = SessionPolicy::parse(&with_rules(&rules)).unwrap();
    let (admins, others) = (["people".to_owned(), "admins".to_owned()], ["people".to_owned()]);
    for (user, groups, namespace, kind, rule) in [
        ("robot", &admins[..], "payments", SessionKind::Exec, Some(0)),
        ("alice", &others[..], "payments", SessionKind::PortForward, Some(1)),
        ("alice", &others[..], "payments", SessionKind::Attach, Some(2)),
        ("alice", &others[..], "ledger", SessionKind::PortForward, Some(2)),
        ("alice", &admins[..], "default", SessionKind::Exec, Some(3)),
        ("alice", &others[..], "default", SessionKind::Exec, None),
        ("bob", &[], "default", SessionKind::Exec, None),
    ] {
        let session = SessionAttributes { user, groups, namespace, kind };
        assert_eq!(policy.position(&session), rule, "{session:?}");
        let decision = rule.map_or_else(SessionDecision::default, |rule| policy.rules()[rule].decision);
        assert_eq!(policy.evaluate(&session), decision);
    }
    assert_eq!(
        policy.rules()[2].decision,
        SessionDecision {
            level: RecordingLevel::InputAndOutput,
            required: true,
            max_duration: Some(Duration::from_hours(1)),
            idle_timeout: Some(Duration::from_secs(90)),
            max_sessions_per_user: Some(3),
        }
    );
    assert_eq!(SessionDecision::default().level, RecordingLevel::None);
}
