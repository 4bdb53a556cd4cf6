use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use testkit::pki::Ca;
use testkit::proxy_server::{CONNECTED, ProxyKind, ProxyServer, UNAUTHENTICATED};

use super::*;
use crate::client_tls::ClientTls;
use crate::https_client::testing::{H1, H2, TestServer, reply, serving, trusting};
use crate::https_client::{HttpsClient, HttpsError, HttpsRequest, HttpsResponse};
use crate::proxy::ProxyRules;

/// A server that only the proxy can reach by its name, and the proxy.
async fn pair(ca: &Ca, alpn: &[&[u8]], kind: ProxyKind) -> (TestServer, ProxyServer) {
    let answer = |_| -> futures_util::future::BoxFuture<'_, _> { Box::pin(async { reply(200, "{}") }) };
    let server =
        TestServer::start(serving(&ca.server(&["server.test"]), None, alpn), "127.0.0.1:0", answer).await;
    let proxy = ProxyServer::start(kind, server.address).await;
    (server, proxy)
}

async fn get(tls: &ClientTls, proxy: ProxyChoice, url: &str) -> Result<HttpsResponse, HttpsError> {
    let tls = ClientTls { proxy, ..tls.clone() };
    let client = HttpsClient::new(&tls, &Arc::new(default_provider())).unwrap();
    client.send(HttpsRequest::get(url).bearer(Some("t0ken"))).await
}

fn environment(variables: &[(&str, &str)]) -> ProxyChoice {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    let rules = ProxyRules::from_variables(|name| variables.get(name).map(|value| (*value).to_owned()));
    ProxyChoice::Rules(Arc::new(rules))
}

#[tokio::test]
async fn requests_go_through_a_proxy_that_sees_only_tls() {
    let ca = Ca::new("servers");
    for alpn in [H1, H2] {
        let (server, proxy) = pair(&ca, alpn, ProxyKind::Connect(CONNECTED)).await;
        let address = format!("http://user:p%40ss@{}", proxy.address);
        for choice in
            [environment(&[("HTTPS_PROXY", &address)]), ProxyChoice::of_kubeconfig(Some(&address)).unwrap()]
        {
            let answer = get(&trusting(&ca), choice, "https://server.test:8443/keys").await.unwrap();
            assert_eq!(answer.status.as_u16(), 200);
            let heads = proxy.take();
            let [head] = &heads[..] else { panic!("one connection: {heads:?}") };
            assert!(
                head.starts_with("CONNECT server.test:8443 HTTP/1.1\r\nHost: server.test:8443\r\n"),
                "{head}"
            );
            assert!(head.contains("Proxy-Authorization: Basic dXNlcjpwQHNz\r\n"), "{head}");
            assert!(!head.contains("t0ken"), "{head}");
            assert_eq!(server.take().len(), 1);
        }
        // The usual port.
        get(&trusting(&ca), environment(&[("https_proxy", &address)]), "https://server.test/").await.unwrap();
        assert!(proxy.take()[0].starts_with("CONNECT server.test:443 "));
    }
}

#[tokio::test]
async fn a_proxy_may_speak_tls_or_socks() {
    let ca = Ca::new("servers");
    let own = Arc::new(serving(&ca.server(&["127.0.0.1"]), None, H1));
    let (_server, proxy) = pair(&ca, H2, ProxyKind::ConnectByTls(own)).await;
    let choice = ProxyChoice::of_kubeconfig(Some(&format!("https://{}", proxy.address))).unwrap();
    get(&trusting(&ca), choice, "https://server.test/").await.unwrap();
    assert_eq!(proxy.take().len(), 1);

    // With another CA than the server's.
    let others = Arc::new(serving(&Ca::new("others").server(&["127.0.0.1"]), None, H1));
    let (_server, proxy) = pair(&ca, H2, ProxyKind::ConnectByTls(others)).await;
    let choice = ProxyChoice::of_kubeconfig(Some(&format!("https://{}", proxy.address))).unwrap();
    let error = get(&trusting(&ca), choice, "https://server.test/").await.unwrap_err();
    assert!(
        matches!(error, HttpsError::Proxy { .. }) && error.to_string().contains("unknown authority"),
        "{error}"
    );

    let (_server, proxy) = pair(&ca, H2, ProxyKind::Socks).await;
    let address = format!("socks5://user:s3cr3t@{}", proxy.address);
    let choice = ProxyChoice::of_kubeconfig(Some(&address)).unwrap();
    get(&trusting(&ca), choice, "https://server.test:8443/").await.unwrap();
    assert_eq!(proxy.take(), ["user s3cr3t server.test:8443"]);
}

#[tokio::test]
async fn the_certificate_of_the_server_is_verified_behind_the_proxy() {
    let (ca, others) = (Ca::new("servers"), Ca::new("others"));
    let (server, proxy) = pair(&ca, H2, ProxyKind::Connect(CONNECTED)).await;
    let choice = environment(&[("HTTPS_PROXY", &proxy.address.to_string())]);
    for (tls, url) in [(trusting(&others), "https://server.test/"), (trusting(&ca), "https://other.test/")] {
        let error = get(&tls, choice.clone(), url).await.unwrap_err();
        assert!(matches!(error, HttpsError::Certificate { .. }), "{error}");
        let through = format!("test (through the proxy http://{}): ", proxy.address);
        assert!(error.to_string().contains(&through), "{error}");
    }
    assert!(server.take().is_empty());
}

#[tokio::test]
async fn errors_name_the_proxy_and_not_its_password() {
    let ca = Ca::new("servers");
    let refusing = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
    for (response, expected) in [
        (UNAUTHENTICATED, "fix: give the user and the password of the proxy"),
        (refusing, "unsuccessful"),
        ("hello\r\n\r\n", "unsuccessful"),
        ("", "unexpected end of file"),
    ] {
        let (_server, proxy) = pair(&ca, H2, ProxyKind::Connect(response)).await;
        let address = format!("http://user:s3cr3t@{}", proxy.address);
        let error =
            get(&trusting(&ca), environment(&[("HTTPS_PROXY", &address)]), "https://server.test/").await;
        let error = error.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(&format!("the proxy http://{}: ", proxy.address)), "{text}");
        assert!(text.contains(expected) && !text.contains("s3cr3t"), "{text}");
    }
    // Bound but not listening: no other process gets the port.
    let unheard = tokio::net::TcpSocket::new_v4().unwrap();
    unheard.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = unheard.local_addr().unwrap();
    let choice = environment(&[("HTTPS_PROXY", &format!("user:s3cr3t@{address}"))]);
    let error = get(&trusting(&ca), choice, "https://server.test/").await.unwrap_err().to_string();
    assert!(error.contains(&format!("http://{address}")) && error.contains("refused"), "{error}");
    assert!(!error.contains("s3cr3t"), "{error}");
    // A proxy that cannot be used is no reason to connect directly.
    let choice = environment(&[("HTTPS_PROXY", "ftp://user:s3cr3t@proxy.test")]);
    let error = get(&trusting(&ca), choice, "https://server.test/").await.unwrap_err();
    assert!(matches!(error, HttpsError::Proxy { .. }) && !error.to_string().contains("s3cr3t"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_silent_behind_a_proxy_is_named_with_it() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = ProxyServer::start(ProxyKind::Connect(CONNECTED), silent.local_addr().unwrap()).await;
    let choice = environment(&[("HTTPS_PROXY", &format!("user:s3cr3t@{}", proxy.address))]);
    let error = get(&trusting(&Ca::new("servers")), choice, "https://server.test/").await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, HttpsError::Timeout { .. }), "{text}");
    assert!(text.contains(&format!("through the proxy http://{}", proxy.address)), "{text}");
    assert!(!text.contains("s3cr3t"), "{text}");
}

#[tokio::test]
async fn loopback_and_excluded_hosts_have_no_proxy() {
    let ca = Ca::new("servers");
    let server = TestServer::of(&ca, H2, |_| reply(200, "{}")).await;
    let proxy = ProxyServer::start(ProxyKind::Connect(CONNECTED), server.address).await;
    let address = proxy.address.to_string();
    get(&trusting(&ca), environment(&[("HTTPS_PROXY", &address)]), &server.url("/")).await.unwrap();
    assert!(proxy.take().is_empty());
    // `proxy-url` counts for every host.
    let choice = ProxyChoice::of_kubeconfig(Some(&format!("http://{address}"))).unwrap();
    get(&trusting(&ca), choice, &server.url("/")).await.unwrap();
    assert_eq!(proxy.take().len(), 1);
}
