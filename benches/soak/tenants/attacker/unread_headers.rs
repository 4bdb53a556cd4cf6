//! Clients that send requests and then read nothing of their connections, not even what no window limits.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::frames::{END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};

use super::{Counts, STREAMS};
use crate::tenants::connection::{attackers_socket, tls_over};

const CONNECTIONS: usize = 8;
/// The receive buffer of the kernel for each connection.
const BUFFER: u32 = 4096;
/// How long a client keeps a connection.
const HOLD: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) fn start(gateway: SocketAddr, path: &str, token: &str, counts: &Counts) {
    let mut sent = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    for stream in (1..).step_by(2).take(STREAMS) {
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &header_block(path, token)));
    }
    for _ in 0..CONNECTIONS {
        let (sent, counts) = (sent.clone(), counts.clone());
        tokio::spawn(async move {
            loop {
                match timeout(CONNECT_TIMEOUT, open(gateway, &sent)).await {
                    Ok(Ok(_stream)) => {
                        counts.add("connection without reading");
                        sleep(HOLD).await;
                    }
                    Ok(Err(_)) | Err(_) => counts.add("no connection"),
                }
                sleep(RETRY).await;
            }
        });
    }
}

/// A connection on which these bytes were sent.
async fn open(gateway: SocketAddr, sent: &[u8]) -> std::io::Result<impl Sized> {
    let socket = attackers_socket()?;
    socket.set_recv_buffer_size(BUFFER)?;
    let stream = socket.connect(gateway).await?;
    let mut stream = tls_over(stream, b"h2", None).await?;
    stream.write_all(sent).await?;
    stream.flush().await?;
    Ok(stream)
}

/// The header of a GET request, without compression.
// RFC 7541, appendix A: 2 and 7 are `:method: GET` and `:scheme: https`; 1, 4 and 23 name the other fields.
fn header_block(path: &str, token: &str) -> Vec<u8> {
    let bearer = format!("Bearer {token}");
    let mut block = vec![0x82, 0x87];
    for (index, value) in [(&[0x01][..], "localhost"), (&[0x04][..], path), (&[0x0f, 23 - 15][..], &bearer)] {
        block.extend(index);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend(value.as_bytes());
    }
    block
}
