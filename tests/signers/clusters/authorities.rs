//! The certificate authorities of a run: for servers, for clients, and one for each signer.

use std::fs;
use std::path::{Path, PathBuf};

use testkit::pki::{Ca, Issued, Key, KeyKind, attribute, pem, string};

use super::Side;

/// A signer and its CA. The key types differ, so that all of them are tested.
pub(crate) struct SigningCa {
    pub(crate) signer: &'static str,
    /// The part of the flag names between `--cluster-signing-` and `-cert-file`.
    pub(crate) flag: &'static str,
    pub(crate) ca: Ca,
}

pub(crate) const SIGNERS: [(&str, &str, KeyKind); 4] = [
    ("kubernetes.io/kube-apiserver-client", "kube-apiserver-client", KeyKind::P256),
    ("kubernetes.io/kube-apiserver-client-kubelet", "kubelet-client", KeyKind::P384),
    ("kubernetes.io/kubelet-serving", "kubelet-serving", KeyKind::P521),
    ("kubernetes.io/legacy-unknown", "legacy-unknown", KeyKind::Rsa2048),
];

pub(crate) struct Authorities {
    pub(crate) servers: Ca,
    pub(crate) clients: Ca,
    pub(crate) inner: Ca,
    pub(crate) signing: Vec<SigningCa>,
    pub(crate) admin: Issued,
}

impl Authorities {
    pub(crate) fn new() -> Self {
        let clients = Ca::new("clients");
        let admin = clients.leaf().cn("admin").org("system:masters").issue();
        let signing = SIGNERS
            .into_iter()
            .map(|(signer, flag, kind)| {
                // An unusual issuer name, to check that it is copied byte for byte.
                let ca = Ca::build(flag)
                    .key(kind)
                    .attr("2.5.4.10", string::PRINTABLE, b"Example")
                    .rdn(&[
                        attribute("2.5.4.11", string::T61, b"Signers"),
                        attribute("2.5.4.5", string::PRINTABLE, b"1"),
                    ])
                    .issue_ca();
                SigningCa { signer, flag, ca }
            })
            .collect();
        Self { servers: Ca::new("servers"), clients, inner: Ca::new("inner"), signing, admin }
    }

    pub(crate) fn signing(&self, signer: &str) -> Option<&SigningCa> {
        self.signing.iter().find(|signing| signing.signer == signer)
    }

    /// The client CAs, including the signers of client certificates.
    fn client_bundle(&self) -> String {
        let signing = self.signing.iter().filter(|signing| signing.flag != "kubelet-serving");
        let signing: String = signing.map(|signing| signing.ca.cert_pem()).collect();
        format!("{}{signing}", self.clients.cert_pem())
    }

    pub(crate) fn write(&self, dir: &Path) -> std::io::Result<()> {
        let server = self.servers.server(&["127.0.0.1", "localhost"]);
        let front = self.inner.leaf().cn("front-proxy").issue();
        let accounts = Key::generate(KeyKind::P256);
        for (name, content) in [
            ("servers-ca.crt", self.servers.cert_pem()),
            ("clients-ca.crt", self.client_bundle()),
            ("inner-ca.crt", self.inner.cert_pem()),
            ("server.crt", server.cert_pem()),
            ("server.key", server.key_pem()),
            ("front.crt", front.cert_pem()),
            ("front.key", front.key_pem()),
            ("admin.crt", self.admin.cert_pem()),
            ("admin.key", self.admin.key_pem()),
            ("sa.key", accounts.pem()),
            ("sa.pub", pem("PUBLIC KEY", &accounts.spki())),
        ] {
            fs::write(dir.join(name), content)?;
        }
        Ok(())
    }

    /// Each side has its own files, so that tests can replace them.
    pub(crate) fn write_signing(&self, dir: &Path, side: Side) -> std::io::Result<()> {
        for signing in &self.signing {
            let (certificate, key) = signing_files(dir, side, signing.flag);
            fs::write(certificate, signing.ca.cert_pem())?;
            fs::write(key, signing.ca.key_pem())?;
        }
        Ok(())
    }
}

pub(crate) fn signing_files(dir: &Path, side: Side, flag: &str) -> (PathBuf, PathBuf) {
    let file = |end: &str| dir.join(format!("{}-{flag}.{end}", side.name()));
    (file("crt"), file("key"))
}
