//! ID tokens with unusual JSON, compared with kube-apiserver's own authenticator: both must accept the same tokens, as
//! the same users. We may be stricter only as `docs/conformance.md` declares, and never more lenient. Tokens are
//! random; `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change their seed and number.

mod parts;

use portcullis::internal::Clock;
use portcullis::internal::JwsAlgorithm;
use portcullis::internal::StaticIdTokenAuthenticator;
use portcullis::internal::UserInfo;
use portcullis::internal::{AttributeMapping, ClaimRule, ExpressionRule, IssuerSettings, JwtAuthenticator};
use portcullis_cel::{Environment, Expression, ResultType};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{inputs, seed};

use self::parts::{CLAIM_NAMES, CLAIM_SOURCES, NAMES};
use crate::random_tokens::{
    Comparison, DATES, DATES_BEYOND, HEADER, RandomToken, SPELLING, TokenMint, VALUES,
};

const ISSUER: &str = "https://issuer.example";

/// Settings of both sides.
struct Settings {
    audiences: &'static [&'static str],
    username: &'static str,
    groups: &'static str,
    rule: &'static str,
}

const SETTINGS: &[Settings] = &[
    Settings { audiences: &["client"], username: "sub", groups: "", rule: "" },
    Settings { audiences: &["client", "other"], username: "name", groups: "groups", rule: "" },
    Settings { audiences: &["client"], username: "email", groups: "groups", rule: "" },
    Settings {
        audiences: &["client"],
        username: "sub",
        groups: "roles",
        rule: "!has(claims.deny) || claims.deny != true",
    },
];

/// The claims of a random token.
fn claims(mint: &mut TokenMint) -> String {
    let mut members: Vec<String> = [
        "\"iss\": \"https://issuer.example\"",
        "\"aud\": \"client\"",
        "\"exp\": 4000000000",
        "\"sub\": \"jane\"",
        "\"name\": \"jane\"",
        "\"email\": \"jane@example.com\"",
    ]
    .map(str::to_owned)
    .into();
    let rng = &mut mint.rng;
    if rng.one_in(8) {
        members.remove(rng.below(members.len()));
    }
    for _ in 0..rng.below(4) {
        let name = *rng.pick(NAMES);
        let plain =
            name.to_lowercase().replace("\\u0061", "a").replace("\\u0045", "e").replace('\u{17F}', "s");
        let value = match plain.as_str() {
            "exp" | "iat" | "nbf" if !rng.one_in(5) => *rng.pick(DATES),
            "_claim_names" if !rng.one_in(8) => *rng.pick(CLAIM_NAMES),
            "_claim_sources" if !rng.one_in(8) => *rng.pick(CLAIM_SOURCES),
            _ => *rng.pick(VALUES),
        };
        members.push(format!("\"{name}\": {value}"));
    }
    if rng.one_in(10) {
        members.push(format!("\"_claim_names\": {}", rng.pick(CLAIM_NAMES)));
        members.push(format!("\"_claim_sources\": {}", rng.pick(CLAIM_SOURCES)));
    }
    mint.claims(members)
}

fn settings_of(settings: &Settings) -> JwtAuthenticator {
    let claim = |name: &str| AttributeMapping::Claim { name: name.to_owned(), prefix: String::new() };
    let rule = |text: &str| {
        ClaimRule::Expression(ExpressionRule {
            expression: Expression::compile(text, Environment::CLAIMS, ResultType::Bool).unwrap(),
            message: String::new(),
        })
    };
    JwtAuthenticator {
        issuer: IssuerSettings {
            url: ISSUER.to_owned(),
            discovery_url: None,
            certificate_authority: None,
            audiences: settings.audiences.iter().map(|audience| (*audience).to_owned()).collect(),
        },
        algorithms: JwsAlgorithm::ALL.to_vec(),
        claim_rules: [settings.rule].into_iter().filter(|rule| !rule.is_empty()).map(rule).collect(),
        username: claim(settings.username),
        groups: Some(settings.groups).filter(|name| !name.is_empty()).map(claim),
        uid: None,
        extra: Vec::new(),
        user_rules: Vec::new(),
    }
}

fn user(answer: &Value) -> UserInfo {
    let mut user = UserInfo::named(answer["username"].as_str().unwrap());
    user.groups = serde_json::from_value::<Option<_>>(answer["groups"].clone()).unwrap().unwrap_or_default();
    user.extra = serde_json::from_value::<Option<_>>(answer["extra"].clone()).unwrap().unwrap_or_default();
    user
}

/// With paused time, since a token with an unknown key waits a second for newer keys.
#[tokio::test(start_paused = true)]
async fn id_tokens_are_judged_as_the_api_server_judges_them() {
    const AT_ONCE: usize = 10_000;
    let Some(program) = GoProgram::build("idtokens") else { return };
    let (seed, rounds) = (seed(), inputs(10_000));
    let mut mint = TokenMint::new(seed);
    let keys = json!({"keys": [mint.jwk()]});
    let mut judges = Vec::new();
    for settings in SETTINGS {
        judges.push(StaticIdTokenAuthenticator::new(settings_of(settings), keys.to_string()).await);
    }
    let authenticators: Vec<Value> = SETTINGS
        .iter()
        .map(|Settings { audiences, username, groups, rule }| {
            json!({"audiences": audiences, "username": username, "groups": groups, "rule": rule})
        })
        .collect();
    let configuration = json!({"issuer": ISSUER, "keys": keys, "authenticators": authenticators});
    let now = Clock::system().now();
    let mut comparison = Comparison::default();
    for round in (0..rounds).step_by(AT_ONCE) {
        let mut token = |_| {
            let claims = claims(&mut mint);
            mint.token(&claims)
        };
        let tokens: Vec<RandomToken> = (0..AT_ONCE.min(rounds - round)).map(&mut token).collect();
        let mut questions = vec![configuration.clone()];
        questions.extend(
            tokens
                .iter()
                .enumerate()
                .map(|(at, token)| json!({"authenticator": at % SETTINGS.len(), "token": token.text})),
        );
        for (at, (token, answer)) in
            tokens.iter().zip(program.ask(&questions).into_iter().skip(1)).enumerate()
        {
            let theirs = (answer["known"] == true).then(|| user(&answer));
            let ours = judges[at % SETTINGS.len()].authenticate(&token.text, now).await;
            comparison.add(token, &ours, theirs.as_ref(), &answer);
        }
        comparison.assert_no_failures(seed);
    }
    comparison.assert_meaningful(&[SPELLING, HEADER, DATES_BEYOND]);
}
