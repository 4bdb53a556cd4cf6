//! The files of `init`; no command loses a file or leaves one half written.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{authorities, certs, command, mode, names, normal, shell};

const MADE: [&str; 9] = [
    "ca.crt",
    "ca.index.jsonl",
    "ca.key",
    "client-ca.crt",
    "client-ca.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "serving-ca.crt",
    "serving-ca.key",
];

#[test]
fn init_creates_cas_that_openssl_reads() {
    let directory = tempfile::tempdir().unwrap();
    let output = certs(directory.path(), &["init", "--name", "portcullis"]);
    insta::assert_snapshot!("certs_init", output.normal());
    let pki = directory.path().join("pki");
    assert_eq!((names(&pki), mode(&pki)), (MADE.map(str::to_owned).to_vec(), 0o700));
    for name in MADE {
        assert_eq!(mode(&pki.join(name)), 0o600, "{name}");
    }
    for (name, below, purpose) in
        [("client", 0, "Client"), ("serving", 0, "Server"), ("front-proxy", 0, "Client")]
    {
        shell(&pki, &format!("openssl verify -x509_strict -CAfile ca.crt {name}-ca.crt"));
        let text = shell(&pki, &format!("openssl x509 -noout -text -in {name}-ca.crt"));
        for part in [
            format!("CA:TRUE, pathlen:{below}"),
            "Certificate Sign, CRL Sign".to_owned(),
            format!("TLS Web {purpose} Authentication"),
            format!("CN = portcullis {name} CA"),
        ] {
            assert!(text.replace("CN=", "CN = ").contains(&part), "{name}: {part} is not in {text}");
        }
    }
    let root = shell(&pki, "openssl x509 -noout -text -in ca.crt");
    assert!(root.contains("CA:TRUE, pathlen:1"), "{root}");
    // Each key matches its certificate.
    let line =
        "diff <(openssl pkey -in client-ca.key -pubout) <(openssl x509 -in client-ca.crt -noout -pubkey)";
    shell(&pki, line);
}

#[test]
fn init_has_json_output() {
    let directory = tempfile::tempdir().unwrap();
    let output =
        certs(directory.path(), &["init", "--name", "example", "--validity", "90d", "--output", "json"]);
    let json: Value = serde_json::from_str(&output.succeeds()).unwrap();
    assert_eq!(json["authorities"][0]["keyEncrypted"], false);
    let subjects: Vec<_> = json["authorities"].as_array().unwrap().iter().map(|ca| &ca["subject"]).collect();
    let expected = ["root", "client", "serving", "front-proxy"].map(|kind| format!("CN=example {kind} CA"));
    assert_eq!(subjects, expected.iter().collect::<Vec<_>>());
    let end = shell(directory.path(), "openssl x509 -noout -checkend $((89*86400)) -in pki/client-ca.crt");
    assert!(end.contains("will not expire"), "{end}");
    shell(directory.path(), "! openssl x509 -noout -checkend $((91*86400)) -in pki/client-ca.crt");
    let index: Value =
        serde_json::from_str(&certs(directory.path(), &["index", "--output", "json"]).succeeds()).unwrap();
    assert_eq!(index.as_array().unwrap().len(), 3);
    assert_eq!(index[0]["profile"], "intermediate");
    for (at, name) in ["client-ca", "serving-ca", "front-proxy-ca"].into_iter().enumerate() {
        let serial = shell(directory.path(), &format!("openssl x509 -noout -serial -in pki/{name}.crt"));
        let serial = serial.trim().trim_start_matches("serial=").to_ascii_lowercase();
        let listed = index[at]["serial"].as_str().unwrap();
        assert_eq!(listed.trim_start_matches("00"), serial, "{name}");
    }
}

/// Verifiers find a CRL by the name of its CA.
#[test]
fn two_installations_have_cas_of_different_names() {
    let directory = tempfile::tempdir().unwrap();
    let subjects = ["one", "other"].map(|dir| {
        let json = certs(directory.path(), &["init", "--dir", dir, "-o", "json"]).succeeds();
        let json: Value = serde_json::from_str(&json).unwrap();
        json["authorities"][1]["subject"].as_str().unwrap().to_owned()
    });
    let pattern = regex::Regex::new("^CN=portcullis-[0-9a-f]{6} client CA$").unwrap();
    assert!(subjects.iter().all(|subject| pattern.is_match(subject)), "{subjects:?}");
    assert_ne!(subjects[0], subjects[1]);
    // A renewed CA keeps its name.
    certs(directory.path(), &["renew-ca", "client", "--dir", "one", "--new-key"]).succeeds();
    let renewed =
        shell(directory.path(), "openssl x509 -noout -subject -nameopt RFC2253 -in one/client-ca.crt");
    assert_eq!(renewed.trim(), format!("subject={}", subjects[0]));
}

#[test]
fn every_kind_of_key_can_be_generated() {
    for (kind, algorithm) in [
        ("ecdsa-p256", "prime256v1"),
        ("ecdsa-p384", "secp384r1"),
        ("rsa-3072", "3072 bit"),
        ("rsa-4096", "4096 bit"),
        ("ed25519", "ED25519"),
    ] {
        // One set of CAs for every kind saves the CPU time of more RSA keys.
        let directory = authorities();
        if !kind.starts_with("rsa") {
            certs(directory.path(), &["init", "--key-type", kind, "--dir", "other"]).succeeds();
            shell(directory.path(), "openssl verify -CAfile other/ca.crt other/client-ca.crt");
        }
        let issue = ["issue", "client", "--cn", "alice", "--out", "alice", "--key-type", kind];
        certs(directory.path(), &issue).succeeds();
        let key = shell(directory.path(), "openssl pkey -in alice.key -noout -text");
        assert!(key.contains(algorithm), "{kind}: {algorithm} is not in {key}");
        shell(directory.path(), "openssl verify -partial_chain -CAfile pki/client-ca.crt alice.crt");
        let usage = shell(directory.path(), "openssl x509 -noout -ext keyUsage -in alice.crt");
        assert_eq!(usage.contains("Key Encipherment"), kind.starts_with("rsa"), "{kind}: {usage}");
    }
}

#[test]
fn nothing_is_overwritten_without_force() {
    let directory = authorities();
    let all = || MADE.map(|name| fs::read(directory.path().join("pki").join(name)).unwrap());
    let before = all();
    certs(directory.path(), &["init"]).fails(1, &["pki/ca.crt: the file already exists", "--force"]);
    assert_eq!(all(), before);
    fs::remove_file(directory.path().join("pki/ca.crt")).unwrap();
    certs(directory.path(), &["init"]).fails(1, &["pki/ca.key: the file already exists"]);
    assert_eq!(names(&directory.path().join("pki")), MADE[1..]);
    certs(directory.path(), &["init", "--force"]).succeeds();
    assert_ne!(all()[2], before[2]);
    // The old CAs are still listed: certificates that they signed may be in use.
    let index = fs::read_to_string(directory.path().join("pki/ca.index.jsonl")).unwrap();
    assert_eq!(index.lines().count(), 6, "{index}");

    let issue = ["issue", "client", "--cn", "alice", "--out", "alice"];
    certs(directory.path(), &issue).succeeds();
    let before = fs::read(directory.path().join("alice.key")).unwrap();
    fs::remove_file(directory.path().join("alice.crt")).unwrap();
    certs(directory.path(), &issue).fails(1, &["alice.key: the file already exists"]);
    assert_eq!(names(directory.path()), ["alice.key", "pki"]);
    assert_eq!(fs::read(directory.path().join("alice.key")).unwrap(), before);
    certs(directory.path(), &[&issue[..], &["--force"]].concat()).succeeds();
    assert_ne!(fs::read(directory.path().join("alice.key")).unwrap(), before);
}

#[test]
fn a_failed_init_leaves_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    certs(directory.path(), &["init", "--dir", "file"]).fails(1, &["file"]);
    certs(directory.path(), &["init", "--passphrase-file", "none"]).fails(1, &["--passphrase-file none"]);
    assert_eq!(names(directory.path()), ["file"]);
}

#[test]
fn keys_are_encrypted_with_a_passphrase_that_is_never_an_argument() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    fs::write(dir.join("passphrase"), "correct horse\nbattery\n").unwrap();
    fs::write(dir.join("wrong"), "battery\n").unwrap();
    fs::write(dir.join("empty"), "\n").unwrap();
    certs(dir, &["init", "--passphrase-file", "empty"]).fails(1, &["the first line is empty"]);
    let output = certs(dir, &["init", "--passphrase-file", "passphrase"]).succeeds();
    assert!(output.contains("are encrypted"), "{output}");
    for name in ["ca", "client-ca", "serving-ca", "front-proxy-ca"] {
        let key = fs::read_to_string(dir.join(format!("pki/{name}.key"))).unwrap();
        assert!(key.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"), "{key}");
        shell(dir, &format!("openssl pkey -in pki/{name}.key -passin 'pass:correct horse' -noout"));
    }
    let issue = ["issue", "client", "--cn", "alice", "--out", "alice"];
    certs(dir, &issue).fails(1, &["passphrase of pki/client-ca.key", "--passphrase-file or --passphrase-fd"]);
    let wrong = certs(dir, &[&issue[..], &["--passphrase-file", "wrong"]].concat());
    let wrong = wrong.fails(1, &["pki/client-ca.key", "passphrase is wrong"]);
    assert!(!wrong.contains("battery"), "{wrong}");
    assert_eq!(names(dir), ["empty", "passphrase", "pki", "wrong"]);
    certs(dir, &[&issue[..], &["--passphrase-file", "passphrase"]].concat()).succeeds();

    // The passphrase from a file descriptor of the shell.
    let portcullis = crate::gateway::PORTCULLIS;
    let rest = "certs issue client --cn bob --out bob --passphrase-fd 3 3<passphrase";
    shell(dir, &format!("{portcullis} {rest}"));
    certs(dir, &[&issue[..], &["--passphrase-fd", "97"]].concat()).fails(1, &["--passphrase-fd /dev/fd/97"]);
    // Never from an argument.
    certs(dir, &[&issue[..], &["--passphrase", "correct horse"]].concat()).fails(64, &["--passphrase"]);
    // A prompt needs a terminal.
    certs(dir, &["init", "--dir", "third", "--passphrase"]).fails(1, &["there is no terminal"]);
}

#[test]
fn a_certificate_that_cannot_be_recorded_is_not_written() {
    let directory = authorities();
    let index = directory.path().join("pki/client-ca.index.jsonl");
    fs::write(&index, "not an entry\n").unwrap();
    let issue = ["issue", "client", "--cn", "alice", "--out", "alice"];
    certs(directory.path(), &issue).fails(1, &["pki/client-ca.index.jsonl: line 1 is not an entry"]);
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    certs(directory.path(), &issue)
        .fails(1, &["pki/client-ca.index.jsonl", "cannot be recorded are not issued"]);
    assert_eq!(names(directory.path()), ["pki"]);
}

#[test]
fn the_index_lists_signed_certificates() {
    let directory = authorities();
    let empty = certs(directory.path(), &["index", "--ca-cert", "pki/client-ca.crt"]).succeeds();
    assert_eq!(empty, "no certificates signed yet\n");
    certs(directory.path(), &["issue", "client", "--cn", "alice", "-O", "dev", "--out", "alice"]).succeeds();
    let serve = ["issue", "serving", "--cn", "gateway", "--dns", "gateway.test", "--out", "gateway"];
    certs(directory.path(), &serve).succeeds();
    let index = directory.path().join("pki/client-ca.index.jsonl");
    assert_eq!(mode(&index), 0o600);
    insta::assert_snapshot!("certs_index", normal(&certs(directory.path(), &["index"]).succeeds()));
    let entry: Value = serde_json::from_str(&fs::read_to_string(&index).unwrap()).unwrap();
    let sha256 = shell(directory.path(), "openssl x509 -outform der -in alice.crt | sha256sum");
    assert_eq!(entry["sha256"], sha256.split(' ').next().unwrap());
    assert_eq!(entry["profile"], "client");
}

#[test]
fn the_index_of_a_missing_ca_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    certs(directory.path(), &["index", "--ca-cert", "nope.crt"]).fails(1, &["nope.crt: there is no such CA"]);
}

#[test]
fn an_unwritable_directory_is_not_reported_as_missing() {
    let directory = authorities();
    let issue = ["issue", "client", "--cn", "a", "--out", "/proc/x"];
    let output = certs(directory.path(), &issue).fails(1, &["cannot create a file in /proc"]);
    assert!(!output.contains("create it first"), "{output}");
}

#[test]
fn a_certificate_that_is_replaced_stays_readable() {
    let directory = authorities();
    let issue = ["issue", "client", "--cn", "alice", "--out", "alice", "--force"];
    certs(directory.path(), &issue).succeeds();
    shell(
        directory.path(),
        "chmod 644 alice.crt alice.key; mkdir real; mv alice.crt real; ln -s real/alice.crt .",
    );
    certs(directory.path(), &issue).succeeds();
    assert_eq!(mode(&directory.path().join("real/alice.crt")), 0o644);
    assert!(directory.path().join("alice.crt").is_symlink());
    // The key is readable by its group at most, whatever its mode was.
    assert_eq!(mode(&directory.path().join("alice.key")), 0o640);
}

#[test]
fn terminal_escapes_in_requests_are_not_printed() {
    let directory = authorities();
    let line = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout a.key -out a.csr \
                -utf8 -subj $'/CN=a\\e[31mlice\\u202e'";
    shell(directory.path(), line);
    let mut output = certs(directory.path(), &["inspect", "a.csr"]);
    let signed = certs(directory.path(), &["sign", "a.csr", "--profile", "client"]);
    let listed = certs(directory.path(), &["index"]);
    output.out += &(signed.out + &signed.err + &listed.out);
    assert!(output.out.contains("[31mlice"), "{}", output.out);
    assert!(!output.out.contains(['\u{1b}', '\u{202e}']), "{:?}", output.out);
}

#[test]
fn two_commands_at_once_do_not_write_the_same_file() {
    let directory = authorities();
    let issue = ["issue", "client", "--cn", "alice", "--out", "alice"];
    let started: Vec<_> = (0..4)
        .map(|_| {
            let mut command = command(directory.path(), &issue);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let ended: Vec<_> = started.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert_eq!(ended.iter().filter(|output| output.status.success()).count(), 1);
    shell(
        directory.path(),
        "diff <(openssl pkey -in alice.key -pubout) <(openssl x509 -in alice.crt -noout -pubkey)",
    );
}

#[test]
fn a_name_of_one_file_is_that_of_both_and_a_dash_is_standard_output_where_there_is_one_file() {
    let directory = authorities();
    let dir = directory.path();
    let issue = |out: &str| certs(dir, &["issue", "client", "--cn", "alice", "--out", out]);
    issue("alice.crt").succeeds();
    assert_eq!(names(dir), ["alice.crt", "alice.key", "pki"]);
    issue("alice.key").fails(1, &["alice.crt: the file already exists"]);
    issue("-").fails(64, &["--out -", "certs sign"]);
    shell(dir, "openssl req -new -key alice.key -subj /CN=alice -out alice.csr");
    let sign = |arguments: &[&str]| certs(dir, &[&["sign", "--profile", "client"], arguments].concat());
    let printed = sign(&["alice.csr", "--out", "-"]);
    assert_eq!((printed.code, printed.out.matches("BEGIN CERTIFICATE").count()), (0, 2), "{}", printed.err);
    assert!(printed.out.starts_with("-----BEGIN") && printed.err.starts_with("subject "), "{printed:?}");
    let portcullis = crate::gateway::PORTCULLIS;
    let line = format!("{portcullis} certs sign - --profile client < alice.csr 2> report > second.crt");
    shell(dir, &format!("{line} && openssl verify -partial_chain -CAfile pki/client-ca.crt second.crt"));
    let kubeconfig = ["issue", "client", "--cn", "a", "--kubeconfig-out", "-", "--server", "https://a.test"];
    certs(dir, &kubeconfig).fails(1, &["-: this command writes a file"]);
    certs(dir, &["revoke", "--crl", "-"]).fails(1, &["-: this command writes a file"]);
    assert_eq!(names(dir), ["alice.crt", "alice.csr", "alice.key", "pki", "report", "second.crt"]);
}

#[test]
fn files_without_an_end_are_an_error_and_a_pipe_of_the_shell_is_read() {
    let directory = authorities();
    let dir = directory.path();
    certs(dir, &["issue", "client", "--cn", "alice", "--out", "alice"]).succeeds();
    for arguments in [
        &["inspect", "/dev/zero"][..],
        &["sign", "/dev/zero", "--profile", "client"],
        &["issue", "client", "--cn", "a", "--out", "a", "--ca-cert", "/dev/zero", "--ca-key", "/dev/zero"],
        &["revoke", "/dev/zero", "--crl", "c"],
        &["init", "--dir", "other", "--passphrase-file", "/dev/zero"],
    ] {
        certs(dir, arguments).fails(1, &["/dev/zero: is a device, not a regular file"]);
    }
    let portcullis = crate::gateway::PORTCULLIS;
    let error = shell(dir, &format!("! {portcullis} certs inspect - < /dev/zero 2>&1"));
    assert!(error.contains("-: is larger than 16 MiB"), "{error}");
    let printed = shell(dir, &format!("{portcullis} certs inspect <(cat alice.crt)"));
    assert!(printed.contains("subject      CN=alice"), "{printed}");
    // A device in place of a file, behind a link.
    fs::remove_file(dir.join("alice.crt")).unwrap();
    std::os::unix::fs::symlink("/dev/null", dir.join("alice.crt")).unwrap();
    let issue = ["issue", "client", "--cn", "alice", "--out", "alice", "--force"];
    certs(dir, &issue).fails(1, &["/dev/null: it is a device"]);
}

/// Only root can make files of other users.
#[test]
fn a_link_of_another_user_in_a_shared_directory_is_not_followed() {
    if shell(Path::new("/"), "id -u").trim() != "0" {
        return;
    }
    let directory = authorities();
    let dir = directory.path();
    shell(
        dir,
        "mkdir -m 1777 shared; echo precious > file; ln -s ../file shared/alice.crt; ln -s .. shared/up",
    );
    shell(dir, "chown -h 1001 shared/alice.crt shared/up");
    let issue = |out: &str| certs(dir, &["issue", "client", "--cn", "alice", "--force", "--out", out]);
    issue("shared/alice").fails(1, &["shared/alice.crt: it is a symbolic link of the user 1001"]);
    issue("shared/up/file").fails(1, &["shared/up: it is a symbolic link of the user 1001"]);
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "precious\n");
    assert_eq!(names(&dir.join("shared")), ["alice.crt", "up"]);
    shell(dir, "chown -h 0 shared/alice.crt");
    issue("shared/alice").succeeds();
    assert!(fs::read_to_string(dir.join("file")).unwrap().starts_with("-----BEGIN"));
}

/// A group shares the CA: its members can place links and FIFOs in the directory.
#[test]
fn the_records_of_a_ca_are_not_written_through_a_link_of_another_user() {
    if shell(Path::new("/"), "id -u").trim() != "0" {
        return;
    }
    let directory = authorities();
    let dir = directory.path();
    certs(dir, &["issue", "client", "--cn", "alice", "--out", "alice"]).succeeds();
    shell(
        dir,
        "chmod 770 pki; mv pki/client-ca.index.jsonl index; ln -s ../startup pki/client-ca.index.jsonl; \
         ln -s ../startup pki/client-ca.revoked.jsonl; chown -h 1001 pki/client-ca.*.jsonl",
    );
    let issue = ["issue", "client", "--cn", "bob", "--out", "bob"];
    certs(dir, &issue).fails(1, &["pki/client-ca.index.jsonl: it is a symbolic link of the user 1001"]);
    assert!(!dir.join("startup").exists() && !dir.join("bob.crt").exists());
    shell(dir, "mv index pki/client-ca.index.jsonl");
    let revoke = ["revoke", "alice.crt", "--deny-list", "denied"];
    certs(dir, &revoke).fails(1, &["pki/client-ca.revoked.jsonl: it is a symbolic link of the user 1001"]);
    assert!(!dir.join("startup").exists() && !dir.join("denied").exists());
    for (record, arguments) in [("index", &issue[..]), ("revoked", &revoke)] {
        shell(dir, &format!("rm pki/client-ca.{record}.jsonl; mkfifo pki/client-ca.{record}.jsonl"));
        certs(dir, arguments).fails(1, &[&format!("pki/client-ca.{record}.jsonl: is a FIFO")]);
        shell(dir, &format!("rm pki/client-ca.{record}.jsonl"));
    }
}

#[test]
fn keys_that_all_can_read_and_cas_that_all_can_replace_are_warned_about() {
    let directory = authorities();
    let dir = directory.path();
    let issue = ["issue", "client", "--cn", "alice", "--out", "alice", "--force"];
    certs(dir, &issue).succeeds();
    shell(dir, "chmod 644 pki/client-ca.key");
    let readable = "every user of this machine can read this key (mode 0644)";
    let warned = |output: super::CommandOutput, text: &str| {
        assert_eq!((output.code, output.err.contains(text)), (0, true), "{text}: {output:?}");
    };
    warned(certs(dir, &issue), readable);
    warned(certs(dir, &["revoke", "--crl", "crl"]), "warning: pki/client-ca.key: every user");
    let inspected = certs(dir, &["inspect", "pki/client-ca.key"]).succeeds();
    assert!(inspected.contains("warning  pki/client-ca.key") && inspected.contains(readable), "{inspected}");
    shell(dir, "chmod 600 pki/client-ca.key; chmod 777 pki");
    let replaceable = "every user of this machine can replace files in pki (mode 0777)";
    warned(certs(dir, &issue), replaceable);
    warned(certs(dir, &["renew-ca", "client"]), replaceable);
    warned(certs(dir, &["init", "--force"]), replaceable);
    shell(dir, "chmod 770 pki");
    warned(certs(dir, &issue), "every member of the group can replace files in pki (mode 0770)");
    shell(dir, "chmod 1777 pki");
    let quiet = certs(dir, &issue);
    assert!(quiet.code == 0 && !quiet.err.contains("can replace files"), "{quiet:?}");
}
