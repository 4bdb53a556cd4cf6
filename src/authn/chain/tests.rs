use futures_util::FutureExt;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::user::UserInfo;
use portcullis_kubernetes::user::{ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS};
use proptest::prelude::*;

use super::super::testing::{Fixed, TestRequest, audiences_of, success};
use super::*;

fn invalid(text: &str) -> AuthnError {
    AuthnError::Invalid(text.to_owned())
}

fn chain(verdicts: Vec<AuthnVerdict>, anonymous: bool) -> Result<AuthnChain, EmptyChain> {
    let members = verdicts
        .into_iter()
        .map(|verdict| -> Box<dyn RequestAuthenticator> { Box::new(Fixed(verdict)) })
        .collect();
    AuthnChain::new(
        members,
        anonymous.then(|| AnonymousAuthenticator::new([])),
        ClusterRevocation::disabled(),
    )
}

fn authenticate(chain: &AuthnChain, request: &TestRequest) -> Result<Authenticated, AuthnError> {
    chain.authenticate(&request.input()).now_or_never().expect("ready").map(ProvenIdentity::into_inner)
}

fn user_of(verdicts: Vec<AuthnVerdict>, anonymous: bool) -> Result<UserInfo, AuthnError> {
    let chain = chain(verdicts, anonymous).expect("a chain");
    authenticate(&chain, &TestRequest::new()).map(|found| (*found.user).clone())
}

fn authenticated(name: &str) -> UserInfo {
    UserInfo { groups: vec![ALL_AUTHENTICATED.to_owned()], ..UserInfo::named(name) }
}

#[test]
fn a_chain_without_members_cannot_be_built() {
    assert_eq!(chain(vec![], false).expect_err("empty"), EmptyChain);
    assert!(chain(vec![], true).is_ok());
}

#[test]
fn the_first_success_wins_and_discards_earlier_errors() {
    let good = |name| Ok(Some(success(name, &[])));
    let cases: Vec<(Vec<AuthnVerdict>, Result<UserInfo, AuthnError>)> = vec![
        (vec![good("a"), good("b")], Ok(authenticated("a"))),
        (vec![Err(invalid("x")), good("b")], Ok(authenticated("b"))),
        (vec![Ok(None), good("b"), Err(invalid("x"))], Ok(authenticated("b"))),
        (vec![Err(invalid("x"))], Err(invalid("x"))),
        (
            vec![Err(invalid("x")), Ok(None), Err(invalid("y"))],
            Err(AuthnError::Several(vec![invalid("x"), invalid("y")])),
        ),
        (vec![Ok(None), Ok(None)], Ok(UserInfo::anonymous())),
        (vec![], Ok(UserInfo::anonymous())),
    ];
    for (verdicts, expected) in cases {
        assert_eq!(user_of(verdicts.clone(), true), expected, "{verdicts:?}");
    }
}

#[test]
fn an_error_is_never_anonymous() {
    assert_eq!(user_of(vec![Err(invalid("x")), Ok(None)], true), Err(invalid("x")));
    assert_eq!(user_of(vec![Ok(None)], false), Err(AuthnError::Unrecognized));
}

#[test]
fn errors_are_printed_as_one_list_without_repetition() {
    let several = |errors: &[&str]| AuthnError::Several(errors.iter().map(|text| invalid(text)).collect());
    let nested = AuthnError::Several(vec![invalid("a"), several(&["b", "a"]), invalid("c")]);
    assert_eq!(invalid("a").to_string(), "a");
    assert_eq!(several(&["a", "b"]).to_string(), "[a, b]");
    assert_eq!(several(&["a", "a"]).to_string(), "a");
    assert_eq!(nested.to_string(), "[a, b, c]");
    assert_eq!(AuthnError::of_all(vec![]), None);
    assert_eq!(AuthnError::of_all(vec![invalid("a")]), Some(invalid("a")));
    assert!(!nested.is_unavailable());
    let unavailable = || AuthnError::Unavailable("x".to_owned());
    let both = AuthnError::Several(vec![nested, unavailable()]);
    assert!(both.is_unavailable());
    // A refusal beside the outage of another authenticator.
    for (error, local, remote) in [
        (unavailable(), true, true),
        (invalid("a"), false, false),
        (both, false, true),
        (AuthnError::Several(vec![unavailable(), unavailable()]), true, true),
        (AuthnError::Several(vec![unavailable(), AuthnError::Reserved(AuthnMethod::Jwt)]), false, false),
    ] {
        assert_eq!(error.is_inconclusive_for(AuthnMethod::ServiceAccount), local, "{error:?}");
        assert_eq!(error.is_inconclusive_for(AuthnMethod::Webhook), remote, "{error:?}");
    }
}

#[test]
fn the_group_of_all_authenticated_users_is_added_once_and_last() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("a", &[], &[ALL_AUTHENTICATED]),
        ("a", &["g", "g"], &["g", "g", ALL_AUTHENTICATED]),
        ("a", &[ALL_AUTHENTICATED, "g"], &[ALL_AUTHENTICATED, "g"]),
        ("a", &["g", ALL_UNAUTHENTICATED], &["g", ALL_UNAUTHENTICATED]),
        (ANONYMOUS, &["g"], &["g"]),
        ("system:anonymous ", &[], &[ALL_AUTHENTICATED]),
    ];
    for (name, groups, expected) in cases {
        let strings = |groups: &[&str]| groups.iter().map(|group| (*group).to_owned()).collect::<Vec<_>>();
        let user = Identity::from(UserInfo {
            uid: Some("u".to_owned()),
            groups: strings(groups),
            extra: [("k".to_owned(), strings(&["v"]))].into(),
            ..UserInfo::named(*name)
        });
        let original = Authenticated { user: user.clone(), ..success("", &["aud"]) };
        let found = with_authenticated_group(original);
        assert_eq!(
            *found.user,
            UserInfo { groups: strings(expected), ..(*user).clone() },
            "{name} {groups:?}"
        );
        assert_eq!(user.groups, strings(groups), "the original was changed");
        assert_eq!(found.audiences, audiences_of(&["aud"]));
    }
}

#[test]
fn a_credential_must_be_valid_for_an_audience_of_the_api() {
    type Case = (&'static [&'static str], &'static [&'static str], Result<(), &'static str>);
    let cases: &[Case] = &[
        (&[], &[], Ok(())),
        (&["api"], &[], Ok(())),
        (&[], &["other"], Ok(())),
        (&["api", "two"], &["other", "two"], Ok(())),
        (&["api", "two"], &["a", "b"], Err("unable to match the audience: [a b] , accepted: [api two]")),
    ];
    for (api, of_credential, expected) in cases {
        let chain = chain(vec![Ok(Some(success("a", of_credential)))], true).expect("a chain");
        let request = TestRequest::new().audiences(api);
        let found = authenticate(&chain, &request).map(|_| ());
        assert_eq!(found, expected.map_err(invalid), "{api:?} {of_credential:?}");
    }
}

#[test]
fn audience_agnostic_authenticators_accept_their_own_audiences() {
    struct Case {
        implicit: &'static [&'static str],
        requested: &'static [&'static str],
        delegate: AuthnVerdict,
        expected: AuthnVerdict,
    }
    let good = |audiences: &[&str]| Ok(Some(success("a", audiences)));
    let cases = [
        Case {
            implicit: &["a", "b"],
            requested: &["c", "b", "a"],
            delegate: good(&[]),
            expected: good(&["b", "a"]),
        },
        Case {
            implicit: &["a"],
            requested: &["b"],
            delegate: Err(invalid("not called")),
            expected: Ok(None),
        },
        Case { implicit: &[], requested: &["b"], delegate: good(&[]), expected: Ok(None) },
        Case { implicit: &["a"], requested: &[], delegate: good(&["x"]), expected: good(&["x"]) },
        Case { implicit: &["a"], requested: &["a"], delegate: Ok(None), expected: Ok(None) },
        Case {
            implicit: &["a"],
            requested: &["a"],
            delegate: Err(invalid("x")),
            expected: Err(invalid("x")),
        },
        Case {
            implicit: &["a"],
            requested: &["a"],
            delegate: good(&["x", "y"]),
            expected: Err(invalid(
                "audience agnostic authenticator wrapped an authenticator that returned audiences: [\"x\" \"y\"]",
            )),
        },
    ];
    for case in cases {
        let request = TestRequest::new().audiences(case.requested);
        let input = request.input();
        let implicit = audiences_of(case.implicit);

        let delegate: Box<dyn RequestAuthenticator> = Box::new(Fixed(case.delegate.clone()));
        let wrapped = AudienceAgnostic::new(implicit.clone(), delegate);
        let found = wrapped.authenticate(&input).now_or_never().expect("ready");
        assert_eq!(found, case.expected, "{:?} {:?}", case.implicit, case.requested);

        let delegate: Box<dyn TokenAuthenticator> = Box::new(Fixed(case.delegate));
        let wrapped = AudienceAgnostic::new(implicit, delegate);
        let found =
            wrapped.authenticate(&BearerToken::new("t"), input.for_tokens()).now_or_never().expect("ready");
        assert_eq!(found, case.expected, "{:?} {:?}", case.implicit, case.requested);
    }
}

#[test]
fn token_unions_continue_or_stop_after_an_error() {
    let good = || Ok(Some(success("a", &[])));
    let both = AuthnError::Several(vec![invalid("x"), invalid("y")]);
    let cases: Vec<(Vec<AuthnVerdict>, AuthnVerdict, AuthnVerdict)> = vec![
        (vec![good()], good(), good()),
        (vec![Err(invalid("x")), good()], good(), Err(invalid("x"))),
        (vec![Ok(None), good()], good(), good()),
        (vec![Ok(None), Ok(None)], Ok(None), Ok(None)),
        (vec![Err(invalid("x")), Err(invalid("y"))], Err(both), Err(invalid("x"))),
        (vec![Err(invalid("x")), Ok(None)], Err(invalid("x")), Err(invalid("x"))),
    ];
    for (verdicts, continued, stopped) in cases {
        for (on_error, expected) in
            [(UnionErrorPolicy::Continue, continued), (UnionErrorPolicy::Stop, stopped)]
        {
            let members = verdicts
                .iter()
                .map(|verdict| -> Box<dyn TokenAuthenticator> { Box::new(Fixed(verdict.clone())) })
                .collect();
            let union = token_union(members, on_error).expect("members");
            let request = TestRequest::new();
            let input = request.input();
            let found =
                union.authenticate(&BearerToken::new("t"), input.for_tokens()).now_or_never().expect("ready");
            assert_eq!(found, expected, "{verdicts:?} {on_error:?}");
        }
    }
}

#[test]
fn a_union_of_one_is_its_member_and_of_none_is_none() {
    let one: Vec<Box<dyn TokenAuthenticator>> = vec![Box::new(Fixed(Ok(None)))];
    assert_eq!(token_union(one, UnionErrorPolicy::Continue).expect("one").name(), "fixed");
    assert!(token_union(vec![], UnionErrorPolicy::Continue).is_none());
}

/// The rules of a chain, in ten lines.
fn model(verdicts: &[AuthnVerdict], anonymous: bool) -> Result<String, String> {
    let success = verdicts.iter().find_map(|verdict| verdict.clone().ok().flatten());
    let errors: Vec<_> = verdicts.iter().filter_map(|verdict| verdict.clone().err()).collect();
    match (success, errors.as_slice()) {
        (Some(found), _) => Ok(found.user.name.clone()),
        (None, []) if anonymous => Ok(ANONYMOUS.to_owned()),
        (None, []) => Err(AuthnError::Unrecognized.to_string()),
        (None, [one]) => Err(one.to_string()),
        (None, errors) => Err(AuthnError::Several(errors.to_vec()).to_string()),
    }
}

fn verdict() -> impl Strategy<Value = AuthnVerdict> {
    prop_oneof![
        Just(Ok(None)),
        "[a-c]".prop_map(|name| Ok(Some(success(&name, &[])))),
        "[x-z]".prop_map(|text| Err(AuthnError::Invalid(text))),
        "[x-z]".prop_map(|text| Err(AuthnError::Unavailable(text))),
    ]
}

proptest! {
    #[test]
    fn chains_follow_the_model(verdicts in prop::collection::vec(verdict(), 0..6), anonymous: bool) {
        match chain(verdicts.clone(), anonymous) {
            Err(EmptyChain) => prop_assert!(verdicts.is_empty() && !anonymous),
            Ok(chain) => {
                let found = authenticate(&chain, &TestRequest::new());
                let found = found.map(|found| found.user.name.clone()).map_err(|error| error.to_string());
                prop_assert_eq!(found, model(&verdicts, anonymous));
            }
        }
    }
}

#[test]
fn a_user_that_has_the_group_is_not_copied() {
    let tokens = AuthenticatedGroupAdder::new(Box::new(Fixed(Ok(Some(success("alice", &[]))))));
    let request = TestRequest::new();
    let (token, input) = (BearerToken::new("token"), request.input());
    let found = tokens
        .authenticate(&token, input.for_tokens())
        .now_or_never()
        .expect("ready")
        .expect("good")
        .expect("known");
    assert_eq!(*found.user, authenticated("alice"));
    let user = found.user.clone();
    let chain = chain(vec![Ok(Some(found))], false).expect("a chain");
    assert!(authenticate(&chain, &request).expect("good").user.is_shared_with(&user));
}

#[test]
fn only_a_front_proxy_can_assert_the_gateways_user() {
    use AuthnMethod::{
        Anonymous, BootstrapToken, Jwt, LegacyServiceAccount, RequestHeader, ServiceAccount, StaticToken,
        Webhook, X509,
    };
    for method in [
        X509,
        StaticToken,
        BootstrapToken,
        Jwt,
        ServiceAccount,
        LegacyServiceAccount,
        Webhook,
        Anonymous,
        RequestHeader,
    ] {
        let found = Authenticated { method, ..success(GATEWAY, &[]) };
        let verdicts = vec![Ok(Some(found.clone())), Ok(Some(success("other", &[])))];
        let expected = if method == RequestHeader {
            Ok(authenticated(GATEWAY))
        } else {
            Err(AuthnError::Reserved(method))
        };
        assert_eq!(user_of(verdicts, true), expected, "{method:?}");
        // The same holds for a TokenReview.
        let tokens = Arc::new(Fixed(Ok(Some(found))));
        let chain = chain(vec![], true).unwrap().with_token_review(tokens);
        let reviewed =
            chain.review("token", &[], &Owner::Gateway, UnixTime::from_secs(0)).now_or_never().unwrap();
        assert_eq!(reviewed.is_ok(), method == RequestHeader, "{method:?}");
    }
}
