//! The authorities and files of one test.

use std::path::PathBuf;

use crate::pki::{Ca, Issued};

/// The authorities of one test.
pub struct Pki {
    pub directory: tempfile::TempDir,
    pub servers: Ca,
    pub clients: Ca,
    pub front: Ca,
    pub client_front: Ca,
}

impl Pki {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            servers: Ca::new("servers"),
            clients: Ca::new("clients"),
            front: Ca::new("front"),
            client_front: Ca::new("front proxies of clients"),
        }
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn write_pair(&self, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
        (
            self.write(&format!("{name}.crt"), issued.cert_pem()),
            self.write(&format!("{name}.key"), issued.key_pem()),
        )
    }
}
