//! Damaged certificates: changed bytes and elements, with and without a new signature.

use std::net::IpAddr;

use rustls_pki_types::CertificateDer;
use testkit::pki::{CN, Ca, Issued, KeyKind, O, OU, oid, seq, string, tlv};
use testkit::random::Rng;

use super::{Case, NOW, Peer};

/// P-256 twice, since most clients use it.
const KINDS: [KeyKind; 4] = [KeyKind::P256, KeyKind::P256, KeyKind::Ed25519, KeyKind::Rsa2048];

/// Chains with many extensions, and the keys that signed them.
fn rich(peer: Peer, kind: KeyKind) -> (Ca, Ca, Issued) {
    let root = Ca::build("root")
        .key(kind)
        .path_len(2)
        .name_constraints(&[(2, b"example"), (7, &[10, 0, 0, 0, 255, 0, 0, 0])], &[])
        .issue_ca();
    let middle = root
        .build_intermediate("middle")
        .key(kind)
        .extension("2.5.29.32", false, seq(&[seq(&[oid("2.5.29.32.0")])]))
        .extension("2.5.29.36", false, seq(&[tlv(0x80, &[2])]))
        .extension("2.5.29.31", false, seq(&[seq(&[tlv(0xa0, &tlv(0xa0, &tlv(0x86, b"http://crl")))])]))
        .issue_ca();
    let leaf = peer
        .bare_leaf(&middle)
        .key(kind)
        .attr(CN, string::PRINTABLE, b"user")
        .org("g1")
        .attr(O, string::BMP, b"\0g\x002")
        .uid("42")
        .attr(OU, string::IA5, b"unit")
        .san_dns("a.example")
        .san_ip(IpAddr::from([10, 0, 0, 1]))
        .extension("2.5.29.32", false, seq(&[seq(&[oid("1.2.3")])]))
        .extension(
            "1.3.6.1.5.5.7.1.1",
            false,
            seq(&[seq(&[oid("1.3.6.1.5.5.7.48.1"), tlv(0x86, b"http://a")])]),
        )
        .issue();
    (root, middle, leaf)
}

/// Bytes flipped, removed and added anywhere, without new signatures.
pub(super) fn damaged_bytes(peer: Peer, rng: &mut Rng) -> Vec<Case> {
    let kinds = KINDS.map(|kind| {
        let (root, _, leaf) = rich(peer, kind);
        Case::new(format!("{kind:?}"), &[&root], &leaf)
    });
    (0..2500)
        .map(|index| {
            let plain = rng.pick(&kinds).clone();
            let mut case = Case { name: format!("{} damage {index}", plain.name), ..plain };
            let all = case.chain.len() + case.roots.len();
            let at = rng.below(all);
            let target = if at < case.chain.len() { &mut case.chain[at] } else { &mut case.roots[0] };
            let mut bytes = target.to_vec();
            for _ in 0..=rng.below(2) {
                let position = rng.below(bytes.len());
                match rng.below(5) {
                    0 => bytes[position] ^= 1 << rng.below(8),
                    1 => bytes[position] = rng.byte(),
                    2 => bytes[position] = bytes[position].wrapping_add(1),
                    3 => drop(bytes.remove(position)),
                    _ => bytes.insert(position, rng.byte()),
                }
            }
            *target = CertificateDer::from(bytes);
            case
        })
        .collect()
}

/// Root certificates with damaged elements: a root's content is used without checking its signature.
pub(super) fn own_authorities(peer: Peer, rng: &mut Rng, count: usize) -> Vec<Case> {
    let leaves = KINDS.map(|kind| rich(peer, kind).2);
    (0..count)
        .map(|index| {
            let mut whole = Node::list(rng.pick(&leaves).leaf()).expect("own certificates are DER").remove(0);
            for _ in 0..=rng.below(3) {
                // The outer levels are damaged often enough elsewhere.
                let size = whole.count();
                whole.damage(2 + rng.below(size - 2), rng);
            }
            let certificate = CertificateDer::from(whole.encode());
            Case {
                name: format!("own authority {index}"),
                roots: vec![certificate.clone()],
                chain: vec![certificate],
                time: NOW,
                nanos: 0,
                host: None,
            }
        })
        .collect()
}

/// A DER element as a tree.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    Primitive(u8, Vec<u8>),
    Constructed(u8, Vec<Self>),
    /// Bytes that are written unchanged.
    Raw(Vec<u8>),
}

impl Node {
    /// Parses elements; `None` if the bytes are not a sequence of elements.
    pub(crate) fn list(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut nodes = Vec::new();
        while let [tag, length, rest @ ..] = bytes {
            let (length, rest) = if *length < 0x80 {
                (usize::from(*length), rest)
            } else {
                let count = usize::from(length & 0x7f);
                let octets = rest.get(..count).filter(|octets| octets.len() <= 2)?;
                (octets.iter().fold(0, |sum, octet| sum << 8 | usize::from(*octet)), &rest[count..])
            };
            let content = rest.get(..length)?;
            bytes = &rest[length..];
            // OCTET STRINGs of extensions contain elements too.
            let inner = if tag & 0x20 != 0 || *tag == 0x04 { Self::list(content) } else { None };
            nodes.push(inner.map_or_else(
                || Self::Primitive(*tag, content.to_vec()),
                |list| Self::Constructed(*tag, list),
            ));
        }
        bytes.is_empty().then_some(nodes)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Primitive(tag, content) => tlv(*tag, content),
            Self::Raw(bytes) => bytes.clone(),
            Self::Constructed(tag, list) => {
                tlv(*tag, &list.iter().flat_map(Self::encode).collect::<Vec<_>>())
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Primitive(..) | Self::Raw(_) => 1,
            Self::Constructed(_, list) => 1 + list.iter().map(Self::count).sum::<usize>(),
        }
    }

    /// Changes the `index`-th node, counted from the top.
    pub(crate) fn damage(&mut self, index: usize, rng: &mut Rng) {
        if index == 0 {
            if rng.one_in(12) {
                *self = Self::Raw(with_odd_length(&self.encode(), rng));
            }
            match self {
                Self::Raw(_) => {}
                Self::Primitive(tag, content) => match rng.below(7) {
                    0 => *tag = rng.byte(),
                    1 => content.clear(),
                    2 => content.insert(0, *rng.pick(&[0, 0xff, 0x80, 1])),
                    3 => content.push(rng.byte()),
                    4 => drop(content.pop()),
                    5 => {
                        *tag = *rng
                            .pick(&[1, 2, 3, 4, 5, 6, 0x0c, 0x12, 0x13, 0x14, 0x16, 0x17, 0x18, 0x1e, 0x30]);
                    }
                    _ if content.is_empty() => *content = vec![rng.byte()],
                    _ => {
                        let at = rng.below(content.len());
                        content[at] = rng.byte();
                    }
                },
                Self::Constructed(tag, list) => match rng.below(7) {
                    0 => *tag = rng.byte(),
                    1 => list.clear(),
                    2 => list.push(Self::Primitive(5, Vec::new())),
                    3 => list.reverse(),
                    4 if !list.is_empty() => drop(list.remove(rng.below(list.len()))),
                    5 if !list.is_empty() => {
                        let twin = rng.pick(list).clone();
                        list.push(twin);
                    }
                    _ => list.insert(0, Self::Primitive(*rng.pick(&[1, 2, 5]), vec![rng.byte()])),
                },
            }
            return;
        }
        if let Self::Constructed(_, list) = self {
            let mut index = index - 1;
            for node in list {
                let size = node.count();
                if index < size {
                    return node.damage(index, rng);
                }
                index -= size;
            }
        }
    }
}

/// An element whose length has redundant octets or is missing.
fn with_odd_length(element: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (tag, first) = (element[0], element[1]);
    let (length, content) = if first < 0x80 {
        (vec![first], &element[2..])
    } else {
        element[2..]
            .split_at_checked(usize::from(first & 0x7f))
            .map(|(length, content)| (length.to_vec(), content))
            .unwrap()
    };
    match rng.below(3) {
        0 if first < 0x80 => [&[tag, 0x81], length.as_slice(), content].concat(),
        0 | 1 => {
            let count = u8::try_from(length.len() + 1).unwrap();
            [&[tag, 0x80 | count, 0], length.as_slice(), content].concat()
        }
        _ => [&[tag, 0x80], content, &[0, 0]].concat(),
    }
}

/// Elements changed, removed, duplicated and swapped within a certificate, which is then signed again, so that
/// verification does not stop at the signature.
pub(super) fn damaged_structure(peer: Peer, rng: &mut Rng) -> Vec<Case> {
    let kinds = KINDS.map(|kind| (kind, rich(peer, kind)));
    (0..4000)
        .map(|index| {
            let (kind, (root, middle, leaf)) = rng.pick(&kinds);
            let mut case = Case::new(format!("{kind:?} structure {index}"), &[root], leaf);
            let (target, signer) = match rng.below(4) {
                0 => (&mut case.roots[0], &root.key),
                1 => (&mut case.chain[1], &root.key),
                _ => (&mut case.chain[0], &middle.key),
            };
            let mut whole = Node::list(target).expect("own certificates are DER").remove(0);
            for _ in 0..=rng.below(2) {
                let Node::Constructed(_, parts) = &mut whole else { unreachable!() };
                let size = parts[0].count();
                // The signed part, or occasionally the outer sequence.
                if rng.one_in(12) {
                    let part = rng.below(parts.len());
                    parts[part].damage(0, rng);
                } else {
                    parts[0].damage(rng.below(size), rng);
                }
            }
            let Node::Constructed(tag, parts) = &mut whole else { unreachable!() };
            let tbs = parts[0].encode();
            if rng.one_in(2) {
                // Keeps the outer algorithm equal to the inner one.
                if let Node::Constructed(_, inner) = &parts[0]
                    && let Some(algorithm) =
                        inner.iter().find(|node| matches!(node, Node::Constructed(0x30, _)))
                    && parts.len() > 1
                {
                    parts[1] = algorithm.clone();
                }
            }
            if parts.len() > 2 {
                let signature = signer.sign(signer.default_algorithm(), &tbs);
                parts[2] = Node::Primitive(3, [&[0][..], &signature].concat());
            }
            let encoded = tlv(*tag, &parts.iter().flat_map(Node::encode).collect::<Vec<_>>());
            *target = CertificateDer::from(encoded);
            case
        })
        .collect()
}
