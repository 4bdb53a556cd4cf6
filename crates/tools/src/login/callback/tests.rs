//! Redirects of the provider, and everything else that reaches the listener.

use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn expected(has_issuer: bool) -> ExpectedCallback {
    ExpectedCallback {
        state: SecretString::from("the-state"),
        issuer: "https://issuer.test".to_owned(),
        has_issuer,
    }
}

async fn listener() -> CallbackListener {
    CallbackListener::bind(CallbackHost::Ipv4, &[0]).await.unwrap()
}

/// Sends a request; returns the whole answer.
async fn send(host: &str, head: &str) -> String {
    let mut stream = TcpStream::connect(host).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // The listener may close the connection before it has read everything.
    stream.read_to_string(&mut answer).await.ok();
    answer
}

async fn get(host: &str, target: &str) -> String {
    send(host, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn only_the_redirect_of_this_login_is_accepted() {
    let listener = listener().await;
    let host = listener.host.clone();
    let login = tokio::spawn(listener.wait(expected(false)));
    let good = "/callback?code=c&state=the-state";
    for (name, head, code) in [
        ("another path", format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), "404"),
        ("another name", format!("GET {good} HTTP/1.1\r\nHost: evil.test\r\n\r\n"), "421"),
        ("no name", format!("GET {good} HTTP/1.0\r\n\r\n"), "421"),
        ("POST", format!("POST {good} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"), "405"),
        (
            "a script",
            format!("GET {good} HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.test\r\n\r\n"),
            "403",
        ),
        ("an image", format!("GET {good} HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Dest: image\r\n\r\n"), "403"),
        ("a wrong state", format!("GET /callback?code=c&state=x HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400"),
        ("no state", format!("GET /callback?code=c HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400"),
        (
            "two states",
            format!("GET /callback?code=c&state=the-state&state=the-state HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            "400",
        ),
        (
            "too long",
            format!("GET /callback?code={} HTTP/1.1\r\nHost: {host}\r\n\r\n", "c".repeat(64 << 10)),
            "431",
        ),
    ] {
        let answer = send(&host, &head).await;
        assert!(status(&answer) == code || (code == "431" && answer.is_empty()), "{name}: {answer}");
        assert!(!login.is_finished(), "{name}");
    }
    let answer = get(&host, &format!("{good}&session_state=ignored")).await;
    assert_eq!(status(&answer), "200", "{answer}");
    let lower = answer.to_ascii_lowercase();
    for header in [
        "content-security-policy: default-src 'none'",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
    ] {
        assert!(lower.contains(header), "{header}: {answer}");
    }
    assert!(!answer.contains("<script") && !lower.contains("\r\nlocation:"), "{answer}");
    let Ok(Callback::Code(code)) = login.await.unwrap() else { panic!("no code") };
    assert_eq!(code.expose_secret(), "c");
    assert!(TcpStream::connect(&host).await.is_err(), "the port is free again");
}

#[tokio::test]
async fn the_second_redirect_finds_the_login_completed() {
    let (sender, _receiver) = mpsc::channel(1);
    let desk = CallbackDesk {
        host: "127.0.0.1:1".to_owned(),
        expected: expected(false),
        sender: Mutex::new(Some(sender)),
    };
    assert_eq!(desk.receive("code=c&state=the-state").status(), StatusCode::OK);
    assert_eq!(desk.receive("code=c&state=the-state").status(), StatusCode::GONE);
}

#[test]
fn the_redirect_is_read_as_the_protocol_demands() {
    let outcome = |query: &str, has_issuer| {
        let outcome = expected(has_issuer).outcome(&unique(query).unwrap());
        match outcome {
            Ok(Callback::Code(code)) => format!("code {}", code.expose_secret()),
            Ok(Callback::Refused(refusal)) => format!("refused {refusal:?}"),
            Err(error) => error.to_string(),
        }
    };
    let cases = [
        ("code=a%2Fb%2B", false, "code a/b+"),
        ("code=c&iss=https%3A%2F%2Fissuer.test", true, "code c"),
        ("code=c&iss=https%3A%2F%2Fother.test", false, "another provider has sent it"),
        ("code=c", true, "does not name the issuer"),
        ("error=access_denied&error_description=no+way", false, "access_denied"),
        ("error=access_denied&code=c", false, "refused"),
        ("error=access_denied&iss=https%3A%2F%2Fother.test", false, "another provider has sent it"),
        ("", false, "has no code"),
        ("code=", false, "has no code"),
    ];
    for (query, has_issuer, part) in cases {
        let outcome = outcome(query, has_issuer);
        assert!(outcome.contains(part), "{query}: {outcome}");
    }
    assert_eq!(unique("code=a&code=b"), Err("code"));
}

#[tokio::test]
async fn a_taken_port_is_skipped_or_named() {
    let taken = listener().await;
    let port = taken.listener.local_addr().unwrap().port();
    let error = CallbackListener::bind(CallbackHost::Ipv4, &[port]).await.unwrap_err().to_string();
    assert!(error.contains(&port.to_string()) && error.contains("--callback-port"), "{error}");
    let second = CallbackListener::bind(CallbackHost::Localhost, &[port, 0]).await.unwrap();
    assert!(second.redirect_url().starts_with("http://localhost:"), "{}", second.redirect_url());
}

#[tokio::test]
async fn connections_that_say_nothing_do_not_keep_the_browser_out() {
    let listener = listener().await;
    let host = listener.host.clone();
    tokio::time::pause();
    let login = tokio::spawn(listener.wait(expected(false)));
    // More than there are places, all silent: they are closed after a time, and the browser has its turn.
    let mut silent = Vec::new();
    for _ in 0..3 * MAX_CONNECTIONS {
        silent.push(TcpStream::connect(&host).await.unwrap());
    }
    let answer = get(&host, "/callback?code=c&state=the-state").await;
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(matches!(login.await.unwrap(), Ok(Callback::Code(_))));
}

#[tokio::test]
async fn the_command_does_not_wait_for_spare_connections_of_the_browser() {
    let listener = listener().await;
    let host = listener.host.clone();
    let login = tokio::spawn(listener.wait(expected(false)));
    let mut spare = TcpStream::connect(&host).await.unwrap();
    spare.write_all(b"GET /fav").await.unwrap();
    assert_eq!(status(&get(&host, "/callback?code=c&state=the-state").await), "200");
    let ended = timeout(CONNECTION_TIMEOUT / 2, login).await.expect("the code is exchanged at once");
    assert!(matches!(ended.unwrap(), Ok(Callback::Code(_))));
}
