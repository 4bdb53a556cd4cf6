//! Every kind of file that a configuration can name, each replaced by malformed, mismatched and unreadable content. The
//! snapshots hold the gateway's error or warning at startup and on reload.

mod inputs;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine as _;
use portcullis::internal::ConfigErrors;
use portcullis::internal::ConfigSource;
use portcullis::internal::ResolvedConfig;
use portcullis::internal::Server;
use rustix::fs::OFlags;
use testkit::pki::{Ca, KeyKind};
use testkit::{Pki, flags};

use crate::gateway::parse;

use inputs::{Content, Form, INPUTS, Material};

/// A kind of configured file.
struct Kind {
    name: &'static str,
    /// The flag, configuration key or kubeconfig field that an error must name. A certificate and its key have two,
    /// since an error about a mismatch may name either.
    keys: [&'static str; 2],
    configuration: Configuration,
    form: Form,
    /// The file that an error must name.
    file: &'static str,
    /// The files of the certificate and its key, if this file is one of them.
    pair: Option<[&'static str; 2]>,
    /// Embeds the content into `file`, for content without a file of its own.
    within: Option<fn(&Path, &str)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Configuration {
    /// Flags alone, as many as can be combined.
    Flags,
    /// A configuration file, for settings that cannot be combined with those flags.
    File,
    /// A kubeconfig with embedded credentials.
    Inline,
    /// A kubeconfig with an exec credential plugin.
    Exec,
}

use Configuration::{Exec, File, Flags as ByFlags, Inline};
use Form::{Bundle, Chain, Key, PublicKeys, Text, Token};

const fn file(key: &'static str, configuration: Configuration, form: Form, file: &'static str) -> Kind {
    Kind { name: key, keys: [key; 2], configuration, form, file, pair: None, within: None }
}

/// A certificate and its key: their files, and the configuration keys that errors name.
fn pair(
    names: [&'static str; 2],
    keys: [&'static str; 2],
    configuration: Configuration,
    files: [&'static str; 2],
) -> [Kind; 2] {
    let kind = |index: usize, form| Kind {
        name: names[index],
        keys,
        configuration,
        form,
        file: files[index],
        pair: Some(files),
        within: None,
    };
    [kind(0, Chain), kind(1, Key)]
}

fn kinds() -> Vec<Kind> {
    let same = |names| (names, names);
    let pairs = [
        (same(["--tls-cert-file", "--tls-private-key-file"]), ByFlags, ["gateway.crt", "gateway.key"]),
        (
            (["--tls-sni-cert-key, certificate", "--tls-sni-cert-key, key"], ["--tls-sni-cert-key"; 2]),
            ByFlags,
            ["sni.crt", "sni.key"],
        ),
        (
            (["webhook's client-certificate", "webhook's client-key"], ["client-certificate", "client-key"]),
            ByFlags,
            ["webhook.crt", "webhook.key"],
        ),
        (
            (["backend's client-certificate", "backend's client-key"], ["client-certificate", "client-key"]),
            ByFlags,
            ["front.crt", "front.key"],
        ),
        (
            same(["--cluster-signing-cert-file", "--cluster-signing-key-file"]),
            ByFlags,
            ["signing.crt", "signing.key"],
        ),
        (
            (
                ["signer profile's certFile", "signer profile's keyFile"],
                ["signers[0].certFile", "signers[0].keyFile"],
            ),
            ByFlags,
            ["profile.crt", "profile.key"],
        ),
        (
            (
                ["clusterSigningKubeletServingCertFile", "clusterSigningKubeletServingKeyFile"],
                [
                    "controllerManager.clusterSigningKubeletServingCertFile",
                    "controllerManager.clusterSigningKubeletServingKeyFile",
                ],
            ),
            File,
            ["kubelet.crt", "kubelet.key"],
        ),
    ];
    let within = |name, keys, configuration, form, file, within| Kind {
        name,
        keys,
        configuration,
        form,
        file,
        pair: None,
        within: Some(within),
    };
    let mut kinds: Vec<Kind> =
        pairs.into_iter().flat_map(|((names, keys), of, files)| pair(names, keys, of, files)).collect();
    kinds.extend([
        file("--client-ca-file", ByFlags, Bundle, "clients-ca.crt"),
        file("--requestheader-client-ca-file", ByFlags, Bundle, "client-front-ca.crt"),
        file("--oidc-ca-file", ByFlags, Bundle, "idp-ca.crt"),
        Kind {
            name: "backend's certificate-authority",
            ..file("certificate-authority", ByFlags, Bundle, "servers-ca.crt")
        },
        Kind {
            name: "webhook's certificate-authority",
            ..file("certificate-authority", ByFlags, Bundle, "webhook-ca.crt")
        },
        file("--service-account-key-file", ByFlags, PublicKeys, "sa.pub"),
        file("--token-auth-file", ByFlags, Text, "tokens.csv"),
        file("--backend-kubeconfig", ByFlags, Text, "backend.kubeconfig"),
        file("--authentication-token-webhook-config-file", ByFlags, Text, "webhook.kubeconfig"),
        file("--authorization-webhook-config-file", ByFlags, Text, "policy.kubeconfig"),
        Kind {
            name: "authorization webhook's certificate-authority",
            ..file("certificate-authority", ByFlags, Bundle, "policy-ca.crt")
        },
        file("--signer-profiles", ByFlags, Text, "signers.yaml"),
        file("--config", File, Text, "gateway.yaml"),
        Kind {
            name: "authenticationConfig",
            ..file("authentication.authenticationConfig", File, Text, "issuers.yaml")
        },
        Kind {
            name: "authorizationConfig",
            ..file("authorization.authorizationConfig", File, Text, "authorizers.yaml")
        },
        file("tokenFile", File, Token, "token"),
        within(
            "certificateAuthority of an issuer",
            ["jwt[0].issuer.certificateAuthority"; 2],
            File,
            Bundle,
            "issuers.yaml",
            |directory, content| write_issuers(directory, Some(content)),
        ),
        within(
            "certificate-authority-data",
            ["certificate-authority-data"; 2],
            Inline,
            Bundle,
            "backend.kubeconfig",
            |directory, content| write_inline(directory, [Some(content), None, None]),
        ),
        within(
            "client-certificate-data",
            ["client-certificate"; 2],
            Inline,
            Chain,
            "backend.kubeconfig",
            |directory, content| write_inline(directory, [None, Some(content), None]),
        ),
        within(
            "client-key-data",
            ["client-key"; 2],
            Inline,
            Key,
            "backend.kubeconfig",
            |directory, content| write_inline(directory, [None, None, Some(content)]),
        ),
        within(
            "exec's clientCertificateData",
            ["clientCertificateData", "only certificate or key"],
            Exec,
            Chain,
            "backend.kubeconfig",
            |directory, content| write_answer(directory, [Some(content), None]),
        ),
        within(
            "exec's clientKeyData",
            ["clientKeyData", "only certificate or key"],
            Exec,
            Key,
            "backend.kubeconfig",
            |directory, content| write_answer(directory, [None, Some(content)]),
        ),
    ]);
    kinds
}

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).unwrap()
}

fn write_issuers(directory: &Path, ca: Option<&str>) {
    let ca = ca.map_or_else(|| read(directory, "clients-ca.crt"), str::to_owned);
    let text = serde_json::json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": "https://idp.test", "audiences": ["gateway"], "certificateAuthority": ca},
            "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
        }],
    });
    std::fs::write(directory.join("issuers.yaml"), text.to_string()).unwrap();
}

/// Writes a kubeconfig with these values of `certificate-authority-data`, `client-certificate-data` and
/// `client-key-data`.
fn write_inline(directory: &Path, values: [Option<&str>; 3]) {
    let mut files = ["servers-ca.crt", "front.crt", "front.key"].iter();
    let [ca, certificate, key] = values.map(|value| {
        let kept = read(directory, files.next().unwrap());
        base64::engine::general_purpose::STANDARD.encode(value.map_or(kept, str::to_owned))
    });
    let user = serde_json::json!({"client-certificate-data": certificate, "client-key-data": key});
    write_kubeconfig(
        &directory.join("backend.kubeconfig"),
        &serde_json::json!({"certificate-authority-data": ca}),
        &user,
    );
}

/// Writes the plugin's output, with these values of `clientCertificateData` and `clientKeyData`.
fn write_answer(directory: &Path, values: [Option<&str>; 2]) {
    let mut files = ["front.crt", "front.key"].iter();
    let [certificate, key] = values.map(|value| {
        let kept = read(directory, files.next().unwrap());
        value.map_or(kept, str::to_owned)
    });
    let answer = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"clientCertificateData": certificate, "clientKeyData": key},
    });
    std::fs::write(directory.join("answer"), answer.to_string()).unwrap();
}

fn write_kubeconfig(path: &Path, cluster: &serde_json::Value, user: &serde_json::Value) {
    let mut cluster = cluster.clone();
    cluster["server"] = "https://127.0.0.1:6443".into();
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "b", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "b", "user": "u"}}],
    });
    std::fs::write(path, text.to_string()).unwrap();
}

/// A directory of valid files, and the flags that name them.
struct ConfigurationDirectory {
    pki: Pki,
    flags: Vec<String>,
}

impl ConfigurationDirectory {
    fn new(configuration: Configuration) -> Self {
        let pki = Pki::new();
        let mut flags = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
        let directory = pki.directory.path().to_owned();
        let path = |name: &str| directory.join(name).display().to_string();
        // Relative paths: otherwise the length of the directory's name would move the end of "the first half" of a
        // file.
        let absolute = read(&directory, "backend.kubeconfig");
        pki.write("backend.kubeconfig", absolute.replace(&format!("{}/", directory.display()), ""));
        let authority = |name: &str| {
            let ca = Ca::new(name);
            pki.write(&format!("{name}.crt"), ca.cert_pem());
            pki.write(&format!("{name}.key"), ca.key_pem());
        };
        match configuration {
            ByFlags => {
                pki.write_pair("sni", &pki.servers.server(&["sni.test"]));
                pki.write_pair("webhook", &pki.clients.leaf().cn("gateway").issue());
                pki.write("idp-ca.crt", pki.servers.cert_pem());
                pki.write("webhook-ca.crt", pki.servers.cert_pem());
                let key = testkit::pki::Key::pooled(KeyKind::P256, 7);
                pki.write("sa.pub", testkit::pki::pem("PUBLIC KEY", &key.spki()));
                authority("signing");
                authority("profile");
                pki.write(
                    "signers.yaml",
                    "apiVersion: portcullis.dev/v1alpha1\nkind: SignerProfiles\nsigners:\n- signerName: \
                     example.com/a\n  certFile: profile.crt\n  keyFile: profile.key\n  allowedUsages: [client auth]\n",
                );
                pki.write(
                    "pod-signers.yaml",
                    "apiVersion: portcullis.dev/v1alpha1\nkind: PodSignerProfiles\nsigners:\n- signerName: \
                     example.com/p\n  certFile: profile.crt\n  keyFile: profile.key\n  usages: [client auth]\n  rules: \
                     [{expression: 'true'}]\n  uris: \"['spiffe://example.com/a']\"\n",
                );
                write_kubeconfig(
                    &directory.join("webhook.kubeconfig"),
                    &serde_json::json!({"certificate-authority": "webhook-ca.crt"}),
                    &serde_json::json!({"client-certificate": "webhook.crt", "client-key": "webhook.key"}),
                );
                pki.write("policy-ca.crt", pki.servers.cert_pem());
                write_kubeconfig(
                    &directory.join("policy.kubeconfig"),
                    &serde_json::json!({"certificate-authority": "policy-ca.crt"}),
                    &serde_json::json!({"token": "s3cr3t"}),
                );
                flags.extend([
                    "--authorization-mode=Webhook,AlwaysAllow".to_owned(),
                    format!("--authorization-webhook-config-file={}", path("policy.kubeconfig")),
                    format!("--tls-sni-cert-key={},{}", path("sni.crt"), path("sni.key")),
                    "--oidc-issuer-url=https://idp.test".to_owned(),
                    "--oidc-client-id=gateway".to_owned(),
                    format!("--oidc-ca-file={}", path("idp-ca.crt")),
                    "--service-account-issuer=https://kubernetes.test".to_owned(),
                    format!("--service-account-key-file={}", path("sa.pub")),
                    format!("--authentication-token-webhook-config-file={}", path("webhook.kubeconfig")),
                    "--controllers=csrsigning,podcertificaterequest-signing".to_owned(),
                    format!("--pod-signer-profiles={}", path("pod-signers.yaml")),
                    format!("--cluster-signing-cert-file={}", path("signing.crt")),
                    format!("--cluster-signing-key-file={}", path("signing.key")),
                    format!("--signer-profiles={}", path("signers.yaml")),
                ]);
            }
            File => {
                authority("kubelet");
                pki.write("token", "s3cr3t");
                pki.write(
                    "authorizers.yaml",
                    "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n\
                     - {type: AlwaysDeny, name: alwaysdeny}\n- {type: AlwaysAllow, name: alwaysallow}\n",
                );
                write_issuers(&directory, None);
                write_kubeconfig(
                    &directory.join("backend.kubeconfig"),
                    &serde_json::json!({"certificate-authority": "servers-ca.crt"}),
                    &serde_json::json!({"tokenFile": "token"}),
                );
                pki.write(
                    "gateway.yaml",
                    "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayConfiguration\nserving: {bindAddress: \
                     127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}\n\
                     authentication: {authenticationConfig: issuers.yaml}\nauthorization: {authorizationConfig: \
                     authorizers.yaml}\ncontrollerManager:\n  controllers: \
                     [csrsigning]\n  clusterSigningKubeletServingCertFile: kubelet.crt\n  \
                     clusterSigningKubeletServingKeyFile: kubelet.key\noperation: {metricsBindAddress: \
                     '127.0.0.1:0', workers: 1}\nclusters: [{name: c, kubeconfig: backend.kubeconfig, identity: \
                     impersonate}]\n",
                );
                flags = vec![format!("--config={}", path("gateway.yaml"))];
            }
            Inline => write_inline(&directory, [None; 3]),
            Exec => {
                write_answer(&directory, [None; 2]);
                let plugin = serde_json::json!({
                    "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
                    "command": "/bin/cat", "args": [path("answer")],
                });
                write_kubeconfig(
                    &directory.join("backend.kubeconfig"),
                    &serde_json::json!({"certificate-authority": "servers-ca.crt"}),
                    &serde_json::json!({"exec": plugin}),
                );
            }
        }
        Self { pki, flags }
    }

    fn source(&self) -> ConfigSource {
        let parsed = parse(self.flags.iter().cloned());
        ConfigSource::new(parsed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.pki.directory.path().join(name)
    }

    /// Replaces a file by `content`.
    fn put(&self, file: &str, content: &Content) {
        let path = self.path(file);
        remove(&path);
        match content {
            Content::Bytes(bytes) => std::fs::write(&path, bytes).unwrap(),
            Content::Pair(..) => unreachable!("written one by one"),
            Content::Directory => std::fs::create_dir(&path).unwrap(),
            Content::Fifo => {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            }
            Content::Device => symlink("/dev/null", &path).unwrap(),
            Content::Loop => symlink(&path, &path).unwrap(),
            Content::Missing => {}
            // A path below a regular file cannot be opened even by root, which ignores permissions.
            Content::Unreachable => symlink(self.path("gateway.crt").join("in-it"), &path).unwrap(),
            // A sparse file, which occupies no disk space.
            Content::Huge => std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap(),
        }
    }
}

fn remove(path: &Path) {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir(path).unwrap(),
        Ok(_) => std::fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// The outcome of one load.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Taken,
    /// Accepted, with these warnings.
    Warned(Vec<String>),
    /// Refused with one error that names key, file and fix.
    Refused(String),
    /// Refused with several errors, or with one that lacks key, file or fix.
    Unclear(String),
    /// Refused after the configuration was accepted, when the server started (exit code 1).
    Late(String),
    Hangs,
}

impl Verdict {
    fn symbol(&self) -> char {
        match self {
            Self::Taken => '+',
            Self::Warned(_) => 'w',
            Self::Refused(_) => '-',
            Self::Unclear(_) => '?',
            Self::Late(_) => '1',
            Self::Hangs => 'H',
        }
    }

    /// Removes the path of the directory from the texts.
    fn without(self, directory: &str) -> Self {
        let normal = |text: String| text.replace(directory, "");
        match self {
            Self::Warned(warnings) => Self::Warned(warnings.into_iter().map(normal).collect()),
            Self::Refused(text) => Self::Refused(normal(text)),
            Self::Unclear(text) => Self::Unclear(normal(text)),
            Self::Late(text) => Self::Late(normal(text)),
            Self::Taken | Self::Hangs => self,
        }
    }

    /// An error is clear if it names one of `keys`, one of `files` and a fix.
    fn of(
        loaded: &Result<ResolvedConfig, ConfigErrors>,
        keys: &[&str],
        files: &[PathBuf],
        form: Form,
    ) -> Self {
        match loaded {
            Ok(resolved) if resolved.warnings.is_empty() => Self::Taken,
            Ok(resolved) => Self::Warned(resolved.warnings.clone()),
            Err(errors) => {
                let text = errors.to_string();
                let names_file = |text: &str| {
                    let mut files = files.iter().map(|file| file.display().to_string());
                    files.any(|file| text.contains(&file)) && text.contains("fix: ")
                };
                let is_clear = match errors.0.as_slice() {
                    [error] if error.position.is_none() || form != Text => {
                        names_file(&text) && keys.iter().any(|key| text.contains(key))
                    }
                    // Errors in the content of a document have a line number instead of a key.
                    all => form == Text && all.iter().all(|error| names_file(&error.to_string())),
                };
                if is_clear { Self::Refused(text) } else { Self::Unclear(text) }
            }
        }
    }
}

/// Runs `work`, which may block on opening a FIFO. After a minute the FIFO is opened for writing, which unblocks the
/// thread.
fn unless_hanging(path: &Path, work: impl FnOnce() -> Verdict + Send + 'static) -> Verdict {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(work()).ok());
    let mut hung = false;
    loop {
        match receiver.recv_timeout(Duration::from_mins(1)) {
            Ok(verdict) => return if hung { Verdict::Hangs } else { verdict },
            Err(mpsc::RecvTimeoutError::Timeout) => {
                hung = true;
                let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
                drop(std::fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(path));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let panic = thread.join().expect_err("the thread ended without a verdict");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// The verdicts at startup and on reload.
///
/// `unread` is a configuration source that was never loaded; `running` has been loaded with valid files.
fn verdicts(
    configured: &ConfigurationDirectory,
    kind: &'static Kind,
    content: &Content,
    [unread, running]: &[ConfigSource; 2],
) -> [Verdict; 2] {
    let path = configured.path(kind.file);
    let replaced = [kind.file].into_iter().chain(kind.pair.into_iter().flatten());
    let valid: BTreeMap<&str, Vec<u8>> =
        replaced.map(|name| (name, std::fs::read(configured.path(name)).unwrap())).collect();
    let put = || match (content, kind.within) {
        (Content::Pair(certificate, key), _) => {
            let [first, second] = kind.pair.expect("one of a pair");
            configured.put(first, &Content::Bytes(certificate.clone()));
            configured.put(second, &Content::Bytes(key.clone()));
        }
        (Content::Bytes(bytes), Some(write)) => {
            write(configured.pki.directory.path(), std::str::from_utf8(bytes).unwrap());
        }
        _ => configured.put(kind.file, content),
    };
    // An error about a mismatch may name either file of a pair; any other error must name the replaced file.
    let partners = kind.pair.into_iter().flatten();
    let partners: Vec<&str> = partners.filter(|_| matches!(content, Content::Pair(..))).collect();
    let files: Vec<PathBuf> =
        [kind.file].into_iter().chain(partners).map(|name| configured.path(name)).collect();
    let keys = kind.keys;
    let form = kind.form;
    put();
    let (mut starting, mut running) = (unread.clone(), running.clone());
    let named = files.clone();
    let start = unless_hanging(&path, move || {
        let loaded = starting.load();
        match (Verdict::of(&loaded, &keys, &named, form), loaded) {
            // Starting the server reads nothing more from text files.
            (verdict, Ok(_)) if matches!(form, Text | Token) => verdict,
            (verdict, Ok(resolved)) => match Server::start(&resolved, starting) {
                Ok(server) => {
                    server.shut_down();
                    verdict
                }
                Err(error) => Verdict::Late(error.to_string()),
            },
            (verdict, Err(_)) => verdict,
        }
    });
    let reload = unless_hanging(&path, move || {
        // A plugin's output is cached until it expires and is not checked for changes.
        assert!(running.changed() || kind.configuration == Exec, "{}: the change is not detected", kind.name);
        Verdict::of(&running.load(), &keys, &files, form)
    });
    for (name, content) in valid {
        configured.put(name, &Content::Bytes(content));
    }
    if kind.configuration == Exec {
        write_answer(configured.pki.directory.path(), [None; 2]);
    }
    [start, reload]
}

/// The verdicts of one kind of file, by input.
type Cells = BTreeMap<&'static str, [Verdict; 2]>;

fn column(kind: &'static Kind) -> Cells {
    let configured = ConfigurationDirectory::new(kind.configuration);
    let valid = |file: &str| std::fs::read(configured.path(file)).unwrap();
    let (content, key) = match (kind.name, kind.pair) {
        ("certificateAuthority of an issuer", _) => (valid("clients-ca.crt"), Vec::new()),
        ("certificate-authority-data", _) => (valid("servers-ca.crt"), Vec::new()),
        ("client-certificate-data" | "exec's clientCertificateData", _) => {
            (valid("front.crt"), valid("front.key"))
        }
        ("client-key-data" | "exec's clientKeyData", _) => (valid("front.key"), valid("front.key")),
        (_, Some([_, key])) => (valid(kind.file), valid(key)),
        _ => (valid(kind.file), Vec::new()),
    };
    let is_authority = kind.file.starts_with("signing")
        || kind.file.starts_with("profile")
        || kind.file.starts_with("kubelet");
    let other =
        if is_authority { Ca::new("other").as_leaf() } else { Ca::new("others").leaf().cn("other").issue() };
    let material = Material {
        form: kind.form,
        valid: content,
        key,
        other,
        in_pair: kind.pair.is_some(),
        is_authority,
        within: kind.within.is_some(),
    };
    let mut sources = [configured.source(), configured.source()];
    let [_, running] = &mut sources;
    running.load().unwrap_or_else(|errors| panic!("{}: {errors}", kind.name));
    INPUTS
        .iter()
        .filter_map(|(name, make)| {
            let content = make(&material)?;
            if matches!(&content, Content::Bytes(bytes) if *bytes == material.valid) {
                return None;
            }
            if kind.within.is_some() {
                let Content::Bytes(bytes) = &content else { return None };
                std::str::from_utf8(bytes).ok()?;
            }
            let directory = format!("{}/", configured.pki.directory.path().display());
            let verdicts = verdicts(&configured, kind, &content, &sources);
            Some((*name, verdicts.map(|verdict| verdict.without(&directory))))
        })
        .collect()
}

/// The table of all verdicts, and the texts of all errors and warnings.
fn report(kinds: &'static [Kind], columns: &[Cells]) -> (String, String) {
    let mut table = String::from(
        "at the start, on reload: - refused by key, file and fix; + taken; w taken with a warning; . does not apply\n\
         (1 exit code 1; ? not by key, file and fix, or not in one error; H hangs)\n\n",
    );
    for (index, kind) in kinds.iter().enumerate() {
        writeln!(table, "{:>2} {}", index + 1, kind.name).unwrap();
    }
    write!(table, "\n{:<34}", "").unwrap();
    for index in 1..=kinds.len() {
        write!(table, " {index:>2}").unwrap();
    }
    table.push('\n');
    for (name, _) in INPUTS {
        write!(table, "{name:<34}").unwrap();
        for cells in columns {
            match cells.get(name) {
                Some([start, reload]) => write!(table, " {}{}", start.symbol(), reload.symbol()).unwrap(),
                None => table.push_str("  ."),
            }
        }
        table.push('\n');
    }
    let mut texts = String::new();
    for (kind, cells) in kinds.iter().zip(columns) {
        writeln!(texts, "## {}", kind.name).unwrap();
        let mut by_text: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (name, _) in INPUTS {
            let Some(verdicts) = cells.get(name) else { continue };
            let [start, reload] = verdicts.clone().map(|verdict| match verdict {
                Verdict::Taken => "taken".to_owned(),
                Verdict::Warned(warnings) => format!("taken, warning: {}", warnings.join("\n   warning: ")),
                Verdict::Refused(text) => text
                    .replacen("the configuration has 1 error:\n  - ", "", 1)
                    .replace("\n      fix", "\n   fix"),
                Verdict::Unclear(text) => format!("UNCLEAR: {text}"),
                Verdict::Late(text) => format!("EXIT CODE 1: {text}"),
                Verdict::Hangs => "HANGS".to_owned(),
            });
            let text = if start == reload { start } else { format!("{start}\n   on reload: {reload}") };
            by_text.entry(text).or_default().push(name);
        }
        let mut by_text: Vec<_> = by_text.into_iter().collect();
        by_text.sort_by_key(|(_, names)| INPUTS.iter().position(|(name, _)| names.first() == Some(name)));
        for (text, names) in by_text {
            writeln!(texts, "{}:\n   {text}", names.join(", ")).unwrap();
        }
        texts.push('\n');
    }
    (table, texts)
}

#[test]
fn malformed_files_are_reported_at_startup_and_keep_the_running_configuration_on_reload() {
    let kinds: &'static [Kind] = Vec::leak(kinds());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done = std::sync::Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let Some(kind) = kinds.get(index) else { break };
                    let cells = column(kind);
                    done.lock().unwrap().insert(index, cells);
                }
            });
        }
    });
    let columns: Vec<Cells> = done.into_inner().unwrap().into_values().collect();
    let (table, texts) = report(kinds, &columns);
    insta::assert_snapshot!("configured_files_said", texts);
    insta::assert_snapshot!("configured_files", table);
}
