//! Log volume that clients can cause at the default verbosity.

use testkit::client::Client;
use testkit::frames::{ACK, PING, frame, read_frame};
use testkit::{FakeBackend, Pki, flags, in_time, until};
use tokio::io::AsyncWriteExt as _;

use crate::gateway::start_process;

const REFUSED: &str = "unable to authenticate the request";

/// Many refused requests of one client produce a few lines with counts.
#[tokio::test]
async fn one_client_cannot_fill_the_log() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let process = start_process(flags(&pki, backend.address)).await;
    let mut client = Client::connect(&process.gateway, false, None).await;
    for _ in 0..300 {
        assert_eq!(client.code(&[("authorization", "Bearer forged")]).await, 401);
    }
    until("a line", || !process.said(REFUSED).is_empty()).await;
    let lines = process.said(REFUSED).len();
    assert!(lines < 100, "{lines} lines for 300 requests of one client");
}

/// h2 logs a warning for each unexpected acknowledgement.
#[tokio::test]
async fn unexpected_frames_are_not_logged_one_by_one() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let process = start_process(flags(&pki, backend.address)).await;
    let mut client = process.gateway.frames(None, 65_535).await;
    let pongs = frame(PING, ACK, 0, b"uninvited"[..8].as_ref()).repeat(500);
    client.write_all(&pongs).await.unwrap();
    client.write_all(&frame(PING, 0, 0, b"answered")).await.unwrap();
    while in_time(read_frame(&mut client)).await.unwrap().2 != b"answered" {}
    let (_, log) = process.end().await;
    let lines = log.lines().filter(|line| line.contains("PING")).count();
    assert_eq!(lines, 0, "{log}");
}

/// Long paths and methods are truncated, and an audit id cannot inject fields.
#[tokio::test]
async fn client_input_is_truncated_in_the_log() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut given = flags(&pki, backend.address);
    given.push("-v=3".to_owned());
    let process = start_process(given).await;
    let mut client = Client::connect(&process.gateway, false, None).await;
    let path = format!("/api/{}", "x".repeat(60_000));
    assert_eq!(client.code_at(&path, &[("authorization", "Bearer forged")]).await, 401);
    let request = http::Request::builder()
        .method(http::Method::from_bytes("M".repeat(100_000).as_bytes()).unwrap())
        .uri("/api")
        .header("authorization", "Bearer forged")
        .body(testkit::empty())
        .unwrap();
    assert_eq!(client.send(request).await.unwrap().status(), 401);
    let (_, log) = process.end().await;
    assert!(log.contains(REFUSED), "{log}");
    let longest = log.lines().map(str::len).max().unwrap();
    assert!(longest < 8_192, "a line of {longest} bytes");
}
