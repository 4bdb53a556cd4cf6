//! HTTP/2 clients without a credential that hold on to their connection.

use std::time::Duration;

use testkit::frames::{
    END_HEADERS, END_STREAM, GOAWAY, HEADERS, REFUSED_STREAM, RST_STREAM, frame, header_block, read_frame,
};
use testkit::wire::is_held;
use testkit::{full, in_time, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::GatewayWithBystanders;

/// A request with an unknown bearer token.
fn forged(stream: u32) -> Vec<u8> {
    let mut block = header_block("GET", "/api/v1/pods");
    let (name, value) = (b"authorization", b"Bearer forged");
    // RFC 7541, section 6.2.2: a literal field with a new name.
    block.push(0);
    block.push(u8::try_from(name.len()).unwrap());
    block.extend(name);
    block.push(u8::try_from(value.len()).unwrap());
    block.extend(value);
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

/// The client ignores GOAWAY and acknowledges no PING, so the gateway must close the connection.
#[tokio::test]
async fn a_client_that_ignores_goaway_is_answered_once_and_disconnected() {
    let setup =
        GatewayWithBystanders::with(&[], |_| {}, |_| Box::pin(async { http::Response::new(full("ok")) }))
            .await;
    let mut client = setup.gateway.frames(None, 65_535).await;
    let (local, remote) = (setup.gateway.address.port(), client.get_ref().0.local_addr().unwrap().port());
    client.write_all(&forged(1)).await.unwrap();
    let mut goaway = false;
    while !goaway {
        goaway = in_time(read_frame(&mut client)).await.unwrap().0 == GOAWAY;
    }
    let later: Vec<u8> = (1..=200).flat_map(|index| forged(2 * index + 1)).collect();
    client.write_all(&later).await.unwrap();
    let (mut answers, mut refused) = (0, 0);
    while let Ok((kind, stream, payload)) = in_time(read_frame(&mut client)).await {
        match kind {
            HEADERS if stream > 1 => answers += 1,
            RST_STREAM => {
                assert_eq!(
                    payload,
                    REFUSED_STREAM.to_be_bytes(),
                    "the client may safely retry the request elsewhere"
                );
                refused += 1;
            }
            _ => {}
        }
    }
    assert_eq!((answers, refused), (0, 200));
    until("the end of the connection", || !is_held(local, remote)).await;
    setup.others.were_undisturbed().await;
}

/// The gateway also closes a connection on which the client sends nothing more.
#[tokio::test]
async fn a_silent_client_is_disconnected_after_its_answer() {
    let limit = |limits: &mut portcullis::internal::ClientLimits| {
        limits.idle_timeout = Duration::from_hours(1);
    };
    let setup =
        GatewayWithBystanders::with(&[], limit, |_| Box::pin(async { http::Response::new(full("ok")) }))
            .await;
    let mut client = setup.gateway.frames(None, 65_535).await;
    client.write_all(&forged(1)).await.unwrap();
    let mut rest = Vec::new();
    in_time(client.read_to_end(&mut rest)).await.ok();
    setup.others.were_undisturbed().await;
}
