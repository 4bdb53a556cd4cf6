//! `Impersonate-*`: allowed, forbidden, incomplete. Texts of refusals depend on what the same requester was allowed before, so a
//! requester either succeeds in one mode only, or never.

use crate::case::{Case, get, whoami};

const GROUP: &str = "impersonation";
const ALL: &str = "system:authenticated";

pub(crate) fn cases() -> Vec<Case> {
    let asks = |name: &str, who: &'static str, user: &str| {
        whoami(GROUP, name).cert(who).header("Impersonate-User", user)
    };
    let new = |name: &str| asks(name, "impersonator", "bob");
    let old = |name: &str| asks(name, "legacy-impersonator", "bob");
    vec![
        new("user").is("bob", &[ALL]),
        new("lower case header").header("impersonate-group", "g1").is("bob", &["g1", ALL]),
        new("groups in order")
            .header("Impersonate-Group", "g2")
            .header("Impersonate-Group", "g1")
            .is("bob", &["g2", "g1", ALL]),
        new("uid").header("Impersonate-Uid", "uid-bob").is("bob", &[ALL]).contains(r#""uid":"uid-bob""#),
        new("extra")
            .header("Impersonate-Extra-acme.io%2fscopes", "view")
            .is("bob", &[ALL])
            .contains(r#""acme.io/scopes":["view"]"#),
        new("group without right").header("Impersonate-Group", "g3").answers(403).contains("g3"),
        new("masters").header("Impersonate-Group", "system:masters").answers(403).contains("not allowed"),
        new("empty group").header("Impersonate-Group", "").answers(403),
        new("uid without right").header("Impersonate-Uid", "uid-eve").answers(403),
        new("extra value without right").header("Impersonate-Extra-acme.io%2fscopes", "edit").answers(403),
        new("extra key without domain").header("Impersonate-Extra-scopes", "view").answers(403),
        new("first of two users").header("Impersonate-User", "eve").is("bob", &[ALL]),
        asks("user without right", "impersonator", "eve").answers(403).contains("impersonate:user-info"),
        asks("service account without right", "impersonator", "system:serviceaccount:twin:default")
            .answers(403),
        asks("node without right", "impersonator", "system:node:twin-node").answers(403),
        asks("empty user", "impersonator", "").is("impersonator", &["impersonators", ALL]),
        old("the old right").is("bob", &[ALL]),
        old("old right to groups").header("Impersonate-Group", "g1").is("bob", &["g1", ALL]),
        old("old right to masters")
            .header("Impersonate-Group", "system:masters")
            .is("bob", &["system:masters", ALL]),
        old("old right to uid").header("Impersonate-Uid", "any").is("bob", &[ALL]).contains(r#""uid":"any""#),
        old("old right to extra")
            .header("Impersonate-Extra-Scopes", "one")
            .header("Impersonate-Extra-Scopes", "two")
            .is("bob", &[ALL])
            .contains(r#""scopes":["one","two"]"#),
        asks("old right to a service account", "legacy-impersonator", "system:serviceaccount:twin:default")
            .is(
                "system:serviceaccount:twin:default",
                &["system:serviceaccounts", "system:serviceaccounts:twin", ALL],
            ),
        asks("service account with groups", "legacy-impersonator", "system:serviceaccount:twin:default")
            .header("Impersonate-Group", "g1")
            .is("system:serviceaccount:twin:default", &["g1", ALL]),
        asks("anonymous", "legacy-impersonator", "system:anonymous")
            .answers(403)
            .contains("system:anonymous"),
        asks("by one without any right", "nobody", "bob").answers(403).contains(r#"User \"nobody\" cannot"#),
        asks("quotes in the name", "nobody", "b\"o<b>").answers(403),
        asks("by masters", "admin", "bob").header("Impersonate-Group", "x").is("bob", &["x", ALL]),
        asks("masters by masters", "admin", "bob")
            .header("Impersonate-Group", "system:masters")
            .is("bob", &["system:masters", ALL]),
        whoami(GROUP, "by token").bearer("tok-admin").header("Impersonate-User", "bob").is("bob", &[ALL]),
        whoami(GROUP, "by nobody")
            .header("Impersonate-User", "bob")
            .answers(403)
            .contains("system:anonymous"),
        whoami(GROUP, "by an unknown token")
            .bearer("tok-none")
            .header("Impersonate-User", "bob")
            .unauthorized(),
        whoami(GROUP, "group without user")
            .cert("admin")
            .header("Impersonate-Group", "g1")
            .answers(400)
            .contains("without impersonating a user"),
        whoami(GROUP, "empty group without user").cert("admin").header("Impersonate-Group", "").answers(400),
        whoami(GROUP, "uid without user").cert("admin").header("Impersonate-Uid", "u").answers(400),
        whoami(GROUP, "empty uid without user")
            .cert("admin")
            .header("Impersonate-Uid", "")
            .is("admin", &["system:masters", ALL]),
        whoami(GROUP, "extra without user").cert("admin").header("Impersonate-Extra-k", "v").answers(400),
        whoami(GROUP, "unknown impersonation header")
            .cert("admin")
            .header("Impersonate-Name", "bob")
            .is("admin", &["system:masters", ALL])
            .declared("D-unknown-impersonation", 400),
        get(GROUP, "rights are the target's", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .cert("legacy-impersonator")
            .header("Impersonate-User", "bob")
            .answers(200)
            .contains("alpha"),
        get(GROUP, "and no others", "/api/v1/namespaces/twin-fixed/secrets/hidden")
            .cert("admin")
            .header("Impersonate-User", "bob")
            .answers(403)
            .contains(r#"User \"bob\" cannot get"#),
    ]
}
