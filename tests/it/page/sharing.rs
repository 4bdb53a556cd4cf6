//! What one client of the page can cost the others, and the provider.

use super::*;
use crate::gateway::start_process;

/// Logins in progress of one network; `src/page/login_rate.rs`.
const MAX_AT_ONCE_OF_NETWORK: usize = 8;

#[tokio::test]
async fn slow_logins_of_one_network_do_not_keep_another_from_logging_in() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut crowd = Vec::new();
    for _ in 0..20 {
        let mut mallory = Browser::from(2);
        let asked = mallory.begin(&setup.page).await;
        let redirect = setup.provider.redirect(&asked);
        let (_, rest) = redirect.split_once("&state=").unwrap();
        crowd.push((mallory, format!("/callback?code={SLOW_CODE}&state={rest}")));
    }
    while setup.provider.server.take().is_some() {}
    let address = setup.page.address;
    let waiting: Vec<_> = crowd
        .into_iter()
        .map(|(mut mallory, redirect)| {
            tokio::spawn(async move { mallory.get(&Gateway::at(address, None), &redirect).await.status })
        })
        .collect();
    let mut exchanges = 0;
    testkit::until("the slow logins", || {
        let seen = std::iter::from_fn(|| setup.provider.server.take());
        exchanges += seen.filter(|seen| seen.target == "/token").count();
        exchanges >= MAX_AT_ONCE_OF_NETWORK
    })
    .await;
    Browser::from(3).login(&setup).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_provider_that_fails_is_asked_again_after_a_pause_however_many_ask_the_page() {
    let setup = start(&[("prod", only_alice)]).await;
    setup.provider.state.is_broken.store(true, Ordering::SeqCst);
    let (_gateway, page) = with_page(&setup.flags);
    while setup.provider.server.take().is_some() {}
    let fetches = || {
        let seen = std::iter::from_fn(|| setup.provider.server.take());
        seen.filter(|seen| seen.target == CONFIGURATION).count()
    };
    let mut browser = Browser::default();
    for _ in 0..30 {
        assert_eq!(browser.get(&page, "/sign-in").await.status, StatusCode::BAD_GATEWAY);
        assert_eq!(browser.get(&page, "/signed-out").await.status, StatusCode::OK);
    }
    // The authenticator of the cluster fetches the document, too.
    let count = fetches();
    assert!(count < 20, "{count} for 60 requests");
    setup.provider.state.is_broken.store(false, Ordering::SeqCst);
    let recovered = async {
        while !browser.get(&page, "/signed-out").await.text.contains("Sign out at the login provider") {}
    };
    testkit::in_time(recovered).await;
}

/// The page makes one TLS configuration for all connections, so that a browser resumes its sessions. Not always the first
/// one: the gateway may still reload, when its issuers are first reached.
#[tokio::test]
async fn a_browser_resumes_its_tls_session() {
    let setup = start(&[("prod", only_alice)]).await;
    let mut config = testkit::tls_client(rustls::DEFAULT_VERSIONS).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let resumed = async {
        loop {
            let name = ServerName::try_from("localhost").unwrap();
            let tls = setup.page.tls_with(name, Arc::clone(&config)).await;
            if tls.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed) {
                break;
            }
            // The tickets come with the first response.
            let mut connection = setup.page.http1_over(tls).await;
            let request = Request::get("/").header("host", HOST).body(testkit::empty()).unwrap();
            text(connection.send(request).await.unwrap()).await;
        }
    };
    testkit::in_time(resumed).await;
}

#[tokio::test]
async fn failed_logins_of_one_client_cannot_fill_the_log() {
    let setup = start(&[("prod", only_alice)]).await;
    setup.provider.state.is_broken.store(true, Ordering::SeqCst);
    let process = start_process(setup.flags.clone()).await;
    let page = process.page.as_ref().unwrap();
    let mut browser = Browser::default();
    for _ in 0..60 {
        assert_eq!(browser.get(page, "/sign-in").await.status, StatusCode::BAD_GATEWAY);
    }
    testkit::until("a line", || !process.said("page: a login failed").is_empty()).await;
    let (_, log) = process.end().await;
    let lines =
        log.lines().filter(|line| line.contains("a login failed") || line.contains("tower_http")).count();
    assert!(lines < 60, "{lines} lines for 60 requests of one client");
}

/// Two rounds of clusters that never answer take all the time that a page has.
#[tokio::test]
async fn clusters_that_were_silent_are_asked_after_the_others() {
    let names: Vec<String> = (0..65).map(|index| format!("silent-{index}")).collect();
    let mut clusters: Vec<(&str, ClusterAnswer)> = Vec::new();
    clusters.extend(names.iter().map(|name| -> (&str, ClusterAnswer) { (name, silent) }));
    clusters.push(("prod", only_alice));
    let setup = start(&clusters).await;
    let mut shown = Vec::new();
    for _ in 0..2 {
        let mut alice = Browser::default();
        alice.login(&setup).await;
        shown.extend(table(&alice.get(&setup.page, "/").await.text).last().cloned());
    }
    assert_eq!(shown, [row("prod", "Cannot be asked now"), row("prod", "Ready")]);
}
