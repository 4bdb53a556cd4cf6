//! What a token of a service account is bound to: the account, a secret, a pod, a node; and tokens that the server itself signs.

use serde_json::{Value, json};

use super::{GROUP, GROUPS, ISSUER, ROBOT, bad, good, refers, robot};
use crate::case::{Case, H1, case};
use crate::cases::credentials::{APART, GO, by};
use crate::mint::Jwt;

fn accounts() -> Vec<Case> {
    let account = |name: &str, uid: &str| refers(json!({"serviceaccount": {"name": name, "uid": uid}}));
    let robot_uid = "{uid:serviceaccounts/robot}";
    vec![
        bad("no claim of its own", robot().without("kubernetes.io"), "resource name may not be empty"),
        bad(
            "empty claim of its own",
            robot().with(json!({"kubernetes.io": {}})),
            "resource name may not be empty",
        ),
        bad(
            "claim of its own is a string",
            robot().with(json!({"kubernetes.io": "twin-tokens"})),
            "json: cannot unmarshal string",
        )
        .any_body(GO),
        bad(
            "no account in the claim",
            refers(json!({"serviceaccount": {}})),
            "resource name may not be empty",
        ),
        bad(
            "no namespace",
            refers(json!({"namespace": ""})),
            "the server could not find the requested resource",
        )
        .any_body("the words of Go's client for a path that does not exist"),
        bad(
            "namespace that does not exist",
            refers(json!({"namespace": "nowhere"})),
            r#"serviceaccounts "robot" not found"#,
        ),
        bad(
            "another namespace",
            refers(json!({"namespace": "twin"})),
            r#"serviceaccounts "robot" not found"#,
        ),
        bad(
            "account of the same name elsewhere",
            refers(json!({"namespace": "twin", "serviceaccount": {"name": "default", "uid": robot_uid}})),
            ") does not match claim (",
        ),
        bad("unknown account", account("nobody", robot_uid), r#"serviceaccounts "nobody" not found"#),
        bad(
            "deleted account",
            account("fleeting", "{uid:serviceaccounts/fleeting}"),
            r#"serviceaccounts "fleeting" not found"#,
        ),
        bad(
            "uid of another account",
            account("robot", "{uid:serviceaccounts/other}"),
            "service account UID ({uid:serviceaccounts/robot}) does not match claim ({uid:serviceaccounts/other})",
        ),
        bad(
            "no uid",
            account("robot", ""),
            "service account UID ({uid:serviceaccounts/robot}) does not match claim ()",
        ),
        bad("uid in upper case", account("robot", "ABCDEF"), "does not match claim (ABCDEF)"),
        bad(
            "account with a slash",
            account("../secrets/held", robot_uid),
            "invalid resource name \"../secrets/held\": [may not contain '/']",
        ),
        bad(
            "account with a dot",
            account("..", robot_uid),
            "invalid resource name \"..\": [may not be '..']",
        ),
        bad(
            "namespace with a slash",
            refers(json!({"namespace": "twin-tokens/serviceaccounts"})),
            "invalid namespace \"twin-tokens/serviceaccounts\": [may not contain '/']",
        ),
        bad(
            "account is a number",
            refers(json!({"serviceaccount": {"name": 5, "uid": robot_uid}})),
            "json: cannot unmarshal number",
        )
        .any_body(GO),
    ]
}

fn bindings() -> Vec<Case> {
    let gone = "service account token has been invalidated";
    let to = |kind: &str, name: &str, uid: &str| refers(json!({kind: {"name": name, "uid": uid}}));
    let pod = json!({"name": "holder", "uid": "{uid:pods/holder}"});
    let extra = |key: &str, value: &str| format!(r#""authentication.kubernetes.io/{key}":["{value}"]"#);
    vec![
        good("secret", to("secret", "held", "{uid:secrets/held}")),
        bad("secret that does not exist", to("secret", "nothing", "{uid:secrets/held}"), gone),
        bad("secret deleted", to("secret", "fleeting", "{uid:secrets/fleeting}"), gone),
        bad(
            "secret of another uid",
            to("secret", "held", "u"),
            "secret UID ({uid:secrets/held}) does not match service account secret ref claim (u)",
        ),
        bad(
            "secret without a uid",
            to("secret", "held", ""),
            "does not match service account secret ref claim ()",
        ),
        bad("secret without a name", to("secret", "", ""), gone),
        good("secret null", refers(json!({"secret": null}))),
        good("pod", to("pod", "holder", "{uid:pods/holder}"))
            .contains(&extra("pod-name", "holder"))
            .contains(&extra("pod-uid", "{uid:pods/holder}"))
            .lacks("node-name"),
        bad("pod that does not exist", to("pod", "nothing", "u"), gone),
        bad("pod deleted", to("pod", "fleeting", "{uid:pods/fleeting}"), gone),
        bad(
            "pod of another uid",
            to("pod", "holder", "u"),
            "pod UID ({uid:pods/holder}) does not match service account pod ref claim (u)",
        ),
        bad("empty pod", refers(json!({"pod": {}})), gone),
        bad("pod is a string", refers(json!({"pod": "holder"})), "json: cannot unmarshal string")
            .any_body(GO),
        good("node", to("node", "twin-node", "{uid:nodes/twin-node}"))
            .contains(&extra("node-name", "twin-node"))
            .contains(&extra("node-uid", "{uid:nodes/twin-node}")),
        bad("node that does not exist", to("node", "nothing", "u"), gone),
        bad("node deleted", to("node", "fleeting", "{uid:nodes/fleeting}"), gone),
        bad(
            "node of another uid",
            to("node", "twin-node", "u"),
            "node UID ({uid:nodes/twin-node}) does not match service account node ref claim (u)",
        ),
        good(
            "pod and node",
            refers(json!({"pod": pod, "node": {"name": "twin-node", "uid": "{uid:nodes/twin-node}"}})),
        )
        .contains(&extra("node-name", "twin-node"))
        .contains(&extra("pod-name", "holder")),
        good(
            "node of a pod is not looked up",
            refers(json!({"pod": pod, "node": {"name": "imaginary", "uid": "u-1"}})),
        )
        .contains(&extra("node-name", "imaginary"))
        .contains(&extra("node-uid", "u-1")),
        good("node of a pod without a uid", refers(json!({"pod": pod, "node": {"name": "imaginary"}})))
            .contains(&extra("node-name", "imaginary"))
            .lacks("node-uid"),
        good("node of a pod without a name", refers(json!({"pod": pod, "node": {"uid": "u-1"}})))
            .lacks("node-uid"),
        bad(
            "secret and pod, the secret is gone",
            refers(json!({"pod": pod, "secret": {"name": "nothing", "uid": "u"}})),
            gone,
        ),
        good(
            "secret and pod",
            refers(json!({"pod": pod, "secret": {"name": "held", "uid": "{uid:secrets/held}"}})),
        ),
    ]
}

/// Tokens that the server itself signs.
fn requested() -> Vec<Case> {
    let request = |name: &str, account: &str, spec: Value| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        case(GROUP, name, "POST", &format!("/api/v1/namespaces/twin-tokens/serviceaccounts/{account}/token"))
            .only(H1)
            .cert("admin")
            .json(&body.to_string())
            .answers(201)
    };
    let used = |name: &str, spec: Value| request(name, "robot", spec).then_by("minted");
    let minted = json!({"token": "{token:minted}"});
    let bound =
        |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    let space = "/api/v1/namespaces/twin-tokens";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "{unique}", "finalizers": ["twin.example/stays"]}});
    vec![
        used("requested", json!({}))
            .is(ROBOT, &GROUPS)
            .contains(r#""authentication.kubernetes.io/credential-id":["JTI="#),
        used("requested for an audience of ours", json!({"audiences": ["second.twin"]})).is(ROBOT, &GROUPS),
        used("requested for a foreign audience", json!({"audiences": ["vault"]}))
            .unauthorized()
            .review(&minted)
            .cert("admin")
            .answers(201)
            .contains(r#"token audiences [\"vault\"]"#),
        used("requested for a pod", bound("Pod", "holder"))
            .is(ROBOT, &GROUPS)
            .contains("node-name")
            .contains("pod-uid"),
        used("requested for a node", bound("Node", "twin-node")).is(ROBOT, &GROUPS).contains("node-uid"),
        used("requested for a secret", bound("Secret", "held")).is(ROBOT, &GROUPS),
        request("requested and reviewed for a foreign audience", "robot", json!({"audiences": ["vault"]}))
            .review(&json!({"token": "{token:minted}", "audiences": ["vault", "bank"]}))
            .cert("admin")
            .answers(201)
            .contains(r#""authenticated":true"#)
            .contains(r#""audiences":["vault"]"#),
        case(GROUP, "account just deleted", "POST", &format!("{space}/serviceaccounts"))
            .only(H1)
            .cert("admin")
            .json(&account.to_string())
            .answers(201)
            .then("POST", &format!("{space}/serviceaccounts/{{unique}}/token"))
            .json(r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}"#)
            .answers(201)
            .then("DELETE", &format!("{space}/serviceaccounts/{{unique}}"))
            .answers(200)
            .then_by("minted")
            .is("system:serviceaccount:twin-tokens:{unique}", &GROUPS),
        case(GROUP, "account deleted after its token was taken", "POST", &format!("{space}/serviceaccounts"))
            .only(H1)
            .cert("admin")
            .json(&account.to_string().replace(r#""twin.example/stays""#, ""))
            .answers(201)
            .then("POST", &format!("{space}/serviceaccounts/{{unique}}/token"))
            .json(r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}"#)
            .answers(201)
            .then_by("minted")
            .is("system:serviceaccount:twin-tokens:{unique}", &GROUPS)
            .then("DELETE", &format!("{space}/serviceaccounts/{{unique}}"))
            .cert("admin")
            .answers(200)
            // Success is remembered for ten seconds.
            .then_by("minted")
            .is("system:serviceaccount:twin-tokens:{unique}", &GROUPS),
    ]
}

/// The audiences are the issuers when nothing else is said, and nothing of a token's objects is forgotten without lookup.
fn by_flags() -> Vec<Case> {
    let aud = |value: &str| robot().with(json!({"aud": [value]}));
    let good = |name: &str, token: Jwt| {
        by(GROUP, &format!("flags {name}"), token).by_flags().accepted(ROBOT, &GROUPS).any_body(APART)
    };
    let bad = |name: &str, token: Jwt, why: &str| {
        by(GROUP, &format!("flags {name}"), token).by_flags().refused(why).any_body(APART)
    };
    vec![
        good("first issuer for an audience", aud(ISSUER)),
        good("second issuer for an audience", aud("https://old.issuer.example")),
        good("no audience", robot().without("aud")),
        bad(
            "foreign audience",
            aud("https://api.twin.example"),
            r#"is invalid for the target audiences ["https://kubernetes.default.svc" "https://old.issuer.example"]"#,
        ),
        bad(
            "deleted pod without lookup",
            refers(json!({"pod": {"name": "fleeting", "uid": "{uid:pods/fleeting}"}}))
                .with(json!({"aud": ISSUER})),
            "service account token has been invalidated",
        ),
        bad(
            "deleted account without lookup",
            refers(json!({"serviceaccount": {"name": "fleeting", "uid": "{uid:serviceaccounts/fleeting}"}}))
                .with(json!({"aud": ISSUER})),
            "not found",
        ),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    [accounts(), bindings(), requested(), by_flags()].concat()
}
