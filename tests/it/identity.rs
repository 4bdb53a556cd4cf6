//! The forwarded identity: exactly that of the client's credential, whatever headers the client sends.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use testkit::wire::head;
use testkit::{
    BoxedError, FakeBackend, Gateway, H1, H2, Pki, ReceivedRequest, flags, full, get, in_time, status,
};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use crate::gateway::InProcess as _;

/// The identity headers that arrived, sorted by name, values in order.
fn identity(seen: &ReceivedRequest) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = seen
        .headers
        .iter()
        .filter(|(name, _)| {
            let name = name.as_str().replace(['_', '.'], "-");
            name.starts_with("x-remote-") || name.starts_with("impersonate-") || name == "authorization"
        })
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn each_authenticator_forwards_its_own_identity() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);

    let alice = pki.clients.leaf().cn("alice").org("g1").org("g2").issue();
    gateway.http2(Some(&alice)).await.get("/api", &[]).await;
    let seen = backend.take().unwrap();
    let fingerprint = seen.all("x-remote-extra-authentication.kubernetes.io%2fcredential-id");
    assert!(fingerprint[0].starts_with("X509SHA256="), "{fingerprint:?}");
    assert_eq!(seen.all("x-remote-user"), ["alice"]);
    assert_eq!(seen.all("x-remote-group"), ["g1", "g2", "system:authenticated"]);

    gateway.http1(None).await.get("/api", &[("authorization", "Bearer good-token")]).await;
    assert_eq!(
        identity(&backend.take().unwrap()),
        pairs(&[
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-uid", "7"),
            ("x-remote-user", "carol"),
        ])
    );

    gateway.http1(None).await.get("/api", &[]).await;
    let seen = backend.take().unwrap();
    assert_eq!(
        identity(&seen),
        pairs(&[("x-remote-group", "system:unauthenticated"), ("x-remote-user", "system:anonymous")])
    );
    assert_eq!(seen.version, http::Version::HTTP_11, "anonymous requests use separate connections");

    let proxy = pki.client_front.leaf().cn("proxy").issue();
    let headers = [
        ("x-remote-user", "dave"),
        ("x-remote-uid", "99"),
        ("x-remote-group", "x,y"),
        ("x-remote-group", "z"),
        ("x-remote-extra-example.com%2Fkey", "v1"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    gateway.http1(Some(&proxy)).await.get("/api", &headers).await;
    let seen = backend.take().unwrap();
    assert_eq!(
        identity(&seen),
        pairs(&[
            ("x-remote-extra-example.com%2fkey", "v1"),
            ("x-remote-group", "x,y"),
            ("x-remote-group", "z"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-uid", "99"),
            ("x-remote-user", "dave"),
        ])
    );
    assert_eq!(
        seen.all("x-forwarded-for"),
        ["192.0.2.7, 127.0.0.1"],
        "the gateway keeps a front proxy's X-Forwarded-For"
    );
}

#[tokio::test]
async fn client_headers_never_become_the_identity() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let token = ("authorization", "Bearer good-token");
    let cases: &[&[(&str, &str)]] = &[
        &[("x-remote-user", "eve")],
        &[("X_Remote_User", "eve"), ("x.remote.user", "eve")],
        &[("x-remote-group", "system:masters"), ("x-remote-group", "system:masters")],
        &[("x-remote-extra-scopes", "all"), ("x-remote-new", "1")],
        &[("connection", "x-remote-user, x-remote-group"), ("x-remote-user", "eve")],
        &[("connection", "x-remote-uid"), ("connection", "X-Remote-Extra-a")],
        &[("impersonate_user", "eve"), ("impersonate.group", "system:masters")],
        &[("authorization", "Bearer other")],
        &[("proxy-authorization", "Bearer other")],
        &[("x-forwarded-for", "192.0.2.1"), ("x-real-ip", "192.0.2.1"), ("forwarded", "for=192.0.2.1")],
    ];
    let expected = pairs(&[
        ("x-remote-group", "a"),
        ("x-remote-group", "b"),
        ("x-remote-group", "system:authenticated"),
        ("x-remote-uid", "7"),
        ("x-remote-user", "carol"),
    ]);
    for case in cases {
        let headers: Vec<_> = std::iter::once(token).chain(case.iter().copied()).collect();
        let response = gateway.http1(None).await.get("/api", &headers).await;
        assert_eq!(response.status(), StatusCode::OK, "{case:?}");
        let seen = backend.take().unwrap();
        assert_eq!(identity(&seen), expected, "{case:?}");
        assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"], "{case:?}");
        for gone in ["x-real-ip", "forwarded", "proxy-authorization", "connection"] {
            assert_eq!(seen.all(gone), Vec::<String>::new(), "{gone} in {case:?}");
        }
    }
}

#[tokio::test]
async fn an_identity_that_headers_cannot_encode_is_refused() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let padded = pki.clients.leaf().cn("mallory").org("system:masters ").issue();
    let tabbed = pki.clients.leaf().cn("\tmallory").issue();
    for http2 in [false, true] {
        for (issued, path) in [(&padded, "/api"), (&tabbed, "/api"), (&padded, "/livez")] {
            let response = if http2 {
                gateway.http2(Some(issued)).await.get(path, &[]).await
            } else {
                gateway.http1(Some(issued)).await.get(path, &[]).await
            };
            assert_eq!(status(response).await.0, StatusCode::UNAUTHORIZED, "{path}");
        }
        for token in ["Bearer nameless", "Bearer masters"] {
            let response = gateway.http1(None).await.get("/api", &[("authorization", token)]).await;
            assert_eq!(status(response).await.0, StatusCode::UNAUTHORIZED, "{token}");
        }
    }
    assert_eq!(backend.pending(), 0, "no part of the request reached the backend");
}

#[tokio::test]
async fn with_impersonation_by_the_backend_headers_are_forwarded_and_unknown_ones_refused() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut flags = flags(&pki, backend.address);
    flags.push("--impersonation=backend".to_owned());
    let gateway = Gateway::with(flags);
    let token = ("authorization", "Bearer good-token");
    let headers =
        [token, ("impersonate-user", "bob"), ("impersonate-group", "x"), ("impersonate-group", "y")];
    gateway.http1(None).await.get("/api", &headers).await;
    let seen = backend.take().unwrap();
    assert_eq!(seen.all("x-remote-user"), ["carol"]);
    assert_eq!(seen.all("impersonate-user"), ["bob"]);
    assert_eq!(seen.all("impersonate-group"), ["x", "y"]);

    let response = gateway.http1(None).await.get("/api", &[token, ("impersonate-tenant", "t")]).await;
    let (code, body) = status(response).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    assert_eq!(body["reason"], "BadRequest");
    assert_eq!(backend.pending(), 0);
}

#[tokio::test]
async fn in_identity_mode_impersonate_the_gateway_sends_its_own_credential() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut flags = flags(&pki, backend.address);
    flags.push("--identity=impersonate".to_owned());
    let gateway = Gateway::with(flags);
    let token = ("authorization", "Bearer good-token");
    gateway.http1(None).await.get("/api", &[token]).await;
    assert_eq!(
        identity(&backend.take().unwrap()),
        pairs(&[
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-group", "system:authenticated"),
            ("impersonate-uid", "7"),
            ("impersonate-user", "carol"),
        ])
    );
}

/// kube-apiserver adds `system:unauthenticated` to `system:anonymous` when it impersonates it, and not to the user of a
/// certificate.
#[tokio::test]
async fn an_identity_that_an_impersonation_would_change_is_refused() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let in_groups = |groups: &[&str]| {
        let leaf = pki.clients.leaf().cn("system:anonymous");
        groups.iter().fold(leaf, |leaf, group| leaf.org(group)).issue()
    };
    let cases: [(&[&str], StatusCode); 4] = [
        (&["dev"], StatusCode::UNAUTHORIZED),
        (&[], StatusCode::UNAUTHORIZED),
        (&["dev", "system:unauthenticated"], StatusCode::OK),
        (&["system:unauthenticated"], StatusCode::OK),
    ];
    for mode in ["impersonate", "requestHeader"] {
        let mut flags = flags(&pki, backend.address);
        flags.push(format!("--identity={mode}"));
        let gateway = Gateway::with(flags);
        for (groups, code) in cases {
            let expected = if mode == "impersonate" { code } else { StatusCode::OK };
            let response = gateway.http1(Some(&in_groups(groups))).await.get("/api", &[]).await;
            assert_eq!(response.status(), expected, "{mode} {groups:?}");
            let arrived = backend.take();
            assert_eq!(arrived.is_some(), expected == StatusCode::OK, "{mode} {groups:?}");
            let header = if mode == "impersonate" { "impersonate-group" } else { "x-remote-group" };
            let arrived = arrived.map(|seen| seen.all(header)).unwrap_or_default();
            assert!(arrived.is_empty() || arrived == groups, "{mode} {groups:?}: {arrived:?}");
        }
    }
}

// A receiver may merge trailers into the header.
#[tokio::test]
async fn request_trailers_are_not_forwarded() {
    for (alpn, version) in [H1, H2].into_iter().flat_map(|alpn| [1, 2].map(|version| (alpn, version))) {
        let pki = Pki::new();
        let (received, mut seen) = mpsc::unbounded_channel();
        let backend = FakeBackend::start(&pki, alpn, move |request: Request<hyper::body::Incoming>| {
            let received = received.clone();
            Box::pin(async move {
                let announced = request.headers().contains_key("trailer");
                let collected = request.into_body().collect().await.unwrap();
                received.send((announced, collected.trailers().cloned(), collected.to_bytes())).unwrap();
                Response::new(full("ok"))
            })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let names = ["x-remote-user", "x-remote-group", "impersonate-user", "authorization", "x-sum"];
        if version == 2 {
            let sent = names.map(|name| (name.parse().unwrap(), "system:masters".parse().unwrap()));
            let frames =
                [Frame::data(Bytes::from_static(b"{}")), Frame::trailers(sent.into_iter().collect())];
            let request = Request::post("/api/v1/namespaces/n/configmaps")
                .header("trailer", names.join(", "))
                .body(StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, BoxedError>))).boxed())
                .unwrap();
            let response = gateway.http2(Some(&alice)).await.send(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
        } else {
            let mut client = gateway.tls(b"http/1.1", Some(&alice)).await;
            let request = format!(
                "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
                 Trailer: {}\r\n\r\n2\r\n{{}}\r\n0\r\nX-Remote-User: admin\r\nX-Sum: 1\r\n\r\n",
                names.join(", ")
            );
            client.write_all(request.as_bytes()).await.unwrap();
            assert!(head(&mut client).await.unwrap().starts_with("HTTP/1.1 200 "), "{alpn:?}");
        }
        let arrived = in_time(seen.recv()).await.unwrap();
        assert_eq!(arrived, (false, None, Bytes::from_static(b"{}")), "{alpn:?}, HTTP/{version}");
    }
}

#[tokio::test]
async fn a_bearer_subprotocol_is_removed_also_beside_invalid_ones() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let mut request = get("/api", &[("connection", "Upgrade"), ("upgrade", "websocket")]);
    // Not UTF-8: the last letter is one byte of Latin-1.
    let protocols = b"base64url.bearer.authorization.k8s.io.Z29vZC10b2tlbg, caf\xe9".as_slice();
    let protocols = http::HeaderValue::from_bytes(protocols).unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocols);
    let response = gateway.http1(None).await.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let seen = backend.take().unwrap();
    assert_eq!(seen.all("x-remote-user"), ["carol"]);
    assert_eq!(seen.headers["sec-websocket-protocol"].as_bytes(), b"caf\xe9");
}

/// The gateway's own user may read every Secret, so no credential authenticates a client as that user. A front proxy
/// may assert it, since it may be another gateway that reads through this one.
#[tokio::test]
async fn no_client_is_authenticated_as_the_gateway() {
    const NAME: &str = "system:portcullis";
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut given = flags(&pki, backend.address);
    pki.write("tokens.csv", format!("own-token,{NAME},7\ngood-token,carol,8\n"));
    given.push("--anonymous-auth=true".to_owned());
    let gateway = Gateway::with(given);
    let own = pki.clients.leaf().cn(NAME).issue();
    let alice = pki.clients.leaf().cn("alice").issue();
    let token = [("authorization", "Bearer own-token")];
    let also_good = [("authorization", "Bearer good-token")];
    for (name, certificate, headers, code) in [
        ("a certificate", Some(&own), &[][..], StatusCode::UNAUTHORIZED),
        ("a certificate beside a good token", Some(&own), &also_good[..], StatusCode::UNAUTHORIZED),
        ("a token", None, &token[..], StatusCode::UNAUTHORIZED),
        ("a token beside a good certificate", Some(&alice), &token[..], StatusCode::OK),
    ] {
        let answer = gateway.http1(certificate).await.get("/api", headers).await;
        assert_eq!(answer.status(), code, "{name}");
    }
    assert_eq!(backend.pending(), 1);
    let refused = async |method: &str| {
        gateway.count(&format!("portcullis_reserved_identities_total{{method=\"{method}\"}}")).await
    };
    assert_eq!((refused("x509").await, refused("static-token").await), (2, 1));
    // The fake backend answers the gateway's own reads with 404.
    let proxy = pki.client_front.leaf().cn("proxy").issue();
    let answer = gateway.http1(Some(&proxy)).await.get("/api", &[("x-remote-user", NAME)]).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}
