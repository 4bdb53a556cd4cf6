//! Connections that fail before their first request.

use std::time::Duration;

use http::Response;
use portcullis::internal::ClientLimits;
use testkit::{ResponseFuture, full, in_time};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::GatewayWithBystanders;

fn ok() -> ResponseFuture {
    Box::pin(async { Response::new(full("ok")) })
}

// Go: net/http server.go, tlsRecordHeaderLooksLikeHTTP
#[tokio::test]
async fn plain_http_on_the_https_port_is_a_400_that_explains_it() {
    let setup = GatewayWithBystanders::with(&[], |_| {}, |_| ok()).await;
    for request in ["GET /api", "HEAD /api", "POST /api", "PUT /api", "OPTIONS /api"] {
        for parts in [1, 3] {
            let mut stream = TcpStream::connect(setup.gateway.address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let request = format!("{request} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsomething");
            for part in request.as_bytes().chunks(request.len() / parts) {
                stream.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut answer = String::new();
            in_time(stream.read_to_string(&mut answer)).await.unwrap();
            assert_eq!(
                answer, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
                "{request}"
            );
        }
    }
    setup.gateway.until_counted("apiserver_tls_handshake_errors_total 10").await;
    setup.others.were_undisturbed().await;
}

#[tokio::test]
async fn invalid_and_partial_handshakes_are_closed_in_time() {
    let limit = |limits: &mut ClientLimits| limits.header_timeout = Duration::from_secs(2);
    let setup = GatewayWithBystanders::with(&[], limit, |_| ok()).await;
    let cases: [(&str, &[u8]); 8] = [
        ("nothing", b""),
        ("a method that Go does not know", b"DELETE /api HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("one letter", b"G"),
        ("SSH", b"SSH-2.0-OpenSSH_9.9\r\n"),
        ("zeros", &[0; 4096]),
        ("a record header", &[22, 3, 1, 2, 0]),
        ("half a hello", &[22, 3, 1, 0, 100, 1, 0, 0, 96, 3, 3, 7, 7, 7]),
        ("nonsense in a record", &[22, 3, 1, 0, 4, 255, 255, 255, 255]),
    ];
    let mut streams = Vec::new();
    for (name, bytes) in cases {
        let mut stream = TcpStream::connect(setup.gateway.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        streams.push((name, stream));
    }
    for (name, mut stream) in streams {
        let mut answer = Vec::new();
        in_time(stream.read_to_end(&mut answer)).await.ok();
        // At most a TLS alert.
        assert!(answer.len() < 16, "{name}: {answer:?}");
    }
    setup.gateway.until_counted(&format!("apiserver_tls_handshake_errors_total {}", cases.len())).await;
    setup.others.were_undisturbed().await;
}
