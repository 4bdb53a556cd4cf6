//! Attacks on the page: forged redirects and forms, cookies of others, scripts of other origins, and floods.

use super::*;

/// A cookie with one changed character.
fn changed(value: &str, at: usize) -> String {
    let mut bytes = value.as_bytes().to_vec();
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    String::from_utf8(bytes).unwrap()
}

const SESSION: &str = "__Host-portcullis-session-1";

#[tokio::test]
async fn a_redirect_counts_once_in_the_browser_that_began_the_login() {
    let setup = start(&[("prod", only_alice)]).await;
    let page = &setup.page;
    let mut alice = Browser::default();
    let asked = alice.begin(page).await;
    let redirect = setup.provider.redirect(&asked);
    let (own, sealed) = alice.begun().remove(0);
    // Another browser, which was led to the attacker's redirect: a login into the attacker's account.
    let mut mallory = Browser::default();
    let forged = setup.provider.redirect(&mallory.begin(page).await);
    let state = asked.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let without = |name: &str| {
        let mut url = Url::parse(&format!("{ORIGIN}{redirect}")).unwrap();
        let kept: Vec<_> = url.query_pairs().into_owned().filter(|(known, _)| known != name).collect();
        url.query_pairs_mut().clear().extend_pairs(kept);
        format!("/callback?{}", url.query().unwrap())
    };
    let cases: Vec<(&str, String, Option<String>)> = vec![
        ("no cookie", redirect.clone(), None),
        ("the redirect of another login", forged, Some(sealed.clone())),
        ("the cookie of another login", redirect.clone(), Some(mallory.begun().remove(0).1)),
        ("no state", without("state"), Some(sealed.clone())),
        ("a state twice", format!("{redirect}&state={state}"), Some(sealed.clone())),
        ("a code twice", format!("{redirect}&code=x"), Some(sealed.clone())),
        ("a changed cookie", redirect.clone(), Some(changed(&sealed, 40))),
        ("a cut cookie", redirect.clone(), Some(sealed[..40].to_owned())),
        ("an empty cookie", redirect.clone(), Some(String::new())),
    ];
    for (name, target, cookie) in cases {
        let mut browser = Browser::default();
        // Under the name that belongs to the state of the redirect, and under that of the login.
        for (name, _) in [alice.begun(), mallory.begun()].concat() {
            browser.cookies.extend(cookie.clone().map(|cookie| (name, cookie)));
        }
        let before = browser.cookies.clone();
        let seen = browser.get(page, &target).await;
        assert_eq!(seen.status, StatusCode::BAD_REQUEST, "{name}");
        assert!(seen.text.contains("was not begun in this browser"), "{name}: {}", seen.text);
        assert_eq!(browser.cookies, before, "{name}: a wrong redirect changes nothing");
    }
    // Of another issuer, or of none though the provider names itself: refused, and the login is over.
    for target in [without("iss"), format!("{}&iss=https%3A%2F%2Fother.test", without("iss"))] {
        let mut browser = alice.clone();
        let seen = browser.get(page, &target).await;
        assert_eq!(seen.status, StatusCode::BAD_REQUEST);
        assert!(seen.text.contains("another login provider") && browser.cookies.is_empty(), "{}", seen.text);
    }
    // The right one still counts, and only once.
    let seen = alice.get(page, &redirect).await;
    assert_eq!((seen.status, seen.location()), (StatusCode::SEE_OTHER, "/"));
    assert_eq!(alice.get(page, &redirect).await.status, StatusCode::BAD_REQUEST);
    // With a copy of the cookie, too: the provider accepts a code once. Its text is shown as text.
    let mut copy = Browser::default();
    copy.cookies.insert(own, sealed);
    let seen = copy.get(page, &redirect).await;
    assert_eq!(seen.status, StatusCode::BAD_REQUEST);
    assert!(seen.text.contains("used already") && !seen.text.contains("<b>used"), "{}", seen.text);
    assert!(!copy.cookies.contains_key(SESSION));
}

#[tokio::test]
async fn an_error_of_the_provider_is_a_sentence_and_never_markup() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    let asked = alice.begin(&setup.page).await;
    let state = asked.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned();
    let issuer: String = url::form_urlencoded::byte_serialize(setup.provider.url.as_bytes()).collect();
    let attack = "%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27";
    let target = |state: &str| {
        format!("/callback?error=access_denied&error_description={attack}&state={state}&iss={issuer}")
    };
    // Without the state of a login, nothing of it is shown.
    let seen = alice.get(&setup.page, &target("x")).await;
    assert!(seen.status == StatusCode::BAD_REQUEST && !seen.text.contains("alert"), "{}", seen.text);
    let seen = alice.get(&setup.page, &target(&state)).await;
    assert_eq!(seen.status, StatusCode::FORBIDDEN);
    assert!(seen.text.contains("The sign-in was refused: by you"), "{}", seen.text);
    assert!(seen.text.contains("alert(1)") && !seen.text.contains("<script"), "{}", seen.text);
}

#[tokio::test]
async fn a_cookie_of_another_purpose_or_a_changed_one_is_no_session() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    alice.begin(&setup.page).await;
    let (_, begun) = alice.begun().remove(0);
    alice.login(&setup).await;
    let session = alice.cookies[SESSION].clone();
    for (name, value) in
        [("of a login", begun), ("changed", changed(&session, 60)), ("cut", session[..99].to_owned())]
    {
        let mut browser = Browser::default();
        browser.cookies.insert(SESSION.to_owned(), value);
        assert!(browser.get(&setup.page, "/").await.text.contains("Sign in to see"), "{name}");
        assert_eq!(browser.get(&setup.page, "/kubeconfig").await.status, StatusCode::UNAUTHORIZED, "{name}");
    }
    let mut browser = Browser::default();
    let asked = browser.begin(&setup.page).await;
    let (name, _) = browser.begun().remove(0);
    browser.cookies.insert(name, session);
    let seen = browser.get(&setup.page, &setup.provider.redirect(&asked)).await;
    assert_eq!(seen.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn another_site_can_neither_sign_a_user_out_nor_read_anything() {
    let setup = start(&[("prod", only_alice)]).await;
    let page = &setup.page;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    let form = alice.form(page).await;
    let good = format!("form={form}");
    let post = || Request::post("/sign-out");
    let cases = [
        ("no secret", post().header("origin", ORIGIN), String::new()),
        ("another secret", post().header("origin", ORIGIN), "form=AAAA".to_owned()),
        ("another origin", post().header("origin", "https://prod.api.test"), good.clone()),
        ("a hidden origin", post().header("origin", "null"), good.clone()),
        (
            "across sites",
            post().header("origin", ORIGIN).header("sec-fetch-site", "cross-site"),
            good.clone(),
        ),
        ("of a sibling", post().header("origin", ORIGIN).header("sec-fetch-site", "same-site"), good.clone()),
    ];
    for (name, request, body) in cases {
        let seen = alice.send(page, request, &body).await;
        assert_eq!(seen.status, StatusCode::FORBIDDEN, "{name}");
        assert!(alice.cookies.contains_key(SESSION), "{name}");
    }
    let large = alice.send(page, post().header("origin", ORIGIN), &"x".repeat(5000)).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    // A script of an application behind the API: the browser may send it, and gets no permission to read.
    let scripts = [
        Request::get("/").header("sec-fetch-mode", "cors").header("sec-fetch-dest", "empty"),
        Request::get("/kubeconfig").header("sec-fetch-mode", "no-cors").header("sec-fetch-dest", "script"),
        Request::get("/").header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "iframe"),
        Request::get("/kubeconfig").header("sec-fetch-mode", "navigate").header("sec-fetch-dest", "document"),
    ];
    for script in scripts {
        let script = script.header("sec-fetch-site", "same-site").header("origin", "https://prod.api.test");
        let seen = alice.send(page, script, "").await;
        assert_eq!(seen.status, StatusCode::FORBIDDEN);
        assert!(!seen.text.contains("prod"));
    }
    let preflight =
        Request::builder().method(Method::OPTIONS).uri("/").header("origin", "https://prod.api.test");
    let seen = alice.send(page, preflight.header("access-control-request-method", "GET"), "").await;
    assert_eq!(seen.status, StatusCode::METHOD_NOT_ALLOWED);
    // Browsers that send no fetch metadata.
    for seen in
        [seen, alice.send(page, Request::get("/").header("origin", "https://prod.api.test"), "").await]
    {
        assert!(!seen.headers.keys().any(|name| name.as_str().starts_with("access-control-")));
        assert_eq!(seen.headers["cross-origin-resource-policy"], "same-origin");
        assert_eq!(seen.headers["cross-origin-opener-policy"], "same-origin");
        assert_eq!(seen.headers["x-frame-options"], "DENY");
        let policy = seen.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    }
}

#[tokio::test]
async fn the_page_is_not_on_the_apis_listener_nor_the_api_on_the_pages() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    assert_eq!(table(&alice.get(&setup.page, "/").await.text), [row("prod", "Ready")]);
    for host in ["prod.api.test", "api.test", "localhost", "clusters.test:8443", "clusters.test.", ""] {
        let seen = alice.send(&setup.page, Request::get("/").header("host", host), "").await;
        assert_eq!(seen.status, StatusCode::MISDIRECTED_REQUEST, "{host}");
        assert!(!seen.text.contains("prod") && seen.headers.contains_key("content-security-policy"));
    }
    for target in
        ["/api", "/version", "/metrics", "/healthz", "/../", "/%2e%2e/", "//clusters.test/kubeconfig"]
    {
        assert_eq!(alice.get(&setup.page, target).await.status, StatusCode::NOT_FOUND, "{target}");
    }
    // The API does not know the page's cookies, even for the page's host.
    let seen = alice.get(&setup.gateway, "/").await;
    assert!(!seen.text.contains("Your clusters"), "{}", seen.text);
    assert_eq!(reviews(&setup.backends[0]), 1, "that of the page, and no other request");
    let mut api = alice.clone();
    let request = Request::get("/api").header("host", "prod.api.test");
    api.send(&setup.gateway, request, "").await;
    while let Some(seen) = setup.backends[0].take() {
        assert!(seen.target == "/readyz" || seen.all("x-remote-user") == ["system:anonymous"], "{seen:?}");
    }
}

/// A certificate for several names may make a browser open the page's host at the API's port, where a tenant's API server
/// would receive the page's cookies, which browsers share among ports, and could set others.
#[tokio::test]
async fn no_cluster_is_reached_at_the_pages_host() {
    let setup = start(&[("staging", only_alice)]).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    while setup.backends[0].take().is_some() {}
    let mut get = async |host: &str, path: &str| {
        let request = Request::get(path).header("host", host);
        alice.send(&setup.gateway, request, "").await.status
    };
    for host in ["clusters.test", "CLUSTERS.test:6443", "clusters.test.", "clusters.test.:443"] {
        for path in ["/clusters/staging/api", "/healthz", "/"] {
            assert_eq!(get(host, path).await, StatusCode::MISDIRECTED_REQUEST, "{host} {path}");
        }
    }
    while let Some(seen) = setup.backends[0].take() {
        assert!(seen.all("cookie").is_empty(), "{seen:?}");
    }
    for host in ["api.test", "other.clusters.test", "localhost"] {
        assert_eq!(get(host, "/clusters/staging/api").await, StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn a_sealed_value_is_of_the_provider_and_client_that_it_was_made_for() {
    let setup = start(&[("prod", only_alice)]).await;
    let key = setup.pki.write("cookie.key", [1, 2].repeat(16));
    let mut flags = setup.flags.clone();
    flags.push(format!("--page-cookie-key-file={}", key.display()));
    let before = with_page(&flags);
    // The operator has given the page another client, or another provider.
    flags.push("--page-oidc-client-id=successor".to_owned());
    let after = with_page(&flags);
    let mut alice = Browser::default();
    let asked = alice.begin(&before.1).await;
    let redirect = setup.provider.redirect(&asked);
    while setup.provider.server.take().is_some() {}
    let seen = alice.clone().get(&after.1, &redirect).await;
    assert_eq!(seen.status, StatusCode::BAD_REQUEST, "{}", seen.text);
    let tokens = std::iter::from_fn(|| setup.provider.server.take()).filter(|seen| seen.target == "/token");
    assert_eq!(tokens.count(), 0, "the code and its verifier go to the provider of the login alone");
    alice.get(&before.1, &redirect).await;
    assert!(alice.get(&before.1, "/").await.text.contains("alice@example.test"));
    assert!(alice.get(&after.1, "/").await.text.contains("Sign in to see"));
}

/// A form of another site, in a browser that sends neither fetch metadata nor `Origin`. `SameSite` keeps its cookies
/// away, so that the request seems to have no session.
#[tokio::test]
async fn a_form_without_a_session_deletes_no_cookie() {
    let setup = start(&[("prod", only_alice)]).await;
    let seen = Browser::default().send(&setup.page, Request::post("/sign-out"), "").await;
    assert_eq!((seen.status, seen.location()), (StatusCode::SEE_OTHER, "/signed-out"));
    assert!(!seen.headers.contains_key("set-cookie"), "{:?}", seen.headers);
}

#[tokio::test]
async fn connections_of_one_client_do_not_keep_another_from_logging_in() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(connect_from(&setup.page, 2).await);
    }
    let mut alice = Browser::default();
    alice.login(&setup).await;
    assert_eq!(table(&alice.get(&setup.page, "/").await.text).len(), 1);
    drop(crowd);
}

#[tokio::test]
async fn a_provider_that_never_answers_delays_logins_alone() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    alice.login(&setup).await;
    // The gateway has fetched the provider's keys, too.
    assert_eq!(table(&alice.get(&setup.page, "/").await.text), [row("prod", "Ready")]);
    let mut bob = Browser::default();
    let asked = bob.begin(&setup.page).await;
    setup.provider.state.is_silent.store(true, Ordering::SeqCst);
    let redirect = setup.provider.redirect(&asked);
    let waiting = bob.get(&setup.page, &redirect);
    let others = async {
        assert!(Browser::default().get(&setup.page, "/").await.text.contains("Sign in to see"));
        assert_eq!(table(&alice.get(&setup.page, "/").await.text).len(), 1);
        assert_eq!(alice.get(&setup.page, "/kubeconfig").await.status, StatusCode::OK);
    };
    tokio::select! {
        biased;
        _ = waiting => panic!("the provider does not answer"),
        () = others => {}
    }
}
