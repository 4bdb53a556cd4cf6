//! The PROXY protocol on the page's listener: limits and requests are those of the client that a trusted load balancer
//! names, and of no other.

use super::*;

const BALANCER: u8 = 2;

/// A header of version 1 that names a client.
fn naming(client: &str) -> String {
    format!("PROXY TCP4 {client} 10.0.0.1 12345 443\r\n")
}

fn behind(client: &str) -> Browser {
    Browser::behind(BALANCER, &naming(client))
}

/// A gateway whose page has a load balancer at 127.0.0.2.
async fn balanced() -> (PageSetup, Gateway, Gateway) {
    let setup = start(&[("prod", only_alice)]).await;
    let mut flags = setup.flags.clone();
    flags.push("--page-proxy-protocol=any".to_owned());
    flags.push(format!("--page-proxy-protocol-trusted-networks=127.0.0.{BALANCER}/32"));
    let (gateway, page) = with_page(&flags);
    gateway.checked().await;
    until_issuers_are_known(&gateway, &[("prod", only_alice)]).await;
    (setup, gateway, page)
}

async fn login(setup: &PageSetup, page: &Gateway, browser: &mut Browser) {
    let asked = browser.begin(page).await;
    let back = browser.get(page, &setup.provider.redirect(&asked)).await;
    assert_eq!((back.status, back.location()), (StatusCode::SEE_OTHER, "/"), "{}", back.text);
}

#[tokio::test]
async fn the_user_has_the_address_that_the_load_balancer_names() {
    let (setup, gateway, page) = balanced().await;
    let mut direct = Browser::from(3);
    for (mut browser, address) in
        [(behind("192.0.2.7"), "192.0.2.7"), (Browser::behind(BALANCER, "PROXY UNKNOWN\r\n"), "127.0.0.2")]
    {
        login(&setup, &page, &mut browser).await;
        while setup.backends[0].take().is_some() {}
        assert_eq!(table(&browser.get(&page, "/").await.text), [row("prod", "Ready")]);
        let mut seen = std::iter::from_fn(|| setup.backends[0].take());
        let review = seen.find(|seen| seen.target == REVIEWS).unwrap();
        assert_eq!(review.all("x-forwarded-for"), [address]);
    }
    assert_eq!(direct.get(&page, "/").await.status, StatusCode::OK, "another client needs no header");
    assert!(gateway.count("portcullis_proxy_protocol_connections_total").await > 0);
}

#[tokio::test]
async fn only_the_load_balancer_names_clients_and_it_always_does() {
    let (setup, gateway, page) = balanced().await;
    // A client sends a header of its own: instead of the load balancer, and behind its header.
    assert!(Browser::behind(3, &naming("192.0.2.7")).connect(&page).await.is_none());
    gateway.until_counted("portcullis_proxy_protocol_errors_total{reason=\"untrusted\"} 1").await;
    let twice = [naming("192.0.2.7"), naming("192.0.2.8")].concat();
    assert!(Browser::behind(BALANCER, &twice).connect(&page).await.is_none());
    assert!(Browser::from(BALANCER).connect(&page).await.is_none());
    gateway.until_counted("portcullis_proxy_protocol_errors_total{reason=\"malformed\"} 1").await;
    // A page without the option refuses every header.
    let page = &setup.page;
    assert!(behind("192.0.2.7").connect(page).await.is_none());
    assert_eq!(Browser::from(BALANCER).get(page, "/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn logins_of_one_client_do_not_count_for_another_behind_the_same_load_balancer() {
    let (setup, _gateway, page) = balanced().await;
    let mut mallory = behind("192.0.2.66");
    while mallory.fail(&setup, &page).await.status != StatusCode::TOO_MANY_REQUESTS {}
    login(&setup, &page, &mut behind("192.0.2.7")).await;
}

#[tokio::test]
async fn connections_of_one_client_do_not_lock_out_another_behind_the_same_load_balancer() {
    let (setup, gateway, page) = balanced().await;
    let mut crowd = Vec::new();
    for _ in 0..300 {
        let mut stream = connect_from(&page, BALANCER).await;
        stream.write_all(naming("192.0.2.66").as_bytes()).await.unwrap();
        crowd.push(stream);
    }
    let named = "portcullis_proxy_protocol_connections_total ";
    let all = |line: &str| line.strip_prefix(named).is_some_and(|count| count.parse::<u64>().unwrap() >= 256);
    gateway.until_counted_as(named, all).await;
    login(&setup, &page, &mut behind("192.0.2.7")).await;
    drop(crowd);
}
