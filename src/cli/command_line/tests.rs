//! How words become flags, and the errors of several flags at once.

use super::*;
use crate::cli::Command as Subcommand;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// What is found in a command line.
fn findings(line: &str) -> CommandLineFindings {
    let mut cli = parse(words(line)).unwrap_or_else(|error| panic!("{error}"));
    cli.serve_flags().unwrap().command_line.clone()
}

/// Each error as `KEY: PROBLEM`.
fn errors(line: &str) -> Vec<String> {
    findings(line).errors.iter().map(|error| format!("{}: {}", error.key, error.problem)).collect()
}

#[test]
fn errors_of_all_flags_are_reported_at_once() {
    let found = findings(
        "portcullis check --etcd-servers=x --tls-cert-fil=z --audit-log-maxage=foo -v=x --profiling",
    );
    let found: Vec<(&str, &str, &str)> = found
        .errors
        .iter()
        .map(|error| (error.key.as_str(), error.problem.as_str(), error.fix.as_deref().unwrap()))
        .collect();
    let unsupported = "is a kube-apiserver flag that portcullis does not support; left to the backend: ";
    let ignore = "remove it, or give --ignore-unknown-apiserver-flags";
    let expected = [
        ("--etcd-servers", format!("{unsupported}it stores the objects"), ignore),
        ("--profiling", format!("{unsupported}it has its own metrics, profiles and logs"), ignore),
        ("--tls-cert-fil", "unknown flag".to_owned(), "give --tls-cert-file"),
    ];
    for ((key, problem, fix), (expected_key, expected_problem, expected_fix)) in found.iter().zip(&expected) {
        assert_eq!((*key, *problem, *fix), (*expected_key, expected_problem.as_str(), *expected_fix));
    }
    let [_, _, _, maxage, verbosity] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(
        (maxage.0, maxage.1),
        ("--audit-log-maxage", "invalid argument \"foo\": invalid digit found in string")
    );
    assert!(maxage.2.starts_with("give DAYS: "), "{maxage:?}");
    assert_eq!(verbosity.0, "-v=x");
}

#[test]
fn a_flag_that_is_probably_meant_is_no_error_of_its_own() {
    assert_eq!(findings("portcullis serve --tls-cert-fil z").meant, ["--tls-cert-file"]);
    assert_eq!(findings("portcullis serve --secure-port=1").meant, [""; 0]);
}

#[test]
fn values_that_are_missing_or_too_many_are_errors() {
    let cases = [
        ("portcullis serve --tls-cert-file", "--tls-cert-file: flag needs an argument"),
        (
            "portcullis serve --secure-port=65536",
            "--secure-port: invalid argument \"65536\": 65536 is not in 0..=65535",
        ),
        (
            "portcullis serve --ignore-unknown-apiserver-flags=x",
            "--ignore-unknown-apiserver-flags: takes no value",
        ),
        ("portcullis serve --anonymous-auth=maybe", "--anonymous-auth: invalid argument \"maybe\""),
        ("portcullis serve --identity=x", "--identity: invalid argument \"x\""),
        ("portcullis check --output=xml", "--output: invalid argument \"xml\""),
        ("portcullis serve tls.crt", "tls.crt: is neither a flag nor the value of one"),
        ("portcullis serve --xyzzy plugh", "--xyzzy: unknown flag"),
    ];
    for (line, expected) in cases {
        assert_eq!(errors(line), [expected], "{line}");
    }
}

#[test]
fn flags_of_the_backend_are_left_out_with_their_values_when_asked_to() {
    let line = "portcullis check --etcd-servers x --ignore-unknown-apiserver-flags --secure-port=1 --profiling \
                --goaway-chance=.001";
    let found = findings(line);
    assert_eq!(found.errors, []);
    let expected = [
        "--etcd-servers is left to the backend: it stores the objects",
        "--profiling is left to the backend: it has its own metrics, profiles and logs",
        "--goaway-chance has no effect: the gateway sends no GOAWAY by chance",
    ];
    assert_eq!(found.warnings, expected);
}

#[test]
fn words_are_divided_as_by_kube_apiserver() {
    let command = crate::cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    let kept = |line: &str| {
        let line = CommandLine::split(serve, words(line));
        line.kept.into_iter().flat_map(|flag| flag.words).collect::<Vec<_>>().join(" ")
    };
    let cases = [
        ("--tls_cert_file=a_b", "--tls-cert-file=a_b"),
        ("--oidc-username-prefix - --secure-port 1", "--oidc-username-prefix=- --secure-port=1"),
        ("--oidc-username-prefix --x", "--oidc-username-prefix=--x"),
        (
            "--anonymous-auth=False --service-account-lookup=1",
            "--anonymous-auth=false --service-account-lookup=true",
        ),
        ("--oidc-client-id=True", "--oidc-client-id=True"),
        ("--anonymous-auth false", "--anonymous-auth false"),
        ("-v 3 --v=2 -v=4", "-v 3 --v=2 -v=4"),
        ("--etcd_servers -x --bind-address=::", "--bind-address=::"),
        ("--profiling x", "x"),
    ];
    for (line, expected) in cases {
        assert_eq!(kept(line), expected, "{line}");
    }
}

#[test]
fn every_value_reaches_the_flags() {
    let cli =
        parse(words("portcullis serve --secure_port 1 -v 3 --token-auth-file x --tls-cert-fil y")).unwrap();
    let Subcommand::Serve(flags) = cli.command else { panic!("another command") };
    let values = format!("{:?} {:?} {:?}", flags.serving, flags.operation, flags.authentication);
    for value in ["\"securePort\": Number(1)", "\"v\": Number(3)", "\"tokenAuthFile\": String(\"x\")"] {
        assert!(values.contains(value), "{value} is not in {values}");
    }
}

#[test]
fn help_is_help_in_spite_of_errors() {
    let error = parse(words("portcullis serve --tls-cert-fil=z --help")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DisplayHelp), "{error}");
}

#[test]
fn a_missing_flag_is_an_error_of_clap() {
    let error = parse(words("portcullis kubeconfig --config=x")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::MissingRequiredArgument), "{error}");
}

#[test]
fn other_commands_are_left_alone() {
    let error = parse(words("portcullis clusters --etcd-servers x")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnknownArgument), "{error}");
}
