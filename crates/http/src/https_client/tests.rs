use std::convert::Infallible;

use futures_util::StreamExt as _;
use futures_util::stream::{iter, pending};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use rustls::crypto::aws_lc_rs::default_provider;
use testkit::pki::Ca;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::testing::{H1, H2, RecordedRequest, Reply, TestServer, full, reply, serving, showing, trusting};
use super::*;
use crate::client_tls::TrustedRoots;
use crate::proxy::ProxyChoice;

/// Far more than any of these tests takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn client(tls: &ClientTls) -> HttpsClient {
    HttpsClient::new(tls, &Arc::new(default_provider())).unwrap()
}

/// A server, and its client's result of a GET.
async fn get_from(
    alpn: &[&[u8]],
    answer: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
) -> (TestServer, Result<HttpsResponse, HttpsError>) {
    let ca = Ca::new("peers");
    let peer = TestServer::of(&ca, alpn, answer).await;
    let answer = client(&trusting(&ca)).send(HttpsRequest::get(&peer.url("/"))).await;
    (peer, answer)
}

#[tokio::test]
async fn connections_are_used_again() {
    let ca = Ca::new("peers");
    for alpn in [H1, H2] {
        let peer = TestServer::of(&ca, alpn, |_| reply(201, "{}")).await;
        let client = client(&trusting(&ca));
        for _ in 0..3 {
            let answer = client.send(HttpsRequest::get(&peer.url("/keys?a=b"))).await.unwrap();
            assert_eq!((answer.status.as_u16(), &*answer.body), (201, &b"{}"[..]));
        }
        assert_eq!(peer.connections(), 1);
        let asked = peer.take();
        assert_eq!(asked.len(), 3);
        assert_eq!((asked[0].method.as_str(), asked[0].target.as_str()), ("GET", "/keys?a=b"));
    }
}

#[tokio::test]
async fn requests_have_no_unneeded_headers() {
    let ca = Ca::new("peers");
    let peer = TestServer::of(&ca, H1, |_| reply(200, "")).await;
    let client = client(&trusting(&ca));
    let url = peer.url("/");
    client.send(HttpsRequest::post(&url, "[1]").bearer(Some("s3cr3t"))).await.unwrap();
    let asked = peer.take().remove(0);
    assert_eq!((asked.method, &*asked.body), (Method::POST, &b"[1]"[..]));
    let mut names: Vec<_> = asked.headers.keys().map(|name| name.as_str().to_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "authorization", "content-length", "content-type", "host", "user-agent"]);
    assert_eq!(asked.headers["authorization"], "Bearer s3cr3t");
    assert_eq!(asked.headers["host"], peer.address.to_string());
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let ca = Ca::new("peers");
    let elsewhere = TestServer::of(&ca, H2, |_| reply(200, "{}")).await;
    let target = elsewhere.url("/");
    for status in [301, 302, 303, 307, 308] {
        let target = target.clone();
        let peer = TestServer::of(&ca, H2, move |_| {
            let response = http::Response::builder().status(status).header("location", &target);
            Ok(response.body(full("")).unwrap())
        })
        .await;
        let client = client(&trusting(&ca));
        let error = client.send(HttpsRequest::get(&peer.url("/"))).await.unwrap_err();
        let host = peer.address.to_string();
        assert_eq!(
            error,
            HttpsError::Redirect { host, status: StatusCode::from_u16(status).unwrap() },
            "{error}"
        );
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn only_https_urls_without_a_user_are_supported() {
    let client = client(&trusting(&Ca::new("peers")));
    for (url, problem) in [
        ("http://127.0.0.1:1/", "it is not an https:// URL"),
        ("file:///etc/passwd", "it is not a URL"),
        ("/only/a/path", "it is not an https:// URL"),
        ("https://", "it is not a URL"),
        ("https://me:s3cr3t@127.0.0.1:1/", "a user name in the URL is not supported"),
        ("https://a b/", "it is not a URL"),
    ] {
        let error = client.send(HttpsRequest::get(url)).await.unwrap_err();
        assert_eq!(error.to_string(), problem, "{url}");
    }
}

#[tokio::test]
async fn large_responses_are_errors() {
    let endless = |_: &RecordedRequest| {
        let frames = iter(std::iter::repeat(Bytes::from(vec![b'a'; 16 << 10])));
        let frames = frames.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
        Ok(http::Response::new(BodyExt::boxed(StreamBody::new(frames))))
    };
    for alpn in [H1, H2] {
        let (_peer, answer) = get_from(alpn, endless).await;
        assert!(
            matches!(answer, Err(HttpsError::TooLarge { max_bytes: MAX_RESPONSE_BYTES, .. })),
            "{answer:?}"
        );
        let (_peer, answer) = get_from(alpn, |_| reply(200, vec![b'a'; MAX_RESPONSE_BYTES])).await;
        assert_eq!(answer.unwrap().body.len(), MAX_RESPONSE_BYTES);
        let large = "a".repeat(4 * MAX_HEADER_BYTES);
        let (_peer, answer) = get_from(alpn, move |_| {
            Ok(http::Response::builder().header("x-large", &large).body(full("")).unwrap())
        })
        .await;
        assert!(answer.is_err(), "{alpn:?}: accepted a large header");
    }
    let many = |_: &RecordedRequest| {
        let mut response = http::Response::builder();
        for number in 0..=MAX_HEADERS {
            response = response.header(format!("x-{number}"), "a");
        }
        Ok(response.body(full("")).unwrap())
    };
    let (_peer, answer) = get_from(H1, many).await;
    assert!(matches!(answer, Err(HttpsError::Unreadable { .. })), "{answer:?}");
}

#[tokio::test]
async fn silent_servers_time_out() {
    let ca = Ca::new("peers");
    let client = client(&trusting(&ca));
    let config = || serving(&ca.server(&["127.0.0.1"]), None, H2);
    let mute = TestServer::start(config(), "127.0.0.1:0", |_| Box::pin(std::future::pending())).await;
    let stuck = TestServer::start(config(), "127.0.0.1:0", |_| {
        let begun = iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{")))]);
        let body = BodyExt::boxed(StreamBody::new(begun.chain(pending())));
        Box::pin(async { Ok(http::Response::new(body)) })
    })
    .await;
    // A port that accepts connections and sends nothing.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap();
    for url in [mute.url("/"), stuck.url("/"), format!("https://{port}/")] {
        let limit = Duration::from_millis(300);
        let error =
            timeout(TEST_TIMEOUT, client.send(HttpsRequest { timeout: limit, ..HttpsRequest::get(&url) }))
                .await
                .unwrap();
        assert!(matches!(error, Err(HttpsError::Timeout { .. })), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn lost_and_failed_connections_are_different_errors() {
    let (_peer, answer) = get_from(H1, |_| Err(std::io::Error::other("ends"))).await;
    assert!(matches!(answer, Err(HttpsError::Lost { .. })), "{answer:?}");
    // Bound but not listening: connections are refused, and no other process gets the port.
    let unheard = tokio::net::TcpSocket::new_v4().unwrap();
    unheard.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = unheard.local_addr().unwrap();
    let client = client(&trusting(&Ca::new("peers")));
    let error = client.send(HttpsRequest::get(&format!("https://{address}/"))).await.unwrap_err();
    assert!(matches!(error, HttpsError::Connect { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&format!("cannot connect to {address}: ")), "{error}");
}

#[tokio::test]
async fn the_certificate_must_have_the_name() {
    let ca = Ca::new("peers");
    let nameless = ca.leaf().cn("127.0.0.1").eku(&["1.3.6.1.5.5.7.3.1"]).issue();
    let named = ca.server(&["peer.test"]);
    let mut outcomes = Vec::new();
    for (certificate, server_name) in [(&nameless, None), (&named, None), (&named, Some("peer.test"))] {
        let answer =
            |_| -> futures_util::future::BoxFuture<'_, Reply> { Box::pin(async { reply(200, "{}") }) };
        let peer = TestServer::start(serving(certificate, None, H2), "127.0.0.1:0", answer).await;
        let server_name = server_name.map(|name| name.try_into().unwrap());
        let client = client(&ClientTls { server_name, ..trusting(&ca) });
        outcomes.push(client.send(HttpsRequest::get(&peer.url("/"))).await);
    }
    let refused = |outcome: &Result<HttpsResponse, HttpsError>| {
        let error = outcome.as_ref().unwrap_err();
        assert!(
            matches!(error, HttpsError::Certificate { .. }) && error.to_string().contains("fix: "),
            "{error}"
        );
        error.is_common_name_only()
    };
    assert_eq!((refused(&outcomes[0]), refused(&outcomes[1])), (true, false), "{outcomes:?}");
    assert!(outcomes[2].is_ok(), "{:?}", outcomes[2]);
}

#[tokio::test]
async fn a_self_signed_certificate_that_is_trusted_itself_is_accepted() {
    let own = Ca::build("own").san_ip([127, 0, 0, 1].into()).issue_ca();
    let answer = |_| -> futures_util::future::BoxFuture<'_, Reply> { Box::pin(async { reply(200, "{}") }) };
    let peer = TestServer::start(serving(&own.as_leaf(), None, H2), "127.0.0.1:0", answer).await;
    client(&trusting(&own)).send(HttpsRequest::get(&peer.url("/"))).await.unwrap();
    let namesake = Ca::build("own").san_ip([127, 0, 0, 1].into()).issue_ca();
    let error = client(&trusting(&namesake)).send(HttpsRequest::get(&peer.url("/"))).await.unwrap_err();
    assert!(error.to_string().contains("unknown authority"), "{error}");
}

#[tokio::test]
async fn plain_http_goes_to_loopback_alone_and_through_no_proxy() {
    let plain = ClientTls {
        plain_http: PlainHttp::ToLoopback,
        proxy: ProxyChoice::of_kubeconfig(Some("http://127.0.0.1:1")).unwrap(),
        ..ClientTls::trusting(TrustedRoots::none())
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    };
    let url = format!("http://{address}/events");
    let plain_client = client(&plain);
    let (answer, ()) = tokio::join!(plain_client.send(HttpsRequest::get(&url)), serve);
    assert_eq!(answer.unwrap().status.as_u16(), 200);
    for url in ["http://localhost:1/", "http://10.0.0.1/", "http://collector.test/", "http://127.0.0.1.test/"]
    {
        let error = plain_client.send(HttpsRequest::get(url)).await.unwrap_err();
        assert_eq!(error, HttpsError::Url("it is not an https:// URL"), "{url}");
    }
    let usual = client(&ClientTls::trusting(TrustedRoots::none()));
    let error = usual.send(HttpsRequest::get(&url)).await.unwrap_err();
    assert_eq!(error, HttpsError::Url("it is not an https:// URL"));
}

#[tokio::test]
async fn both_sides_are_authenticated() {
    let (ca, clients, others) = (Ca::new("peers"), Ca::new("clients"), Ca::new("others"));
    let (good, bad) = (clients.leaf().cn("us").issue(), others.leaf().cn("us").issue());
    let config = serving(&ca.server(&["127.0.0.1"]), Some(&clients), H2);
    let answer = |_| -> futures_util::future::BoxFuture<'_, Reply> { Box::pin(async { reply(200, "{}") }) };
    let peer = TestServer::start(config, "127.0.0.1:0", answer).await;
    for (tls, is_good) in [
        (showing(&good, &ca), true),
        (showing(&bad, &ca), false),
        (trusting(&ca), false),
        (showing(&good, &others), false),
    ] {
        let answer = client(&tls).send(HttpsRequest::get(&peer.url("/"))).await;
        assert_eq!(answer.is_ok(), is_good, "{answer:?}");
    }
    assert_eq!(peer.take().len(), 1);
}

#[tokio::test]
async fn ipv6_works() {
    let ca = Ca::new("peers");
    let answer = |_| -> futures_util::future::BoxFuture<'_, Reply> { Box::pin(async { reply(200, "{}") }) };
    let peer = TestServer::start(serving(&ca.server(&["::1"]), None, H2), "[::1]:0", answer).await;
    client(&trusting(&ca)).send(HttpsRequest::get(&peer.url("/"))).await.unwrap();
}

#[tokio::test]
async fn no_text_has_a_secret() {
    let ca = Ca::new("peers");
    let url = "https://127.0.0.1:1/";
    let request = || HttpsRequest::post(url, "s3cr3t").bearer(Some("s3cr3t\n"));
    let client = client(&showing(&ca.leaf().cn("us").issue(), &ca));
    let error = client.send(request()).await.unwrap_err();
    assert_eq!(error, HttpsError::Bearer);
    let shown = format!("{:?} {client:?} {error} {error:?}", request());
    assert!(!shown.contains("s3cr3t"), "{shown}");
}
