//! Cases of Kubernetes' `bootstrapsigner_test.go` and of kubeadm's `discovery/token` tests.

use std::collections::BTreeMap;

use super::*;

const SIGNATURE: &str =
    "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..QSxpUG7Q542CirTI2ECPSZjvBOJURUW5a7XqFpNI958";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_signing_token_has_a_signature_and_no_other_token_has_one() {
    let id = TokenId::parse("abc123").unwrap();
    let one = BTreeMap::from([(id.clone(), &b"tokenSecret"[..])]);
    let none = BTreeMap::new();
    let payload = ("kubeconfig", "payload");
    let (good, old) = (("jws-kubeconfig-abc123", SIGNATURE), ("jws-kubeconfig-abc123", "old signature"));
    for (case, data, keys, expected) in [
        ("no data", map(&[]), &one, None),
        ("signed", map(&[payload]), &one, Some(map(&[payload, good]))),
        ("already signed", map(&[payload, good]), &one, None),
        ("signed otherwise", map(&[payload, old]), &one, Some(map(&[payload, good]))),
        ("no token", map(&[payload, old]), &none, Some(map(&[payload]))),
        ("no token, no signature", map(&[payload]), &none, None),
        (
            "a stale one beside",
            map(&[payload, good, ("jws-kubeconfig-def456", "x")]),
            &one,
            Some(map(&[payload, good])),
        ),
        ("a key without an id", map(&[payload, ("jws-kubeconfig-", "x")]), &none, Some(map(&[payload]))),
        (
            "other keys stay",
            map(&[payload, ("other", "x"), old]),
            &none,
            Some(map(&[payload, ("other", "x")])),
        ),
        ("nothing to sign: stale ones stay", map(&[old]), &none, None),
        ("nothing to sign: none is made", map(&[("other", "x")]), &one, None),
    ] {
        assert_eq!(wanted(&data, keys), expected, "{case}");
    }
    let empty = wanted(&map(&[("kubeconfig", "")]), &one).unwrap();
    assert!(jws::verify(&empty["jws-kubeconfig-abc123"], "", &id, b"tokenSecret"), "an empty text is signed");
}

#[test]
fn only_a_kubeconfig_with_a_valid_signature_is_trusted() {
    let token = BootstrapToken::parse("abc123.0123456789abcdef").unwrap();
    let payload = "apiVersion: v1\nkind: Config\n";
    let signature = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..qTvWXImTCcLAxj6nw53xOmdsSzLP1_zffoBVin_NQD4";
    let key = "jws-kubeconfig-abc123";
    let id = token.id.clone();
    for (data, expected) in [
        (map(&[("kubeconfig", payload), (key, signature)]), Ok(payload)),
        (map(&[("kubeconfig", payload), (key, SIGNATURE)]), Err(ClusterInfoError::BadSignature(id.clone()))),
        (
            map(&[("kubeconfig", "payload"), (key, signature)]),
            Err(ClusterInfoError::BadSignature(id.clone())),
        ),
        (map(&[("kubeconfig", payload), (key, "")]), Err(ClusterInfoError::NotSigned(id.clone()))),
        (
            map(&[("kubeconfig", payload), ("jws-kubeconfig-abc124", signature)]),
            Err(ClusterInfoError::NotSigned(id.clone())),
        ),
        (map(&[("kubeconfig", "")]), Err(ClusterInfoError::NoKubeconfig)),
        (map(&[(key, signature)]), Err(ClusterInfoError::NoKubeconfig)),
    ] {
        assert_eq!(verified_kubeconfig(&data, &token), expected);
    }
}

#[test]
fn a_kubeconfig_is_written_like_client_go_and_parses_again() {
    let ca = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
    let server: Uri = "https://10.0.0.1:6443".parse().unwrap();
    // client-go: what clientcmd.Write gives for this cluster
    let text = kubeconfig(&server, b"hello");
    let expected = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: aGVsbG8=\n    server: \
                    https://10.0.0.1:6443\n  name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\n\
                    users: null\n";
    assert_eq!(text, expected);
    assert_eq!(ClusterLocation::of(&text), Err(ClusterInfoError::Malformed("has no CA certificate")));
    let prefix: Uri = "https://gateway.test/prod".parse().unwrap();
    let read = ClusterLocation::of(&kubeconfig(&prefix, ca.cert.pem().as_bytes())).unwrap();
    assert_eq!(read.server, "https://gateway.test/prod");
    assert_eq!(
        (read.authorities.as_slice(), read.ca_pem),
        (&[ca.cert.der().clone()][..], ca.cert.pem().into())
    );
}

#[test]
fn the_unnamed_cluster_precedes_that_of_the_context() {
    let ca = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
    let ca = STANDARD.encode(ca.cert.pem());
    let cluster = |name: &str| {
        format!(
            "- {{name: '{name}', cluster: {{server: 'https://{name}x', certificate-authority-data: {ca}}}}}\n"
        )
    };
    let context = "contexts: [{name: c, context: {cluster: b}}]\ncurrent-context: c\n";
    for (text, expected) in [
        (format!("clusters:\n{}{}{context}", cluster("b"), cluster("")), Ok("https://x")),
        (format!("clusters:\n{}{}{context}", cluster("a"), cluster("b")), Ok("https://bx")),
        (format!("clusters:\n{}{context}", cluster("a")), Err(ClusterInfoError::Malformed("has no cluster"))),
        (format!("clusters:\n{}", cluster("b")), Err(ClusterInfoError::Malformed("has no cluster"))),
        (
            "clusters: [{name: '', cluster: {}}]\n".to_owned(),
            Err(ClusterInfoError::Malformed("has no server URL")),
        ),
        (
            "clusters: [{name: '', cluster: {server: 'https://x'}}]\n".to_owned(),
            Err(ClusterInfoError::Malformed("has no CA certificate")),
        ),
        ("clusters: [".to_owned(), Err(ClusterInfoError::Malformed("is not valid"))),
    ] {
        let found = ClusterLocation::of(&text).map(|location| location.server);
        assert_eq!(found, expected.map(str::to_owned), "{text}");
    }
}

#[test]
fn a_pin_is_the_hash_of_a_public_key() {
    let [one, other] = [(), ()].map(|()| rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap());
    let pin = PublicKeyPins::of(one.cert.der()).unwrap();
    let location = |pem: String| {
        ClusterLocation::of(&kubeconfig(&"https://x".parse().unwrap(), pem.as_bytes())).unwrap()
    };
    let pins = PublicKeyPins::parse([pin.to_uppercase().as_str()]).unwrap();
    assert_eq!(location(one.cert.pem()).is_pinned(&pins), Ok(()));
    // One pinned CA of several is enough.
    assert_eq!(location(other.cert.pem() + &one.cert.pem()).is_pinned(&pins), Ok(()));
    let found = PublicKeyPins::of(other.cert.der()).unwrap();
    assert_eq!(location(other.cert.pem()).is_pinned(&pins), Err(ClusterInfoError::NotPinned(found)));
    // The key counts, not the certificate.
    let again =
        rcgen::CertificateParams::new(["other".to_owned()]).unwrap().self_signed(&one.signing_key).unwrap();
    assert_eq!(PublicKeyPins::of(again.der()), Some(pin));

    let hex = "0123456789abcdef".repeat(4);
    for (text, good) in [
        (format!("sha256:{hex}"), true),
        (format!("SHA256:{hex}"), true),
        (hex.clone(), false),
        (format!("sha512:{hex}"), false),
        (format!("sha256:{hex}0"), false),
        (format!("sha256:{}", hex.replacen('0', "", 1)), false),
        (format!("sha256:{}", hex.replacen('0', "g", 1)), false),
        (format!("sha256:{hex}:"), false),
        (String::new(), false),
    ] {
        assert_eq!(PublicKeyPins::parse([text.as_str()]).is_ok(), good, "{text}");
    }
    assert!(PublicKeyPins::parse([]).unwrap().is_empty() && !pins.is_empty());
}

#[test]
fn a_pin_equals_the_hash_that_openssl_computes() {
    // openssl x509 -in pinned.pem -pubkey -noout | openssl pkey -pubin -outform der | sha256sum
    let certificate = pem::authorities(include_bytes!("pinned.pem")).remove(0);
    assert_eq!(
        PublicKeyPins::of(&certificate).unwrap(),
        "sha256:e80b458638759553b655e492bbed7d561c81c533014b04143c09f04633805bef"
    );
}
