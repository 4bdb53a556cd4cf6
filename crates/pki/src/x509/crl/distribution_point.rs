//! The issuingDistributionPoint of a CRL (RFC 5280 section 5.2.5): which of the CA's certificates the list is about.

use portcullis_go::quote::Quoted;

use super::CrlError;
use crate::x509::alt_names::ia5;
use crate::x509::der::{DerReader, tag};

/// What an issuingDistributionPoint says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DistributionPoint {
    /// The URLs of the distribution point: names of one list.
    urls: Vec<String>,
    /// Limits that no operator can lift: they exclude certificates whatever the CA's other lists are.
    limits: Vec<&'static str>,
}

impl DistributionPoint {
    /// Parses the value of the extension. Any part that is not understood is a limit.
    pub(super) fn parse(mut content: DerReader<'_>) -> Result<Self, CrlError> {
        let malformed = || CrlError::Malformed("issuingDistributionPoint".to_owned());
        let mut found = Self::default();
        let mut point = content.enter(tag::SEQUENCE).filter(|_| content.is_empty()).ok_or_else(malformed)?;
        while !point.is_empty() {
            let element = point.any().ok_or_else(malformed)?;
            let says_false = element.content == [0];
            match element.tag {
                name if name == tag::explicit(0) => found.read_name(element.content).ok_or_else(malformed)?,
                flag if flag == tag::context(1) && says_false => {}
                flag if flag == tag::context(1) => found.limits.push("onlyContainsUserCerts"),
                flag if flag == tag::context(2) && says_false => {}
                flag if flag == tag::context(2) => found.limits.push("onlyContainsCACerts"),
                reasons if reasons == tag::context(3) => found.limits.push("onlySomeReasons"),
                flag if flag == tag::context(4) && says_false => {}
                flag if flag == tag::context(4) => return Err(CrlError::Indirect),
                flag if flag == tag::context(5) && says_false => {}
                flag if flag == tag::context(5) => found.limits.push("onlyContainsAttributeCerts"),
                _ => found.limits.push("an unknown part"),
            }
        }
        Ok(found)
    }

    /// Reads a `DistributionPointName`.
    fn read_name(&mut self, content: &[u8]) -> Option<()> {
        let mut choice = DerReader::new(content);
        let name = choice.any().filter(|_| choice.is_empty())?;
        if name.tag != tag::explicit(0) {
            self.limits.push("a name relative to the issuer");
            return Some(());
        }
        let mut names = DerReader::new(name.content);
        while !names.is_empty() {
            let name = names.any()?;
            // uniformResourceIdentifier
            if name.tag == tag::context(6) {
                self.urls.push(ia5(name.content)?);
            }
        }
        Some(())
    }

    /// Checks that the list is about all certificates of the CA, since the operator says so of one of its URLs.
    // threat: foreign-crl
    pub(super) fn check_complete(&self, complete: &[String]) -> Result<(), CrlError> {
        if self.limits.is_empty() && self.urls.iter().any(|url| complete.contains(url)) {
            return Ok(());
        }
        let urls = self.urls.iter().map(|url| Quoted(url).to_string());
        let read: Vec<String> = urls.chain(self.limits.iter().map(|limit| (*limit).to_owned())).collect();
        let read = if read.is_empty() { "no name".to_owned() } else { read.join(", ") };
        Err(if self.limits.is_empty() && !self.urls.is_empty() {
            CrlError::OneOfSeveral(read)
        } else {
            CrlError::Partitioned(read)
        })
    }
}
