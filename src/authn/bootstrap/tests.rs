//! Cases of kube-apiserver's `bootstrap_test.go` and further ones.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::FutureExt as _;
use portcullis_limits::Owner;
use portcullis_pki::bootstrap_tokens::secret::GROUP;
use secrecy::SecretSlice;

use super::super::testing::TestRequest;
use super::*;
use crate::authn::token_getter::{GetResult, ObjectIdentity, ServiceAccount, TokenGetterError};

const TOKEN: &str = "abcdef.0123456789abcdef";

/// Name, changes to the secret, and the resulting groups.
type Case<'a> = (&'a str, &'a [(&'a str, Option<&'a str>)], Option<Vec<String>>);

/// Returns a fixed result for the secret and records the names that were read.
#[derive(Debug)]
struct FixedSecret(GetResult<Secret>, Mutex<Vec<String>>);

impl TokenGetter for FixedSecret {
    fn service_account<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, GetResult<ServiceAccount>> {
        Box::pin(async { Ok(None) })
    }
    fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(async { Ok(None) })
    }
    fn bootstrap_secret<'a>(&'a self, name: &'a str, _: &'a Owner) -> BoxFuture<'a, GetResult<Secret>> {
        self.1.lock().unwrap().push(name.to_owned());
        Box::pin(async { self.0.clone() })
    }
    fn pod<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(async { Ok(None) })
    }
    fn node<'a>(&'a self, _: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        Box::pin(async { Ok(None) })
    }
    fn label_secret(&self, _: &str, _: &str, _: &'static str, _: String) {}
}

/// The secret of `TOKEN` with changed keys; `None` removes a key.
fn secret(changes: &[(&str, Option<&str>)]) -> Secret {
    let mut data = BTreeMap::from([
        ("token-id", "abcdef"),
        ("token-secret", "0123456789abcdef"),
        ("usage-bootstrap-authentication", "true"),
    ]);
    for (key, value) in changes {
        match value {
            Some(value) => data.insert(key, value),
            None => data.remove(key),
        };
    }
    let slice = |text: &str| SecretSlice::from(text.as_bytes().to_vec());
    Secret {
        kind: SECRET_TYPE.to_owned(),
        data: data.into_iter().map(|(key, value)| (key.to_owned(), slice(value))).collect(),
        ..Secret::default()
    }
}

/// The verdict, with the groups of a success, and the number of reads.
fn authenticate(found: GetResult<Secret>, token: &str) -> (Result<Option<Vec<String>>, AuthnError>, usize) {
    let getter = Arc::new(FixedSecret(found, Mutex::default()));
    let tokens = BootstrapTokens::new(Arc::<FixedSecret>::clone(&getter));
    let request = TestRequest::new();
    let token = BearerToken::new(token);
    let verdict = tokens.authenticate(&token, request.input().for_tokens()).now_or_never().expect("ready");
    let groups = verdict.map(|found| {
        found.map(|found| {
            assert_eq!(found.user.name, "system:bootstrap:abcdef");
            assert_eq!((&found.user.uid, found.user.extra.len()), (&None, 0));
            found.user.groups.clone()
        })
    });
    let reads = getter.1.lock().unwrap().len();
    (groups, reads)
}

#[test]
fn secrets_are_checked_as_kube_apiserver_does() {
    // The time of test requests is 2023-11-14T22:13:20Z.
    let groups = |more: &[&str]| {
        let mut groups = vec![GROUP.to_owned()];
        groups.extend(more.iter().map(|group| (*group).to_owned()));
        Some(groups)
    };
    let longest = format!("system:bootstrappers:{}", "a".repeat(256));
    let too_long = format!("{longest}a");
    let cases: &[Case<'_>] = &[
        ("valid", &[], groups(&[])),
        (
            "further groups",
            &[("auth-extra-groups", Some("system:bootstrappers:foo"))],
            groups(&["system:bootstrappers:foo"]),
        ),
        (
            "sorted, without duplicates",
            &[(
                "auth-extra-groups",
                Some("system:bootstrappers:b,system:bootstrappers:a,system:bootstrappers:b"),
            )],
            groups(&["system:bootstrappers:a", "system:bootstrappers:b"]),
        ),
        ("longest group", &[("auth-extra-groups", Some(&longest))], groups(&[&longest])),
        ("group too long", &[("auth-extra-groups", Some(&too_long))], None),
        ("foreign group", &[("auth-extra-groups", Some("foo"))], None),
        ("upper case", &[("auth-extra-groups", Some("system:bootstrappers:Foo"))], None),
        ("group ends in a dash", &[("auth-extra-groups", Some("system:bootstrappers:foo-"))], None),
        ("no name", &[("auth-extra-groups", Some("system:bootstrappers:"))], None),
        ("comma at the end", &[("auth-extra-groups", Some("system:bootstrappers:foo,"))], None),
        (
            "blank after the comma",
            &[("auth-extra-groups", Some("system:bootstrappers:a, system:bootstrappers:b"))],
            None,
        ),
        ("no further groups", &[("auth-extra-groups", Some(""))], groups(&[])),
        ("wrong secret", &[("token-secret", Some("0123456789abcdeg"))], None),
        ("shorter secret", &[("token-secret", Some("0123456789abcde"))], None),
        ("no secret", &[("token-secret", None)], None),
        ("wrong id", &[("token-id", Some("abcdeg"))], None),
        ("no id", &[("token-id", None)], None),
        ("no usage", &[("usage-bootstrap-authentication", None)], None),
        ("other usage", &[("usage-bootstrap-authentication", Some("True"))], None),
        ("expired", &[("expiration", Some("2023-11-14T22:13:19Z"))], None),
        ("expires now", &[("expiration", Some("2023-11-14T22:13:20Z"))], None),
        ("expires in a second", &[("expiration", Some("2023-11-14T22:13:21Z"))], groups(&[])),
        ("expires soon, elsewhere", &[("expiration", Some("2023-11-14T23:13:20.5+01:00"))], groups(&[])),
        ("not a time", &[("expiration", Some("never"))], None),
        ("not RFC 3339", &[("expiration", Some("2033-11-14 22:13:21Z"))], None),
        ("a zone in brackets", &[("expiration", Some("2033-11-14T22:13:21+00:00[UTC]"))], None),
        ("a leap second", &[("expiration", Some("2033-11-14T22:13:60Z"))], None),
        ("no zone", &[("expiration", Some("2033-11-14T22:13:21"))], None),
        ("before 1970", &[("expiration", Some("1969-11-14T22:13:21Z"))], None),
        ("empty expiration", &[("expiration", Some(""))], groups(&[])),
    ];
    for (name, changes, expected) in cases {
        let (verdict, _) = authenticate(Ok(Some(Arc::new(secret(changes)))), TOKEN);
        assert_eq!(verdict.as_ref(), Ok(expected), "{name}");
    }
}

#[test]
fn an_unusable_secret_is_no_opinion() {
    let deleted = ObjectIdentity { deleted: Some(UnixTime::from_secs(1)), ..ObjectIdentity::default() };
    for (name, secret) in [
        ("deleted", Secret { identity: deleted, ..secret(&[]) }),
        ("type", Secret { kind: "Opaque".to_owned(), ..secret(&[]) }),
        ("no data", Secret { kind: SECRET_TYPE.to_owned(), ..Secret::default() }),
    ] {
        assert_eq!(authenticate(Ok(Some(Arc::new(secret))), TOKEN).0, Ok(None), "{name}");
    }
    assert_eq!(authenticate(Ok(None), TOKEN), (Ok(None), 1));
    let unreachable = TokenGetterError("unreachable".to_owned());
    let expected = Err(AuthnError::Unavailable("unreachable".to_owned()));
    assert_eq!(authenticate(Err(unreachable), TOKEN).0, expected);
}

#[test]
fn only_well_formed_tokens_cause_a_read() {
    for token in [
        "",
        "abcdef",
        "abcdef.0123456789abcde",
        "abcdef.0123456789abcdef0",
        "abcde.0123456789abcdef",
        "ABCDEF.0123456789abcdef",
        "abcdef.0123456789abcdef\n",
        "abcdef.0123456789abcdef.",
        "äbcde.0123456789abcdef",
    ] {
        assert_eq!(authenticate(Ok(Some(Arc::new(secret(&[])))), token), (Ok(None), 0), "{token:?}");
    }
}
