//! Cases of Kubernetes' `secrets_test.go` and `helpers_test.go`, `utils_test.go` (kubeadm), `util_test.go` (controllers).

use std::time::Duration;

use super::*;

/// 2023-11-14T22:13:20Z
const NOW: UnixTime = Duration::from_secs(1_700_000_000);
const HOUR: &str = "2023-11-14T23:13:20Z";
const GONE: &str = "2023-11-14T21:13:20Z";

/// The case, the name of the Secret, the changes to its data, and whether it signs.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], bool);

fn data<'a>(pairs: &[(&'a str, &'a str)]) -> TokenData<'a> {
    pairs.iter().map(|(key, value)| (*key, value.as_bytes())).collect()
}

#[test]
fn only_a_valid_secret_with_the_usage_signing_signs() {
    // kube-controller-manager: pkg/controller/bootstrap/util_test.go
    let name = "bootstrap-token-abc123";
    let base = [(ID, "abc123"), (SECRET, "tokenSecret"), ("usage-bootstrap-signing", "true")];
    let cases: &[Case] = &[
        ("no expiration", name, &[], true),
        ("not expired", name, &[(EXPIRATION, HOUR)], true),
        ("expired", name, &[(EXPIRATION, GONE)], false),
        ("expires now", name, &[(EXPIRATION, "2023-11-14T22:13:20Z")], false),
        ("malformed expiration", name, &[(EXPIRATION, "garbage")], false),
        (
            "neither signing nor time",
            name,
            &[("usage-bootstrap-signing", ""), (EXPIRATION, "garbage")],
            false,
        ),
        ("no signing", name, &[("usage-bootstrap-signing", "")], false),
        ("signing in upper case", name, &[("usage-bootstrap-signing", "True")], false),
        ("signing with a newline", name, &[("usage-bootstrap-signing", "true\n")], false),
        ("no authentication", name, &[("usage-bootstrap-authentication", "false")], true),
        ("bad groups", name, &[(EXTRA_GROUPS, "x")], true),
        ("no id", name, &[(ID, "")], false),
        ("no secret", name, &[(SECRET, "")], false),
        ("a secret of one letter", name, &[(SECRET, "x")], true),
        ("another name", "abc123", &[], false),
        ("the name of another", "bootstrap-token-def456", &[], false),
        ("an id in upper case", "bootstrap-token-ABC123", &[(ID, "ABC123")], false),
    ];
    for (case, name, changes, signs) in cases {
        let pairs: Vec<_> = base.iter().chain(*changes).copied().collect();
        let data = data(&pairs);
        let key = data.signing_key(name, NOW);
        assert_eq!(key.is_some(), *signs, "{case}");
        if let Some((id, secret)) = key {
            assert_eq!((id.as_str(), secret), ("abc123", data.get(SECRET)), "{case}");
        }
    }
    let missing = data(&base[..2]);
    assert!(missing.signing_key(name, NOW).is_none());
}

#[test]
fn one_bad_group_invalidates_all_groups() {
    // cluster-bootstrap: util/secrets/secrets_test.go, TestGetGroups; token/util/helpers_test.go
    let longest = format!("system:bootstrappers:{}", "a".repeat(256));
    let too_long = format!("{longest}a");
    for (extra, expected) in [
        (None, Some(vec![GROUP])),
        (Some(""), Some(vec![GROUP])),
        (Some("system:bootstrappers:foo"), Some(vec![GROUP, "system:bootstrappers:foo"])),
        (
            Some("system:bootstrappers:foo,system:bootstrappers:bar,system:bootstrappers:foo"),
            Some(vec![GROUP, "system:bootstrappers:bar", "system:bootstrappers:foo"]),
        ),
        (Some("system:bootstrappers:a:b-c0"), Some(vec![GROUP, "system:bootstrappers:a:b-c0"])),
        (Some(&longest), Some(vec![GROUP, &longest])),
        (Some(&too_long), None),
        (Some("foo"), None),
        (Some("system:bootstrappers"), None),
        (Some("system:bootstrappers:"), None),
        (Some("system:bootstrappers:foo:"), None),
        (Some("system:bootstrappers:FOO"), None),
        (Some(" system:bootstrappers:foo"), None),
        (Some("system:bootstrappers:foo, system:bootstrappers:bar"), None),
        (Some("system:bootstrappers:foo,"), None),
        (Some(",system:bootstrappers:foo"), None),
        (Some("system:bootstrappers:foo\n"), None),
        (Some("system:bootstrappers:foo,bar"), None),
        (Some("system:masters"), None),
    ] {
        let pairs: Vec<_> = extra.map(|extra| (EXTRA_GROUPS, extra)).into_iter().collect();
        let expected = expected.map(|groups| groups.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(data(&pairs).groups(), expected, "{extra:?}");
    }
}

#[test]
fn a_token_is_described_as_kubeadm_does() {
    let name = "bootstrap-token-abcdef";
    let full = [
        (ID, "abcdef"),
        (SECRET, "abcdef0123456789"),
        (DESCRIPTION, "foo"),
        (EXPIRATION, "2033-11-14T23:13:20.5+01:00"),
        ("usage-bootstrap-signing", "true"),
        ("usage-bootstrap-authentication", "true"),
        ("usage-bootstrap-other", "true"),
        ("usage-bootstrap-none", "false"),
        (EXTRA_GROUPS, "system:bootstrappers:b,anything"),
    ];
    let token = data(&full).describe(name).unwrap();
    assert_eq!(token.description, "foo");
    assert_eq!(token.expires.unwrap().in_whole_seconds(), "2033-11-14T23:13:20+01:00");
    assert_eq!(token.usages, ["authentication", "other", "signing"]);
    assert_eq!(token.groups, ["system:bootstrappers:b", "anything"]);

    let least = data(&full[..2]).describe(name).unwrap();
    assert!(least.expires.is_none() && least.usages.is_empty() && least.groups.is_empty());

    // A past expiration is described; a malformed one is an error.
    let gone = data(&[full[0], full[1], (EXPIRATION, GONE)]).describe(name).unwrap();
    assert_eq!(gone.expires.unwrap().in_whole_seconds(), GONE);
    let pairs = |changes: &[(&'static str, &'static str)]| -> Result<TokenDescription, TokenSecretError> {
        let all: Vec<_> = full.iter().chain(changes).copied().collect();
        data(&all).describe(name)
    };
    let error = |changes: &[(&'static str, &'static str)]| pairs(changes).unwrap_err().to_string();
    assert_eq!(error(&[(ID, "")]), "the Secret bootstrap-token-abcdef has no token-id");
    assert_eq!(error(&[(SECRET, "")]), "the Secret bootstrap-token-abcdef has no token-secret");
    assert_eq!(
        error(&[(ID, "abcdeg")]),
        "the Secret bootstrap-token-abcdef holds the token \"abcdeg\": its name must be bootstrap-token-abcdeg"
    );
    assert_eq!(
        error(&[(EXPIRATION, "soon")]),
        "the expiration of the Secret bootstrap-token-abcdef is not an RFC 3339 time"
    );
    // No message has the secret, even a malformed one.
    let bad = error(&[(SECRET, "s3cret-of-no-form")]);
    assert!(bad.starts_with("the Secret bootstrap-token-abcdef does not hold a token"), "{bad}");
    assert!(!bad.contains("s3cret"), "{bad}");
    assert_eq!(pairs(&[(EXTRA_GROUPS, ",b")]).unwrap().groups, Vec::<String>::new());
}

#[test]
fn a_new_secret_parses_again() {
    let token = BootstrapToken::parse("abcdef.abcdef0123456789").unwrap();
    let new = NewToken {
        token,
        expires: Some(NOW + Duration::from_millis(86_400_900)),
        description: "for the new rack".to_owned(),
        usages: BTreeSet::from(TokenUsage::ALL),
        groups: vec!["system:bootstrappers:b".to_owned(), "system:bootstrappers:a".to_owned()],
    };
    let secret = new.secret();
    let written: BTreeMap<_, _> = secret.data.iter().flatten().collect();
    let written: Vec<_> =
        written.iter().map(|(key, value)| (key.as_str(), std::str::from_utf8(&value.0).unwrap())).collect();
    assert_eq!(
        written,
        [
            ("auth-extra-groups", "system:bootstrappers:b,system:bootstrappers:a"),
            ("description", "for the new rack"),
            ("expiration", "2023-11-15T22:13:20Z"),
            ("token-id", "abcdef"),
            ("token-secret", "abcdef0123456789"),
            ("usage-bootstrap-authentication", "true"),
            ("usage-bootstrap-signing", "true"),
        ]
    );
    assert_eq!(secret.type_.as_deref(), Some("bootstrap.kubernetes.io/token"));
    assert_eq!(secret.metadata.namespace.as_deref(), Some("kube-system"));
    let name = secret.metadata.name.clone().unwrap();
    assert_eq!(name, "bootstrap-token-abcdef");
    let data = TokenData::of(&secret);
    assert!(data.signing_key(&name, NOW).is_some() && data.allows(TokenUsage::Authentication));
    assert_eq!(data.groups().unwrap().len(), 3);
    assert!(!format!("{new:?}{data:?}").contains("abcdef0123456789"));

    let least = NewToken {
        expires: None,
        description: String::new(),
        usages: BTreeSet::new(),
        groups: Vec::new(),
        ..new
    };
    let keys: Vec<_> = least.secret().data.unwrap().into_keys().collect();
    assert_eq!(keys, ["token-id", "token-secret"]);
}
