//! Base64 as Go reads it: line breaks are skipped, and an error names the place of the byte that Go's names.

/// Decodes the standard alphabet with padding.
// go: encoding/base64, Encoding.Decode and decodeQuantum
pub(super) fn decode(source: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoded = Vec::with_capacity(source.len() / 4 * 3);
    let mut at = 0;
    while at < source.len() {
        at = decode_quantum(source, at, &mut decoded)
            .map_err(|place| format!("illegal base64 data at input byte {place}"))?;
    }
    Ok(decoded)
}

/// Decodes up to four characters; returns the place after them, or that of the error.
fn decode_quantum(source: &[u8], mut at: usize, decoded: &mut Vec<u8>) -> Result<usize, usize> {
    let (mut bits, mut count) = (0_u32, 0);
    while count < 4 {
        let Some(&byte) = source.get(at) else {
            return if count == 0 { Ok(at) } else { Err(at - count) };
        };
        at += 1;
        match digit(byte) {
            Some(digit) => (bits, count) = (bits << 6 | u32::from(digit), count + 1),
            None if is_line_break(byte) => {}
            None if byte == b'=' && count >= 2 => {
                at = padding_end(source, at, count)?;
                break;
            }
            None => return Err(at - 1),
        }
    }
    let [_, first, second, third] = (bits << (6 * (4 - count))).to_be_bytes();
    decoded.extend([first, second, third].iter().take(count - 1));
    Ok(at)
}

/// The end of the text, if nothing but padding is left.
fn padding_end(source: &[u8], at: usize, count: usize) -> Result<usize, usize> {
    let skip = |mut at: usize| {
        while source.get(at).copied().is_some_and(is_line_break) {
            at += 1;
        }
        at
    };
    let mut at = at;
    if count == 2 {
        at = skip(at);
        match source.get(at) {
            None => return Err(source.len()),
            Some(b'=') => at += 1,
            Some(_) => return Err(at - 1),
        }
    }
    at = skip(at);
    if at < source.len() { Err(at) } else { Ok(at) }
}

fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
