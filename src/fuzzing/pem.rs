//! PEM: every block is part of the text, and a text with a single block has one interpretation.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use portcullis_go::pem::encode_pem;
use portcullis_go::pem::{blocks, decode, is_bare};

/// The input is a text with PEM blocks. `tests/it/parsers` compares with Go.
pub fn pem(data: &[u8]) {
    let mut rest = data;
    let mut found = Vec::new();
    while let Some((block, after)) = decode(rest) {
        assert!(after.len() < rest.len() && data.ends_with(after));
        // The text after a block does not change it.
        let before = rest.get(..rest.len() - after.len()).unwrap_or_default();
        assert_eq!(decode(before), Some((block.clone(), &[][..])));
        // A block in the format of Go's encoder parses to the same content.
        let written = encode_pem(&String::from_utf8_lossy(&block.kind), &block.content);
        if let Ok(kind) = std::str::from_utf8(&block.kind)
            && !kind.contains("-----BEGIN ")
            && !kind.contains(':')
        {
            let again: Vec<_> = blocks(written.as_bytes()).into_iter().map(|block| block.content).collect();
            assert_eq!(again, [block.content.as_slice()], "{kind:?}");
        }
        found.push(block);
        rest = after;
    }
    assert_eq!(found, blocks(data));
    for kind in [&b"CERTIFICATE REQUEST"[..], b"A"] {
        if is_bare(data, kind) {
            let readings: Vec<_> =
                found.iter().map(|block| (&*block.kind, block.headers, &*block.content)).collect();
            match plain(data) {
                Some(content) if !readings.is_empty() => assert_eq!(readings, [(kind, false, &*content)]),
                _ => assert!(readings.is_empty(), "{found:?}"),
            }
        }
    }
}

/// The content of a text with a single block, by a minimal parser: everything between the BEGIN and END lines.
fn plain(data: &[u8]) -> Option<Vec<u8>> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
    );
    let text = std::str::from_utf8(data).ok()?;
    let (_, behind) = text.split_once("-----BEGIN ")?;
    let (_, content) = behind.split_once("-----")?;
    let (content, _) = content.split_once("-----END ")?;
    BASE64.decode(content.split_ascii_whitespace().collect::<String>()).ok()
}
