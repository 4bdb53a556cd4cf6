//! CAs whose keys are in a PKCS#11 token: `softhsm2`, with a separate directory for each run.
//!
//! The library reads the directory of its tokens from an environment variable, so this program restarts itself with the
//! variable set.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test program"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use libtest_mimic::{Arguments, Failed, Trial};
use portcullis::internal::AltNames;
use portcullis::internal::CertificateProfile;
use portcullis::internal::IssuanceRequest;
use portcullis::internal::Pkcs11Key;
use portcullis::internal::Subject;
use portcullis::internal::build_request;
use portcullis::internal::{AuthorityKeySource, CertificateAuthority};
use portcullis::internal::{KeyKind, PemKey, Signer as _, SigningAlgorithm};
use secrecy::ExposeSecret as _;

const CONF: &str = "SOFTHSM2_CONF";
const PIN: &str = "1234-secret";
const MODULES: [&str; 4] = [
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib64/softhsm/libsofthsm2.so",
    "/usr/local/lib/softhsm/libsofthsm2.so",
];
/// The label of each key and its identifier, `CKA_ID`.
const KEYS: [(&str, &str, KeyKind); 4] = [
    ("rsa", "01", KeyKind::Rsa2048),
    ("p256", "02", KeyKind::EcdsaP256),
    ("p384", "03", KeyKind::EcdsaP384),
    ("p521", "04", KeyKind::EcdsaP521),
];

fn main() -> ExitCode {
    let Some(module) = MODULES.iter().find(|path| Path::new(path).exists()) else {
        return absent("libsofthsm2.so is in none of the usual places");
    };
    match std::env::var_os(CONF).map(PathBuf::from) {
        Some(conf) => {
            let tokens = Tokens { dir: conf.parent().expect("a directory").to_owned(), module };
            // Sequentially: a test finalises the library of the whole process.
            let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
            libtest_mimic::run(&arguments, trials(&tokens)).exit_code()
        }
        None => with_tokens(),
    }
}

fn absent(reason: &str) -> ExitCode {
    if testkit::real::is_required() {
        eprintln!("pkcs11: PORTCULLIS_REQUIRE_TWIN is set, but {reason}");
        return ExitCode::FAILURE;
    }
    eprintln!("pkcs11: NOTHING WAS TESTED: {reason}; install softhsm2");
    ExitCode::SUCCESS
}

/// Creates a token with a key of each kind, and runs the tests with it.
fn with_tokens() -> ExitCode {
    let dir = tempfile::tempdir().expect("a directory");
    let conf = dir.path().join("softhsm2.conf");
    let tokens = dir.path().join("tokens");
    std::fs::create_dir(&tokens).expect("a directory");
    std::fs::write(&conf, format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.display()))
        .expect("the configuration");
    let util = |arguments: &[&str]| {
        let output = Command::new("softhsm2-util").args(arguments).env(CONF, &conf).output();
        output.map_err(|error| error.to_string()).and_then(|output| {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(format!("{arguments:?}: {text}")) }
        })
    };
    if let Err(reason) = util(&["--version"]) {
        return absent(&format!("softhsm2-util does not run: {reason}"));
    }
    for label in ["ca token", "other"] {
        util(&["--init-token", "--free", "--label", label, "--pin", PIN, "--so-pin", "so-pin"])
            .expect("a token");
    }
    for (label, id, kind) in KEYS {
        let path = dir.path().join(format!("{label}.key"));
        let key = PemKey::generate(kind).expect("a key").to_pem();
        std::fs::write(&path, key.expose_secret()).expect("the key's file");
        let path = path.to_str().expect("UTF-8");
        util(&["--import", path, "--token", "ca token", "--label", label, "--id", id, "--pin", PIN])
            .expect("the key in the token");
    }
    std::fs::write(dir.path().join("pin"), format!("{PIN}\n")).expect("the PIN's file");
    std::fs::write(dir.path().join("wrong-pin"), "4321-secret\n").expect("the PIN's file");
    let own = std::env::current_exe().expect("this program");
    let status = Command::new(own).args(std::env::args_os().skip(1)).env(CONF, &conf).status();
    if status.expect("this program runs").success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Clone)]
struct Tokens {
    dir: PathBuf,
    module: &'static str,
}

impl Tokens {
    fn uri(&self, path: &str, pin: &str) -> String {
        let pin = self.dir.join(pin);
        format!("pkcs11:{path}?module-path={}&pin-source=file:{}", self.module, pin.display())
    }

    fn key(&self, label: &str) -> Pkcs11Key {
        Pkcs11Key::open(&self.uri(&format!("token=ca%20token;object={label}"), "pin")).expect("the key opens")
    }

    /// A CA certificate for the key that was imported as `label`.
    fn certificate(&self, label: &str) -> String {
        let pem = std::fs::read_to_string(self.dir.join(format!("{label}.key"))).expect("the key");
        let key = rcgen::KeyPair::from_pem(&pem).expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, label);
        params.self_signed(&key).expect("a certificate").pem()
    }
}

fn trials(tokens: &Tokens) -> Vec<Trial> {
    let trial = |name: &str, test: fn(&Tokens)| {
        let tokens = tokens.clone();
        Trial::test(name, move || {
            test(&tokens);
            Ok::<(), Failed>(())
        })
    };
    vec![
        trial("every_kind_of_key_in_a_token_signs", every_kind_signs),
        trial("an_authority_loads_from_a_uri_and_issues", an_authority_issues),
        trial("the_key_of_another_authority_is_refused", another_key_is_refused),
        trial("a_key_is_found_by_its_id_too", found_by_id),
        trial("errors_name_the_cause_and_not_the_pin", errors_name_the_cause),
        trial("a_lost_session_is_opened_again", sessions_are_reopened),
    ]
}

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

fn verify(spki: &[u8], algorithm: SigningAlgorithm, message: &[u8], signature: &[u8]) {
    use aws_lc_rs::signature as verification;
    let (_, key) = x509_parser::prelude::FromDer::from_der(spki)
        .map(|(rest, key): (_, x509_parser::x509::SubjectPublicKeyInfo<'_>)| (rest, key))
        .unwrap();
    let by: &'static dyn verification::VerificationAlgorithm = match algorithm {
        SigningAlgorithm::RsaSha256 => &verification::RSA_PKCS1_2048_8192_SHA256,
        SigningAlgorithm::EcdsaSha256 => &verification::ECDSA_P256_SHA256_ASN1,
        SigningAlgorithm::EcdsaSha384 => &verification::ECDSA_P384_SHA384_ASN1,
        SigningAlgorithm::EcdsaSha512 => &verification::ECDSA_P521_SHA512_ASN1,
        SigningAlgorithm::Ed25519 => unreachable!(),
    };
    verification::UnparsedPublicKey::new(by, &key.subject_public_key.data)
        .verify(message, signature)
        .unwrap_or_else(|_| panic!("{algorithm:?}"));
}

fn issue(authority: &CertificateAuthority) -> String {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let alice = Subject { common_name: "alice".to_owned(), ..Subject::default() };
    let request = build_request(&alice, &AltNames::default(), &key).unwrap();
    let usages = ["client auth".to_owned()];
    let day = Duration::from_hours(24);
    let wanted =
        IssuanceRequest { request: &request, usages: &usages, expiration: None, signing_duration: day };
    let now = portcullis::internal::Clock::system().now();
    let prepared = authority.prepare(&CertificateProfile::client(), &wanted, now).unwrap();
    authority.issue(prepared).unwrap().pem().to_owned()
}

fn an_authority_issues(tokens: &Tokens) {
    for (label, ..) in KEYS {
        let path = |name: &str| tokens.dir.join(format!("{label}-{name}"));
        std::fs::write(path("ca.crt"), tokens.certificate(label)).unwrap();
        let uri = tokens.uri(&format!("token=ca%20token;object={label}"), "pin");
        let authority =
            CertificateAuthority::load(&path("ca.crt"), &AuthorityKeySource::parse(&uri)).unwrap();
        std::fs::write(path("leaf.crt"), issue(&authority)).unwrap();
        let verified = Command::new("openssl")
            .args(["verify", "-CAfile"])
            .args([path("ca.crt"), path("leaf.crt")])
            .output()
            .unwrap();
        assert!(verified.status.success(), "{label}: {}", String::from_utf8_lossy(&verified.stderr));
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
    let key = Pkcs11Key::open(&tokens.uri("token=ca%20token;id=%02;type=private", "pin")).unwrap();
    assert_eq!(key.public_key(), tokens.key("p256").public_key());
}

fn errors_name_the_cause(tokens: &Tokens) {
    let cases = [
        ("token=absent;object=rsa", "pin", "no token matches the URI"),
        ("object=rsa", "pin", "2 tokens match the URI"),
        ("token=ca%20token;object=absent", "pin", "no private key matches the URI"),
        ("token=other;object=rsa", "pin", "no private key matches the URI"),
        ("token=ca%20token;object=rsa", "no-pin", "No such file"),
    ];
    for (path, pin, want) in cases {
        let error = Pkcs11Key::open(&tokens.uri(path, pin)).unwrap_err().to_string();
        assert!(error.contains(want) && !error.contains("secret"), "{path}: {error}");
    }
    let error = Pkcs11Key::open("pkcs11:object=a?module-path=/nowhere.so").unwrap_err().to_string();
    assert!(error.contains("/nowhere.so"), "{error}");
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
    let refused =
        Pkcs11Key::open(&tokens.uri("token=ca%20token;object=p256", "wrong-pin")).unwrap_err().to_string();
    assert!(refused.contains("login") && !refused.contains("secret"), "{refused}");
    // A wrong PIN is tried only once, for all keys, until the content of the file changes.
    for object in ["p256", "rsa"] {
        let uri = tokens.uri(&format!("token=ca%20token;object={object}"), "wrong-pin");
        let refused = Pkcs11Key::open(&uri).unwrap_err().to_string();
        assert!(refused.contains("not retried") && !refused.contains("secret"), "{refused}");
    }
    std::fs::write(tokens.dir.join("wrong-pin"), PIN).unwrap();
    assert!(Pkcs11Key::open(&tokens.uri("token=ca%20token;object=p256", "wrong-pin")).is_ok());
    let signature = key.sign(algorithm, b"after").unwrap();
    verify(key.public_key(), algorithm, b"after", &signature);
    std::mem::forget(library);
}
