//! JSON Web Tokens with claim mappings and validation rules in CEL, and with distributed claims.

use serde_json::{Value, json};

use super::credentials::{ALL, GO, by};
use crate::authenticators::token;
use crate::case::Case;
use crate::mint::Jwt;

const GROUP: &str = "oidc_mappings";

fn rejected(name: &str, jwt: Jwt, reason: &str) -> Case {
    by(GROUP, name, jwt).refused(reason)
}

fn cel(claims: Value) -> Jwt {
    token("cel").with(claims)
}

/// Expects the user jane of the issuer `cel` in these groups.
fn jane(name: &str, claims: Value, groups: &[&str]) -> Case {
    by(GROUP, name, cel(claims)).accepted("cel:jane", &[groups, &[ALL]].concat())
}

fn mappings() -> Vec<Case> {
    let extra = |name: &str, value: &str| format!(r#""twin.example/{name}":{value}"#);
    vec![
        jane("defaults", json!({}), &[])
            .contains(r#""uid":"none""#)
            .contains(r#""extra":{"twin.example/constant":["constant"]}"#),
        jane("groups", json!({"roles": ["b", "a"]}), &["r:b", "r:a"]),
        jane("empty group gets the prefix", json!({"roles": [""]}), &["r:"]),
        jane("uid", json!({"uid": "u-1"}), &[]).contains(r#""uid":"u-1""#),
        jane("empty uid", json!({"uid": ""}), &[]).lacks(r#""uid""#),
        jane("extra", json!({"tenant": "t", "scopes": ["x", "y"]}), &[])
            .contains(&extra("tenant", r#"["t"]"#))
            .contains(&extra("scopes", r#"["x","y"]"#)),
        jane("empty extra is left out", json!({"tenant": "", "scopes": []}), &[])
            .lacks("twin.example/tenant")
            .lacks("twin.example/scopes"),
        jane("empty texts in an extra are left out", json!({"scopes": ["", "y", ""]}), &[])
            .contains(&extra("scopes", r#"["y"]"#)),
        jane("extra null", json!({"tenant": null}), &[]).lacks("twin.example/tenant"),
        jane("token id beside other extras", json!({"jti": "t-1"}), &[])
            .contains(r#""authentication.kubernetes.io/credential-id":["JTI=t-1"]"#)
            .contains("twin.example/constant"),
        jane("required by expression", json!({"hd": "example.com"}), &[]),
        rejected(
            "roles are numbers",
            cel(json!({"roles": [1]})),
            "oidc: error evaluating group claim expression: ",
        ),
        rejected(
            "roles are a string",
            cel(json!({"roles": "a"})),
            "oidc: error evaluating group claim expression: ",
        ),
        rejected(
            "uid is a number",
            cel(json!({"uid": 5})),
            "oidc: error evaluating uid claim expression: uid claim expression must return a string",
        ),
        rejected(
            "extra is a number",
            cel(json!({"tenant": 5})),
            "oidc: error evaluating extra claim expression: claims.?tenant.orValue(''): expression must return a string or a list of strings",
        ),
        rejected(
            "no user name",
            cel(json!({})).without("sub"),
            "oidc: error evaluating username claim expression: expression ''cel:' + claims.sub' resulted in error: no such key: sub",
        ),
        rejected("user name is a number", cel(json!({})).with(json!({"sub": 5})), "").any_body(GO),
    ]
}

fn rules() -> Vec<Case> {
    let claim = "oidc: error evaluating claim validation expression: ";
    let user = "oidc: error evaluating user info validation rule: ";
    vec![
        rejected(
            "claim rule with a message",
            cel(json!({"hd": "example.org"})),
            &format!(
                "{claim}validation expression 'claims.?hd.orValue('example.com') == 'example.com'' failed: hd must be example.com"
            ),
        ),
        rejected(
            "claim rule without a message",
            cel(json!({"revoked": true})),
            &format!("{claim}validation expression '!has(claims.revoked)' failed: "),
        ),
        rejected("claim rule about another type", cel(json!({"hd": 5})), "hd must be example.com"),
        rejected(
            "the first of two broken claim rules",
            cel(json!({"hd": "x", "revoked": true})),
            "hd must be example.com",
        ),
        rejected(
            "claim rule about times",
            cel(json!({"exp": "{now+90000}"})),
            "must not live longer than a day",
        ),
        rejected(
            "claim rule about a missing claim",
            cel(json!({})).without("iat"),
            &format!(
                "{claim}expression 'claims.exp - claims.iat <= 86400' resulted in error: no such key: iat"
            ),
        ),
        rejected(
            "claim rule about text and number",
            cel(json!({"exp": "4000000000"})),
            &format!("{claim}expression "),
        ),
        rejected(
            "user rule about the name",
            cel(json!({})).with(json!({"sub": "system:admin"})),
            &format!(
                "{user}validation expression '!user.username.startsWith('cel:system:')' failed: system names are ours"
            ),
        ),
        rejected(
            "user rule about groups",
            cel(json!({"roles": ["a", "system:masters"]})),
            "system groups are ours",
        ),
        rejected(
            "user rule about the uid",
            cel(json!({"uid": "forbidden"})),
            &format!("{user}validation expression 'user.uid != 'forbidden'' failed: "),
        ),
        rejected(
            "user rule about an extra",
            cel(json!({"tenant": "evil"})),
            &format!("{user}validation expression '!('twin.example/tenant' in user.extra"),
        ),
        rejected(
            "claim rules before user rules",
            cel(json!({"hd": "x", "uid": "forbidden"})),
            "hd must be example.com",
        ),
        rejected(
            "mappings before rules",
            cel(json!({"hd": "x", "uid": 5})),
            "uid claim expression must return a string",
        ),
        jane(
            "user rules see the groups as mapped",
            json!({"roles": ["authenticated"]}),
            &["r:authenticated"],
        ),
    ]
}

fn email() -> Vec<Case> {
    let email = |claims: Value| token("celemail").with(json!({"email": "jane@example.com"})).with(claims);
    let valid =
        |name: &str, claims: Value| by(GROUP, name, email(claims)).accepted("jane@example.com", &[ALL]);
    vec![
        valid("email", json!({})),
        valid("email verified", json!({"email_verified": true})),
        rejected("email not verified", email(json!({"email_verified": false})), "email must be verified"),
        rejected(
            "email verified is a string",
            email(json!({"email_verified": "true"})),
            "email must be verified",
        ),
        rejected("email verified null", email(json!({"email_verified": null})), "email must be verified"),
        rejected("no email", token("celemail"), "resulted in error: no such key: email"),
    ]
}

/// Expressions that return a claim without conversion, of any type.
fn types() -> Vec<Case> {
    let raw = |claims: Value| {
        token("celraw").with(json!({"name": "jane", "roles": ["a"], "uid": "u-1", "raw": "r"})).with(claims)
    };
    let valid = |name: &str, claims: Value, groups: &[&str]| {
        by(GROUP, &format!("raw {name}"), raw(claims)).accepted("jane", &[groups, &[ALL]].concat())
    };
    let rejected =
        |name: &str, claims: Value, reason: &str| rejected(&format!("raw {name}"), raw(claims), reason);
    let username =
        "oidc: error evaluating username claim expression: username claim expression must return a string";
    let uid = "oidc: error evaluating uid claim expression: uid claim expression must return a string";
    let groups =
        "oidc: error evaluating group claim expression: expression must return a string or a list of strings";
    let extra = "oidc: error evaluating extra claim expression: claims.raw: expression must return a string or a list of strings";
    let value = |text: &str| format!(r#""twin.example/raw":{text}"#);
    vec![
        valid("strings", json!({}), &["a"]).contains(&value(r#"["r"]"#)).contains(r#""uid":"u-1""#),
        rejected("empty name", json!({"name": ""}), "oidc: empty username via CEL expression is not allowed"),
        rejected("name is a number", json!({"name": 5}), username),
        rejected("name null", json!({"name": null}), username),
        rejected("name is a list", json!({"name": ["jane"]}), username),
        rejected("name is true", json!({"name": true}), username),
        rejected("uid is a number", json!({"uid": 5}), uid),
        rejected("uid null", json!({"uid": null}), uid),
        valid("uid empty", json!({"uid": ""}), &["a"]).lacks(r#""uid""#),
        valid("one group", json!({"roles": "b"}), &["b"]),
        valid("empty group", json!({"roles": ""}), &[]),
        valid("groups null", json!({"roles": null}), &[]),
        valid("no groups", json!({"roles": []}), &[]),
        valid("empty groups among others", json!({"roles": ["", "b", ""]}), &["b"]),
        rejected("group null among others", json!({"roles": ["b", null]}), groups),
        valid("repeated groups", json!({"roles": ["b", "a", "b"]}), &["b", "a", "b"]),
        valid("system groups", json!({"roles": ["system:masters"]}), &["system:masters"]),
        rejected("groups are a number", json!({"roles": 5}), groups),
        rejected("groups are numbers", json!({"roles": [5]}), groups),
        rejected("groups are lists", json!({"roles": [["a"]]}), groups),
        rejected("groups are an object", json!({"roles": {"a": "b"}}), groups),
        rejected("groups are true", json!({"roles": true}), groups),
        valid("extra list", json!({"raw": ["b", "a", "b"]}), &["a"]).contains(&value(r#"["b","a","b"]"#)),
        valid("extra empty", json!({"raw": ""}), &["a"]).lacks("twin.example/raw"),
        valid("extra null", json!({"raw": null}), &["a"]).lacks("twin.example/raw"),
        valid("extra beyond ASCII", json!({"raw": "größe ☃"}), &["a"]).contains("größe ☃"),
        rejected("extra is a number", json!({"raw": 5}), extra),
        rejected("extra is an object", json!({"raw": {}}), extra),
        rejected("extra is a list of lists", json!({"raw": [["a"]]}), extra),
    ]
}

fn dots() -> Vec<Case> {
    let dots = |inner: &str| {
        token("dots")
            .with(json!({"user.name": "jane", "nested": [{"group.name": "n"}], "outer.er": {"inner": inner}}))
    };
    vec![
        by(GROUP, "names with dots", dots("i"))
            .accepted("jane", &["n", ALL])
            .contains(r#""twin.example/dotted":["i"]"#)
            .contains(r#""twin.example/iterated":["unseen"]"#),
        rejected(
            "name with dots is missing",
            dots("i").without("user.name"),
            "expression 'claims.user__dot__name' resulted in error: no such key: user__dot__name",
        ),
        rejected(
            "the escaped name itself",
            dots("i").without("user.name").with(json!({"user__dot__name": "jane"})),
            "",
        ),
        rejected("user rule with an index", dots("refused"), "failed: refused"),
    ]
}

/// Distributed groups claims.
fn distributed() -> Vec<Case> {
    let source =
        |source: Value| json!({"_claim_names": {"groups": "src"}, "_claim_sources": {"src": source}});
    let at = |variant: &str| source(json!({"endpoint": format!("{{issuer}}/distributed/claims/{variant}")}));
    let with = |claims: Value| token("distributed").with(claims);
    let valid = |name: &str, claims: Value, groups: &[&str]| {
        by(GROUP, &format!("distributed {name}"), with(claims))
            .accepted("distributed:jane", &[groups, &[ALL]].concat())
    };
    let rejected = |name: &str, claims: Value, reason: &str| {
        rejected(
            &format!("distributed {name}"),
            with(claims),
            &format!("oidc: could not expand distributed claims: {reason}"),
        )
    };
    let getting = r#"while getting distributed claim "groups": "#;
    let mut local = at("broken");
    local["groups"] = json!(["near"]);
    let mut other = at("broken");
    other["_claim_names"] = json!({"roles": "src"});
    let mut authorized = at("authorized");
    authorized["_claim_sources"]["src"]["access_token"] = json!("open-sesame");
    let mut unauthorized = at("authorized");
    unauthorized["_claim_sources"]["src"]["access_token"] = json!("open-barley");
    let mut both = at("good");
    both["_claim_sources"]["src"]["JWT"] = json!("x.y.z");
    vec![
        valid("groups", at("good"), &["d:far", "d:away"]),
        valid("one group", at("string"), &["d:alone"]),
        valid("with an access token", authorized, &["d:far", "d:away"]),
        valid("without an access token", at("unasked"), &["d:far", "d:away"]),
        valid("status 201", at("created"), &["d:far", "d:away"]),
        valid("redirected", at("redirect"), &["d:far", "d:away"]).declared("D-redirects", 201),
        valid("groups in the token win", local, &["d:near"]),
        valid("other claims are left", other, &[]),
        valid("aggregated claims are left", source(json!({"JWT": "x.y.z"})), &[]),
        valid("an endpoint beside an aggregated claim", both, &["d:far", "d:away"]),
        valid(
            "no names",
            json!({"_claim_sources": {"src": {"endpoint": "{issuer}/distributed/claims/broken"}}}),
            &[],
        ),
        rejected(
            "wrong access token",
            unauthorized,
            &format!("{getting}error while getting distributed claim JWT: 401 Unauthorized"),
        ),
        rejected(
            "endpoint fails",
            at("broken"),
            &format!("{getting}error while getting distributed claim JWT: 500 Internal Server Error"),
        ),
        rejected(
            "endpoint has nothing",
            at("nothing"),
            &format!("{getting}error while getting distributed claim JWT: 404 Not Found"),
        ),
        rejected("answer is JSON", at("json"), "").any_body(GO),
        rejected(
            "answer is empty",
            at("empty"),
            "getting untrusted issuer from endpoint {issuer}/distributed/claims/empty failed for claim \"groups\": malformed token",
        ),
        rejected(
            "another audience",
            at("other-audience"),
            r#"verify distributed claim token: oidc: expected audience "portcullis" got ["another"]"#,
        ),
        rejected("expired", at("expired"), "verify distributed claim token: oidc: token is expired"),
        rejected("not yet valid", at("not-yet"), "verify distributed claim token: oidc: current time ")
            .any_body("it holds the time of the check"),
        rejected(
            "strange key",
            at("strange-key"),
            "verify distributed claim token: failed to verify signature: failed to verify id token signature",
        ),
        rejected(
            "unsigned",
            at("unsigned"),
            "verify distributed claim token: oidc: id token signed with unsupported algorithm",
        ),
        rejected(
            "without the claim",
            at("no-groups"),
            r#"jwt returned by distributed claim endpoint "{issuer}/distributed/claims/no-groups" did not contain claim: groups"#,
        ),
        rejected(
            "an issuer that is down",
            at("unknown-issuer"),
            r#"verifying untrusted issuer {issuer}/down failed: verifier not initialized for issuer: "{issuer}/down""#,
        ),
        rejected("no listener", source(json!({"endpoint": "https://127.0.0.1:1/claims"})), getting)
            .any_body("the words of Go's HTTP client"),
        rejected("endpoint is not an address", source(json!({"endpoint": "nowhere"})), getting)
            .any_body("the words of Go's HTTP client"),
        by(GROUP, "distributed no sources", with(json!({"_claim_names": {"groups": "src"}})))
            .refused("oidc: verify token: oidc: source does not exist"),
        by(
            GROUP,
            "distributed no such source",
            with(json!({"_claim_names": {"groups": "other"}, "_claim_sources": {"src": {}}})),
        )
        .refused("oidc: verify token: oidc: source does not exist"),
        rejected("names without sources", json!({"_claim_names": {}}), "oidc: no claim sources"),
        rejected("null for names without sources", json!({"_claim_names": null}), "oidc: no claim sources"),
        valid("empty names and sources", json!({"_claim_names": {}, "_claim_sources": {}}), &[]),
        valid(
            "names without sources, and groups",
            json!({"_claim_names": {}, "groups": ["here"]}),
            &["d:here"],
        ),
        rejected(
            "endpoint in another case",
            source(json!({"ENDPOINT": "{issuer}/distributed/claims/broken"})),
            &format!("{getting}error while getting distributed claim JWT: 500 Internal Server Error"),
        ),
        rejected(
            "JWT is a number",
            json!({"_claim_names": {"a": "src"}, "_claim_sources": {"src": {"JWT": 5}}}),
            "oidc: could not parse claim sources: ",
        )
        .any_body(GO),
        by(GROUP, "distributed groups are a number", with(at("number")))
            .refused(r#"oidc: parse groups claim "groups": "#)
            .any_body(GO),
        by(
            GROUP,
            "distributed groups for an expression are not fetched",
            cel(json!({
            "_claim_names": {"roles": "src"},
            "_claim_sources": {"src": {"endpoint": "{issuer}/distributed/claims/broken"}}})),
        )
        .accepted("cel:jane", &[ALL]),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [mappings(), rules(), email(), types(), dots(), distributed()].concat()
}
