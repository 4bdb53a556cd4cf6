use super::*;
use serde_json::json;

fn sent() -> UserInfo {
    let mut user = UserInfo::named("check");
    user.uid = Some("7".to_owned());
    user.groups = vec!["a".to_owned(), "b".to_owned()];
    user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
    user
}

fn plausible() -> CertificateFinding {
    CertificateFinding::Plausible("gateway".to_owned())
}

fn evaluated(status: u16, body: &str) -> Option<Result<AcceptedIdentity, SelfCheckFailure>> {
    evaluate(&sent(), StatusCode::from_u16(status).unwrap(), body.as_bytes(), plausible())
}

#[test]
fn a_review_must_return_the_user_as_sent() {
    let review = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut user = json!({"username": "check", "uid": "7", "groups": ["a", "b"], "extra": {"k": ["v"]}});
        change(&mut user);
        evaluated(201, &json!({"status": {"userInfo": user}}).to_string())
    };
    let set = |field: &'static str, value: serde_json::Value| {
        review(&move |user: &mut serde_json::Value| user[field] = value.clone())
    };
    assert_eq!(review(&|_| {}), Some(Ok(AcceptedIdentity::Complete)));
    assert_eq!(set("uid", json!("")), Some(Ok(AcceptedIdentity::WithoutUid)));
    assert_eq!(set("uid", json!("8")), Some(Err(SelfCheckFailure::IdentityChanged(vec!["uid"]))));
    assert_eq!(
        set("groups", json!(["b", "a"])),
        Some(Err(SelfCheckFailure::IdentityChanged(vec!["groups"]))),
        "in order"
    );
    assert_eq!(
        set("groups", json!(["a", "b", "c"])),
        Some(Err(SelfCheckFailure::IdentityChanged(vec!["groups"])))
    );
    assert_eq!(set("extra", json!({})), Some(Err(SelfCheckFailure::IdentityChanged(vec!["extra"]))));
    assert_eq!(
        set("extra", json!({"k": ["v"], "more": ["x"]})),
        Some(Err(SelfCheckFailure::IdentityChanged(vec!["extra"])))
    );
    assert_eq!(
        set("username", json!("eve")),
        Some(Err(SelfCheckFailure::OtherUser("eve".to_owned(), plausible())))
    );
    assert_eq!(
        set("username", json!("e".repeat(100_000))),
        Some(Err(SelfCheckFailure::OtherUser(format!("{}…", "e".repeat(256)), plausible())))
    );
    assert_eq!(
        review(&|user| *user = json!({"username": "check"})),
        Some(Err(SelfCheckFailure::IdentityChanged(vec!["groups", "extra"])))
    );
}

#[test]
fn other_responses_are_failures_with_a_cause() {
    let forbidden =
        |user: &str, what: &str| json!({"message": format!("x is forbidden: User \"{user}\" cannot {what}")});
    let long = "é".repeat(100_000);
    let cases = [
        (401, json!({}), Some(SelfCheckFailure::Unauthorized(plausible()))),
        (403, forbidden("check", "create resource"), Some(SelfCheckFailure::ReviewForbidden)),
        (
            403,
            forbidden("eve", "create resource"),
            Some(SelfCheckFailure::OtherUser("eve".to_owned(), plausible())),
        ),
        // Names are cut where they are parsed.
        (
            403,
            forbidden(&long, "create resource"),
            Some(SelfCheckFailure::OtherUser(format!("{}…", "é".repeat(256)), plausible())),
        ),
        (
            403,
            forbidden(&long, "impersonate resource \"users\""),
            Some(SelfCheckFailure::ImpersonationForbidden(format!("{}…", "é".repeat(256)))),
        ),
        (
            403,
            forbidden("eve", "impersonate resource \"users\""),
            Some(SelfCheckFailure::ImpersonationForbidden("eve".to_owned())),
        ),
        (403, json!({"message": "no"}), Some(SelfCheckFailure::UnexpectedResponse(403))),
        (404, json!({}), Some(SelfCheckFailure::ReviewNotFound)),
        (508, json!({}), Some(SelfCheckFailure::ForwardingLoop)),
        (302, json!({}), Some(SelfCheckFailure::UnexpectedResponse(302))),
        (201, json!({"kind": "Pod"}), Some(SelfCheckFailure::UnexpectedResponse(201))),
        // Inconclusive: it is starting, overloaded or shutting down.
        (429, json!({}), None),
        (500, json!({}), None),
        (503, json!({}), None),
    ];
    for (status, body, expected) in cases {
        assert_eq!(evaluated(status, &body.to_string()), expected.map(Err), "{status} {body}");
    }
}

#[test]
fn the_diagnosis_names_the_fix() {
    let headers = IdentityMode::RequestHeader;
    let impersonate = IdentityMode::Impersonate;
    let other_ca = CertificateFinding::of(ClientCertificateRequest::OtherCas, Some(("gateway", "CN=front")));
    let cases: &[(SelfCheckFailure, IdentityMode, &[&str])] = &[
        (
            SelfCheckFailure::Unauthorized(plausible()),
            headers,
            &["--requestheader-allowed-names contains \"gateway\""],
        ),
        (
            SelfCheckFailure::Unauthorized(other_ca),
            headers,
            &["does not trust CA \"CN=front\"", "--requestheader-client-ca-file"],
        ),
        (
            SelfCheckFailure::Unauthorized(CertificateFinding::of(
                ClientCertificateRequest::NotSent,
                Some(("gateway", "CN=front")),
            )),
            headers,
            &["requests no client certificate", "--requestheader-client-ca-file"],
        ),
        (SelfCheckFailure::Unauthorized(CertificateFinding::NotUsed), impersonate, &["kubeconfig's user"]),
        (
            SelfCheckFailure::ForwardingLoop,
            headers,
            &["come back to this gateway", "addresses of the API servers"],
        ),
        (
            SelfCheckFailure::OtherUser(ANONYMOUS.to_owned(), plausible()),
            headers,
            &["anonymous", "X-Remote-User"],
        ),
        (
            SelfCheckFailure::OtherUser("eve".to_owned(), plausible()),
            headers,
            &["every request runs as user \"eve\""],
        ),
        (
            SelfCheckFailure::OtherUser("eve".to_owned(), CertificateFinding::NotUsed),
            impersonate,
            &["Impersonate-*"],
        ),
        (
            SelfCheckFailure::ImpersonationForbidden("eve".to_owned()),
            impersonate,
            &["\"eve\" is not permitted to impersonate", "deploy/rbac-impersonate.yaml"],
        ),
        (
            SelfCheckFailure::ReviewForbidden,
            headers,
            &["kubectl create clusterrolebinding", "system:basic-user"],
        ),
        (
            SelfCheckFailure::IdentityChanged(vec!["groups", "extra"]),
            headers,
            &["groups and extra not as sent", "X-Remote-Group"],
        ),
        (SelfCheckFailure::ReviewNotFound, headers, &["1.28"]),
        (SelfCheckFailure::UnexpectedResponse(302), headers, &["302"]),
    ];
    for (failure, identity, words) in cases {
        let diagnosis = failure.diagnosis(*identity);
        for word in *words {
            assert!(diagnosis.contains(word), "{word:?} is not in {diagnosis:?}");
        }
    }
}
