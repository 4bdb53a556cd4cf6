//! Extra keys: the part of a header name after `X-Remote-Extra-`.

use http::HeaderName;
use portcullis::internal::{decode_extra_key, encode_extra_key};
use serde_json::Value;
use testkit::random::Rng;

use super::{Compared, lists, soup};

const WORDS: &[&str] = &[
    "a", "K", "Z", "scopes", "%41", "%4b", "%4B", "%2F", "%2f", "%25", "%", "%4", "%zz", "%C3%A9", "%ff",
    "%00", "%0a", "%20", "%3A", "+", "-", "_", ".", "~", "!", "#", "$", "&", "'", "*", "^", "|", "`", "/",
    "(", ",", ";", "=", "@", "[", "\"", " ", "é", "\u{212a}",
];

pub(super) fn any(rng: &mut Rng) -> Vec<u8> {
    let text = soup(rng, WORDS, 6);
    if rng.one_in(3) {
        // In the encoding that we send.
        return encode_extra_key(&String::from_utf8_lossy(&text)).into_bytes();
    }
    text
}

pub(super) fn judge(input: &[u8], answer: &Value) -> Compared {
    let go = answer["error"]
        .as_str()
        .filter(|error| !error.is_empty())
        .map_or_else(|| Ok(lists(&answer["keys"])), Err);
    let name = [b"X-Remote-Extra-", input].concat();
    let Ok(name) = HeaderName::from_bytes(&name) else {
        return match go {
            Err(_) => Ok("no header name"),
            Ok(keys) => Err(format!("refused, and Go reads {keys:?}")),
        };
    };
    let key = decode_extra_key(name.as_str().strip_prefix("x-remote-extra-").unwrap());
    let read = |keys: &[Vec<u8>]| keys.iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>();
    match (key, go) {
        (Ok(key), Ok(keys)) if keys == [key.as_bytes()] => Ok("as Go"),
        (Err(_), Ok(keys)) if keys.iter().any(|key| std::str::from_utf8(key).is_err()) => {
            Ok("stricter: not UTF-8")
        }
        (ours, go) => Err(format!("ours {ours:?}, Go {:?}", go.map(|keys| read(&keys)))),
    }
}
