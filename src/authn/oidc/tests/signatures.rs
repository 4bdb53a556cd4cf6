//! Signatures, algorithms and keys.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::future::BoxFuture;
use portcullis_kubernetes::user::UserInfo;
use portcullis_openid::jwt::Jwt;
use portcullis_openid::jwt::key_set::{JwksSource, KeySet, KeySetError};
use portcullis_openid::jwt::keys::JwsAlgorithm;
use serde_json::{Value, json};

use super::super::verify::unsigned as why_unsigned;
use super::support::{
    FakeWeb, ISSUER, KEYS, Key, OTHER_RSA, P256, P384, P521, RSA, authenticate, authenticator, claims,
    settings, unsigned, user,
};
use crate::authn::AuthnError;

const NOT_SIGNED: &str =
    "oidc: verify token: failed to verify signature: failed to verify id token signature";

async fn authenticate_with(algorithms: &[JwsAlgorithm], keys: &[Value], token: &str) -> AuthnResult {
    let mut settings = settings();
    settings.algorithms = algorithms.to_vec();
    authenticate(&*authenticator(settings, &FakeWeb::of_issuer(keys)).await, token).await
}

/// A key set that does not change.
#[derive(Debug)]
struct Published(Vec<u8>);

impl JwksSource for Published {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async { Ok(self.0.clone()) })
    }

    fn name(&self) -> String {
        "test".to_owned()
    }
}

#[tokio::test]
async fn the_log_says_why_no_key_verifies_a_token() {
    let token = RSA.token("RS256", &claims(&json!({})));
    let mut small = RSA.jwk("key");
    small["n"] = json!(URL_SAFE_NO_PAD.encode([0xff; 64]));
    let mut malformed = RSA.jwk("key");
    malformed["e"] = json!(65537);
    let unnamed = RSA.token_of(&json!({"alg": "RS256"}), claims(&json!({})).to_string().as_bytes());
    let table = [
        (&token, vec![OTHER_RSA.jwk("key")], "not signed by key \"key\""),
        (&token, vec![P256.jwk("key")], "key \"key\" is not for RS256"),
        (
            &token,
            vec![small],
            "key \"key\" cannot be used: an RSA key has 512 bits; it must have 2048 to 8192",
        ),
        (&token, vec![malformed], "key \"key\" cannot be used: the member \"e\" of a key is malformed"),
        (
            &token,
            vec![RSA.jwk("a"), RSA.jwk("b")],
            "no key has the ID \"key\"; the issuer's key IDs are [\"a\" \"b\"]",
        ),
        (&unnamed, vec![OTHER_RSA.jwk("a")], "not signed by any key of the issuer: [\"a\"]"),
        (&unnamed, vec![P256.jwk("a")], "no key of the issuer is for RS256: [\"a\"]"),
    ];
    for (token, keys, expected) in table {
        let published = Published(json!({"keys": keys}).to_string().into_bytes());
        let keys = KeySet::new(Box::new(published));
        keys.refresh().await;
        assert_eq!(why_unsigned(&KeySetError::NotSigned, &Jwt::parse(token).unwrap(), &keys), expected);
    }
}

type AuthnResult = Result<Option<UserInfo>, AuthnError>;

#[expect(clippy::unnecessary_wraps, reason = "an expected verdict")]
fn jane() -> AuthnResult {
    Ok(Some(user("jane", &[])))
}

fn not_signed() -> AuthnResult {
    Err(AuthnError::Invalid(NOT_SIGNED.to_owned()))
}

const KEYS_AND_ALGORITHMS: [(&std::sync::LazyLock<Key>, &[&str]); 4] = [
    (&RSA, &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
    (&P256, &["ES256"]),
    (&P384, &["ES384"]),
    (&P521, &["ES512"]),
];

#[tokio::test]
async fn each_algorithm_requires_its_key_type() {
    let names = JwsAlgorithm::ALL.map(JwsAlgorithm::name);
    for (key, own) in KEYS_AND_ALGORITHMS {
        for name in names {
            let token = key.token(name, &claims(&json!({})));
            let expected = if own.contains(&name) { jane() } else { not_signed() };
            assert_eq!(
                authenticate_with(&JwsAlgorithm::ALL, &[key.jwk("key")], &token).await,
                expected,
                "{name} by {own:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_signature_is_valid_only_for_the_algorithm_in_the_header() {
    // The header names another algorithm for the same key than the one that made the signature.
    let (header, body) = (json!({"alg": "RS256", "kid": "key"}), claims(&json!({})).to_string());
    let token = RSA.token_of(&header, body.as_bytes());
    let signature = token.rsplit_once('.').unwrap().1;
    for other in ["RS384", "PS256"] {
        let token =
            format!("{}.{signature}", unsigned(&json!({"alg": other, "kid": "key"}), body.as_bytes()));
        assert_eq!(
            authenticate_with(&JwsAlgorithm::ALL, &[RSA.jwk("key")], &token).await,
            not_signed(),
            "{other}"
        );
    }
}

#[tokio::test]
async fn other_algorithms_are_refused() {
    let body = claims(&json!({})).to_string();
    let mut tokens = vec![("PS256".to_owned(), RSA.token("PS256", &claims(&json!({}))))];
    for name in ["none", "None", "NONE", "HS256", "HS384", "HS512", "EdDSA", "rs256", "RS1", "", "RS256 "] {
        for key in [&RSA, &P256] {
            tokens.push((name.to_owned(), key.token(name, &claims(&json!({})))));
        }
        let input = unsigned(&json!({"alg": name}), body.as_bytes());
        tokens.push((name.to_owned(), format!("{input}.")));
    }
    let number = unsigned(&json!({"alg": 256}), body.as_bytes());
    tokens.push((String::new(), format!("{number}.")));
    for (name, token) in tokens {
        let expected = format!(
            "oidc: verify token: oidc: id token signed with unsupported algorithm, expected [\"RS256\" \"ES256\"] got \"{name}\""
        );
        let found = authenticate_with(
            &[JwsAlgorithm::RS256, JwsAlgorithm::ES256],
            &[RSA.jwk("key"), P256.jwk("key")],
            &token,
        )
        .await;
        assert_eq!(found, Err(AuthnError::Invalid(expected)), "{name}");
    }
}

#[tokio::test]
async fn a_public_key_is_not_an_hmac_secret() {
    let jwk = RSA.jwk("key");
    let modulus = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
    let pem =
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(&modulus));
    let jwk_text = jwk.to_string();
    for secret in [&modulus[..], pem.as_bytes(), jwk_text.as_bytes(), jwk["n"].as_str().unwrap().as_bytes()] {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        for name in ["HS256", "RS256"] {
            let header = json!({"alg": name, "kid": "key"});
            let input = unsigned(&header, claims(&json!({})).to_string().as_bytes());
            let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, input.as_bytes()));
            let found = authenticate_with(
                &JwsAlgorithm::ALL,
                std::slice::from_ref(&jwk),
                &format!("{input}.{signature}"),
            )
            .await;
            assert!(found.is_err(), "{name}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_key_embedded_in_the_token_is_not_trusted() {
    let body = claims(&json!({})).to_string();
    let by_address = json!({"alg": "RS256", "kid": "key", "jku": KEYS, "x5u": KEYS});
    let token = OTHER_RSA.token_of(&by_address, body.as_bytes());
    assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &[RSA.jwk("key")], &token).await, not_signed());
    let by_value = json!({"alg": "RS256", "kid": "key", "jwk": OTHER_RSA.jwk("key")});
    let token = OTHER_RSA.token_of(&by_value, body.as_bytes());
    let refused = "oidc: verify token: oidc: malformed jwt: the header is not well-formed";
    let found = authenticate_with(&JwsAlgorithm::ALL, &[RSA.jwk("key")], &token).await;
    assert_eq!(found, Err(AuthnError::Invalid(refused.to_owned())));
}

#[tokio::test]
async fn keys_are_selected_by_their_ids() {
    let body = claims(&json!({})).to_string();
    let by = |key: &Key, id: Value| key.token_of(&json!({"alg": "RS256", "kid": id}), body.as_bytes());
    let (first, second) = (RSA.jwk("first"), OTHER_RSA.jwk("second"));
    let keys = [first.clone(), second];
    for (name, token, expected) in [
        ("its own", by(&OTHER_RSA, json!("second")), jane()),
        ("that of another key", by(&OTHER_RSA, json!("first")), not_signed()),
        ("an unknown one", by(&OTHER_RSA, json!("third")), not_signed()),
        ("an empty one", by(&OTHER_RSA, json!("")), jane()),
        ("none", OTHER_RSA.token_of(&json!({"alg": "RS256"}), body.as_bytes()), jane()),
        ("a path", by(&OTHER_RSA, json!("../second")), not_signed()),
    ] {
        assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &keys, &token).await, expected, "{name}");
    }
    // Two keys with the same ID, and a key without an ID.
    let mut nameless = OTHER_RSA.jwk("");
    nameless.as_object_mut().unwrap().remove("kid");
    let token = by(&OTHER_RSA, json!("first"));
    assert_eq!(
        authenticate_with(&JwsAlgorithm::ALL, &[first.clone(), OTHER_RSA.jwk("first")], &token).await,
        jane()
    );
    assert_eq!(
        authenticate_with(&JwsAlgorithm::ALL, &[first.clone(), nameless.clone()], &token).await,
        not_signed()
    );
    let token = OTHER_RSA.token_of(&json!({"alg": "RS256"}), body.as_bytes());
    assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &[first, nameless], &token).await, jane());
}

#[tokio::test]
async fn unsupported_keys_in_a_key_set_are_skipped() {
    let token = RSA.token("RS256", &claims(&json!({})));
    let mut encryption = RSA.jwk("key");
    encryption["use"] = json!("enc");
    assert_eq!(
        authenticate_with(&JwsAlgorithm::ALL, &[encryption.clone()], &token).await,
        not_signed(),
        "for encryption"
    );
    let strange = [
        json!({"kty": "OKP", "crv": "Ed25519", "kid": "key", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}),
        json!({"kty": "oct", "kid": "key", "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T"}),
        json!({"kty": "quantum", "kid": "key"}),
        json!({"kty": "EC", "kid": "key", "crv": "secp256k1", "x": "AA", "y": "AA"}),
        json!({"kty": "EC", "kid": "key", "crv": "P-256", "x": "AA", "y": "AA"}),
        json!({"kty": "RSA", "kid": "key", "n": "", "e": ""}),
        json!({"kty": "RSA", "kid": "key", "n": "!", "e": "AQAB"}),
        json!({"kty": "RSA", "kid": 5}),
        json!(null),
        json!([]),
        json!("key"),
        encryption,
        RSA.jwk("key"),
    ];
    assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &strange, &token).await, jane());
    assert_eq!(
        authenticate_with(&JwsAlgorithm::ALL, &strange[..strange.len() - 1], &token).await,
        not_signed()
    );
    assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &[], &token).await, not_signed());

    let mut many: Vec<_> = (0..9_999).map(|number| OTHER_RSA.jwk(&number.to_string())).collect();
    many.push(RSA.jwk("key"));
    assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &many, &token).await, jane());
}

#[tokio::test]
async fn malformed_tokens() {
    let good = RSA.token("RS256", &claims(&json!({})));
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    let foreign = [
        String::new(),
        "opaque".to_owned(),
        payload.to_owned(),
        format!("{header}.{payload}"),
        format!("{header}.{payload}.{signature}.{signature}"),
        format!("{header}.!.{signature}"),
        format!("{header}.{payload}=.{signature}"),
        format!("{header}.bnVsbCBudWxs.{signature}"),
        format!("{{{header}.{payload}.{signature}"),
        json!({"payload": payload, "signatures": [{"protected": header, "signature": signature}]})
            .to_string(),
    ];
    for token in foreign {
        assert_eq!(
            authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token).await,
            Ok(None),
            "{token}"
        );
    }
    let broken = [
        format!("!.{payload}.{signature}"),
        format!(".{payload}.{signature}"),
        format!("bnVsbA.{payload}.{signature}"),
        format!("{header}.{payload}.!"),
    ];
    for token in broken {
        let found = authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token)
            .await
            .unwrap_err()
            .to_string();
        assert!(found.starts_with("oidc: verify token: oidc: malformed jwt: "), "{token}: {found}");
    }
    let altered = [
        format!("{header}.{payload}."),
        format!("{header}.{payload}.{}", signature.split_at(signature.len() - 4).0),
        format!("{header}.{payload}.{signature}AAAA"),
    ];
    for token in altered {
        assert_eq!(
            authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token).await,
            not_signed(),
            "{token}"
        );
    }
}

#[tokio::test]
async fn critical_extensions_are_refused() {
    let body = claims(&json!({})).to_string();
    let header = json!({"alg": "RS256", "kid": "key", "crit": ["exp"], "exp": 0});
    let token = RSA.token_of(&header, body.as_bytes());
    assert_eq!(authenticate_with(&JwsAlgorithm::ALL, &[RSA.jwk("key")], &token).await, not_signed());
}

#[tokio::test]
async fn the_last_of_two_equal_claims_counts() {
    let body = claims(&json!({})).to_string();
    let twice = |first: &str, last: &str| {
        let body = body
            .replace("\"username\":\"jane\"", &format!("\"username\":\"{first}\",\"username\":\"{last}\""));
        RSA.token_of(&json!({"alg": "RS256"}), body.as_bytes())
    };
    let found = authenticate_with(&JwsAlgorithm::ALL, &[RSA.jwk("key")], &twice("admin", "jane")).await;
    assert_eq!(found, jane());
    let found = authenticate_with(&JwsAlgorithm::ALL, &[RSA.jwk("key")], &twice("jane", "admin")).await;
    assert_eq!(found, Ok(Some(user("admin", &[]))));
}

#[tokio::test]
async fn large_tokens_are_accepted() {
    let padding = "a".repeat(1 << 20);
    let token = RSA.token("RS256", &claims(&json!({"padding": padding})));
    assert_eq!(authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token).await, jane());
    let deep = "[".repeat(1 << 19) + &"]".repeat(1 << 19);
    for payload in [deep, padding] {
        let token = RSA.token_of(&json!({"alg": "RS256"}), payload.as_bytes());
        assert_eq!(authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token).await, Ok(None));
    }
    let token = ".".repeat(1 << 20);
    assert_eq!(authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token).await, Ok(None));
}

#[tokio::test]
async fn unsigned_claims_are_not_decoded() {
    // Too deep for a recursive parser.
    let payload = format!(r#"{{"iss":"{ISSUER}","x":{}{}}}"#, "[".repeat(1000), "]".repeat(1000));
    let [own, other] =
        [&RSA, &OTHER_RSA].map(|key| key.token_of(&json!({"alg": "RS256"}), payload.as_bytes()));
    assert_eq!(authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &other).await, not_signed());
    let malformed = "oidc: verify token: oidc: malformed jwt: the payload is not a JSON object";
    let found = authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &own).await;
    assert_eq!(found, Err(AuthnError::Invalid(malformed.to_owned())));
}

#[tokio::test]
async fn the_size_of_a_header_is_limited() {
    let of = |length: usize| json!({"alg": "RS256", "x": ["a".repeat(length)]});
    let [usual, large] = [8 << 10, 64 << 10]
        .map(|length| RSA.token_of(&of(length), claims(&json!({})).to_string().as_bytes()));
    assert_eq!(authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &usual).await, jane());
    let malformed = "oidc: verify token: oidc: malformed jwt: the header is not well-formed";
    let found = authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &large).await;
    assert_eq!(found, Err(AuthnError::Invalid(malformed.to_owned())));
}

#[tokio::test]
async fn an_error_quotes_a_prefix_of_unsigned_input_only() {
    for name in ["x".repeat(30_000), "é".repeat(15_000), format!("a{}", "é".repeat(15_000))] {
        let token = unsigned(&json!({"alg": name}), claims(&json!({})).to_string().as_bytes()) + ".AAAA";
        let error = authenticate_with(&[JwsAlgorithm::RS256], &[RSA.jwk("key")], &token)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("unsupported algorithm") && error.len() < 300, "{error}");
    }
}
