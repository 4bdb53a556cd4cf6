//! The rules as a table. `tests/it/compared_proxies.rs` compares them with Go's.

use super::*;

fn rules(variables: &[(&str, &str)]) -> ProxyRules {
    let find = |wanted: &str| variables.iter().find(|(name, _)| *name == wanted);
    ProxyRules::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
}

/// The proxy for a host in text; empty if there is none.
fn proxy(rules: &ProxyRules, scheme: &str, host: &str, port: u16) -> String {
    rules.proxy(scheme, host, port).unwrap().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn hosts_are_excluded_by_no_proxy() {
    let cases: &[(&str, &str, u16, bool)] = &[
        ("", "a.test", 443, true),
        ("", "localhost", 443, false),
        ("", "127.1.2.3", 443, false),
        ("", "::1", 443, false),
        ("", "::ffff:127.0.0.1", 443, false),
        ("*", "a.test", 443, false),
        ("a.test, *", "b.test", 443, false),
        ("a.test", "a.test", 443, false),
        ("A.TEST", "a.Test", 443, false),
        ("a.test", "b.a.test", 443, false),
        ("a.test", "ba.test", 443, true),
        (".a.test", "b.a.test", 443, false),
        (".a.test", "a.test", 443, true),
        ("*.a.test", "b.a.test", 443, false),
        ("*.a.test", "a.test", 443, true),
        ("a.test:443", "a.test", 443, false),
        ("a.test:443", "a.test", 8443, true),
        ("10.0.0.1", "10.0.0.1", 443, false),
        ("10.0.0.1:80", "10.0.0.1", 443, true),
        ("10.0.0.0/8", "10.1.2.3", 443, false),
        ("10.0.0.0/8", "11.1.2.3", 443, true),
        ("fd00::/8", "fd12::1", 443, false),
        ("[fd00::1]:443", "fd00::1", 443, false),
        ("::/0", "10.0.0.1", 443, true),
        (" a.test ,, b.test ", "b.test", 443, false),
        ("test", "a.test", 443, false),
    ];
    for (no_proxy, host, port, expected) in cases {
        let rules = rules(&[("HTTPS_PROXY", "proxy.test:3128"), ("NO_PROXY", no_proxy)]);
        let found = proxy(&rules, "https", host, *port);
        assert_eq!(
            found,
            if *expected { "http://proxy.test:3128" } else { "" },
            "{no_proxy:?} {host} {port}"
        );
    }
}

#[test]
fn variables_name_proxies() {
    type Variables = &'static [(&'static str, &'static str)];
    let cases: &[(Variables, &str, &str)] = &[
        (&[], "https", ""),
        (&[("HTTP_PROXY", "http://p.test")], "https", ""),
        (&[("HTTP_PROXY", "http://p.test")], "http", "http://p.test:80"),
        (&[("https_proxy", "https://p.test")], "https", "https://p.test:443"),
        (&[("HTTPS_PROXY", ""), ("https_proxy", "p.test")], "https", "http://p.test:80"),
        (&[("HTTPS_PROXY", "q.test"), ("https_proxy", "p.test")], "https", "http://q.test:80"),
        (&[("HTTPS_PROXY", "socks5://user:pw@p.test")], "https", "socks5://p.test:1080"),
        (&[("HTTPS_PROXY", "http://[fd00::1]:3128")], "https", "http://[fd00::1]:3128"),
        (&[("HTTPS_PROXY", "http://%")], "https", ""),
        (&[("HTTP_PROXY", "p.test"), ("REQUEST_METHOD", "GET")], "http", ""),
    ];
    for (variables, scheme, expected) in cases {
        assert_eq!(proxy(&rules(variables), scheme, "a.test", 443), *expected, "{variables:?}");
    }
    for unusable in ["ftp://p.test", "http://p.test:99999"] {
        assert!(rules(&[("HTTPS_PROXY", unusable)]).proxy("https", "a.test", 443).is_err(), "{unusable}");
    }
    let shown = format!("{:?}", rules(&[("HTTPS_PROXY", "http://user:s3cr3t@p.test")]));
    assert!(!shown.contains("s3cr3t"), "{shown}");
}
