//! PEM blocks, encoded, and parsed by the algorithm of Go's `encoding/pem`, step by step.
//!
//! This is the only PEM reader of the program. Kubernetes' components read PEM with Go's package; a reader that takes
//! another block of the same text lets a client have one request approved and another one signed. Go's reader differs
//! from RFC 7468 in many places, and each of them is part of the contract here: the last BEGIN before the first END
//! counts, headers are recognised by their colon, a block that does not decode is passed over.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustls_pki_types::CertificateDer;
use secrecy::zeroize::Zeroizing;

/// A PEM block.
#[derive(Clone, PartialEq, Eq)]
pub struct Block {
    /// The type that its BEGIN and END lines name.
    pub kind: Vec<u8>,
    /// Whether there are headers before its content.
    pub headers: bool,
    /// Its content, decoded.
    pub content: Vec<u8>,
}

/// Without the content, which may be a private key.
impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = String::from_utf8_lossy(&self.kind);
        f.debug_struct("Block").field("kind", &kind).field("headers", &self.headers).finish_non_exhaustive()
    }
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"\n-----END ";
const DASHES: &[u8] = b"-----";
const CERTIFICATE: &[u8] = b"CERTIFICATE";

/// Every block up to the point where [`decode`] finds none.
pub fn blocks(mut data: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    while let Some((block, rest)) = decode(data) {
        blocks.push(block);
        data = rest;
    }
    blocks
}

/// Whether the data is one block of this type without headers, and nothing else but blanks, tabs and line ends: text of
/// which every reader that finds a block finds the same one.
pub fn is_bare(data: &[u8], kind: &[u8]) -> bool {
    let content = || {
        let begin = trimmed(data).strip_prefix(BEGIN)?.strip_prefix(kind)?.strip_prefix(DASHES)?;
        begin.strip_suffix(DASHES)?.strip_suffix(kind)?.strip_suffix(END)
    };
    let is_content = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/= \t\r\n".contains(byte);
    content().is_some_and(|content| content.iter().all(is_content))
}

/// The certificates of a chain, as a server or a client presents it.
// go: crypto/tls/tls.go, X509KeyPair
pub fn certificate_chain(data: &[u8]) -> Vec<CertificateDer<'static>> {
    let certificates = blocks(data).into_iter().filter(|block| block.kind == CERTIFICATE);
    certificates.map(|block| block.content.into()).collect()
}

/// The certificates of trusted authorities: of these, Go leaves out blocks with headers.
// client-go: util/cert/pem.go, ParseCertsPEM; go: crypto/x509/cert_pool.go, AppendCertsFromPEM
pub fn authorities(data: &[u8]) -> Vec<CertificateDer<'static>> {
    let certificates = blocks(data).into_iter().filter(|block| block.kind == CERTIFICATE && !block.headers);
    certificates.map(|block| block.content.into()).collect()
}

/// The first block that is a private key, whatever its form; else why there is none.
// go: crypto/tls/tls.go, X509KeyPair
pub fn private_key_block(data: &[u8]) -> Result<Block, String> {
    let mut skipped = Vec::new();
    for block in blocks(data) {
        if block.kind == b"PRIVATE KEY" || block.kind.ends_with(b" PRIVATE KEY") {
            return Ok(block);
        }
        skipped.push(String::from_utf8_lossy(&block.kind).into_owned());
    }
    Err(match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if one == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        types => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
            types.join(" ")
        ),
    })
}

/// The first block, and the text after its END line.
// go: encoding/pem/pem.go, Decode
// threat: csr-other-reading
pub fn decode(data: &[u8]) -> Option<(Block, &[u8])> {
    let mut from = 0;
    loop {
        let end = from + find(data.get(from..)?, END)?;
        match read(data, from, end)? {
            Reading::Block(block) => {
                let end_line = data.get(end + END.len() - 1..)?;
                return Some((block, line(end_line).1));
            }
            Reading::Skipped => from = end + END.len(),
        }
    }
}

enum Reading {
    Block(Block),
    Skipped,
}

/// Reads the block that ends at the line feed at `end`, the first one before an END at or after `from`; `None` if no
/// block can be found any more.
fn read(data: &[u8], from: usize, end: usize) -> Option<Reading> {
    let before = data.get(from..end)?;
    let Some(begin) = before.windows(BEGIN.len()).rposition(|window| window == BEGIN) else {
        return Some(Reading::Skipped);
    };
    if begin.checked_sub(1).is_some_and(|previous| before.get(previous) != Some(&b'\n')) {
        return Some(Reading::Skipped);
    }
    let (begin_line, body) = line(data.get(from + begin + BEGIN.len()..)?);
    let Some(kind) = begin_line.strip_suffix(DASHES) else { return Some(Reading::Skipped) };
    let (headers, body) = after_headers(body)?;
    let start = data.len() - body.len();
    // Go gives up on the whole input, not on this block alone, if the END line itself was taken for a header.
    if start > end + END.len() {
        return None;
    }
    Some(
        content(data, kind, headers, start, end).map_or(Reading::Skipped, |content| {
            Reading::Block(Block { kind: kind.to_vec(), headers, content })
        }),
    )
}

/// Whether there are headers, and the text after them; `None` if the data ends there. Each line with a colon is a header,
/// wherever the colon is; no empty line is needed.
fn after_headers(mut data: &[u8]) -> Option<(bool, &[u8])> {
    let mut headers = false;
    while !data.is_empty() {
        let (header, rest) = line(data);
        if !header.contains(&b':') {
            return Some((headers, data));
        }
        (headers, data) = (true, rest);
    }
    None
}

/// The content of a block from `start` to `end`; `None` if its END line is not that of its BEGIN line, or if the content
/// is not base64.
fn content(data: &[u8], kind: &[u8], headers: bool, start: usize, end: usize) -> Option<Vec<u8>> {
    // Without content there must be a line feed of its own between headers and END.
    if headers && start > end {
        return None;
    }
    let end_line = data.get(end + END.len()..)?.strip_prefix(kind)?.strip_prefix(DASHES)?;
    if !line(end_line).0.is_empty() {
        return None;
    }
    // The line feed at `end` may be that of the BEGIN line.
    base64(data.get(start..end).unwrap_or_default())
}

/// The first line, without blanks and tabs at its end, and the rest. A carriage return counts as part of the line's end
/// only before a line feed.
// go: encoding/pem/pem.go, getLine
fn line(data: &[u8]) -> (&[u8], &[u8]) {
    let (line, rest) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => {
            let (line, rest) = data.split_at(at);
            (line.strip_suffix(b"\r").unwrap_or(line), rest.get(1..).unwrap_or_default())
        }
        None => (data, &[][..]),
    };
    let length = line.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    (line.get(..length).unwrap_or_default(), rest)
}

/// Decodes base64 with padding and does not look at unused bits of the last character. Blanks, tabs, carriage returns
/// and line feeds are skipped wherever they stand, and nothing else is.
// go: encoding/pem/pem.go, removeSpacesAndTabs; encoding/base64/base64.go, decodeQuantum
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    const ENGINE: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
    );
    let text: Vec<u8> =
        text.iter().copied().filter(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).collect();
    ENGINE.decode(text).ok()
}

fn trimmed(data: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let Some(first) = data.iter().position(is_text) else { return &[] };
    let last = data.iter().rposition(is_text).unwrap_or(first);
    data.get(first..=last).unwrap_or_default()
}

fn find(data: &[u8], wanted: &[u8]) -> Option<usize> {
    data.windows(wanted.len()).position(|window| window == wanted)
}

/// Encodes a PEM block with lines of 64 characters.
// Go: encoding/pem, Encode
pub fn encode_pem(kind: &str, content: &[u8]) -> String {
    // The content may be a private key: wipes the copy, and allocates once so that growing leaves no copy behind.
    let text = Zeroizing::new(STANDARD.encode(content));
    let lines = text.len() / 64 + 1;
    let mut pem = String::with_capacity(text.len() + lines + 2 * kind.len() + 40);
    pem = pem + "-----BEGIN " + kind + "-----\n";
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem + "-----END " + kind + "-----\n"
}

#[cfg(test)]
mod tests {
    use super::{blocks, decode, is_bare};

    const A: &str = "-----BEGIN A-----\nQUFB\n-----END A-----\n";
    const B: &str = "-----BEGIN B-----\nQkJC\n-----END B-----\n";

    /// The blocks, as `kind=content`, with `+` for headers.
    fn read(text: &str) -> String {
        let shown = blocks(text.as_bytes()).into_iter().map(|block| {
            let headers = if block.headers { "+" } else { "" };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            format!("{}{headers}={}", text(&block.kind), text(&block.content))
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    // Each was read by Go 1.26; `tests/it/parsers` compares others.
    #[test]
    fn blocks_are_those_that_go_finds() {
        let cases: Vec<(&str, String, &str)> = vec![
            ("one", A.to_owned(), "A=AAA"),
            ("two and text", format!("x\n{A}y\n{B}z"), "A=AAA B=BBB"),
            ("CRLF", A.replace('\n', "\r\n"), "A=AAA"),
            ("no line feed at the end", A.trim_end().to_owned(), "A=AAA"),
            ("a carriage return at the end alone", format!("{}\r", A.trim_end()), ""),
            ("blanks and tabs at the ends of lines", A.replace('\n', " \t\n"), "A=AAA"),
            ("blanks in the content", A.replace("QUFB", " Q\tU\r\nF B"), "A=AAA"),
            ("a form feed in the content", A.replace("QUFB", "QUFB\x0c"), ""),
            ("a form feed behind BEGIN", A.replacen("-----\n", "-----\x0c\n", 1), ""),
            ("no content", "-----BEGIN A-----\n-----END A-----\n".to_owned(), "A="),
            ("an empty line for content", "-----BEGIN A-----\n\n-----END A-----\n".to_owned(), "A="),
            ("no type", "-----BEGIN -----\n-----END -----\n".to_owned(), "="),
            ("types that differ", A.replace("END A", "END B"), ""),
            ("types that differ, then one", format!("{}{B}", A.replace("END A", "END B")), "B=BBB"),
            ("BEGIN twice", format!("-----BEGIN A-----\nQUFB\n{B}"), "B=BBB"),
            ("BEGIN within a line", format!("x{A}"), ""),
            ("BEGIN within the block", A.replace("QUFB", "x: -----BEGIN B-----\nQUFB"), ""),
            (
                "BEGIN within the block, then one",
                format!("{}{B}", A.replace("QUFB", "x: -----BEGIN \n\nQUFB")),
                "B=BBB",
            ),
            ("END within a line", A.replace("\n-----END", "\nx-----END"), ""),
            ("text behind END", A.replace("END A-----", "END A-----x"), ""),
            (
                "BEGIN behind an END",
                "x\n-----END -----BEGIN A-----\nQUFB\n-----END A-----".to_owned(),
                "A=AAA",
            ),
            ("headers", A.replace("QUFB", "x: y\nz:\n\nQUFB"), "A+=AAA"),
            ("headers without an empty line", A.replace("QUFB", "x: y\nQUFB"), "A+=AAA"),
            ("an empty line before a header", A.replace("QUFB", "\nx: y\n\nQUFB"), ""),
            ("headers and no content", "-----BEGIN A-----\nx:\n\n-----END A-----\n".to_owned(), "A+="),
            ("headers and no empty line", "-----BEGIN A-----\nx:\n-----END A-----\n".to_owned(), ""),
            (
                "headers and no empty line, then one",
                format!("-----BEGIN A-----\nx:\n-----END A-----\n{B}"),
                "B=BBB",
            ),
            ("END as a header", format!("-----BEGIN A:-----\nx:\n-----END A:-----\n{B}"), ""),
            ("nothing but headers", "\n-----END \n-----BEGIN A-----\nx:".to_owned(), ""),
            ("unused bits", A.replace("QUFB", "QR=="), "A=A"),
            ("padding on the next line", A.replace("QUFB", "QQ=\n="), "A=A"),
            ("too little padding", A.replace("QUFB", "QQ="), ""),
            ("no padding", A.replace("QUFB", "QQ"), ""),
            ("padding alone", A.replace("QUFB", "===="), ""),
            ("content behind padding", A.replace("QUFB", "QQ==QQ=="), ""),
            ("not base64, then one", format!("{}{B}", A.replace("QUFB", "Q-FB")), "B=BBB"),
        ];
        let wrong: Vec<String> = cases
            .iter()
            .filter(|(_, text, expected)| read(text) != *expected)
            .map(|(name, text, expected)| format!("{name}: {:?}, not {expected:?}", read(text)))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_rest_begins_behind_the_end_line() {
        let rest =
            |text: &str| decode(text.as_bytes()).map(|(_, rest)| String::from_utf8_lossy(rest).into_owned());
        assert_eq!(rest(&format!("x\n{A}{B}")).as_deref(), Some(B));
        assert_eq!(rest(A.trim_end()).as_deref(), Some(""));
        assert_eq!(rest(&A.replace('\n', " \r\n")).as_deref(), Some(""));
        assert_eq!(rest("x"), None);
    }

    #[test]
    fn only_a_block_alone_is_bare() {
        let cases = [
            (A.to_owned(), true),
            (A.trim_end().to_owned(), true),
            (format!(" \t\r\n{}", A.replace('\n', " \t\r\n")), true),
            (A.replace("QUFB", "QU\n FB"), true),
            (format!("{A}{A}"), false),
            (format!("x\n{A}"), false),
            (format!("{A}x"), false),
            (format!("{A}\x0c"), false),
            (format!("{A}\0"), false),
            (A.replace("QUFB", "x: y\n\nQUFB"), false),
            (A.replace("QUFB", "QUFB-"), false),
            (format!("-----BEGIN A-----\n{A}"), false),
            (B.to_owned(), false),
            (String::new(), false),
        ];
        for (text, expected) in cases {
            assert_eq!(is_bare(text.as_bytes(), b"A"), expected, "{text:?}");
            assert!(!expected || read(&text) == "A=AAA", "{text:?}");
        }
    }

    #[test]
    fn a_block_is_shown_without_its_content() {
        let shown = format!("{:?}", blocks(A.as_bytes()));
        assert_eq!(shown, "[Block { kind: \"A\", headers: false, .. }]");
    }
}
