//! TokenReviews of all kinds of tokens, with audiences and by several users; and the same tokens as WebSocket
//! subprotocols and with client certificates.

use serde_json::{Value, json};

use super::credentials::{ALL, REVIEWS};
use super::service_accounts::robot;
use crate::authenticators::token;
use crate::case::{BOTH, Case, H1, case, get};
use crate::mint::Token;
use crate::outside::script;

const GROUP: &str = "review";
const ROBOT: &str = "system:serviceaccount:twin-tokens:robot";

/// One token of each kind, and its username.
fn kinds() -> Vec<(&'static str, Token, &'static str)> {
    let hook = script(&json!([{"status": {"authenticated": true, "user": {"username": "hook-jane"}}}]));
    vec![
        ("static", "tok-alice".into(), "alice"),
        ("bootstrap", "good00.0123456789abcdef".into(), "system:bootstrap:good00"),
        ("service account", robot().into(), ROBOT),
        ("legacy", "{made:legacy-good}".into(), ROBOT),
        ("oidc", token("plain").into(), "plain:jane"),
        ("cel", token("cel").into(), "cel:jane"),
        ("webhook", hook.as_str().into(), "hook-jane"),
    ]
}

/// A TokenReview by an administrator.
fn review(name: &str, token: impl Into<Token>, mut spec: Value) -> Case {
    spec["token"] = json!("{token:t}");
    posted(name, &spec).token("t", token).cert("admin").answers(201)
}

fn posted(name: &str, spec: &Value) -> Case {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
    case(GROUP, name, "POST", REVIEWS).only(H1).json(&body.to_string())
}

fn yes(case: Case, user: &str) -> Case {
    case.contains(r#""authenticated":true"#).contains(&format!(r#""username":"{user}""#))
}

fn no(case: Case) -> Case {
    case.lacks(r#""authenticated":true"#).contains(r#""error":"#)
}

fn audiences() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, token, user) in kinds() {
        let of = |name: &str, spec: Value| review(&format!("{kind} {name}"), token.clone(), spec);
        let all = r#""audiences":["https://api.twin.example","second.twin"]"#;
        let own = if kind == "service account" { r#""audiences":["https://api.twin.example"]"# } else { all };
        cases.push(yes(of("for no audience", json!({})), user).only(BOTH).contains(own));
        cases.push(yes(of("for an empty list of audiences", json!({"audiences": []})), user).contains(own));
        cases.push(
            yes(of("for an audience of ours", json!({"audiences": ["https://api.twin.example"]})), user)
                .contains(r#""audiences":["https://api.twin.example"]"#),
        );
        cases.push(
            yes(
                of(
                    "for one of several audiences",
                    json!({"audiences": ["x", "https://api.twin.example", "y"]}),
                ),
                user,
            )
            .contains(r#""audiences":["https://api.twin.example"]"#),
        );
        cases.push(of(
            "for a repeated audience",
            json!({"audiences": ["https://api.twin.example", "https://api.twin.example"]}),
        ));
        cases.push(no(of("for a foreign audience", json!({"audiences": ["elsewhere"]}))));
        cases.push(no(of("for an empty audience", json!({"audiences": [""]}))));
    }
    let vault = || robot().with(json!({"aud": ["vault"]}));
    cases.extend([
        yes(review("foreign token for its audience", vault(), json!({"audiences": ["bank", "vault"]})), ROBOT)
            .contains(r#""audiences":["vault"]"#),
        no(review("foreign token for no audience", vault(), json!({})))
            .contains(r#"token audiences [\"vault\"] is invalid for the target audiences [\"https://api.twin.example\" \"second.twin\"]"#),
        yes(review("both audiences in the requested order", robot().with(json!({"aud": ["second.twin", "https://api.twin.example"]})),
            json!({"audiences": ["https://api.twin.example", "second.twin"]})), ROBOT),
        yes(review("both audiences in the other order", robot().with(json!({"aud": ["second.twin", "https://api.twin.example"]})),
            json!({"audiences": ["second.twin", "https://api.twin.example"]})), ROBOT),
        yes(review("token without an audience", robot().without("aud"), json!({})), ROBOT),
        yes(review("token without an audience for one of ours", robot().without("aud"), json!({"audiences": ["second.twin"]})), ROBOT)
            .contains(r#""audiences":["second.twin"]"#),
        no(review("token without an audience for a foreign one", robot().without("aud"), json!({"audiences": ["vault"]}))),
        review("webhook for the audience it names", script(&json!([{"status": {"authenticated": true,
            "audiences": ["vault"], "user": {"username": "jane"}}}])).as_str(), json!({"audiences": ["vault"]}))
            .contains(r#""audiences":["vault"]"#),
        review("webhook receives the audiences", script(&json!([{"status": {"authenticated": true,
            "audiences": ["vault"], "user": {"username": "jane", "groups": ["{audiences}"]}}}])).as_str(), json!({"audiences": ["vault", "bank"]}))
            .contains("vault+bank"),
        yes(review("a token that was used before", "tok-alice", json!({})), "alice").then_review_again(),
    ]);
    cases
}

impl Case {
    /// Repeats the review: the cached result must be equal.
    fn then_review_again(self) -> Self {
        let again = json!({"token": "{token:t}"});
        self.review(&again).cert("admin").answers(201).contains(r#""username":"alice""#)
    }
}

fn unknown() -> Vec<Case> {
    let of = |name: &str, token: &str| no(review(&format!("unknown {name}"), token, json!({})));
    vec![
        of("token", "tok-none").contains(r#""error":"invalid bearer token""#),
        of("bootstrap token", "zzzzzz.0123456789abcdef").contains("invalid bearer token"),
        of("three parts", "a.b.c").contains("invalid bearer token"),
        of("JSON serialisation", r#"{\"payload\":\"e30\",\"signatures\":[]}"#),
        of("very long token", &"x".repeat(100_000)),
        review("blank before the token", " tok-alice", json!({})),
        review("blank after the token", "tok-alice ", json!({})),
        review("two blanks before the token", "  tok-alice", json!({})),
        review("blank alone", " ", json!({})),
        review("blank within the token", "tok-alice more", json!({})),
        review("two blanks within the token", "tok-alice  more", json!({})),
        review("scheme before the token", "Bearer tok-alice", json!({})),
        review("newline before the token", "\\ntok-alice", json!({})),
        review("newline after the token", "tok-alice\\n", json!({})),
        review("newline within the token", "tok\\nline", json!({})),
        review("tab after the token", "tok-alice\\t", json!({})),
        review("letters beyond ASCII", "tök", json!({})),
    ]
}

fn requests() -> Vec<Case> {
    let raw = |name: &str, body: &str| case(GROUP, name, "POST", REVIEWS).only(H1).cert("admin").json(body);
    let version = r#""apiVersion":"authentication.k8s.io/v1","kind":"TokenReview""#;
    let valid = format!(r#"{{{version},"spec":{{"token":"tok-alice"}}}}"#);
    let coloured = format!(r#"{{{version},"spec":{{"token":"tok-alice","colour":"red"}}}}"#);
    let at = |name: &str, target: &str| case(GROUP, name, "POST", target).only(H1).cert("admin").json(&valid);
    let required = "token is required for TokenReview in authentication";
    vec![
        raw("empty token", &format!(r#"{{{version},"spec":{{"token":""}}}}"#)).answers(400).contains(required),
        raw("no token", &format!(r#"{{{version},"spec":{{}}}}"#)).answers(400).contains(required),
        raw("no spec", &format!("{{{version}}}")).answers(400).contains(required),
        raw("spec null", &format!(r#"{{{version},"spec":null}}"#)).answers(400).contains(required),
        raw("token null", &format!(r#"{{{version},"spec":{{"token":null}}}}"#)).answers(400).contains(required),
        raw("token is a number", &format!(r#"{{{version},"spec":{{"token":5}}}}"#)).answers(400),
        raw("audiences are a string", &format!(r#"{{{version},"spec":{{"token":"tok-alice","audiences":"x"}}}}"#)).answers(400),
        raw("body is not JSON", "token").answers(400),
        raw("body is empty", "").answers(400),
        raw("body is a list", "[]").answers(400),
        raw("no version and kind", r#"{"spec":{"token":"tok-alice"}}"#).answers(201),
        raw("another kind", r#"{"apiVersion":"authentication.k8s.io/v1","kind":"Pod","spec":{"token":"tok-alice"}}"#).answers(400),
        raw("another version", r#"{"apiVersion":"authentication.k8s.io/v2","kind":"TokenReview","spec":{"token":"tok-alice"}}"#).answers(400),
        raw("version v1beta1 in the body", r#"{"apiVersion":"authentication.k8s.io/v1beta1","kind":"TokenReview","spec":{"token":"tok-alice"}}"#).answers(400),
        raw("unknown field", &coloured).answers(201),
        raw("field given twice", &format!(r#"{{{version},"spec":{{"token":"tok-none","token":"tok-alice"}}}}"#)).answers(201),
        raw("field in another case", &format!(r#"{{{version},"spec":{{"Token":"tok-alice"}}}}"#)).answers(400),
        raw("name and labels", &format!(
            r#"{{{version},"metadata":{{"name":"n","labels":{{"a":"b"}},"annotations":{{"c":"d"}}}},"spec":{{"token":"tok-alice"}}}}"#)).answers(201),
        raw("namespace in the metadata", &format!(
            r#"{{{version},"metadata":{{"namespace":"twin"}},"spec":{{"token":"tok-alice"}}}}"#)).answers(201),
        raw("generated name", &format!(r#"{{{version},"metadata":{{"generateName":"n-"}},"spec":{{"token":"tok-alice"}}}}"#))
            .answers(201).any_body("a random name"),
        raw("status of the client is replaced", &format!(
            r#"{{{version},"spec":{{"token":"tok-alice"}},"status":{{"authenticated":true,"user":{{"username":"admin","groups":["system:masters"]}}}}}}"#))
            .answers(201).contains(r#""username":"alice""#),
        raw("status of the client with an unknown token", &format!(
            r#"{{{version},"spec":{{"token":"tok-none"}},"status":{{"authenticated":true,"user":{{"username":"admin"}},"audiences":["x"]}}}}"#))
            .answers(201).lacks(r#""authenticated":true"#),
        at("pretty", &format!("{REVIEWS}?pretty=true")).answers(201).contains("  \"status\": {"),
        at("dry run", &format!("{REVIEWS}?dryRun=All")).answers(201),
        at("dry run of another kind", &format!("{REVIEWS}?dryRun=Some")).answers(422),
        at("field manager", &format!("{REVIEWS}?fieldManager=me")).answers(201),
        at("strict validation", &format!("{REVIEWS}?fieldValidation=Strict")).answers(201),
        case(GROUP, "strict validation of an unknown field", "POST", &format!("{REVIEWS}?fieldValidation=Strict"))
            .only(H1).cert("admin").json(&coloured).answers(400),
        case(GROUP, "unknown field that shall be ignored", "POST", &format!("{REVIEWS}?fieldValidation=Ignore"))
            .only(H1).cert("admin").json(&coloured).answers(201),
        at("in a namespace", "/apis/authentication.k8s.io/v1/namespaces/twin/tokenreviews").answers(404),
        at("of version v1beta1", "/apis/authentication.k8s.io/v1beta1/tokenreviews").answers(404),
        at("of version v1alpha1", "/apis/authentication.k8s.io/v1alpha1/tokenreviews").answers(404),
        at("with a name in the path", &format!("{REVIEWS}/x")).answers(404),
        at("with a slash at the end", &format!("{REVIEWS}/")).answers(201),
        get(GROUP, "GET", REVIEWS).only(H1).cert("admin").answers(405),
        case(GROUP, "DELETE", "DELETE", REVIEWS).only(H1).cert("admin").answers(405),
        case(GROUP, "PUT", "PUT", REVIEWS).only(H1).cert("admin").json(&valid).answers(405),
        at("answer in YAML", REVIEWS).header("Accept", "application/yaml").answers(201).contains("username: alice"),
        at("answer as a table", REVIEWS).header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").answers(406),
        at("an unsupported media type", REVIEWS).header("Accept", "text/html").answers(406),
        at("answer in protobuf", REVIEWS).header("Accept", "application/vnd.kubernetes.protobuf").answers(201),
        case(GROUP, "request in YAML", "POST", REVIEWS).only(H1).cert("admin")
            .body("application/yaml", b"apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec:\n  token: tok-alice\n")
            .answers(201).contains(r#""username":"alice""#),
        case(GROUP, "request in another type", "POST", REVIEWS).only(H1).cert("admin").body("text/plain", valid.as_bytes()).answers(415),
        case(GROUP, "request without a type", "POST", REVIEWS).only(H1).cert("admin").body("", valid.as_bytes()).answers(201),
        case(GROUP, "request in protobuf", "POST", REVIEWS).only(H1).cert("admin")
            .body("application/vnd.kubernetes.protobuf", PROTOBUF).answers(201).contains(r#""username":"alice""#),
    ]
}

/// A protobuf TokenReview of `tok-alice`: `k8s\0`, the type `authentication.k8s.io/v1 TokenReview`, and the message.
const PROTOBUF: &[u8] = b"k8s\x00\n'\n\x18authentication.k8s.io/v1\x12\x0bTokenReview\x12\x0f\n\x00\x12\x0b\n\ttok-alice\x1a\x00\"\x00";

fn reviewers() -> Vec<Case> {
    let alice = json!({"token": "tok-alice"});
    let by = |name: &str| posted(name, &alice);
    let forbidden = |case: Case, user: &str| {
        case.answers(403).contains(&format!(
            r#"tokenreviews.authentication.k8s.io is forbidden: User \"{user}\" cannot create resource \"tokenreviews\""#
        ))
    };
    vec![
        forbidden(by("by a user without rights").cert("alice"), "alice"),
        forbidden(by("without credentials"), "system:anonymous"),
        forbidden(by("by the user of the token").bearer("tok-alice"), "alice"),
        forbidden(by("by a service account").token("r", robot()).bearer("{token:r}"), ROBOT),
        forbidden(by("by a node that joins").bearer("good00.0123456789abcdef"), "system:bootstrap:good00"),
        by("by an admin with a token").bearer("tok-admin").answers(201).contains(r#""username":"alice""#),
        by("by an unknown token").bearer("tok-none").unauthorized(),
        by("by an administrator with impersonation")
            .cert("admin")
            .header("Impersonate-User", "bob")
            .answers(403),
        by("by an administrator who impersonates an administrator")
            .cert("admin")
            .header("Impersonate-User", "root")
            .header("Impersonate-Group", "system:masters")
            .answers(201)
            .contains(r#""username":"alice""#),
        by("by a service account that may")
            .token(
                "r",
                robot().with(json!({"kubernetes.io": {"namespace": "twin-tokens",
            "serviceaccount": {"name": "other", "uid": "{uid:serviceaccounts/other}"}}})),
            )
            .bearer("{token:r}")
            .answers(201)
            .contains(r#""username":"alice""#),
        by("of one's own token").bearer("tok-admin").answers(201),
        forbidden(posted("without a token, by a user without rights", &json!({})).cert("alice"), "alice"),
    ]
}

/// Every kind of token as a WebSocket subprotocol, and beside a client certificate.
fn forms() -> Vec<Case> {
    let watch = |name: &str, protocols: &str| {
        get(GROUP, name, "/api/v1/namespaces/twin-fixed/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha")
            .header("Origin", "https://{addr}")
            .websocket(protocols, &[])
    };
    let protocol = "base64url.bearer.authorization.k8s.io.{token64:t}";
    let mut cases = Vec::new();
    for (kind, token, user) in kinds() {
        let as_protocol = |name: &str, protocols: &str| {
            watch(&format!("{kind} {name}"), protocols).token("t", token.clone())
        };
        let expect_user = |case: Case| {
            if user == "alice" {
                case.answers(101)
            } else {
                case.answers(403).contains(&format!(r#"User \"{user}\""#))
            }
        };
        cases.push(expect_user(as_protocol("as subprotocol", &format!("{protocol}, binary.k8s.io"))));
        cases.push(as_protocol("as only subprotocol", protocol).unauthorized());
        let plain =
            get(GROUP, &format!("{kind} in another scheme"), "/api/v1/namespaces/twin-fixed/configmaps")
                .only(H1);
        cases.push(
            plain
                .token("t", token.clone())
                .header("Authorization", "Token {token:t}")
                .answers(403)
                .contains("system:anonymous"),
        );
        let with = |name: &str| super::credentials::by(GROUP, &format!("{kind} {name}"), token.clone());
        cases.push(with("beside a certificate").cert("nobody").is("nobody", &[ALL]));
        cases.push(
            with("over HTTP/2")
                .only(&[crate::client::Version::H2])
                .answers(201)
                .contains(&format!(r#""username":"{user}""#)),
        );
    }
    for (kind, token) in [
        ("expired service account", Token::from(robot().with(json!({"exp": "{now-600}"})))),
        ("forged service account", robot().key("strange-p256").into()),
        ("deleted legacy", "{made:legacy-gone}".into()),
        ("expired bootstrap", "past00.0123456789abcdef".into()),
        ("expired oidc", token("plain").with(json!({"exp": "{now-600}"})).into()),
        ("denied webhook", script(&json!([{"status": {"authenticated": false}}])).as_str().into()),
    ] {
        cases.push(
            watch(&format!("{kind} as subprotocol"), &format!("{protocol}, binary.k8s.io"))
                .token("t", token.clone())
                .unauthorized(),
        );
        let beside = super::credentials::by(GROUP, &format!("{kind} beside a certificate"), token);
        cases.push(beside.cert("alice").is("alice", &["devs", "testers", ALL]));
    }
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    [audiences(), unknown(), requests(), reviewers(), forms()].concat()
}
