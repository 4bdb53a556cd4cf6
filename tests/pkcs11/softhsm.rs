//! Keys in a token of `softhsm2`.

use std::process::{Command, ExitCode};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, ObjectClass};
use cryptoki::session::{Session, UserType};
use portcullis::internal::Pkcs11Key;
use portcullis::internal::{AuthorityKeySource, CertificateAuthority};
use portcullis::internal::{PemKey, Signer as _, SigningAlgorithm};

use crate::keys::{issues, signs, verify};
use crate::{Case, KEYS, PIN, Tokens};

pub(crate) const CASES: &[Case] = &[
    ("every_kind_of_key_in_a_token_signs", every_kind_signs),
    ("an_authority_loads_from_a_uri_and_issues", an_authority_issues),
    ("the_key_of_another_authority_is_refused", another_key_is_refused),
    ("a_key_is_found_by_its_id_too", found_by_id),
    ("a_key_without_a_public_key_object_is_that_of_the_certificate", no_public_object),
    ("a_key_that_wants_a_login_for_each_signature_gets_it", always_authenticated),
    ("errors_name_the_cause_and_not_the_pin", errors_name_the_cause),
    ("errors_name_what_tells_two_apart", ambiguity_is_explained),
    ("a_lost_session_is_opened_again", sessions_are_reopened),
    ("processes_that_log_in_at_the_same_time_all_sign", processes_at_once),
];

/// Set in a process of [`processes_at_once`]: the URI of the key that it signs with.
pub(crate) const SIGNING_PROCESS: &str = "PORTCULLIS_TEST_SIGNING_PROCESS";

fn every_kind_signs(tokens: &Tokens) {
    let algorithms = [
        SigningAlgorithm::RsaSha256,
        SigningAlgorithm::EcdsaSha256,
        SigningAlgorithm::EcdsaSha384,
        SigningAlgorithm::EcdsaSha512,
    ];
    for ((label, ..), algorithm) in KEYS.iter().zip(algorithms) {
        let key = tokens.key(label);
        let imported = std::fs::read(tokens.dir.join(format!("{label}.key"))).unwrap();
        assert_eq!(key.public_key(), PemKey::from_pem(&imported).unwrap().public_key(), "{label}");
        // Leading zeros and high bits of r and s result in ECDSA signatures of different lengths.
        for message in 0..50_u8 {
            let signature = key.sign(algorithm, &[message]).unwrap();
            verify(key.public_key(), algorithm, &[message], &signature);
        }
        assert!(key.sign(SigningAlgorithm::Ed25519, b"message").is_err(), "{label}");
    }
}

fn an_authority_issues(tokens: &Tokens) {
    for (label, ..) in KEYS {
        let certificate = tokens.certificate_file(label);
        let uri = tokens.uri(&format!("token=ca%20token;object={label}"), "pin");
        let authority = CertificateAuthority::load(&certificate, &AuthorityKeySource::parse(&uri)).unwrap();
        issues(&authority, &certificate);
        assert!(!format!("{authority:?}").contains(PIN));
    }
}

fn another_key_is_refused(tokens: &Tokens) {
    let certificate = tokens.certificate("p256");
    let refused =
        CertificateAuthority::new(certificate.as_bytes(), Box::new(tokens.key("p384"))).unwrap_err();
    assert_eq!(refused.to_string(), "tls: private key does not match public key");
}

fn found_by_id(tokens: &Tokens) {
    let key = Pkcs11Key::open(&tokens.uri("token=ca%20token;id=%02;type=private", "pin"), None).unwrap();
    assert_eq!(key.public_key(), tokens.key("p256").public_key());
}

/// A session that may write, for fixtures.
fn writing(tokens: &Tokens, label: &str) -> Session {
    let library = Pkcs11::new(tokens.module).unwrap();
    // Already, by a key.
    library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).ok();
    let slots = library.get_slots_with_token().unwrap();
    let slot =
        slots.into_iter().find(|slot| library.get_token_info(*slot).unwrap().label() == label).unwrap();
    let session = library.open_rw_session(slot).unwrap();
    session.login(UserType::User, Some(&PIN.into())).ok();
    session
}

/// Imports a key under a label of its own.
fn import(tokens: &Tokens, label: &str, to: &str, id: &str) {
    let key = tokens.dir.join(format!("{label}.key"));
    let imported = Command::new("softhsm2-util")
        .args([
            "--import",
            key.to_str().unwrap(),
            "--token",
            "ca token",
            "--pin",
            PIN,
            "--label",
            to,
            "--id",
            id,
        ])
        .arg("--force")
        .output()
        .unwrap();
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
}

/// Generates a key that wants a login for each signature.
fn generate_always(tokens: &Tokens, label: &str, mechanism: &Mechanism<'_>, parameters: Attribute) {
    let session = writing(tokens, "ca token");
    let common = [Attribute::Token(true), Attribute::Label(label.into()), Attribute::Id(label.into())];
    let public = [&common[..], &[parameters, Attribute::Verify(true)]].concat();
    let private = [
        &common[..],
        &[Attribute::AlwaysAuthenticate(true), Attribute::Private(true), Attribute::Sign(true)],
    ];
    session.generate_key_pair(mechanism, &public, &private.concat()).unwrap();
}

fn no_public_object(tokens: &Tokens) {
    import(tokens, "p256", "alone", "aa");
    let session = writing(tokens, "ca token");
    let public = [Attribute::Class(ObjectClass::PUBLIC_KEY), Attribute::Label("alone".into())];
    for object in session.find_objects(&public).unwrap() {
        session.destroy_object(object).unwrap();
    }
    let uri = tokens.uri("token=ca%20token;object=alone", "pin");
    let error = Pkcs11Key::open(&uri, None).unwrap_err().to_string();
    assert!(error.contains("the token has no public key of object=alone"), "{error}");
    let load = |label: &str| {
        CertificateAuthority::load(&tokens.certificate_file(label), &AuthorityKeySource::parse(&uri))
    };
    issues(&load("p256").unwrap(), &tokens.certificate_file("p256"));
    for other in ["p384", "rsa"] {
        let error = load(other).unwrap_err().to_string();
        assert!(error.contains("object=alone does not belong to the CA certificate"), "{other}: {error}");
    }
    // On the same curve: a signature tells.
    let other = rcgen::KeyPair::generate().unwrap();
    let file = tokens.dir.join("other-p256.crt");
    std::fs::write(&file, crate::keys::certificate(&other, "other")).unwrap();
    let error = CertificateAuthority::load(&file, &AuthorityKeySource::parse(&uri)).unwrap_err().to_string();
    assert!(error.contains("object=alone does not belong to the CA certificate"), "{error}");
}

fn always_authenticated(tokens: &Tokens) {
    generate_always(tokens, "rsa-always", &Mechanism::RsaPkcsKeyPairGen, Attribute::ModulusBits(2048.into()));
    let uri = tokens.uri("token=ca%20token;object=rsa-always", "pin");
    let key = Pkcs11Key::open(&uri, None).unwrap();
    for message in ["first", "second"] {
        signs(&key, SigningAlgorithm::RsaSha256, message);
    }
    // SoftHSM has no mechanism that hashes for ECDSA.
    let p256 = vec![6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    generate_always(tokens, "p256-always", &Mechanism::EccKeyPairGen, Attribute::EcParams(p256));
    let uri = tokens.uri("token=ca%20token;object=p256-always", "pin");
    let error = Pkcs11Key::open(&uri, None).unwrap_err().to_string();
    assert!(error.contains("CKA_ALWAYS_AUTHENTICATE") && error.contains("CKM_ECDSA_SHA256"), "{error}");
    // Without a login the key is not seen at all.
    let no_pin = uri.split("&pin-source").next().unwrap();
    let error = Pkcs11Key::open(no_pin, None).unwrap_err().to_string();
    assert!(error.contains("add pin-source"), "{error}");
}

fn errors_name_the_cause(tokens: &Tokens) {
    let cases = [
        ("token=absent;object=rsa", "pin", &["no token matches token=absent; ", "token=other;serial="][..]),
        (
            "token=ca%20token;object=absent",
            "pin",
            &["no private key matches object=absent; after the login the token shows ", "id=%02;object=p256"],
        ),
        ("token=other;object=rsa", "pin", &["after the login the token shows none"]),
        ("token=ca%20token;object=rsa", "no-pin", &["No such file"]),
    ];
    for (path, pin, wanted) in cases {
        let error = Pkcs11Key::open(&tokens.uri(path, pin), None).unwrap_err().to_string();
        assert!(
            wanted.iter().all(|part| error.contains(part)) && !error.contains("secret"),
            "{path}: {error}"
        );
        assert!(!error.contains("pin-source"), "it was given: {error}");
    }
    let error = Pkcs11Key::open("pkcs11:object=a?module-path=/nowhere.so", None).unwrap_err().to_string();
    assert!(error.contains("/nowhere.so"), "{error}");
}

fn ambiguity_is_explained(tokens: &Tokens) {
    let error = |path: &str| Pkcs11Key::open(&tokens.uri(path, "pin"), None).unwrap_err().to_string();
    let tokens_of = error("object=rsa");
    assert!(
        tokens_of.contains("2 tokens match") && tokens_of.ends_with("add the token of one of them"),
        "{tokens_of}"
    );
    import(tokens, "p384", "twin", "01a0");
    import(tokens, "p384", "twin", "01a1");
    let by_id = error("token=ca%20token;object=twin");
    assert!(
        by_id.contains("2 private keys match object=twin: ") && by_id.ends_with("add the id of one of them"),
        "{by_id}"
    );
    import(tokens, "p384", "twin", "01a1");
    let same = error("token=ca%20token;object=twin;id=%01%a1");
    assert!(same.ends_with("change the CKA_ID of one of them"), "{same}");
}

/// What each of [`processes_at_once`] does.
pub(crate) fn sign_often(uri: &str) -> ExitCode {
    for round in 0..4 {
        // Of a new process each time, as far as the token knows.
        let key = match Pkcs11Key::open(uri, None) {
            Ok(key) => key,
            Err(error) => {
                eprintln!("round {round}: {error}");
                return ExitCode::FAILURE;
            }
        };
        signs(&key, SigningAlgorithm::EcdsaSha256, "message");
    }
    ExitCode::SUCCESS
}

fn processes_at_once(tokens: &Tokens) {
    let own = std::env::current_exe().unwrap();
    let uri = tokens.uri("token=ca%20token;object=p256", "pin");
    let start = || Command::new(&own).env(SIGNING_PROCESS, &uri).spawn().unwrap();
    let processes: Vec<_> = (0..16).map(|_| start()).collect();
    let failed =
        processes.into_iter().filter_map(|mut process| (!process.wait().unwrap().success()).then_some(()));
    assert_eq!(failed.count(), 0);
}

fn sessions_are_reopened(tokens: &Tokens) {
    let key = tokens.key("p256");
    let algorithm = SigningAlgorithm::EcdsaSha256;
    assert!(key.sign(algorithm, b"before").is_ok());
    // Finalises the library, which closes all sessions and logins of this process.
    let library = Pkcs11::new(tokens.module).unwrap();
    library.finalize().unwrap();
    let library = Pkcs11::new(tokens.module).unwrap();
    library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).unwrap();
    // A wrong PIN proves that the key logs in again.
    let refused = Pkcs11Key::open(&tokens.uri("token=ca%20token;object=p256", "wrong-pin"), None)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("login") && !refused.contains("secret"), "{refused}");
    // A wrong PIN is tried only once, for all keys, until the content of the file changes.
    for object in ["p256", "rsa"] {
        let uri = tokens.uri(&format!("token=ca%20token;object={object}"), "wrong-pin");
        let refused = Pkcs11Key::open(&uri, None).unwrap_err().to_string();
        assert!(refused.contains("not retried") && !refused.contains("secret"), "{refused}");
    }
    std::fs::write(tokens.dir.join("wrong-pin"), PIN).unwrap();
    assert!(Pkcs11Key::open(&tokens.uri("token=ca%20token;object=p256", "wrong-pin"), None).is_ok());
    signs(&key, algorithm, "after");
    std::mem::forget(library);
}
