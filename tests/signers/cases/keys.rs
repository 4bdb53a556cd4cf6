//! Keys and signatures of requests, which authority.go verifies (Go: crypto/x509, `CheckSignature`).

use testkit::ambiguous_pem::ambiguous;
use testkit::csr::Csr;
use testkit::pki::{KeyKind, SigAlg, boolean, oid, seq, tlv};

use crate::case::{Case, Expect, case};

const GROUP: &str = "keys";
const KEYS: &str = "authority.go: the request's signature is verified, its key copied";
const EXTENSIONS: &str = "authority.go: of the requested extensions, only names are copied";
const WEAK: &str = "D-csr-weak-key";

macro_rules! requests {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../requests/", $name, ".pem")))),*] };
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, kind) in [
        ("RSA 2048", KeyKind::Rsa2048),
        ("RSA 3072", KeyKind::Rsa3072),
        ("P-256", KeyKind::P256),
        ("P-384", KeyKind::P384),
        ("P-521", KeyKind::P521),
        ("Ed25519", KeyKind::Ed25519),
    ] {
        cases.push(case(GROUP, name, KEYS, &Csr::new().key(kind).cn("key")));
    }
    for (name, algorithm) in [
        ("RSA with SHA-384", SigAlg::RsaSha384),
        ("RSA with SHA-512", SigAlg::RsaSha512),
        ("RSA-PSS with SHA-256", SigAlg::PssSha256),
        ("RSA-PSS with SHA-384", SigAlg::PssSha384),
        ("RSA-PSS with SHA-512", SigAlg::PssSha512),
    ] {
        cases.push(case(GROUP, name, KEYS, &Csr::new().key(KeyKind::Rsa2048).sig(algorithm).cn("key")));
    }
    for (name, request) in requests![
        "rsa-2048-exponent-3",
        "rsa-4096",
        "rsa-2048-pss-sha256",
        "p-256-sha384",
        "p-256-sha512",
        "p-384-sha256",
        "p-384-sha512",
        "p-521-sha256",
        "p-521-sha384",
    ] {
        cases.push(case(GROUP, name, KEYS, &Csr::new()).request(request.to_owned()));
    }
    for (name, request) in requests![
        "rsa-1024",
        "rsa-1024-exponent-3",
        "rsa-2040",
        "rsa-2048-close-primes",
        "rsa-2048-roca",
        "rsa-2048-small-factor",
        "p-224",
        "rsa-2048-sha1",
        "p-256-sha1",
    ] {
        let weak = case(GROUP, name, KEYS, &Csr::new()).request(request.to_owned());
        cases.push(weak.declared(WEAK, Expect::Failed));
    }
    cases.extend(extensions());
    cases.extend(forms());
    cases
}

fn extensions() -> Vec<Case> {
    let base = || Csr::new().cn("extensions");
    let named = |name, csr: &Csr| case(GROUP, name, EXTENSIONS, csr);
    vec![
        named("requests a CA certificate", &base().extension("2.5.29.19", true, &seq(&[boolean(true)]))),
        named("requests key usages", &base().extension("2.5.29.15", true, &tlv(0x03, &[1, 0x06]))),
        named(
            "requests extended key usages",
            &base().extension("2.5.29.37", false, &seq(&[oid("1.3.6.1.5.5.7.3.1")])),
        ),
        named("requests a key identifier", &base().extension("2.5.29.14", false, &tlv(0x04, &[1, 2, 3]))),
        named(
            "requests an authority key identifier",
            &base().extension("2.5.29.35", false, &seq(&[tlv(0x80, &[9; 20])])),
        ),
        named("requests an unknown extension", &base().extension("1.2.3.4.5", false, b"\x05\x00")),
        named("requests an unknown critical extension", &base().extension("1.2.3.4.5", true, b"\x05\x00")),
        named("requests all extensions, with names", &{
            base()
                .extension("2.5.29.19", true, &seq(&[boolean(true)]))
                .extension("2.5.29.15", true, &tlv(0x03, &[1, 0x06]))
                .extension("1.2.3.4.5", true, b"\x05\x00")
                .dns("a.example")
        }),
        named("a challenge password", &base().attribute("1.2.840.113549.1.9.7", &[tlv(0x0c, b"hunter2")])),
        named(
            "an unstructured name",
            &base().attribute("1.2.840.113549.1.9.2", &[tlv(0x0c, b"name")]).dns("a"),
        ),
        named("another version of the request", &base().version(1)),
    ]
}

/// Encodings of the request.
fn forms() -> Vec<Case> {
    let pem = || Csr::new().cn("form").pem();
    // These encodings are ambiguous: kube-controller-manager signs the first block that Go finds.
    let refused = |case: Case| case.declared("D-csr-bare", Expect::Failed);
    let named = |name, request: String| {
        case(GROUP, name, "helpers.go: ParseCSR, the first block", &Csr::new()).request(request)
    };
    let with_headers = pem().replace("REQUEST-----\nM", "REQUEST-----\nProc-Type: 4\n\nM");
    let one_line = {
        let text = pem();
        let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
    };
    let harmful = Csr::new().org("system:masters").cn("attacker").pem();
    let ambiguous =
        ambiguous(&pem(), &harmful).into_iter().map(|(name, request)| refused(named(name, request)));
    let mut forms = vec![
        refused(named("text before the block", format!("my request\n{}", pem()))),
        refused(named("text after the block", format!("{}\nthat was it", pem()))),
        refused(named("two requests", format!("{}{}", pem(), Csr::new().cn("second").pem()))),
        refused(named("headers in the block", with_headers)),
        named("carriage returns", pem().replace('\n', "\r\n")),
        named("blanks and empty lines around it", format!(" \r\n\n{}\n\t\n", pem())),
        named("blanks in the content", pem().replace("\nM", "\n M\t")),
        named("one long line", one_line),
        named("no line feed at the end", pem().trim_end().to_owned()),
        refused(named(
            "a block without an end before it",
            format!("-----BEGIN CERTIFICATE-----\nAAAA\n{}", pem()),
        )),
    ];
    forms.extend(ambiguous);
    forms
}
