//! ID tokens with odd JSON, judged by us and by kube-apiserver's own authenticator: the same are let in, as the same
//! users. Where we are stricter, the token holds something that `docs/conformance.md` declares; being more lenient is
//! never allowed. Tokens are random; `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` try others and more.
#![allow(clippy::print_stderr, reason = "what is compared is told")]

mod parts;

use std::collections::BTreeMap;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use portcullis::authn::jwt::keys::Algorithm;
use portcullis::authn::oidc::compared::IdTokenJudge;
use portcullis::authn::oidc::settings::{ClaimRule, Issuer, JwtAuthenticator, Mapping, Rule};
use portcullis::cel::{Expression, Purpose};
use portcullis::clock::Clock;
use portcullis::user::UserInfo;
use serde_json::{Value, json};

use self::parts::{CLAIM_NAMES, CLAIM_SOURCES, DATES, HEADER_MEMBERS, NAMES, VALUES};
use crate::pki::Ca;
use crate::support::go::{GoProgram, Rng, inputs, seed};

const ISSUER: &str = "https://issuer.example";

/// What is declared: the ids of `docs/conformance.md`.
const SPELLING: &str = "D-token-spelling";
const HEADER: &str = "D-token-header";
const DATES_BEYOND: &str = "D-token-dates";

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

struct Mint {
    key: EcdsaKeyPair,
    certificate: String,
    rng: Rng,
}

struct Token {
    text: String,
    shown: String,
    /// What it may be refused for here alone, by id.
    declared: Vec<&'static str>,
}

impl Mint {
    fn jwk(&self) -> Value {
        let point = &self.key.public_key().as_ref()[1..];
        let (x, y) = point.split_at(32);
        json!({"kty": "EC", "kid": "key", "crv": "P-256", "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)})
    }

    /// A header of members in any order, most of them good.
    fn header(&mut self) -> String {
        let mut members = vec!["\"alg\": \"ES256\""];
        if !self.rng.one_in(4) {
            members.push("\"kid\": \"key\"");
        }
        if self.rng.one_in(40) {
            members.clear();
        }
        if self.rng.one_in(2) {
            for _ in 0..=self.rng.below(2) {
                members.push(*self.rng.pick(HEADER_MEMBERS));
            }
        }
        let jwk = self.jwk().to_string();
        format!("{{{}}}", self.shuffled(members).join(", "))
            .replace("{jwk}", &jwk)
            .replace("{x5c}", &self.certificate)
    }

    fn claims(&mut self) -> String {
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
        if self.rng.one_in(8) {
            members.remove(self.rng.below(members.len()));
        }
        for _ in 0..self.rng.below(4) {
            let name = *self.rng.pick(NAMES);
            let plain =
                name.to_lowercase().replace("\\u0061", "a").replace("\\u0045", "e").replace('\u{17F}', "s");
            let value = match plain.as_str() {
                "exp" | "iat" | "nbf" if !self.rng.one_in(5) => *self.rng.pick(DATES),
                "_claim_names" if !self.rng.one_in(8) => *self.rng.pick(CLAIM_NAMES),
                "_claim_sources" if !self.rng.one_in(8) => *self.rng.pick(CLAIM_SOURCES),
                _ => *self.rng.pick(VALUES),
            };
            members.push(format!("\"{name}\": {value}"));
        }
        if self.rng.one_in(10) {
            members.push(format!("\"_claim_names\": {}", self.rng.pick(CLAIM_NAMES)));
            members.push(format!("\"_claim_sources\": {}", self.rng.pick(CLAIM_SOURCES)));
        }
        let members = self.shuffled(members);
        match self.rng.below(60) {
            0 => format!("{{{}}} ", members.join(",\n\t ")),
            1 => format!("{{{}}} {{}}", members.join(",")),
            2 => format!("[{{{}}}]", members.join(",")),
            3 => format!("{{{},}}", members.join(",")),
            4 => "null".to_owned(),
            5 => format!("{{{}, \"deep\": {}{}}}", members.join(","), "[".repeat(200), "]".repeat(200)),
            _ => format!("{{{}}}", members.join(", ")),
        }
    }

    fn shuffled<T>(&mut self, mut list: Vec<T>) -> Vec<T> {
        for at in (1..list.len()).rev() {
            list.swap(at, self.rng.below(at + 1));
        }
        list
    }

    fn token(&mut self) -> Token {
        let (header, claims) = (self.header(), self.claims());
        let mut bytes = claims.clone().into_bytes();
        if self.rng.one_in(60) {
            let at = self.rng.below(bytes.len());
            bytes[at] = 0xFF;
        }
        let input = format!("{}.{}", URL_SAFE_NO_PAD.encode(&header), URL_SAFE_NO_PAD.encode(&bytes));
        let signature = self.key.sign(&SystemRandom::new(), input.as_bytes()).unwrap();
        let mut text = format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()));
        match self.rng.below(60) {
            // Bits beyond the last byte of the signature.
            0 => {
                let last = u8::try_from(text.pop().unwrap()).unwrap();
                text.push(char::from(if last == b'A' { b'B' } else { b'A' }));
            }
            1 => text.push_str("=="),
            2 => text.push('A'),
            3 => text.push('\n'),
            4 => text.insert(text.rfind('.').unwrap(), '\t'),
            5 => text.insert(5, ' '),
            6 => text.push('.'),
            _ => {}
        }
        let any = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let mut declared = Vec::new();
        if any(&claims, &["\\ud8", "\\udc", "e400", "e999", "[[[[[[[[[[["])
            || bytes.contains(&0xFF)
            || any(&text, &["\n", "\t", " "])
        {
            declared.push(SPELLING);
        }
        if any(&header, &["\"jwk\": {", "\"crit\": ", "\"b64\": ", "\\ud8"]) {
            declared.push(HEADER);
        }
        // Go's dates end 62,135,596,800 s before the last number.
        if claims.contains("9223372036854775807") {
            declared.push(DATES_BEYOND);
        }
        let shown = format!("{header} . {}", String::from_utf8_lossy(&bytes));
        Token { text, shown, declared }
    }
}

fn settings_of(settings: &Settings) -> JwtAuthenticator {
    let claim = |name: &str| Mapping::Claim { name: name.to_owned(), prefix: String::new() };
    let rule = |text: &str| {
        ClaimRule::Expression(Rule {
            expression: Expression::compile(text, Purpose::ClaimRule).unwrap(),
            message: String::new(),
        })
    };
    JwtAuthenticator {
        issuer: Issuer {
            url: ISSUER.to_owned(),
            discovery_url: None,
            certificate_authority: None,
            audiences: settings.audiences.iter().map(|audience| (*audience).to_owned()).collect(),
        },
        algorithms: Algorithm::ALL.to_vec(),
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

/// The clock is stopped, because a token that no key has signed waits a second for newer keys.
#[tokio::test(start_paused = true)]
async fn id_tokens_are_judged_as_the_api_server_judges_them() {
    const AT_ONCE: usize = 10_000;
    let Some(program) = GoProgram::build("idtokens") else { return };
    let (seed, rounds) = (seed(), inputs(10_000));
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let certificate = STANDARD.encode(Ca::new("some CA").cert);
    let mut mint = Mint { key, certificate, rng: Rng(seed) };
    let keys = json!({"keys": [mint.jwk()]});
    let mut judges = Vec::new();
    for settings in SETTINGS {
        judges.push(IdTokenJudge::new(settings_of(settings), keys.to_string()).await);
    }
    let authenticators: Vec<Value> = SETTINGS
        .iter()
        .map(|Settings { audiences, username, groups, rule }| {
            json!({"audiences": audiences, "username": username, "groups": groups, "rule": rule})
        })
        .collect();
    let configuration = json!({"issuer": ISSUER, "keys": keys, "authenticators": authenticators});
    let now = Clock::system().now();
    let (mut failures, mut declared) = (Vec::new(), BTreeMap::<&str, usize>::new());
    let (mut accepted, mut refused) = (0, 0);
    for round in (0..rounds).step_by(AT_ONCE) {
        let tokens: Vec<Token> = (0..AT_ONCE.min(rounds - round)).map(|_| mint.token()).collect();
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
            let ours = judges[at % SETTINGS.len()].judge(&token.text, now).await;
            match (&ours, theirs) {
                (Ok(Some(ours)), Some(theirs)) if *ours == theirs => accepted += 1,
                (Ok(None) | Err(_), None) => refused += 1,
                (Ok(None) | Err(_), Some(_)) if !token.declared.is_empty() => {
                    token.declared.iter().for_each(|id| *declared.entry(id).or_default() += 1);
                }
                _ => failures.push(format!("{}\n  ours:   {ours:?}\n  theirs: {answer}", token.shown)),
            }
        }
        assert!(
            failures.is_empty(),
            "seed {seed}: {} differ\n{}",
            failures.len(),
            failures[..failures.len().min(30)].join("\n")
        );
    }
    eprintln!(
        "{rounds} tokens: {accepted} let in, {refused} refused, stricter here by declaration: {declared:?}"
    );
    assert!(accepted > rounds / 8 && refused > rounds / 8, "{accepted} let in, {refused} refused");
    // Fewer need not have all of it.
    for id in [SPELLING, HEADER, DATES_BEYOND] {
        assert!(rounds < 10_000 || declared.contains_key(id), "no longer stricter: {id}");
    }
}
