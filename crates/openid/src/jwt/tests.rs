//! Parsing and verification of tokens.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::testing::Signer;
use super::*;

#[test]
fn malformed_tokens_are_rejected() {
    let cases = [
        ("", Some(MalformedJwt::Parts)),
        ("a.b", Some(MalformedJwt::Parts)),
        ("e30.e30.e30.e30", Some(MalformedJwt::Parts)),
        ("e30.e30.", None),
        ("e30=.e30.", Some(MalformedJwt::Base64("header"))),
        ("e30.e31.", None),
        ("e30.W10.", Some(MalformedJwt::Json("payload"))),
        ("e30.e30.+", Some(MalformedJwt::Base64("signature"))),
        // {"kid":1}, {"kid":null}, {"a":1,"a":1}, {"kid":"a","kid":"a"}
        ("eyJraWQiOjF9.e30.", Some(MalformedJwt::Header)),
        ("eyJraWQiOm51bGx9.e30.", None),
        ("eyJhIjoxLCJhIjoxfQ.e30.", Some(MalformedJwt::Header)),
        ("eyJraWQiOiJhIiwia2lkIjoiYSJ9.e30.", Some(MalformedJwt::Header)),
    ];
    for (token, expected) in cases {
        assert_eq!(Jwt::parse(token).err(), expected, "{token:?}");
    }
}

#[test]
fn the_issuer_is_read_without_the_header_and_the_signature() {
    let of = |payload: &str| unverified_issuer(&format!("e30.{}.", URL_SAFE_NO_PAD.encode(payload)));
    assert_eq!(of(r#"{"iss":"a","iss":"b"}"#).as_deref(), Some("b"));
    for empty in ["{}", r#"{"iss":null}"#] {
        assert_eq!(of(empty).as_deref(), Some(""), "{empty}");
    }
    for none in [r#"{"iss":5}"#, r#"{"iss":"a"}{}"#, r#"["iss"]"#, "", "{\"iss\":\"\u{0}\"}"] {
        assert_eq!(of(none), None, "{none:?}");
    }
    let long =
        |length: usize| of(&format!(r#"{{"iss":"{}"}}"#, "a".repeat(length))).map(|issuer| issuer.len());
    assert_eq!((long(MAX_ISSUER_SIZE), long(MAX_ISSUER_SIZE + 1)), (Some(MAX_ISSUER_SIZE), None));
    assert_eq!(unverified_issuer("!.eyJpc3MiOiJhIn0.!").as_deref(), Some("a"));
    assert_eq!(unverified_issuer("e30.eyJpc3MiOiJhIn0.e30."), None);
}

#[test]
fn an_algorithm_is_verified_only_by_a_key_of_its_type() {
    let signers = ["ES256", "ES384", "ES512", "RS256", "RS384", "PS256"].map(Signer::new);
    for signer in &signers {
        let token = signer.sign(&signer.header(), "{}");
        let jwt = Jwt::parse(&token).unwrap();
        for other in &signers {
            let same = signer.algorithm == other.algorithm;
            let verdict = jwt.is_signed_by(&other.public);
            assert_eq!(verdict, same, "{} by {}", signer.algorithm, other.algorithm);
        }
        let mut damaged = jwt.signature.clone();
        damaged[3] ^= 1;
        assert!(!Jwt { signature: damaged, ..jwt }.is_signed_by(&signer.public), "{}", signer.algorithm);
    }
}

#[test]
fn headers_with_crit_or_b64_are_not_verified() {
    let signer = Signer::new("ES256");
    let cases = [
        (r#"{"alg":"ES256"}"#, true),
        (r#"{"alg":"ES256","b64":true}"#, true),
        (r#"{"alg":"ES256","b64":false}"#, false),
        (r#"{"alg":"ES256","b64":null}"#, false),
        (r#"{"alg":"ES256","crit":["exp"],"exp":1}"#, false),
        (r#"{"alg":"ES256","crit":[]}"#, false),
        (r#"{"alg":"none"}"#, false),
        (r#"{"alg":"HS256"}"#, false),
        (r#"{"alg":"ES384"}"#, false),
        (r#"{"alg":1}"#, false),
        ("{}", false),
    ];
    for (header, expected) in cases {
        let token = signer.sign(header, "{}");
        assert_eq!(Jwt::parse(&token).unwrap().is_signed_by(&signer.public), expected, "{header}");
    }
}

#[test]
fn a_token_without_kid_is_tried_with_a_limited_number_of_keys() {
    let [own, other] = ["ES256", "ES256"].map(Signer::new);
    let of = |header: &str| own.sign(header, "{}");
    let [unnamed, named] = [of(r#"{"alg":"ES256"}"#), of(&own.header())];
    let among = |others: usize| {
        let mut keys = vec![other.public.clone(); others];
        keys.push(own.public.clone());
        [&unnamed, &named].map(|token| {
            Jwt::parse(token).unwrap().is_signed_by_one_of(&keys, VerificationBudget::CONFIGURED)
        })
    };
    assert_eq!(among(99), [true, true]);
    assert_eq!(among(100), [false, true]);
}
