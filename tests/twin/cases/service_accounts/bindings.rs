//! Objects that service account tokens are bound to: the account, a secret, a pod, a node; and tokens from
//! `TokenRequests`.

use serde_json::{Value, json};

use super::{GROUP, GROUPS, ISSUER, ROBOT, refers, rejected, robot, valid};
use crate::case::{Case, H1, case};
use crate::cases::credentials::{APART, GO, by};
use crate::mint::Jwt;

const WEBHOOK_BOUND: &str =
    r#"feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound"#;

fn accounts() -> Vec<Case> {
    let account = |name: &str, uid: &str| refers(json!({"serviceaccount": {"name": name, "uid": uid}}));
    let robot_uid = "{uid:serviceaccounts/robot}";
    vec![
        rejected("no claim of its own", robot().without("kubernetes.io"), "resource name may not be empty"),
        rejected(
            "empty claim of its own",
            robot().with(json!({"kubernetes.io": {}})),
            "resource name may not be empty",
        ),
        rejected(
            "claim of its own is a string",
            robot().with(json!({"kubernetes.io": "twin-tokens"})),
            "json: cannot unmarshal string",
        )
        .any_body(GO),
        rejected(
            "no account in the claim",
            refers(json!({"serviceaccount": {}})),
            "resource name may not be empty",
        ),
        rejected(
            "no namespace",
            refers(json!({"namespace": ""})),
            "the server could not find the requested resource",
        )
        .any_body("the words of Go's client for a path that does not exist"),
        rejected(
            "namespace that does not exist",
            refers(json!({"namespace": "nowhere"})),
            r#"serviceaccounts "robot" not found"#,
        ),
        rejected(
            "another namespace",
            refers(json!({"namespace": "twin"})),
            r#"serviceaccounts "robot" not found"#,
        ),
        rejected(
            "account of the same name elsewhere",
            refers(json!({"namespace": "twin", "serviceaccount": {"name": "default", "uid": robot_uid}})),
            ") does not match claim (",
        ),
        rejected("unknown account", account("nobody", robot_uid), r#"serviceaccounts "nobody" not found"#),
        rejected(
            "deleted account",
            account("fleeting", "{uid:serviceaccounts/fleeting}"),
            r#"serviceaccounts "fleeting" not found"#,
        ),
        rejected(
            "uid of another account",
            account("robot", "{uid:serviceaccounts/other}"),
            "service account UID ({uid:serviceaccounts/robot}) does not match claim ({uid:serviceaccounts/other})",
        ),
        rejected(
            "no uid",
            account("robot", ""),
            "service account UID ({uid:serviceaccounts/robot}) does not match claim ()",
        ),
        rejected("uid in upper case", account("robot", "ABCDEF"), "does not match claim (ABCDEF)"),
        rejected(
            "account with a slash",
            account("../secrets/held", robot_uid),
            "invalid resource name \"../secrets/held\": [may not contain '/']",
        ),
        rejected(
            "account with a dot",
            account("..", robot_uid),
            "invalid resource name \"..\": [may not be '..']",
        ),
        rejected(
            "namespace with a slash",
            refers(json!({"namespace": "twin-tokens/serviceaccounts"})),
            "invalid namespace \"twin-tokens/serviceaccounts\": [may not contain '/']",
        ),
        rejected(
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
        valid("secret", to("secret", "held", "{uid:secrets/held}")),
        rejected("secret that does not exist", to("secret", "nothing", "{uid:secrets/held}"), gone),
        rejected("secret deleted", to("secret", "fleeting", "{uid:secrets/fleeting}"), gone),
        rejected(
            "secret of another uid",
            to("secret", "held", "u"),
            "secret UID ({uid:secrets/held}) does not match service account secret ref claim (u)",
        ),
        rejected(
            "secret without a uid",
            to("secret", "held", ""),
            "does not match service account secret ref claim ()",
        ),
        rejected("secret without a name", to("secret", "", ""), gone),
        valid("secret null", refers(json!({"secret": null}))),
        valid("pod", to("pod", "holder", "{uid:pods/holder}"))
            .contains(&extra("pod-name", "holder"))
            .contains(&extra("pod-uid", "{uid:pods/holder}"))
            .lacks("node-name"),
        rejected("pod that does not exist", to("pod", "nothing", "u"), gone),
        rejected("pod deleted", to("pod", "fleeting", "{uid:pods/fleeting}"), gone),
        rejected(
            "pod of another uid",
            to("pod", "holder", "u"),
            "pod UID ({uid:pods/holder}) does not match service account pod ref claim (u)",
        ),
        rejected(
            "validating webhook configuration",
            to("validatingwebhookconfiguration", "hooks", "u"),
            WEBHOOK_BOUND,
        ),
        rejected(
            "mutating webhook configuration",
            to("mutatingwebhookconfiguration", "hooks", "u"),
            WEBHOOK_BOUND,
        ),
        rejected(
            "empty webhook configuration",
            refers(json!({"validatingwebhookconfiguration": {}})),
            WEBHOOK_BOUND,
        ),
        rejected(
            "webhook configuration, attested",
            refers(json!({
                "validatingwebhookconfiguration": {"name": "hooks", "uid": "u"},
                "attestations": {"admissionReviewAPIGroups": ["apps"]},
            })),
            WEBHOOK_BOUND,
        ),
        rejected(
            "webhook configuration and a pod",
            refers(json!({"mutatingwebhookconfiguration": {"name": "hooks", "uid": "u"}, "pod": pod})),
            WEBHOOK_BOUND,
        ),
        rejected(
            "webhook configuration and a pod that does not exist",
            refers(json!({
                "mutatingwebhookconfiguration": {"name": "hooks", "uid": "u"}, "pod": {"name": "nothing", "uid": "u"},
            })),
            gone,
        ),
        rejected(
            "webhook configuration is a string",
            refers(json!({"validatingwebhookconfiguration": "hooks"})),
            "json: cannot unmarshal string",
        )
        .any_body(GO),
        valid(
            "webhook configurations null",
            refers(json!({"validatingwebhookconfiguration": null, "mutatingwebhookconfiguration": null})),
        ),
        valid("attestations alone", refers(json!({"attestations": {"admissionReviewAPIGroups": ["apps"]}}))),
        rejected("empty pod", refers(json!({"pod": {}})), gone),
        rejected("pod is a string", refers(json!({"pod": "holder"})), "json: cannot unmarshal string")
            .any_body(GO),
        valid("node", to("node", "twin-node", "{uid:nodes/twin-node}"))
            .contains(&extra("node-name", "twin-node"))
            .contains(&extra("node-uid", "{uid:nodes/twin-node}")),
        rejected("node that does not exist", to("node", "nothing", "u"), gone),
        rejected("node deleted", to("node", "fleeting", "{uid:nodes/fleeting}"), gone),
        rejected(
            "node of another uid",
            to("node", "twin-node", "u"),
            "node UID ({uid:nodes/twin-node}) does not match service account node ref claim (u)",
        ),
        valid(
            "pod and node",
            refers(json!({"pod": pod, "node": {"name": "twin-node", "uid": "{uid:nodes/twin-node}"}})),
        )
        .contains(&extra("node-name", "twin-node"))
        .contains(&extra("pod-name", "holder")),
        valid(
            "node of a pod is not looked up",
            refers(json!({"pod": pod, "node": {"name": "imaginary", "uid": "u-1"}})),
        )
        .contains(&extra("node-name", "imaginary"))
        .contains(&extra("node-uid", "u-1")),
        valid("node of a pod without a uid", refers(json!({"pod": pod, "node": {"name": "imaginary"}})))
            .contains(&extra("node-name", "imaginary"))
            .lacks("node-uid"),
        valid("node of a pod without a name", refers(json!({"pod": pod, "node": {"uid": "u-1"}})))
            .lacks("node-uid"),
        rejected(
            "secret and pod, the secret is gone",
            refers(json!({"pod": pod, "secret": {"name": "nothing", "uid": "u"}})),
            gone,
        ),
        valid(
            "secret and pod",
            refers(json!({"pod": pod, "secret": {"name": "held", "uid": "{uid:secrets/held}"}})),
        ),
    ]
}

/// Tokens that the server issues for `TokenRequests`.
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
        case(
            GROUP,
            "account deleted after its token was issued",
            "POST",
            &format!("{space}/serviceaccounts"),
        )
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
        // The authenticator caches success for ten seconds.
        .then_by("minted")
        .is("system:serviceaccount:twin-tokens:{unique}", &GROUPS),
    ]
}

/// By default, the audiences are the issuers. Without lookup, deleted objects do not invalidate tokens.
fn by_flags() -> Vec<Case> {
    let aud = |value: &str| robot().with(json!({"aud": [value]}));
    let valid = |name: &str, token: Jwt| {
        by(GROUP, &format!("flags {name}"), token).by_flags().accepted(ROBOT, &GROUPS).any_body(APART)
    };
    let rejected = |name: &str, token: Jwt, reason: &str| {
        by(GROUP, &format!("flags {name}"), token).by_flags().refused(reason).any_body(APART)
    };
    vec![
        valid("first issuer for an audience", aud(ISSUER)),
        valid("second issuer for an audience", aud("https://old.issuer.example")),
        valid("no audience", robot().without("aud")),
        rejected(
            "foreign audience",
            aud("https://api.twin.example"),
            r#"is invalid for the target audiences ["https://kubernetes.default.svc" "https://old.issuer.example"]"#,
        ),
        rejected(
            "deleted pod without lookup",
            refers(json!({"pod": {"name": "fleeting", "uid": "{uid:pods/fleeting}"}}))
                .with(json!({"aud": ISSUER})),
            "service account token has been invalidated",
        ),
        rejected(
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
