//! The extension in broken forms, and certificates that do not agree with it.

use rustls_pki_types::CertificateDer;

use super::*;

fn identity() -> PodIdentity {
    PodIdentity {
        namespace: "a".to_owned(),
        namespace_uid: "ns-uid".to_owned(),
        service_account_name: "web".to_owned(),
        service_account_uid: "sa-uid".to_owned(),
        pod_name: "web-0".to_owned(),
        pod_uid: "pod-uid".to_owned(),
        node_name: "n1.example.com".to_owned(),
        node_uid: "node-uid".to_owned(),
    }
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
}

/// The elements of the encoding, in order.
fn elements() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 8] =
        [b"a", b"ns-uid", b"web", b"sa-uid", b"web-0", b"pod-uid", b"n1.example.com", b"node-uid"];
    (0..).zip(texts).map(|(number, text)| tlv(0x80 | number, text)).collect()
}

fn sequence(elements: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &elements.concat())
}

#[test]
fn the_encoding_is_that_of_implicit_tags_and_is_read_back() {
    assert_eq!(identity().to_der().unwrap(), sequence(&elements()));
    assert_eq!(PodIdentity::parse(&sequence(&elements())), Ok(identity()));
    assert_eq!(identity().check(), Ok(()));
}

#[test]
fn broken_encodings_are_refused() {
    let good = sequence(&elements());
    let edited = |edit: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut all = elements();
        edit(&mut all);
        sequence(&all)
    };
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("empty".to_owned(), Vec::new()),
        ("data after it".to_owned(), [good.as_slice(), &[5, 0]].concat()),
        ("a SET".to_owned(), tlv(0x31, &elements().concat())),
        ("an OCTET STRING around it".to_owned(), tlv(0x04, &good)),
        ("a long length".to_owned(), [&[0x30, 0x81, good[1]], &good[2..]].concat()),
        ("an indefinite length".to_owned(), [&[0x30, 0x80], &good[2..], &[0, 0]].concat()),
        ("a ninth element".to_owned(), edited(&|all| all.push(tlv(0x88, b"x")))),
        ("universal tags".to_owned(), edited(&|all| all.iter_mut().for_each(|element| element[0] = 0x0c))),
    ];
    for number in 0..8 {
        let of = |name: &str| format!("element {number}: {name}");
        cases.push((of("absent"), edited(&|all| drop(all.remove(number)))));
        cases.push((of("twice"), edited(&|all| all.insert(number, all[number].clone()))));
        cases.push((of("constructed"), edited(&|all| all[number][0] |= 0x20)));
        cases.push((
            of("explicit"),
            edited(&|all| {
                let inner = tlv(0x0c, &all[number][2..]);
                all[number] = tlv(0xa0 | u8::try_from(number).unwrap(), &inner);
            }),
        ));
        cases.push((of("not UTF-8"), edited(&|all| all[number][2] = 0xff)));
        cases.push((of("cut off"), good[..good.len() - number - 1].to_vec()));
        if number > 0 {
            cases.push((of("before the last one"), edited(&|all| all.swap(number - 1, number))));
        }
    }
    let accepted: Vec<_> = cases
        .iter()
        .filter(|(_, content)| PodIdentity::parse(content).is_ok())
        .map(|(name, _)| name)
        .collect();
    assert!(accepted.is_empty(), "{accepted:?}");
}

#[test]
fn each_part_must_be_a_name_or_a_uid_of_kubernetes() {
    const BAD: [&str; 7] = ["", " ", "a b", "a\n", "a\u{200b}", "ü", "a\u{0}"];
    const BAD_NAMES: [&str; 6] = ["a:b", "A", "..", "a/b", "a%2fb", "-a"];
    for number in 0..8 {
        for text in BAD.iter().chain(&BAD_NAMES) {
            let is_uid = number % 2 == 1;
            let is_name_alone = BAD_NAMES.contains(text) || *text == "..";
            let mut one = identity();
            (*text).clone_into(one.parts_mut()[number]);
            assert_eq!(one.check().is_ok(), is_uid && is_name_alone, "{number} {text:?}");
        }
        let mut long = identity();
        *long.parts_mut()[number] = "a".repeat(254);
        assert!(long.check().is_err(), "{number}");
    }
}

/// A subject with an attribute for each pair of the last arc below 2.5.4 and a text.
fn name(attributes: &[(u8, &str)]) -> Vec<u8> {
    let rdn = |(arc, text): &(u8, &str)| {
        let attribute = [tlv(6, &[0x55, 4, *arc]), tlv(0x0c, text.as_bytes())].concat();
        tlv(0x31, &tlv(0x30, &attribute))
    };
    let content = attributes.iter().map(rdn).collect::<Vec<_>>().concat();
    match u8::try_from(content.len()) {
        Ok(length) if length < 0x80 => tlv(0x30, &content),
        length => [&[0x30, 0x81, length.unwrap()], content.as_slice()].concat(),
    }
}

/// Types and values of the attributes of a subject.
type Attributes<'a> = &'a [(u8, &'a str)];

#[test]
fn the_subject_has_the_name_and_the_groups_of_the_service_account_and_nothing_else() {
    const CN: (u8, &str) = (3, "system:serviceaccount:a:web");
    const GROUPS: [(u8, &str); 2] = [(10, "system:serviceaccounts"), (10, "system:serviceaccounts:a")];
    let (one, other) = (GROUPS[0], GROUPS[1]);
    let cases: &[(&str, Attributes<'_>, bool)] = &[
        ("as signed", &[one, other, CN], true),
        ("in another order", &[CN, other, one], true),
        ("no CommonName", &[one, other], false),
        ("another account", &[one, other, (3, "system:serviceaccount:a:other")], false),
        ("another namespace", &[one, other, (3, "system:serviceaccount:b:web")], false),
        ("a user", &[one, other, (3, "alice")], false),
        ("two CommonNames, the last one good", &[one, other, (3, "alice"), CN], false),
        ("two CommonNames, the last one bad", &[one, other, CN, (3, "alice")], false),
        ("no groups", &[CN], false),
        ("one group", &[one, CN], false),
        ("a group twice", &[one, one, other, CN], false),
        ("a further group", &[one, other, (10, "system:masters"), CN], false),
        ("groups of another namespace", &[one, (10, "system:serviceaccounts:b"), CN], false),
        ("an OU", &[one, other, CN, (11, "x")], false),
        ("a serial number", &[one, other, CN, (5, "x")], false),
        ("an unknown attribute", &[one, other, CN, (12, "x")], false),
    ];
    let certificate = crate::issuance::testing::authority(crate::issuance::signer::KeyKind::EcdsaP256);
    let template = Certificate::parse(CertificateDer::from(certificate.certificate().der.to_vec())).unwrap();
    for (label, attributes, is_good) in cases {
        let raw_subject = name(attributes);
        let subject = crate::x509::name::CertificateSubject::parse(
            &raw_subject,
            crate::x509::name::NameDecoder::Certificate,
        )
        .unwrap();
        let mut certificate = Certificate { raw_subject, subject, ..template.clone() };
        certificate.extensions.pod_identity = Some(identity().to_der().unwrap());
        assert_eq!(PodIdentity::of_certificate(&certificate).is_ok(), *is_good, "{label}");
        certificate.extensions.alternative_names = Some(Vec::new());
        assert!(PodIdentity::of_certificate(&certificate).is_err(), "{label}, with alternative names");
        certificate.extensions.alternative_names = None;
        certificate.extensions.pod_identity = None;
        assert_eq!(PodIdentity::of_certificate(&certificate), Err(PodIdentityError::Absent), "{label}");
    }
}
