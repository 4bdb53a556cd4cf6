//! What OpenID providers write, read as by golang.org/x/oauth2 and go-oidc, with which other login plugins of kubectl are built:
//! whatever those accept, `portcullis login` accepts, with the same tokens and endpoints. `PORTCULLIS_SEED` and
//! `PORTCULLIS_INPUTS` change the seed and the number of answers.

use std::time::Duration;

use openidconnect::http::StatusCode;
use openidconnect::url::form_urlencoded;
use portcullis_openid::SecretText;
use portcullis_openid::answers::{self, FailedAnswer, ProviderAnswer, ProviderDocument};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const ISSUER: &str = "https://issuer.test";

/// An answer of a token endpoint.
#[derive(Debug)]
struct Answer {
    status: u16,
    content_type: Option<&'static str>,
    body: String,
}

/// The members of a token answer, with values that providers write.
const MEMBERS: &[(&str, &[&str])] = &[
    (
        "access_token",
        &["\"a\"", "\"a\"", "\"a\"", "\"a.b-c_d~/+=\"", "\"\"", "null", "5", "[\"a\"]", "\"\\u00e9\""],
    ),
    ("token_type", &["\"Bearer\"", "\"bearer\"", "\"BEARER\"", "\"\"", "null", "\"mac\""]),
    (
        "expires_in",
        &["3600", "\"3600\"", "0", "\"0\"", "null", "-5", "2147483648", "\"99999999999\"", "86400"],
    ),
    ("refresh_token", &["\"r\"", "\"r\"", "\"\"", "null", "7", "{}"]),
    ("id_token", &["\"i\"", "\"i\"", "\"\"", "null", "7", "true"]),
    ("scope", &["\"openid\"", "null", "[\"openid\"]"]),
    ("error", &["\"invalid_grant\"", "\"\"", "null"]),
    ("error_description", &["\"of the test\"", "null"]),
    ("Access_Token", &["\"b\""]),
    ("REFRESH_TOKEN", &["\"s\"", "null"]),
    ("Id_Token", &["\"j\""]),
    ("not_known", &["1.5", "{\"a\": [null]}", "true"]),
];
/// Bodies that are no object of JSON, and JSON with a flaw.
const BODIES: &[&str] = &[
    "",
    " ",
    "null",
    "[]",
    "\"a\"",
    "5",
    "{",
    "{}",
    "{\"access_token\": \"a\"} ",
    "{\"access_token\": \"a\"}{}",
    "{\"access_token\": \"a\",}",
    "{'access_token': 'a'}",
    "<html>",
    "<!doctype html><p>Bad gateway",
    "access_token=a",
];
/// Lifetimes that x/oauth2 refuses with the whole answer; here they count as absent.
const LIFETIMES: &[&str] = &["1.5", "\"1.5\"", "\"\"", "\"soon\"", "\"007\"", "true", "1e3", "[]"];
const STATUSES: &[u16] = &[200, 200, 200, 200, 200, 201, 400, 400, 401, 403, 404, 429, 500, 502, 503];
const CONTENT_TYPES: &[Option<&str>] = &[
    None,
    Some("application/json"),
    Some("application/json;charset=UTF-8"),
    Some("text/html"),
    Some("application/problem+json"),
];
const FORM_TYPES: &[&str] =
    &["application/x-www-form-urlencoded", "text/plain", "text/plain; charset=utf-8", "Text/Plain"];

fn object(rng: &mut Rng) -> String {
    let mut members = Vec::new();
    for (name, values) in MEMBERS {
        // The tokens are there most often, the other names seldom.
        let is_there = match *name {
            "access_token" => !rng.one_in(10),
            "token_type" | "expires_in" | "refresh_token" | "id_token" => rng.one_in(2),
            _ => rng.one_in(8),
        };
        if is_there {
            let lifetime = *name == "expires_in" && rng.one_in(4);
            let value = if lifetime { rng.pick(LIFETIMES) } else { rng.pick(values) };
            members.push((*name, *value));
        }
    }
    // Which of two names that differ in case counts is a matter of their order, which no provider depends on.
    let exact: Vec<String> = members.iter().map(|(name, _)| (*name).to_owned()).collect();
    members.retain(|(name, _)| {
        let lower = name.to_ascii_lowercase();
        lower == *name || !exact.contains(&lower)
    });
    let members = rng.shuffled(members);
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

fn form(rng: &mut Rng) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    for (name, values) in MEMBERS {
        if rng.one_in(2) {
            // x/oauth2 gives out members of a form as numbers where they are: such an ID token is none.
            let value = rng.pick(values).trim_matches('"');
            let value = if *name == "id_token" && value == "7" { "i" } else { value };
            form.append_pair(name, value);
        }
    }
    form.finish()
}

fn answer(rng: &mut Rng) -> Answer {
    let status = *rng.pick(STATUSES);
    if rng.one_in(5) {
        return Answer { status, content_type: Some(*rng.pick(FORM_TYPES)), body: form(rng) };
    }
    let body = if rng.one_in(6) { (*rng.pick(BODIES)).to_owned() } else { object(rng) };
    Answer { status, content_type: *rng.pick(CONTENT_TYPES), body }
}

/// Compares the reading of an answer with x/oauth2's.
fn compared(answer: &Answer, theirs: &Value) -> Result<&'static str, String> {
    let ours = answers::tokens(ProviderAnswer {
        status: StatusCode::from_u16(answer.status).unwrap(),
        content_type: answer.content_type,
        body: answer.body.as_bytes(),
    });
    let is_read = theirs["error"] == "";
    let expose = |text: Option<&SecretText>| text.map_or("", SecretText::expose).to_owned();
    match &ours {
        Ok(tokens) if is_read => {
            let seconds = tokens.expires_in.unwrap_or(Duration::ZERO).as_secs();
            let ours = json!({"refresh": expose(tokens.refresh_token.as_ref()),
                "id": expose(tokens.id_token.as_ref()), "seconds": seconds});
            let lifetime = theirs["expiresIn"].as_i64().unwrap_or_default().clamp(0, i32::MAX.into());
            let same =
                json!({"refresh": theirs["refreshToken"], "id": theirs["idToken"], "seconds": lifetime});
            let token = tokens.bearer_token().map(|token| token.expose().to_owned());
            // An access token of another type is none, but the ID token beside it is one.
            let is_same = token.is_none_or(|token| theirs["accessToken"] == token);
            if ours == same && is_same { Ok("read") } else { Err(format!("ours {ours}, theirs {theirs}")) }
        }
        Err(FailedAnswer::Error(error)) if theirs["error"] != "" => {
            let code = error.refusal.as_ref().map_or("", |refusal| refusal.code.as_str());
            match theirs["code"].as_str().unwrap_or_default() {
                theirs if theirs == code => Ok("refused"),
                // A member of another type hides the code from x/oauth2.
                "" => Ok("an error code all the same"),
                theirs => Err(format!("ours {code}, theirs {theirs}")),
            }
        }
        Err(FailedAnswer::WebPage | FailedAnswer::Unreadable(_))
            if !is_read && theirs["refused"] == false =>
        {
            Ok("unreadable")
        }
        // A lifetime that cannot be read costs x/oauth2 the answer.
        Ok(_) if theirs["refused"] == false && LIFETIMES.iter().any(|value| answer.body.contains(value)) => {
            Ok("more lenient")
        }
        _ => Err(format!("ours {ours:?}, theirs {theirs}")),
    }
}

#[test]
fn token_answers_are_read_as_by_x_oauth2() {
    let Some(program) = GoProgram::build("tokenanswers") else { return };
    let mut rng = Rng(seed());
    let cases: Vec<Answer> = (0..inputs(6_000)).map(|_| answer(&mut rng)).collect();
    let words = program.compare(
        "token answers",
        &cases,
        |case| json!({"status": case.status, "contentType": case.content_type.unwrap_or_default(), "body": case.body}),
        |case| format!("{case:?}"),
        compared,
    );
    words.occurred(&["read", "refused", "unreadable", "more lenient", "an error code all the same"]);
}

/// The members of a discovery document, with values that providers write.
const DOCUMENT: &[(&str, &[&str])] = &[
    ("issuer", &["\"https://issuer.test\"", "\"https://issuer.test/\"", "\"\"", "null", "5"]),
    ("authorization_endpoint", &["\"https://issuer.test/auth\"", "\"\"", "null", "5"]),
    ("token_endpoint", &["\"https://issuer.test/token\"", "\"http://issuer.test/token\"", "null", "[]"]),
    ("jwks_uri", &["\"https://issuer.test/keys\"", "\"\"", "null", "{}"]),
    ("userinfo_endpoint", &["\"https://issuer.test/user\"", "null"]),
    ("device_authorization_endpoint", &["\"https://issuer.test/device\"", "null", "5"]),
    ("revocation_endpoint_auth_methods_supported", &["[\"none\"]", "null", "\"none\"", "[null]"]),
    ("scopes_supported", &["[\"openid\"]", "null", "\"openid\"", "[5]", "{}"]),
    ("token_endpoint_auth_methods_supported", &["[\"client_secret_post\"]", "null", "5"]),
    ("authorization_response_iss_parameter_supported", &["true", "false", "null", "\"true\"", "5"]),
    ("id_token_signing_alg_values_supported", &["[\"RS256\"]", "null"]),
    ("Token_Endpoint", &["\"https://issuer.test/other\""]),
];

fn document(rng: &mut Rng) -> String {
    if rng.one_in(10) {
        return (*rng.pick(BODIES)).to_owned();
    }
    let mut members = Vec::new();
    for (name, values) in DOCUMENT {
        let is_usual = rng.one_in(2);
        let value = if is_usual { values.first().unwrap() } else { rng.pick(values) };
        let is_there = if *name == "Token_Endpoint" { rng.one_in(10) } else { !rng.one_in(8) };
        let has_exact = members.iter().any(|(known, _)| *known == "token_endpoint");
        if is_there && !(has_exact && *name == "Token_Endpoint") {
            members.push((*name, *value));
        }
    }
    let members = rng.shuffled(members);
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

#[test]
fn discovery_documents_are_read_as_by_go_oidc() {
    let Some(program) = GoProgram::build("tokenanswers") else { return };
    let mut rng = Rng(seed());
    let cases: Vec<String> = (0..inputs(6_000)).map(|_| document(&mut rng)).collect();
    let words = program.compare(
        "discovery documents",
        &cases,
        |case| json!({"issuer": ISSUER, "document": case}),
        Clone::clone,
        |case, theirs| {
            let ours = ProviderDocument::parse(case.as_bytes(), ISSUER);
            match &ours {
                Ok(document) if theirs["error"] == "" => {
                    let text = |endpoint: &Option<String>| endpoint.clone().unwrap_or_default();
                    let endpoints = json!([
                        text(&document.authorization_endpoint),
                        text(&document.token_endpoint),
                        text(&document.jwks_uri)
                    ]);
                    let same =
                        json!([theirs["authorizationEndpoint"], theirs["tokenEndpoint"], theirs["jwksURI"]]);
                    if endpoints == same {
                        Ok("read")
                    } else {
                        Err(format!("ours {endpoints}, theirs {same}"))
                    }
                }
                Err(_) if theirs["error"] != "" => Ok("refused"),
                _ => Err(format!("ours {ours:?}, theirs {theirs}")),
            }
        },
    );
    words.occurred(&["read", "refused"]);
}
