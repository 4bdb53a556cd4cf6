//! Tokens behind a daemon that ends and starts again: p11-kit's remoting in front of softhsm2, and tpm2-pkcs11 on swtpm behind
//! tpm2-abrmd, on a D-Bus of its own. Kryoptic, if `KRYOPTIC_MODULE` names its library.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use portcullis::internal::Pkcs11Key;
use portcullis::internal::SigningAlgorithm;
use portcullis::internal::{AuthorityKeySource, CertificateAuthority};

use crate::keys::{self, issues, signs};
use crate::{Case, PIN, Tokens};

pub(crate) const CASES: &[Case] = &[
    ("a_remote_token_whose_server_restarts_signs_again", remote_token),
    ("a_tpm_whose_resource_manager_restarts_signs_again", tpm),
    ("a_token_of_nss_works_behind_p11_kit", nss),
    ("a_token_of_kryoptic_signs", kryoptic),
];

const LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
const PROBE_PAUSE: Duration = Duration::from_millis(20);
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Where the libraries find their daemons and stores, below the directory of the run.
pub(crate) fn environment(dir: &Path) -> Vec<(&'static str, String)> {
    let path = |name: &str| dir.join(name).display().to_string();
    vec![
        ("P11_KIT_SERVER_ADDRESS", format!("unix:path={}", path("p11-kit"))),
        ("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}", path("bus"))),
        ("TPM2_PKCS11_STORE", path("tpm-store")),
        ("TPM2_PKCS11_TCTI", "tabrmd:bus_type=session".to_owned()),
        ("TPM2TOOLS_TCTI", "tabrmd:bus_type=session".to_owned()),
        ("TPM2_PKCS11_LOG_LEVEL", "0".to_owned()),
        ("TSS2_LOG", "all+NONE".to_owned()),
        ("KRYOPTIC_CONF", path("kryoptic.conf")),
    ]
}

/// A daemon that ends with the trial.
struct Daemon(Child);

impl Daemon {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The file, if it is in one of the usual places. Its absence fails the trial where none may be skipped.
fn library(name: &str, package: &str) -> Option<PathBuf> {
    let found = LIBRARIES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    if found.is_none() {
        assert!(!testkit::real::is_required(), "{name} is missing: install {package}");
        eprintln!("pkcs11: SKIPPED: {name} is missing; install {package}");
    }
    found
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < START_TIMEOUT, "{what} never happened");
        std::thread::sleep(PROBE_PAUSE);
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let run = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn remote_token(tokens: &Tokens) {
    let Some(client) = library("pkcs11/p11-kit-client.so", "p11-kit-modules") else { return };
    let socket = tokens.dir.join("p11-kit");
    let start = || {
        std::fs::remove_file(&socket).ok();
        let name = socket.to_str().unwrap();
        let daemon = Daemon::start(
            "p11-kit",
            &["server", "--foreground", "--provider", tokens.module, "--name", name, "pkcs11:"],
        );
        until("the server of p11-kit", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        daemon
    };
    let server = start();
    let open = |label: &str| {
        let uri = tokens.uri_of(&client, &format!("token=ca%20token;object={label}"), "pin");
        Pkcs11Key::open(&uri, None).unwrap()
    };
    let (p256, rsa) = (open("p256"), open("rsa"));
    signs(&p256, SigningAlgorithm::EcdsaSha256, "before");
    drop(server);
    let _server = start();
    signs(&rsa, SigningAlgorithm::RsaSha256, "after");
    signs(&p256, SigningAlgorithm::EcdsaSha256, "after");
}

fn free_ports() -> (u16, u16) {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        // The library takes the next port for the control channel.
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return (port, port + 1);
        }
    }
}

fn tpm(tokens: &Tokens) {
    let Some(module) = library("pkcs11/libtpm2_pkcs11.so", "libtpm2-pkcs11-1 and libtpm2-pkcs11-tools")
    else {
        return;
    };
    let path = |name: &str| tokens.dir.join(name).display().to_string();
    for directory in ["tpm-state", "tpm-store"] {
        std::fs::create_dir(path(directory)).unwrap();
    }
    let (port, control) = free_ports();
    let server = format!("type=tcp,port={port},bindaddr=127.0.0.1");
    let control = format!("type=tcp,port={control},bindaddr=127.0.0.1");
    let state = format!("dir={}", path("tpm-state"));
    let flags = "not-need-init,startup-clear";
    let tpm =
        ["socket", "--tpm2", "--tpmstate", &state, "--server", &server, "--ctrl", &control, "--flags", flags];
    let _tpm = Daemon::start("swtpm", &tpm);
    let bus = format!("--address=unix:path={}", path("bus"));
    let _bus = Daemon::start("dbus-daemon", &["--session", &bus, "--nofork", "--nopidfile"]);
    until("the bus", || std::os::unix::net::UnixStream::connect(path("bus")).is_ok());
    let manager = || {
        let tcti = format!("--tcti=swtpm:host=127.0.0.1,port={port}");
        // It gives up if the TPM does not listen yet.
        let mut daemon = Daemon::start("tpm2-abrmd", &["--session", "--allow-root", &tcti]);
        until("the resource manager", || {
            if daemon.0.try_wait().unwrap().is_some() {
                daemon = Daemon::start("tpm2-abrmd", &["--session", "--allow-root", &tcti]);
            }
            succeeds("tpm2_getcap", &["properties-fixed"])
        });
        daemon
    };
    let running = manager();
    let store = path("tpm-store");
    let ptool = |arguments: &[&str]| run("tpm2_ptool", &[arguments, &["--path", &store]].concat());
    ptool(&["init"]);
    ptool(&["addtoken", "--pid", "1", "--label", "tpm", "--sopin", "so-pin", "--userpin", PIN]);
    let key = ["addkey", "--label", "tpm", "--userpin", PIN, "--algorithm", "ecc256", "--key-label"];
    ptool(&[&key[..], &["one"]].concat());
    ptool(&[&key[..], &["two"]].concat());
    ptool(&[&key[..], &["always", "--attr-always-authenticate"]].concat());
    let open = |label: &str| {
        Pkcs11Key::open(&tokens.uri_of(&module, &format!("token=tpm;object={label}"), "pin"), None)
    };
    let (one, two) = (open("one").unwrap(), open("two").unwrap());
    // Its C_SignFinal ends the hash where the wrapper of PKCS#11 asks for the length: the key is refused when it is opened.
    let error = open("always").unwrap_err().to_string();
    assert!(
        error.contains("CKA_ALWAYS_AUTHENTICATE") && error.contains("a test signature has failed"),
        "{error}"
    );
    let sign = |message: &str| {
        signs(&one, SigningAlgorithm::EcdsaSha256, message);
        signs(&two, SigningAlgorithm::EcdsaSha256, message);
    };
    sign("before");
    drop(running);
    let _running = manager();
    sign("after");
}

fn nss(tokens: &Tokens) {
    let Some(module) = library("libsoftokn3.so", "libnss3") else { return };
    let uri = tokens.uri_of(&module, "object=key", "pin");
    let error = Pkcs11Key::open(&uri, None).unwrap_err().to_string();
    assert!(error.contains("x-init-reserved"), "{error}");
}

/// Kryoptic takes minutes to build: see the README of the tests.
fn kryoptic(tokens: &Tokens) {
    let Some(module) = std::env::var_os("KRYOPTIC_MODULE").map(PathBuf::from) else {
        eprintln!("pkcs11: Kryoptic was not tested: KRYOPTIC_MODULE does not name its library");
        return;
    };
    let store = tokens.dir.join("kryoptic.sql");
    let conf = format!("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"{}\"\n", store.display());
    std::fs::write(tokens.dir.join("kryoptic.conf"), conf).unwrap();
    let name = module.display().to_string();
    let tool = |arguments: &[&str]| run("pkcs11-tool", &[&["--module", &name], arguments].concat());
    tool(&["--slot", "1", "--init-token", "--label", "kryoptic", "--so-pin", "12345678"]);
    tool(&[
        "--slot",
        "1",
        "--init-pin",
        "--login",
        "--login-type",
        "so",
        "--so-pin",
        "12345678",
        "--new-pin",
        PIN,
    ]);
    // With a public key, without one, and with a login for each signature.
    let pair = rcgen::KeyPair::generate().unwrap();
    let file = tokens.dir.join("kryoptic.der");
    std::fs::write(&file, pair.serialize_der()).unwrap();
    let login = ["--slot", "1", "--login", "--pin", PIN];
    let write = ["--write-object", file.to_str().unwrap(), "--type", "privkey", "--usage-sign"];
    tool(&[&login[..], &write, &["--label", "alone", "--id", "01"]].concat());
    tool(&[&login[..], &write, &["--label", "always", "--id", "02", "--always-auth"]].concat());
    let generate =
        ["--keypairgen", "--key-type", "EC:prime256v1", "--usage-sign", "--label", "pair", "--id", "03"];
    tool(&[&login[..], &generate].concat());
    let uri = |label: &str| tokens.uri_of(&module, &format!("token=kryoptic;object={label}"), "pin");
    signs(&Pkcs11Key::open(&uri("pair"), None).unwrap(), SigningAlgorithm::EcdsaSha256, "a pair");
    let certificate = tokens.dir.join("kryoptic.crt");
    std::fs::write(&certificate, keys::certificate(&pair, "kryoptic")).unwrap();
    for label in ["alone", "always"] {
        let key = AuthorityKeySource::parse(&uri(label));
        issues(&CertificateAuthority::load(&certificate, &key).unwrap(), &certificate);
    }
}
