//! A token behind a module with faults: `faulty_module.c`, compiled for each trial, in front of a copy of softhsm2.

use std::path::{Path, PathBuf};
use std::process::Command;

use portcullis::internal::Pkcs11Key;
use portcullis::internal::SigningAlgorithm;
use portcullis::internal::{AbsentToken, AuthorityKeySource, CertificateAuthority};

use crate::keys::{issues, signs};
use crate::{Case, Tokens};

pub(crate) const CASES: &[Case] = &[
    ("a_token_that_went_away_comes_back_for_all_its_keys", comes_back),
    ("keys_of_a_token_share_one_login", one_login),
    ("a_token_with_an_odd_clock_is_used_by_its_slot", odd_clock),
    ("an_absent_token_is_awaited", awaited),
    ("a_token_that_comes_back_with_another_key_is_refused", another_key_comes_back),
    ("a_module_that_needs_parameters_is_named", parameters),
];

/// A module with faults.
pub(crate) struct FaultyModule {
    pub(crate) path: PathBuf,
}

impl FaultyModule {
    /// Compiles the module; a copy for each name, because a process initializes a library once.
    pub(crate) fn new(tokens: &Tokens, name: &str) -> Self {
        let path = tokens.dir.join(format!("{name}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pkcs11/faulty_module.c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let compiled = Command::new(compiler)
            .args(["-shared", "-fPIC", "-o"])
            .args([&path, &source])
            .arg("-ldl")
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::fs::copy(tokens.module, path.with_extension("so.under")).unwrap();
        Self { path }
    }

    pub(crate) fn set_fault(&self, fault: &str) {
        std::fs::write(self.path.with_extension("so.fault"), fault).unwrap();
    }

    /// The logins so far: `1` of the user, `2` for one signature.
    fn logins(&self) -> String {
        std::fs::read_to_string(self.path.with_extension("so.logins")).unwrap_or_default()
    }

    pub(crate) fn uri(&self, tokens: &Tokens, label: &str) -> String {
        tokens.uri_of(&self.path, &format!("token=ca%20token;object={label}"), "pin")
    }
}

const P256: SigningAlgorithm = SigningAlgorithm::EcdsaSha256;
const RSA: SigningAlgorithm = SigningAlgorithm::RsaSha256;

fn comes_back(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "restarted");
    module.set_fault("generation 1");
    let open = |label: &str| Pkcs11Key::open(&module.uri(tokens, label), None).unwrap();
    let (p256, rsa, p384) = (open("p256"), open("rsa"), open("p384"));
    signs(&p256, P256, "before");
    signs(&rsa, RSA, "before");
    for generation in 2..5 {
        module.set_fault(&format!("generation {generation}"));
        let before = module.logins().len();
        // The sessions of the others are of the generation before, with the handles of new ones.
        signs(&rsa, RSA, "after");
        signs(&p256, P256, "after");
        signs(&p384, SigningAlgorithm::EcdsaSha384, "after");
        signs(&rsa, RSA, "again");
        assert_eq!(module.logins().len(), before + 1, "{}", module.logins());
    }
    // A key whose session has ended with the module closes no session of the others.
    module.set_fault("generation 9");
    signs(&rsa, RSA, "after");
    let before = module.logins();
    drop(p256);
    drop(p384);
    signs(&rsa, RSA, "after the others have ended");
    assert_eq!(module.logins(), before);
}

fn one_login(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "logins");
    let open = |label: &str| Pkcs11Key::open(&module.uri(tokens, label), None).unwrap();
    let keys = [("p256", P256), ("rsa", RSA), ("p384", SigningAlgorithm::EcdsaSha384)]
        .map(|(label, algorithm)| (open(label), algorithm));
    for (key, algorithm) in &keys {
        signs(key, *algorithm, "message");
    }
    assert_eq!(module.logins(), "1");
}

fn odd_clock(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "clock");
    module.set_fault("clock other");
    let by_label = |path: &str| Pkcs11Key::open(&tokens.uri_of(&module.path, path, "pin"), None);
    signs(&by_label("token=ca%20token;object=p256").unwrap(), P256, "beside a token with an odd clock");
    module.set_fault("clock ca token");
    let error = by_label("token=ca%20token;object=p256").unwrap_err().to_string();
    assert!(error.contains("its description cannot be read"), "{error}");
    let described = error.split(" (its description").next().unwrap();
    let slot = described.rsplit("slot-id=").next().unwrap();
    signs(&by_label(&format!("slot-id={slot};object=p256")).unwrap(), P256, "by its slot");
    // The PIN goes to no token that may be another one.
    let logins = module.logins();
    let error = by_label(&format!("slot-id={slot};token=other;object=p256")).unwrap_err().to_string();
    assert!(error.contains("no token matches") && module.logins() == logins, "{error}");
}

fn awaited(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "absent");
    module.set_fault("absent");
    let (certificate, uri) = (tokens.certificate_file("p256"), module.uri(tokens, "p256"));
    let key = AuthorityKeySource::parse(&uri);
    let refused = CertificateAuthority::load(&certificate, &key).unwrap_err().to_string();
    assert!(refused.contains("no token matches token=ca%20token; the module shows no token"), "{refused}");
    let pem = std::fs::read(&certificate).unwrap();
    let authority = CertificateAuthority::read(&certificate, &pem, &key, &[], AbsentToken::Awaited).unwrap();
    let problem = || authority.token_problem().unwrap();
    assert!(problem().unwrap_err().contains("no token matches"));
    authority.look_again();
    assert!(problem().is_err());
    module.set_fault("");
    authority.look_again();
    assert_eq!(problem(), Ok(()));
    issues(&authority, &certificate);
    module.set_fault("generation 1");
    issues(&authority, &certificate);
    // A wrong PIN is no absence.
    std::fs::write(tokens.dir.join("bad-pin"), "0000").unwrap();
    let other = FaultyModule::new(tokens, "absent-pin");
    let uri = tokens.uri_of(&other.path, "token=ca%20token;object=p256", "bad-pin");
    let key = AuthorityKeySource::parse(&uri);
    let refused = CertificateAuthority::read(&certificate, &pem, &key, &[], AbsentToken::Awaited);
    assert!(refused.unwrap_err().to_string().contains("login"));
    assert_eq!(other.logins(), "1", "a rejected PIN is sent once");
}

fn another_key_comes_back(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "other-key");
    module.set_fault("absent");
    let (certificate, uri) = (tokens.certificate_file("p256"), module.uri(tokens, "p384"));
    let (pem, key) = (std::fs::read(&certificate).unwrap(), AuthorityKeySource::parse(&uri));
    let authority = CertificateAuthority::read(&certificate, &pem, &key, &[], AbsentToken::Awaited).unwrap();
    module.set_fault("");
    authority.look_again();
    let problem = authority.token_problem().unwrap().unwrap_err();
    assert!(problem.contains("object=p384 does not belong to the CA certificate"), "{problem}");
}

fn parameters(tokens: &Tokens) {
    let module = FaultyModule::new(tokens, "arguments");
    module.set_fault("arguments");
    let error = Pkcs11Key::open(&module.uri(tokens, "p256"), None).unwrap_err().to_string();
    assert!(error.contains("needs parameters of its own") && error.contains("p11-kit-proxy"), "{error}");
}
