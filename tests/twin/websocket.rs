//! WebSocket messages of clients and servers, without fragmentation.

/// One message, unmasked.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) opcode: u8,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// The sender of a message. Clients must mask the payload (RFC 6455, section 5.3); these use a mask of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

pub(crate) fn message(by: Role, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mask = if by == Role::Client { 0x80 } else { 0 };
    let mut bytes = vec![0x80 | opcode];
    if let Some(short) = u8::try_from(payload.len()).ok().filter(|length| *length < 126) {
        bytes.push(mask | short);
    } else if let Ok(middle) = u16::try_from(payload.len()) {
        bytes.push(mask | 0x7e);
        bytes.extend(middle.to_be_bytes());
    } else {
        bytes.push(mask | 0x7f);
        bytes.extend(u64::try_from(payload.len()).expect("a length").to_be_bytes());
    }
    if by == Role::Client {
        bytes.extend([0; 4]);
    }
    bytes.extend(payload);
    bytes
}

/// Removes a complete message from the front of the buffer.
pub(crate) fn take(buffer: &mut Vec<u8>) -> Option<Message> {
    let (opcode, second) = (*buffer.first()? & 0x0f, *buffer.get(1)?);
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let length = if extended == 0 {
        usize::from(second & 0x7f)
    } else {
        buffer.get(2..2 + extended)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let start = 2 + extended + mask;
    if buffer.len() < start + length {
        return None;
    }
    let mut bytes: Vec<u8> = buffer.drain(..start + length).collect();
    let mut payload = bytes.split_off(start);
    if mask > 0 {
        for (byte, mask) in payload.iter_mut().zip(bytes[2 + extended..].iter().cycle()) {
            *byte ^= mask;
        }
    }
    Some(Message { opcode, payload })
}

/// The value of `Sec-WebSocket-Accept` for a key.
pub(crate) fn accept(key: &str) -> String {
    use base64::Engine as _;
    let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.as_bytes());
    digest.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::engine::general_purpose::STANDARD.encode(digest.finish())
}
