use super::*;
use serde_json::json;

fn sent() -> UserInfo {
    let mut user = UserInfo::named("check");
    user.uid = Some("7".to_owned());
    user.groups = vec!["a".to_owned(), "b".to_owned()];
    user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
    user
}

fn known() -> Certificate {
    Certificate::Known("gateway".to_owned())
}

fn judged(status: u16, body: &str) -> Option<Result<Accepted, Fault>> {
    judge(&sent(), StatusCode::from_u16(status).unwrap(), body.as_bytes(), known())
}

#[test]
fn a_review_must_come_back_as_it_was_sent() {
    let review = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut user = json!({"username": "check", "uid": "7", "groups": ["a", "b"], "extra": {"k": ["v"]}});
        change(&mut user);
        judged(201, &json!({"status": {"userInfo": user}}).to_string())
    };
    let set = |field: &'static str, value: serde_json::Value| {
        review(&move |user: &mut serde_json::Value| user[field] = value.clone())
    };
    assert_eq!(review(&|_| {}), Some(Ok(Accepted::Whole)));
    assert_eq!(set("uid", json!("")), Some(Ok(Accepted::WithoutUid)));
    assert_eq!(set("uid", json!("8")), Some(Err(Fault::Differs(vec!["uid"]))));
    assert_eq!(set("groups", json!(["b", "a"])), Some(Err(Fault::Differs(vec!["groups"]))), "in order");
    assert_eq!(set("groups", json!(["a", "b", "c"])), Some(Err(Fault::Differs(vec!["groups"]))));
    assert_eq!(set("extra", json!({})), Some(Err(Fault::Differs(vec!["extra"]))));
    assert_eq!(set("extra", json!({"k": ["v"], "more": ["x"]})), Some(Err(Fault::Differs(vec!["extra"]))));
    assert_eq!(set("username", json!("eve")), Some(Err(Fault::SomeoneElse("eve".to_owned(), known()))));
    assert_eq!(
        review(&|user| *user = json!({"username": "check"})),
        Some(Err(Fault::Differs(vec!["groups", "extra"])))
    );
}

#[test]
fn other_answers_say_what_is_wrong() {
    let forbidden =
        |user: &str, what: &str| json!({"message": format!("x is forbidden: User \"{user}\" cannot {what}")});
    let cases = [
        (401, json!({}), Some(Fault::Unauthorized(known()))),
        (403, forbidden("check", "create resource"), Some(Fault::Forbidden)),
        (403, forbidden("eve", "create resource"), Some(Fault::SomeoneElse("eve".to_owned(), known()))),
        (
            403,
            forbidden("eve", "impersonate resource \"users\""),
            Some(Fault::MayNotImpersonate("eve".to_owned())),
        ),
        (403, json!({"message": "no"}), Some(Fault::Odd(403))),
        (404, json!({}), Some(Fault::TooOld)),
        (302, json!({}), Some(Fault::Odd(302))),
        (201, json!({"kind": "Pod"}), Some(Fault::Odd(201))),
        // Neither good nor bad: it is starting, overloaded or ending.
        (429, json!({}), None),
        (500, json!({}), None),
        (503, json!({}), None),
    ];
    for (status, body, expected) in cases {
        assert_eq!(judged(status, &body.to_string()), expected.map(Err), "{status} {body}");
    }
}

#[test]
fn the_advice_names_what_to_change() {
    let headers = IdentityMode::RequestHeader;
    let impersonate = IdentityMode::Impersonate;
    let unknown = Certificate::of(CertificateRequest::ForOthers, Some(("gateway", "CN=front")));
    let cases: &[(Fault, IdentityMode, &[&str])] = &[
        (Fault::Unauthorized(known()), headers, &["--requestheader-allowed-names contains \"gateway\""]),
        (
            Fault::Unauthorized(unknown),
            headers,
            &["knows no CA \"CN=front\"", "--requestheader-client-ca-file"],
        ),
        (
            Fault::Unauthorized(Certificate::of(CertificateRequest::Never, Some(("gateway", "CN=front")))),
            headers,
            &["asks for no client certificate", "--requestheader-client-ca-file"],
        ),
        (Fault::Unauthorized(Certificate::None), impersonate, &["kubeconfig's user"]),
        (Fault::SomeoneElse(ANONYMOUS.to_owned(), known()), headers, &["anonymous", "X-Remote-User"]),
        (Fault::SomeoneElse("eve".to_owned(), known()), headers, &["every request for one of \"eve\""]),
        (Fault::SomeoneElse("eve".to_owned(), Certificate::None), impersonate, &["Impersonate-*"]),
        (
            Fault::MayNotImpersonate("eve".to_owned()),
            impersonate,
            &["kubectl create clusterrole", "--user=eve"],
        ),
        (Fault::Forbidden, headers, &["kubectl create clusterrolebinding", "system:basic-user"]),
        (
            Fault::Differs(vec!["groups", "extra"]),
            headers,
            &["groups and extra not as sent", "X-Remote-Group"],
        ),
        (Fault::TooOld, headers, &["1.28"]),
        (Fault::Odd(302), headers, &["302"]),
    ];
    for (fault, identity, words) in cases {
        let advice = fault.advice(*identity);
        for word in *words {
            assert!(advice.contains(word), "{word:?} is not in {advice:?}");
        }
    }
}
