//! OIDC issuers: discovery documents, keys, and distributed claims.
//!
//! The first path segment is the issuer. All issuers are equal, except the special ones in [`answer`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::{Answer, status};
use crate::mint::{Jwt, Mint, jwt};

/// Whether the issuer `rotating` has replaced its keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rotation(Arc<AtomicBool>);

impl Rotation {
    pub(crate) fn rotate(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The issuer whose discovery URL is not below the issuer URL.
pub(crate) const MOVED: &str = "https://issuer.twin.example/tenant";

pub(super) fn answer(head: &http::request::Parts, mint: &Mint, rotation: &Rotation) -> Answer {
    let path = head.uri.path();
    let (issuer, rest) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    let own = format!("{}/{issuer}", mint.issuer);
    let document = |issuer: &str| super::json(&json!({"issuer": issuer, "jwks_uri": format!("{own}/keys")}));
    match (issuer, rest) {
        ("down", _) | ("keyless", "keys") => status(500, "down"),
        ("silent", ".well-known/openid-configuration") => super::json(&json!({"issuer": own})),
        ("liar", ".well-known/openid-configuration") => document("https://somebody-else.example"),
        // Only with another host name: the client must send the host of the discovery URL.
        ("moved", "metadata.json") => document(MOVED),
        ("moved", ".well-known/openid-configuration") => status(404, "not here"),
        ("slash", ".well-known/openid-configuration") => document(&format!("{own}/")),
        (_, ".well-known/openid-configuration") => document(&own),
        ("rotating", "keys") if rotation.0.load(Ordering::SeqCst) => keys(mint, &["rotated"]),
        ("rotating", "keys") => keys(mint, &["issuer-rsa"]),
        (_, "keys") => keys(
            mint,
            &["issuer-rsa", "issuer-rsa2", "issuer-p256", "issuer-p384", "issuer-p521", "issuer-ed25519"],
        ),
        (_, rest) => match rest.strip_prefix("claims/") {
            Some(variant) => claims(variant, head, mint),
            None => status(404, "no such document"),
        },
    }
}

fn keys(mint: &Mint, names: &[&str]) -> Answer {
    let keys: Vec<_> = names.iter().map(|name| mint.jwk(name)).collect();
    super::json(&json!({"keys": keys}))
}

/// Distributed claims, by variant: a token of the issuer `distributed` with groups.
fn claims(variant: &str, head: &http::request::Parts, mint: &Mint) -> Answer {
    let valid = || {
        jwt(
            "issuer-rsa",
            json!({"iss": "{issuer}/distributed", "aud": "portcullis", "exp": "{now+3600}", "groups": ["far", "away"]}),
        )
    };
    let token = |jwt: Jwt| {
        let mut answer = status(200, &mint.mint(&jwt.into(), "", ""));
        answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/jwt"));
        answer
    };
    match variant {
        "good" => token(valid()),
        "string" => token(valid().with(json!({"groups": "alone"}))),
        "authorized" => {
            if head.headers.get("authorization").is_some_and(|value| value == "Bearer open-sesame") {
                token(valid())
            } else {
                status(401, "no access token")
            }
        }
        "unasked" => {
            if head.headers.contains_key("authorization") {
                status(400, "an access token that was not given")
            } else {
                token(valid())
            }
        }
        "created" => {
            let mut answer = token(valid());
            *answer.status_mut() = http::StatusCode::CREATED;
            answer
        }
        "other-audience" => token(valid().with(json!({"aud": "another"}))),
        "expired" => token(valid().with(json!({"exp": "{now-60}"}))),
        "not-yet" => token(valid().with(json!({"nbf": "{now+600}"}))),
        "other-issuer" => token(valid().with(json!({"iss": "{issuer}/plain"}))),
        "unknown-issuer" => token(valid().with(json!({"iss": "{issuer}/down"}))),
        "strange-key" => token(valid().key("strange")),
        "unsigned" => token(valid().alg("none")),
        "no-groups" => token(valid().without("groups")),
        "number" => token(valid().with(json!({"groups": 5}))),
        "json" => super::json(&json!({"groups": ["far"]})),
        "empty" => status(200, ""),
        "redirect" => {
            let mut answer = status(302, "");
            let place = format!("{}/distributed/claims/good", mint.issuer);
            answer.headers_mut().insert("location", place.parse().expect("an address"));
            answer
        }
        "broken" => status(500, "broken"),
        _ => status(404, "no such claims"),
    }
}
