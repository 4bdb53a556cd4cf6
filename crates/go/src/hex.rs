//! Octets as Go's `encoding/hex` writes them.

/// Two digits for each octet, in lower case.
pub fn hex(octets: &[u8]) -> String {
    octets.iter().flat_map(|octet| digits(*octet)).collect()
}

/// The digits of an octet, in lower case.
pub fn digits(octet: u8) -> [char; 2] {
    [octet >> 4, octet & 0xf].map(|nibble| char::from_digit(nibble.into(), 16).unwrap_or_default())
}
