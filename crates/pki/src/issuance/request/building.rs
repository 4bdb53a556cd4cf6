//! Builds certificate requests.

use x509_cert::attr::Attribute;
use x509_cert::der::asn1::{Any, ObjectIdentifier, OctetString, SetOfVec};
use x509_cert::der::{self, Decode as _, Encode as _, Sequence};
use x509_cert::ext::Extension;

use super::{CertificateRequest, RequestError};
use crate::issuance::alt_names::AltNames;
use crate::issuance::signer::{PemKey, Signer as _};
use crate::issuance::subject::Subject;
use crate::issuance::tbs;

// RFC 2986 §4.1
#[derive(Sequence)]
struct Info {
    version: u8,
    subject: Any,
    public_key: Any,
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    attributes: SetOfVec<Attribute>,
}

/// Builds and signs a request, then parses and verifies it like any other.
pub fn build(
    subject: &Subject,
    alt_names: &AltNames,
    key: &PemKey,
) -> Result<CertificateRequest, RequestError> {
    let info = Info {
        version: 0,
        subject: Any::from_der(&subject.to_der()?)?,
        public_key: Any::from_der(key.public_key())?,
        attributes: attributes(subject, alt_names)?,
    }
    .to_der()?;
    let signature = key.sign(key.algorithm(), &info)?;
    CertificateRequest::from_der(&tbs::signed(&info, key.algorithm().identifier()?, &signature)?)
}

fn attributes(subject: &Subject, alt_names: &AltNames) -> Result<SetOfVec<Attribute>, der::Error> {
    let mut attributes = SetOfVec::new();
    if alt_names.is_empty() {
        return Ok(attributes);
    }
    let extension = Extension {
        extn_id: ObjectIdentifier::new_unwrap("2.5.29.17"),
        critical: subject.is_empty(),
        extn_value: OctetString::new(alt_names.to_der()?)?,
    };
    let values = SetOfVec::from_iter([Any::encode_from(&vec![extension])?])?;
    attributes.insert(Attribute { oid: ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.14"), values })?;
    Ok(attributes)
}

impl From<der::Error> for RequestError {
    fn from(error: der::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}
