//! Identity in request headers: accepted only from front proxies.

use crate::case::{Case, H1, case, get, whoami};

const ALL: &str = "system:authenticated";

/// Requests of a front proxy with a valid certificate.
fn accepted() -> Vec<Case> {
    let proxied = |name: &str, user: &str| {
        whoami("front_proxy", name).cert("front-proxy").header("X-Remote-User", user)
    };
    let bare = |name: &str| whoami("front_proxy", name).cert("front-proxy");
    vec![
        proxied("user", "carol").is("carol", &[ALL]),
        proxied("groups in order", "carol")
            .header("X-Remote-Group", "b")
            .header("X-Remote-Group", "a")
            .is("carol", &["b", "a", ALL]),
        proxied("comma in a group", "carol").header("X-Remote-Group", "a,b").is("carol", &["a,b", ALL]),
        proxied("empty group is dropped", "carol")
            .header("X-Remote-Group", "")
            .header("X-Remote-Group", "g")
            .is("carol", &["g", ALL]),
        proxied("uid", "carol").header("X-Remote-Uid", "u-7").is("carol", &[ALL]).contains(r#""uid":"u-7""#),
        proxied("first of two uids", "carol")
            .header("X-Remote-Uid", "u-7")
            .header("X-Remote-Uid", "u-8")
            .is("carol", &[ALL])
            .contains(r#""uid":"u-7""#),
        proxied("first of two users", "carol").header("X-Remote-User", "dave").is("carol", &[ALL]),
        proxied("first user empty", "").header("X-Remote-User", "dave").unauthorized(),
        proxied("extra", "carol")
            .header("X-Remote-Extra-Scopes", "one")
            .header("X-Remote-Extra-scopes", "two")
            .is("carol", &[ALL])
            .contains(r#""extra":{"scopes":["#),
        proxied("extra with escaped key", "carol")
            .header("X-Remote-Extra-acme.io%2Fproject", "p")
            .is("carol", &[ALL])
            .contains(r#""acme.io/project":["p"]"#),
        proxied("escaped upper case survives", "carol")
            .header("X-Remote-Extra-%4Bey", "v")
            .is("carol", &[ALL])
            .contains(r#""Key":["v"]"#),
        proxied("plain upper case does not", "carol")
            .header("X-Remote-Extra-KEY", "v")
            .is("carol", &[ALL])
            .contains(r#""key":["v"]"#),
        proxied("broken escape is kept", "carol")
            .header("X-Remote-Extra-a%zz", "v")
            .is("carol", &[ALL])
            .contains(r#""a%zz":["v"]"#),
        proxied("doubly escaped", "carol")
            .header("X-Remote-Extra-a%2520b", "v")
            .is("carol", &[ALL])
            .contains(r#""a%20b":["v"]"#),
        proxied("plus is a plus", "carol")
            .header("X-Remote-Extra-a+b", "v")
            .is("carol", &[ALL])
            .contains(r#""a+b":["v"]"#),
        proxied("empty extra key", "carol")
            .header("X-Remote-Extra-", "v")
            .is("carol", &[ALL])
            .contains(r#""":["v"]"#),
        proxied("empty extra value", "carol")
            .header("X-Remote-Extra-k", "")
            .is("carol", &[ALL])
            .contains(r#""k":[""]"#),
        proxied("lower case names", "carol").header("x-remote-group", "g").is("carol", &["g", ALL]),
        proxied("masters", "root")
            .header("X-Remote-Group", "system:masters")
            .is("root", &["system:masters", ALL]),
        proxied("anonymous", "system:anonymous").answers(403),
        proxied("anonymous with its group", "system:anonymous")
            .header("X-Remote-Group", "system:unauthenticated")
            .answers(403),
        proxied("unicode", "Zoë").header("X-Remote-Group", "Größe").is("Zoë", &["Größe", ALL]),
        bare("no user").header("X-Remote-Group", "g").unauthorized(),
        bare("nothing").unauthorized(),
        bare("no user but a token").bearer("tok-alice").is("alice", &["devs", "testers", ALL]),
        proxied("user before token", "carol").bearer("tok-alice").is("carol", &[ALL]),
        bare("underscores are another header").header("X_Remote_User", "carol").unauthorized(),
        proxied("impersonates with the rights of the forwarded user", "carol")
            .header("X-Remote-Group", "system:masters")
            .header("Impersonate-User", "bob")
            .is("bob", &[ALL]),
        proxied("blank around the user", "  carol  ").only(H1).is("carol", &[ALL]),
        proxied("sixty groups", "carol").answers(201),
        // Certificates that are not valid for a front proxy.
        whoami("front_proxy", "name that is not allowed")
            .cert("front-proxy-not-allowed")
            .header("X-Remote-User", "carol")
            .unauthorized(),
        whoami("front_proxy", "expired")
            .cert("front-proxy-expired")
            .header("X-Remote-User", "carol")
            .unauthorized(),
        whoami("front_proxy", "server usage only")
            .cert("front-proxy-server-only")
            .header("X-Remote-User", "carol")
            .unauthorized(),
        whoami("front_proxy", "right name of the client authority")
            .cert("front-proxy-of-client-ca")
            .header("X-Remote-User", "carol")
            .is("front-proxy", &[ALL]),
        whoami("front_proxy", "second common name counts")
            .cert("front-proxy-second-cn")
            .header("X-Remote-User", "carol")
            .is("carol", &[ALL]),
        whoami("front_proxy", "no common name")
            .cert("front-proxy-no-cn")
            .header("X-Remote-User", "carol")
            .unauthorized(),
        whoami("front_proxy", "name that is not allowed, with a token")
            .cert("front-proxy-not-allowed")
            .header("X-Remote-User", "carol")
            .bearer("tok-alice")
            .is("alice", &["devs", "testers", ALL]),
    ]
    .into_iter()
    .map(|case| {
        if case.name != "sixty groups" {
            return case;
        }
        (0..60)
            .fold(case, |case, number| case.header("X-Remote-Group", &format!("group-{number:02}")))
            .contains(r#""group-58","group-59","system:authenticated""#)
    })
    .collect()
}

/// The same headers from clients that are not front proxies: they have no effect.
fn spoofed() -> Vec<Case> {
    let alice = |name: &str| whoami("spoofing", name).cert("alice");
    let unchanged =
        |case: Case| case.is("alice", &["devs", "testers", ALL]).lacks("mallory").lacks("system:masters");
    let headers: &[(&str, &str, &str)] = &[
        ("remote user", "X-Remote-User", "mallory"),
        ("remote group", "X-Remote-Group", "system:masters"),
        ("remote uid", "X-Remote-Uid", "mallory"),
        ("remote extra", "X-Remote-Extra-Scopes", "mallory"),
        ("lower case", "x-remote-group", "system:masters"),
        ("odd case", "x-ReMoTe-GrOuP", "system:masters"),
        ("underscores", "X_Remote_Group", "system:masters"),
        ("dots", "X.Remote.Group", "system:masters"),
        ("half underscores", "X-Remote_Group", "system:masters"),
        ("forwarded for", "X-Forwarded-For", "10.0.0.1, 10.0.0.2"),
        ("forwarded host", "X-Forwarded-Host", "mallory.example.com"),
        ("forwarded proto", "X-Forwarded-Proto", "http"),
        ("forwarded", "Forwarded", "for=10.0.0.1;host=mallory"),
        ("real ip", "X-Real-Ip", "10.0.0.1"),
        ("remote user of other software", "Remote-User", "mallory"),
        ("forwarded client certificate", "X-Forwarded-Client-Cert", "Subject=\"CN=mallory\""),
        ("client verified", "SSL-Client-Verify", "SUCCESS"),
        ("original url", "X-Original-URL", "/api/v1/secrets"),
        ("method override", "X-HTTP-Method-Override", "DELETE"),
        ("te trailers", "TE", "trailers"),
    ];
    let mut cases: Vec<Case> =
        headers.iter().map(|(name, header, value)| unchanged(alice(name).header(header, value))).collect();
    cases.extend([
        unchanged(
            alice("every one of them")
                .header("X-Remote-User", "mallory")
                .header("X-Remote-Group", "system:masters")
                .header("X-Remote-Uid", "mallory")
                .header("X-Remote-Extra-a", "mallory"),
        ),
        unchanged(alice("twice").header("X-Remote-User", "mallory").header("X-Remote-User", "mallory")),
        unchanged(
            alice("nominated by Connection")
                .only(H1)
                .header("Connection", "X-Remote-User, X-Remote-Group")
                .header("X-Remote-Group", "system:masters"),
        ),
        unchanged(
            alice("Connection nominates headers that a proxy adds").only(H1).header(
                "Connection",
                "keep-alive, X-Remote-User, X-Remote-Group, X-Remote-Uid, Authorization",
            ),
        ),
        unchanged(
            alice("Connection nominates in another case").only(H1).header("Connection", "x-remote-group"),
        ),
        whoami("spoofing", "without credentials")
            .header("X-Remote-User", "mallory")
            .header("X-Remote-Group", "system:masters")
            .anonymous(),
        whoami("spoofing", "with a token")
            .bearer("tok-alice")
            .header("X-Remote-User", "mallory")
            .header("X-Remote-Group", "system:masters")
            .is("alice", &["devs", "testers", ALL]),
        whoami("spoofing", "with an unknown certificate")
            .cert("stranger")
            .header("X-Remote-User", "mallory")
            .unauthorized(),
        whoami("spoofing", "with basic")
            .header("Authorization", "Basic eDp5")
            .header("X-Remote-User", "mallory")
            .anonymous(),
        get("spoofing", "secrets by a named group", "/api/v1/secrets")
            .cert("nobody")
            .header("X-Remote-Group", "system:masters")
            .answers(403)
            .contains(r#"User \"nobody\" cannot list"#),
        case("spoofing", "write by a named user", "DELETE", "/api/v1/namespaces/twin-fixed/secrets/hidden")
            .cert("nobody")
            .header("X-Remote-User", "admin")
            .header("X-Remote-Group", "system:masters")
            .answers(403),
    ]);
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    [accepted(), spoofed()].concat()
}
