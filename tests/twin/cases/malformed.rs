//! Malformed HTTP/1.1 requests. The gateway must not forward the rejected ones.

use crate::case::{Case, get};

const GROUP: &str = "malformed";
const MAP: &str = "/api/v1/namespaces/twin-fixed/configmaps/alpha";

fn raw(name: &str, text: &str) -> Case {
    get(GROUP, name, MAP).cert("alice").raw(text.as_bytes())
}

pub(crate) fn cases() -> Vec<Case> {
    let with = |name: &str, headers: &str| {
        raw(name, &format!("GET {MAP} HTTP/1.1\r\nHost: {{addr}}\r\n{headers}Connection: close\r\n\r\n"))
    };
    let target = |name: &str, target: &str| {
        raw(name, &format!("GET {target} HTTP/1.1\r\nHost: {{addr}}\r\nConnection: close\r\n\r\n"))
    };
    vec![
        with("nothing wrong", "").answers(200).contains("alpha"),
        raw("no host", &format!("GET {MAP} HTTP/1.1\r\nConnection: close\r\n\r\n")).answers(400),
        with("two hosts", "Host: example.com\r\n").answers(400),
        with("the same host twice", "Host: {addr}\r\n").answers(400),
        raw("empty host", &format!("GET {MAP} HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n")).answers(200),
        raw("another host", &format!("GET {MAP} HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")).answers(200),
        raw("host with blank", &format!("GET {MAP} HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n")).answers(400),
        raw("host with slash", &format!("GET {MAP} HTTP/1.1\r\nHost: a/b\r\nConnection: close\r\n\r\n")).answers(400),
        target("broken escape", "/api/v1/namespaces/%zz").answers(400),
        target("half an escape", "/api/v1/namespaces/%2").answers(400),
        target("no leading slash", "api/v1").answers(400).declared("D-http-parser", 400),
        target("asterisk", "*").answers(403),
        target("host alone", "{addr}").answers(400),
        target("digit before the scheme", &format!("8https://{{addr}}{MAP}")).answers(400),
        target("absolute form without a path", "https://{addr}").answers(403).declared("D-target-form", 403),
        target("absolute form", &format!("https://{{addr}}{MAP}")).answers(200),
        raw("absolute form without a host", &format!("GET https://{{addr}}{MAP} HTTP/1.1\r\nConnection: close\r\n\r\n")).answers(400),
        target("absolute form of another host", &format!("https://example.com{MAP}")).answers(200).declared("D-host-mismatch", 400),
        target("absolute form of another scheme", &format!("ftp://{{addr}}{MAP}")).answers(200),
        target("fragment", &format!("{MAP}#frag")).answers(404).declared("D-fragment", 200),
        target("quote in the target", "/api/v1/namespaces/\"").answers(403),
        target("backslash in the target", "/api/v1\\namespaces").answers(404),
        target("caret and braces in the target", "/api/v1/namespaces/^{}`").answers(403).declared("D-target-characters", 400),
        raw("tab in the target", "GET /api\tv1 HTTP/1.1\r\nHost: {addr}\r\n\r\n").answers(400).declared("D-http-parser", 400),
        raw("blank in the target", "GET /api v1 HTTP/1.1\r\nHost: {addr}\r\n\r\n").answers(400).declared("D-http-parser", 400),
        get(GROUP, "bytes beyond ASCII in the target", MAP)
            .cert("alice")
            .raw(b"GET /api/v1/namespaces/caf\xc3\xa9 HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")
            .answers(403),
        get(GROUP, "control byte in the target", MAP)
            .cert("alice")
            .raw(b"GET /api/v1/\x01 HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")
            .answers(400).declared("D-http-parser", 400),
        raw("CONNECT", "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\nConnection: close\r\n\r\n").answers(403).declared("D-connect", 400),
        raw("CONNECT with a path", &format!("CONNECT {MAP} HTTP/1.1\r\nHost: {{addr}}\r\nConnection: close\r\n\r\n")).answers(403).declared("D-connect", 400),
        raw("HTTP 1.0", &format!("GET {MAP} HTTP/1.0\r\n\r\n")).answers(200),
        raw("HTTP 1.0 kept alive", &format!("GET {MAP} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")).answers(200),
        raw("HTTP 1.2", &format!("GET {MAP} HTTP/1.2\r\nHost: {{addr}}\r\nConnection: close\r\n\r\n")).answers(200).declared("D-http-parser", 400),
        raw("HTTP 2.0 as text", &format!("GET {MAP} HTTP/2.0\r\nHost: {{addr}}\r\n\r\n")).answers(505).declared("D-http-parser", 400),
        raw("no version", &format!("GET {MAP}\r\n\r\n")).answers(400).declared("D-http-parser", 400),
        raw("lower case version", &format!("GET {MAP} http/1.1\r\nHost: {{addr}}\r\n\r\n")).answers(400).declared("D-http-parser", 400),
        raw("method with odd characters", &format!("G@T {MAP} HTTP/1.1\r\nHost: {{addr}}\r\n\r\n")).answers(400).declared("D-http-parser", 400),
        raw("empty lines first", &format!("\r\n\r\nGET {MAP} HTTP/1.1\r\nHost: {{addr}}\r\nConnection: close\r\n\r\n")).answers(400).declared("D-empty-lines", 200),
        raw("bare newlines", &format!("GET {MAP} HTTP/1.1\nHost: {{addr}}\nConnection: close\n\n")).answers(200),
        with("blank before the colon", "X-A : b\r\n").answers(400).declared("D-http-parser", 400),
        with("header name with blank", "X A: b\r\n").answers(400).declared("D-http-parser", 400),
        with("header line without colon", "nothing\r\n").answers(400).declared("D-http-parser", 400),
        with("empty header name", ": b\r\n").answers(400).declared("D-http-parser", 400),
        with("folded header", "X-A: b\r\n c\r\n").answers(200).declared("D-folded-header", 400),
        with("folded identity", "X-A: b\r\n X-Remote-User: admin\r\n").answers(200).declared("D-folded-header", 400),
        with("header name beyond ASCII", "X-é: b\r\n").answers(400).declared("D-http-parser", 400),
        with("NUL in a value", "X-A: b\0c\r\n").answers(400).declared("D-http-parser", 400),
        with("carriage return in a value", "X-A: b\rc\r\n").answers(400).declared("D-http-parser", 400),
        with("escape byte in a value", "X-A: b\u{1b}c\r\n").answers(400).declared("D-http-parser", 400),
        with("delete byte in a value", "X-A: b\u{7f}c\r\n").answers(400).declared("D-http-parser", 400),
        with("unicode in a value", "X-A: ☃\r\n").answers(200),
        with("two content lengths", "Content-Length: 0\r\nContent-Length: 1\r\n").answers(400).declared("D-http-parser", 400),
        with("the same content length twice", "Content-Length: 0\r\nContent-Length: 0\r\n").answers(200),
        with("content length with sign", "Content-Length: +0\r\n").answers(400).declared("D-http-parser", 400),
        with("negative content length", "Content-Length: -1\r\n").answers(400).declared("D-http-parser", 400),
        with("content length list", "Content-Length: 0, 0\r\n").answers(400).declared("D-http-parser", 400),
        with("huge content length", "Content-Length: 99999999999999999999\r\n").answers(400).declared("D-http-parser", 400),
        with("unknown transfer encoding", "Transfer-Encoding: gzip\r\n").answers(501).declared("D-http-parser", 400),
        with("identity transfer encoding", "Transfer-Encoding: identity\r\n").answers(501).declared("D-http-parser", 400),
        with("two transfer encodings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n").answers(501),
        with("list of transfer encodings", "Transfer-Encoding: gzip, chunked\r\n").answers(501),
        raw(
            "chunked and content length",
            &format!(
                "GET {MAP} HTTP/1.1\r\nHost: {{addr}}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"
            ),
        )
        .answers(200),
        with("bare newline ends a header", "X-A: b\nX-Remote-User: admin\r\n").answers(200),
        with("two hundred headers", &"X-Many: v\r\n".repeat(200)).answers(200),
        with("four thousand headers", &"X-Many: v\r\n".repeat(4000)).answers(200),
        with("header of half a mebibyte", &format!("X-Long: {}\r\n", "l".repeat(512 << 10))).answers(200),
        with("header of two mebibytes", &format!("X-Long: {}\r\n", "l".repeat(2 << 20))).answers(431).declared("D-http-parser", 431),
        raw("garbage", "\x16\x03\x01 not http\r\n\r\n").answers(400).declared("D-http-parser", 400),
        raw("unauthorized and malformed", "GET /%zz HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer tok-none\r\n\r\n").answers(400),
    ]
}
