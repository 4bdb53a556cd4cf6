//! The name and value pairs of a header block, of which only the headers of Kubernetes' streams are kept.
//!
//! Kubernetes' servers read pairs from the whole of the decompressed stream: plain bytes after the last pair of a block would
//! be the first of the next block. Here such a block is an error, and one that ends within a pair is, too.
// apiserver: github.com/moby/spdystream/spdy/read.go, parseHeaderValueBlock

use super::inflate::Inflater;

/// The maximum length of a name or value that is kept. A longer value of a header that counts is an error: the server reads all of it.
const MAX_KEPT: usize = 64;

/// The headers of a stream.
#[derive(Debug, Default)]
pub(super) struct StreamHeaders {
    /// `streamType`.
    pub(super) stream_type: Option<String>,
    /// `port`.
    pub(super) port: Option<u16>,
}

/// Reads the header blocks of one direction.
#[derive(Debug, Default)]
pub(super) struct HeaderBlockReader {
    inflater: Inflater,
    pairs: PairReader,
}

/// Reads the pairs of one block.
#[derive(Debug)]
struct PairReader {
    expected: Expected,
    /// The bytes of the number that is read: the count of pairs, or a length.
    number: Vec<u8>,
    /// The strings that follow: two for each pair.
    strings: u32,
    name: Vec<u8>,
    value: Vec<u8>,
    headers: StreamHeaders,
}

#[derive(Debug, Clone, Copy)]
enum Expected {
    Count,
    Length,
    Text { remaining: u32 },
    Nothing,
}

impl Default for PairReader {
    fn default() -> Self {
        Self {
            expected: Expected::Count,
            number: Vec::new(),
            strings: 0,
            name: Vec::new(),
            value: Vec::new(),
            headers: StreamHeaders::default(),
        }
    }
}

impl HeaderBlockReader {
    /// Takes compressed bytes of a block.
    pub(super) fn read(&mut self, compressed: &[u8]) -> Result<(), &'static str> {
        let Self { inflater, pairs } = self;
        inflater.read(compressed, &mut |plain| pairs.read(plain))
    }

    /// The headers of the block, which has ended.
    pub(super) fn end_block(&mut self) -> Result<StreamHeaders, &'static str> {
        self.inflater.end_block();
        let pairs = std::mem::take(&mut self.pairs);
        match pairs.expected {
            Expected::Nothing => Ok(pairs.headers),
            _ => Err("a header block ends within its pairs"),
        }
    }
}

impl PairReader {
    fn read(&mut self, mut plain: &[u8]) -> Result<(), &'static str> {
        while let Some((byte, after)) = plain.split_first() {
            match self.expected {
                Expected::Nothing => return Err("a header block goes on after its pairs"),
                Expected::Text { remaining } => {
                    let taken = usize::try_from(remaining).unwrap_or(usize::MAX).min(plain.len());
                    let (text, rest) = plain.split_at(taken);
                    self.text(text);
                    plain = rest;
                    let remaining = remaining.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
                    self.expected = Expected::Text { remaining };
                    if remaining == 0 {
                        self.end_text()?;
                    }
                }
                Expected::Count | Expected::Length => {
                    plain = after;
                    self.number.push(*byte);
                    let Ok(number) = <[u8; 4]>::try_from(self.number.as_slice()) else { continue };
                    self.number.clear();
                    self.number(u32::from_be_bytes(number))?;
                }
            }
        }
        Ok(())
    }

    /// Keeps one byte more than a value may have.
    fn text(&mut self, text: &[u8]) {
        let kept = if self.strings.is_multiple_of(2) { &mut self.name } else { &mut self.value };
        let room = (MAX_KEPT + 1).saturating_sub(kept.len());
        kept.extend(text.iter().take(room));
    }

    fn number(&mut self, number: u32) -> Result<(), &'static str> {
        match self.expected {
            Expected::Count => {
                self.strings = number.checked_mul(2).ok_or("a header block has too many pairs")?;
                self.expected = if number == 0 { Expected::Nothing } else { Expected::Length };
            }
            _ if number == 0 => self.end_text()?,
            _ => self.expected = Expected::Text { remaining: number },
        }
        Ok(())
    }

    fn end_text(&mut self) -> Result<(), &'static str> {
        if self.strings % 2 == 1 {
            let (name, value) = (std::mem::take(&mut self.name), std::mem::take(&mut self.value));
            self.headers.insert(&name, &value)?;
        }
        self.strings -= 1;
        self.expected = if self.strings == 0 { Expected::Nothing } else { Expected::Length };
        Ok(())
    }
}

impl StreamHeaders {
    /// Keeps the first value of a header that Kubernetes reads. Values of one header are separated by a NUL.
    fn insert(&mut self, name: &[u8], values: &[u8]) -> Result<(), &'static str> {
        let is_of = |header: &[u8]| name.eq_ignore_ascii_case(header);
        if !is_of(b"streamtype") && !is_of(b"port") {
            return Ok(());
        }
        let value = values.split(|byte| *byte == 0).next().unwrap_or_default();
        if value.len() > MAX_KEPT {
            return Err("a header of a stream is too long");
        }
        let value = String::from_utf8_lossy(value);
        if is_of(b"streamtype") {
            self.stream_type.get_or_insert(value.into_owned());
        } else if self.port.is_none() {
            // Unlike Go, Rust takes a sign.
            self.port = value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
        }
        Ok(())
    }
}
