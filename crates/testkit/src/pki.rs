//! A certificate authority for tests, at the level of DER.
//!
//! Certificates are encoded byte by byte, because tests need those that a library would refuse to write: repeated and
//! multi-valued subject attributes, unusual string types, version 1, negative serial numbers, unknown critical
//! extensions, mismatched signatures. The builder checks nothing.
//!
//! Everything is valid from 2020 to 2099 unless a test says otherwise, so none depends on the day it runs.
//!
//! ```ignore
//! let root = Ca::new("root");
//! let alice = root.leaf().cn("alice").org("g1").org("g2").issue();
//! let late = root.leaf().cn("bob").expired(now).issue();
//! let chain = root.intermediate("middle").leaf().cn("carol").issue(); // carol, middle
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// 2020-01-01T00:00:00Z.
pub const NOT_BEFORE: i64 = 1_577_836_800;
/// 2099-01-01T00:00:00Z.
pub const NOT_AFTER: i64 = 4_070_908_800;

// ---- DER --------------------------------------------------------------------------------------------------------

/// One element: tag, length, content.
pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let len = content.len();
    if len < 0x80 {
        out.push(u8::try_from(len).expect("short"));
    } else {
        let bytes: Vec<u8> = len.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | u8::try_from(bytes.len()).expect("short"));
        out.extend(bytes);
    }
    out.extend_from_slice(content);
    out
}

/// A SEQUENCE.
pub fn seq(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

/// A SET.
pub fn set(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x31, &parts.concat())
}

/// An object identifier from its dotted form.
pub fn oid(dotted: &str) -> Vec<u8> {
    let arcs: Vec<u64> = dotted.split('.').map(|arc| arc.parse().expect("an arc")).collect();
    let mut content = Vec::new();
    for arc in std::iter::once(arcs[0] * 40 + arcs[1]).chain(arcs[2..].iter().copied()) {
        let mut septets = vec![(arc & 0x7f) as u8];
        let mut rest = arc >> 7;
        while rest > 0 {
            septets.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        content.extend(septets.into_iter().rev());
    }
    tlv(0x06, &content)
}

/// A BOOLEAN.
pub fn boolean(value: bool) -> Vec<u8> {
    tlv(0x01, &[if value { 0xff } else { 0 }])
}

/// A non-negative INTEGER, minimally encoded.
pub fn integer(value: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = value.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    if bytes.first().is_none_or(|byte| byte & 0x80 != 0) {
        bytes.insert(0, 0);
    }
    tlv(0x02, &bytes)
}

/// NULL.
pub fn null() -> Vec<u8> {
    vec![0x05, 0x00]
}

/// An OCTET STRING.
pub fn octets(content: &[u8]) -> Vec<u8> {
    tlv(0x04, content)
}

/// A BIT STRING without unused bits.
pub fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

/// A time in the form of RFC 5280: UTCTime before 2050, GeneralizedTime from then on.
pub fn time(unix: i64) -> Vec<u8> {
    let (year, month, day) = civil(unix.div_euclid(86_400));
    let secs = unix.rem_euclid(86_400);
    let rest = format!("{month:02}{day:02}{:02}{:02}{:02}Z", secs / 3600, secs / 60 % 60, secs % 60);
    if (1950..2050).contains(&year) {
        tlv(0x17, format!("{:02}{rest}", year % 100).as_bytes())
    } else {
        tlv(0x18, format!("{year:04}{rest}").as_bytes())
    }
}

fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// A PEM block.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

// ---- keys and signatures ----------------------------------------------------------------------------------------

/// The kinds of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// RSA with 2048 bits.
    Rsa2048,
    /// RSA with 3072 bits.
    Rsa3072,
    /// ECDSA on P-256.
    P256,
    /// ECDSA on P-384.
    P384,
    /// ECDSA on P-521.
    P521,
    /// Ed25519.
    Ed25519,
}

impl KeyKind {
    /// One of each, RSA with 2048 bits.
    pub const ALL: [Self; 5] = [Self::Rsa2048, Self::P256, Self::P384, Self::P521, Self::Ed25519];
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// A private key with its public half.
pub struct Key {
    /// Its kind.
    pub kind: KeyKind,
    pair: Pair,
    pkcs8: Vec<u8>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({:?})", self.kind)
    }
}

impl Key {
    /// A new key.
    pub fn generate(kind: KeyKind) -> Arc<Self> {
        let rng = SystemRandom::new();
        let (pair, pkcs8) = match kind {
            KeyKind::Rsa2048 | KeyKind::Rsa3072 => {
                let size = match kind {
                    KeyKind::Rsa3072 => aws_lc_rs::rsa::KeySize::Rsa3072,
                    _ => aws_lc_rs::rsa::KeySize::Rsa2048,
                };
                let pair = RsaKeyPair::generate(size).expect("an RSA key");
                let der: Pkcs8V1Der<'_> = pair.as_der().expect("PKCS#8");
                let der = der.as_ref().to_vec();
                (Pair::Rsa(pair), der)
            }
            KeyKind::Ed25519 => {
                // Version 1 of PKCS#8: OpenSSL and Go do not read version 2.
                let der = Ed25519KeyPair::generate_pkcs8v1(&rng).expect("a key").as_ref().to_vec();
                (Pair::Ed(Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).expect("own key")), der)
            }
            KeyKind::P256 | KeyKind::P384 | KeyKind::P521 => {
                let algorithm = match kind {
                    KeyKind::P256 => &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
                    KeyKind::P384 => &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
                    _ => &signature::ECDSA_P521_SHA512_ASN1_SIGNING,
                };
                let der = EcdsaKeyPair::generate_pkcs8(algorithm, &rng).expect("a key").as_ref().to_vec();
                (Pair::Ec(EcdsaKeyPair::from_pkcs8(algorithm, &der).expect("own key")), der)
            }
        };
        Arc::new(Self { kind, pair, pkcs8 })
    }

    /// The `index`-th key of its kind in this process, since generating RSA keys is slow.
    pub fn pooled(kind: KeyKind, index: usize) -> Arc<Self> {
        type Pool = HashMap<(KeyKind, usize), Arc<Key>>;
        static POOL: OnceLock<Mutex<Pool>> = OnceLock::new();
        let mut pool = POOL.get_or_init(Mutex::default).lock().expect("no panic while held");
        Arc::clone(pool.entry((kind, index)).or_insert_with(|| Self::generate(kind)))
    }

    /// The content of the subjectPublicKey BIT STRING.
    pub fn public(&self) -> &[u8] {
        match &self.pair {
            Pair::Rsa(pair) => pair.public_key().as_ref(),
            Pair::Ec(pair) => pair.public_key().as_ref(),
            Pair::Ed(pair) => pair.public_key().as_ref(),
        }
    }

    /// The `SubjectPublicKeyInfo`.
    pub fn spki(&self) -> Vec<u8> {
        let algorithm = match self.kind {
            KeyKind::Rsa2048 | KeyKind::Rsa3072 => seq(&[oid("1.2.840.113549.1.1.1"), null()]),
            KeyKind::P256 => seq(&[oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7")]),
            KeyKind::P384 => seq(&[oid("1.2.840.10045.2.1"), oid("1.3.132.0.34")]),
            KeyKind::P521 => seq(&[oid("1.2.840.10045.2.1"), oid("1.3.132.0.35")]),
            KeyKind::Ed25519 => seq(&[oid("1.3.101.112")]),
        };
        seq(&[algorithm, bits(self.public())])
    }

    /// The key in PKCS#8.
    pub fn pkcs8(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pkcs8.clone()))
    }

    /// The key in PEM.
    pub fn pem(&self) -> String {
        pem("PRIVATE KEY", &self.pkcs8)
    }

    /// The algorithm the key signs with by default.
    pub fn default_algorithm(&self) -> SigAlg {
        match self.kind {
            KeyKind::Rsa2048 | KeyKind::Rsa3072 => SigAlg::RsaSha256,
            KeyKind::P256 => SigAlg::EcdsaSha256,
            KeyKind::P384 => SigAlg::EcdsaSha384,
            KeyKind::P521 => SigAlg::EcdsaSha512,
            KeyKind::Ed25519 => SigAlg::Ed25519,
        }
    }

    /// Signs with `algorithm` if the key supports it; otherwise with another one, which the label does not match.
    pub fn sign(&self, algorithm: SigAlg, message: &[u8]) -> Vec<u8> {
        let rng = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let encoding = match algorithm {
                    SigAlg::RsaSha384 => &signature::RSA_PKCS1_SHA384,
                    SigAlg::RsaSha512 => &signature::RSA_PKCS1_SHA512,
                    SigAlg::PssSha256 => &signature::RSA_PSS_SHA256,
                    SigAlg::PssSha384 => &signature::RSA_PSS_SHA384,
                    SigAlg::PssSha512 => &signature::RSA_PSS_SHA512,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &rng, message, &mut out).expect("an RSA signature");
                out
            }
            Pair::Ec(pair) => pair.sign(&rng, message).expect("an ECDSA signature").as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

/// Signature algorithms by label. MD5 and SHA-1 are only labels; the signatures use another algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigAlg {
    /// `md5WithRSAEncryption`.
    RsaMd5,
    /// `sha1WithRSAEncryption`.
    RsaSha1,
    /// `sha256WithRSAEncryption`.
    RsaSha256,
    /// `sha384WithRSAEncryption`.
    RsaSha384,
    /// `sha512WithRSAEncryption`.
    RsaSha512,
    /// RSASSA-PSS with SHA-256.
    PssSha256,
    /// RSASSA-PSS with SHA-384.
    PssSha384,
    /// RSASSA-PSS with SHA-512.
    PssSha512,
    /// `ecdsa-with-SHA1`.
    EcdsaSha1,
    /// `ecdsa-with-SHA256`.
    EcdsaSha256,
    /// `ecdsa-with-SHA384`.
    EcdsaSha384,
    /// `ecdsa-with-SHA512`.
    EcdsaSha512,
    /// `dsa-with-sha256`.
    DsaSha256,
    /// Ed25519.
    Ed25519,
    /// An undefined object identifier.
    Unknown,
}

impl SigAlg {
    /// The `AlgorithmIdentifier`.
    pub fn identifier(self) -> Vec<u8> {
        let rsa = |last: u8| seq(&[oid(&format!("1.2.840.113549.1.1.{last}")), null()]);
        let pss = |hash: &str, salt: u64| {
            let hash = seq(&[oid(hash), null()]);
            let mgf = seq(&[oid("1.2.840.113549.1.1.8"), hash.clone()]);
            let params = seq(&[tlv(0xa0, &hash), tlv(0xa1, &mgf), tlv(0xa2, &integer(salt))]);
            seq(&[oid("1.2.840.113549.1.1.10"), params])
        };
        match self {
            Self::RsaMd5 => rsa(4),
            Self::RsaSha1 => rsa(5),
            Self::RsaSha256 => rsa(11),
            Self::RsaSha384 => rsa(12),
            Self::RsaSha512 => rsa(13),
            Self::PssSha256 => pss("2.16.840.1.101.3.4.2.1", 32),
            Self::PssSha384 => pss("2.16.840.1.101.3.4.2.2", 48),
            Self::PssSha512 => pss("2.16.840.1.101.3.4.2.3", 64),
            Self::EcdsaSha1 => seq(&[oid("1.2.840.10045.4.1")]),
            Self::EcdsaSha256 => seq(&[oid("1.2.840.10045.4.3.2")]),
            Self::EcdsaSha384 => seq(&[oid("1.2.840.10045.4.3.3")]),
            Self::EcdsaSha512 => seq(&[oid("1.2.840.10045.4.3.4")]),
            Self::DsaSha256 => seq(&[oid("2.16.840.1.101.3.4.3.2")]),
            Self::Ed25519 => seq(&[oid("1.3.101.112")]),
            Self::Unknown => seq(&[oid("1.2.3.4.5")]),
        }
    }
}

// ---- names ------------------------------------------------------------------------------------------------------

/// `commonName`.
pub const CN: &str = "2.5.4.3";
/// `organizationName`.
pub const O: &str = "2.5.4.10";
/// `organizationalUnitName`.
pub const OU: &str = "2.5.4.11";
/// Kubernetes' own attribute for a user's uid.
pub const UID: &str = "1.3.6.1.4.1.57683.2";

/// Extended key usage of clients.
pub const CLIENT_AUTH: &str = "1.3.6.1.5.5.7.3.2";
/// Extended key usage of servers.
pub const SERVER_AUTH: &str = "1.3.6.1.5.5.7.3.1";
/// `anyExtendedKeyUsage`.
pub const ANY_EKU: &str = "2.5.29.37.0";

/// String types of attribute values, by tag.
pub mod string {
    /// UTF8String.
    pub const UTF8: u8 = 0x0c;
    /// `NumericString`.
    pub const NUMERIC: u8 = 0x12;
    /// PrintableString.
    pub const PRINTABLE: u8 = 0x13;
    /// `TeletexString`.
    pub const T61: u8 = 0x14;
    /// IA5String.
    pub const IA5: u8 = 0x16;
    /// `VisibleString`.
    pub const VISIBLE: u8 = 0x1a;
    /// `UniversalString`.
    pub const UNIVERSAL: u8 = 0x1c;
    /// BMPString.
    pub const BMP: u8 = 0x1e;
}

/// Key usage bits, as Go counts them.
pub mod usage {
    /// `digitalSignature`.
    pub const DIGITAL_SIGNATURE: u16 = 1;
    /// `keyEncipherment`.
    pub const KEY_ENCIPHERMENT: u16 = 1 << 2;
    /// `keyCertSign`.
    pub const CERT_SIGN: u16 = 1 << 5;
    /// `cRLSign`.
    pub const CRL_SIGN: u16 = 1 << 6;
}

/// One attribute: type and value.
pub fn attribute(oid_: &str, tag: u8, value: &[u8]) -> Vec<u8> {
    seq(&[oid(oid_), tlv(tag, value)])
}

// ---- certificates -----------------------------------------------------------------------------------------------

/// A name constraint's subtrees, as (context tag without class bits, value).
pub type Subtrees<'a> = &'a [(u8, &'a [u8])];

/// The content of a name constraints extension.
pub fn name_constraints(permitted: Subtrees<'_>, excluded: Subtrees<'_>) -> Vec<u8> {
    let list = |outer: u8, trees: Subtrees<'_>| {
        let each: Vec<Vec<u8>> = trees.iter().map(|(tag, value)| seq(&[tlv(0x80 | tag, value)])).collect();
        if each.is_empty() { Vec::new() } else { tlv(outer, &each.concat()) }
    };
    seq(&[list(0xa0, permitted), list(0xa1, excluded)])
}

/// A certificate authority: a certificate and its key.
#[derive(Debug, Clone)]
pub struct Ca {
    /// The certificate.
    pub cert: CertificateDer<'static>,
    /// The private key.
    pub key: Arc<Key>,
    /// The encoded subject, which its certificates carry as issuer.
    pub subject: Vec<u8>,
    /// The subject key identifier.
    pub skid: Option<Vec<u8>>,
    /// The certificates that a client sends after its leaf: this authority and those above it, without the root.
    pub sent: Vec<CertificateDer<'static>>,
}

impl Ca {
    /// A self-signed P-256 root.
    pub fn new(cn: &str) -> Self {
        Self::build(cn).issue_ca()
    }

    /// A self-signed root with a key of its own kind.
    pub fn with_key(cn: &str, kind: KeyKind) -> Self {
        Self::build(cn).key(kind).issue_ca()
    }

    /// The builder of a self-signed root, for unusual ones.
    pub fn build(cn: &str) -> Builder {
        Builder::new(None).authority().cn(cn)
    }

    /// An intermediate below this authority.
    pub fn intermediate(&self, cn: &str) -> Self {
        self.build_intermediate(cn).issue_ca()
    }

    /// The builder of an intermediate below this authority.
    pub fn build_intermediate(&self, cn: &str) -> Builder {
        Builder::new(Some(self.clone())).authority().cn(cn)
    }

    /// Another certificate, issued by this authority, for `other`'s name and key.
    pub fn cross_sign(&self, other: &Self) -> Self {
        Builder::new(Some(self.clone()))
            .authority()
            .raw_subject(other.subject.clone())
            .with_key(Arc::clone(&other.key))
            .issue_ca()
    }

    /// A client certificate: clientAuth, digitalSignature, not an authority.
    pub fn leaf(&self) -> Builder {
        let mut leaf = Builder::new(Some(self.clone()));
        leaf.eku = Some(vec![CLIENT_AUTH.to_owned()]);
        leaf.key_usage = Some(usage::DIGITAL_SIGNATURE | usage::KEY_ENCIPHERMENT);
        leaf.basic_constraints = Some((false, None));
        leaf
    }

    /// A server certificate for names and addresses.
    pub fn server(&self, names: &[&str]) -> Issued {
        let mut leaf = self.leaf().cn(names.first().copied().unwrap_or("server")).eku(&[SERVER_AUTH]);
        for name in names {
            leaf = match name.parse::<std::net::IpAddr>() {
                Ok(ip) => leaf.san_ip(ip),
                Err(_) => leaf.san_dns(name),
            };
        }
        leaf.issue()
    }

    /// The certificate in PEM.
    pub fn cert_pem(&self) -> String {
        pem("CERTIFICATE", &self.cert)
    }

    /// The private key in PEM.
    pub fn key_pem(&self) -> String {
        self.key.pem()
    }

    /// The authority as an end entity that presents the CA certificate.
    pub fn as_leaf(&self) -> Issued {
        let chain = if self.sent.is_empty() { vec![self.cert.clone()] } else { self.sent.clone() };
        Issued { chain, key: self.key.pkcs8(), private: Arc::clone(&self.key) }
    }
}

/// A certificate with its key, for a client or a server.
#[derive(Debug)]
pub struct Issued {
    /// The leaf first, then the intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// PKCS#8.
    pub key: PrivateKeyDer<'static>,
    /// The key for signing.
    pub private: Arc<Key>,
}

impl Issued {
    /// The certificate of the end entity.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }

    /// The chain as PEM, leaf first.
    pub fn cert_pem(&self) -> String {
        self.chain.iter().map(|cert| pem("CERTIFICATE", cert)).collect()
    }

    /// The private key in PEM.
    pub fn key_pem(&self) -> String {
        self.private.pem()
    }
}

/// A builder of a certificate. Properties that are not set are omitted.
#[derive(Debug, Clone)]
pub struct Builder {
    issuer: Option<Ca>,
    rdns: Vec<Vec<u8>>,
    raw_subject: Option<Vec<u8>>,
    raw_issuer: Option<Vec<u8>>,
    key: Option<Arc<Key>>,
    raw_spki: Option<Vec<u8>>,
    kind: KeyKind,
    version: Option<Vec<u8>>,
    extensions_allowed: bool,
    serial: Option<Vec<u8>>,
    not_before: Vec<u8>,
    not_after: Vec<u8>,
    basic_constraints: Option<(bool, Option<u64>)>,
    key_usage: Option<u16>,
    eku: Option<Vec<String>>,
    sans: Vec<Vec<u8>>,
    skid: Option<Option<Vec<u8>>>,
    akid: Option<Option<Vec<u8>>>,
    extra: Vec<(String, bool, Vec<u8>)>,
    algorithm: Option<SigAlg>,
    inner: Option<Vec<u8>>,
    outer: Option<Vec<u8>>,
    corrupt: bool,
}

impl Builder {
    fn new(issuer: Option<Ca>) -> Self {
        Self {
            issuer,
            rdns: Vec::new(),
            raw_subject: None,
            raw_issuer: None,
            key: None,
            raw_spki: None,
            kind: KeyKind::P256,
            version: Some(integer(2)),
            extensions_allowed: true,
            serial: None,
            not_before: time(NOT_BEFORE),
            not_after: time(NOT_AFTER),
            basic_constraints: None,
            key_usage: None,
            eku: None,
            sans: Vec::new(),
            skid: None,
            akid: None,
            extra: Vec::new(),
            algorithm: None,
            inner: None,
            outer: None,
            corrupt: false,
        }
    }

    fn authority(mut self) -> Self {
        self.basic_constraints = Some((true, None));
        self.key_usage = Some(usage::CERT_SIGN | usage::CRL_SIGN);
        self
    }

    // subject

    /// A common name.
    pub fn cn(self, value: &str) -> Self {
        self.attr(CN, string::UTF8, value.as_bytes())
    }

    /// An organization.
    pub fn org(self, value: &str) -> Self {
        self.attr(O, string::UTF8, value.as_bytes())
    }

    /// An organizational unit.
    pub fn ou(self, value: &str) -> Self {
        self.attr(OU, string::UTF8, value.as_bytes())
    }

    /// A uid of Kubernetes.
    pub fn uid(self, value: &str) -> Self {
        self.attr(UID, string::UTF8, value.as_bytes())
    }

    /// One more RDN with one attribute.
    pub fn attr(self, oid: &str, tag: u8, value: &[u8]) -> Self {
        self.rdn(&[attribute(oid, tag, value)])
    }

    /// One more RDN with these attributes, in this order (see [`attribute`]).
    pub fn rdn(mut self, attributes: &[Vec<u8>]) -> Self {
        self.rdns.push(set(attributes));
        self
    }

    /// The whole encoded Name.
    pub fn raw_subject(mut self, name: Vec<u8>) -> Self {
        self.raw_subject = Some(name);
        self
    }

    /// The whole encoded Name of the issuer.
    pub fn raw_issuer(mut self, name: Vec<u8>) -> Self {
        self.raw_issuer = Some(name);
        self
    }

    // key, version, serial, time

    /// A new key of this kind (RSA: one from the pool, since generating one is slow).
    pub fn key(mut self, kind: KeyKind) -> Self {
        self.kind = kind;
        self
    }

    /// This key.
    pub fn with_key(mut self, key: Arc<Key>) -> Self {
        self.key = Some(key);
        self
    }

    /// The encoded `SubjectPublicKeyInfo`, in place of the key's own.
    pub fn raw_spki(mut self, spki: Vec<u8>) -> Self {
        self.raw_spki = Some(spki);
        self
    }

    /// Version 1: no version field and no extensions.
    pub fn v1(mut self) -> Self {
        self.version = None;
        self.extensions_allowed = false;
        self
    }

    /// The encoded INTEGER of the version field (`integer(2)` is version 3), extensions as they are.
    pub fn raw_version(mut self, version: Option<Vec<u8>>) -> Self {
        self.version = version;
        self
    }

    /// The content octets of the serial number.
    pub fn serial(mut self, octets: &[u8]) -> Self {
        self.serial = Some(octets.to_vec());
        self
    }

    /// Both times, in seconds since 1970.
    pub fn validity(mut self, not_before: i64, not_after: i64) -> Self {
        self.not_before = time(not_before);
        self.not_after = time(not_after);
        self
    }

    /// Both times as encoded elements.
    pub fn raw_validity(mut self, not_before: Vec<u8>, not_after: Vec<u8>) -> Self {
        self.not_before = not_before;
        self.not_after = not_after;
        self
    }

    /// Valid for the day that ended an hour before `now`.
    pub fn expired(self, now: i64) -> Self {
        self.validity(now - 90_000, now - 3600)
    }

    /// Valid from an hour after `now`.
    pub fn not_yet_valid(self, now: i64) -> Self {
        self.validity(now + 3600, now + 90_000)
    }

    // extensions

    /// The basic constraints.
    pub fn basic_constraints(mut self, ca: bool, path_len: Option<u64>) -> Self {
        self.basic_constraints = Some((ca, path_len));
        self
    }

    /// An authority with a path length.
    pub fn path_len(self, path_len: u64) -> Self {
        self.basic_constraints(true, Some(path_len))
    }

    /// Without basic constraints.
    pub fn no_basic_constraints(mut self) -> Self {
        self.basic_constraints = None;
        self
    }

    /// Bits of [`usage`].
    pub fn key_usage(mut self, bits: u16) -> Self {
        self.key_usage = Some(bits);
        self
    }

    /// Without key usage.
    pub fn no_key_usage(mut self) -> Self {
        self.key_usage = None;
        self
    }

    /// The extended key usages, by object identifier.
    pub fn eku(mut self, usages: &[&str]) -> Self {
        self.eku = Some(usages.iter().map(|usage| (*usage).to_owned()).collect());
        self
    }

    /// Without extended key usages.
    pub fn no_eku(mut self) -> Self {
        self.eku = None;
        self
    }

    /// A DNS name.
    pub fn san_dns(self, name: &str) -> Self {
        self.san(2, name.as_bytes())
    }

    /// An email address.
    pub fn san_email(self, address: &str) -> Self {
        self.san(1, address.as_bytes())
    }

    /// A URI.
    pub fn san_uri(self, uri: &str) -> Self {
        self.san(6, uri.as_bytes())
    }

    /// An IP address.
    pub fn san_ip(self, ip: std::net::IpAddr) -> Self {
        match ip {
            std::net::IpAddr::V4(ip) => self.san(7, &ip.octets()),
            std::net::IpAddr::V6(ip) => self.san(7, &ip.octets()),
        }
    }

    /// A subject alternative name by its context tag (1 email, 2 dns, 6 uri, 7 ip).
    pub fn san(mut self, tag: u8, value: &[u8]) -> Self {
        self.sans.push(tlv(0x80 | tag, value));
        self
    }

    /// Critical name constraints.
    pub fn name_constraints(self, permitted: Subtrees<'_>, excluded: Subtrees<'_>) -> Self {
        let content = name_constraints(permitted, excluded);
        self.extension("2.5.29.30", true, content)
    }

    /// One more extension, after the others; the same OID twice is written twice.
    pub fn extension(mut self, oid: &str, critical: bool, content: Vec<u8>) -> Self {
        self.extra.push((oid.to_owned(), critical, content));
        self
    }

    /// An undefined critical extension.
    pub fn unknown_critical(self) -> Self {
        self.extension("1.3.6.1.4.1.57683.99", true, null())
    }

    /// The subject key identifier, or none.
    pub fn skid(mut self, skid: Option<&[u8]>) -> Self {
        self.skid = Some(skid.map(<[u8]>::to_vec));
        self
    }

    /// The authority key identifier, or none.
    pub fn akid(mut self, akid: Option<&[u8]>) -> Self {
        self.akid = Some(akid.map(<[u8]>::to_vec));
        self
    }

    // signature

    /// The signature algorithm, or only its label if the key cannot sign with it.
    pub fn sig(mut self, algorithm: SigAlg) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Both encoded `AlgorithmIdentifier`s, inside the signed part and outside of it.
    pub fn raw_algorithms(mut self, inner: Vec<u8>, outer: Vec<u8>) -> Self {
        self.inner = Some(inner);
        self.outer = Some(outer);
        self
    }

    /// A signature over other bytes.
    pub fn corrupt_signature(mut self) -> Self {
        self.corrupt = true;
        self
    }

    // issuing

    fn key_of_subject(&self) -> Arc<Key> {
        match (&self.key, self.kind) {
            (Some(key), _) => Arc::clone(key),
            (None, KeyKind::Rsa2048) => {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                let index = NEXT.fetch_add(1, Ordering::Relaxed) % 3;
                Key::pooled(KeyKind::Rsa2048, usize::try_from(index).expect("small"))
            }
            (None, kind) => Key::generate(kind),
        }
    }

    fn write(&self, key: &Key) -> (CertificateDer<'static>, Vec<u8>, Option<Vec<u8>>) {
        static SERIAL: AtomicU64 = AtomicU64::new(1000);
        let signer = self.issuer.as_ref().map_or(key, |ca| &ca.key);
        let algorithm = self.algorithm.unwrap_or_else(|| signer.default_algorithm());
        let subject = self.raw_subject.clone().unwrap_or_else(|| seq(&self.rdns));
        let issuer = self
            .raw_issuer
            .clone()
            .or_else(|| self.issuer.as_ref().map(|ca| ca.subject.clone()))
            .unwrap_or_else(|| subject.clone());
        let key_id = || {
            Some(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.public()).as_ref()[..20].to_vec())
        };
        let is_ca = matches!(self.basic_constraints, Some((true, _)));
        let skid = self.skid.clone().unwrap_or_else(|| if is_ca { key_id() } else { None });
        let akid = self.akid.clone().unwrap_or_else(|| self.issuer.as_ref().and_then(|ca| ca.skid.clone()));

        let mut extensions: Vec<(String, bool, Vec<u8>)> = Vec::new();
        if let Some(bits) = self.key_usage {
            extensions.push(("2.5.29.15".into(), true, key_usage_bits(bits)));
        }
        if let Some(eku) = &self.eku {
            let list: Vec<Vec<u8>> = eku.iter().map(|usage| oid(usage)).collect();
            extensions.push(("2.5.29.37".into(), false, seq(&list)));
        }
        if let Some((ca, path_len)) = self.basic_constraints {
            let ca = if ca { boolean(true) } else { Vec::new() };
            extensions.push((
                "2.5.29.19".into(),
                true,
                seq(&[ca, path_len.map(integer).unwrap_or_default()]),
            ));
        }
        if let Some(skid) = &skid {
            extensions.push(("2.5.29.14".into(), false, octets(skid)));
        }
        if let Some(akid) = &akid {
            extensions.push(("2.5.29.35".into(), false, seq(&[tlv(0x80, akid)])));
        }
        if !self.sans.is_empty() {
            extensions.push(("2.5.29.17".into(), false, seq(&self.sans)));
        }
        extensions.extend(self.extra.iter().cloned());

        let inner = self.inner.clone().unwrap_or_else(|| algorithm.identifier());
        let outer = self.outer.clone().unwrap_or_else(|| algorithm.identifier());
        let serial = self
            .serial
            .clone()
            .map_or_else(|| integer(SERIAL.fetch_add(1, Ordering::Relaxed)), |content| tlv(0x02, &content));
        let mut parts = Vec::new();
        if let Some(version) = &self.version {
            parts.push(tlv(0xa0, version));
        }
        parts.extend([
            serial,
            inner,
            issuer,
            seq(&[self.not_before.clone(), self.not_after.clone()]),
            subject.clone(),
            self.raw_spki.clone().unwrap_or_else(|| key.spki()),
        ]);
        if self.extensions_allowed && !extensions.is_empty() {
            let list: Vec<Vec<u8>> = extensions
                .iter()
                .map(|(id, critical, content)| {
                    seq(&[oid(id), if *critical { boolean(true) } else { Vec::new() }, octets(content)])
                })
                .collect();
            parts.push(tlv(0xa3, &seq(&list)));
        }
        let tbs = seq(&parts);
        let signed: &[u8] = if self.corrupt { b"something else" } else { &tbs };
        let signature = signer.sign(algorithm, signed);
        let cert = seq(&[tbs.clone(), outer, bits(&signature)]);
        let skid = if self.extensions_allowed { skid } else { None };
        (CertificateDer::from(cert), subject, skid)
    }

    /// Writes the certificate of an end entity.
    pub fn issue(self) -> Issued {
        let key = self.key_of_subject();
        let (cert, _, _) = self.write(&key);
        let mut chain = vec![cert];
        chain.extend(self.issuer.iter().flat_map(|ca| ca.sent.iter().cloned()));
        Issued { chain, key: key.pkcs8(), private: key }
    }

    /// Writes the certificate of an authority.
    pub fn issue_ca(self) -> Ca {
        let key = self.key_of_subject();
        let (cert, subject, skid) = self.write(&key);
        let mut sent = Vec::new();
        if let Some(above) = &self.issuer {
            sent.push(cert.clone());
            sent.extend(above.sent.iter().cloned());
        }
        Ca { cert, key, subject, skid, sent }
    }
}

fn key_usage_bits(usages: u16) -> Vec<u8> {
    // Bit 0 of a BIT STRING is the highest bit of its first octet; trailing zeros are cut.
    let mut octets = [0_u8; 2];
    let mut last = None;
    for bit in 0..9_usize {
        if usages & (1 << bit) != 0 {
            octets[bit / 8] |= 0x80 >> (bit % 8);
            last = Some(bit);
        }
    }
    match last {
        None => tlv(0x03, &[0]),
        Some(last) => {
            let unused = u8::try_from(7 - last % 8).expect("small");
            tlv(0x03, &[&[unused], &octets[..=last / 8]].concat())
        }
    }
}
