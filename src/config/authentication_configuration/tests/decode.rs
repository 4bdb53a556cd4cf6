//! Errors of files that cannot be decoded. The cases are those of `TestLoadAuthenticationConfig` in
//! `k8s.io/kubernetes/pkg/kubeapiserver/options/authentication_test.go`, and more.

use portcullis_cel::CelGo;
use portcullis_kubernetes::yaml::KeyLines;
use portcullis_openid::jwt::keys::JwsAlgorithm;
use proptest::prelude::*;

use super::super::AuthenticationConfiguration;
use super::super::validation::validate;
use crate::config::apiserver_config::decode::{self, DecodeError};

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";

fn decode(text: &[u8]) -> Result<(AuthenticationConfiguration, KeyLines), DecodeError> {
    decode::decode(text)
}

fn error_of(text: &str) -> String {
    decode(text.as_bytes()).err().map(|error| error.problem).unwrap_or_default()
}

#[test]
fn decoding_is_strict() {
    let json = |rest: &str| {
        format!(
            "{{\n\t\"apiVersion\": \"apiserver.config.k8s.io/v1alpha1\",\n\t\"kind\": \
             \"AuthenticationConfiguration\"{rest}}}"
        )
    };
    let cases: &[(&str, String, &str)] = &[
        ("an empty file", String::new(), "empty config data"),
        ("comments alone", "# nothing\n".to_owned(), "Object 'Kind' is missing"),
        ("text", "hello".to_owned(), "Object 'Kind' is missing"),
        ("a list", "[]".to_owned(), "Object 'Kind' is missing"),
        (
            "no apiVersion",
            "{\"kind\":\"AuthenticationConfiguration\"}".to_owned(),
            "Object 'apiVersion' is missing",
        ),
        (
            "no kind",
            "{\"apiVersion\":\"apiserver.config.k8s.io/v1alpha1\"}".to_owned(),
            "Object 'Kind' is missing",
        ),
        (
            "an unknown version",
            HEAD.replace("/v1", "/v99"),
            "no kind \"AuthenticationConfiguration\" is registered for version \"apiserver.config.k8s.io/v99\"",
        ),
        (
            "an unknown group",
            HEAD.replace("apiserver.config.k8s.io", "apps"),
            "no kind \"AuthenticationConfiguration\" is registered for version \"apps/v1\"",
        ),
        (
            "no group",
            HEAD.replace("apiserver.config.k8s.io/", ""),
            "no kind \"AuthenticationConfiguration\" is registered for version \"v1\"",
        ),
        (
            "an unknown kind",
            HEAD.replace("AuthenticationConf", "SomeConf"),
            "no kind \"SomeConfiguration\" is registered for version \"apiserver.config.k8s.io/v1\"",
        ),
        (
            "an unknown field",
            json(",\n\t\"jwt1\": [{\"issuer\": {\"url\": \"https://test-issuer\"}}]"),
            "strict decoding error: unknown field \"jwt1\"",
        ),
        (
            "unknown fields further in",
            format!(
                "{HEAD}jwt:\n- issuer: {{URL: x, url: z}}\n- claimMappings: {{username: {{claims: null}}}}\n"
            ),
            "strict decoding error: unknown field \"jwt[0].issuer.URL\", unknown field \
             \"jwt[1].claimMappings.username.claims\"",
        ),
        (
            "a field twice",
            format!("{HEAD}jwt: []\njwt: []\n"),
            "duplicate mapping key: jwt not allowed here at line 4, column 1",
        ),
        (
            "a field twice, JSON",
            json(", \"jwt\": [], \"jwt\": []"),
            "duplicate mapping key: jwt not allowed here at line 3, column 52",
        ),
        (
            "a number for a text",
            format!("{HEAD}jwt:\n- claimMappings: {{username: {{prefix: 5}}}}\n"),
            "jwt[0].claimMappings.username.prefix: invalid type: integer `5`, expected a string",
        ),
        (
            "a text for a list",
            format!("{HEAD}jwt:\n- issuer: {{audiences: a}}\n"),
            "jwt[0].issuer.audiences: invalid type: string \"a\", expected a sequence",
        ),
        (
            "a text for true",
            format!("{HEAD}anonymous: {{enabled: 'yes'}}\n"),
            "anonymous.enabled: invalid type: string \"yes\", expected a boolean",
        ),
        (
            "null for an issuer",
            format!("{HEAD}jwt: [null]\n"),
            "jwt[0]: invalid type: null, expected struct JwtAuthenticator",
        ),
        (
            "two documents",
            format!("{HEAD}---\n{HEAD}"),
            "only single YAML document expected but multiple found at line 4, column 1",
        ),
    ];
    for (name, text, expected) in cases {
        assert_eq!(error_of(text), *expected, "{name}");
    }
}

#[test]
fn every_version_and_either_form_is_read() {
    for version in ["v1", "v1beta1", "v1alpha1"] {
        let yaml = format!(
            "{}jwt:\n- issuer:\n    url: https://test-issuer\n  claimMappings:\n    username:\n      claim: sub\n      \
             prefix: \"\"\n",
            HEAD.replace("/v1", &format!("/{version}"))
        );
        let json = format!(
            "{{\n\t\"apiVersion\": \"apiserver.config.k8s.io/{version}\",\n\t\"kind\": \
             \"AuthenticationConfiguration\",\n\t\"jwt\": [{{\"issuer\": {{\"url\": \"https://test-issuer\"}}, \
             \"claimMappings\": {{\"username\": {{\"claim\": \"sub\", \"prefix\": \"\"}}}}, \"claimValidationRules\": \
             null}}]}}"
        );
        let (yaml, lines) = decode(yaml.as_bytes()).unwrap();
        let (json, _) = decode(json.as_bytes()).unwrap();
        assert_eq!(yaml, json, "{version}");
        let [authenticator] = yaml.jwt.as_slice() else { panic!("{yaml:?}") };
        assert_eq!(authenticator.issuer.url, "https://test-issuer");
        assert_eq!(authenticator.claim_mappings.username.prefix.as_deref(), Some(""));
        assert_eq!(lines.of("jwt[0].issuer.url"), 5);
        assert_eq!(lines.of("jwt[0].issuer.audiences[3]"), 4, "the nearest enclosing value");
        let (none, _) = decode(HEAD.replace("/v1", &format!("/{version}")).as_bytes()).unwrap();
        assert!(none.jwt.is_empty() && none.anonymous.is_none());
    }
}

/// Tokens of valid and invalid files.
const WORDS: [&str; 40] = [
    "jwt:",
    "\n",
    "\n- ",
    "\n  ",
    "\n    ",
    "issuer:",
    "url:",
    " https://a",
    " https://[",
    ":%",
    "discoveryURL:",
    "audiences:",
    " [a, a]",
    " []",
    "audienceMatchPolicy:",
    " MatchAny",
    "claimMappings:",
    "username:",
    "claim:",
    " sub",
    "prefix:",
    " ''",
    "expression:",
    " claims.email",
    "extra:",
    "- key:",
    " k8s.io/A",
    "valueExpression:",
    "anonymous:",
    " {enabled: true",
    ", conditions: [{path: /}]}",
    " null",
    " 5",
    " &a",
    " *a",
    "\u{0}",
    "é",
    "\t",
    "claimValidationRules:",
    "userValidationRules:",
];

proptest! {
    #[test]
    fn any_input_gives_issuers_or_errors(
        words in prop::collection::vec(prop::sample::select(WORDS.as_slice()), 0..60),
        any: Vec<u8>,
    ) {
        let text = format!("{HEAD}{}", words.concat());
        for text in [text.as_bytes(), &any] {
            match decode(text) {
                Err(error) => prop_assert!(!error.problem.is_empty() && !error.fix.is_empty()),
                Ok((configuration, _)) => match validate(&configuration, &[], &JwsAlgorithm::ALL, CelGo::REFERENCE) {
                    Ok(issuers) => prop_assert_eq!(issuers.len(), configuration.jwt.len()),
                    Err(errors) => prop_assert!(!errors.is_empty()),
                },
            }
        }
    }
}
