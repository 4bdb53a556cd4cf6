//! Key sets of issuers with unusual members, compared with kube-apiserver's own library: both verify the same tokens with a key.
//! Stricter only as `docs/conformance.md` declares, and never more lenient. `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change the
//! seed and the number of key sets.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use portcullis_openid::jwt::{Jwt, VerificationBudget, key_set};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

/// A key with a token for each of its algorithms.
struct Key {
    members: Vec<(&'static str, Value)>,
    /// The numbers among the members, in bytes.
    numbers: Vec<(&'static str, Vec<u8>)>,
    tokens: Vec<String>,
}

struct Input {
    keys: String,
    token: String,
    /// Whether the member is one that only the library looks at.
    declared: bool,
}

fn token(algorithm: &str, key_id: Option<&str>, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let mut header = json!({"alg": algorithm});
    if let Some(key_id) = key_id {
        header["kid"] = json!(key_id);
    }
    let [header, claims] = [header, json!({"sub": "x"})].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let input = format!("{header}.{claims}");
    let signature = sign(input.as_bytes());
    format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn rsa() -> Key {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let public: PublicKeyComponents<Vec<u8>> = pair.public_key().into();
    let sign = |padding: &'static dyn RsaEncoding| {
        let pair = &pair;
        move |input: &[u8]| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(padding, &SystemRandom::new(), input, &mut signature).unwrap();
            signature
        }
    };
    let algorithms: [(&str, &'static dyn RsaEncoding); 3] = [
        ("RS256", &signature::RSA_PKCS1_SHA256),
        ("RS512", &signature::RSA_PKCS1_SHA512),
        ("PS384", &signature::RSA_PSS_SHA384),
    ];
    let tokens = algorithms
        .iter()
        .flat_map(|(name, padding)| [Some("key"), None].map(|key_id| token(name, key_id, sign(*padding))));
    Key {
        members: vec![
            ("kty", json!("RSA")),
            ("kid", json!("key")),
            ("alg", json!("RS256")),
            ("use", json!("sig")),
        ],
        numbers: vec![("n", public.n), ("e", public.e)],
        tokens: tokens.collect(),
    }
}

fn elliptic(curve: &'static str, name: &str, algorithm: &'static EcdsaSigningAlgorithm) -> Key {
    let pair = EcdsaKeyPair::generate(algorithm).unwrap();
    let point = pair.public_key().as_ref()[1..].to_vec();
    let (x, y) = point.split_at(point.len() / 2);
    let sign = |input: &[u8]| pair.sign(&SystemRandom::new(), input).unwrap().as_ref().to_vec();
    Key {
        members: vec![
            ("kty", json!("EC")),
            ("kid", json!("key")),
            ("crv", json!(curve)),
            ("use", json!("sig")),
        ],
        numbers: vec![("x", x.to_vec()), ("y", y.to_vec())],
        tokens: [Some("key"), None].map(|key_id| token(name, key_id, sign)).into(),
    }
}

/// Values that a member may have by mistake.
const VALUES: &[&str] = &[
    "null",
    "\"\"",
    "\"key\"",
    "\"sig\"",
    "\"enc\"",
    "\"RSA\"",
    "\"rsa\"",
    "\"EC\"",
    "\"OKP\"",
    "\"P-256\"",
    "\"P256\"",
    "\"P-384\"",
    "\"RS256\"",
    "\"ES256\"",
    "\"none\"",
    "\"AQAB\"",
    "\"AAEAAQ\"",
    "\"AAAAAAAAAQAB\"",
    "\"Aw\"",
    "\"AQ\"",
    "\"AA\"",
    "\"AQAB=\"",
    "\"AQ AB\"",
    "\"AQ\\nAB\"",
    "\"AQ\\r\\nAB\"",
    "\"+/\"",
    "5",
    "1.5",
    "true",
    "[]",
    "{}",
    "[\"verify\"]",
    "[\"sign\", 5]",
    "\"da39a3ee5e6b4b0d3255bfef95601890afd80709\"",
    "\"ZGEzOWEzZWU1ZTZiNGIwZDMyNTViZmVmOTU2MDE4OTBhZmQ4MDcwOQ\"",
    "\"2jmj7l5rSw0yVb_vlWAYkK_YBwk\"",
    "[5]",
    "\"\\ud83d\\ude00\"",
];
/// The members that are read, and some that are not.
const NAMES: &[&str] = &[
    "kty", "kid", "alg", "use", "crv", "n", "e", "x", "y", "k", "d", "p", "qi", "x5t", "x5t#S256", "key_ops",
    "ext", "iat", "Kid", "N", "x5t#s256", "revoked", "",
];

/// The number in an unusual spelling.
fn spelled(rng: &mut Rng, number: &[u8]) -> String {
    let plain = URL_SAFE_NO_PAD.encode(number);
    let with_zeros = |count: usize| URL_SAFE_NO_PAD.encode([&vec![0; count], number].concat());
    let at = rng.below(plain.len());
    let (head, tail) = plain.split_at(at);
    match rng.below(12) {
        0 => with_zeros(1),
        1 => with_zeros(2),
        2 => with_zeros(40),
        3 => STANDARD.encode(number),
        4 => format!("{plain}="),
        5 => format!("{head}\\n{tail}"),
        6 => format!("{head}\\r\\n{tail}"),
        7 => format!("{head} {tail}"),
        8 => URL_SAFE_NO_PAD.encode(&number[..number.len() - 1]),
        9 => URL_SAFE_NO_PAD.encode([number, &[0]].concat()),
        10 => head.to_owned(),
        _ => format!("{plain}A"),
    }
}

fn input(rng: &mut Rng, keys: &[Key]) -> Input {
    let key = rng.pick(keys);
    let token = rng.pick(&key.tokens).clone();
    let mut members: Vec<(String, String)> =
        key.members.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
    for (name, number) in &key.numbers {
        let text = if rng.one_in(4) { spelled(rng, number) } else { URL_SAFE_NO_PAD.encode(number) };
        members.push(((*name).to_owned(), format!("\"{text}\"")));
    }
    for _ in 0..rng.below(3) {
        let (name, value) = (*rng.pick(NAMES), *rng.pick(VALUES));
        match members.iter_mut().find(|(member, _)| member == name) {
            Some((_, old)) => value.clone_into(old),
            None => members.push((name.to_owned(), value.to_owned())),
        }
    }
    if rng.one_in(10) {
        members.remove(rng.below(members.len()));
    }
    let is_for_signatures = members
        .iter()
        .all(|(name, value)| name != "use" || matches!(value.as_str(), "\"sig\"" | "\"\"" | "null"));
    let members = rng.shuffled(members);
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    let keys = format!("{{\"keys\": [{{{}}}]}}", members.join(", "));
    Input { keys, token, declared: !is_for_signatures }
}

#[test]
fn keys_of_issuers_are_read_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("keysets") else { return };
    let mut rng = Rng(seed());
    let keys = [
        rsa(),
        elliptic("P-256", "ES256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        elliptic("P-384", "ES384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        elliptic("P-521", "ES512", &signature::ECDSA_P521_SHA512_FIXED_SIGNING),
    ];
    let cases: Vec<Input> = (0..inputs(6_000)).map(|_| input(&mut rng, &keys)).collect();
    let words = program.compare(
        "key sets",
        &cases,
        |case| json!({"keys": case.keys, "token": case.token}),
        |case| format!("{} {}", case.keys, case.token),
        |case, answer| {
            let token = Jwt::parse(&case.token).unwrap();
            let ours = key_set::read(case.keys.as_bytes())
                .is_ok_and(|keys| token.is_signed_by_one_of(&keys, VerificationBudget::PUBLISHED));
            match (ours, answer["verified"] == true) {
                (true, true) => Ok("verified"),
                (false, false) => Ok("refused"),
                // D-issuer-key-set
                (false, true) if case.declared => Ok("not for signatures"),
                (ours, _) => Err(format!("ours {ours}, theirs {answer}")),
            }
        },
    );
    words.occurred(&["verified", "refused", "not for signatures"]);
}
