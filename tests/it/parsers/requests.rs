//! Certificate requests: unusual subjects and names with a valid signature, damaged elements with and without a new
//! signature, and damaged PEM.

use std::net::IpAddr;

use portcullis::internal::decode_pem;
use portcullis::internal::{CertificateRequest, RequestError};
use serde_json::Value;
use testkit::ambiguous_pem::ambiguous;
use testkit::csr::Csr;
use testkit::pki::{CN, Key, KeyKind, O, OU, attribute, pem, string, tlv};
use testkit::random::Rng;

use super::{Compared, lists, octets, text};
use crate::chains::damage::Node;

const KINDS: [KeyKind; 8] = [
    KeyKind::P256,
    KeyKind::P256,
    KeyKind::P256,
    KeyKind::P256,
    KeyKind::Ed25519,
    KeyKind::Ed25519,
    KeyKind::P384,
    KeyKind::Rsa2048,
];
const STRINGS: [u8; 8] = [0x0c, 0x0c, 0x13, 0x14, 0x16, 0x1e, 0x12, 0x1c];
const VALUES: &[&[u8]] = &[
    b"alice",
    b"system:masters",
    b"system:node:a",
    b"",
    b" ",
    b"a ",
    b"a\0b",
    b"a\nb",
    b"a,O=b",
    b"a+b",
    b"*",
    b"@",
    b"12 3",
    b"\xc3\xa9",
    b"\xe9",
    b"\xff",
    b"\0a\0b",
    b"\0a\xd8\0",
    b"\x00\x01\xf6\x00",
    b"\xef\xbf\xbd",
];
const NAMES: &[&[u8]] = &[
    b"a.example",
    b"*.example",
    b"",
    b".",
    b"a..b",
    b"A.Example",
    b"a b",
    b"a\0b",
    b"\xc3\xa9",
    b"a@b",
    b"a@b@c",
    b"@",
    b"spiffe://td/ns/a",
    b"spiffe://td/../x",
    b"http://a:80/b?c#d",
    b"http://a:x/",
    b"http://[::1]/",
    b"http://[::1",
    b"//a",
    b"a:b",
    b":",
    b"%zz",
    b"http://a/%zz",
    b"http://a/%41",
    b"http://%41/",
    b"urn:a:b",
    b"HTTP://A",
    b"/x",
    b"x y",
    b"\x7f",
    b"\x0a\0\0\x01",
    b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01",
    b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01",
    b"\x0a\0\0",
];

/// Requests in DER: the corpus, and requests with keys that are too weak for us.
pub(super) fn known() -> Vec<Vec<u8>> {
    let directory = format!("{}/tests/signers/requests", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let ders = files.iter().filter_map(|file| Some(decode_pem(&std::fs::read(file).unwrap())?.0.content));
    super::corpus("csr").into_iter().chain(ders).collect()
}

pub(super) fn any(rng: &mut Rng, known: &[Vec<u8>]) -> Vec<u8> {
    let kind = *rng.pick(&KINDS);
    let armour = |der: &[u8]| pem("CERTIFICATE REQUEST", der);
    if rng.one_in(12) {
        let (harmless, harmful) = (armour(&unusual(rng, kind).der()), armour(rng.pick::<Vec<u8>>(known)));
        let (_, mut text) = ambiguous(&harmless, &harmful).swap_remove(rng.below(6));
        if rng.one_in(3) {
            text.insert_str(0, "text before\n");
        }
        return text.into_bytes();
    }
    let der = match rng.below(8) {
        0 => rng.pick(known).clone(),
        1..=3 => unusual(rng, kind).der(),
        _ => damaged(rng, kind),
    };
    let mut text = armour(&der).into_bytes();
    if rng.one_in(8) {
        text::damage(rng, &mut text);
    }
    text
}

/// A request with unusual content and a valid signature.
fn unusual(rng: &mut Rng, kind: KeyKind) -> Csr {
    let mut csr = Csr::new().with_key(Key::pooled(kind, 100));
    for _ in 0..rng.below(4) {
        let pairs: Vec<_> = (0..=rng.below(2))
            .map(|_| {
                attribute(
                    *rng.pick(&[CN, O, O, OU, "1.3.6.1.4.1.57683.2"]),
                    *rng.pick(&STRINGS),
                    *rng.pick(VALUES),
                )
            })
            .collect();
        csr = csr.rdn(&pairs);
    }
    if rng.one_in(2) {
        csr = csr.attr(CN, string::UTF8, b"alice");
    }
    for _ in 0..rng.below(4) {
        csr = csr.san(*rng.pick(&[1, 2, 2, 6, 6, 7, 0, 4, 8]), *rng.pick(NAMES));
    }
    if rng.one_in(4) {
        csr = csr.extension(*rng.pick(&["2.5.29.19", "2.5.29.15", "2.5.29.17"]), rng.one_in(2), b"\x30\x00");
    }
    if rng.one_in(6) {
        csr = csr.attribute("1.2.840.113549.1.9.7", &[tlv(0x0c, b"secret")]);
    }
    if rng.one_in(20) { csr.corrupt_signature() } else { csr }
}

/// Elements changed, removed, duplicated and swapped; mostly signed again, so that verification does not stop at the
/// signature.
fn damaged(rng: &mut Rng, kind: KeyKind) -> Vec<u8> {
    let key = Key::pooled(kind, 100);
    let mut whole = Node::list(&unusual(rng, kind).der()).expect("own requests are DER").remove(0);
    let Node::Constructed(_, parts) = &mut whole else { unreachable!() };
    for _ in 0..=rng.below(2) {
        let size = parts[0].count();
        if rng.one_in(15) {
            let part = rng.below(parts.len());
            parts[part].damage(0, rng);
        } else {
            parts[0].damage(rng.below(size), rng);
        }
    }
    if !rng.one_in(10) && parts.len() > 2 {
        let signature = key.sign(key.default_algorithm(), &parts[0].encode());
        parts[2] = Node::Primitive(3, [&[0][..], &signature].concat());
    }
    whole.encode()
}

/// Whether an octet among the attributes may begin a tag of several octets.
fn has_long_tag(input: &[u8]) -> bool {
    let Some((block, _)) = decode_pem(input) else { return false };
    let whole = Node::list(&block.content).unwrap_or_default();
    let Some(Node::Constructed(_, parts)) = whole.first() else { return false };
    let Some(Node::Constructed(_, info)) = parts.first() else { return false };
    info.last().is_some_and(|attributes| attributes.encode().iter().any(|octet| octet & 0x1f == 0x1f))
}

pub(super) fn judge(input: &[u8], answer: &Value) -> Compared {
    let stage = answer["stage"].as_str().unwrap();
    let error = answer["error"].as_str().unwrap();
    let request = match CertificateRequest::from_pem(input) {
        Ok(request) => request,
        Err(ours) => {
            return match (&ours, stage) {
                (RequestError::NotPem, "pem") => Ok("no PEM"),
                (RequestError::NotBare, "parse" | "signature" | "ok") => Ok("stricter: not bare"),
                (RequestError::WeakKey(_) | RequestError::WeakSignature(_), "signature" | "ok") => {
                    Ok("stricter: weak")
                }
                // D-csr-weak-key: we do not distinguish unknown curves from weak keys.
                (RequestError::WeakKey(_), "parse") if error.starts_with("P224 ") => Ok("stricter: weak"),
                // D-csr-tag-numbers
                (RequestError::Malformed(_), "signature" | "ok") if has_long_tag(input) => {
                    Ok("stricter: tag number")
                }
                (RequestError::Malformed(_), "parse") => Ok("malformed"),
                (RequestError::Signature(text), "signature") if text == error => Ok("signature"),
                _ => Err(format!("{ours:?}, Go {stage} {error:?}")),
            };
        }
    };
    if stage != "ok" {
        return Err(format!("{:?} is read, Go {stage} {error:?}", request.subject()));
    }
    let bytes = |texts: &[String]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let (subject, names) = (request.subject(), request.alt_names());
    let ips = names.ips.iter().map(|ip| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    });
    let ours = [
        vec![subject.common_name.as_bytes().to_vec()],
        bytes(&subject.organization),
        bytes(&names.dns),
        bytes(&names.emails),
        ips.collect(),
        bytes(&names.uris),
    ];
    let go = [
        vec![octets(&answer["cn"])],
        lists(&answer["o"]),
        lists(&answer["dns"]),
        lists(&answer["emails"]),
        lists(&answer["ips"]),
        lists(&answer["uris"]),
    ];
    if ours == go {
        return Ok("as Go");
    }
    let shown = |lists: &[Vec<Vec<u8>>; 6]| {
        lists.iter().flatten().map(|text| text.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
    };
    Err(format!("ours {}, Go {}", shown(&ours), shown(&go)))
}
