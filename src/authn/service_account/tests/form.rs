//! Token format, claim types and audiences. The expected verdicts were observed with Kubernetes' own package.

use super::*;

const OK: &str = "system:serviceaccount:ns:s for [\"api\"]";
const NONE: &str = "no opinion";
const BAD_SIGNATURE: &str = "go-jose/go-jose: error in cryptographic primitive";
const BAD_DATE: &str = "go-jose/go-jose/jwt: expected number value to unmarshal NumericDate";
const BAD_AUDIENCE: &str = "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience";
const HEADER: &str = r#"{"alg":"ES256"}"#;
const KUBERNETES: &str = r#""kubernetes.io":{"namespace":"ns","serviceaccount":{"name":"s","uid":"u"}}"#;

fn bed() -> TestBed {
    TestBed::new(FakeApiServer {
        accounts: BTreeMap::from([("ns/s".to_owned(), account("u"))]),
        ..FakeApiServer::default()
    })
}

const NO_OBJECT: &str = "json: the payload is not a JSON object";

fn payload(claims: &str) -> String {
    format!(r#"{{"iss":"iss",{claims}{KUBERNETES}}}"#)
}

/// A valid token and its three parts.
fn parts(bed: &TestBed) -> (String, [String; 3]) {
    let token = bed.signer.sign(HEADER, &payload(r#""aud":"api","#));
    let parts: Vec<_> = token.split('.').map(str::to_owned).collect();
    let parts = parts.try_into().unwrap();
    (token, parts)
}

/// Checks the verdict of each token.
fn check_verdicts<T: AsRef<str>>(bed: &TestBed, cases: &[(&str, T, &str)]) {
    let bound = bed.bound();
    let wrong: Vec<_> = cases
        .iter()
        .map(|(name, token, expected)| (name, bed.authenticate(&bound, token.as_ref()).verdict, *expected))
        .filter(|(_, verdict, expected)| !verdict.starts_with(expected) || expected.is_empty())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn tokens_in_another_format_are_ignored() {
    let bed = bed();
    let (token, [header, claims, signature]) = parts(&bed);
    let json = format!(r#"{{"payload":"{claims}","protected":"{header}","signature":"{signature}"}}"#);
    let cases = [
        ("good", token.clone(), OK),
        ("empty", String::new(), NONE),
        ("dots", "..".to_owned(), NONE),
        ("two parts", format!("{header}.{claims}"), NONE),
        ("four parts", format!("{token}.x"), NONE),
        ("a trailing dot", format!("{token}."), NONE),
        ("a leading dot", format!(".{token}"), NONE),
        ("padding", format!("{token}="), NONE),
        ("padding of the header", format!("{header}=.{claims}.{signature}"), NONE),
        ("padding of the payload", format!("{header}.{claims}=.{signature}"), NONE),
        ("the other alphabet", format!("{header}.{claims}.+/{signature}"), NONE),
        ("not base64", format!("{header}.{claims}.!"), NONE),
        ("JSON serialization", json.clone(), NONE),
        ("JSON serialization after a space", format!(" {json}"), NONE),
        ("JSON serialization in three parts", format!(r#"{{"iss":"{token}"#), NONE),
        ("a megabyte", "a".repeat(1 << 20), NONE),
        ("a megabyte of dots", ".".repeat(1 << 20), NONE),
        ("a megabyte of NUL", "\0".repeat(1 << 20), NONE),
        ("not ASCII", "é.é.é".to_owned(), NONE),
    ];
    check_verdicts(&bed, &cases);
    assert_eq!(bed.cluster.lookups(), ["serviceaccount ns/s"]);
}

#[test]
fn a_bad_signature_or_header_is_refused() {
    let bed = bed();
    let (token, [header, claims, signature]) = parts(&bed);
    let forged = parts(&self::bed()).1[2].clone();
    let none = bed.signer.sign(r#"{"alg":"none"}"#, &payload(""));
    let none = none.rsplit_once('.').unwrap().0;
    let cases = [
        ("truncated", token.get(..token.len() - 4).unwrap().to_owned(), BAD_SIGNATURE),
        ("longer", format!("{token}AAAA"), BAD_SIGNATURE),
        ("no signature", format!("{header}.{claims}."), BAD_SIGNATURE),
        ("alg none, no signature", format!("{none}."), BAD_SIGNATURE),
        ("of another key", format!("{header}.{claims}.{forged}"), BAD_SIGNATURE),
        ("with another payload", format!("{header}.{claims}.{signature}").replacen('.', ".e30", 1), NONE),
        ("no header", format!(".{claims}.{signature}"), NONE),
    ];
    check_verdicts(&bed, &cases);
    let other = bed.signer.sign(HEADER, &payload(r#""aud":"api","jti":"x","#));
    let other = other.split('.').nth(1).unwrap();
    check_verdicts(&bed, &[("another's payload", format!("{header}.{other}.{signature}"), BAD_SIGNATURE)]);
    let headers = [
        (r#"{"alg":"ES256","zz":1,"ZZ":2}"#, OK),
        (r#"{"alg":"ES256","b64":true}"#, OK),
        (r#"{"alg":"ES256","kid":1}"#, NONE),
        (r#"{"alg":"ES256","kid":"x","kid":""}"#, NONE),
        (r#"{"alg":"ES256","zz":1,"zz":2}"#, NONE),
        (r#"{"alg":"ES256"} x"#, NONE),
        ("[]", NONE),
        ("{", NONE),
        ("{}", BAD_SIGNATURE),
        (r#"{"alg":"none"}"#, BAD_SIGNATURE),
        (r#"{"alg":"HS256"}"#, BAD_SIGNATURE),
        (r#"{"alg":"RS256"}"#, BAD_SIGNATURE),
        (r#"{"alg":"ES384"}"#, BAD_SIGNATURE),
        (r#"{"alg":"es256"}"#, BAD_SIGNATURE),
        (r#"{"alg":"ES256","crit":["x"],"x":1}"#, BAD_SIGNATURE),
        (r#"{"alg":"ES256","b64":false}"#, BAD_SIGNATURE),
    ];
    let cases = headers
        .map(|(header, expected)| (header, bed.signer.sign(header, &payload(r#""aud":"api","#)), expected));
    check_verdicts(&bed, &cases);
}

#[test]
fn claims_of_the_wrong_type_or_twice_are_refused() {
    let bed = bed();
    let twice = "json: duplicate key";
    let of_another_type = "json: invalid type";
    let mut cases = vec![
        (payload(""), OK),
        (payload(r#""zz":{"a":1,"a":2},"#), OK),
        (payload(r#""zz":1,"ZZ":1,"#), OK),
        (payload(r#""zz":1,"zz":1,"#), twice),
        (payload(r#""zz":1,"\u007az":1,"#), twice),
        (payload("").replace(r#""namespace""#, r#""zz":1,"zz":1,"namespace""#), twice),
        (payload("").replace(r#""name""#, r#""zz":1,"zz":1,"name""#), twice),
        (payload("").replace("\"iss\"", " \n\"iss\""), OK),
        (format!("{} \n", payload("")), OK),
        (payload(r#""iss":"iss","#), twice),
        (payload(r#""iss":"other","#), NONE),
        (payload(r#""iss":"other","iss":"iss","#), twice),
        (payload(r#""aud":"api","aud":"api","#), twice),
        (payload(r#""kubernetes.io":{},"#), twice),
        (payload("").replace(r#""name""#, r#""name":"x","name""#), twice),
        (payload(r#""jti":1,"#), of_another_type),
        (payload(r#""sub":1,"#), of_another_type),
        (payload("").replace(r#"{"namespace""#, r#"[],"x":{"namespace""#), "json: invalid"),
        (payload("").replace(r#""kubernetes.io":{"#, r#""kubernetes.io":"x","x":{"#), of_another_type),
        (payload("").replace(r#""name":"s""#, r#""name":1"#), of_another_type),
        (payload("").replace(r#""name":"s""#, r#""name":null"#), "resource name may not be empty"),
        (payload("").replace(r#""name":"s""#, r#""Name":"s""#), "resource name may not be empty"),
        (
            payload(r#""x":"#).replace(KUBERNETES, r#"1,"kubernetes.io":["ns",{"name":"s","uid":"u"}]"#),
            of_another_type,
        ),
        (payload("").replace(r#"{"name":"s","uid":"u"}"#, r#"["s","u"]"#), of_another_type),
        (payload("").replace(r#"{"namespace""#, r#"{"warnafter":"1","namespace""#), BAD_DATE),
        (format!("{} x", payload("")), NONE),
        (format!("\u{feff}{}", payload("")), NONE),
        ("[]".to_owned(), NONE),
        ("null".to_owned(), NONE),
        (String::new(), NONE),
        (r#"{"iss":"iss""#.to_owned(), NONE),
        (r#"{"iss":1}"#.to_owned(), NONE),
        (r#"{"iss":null}"#.to_owned(), NONE),
        (r#"{"iss":["iss"]}"#.to_owned(), NONE),
        ("{}".to_owned(), NONE),
    ];
    for (claim, expected) in [
        (r#""exp":1e17,"#, OK),
        (r#""exp":9223371974719178751,"#, OK),
        (r#""exp":9223371974719179775,"#, BAD_DATE),
        (r#""nbf":-1e300,"#, OK),
        (r#""nbf":1e17,"#, "service account token is not valid yet"),
    ] {
        cases.push((payload(claim), expected));
    }
    for date in ["exp", "nbf", "iat"] {
        for value in ["\"1\"", "{}", "[]", "true", "1e300", "9223372036854775807"] {
            cases.push((payload(&format!(r#""{date}":{value},"#)), BAD_DATE));
        }
    }
    let cases: Vec<_> = cases
        .iter()
        .map(|(payload, expected)| (payload.as_str(), bed.signer.sign(HEADER, payload), *expected))
        .collect();
    check_verdicts(&bed, &cases);
}

/// Encodings and sizes that kube-apiserver accepts with a valid signature, and that no issuer produces.
#[test]
fn some_tokens_are_checked_more_strictly_than_by_kube_apiserver() {
    let bed = bed();
    let (token, [header, claims, signature]) = parts(&bed);
    let (before, behind) = claims.split_at(4);
    let deep = |depth| payload(&format!(r#""zz":{}{},"#, "[".repeat(depth), "]".repeat(depth)));
    let sign = |payload: &str| bed.signer.sign(HEADER, payload);
    let cases = [
        ("a leading space", format!(" {token}"), NONE),
        ("a trailing space", format!("{token} "), NONE),
        ("a trailing line break", format!("{token}\n"), NONE),
        ("a line break inside", format!("{header}.{before}\n{behind}.{signature}"), NONE),
        ("an empty crit", bed.signer.sign(r#"{"alg":"ES256","crit":[]}"#, &payload("")), BAD_SIGNATURE),
        ("not deep", sign(&deep(100)), OK),
        ("deep", sign(&deep(1000)), NO_OBJECT),
        ("deeper", sign(&deep(20_000)), NO_OBJECT),
        ("an unpaired surrogate", sign(&payload(r#""zz":"\ud800","#)), NO_OBJECT),
        ("a number out of range", sign(&payload(r#""zz":1e999,"#)), NO_OBJECT),
        ("a megabyte in a claim", sign(&payload(&format!(r#""zz":"{}","#, "a".repeat(1 << 20)))), OK),
    ];
    check_verdicts(&bed, &cases);
}

#[test]
fn a_token_is_valid_for_the_audiences_it_names() {
    let legacy = "authentication.k8s.io/legacy-token";
    // Token claim; requested audiences; audiences of this API server; verdict.
    let cases: [(&str, &[&str], &[&str], &str); 17] = [
        (r#""aud":"api","#, &[], &["api"], "[\"api\"]"),
        (r#""aud":["api"],"#, &[], &["api"], "[\"api\"]"),
        (r#""aud":["x","api","y"],"#, &[], &["y", "api"], "[\"y\", \"api\"]"),
        (
            r#""aud":["a","b"],"#,
            &[],
            &["api"],
            "token audiences [\"a\" \"b\"] is invalid for the target audiences [\"api\"]",
        ),
        (
            r#""aud":"","#,
            &[],
            &["api"],
            "token audiences [\"\"] is invalid for the target audiences [\"api\"]",
        ),
        (
            r#""aud":"API","#,
            &[],
            &["api"],
            "token audiences [\"API\"] is invalid for the target audiences [\"api\"]",
        ),
        // A caller may request other audiences.
        (r#""aud":["vault"],"#, &["vault", "x"], &["api"], "[\"vault\"]"),
        (
            r#""aud":["api"],"#,
            &["vault"],
            &["api"],
            "token audiences [\"api\"] is invalid for the target audiences [\"vault\"]",
        ),
        (
            r#""aud":"a\"b","#,
            &["c\u{7}"],
            &["api"],
            "token audiences [\"a\\\"b\"] is invalid for the target audiences [\"c\\a\"]",
        ),
        // A token without audiences is valid for this API server.
        ("", &[], &["api", "more"], "[\"api\", \"more\"] legacy"),
        (r#""aud":[],"#, &[], &["api"], "[\"api\"] legacy"),
        (
            "",
            &["vault"],
            &["api"],
            "token audiences [\"api\"] is invalid for the target audiences [\"vault\"] legacy",
        ),
        // An API server without audiences requires none.
        (r#""aud":"x","#, &[], &[], "[]"),
        ("", &[], &[], "[] legacy"),
        (r#""aud":null,"#, &[], &["api"], BAD_AUDIENCE),
        (r#""aud":1,"#, &[], &["api"], BAD_AUDIENCE),
        (r#""aud":["api",1],"#, &[], &["api"], BAD_AUDIENCE),
    ];
    for (claim, requested, own, expected) in cases {
        let mut bed = bed();
        bed.audiences = audiences_of(own);
        // The audience is checked before the expiry.
        let expiry = if expected.starts_with('[') { NOW } else { 1 };
        let token = bed.signer.sign(HEADER, &payload(&format!(r#""exp":{expiry},"sub":"me",{claim}"#)));
        let outcome = bed.authenticate_for(&bed.bound(), &token, requested);
        let mut verdict = outcome.verdict.replace("system:serviceaccount:ns:s for ", "");
        let annotation = outcome.noted.annotations.get(legacy);
        assert_eq!(bed.counters.legacy.get(), u64::from(annotation.is_some()));
        if let Some(subject) = annotation {
            assert_eq!(subject, "me");
            verdict.push_str(" legacy");
        }
        let fits = if expected == BAD_AUDIENCE { verdict.starts_with(expected) } else { verdict == expected };
        assert!(fits, "{claim} of {requested:?} at {own:?}: {verdict}, expected {expected}");
    }
}

#[test]
fn every_refusal_has_a_distinct_reason() {
    let bed = bed();
    let (token, [header, claims, _]) = parts(&bed);
    let none = bed.signer.sign(r#"{"alg":"none"}"#, &payload(""));
    let other = bed.signer.sign(r#"{"alg":"ES256","kid":"x"}"#, &payload(""));
    let mut reasons: Vec<_> =
        [format!("{header}.{claims}."), none, other, "x".to_owned(), "x.y.z".to_owned()]
            .iter()
            .chain([&bed.signer.sign(HEADER, &payload("").replace("\"iss\":\"iss\"", "\"iss\":\"foo\""))])
            .map(|token| bed.authenticate(&bed.bound(), token).noted.steps.pop().unwrap().detail)
            .collect();
    let all = reasons.len();
    reasons.sort();
    reasons.dedup();
    assert_eq!(reasons.len(), all, "{reasons:#?}");
    let checks: Vec<_> = bed
        .authenticate(&bed.bound(), &token)
        .noted
        .steps
        .into_iter()
        .map(|step| step.check.to_string())
        .collect();
    assert_eq!(checks, ["iss", "signature", "aud", "nbf", "exp", "iat", "serviceaccount", "user"]);
}

/// Names that `serde_json` uses internally have no special meaning.
#[test]
fn internal_names_of_serde_json_are_ordinary_members() {
    let bed = bed();
    let raw = |json: &str| format!(r#"{{"$serde_json::private::RawValue":{}}}"#, json!(json));
    let mut cases = vec![
        (payload(&format!(r#""zz":{},"#, raw("no JSON"))), OK),
        (payload(&format!(r#""aud":{},"#, raw("\"api\""))), BAD_AUDIENCE),
        (payload(&format!(r#""aud":[{}],"#, raw("\"api\""))), BAD_AUDIENCE),
        (payload(&format!(r#""sub":{},"#, raw("\"s\""))), "json: invalid type"),
    ];
    for date in ["exp", "nbf", "iat"] {
        cases.push((payload(&format!(r#""{date}":{},"#, raw(&NOW.to_string()))), BAD_DATE));
    }
    let cases: Vec<_> = cases
        .iter()
        .map(|(payload, expected)| (payload.as_str(), bed.signer.sign(HEADER, payload), *expected))
        .collect();
    check_verdicts(&bed, &cases);
}
