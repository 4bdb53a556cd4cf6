//! Key types and PEM blocks of key files.

use aws_lc_rs::encoding::{EcPrivateKeyRfc5915Der, Pkcs8V1Der};
use aws_lc_rs::signature::EcdsaSigningAlgorithm;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::PublicKeyData as _;

use super::*;

fn block(kind: &str, der: &[u8]) -> String {
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", STANDARD.encode(der))
}

struct Ec {
    sec1: Vec<u8>,
    pkcs8: Vec<u8>,
    public: Vec<u8>,
}

fn ec(curve: &'static EcdsaSigningAlgorithm) -> Ec {
    let pair = EcdsaKeyPair::generate(curve).unwrap();
    let sec1: EcPrivateKeyRfc5915Der<'_> = pair.private_key().as_der().unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    Ec {
        sec1: sec1.as_ref().to_vec(),
        pkcs8: pair.to_pkcs8v1().unwrap().as_ref().to_vec(),
        public: public.as_ref().to_vec(),
    }
}

struct Rsa {
    pkcs1: Vec<u8>,
    pkcs8: Vec<u8>,
    public: Vec<u8>,
}

fn rsa() -> Rsa {
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let pkcs8: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let pkcs8 = pkcs8.as_ref().to_vec();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    // The version, the algorithm and the headers of the inner key take 26 bytes.
    Rsa { pkcs1: pkcs8[26..].to_vec(), pkcs8, public: public.as_ref().to_vec() }
}

fn id(spki: &[u8]) -> String {
    VerificationKey::from_spki(spki).unwrap().id().to_owned()
}

fn ids(pem: &str) -> Result<Vec<String>, KeyFileError> {
    Ok(read(pem.as_bytes())?.iter().map(|key| key.id().to_owned()).collect())
}

#[test]
fn keys_are_found_in_blocks_of_any_type() {
    let rsa = rsa();
    let certificate = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
    let certified = certificate.signing_key.subject_public_key_info();
    let mut cases = vec![
        ("RSA, PKCS#1, private", block("RSA PRIVATE KEY", &rsa.pkcs1), id(&rsa.public)),
        ("RSA, PKCS#8, private", block("PRIVATE KEY", &rsa.pkcs8), id(&rsa.public)),
        ("RSA, public", block("PUBLIC KEY", &rsa.public), id(&rsa.public)),
        ("RSA, public, another block type", block("RSA PUBLIC KEY", &rsa.public), id(&rsa.public)),
        ("a certificate", certificate.cert.pem(), id(&certified)),
        ("a certificate, another block type", block("PUBLIC KEY", certificate.cert.der()), id(&certified)),
    ];
    let curves = [
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        &ECDSA_P384_SHA384_FIXED_SIGNING,
        &ECDSA_P521_SHA512_FIXED_SIGNING,
    ];
    for ec in curves.map(ec) {
        cases.push(("ECDSA, SEC 1, private", block("EC PRIVATE KEY", &ec.sec1), id(&ec.public)));
        cases.push(("ECDSA, public", block("PUBLIC KEY", &ec.public), id(&ec.public)));
    }
    for (name, pem, expected) in cases {
        assert_eq!(ids(&pem), Ok(vec![expected]), "{name}");
    }
}

#[test]
fn several_keys_keep_their_order_and_other_blocks_are_skipped() {
    let (first, second) = (ec(&ECDSA_P256_SHA256_FIXED_SIGNING), ec(&ECDSA_P384_SHA384_FIXED_SIGNING));
    let pem = [
        "# keys\n",
        &block("EC PARAMETERS", &[6, 0]),
        &block("EC PRIVATE KEY", &first.sec1),
        "-----BEGIN PUBLIC KEY-----\n!!!!\n-----END PUBLIC KEY-----\n",
        &block("PRIVATE KEY", &second.pkcs8),
        &block("PUBLIC KEY", &second.public).replace("KEY-----\nM", "KEY-----\nComment: ours\n\nM"),
        &block("EC PRIVATE KEY", &first.sec1),
    ]
    .concat();
    let [first, second] = [&first, &second].map(|key| id(&key.public));
    assert_eq!(ids(&pem), Ok(vec![first.clone(), second, first]));
}

#[test]
fn keys_that_kube_apiserver_does_not_read_are_refused() {
    let ec = ec(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut trailing = ec.public.clone();
    trailing.push(0);
    let cases = [
        ("empty", String::new()),
        ("no PEM", "some text".to_owned()),
        ("an ECDSA key in PKCS#8", block("PRIVATE KEY", &ec.pkcs8)),
        ("trailing data after the key", block("PUBLIC KEY", &trailing)),
        ("another kind of key, private", ed25519.serialize_pem()),
        ("another kind of key, public", ed25519.public_key_pem()),
    ];
    for (name, pem) in cases {
        assert_eq!(ids(&pem), Err(KeyFileError::NoKeys), "{name}");
    }
}

/// Existing tokens name their key by this ID.
#[test]
fn ids_are_those_of_kube_apiserver() {
    let pem = "-----BEGIN PUBLIC KEY-----\n\
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1x7Q09wEuCU+zSIvRW9JUJMfxmNN\n\
vrf8SEpcklNKrZHFFYY5638qSymSFPk19csKdbA5xHXXbSC1Jmn5YX1hyQ==\n\
-----END PUBLIC KEY-----\n";
    assert_eq!(ids(pem), Ok(vec!["illbDCETdXZXoastNAOa3hHKg07YlCk0AM_Bkl0_-TM".to_owned()]));
}
