//! PEM as Go reads it: blocks of any type, and nothing else in the file matters.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// One block.
pub(crate) struct Block {
    /// What its first line calls it.
    pub(crate) kind: Vec<u8>,
    /// Whether there are headers before its content.
    pub(crate) headers: bool,
    /// Its content, decoded.
    pub(crate) content: Vec<u8>,
}

/// Every block; broken ones are passed over.
// go: encoding/pem, Decode
pub(crate) fn blocks(pem: &[u8]) -> Vec<Block> {
    // Like Go's, the decoder does not look at unused bits of the last character.
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
    );
    let mut blocks = Vec::new();
    // The type, whether there were headers, and the text so far.
    let mut open: Option<(Vec<u8>, bool, Vec<u8>)> = None;
    for line in pem.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_end();
        if let Some(kind) = line.strip_prefix(b"-----BEGIN ").and_then(|rest| rest.strip_suffix(b"-----")) {
            open = Some((kind.to_vec(), false, Vec::new()));
        } else if let Some(end) = line.strip_prefix(b"-----END ") {
            if let Some((kind, headers, text)) = open.take()
                && end.strip_suffix(b"-----") == Some(kind.as_slice())
                && let Ok(content) = BASE64.decode(&text)
            {
                blocks.push(Block { kind, headers, content });
            }
        } else if let Some((_, headers, text)) = &mut open {
            if text.is_empty() && line.contains(&b':') {
                *headers = true;
            } else {
                text.extend(line.iter().filter(|byte| !matches!(byte, b' ' | b'\t' | b'\r')));
            }
        }
    }
    blocks
}
