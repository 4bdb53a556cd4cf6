//! What is no token, what is a bad one, and whom a token is for. The verdicts were seen of upstream's own package.

use super::*;

const OK: &str = "system:serviceaccount:ns:s for [\"api\"]";
const NONE: &str = "no opinion";
const BAD_SIGNATURE: &str = "go-jose/go-jose: error in cryptographic primitive";
const BAD_DATE: &str = "go-jose/go-jose/jwt: expected number value to unmarshal NumericDate";
const BAD_AUDIENCE: &str = "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience";
const HEADER: &str = r#"{"alg":"ES256"}"#;
const KUBERNETES: &str = r#""kubernetes.io":{"namespace":"ns","serviceaccount":{"name":"s","uid":"u"}}"#;

fn bed() -> Bed {
    Bed::new(Cluster { accounts: BTreeMap::from([("ns/s".to_owned(), account("u"))]), ..Cluster::default() })
}

const NO_OBJECT: &str = "json: the payload is no JSON object";

fn payload(claims: &str) -> String {
    format!(r#"{{"iss":"iss",{claims}{KUBERNETES}}}"#)
}

/// The three parts of a good token.
fn parts(bed: &Bed) -> (String, [String; 3]) {
    let token = bed.signer.sign(HEADER, &payload(r#""aud":"api","#));
    let parts: Vec<_> = token.split('.').map(str::to_owned).collect();
    let parts = parts.try_into().unwrap();
    (token, parts)
}

/// Each of these tokens must be judged like this.
fn judge<T: AsRef<str>>(bed: &Bed, cases: &[(&str, T, &str)]) {
    let bound = bed.bound();
    let wrong: Vec<_> = cases
        .iter()
        .map(|(name, token, expected)| (name, bed.ask(&bound, token.as_ref()).verdict, *expected))
        .filter(|(_, verdict, expected)| !verdict.starts_with(expected) || expected.is_empty())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_has_another_form_is_somebody_elses_token() {
    let bed = bed();
    let (token, [header, claims, signature]) = parts(&bed);
    let json = format!(r#"{{"payload":"{claims}","protected":"{header}","signature":"{signature}"}}"#);
    let cases = [
        ("good", token.clone(), OK),
        ("empty", String::new(), NONE),
        ("dots", "..".to_owned(), NONE),
        ("two parts", format!("{header}.{claims}"), NONE),
        ("four parts", format!("{token}.x"), NONE),
        ("a dot behind", format!("{token}."), NONE),
        ("a dot before", format!(".{token}"), NONE),
        ("padding", format!("{token}="), NONE),
        ("padding of the header", format!("{header}=.{claims}.{signature}"), NONE),
        ("padding of the payload", format!("{header}.{claims}=.{signature}"), NONE),
        ("the other alphabet", format!("{header}.{claims}.+/{signature}"), NONE),
        ("no base64", format!("{header}.{claims}.!"), NONE),
        ("JSON serialisation", json.clone(), NONE),
        ("JSON serialisation behind a blank", format!(" {json}"), NONE),
        ("JSON serialisation in three parts", format!(r#"{{"iss":"{token}"#), NONE),
        ("a megabyte", "a".repeat(1 << 20), NONE),
        ("a megabyte of dots", ".".repeat(1 << 20), NONE),
        ("a megabyte of nothing", "\0".repeat(1 << 20), NONE),
        ("no text in base64", "é.é.é".to_owned(), NONE),
    ];
    judge(&bed, &cases);
    assert_eq!(bed.cluster.asked(), ["serviceaccount ns/s"]);
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
        ("none", format!("{header}.{claims}."), BAD_SIGNATURE),
        ("alg none, none", format!("{none}."), BAD_SIGNATURE),
        ("of another", format!("{header}.{claims}.{forged}"), BAD_SIGNATURE),
        ("with another payload", format!("{header}.{claims}.{signature}").replacen('.', ".e30", 1), NONE),
        ("no header", format!(".{claims}.{signature}"), NONE),
    ];
    judge(&bed, &cases);
    let other = bed.signer.sign(HEADER, &payload(r#""aud":"api","jti":"x","#));
    let other = other.split('.').nth(1).unwrap();
    judge(&bed, &[("another's payload", format!("{header}.{other}.{signature}"), BAD_SIGNATURE)]);
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
    judge(&bed, &cases);
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
    judge(&bed, &cases);
}

/// Spellings and sizes that upstream takes of a key's holder, and that nobody makes.
#[test]
fn some_tokens_are_judged_more_strictly_than_upstream_does() {
    let bed = bed();
    let (token, [header, claims, signature]) = parts(&bed);
    let (before, behind) = claims.split_at(4);
    let deep = |depth| payload(&format!(r#""zz":{}{},"#, "[".repeat(depth), "]".repeat(depth)));
    let sign = |payload: &str| bed.signer.sign(HEADER, payload);
    let cases = [
        ("a blank before", format!(" {token}"), NONE),
        ("a blank behind", format!("{token} "), NONE),
        ("a line break behind", format!("{token}\n"), NONE),
        ("a line break within", format!("{header}.{before}\n{behind}.{signature}"), NONE),
        (
            "critical, and nothing",
            bed.signer.sign(r#"{"alg":"ES256","crit":[]}"#, &payload("")),
            BAD_SIGNATURE,
        ),
        ("not deep", sign(&deep(100)), OK),
        ("deep", sign(&deep(1000)), NO_OBJECT),
        ("deeper", sign(&deep(20_000)), NO_OBJECT),
        ("half a character", sign(&payload(r#""zz":"\ud800","#)), NO_OBJECT),
        ("a number beyond all", sign(&payload(r#""zz":1e999,"#)), NO_OBJECT),
        ("a megabyte in a claim", sign(&payload(&format!(r#""zz":"{}","#, "a".repeat(1 << 20)))), OK),
    ];
    judge(&bed, &cases);
}

#[test]
fn a_token_is_for_the_audiences_it_names() {
    let legacy = "authentication.k8s.io/legacy-token";
    // What the token names; what is asked for; the audiences of this API server; the verdict.
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
        // Who asks may ask for others.
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
        // A token for nobody is for this API server.
        ("", &[], &["api", "more"], "[\"api\", \"more\"] legacy"),
        (r#""aud":[],"#, &[], &["api"], "[\"api\"] legacy"),
        (
            "",
            &["vault"],
            &["api"],
            "token audiences [\"api\"] is invalid for the target audiences [\"vault\"] legacy",
        ),
        // Without audiences of its own, it asks for none.
        (r#""aud":"x","#, &[], &[], "[]"),
        ("", &[], &[], "[] legacy"),
        (r#""aud":null,"#, &[], &["api"], BAD_AUDIENCE),
        (r#""aud":1,"#, &[], &["api"], BAD_AUDIENCE),
        (r#""aud":["api",1],"#, &[], &["api"], BAD_AUDIENCE),
    ];
    for (claim, asked, own, expected) in cases {
        let mut bed = bed();
        bed.audiences = audiences_of(own);
        // Of two reasons, the audience is told.
        let expiry = if expected.starts_with('[') { NOW } else { 1 };
        let token = bed.signer.sign(HEADER, &payload(&format!(r#""exp":{expiry},"sub":"me",{claim}"#)));
        let said = bed.ask_for(&bed.bound(), &token, asked);
        let mut verdict = said.verdict.replace("system:serviceaccount:ns:s for ", "");
        let annotation = said.noted.annotations.get(legacy);
        assert_eq!(bed.counters.legacy.get(), u64::from(annotation.is_some()));
        if let Some(subject) = annotation {
            assert_eq!(subject, "me");
            verdict.push_str(" legacy");
        }
        let fits = if expected == BAD_AUDIENCE { verdict.starts_with(expected) } else { verdict == expected };
        assert!(fits, "{claim} of {asked:?} at {own:?}: {verdict}, expected {expected}");
    }
}

#[test]
fn every_refusal_says_why() {
    let bed = bed();
    let (token, [header, claims, _]) = parts(&bed);
    let none = bed.signer.sign(r#"{"alg":"none"}"#, &payload(""));
    let other = bed.signer.sign(r#"{"alg":"ES256","kid":"x"}"#, &payload(""));
    let mut reasons: Vec<_> =
        [format!("{header}.{claims}."), none, other, "x".to_owned(), "x.y.z".to_owned()]
            .iter()
            .chain([&bed.signer.sign(HEADER, &payload("").replace("\"iss\":\"iss\"", "\"iss\":\"foo\""))])
            .map(|token| bed.ask(&bed.bound(), token).noted.steps.pop().unwrap().detail)
            .collect();
    let all = reasons.len();
    reasons.sort();
    reasons.dedup();
    assert_eq!(reasons.len(), all, "{reasons:#?}");
    let checks: Vec<_> =
        bed.ask(&bed.bound(), &token).noted.steps.into_iter().map(|step| step.check.to_string()).collect();
    assert_eq!(checks, ["iss", "signature", "aud", "nbf", "exp", "iat", "serviceaccount", "user"]);
}

/// What `serde_json` calls some values of its own is a name like any other.
#[test]
fn no_name_of_a_member_has_a_meaning_of_its_own() {
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
    judge(&bed, &cases);
}
