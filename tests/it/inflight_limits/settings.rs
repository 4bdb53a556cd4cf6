//! The settings of limits: mistakes, warnings, and what `check` prints.

use std::process::Command;

use testkit::{Pki, flags};

use crate::gateway::{PORTCULLIS, resolved};

fn with(pki: &Pki, more: &[&str]) -> Vec<String> {
    let all = flags(pki, "127.0.0.1:6443".parse().unwrap());
    all.into_iter().chain(more.iter().map(|&flag| flag.to_owned())).collect()
}

#[test]
fn a_queue_needs_a_positive_timeout() {
    let pki = Pki::new();
    let limits = ["--max-requests-inflight=1", "--inflight-queue-length-limit=1"];
    for (timeout, problem) in
        [("0s", "must be positive"), ("-1s", "must not be negative"), ("1", "missing unit")]
    {
        let timeout = format!("--inflight-queue-timeout={timeout}");
        let errors = resolved(with(&pki, &[limits[0], limits[1], &timeout])).unwrap_err().to_string();
        assert!(errors.contains("--inflight-queue-timeout") && errors.contains(problem), "{errors}");
    }
}

#[test]
fn settings_without_effect_are_warned_of() {
    let pki = Pki::new();
    let queue = "--inflight-queue-length-limit=5";
    let timeout = "--inflight-queue-timeout=5s";
    let no_limit = "--inflight-queue-length-limit has no effect without --max-requests-inflight";
    let no_queue = "--inflight-queue-timeout has no effect without --inflight-queue-length-limit";
    let cases: [(&[&str], Option<&str>); 6] = [
        (&[], None),
        (&["--max-requests-inflight=1", queue, timeout], None),
        (&["--max-mutating-requests-inflight=1", queue], None),
        (&[queue, timeout], Some(no_limit)),
        (&["--max-requests-inflight=1", timeout], Some(no_queue)),
        (&["--max-requests-inflight-total=1"], None),
    ];
    for (given, expected) in cases {
        let warnings = resolved(with(&pki, given)).unwrap().warnings;
        let found: Vec<_> = warnings.iter().filter(|warning| warning.contains("inflight")).collect();
        assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{given:?}");
    }
}

#[test]
fn check_prints_the_limits() {
    let pki = Pki::new();
    let cases: [(&[&str], &str); 2] = [
        (
            &["--max-requests-inflight=9"],
            "limits    9 reads and any number of writes in flight; 429 beyond\n",
        ),
        (
            &["--max-mutating-requests-inflight=7", "--inflight-queue-length-limit=3"],
            "limits    any number of reads and 7 writes in flight; 3 wait per flow, for up to 15s\n",
        ),
    ];
    for (given, expected) in cases {
        let output = Command::new(PORTCULLIS).arg("check").args(with(&pki, given)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(expected), "{text}");
    }
}
