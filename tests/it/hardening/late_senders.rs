//! HTTP/1.1 clients that continue to send after the response.

use std::time::Duration;

use http::{Response, StatusCode};
use testkit::wire::{head, is_held};
use testkit::{full, in_time, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::GatewayWithBystanders;

/// The way in which a client sends the unread body.
#[derive(Clone, Copy, Debug)]
enum Sends {
    AllItCan,
    AByteNowAndThen,
    Nothing,
}

/// The gateway continues to read so that the response is not lost; this must be bounded and must not disturb other
/// clients.
#[tokio::test]
async fn a_client_that_keeps_sending_after_its_response_is_disconnected() {
    let limit = |limits: &mut portcullis::internal::ClientLimits| {
        limits.idle_timeout = Duration::from_hours(1);
    };
    let refuse = |_| -> testkit::ResponseFuture {
        let mut response = Response::new(full("no"));
        *response.status_mut() = StatusCode::FORBIDDEN;
        Box::pin(async { response })
    };
    let setup = GatewayWithBystanders::with(&[], limit, refuse).await;
    let mut clients = Vec::new();
    for (count, sends) in [(8, Sends::AllItCan), (8, Sends::AByteNowAndThen), (8, Sends::Nothing)] {
        for index in 0..count {
            // Half of the clients are refused by the gateway, half by the backend.
            let identity = (index % 2 == 0).then_some(&*setup.alice);
            let token = if identity.is_none() { "Authorization: Bearer forged\r\n" } else { "" };
            let mut stream = setup.gateway.tls(b"http/1.1", identity).await;
            let request = format!(
                "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: a\r\n{token}Content-Length: 9999999999\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            clients.push(tokio::spawn(async move {
                let port = stream.get_ref().0.local_addr().unwrap().port();
                let (mut read, mut write) = tokio::io::split(stream);
                let sending = tokio::spawn(async move {
                    let (chunk, pause) = match sends {
                        Sends::AllItCan => (vec![b'x'; 16_384], Duration::ZERO),
                        Sends::AByteNowAndThen => (vec![b'x'], Duration::from_millis(20)),
                        Sends::Nothing => return write,
                    };
                    while write.write_all(&chunk).await.is_ok() && write.flush().await.is_ok() {
                        tokio::time::sleep(pause).await;
                    }
                    write
                });
                let answer = head(&mut read).await.unwrap();
                assert!(answer.starts_with("HTTP/1.1 40"), "{sends:?}: {answer}");
                let mut rest = Vec::new();
                in_time(read.read_to_end(&mut rest)).await.ok();
                (port, in_time(sending).await.unwrap())
            }));
        }
    }
    setup.others.go_on().await;
    let local = setup.gateway.address.port();
    for client in clients {
        let (remote, _write) = in_time(client).await.unwrap();
        until("the end of the connection", || !is_held(local, remote)).await;
    }
    setup.others.were_undisturbed().await;
}
