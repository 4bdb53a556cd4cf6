//! The flags of service-account tokens.

use std::net::SocketAddr;

use portcullis::internal::Authentication;
use portcullis::internal::{ServiceAccountKeys, ServiceAccountSettings};
use testkit::{Pki, flags};

use crate::gateway::resolved;

/// Resolves these flags beside the required ones; `DIR` stands for the directory of the files.
fn authentication(pki: &Pki, further: &[&str]) -> Result<Authentication, String> {
    let directory = pki.directory.path().display().to_string();
    let authenticating = ["--client-ca", "--token-auth", "--requestheader-client-ca", "--requestheader-"];
    let all = flags(pki, SocketAddr::from(([127, 0, 0, 1], 6443)))
        .into_iter()
        .filter(|flag| !authenticating.iter().any(|prefix| flag.starts_with(prefix)))
        .chain(["--anonymous-auth=false".to_owned()])
        .chain(further.iter().map(|flag| flag.replace("DIR", &directory)));
    let mut settings =
        resolved(all).map_err(|errors| errors.to_string().replace(&directory, "DIR"))?.settings;
    Ok(settings.clusters.remove(0).authentication.clone())
}

/// Files with one key, two keys, a certificate, and without a key.
fn pki() -> Pki {
    let pki = Pki::new();
    let key = || rcgen::KeyPair::generate().unwrap();
    pki.write("one.pub", key().public_key_pem());
    pki.write("two.pem", format!("{}\n{}", key().public_key_pem(), key().public_key_pem()));
    pki.write("certificate.pem", pki.clients.cert_pem());
    pki.write("pkcs8.key", key().serialize_pem());
    pki.write("empty.pem", "");
    pki.write("short.pem", SHORT);
    pki
}

/// An RSA key of 1024 bits.
const SHORT: &str = "-----BEGIN PUBLIC KEY-----\n\
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCpiyPdTZj7PBbRwZT91NXzylsw\n\
Djpki29bPT2n/YrjbDqvNmwi7I+AJsUrG07TUau8RSXCgob9qs2fWvuxVWt5CbPk\n\
rQcWnmxgJtW/7vm2r+C8Y2p+u8fyDS9CYlFd+K6idMQjyxMJaeCR0EWtO9+N2xXX\n\
k6KjDeQyMiYxMz5M6QIDAQAB\n\
-----END PUBLIC KEY-----\n";

type Texts<'a> = &'a [&'a str];
/// The flags; the issuers, the number of keys from files, whether tokens are looked up, the audiences.
type Row<'a> = (Texts<'a>, Texts<'a>, usize, bool, Texts<'a>);

#[test]
fn flags_set_issuers_keys_and_audiences() {
    let pki = pki();
    let keys = |accounts: &ServiceAccountSettings| match &accounts.keys {
        ServiceAccountKeys::Files(keys) => keys.len(),
        ServiceAccountKeys::Backend => 0,
    };
    let cases: [Row<'_>; 6] = [
        (&["--service-account-issuer=https://a"], &["https://a"], 0, true, &["https://a"]),
        (
            &["--service-account-issuer=https://a", "--service-account-issuer=b,c"],
            &["https://a", "b,c"],
            0,
            true,
            &["https://a", "b,c"],
        ),
        (
            &["--service-account-issuer=https://a", "--api-audiences=x,y"],
            &["https://a"],
            0,
            true,
            &["x", "y"],
        ),
        (
            &[
                "--service-account-issuer=https://a",
                "--service-account-key-file=DIR/one.pub",
                "--service-account-key-file=DIR/two.pem",
                "--service-account-key-file=DIR/certificate.pem",
            ],
            &["https://a"],
            4,
            true,
            &["https://a"],
        ),
        (&["--service-account-key-file=DIR/one.pub", "--service-account-lookup=false"], &[], 1, false, &[]),
        (&["--service-account-issuer=api:x/y"], &["api:x/y"], 0, true, &["api:x/y"]),
    ];
    for (flags, issuers, files, lookup, audiences) in cases {
        let authentication = authentication(&pki, flags).unwrap();
        let accounts = authentication.service_accounts.unwrap();
        assert_eq!(accounts.issuers, issuers, "{flags:?}");
        assert_eq!((keys(&accounts), accounts.lookup), (files, lookup), "{flags:?}");
        let given: Vec<_> = authentication.audiences.iter().map(|audience| audience.0.as_str()).collect();
        assert_eq!(given, audiences, "{flags:?}");
    }
    let off = authentication(&pki, &["--enable-bootstrap-token-auth", "--service-account-lookup=false"]);
    assert_eq!(off.unwrap().service_accounts, None);
}

#[test]
fn equal_files_resolve_to_equal_settings() {
    let pki = pki();
    let accounts = |file| {
        let flags = ["--service-account-issuer=a", &format!("--service-account-key-file=DIR/{file}")];
        authentication(&pki, &flags).unwrap().service_accounts.unwrap()
    };
    assert_eq!(accounts("one.pub"), accounts("one.pub"));
    assert_ne!(accounts("one.pub"), accounts("two.pem"));
    let published = authentication(&pki, &["--service-account-issuer=a"]).unwrap().service_accounts.unwrap();
    assert_ne!(accounts("one.pub"), published);
}

#[test]
fn mistakes_name_the_flag_and_the_file() {
    let pki = pki();
    let no_keys = "data does not contain any valid RSA or ECDSA public keys";
    let cases: [(&[&str], &str); 10] = [
        (&["--service-account-issuer="], "service-account-issuer should not be an empty string"),
        (
            &["--service-account-issuer=a", "--service-account-issuer=a"],
            "service-account-issuer \"a\" is already specified",
        ),
        (
            &["--service-account-issuer=http://[::1"],
            "service-account-issuer \"http://[::1\" contained a ':' but was not a valid URL: parse \"http://[::1\": \
             missing ']' in host",
        ),
        (
            &["--service-account-issuer=1:b"],
            "service-account-issuer \"1:b\" contained a ':' but was not a valid URL: parse \"1:b\": first path \
             segment in URL cannot contain colon",
        ),
        (&["--service-account-key-file=DIR/none.pem"], "--service-account-key-file: DIR/none.pem: "),
        (&["--service-account-key-file=DIR/empty.pem"], "DIR/empty.pem: data does not contain any"),
        (&["--service-account-key-file=DIR/pkcs8.key"], no_keys),
        (
            &["--service-account-key-file=DIR/one.pub", "--service-account-key-file=DIR/pkcs8.key"],
            "DIR/pkcs8.key: data does not contain any",
        ),
        (
            &["--service-account-key-file=DIR/short.pem"],
            "an RSA key has 1024 bits; it must have 2048 to 8192",
        ),
        (&[], "is disabled, and no other authentication method is enabled"),
    ];
    for (flags, expected) in cases {
        let error = authentication(&pki, flags).expect_err(&format!("{flags:?} were accepted"));
        assert!(error.contains(expected), "{flags:?}: {error}");
        assert!(error.starts_with("the configuration has 1 error"), "{flags:?}: {error}");
    }
}
