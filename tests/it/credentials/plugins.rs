//! Credential plugins: their environment, invalid output, and when they are run again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis::internal::CredentialUser;
use testkit::pki::Issued;

use super::{Case, IMPERSONATE, NOW, REQUEST_HEADER, base64, credential, exec, token};

/// As a JSON string.
fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn pair(issued: &Issued) -> String {
    let (certificate, key) = (json(&issued.cert_pem()), json(&issued.key_pem()));
    format!(r#"{{"clientCertificateData": {certificate}, "clientKeyData": {key}}}"#)
}

#[test]
fn plugin_credentials_are_never_printed() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("s3cr3t"));
    let read = case.read().unwrap_or_else(|error| panic!("{error}"));
    let shown = format!("{:?} {:?} {:?}", read.backend, read.backend.bearer_token, case.inputs);
    assert!(shown.contains("/bin/sh") && !shown.contains("s3cr3t"), "{shown}");
}

#[test]
fn a_plugins_certificate_is_sent_to_the_backend() {
    let mut case = Case::with_plugin(REQUEST_HEADER, "");
    let issued = case.pki.front.leaf().cn("gateway").validity(0, NOW.cast_signed() + 1000).issue();
    case.answer(&pair(&issued));
    let read = case.read().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.backend.client_certificate.unwrap().chain(), issued.chain);
    assert_eq!(case.due_in(), Some(800), "without an expirationTimestamp the certificate's own end counts");
}

// As client-go's decoder.
#[test]
fn a_plugin_may_print_yaml() {
    let mut case = Case::with_plugin(IMPERSONATE, "");
    let version = "# of a shell script\napiVersion: client.authentication.k8s.io/v1\nkind: ExecCredential\n";
    case.pki.write("answer", format!("{version}status:\n  token: \"t1\"\n  expirationTimestamp: null\n"));
    assert_eq!(case.token(), "t1");
}

#[test]
fn plugin_errors_do_not_contain_the_plugins_output() {
    const V1: &str = r#""apiVersion": "client.authentication.k8s.io/v1""#;
    let never = &format!(r#"{V1}, "interactiveMode": "Never""#);
    let good = &credential("v1", r#"{"token": "s3cr3t"}"#);
    let cases: &[(&str, &str, &str, &str, &str)] = &[
        (
            "no apiVersion",
            r#""interactiveMode": "Never""#,
            "",
            good,
            "invalid apiVersion \"\"\n      fix: give client.auth",
        ),
        (
            "an old apiVersion",
            r#""apiVersion": "client.authentication.k8s.io/v1alpha1""#,
            "",
            good,
            r#"invalid apiVersion "client.authentication.k8s.io/v1alpha1""#,
        ),
        ("no interactiveMode", V1, "", good, "interactiveMode must be specified for /bin/sh"),
        (
            "a terminal",
            &format!(r#"{V1}, "interactiveMode": "Always""#),
            "",
            good,
            "interactiveMode Always, and the gateway has no terminal",
        ),
        (
            "a variable without a name",
            never,
            r#", "env": [{"value": "s3cr3t"}]"#,
            good,
            "env variable has no name",
        ),
        ("no command", never, r#", "command": """#, good, "command must be specified"),
        (
            "a missing program",
            never,
            r#", "command": "no-such-program", "installHint": "run: install it\n""#,
            good,
            "executable no-such-program not found\n      fix: run: install it",
        ),
        (
            "a missing program without a hint",
            never,
            r#", "command": "./gone""#,
            good,
            "/./gone not found\n      fix: install it, or give its path",
        ),
        (
            "a failure",
            never,
            r#", "args": ["-c", "echo s3cr3t; echo not logged in >&2; exit 7"]"#,
            good,
            "/bin/sh failed with exit status: 7: not logged in\n      fix: run the plugin by hand",
        ),
        (
            "no JSON",
            never,
            "",
            "s3cr3t",
            "did not print an ExecCredential in JSON or YAML: a field has another type",
        ),
        (
            "broken JSON",
            never,
            "",
            r#"{"kind": "s3cr3t""#,
            "did not print an ExecCredential in JSON or YAML: error at line 1, column 17",
        ),
        (
            "broken YAML",
            never,
            "",
            "kind: [s3cr3t",
            "did not print an ExecCredential in JSON or YAML: it cannot be read",
        ),
        ("a bare string", never, "", r#""s3cr3t""#, "did not print an ExecCredential in JSON or YAML"),
        ("nothing", never, "", "", "did not print an ExecCredential in JSON or YAML"),
        (
            "a field of another type",
            never,
            "",
            &credential("v1", r#"{"token": "a", "expirationTimestamp": "s3cr3t"}"#),
            "did not print an ExecCredential in JSON or YAML",
        ),
        ("another kind", never, "", r#"{"kind": "s3cr3t"}"#, "another kind than ExecCredential"),
        (
            "another apiVersion",
            never,
            "",
            &credential("v1beta1", r#"{"token": "s3cr3t"}"#),
            "is configured to use API version client.authentication.k8s.io/v1 and returned another one",
        ),
        ("no status", never, "", &credential("v1", "null"), "didn't return a status field"),
        ("an empty status", never, "", &credential("v1", "{}"), "didn't return a token or cert/key pair"),
        ("an empty token", never, "", &credential("v1", r#"{"token": ""}"#), "didn't return a token"),
        (
            "a key alone",
            never,
            "",
            &credential("v1", r#"{"token": "a", "clientKeyData": "s3cr3t"}"#),
            "returned only certificate or key, not both",
        ),
        (
            "a pair that is none",
            never,
            "",
            &credential("v1", r#"{"clientCertificateData": "s3cr3t", "clientKeyData": "s3cr3t"}"#),
            "/bin/sh: clientCertificateData: tls: failed to find any PEM data in certificate input",
        ),
        (
            "a token no header can carry",
            never,
            "",
            &credential("v1", r#"{"token": "s3cr3t\r\nX-Remote-User: a"}"#),
            "/bin/sh: token has a byte",
        ),
        (
            "a credential that has expired",
            never,
            "",
            &credential("v1", r#"{"token": "s3cr3t", "expirationTimestamp": "2025-12-31T23:59:59Z"}"#),
            "returned a credential that expired at 2025-12-31T23:59:59Z",
        ),
    ];
    for (name, first, more, printed, expected) in cases {
        let mut case = Case::new(IMPERSONATE, "{}");
        // The keys of `more` override those of `first`.
        let mut user: serde_json::Value = serde_json::from_str(&exec(case.path(), first, "")).unwrap();
        let more: serde_json::Value =
            serde_json::from_str(&format!("{{{}}}", more.trim_start_matches(", "))).unwrap();
        for (key, value) in more.as_object().unwrap() {
            user["exec"][key] = value.clone();
        }
        case.user(&user.to_string());
        case.pki.write("answer", printed);
        let error = case.error();
        assert!(error.contains(expected), "{name}: {expected:?} is not in\n{error}");
        assert!(!error.contains("s3cr3t"), "{name}: {error}");
    }
}

#[test]
fn a_plugin_receives_kubernetes_exec_info() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("t1"));
    case.pki.write(
        "plugin.sh",
        "printf '%s' \"$KUBERNETES_EXEC_INFO\" >\"$DIR/info\"; printf '%s' \"$EXTRA\" >\"$DIR/extra\"; \
         read line && exit 1; cat \"$DIR/answer\"",
    );
    let exec_info = |case: &Case| -> serde_json::Value {
        assert_eq!(std::fs::read_to_string(case.path().join("extra")).unwrap(), "given");
        serde_json::from_str(&std::fs::read_to_string(case.path().join("info")).unwrap()).unwrap()
    };
    case.token();
    let mut expected = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": {"interactive": false}
    });
    assert_eq!(exec_info(&case), expected);

    let cluster = r#""server": "https://127.0.0.1:6443", "tls-server-name": "api", "extensions": [
        {"name": "other", "extension": 1},
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]"#;
    case.kubeconfig(cluster, &case.plugin(r#", "provideClusterInfo": true"#));
    case.token();
    expected["spec"]["cluster"] = serde_json::json!({
        "server": "https://127.0.0.1:6443",
        "tls-server-name": "api",
        "certificate-authority-data": base64(&case.pki.servers.cert_pem()),
        "config": {"audience": "a"}
    });
    assert_eq!(exec_info(&case), expected);
}

#[test]
fn no_plugin_runs_for_an_invalid_kubeconfig() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("t1"));
    let user = case.plugin("");
    for cluster in
        [r#""server": "http://127.0.0.1:1""#, r#""server": "https://a", "insecure-skip-tls-verify": true"#]
    {
        case.kubeconfig(cluster, &user);
        case.error();
    }
    assert_eq!(case.runs(), 0);
}

#[test]
fn a_plugin_runs_once_and_again_before_its_credential_expires() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("t1"));
    assert_eq!(case.due_in(), None);
    let first = case.read().unwrap_or_else(|error| panic!("{error}"));
    case.answer(r#"{"token": "t2"}"#);
    case.forward(2879);
    assert_eq!(case.due_in(), Some(1), "at four fifths of its hour");
    let second = case.read().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(case.runs(), 1);
    assert!(first.backend == second.backend, "connections are kept while nothing changed");

    case.forward(1);
    assert_eq!(case.due_in(), Some(0));
    assert!(!case.inputs.changed());
    assert_eq!(case.token(), "t2");
    assert_eq!(case.runs(), 2);
    assert_eq!(case.due_in(), None, "without an expirationTimestamp it serves until it is refused");
}

#[test]
fn a_plugin_that_repeats_its_credential_runs_at_bounded_intervals_until_the_expiry() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("t1"));
    let mut pauses = Vec::new();
    for run in 1..=6 {
        case.token();
        assert_eq!(case.runs(), run);
        let pause = case.due_in().unwrap();
        pauses.push(pause);
        case.forward(pause);
    }
    assert_eq!(pauses[..3], [2880, 576, 116]);
    case.answer(r#"{"token": "t1", "expirationTimestamp": "2026-01-01T01:00:01Z"}"#);
    let last = Duration::from_secs(NOW + 3600);
    case.time.store(last.as_secs(), Ordering::Relaxed);
    case.token();
    assert_eq!(case.inputs.due(), Some(last + Duration::from_secs(1)));
}

#[test]
fn a_refused_credential_runs_the_plugin_but_repeated_refusals_do_not_run_it_continuously() {
    let mut case = Case::with_plugin(IMPERSONATE, r#"{"token": "t1"}"#);
    assert_eq!(case.token(), "t1");
    case.forward(60);
    case.answer(r#"{"token": "t2"}"#);
    assert!(case.refused("backend"));
    assert_eq!(case.due_in(), Some(0));
    assert_eq!(case.token(), "t2");
    assert_eq!(case.runs(), 2);

    assert!(case.refused("backend"));
    assert_eq!(case.due_in(), Some(10));
    assert_eq!(case.token(), "t2");
    assert_eq!(case.runs(), 2);
    case.forward(10);
    assert_eq!(case.token(), "t2");
    assert_eq!(case.runs(), 3);
    assert_eq!(case.due_in(), None);
}

#[test]
fn the_refused_credential_of_another_cluster_runs_no_plugin() {
    let mut case = Case::with_plugin(IMPERSONATE, r#"{"token": "t1"}"#);
    assert_eq!(case.token(), "t1");
    case.forward(60);
    assert!(!case.refused("other"));
    assert!(!case.inputs.expire_credentials(&[CredentialUser::ManagementCluster].into()));
    assert_eq!(case.due_in(), None);
    assert_eq!((case.token(), case.runs()), ("t1".to_owned(), 1));
    // It is no longer of the cluster once a load has not used it there.
    case.pki.write("static", "t2");
    case.user(r#"{"tokenFile": "static"}"#);
    assert_eq!(case.token(), "t2");
    assert!(!case.refused("backend"));
}

#[test]
fn a_failing_plugin_keeps_its_previous_credential_and_is_retried() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("t1"));
    assert_eq!(case.token(), "t1");
    case.pki.write("answer", "s3cr3t");
    for waited in [2880, 10, 3600] {
        case.forward(waited);
        let read = case.read().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read.token(), Some("t1"));
        let [warning] = read.warnings.as_slice() else { panic!("{:?}", read.warnings) };
        assert!(warning.contains("/bin/sh did not print an ExecCredential"), "{warning}");
        assert!(!warning.contains("s3cr3t"), "{warning}");
        assert_eq!(case.due_in(), Some(10));
    }
    assert_eq!(case.runs(), 4);
    case.token();
    assert_eq!(case.runs(), 4, "a reload for another reason does not run the plugin earlier");

    case.forward(10);
    case.answer(r#"{"token": "t2"}"#);
    let read = case.read().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.token(), Some("t2"));
    assert!(read.warnings.is_empty(), "{:?}", read.warnings);
}

#[test]
fn a_plugin_that_never_succeeded_is_an_error_and_is_retried() {
    let mut case = Case::with_plugin(IMPERSONATE, "{}");
    assert!(case.error().contains("didn't return a token"));
    assert_eq!(case.due_in(), Some(10));
    case.answer(&token("t1"));
    assert_eq!(case.token(), "t1");
}
