//! The authorities and files of one test.

use std::path::PathBuf;

use crate::pki::{Ca, Issued};

/// The authorities of one test.
pub struct Pki {
    /// The files of the test.
    pub directory: tempfile::TempDir,
    /// Signs the certificates of servers.
    pub servers: Ca,
    /// Signs the certificates of clients.
    pub clients: Ca,
    /// Signs the gateway's front-proxy certificate.
    pub front: Ca,
    /// Signs the certificates of front proxies before the gateway.
    pub client_front: Ca,
}

impl Pki {
    /// New authorities and an empty directory.
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            servers: Ca::new("servers"),
            clients: Ca::new("clients"),
            front: Ca::new("front"),
            client_front: Ca::new("front proxies of clients"),
        }
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a certificate and its key.
    pub fn write_pair(&self, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
        (
            self.write(&format!("{name}.crt"), issued.cert_pem()),
            self.write(&format!("{name}.key"), issued.key_pem()),
        )
    }
}
