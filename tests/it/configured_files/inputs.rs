//! The content that replaces a configured file.

use std::process::Command;
use std::sync::OnceLock;

use base64::Engine as _;
use testkit::pki::{Ca, Issued, pem};

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A certificate that has a key, with or without intermediates.
    Chain,
    /// The private key of a certificate.
    Key,
    /// CA certificates.
    Bundle,
    /// Public keys.
    PublicKeys,
    /// YAML or CSV.
    Text,
    /// A bearer token.
    Token,
}

use Form::{Bundle, Chain, Key, PublicKeys, Text, Token};

pub(super) enum Content {
    Bytes(Vec<u8>),
    /// The contents of a certificate file and of its key file.
    Pair(Vec<u8>, Vec<u8>),
    Directory,
    Fifo,
    Device,
    Loop,
    Missing,
    Unreachable,
    Huge,
}

/// The material from which inputs are built.
pub(super) struct Material {
    pub(super) form: Form,
    /// The valid content of the file.
    pub(super) valid: Vec<u8>,
    /// The private key of the certificate, if the file holds one.
    pub(super) key: Vec<u8>,
    /// Another certificate and its key.
    pub(super) other: Issued,
    /// Whether the file is one of a separate certificate file and key file.
    pub(super) in_pair: bool,
    /// Whether the certificate is a CA certificate.
    pub(super) is_authority: bool,
    /// Whether the content is embedded in another file.
    pub(super) within: bool,
}

type Make = fn(&Material) -> Option<Content>;

/// The inputs by name; a function returns `None` where its input does not apply.
pub(super) const INPUTS: &[(&str, Make)] = &[
    ("empty", |_| bytes("")),
    ("the first half", |of| bytes(of.valid.get(..of.valid.len() / 2)?)),
    ("plain garbage", |_| bytes("garbage\n")),
    ("garbage in a PEM frame", |of| bytes(of.broken()?)),
    ("PEM of another type", |of| bytes(pem("X509 CRL", &of.der()?))),
    ("DER", |of| bytes(of.der()?)),
    ("bytes behind the DER in its block", |of| bytes(pem(of.label()?, &[of.der()?, vec![0]].concat()))),
    ("that of another pair", |of| bytes(of.of_another()?)),
    ("another behind it", |of| bytes([of.valid.clone(), of.another()?.into_bytes()].concat())),
    ("another before it", |of| bytes([of.another()?.into_bytes(), of.valid.clone()].concat())),
    ("a broken one behind it", |of| bytes([of.valid.clone(), of.broken()?.into_bytes()].concat())),
    ("a broken one before it", |of| bytes([of.broken()?.into_bytes(), of.valid.clone()].concat())),
    ("certificate and key in one", |of| {
        let beside = match of.form {
            Chain => of.key.clone(),
            Key => of.other.cert_pem().into_bytes(),
            Bundle | PublicKeys | Text | Token => return None,
        };
        bytes([of.valid.clone(), beside].concat())
    }),
    ("text around it", |of| {
        of.label()?;
        bytes([b"subject: someone\n\n".as_slice(), &of.valid, b"\n# the end\n"].concat())
    }),
    ("headers in its block", |of| {
        let text = String::from_utf8(of.valid.clone()).ok().filter(|_| of.label().is_some())?;
        bytes(text.replacen("-----\n", "-----\nName: value\n\n", 1))
    }),
    ("a directory", |_| Some(Content::Directory)),
    ("a FIFO", |_| Some(Content::Fifo)),
    ("a device", |_| Some(Content::Device)),
    ("a symbolic link to itself", |_| Some(Content::Loop)),
    ("missing", |_| Some(Content::Missing)),
    ("a path through a file", |_| Some(Content::Unreachable)),
    ("100 MiB", |_| Some(Content::Huge)),
    ("UTF-16", |of| {
        let text = String::from_utf8(of.valid.clone()).ok()?;
        bytes([0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect::<Vec<u8>>())
    }),
    ("a byte order mark before it", |of| bytes([b"\xef\xbb\xbf", of.valid.as_slice()].concat())),
    ("a NUL within it", |of| {
        // Before the signature, whose length varies.
        let (before, after) = of.valid.split_at((of.valid.len() / 2).min(100));
        bytes([before, b"\0", after].concat())
    }),
    ("line ends of Windows", |of| bytes(String::from_utf8(of.valid.clone()).ok()?.replace('\n', "\r\n"))),
    ("an encrypted key", |of| (of.form == Key).then(|| encrypted(&of.key, &[])).and_then(bytes)),
    ("an encrypted key of the old form", |of| {
        (of.form == Key).then(|| encrypted(&of.key, &["-traditional"])).and_then(bytes)
    }),
    ("an RSA key of 1024 bits", |of| {
        let (certificate, key, public) = weak(of.is_authority);
        match of.form {
            Chain | Key if of.in_pair => Some(Content::Pair(certificate, key)),
            Bundle => bytes(certificate),
            PublicKeys => bytes(public),
            _ => None,
        }
    }),
    ("expired", |of| of.at(1_577_836_801, 1_600_000_000)),
    ("not valid yet", |of| of.at(4_070_000_000, 4_070_908_800)),
];

#[expect(clippy::unnecessary_wraps, reason = "the return type of inputs")]
fn bytes(content: impl Into<Vec<u8>>) -> Option<Content> {
    Some(Content::Bytes(content.into()))
}

impl Material {
    /// The label of the PEM blocks, if the format is PEM.
    fn label(&self) -> Option<&'static str> {
        match self.form {
            Chain | Bundle => Some("CERTIFICATE"),
            Key => Some("PRIVATE KEY"),
            PublicKeys => Some("PUBLIC KEY"),
            Text | Token => None,
        }
    }

    fn der(&self) -> Option<Vec<u8>> {
        self.label()?;
        let text = std::str::from_utf8(&self.valid).ok()?;
        let lines = text.lines().skip(1).take_while(|line| !line.starts_with('-'));
        base64::engine::general_purpose::STANDARD.decode(lines.collect::<String>()).ok()
    }

    fn broken(&self) -> Option<String> {
        Some(pem(self.label()?, b"nothing that it should be"))
    }

    /// Other valid content of the same format.
    fn another(&self) -> Option<String> {
        match self.form {
            Chain => Some(self.other.cert_pem()),
            Key => Some(self.other.key_pem()),
            Bundle => Some(Ca::new("another").cert_pem()),
            PublicKeys | Text | Token => None,
        }
    }

    /// Content that does not match the other file of the pair.
    fn of_another(&self) -> Option<String> {
        matches!(self.form, Chain | Key).then(|| self.another()).flatten()
    }

    /// Certificates with this validity.
    fn at(&self, from: i64, until: i64) -> Option<Content> {
        let build = |authority: bool| {
            if authority {
                let ca = Ca::build("aged").validity(from, until).issue_ca();
                (ca.cert_pem(), ca.key_pem())
            } else {
                let leaf = Ca::new("of the aged").leaf().cn("aged").validity(from, until).issue();
                (leaf.cert_pem(), leaf.key_pem())
            }
        };
        match self.form {
            Chain | Key if self.in_pair && !self.within => {
                let (certificate, key) = build(self.is_authority);
                Some(Content::Pair(certificate.into_bytes(), key.into_bytes()))
            }
            Bundle => bytes([self.valid.clone(), build(true).0.into_bytes()].concat()),
            _ => None,
        }
    }
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn encrypted(key: &[u8], form: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("plain"), key).unwrap();
    let base = ["pkey", "-in", &path("plain"), "-aes256", "-passout", "pass:secret", "-out", &path("key")];
    openssl(&[base.as_slice(), form].concat());
    std::fs::read(path("key")).unwrap()
}

/// A certificate with a weak key, its private key and its public key, made by openssl: aws-lc-rs generates no keys this
/// short.
fn weak(authority: bool) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    type Made = (Vec<u8>, Vec<u8>, Vec<u8>);
    static MADE: [OnceLock<Made>; 2] = [const { OnceLock::new() }; 2];
    let make = || {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let (key, certificate, public) = (path("key"), path("certificate"), path("public"));
        let is_authority = if authority { "TRUE" } else { "FALSE" };
        let config = format!(
            "[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=weak\n[ext]\n\
             basicConstraints=critical,CA:{is_authority}\n"
        );
        std::fs::write(path("config"), config).unwrap();
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "rsa:1024",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &certificate,
            "-config",
            &path("config"),
            "-days",
            "30",
            "-sha256",
        ]);
        openssl(&["pkey", "-in", &key, "-pubout", "-out", &public]);
        let [certificate, key, public] = [certificate, key, public].map(|path| std::fs::read(path).unwrap());
        (certificate, key, public)
    };
    MADE[usize::from(authority)].get_or_init(make).clone()
}
