//! What is revoked, whichever way a credential comes in.

use portcullis_kubernetes::user::CREDENTIAL_ID_KEY;
use portcullis_pki::revocation::path;
use portcullis_pki::x509::CaBundle;
use testkit::pki::{Ca, Issued, KeyKind, bits, seq, tlv};

use super::*;
use crate::authn::AuthnMethod;
use crate::authn::x509::UnverifiedChain;

const NOW: UnixTime = UnixTime::from_hours(500_000);

/// A deny list with these lines.
fn denying(lines: &str) -> ClusterRevocation {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("denied");
    std::fs::write(&path, lines).unwrap();
    let settings = RevocationSettings { crls: None, deny_list: Some(LoadedDenyList::load(&path).unwrap()) };
    ClusterRevocation::new(&settings, &RevocationWatch::new(), &Arc::new(Metrics::new()))
}

fn with_path(ca: &Ca, chain: Vec<rustls_pki_types::CertificateDer<'static>>) -> Authenticated {
    let bundle = CaBundle::from_pem(ca.cert_pem().as_bytes()).unwrap();
    let chain = UnverifiedChain::new(chain).verify(&bundle, NOW).unwrap();
    Authenticated {
        user: chain.user().unwrap().unwrap(),
        audiences: Vec::new(),
        method: AuthnMethod::X509,
        certificates: Some(Arc::clone(chain.path())),
        expires: None,
    }
}

/// The leaf with another encoding of its signature, which `change` makes of the content of the BIT STRING.
fn re_encoded(
    issued: &Issued,
    change: impl Fn(&[u8]) -> Vec<u8>,
) -> Vec<rustls_pki_types::CertificateDer<'static>> {
    let mut outer = portcullis_pki::x509::der::DerReader::new(issued.leaf());
    let mut parts = outer.enter(0x30).unwrap();
    let (tbs, algorithm) = (parts.any().unwrap().whole.to_vec(), parts.any().unwrap().whole.to_vec());
    let signature = parts.any().unwrap().content[1..].to_vec();
    let leaf = seq(&[tbs, algorithm, change(&signature)]);
    std::iter::once(leaf.into()).chain(issued.chain[1..].iter().cloned()).collect()
}

#[test]
fn a_certificate_cannot_hide_behind_another_encoding() {
    let order = |kind| match kind {
        KeyKind::P256 => path::order_of(256),
        KeyKind::P384 => path::order_of(384),
        _ => path::order_of(521),
    };
    for kind in [KeyKind::P256, KeyKind::P384, KeyKind::P521] {
        let ca = Ca::with_key("ca", kind);
        let alice = ca.leaf().cn("alice").issue();
        let twin = |signature: &[u8]| {
            let mut pair = portcullis_pki::x509::der::DerReader::new(signature).enter(0x30).unwrap();
            let (r, s) = (pair.any().unwrap().whole.to_vec(), pair.integer().unwrap());
            let s = order(kind) - num_bigint::BigUint::from_bytes_be(s);
            let mut octets = s.to_bytes_be();
            if octets[0] & 0x80 != 0 {
                octets.insert(0, 0);
            }
            bits(&seq(&[r, tlv(2, &octets)]))
        };
        let shifted = |signature: &[u8]| {
            // Two unused bits: the first octet of a SEQUENCE begins with two zero bits.
            let mut octets: Vec<u8> = signature.to_vec();
            for at in 0..octets.len() {
                let next = signature.get(at + 1).copied().unwrap_or(0);
                octets[at] = signature[at] << 2 | next >> 6;
            }
            tlv(3, &[&[2], octets.as_slice()].concat())
        };
        let longer = |signature: &[u8]| [bits(signature), vec![5, 0]].concat();
        let presented = [
            alice.chain.clone(),
            re_encoded(&alice, twin),
            re_encoded(&alice, shifted),
            re_encoded(&alice, longer),
        ];
        // Whichever encoding the list names, and whichever the client presents.
        for (index, chain) in presented.iter().enumerate() {
            let found = with_path(&ca, chain.clone());
            assert_eq!(found.user.name, "alice", "Go accepts it, {kind:?} {index}");
            // A list that has the ID of another encoding came from a gateway without one, which accepts them.
            for denied in &presented[..2] {
                let revocation = denying(&path::credential_id(&denied[0]));
                assert!(revocation.admit(found.clone(), NOW).is_err(), "{kind:?} {index}");
            }
            let other = ca.leaf().cn("alice").issue();
            let revocation = denying(&path::credential_id(other.leaf()));
            assert_eq!(revocation.admit(found, NOW).is_err(), index > 1, "{kind:?} {index}");
        }
    }
}

#[test]
fn any_certificate_of_the_chain_may_be_denied() {
    let root = Ca::new("root");
    let middle = root.intermediate("Middle CA");
    let alice = middle.leaf().cn("alice").serial(&[0x0a, 0x1b]).issue();
    for (line, denied) in [
        (path::credential_id(alice.leaf()), true),
        (path::credential_id(&middle.cert), true),
        (path::credential_id(&root.cert), true),
        ("serial=0A1B issuer=\"CN=middle ca\"".to_owned(), true),
        ("serial=0A1B issuer=CN=root".to_owned(), false),
        ("user=alice".to_owned(), true),
        ("user=bob".to_owned(), false),
        (path::credential_id(&Ca::new("x").cert), false),
    ] {
        let found = with_path(&root, alice.chain.clone());
        assert_eq!(denying(&line).admit(found, NOW).is_err(), denied, "{line}");
    }
}

#[test]
fn tokens_are_denied_by_their_id_and_counted() {
    let mut user = UserInfo::named("carol");
    user.extra.insert(CREDENTIAL_ID_KEY.to_owned(), vec!["JTI=other".to_owned(), "JTI=7fb8".to_owned()]);
    let revocation = denying("# left\nJTI=7fb8");
    let revoked = revocation.check_user(&user, NOW).unwrap_err();
    assert_eq!(revoked.text(), "the credential is on the deny list, line 2");
    let metrics = revocation.metrics.clone().unwrap();
    let count = || metrics.revocation.revoked.with_label_values(&["deny_list"]).get();
    assert_eq!(count(), 1);
    user.extra.clear();
    assert!(revocation.check_user(&user, NOW).is_ok());
    assert_eq!(count(), 1);
}
