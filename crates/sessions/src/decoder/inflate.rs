//! Decompresses the header blocks of one direction, which are one zlib stream with the dictionary of SPDY/3.

use std::sync::LazyLock;

use flate2::{Decompress, FlushDecompress, Status};

/// The size of the pieces of plain bytes.
const PIECE: usize = 1024;
/// The maximum number of plain bytes that one block of headers may have. Those of Kubernetes' clients are below 200 bytes.
const MAX_BLOCK: usize = 4 << 10;
/// The maximum number of plain bytes of all blocks for each compressed byte, after those of the first blocks: a few bytes could
/// be many, and to read them takes time in which other sessions wait.
const MAX_RATIO: u64 = 16;
const FREE: u64 = 64 << 10;

/// A zlib stream.
#[derive(Debug, Default)]
pub(super) struct Inflater {
    /// The header of the stream, up to six bytes, until it is complete.
    header: Vec<u8>,
    inflate: Option<Decompress>,
    /// The plain bytes of this block.
    plain: usize,
}

impl Inflater {
    /// Decompresses bytes of a block, and gives the plain bytes in pieces.
    pub(super) fn read(
        &mut self,
        compressed: &[u8],
        plain: &mut dyn FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut rest = compressed;
        while self.inflate.is_none() {
            let Some((byte, after)) = rest.split_first() else { return Ok(()) };
            rest = after;
            self.header.push(*byte);
            self.inflate = begin(&self.header)?;
        }
        let Some(inflate) = &mut self.inflate else { return Ok(()) };
        let mut piece = [0; PIECE];
        loop {
            let before = (inflate.total_in(), inflate.total_out());
            let status = inflate.decompress(rest, &mut piece, FlushDecompress::Sync);
            let status = status.map_err(|_| "the header blocks cannot be decompressed")?;
            let count = |after: u64, before: u64| usize::try_from(after - before).unwrap_or_default();
            let (taken, given) = (count(inflate.total_in(), before.0), count(inflate.total_out(), before.1));
            rest = rest.get(taken..).unwrap_or_default();
            self.plain += given;
            let allowed = inflate.total_in().saturating_mul(MAX_RATIO).saturating_add(FREE);
            if self.plain > MAX_BLOCK || inflate.total_out() > allowed {
                return Err("the header blocks are too large");
            }
            plain(piece.get(..given).unwrap_or_default())?;
            if status == Status::StreamEnd {
                return Err("the stream of header blocks has ended");
            }
            if given < PIECE && rest.is_empty() {
                return Ok(());
            }
            // A call may give what is left of the one before, and take nothing.
            if given == 0 && taken == 0 {
                return Err("the header blocks cannot be decompressed");
            }
        }
    }

    /// A block has ended.
    pub(super) fn end_block(&mut self) {
        self.plain = 0;
    }
}

/// The decompressor after this header of a zlib stream (RFC 1950); `None` while the header is not complete.
///
/// A flag says that there is a preset dictionary, and four bytes say which. A stored block puts it into the window: not all
/// implementations that `flate2` may be built with can set it.
fn begin(header: &[u8]) -> Result<Option<Decompress>, &'static str> {
    let [method, flags, id @ ..] = header else { return Ok(None) };
    if method & 0xf != 8 || u16::from_be_bytes([*method, *flags]) % 31 != 0 {
        return Err("the header blocks are not compressed by zlib");
    }
    let has_dictionary = flags & 0x20 != 0;
    if has_dictionary && id.len() < 4 {
        return Ok(None);
    }
    let mut inflate = Decompress::new(false);
    if has_dictionary {
        let mut window = vec![0; DICTIONARY.len()];
        let stored = stored_block(&DICTIONARY);
        inflate
            .decompress(&stored, &mut window, FlushDecompress::Sync)
            .map_err(|_| "the dictionary cannot be set")?;
    }
    Ok(Some(inflate))
}

/// A block of RFC 1951 without compression, which is not the last one.
fn stored_block(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or_default();
    let mut block = vec![0];
    block.extend(length.to_le_bytes());
    block.extend((!length).to_le_bytes());
    block.extend_from_slice(content);
    block
}

/// The dictionary of SPDY/3: words with their lengths, then a text.
// SPDY/3.1, section 2.6.10.1
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = WORDS.split('|').flat_map(|word| {
        let length = u32::try_from(word.len()).unwrap_or_default().to_be_bytes();
        length.into_iter().chain(word.bytes())
    });
    words.chain(TEXT.bytes()).collect()
});

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
