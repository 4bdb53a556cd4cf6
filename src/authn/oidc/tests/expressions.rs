//! CEL expressions: user attributes and validation rules.

use portcullis_cel::{Environment, Expression, ResultType};
use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, UserInfo};
use serde_json::{Value, json};

use super::support::{NOW, authenticate_claims, claim, claims, settings, user, without};
use crate::authn::oidc::settings::{AttributeMapping, ClaimRule, ExpressionRule, JwtAuthenticator};

fn compile(text: &str, environment: Environment, result: ResultType) -> Expression {
    Expression::compile(text, environment, result).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn mapping(text: &str) -> AttributeMapping {
    AttributeMapping::Expression(compile(text, Environment::CLAIMS, ResultType::Any))
}

fn rule(text: &str, message: &str, environment: Environment, result: ResultType) -> ExpressionRule {
    ExpressionRule { expression: compile(text, environment, result), message: message.to_owned() }
}

/// Builds settings with expressions.
struct SettingsBuilder(JwtAuthenticator);

impl SettingsBuilder {
    fn username(text: &str) -> Self {
        let mut settings = settings();
        settings.username = mapping(text);
        Self(settings)
    }

    fn claim() -> Self {
        Self(settings())
    }

    fn prefix(mut self, prefix: &str) -> Self {
        self.0.username = claim("username", prefix);
        self
    }

    fn groups(mut self, text: &str) -> Self {
        self.0.groups = Some(mapping(text));
        self
    }

    fn uid(mut self, text: &str) -> Self {
        self.0.uid = Some(mapping(text));
        self
    }

    fn extra(mut self, key: &str, text: &str) -> Self {
        self.0.extra.push((key.to_owned(), compile(text, Environment::CLAIMS, ResultType::Any)));
        self
    }

    fn claims(mut self, text: &str, message: &str) -> Self {
        self.0.claim_rules.push(ClaimRule::Expression(rule(
            text,
            message,
            Environment::CLAIMS,
            ResultType::Bool,
        )));
        self
    }

    fn user(mut self, text: &str, message: &str) -> Self {
        self.0.user_rules.push(rule(text, message, Environment::USER, ResultType::Bool));
        self
    }

    async fn makes(self, claims: &Value, expected: UserInfo) {
        assert_eq!(authenticate_claims(self.0, claims).await, Ok(Some(expected)), "{claims}");
    }

    async fn refuses(self, claims: &Value, expected: &str) {
        assert_eq!(authenticate_claims(self.0, claims).await, Err(expected.to_owned()), "{claims}");
    }
}

fn with_extra(mut user: UserInfo, extra: &[(&str, &[&str])]) -> UserInfo {
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    user.extra = extra.iter().map(|(key, list)| ((*key).to_owned(), values(list))).collect();
    user
}

fn with_uid(mut user: UserInfo, uid: &str) -> UserInfo {
    user.uid = Some(uid.to_owned());
    user
}

#[tokio::test]
async fn user_names() {
    SettingsBuilder::username("claims.username").makes(&claims(&json!({})), user("jane", &[])).await;
    SettingsBuilder::username("claims.user")
        .makes(&without(&["username"], &json!({"user": "jane"})), user("jane", &[]))
        .await;
    let nested = claims(&json!({"foo": {"username": "joe"}}));
    SettingsBuilder::username("claims.foo.username").makes(&nested, user("joe", &[])).await;
    let error =
        "oidc: error evaluating username claim expression: username claim expression must return a string";
    SettingsBuilder::username("claims.username").refuses(&claims(&json!({"username": 5})), error).await;
    SettingsBuilder::username("claims.username").refuses(&claims(&json!({"username": null})), error).await;
    SettingsBuilder::username("claims.username")
        .refuses(&claims(&json!({"username": ["jane"]})), error)
        .await;
    let empty = "oidc: empty username via CEL expression is not allowed";
    SettingsBuilder::username("claims.username").refuses(&claims(&json!({"username": ""})), empty).await;
    SettingsBuilder::username("claims.name")
        .refuses(
            &claims(&json!({})),
            "oidc: error evaluating username claim expression: expression 'claims.name' resulted in error: no such key: name",
        )
        .await;
    // The expression itself must check `email_verified`.
    let email = claims(&json!({"email": "jane@example.com", "email_verified": false}));
    SettingsBuilder::username("claims.email").makes(&email, user("jane@example.com", &[])).await;
}

#[tokio::test]
async fn groups() {
    let jane = |groups: &[&str]| user("jane", groups);
    let of = |groups: Value| claims(&json!({"groups": groups}));
    for (groups, expected) in [
        (json!(["team1", "team2"]), &["team1", "team2"][..]),
        (json!("team1"), &["team1"]),
        (json!(["", "team1", ""]), &["team1"]),
        (json!([""]), &[]),
        (json!([]), &[]),
        (json!(""), &[]),
        (json!(null), &[]),
    ] {
        SettingsBuilder::username("claims.username")
            .groups("claims.groups")
            .makes(&of(groups), jane(expected))
            .await;
    }
    let error =
        "oidc: error evaluating group claim expression: expression must return a string or a list of strings";
    for groups in [json!(5), json!(true), json!({"a": "b"}), json!(["a", 5]), json!([["a"]]), json!([null])] {
        SettingsBuilder::username("claims.username")
            .groups("claims.groups")
            .refuses(&of(groups), error)
            .await;
    }
    SettingsBuilder::claim()
        .prefix("oidc:")
        .groups(r#"(claims.roles.split(",") + claims.other_roles.split(",")).map(role, "groups:" + role)"#)
        .makes(
            &claims(&json!({"roles": "foo,bar", "other_roles": "baz,qux"})),
            user("oidc:jane", &["groups:foo", "groups:bar", "groups:baz", "groups:qux"]),
        )
        .await;
    SettingsBuilder::claim()
        .groups("claims.groups")
        .refuses(
            &claims(&json!({})),
            "oidc: error evaluating group claim expression: expression 'claims.groups' resulted in error: no such key: groups",
        )
        .await;
}

#[tokio::test]
async fn uids() {
    let all = claims(&json!({"groups": ["team1", "team2"], "uid": "1234"}));
    let jane = with_uid(user("jane", &["team1", "team2"]), "1234");
    SettingsBuilder::username("claims.username")
        .groups("claims.groups")
        .uid("claims.uid")
        .makes(&all, jane.clone())
        .await;
    let mut by = SettingsBuilder::username("claims.username").groups("claims.groups");
    by.0.uid = Some(claim("uid", ""));
    by.makes(&all, jane).await;
    SettingsBuilder::claim().uid("''").makes(&claims(&json!({})), user("jane", &[])).await;
    SettingsBuilder::claim()
        .uid("5")
        .refuses(
            &claims(&json!({})),
            "oidc: error evaluating uid claim expression: uid claim expression must return a string",
        )
        .await;
}

#[tokio::test]
async fn extra() {
    let (foo, bar) = ("example.org/foo", "example.org/bar");
    let by = || SettingsBuilder::claim().extra(foo, "claims.foo").extra(bar, "claims.bar");
    let all = json!({"foo": "bar", "bar": ["baz", "qux"], "jti": "1234"});
    by().makes(
        &claims(&all),
        with_extra(
            user("jane", &[]),
            &[(foo, &["bar"]), (bar, &["baz", "qux"]), (CREDENTIAL_ID_KEY, &["JTI=1234"])],
        ),
    )
    .await;
    for empty in [json!(""), json!([]), json!([""]), json!(null)] {
        let some = claims(&json!({"foo": empty, "bar": ["baz", ""]}));
        by().makes(&some, with_extra(user("jane", &[]), &[(bar, &["baz"])])).await;
    }
    by().refuses(
        &claims(&json!({"foo": 5, "bar": "baz"})),
        "oidc: error evaluating extra claim expression: claims.foo: expression must return a string or a list of strings",
    )
    .await;
    by().refuses(
        &claims(&json!({"foo": "bar"})),
        "expression 'claims.bar' resulted in error: no such key: bar",
    )
    .await;
    // An evaluation error wins over a wrong type.
    by().refuses(&claims(&json!({"foo": 5})), "expression 'claims.bar' resulted in error: no such key: bar")
        .await;
    SettingsBuilder::claim()
        .extra(foo, r#"(has(claims.is_admin) && claims.is_admin) ? "true":"""#)
        .extra(bar, r#"claims.?is_admin.orValue(false) == true ? "true":"""#)
        .extra("example.org/none", r#"claims.?non_existent.orValue("default") == "default" ? "true":"""#)
        .extra("example.org/fixed", r#""true""#)
        .makes(
            &claims(&json!({"is_admin": true})),
            with_extra(
                user("jane", &[]),
                &[
                    (foo, &["true"]),
                    (bar, &["true"]),
                    ("example.org/none", &["true"]),
                    ("example.org/fixed", &["true"]),
                ],
            ),
        )
        .await;
}

#[tokio::test]
async fn rules_of_claims() {
    let by =
        || SettingsBuilder::claim().claims(r#"claims.hd == "example.com""#, "hd claim must be example.com");
    by().makes(&claims(&json!({"hd": "example.com"})), user("jane", &[])).await;
    let prefix = "oidc: error evaluating claim validation expression: ";
    let missing = r#"expression 'claims.hd == "example.com"' resulted in error: no such key: hd"#;
    by().refuses(&claims(&json!({})), &format!("{prefix}{missing}")).await;
    let failed = r#"validation expression 'claims.hd == "example.com"' failed: hd claim must be example.com"#;
    by().refuses(&claims(&json!({"hd": "example.org"})), &format!("{prefix}{failed}")).await;

    let mut mixed =
        SettingsBuilder::claim().claims(r#"claims.foo.bar == "baz""#, "foo.bar claim must be baz");
    let required = ClaimRule::Required { claim: "hd".to_owned(), value: "example.com".to_owned() };
    mixed.0.claim_rules.push(required);
    let again = SettingsBuilder(mixed.0.clone());
    mixed.makes(&claims(&json!({"hd": "example.com", "foo": {"bar": "baz"}})), user("jane", &[])).await;
    // Required claims are checked first, in any order of the rules.
    let missing = "oidc: required claim hd not present in ID token";
    again.refuses(&claims(&json!({"foo": {"bar": "no"}})), missing).await;

    let audiences = || {
        let mut by = SettingsBuilder::claim().claims(
            r#"sets.equivalent(claims.aud, ["bar", "foo", "baz"])"#,
            "audience must exactly contain [bar, foo, baz]",
        );
        by.0.issuer.audiences = ["foo", "bar", "baz"].map(str::to_owned).to_vec();
        by
    };
    audiences().makes(&claims(&json!({"aud": ["foo", "bar", "baz"]})), user("jane", &[])).await;
    let failed = r#"validation expression 'sets.equivalent(claims.aud, ["bar", "foo", "baz"])' failed: audience must exactly contain [bar, foo, baz]"#;
    audiences().refuses(&claims(&json!({"aud": ["foo", "baz"]})), &format!("{prefix}{failed}")).await;
}

#[tokio::test]
async fn rules_of_users() {
    let prefix = "oidc: error evaluating user info validation rule: validation expression";
    SettingsBuilder::claim()
        .prefix("system:")
        .user("!user.username.startsWith('system:')", "username cannot use the reserved prefix")
        .refuses(
            &claims(&json!({})),
            &format!("{prefix} '!user.username.startsWith('system:')' failed: username cannot use the reserved prefix"),
        )
        .await;
    let mut by = SettingsBuilder::username("claims.username").user(
        "user.groups.all(group, !group.startsWith('system:'))",
        "groups cannot use the reserved prefix",
    );
    by.0.groups = Some(claim("groups", "system:"));
    by.refuses(
        &claims(&json!({"groups": ["team1", "team2"]})),
        &format!("{prefix} 'user.groups.all(group, !group.startsWith('system:'))' failed: groups cannot use the reserved prefix"),
    )
    .await;
    SettingsBuilder::claim()
        .extra("example.org/foo", "'bar'")
        .extra("example.org/baz", "claims.baz")
        .user("'bar' in user.extra['example.org/foo'] && 'qux' in user.extra['example.org/baz']", "")
        .makes(
            &claims(&json!({"baz": "qux"})),
            with_extra(user("jane", &[]), &[("example.org/foo", &["bar"]), ("example.org/baz", &["qux"])]),
        )
        .await;
    let nothing_but = |by: SettingsBuilder| {
        by.groups("claims.groups")
            .user("user.uid == ''", "uid must be empty")
            .user("!('bar' in user.groups)", "groups must not hold bar")
            .user("!('bar' in user.extra)", "extra must not hold bar")
    };
    nothing_but(SettingsBuilder::username("claims.username").user("user.username == ' '", "a single space"))
        .makes(&claims(&json!({"username": " ", "groups": null})), user(" ", &[]))
        .await;
    nothing_but(SettingsBuilder::claim().user("user.username == ''", "empty"))
        .makes(&claims(&json!({"username": "", "groups": null})), user("", &[]))
        .await;
    let revoked =
        "!(user.extra[?'authentication.kubernetes.io/credential-id'][0].orValue('') in [\"JTI=ea28ed49\"])";
    let by = || SettingsBuilder::claim().user(revoked, "credential is revoked");
    by().refuses(
        &claims(&json!({"jti": "ea28ed49"})),
        &format!("{prefix} '{revoked}' failed: credential is revoked"),
    )
    .await;
    by().makes(&claims(&json!({})), user("jane", &[])).await;
}

#[tokio::test]
async fn claims_within_claims() {
    let bits = json!({"bit1": true, "bit2": false, "bit3": 1});
    let all = claims(
        &json!({"turtle": {"foo": {"1": "a", "other1": bits, "bar": {"3": "c", "other1": bits, "baz": {
            "5": "e", "panda": ["snorlax", "007", "santa", "claus"], "other1": bits,
        }}}}}),
    );
    let by = || {
        SettingsBuilder::username("claims.turtle.foo.bar.baz.panda[0]")
            .uid("claims.turtle.foo.bar.baz.panda[1]")
            .extra("bio.snorlax.org/1", "string(claims.turtle.foo.bar.other1.bit2)")
            .extra("bio.snorlax.org/2", "string(claims.turtle.foo.bar.baz.other1.bit3)")
            .extra("bio.snorlax.org/3", "[string(claims.turtle.foo.bar.baz.other1.bit1)] + ['a', 'b', 'c']")
            .claims("claims.turtle.foo.other1.bit1 && !claims.turtle.foo.bar.other1.bit2", "")
            .user("user.username != \"bad\"", "")
            .user("user.uid == \"007\"", "")
            .user("\"claus\" in user.groups", "")
            .user("user.extra.bio__dot__snorlax__dot__org__slash__3.size() == 4", "")
    };
    let made = |groups: &[&str]| {
        let extra: &[(&str, &[&str])] = &[
            ("bio.snorlax.org/1", &["false"]),
            ("bio.snorlax.org/2", &["1"]),
            ("bio.snorlax.org/3", &["true", "a", "b", "c"]),
        ];
        with_extra(with_uid(user("snorlax", groups), "007"), extra)
    };
    let panda = ["snorlax", "007", "santa", "claus"];
    by().groups("claims.turtle.foo.bar.baz.panda").makes(&all, made(&panda)).await;
    by().groups("claims.turtle.foo.bar.baz.?a.b.c.d.orValue([ 'claus' ])")
        .makes(&all, made(&["claus"]))
        .await;
    by().groups("claims.turtle.foo.bar.baz.a.b.c.d")
        .refuses(
            &all,
            "oidc: error evaluating group claim expression: expression 'claims.turtle.foo.bar.baz.a.b.c.d' resulted in error: no such key: a",
        )
        .await;
}

#[tokio::test]
async fn dots_in_the_names_of_claims() {
    let all = claims(&json!({
        "data": [{"groups.io": "gen1"}],
        "turtle": {
            "bee": {"username.io": {"company.io": "fun-corp"}},
            "baz": {"username.io": "snorlax.io", "link": [{"uid.io": "143"}]},
        },
    }));
    SettingsBuilder::username("claims.turtle.baz.username__dot__io")
        .uid("claims.turtle.baz.link[0].uid__dot__io")
        .groups("claims.data[0].groups__dot__io")
        .claims("has(claims.turtle.baz.username__dot__io)", "")
        .claims("has(claims.turtle.baz.link[0].uid__dot__io)", "")
        .claims("has(claims.data[0].groups__dot__io)", "")
        .claims("claims.turtle.bee.username__dot__io.company__dot__io == \"fun-corp\"", "")
        .makes(&all, with_uid(user("snorlax.io", &["gen1"]), "143"))
        .await;
}

#[tokio::test]
async fn tokens_of_service_accounts() {
    let jti = "ea28ed49-2e11-4280-9ec5-bc3d1d84661a";
    let all = claims(&json!({
        "jti": jti, "nbf": NOW, "iat": NOW, "sub": "system:serviceaccount:kube-system:coredns",
        "kubernetes.io": {
            "namespace": "kube-system",
            "node": {"name": "127.0.0.1", "uid": "node-uid"},
            "pod": {"name": "coredns-1", "uid": "pod-uid"},
            "serviceaccount": {"name": "coredns", "uid": "account-uid"},
            "warnafter": 1_700_081_020,
        },
    }));
    let name = "\"system:serviceaccount:\" + claims.kubernetes__dot__io.namespace + \":\" + claims.kubernetes__dot__io.serviceaccount.name";
    let id = format!("JTI={jti}");
    let extra: &[(&str, &[&str])] = &[
        ("authentication.x-kubernetes.io/credential-id", &[&id]),
        ("authentication.x-kubernetes.io/node-name", &["127.0.0.1"]),
        ("authentication.x-kubernetes.io/pod-name", &["coredns-1"]),
        (CREDENTIAL_ID_KEY, &[&id]),
        ("test.x-kubernetes.io/namespace", &["kube-system"]),
        ("test.x-kubernetes.io/warnafter", &["1700081020"]),
    ];
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
    SettingsBuilder::username(name)
        .uid("claims.kubernetes__dot__io.serviceaccount.uid")
        .groups("[ \"system:serviceaccounts\", \"system:serviceaccounts:\" + claims.kubernetes__dot__io.namespace ]")
        .extra("authentication.x-kubernetes.io/credential-id", "\"JTI=\" + claims.jti")
        .extra("authentication.x-kubernetes.io/node-name", "claims.kubernetes__dot__io.node.name")
        .extra("authentication.x-kubernetes.io/pod-name", "claims.kubernetes__dot__io.pod.name")
        .extra("test.x-kubernetes.io/namespace", "claims.kubernetes__dot__io.namespace")
        .extra("test.x-kubernetes.io/warnafter", "string(int(claims.kubernetes__dot__io.warnafter))")
        .claims(&format!("claims.sub == ({name})"), "")
        .claims("has(claims.kubernetes__dot__io.pod.uid)", "")
        .claims("claims[\"kubernetes.io\"][\"node\"][\"uid\"] != \"\"", "")
        .claims("claims[?\"kubernetes.io\"][\"node\"][\"ip\"].orValue(true)", "")
        .user("user.username.startsWith(\"system:serviceaccount:\" + user.extra[\"test.x-kubernetes.io/namespace\"][0] + \":\")", "")
        .user("user.uid != \"\"", "")
        .user("\"system:serviceaccounts\" in user.groups && user.groups.size() == 2", "")
        .user("user.extra.authentication__dot__x__dash__kubernetes__dot__io__slash__node__dash__name[0] == \"127.0.0.1\"", "")
        .user("user.extra.authentication__dot__x__dash__kubernetes__dot__io__slash__credential__dash__id[0] == user.extra.authentication__dot__kubernetes__dot__io__slash__credential__dash__id[0]", "")
        .user("user.extra[\"test.x-kubernetes.io/warnafter\"][0] == \"1700081020\"", "")
        .user("user.extra[?\"test.x-kubernetes.io/missing\"].orValue([]) == []", "")
        .makes(
            &all,
            with_extra(with_uid(user("system:serviceaccount:kube-system:coredns", &groups), "account-uid"), extra),
        )
        .await;
}
