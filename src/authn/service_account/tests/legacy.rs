//! Rows of Kubernetes' `jwt_test.go` on secrets, and of `util_test.go` on names.

use prometheus::core::GenericCounter;

use super::*;

const OK: &str = "system:serviceaccount:test:builder for [\"api\"]";
const INVALIDATED: &str = "Token has been invalidated";
const PREFIX: &str = "kubernetes.io/serviceaccount/";

fn claims() -> Value {
    json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:test:builder",
        "kubernetes.io/serviceaccount/namespace": "test",
        "kubernetes.io/serviceaccount/secret.name": "builder-token",
        "kubernetes.io/serviceaccount/service-account.name": "builder",
        "kubernetes.io/serviceaccount/service-account.uid": "12345",
    })
}

/// A test bed whose API server has the secret with the token of `claims`, modified by `change`; and that token.
fn bed(change: impl FnOnce(&mut FakeApiServer, &mut Secret)) -> (TestBed, String) {
    let mut bed = TestBed::new(FakeApiServer::default());
    let token = bed.token(&claims());
    let mut cluster = FakeApiServer {
        accounts: BTreeMap::from([("test/builder".to_owned(), account("12345"))]),
        ..FakeApiServer::default()
    };
    let mut secret = Secret { identity: identity("99"), ..Secret::default() };
    secret.data.insert("token".to_owned(), SecretSlice::from(token.as_bytes().to_vec()));
    change(&mut cluster, &mut secret);
    if secret.identity.uid == "99" {
        cluster.secrets.insert("test/builder-token".to_owned(), secret);
    }
    bed.cluster = Arc::new(cluster);
    (bed, token)
}

fn annotations(outcome: &AuthnOutcome) -> Vec<(&str, &str)> {
    outcome.noted.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[test]
fn secret_and_service_account_must_exist() {
    type Change = fn(&mut FakeApiServer, &mut Secret);
    let cases: [(&str, Change, &str); 12] = [
        ("good", |_, _| {}, OK),
        ("no secret", |_, secret| secret.identity.uid.clear(), INVALIDATED),
        ("deleted in the future", |_, secret| secret.identity.deleted = Some(seconds(NOW + 1)), INVALIDATED),
        ("deleted", |_, secret| secret.identity.deleted = Some(seconds(NOW)), INVALIDATED),
        ("no data", |_, secret| secret.data.clear(), "Token does not match server's copy"),
        (
            "another token",
            |_, secret| drop(secret.data.insert("token".to_owned(), SecretSlice::from(b"x".to_vec()))),
            "Token does not match server's copy",
        ),
        (
            "no service account",
            |cluster, _| cluster.accounts.clear(),
            "serviceaccounts \"builder\" not found",
        ),
        (
            "deleted service account",
            |cluster, _| {
                cluster.accounts.get_mut("test/builder").unwrap().identity.deleted = Some(seconds(NOW));
            },
            "ServiceAccount test/builder has been deleted",
        ),
        (
            "another service account",
            |cluster, _| cluster.accounts.get_mut("test/builder").unwrap().identity.uid = "67890".to_owned(),
            "ServiceAccount UID (67890) does not match claim (12345)",
        ),
        (
            "no answer for the secret",
            |cluster, _| cluster.away = "secret",
            "unavailable: cannot ask for test/builder-token",
        ),
        (
            "no answer for the service account",
            |cluster, _| cluster.away = "serviceaccount",
            "unavailable: cannot ask for test/builder",
        ),
        (
            "marked as invalid",
            |_, secret| {
                let label = "kubernetes.io/legacy-token-invalid-since".to_owned();
                secret.labels.insert(label, "2022-12-20".to_owned());
            },
            "the token in secret test/builder-token for service account test/builder has been marked invalid. Use \
             tokens from the TokenRequest API or manually created secret-based tokens, or remove the \
             'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token",
        ),
    ];
    for (name, change, expected) in cases {
        let (bed, token) = bed(change);
        assert_eq!(bed.authenticate(&bed.legacy(true), &token).verdict, expected, "{name}");
        bed.cluster.lookups();
        assert_eq!(bed.authenticate(&bed.legacy(false), &token).verdict, OK, "{name}, without lookups");
        assert_eq!(bed.cluster.lookups(), [""; 0]);
    }
}

#[test]
fn claims_must_be_present_and_name_one_service_account() {
    let claim = |name: &str| format!("{PREFIX}{name}");
    let cases = [
        ("sub".to_owned(), "", "sub claim is missing"),
        (claim("namespace"), "", "namespace claim is missing"),
        (claim("secret.name"), "", "secretName claim is missing"),
        (claim("service-account.name"), "", "serviceAccountName claim is missing"),
        (claim("service-account.uid"), "", "serviceAccountUID claim is missing"),
        (claim("namespace"), "other", "sub claim is invalid"),
        (claim("service-account.name"), "other", "sub claim is invalid"),
        ("sub".to_owned(), "builder", "sub claim is invalid"),
        ("sub".to_owned(), "system:serviceaccount:test:builder:x", "sub claim is invalid"),
        ("sub".to_owned(), "system:serviceaccount:test", "sub claim is invalid"),
    ];
    for (claim, value, expected) in cases {
        let (bed, _) = bed(|_, _| {});
        let mut changed = claims();
        changed[&claim] = json!(value);
        assert_eq!(
            bed.authenticate(&bed.legacy(true), &bed.token(&changed)).verdict,
            expected,
            "{claim}={value:?}"
        );
        changed[&claim] = json!(null);
        let outcome = bed.authenticate(&bed.legacy(true), &bed.token(&changed));
        assert!(outcome.verdict.ends_with("claim is missing"), "{claim}: {}", outcome.verdict);
        changed[&claim] = json!(1);
        let outcome = bed.authenticate(&bed.legacy(true), &bed.token(&changed));
        assert!(outcome.verdict.starts_with("json: invalid type: integer"), "{claim}: {}", outcome.verdict);
        assert_eq!(bed.cluster.lookups(), [""; 0]);
    }
    // The first missing claim is reported.
    let (bed, _) = bed(|_, _| {});
    let bare = bed.token(&json!({"iss": "kubernetes/serviceaccount"}));
    assert_eq!(bed.authenticate(&bed.legacy(true), &bare).verdict, "sub claim is missing");
}

#[test]
fn user_names_of_service_accounts_are_split() {
    let long = "a".repeat(64);
    let cases = [
        ("system:serviceaccount:foo:bar", Some(("foo", "bar"))),
        ("system:serviceaccount:foo:bar.baz-1", Some(("foo", "bar.baz-1"))),
        ("system:serviceaccount::", None),
        ("system:serviceaccount::foo", None),
        ("system:serviceaccount:foo:", None),
        ("system:serviceaccount:foo:bar:baz", None),
        ("system:serviceaccount:foo :bar", None),
        ("system:serviceaccount:foo:bar ", None),
        ("system:serviceaccount:foo.bar:baz", None),
        ("system:serviceaccount:Foo:bar", None),
        ("system:serviceaccount:-foo:bar", None),
        ("system:serviceaccount:foo:bar-", None),
        ("system:serviceaccount:foo:bar..baz", None),
        ("system:serviceaccount:foo", None),
        ("system:serviceaccount:", None),
        ("foo:bar", None),
        (":bar", None),
        ("", None),
        (&format!("system:serviceaccount:{long}:bar"), None),
        (&format!("system:serviceaccount:foo:{long}"), Some(("foo", &long))),
        (&format!("system:serviceaccount:foo:{}", "a".repeat(254)), None),
    ];
    for (user, expected) in cases {
        assert_eq!(portcullis_kubernetes::service_account::split(user), expected, "{user:?}");
    }
}

#[test]
fn uses_are_counted_annotated_and_labelled_on_the_secret() {
    let counted = |bed: &TestBed| {
        let counters = &bed.counters;
        [&counters.legacy, &counters.auto, &counters.manual, &counters.invalid_auto].map(GenericCounter::get)
    };
    let legacy = ("authentication.k8s.io/legacy-token", "system:serviceaccount:test:builder");
    let label = "test/builder-token kubernetes.io/legacy-token-last-used=2023-11-14";

    let (manual, token) = bed(|_, _| {});
    let outcome = manual.authenticate(&manual.legacy(true), &token);
    assert_eq!(
        annotations(&outcome),
        [legacy, ("authentication.k8s.io/legacy-token-manual-secret", "builder-token")]
    );
    assert_eq!(outcome.noted.warnings, [""; 0]);
    assert_eq!(counted(&manual), [1, 0, 1, 0]);
    assert_eq!(*manual.cluster.labels.lock().unwrap(), [label]);
    let user = outcome.identity.unwrap();
    assert_eq!(user.uid.as_deref(), Some("12345"));
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:test"]);
    assert!(user.extra.is_empty());

    let (auto, token) = bed(|cluster, _| {
        cluster.accounts.get_mut("test/builder").unwrap().secrets =
            vec!["another".to_owned(), "builder-token".to_owned()];
    });
    let outcome = auto.authenticate(&auto.legacy(true), &token);
    assert_eq!(outcome.verdict, OK);
    assert_eq!(
        annotations(&outcome),
        [legacy, ("authentication.k8s.io/legacy-token-autogenerated-secret", "builder-token")]
    );
    let warning = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of \
                   auto-generated secret-based tokens.";
    assert_eq!(outcome.noted.warnings, [warning]);
    assert_eq!(counted(&auto), [1, 1, 0, 0]);
    assert_eq!(*auto.cluster.labels.lock().unwrap(), [label]);

    let (invalid, token) = bed(|cluster, secret| {
        cluster.accounts.get_mut("test/builder").unwrap().secrets = vec!["builder-token".to_owned()];
        secret.labels.insert("kubernetes.io/legacy-token-invalid-since".to_owned(), "x".to_owned());
    });
    let outcome = invalid.authenticate(&invalid.legacy(true), &token);
    assert_eq!(
        annotations(&outcome),
        [legacy, ("authentication.k8s.io/legacy-token-invalidated", "builder-token/test")]
    );
    assert_eq!(outcome.noted.warnings, [""; 0]);
    assert_eq!(counted(&invalid), [1, 0, 0, 1]);
    assert_eq!(*invalid.cluster.labels.lock().unwrap(), [label]);

    let (blind, token) = bed(|_, _| {});
    assert_eq!(annotations(&blind.authenticate(&blind.legacy(false), &token)), [legacy]);
    assert_eq!(counted(&blind), [1, 0, 0, 0]);
    assert_eq!(*blind.cluster.labels.lock().unwrap(), [""; 0]);
}

#[test]
fn the_day_of_the_last_use_is_written_once() {
    let cases = [
        ("2023-11-13", true),
        ("2023-11-14", false),
        ("2023-11-15", false),
        ("2023-11-16", true),
        ("", true),
        ("yesterday", true),
    ];
    for (last, written) in cases {
        let (bed, token) = bed(|_, secret| {
            secret.labels.insert("kubernetes.io/legacy-token-last-used".to_owned(), last.to_owned());
        });
        assert_eq!(bed.authenticate(&bed.legacy(true), &token).verdict, OK);
        assert_eq!(bed.cluster.labels.lock().unwrap().len(), usize::from(written), "{last:?}");
    }
    // The last second of a leap day, and the first one after it.
    for (now, day) in [(1_709_251_199, "2024-02-29"), (1_709_251_200, "2024-03-01")] {
        let (mut bed, token) = bed(|_, _| {});
        bed.now = seconds(now);
        bed.authenticate(&bed.legacy(true), &token);
        assert!(bed.cluster.labels.lock().unwrap()[0].ends_with(day));
    }
}

#[test]
fn legacy_tokens_do_not_expire_and_have_one_issuer() {
    let (bed, _) = bed(|_, _| {});
    let expired = with(claims(), json!({"exp": 1, "nbf": NOW + 1000, "iat": NOW + 1000}));
    assert_eq!(bed.authenticate(&bed.legacy(false), &bed.token(&expired)).verdict, OK);
    for issuer in ["iss", "", "kubernetes/serviceaccount ", "Kubernetes/serviceaccount"] {
        let other = bed.token(&with(claims(), json!({"iss": issuer})));
        assert_eq!(bed.authenticate(&bed.legacy(false), &other).verdict, "no opinion", "{issuer:?}");
    }
    assert_eq!(bed.authenticate(&bed.bound(), &bed.token(&claims())).verdict, "no opinion");
}
