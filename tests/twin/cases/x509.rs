//! Client certificates: the user of a chain, and the chains that are rejected.
//!
//! The reference closes the connection for certificates that Go cannot parse, because its TLS library parses them
//! during the handshake.

use crate::case::{Case, whoami};

const GROUP: &str = "x509";
const ALL: &str = "system:authenticated";

fn by(name: &str, cert: &'static str) -> Case {
    whoami(GROUP, name).cert(cert)
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        by("groups in certificate order", "alice").is("alice", &["devs", "testers", ALL]),
        by("no group", "nobody").is("nobody", &[ALL]),
        by("credential id", "alice")
            .answers(201)
            .contains(r#""authentication.kubernetes.io/credential-id":["X509SHA256="#),
        by("system masters", "admin").is("admin", &["system:masters", ALL]),
        whoami(GROUP, "no certificate").anonymous(),
        by("expired certificate", "expired").unauthorized(),
        by("certificate not yet valid", "not-yet-valid").unauthorized(),
        by("certificate of an unknown authority", "stranger").unauthorized(),
        by("CA of the same name with another key", "stranger-same-name").unauthorized(),
        by("self-signed certificate", "self-signed").unauthorized(),
        by("server usage only", "server-only").unauthorized(),
        by("any usage", "any-usage").is("anyone", &[ALL]),
        by("no usage extension", "no-usage").is("unlimited", &[ALL]),
        by("client and server usage", "both-usages").is("both", &[ALL]),
        by("no key usage", "no-key-usage").is("no-key-usage", &[ALL]),
        by("no basic constraints", "no-basic-constraints").is("no-bc", &[ALL]),
        by("signature that does not fit", "corrupt-signature").unauthorized(),
        by("unknown critical extension", "unknown-critical").unauthorized(),
        by("version 1", "v1").is("old", &["v1", ALL]),
        by("authority as client", "ca-as-leaf").is("client-ca", &[ALL]),
        // Chains.
        by("intermediate", "intermediate").is("carol", &["via-middle", ALL]),
        by("two intermediates", "two-intermediates").is("dora", &[ALL]),
        by("intermediate not sent", "missing-intermediate").unauthorized(),
        by("expired intermediate", "expired-intermediate").unauthorized(),
        by("path length kept", "path-length-kept").is("flat", &[ALL]),
        by("path length broken", "path-length-broken").unauthorized(),
        by("issued by a certificate that is not an authority", "issued-by-a-leaf").unauthorized(),
        by("chain out of order", "reordered-chain").is("reordered", &[ALL]),
        by("root sent too", "root-sent-too").is("rooted", &[ALL]),
        by("unrelated certificate sent too", "unrelated-certificate-sent-too").is("padded", &[ALL]),
        // Names.
        by("sixty groups", "many-groups")
            .answers(201)
            .contains(r#""group-58","group-59","system:authenticated"]"#),
        by("repeated group is kept", "repeated-group").is("rep", &["b", "a", "b", ALL]),
        by("two groups in one name part", "groups-in-one-rdn").is("one-rdn", &["x", "a", ALL]),
        by("authenticated group is not added twice", "system-group").is("sys", &[ALL, "last"]),
        by("unauthenticated group", "unauthenticated-group")
            .answers(403)
            .contains(r#"User \"unauth\" cannot create"#),
        by("certificate that says anonymous", "named-anonymous").answers(403),
        by("certificate that says service account", "named-service-account")
            .is("system:serviceaccount:twin:default", &[ALL]),
        by("unit is not a group", "ou-is-no-group").is("ou", &["org", ALL]),
        by("empty group", "empty-group").is("empty-group", &["", "g", ALL]).declared("D-empty-group", 201),
        by("group with a comma", "group-with-comma").is("comma", &["a,b", ALL]),
        by("no common name", "no-cn").unauthorized(),
        by("empty common name", "empty-cn").unauthorized(),
        by("empty subject", "empty-subject").unauthorized(),
        by("last of two common names", "two-cns").is("second", &[ALL]),
        by("last common name empty", "second-cn-empty").unauthorized(),
        by("quotes and brackets in the name", "quoted-cn")
            .answers(201)
            .contains(r#"a\"b\\c\u003cd\u003e\u0026e"#),
        by("unicode", "unicode").is("Zoë ☃", &["Größe", ALL]),
        by("name of a thousand bytes", "long-cn").answers(201),
        by("blank before the name", "cn-leading-blank")
            .is(" alice", &[ALL])
            .declared("D-identity-bytes", 401),
        by("blank after the name", "cn-trailing-blank")
            .is("alice ", &[ALL])
            .declared("D-identity-bytes", 401),
        by("blanks within the name", "cn-inner-blank").is("alice  b", &[ALL]),
        by("blank after a group", "group-trailing-blank")
            .is("mallory", &["system:masters ", ALL])
            .declared("D-identity-bytes", 401),
        by("blank before a group", "group-leading-blank")
            .is("mallory", &[" devs", ALL])
            .declared("D-identity-bytes", 401),
        by("tab before a group", "group-tab")
            .is("mallory", &["\tdevs", ALL])
            .declared("D-identity-bytes", 401),
        by("newline in the name", "cn-newline").answers(201).declared("D-identity-bytes", 401),
        by("carriage return in the name", "cn-carriage-return")
            .answers(201)
            .declared("D-identity-bytes", 401),
        by("NUL in the name", "cn-nul").answers(201).declared("D-identity-bytes", 401),
        by("delete in the name", "cn-delete").answers(201).declared("D-identity-bytes", 401),
        // String types.
        by("PrintableString", "cn-printable").is("printable", &[ALL]),
        by("PrintableString with other characters", "cn-printable-bad").breaks(),
        by("IA5String", "cn-ia5").is("ia5@example.com", &[ALL]),
        by("IA5String with high byte", "cn-ia5-bad").breaks(),
        by("T61String", "cn-t61").is("teletex", &[ALL]),
        by("T61String with high byte", "cn-t61-latin").answers(201),
        by("BMPString", "cn-bmp").is("bmp", &[ALL]),
        by("BMPString of odd length", "cn-bmp-odd").breaks(),
        by("NumericString", "cn-numeric").is("12 34", &[ALL]),
        by("VisibleString", "cn-visible").breaks(),
        by("UniversalString", "cn-universal").breaks(),
        by("invalid UTF8String", "cn-utf8-bad").breaks(),
        by("integer as name", "cn-integer").breaks(),
        by("T61String group", "group-t61").is("t", &["tele", ALL]),
        by("BMPString group", "group-bmp").is("b", &["g€", ALL]),
        by("integer as group", "group-integer").breaks(),
        // The user's uid.
        by("uid", "uid").is("ursula", &["devs", ALL]).contains(r#""uid":"u-1""#),
        by("two uids", "uid-twice").unauthorized(),
        by("empty uid", "uid-empty").unauthorized(),
        by("uid that is not a string", "uid-not-a-string").breaks(),
        by("PrintableString uid", "uid-printable").answers(201).contains(r#""uid":"u-3""#),
        by("blank before the uid", "uid-outer-blank")
            .answers(201)
            .contains(r#""uid":" u-4""#)
            .declared("D-identity-bytes", 401),
    ];
    for kind in ["rsa", "p256", "p384", "p521", "ed25519"] {
        cases.push(by(&format!("{kind} key"), kind).is(kind, &[ALL]));
    }
    cases
}
