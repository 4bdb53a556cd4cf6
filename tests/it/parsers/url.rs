//! Whole URLs: those of issuers, and those in certificates.

use portcullis::internal::Url;
use serde_json::{Value, json};

use super::{Compared, octets, soup};
use testkit::random::Rng;

const STARTS: &[&str] = &[
    "https://",
    "HTTP://",
    "https:",
    "x://",
    "spiffe://",
    "urn:",
    "//",
    "///",
    "",
    ":",
    "1:",
    "a+b-c.d:/",
    "*",
    "%2A",
];
const WORDS: &[&str] = &[
    "a",
    "B",
    "host.example",
    "/",
    "//",
    "?",
    "??",
    "#",
    "@",
    ":",
    ":80",
    ":x",
    "u:p@",
    "user@",
    "[::1]",
    "[",
    "]",
    "[fe80::1%25eth0]",
    "[1.2.3.4]",
    "[::ffff:1.2.3.4]",
    "[fe80::1%25]",
    "[fe80::1%25a%20b%2d]",
    "%25",
    "%41",
    "%2F",
    "%C3%A9",
    "%ff",
    "%",
    "%4",
    "%zz",
    "%00",
    "%7f",
    " ",
    "é",
    "\"",
    "<",
    ">",
    "\\",
    "^",
    "`",
    "{",
    "|",
    "}",
    "!",
    "$",
    "&",
    "'",
    "(",
    ")",
    "*",
    "+",
    ",",
    ";",
    "=",
    "~",
    "_",
    "-",
    ".",
    "..",
    "\u{1}",
    "\u{7f}",
    "\n",
];

pub(super) fn any(rng: &mut Rng) -> Vec<u8> {
    [rng.pick(STARTS).as_bytes(), &soup(rng, WORDS, 7)].concat()
}

pub(super) fn judge(input: &[u8], answer: &Value) -> Compared {
    let text = std::str::from_utf8(input).unwrap();
    let go = answer["error"].as_str().unwrap();
    let url = match Url::parse(text) {
        Ok(url) if go.is_empty() => url,
        Err(error) if !go.is_empty() => {
            let ours = error.to_string();
            // Go's error has more details about an address, and may show half a character.
            let cuts = [
                ": invalid host: ParseAddr(",
                "invalid URL escape \"%4\u{fffd}",
                "invalid URL escape \"%\u{fffd}",
            ];
            let cut = cuts.iter().find_map(|cut| ours.find(cut)).unwrap_or(ours.len());
            let is_equal = ours == go || cut < ours.len() && go.starts_with(&ours[..cut]);
            return if is_equal { Ok("refused") } else { Err(format!("{ours}, Go {go}")) };
        }
        ours => return Err(format!("{ours:?}, Go {answer}")),
    };
    let host = octets(&answer["host"]);
    let Ok(host) = String::from_utf8(host) else {
        // Certificates with URIs that are not UTF-8 are refused.
        return if url.host.contains(char::REPLACEMENT_CHARACTER) {
            Ok("not UTF-8")
        } else {
            Err("host".to_owned())
        };
    };
    let ours = json!({
        "error": "", "scheme": url.scheme, "user": url.user.is_some(), "query": url.query.as_deref().unwrap_or_default(),
        "fragment": !url.fragment.is_empty(), "host": url.host, "text": url.to_string(),
    });
    let mut expected = answer.clone();
    expected["host"] = host.into();
    expected["text"] = String::from_utf8(octets(&answer["text"])).unwrap().into();
    if ours == expected { Ok("as Go") } else { Err(format!("{ours}, Go {expected}")) }
}
