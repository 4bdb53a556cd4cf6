//! Requests that are within the limits of a client connection, but whose headers make Go's server close an HTTP/2
//! connection, each for another reason.

use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use crate::messages::{BoxedBody, BoxedError};

/// A byte with the longest Huffman code in a header: 28 bits.
// RFC 7541, appendix B
const LONGEST: u8 = 0xf9;

/// A value of `count` bytes with the longest encoding on the wire.
pub fn longest(count: usize) -> Vec<u8> {
    vec![LONGEST; count]
}

/// Two lines within the limit, of which the encoded second is longer than twice the remaining limit.
fn skewed() -> [(&'static str, Vec<u8>); 2] {
    let first = [vec![b'X'; 563_552], vec![b'a'; 356_448]].concat();
    [("a", first), ("b", longest(120_000))]
}

/// Each form as an HTTP/1.1 request for this path, and its status code if the backend answers the path with 403.
pub fn forms(path: &str) -> Vec<(&'static str, Vec<u8>, u16)> {
    let long = "X".repeat(916_000);
    let mut many: Vec<(&str, Vec<u8>)> = vec![("x", Vec::new()); 4000];
    many.extend([("y", longest(116_000)), ("z", b"1".to_vec())]);
    let http1 = |method: &str, host: &str, lines: &[(&str, Vec<u8>)]| {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
        for (name, value) in lines {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        bytes.extend(b"\r\n");
        bytes
    };
    vec![
        ("a long authority and many lines", http1("GET", &long, &many), 431),
        ("a long method and many lines", http1(&long, "a", &many), 431),
        ("two lines within the limit", http1("GET", "a", &skewed()), 403),
        // kube-apiserver handles these as any other host or verb.
        ("a long authority", http1("GET", &long, &[]), 403),
        ("a long method", http1(&long, "a", &[]), 403),
        ("one long line", http1("GET", "a", &[("a", longest(1_000_000))]), 403),
    ]
}

/// A POST with large or small trailers.
pub fn with_trailers(path: &str, large: bool) -> Request<BoxedBody> {
    let mut trailers = HeaderMap::new();
    for (name, value) in skewed() {
        let value = if large { value } else { value[value.len() - 10_000..].to_vec() };
        trailers.insert(name, HeaderValue::from_bytes(&value).unwrap());
    }
    let frames = [Frame::data("{}".into()), Frame::trailers(trailers)].map(Ok::<_, BoxedError>);
    Request::post(path).body(StreamBody::new(futures_util::stream::iter(frames)).boxed()).unwrap()
}
