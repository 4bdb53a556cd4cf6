//! The gateway's credential for the backend: every form of it in a kubeconfig, errors, and renewal at run time.

mod plugins;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use portcullis::internal::BackendSettings;
use portcullis::internal::BearerToken;
use portcullis::internal::CertificateKeyPair;
use portcullis::internal::Clock;
use portcullis::internal::CredentialUser;
use portcullis::internal::InputReader;
use portcullis::internal::ServeFlags;
use portcullis::internal::resolve;
use testkit::pki::Issued;
use testkit::{Pki, flags};

/// 2026-01-01T00:00:00Z.
const NOW: u64 = 1_767_225_600;
const REQUEST_HEADER: &str = "requestHeader";
const IMPERSONATE: &str = "impersonate";

/// A directory with a kubeconfig that the gateway reads repeatedly.
struct Case {
    pki: Pki,
    front: Issued,
    time: Arc<AtomicU64>,
    inputs: InputReader,
    flags: ServeFlags,
}

/// The result of a load.
struct Read {
    backend: BackendSettings,
    warnings: Vec<String>,
}

impl Read {
    fn token(&self) -> Option<&str> {
        self.backend.bearer_token.as_ref().map(BearerToken::expose)
    }
}

impl Case {
    /// Writes `user`, a JSON object, into the kubeconfig.
    fn new(identity: &str, user: &str) -> Self {
        let pki = Pki::new();
        let mut given = flags(&pki, "127.0.0.1:6443".parse().unwrap());
        given.push(format!("--identity={identity}"));
        let front = pki.front.leaf().cn("gateway").issue();
        pki.write("plugin.sh", "echo run >>\"$DIR/runs\"; cat \"$DIR/answer\"\n");
        let time = Arc::new(AtomicU64::new(NOW));
        let shared = Arc::clone(&time);
        let clock = Clock::from_fn(move || Duration::from_secs(shared.load(Ordering::Relaxed)));
        let flags = crate::gateway::parse(given);
        let case = Self { pki, front, time, inputs: InputReader::new(clock), flags };
        case.user(user);
        case
    }

    fn user(&self, user: &str) {
        self.kubeconfig(r#""server": "https://127.0.0.1:6443""#, user);
    }

    fn kubeconfig(&self, cluster: &str, user: &str) {
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{{"name": "b", "cluster": {{{cluster}, "certificate-authority": "servers-ca.crt"}}}}],
            "users": [{{"name": "u", "user": {user}}}],
            "contexts": [{{"name": "c", "context": {{"cluster": "b", "user": "u"}}}}]}}"#
        );
        self.pki.write("backend.kubeconfig", text);
    }

    fn path(&self) -> &Path {
        self.pki.directory.path()
    }

    /// Reads the configuration, as the gateway does at startup and after a change.
    fn read(&mut self) -> Result<Read, String> {
        let resolved = resolve(&self.flags, &mut self.inputs).map_err(|errors| errors.to_string())?;
        let backend = resolved.settings.clusters[0].backend.clone();
        Ok(Read { backend, warnings: resolved.warnings })
    }

    fn token(&mut self) -> String {
        self.read().unwrap_or_else(|error| panic!("{error}")).token().unwrap().to_owned()
    }

    fn error(&mut self) -> String {
        self.read().err().expect("the credential should be refused")
    }

    /// Sets the output of the plugin.
    fn answer(&self, status: &str) {
        self.pki.write("answer", credential("v1", status));
    }

    /// The API servers of a cluster reject its credential. Returns whether plugins issue it.
    fn refused(&mut self, cluster: &str) -> bool {
        self.inputs.expire_credentials(&[CredentialUser::Cluster(cluster.to_owned())].into())
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.path().join("runs")).map_or(0, |runs| runs.lines().count())
    }

    fn forward(&self, seconds: u64) {
        self.time.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Seconds until the plugin is run again.
    fn due_in(&self) -> Option<u64> {
        let now = Duration::from_secs(self.time.load(Ordering::Relaxed));
        let whole = |left: Duration| left.as_secs() + u64::from(left.subsec_nanos() > 0);
        self.inputs.due().map(|due| whole(due.saturating_sub(now)))
    }

    /// A kubeconfig user with an exec plugin.
    fn plugin(&self, more: &str) -> String {
        exec(
            self.path(),
            r#""apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never""#,
            more,
        )
    }

    /// A case with a plugin that prints `status`, not yet read.
    fn with_plugin(identity: &str, status: &str) -> Self {
        let case = Self::new(identity, "{}");
        case.user(&case.plugin(""));
        case.answer(status);
        case
    }
}

fn exec(directory: &Path, first: &str, more: &str) -> String {
    let script = directory.join("plugin.sh");
    let (script, directory) = (script.display(), directory.display());
    format!(
        r#"{{"exec": {{{first}, "command": "/bin/sh", "args": ["{script}"],
        "env": [{{"name": "DIR", "value": "{directory}"}}, {{"name": "EXTRA", "value": "given"}}]{more}}}}}"#
    )
}

fn credential(version: &str, status: &str) -> String {
    format!(
        r#"{{"apiVersion": "client.authentication.k8s.io/{version}", "kind": "ExecCredential", "status": {status}}}"#
    )
}

/// A token that expires in an hour.
fn token(text: &str) -> String {
    format!(r#"{{"token": "{text}", "expirationTimestamp": "2026-01-01T01:00:00Z"}}"#)
}

fn base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn every_form_of_credential_is_accepted() {
    const FILES: &str = r#""client-certificate": "front.crt", "client-key": "front.key""#;
    let exec_v1 = exec(
        Path::new("@DIR"),
        r#""apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "IfAvailable""#,
        "",
    );
    // The default of its interactiveMode is IfAvailable.
    let exec_v1beta1 = exec(Path::new("@DIR"), r#""apiVersion": "client.authentication.k8s.io/v1beta1""#, "");
    // The name, the identity mode, the user's fields; the expected certificate and token.
    let cases: &[(&str, &str, &str, bool, Option<&str>)] = &[
        ("files, relative to the kubeconfig", REQUEST_HEADER, &format!("{{{FILES}}}"), true, None),
        (
            "inline, before files",
            REQUEST_HEADER,
            r#"{"client-certificate-data": "@CERT", "client-key-data": "@KEY",
                "client-certificate": "missing", "client-key": "missing"}"#,
            true,
            None,
        ),
        ("a certificate to impersonate with", IMPERSONATE, &format!("{{{FILES}}}"), true, None),
        ("token", IMPERSONATE, r#"{"token": "t0"}"#, false, Some("t0")),
        ("tokenFile, trimmed", IMPERSONATE, r#"{"tokenFile": "token"}"#, false, Some("t1")),
        (
            "tokenFile before token",
            IMPERSONATE,
            r#"{"token": "t0", "tokenFile": "token"}"#,
            false,
            Some("t1"),
        ),
        ("both", IMPERSONATE, &format!(r#"{{{FILES}, "token": "t0"}}"#), true, Some("t0")),
        (
            "a token beside the front-proxy certificate is not sent",
            REQUEST_HEADER,
            &format!(r#"{{{FILES}, "token": "t0"}}"#),
            true,
            None,
        ),
        (
            "empty fields are unset",
            IMPERSONATE,
            r#"{"token": "t0", "tokenFile": "", "client-certificate": "", "username": ""}"#,
            false,
            Some("t0"),
        ),
        ("exec", IMPERSONATE, &exec_v1, false, Some("v1")),
        ("exec, v1beta1", IMPERSONATE, &exec_v1beta1, false, Some("v1beta1")),
        (
            "exec is not asked where a token is given",
            IMPERSONATE,
            &exec_v1.replacen('{', r#"{"token": "t0", "#, 1),
            false,
            Some("t0"),
        ),
        (
            "exec, its command relative to the kubeconfig",
            IMPERSONATE,
            &exec_v1.replace("/bin/sh", "./plugin"),
            false,
            Some("v1"),
        ),
    ];
    for (name, identity, user, certificate, token) in cases {
        let mut case = Case::new(identity, "{}");
        case.pki.write_pair("front", &case.front);
        case.pki.write("token", " t1\n");
        let user = user.replace("@DIR", &case.path().display().to_string());
        let user = user.replace("@CERT", &base64(&case.front.cert_pem()));
        case.user(&user.replace("@KEY", &base64(&case.front.key_pem())));
        let version = if user.contains("v1beta1") { "v1beta1" } else { "v1" };
        case.pki.write("answer", credential(version, &format!(r#"{{"token": "{version}"}}"#)));
        // A symbolic link, since executing a newly written file can fail with ETXTBSY.
        std::os::unix::fs::symlink("/bin/sh", case.path().join("plugin")).unwrap();
        let read = case.read().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read.token(), *token, "{name}");
        let shown = read.backend.client_certificate.as_ref();
        assert_eq!(
            shown.map(CertificateKeyPair::chain),
            certificate.then_some(case.front.chain.as_slice()),
            "{name}"
        );
        assert_eq!(
            case.runs(),
            usize::from(token.is_some_and(|token| token.starts_with('v'))),
            "{name}: runs"
        );
        assert!(read.warnings.is_empty(), "{name}: {:?}", read.warnings);
    }
}

// The certificate may be renewed at any time; other configuration changes must not fail until then.
#[test]
fn an_expired_certificate_is_a_warning() {
    let user = r#"{"client-certificate": "expired.crt", "client-key": "expired.key"}"#;
    let mut case = Case::new(REQUEST_HEADER, user);
    let expired = case.pki.front.leaf().cn("gateway").expired(NOW.cast_signed()).issue();
    case.pki.write_pair("expired", &expired);
    let warnings = case.read().unwrap_or_else(|error| panic!("{error}")).warnings;
    let warned = "backend.kubeconfig: client-certificate: the certificate \"gateway\" expired at 2025-12-31T23:00:00Z: renew it";
    assert!(warnings.iter().any(|warning| warning.ends_with(warned)), "{warnings:?}");
}

/// Each case lists texts that the error must contain. `SECRET` stands for a secret, which it must not contain.
#[test]
fn invalid_credentials_are_reported_with_file_and_fix_and_never_printed() {
    let cases: &[(&str, &str, &str, &[&str])] = &[
        (
            "auth-provider",
            IMPERSONATE,
            r#"{"auth-provider": {"name": "oidc", "config": {"id-token": "SECRET"}}}"#,
            &[r#"auth-provider "oidc" was removed from Kubernetes in 1.26"#, "fix: give exec"],
        ),
        (
            "basic authentication",
            IMPERSONATE,
            r#"{"username": "u", "password": "SECRET"}"#,
            &["username and password were removed from Kubernetes in 1.19", "fix: give a client certificate"],
        ),
        (
            "acting as someone else",
            IMPERSONATE,
            r#"{"token": "SECRET", "as": "alice", "as-groups": ["g"]}"#,
            &[
                "field as would make the gateway impersonate that user",
                "field as-groups would",
                "fix: remove it",
            ],
        ),
        ("nothing", IMPERSONATE, "{}", &["the user has no credential"]),
        (
            "a token alone with front-proxy headers",
            REQUEST_HEADER,
            r#"{"token": "SECRET"}"#,
            &["no client certificate", "or use --identity=impersonate"],
        ),
        ("a line break", IMPERSONATE, r#"{"token": "SECRET\n"}"#, &["token has a byte", "fix: give a token"]),
        ("a control byte", IMPERSONATE, r#"{"token": "SEC\u0001RET"}"#, &["token has a byte"]),
        ("two lines", IMPERSONATE, r#"{"tokenFile": "two-lines"}"#, &["two-lines has a byte"]),
        ("not UTF-8", IMPERSONATE, r#"{"tokenFile": "binary"}"#, &["binary has a byte"]),
        ("an empty file", IMPERSONATE, r#"{"tokenFile": "empty"}"#, &["/empty is empty"]),
        ("no file", IMPERSONATE, r#"{"tokenFile": "missing"}"#, &["tokenFile", "/missing: No such file"]),
        (
            "the key of another certificate",
            REQUEST_HEADER,
            r#"{"client-certificate": "front.crt", "client-key": "expired.key"}"#,
            &["/expired.key is not the key of client-certificate ", "fix: give the key that belongs"],
        ),
        (
            "no key",
            REQUEST_HEADER,
            r#"{"client-certificate": "front.crt"}"#,
            &["has a client-certificate but no client-key"],
        ),
        (
            "a key on one line",
            REQUEST_HEADER,
            r#"{"client-certificate": "front.crt", "client-key": "one-line.key"}"#,
            &["/one-line.key: tls: failed to find any PEM data in key input", "fix: give a PEM private key"],
        ),
        (
            "inline data that is not base64",
            REQUEST_HEADER,
            r#"{"client-certificate": "front.crt", "client-key-data": "SECRET!"}"#,
            &["client-key-data is not base64"],
        ),
        (
            "a certificate that is none",
            REQUEST_HEADER,
            r#"{"client-certificate": "empty", "client-key": "front.key"}"#,
            &["/empty: tls: failed to find any PEM data in certificate input"],
        ),
        (
            "YAML with a mistake",
            IMPERSONATE,
            r#"{"token": {"a": "SECRET"}}"#,
            &["line 3", "not a kubeconfig"],
        ),
        ("not YAML", IMPERSONATE, r#"{"token": "SECRET" "a"}"#, &["line 3", "not a kubeconfig"]),
    ];
    for (name, identity, user, expected) in cases {
        let mut case = Case::new(identity, &user.replace("SECRET", "s3cr3t"));
        case.pki.write_pair("front", &case.front);
        let expired = case.pki.front.leaf().cn("gateway").expired(NOW.cast_signed()).issue();
        case.pki.write_pair("expired", &expired);
        case.pki.write("two-lines", "s3cr3t\ns3cr3t\n");
        case.pki.write("binary", b"s3cr3t\xff");
        case.pki.write("empty", "\n");
        let one_line = case.front.key_pem().replace('\n', "");
        case.pki.write("one-line.key", one_line.replace("MI", "s3cr3tMI"));
        let error = case.error();
        for expected in *expected {
            assert!(error.contains(expected), "{name}: {expected:?} is not in\n{error}");
        }
        for secret in ["s3cr3t", "115, 51, 99, 114"] {
            assert!(!error.contains(secret), "{name}: {error}");
        }
        let file = case.path().join("backend.kubeconfig");
        assert!(error.contains(&format!("--backend-kubeconfig: {}: ", file.display())), "{name}: {error}");
    }
}

#[test]
fn credentials_that_the_configuration_no_longer_names_are_dropped() {
    let mut case = Case::with_plugin(IMPERSONATE, &token("t1"));
    case.token();
    let plugin = case.plugin("");
    case.user(r#"{"tokenFile": "token"}"#);
    let file = case.pki.write("token", "t2");
    assert!(case.inputs.changed());
    assert_eq!(case.token(), "t2");
    assert_eq!(case.due_in(), None, "the plugin is not in use");
    case.user(r#"{"token": "t3"}"#);
    assert_eq!(case.token(), "t3");
    std::fs::remove_file(file).unwrap();
    assert!(!case.inputs.changed(), "the token file is not in use");
    case.user(&plugin);
    assert_eq!(case.token(), "t1");
    assert_eq!(case.runs(), 2);
}

#[test]
fn renewed_files_are_detected_by_their_content() {
    let mut case =
        Case::new(REQUEST_HEADER, r#"{"client-certificate": "front.crt", "client-key": "front.key"}"#);
    case.pki.write_pair("front", &case.front);
    let first = case.read().unwrap_or_else(|error| panic!("{error}")).backend;
    case.pki.write_pair("front", &case.front);
    assert!(!case.inputs.changed(), "the same content");

    // Between the two writes of a renewal, certificate and key do not match, and the old pair stays in use.
    let renewed = case.pki.front.leaf().cn("gateway").key(testkit::pki::KeyKind::P384).issue();
    case.pki.write("front.crt", renewed.cert_pem());
    assert!(case.inputs.changed());
    assert!(case.error().contains("is not the key of"));
    assert!(!case.inputs.changed());
    case.pki.write("front.key", renewed.key_pem());
    assert!(case.inputs.changed());
    let second = case.read().unwrap_or_else(|error| panic!("{error}")).backend;
    assert!(first != second);
    assert_eq!(second.client_certificate.unwrap().chain(), renewed.chain);
}

/// The kubelet mounts the files as links through `..data`, which it replaces by a rename.
#[test]
fn a_replaced_mounted_secret_is_detected() {
    use std::os::unix::fs::symlink;
    let mut case = Case::new(IMPERSONATE, r#"{"tokenFile": "secret/token"}"#);
    let secret: PathBuf = case.path().join("secret");
    let publish = |stamp: &str, token: &str| {
        std::fs::create_dir_all(secret.join(stamp)).unwrap();
        std::fs::write(secret.join(stamp).join("token"), token).unwrap();
        symlink(stamp, secret.join("..data_tmp")).unwrap();
        std::fs::rename(secret.join("..data_tmp"), secret.join("..data")).unwrap();
    };
    publish("..2026_01_01", "t1");
    symlink("..data/token", secret.join("token")).unwrap();
    assert_eq!(case.token(), "t1");
    publish("..2026_01_02", "t1");
    assert!(!case.inputs.changed());
    publish("..2026_01_03", "t2");
    assert!(case.inputs.changed());
    assert_eq!(case.token(), "t2");

    publish("..2026_01_04", "");
    assert!(case.inputs.changed());
    assert!(case.error().contains("secret/token is empty"));
    std::fs::remove_file(secret.join("..data")).unwrap();
    assert!(case.inputs.changed());
    assert!(case.error().contains("No such file"));
}
