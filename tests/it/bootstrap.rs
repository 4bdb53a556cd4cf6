//! Bootstrap tokens from the command line to the node: `portcullis token` and `cluster-info` against a gateway with
//! controllers, in front of the embedded backend.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use portcullis::internal::Clock;
use portcullis::internal::ConfigSource;
use portcullis::internal::PublicKeyPins;
use portcullis::internal::ServeFlags;
use portcullis::internal::Server;
use portcullis::internal::{Dev, DevOptions};
use regex::Regex;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use testkit::transcript;

#[derive(clap::Parser)]
struct Serve {
    #[command(flatten)]
    flags: ServeFlags,
}

/// A cluster behind a gateway, as in `portcullis dev`.
struct Running {
    directory: tempfile::TempDir,
    dev: Dev,
    server: Server,
}

impl Running {
    async fn start() -> Self {
        use clap::Parser as _;
        let directory = tempfile::tempdir().unwrap();
        let options = DevOptions { dir: directory.path().join("dev"), port: 0, full: false, tour: false };
        let dev = Dev::start(&options, Clock::system()).await.unwrap();
        let flags = Serve::parse_from(std::iter::once("serve".to_owned()).chain(dev.gateway_flags())).flags;
        let mut source = ConfigSource::new(flags);
        let resolved = source.load().unwrap();
        let server = Server::start(&resolved, source).unwrap();
        Self { directory, dev, server }
    }

    fn gateway(&self) -> String {
        format!("https://{}", self.server.address())
    }

    fn ca(&self) -> PathBuf {
        self.dev.paths().pki("server-ca.crt")
    }

    /// Runs a command with or without a kubeconfig `context`, and with this standard input.
    fn run(&self, context: Option<&str>, input: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(crate::gateway::PORTCULLIS);
        command.args(arguments).env("NO_COLOR", "1").env("HOME", self.directory.path());
        command.env_remove("KUBECONFIG").current_dir(self.directory.path());
        if let Some(context) = context {
            command.env("KUBECONFIG", self.dev.paths().kubeconfig()).args(["--context", context]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read its input may have ended.
        child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let text = text.replace(&self.server.address().to_string(), "GATEWAY");
            text.replace(&self.directory.path().display().to_string(), "DIR")
        };
        let code = output.status.code().unwrap();
        format!("{}{}exit {code}\n", text(&output.stdout), text(&output.stderr))
    }

    fn admin(&self, arguments: &[&str]) -> String {
        self.run(Some("admin"), "", arguments)
    }
}

/// The commands and their output, as a console transcript.
fn console_transcript(commands: &[(&str, String)]) -> String {
    let lines = commands.iter().map(|(command, printed)| format!("$ portcullis {command}\n{printed}\n"));
    lines.collect::<Vec<_>>().concat()
}

#[test]
fn help_texts() {
    let help = |arguments: &[&str]| {
        let output = Command::new(crate::gateway::PORTCULLIS)
            .args(arguments)
            .env("NO_COLOR", "1")
            .env("COLUMNS", "100")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}");
        format!("$ portcullis {}\n{}\n", arguments.join(" "), String::from_utf8(output.stdout).unwrap())
    };
    let token = [&["token", "--help"][..], &["token", "create", "--help"], &["token", "list", "-h"]];
    let more = [&["token", "delete", "--help"][..], &["token", "generate", "--help"]];
    insta::assert_snapshot!(
        "help_token",
        token.iter().chain(&more).map(|line| help(line)).collect::<String>()
    );
    let info = ["create", "verify"].map(|verb| help(&["cluster-info", verb, "--help"]));
    insta::assert_snapshot!("help_cluster_info", help(&["cluster-info", "--help"]) + &info.concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_the_output_of_the_commands() {
    let running = Running::start().await;
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/bootstrap.md");
    let authority = CertificateDer::from_pem_file(running.ca()).unwrap();
    let kubeconfig = std::fs::read_to_string(running.dev.paths().kubeconfig()).unwrap();
    let current = Regex::new("current-context: .*").unwrap();
    let kubeconfig = current.replace(&kubeconfig, "current-context: admin").into_owned();
    let file = running.dev.paths().dir().join("admin");
    std::fs::write(&file, kubeconfig).unwrap();
    let programs = Path::new(crate::gateway::PORTCULLIS).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let played = transcript::replay(&page, &["cluster"], running.directory.path(), |command| {
        command.env("KUBECONFIG", &file).env("PATH", &path).env("GATEWAY", running.gateway());
        command.env("PIN", PublicKeyPins::of(&authority).unwrap()).env("NO_COLOR", "1");
    });
    assert_eq!(played.unwrap(), 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_suggest_a_fix() {
    let running = Running::start().await;
    let token = "abcdef.0123456789abcdef";
    let created = running.admin(&["token", "create", token, "--ttl=0"]);
    assert_eq!(created, format!("{token}\nexit 0\n"));
    let alice = |arguments: &[&str]| running.run(Some("alice"), "", arguments);
    let run = |arguments: &[&str]| running.run(None, "", arguments);
    let with = |file: &str, content: &str| {
        std::fs::write(running.directory.path().join(file), content).unwrap();
        run(&["token", "list", "--kubeconfig", file])
    };
    let empty = "apiVersion: v1\nkind: Config\ncontexts: [{name: a, context: {cluster: c}}]\n";
    let stale = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: c, cluster: {server: \
                 'https://127.0.0.1:1'}}]\ncontexts: [{name: a, context: {cluster: c}}]\n";
    let secret = "apiVersion: v1\nusers: [{name: a, user: {token: hunter2}\n";
    let transcript = console_transcript(&[
        ("token create ABCDEF.0123456789abcdef", run(&["token", "create", "ABCDEF.0123456789abcdef"])),
        ("token create - < nothing", run(&["token", "create", "-"])),
        ("token create --ttl=-1h", run(&["token", "create", "--ttl=-1h"])),
        ("token create --usages=signing,all", run(&["token", "create", "--usages=signing,all"])),
        ("token create --groups=developers", run(&["token", "create", "--groups=developers"])),
        (
            "token create --usages=signing --groups=system:bootstrappers:a",
            run(&["token", "create", "--usages=signing", "--groups=system:bootstrappers:a"]),
        ),
        ("token create ID.SECRET (again)", running.admin(&["token", "create", token])),
        ("token create (as alice)", alice(&["token", "create", "abcdeg.0123456789abcdef"])),
        ("token list (as alice)", alice(&["token", "list"])),
        ("token delete abcde", run(&["token", "delete", "abcde"])),
        ("token delete unknwn abcdef.SECRET", running.admin(&["token", "delete", "unknwn", token])),
        ("token delete (nothing)", run(&["token", "delete"])),
        ("token list (no kubeconfig)", run(&["token", "list"])),
        ("token list (none there)", run(&["token", "list", "--kubeconfig", "none"])),
        ("token list --context=nowhere", running.run(Some("nowhere"), "", &["token", "list"])),
        ("token list (no current context)", with("empty", empty)),
        ("token list (no listener)", with("stale", stale)),
        ("token list (not YAML)", with("secret", secret)),
        (
            "cluster-info create (a kubeconfig without a CA)",
            run(&["cluster-info", "create", "--kubeconfig", "stale"]),
        ),
        ("cluster-info create --server=http://x", run(&["cluster-info", "create", "--server=http://x"])),
        (
            "cluster-info create --certificate-authority=KEY",
            run(&["cluster-info", "create", "--certificate-authority=dev/pki/gateway.key"]),
        ),
        (
            "cluster-info verify --discovery-token-ca-cert-hash=sha256:1",
            run(&["cluster-info", "verify", "--server=x", "--discovery-token-ca-cert-hash=sha256:1"]),
        ),
        ("cluster-info verify (none there)", {
            let server = running.gateway();
            running.run(None, token, &["cluster-info", "verify", "--server", &server])
        }),
        (
            "cluster-info verify (no token)",
            running.run(None, "0123456789abcdef", &["cluster-info", "verify", "--server=x"]),
        ),
    ]);
    for never in ["0123456789abcdef", "hunter2"] {
        assert!(!transcript.contains(&format!(" {never}")) && !transcript.contains(&format!(".{never}'")));
    }
    insta::assert_snapshot!("bootstrap_mistakes", transcript);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_trusts_only_the_cluster_of_its_token() {
    let running = Running::start().await;
    let (token, other) = ("abcdef.0123456789abcdef", "zzzzzz.0123456789abcdef");
    for (token, usages) in [(token, "signing"), (other, "authentication")] {
        running.admin(&["token", "create", token, "--ttl=0", "--usages", usages]);
    }
    let made = running.admin(&["cluster-info", "create"]);
    assert!(made.starts_with("configmap kube-public/cluster-info created\n"), "{made}");
    assert!(
        running
            .admin(&["cluster-info", "create"])
            .starts_with("configmap kube-public/cluster-info unchanged\n")
    );
    let verify = |token: &str, arguments: &[&str]| {
        let server = running.gateway();
        let arguments = [&["cluster-info", "verify", "--server", &server], arguments].concat();
        running.run(None, &format!("{token}\n"), &arguments)
    };
    let authority = CertificateDer::from_pem_file(running.ca()).unwrap();
    let pin = PublicKeyPins::of(&authority).unwrap();
    let (zeros, hash) = (format!("sha256:{}", "0".repeat(64)), "--discovery-token-ca-cert-hash");
    let believed = verify(token, &[hash, &zeros, hash, &pin.to_uppercase()]);
    assert!(believed.contains("CA         pinned\nTLS        verified with that CA\n"), "{believed}");
    assert!(believed.ends_with("cluster    https://GATEWAY\nexit 0\n"), "{believed}");
    let refused = verify(token, &[hash, &zeros]);
    assert!(
        refused.contains(&format!("none of the cluster CA's public keys is pinned: found {pin}\nexit 1")),
        "{refused}"
    );
    let refused = verify(other, &["--timeout=0"]);
    assert!(refused.contains("has no signature by the token zzzzzz"), "a token that may not sign: {refused}");
    let refused = verify("abcdef.fedcba9876543210", &["--timeout=0"]);
    assert!(refused.contains("the token belongs to another cluster\nexit 1"), "{refused}");

    // Signed, but the server's certificate is from another CA.
    let elsewhere = running.dev.paths().pki("client-ca.crt");
    let force = ["cluster-info", "create", "--force", "--certificate-authority", elsewhere.to_str().unwrap()];
    assert!(running.admin(&force).starts_with("configmap kube-public/cluster-info replaced\n"));
    let refused = verify(token, &[]);
    assert!(refused.starts_with("signature  of the token abcdef, good\n"), "{refused}");
    assert!(refused.contains("failed to verify certificate") && refused.ends_with("exit 1\n"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_deleted_with_its_signature() {
    let running = Running::start().await;
    running.admin(&["cluster-info", "create"]);
    let token = "abcdef.0123456789abcdef";
    running.admin(&["token", "create", token, "--ttl=1s"]);
    let listed = || running.admin(&["token", "list"]).contains("abcdef");
    testkit::until("the end of the token", || !listed()).await;
    let server = running.gateway();
    let verify = || running.run(None, token, &["cluster-info", "verify", "--server", &server, "--timeout=0"]);
    testkit::until("the end of its signature", || verify().contains("has no signature")).await;
}
