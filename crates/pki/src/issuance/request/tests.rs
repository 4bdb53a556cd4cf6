//! Parsing of requests, and the subjects, names and keys that remain of them.

use super::{CertificateRequest, RequestError};
use crate::issuance::signer::{KeyKind, PemKey, Signer as _};
use crate::issuance::testing::{KINDS, element, openssl, raw_request, strings, subject};

/// A request by openssl.
fn made(arguments: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (key, csr) = (path("key"), path("csr"));
    let fixed = ["req", "-new", "-nodes", "-subj", "/CN=alice/O=dev", "-keyout", &key, "-out", &csr];
    openssl(&[&fixed, arguments].concat());
    std::fs::read(csr).unwrap()
}

#[test]
fn requests_by_openssl_parse_or_fail_with_a_reason() {
    const EC: [&str; 3] = ["-newkey", "ec", "-pkeyopt"];
    let ec = |curve: &'static str, hash: &'static str| [&EC[..], &[curve, hash]].concat();
    let pss = |hash| {
        ["-newkey", "rsa:2048", hash, "-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:digest"]
    };
    let good: Vec<(Vec<&str>, &str)> = vec![
        (vec!["-newkey", "rsa:2048", "-sha256"], "RSA 2048"),
        (vec!["-newkey", "rsa:3072", "-sha512"], "RSA 3072"),
        (vec!["-newkey", "rsa:2048", "-pkeyopt", "rsa_keygen_pubexp:3", "-sha384"], "RSA 2048"),
        (pss("-sha256").to_vec(), "RSA 2048"),
        (pss("-sha384").to_vec(), "RSA 2048"),
        (pss("-sha512").to_vec(), "RSA 2048"),
        (ec("ec_paramgen_curve:P-256", "-sha256"), "ECDSA P-256"),
        (ec("ec_paramgen_curve:P-256", "-sha512"), "ECDSA P-256"),
        (ec("ec_paramgen_curve:P-384", "-sha384"), "ECDSA P-384"),
        (ec("ec_paramgen_curve:P-521", "-sha256"), "ECDSA P-521"),
        (ec("ec_paramgen_curve:P-521", "-sha512"), "ECDSA P-521"),
        (vec!["-newkey", "ed25519"], "Ed25519"),
    ];
    for (arguments, kind) in good {
        let request =
            CertificateRequest::from_pem(&made(&arguments)).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
        assert_eq!(request.public_key().to_string(), kind, "{arguments:?}");
        assert_eq!(*request.subject(), subject("alice", &["dev"]));
    }
    let bad: Vec<(Vec<&str>, bool, &str)> = vec![
        (
            vec!["-newkey", "rsa:1024", "-sha256"],
            true,
            "RSA keys of 1024 bits are not accepted: use 2048 bits or more",
        ),
        (
            vec!["-newkey", "rsa:2047", "-sha256"],
            true,
            "RSA keys of 2047 bits are not accepted: use 2048 bits or more",
        ),
        (
            ec("ec_paramgen_curve:secp224r1", "-sha256"),
            true,
            "ECDSA P-224 keys are not accepted: use P-256, P-384 or P-521",
        ),
        (ec("ec_paramgen_curve:secp256k1", "-sha256"), false, "x509: unsupported elliptic curve"),
        (
            vec!["-newkey", "rsa:2048", "-sha1"],
            true,
            "certificate requests that are signed with SHA1-RSA are not accepted: sign it with SHA-256 or better",
        ),
        (
            vec!["-newkey", "rsa:2048", "-md5"],
            true,
            "certificate requests that are signed with MD5-RSA are not accepted: sign it with SHA-256 or better",
        ),
        (
            ec("ec_paramgen_curve:P-256", "-sha1"),
            true,
            "certificate requests that are signed with ECDSA-SHA1 are not accepted: sign it with SHA-256 or better",
        ),
        (
            vec!["-newkey", "rsa:2048", "-sha224"],
            false,
            "x509: cannot verify signature: algorithm unimplemented",
        ),
        (vec!["-newkey", "ed448"], false, "x509: cannot verify signature: algorithm unimplemented"),
    ];
    for (arguments, policy, text) in bad {
        let error = CertificateRequest::from_pem(&made(&arguments)).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.is_policy()), (text, policy), "{arguments:?}");
    }
}

#[test]
fn a_request_is_one_block_alone() {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let request = CertificateRequest::from_der(&raw_request(&[0x30, 0], &[], &key)).unwrap();
    let pem = request.to_pem();
    let other = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let headers = pem.replacen("REQUEST-----\n", "REQUEST-----\nA: b\n\n", 1);
    let cases = [
        ("as it is", pem.clone(), None),
        ("CRLF", pem.replace('\n', "\r\n"), None),
        ("empty lines and blanks around it", format!("\n{pem} \n\t\r\n"), None),
        ("between text", format!("before\n{pem}after"), Some(RequestError::NotBare)),
        ("before another", format!("{pem}{other}"), Some(RequestError::NotBare)),
        ("twice", format!("{pem}{pem}"), Some(RequestError::NotBare)),
        ("with headers", headers, Some(RequestError::NotBare)),
        ("after another", format!("{other}{pem}"), Some(RequestError::NotPem)),
        (
            "of Microsoft",
            pem.replace("BEGIN C", "BEGIN NEW C").replace("END C", "END NEW C"),
            Some(RequestError::NotPem),
        ),
        ("nothing", String::new(), Some(RequestError::NotPem)),
    ];
    for (name, text, expected) in cases {
        assert_eq!(CertificateRequest::from_pem(text.as_bytes()).err(), expected, "{name}");
    }
    assert!(RequestError::NotBare.is_policy() && !RequestError::NotPem.is_policy());
    assert_eq!(RequestError::NotPem.to_string(), "PEM block type must be CERTIFICATE REQUEST");
    assert_eq!(CertificateRequest::from_pem(pem.as_bytes()).unwrap().der(), request.der());
}

/// An extensionRequest attribute: for each extension, the last arc of its OID 2.5.29.x and the content of its value.
fn asks_for(extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let extension = |(oid, value): &(u8, Vec<u8>)| {
        element(0x30, &[element(6, &[0x55, 0x1d, *oid]), element(1, &[0xff]), element(4, value)].concat())
    };
    let list = element(0x30, &extensions.iter().map(extension).collect::<Vec<_>>().concat());
    let oid = element(6, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14]);
    element(0x30, &[oid, element(0x31, &list)].concat())
}

fn names(names: &[(u8, &[u8])]) -> Vec<u8> {
    element(0x30, &names.iter().map(|(kind, name)| element(*kind, name)).collect::<Vec<_>>().concat())
}

#[test]
fn four_kinds_of_names_are_kept_and_everything_else_is_dropped() {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let read = |attributes: &[u8]| CertificateRequest::from_der(&raw_request(&[0x30, 0], attributes, &key));
    let wanted = names(&[
        (0x87, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]),
        (0x86, b"HTTPS://H.example/a b"),
        (0x82, b"B.example"),
        (0x81, b"a b"),
        (0x82, b"_a.example."),
        (0x87, &[192, 0, 2, 1]),
        (0xa0, &[6, 1, 0x2a]),
        (0x88, &[0x2a]),
    ]);
    let extensions =
        [(19, vec![0x30, 3, 1, 1, 0xff]), (15, vec![3, 2, 1, 6]), (17, wanted), (14, vec![4, 1, 1])];
    let request = read(&asks_for(&extensions)).unwrap();
    let found = request.alt_names();
    assert_eq!(found.dns, strings(&["B.example", "_a.example."]));
    assert_eq!(found.emails, strings(&["a b"]));
    let ip: std::net::IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!(found.ips, [ip, ip]);
    assert_eq!(found.uris, strings(&["https://H.example/a%20b"]));

    let dns = |name: &[u8]| (17, names(&[(0x82, name)]));
    let challenge =
        element(0x30, &[element(6, &[0x2a, 3]), element(0x31, &element(0x13, b"secret"))].concat());
    let cases: Vec<(&str, Vec<u8>, Result<usize, &str>)> = vec![
        ("no attribute", vec![], Ok(0)),
        ("another attribute", challenge.clone(), Ok(0)),
        ("a dropped kind alone", asks_for(&[(17, names(&[(0x88, &[0x2a])]))]), Ok(0)),
        (
            "an attribute that does not parse",
            [element(0x30, &[5, 0]), asks_for(&[dns(b"a")])].concat(),
            Ok(1),
        ),
        (
            "an attribute with a tag of two octets",
            [vec![0x5f, 0x25, 0], asks_for(&[dns(b"a")])].concat(),
            Err("asn1: structure error: malformed certificate request"),
        ),
        ("no value", element(0x30, &[&challenge[2..6], &[0x31, 0]].concat()), Ok(0)),
        (
            "the same extension twice",
            asks_for(&[dns(b"a"), dns(b"b")]),
            Err("x509: certificate request contains duplicate requested extensions"),
        ),
        (
            "in two attributes",
            [asks_for(&[dns(b"a")]), asks_for(&[dns(b"b")])].concat(),
            Err("x509: certificate request contains duplicate requested extensions"),
        ),
        ("not ASCII", asks_for(&[dns(b"\xff")]), Err("x509: SAN dNSName is malformed")),
        ("five octets", asks_for(&[(17, names(&[(0x87, &[0; 5])]))]), Err("x509: cannot parse IP address")),
        ("no URI", asks_for(&[(17, names(&[(0x86, b":a")]))]), Err("x509: cannot parse URI")),
        (
            "no host",
            asks_for(&[(17, names(&[(0x86, b"https://a..b")]))]),
            Err("x509: cannot parse URI: invalid domain"),
        ),
        ("no list", asks_for(&[(17, vec![5, 0])]), Err("x509: invalid subject alternative names")),
    ];
    for (name, attributes, want) in cases {
        let found =
            read(&attributes).map(|request| request.alt_names().dns.len()).map_err(|error| error.to_string());
        assert_eq!(found, want.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn a_request_must_be_signed_by_its_own_key() {
    for kind in KINDS {
        let (key, other) = (PemKey::generate(kind).unwrap(), PemKey::generate(kind).unwrap());
        let good = raw_request(&subject("alice", &[]).to_der().unwrap(), &[], &key);
        assert!(CertificateRequest::from_der(&good).is_ok(), "{kind:?}");
        let at = good.windows(5).position(|window| window == b"alice").unwrap();
        let mut changed = good.clone();
        changed[at] = b'A';
        let error = CertificateRequest::from_der(&changed).unwrap_err();
        assert!(matches!(error, RequestError::Signature(_)), "{kind:?}: {error}");
        // Replaces the key with that of another request.
        let (own, stolen) = (key.public_key(), other.public_key());
        if own.len() == stolen.len() {
            let at = good.windows(own.len()).position(|window| window == own).unwrap();
            let mut changed = good.clone();
            changed[at..at + own.len()].copy_from_slice(stolen);
            let error = CertificateRequest::from_der(&changed).unwrap_err();
            assert!(matches!(error, RequestError::Signature(_)), "{kind:?}: {error}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(matches!(CertificateRequest::from_der(&longer), Err(RequestError::Malformed(_))), "{kind:?}");
    }
}

#[test]
fn long_requests_are_rejected() {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let of = |length: usize| {
        let attribute =
            element(0x30, &[element(6, &[0x2a, 3]), element(0x31, &element(4, &vec![0; length]))].concat());
        raw_request(&[0x30, 0], &attribute, &key)
    };
    let (good, long) = (of(60_000), of(66_000));
    assert!(CertificateRequest::from_der(&good).is_ok());
    let error = CertificateRequest::from_der(&long).unwrap_err();
    assert_eq!(error, RequestError::TooLarge);
    assert!(error.is_policy());
    let pem = portcullis_go::pem::encode_pem("CERTIFICATE REQUEST", &long);
    assert_eq!(CertificateRequest::from_pem(pem.as_bytes()).unwrap_err(), RequestError::TooLarge);
    let around = "x\n".repeat(super::MAX_REQUEST_BYTES * 2 + 1);
    assert_eq!(CertificateRequest::from_pem(around.as_bytes()).unwrap_err(), RequestError::TooLarge);
}

#[test]
fn keys_are_encoded_again_without_the_elements_that_go_drops() {
    let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
    let spki = key.public_key();
    // An element after the key, which Go ignores.
    let inner = crate::x509::der::DerReader::new(spki).read(0x30).unwrap();
    let padded = element(0x30, &[inner, &[5, 0]].concat());
    let info = element(0x30, &[&[2, 1, 0, 0x30, 0], padded.as_slice(), &[0xa0, 0]].concat());
    let signature = key.sign(key.algorithm(), &info).unwrap();
    let der = crate::issuance::tbs::signed(&info, key.algorithm().identifier().unwrap(), &signature).unwrap();
    let request = CertificateRequest::from_der(&der).unwrap();
    assert_eq!(request.public_key().spki(), spki);
}

/// Writes the corpus of `fuzz/`: `cargo test --lib makes_the_corpus_of_requests -- --ignored`.
#[test]
#[ignore = "writes files; run by hand to change the corpus"]
fn makes_the_corpus_of_requests() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/csr");
    std::fs::create_dir_all(&dir).unwrap();
    let alice = subject("alice", &["ops", "dev", "dev"]).to_der().unwrap();
    let every = names(&[
        (0x82, b"a.example"),
        (0x81, b"a@b"),
        (0x87, &[192, 0, 2, 1]),
        (0x86, b"HTTPS://H.example/a b"),
        (0x88, &[0x2a]),
    ]);
    let odd = [
        element(0x31, &element(0x30, &[6, 3, 0x55, 4, 3, 0x1c, 4, 0, 0, 0, b'a'])),
        element(0x31, &element(0x30, &[6, 3, 0x55, 4, 10, 0x14, 1, 0xe9])),
        element(0x31, &element(0x30, &[6, 3, 0x55, 4, 3, 0x1e, 2, 0, b'a'])),
    ];
    let plain: &[u8] = &[];
    let cases = [
        ("rsa", KeyKind::Rsa2048, alice.clone(), plain.to_vec()),
        ("p256", KeyKind::EcdsaP256, alice.clone(), asks_for(&[(17, every.clone())])),
        (
            "p384",
            KeyKind::EcdsaP384,
            alice.clone(),
            asks_for(&[(19, vec![0x30, 3, 1, 1, 0xff]), (17, every)]),
        ),
        ("p521", KeyKind::EcdsaP521, alice, plain.to_vec()),
        ("nobody", KeyKind::Ed25519, vec![0x30, 0], asks_for(&[(17, names(&[(0x88, &[0x2a])]))])),
        ("odd_strings", KeyKind::Ed25519, element(0x30, &odd.concat()), plain.to_vec()),
    ];
    for (name, kind, subject, attributes) in cases {
        let der = raw_request(&subject, &attributes, &PemKey::generate(kind).unwrap());
        assert!(CertificateRequest::from_der(&der).is_ok(), "{name}");
        std::fs::write(dir.join(name), der).unwrap();
    }
}
