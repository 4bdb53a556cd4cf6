//! Base64 as Go's `encoding/base64` decodes it: carriage returns and line feeds are skipped wherever they stand, and unused bits
//! of the last character may be set.
// go: encoding/base64/base64.go, decodeQuantum

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _};

const STANDARD: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Encodes with `base64.StdEncoding`.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes with `base64.StdEncoding`, as `encoding/json` does for `[]byte`. The error quotes a byte of the text.
pub fn decode(text: &str) -> Result<Vec<u8>, DecodeError> {
    if text.contains(['\r', '\n']) {
        STANDARD.decode(text.replace(['\r', '\n'], ""))
    } else {
        STANDARD.decode(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Printed by Go 1.26.
    #[test]
    fn line_ends_and_unused_bits_are_skipped_and_nothing_else() {
        for text in ["YWI=", "YW\nI=", "YW\r\nI=\r\n", "\nYWI\r=", "YWI=\n\n", "YWJ=", "YWI\n="] {
            assert_eq!(decode(text).as_deref(), Ok(&b"ab"[..]), "{text:?}");
        }
        for text in ["YW I=", "YWI", "YWI= ", "YWI=YWI=", "YW_=", "YWI=\t", "=YWI"] {
            assert!(decode(text).is_err(), "{text:?}");
        }
        assert_eq!(decode(""), Ok(Vec::new()));
    }
}
