//! The parts of SPDY/3.1 that Kubernetes streams need, for the fake kubelet and for clients.

use std::collections::BTreeMap;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

/// One frame. Header blocks are still compressed.
#[derive(Debug)]
pub(crate) enum Frame {
    Data { id: u32, last: bool, payload: Vec<u8> },
    Open { id: u32, block: Vec<u8> },
    Reset { id: u32 },
    Ping(Vec<u8>),
    Other,
}

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;

/// Removes a complete frame from the front of the buffer.
pub(crate) fn take(buffer: &mut Vec<u8>) -> Option<Frame> {
    let head = buffer.get(..8)?;
    let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
    if buffer.len() < 8 + length {
        return None;
    }
    let frame: Vec<u8> = buffer.drain(..8 + length).collect();
    let (head, payload) = frame.split_at(8);
    let last = head[4] & 1 != 0;
    if head[0] & 0x80 == 0 {
        return Some(Frame::Data { id: number(head), last, payload: payload.to_vec() });
    }
    Some(match u16::from(head[2]) << 8 | u16::from(head[3]) {
        // The header block follows the stream ID, associated stream ID, priority and slot.
        SYN_STREAM => {
            Frame::Open { id: number(payload), block: payload.get(10..).unwrap_or_default().to_vec() }
        }
        RST_STREAM => Frame::Reset { id: number(payload) },
        PING => Frame::Ping(payload.to_vec()),
        _ => Frame::Other,
    })
}

pub(crate) fn data(id: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = id.to_be_bytes().to_vec();
    frame.push(u8::from(last));
    finish(frame, payload)
}

pub(crate) fn ping(payload: &[u8]) -> Vec<u8> {
    control(PING, payload)
}

fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, 3];
    frame.extend(kind.to_be_bytes());
    frame.push(0);
    finish(frame, payload)
}

fn finish(mut frame: Vec<u8>, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    frame.extend(&length[1..]);
    frame.extend(payload);
    frame
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Compresses the header blocks of one direction; all blocks of a connection are one zlib stream.
#[derive(Debug)]
pub(crate) struct Writer(Compress);

impl Writer {
    pub(crate) fn new() -> Self {
        Self(Compress::new(Compression::fast(), true))
    }

    pub(crate) fn open(&mut self, id: u32, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend([0; 6]);
        payload.extend(self.block(headers));
        control(SYN_STREAM, &payload)
    }

    pub(crate) fn reply(&mut self, id: u32) -> Vec<u8> {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend(self.block(&[]));
        control(SYN_REPLY, &payload)
    }

    fn block(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let long = |count: usize| u32::try_from(count).expect("few headers").to_be_bytes();
        let mut plain = long(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend(long(text.len()));
            plain.extend(text.bytes());
        }
        let mut block = Vec::with_capacity(1024);
        self.0.compress_vec(&plain, &mut block, FlushCompress::Sync).expect("compression");
        block
    }
}

/// Decompresses the header blocks of the other direction.
#[derive(Debug, Default)]
pub(crate) struct Reader(Option<Decompress>);

impl Reader {
    pub(crate) fn read(&mut self, block: &[u8]) -> BTreeMap<String, String> {
        let mut rest = block;
        let inflate = self.0.get_or_insert_with(|| {
            let mut inflate = Decompress::new(false);
            // The zlib header has a flag for a preset dictionary. A stored block puts the dictionary into the window.
            let preset = block.get(1).is_some_and(|flags| flags & 0x20 != 0);
            rest = block.get(if preset { 6 } else { 2 }..).unwrap_or_default();
            if preset {
                let words = dictionary();
                let length = u16::try_from(words.len()).expect("a short dictionary");
                let mut stored = vec![0];
                stored.extend(length.to_le_bytes());
                stored.extend((!length).to_le_bytes());
                stored.extend(&words);
                let mut discard = Vec::with_capacity(2048);
                inflate.decompress_vec(&stored, &mut discard, FlushDecompress::Sync).expect("a stored block");
            }
            inflate
        });
        let mut plain = Vec::with_capacity(4096);
        inflate.decompress_vec(rest, &mut plain, FlushDecompress::Sync).ok();
        // Skips the number of pairs, which the length of the block implies.
        let mut plain = plain.get(4..).unwrap_or_default();
        let mut next = || {
            let length = usize::try_from(number(plain.get(..4)?)).ok()?;
            let text = plain.get(4..4 + length)?;
            plain = plain.get(4 + length..)?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let mut headers = BTreeMap::new();
        let mut pairs = || Some((next()?, next()?));
        while let Some((name, value)) = pairs() {
            headers.insert(name, value);
        }
        headers
    }
}

/// The dictionary of SPDY/3: words with their lengths, then a text.
fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS.split('|') {
        bytes.extend(u32::try_from(word.len()).expect("a word").to_be_bytes());
        bytes.extend(word.bytes());
    }
    bytes.extend(TEXT.bytes());
    bytes
}

const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|\
age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|content-length|\
content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|\
if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|proxy-authenticate|\
proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|\
www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";

const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
