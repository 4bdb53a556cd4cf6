//! The flags of audit, validated as by kube-apiserver's own code (`tests/go/auditoptions`): the rows of its
//! `options/audit_test.go`, and random combinations. `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change the seed and the
//! number of combinations.

use serde_json::{Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};
use testkit::{Pki, flags};

use crate::gateway::{parsed, resolved};

const POLICY: &str =
    r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "RequestResponse"}]}"#;
const WEBHOOK: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1', certificate-authority: clients-ca.crt}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
";

/// The rows of `options/audit_test.go`: whether the flags are valid.
const ROWS: &[(&str, &str, bool)] = &[
    ("default", "", true),
    ("default log", "--audit-log-path=DIR/log --audit-policy-file=DIR/policy", true),
    ("stdout log", "--audit-log-path=- --audit-policy-file=DIR/policy", true),
    ("create audit log path dir", "--audit-log-path=DIR/a/b/log --audit-policy-file=DIR/policy", true),
    ("default log no policy", "--audit-log-path=DIR/log", true),
    ("default webhook", "--audit-webhook-config-file=DIR/webhook --audit-policy-file=DIR/policy", true),
    ("default webhook no policy", "--audit-webhook-config-file=DIR/webhook", true),
    (
        "strict webhook",
        "--audit-webhook-config-file=DIR/webhook --audit-webhook-mode=blocking-strict --audit-policy-file=DIR/policy",
        true,
    ),
    (
        "default union",
        "--audit-log-path=DIR/log --audit-webhook-config-file=DIR/webhook --audit-policy-file=DIR/policy",
        true,
    ),
    (
        "custom",
        "--audit-log-path=DIR/log --audit-log-mode=batch --audit-webhook-config-file=DIR/webhook \
         --audit-webhook-mode=blocking --audit-policy-file=DIR/policy",
        true,
    ),
    (
        "default webhook with truncating",
        "--audit-webhook-config-file=DIR/webhook --audit-webhook-truncate-enabled --audit-policy-file=DIR/policy",
        true,
    ),
    ("max size zero", "--audit-log-path=DIR/log --audit-log-maxsize=0 --audit-policy-file=DIR/policy", true),
    ("invalid log format", "--audit-log-path=DIR/log --audit-log-format=foo", false),
    ("invalid log mode", "--audit-log-path=DIR/log --audit-log-mode=foo", false),
    (
        "invalid log buffer size",
        "--audit-log-path=DIR/log --audit-log-mode=batch --audit-log-batch-buffer-size=-3",
        false,
    ),
    ("invalid webhook mode", "--audit-webhook-config-file=DIR/webhook --audit-webhook-mode=foo", false),
    (
        "invalid webhook buffer throttle qps",
        "--audit-webhook-config-file=DIR/webhook --audit-webhook-mode=batch --audit-webhook-batch-throttle-qps=-1",
        false,
    ),
    (
        "invalid webhook truncate max event size",
        "--audit-webhook-config-file=DIR/webhook --audit-webhook-truncate-enabled \
         --audit-webhook-truncate-max-event-size=-1",
        false,
    ),
    (
        "invalid webhook truncate max batch size",
        "--audit-webhook-config-file=DIR/webhook --audit-webhook-truncate-enabled \
         --audit-webhook-truncate-max-event-size=2 --audit-webhook-truncate-max-batch-size=1",
        false,
    ),
];

/// Flags of a backend, without `audit-log-` or `audit-webhook-`, and their values; valid ones first.
const OF_A_BACKEND: &[(&str, &[&str])] = &[
    ("mode", &["batch", "blocking", "blocking-strict", "", "Batch", "a,b", "é\"\u{7}"]),
    ("batch-buffer-size", &["1", "10000", "0"]),
    ("batch-max-size", &["1", "400", "0"]),
    ("batch-max-wait", &["0s", "30s", "1h0.5s"]),
    ("batch-throttle-enable", &["true", "false"]),
    ("batch-throttle-qps", &["1", "10.5", "0", "-1", "0.1", "-0.25"]),
    ("batch-throttle-burst", &["1", "15", "0"]),
    ("truncate-enabled", &["true", "false"]),
    ("truncate-max-batch-size", &["10485760", "1", "0", "99"]),
    ("truncate-max-event-size", &["102400", "1", "0", "100"]),
    ("version", &["audit.k8s.io/v1", "audit.k8s.io/v1beta1", "v1", "", "foo/v1"]),
];
const OF_THE_LOG: &[(&str, &[&str])] = &[
    ("format", &["json", "legacy", "", "JSON", "foo\"", "\u{2028}"]),
    ("maxage", &["0", "366"]),
    ("maxbackup", &["0", "100"]),
    ("maxsize", &["0", "100"]),
    ("compress", &["true", "false"]),
];

/// Random flags, which enable one backend at least.
fn random(rng: &mut Rng) -> Vec<String> {
    let mut given = vec!["--audit-policy-file=DIR/policy".to_owned()];
    let enabled = rng.below(3);
    if enabled != 0 {
        given.push("--audit-log-path=DIR/log".to_owned());
    }
    if enabled != 1 {
        given.push("--audit-webhook-config-file=DIR/webhook".to_owned());
    }
    let mut add = |backend: &str, flags: &[(&str, &[&str])]| {
        for (flag, values) in flags {
            if rng.one_in(3) {
                let value = if rng.one_in(4) { *rng.pick(values) } else { values[0] };
                given.push(format!("--audit-{backend}-{flag}={value}"));
            }
        }
    };
    add("log", OF_A_BACKEND);
    add("log", OF_THE_LOG);
    add("webhook", OF_A_BACKEND);
    given
}

/// Our errors, each without the key; `None` if a flag cannot be read.
fn ours(pki: &Pki, base: &[String], given: &[String]) -> Option<Vec<String>> {
    let all = base.iter().chain(given).cloned();
    parsed(all.clone()).ok()?;
    let errors = match resolved(all) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(|error| error.problem.clone()).collect(),
    };
    let directory = pki.directory.path().display().to_string();
    Some(errors.into_iter().map(|error| error.replace(&directory, "DIR")).collect())
}

/// A word for the statistics, or the difference. kube-apiserver reports the first error of each group of flags only.
fn compare(ours: Option<&[String]>, expected: &Value) -> Compared {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let reference = texts(&expected["errors"]);
    let unread = expected["unread"].is_string();
    match ours {
        // A number that is negative is none for us; kube-apiserver refuses it later.
        None if unread || !reference.is_empty() => Ok("unread"),
        Some(ours) if !unread && ours.is_empty() == reference.is_empty() => {
            match reference.iter().find(|error| !ours.contains(error)) {
                None if ours.is_empty() => Ok("valid"),
                None if reference.len() == 1 => Ok("one error"),
                None => Ok("several errors"),
                Some(missing) => Err(format!("missing: {missing}\n  ours: {ours:?}")),
            }
        }
        _ => Err(format!("ours: {ours:?}\n  expected: {expected}")),
    }
}

#[test]
fn audit_flags_are_judged_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("auditoptions") else { return };
    let pki = Pki::new();
    let base = flags(&pki, ([127, 0, 0, 1], 6443).into());
    pki.write("policy", POLICY);
    pki.write("webhook", WEBHOOK);
    let directory = pki.directory.path().display().to_string();
    let filled = |flag: &str| flag.replace("DIR", &directory);
    let mut rng = Rng(seed());
    let rows = ROWS.iter().map(|(_, given, _)| given.split_whitespace().map(filled).collect::<Vec<_>>());
    let all: Vec<Vec<String>> = rows
        .chain((0..inputs(400)).map(|_| random(&mut rng).iter().map(|flag| filled(flag)).collect()))
        .collect();
    let mut rows = ROWS.iter();
    let show = |given: &Vec<String>| given.join(" ");
    let words = program.compare(
        "combinations",
        &all,
        |given| json!(given),
        show,
        |given, answer| {
            if let Some((name, _, is_valid)) = rows.next() {
                let refused = answer["unread"].is_string() || answer["errors"] != json!([]);
                assert_eq!(*is_valid, !refused, "{name}: {answer}");
            }
            compare(ours(&pki, &base, given).as_deref(), answer)
        },
    );
    words.occurred(&["valid", "one error", "several errors"]);
}
