//! Resolves `--oidc-*` flags and files. The cases are those of
//! `k8s.io/kubernetes/pkg/kubeapiserver/options/authentication_test.go`, and more.

use std::path::Path;
use std::slice;

use clap::{Args as _, Command, FromArgMatches as _};
use portcullis_http::client_tls::TrustedRoots;
use portcullis_kubernetes::release::Release;
use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::authn::oidc::settings::{AttributeMapping, ClaimRule};
use crate::config::inputs::InputReader;
use crate::config::sections::GivenFlags;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
const ISSUER_OF_FILE: &str = "jwt:\n- issuer:\n    url: https://test-issuer\n    audiences: [\"🐼\"]\n  claimMappings:\n    \
                              username: {claim: sub, prefix: \"\"}\n";
const PAIR: [&str; 2] = ["--oidc-issuer-url=https://testIssuerURL", "--oidc-client-id=testClientID"];

/// The issuers and the anonymous paths of these flags, or the errors.
fn resolve(flags: &[&str]) -> Result<(Issuers, AnonymousAuth), Vec<ConfigError>> {
    let command = GivenFlags::<AuthenticationFlags>::augment_args(Command::new("").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).unwrap();
    let given = GivenFlags::<AuthenticationFlags>::from_arg_matches(&matches).unwrap();
    let mut unread = Vec::new();
    let section = MergedSection::read([given.layer()], &mut unread).unwrap();
    assert_eq!(unread, []);
    let mut inputs = InputReader::default();
    let mut resolver =
        ConfigResolver { unread, ..ConfigResolver::new(&mut inputs, false, Release::default()) };
    let resolved = resolver.issuers(&section);
    let errors = resolver.errors;
    assert!(errors.iter().all(|error| error.fix.as_ref().is_some_and(|fix| !fix.is_empty())), "{errors:?}");
    if errors.is_empty() { Ok(resolved) } else { Err(errors) }
}

/// The errors, each with its flag.
fn errors_of(flags: &[&str]) -> Vec<(String, String)> {
    let errors = resolve(flags).expect_err("no error");
    errors.into_iter().map(|error| (error.key, error.problem)).collect()
}

fn issuer(flags: &[&str]) -> JwtAuthenticator {
    let (issuers, _) = resolve(flags).unwrap();
    let [issuer] = issuers.as_slice() else { panic!("{issuers:?}") };
    JwtAuthenticator::clone(issuer)
}

fn written(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let flag = format!("--authentication-config={}", file.path().display());
    (file, flag)
}

fn with_pair<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    PAIR.into_iter().chain(rest.iter().copied()).collect()
}

#[test]
fn issuer_and_client_go_together() {
    let problem =
        "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
    let cases: &[(&[&str], &str)] = &[
        (&["--oidc-username-claim=testClaim"], "--oidc-issuer-url"),
        (&["--oidc-issuer-url=https://testIssuerURL", "--oidc-username-claim=testClaim"], "--oidc-client-id"),
        (&["--oidc-client-id=testClientID", "--oidc-username-claim=testClaim"], "--oidc-issuer-url"),
        (&["--oidc-issuer-url=https://testIssuerURL", "--oidc-client-id="], "--oidc-client-id"),
        (&["--oidc-username-claim=sub"], "--oidc-issuer-url"),
    ];
    for (flags, key) in cases {
        assert_eq!(errors_of(flags), [((*key).to_owned(), problem.to_owned())], "{flags:?}");
    }
    assert_eq!(issuer(&PAIR).issuer.audiences, ["testClientID"]);
    assert_eq!(resolve(&[]).unwrap(), (Vec::new(), AnonymousAuth::AllPaths), "no flag, no issuer");
}

#[test]
fn flags_exclude_the_file() {
    let (_file, config) = written(HEAD);
    let flags = [
        "--oidc-issuer-url=https://testIssuerURL",
        "--oidc-client-id=testClientID",
        "--oidc-username-claim=testClaim",
        "--oidc-username-claim=sub",
        "--oidc-username-prefix=testPrefix",
        "--oidc-ca-file=testCAFile",
        "--oidc-groups-claim=testClaim",
        "--oidc-groups-prefix=testPrefix",
        "--oidc-required-claim=foo=bar",
        "--oidc-signing-algs=RS512",
    ];
    for flag in flags {
        let (name, _) = flag.split_once('=').unwrap();
        let problem = "authentication-config file and oidc-* flags are mutually exclusive";
        assert_eq!(errors_of(&[&config, flag]), [(name.to_owned(), problem.to_owned())], "{flag}");
    }
    assert!(resolve(&[&config]).is_ok(), "a default is not a flag");
}

#[test]
fn names_have_their_prefix() {
    let cases: &[(&[&str], &str, &str)] = &[
        (&[], "sub", "https://testIssuerURL#"),
        (&["--oidc-username-prefix=-", "--oidc-username-claim=sub"], "sub", ""),
        (&["--oidc-username-claim=test"], "test", "https://testIssuerURL#"),
        (&["--oidc-username-claim=email"], "email", ""),
        (&["--oidc-username-claim=email", "--oidc-username-prefix=-"], "email", ""),
        (&["--oidc-username-claim=email", "--oidc-username-prefix=mail:"], "email", "mail:"),
        (&["--oidc-username-prefix=k8s-"], "sub", "k8s-"),
        (&["--oidc-username-prefix=--"], "sub", "--"),
    ];
    for (flags, claim, prefix) in cases {
        let expected = AttributeMapping::Claim { name: (*claim).to_owned(), prefix: (*prefix).to_owned() };
        assert_eq!(issuer(&with_pair(flags)).username, expected, "{flags:?}");
    }
}

#[test]
fn groups_have_theirs() {
    let groups = |flags: &[&str]| issuer(&with_pair(flags)).groups;
    let mapped =
        |prefix: &str| Some(AttributeMapping::Claim { name: "groups".to_owned(), prefix: prefix.to_owned() });
    assert_eq!(groups(&["--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:"]), mapped("oidc:"));
    assert_eq!(groups(&["--oidc-groups-claim=groups"]), mapped(""));
    assert_eq!(
        groups(&["--oidc-groups-claim=groups", "--oidc-groups-prefix=-"]),
        mapped("-"),
        "a hyphen does not disable the prefix of groups"
    );
    assert_eq!(groups(&["--oidc-groups-prefix=oidc:"]), None);
}

#[test]
fn claims_are_required_one_by_one() {
    let given = issuer(&with_pair(&[
        "--oidc-required-claim=hd=example.com",
        "--oidc-required-claim= list = a,b=c ",
        "--oidc-required-claim=empty=",
        "--oidc-required-claim=hd=example.org",
    ]));
    let required = [("empty", ""), ("hd", "example.org"), ("list", "a,b=c")];
    let required = required
        .map(|(claim, value)| ClaimRule::Required { claim: claim.to_owned(), value: value.to_owned() });
    assert_eq!(given.claim_rules, required);
    let key = "--oidc-required-claim".to_owned();
    let malformed = (key.clone(), "malformed pair, expect string=string".to_owned());
    assert_eq!(errors_of(&with_pair(&["--oidc-required-claim=hd"])), slice::from_ref(&malformed));
    assert_eq!(errors_of(&with_pair(&["--oidc-required-claim="])), [malformed]);
    let problem = "invalid authentication configuration: jwt[0].claimValidationRules[0]: Required value: claim or \
                   expression is required";
    assert_eq!(errors_of(&with_pair(&["--oidc-required-claim==a"])), [(key, problem.to_owned())]);
}

#[test]
fn algorithms_are_those_given() {
    let algorithms = |flags: &[&str]| {
        let names = issuer(&with_pair(flags)).algorithms.into_iter().map(JwsAlgorithm::name);
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(algorithms(&[]), "RS256");
    assert_eq!(algorithms(&["--oidc-signing-algs="]), "RS256");
    assert_eq!(
        algorithms(&["--oidc-signing-algs=ES256,PS512", "--oidc-signing-algs=ES512"]),
        "ES256 PS512 ES512"
    );
    for name in ["HS256", "none", "EdDSA", "rs256", "RS256 "] {
        let flag = format!("--oidc-signing-algs=RS256,{name}");
        let problem = format!("oidc: unsupported signing alg: {name:?}");
        assert_eq!(errors_of(&with_pair(&[&flag])), [("--oidc-signing-algs".to_owned(), problem)]);
    }
}

#[test]
fn flags_are_judged_as_files_are() {
    let client = "--oidc-client-id=c";
    let cases: &[(&[&str], &str, &str)] = &[
        (
            &["--oidc-issuer-url=http://a", client],
            "--oidc-issuer-url",
            "jwt[0].issuer.url: Invalid value: \"http://a\": URL scheme must be https",
        ),
        (
            &[
                "--oidc-issuer-url=https://a",
                client,
                "--service-account-issuer=b",
                "--service-account-issuer=https://a",
            ],
            "--oidc-issuer-url",
            "jwt[0].issuer.url: Invalid value: \"https://a\": URL must not overlap with disallowed issuers: [b \
             https://a]",
        ),
        (
            &["--oidc-issuer-url=https://a", client, "--oidc-username-claim="],
            "--oidc-username-claim",
            "jwt[0].claimMappings.username: Required value: claim or expression is required",
        ),
    ];
    for (flags, key, problem) in cases {
        let problem = format!("invalid authentication configuration: {problem}");
        assert_eq!(errors_of(flags), [((*key).to_owned(), problem)]);
    }
}

#[test]
fn the_issuers_ca_is_read() {
    let key = KeyPair::generate().unwrap();
    let pem = CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    let flag = |file: &Path| format!("--oidc-ca-file={}", file.display());
    let (file, _) = written(&pem);
    let given = issuer(&with_pair(&[&flag(file.path())]));
    let bundle = CaBundle::from_pem(pem.as_bytes()).unwrap();
    assert_eq!(given.issuer.certificate_authority, Some(TrustedRoots::from_bundle(bundle)));
    // The system's CAs do not replace a file without certificates.
    for text in ["", "hello"] {
        let (file, _) = written(text);
        let problem = "data does not contain any valid RSA or ECDSA certificates";
        assert_eq!(
            errors_of(&with_pair(&[&flag(file.path())])),
            [("--oidc-ca-file".to_owned(), problem.to_owned())]
        );
    }
    let missing = errors_of(&with_pair(&["--oidc-ca-file=/nowhere/ca.crt"]));
    assert_eq!(missing, [("--oidc-ca-file".to_owned(), "No such file or directory (os error 2)".to_owned())]);
}

#[test]
fn a_ca_file_that_is_being_replaced_does_not_make_way_for_the_systems_cas() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let key = KeyPair::generate().unwrap();
    let pem = CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    let (file, _) = written(&pem);
    let flag = format!("--oidc-ca-file={}", file.path().display());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::fs::write(file.path(), "").unwrap();
                std::fs::write(file.path(), &pem).unwrap();
            }
        });
        let systems = (0..2_000)
            .filter_map(|_| resolve(&with_pair(&[&flag])).ok())
            .filter(|(issuers, _)| issuers.iter().any(|one| one.issuer.certificate_authority.is_none()))
            .count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(systems, 0, "loads that trusted the system's CAs");
    });
}

#[test]
fn the_file_is_read() {
    let (_file, config) = written(&format!("{HEAD}{ISSUER_OF_FILE}"));
    let given = issuer(&[&config]);
    assert_eq!(given.issuer.audiences, ["🐼"]);
    assert_eq!(given.algorithms, JwsAlgorithm::ALL, "the key decides");
    assert_eq!(given.username, AttributeMapping::Claim { name: "sub".to_owned(), prefix: String::new() });
    let (file, config) = written("");
    let problem = format!(
        "failed to load authentication configuration from file \"{}\": empty config data",
        file.path().display()
    );
    assert_eq!(errors_of(&[&config]), [("--authentication-config".to_owned(), problem)]);
    let missing = errors_of(&["--authentication-config=nonexistent-file"]);
    let problem = "No such file or directory (os error 2)";
    assert_eq!(missing, [("--authentication-config".to_owned(), problem.to_owned())]);
}

#[test]
fn errors_in_the_file_have_their_lines() {
    let text = format!(
        "{HEAD}jwt:\n- issuer:\n    url: https://service-accounts\n    audiences:\n    - \"🐼\"\n    - \"🐼\"\n    \
         audienceMatchPolicy: MatchAny\n"
    );
    let (_file, config) = written(&text);
    let errors = resolve(&[&config, "--service-account-issuer=https://service-accounts"]).unwrap_err();
    let actual: Vec<(&str, &str)> = errors
        .iter()
        .map(|error| (error.problem.as_str(), error.fix.as_deref().unwrap().split_once(':').unwrap().0))
        .collect();
    let expected = [
        (
            "invalid authentication configuration: jwt[0].issuer.url: Invalid value: \"https://service-accounts\": \
             URL must not overlap with disallowed issuers: [https://service-accounts]",
            "line 5",
        ),
        (
            "invalid authentication configuration: jwt[0].issuer.audiences[1]: Duplicate value: \"🐼\"",
            "line 8",
        ),
        (
            "invalid authentication configuration: jwt[0].claimMappings.username: Required value: claim or \
             expression is required",
            "line 4",
        ),
    ];
    assert_eq!(actual, expected);
    let (_file, config) = written(
        &format!("{HEAD}{ISSUER_OF_FILE}")
            .replace("    audiences", "    egressSelectorType: cluster\n    audiences"),
    );
    let errors = resolve(&[&config]).unwrap_err();
    let [error] = errors.as_slice() else { panic!("{errors:?}") };
    assert_eq!(error.problem, "oidc: egress lookup required with egress selector type \"cluster\"");
}

#[test]
fn anonymous_requests_are_allowed_by_flag_or_file() {
    let file = |anonymous: &str| written(&format!("{HEAD}{anonymous}"));
    let livez = AnonymousAuth::Paths(["/livez".to_owned()].into());
    let cases: &[(&[&str], Option<&str>, AnonymousAuth)] = &[
        (&[], None, AnonymousAuth::AllPaths),
        (&["--anonymous-auth=true"], None, AnonymousAuth::AllPaths),
        (&["--anonymous-auth=false"], None, AnonymousAuth::Disabled),
        (&[], Some("anonymous: {enabled: false}"), AnonymousAuth::Disabled),
        (&[], Some("anonymous: {}"), AnonymousAuth::Disabled),
        (&[], Some("anonymous: {enabled: true}"), AnonymousAuth::AllPaths),
        (&[], Some("anonymous: {enabled: true, conditions: [{path: /livez}]}"), livez),
        (&["--anonymous-auth=true"], Some(ISSUER_OF_FILE), AnonymousAuth::AllPaths),
        (&["--anonymous-auth=false"], Some("anonymous: null"), AnonymousAuth::Disabled),
    ];
    for (flags, text, expected) in cases {
        let written = text.map(file);
        let config = written.iter().map(|(_, config)| config.as_str());
        let (_, anonymous) = resolve(&config.chain(flags.iter().copied()).collect::<Vec<_>>()).unwrap();
        assert_eq!(anonymous, *expected, "{flags:?} {text:?}");
    }
    let problem = "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
                   authentication configuration file";
    for (flag, text) in [("true", "enabled: true"), ("true", "enabled: false"), ("false", "enabled: false")] {
        let (_file, config) = file(&format!("anonymous: {{{text}}}"));
        let flag = format!("--anonymous-auth={flag}");
        assert_eq!(errors_of(&[&config, &flag]), [("--anonymous-auth".to_owned(), problem.to_owned())]);
    }
    for text in ["{enabled: false, conditions: [{path: /livez}]}", "{conditions: [{path: /livez}]}"] {
        let (_file, config) = file(&format!("anonymous: {text}"));
        let problem = "invalid authentication configuration: anonymous.conditions: Invalid value: \
                       [{\"Path\":\"/livez\"}]: enabled should be set to true when conditions are defined";
        assert_eq!(errors_of(&[&config]), [("--authentication-config".to_owned(), problem.to_owned())]);
    }
}
