//! CAs: the purposes they may sign for, renewal, new keys, and replacement.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{authorities, certs, command, names, shell};

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap()
}

fn chain_verifies(directory: &Path, leaf: &str, root: &str) -> bool {
    let line = format!("openssl verify -CAfile {root} -untrusted {leaf} {leaf} >/dev/null 2>&1 && echo good");
    shell(directory, &format!("{line} || true")).contains("good")
}

const CLIENT_CA: [&str; 4] = ["--ca-cert", "pki/client-ca.crt", "--ca-key", "pki/client-ca.key"];

#[test]
fn a_ca_signs_only_for_purposes_that_its_certificate_allows() {
    let directory = authorities();
    let dir = directory.path();
    let serving = ["issue", "serving", "--cn", "a", "--dns", "a.test", "--out", "a"];
    certs(dir, &[&serving[..], &CLIENT_CA].concat())
        .fails(1, &["not signed as serving", "the CA certificate allows client auth, but not server auth"]);
    assert_eq!(names(dir), ["pki"]);
    assert!(!dir.join("pki/client-ca.index.jsonl").exists());
    // Name constraints: openssl makes an authority for one domain.
    let line = "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=limited -keyout limited.key -out limited.crt \
                -addext 'nameConstraints=critical,permitted;DNS:example.com'";
    shell(dir, line);
    let limited = ["--ca-cert", "limited.crt", "--ca-key", "limited.key", "--force"];
    let serving = |name| ["issue", "serving", "--cn", "a", "--dns", name, "--out", "a"];
    certs(dir, &[&serving("a.example.com")[..], &limited].concat()).succeeds();
    let output = certs(dir, &[&serving("a.example.org")[..], &limited].concat());
    output.fails(1, &["name constraints of the CA certificate", "a.example.org"]);
}

#[test]
fn inspect_follows_the_limits_along_a_chain() {
    let directory = authorities();
    let dir = directory.path();
    // openssl does not enforce the limits of the CA.
    for (kind, purpose, good) in [("client", "clientAuth", true), ("client", "serverAuth", false)] {
        let line = format!(
            "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k -out r -subj /CN=a && \
             openssl x509 -req -in r -CA pki/{kind}-ca.crt -CAkey pki/{kind}-ca.key -days 90 -out leaf -extfile \
             <(printf 'extendedKeyUsage={purpose}\nsubjectAltName=DNS:a.test') && cat leaf pki/{kind}-ca.crt > chain.crt"
        );
        shell(dir, &line);
        let output = certs(dir, &["inspect", "chain.crt"]);
        assert_eq!(output.code, i32::from(!good), "{}", output.out);
        assert_eq!(output.out.contains("this CA does not allow server auth"), !good, "{}", output.out);
    }
    // client-ca may not sign CAs, and the root may sign one level of them.
    let line = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout k2 -out r2 -subj /CN=below && \
                openssl x509 -req -in r2 -CA pki/client-ca.crt -CAkey pki/client-ca.key -days 90 -out below -extfile \
                <(printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign') && \
                openssl x509 -req -in r -CA below -CAkey k2 -days 90 -out leaf -extfile \
                <(printf 'extendedKeyUsage=clientAuth') && cat leaf below pki/client-ca.crt > chain.crt";
    shell(dir, line);
    let output = certs(dir, &["inspect", "chain.crt"]);
    assert!(
        output.code == 1 && output.out.contains("too many CAs below this one: its path length is 0"),
        "{}",
        output.out
    );
}

#[test]
fn an_authority_is_renewed_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    certs(dir, &["init", "--intermediate-validity", "90d"]).succeeds();
    certs(dir, &["issue", "client", "--cn", "alice", "--out", "alice"]).succeeds();
    let before = read(dir, "pki/client-ca.crt");
    let output = certs(dir, &["renew-ca", "client", "--validity", "2y"]).succeeds();
    assert!(output.contains("--client-ca-file=pki/client-ca.crt"), "{output}");
    assert_ne!(read(dir, "pki/client-ca.crt"), before);
    shell(dir, "openssl x509 -noout -checkend $((700*86400)) -in pki/client-ca.crt");
    // Earlier and later leaf certificates verify with the new CA certificate.
    certs(dir, &["verify", "alice.crt", "--client-ca-file", "pki/client-ca.crt"]).succeeds();
    certs(dir, &["issue", "client", "--cn", "bob", "--out", "bob"]).succeeds();
    fs::write(dir.join("before.crt"), before).unwrap();
    certs(dir, &["verify", "bob.crt", "--client-ca-file", "before.crt"]).succeeds();
    assert!(chain_verifies(dir, "bob.crt", "pki/ca.crt"));
    // RFC 5280 section 4.1.2.2: serial numbers are unique per issuer.
    let serial = |file: &str| shell(dir, &format!("openssl x509 -noout -serial -in {file}"));
    assert_ne!(serial("pki/client-ca.crt"), serial("before.crt"));
    let ids = "openssl x509 -noout -ext subjectKeyIdentifier,basicConstraints,extendedKeyUsage,keyUsage -in";
    shell(dir, &format!("diff <({ids} before.crt) <({ids} pki/client-ca.crt)"));
    let index: Value = serde_json::from_str(&certs(dir, &["index", "-o", "json"]).succeeds()).unwrap();
    assert_eq!(index.as_array().unwrap().iter().filter(|line| line["profile"] == "intermediate").count(), 4);
}

#[test]
fn a_new_key_keeps_the_former_ca_certificate_in_the_bundle() {
    let directory = authorities();
    let dir = directory.path();
    certs(dir, &["issue", "client", "--cn", "alice", "--out", "alice"]).succeeds();
    let key = read(dir, "pki/client-ca.key");
    let output = certs(dir, &["renew-ca", "client", "--new-key"]).succeeds();
    assert!(output.contains("--client-ca-file=pki/client-ca.bundle.crt"), "{output}");
    assert_ne!(read(dir, "pki/client-ca.key"), key);
    certs(dir, &["issue", "client", "--cn", "bob", "--out", "bob"]).succeeds();
    let verify = |name: &str, ca: &str| certs(dir, &["verify", name, "--client-ca-file", ca]).code;
    for (name, ca, code) in [
        ("alice.crt", "pki/client-ca.bundle.crt", 0),
        ("bob.crt", "pki/client-ca.bundle.crt", 0),
        ("alice.crt", "pki/client-ca.crt", 1),
        ("bob.crt", "pki/client-ca.crt", 0),
    ] {
        assert_eq!(verify(name, ca), code, "{name} {ca}");
    }
    assert!(chain_verifies(dir, "alice.crt", "pki/ca.crt") && chain_verifies(dir, "bob.crt", "pki/ca.crt"));
    // The index shows which of the two CAs signed.
    let listed = certs(dir, &["index"]).succeeds();
    let line = |name: &str| listed.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line("CN=alice").starts_with("client-ca (former)"), "{listed}");
    assert!(line("CN=bob").starts_with("client-ca  "), "{listed}");
    // A second new key: the bundle keeps all CA certificates that are still valid.
    certs(dir, &["renew-ca", "client", "--new-key"]).succeeds();
    assert_eq!(read(dir, "pki/client-ca.bundle.crt").matches("BEGIN").count(), 3);
    assert_eq!(verify("alice.crt", "pki/client-ca.bundle.crt"), 0);
}

#[test]
fn a_lost_ca_is_replaced_by_a_root_in_another_directory() {
    let directory = authorities();
    let dir = directory.path();
    shell(dir, "mkdir safe && mv pki/ca.* safe && cp safe/ca.crt pki && rm pki/serving-ca.*");
    certs(dir, &["renew-ca", "serving"]).fails(1, &["pki/ca.key", "--root-dir"]);
    certs(dir, &["renew-ca", "serving", "--root-dir", "safe"]).fails(1, &["serving-ca.crt", "--new-key"]);
    certs(dir, &["renew-ca", "serving", "--root-dir", "safe", "--new-key"]).succeeds();
    certs(dir, &["issue", "serving", "--cn", "a", "--dns", "a.test", "--out", "a"]).succeeds();
    assert!(chain_verifies(dir, "a.crt", "pki/ca.crt"));
    let subject = shell(dir, "openssl x509 -noout -subject -in pki/serving-ca.crt");
    assert!(subject.contains("portcullis serving CA"), "{subject}");
}

#[test]
fn the_root_is_renewed_with_its_key_alone() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    fs::write(dir.join("passphrase"), "correct horse\n").unwrap();
    certs(dir, &["init", "--validity", "400d", "--root-passphrase-file", "passphrase"]).succeeds();
    let encrypted = |name: &str| read(dir, name).contains("ENCRYPTED");
    assert!(encrypted("pki/ca.key") && !encrypted("pki/client-ca.key"));
    certs(dir, &["issue", "client", "--cn", "alice", "--out", "alice"]).succeeds();
    let key = read(dir, "pki/ca.key");
    let serial = || shell(dir, "openssl x509 -noout -serial -in pki/ca.crt");
    let before = serial();
    certs(dir, &["renew-ca", "root"]).fails(1, &["passphrase of pki/ca.key is needed"]);
    let renew = ["renew-ca", "root", "--passphrase-file", "passphrase"];
    let output = certs(dir, &renew).succeeds();
    assert!(output.contains("new pki/ca.crt to all verifiers"), "{output}");
    assert_eq!(read(dir, "pki/ca.key"), key);
    assert_ne!(serial(), before);
    shell(dir, "openssl x509 -noout -checkend $((3000*86400)) -in pki/ca.crt");
    assert!(chain_verifies(dir, "alice.crt", "pki/ca.crt"));
    certs(dir, &["renew-ca", "root", "--new-key"]).fails(64, &["a new root", "certs init --dir"]);
}

#[test]
fn a_ca_with_foreign_extensions_is_not_renewed() {
    let directory = authorities();
    let dir = directory.path();
    let line = "openssl req -new -key pki/client-ca.key -out r -subj '/CN=portcullis client CA' && \
                openssl x509 -req -in r -CA pki/ca.crt -CAkey pki/ca.key -days 90 -out pki/client-ca.crt -extfile \
                <(printf 'basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\n\
                extendedKeyUsage=clientAuth\nnameConstraints=critical,permitted;DNS:example.com')";
    shell(dir, line);
    let before = read(dir, "pki/client-ca.crt");
    certs(dir, &["renew-ca", "client"]).fails(1, &["pki/client-ca.crt", "name constraints"]);
    assert_eq!(read(dir, "pki/client-ca.crt"), before);
}

#[test]
fn no_ca_outlives_its_issuer() {
    let directory = tempfile::tempdir().unwrap();
    let json = certs(directory.path(), &["init", "-o", "json"]).succeeds();
    let json: Value = serde_json::from_str(&json).unwrap();
    let ends: Vec<&str> =
        json["authorities"].as_array().unwrap().iter().map(|ca| ca["notAfter"].as_str().unwrap()).collect();
    let mut sorted = ends.clone();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    sorted.dedup();
    assert_eq!(ends, sorted);
    let (root, client) = (ends[0][..4].parse::<u32>().unwrap(), ends[1][..4].parse::<u32>().unwrap());
    assert_eq!(root - client, 5);
}

#[test]
fn a_terminated_command_leaves_no_key_behind() {
    let directory = authorities();
    let dir = directory.path();
    // The index is locked, as by another command: the certificate is signed, and its key is still in memory.
    let held = fs::File::create(dir.join("pki/client-ca.index.jsonl")).unwrap();
    held.lock().unwrap();
    let mut command = command(dir, &["issue", "client", "--cn", "alice", "--out", "alice"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("client-ca.index.jsonl: waiting for another command"), "{line}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    assert_eq!(names(dir), ["pki"]);
    assert!(
        names(&dir.join("pki")).iter().all(|name| !name.starts_with('.')),
        "{:?}",
        names(&dir.join("pki"))
    );
}

#[test]
fn init_force_keeps_the_index_lines_of_concurrent_commands() {
    let directory = authorities();
    let dir = directory.path();
    let index = dir.join("pki/ca.index.jsonl");
    let held = fs::OpenOptions::new().append(true).open(&index).unwrap();
    held.lock().unwrap();
    let mut command = command(dir, &["init", "--force"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("ca.index.jsonl: waiting"), "{line}");
    let first = read(dir, "pki/ca.index.jsonl").lines().next().unwrap().to_owned();
    shell(dir, &format!("echo '{first}' >> pki/ca.index.jsonl"));
    drop(held);
    assert!(child.wait().unwrap().success());
    assert_eq!(read(dir, "pki/ca.index.jsonl").lines().count(), 7);
}
