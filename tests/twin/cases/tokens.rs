//! Bearer tokens of the token file, and the syntax of bearer tokens.

use base64::Engine as _;

use super::credentials::ALL;
use crate::case::{Case, get, whoami};

/// The rows of `people::TOKENS`.
fn rows() -> Vec<Case> {
    let by = |name: &str, token: &str| whoami("token_file", name).bearer(token);
    vec![
        by("groups", "tok-alice").is("alice", &["devs", "testers", ALL]).contains(r#""uid":"uid-alice""#),
        by("no group column", "tok-plain").is("plain", &[ALL]),
        by("empty uid", "tok-no-uid").is("nouid", &[ALL]).lacks(r#""uid":"u"#),
        by("one group", "tok-one-group").is("one", &["solo", ALL]),
        by("empty group column", "tok-empty-group")
            .is("emptygroup", &["", ALL])
            .declared("D-empty-group", 201),
        by("empty groups among others", "tok-comma-tail")
            .is("commatail", &["a", "", "b", "", ALL])
            .declared("D-empty-group", 201),
        by("outer blanks", "tok-blanks")
            .is(" blank user ", &[" g1", " g2 ", ALL])
            .declared("D-identity-bytes", 401),
        by("blank after system masters", "tok-masters-blank")
            .is("mallory", &["system:masters ", ALL])
            .declared("D-identity-bytes", 401),
        by("empty user name", "tok-no-name")
            .is("", &["ghosts", ALL])
            .contains(r#""uid":"uid-no-name""#)
            .declared("D-no-name", 401),
        by("empty user name is forbidden by that name", "tok-no-name")
            .then("GET", "/api/v1/nodes")
            .bearer("tok-no-name")
            .answers(403)
            .contains(r#"User \"\" cannot list"#)
            .declared("D-no-name", 401),
        by("columns after the groups", "tok-more").is("more", &["g", ALL]),
        by("duplicate token, last row wins", "tok-twice").is("second", &["g2", ALL]),
        by("quoted token", "tok,quoted").is("quoted", &[ALL]),
        by("quote within a token", "tok\"inner").is("innerquote", &[ALL]),
        by("unicode", "tok-unicode").is("Zoë", &["größe", "☃", ALL]).contains(r#""uid":"ü-1""#),
        by("user called anonymous", "tok-anonymous").answers(403),
        by("authenticated group is not added twice", "tok-authenticated").is("auth", &[ALL, "x"]),
        by("unauthenticated group", "tok-unauthenticated").answers(403).contains(r#"User \"unauth\""#),
        by("control byte in the name", "tok-control").answers(201).declared("D-identity-bytes", 401),
        by("hash is not a comment", "#tok-hash").is("hash", &[ALL]),
        by("leading blank belongs to the token", "tok-blank").unauthorized(),
        by("duplicate groups", "tok-duplicate-groups").is("dup", &["a", "b", "a", ALL]),
        by("unknown token", "tok-none").unauthorized(),
        by("token in another case", "TOK-ALICE").unauthorized(),
        by("prefix of a token", "tok-alic").unauthorized(),
    ]
    .into_iter()
    .map(|mut case| {
        // The first step is the same review as in other cases.
        if case.steps.len() > 1 {
            case.steps.remove(0);
        }
        case
    })
    .collect()
}

/// Forms of the `Authorization` header.
fn shapes() -> Vec<Case> {
    let with = |name: &str, value: &str| whoami("authorization", name).header("Authorization", value);
    let alice = |case: Case| case.is("alice", &["devs", "testers", ALL]);
    vec![
        with("empty", "").anonymous(),
        with("Bearer alone", "Bearer").anonymous(),
        with("Bearer and a blank", "Bearer ").anonymous(),
        with("basic", "Basic YWxpY2U6c2VjcmV0").anonymous(),
        with("scheme that begins alike", "bear tok-alice").anonymous(),
        with("colon after the scheme", "Bearer: tok-alice").anonymous(),
        with("token alone", "tok-alice").anonymous(),
        alice(with("usual", "Bearer tok-alice")),
        alice(with("lower case scheme", "bearer tok-alice")),
        alice(with("upper case scheme", "BEARER tok-alice")),
        alice(with("trailing words", "Bearer tok-alice extra stuff")),
        alice(with("trailing blanks", "Bearer tok-alice  ")),
        alice(with("leading blanks", "   Bearer tok-alice")),
        with("two blanks", "Bearer  tok-alice").anonymous(),
        with("three blanks", "Bearer   tok-alice").anonymous(),
        with("tab", "Bearer\ttok-alice").anonymous(),
        with("tab after the blank", "Bearer \ttok-alice").unauthorized(),
        alice(
            with("first of two lines counts", "Bearer tok-alice").header("Authorization", "Bearer tok-none"),
        ),
        with("second of two lines does not", "Bearer tok-none")
            .header("Authorization", "Bearer tok-alice")
            .unauthorized(),
        with("first line empty", "").header("Authorization", "Bearer tok-alice").anonymous(),
        with("first line basic", "Basic eDp5").header("Authorization", "Bearer tok-alice").anonymous(),
        alice(whoami("authorization", "lower case name").header("authorization", "Bearer tok-alice")),
        whoami("authorization", "bytes beyond ASCII")
            .header_bytes("Authorization", b"Bearer caf\xc3\xa9")
            .unauthorized(),
        whoami("authorization", "bytes that are not UTF-8")
            .header_bytes("Authorization", b"Bearer caf\xe9")
            .unauthorized(),
        with("long token", &format!("Bearer {}", "x".repeat(20_000))).unauthorized(),
        with("something like a JWT", "Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJub2JvZHkifQ.c2ln")
            .unauthorized(),
        with("two dots", "Bearer ..").unauthorized(),
        get("authorization", "token in the query", "/api/v1/nodes?access_token=tok-admin")
            .answers(403)
            .contains("system:anonymous"),
        whoami("authorization", "proxy authorization is ignored")
            .header("Proxy-Authorization", "Bearer tok-alice")
            .anonymous(),
        // Certificate and token in one request.
        whoami("authorization", "valid certificate and invalid token")
            .cert("alice")
            .bearer("tok-none")
            .is("alice", &["devs", "testers", ALL]),
        whoami("authorization", "certificate before token")
            .cert("nobody")
            .bearer("tok-alice")
            .is("nobody", &[ALL]),
        alice(
            whoami("authorization", "expired certificate and valid token")
                .cert("expired")
                .bearer("tok-alice"),
        ),
        alice(
            whoami("authorization", "foreign certificate and valid token")
                .cert("stranger")
                .bearer("tok-alice"),
        ),
        whoami("authorization", "expired certificate and invalid token")
            .cert("expired")
            .bearer("tok-none")
            .unauthorized(),
        alice(
            whoami("authorization", "nameless certificate and valid token").cert("no-cn").bearer("tok-alice"),
        ),
        whoami("authorization", "foreign certificate and basic")
            .cert("stranger")
            .header("Authorization", "Basic eDp5")
            .unauthorized(),
    ]
}

/// Tokens as a WebSocket subprotocol, on a watch with a timeout of one second.
fn subprotocols() -> Vec<Case> {
    let encode = |token: &str| {
        let text = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
        format!("base64url.bearer.authorization.k8s.io.{text}")
    };
    let watch = |name: &str, protocols: &str| {
        get(
            "subprotocol",
            name,
            "/api/v1/namespaces/twin-fixed/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha",
        )
        .header("Origin", "https://{addr}")
        .websocket(protocols, &[])
    };
    let (alice, admin, none) = (encode("tok-alice"), encode("tok-admin"), encode("tok-none"));
    vec![
        watch("token and another", &format!("{alice}, binary.k8s.io")).answers(101).contains("alpha"),
        watch("token last", &format!("binary.k8s.io,{alice}")).answers(101).contains("alpha"),
        watch("token alone", &alice).unauthorized(),
        watch("unknown token", &format!("{none}, binary.k8s.io")).unauthorized(),
        watch("two tokens", &format!("{alice}, {admin}, binary.k8s.io")).unauthorized(),
        watch("padded", &format!("{alice}=, binary.k8s.io")).unauthorized(),
        watch("empty", "base64url.bearer.authorization.k8s.io., binary.k8s.io")
            .answers(403)
            .contains("system:anonymous"),
        watch("prefix in another case", &format!("{}, binary.k8s.io", alice.replace("bearer", "Bearer")))
            .answers(403)
            .contains("system:anonymous"),
        watch("not UTF-8", "base64url.bearer.authorization.k8s.io._w, binary.k8s.io").unauthorized(),
        watch("header before subprotocol", &format!("{none}, binary.k8s.io"))
            .bearer("tok-alice")
            .answers(400)
            .declared("D-bearer-subprotocol", 101),
        watch("invalid header and valid subprotocol", &format!("{alice}, binary.k8s.io"))
            .bearer("tok-none")
            .answers(101)
            .contains("alpha"),
        watch("certificate before subprotocol", &format!("{none}, binary.k8s.io"))
            .cert("alice")
            .answers(400)
            .declared("D-bearer-subprotocol", 101),
        get("subprotocol", "without upgrade", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .header("Sec-WebSocket-Protocol", &format!("{alice}, binary.k8s.io"))
            .answers(403)
            .contains("system:anonymous"),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [rows(), shapes(), subprotocols()].concat()
}
