//! Logins of people who share a network with others, have several tabs open, or a browser that guesses what they want.

use std::process::Command;

use testkit::gateway_process::GatewayProcess;
use testkit::proxy_server::{CONNECTED, ProxyKind, ProxyServer};

use super::*;
use crate::gateway::PORTCULLIS;

/// More than the logins that a network has in a row; `src/page/login_rate.rs`.
const MANY: usize = 90;

#[tokio::test]
async fn visits_without_a_login_take_none_from_their_network() {
    let setup = start(&[("prod", only_alice)]).await;
    for _ in 0..MANY {
        Browser::from(2).begin(&setup.page).await;
    }
    // Redirects that belong to no login neither.
    for _ in 0..MANY {
        let seen = Browser::from(2).get(&setup.page, "/callback?state=x&code=x").await;
        assert_eq!(seen.status, StatusCode::BAD_REQUEST);
    }
    Browser::from(2).login(&setup).await;
}

/// The answers of a script that asks the provider nothing: it sends one cookie again and again.
#[tokio::test]
async fn redirects_without_a_code_of_the_provider_take_no_login_from_their_network() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut mallory = Browser::from(2);
    let redirect = setup.provider.redirect(&mallory.begin(&setup.page).await);
    let query: Vec<&str> = redirect.split_once('?').unwrap().1.split('&').collect();
    let with = |left_out: &str, added: &str| {
        let rest = query.iter().filter(|pair| !pair.starts_with(left_out));
        format!("/callback?{}", rest.copied().chain([added]).collect::<Vec<_>>().join("&"))
    };
    let begun = mallory.clone();
    for target in [
        with("code=", "error=server_error"),
        with("code=", "other=1"),
        with("iss=", "other=1"),
        with("iss=", "iss=https%3A%2F%2Fother.test"),
    ] {
        for _ in 0..MANY {
            let seen = begun.clone().get(&setup.page, &target).await;
            assert_ne!(seen.status, StatusCode::TOO_MANY_REQUESTS, "{target}");
            assert!(
                seen.status.is_client_error() || seen.status.is_server_error(),
                "{target}: {}",
                seen.text
            );
        }
    }
    Browser::from(2).login(&setup).await;
    // The first answer has deleted the cookie of a browser that obeys.
    mallory.get(&setup.page, &with("code=", "error=server_error")).await;
    assert!(mallory.begun().is_empty());
}

#[tokio::test]
async fn a_redirect_that_finds_no_turn_counts_later() {
    let setup = start(&[("prod", only_alice)]).await;
    let (mut mallory, mut alice) = (Browser::from(2), Browser::from(2));
    // Each second one login more is free.
    let (refused, redirect) = loop {
        while mallory.fail(&setup, &setup.page).await.status != StatusCode::TOO_MANY_REQUESTS {}
        let asked = alice.begin(&setup.page).await;
        let redirect = setup.provider.redirect(&asked);
        let seen = alice.get(&setup.page, &redirect).await;
        if seen.status == StatusCode::TOO_MANY_REQUESTS {
            break (seen, redirect);
        }
        assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.text);
    };
    assert!(refused.text.replace("&#38;", "&").contains(&format!("href=\"{redirect}\"")), "{}", refused.text);
    assert!(refused.text.contains("Try again") && !refused.headers.contains_key("set-cookie"));
    Browser::from(3).login(&setup).await;
    testkit::in_time(async {
        loop {
            let seen = alice.get(&setup.page, &redirect).await;
            if seen.status != StatusCode::TOO_MANY_REQUESTS {
                break assert_eq!(
                    (seen.status, seen.location()),
                    (StatusCode::SEE_OTHER, "/"),
                    "{}",
                    seen.text
                );
            }
        }
    })
    .await;
    assert!(alice.get(&setup.page, "/").await.text.contains("alice@example.test"));
}

#[tokio::test]
async fn each_tab_completes_its_own_login_and_their_number_is_bounded() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    let asked = [alice.begin(&setup.page).await, alice.begin(&setup.page).await];
    assert_eq!(alice.begun().len(), 2);
    for asked in &asked {
        let seen = alice.get(&setup.page, &setup.provider.redirect(asked)).await;
        assert_eq!((seen.status, seen.location()), (StatusCode::SEE_OTHER, "/"), "{}", seen.text);
    }
    assert!(alice.begun().is_empty());
    // A cookie that this page cannot open gives way at once, the oldest logins beyond the bound.
    alice.cookies.insert(format!("{LOGIN}AAAAAAAA"), "unknown".to_owned());
    alice.cookies.insert(format!("{LOGIN}other-one"), "unknown".to_owned());
    let mut last = alice.begin(&setup.page).await;
    assert_eq!(alice.begun().len(), 2, "{:?}", alice.cookies.keys());
    alice.cookies.remove(&format!("{LOGIN}other-one"));
    for _ in 0..6 {
        last = alice.begin(&setup.page).await;
    }
    assert_eq!(alice.begun().len(), 4);
    let seen = alice.get(&setup.page, &setup.provider.redirect(&last)).await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.text);
}

#[tokio::test]
async fn a_prefetch_begins_no_login() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut alice = Browser::default();
    let asked = alice.begin(&setup.page).await;
    let before = alice.cookies.clone();
    for name in ["sec-purpose", "purpose"] {
        let seen = alice.send(&setup.page, Request::get("/sign-in").header(name, "prefetch"), "").await;
        assert_eq!(seen.status, StatusCode::FORBIDDEN);
        assert_eq!((seen.headers["cache-control"].as_bytes(), &alice.cookies), (&b"no-store"[..], &before));
    }
    let seen = alice.get(&setup.page, &setup.provider.redirect(&asked)).await;
    assert_eq!(seen.status, StatusCode::SEE_OTHER, "{}", seen.text);
}

/// As for issuers and webhooks, the environment names the proxy.
#[tokio::test]
async fn a_provider_behind_a_proxy_is_reached_through_it() {
    const ISSUER: &str = "https://issuer.test";
    let setup = start(&[("prod", only_alice)]).await;
    let document = json!({
        "issuer": ISSUER, "jwks_uri": format!("{ISSUER}{KEYS}"), "token_endpoint": format!("{ISSUER}/token"),
        "authorization_endpoint": format!("{ISSUER}/auth"),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = FakeBackend::named(&setup.pki, "issuer.test", listener, move |_| {
        let document = document.to_string();
        Box::pin(async { respond(200, "application/json", document) })
    });
    let proxy = ProxyServer::start(ProxyKind::Connect(CONNECTED), provider.address).await;
    let mut command = Command::new(PORTCULLIS);
    command.env("HTTPS_PROXY", format!("http://{}", proxy.address)).arg("serve").args(&setup.flags);
    command.arg(format!("--page-oidc-issuer-url={ISSUER}"));
    let process = GatewayProcess::serve(command).await;
    let asked = Browser::default().begin(process.page.as_ref().unwrap()).await;
    assert_eq!((asked.host_str(), asked.path()), (Some("issuer.test"), "/auth"));
    let heads = proxy.take();
    assert!(heads.iter().any(|head| head.starts_with("CONNECT issuer.test:443 ")), "{heads:?}");
    process.end().await;
}
