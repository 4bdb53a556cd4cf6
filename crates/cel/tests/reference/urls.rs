//! URLs: each text with each function.

use super::conditions::case;
use super::{Case, Purpose};

const TEXTS: [&str; 52] = [
    "",
    "/",
    "/path",
    "//host/path",
    "///path",
    "relative",
    "./a",
    "*",
    "http://example.com",
    "HTTP://EXAMPLE.com/A",
    "https://user:pw@example.com:8443/a%20b/c?a=1&a=2&b=%41#frag%20x",
    "https://example.com?",
    "https://example.com/?#",
    "https://example.com/#",
    "/a#b",
    "/a?b#c",
    "http://[::1]:80/",
    "http://[::1]",
    "http://[::1",
    "http://::1/",
    "http://[fe80::1%25en0]:8080/x",
    "http://h:x/",
    "http://h:/",
    "http://h:99999/",
    "http://a b/",
    "/a b",
    "/a%zz",
    "/%41%2f%2F",
    "/é",
    "http://é/",
    "mailto:a@b",
    "urn:a:b",
    "http:",
    "http:/a",
    "http:a",
    ":a",
    "1http://a",
    "a:b:c",
    "http://u@/x",
    "http://@h/",
    "http://u:p:q@h/",
    "http://u%zz@h/",
    "/?a=1;b=2&c=3",
    "/?a&b=&=c&&",
    "/?%zz=1&b=%4",
    "/?a=b=c+d%2B",
    "/?é=é",
    "http://h%41/",
    "http://h<x>/",
    "/a\\tb",
    "http://h?a#b?c",
    "x://h//a",
];

pub(super) fn all() -> Vec<Case> {
    let mut rows = Vec::new();
    for text in TEXTS {
        rows.extend(["isURL", "url"].map(|function| format!("{function}('{text}')")));
        let parts = ["getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery"];
        rows.extend(parts.map(|function| format!("url('{text}').{function}()")));
    }
    rows.extend(
        [
            "url('/a') == url('/a')",
            "url('/a') == url('/b')",
            "url('HTTP://h/') == url('http://h/')",
            "url('/a') == dyn('/a')",
            "url('/a') == null",
            "url('/a') in [url('/a')]",
            "{url('/a'): 1}",
            "type(url('/a'))",
            "url(1)",
            "url(dyn(1))",
            "isURL(dyn(1))",
            "dyn(1).getHost()",
            "dyn('a').getQuery()",
            "url('http://[fe80:1%25en0]/')",
            "url('http://[::<1]/')",
            "url('http://[:1]:80/')",
            "url('http://[fe80::1%25]/')",
            "url('http://[1.2.3.4]/')",
            "url('http://[name]/')",
            "url(dyn(ip('::1')))",
            "string(url('/a'))",
            "url('/a').host",
            "size(url('/a'))",
            "url('/?a=1&a=2').getQuery().a",
            "url('/?a=1&a=2').getQuery()['a'][1]",
            "url('/?a=1').getQuery().b",
            "url('/?a.b=1').getQuery()['a.b']",
            "url('/?a=1').getQuery() == {'a': ['1']}",
            "'a' in url('/?a=1').getQuery()",
            "url('/?a=1').getQuery().map(k, k)",
        ]
        .map(str::to_owned),
    );
    rows.push(format!(
        "size(url('/?{}').getQuery())",
        (0..9_999).map(|number| format!("a{number}")).collect::<Vec<_>>().join("&")
    ));
    rows.iter().map(|text| case(Purpose::Admission, text)).collect()
}
