//! CRL files: only a CRL that the CA in `authority/` has signed is accepted. Its key was discarded, so any other accepted
//! CRL has a forged signature.

use std::path::PathBuf;
use std::sync::OnceLock;

use portcullis_pki::x509::certificate::Certificate;

use super::NOW;
use super::certificates::signed_part;
use crate::authn::revocation::crls::{ClientCrls, CrlFailurePolicy, encoded};

/// The CA. `cargo test --test it -- --ignored makes_new_crls` creates another, with its CRLs and the corpus.
const AUTHORITY: &[u8] = include_bytes!("authority/crl-ca.der");
/// Every CRL that it has signed.
const SIGNED: [&[u8]; 2] =
    [include_bytes!("authority/crl-empty.der"), include_bytes!("authority/crl-revoked.der")];

/// The input is a file of CRLs.
pub fn crls(data: &[u8]) {
    let Some(authority) = authority() else { return };
    let load = |content: &[u8]| {
        let file = (PathBuf::from("crls"), content.to_vec());
        ClientCrls::load(
            &[file],
            &["http://ca.example/crl".to_owned()],
            &[authority],
            CrlFailurePolicy::Fail,
            NOW,
        )
    };
    let crls = match load(data) {
        Ok(crls) => crls,
        Err(errors) => {
            assert!(!errors.is_empty() && errors.iter().all(|error| !error.problem.is_empty()));
            return;
        }
    };
    let lists = encoded(data).unwrap_or_default();
    assert!(!lists.is_empty() && crls.lists().len() == 1, "one issuer with one key");
    for list in &lists {
        let known = SIGNED.iter().any(|known| signed_part(known) == signed_part(list));
        assert!(known, "accepted a CRL with a forged signature");
    }
    // No certificate of the CA escapes, and data after a CRL is not ignored.
    assert!(crls.covers(authority));
    if let [only] = lists.as_slice() {
        assert!(load(&[only.as_slice(), &[0]].concat()).is_err());
    }
}

fn authority() -> Option<&'static Certificate> {
    static READ: OnceLock<Option<Certificate>> = OnceLock::new();
    let authority = READ.get_or_init(|| Certificate::parse(AUTHORITY.into()).ok()).as_ref();
    assert!(authority.is_some(), "the committed authority cannot be read");
    authority
}
