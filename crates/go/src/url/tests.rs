use super::*;

#[test]
fn hosts_are_those_of_net_url() {
    const CASES: &[(&str, Option<&str>)] = &[
        ("spiffe://cluster.local/ns/a/sa/b", Some("cluster.local")),
        ("https://user:pw@Example.com:8443/x?y#z", Some("Example.com:8443")),
        ("urn:uuid:1", Some("")),
        ("mailto:a@b", Some("")),
        ("/relative", Some("")),
        ("a:b/c", Some("")),
        ("1a:b", None),
        (":x", None),
        ("//host/x", Some("host")),
        ("///x", Some("")),
        ("http:///x", Some("")),
        ("http://[::1]:80/", Some("[::1]:80")),
        ("http://[1.2.3.4]/", None),
        ("http://[fe80::1%25eth0]:1/", Some("[fe80::1%eth0]:1")),
        ("http://[fe80::1%25a%2db]/", Some("[fe80::1%a-b]")),
        ("http://[fe80::1%25]/", None),
        ("http://[fe80::1%25a%20b]/", Some("[fe80::1%a b]")),
        ("http://[fe80::1%eth0]/", None),
        ("http://a[b/", None),
        ("http://a b/", None),
        ("http://a/%zz", None),
        ("http://a/%41", Some("a")),
        ("http://%41/", None),
        ("http://a:b/", None),
        ("http://a:1:2/", None),
        ("x://a:1:2/", Some("a:1:2")),
        ("http://a\u{1}/", None),
        ("*", Some("")),
        ("", Some("")),
    ];
    for (uri, want) in CASES {
        assert_eq!(Url::parse(uri).ok().map(|url| url.host).as_deref(), *want, "{uri}");
    }
}

#[test]
fn uris_are_written_again_as_net_url_does() {
    const CASES: &[(&str, &str)] = &[
        ("HTTPS://H.example/a b", "https://H.example/a%20b"),
        ("https://h/%2f%7E", "https://h/%2f%7E"),
        ("https://h/%2f b", "https://h//%20b"),
        ("relative/path?x y", "relative/path?x y"),
        ("a%3Ab c", "./a:b%20c"),
        ("a%3Ab", "a%3Ab"),
        ("https://h", "https://h"),
        ("https://", "https:"),
        ("https:///x", "https:///x"),
        ("https:/x", "https:/x"),
        ("//h/x", "//h/x"),
        ("///x", "///x"),
        ("URN:a b", "urn:a b"),
        ("urn:", "urn:"),
        ("https://h?", "https://h?"),
        ("https://h??", "https://h??"),
        ("https://h/#", "https://h/"),
        ("https://h/#a\"b", "https://h/#a%22b"),
        ("https://h/#a'b", "https://h/#a'b"),
        ("https://h/#a'b c", "https://h/#a%27b%20c"),
        ("https://u:p:q@h/", "https://u:p%3Aq@h/"),
        ("https://u!%41@h/", "https://u%21A@h/"),
        ("https://@h", "https://@h"),
        ("https://[fe80::1%25eth0]:1/", "https://[fe80::1%25eth0]:1/"),
        ("https://h/\"<>[]{}", "https://h/%22%3C%3E%5B%5D%7B%7D"),
        ("https://h/[]", "https://h/[]"),
        ("*", "*"),
        ("*#a b", "*#a%20b"),
        ("%2A", "*"),
        ("%2A?q#f", "*?q#f"),
        ("%2a", "%2a"),
        ("a%2A", "a%2A"),
        ("https://h/%2A", "https://h/%2A"),
        ("help://me@what:8080/where/when?why=true", "help://me@what:8080/where/when?why=true"),
        ("", ""),
    ];
    for (uri, want) in CASES {
        assert_eq!(Url::parse(uri).map(|url| url.to_string()).as_deref(), Ok(*want), "{uri}");
    }
}

#[test]
fn paths_are_decoded_as_go_decodes_them() {
    const CASES: &[(&str, Result<&str, &str>)] = &[
        ("/api/v1/pods", Ok("/api/v1/pods")),
        ("/%6civez", Ok("/livez")),
        ("/a%2Fb%2fc", Ok("/a/b/c")),
        ("/a+b", Ok("/a+b")),
        ("/%2520", Ok("/%20")),
        ("/%C3%A9", Ok("/é")),
        ("/%ff", Ok("/\u{fffd}")),
        ("/%e2%82", Ok("/\u{fffd}\u{fffd}")),
        ("/%00", Ok("/\0")),
        ("/%", Err("invalid URL escape \"%\"")),
        ("/%4", Err("invalid URL escape \"%4\"")),
        ("/%zz/a", Err("invalid URL escape \"%zz\"")),
        ("/%4g", Err("invalid URL escape \"%4g\"")),
        ("/%é", Err("invalid URL escape \"%é\"")),
        ("/%4é", Err("invalid URL escape \"%4\\xc3\"")),
    ];
    for (raw, expected) in CASES {
        let decoded = decode_path(raw).map(Cow::into_owned).map_err(|error| error.to_string());
        assert_eq!(decoded, expected.map(str::to_owned).map_err(str::to_owned), "{raw}");
    }
}

#[test]
fn a_name_is_one_segment_of_a_path_or_an_error() {
    const CASES: &[(&str, Result<&str, &str>)] = &[
        ("node-csr-Ab_c-1", Ok("node-csr-Ab_c-1")),
        ("system:node", Ok("system:node")),
        ("victim?x", Ok("victim%3Fx")),
        ("victim#x", Ok("victim%23x")),
        ("a b", Ok("a%20b")),
        ("ä", Ok("%C3%A4")),
        ("...", Ok("...")),
        // URL parsers leave these out: it would be the path of "ab".
        ("a\nb", Ok("a%0Ab")),
        ("a\r\tb", Ok("a%0D%09b")),
        ("", Err("resource name may not be empty")),
        (".", Err("invalid resource name \".\": [may not be '.']")),
        ("..", Err("invalid resource name \"..\": [may not be '..']")),
        ("a/b", Err("invalid resource name \"a/b\": [may not contain '/']")),
        ("a%2fb", Err("invalid resource name \"a%2fb\": [may not contain '%']")),
        ("a/b%", Err("invalid resource name \"a/b%\": [may not contain '/' may not contain '%']")),
    ];
    for (name, expected) in CASES {
        let segment = path_segment(name).map_err(|error| error.to_string());
        assert_eq!(segment, expected.map(str::to_owned).map_err(str::to_owned), "{name}");
    }
}
