//! CAs whose keys are in a PKCS#11 token: `softhsm2`, with a separate directory for each run, alone, behind a module with
//! faults and behind p11-kit's remoting; and a TPM behind its resource manager.
//!
//! The libraries read the places of their tokens from environment variables, so this program restarts itself with them set.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test program"
)]

mod daemons;
mod faults;
mod keys;
mod serving;
mod softhsm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use portcullis::internal::Pkcs11Key;
use portcullis::internal::{KeyKind, PemKey};
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
    if let Some(uri) = std::env::var_os(softhsm::SIGNING_PROCESS) {
        return softhsm::sign_often(&uri.to_string_lossy());
    }
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
    let status = Command::new(own)
        .args(std::env::args_os().skip(1))
        .env(CONF, &conf)
        .envs(daemons::environment(dir.path()))
        .status();
    if status.expect("this program runs").success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Clone)]
struct Tokens {
    dir: PathBuf,
    module: &'static str,
}

impl Tokens {
    fn uri(&self, path: &str, pin: &str) -> String {
        self.uri_of(Path::new(self.module), path, pin)
    }

    fn uri_of(&self, module: &Path, path: &str, pin: &str) -> String {
        let pin = self.dir.join(pin);
        format!("pkcs11:{path}?module-path={}&pin-source=file:{}", module.display(), pin.display())
    }

    fn key(&self, label: &str) -> Pkcs11Key {
        let uri = self.uri(&format!("token=ca%20token;object={label}"), "pin");
        Pkcs11Key::open(&uri, None).expect("the key opens")
    }

    /// A CA certificate for the key that was imported as `label`.
    fn certificate(&self, label: &str) -> String {
        let pem = std::fs::read_to_string(self.dir.join(format!("{label}.key"))).expect("the key");
        keys::certificate(&rcgen::KeyPair::from_pem(&pem).expect("a key"), label)
    }

    /// The same in a file.
    fn certificate_file(&self, label: &str) -> PathBuf {
        let file = self.dir.join(format!("{label}-ca.crt"));
        std::fs::write(&file, self.certificate(label)).expect("the file");
        file
    }
}

fn trials(tokens: &Tokens) -> Vec<Trial> {
    let trial = |(name, test): (&str, fn(&Tokens))| {
        let tokens = tokens.clone();
        Trial::test(name, move || {
            test(&tokens);
            Ok::<(), Failed>(())
        })
    };
    let cases = [softhsm::CASES, faults::CASES, daemons::CASES, serving::CASES].concat();
    cases.into_iter().map(trial).collect()
}

/// The name of a trial and what it does.
type Case = (&'static str, fn(&Tokens));
