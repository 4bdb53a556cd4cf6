//! Several clusters behind one gateway: routing, and credentials that are valid for one cluster only.

use http::StatusCode;
use rustls_pki_types::ServerName;
use testkit::{FakeBackend, Gateway, Pki, cluster_flags, status, text};

use crate::gateway::InProcess as _;

/// Two clusters, each with its own CAs, tokens and front proxies.
struct TwoClusters {
    pki: Pki,
    other: Pki,
    prod: FakeBackend,
    test: FakeBackend,
    gateway: Gateway,
}

/// Targets and users of the requests that `prod` and `test` received.
type Seen = [Vec<(String, String)>; 2];

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const OTHER_TOKEN: (&str, &str) = ("authorization", "Bearer other-token");

impl TwoClusters {
    async fn start() -> Self {
        let (pki, other) = (Pki::new(), Pki::new());
        let (prod, test) = (FakeBackend::plain(&pki).await, FakeBackend::plain(&pki).await);
        pki.write("prod-clients.crt", pki.clients.cert_pem());
        pki.write("test-clients.crt", other.clients.cert_pem());
        pki.write("prod-front.crt", pki.client_front.cert_pem());
        pki.write("prod-tokens.csv", "good-token,carol,7,\"a,b\"\n");
        pki.write("test-tokens.csv", "other-token,mallory,8,\"system:masters\"\n");
        let clusters = "
- name: prod
  kubeconfig: prod.kubeconfig
  match: {serverNames: [prod.example.com], pathPrefix: /clusters/prod}
  authentication:
    clientCAFile: prod-clients.crt
    tokenAuthFile: prod-tokens.csv
    requestheaderClientCAFile: prod-front.crt
    requestheaderUsernameHeaders: [X-Corp-User]
- name: test
  kubeconfig: test.kubeconfig
  match: {serverNames: [test.example.com], pathPrefix: /clusters/test}
  authentication: {clientCAFile: test-clients.crt, tokenAuthFile: test-tokens.csv, anonymousAuth: false}
";
        let backends = [("prod", prod.address.to_string()), ("test", test.address.to_string())];
        let names = ["prod.example.com", "test.example.com"];
        let gateway = Gateway::with(cluster_flags(&pki, &names, &backends, clusters));
        for cluster in [("prod", &prod), ("test", &test)] {
            let (name, address) = (cluster.0, cluster.1.address);
            let line = format!("portcullis_endpoint_trusted{{cluster=\"{name}\",endpoint=\"{address}\"}} 1");
            gateway.until_counted(&line).await;
        }
        Self { pki, other, prod, test, gateway }
    }

    /// The requests that `prod` and `test` received.
    fn seen(&self) -> Seen {
        [&self.prod, &self.test].map(|backend| {
            std::iter::from_fn(|| backend.take())
                .map(|seen| (seen.target.clone(), seen.all("x-remote-user").join(",")))
                .collect()
        })
    }
}

fn one(target: &str, user: &str) -> Vec<(String, String)> {
    vec![(target.to_owned(), user.to_owned())]
}

#[tokio::test]
async fn a_request_goes_to_the_cluster_that_it_names_and_to_no_other() {
    let two = TwoClusters::start().await;
    let none: Vec<(String, String)> = Vec::new();
    // SNI, Host, path; status code and received requests.
    let cases: &[(&str, &str, &str, StatusCode, Seen)] = &[
        (
            "prod.example.com",
            "prod.example.com:6443",
            "/api?x=%2F",
            StatusCode::OK,
            [one("/api?x=%2F", "carol"), none.clone()],
        ),
        ("prod.example.com", "10.0.0.1", "/api", StatusCode::OK, [one("/api", "carol"), none.clone()]),
        ("localhost", "prod.example.com", "/api", StatusCode::OK, [one("/api", "carol"), none.clone()]),
        (
            "localhost",
            "10.0.0.1",
            "/clusters/prod/api/v1?a=b",
            StatusCode::OK,
            [one("/api/v1?a=b", "carol"), none.clone()],
        ),
        (
            "localhost",
            "10.0.0.1",
            "/clusters/prod?a=b",
            StatusCode::OK,
            [one("/?a=b", "carol"), none.clone()],
        ),
        // The rest of the path does not select another cluster.
        (
            "localhost",
            "10.0.0.1",
            "/clusters/prod/../test/api",
            StatusCode::OK,
            [one("/../test/api", "carol"), none.clone()],
        ),
        (
            "localhost",
            "10.0.0.1",
            "/clusters/prod/%2e%2e/test",
            StatusCode::OK,
            [one("/%2e%2e/test", "carol"), none.clone()],
        ),
        (
            "prod.example.com",
            "10.0.0.1",
            "/clusters/test/api",
            StatusCode::OK,
            [one("/clusters/test/api", "carol"), none.clone()],
        ),
        (
            "prod.example.com",
            "test.example.com",
            "/api",
            StatusCode::MISDIRECTED_REQUEST,
            [none.clone(), none.clone()],
        ),
        ("localhost", "10.0.0.1", "/api", StatusCode::NOT_FOUND, [none.clone(), none.clone()]),
        (
            "localhost",
            "10.0.0.1",
            "/clusters/production/api",
            StatusCode::NOT_FOUND,
            [none.clone(), none.clone()],
        ),
        (
            "localhost",
            "10.0.0.1",
            "/clusters/%70rod/api",
            StatusCode::NOT_FOUND,
            [none.clone(), none.clone()],
        ),
    ];
    for (server_name, host, path, code, seen) in cases {
        for http2 in [false, true] {
            let name = ServerName::try_from(*server_name).unwrap();
            let headers = [TOKEN, ("host", *host)];
            let response = if http2 {
                let stream = two.gateway.tls_as(name, b"h2", None).await;
                two.gateway.http2_over(stream).await.get(path, &headers).await
            } else {
                let stream = two.gateway.tls_as(name, b"http/1.1", None).await;
                two.gateway.http1_over(stream).await.get(path, &headers).await
            };
            let case = format!("{server_name} {host} {path} http2={http2}");
            assert_eq!(response.status(), *code, "{case}");
            if *code != StatusCode::OK {
                assert_eq!(status(response).await.1["kind"], "Status", "{case}");
            }
            assert_eq!(two.seen(), *seen, "{case}");
        }
    }
}

#[tokio::test]
async fn a_credential_of_one_cluster_is_refused_by_another() {
    let two = TwoClusters::start().await;
    let carol = two.pki.clients.leaf().cn("carol").issue();
    let mallory = two.other.clients.leaf().cn("mallory").issue();
    let unauthorized = StatusCode::UNAUTHORIZED;

    // Tokens on one connection, first at their own cluster: its cached result must not count for the other.
    let mut client = two.gateway.http1(None).await;
    for (path, token, code) in [
        ("/clusters/prod/api", TOKEN, StatusCode::OK),
        ("/clusters/test/api", TOKEN, unauthorized),
        ("/clusters/test/api", OTHER_TOKEN, StatusCode::OK),
        ("/clusters/prod/api", OTHER_TOKEN, unauthorized),
    ] {
        let response = client.get(path, &[token]).await;
        assert_eq!(response.status(), code, "{path}");
        text(response).await;
    }
    assert_eq!(two.seen(), [one("/api", "carol"), one("/api", "mallory")]);

    // The same for certificates.
    for (certificate, own, other) in [(&carol, "prod", "test"), (&mallory, "test", "prod")] {
        let mut client = two.gateway.http1(Some(certificate)).await;
        for (cluster, code) in [(own, StatusCode::OK), (other, unauthorized), (own, StatusCode::OK)] {
            let response = client.get(&format!("/clusters/{cluster}/api"), &[]).await;
            assert_eq!(response.status(), code, "{cluster}");
            text(response).await;
        }
    }
    let [prod, test] = two.seen();
    assert_eq!((prod.len(), test.len()), (2, 2));

    // Only one of the clusters accepts anonymous requests.
    let mut client = two.gateway.http1(None).await;
    assert_eq!(text(client.get("/clusters/prod/api", &[]).await).await, "ok");
    assert_eq!(client.get("/clusters/test/api", &[]).await.status(), unauthorized);
    assert_eq!(two.seen(), [one("/api", "system:anonymous"), Vec::new()]);
}

#[tokio::test]
async fn a_front_proxy_of_one_cluster_is_refused_by_another() {
    let two = TwoClusters::start().await;
    let proxy = two.pki.client_front.leaf().cn("proxy").issue();
    let mut client = two.gateway.http1(Some(&proxy)).await;
    let named = [("x-corp-user", "dave")];
    text(client.get("/clusters/prod/api", &named).await).await;
    assert_eq!(two.seen(), [one("/api", "dave"), Vec::new()]);
    assert_eq!(client.get("/clusters/test/api", &named).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(two.seen(), [Vec::new(), Vec::new()]);
}
