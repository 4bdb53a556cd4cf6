//! The command lines of kube-apiserver in distributions of Kubernetes start the gateway, and `portcullis convert` turns them
//! into flags that mean the same. The files in `distributions/` have the flags and values that each distribution gives.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testkit::{Pki, flags};

const IGNORE: &str = "--ignore-unknown-apiserver-flags";

const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
const AUTHENTICATION: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /healthz}, {path: /livez}, {path: /readyz}]}
";
const AUTHORIZATION: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- {type: RBAC, name: rbac}
";
const ADMISSION: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: restricted, enforce-version: latest}
- name: EventRateLimit
  path: eventratelimit.yaml
- name: ImagePolicyWebhook
  path: imagepolicy.yaml
";

/// A machine with the files that a command line names, below a directory.
struct Machine {
    pki: Pki,
}

impl Machine {
    fn new() -> Self {
        let pki = Pki::new();
        flags(&pki, ([192, 0, 2, 1], 6443).into());
        Self { pki }
    }

    fn root(&self) -> String {
        self.pki.directory.path().display().to_string()
    }

    /// A file of `distributions/`, with the paths below the directory.
    fn fixture(&self, name: &str) -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/distributions").join(name);
        let mut text = std::fs::read_to_string(file).unwrap();
        for folder in ["/etc/", "/var/", "/srv/"] {
            for before in ["=", "path: ", "mountPath: "] {
                text =
                    text.replace(&format!("{before}{folder}"), &format!("{before}{}{folder}", self.root()));
            }
        }
        text
    }

    fn run(&self, arguments: &[String]) -> Output {
        let mut command = Command::new(crate::gateway::PORTCULLIS);
        command.args(arguments).env("NO_COLOR", "1").current_dir(self.pki.directory.path()).output().unwrap()
    }

    /// The output, with the paths of the distribution.
    fn printed(&self, arguments: &[String]) -> String {
        let output = self.run(arguments);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&self.root(), "");
        let code = output.status.code().unwrap();
        format!("exit {code}\n--- stdout\n{}--- stderr\n{}", text(&output.stdout), text(&output.stderr))
    }

    fn json(&self, arguments: &[String]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}\n{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Writes the file of a flag, if it has one.
    fn provide(&self, word: &str) {
        let Some((flag, value)) = word.split_once('=') else { return };
        let path = PathBuf::from(value);
        let copy = |name: &str| std::fs::read(self.pki.directory.path().join(name)).unwrap();
        let content = match flag {
            "--tls-cert-file" => copy("gateway.crt"),
            "--tls-private-key-file" => copy("gateway.key"),
            "--client-ca-file" => copy("clients-ca.crt"),
            "--requestheader-client-ca-file" => copy("client-front-ca.crt"),
            "--proxy-client-cert-file" => copy("front.crt"),
            "--proxy-client-key-file" => copy("front.key"),
            "--service-account-key-file" => rcgen::KeyPair::generate().unwrap().public_key_pem().into_bytes(),
            "--audit-policy-file" => AUDIT_POLICY.into(),
            "--authentication-config" => AUTHENTICATION.into(),
            "--authorization-config" => AUTHORIZATION.into(),
            "--admission-control-config-file" => ADMISSION.into(),
            "--audit-log-path" => return std::fs::create_dir_all(path.parent().unwrap()).unwrap(),
            _ => return,
        };
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// The kubeconfig that `convert` has printed, with the CA that it cannot know.
    fn kubeconfig(&self, converted: &Value) -> String {
        let text = converted["kubeconfig"].to_string().replace("SERVING-CA.crt", "servers-ca.crt");
        self.pki.write("printed.kubeconfig", text).display().to_string()
    }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The words of `--flag=value` behind the name of the program in a manifest.
fn flags_of(manifest: &str) -> Vec<String> {
    let items = manifest.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let words = items.filter_map(|item| item.trim_matches('\'').strip_prefix("--"));
    let is_of_program =
        |word: &String| !["--log-file", "--also-stdout"].iter().any(|other| word.starts_with(other));
    words.map(|word| format!("--{word}")).filter(is_of_program).collect()
}

/// The flags start the gateway as they are, and those that `convert` prints mean the same. Snapshots show what `convert`
/// and `check` print.
fn starts_the_gateway(machine: &Machine, name: &str, given: &[String], source: &[String]) {
    for word in given {
        machine.provide(word);
    }
    let convert = |format: &str| [strings(&["convert", "--output", format]), source.to_vec()].concat();
    insta::assert_snapshot!(format!("{name}_converted"), machine.printed(&convert("text")));
    let converted = machine.json(&convert("json"));
    let kubeconfig = format!("--backend-kubeconfig={}", machine.kubeconfig(&converted));
    let check = |output: &str, further: &[String]| {
        [strings(&["check", "--output", output]), further.to_vec(), vec![kubeconfig.clone()]].concat()
    };
    let as_given = [given.to_vec(), strings(&[IGNORE])].concat();
    insta::assert_snapshot!(format!("{name}_checked"), machine.printed(&check("text", &as_given)));
    let command: Vec<String> = serde_json::from_value(converted["command"].clone()).unwrap();
    let [mut as_given, mut as_converted] =
        [&as_given[..], &command[2..]].map(|words| machine.json(&check("json", words)));
    let warnings: Vec<String> = serde_json::from_value(as_given["warnings"].take()).unwrap();
    as_converted["warnings"].take();
    assert_eq!(as_given, as_converted);
    assert_eq!(as_given["clusters"][0]["authorizers"], serde_json::json!([]), "the backend alone authorizes");
    for parts in [["the backend decides by", "Node and RBAC"], ["only the backend has", "NodeRestriction"]] {
        let warned = warnings.iter().any(|warning| parts.iter().all(|part| warning.contains(part)));
        assert!(warned, "{parts:?}: {warnings:#?}");
    }
    // Without the flag, they are errors.
    let refused = machine.run(&check("text", given));
    assert_eq!(refused.status.code(), Some(64));
}

/// A distribution that runs kube-apiserver as a static pod.
fn static_pod_starts_the_gateway(name: &str) {
    let machine = Machine::new();
    let manifest = machine.fixture(&format!("{name}.yaml"));
    let file = machine.pki.write("kube-apiserver.yaml", &manifest);
    starts_the_gateway(&machine, name, &flags_of(&manifest), &[file.display().to_string()]);
}

#[test]
fn kubeadm_starts_the_gateway() {
    static_pod_starts_the_gateway("kubeadm");
}

#[test]
fn rke2_starts_the_gateway() {
    static_pod_starts_the_gateway("rke2");
}

#[test]
fn kubespray_starts_the_gateway() {
    static_pod_starts_the_gateway("kubespray");
}

#[test]
fn kops_starts_the_gateway() {
    static_pod_starts_the_gateway("kops");
}

#[test]
fn k3s_starts_the_gateway() {
    let machine = Machine::new();
    let text = machine.fixture("k3s.flags");
    let given: Vec<String> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    starts_the_gateway(&machine, "k3s", &given, &[strings(&["--"]), given.clone()].concat());
}

#[test]
fn a_manifest_that_cannot_be_converted_is_an_error() {
    let machine = Machine::new();
    let etcd = "apiVersion: v1\nkind: Pod\nmetadata: {name: etcd}\nspec:\n  containers:\n  - {name: etcd, command: [etcd]}\n";
    machine.pki.write("etcd.yaml", etcd);
    for format in ["text", "json"] {
        let arguments = strings(&["convert", "etcd.yaml", "--output", format]);
        insta::assert_snapshot!(format!("not_an_apiserver_{format}"), machine.printed(&arguments));
    }
    let output = machine.run(&strings(&["convert", "none.yaml"]));
    assert_eq!(output.status.code(), Some(64));
    // Neither a manifest nor flags.
    assert_eq!(machine.run(&strings(&["convert"])).status.code(), Some(64));
}

#[test]
fn errors_of_flags_and_files_are_reported_together() {
    let machine = Machine::new();
    let cases = [
        ("flags", "--etcd-servers=x --tls-cert-fil=z"),
        ("values", "--audit-log-maxage=foo --client-ca-file=missing"),
    ];
    for (name, words) in cases {
        let words = words.split(' ').map(str::to_owned);
        let [checked, served] = ["check", "serve"].map(|command| {
            machine.printed(&std::iter::once(command.to_owned()).chain(words.clone()).collect::<Vec<_>>())
        });
        assert_eq!(checked, served);
        insta::assert_snapshot!(format!("errors_of_{name}"), checked);
    }
    let arguments = strings(&[
        "check",
        "--output=json",
        "--audit-log-maxage=foo",
        "--client-ca-file=missing",
        "--config=none",
    ]);
    let output = machine.run(&arguments);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys: Vec<&str> =
        report["errors"].as_array().unwrap().iter().map(|error| error["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["--audit-log-maxage", "--config"]);
}
