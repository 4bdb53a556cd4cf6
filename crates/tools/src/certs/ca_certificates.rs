//! The certificates of a CA by which its signatures are recognized. A name proves nothing: two installations may give their
//! CAs the same one.

use std::path::{Path, PathBuf};

use portcullis_go::hex::hex;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::{CaBundle, Crl};

use super::error::CommandError;
use crate::certs::named_file;

/// The certificates of one CA: the current one, and those of its former keys that are still in `NAME.bundle.crt`.
#[derive(Debug)]
pub(super) struct CaCertificates {
    file: PathBuf,
    current: Certificate,
    former: Vec<Certificate>,
}

impl CaCertificates {
    /// Reads the file of the CA's certificate, and the bundle beside it.
    pub(super) fn read(file: &Path) -> Result<Self, CommandError> {
        let mut all = certificates(file)?.unwrap_or_default().into_iter();
        let current =
            all.next().ok_or_else(|| CommandError::about(file.display(), "no certificate in it"))?;
        let bundle = certificates(&file.with_extension("bundle.crt"))?.unwrap_or_default();
        let former = all.chain(bundle).filter(|other| other.raw_subject == current.raw_subject).collect();
        Ok(Self { file: file.to_owned(), current, former })
    }

    fn all(&self) -> impl Iterator<Item = &Certificate> {
        std::iter::once(&self.current).chain(&self.former)
    }

    /// Fails if no key of the CA has signed the certificate. `is_recorded`: the CA's index has the certificate, whose
    /// issuer may be a former one without a certificate here.
    // threat: namesake-authority
    pub(super) fn check_signed(&self, certificate: &Certificate, is_recorded: bool) -> Result<(), String> {
        const FIX: &str = "give its CA with --dir, --authority or --ca-cert";
        let (label, file) = (self.current.label(), self.file.display());
        if certificate.issuer != self.current.raw_subject {
            return Err(format!("it was not signed by {label}, the CA of {file}; {FIX}"));
        }
        if is_recorded || self.all().any(|ca| certificate.check_signature_from(ca).is_ok()) {
            return Ok(());
        }
        let issuer = key_id(&certificate.extensions.authority_key_id);
        let keys: Vec<_> = self.all().map(|ca| key_id(&ca.extensions.subject_key_id)).collect();
        Err(format!(
            "it was not signed by {label}, the CA of {file}, but by another CA of that name: the key identifier of its \
             issuer is {issuer}, and that of this CA {}; {FIX}",
            keys.join(" or ")
        ))
    }

    /// Whether a CRL names the CA as its issuer, or one of the same name.
    pub(super) fn has_issuer_name_of(&self, crl: &Crl) -> bool {
        crl.issuer == self.current.raw_subject
    }

    /// Whether a key of the CA has signed a CRL.
    pub(super) fn have_signed(&self, crl: &Crl) -> bool {
        self.has_issuer_name_of(crl) && self.all().any(|ca| crl.check_signature_from(ca).is_ok())
    }

    /// The name of the CA, for error texts.
    pub(super) fn label(&self) -> String {
        self.current.label()
    }
}

fn key_id(octets: &[u8]) -> String {
    if octets.is_empty() { "unknown".to_owned() } else { hex(octets) }
}

/// The certificates of a file; `None` if it does not exist.
fn certificates(file: &Path) -> Result<Option<Vec<Certificate>>, CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let Some(pem) = named_file::read_if_present(file).map_err(|error| about(&error))? else {
        return Ok(None);
    };
    let bundle = CaBundle::from_pem(&pem).map_err(|error| about(&error))?;
    Ok(Some(bundle.certificates().to_vec()))
}
