//! Creates the CA of `src/fuzzing/authority/`, whose keys are never written, with valid and invalid certificates:
//! `cargo test --test it -- --ignored makes_a_new_authority`.

use std::path::PathBuf;

use testkit::crl::CrlBuilder;
use testkit::pki::{self, Ca, Issued, KeyKind, SERVER_AUTH, SigAlg};

#[test]
#[ignore = "writes another authority, and the corpus that goes with it"]
fn makes_a_new_authority() {
    const NOW: i64 = 1_767_225_600;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let write =
        |dir: &str, name: &str, bytes: &[u8]| std::fs::write(root.join(dir).join(name), bytes).unwrap();
    let presented = |issued: &Issued| issued.chain.iter().flat_map(|der| der.to_vec()).collect::<Vec<u8>>();

    let main = Ca::new("root");
    let (rsa, edwards) = (Ca::with_key("rsa", KeyKind::Rsa2048), Ca::with_key("edwards", KeyKind::Ed25519));
    let permitted: pki::Subtrees<'_> = &[(2, b"example.com")];
    let middle = main.build_intermediate("middle").name_constraints(permitted, &[]).path_len(0).issue_ca();
    let bob = || middle.leaf().cn("bob").org("b").org("a").uid("42").san_dns("bob.example.com");
    let good = [
        ("alice", main.leaf().cn("alice").issue()),
        ("bob", bob().issue()),
        ("carol", rsa.leaf().cn("carol").san_ip([127, 0, 0, 1].into()).issue()),
        ("dave", edwards.leaf().cn("dave").v1().issue()),
    ];
    for (name, issued) in &good {
        write("src/fuzzing/authority", &format!("{name}.der"), issued.leaf());
        write("fuzz/corpus/x509", name, &presented(issued));
    }
    write("src/fuzzing/authority", "root.der", &main.cert);
    write("src/fuzzing/authority", "middle.der", &middle.cert);
    let pem = [&main, &rsa, &edwards].map(Ca::cert_pem);
    write("src/fuzzing/authority", "roots", pem.concat().as_bytes());
    write("fuzz/corpus/pem_bundle", "roots", pem.concat().as_bytes());
    write("fuzz/corpus/pem_bundle", "root_twice", [&pem[0], &pem[0]].map(String::as_str).concat().as_bytes());
    let text = format!(
        "Subject: root\n\n{}",
        pem[2].replace("BEGIN CERTIFICATE-----\n", "BEGIN CERTIFICATE-----\nA: b\n\n")
    );
    write("fuzz/corpus/pem_bundle", "headers", format!("{text}{}", pem[0]).as_bytes());
    write("fuzz/corpus/pem_bundle", "cut", format!("{}\n{}", pem[0].get(..90).unwrap(), pem[2]).as_bytes());
    write("fuzz/corpus/pem_bundle", "broken", pem[0].replacen("MII", "MIJ", 1).as_bytes());
    write("fuzz/corpus/pem_bundle", "no_certificate", pki::pem("X509 CRL", &[0x30, 0]).as_bytes());

    let other = Ca::new("root");
    let deep = middle.build_intermediate("deep").issue_ca();
    let bad = [
        ("bad_expired", main.leaf().cn("eve").expired(NOW)),
        ("bad_early", main.leaf().cn("eve").not_yet_valid(NOW)),
        ("bad_usage", main.leaf().cn("eve").eku(&[SERVER_AUTH])),
        ("bad_critical", main.leaf().cn("eve").unknown_critical()),
        ("bad_signature", main.leaf().cn("eve").corrupt_signature()),
        ("bad_name", middle.leaf().cn("eve").san_dns("example.org")),
        ("bad_depth", deep.leaf().cn("eve")),
        ("bad_authority", other.leaf().cn("eve")),
        ("bad_algorithm", rsa.leaf().cn("eve").sig(SigAlg::RsaSha1)),
        (
            "bad_subject",
            main.leaf().attr(pki::CN, pki::string::BMP, b"\xd8\x00").cn("eve").uid("1").uid("2").expired(NOW),
        ),
    ];
    for (name, builder) in bad {
        write("fuzz/corpus/x509", name, &presented(&builder.issue()));
    }
    // Signed by a key that is not a CA's.
    let by_alice = main.leaf().cn("eve").raw_issuer(Vec::new()).with_key(other.key.clone()).issue();
    write("fuzz/corpus/x509", "bad_issuer", &[presented(&by_alice), presented(&good[0].1)].concat());
    write("fuzz/corpus/x509", "root", &main.cert);
    write("fuzz/corpus/x509", "middle", &middle.cert);
}

#[test]
#[ignore = "writes another authority of CRLs, and the corpus that goes with it"]
fn makes_new_crls() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let write =
        |dir: &str, name: &str, bytes: &[u8]| std::fs::write(root.join(dir).join(name), bytes).unwrap();
    let (ca, other) = (Ca::new("crls"), Ca::new("crls"));
    let eve = ca.leaf().cn("eve").issue();
    let empty = CrlBuilder::new(&ca).der();
    let list = |ca: &Ca| CrlBuilder::new(ca).number(Some(2)).revoke(eve.leaf());
    let revoked = list(&ca).der();
    write("src/fuzzing/authority", "crl-ca.der", &ca.cert);
    write("src/fuzzing/authority", "crl-empty.der", &empty);
    write("src/fuzzing/authority", "crl-revoked.der", &revoked);
    let both = [&empty, &revoked].map(|crl| pki::pem("X509 CRL", crl)).concat();
    let damaged = both.replacen("MII", "MIJ", 1);
    for (name, file) in [
        ("empty", empty.as_slice()),
        ("revoked", &revoked),
        ("both", both.as_bytes()),
        ("both_twice", [&both, &both].map(String::as_str).concat().as_bytes()),
        ("bad_pem", damaged.as_bytes()),
        ("bad_signer", &list(&other).der()),
        ("bad_signature", &list(&ca).corrupt_signature().der()),
    ] {
        write("fuzz/corpus/crls", name, file);
    }
}
