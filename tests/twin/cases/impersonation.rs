//! `Impersonate-*`: allowed, forbidden, incomplete. The message of a 403 depends on earlier decisions for the same
//! requester, so each requester has permissions for one mode only, or none.

mod modes;

use crate::case::{Case, get, whoami};

const GROUP: &str = "impersonation";
const ALL: &str = "system:authenticated";

pub(crate) fn cases() -> Vec<Case> {
    [by_people(), modes::cases()].concat()
}

fn by_people() -> Vec<Case> {
    let impersonates = |name: &str, cert: &'static str, user: &str| {
        whoami(GROUP, name).cert(cert).header("Impersonate-User", user)
    };
    let new = |name: &str| impersonates(name, "impersonator", "bob");
    let old = |name: &str| impersonates(name, "legacy-impersonator", "bob");
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
        impersonates("user without right", "impersonator", "eve")
            .answers(403)
            .contains("impersonate:user-info"),
        impersonates("service account without right", "impersonator", "system:serviceaccount:twin:default")
            .answers(403),
        impersonates("node without right", "impersonator", "system:node:twin-node").answers(403),
        impersonates("empty user", "impersonator", "").is("impersonator", &["impersonators", ALL]),
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
        impersonates(
            "old right to a service account",
            "legacy-impersonator",
            "system:serviceaccount:twin:default",
        )
        .is(
            "system:serviceaccount:twin:default",
            &["system:serviceaccounts", "system:serviceaccounts:twin", ALL],
        ),
        impersonates(
            "service account with groups",
            "legacy-impersonator",
            "system:serviceaccount:twin:default",
        )
        .header("Impersonate-Group", "g1")
        .is("system:serviceaccount:twin:default", &["g1", ALL]),
        impersonates("anonymous", "legacy-impersonator", "system:anonymous")
            .answers(403)
            .contains("system:anonymous"),
        impersonates("by a user without any right", "nobody", "bob")
            .answers(403)
            .contains(r#"User \"nobody\" cannot"#),
        impersonates("quotes in the name", "nobody", "b\"o<b>").answers(403),
        impersonates("by masters", "admin", "bob").header("Impersonate-Group", "x").is("bob", &["x", ALL]),
        impersonates("masters by masters", "admin", "bob")
            .header("Impersonate-Group", "system:masters")
            .is("bob", &["system:masters", ALL]),
        whoami(GROUP, "by token").bearer("tok-admin").header("Impersonate-User", "bob").is("bob", &[ALL]),
        whoami(GROUP, "without credentials")
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
