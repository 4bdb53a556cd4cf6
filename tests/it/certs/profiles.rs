//! The files of `certs/`: the command and the gateway accept them, and their certificates match the built-in profiles.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use portcullis::internal::CertificateRequest;
use portcullis::internal::Clock;
use portcullis::internal::IssuanceRequest;
use serde_json::Value;

use super::{CommandOutput, certs, names, shell};
use testkit::{Pki, flags};

use crate::gateway::resolved;
use testkit::transcript;

const CERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/certs");

/// A profile: its file and built-in name, the subject and the subjectAltName of a request.
struct Sample {
    name: &'static str,
    common_name: &'static str,
    organization: &'static str,
    alt_name: &'static str,
}

const fn sample(
    name: &'static str,
    common_name: &'static str,
    organization: &'static str,
    alt_name: &'static str,
) -> Sample {
    Sample { name, common_name, organization, alt_name }
}

const BUILT_IN: [Sample; 5] = [
    sample("client", "alice", "developers", ""),
    sample("serving", "gateway", "", "gateway.example.com"),
    sample("front-proxy", "front-proxy-client", "", ""),
    sample("kubelet-client", "system:node:worker-1", "system:nodes", ""),
    sample("kubelet-serving", "system:node:worker-1", "system:nodes", "worker-1.example.com"),
];

/// The example of a custom signer; no built-in profile corresponds to it.
const SERVICE: Sample = sample("service", "hooks.policy.svc", "", "hooks.policy.svc");

impl Sample {
    fn file(&self) -> String {
        format!("certs/{}.yaml", self.name)
    }

    /// Writes requests for an ECDSA and an RSA key. Only certificates of RSA keys get key encipherment.
    fn requests(&self, directory: &Path) -> [String; 2] {
        let organization =
            if self.organization.is_empty() { String::new() } else { format!("/O={}", self.organization) };
        let alt_name = if self.alt_name.is_empty() {
            String::new()
        } else {
            format!("-addext subjectAltName=DNS:{}", self.alt_name)
        };
        ["ec -pkeyopt ec_paramgen_curve:P-256", "rsa:2048"].map(|key| {
            let file = format!("{}-{}.csr", self.name, &key[..2]);
            let line = format!(
                "openssl req -new -newkey {key} -nodes -keyout {file}.key -out {file} -subj {organization}/CN={} \
                 {alt_name}",
                self.common_name
            );
            shell(directory, &line);
            file
        })
    }

    fn issue(&self, directory: &Path, profile: &[&str], out: &str) -> Value {
        let mut arguments = vec!["issue"];
        arguments.extend(profile);
        arguments.extend(["--common-name", self.common_name, "--out", out, "--output", "json"]);
        for (flag, value) in [("--organization", self.organization), ("--dns", self.alt_name)] {
            if !value.is_empty() {
                arguments.extend([flag, value]);
            }
        }
        serde_json::from_str(&certs(directory, &arguments).succeeds()).unwrap()
    }
}

/// A copy of `certs/`, with the CAs that its files name.
fn copy() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("certs")).unwrap();
    for name in names(Path::new(CERTS)) {
        let file = Path::new("certs").join(&name);
        std::fs::copy(Path::new(CERTS).join(&name), directory.path().join(file)).unwrap();
    }
    certs(directory.path(), &["init", "--dir", "certs"]).succeeds();
    certs(directory.path(), &["init", "--dir", "certs/service", "--name", "service"]).succeeds();
    directory
}

/// The parts of a certificate that a profile determines: the CA, the names, the extensions, and the validity in hours.
fn decided(directory: &Path, file: &str) -> (String, u64) {
    let extensions = "basicConstraints,keyUsage,extendedKeyUsage,authorityKeyIdentifier,subjectAltName";
    let line = format!("openssl x509 -noout -issuer -subject -ext {extensions} -in {file}");
    let end = format!("date -d \"$(openssl x509 -noout -enddate -in {file} | cut -d= -f2)\" +%s");
    let end = Duration::from_secs(shell(directory, &end).trim().parse().unwrap());
    // Rounded: a maximum includes the five minutes of backdating, a duration of the command does not.
    let seconds = end.saturating_sub(Clock::system().now()).as_secs() + 1800;
    (shell(directory, &line), seconds / 3600)
}

fn usages(report: &Value) -> BTreeSet<String> {
    report["usages"].as_array().unwrap().iter().map(|usage| usage.as_str().unwrap().to_owned()).collect()
}

#[test]
fn files_agree_with_the_built_in_profiles() {
    let directory = copy();
    let dir = directory.path();
    for sample in &BUILT_IN {
        let built_in = sample.issue(dir, &[sample.name, "--dir", "certs"], "built-in");
        let of_file = sample.issue(dir, &["--profile", &sample.file()], "of-file");
        assert_eq!(usages(&of_file), usages(&built_in), "{}", sample.name);
        assert_eq!(of_file["profile"], format!("example.com/{}", sample.name));
        assert_eq!(of_file["remarks"], built_in["remarks"], "{}", sample.name);
        let [expected, issued] = ["built-in.crt", "of-file.crt"].map(|file| decided(dir, file));
        assert_eq!(issued, expected, "{}", sample.name);
        assert!(issued.0.contains("X509v3 Extended Key Usage"), "{}", issued.0);
        for request in sample.requests(dir) {
            let sign = |profile: &str, out: &str| {
                certs(
                    dir,
                    &["sign", &request, "--profile", profile, "--dir", "certs", "--out", out, "--force"],
                )
                .succeeds();
                decided(dir, out)
            };
            let expected = sign(sample.name, "built-in.crt");
            assert_eq!(sign(&sample.file(), "of-file.crt"), expected, "{request}");
            assert_eq!(signed_by_the_gateway(dir, sample, &request), expected, "{request}");
        }
        shell(dir, "rm built-in.* of-file.*");
    }
}

/// Signs a request as `csrsigning` does, with the settings that `--signer-profiles` resolves to.
fn signed_by_the_gateway(directory: &Path, sample: &Sample, request: &str) -> (String, u64) {
    let pki = Pki::new();
    let file = directory.join(sample.file());
    let further = ["--controllers=csrsigning".to_owned(), format!("--signer-profiles={}", file.display())];
    let all = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443))).into_iter().chain(further);
    let settings = resolved(all).unwrap_or_else(|errors| panic!("{errors}")).settings;
    let controllers = settings.clusters[0].controllers.as_ref().unwrap();
    let [signer] = controllers.signers.as_slice() else { panic!("{}: one signer", sample.name) };
    assert_eq!(signer.name(), format!("example.com/{}", sample.name));
    let parsed = CertificateRequest::from_pem(&std::fs::read(directory.join(request)).unwrap()).unwrap();
    let purpose = if sample.alt_name.is_empty() { "client auth" } else { "server auth" };
    let mut usages = vec!["digital signature".to_owned(), purpose.to_owned()];
    usages.extend(request.contains("-rs").then(|| "key encipherment".to_owned()));
    let wanted = IssuanceRequest {
        request: &parsed,
        usages: &usages,
        expiration: None,
        signing_duration: controllers.signing_duration,
    };
    let prepared = signer.authority.prepare(&signer.profile, &wanted, Clock::system().now()).unwrap();
    let issued = signer.authority.issue(prepared).unwrap();
    std::fs::write(directory.join("of-gateway.crt"), issued.pem()).unwrap();
    decided(directory, "of-gateway.crt")
}

#[test]
fn command_and_gateway_read_every_file_and_the_readme_lists_it() {
    let directory = copy();
    let readme = std::fs::read_to_string(Path::new(CERTS).join("README.md")).unwrap();
    let mut files: Vec<String> =
        BUILT_IN.iter().chain([&SERVICE]).map(|sample| format!("{}.yaml", sample.name)).collect();
    // Its signer is one for pods: tests/it/controllers/pod_signers.rs reads it.
    files.push("workload.yaml".to_owned());
    for file in &files {
        assert!(readme.contains(&format!("({file})")), "{file} is not in certs/README.md");
    }
    // No other files, in particular no key.
    files.extend([".gitignore", "README.md"].map(str::to_owned));
    files.sort();
    let tracked = shell(Path::new(CERTS), "git ls-files --cached --others --exclude-standard .");
    let mut tracked: Vec<&str> = tracked.lines().collect();
    tracked.sort_unstable();
    assert_eq!(tracked, files);

    let report = SERVICE.issue(directory.path(), &["--profile", &SERVICE.file()], "service");
    assert_eq!(report["issuer"], "CN=service serving CA");
    let [request, _] = SERVICE.requests(directory.path());
    let (text, hours) = signed_by_the_gateway(directory.path(), &SERVICE, &request);
    assert_eq!((text, hours), decided(directory.path(), "service.crt"));
    assert_eq!(hours, 7 * 24);
}

#[test]
fn the_readme_is_the_output_of_the_commands() {
    let directory = tempfile::tempdir().unwrap();
    shell(directory.path(), &format!("mkdir certs && cp {CERTS}/*.yaml certs"));
    let page = Path::new(CERTS).join("README.md");
    let played = transcript::replay(&page, &[], directory.path(), |command| {
        let program = Path::new(env!("CARGO_BIN_EXE_portcullis")).parent().unwrap().display();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{program}:{path}")).env("HOME", directory.path()).env("NO_COLOR", "1");
    });
    assert!(played.unwrap_or_else(|wrong| panic!("{wrong}")) > 3);
}

#[test]
fn a_profile_refuses_unlisted_names_and_extensions() {
    let directory = copy();
    let dir = directory.path();
    let issue = |profile: &str, more: &[&str]| -> CommandOutput {
        certs(dir, &[&["issue", "--profile", profile, "--out", "x"], more].concat())
    };
    let cases: &[(&str, &[&str], i32, &str)] = &[
        (
            "certs/client.yaml",
            &["--cn", "root", "-O", "system:masters"],
            1,
            "not signed as example.com/client: subject organization \"system:masters\" is not allowed",
        ),
        (
            "certs/client.yaml",
            &["--cn", "a", "--dns", "a.test"],
            1,
            "DNS subjectAltName \"a.test\" is not allowed",
        ),
        ("certs/front-proxy.yaml", &["--cn", "another"], 1, "subject common name \"another\" is not allowed"),
        (
            "certs/kubelet-client.yaml",
            &["--cn", "worker-1"],
            1,
            "subject common name \"worker-1\" is not allowed",
        ),
        (
            "certs/serving.yaml",
            &["--cn", "gateway"],
            64,
            "a serving certificate needs a subjectAltName: clients ignore the CommonName; give --dns or --ip",
        ),
        (
            "certs/service.yaml",
            &["--cn", "hooks.policy.svc", "--dns", "gateway.example.com"],
            1,
            "DNS subjectAltName \"gateway.example.com\" is not allowed",
        ),
        // Another CA may sign only for its own purpose.
        (
            "certs/serving.yaml",
            &[
                "--cn",
                "a",
                "--dns",
                "a.test",
                "--ca-cert",
                "certs/client-ca.crt",
                "--ca-key",
                "certs/client-ca.key",
            ],
            1,
            "the CA certificate allows client auth, but not server auth",
        ),
    ];
    for (profile, more, code, error) in cases {
        issue(profile, more).fails(*code, &[error]);
    }
    assert!(!dir.join("x.key").exists());
}

#[test]
fn a_request_without_a_common_name_is_signed_unless_the_profile_needs_one() {
    let directory = copy();
    let dir = directory.path();
    // As cert-manager writes it for dnsNames alone.
    shell(
        dir,
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout r.key -subj / -addext \
         subjectAltName=DNS:hooks.policy.svc -out r.csr",
    );
    let sign = |profile: &str| certs(dir, &["sign", "r.csr", "--profile", profile, "--out", "signed.crt"]);
    sign("certs/service.yaml").succeeds();
    let signed = shell(dir, "openssl x509 -in signed.crt -noout -subject -ext subjectAltName");
    assert!(signed.contains("critical") && signed.contains("DNS:hooks.policy.svc"), "{signed}");
    sign("certs/client.yaml").fails(1, &["subject common name is required"]);
    // A workload is a client, too, and no user of an API server.
    let workload = std::fs::read_to_string(dir.join("certs/service.yaml")).unwrap();
    let workload = workload
        .replace("  allowedUsages: [", "  uris: ['spiffe://example.com/*']\n  allowedUsages: [client auth, ")
        .replace("service/serving-ca", "service/ca");
    std::fs::write(dir.join("certs/workload-signer.yaml"), workload).unwrap();
    shell(
        dir,
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout s.key -subj / -addext \
         subjectAltName=URI:spiffe://example.com/ns/a -out s.csr",
    );
    certs(dir, &["sign", "s.csr", "--profile", "certs/workload-signer.yaml", "--out", "workload.crt"])
        .succeeds();
}

#[test]
fn a_file_limits_the_validity() {
    let directory = copy();
    let issue = |name: &str, duration: &str| {
        let flags = ["issue", "--profile", "certs/client.yaml", "--cn", name, "--out", name];
        let more = ["--duration", duration, "--output", "json"];
        let json: Value =
            serde_json::from_str(&certs(directory.path(), &[&flags[..], &more].concat()).succeeds()).unwrap();
        let (_, hours) = decided(directory.path(), &format!("{name}.crt"));
        (hours, json["remarks"].as_array().unwrap().clone())
    };
    assert_eq!(issue("short", "3h"), (3, vec![]));
    assert_eq!(issue("exact", "10d"), (240, vec![]));
    let remark = "the validity is limited by maxDuration of certs/client.yaml".into();
    assert_eq!(issue("long", "365d"), (90 * 24, vec![remark]));
}

#[test]
fn mistakes_in_a_profile_are_reported_with_their_line() {
    let directory = copy();
    let dir = directory.path();
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    let envelope = "apiVersion: portcullis.dev/v1alpha1\nkind: SignerProfiles\n";
    let signer = |name: &str| {
        format!(
            "- signerName: example.com/{name}\n  certFile: certs/client-ca.crt\n  keyFile: certs/client-ca.key\n  \
             commonNames: ['*']\n  allowedUsages: [client auth]\n"
        )
    };
    write("two.yaml", &format!("{envelope}signers:\n{}{}", signer("a"), signer("b")));
    write("none.yaml", &format!("{envelope}signers: []\n"));
    write("typo.yaml", &format!("{envelope}signers:\n{}  organisations: [x]\n", signer("a")));
    write("usage.yaml", &format!("{envelope}signers:\n{}", signer("a").replace("client auth", "flying")));
    write("away.yaml", &format!("{envelope}signers:\n{}", signer("a").replace("client-ca.crt", "away.crt")));
    write(
        "keyless.yaml",
        &format!("{envelope}signers:\n{}", signer("a").replace("client-ca.key", "away.key")),
    );
    write("other.yaml", "kind: Other\n");
    let cases: &[(&[&str], i32, &[&str])] = &[
        (
            &["--profile", "clint"],
            64,
            &[
                "--profile clint: neither a file nor a built-in profile",
                "fix: give a file, or one of client, serving, front-proxy, kubelet-client, kubelet-serving",
            ],
        ),
        (&["--profile", "."], 64, &["--profile: .: ", "fix: "]),
        (
            &["--profile", "other.yaml"],
            64,
            &["--profile: other.yaml: has no apiVersion", "fix: begin with apiVersion"],
        ),
        (
            &["--profile", "typo.yaml"],
            64,
            &["typo.yaml:9: signers[0].organisations: unknown key", "fix: write organizations"],
        ),
        (
            &["--profile", "usage.yaml"],
            64,
            &["usage.yaml:8: signers[0].allowedUsages[0]: unrecognized usage", "fix: give some of: any, "],
        ),
        (&["--profile", "none.yaml"], 64, &["none.yaml: signers: is empty", "fix: list a signer"]),
        (
            &["--profile", "two.yaml"],
            64,
            &[
                "two.yaml: signers: lists several: example.com/a, example.com/b",
                "fix: choose one with --signer-name",
            ],
        ),
        (
            &["--profile", "two.yaml", "--signer-name", "example.com/c"],
            64,
            &[
                "--signer-name: two.yaml: there is no signer \"example.com/c\"",
                "fix: give one of example.com/a, example.com/b",
            ],
        ),
        (&["--profile", "client", "--signer-name", "example.com/c"], 64, &["--signer-name", "fix: "]),
        (
            &["--profile", "away.yaml"],
            1,
            &[
                "certs/away.crt: there is no such file, which signers[0].certFile of away.yaml names",
                "--ca-cert and --ca-key",
            ],
        ),
        (
            &["--profile", "keyless.yaml"],
            1,
            &["certs/away.key: there is no such file, which signers[0].keyFile of keyless.yaml names"],
        ),
        (&["client", "--profile", "two.yaml"], 64, &["--profile"]),
        (&[], 64, &["KIND or --profile is required", "fix: "]),
    ];
    for (profile, code, texts) in cases {
        let rest = ["--cn", "a", "--out", "x"];
        certs(dir, &[&["issue"], *profile, &rest].concat()).fails(*code, texts);
    }
    assert!(!dir.join("x.key").exists());
    let chosen =
        ["issue", "--profile", "two.yaml", "--signer-name", "example.com/b", "--cn", "a", "--out", "x"];
    certs(dir, &chosen).succeeds();
    certs(dir, &["issue", "--profile", "client", "--dir", "certs", "--cn", "a", "--out", "y"]).succeeds();
}
