//! Redirects of the provider, and everything else that reaches the listener.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn expected(has_issuer: bool) -> ExpectedCallback {
    ExpectedCallback {
        state: SecretString::from("the-state"),
        issuer: "https://issuer.test".to_owned(),
        has_issuer,
    }
}

/// Where the provider is asked to log the user in.
const PROVIDER: &str = "https://issuer.test/auth?state=the-state&a=b";

async fn listener() -> CallbackListener {
    CallbackListener::bind(CallbackHost::Ipv4, &[0]).await.unwrap()
}

/// A login, with the host and the path of its start address, where users of connections are not known.
async fn login() -> (CallbackServer, String, String) {
    login_of(|| PeerUser::Unknown).await
}

/// The same with connections of these users.
async fn login_of(user: impl Fn() -> PeerUser + Send + Sync + 'static) -> (CallbackServer, String, String) {
    let server = listener().await.serve_users(expected(false), PROVIDER, move |_, _| user());
    let (host, path) = server.start_url().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let (host, path) = (host.to_owned(), format!("/{path}"));
    (server, host, path)
}

async fn code(server: &mut CallbackServer) -> String {
    match server.wait().await.unwrap() {
        Callback::Code(code) => code.expose_secret().to_owned(),
        Callback::Refused(refusal) => panic!("{refusal:?}"),
    }
}

const GOOD: &str = "/callback?code=c&state=the-state";

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
    let (mut server, host, _) = login().await;
    let good = GOOD;
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
        assert!(server.outcome.try_recv().is_err(), "{name}");
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
    assert_eq!(code(&mut server).await, "c");
    server.check_start().unwrap();
    let answer = get(&host, good).await;
    assert_eq!(status(&answer), "410", "the second redirect finds the login completed: {answer}");
    drop(server);
    // The task that holds the listener ends at its next turn.
    testkit::until("the port to be free again", || std::net::TcpStream::connect(&host).is_err()).await;
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
    let port = taken.listeners[0].local_addr().unwrap().port();
    let error = CallbackListener::bind(CallbackHost::Ipv4, &[port]).await.unwrap_err().to_string();
    assert!(error.contains(&port.to_string()) && error.contains("--callback-port"), "{error}");
    let second = CallbackListener::bind(CallbackHost::Localhost, &[port, 0]).await.unwrap();
    assert!(second.redirect_url().starts_with("http://localhost:"), "{}", second.redirect_url());
}

#[tokio::test]
async fn localhost_is_both_addresses_or_none() {
    let (v4, v6) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST));
    if TcpListener::bind(SocketAddr::new(v6, 0)).await.is_err() {
        let only = CallbackListener::bind(CallbackHost::Localhost, &[0]).await.unwrap();
        assert_eq!(only.listeners.len(), 1, "a machine without IPv6 has one address");
        return;
    }
    let both = CallbackListener::bind(CallbackHost::Localhost, &[0]).await.unwrap();
    let addresses: Vec<_> = both.listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    assert_eq!(addresses, [v4, v6].map(|address| SocketAddr::new(address, addresses[0].port())));
    let mut server = both.serve(expected(false), PROVIDER);
    let request = format!("GET {GOOD} HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", addresses[1].port());
    assert_eq!(status(&send(&addresses[1].to_string(), &request).await), "200");
    assert_eq!(code(&mut server).await, "c");
    // Another program has the port on one of them, and would get the redirect of a browser that tries it first.
    for (taken, other) in [(v4, v6), (v6, v4)] {
        let taken = TcpListener::bind(SocketAddr::new(taken, 0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = CallbackListener::bind(CallbackHost::Localhost, &[port]).await.unwrap_err().to_string();
        assert!(error.contains("127.0.0.1 and ::1") && error.contains("--callback-port"), "{error}");
        let free = TcpListener::bind(SocketAddr::new(other, port)).await;
        assert!(free.is_ok(), "nothing is left on the other one");
        let next = CallbackListener::bind(CallbackHost::Localhost, &[port, 0]).await.unwrap();
        assert_ne!(next.listeners[0].local_addr().unwrap().port(), port);
    }
}

#[test]
fn an_address_is_absent_only_if_the_machine_does_not_have_it() {
    for (kind, expected) in [
        (io::ErrorKind::AddrNotAvailable, true),
        // Another user may have all ports, or have made this process use all of its files.
        (io::ErrorKind::AddrInUse, false),
        (io::ErrorKind::PermissionDenied, false),
        (io::ErrorKind::OutOfMemory, false),
        (io::ErrorKind::Other, false),
    ] {
        assert_eq!(is_absent(&io::Error::from(kind)), expected, "{kind}");
    }
}

#[tokio::test]
async fn the_start_address_leads_to_the_provider_once() {
    let (mut server, host, path) = login().await;
    let request =
        |method: &str, more: &str| format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    // What comes without the user: link previews, prefetches, icons, parts of other pages.
    for (name, head, expected) in [
        ("a link preview", request("HEAD", ""), "405"),
        ("a form", request("POST", "Content-Length: 0\r\n"), "405"),
        ("a prefetch", request("GET", "Sec-Purpose: prefetch\r\n"), "503"),
        ("a prerendered page", request("GET", "Sec-Purpose: prefetch;prerender\r\n"), "503"),
        ("a prefetch of an older browser", request("GET", "X-Moz: prefetch\r\n"), "503"),
        ("a preview", request("GET", "X-Purpose: preview\r\n"), "503"),
        ("an image", request("GET", "Sec-Fetch-Dest: image\r\n"), "403"),
        ("a script", request("GET", "Origin: https://evil.test\r\n"), "403"),
        ("another name", format!("GET {path} HTTP/1.1\r\nHost: evil.test\r\n\r\n"), "421"),
        ("an icon", format!("GET /favicon.ico HTTP/1.1\r\nHost: {host}\r\n\r\n"), "404"),
        ("a guess", format!("GET {path}x HTTP/1.1\r\nHost: {host}\r\n\r\n"), "404"),
    ] {
        let answer = send(&host, &head).await;
        assert_eq!(status(&answer), expected, "{name}: {answer}");
    }
    let answer = get(&host, &path).await;
    let lower = answer.to_ascii_lowercase();
    assert_eq!(status(&answer), "302", "{answer}");
    assert!(lower.contains(&format!("\r\nlocation: {}\r\n", PROVIDER.to_ascii_lowercase())), "{answer}");
    assert!(
        lower.contains("cache-control: no-store") && lower.contains("referrer-policy: no-referrer"),
        "{answer}"
    );
    assert_eq!(status(&get(&host, GOOD).await), "200");
    assert_eq!(code(&mut server).await, "c");
    server.check_start().unwrap();
}

#[tokio::test]
async fn a_second_one_at_the_start_address_ends_the_login() {
    let (mut server, host, path) = login().await;
    assert_eq!(status(&get(&host, &path).await), "302");
    let second = get(&host, &path).await;
    assert!(status(&second) == "410" && second.contains("may have used"), "{second}");
    assert!(!second.contains("issuer.test"), "{second}");
    let error = server.wait().await.unwrap_err();
    assert!(matches!(error, CallbackError::StartedTwice), "{error}");
    assert_eq!(status(&get(&host, GOOD).await), "410", "the redirect of either counts no longer");
    // A thief whom the provider knows already may be done before the browser of the user is there.
    let (mut server, host, path) = login().await;
    assert_eq!(status(&get(&host, &path).await), "302");
    assert_eq!(status(&get(&host, GOOD).await), "200");
    assert_eq!(code(&mut server).await, "c");
    assert_eq!(status(&get(&host, &path).await), "410");
    assert!(matches!(server.check_start(), Err(CallbackError::StartedTwice)));
}

/// Openers of desktops fetch an address themselves before the browser does, and people paste it into another browser.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_user_opens_the_start_address_as_often_as_programs_of_the_desktop_do() {
    let mut server = listener().await.serve(expected(false), PROVIDER);
    let (host, path) = server.start_url().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let (host, path) = (host.to_owned(), format!("/{path}"));
    for _ in 0..3 {
        assert_eq!(status(&get(&host, &path).await), "302");
    }
    assert_eq!(status(&get(&host, GOOD).await), "200");
    assert_eq!(code(&mut server).await, "c");
    assert_eq!(status(&get(&host, &path).await), "302");
    server.check_start().unwrap();
}

#[tokio::test]
async fn another_user_is_refused_and_one_who_is_not_known_may_be_another() {
    use PeerUser::{Other, Own, Unknown};

    for (users, statuses, failure) in [
        (&[Own, Own][..], &["302", "302"][..], None),
        (&[Other], &["403"], Some("another user of this machine has opened")),
        (&[Own, Other, Own], &["302", "403", "410"], Some("another user of this machine has opened")),
        (&[Unknown], &["302"], None),
        (&[Unknown, Unknown], &["302", "410"], Some("opened twice")),
        (&[Own, Unknown], &["302", "410"], Some("opened twice")),
        (&[Unknown, Own], &["302", "410"], Some("opened twice")),
    ] {
        let next = Mutex::new(users.iter());
        let (mut server, host, path) = login_of(move || *lock(&next).next().unwrap_or(&Own)).await;
        for expected in statuses {
            let answer = get(&host, &path).await;
            assert_eq!(status(&answer), *expected, "{users:?}: {answer}");
            assert_eq!(answer.contains("issuer.test"), *expected == "302", "{users:?}: {answer}");
        }
        let checked = server.check_start().map_err(|error| error.to_string());
        assert_eq!(checked.is_err(), failure.is_some(), "{users:?}: {checked:?}");
        let Some(failure) = failure else { continue };
        assert!(checked.is_err_and(|error| error.contains(failure)), "{users:?}");
        let error = server.wait().await.unwrap_err().to_string();
        assert!(error.contains(failure), "{users:?}: {error}");
    }
}

#[tokio::test]
async fn a_redirect_of_another_user_is_refused_and_changes_nothing() {
    let next = Mutex::new(vec![PeerUser::Own, PeerUser::Other]);
    let (mut server, host, _) = login_of(move || lock(&next).pop().unwrap_or(PeerUser::Unknown)).await;
    let refused = get(&host, GOOD).await;
    assert!(status(&refused) == "403" && refused.contains("another user"), "{refused}");
    assert!(server.outcome.try_recv().is_err());
    assert_eq!(status(&get(&host, GOOD).await), "200");
    assert_eq!(code(&mut server).await, "c");
    server.check_start().unwrap();
}

/// Many connections that send this and no more.
async fn crowd(host: &str, text: &[u8]) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..300 {
        let mut one = TcpStream::connect(host).await.unwrap();
        one.write_all(text).await.unwrap();
        crowd.push(one);
    }
    crowd
}

#[tokio::test]
async fn connections_that_send_no_request_do_not_keep_the_browser_out() {
    for text in [&b""[..], b"GET / HTTP/1.1\r\nX-Slow: "] {
        let (mut server, host, path) = login().await;
        let mut crowd = crowd(&host, text).await;
        // Without waiting for any of them to end.
        let answer = timeout(CONNECTION_TIMEOUT, get(&host, &path)).await.expect("the browser gets through");
        assert_eq!(status(&answer), "302", "{answer}");
        for one in &mut crowd {
            // Those that are still open send a byte now and then.
            one.write_all(b"x").await.ok();
        }
        let answer = timeout(CONNECTION_TIMEOUT, get(&host, GOOD)).await.expect("the redirect gets through");
        assert_eq!(status(&answer), "200", "{answer}");
        assert_eq!(code(&mut server).await, "c");
    }
}

#[tokio::test]
async fn a_header_that_does_not_come_has_two_seconds() {
    for text in [&b""[..], b"GET / HTTP/1.1\r\n"] {
        let (_server, host, _) = login().await;
        tokio::time::pause();
        let mut slow = TcpStream::connect(&host).await.unwrap();
        slow.write_all(text).await.unwrap();
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        slow.read_to_end(&mut answer).await.ok();
        let waited = began.elapsed();
        assert!((HEADER_TIMEOUT..CONNECTION_TIMEOUT).contains(&waited), "{waited:?}");
        tokio::time::resume();
    }
}

#[tokio::test]
async fn the_command_does_not_wait_for_spare_connections_of_the_browser() {
    let (mut server, host, _) = login().await;
    let mut spare = TcpStream::connect(&host).await.unwrap();
    spare.write_all(b"GET /fav").await.unwrap();
    assert_eq!(status(&get(&host, GOOD).await), "200");
    let ended = timeout(HEADER_TIMEOUT / 2, code(&mut server)).await.expect("the code is exchanged at once");
    assert_eq!(ended, "c");
}
