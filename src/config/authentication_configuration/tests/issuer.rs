//! Errors of `issuer`.

use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

use super::{Case, check};

#[test]
fn urls_are_judged() {
    let cases: &[(&str, &str, &str)] = &[
        ("nothing", "", "Required value"),
        (
            "an invalid port",
            "https://issuer-url:invalid-port",
            "Invalid value: \"https://issuer-url:invalid-port\": parse \"https://issuer-url:invalid-port\": invalid \
             port \":invalid-port\" after host",
        ),
        ("HTTP", "http://issuer-url", "Invalid value: \"http://issuer-url\": URL scheme must be https"),
        (
            "a password",
            "https://user:pass@issuer-url",
            "Invalid value: \"https://user:pass@issuer-url\": URL must not contain a username or password",
        ),
        (
            "a query",
            "https://issuer-url?query",
            "Invalid value: \"https://issuer-url?query\": URL must not contain a query",
        ),
        (
            "a fragment",
            "https://issuer-url#fragment",
            "Invalid value: \"https://issuer-url#fragment\": URL must not contain a fragment",
        ),
        ("a name", "https://issuer-url", ""),
        ("a path", "https://issuer-url/path/", ""),
        ("a port", "https://issuer-url:8443", ""),
        ("an address", "https://[::1]:8443/a", ""),
        ("no port, no query, no fragment", "https://issuer-url:?#", ""),
        ("an escaped name", "https://%c3%a9.test", ""),
        ("a name that is not ASCII", "https://é.test", ""),
        (
            "two colons",
            "https://a:b:8443",
            "Invalid value: \"https://a:b:8443\": parse \"https://a:b:8443\": invalid port \":b:8443\" after host",
        ),
        (
            "an address without brackets",
            "https://::1",
            "Invalid value: \"https://::1\": parse \"https://::1\": invalid port \"::1\" after host",
        ),
        (
            "brackets around something else",
            "https://[1.2.3.4]",
            "Invalid value: \"https://[1.2.3.4]\": parse \"https://[1.2.3.4]\": invalid IP-literal",
        ),
        (
            "brackets in the middle",
            "https://a[::1]",
            "Invalid value: \"https://a[::1]\": parse \"https://a[::1]\": invalid IP-literal",
        ),
        (
            "brackets around a name",
            "https://[name]",
            "Invalid value: \"https://[name]\": parse \"https://[name]\": invalid host: ParseAddr(\"name\"): unable to \
             parse IP",
        ),
        (
            "an escape in the name",
            "https://a%20b",
            "Invalid value: \"https://a%20b\": parse \"https://a%20b\": invalid URL escape \"%20\"",
        ),
        ("capitals", "HTTPS://Issuer-URL", ""),
        ("no scheme", "issuer-url", "Invalid value: \"issuer-url\": URL scheme must be https"),
        ("opaque", "https:issuer-url", ""),
        ("a colon first", ":https", "Invalid value: \":https\": parse \":https\": missing protocol scheme"),
        (
            "an invalid scheme",
            "1https://a",
            "Invalid value: \"1https://a\": parse \"1https://a\": first path segment in URL cannot contain colon",
        ),
        (
            "a line break",
            "https://a\n",
            "Invalid value: \"https://a\\n\": parse \"https://a\\n\": net/url: invalid control character in URL",
        ),
        (
            "a blank in the name",
            "https://a b",
            "Invalid value: \"https://a b\": parse \"https://a b\": invalid character \" \" in host name",
        ),
        (
            "an open bracket",
            "https://[::1",
            "Invalid value: \"https://[::1\": parse \"https://[::1\": missing ']' in host",
        ),
        (
            "a bad escape",
            "https://a/%zz",
            "Invalid value: \"https://a/%zz\": parse \"https://a/%zz\": invalid URL escape \"%zz\"",
        ),
        (
            "an invalid user name",
            "https://a[@b",
            "Invalid value: \"https://a[@b\": parse \"https://a[@b\": net/url: invalid userinfo",
        ),
        (
            "everything at once",
            "http://user@a?b#c",
            "[Invalid value: \"http://user@a?b#c\": URL scheme must be https, Invalid value: \"http://user@a?b#c\": URL must not contain \
             a username or password, Invalid value: \"http://user@a?b#c\": URL must not contain a query, Invalid value: \
             \"http://user@a?b#c\": URL must not contain a fragment]",
        ),
    ];
    let of = |field: &str, expected: &str| {
        let field = format!("jwt[0].issuer.{field}: ");
        match expected.strip_prefix('[') {
            Some(several) => {
                format!("[{field}{}", several.replace(", Invalid", &format!(", {field}Invalid")))
            }
            None if expected.is_empty() => String::new(),
            None => format!("{field}{expected}"),
        }
    };
    for (name, url, expected) in cases {
        check(&["issuer", "url"], &[(name, json!(url), &of("url", expected))]);
        let expected = if url.is_empty() || *url == "https://issuer-url" { "" } else { expected };
        let given = json!({"url": "https://another", "discoveryURL": url});
        check(&["issuer"], &[(name, given, &of("discoveryURL", expected))]);
    }
}

#[test]
fn the_discovery_document_is_somewhere_else() {
    let cases = [
        ("https://issuer-url", "https://issuer-url", true),
        ("https://issuer-url", "https://issuer-url/", true),
        ("https://issuer-url", "https://issuer-url///", true),
        ("https://issuer-url/", "https://issuer-url", true),
        ("https://issuer-url", "https://oidc.oidc-namespace.svc/path", false),
        ("https://issuer-url", "https://Issuer-url", false),
    ];
    for (url, discovery, same) in cases {
        let error = format!(
            "jwt[0].issuer.discoveryURL: Invalid value: \"{discovery}\": discoveryURL must be different from URL"
        );
        let given = json!({"url": url, "discoveryURL": discovery});
        check(&["issuer"], &[(discovery, given, if same { &error } else { "" })]);
    }
}

#[test]
fn audiences_are_judged() {
    let cases: &[Case<'_>] = &[
        (
            "none",
            json!({"audiences": []}),
            "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        ("an empty one", json!({"audiences": [""]}), "jwt[0].issuer.audiences[0]: Required value"),
        (
            "one, and an unknown policy",
            json!({"audienceMatchPolicy": "MatchExact"}),
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"MatchExact\": audienceMatchPolicy must be empty or \
             MatchAny for single audience",
        ),
        ("one", json!({"audiences": ["audience"]}), ""),
        ("one, and a policy", json!({"audienceMatchPolicy": "MatchAny"}), ""),
        (
            "one twice",
            json!({"audiences": ["audience", "audience"], "audienceMatchPolicy": "MatchAny"}),
            "jwt[0].issuer.audiences[1]: Duplicate value: \"audience\"",
        ),
        (
            "two, without a policy",
            json!({"audiences": ["audience1", "audience2"]}),
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for \
             multiple audiences",
        ),
        ("two", json!({"audiences": ["audience1", "audience2"], "audienceMatchPolicy": "MatchAny"}), ""),
    ];
    check(&["issuer"], cases);
}

#[test]
fn certificate_authorities_are_certificates() {
    let key = KeyPair::generate().unwrap();
    let ca = CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    let cases: &[Case<'_>] = &[
        (
            "something else",
            json!("invalid"),
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or \
             ECDSA certificates",
        ),
        ("nothing", json!(""), ""),
        ("a certificate", json!(ca), ""),
        (
            "a key",
            json!(key.serialize_pem()),
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or \
             ECDSA certificates",
        ),
    ];
    check(&["issuer", "certificateAuthority"], cases);
}

#[test]
fn egress_selectors_are_controlplane_or_cluster() {
    let cases: &[Case<'_>] = &[
        (
            "an unknown one",
            json!("panda"),
            "jwt[0].issuer.egressSelectorType: Invalid value: \"panda\": egress selector must be either controlplane \
             or cluster",
        ),
        ("that of the cluster", json!("cluster"), ""),
        ("that of the control plane", json!("controlplane"), ""),
        ("none", json!(""), ""),
    ];
    check(&["issuer", "egressSelectorType"], cases);
}
