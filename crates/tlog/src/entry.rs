//! An entry of the log: a certificate, when it was issued, and what the signer says about it.
//!
//! The form is that of Certificate Transparency, so that its tools read it: a `MerkleTreeLeaf` with an `x509_entry`. The
//! extensions, which it leaves open, are JSON.
// RFC 6962, section 3.4

use crate::error::LogError;

/// A logged certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Milliseconds since 1970.
    pub timestamp: u64,
    /// The certificate in DER.
    pub certificate: Vec<u8>,
    /// What the signer says of it, a JSON object.
    pub details: String,
}

/// `Version.v1`, `MerkleLeafType.timestamped_entry`.
const HEADER: [u8; 2] = [0, 0];
/// `LogEntryType.x509_entry`.
const X509_ENTRY: [u8; 2] = [0, 0];
/// The octets beside the certificate and the details: header, timestamp, type and both lengths.
const OVERHEAD: usize = 2 + 8 + 2 + 3 + 2;

impl LogEntry {
    /// The octets of the entry; fails with the size of one that does not fit. Nothing is left out.
    pub fn encode(&self) -> Result<Vec<u8>, LogError> {
        let Self { timestamp, certificate, details } = self;
        let size = OVERHEAD + certificate.len() + details.len();
        let too_large = || LogError::TooLarge(size);
        if u16::try_from(size).is_err() {
            return Err(too_large());
        }
        let mut octets = HEADER.to_vec();
        octets.extend_from_slice(&timestamp.to_be_bytes());
        octets.extend_from_slice(&X509_ENTRY);
        let length = u32::try_from(certificate.len()).map_err(|_| too_large())?.to_be_bytes();
        octets.extend_from_slice(length.strip_prefix(&[0]).ok_or_else(too_large)?);
        octets.extend_from_slice(certificate);
        octets.extend_from_slice(&u16::try_from(details.len()).map_err(|_| too_large())?.to_be_bytes());
        octets.extend_from_slice(details.as_bytes());
        Ok(octets)
    }

    /// Reads an entry.
    pub fn decode(octets: &[u8]) -> Option<Self> {
        let (timestamp, rest) = octets.strip_prefix(&HEADER)?.split_first_chunk::<8>()?;
        let (length, rest) = rest.strip_prefix(&X509_ENTRY)?.split_first_chunk::<3>()?;
        let [high, middle, low] = *length;
        let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
        let (certificate, rest) = rest.split_at_checked(length)?;
        let (length, details) = rest.split_first_chunk::<2>()?;
        if details.len() != usize::from(u16::from_be_bytes(*length)) {
            return None;
        }
        let details = String::from_utf8(details.to_vec()).ok()?;
        Some(Self { timestamp: u64::from_be_bytes(*timestamp), certificate: certificate.to_vec(), details })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_form_is_that_of_certificate_transparency() {
        let entry = LogEntry { timestamp: 0x0102, certificate: b"DER".to_vec(), details: "{}".to_owned() };
        let octets = entry.encode().unwrap();
        assert_eq!(octets, b"\0\0\0\0\0\0\0\0\x01\x02\0\0\0\0\x03DER\0\x02{}");
        assert_eq!(LogEntry::decode(&octets), Some(entry));
    }

    #[test]
    fn what_does_not_fit_is_refused_as_a_whole() {
        let mut entry = LogEntry { timestamp: 0, certificate: vec![0; 65_000], details: "x".repeat(518) };
        assert_eq!(entry.encode().unwrap().len(), 65_535);
        assert_eq!(LogEntry::decode(&entry.encode().unwrap()), Some(entry.clone()));
        entry.details.push('x');
        assert!(matches!(entry.encode(), Err(LogError::TooLarge(65_536))));
        entry.details = String::new();
        entry.certificate = vec![0; 65_536 - 18];
        assert_eq!(entry.encode().unwrap().len(), 65_535);
        entry.certificate.push(0);
        assert!(matches!(entry.encode(), Err(LogError::TooLarge(65_536))));
    }

    proptest! {
        #[test]
        fn an_entry_is_read_as_it_was_written(
            timestamp: u64,
            certificate in proptest::collection::vec(any::<u8>(), 0..600),
            details in ".{0,40}",
        ) {
            let entry = LogEntry { timestamp, certificate, details };
            let octets = entry.encode().unwrap();
            prop_assert_eq!(LogEntry::decode(&octets), Some(entry));
            for length in 0..octets.len() {
                prop_assert_eq!(LogEntry::decode(&octets[..length]), None);
            }
        }

        #[test]
        fn no_octets_make_the_reader_panic(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
            LogEntry::decode(&octets);
            LogEntry::decode(&[&HEADER[..], &octets].concat());
        }
    }
}
