//! API servers whose URL has a path, and clusters with a path prefix: no request leaves the path of its backend, and
//! redirects lead back through the gateway.

use http::{Request, Response, StatusCode};
use testkit::{FakeBackend, Gateway, H2, Pki, cluster_flags, full, self_check, status};

use crate::gateway::InProcess as _;

/// The path of the API server's URL.
const BACKEND: &str = "/k8s/clusters/c-1";

/// A gateway with another path prefix in front of a server at that path.
async fn start(pki: &Pki, location: &'static str) -> (FakeBackend, Gateway) {
    let answer_self_check = |request: &Request<hyper::body::Incoming>| {
        let path = request.uri().path().strip_prefix(BACKEND)?;
        let mut own = Request::builder().method(request.method()).uri(path).body(()).unwrap();
        own.headers_mut().clone_from(request.headers());
        self_check::answer(&own)
    };
    let backend = FakeBackend::with_self_check(pki, H2, answer_self_check, move |_| {
        let response = Response::builder().status(301).header("location", location);
        Box::pin(async { response.body(full("")).unwrap() })
    })
    .await;
    pki.write("tokens.csv", "good-token,carol,7\n");
    let server = format!("{}{BACKEND}", backend.address);
    let clusters = "
- name: one
  kubeconfig: one.kubeconfig
  match: {pathPrefix: /clusters/one}
  authentication: {tokenAuthFile: tokens.csv}
";
    let gateway = Gateway::with(cluster_flags(pki, &["localhost"], &[("one", server)], clusters));
    (backend, gateway)
}

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

// A server that resolves dot segments would execute the request in another cluster, with the gateway's credential.
#[tokio::test]
async fn a_path_with_dot_segments_is_not_forwarded_to_a_server_with_a_path() {
    let pki = Pki::new();
    let (backend, gateway) = start(&pki, "/").await;
    let refused = [
        "/../c-2/api/v1/secrets",
        "/%2e%2e/c-2/api/v1/secrets",
        "/.%2E/c-2/api/v1/secrets",
        "/api%2f..%2f..%2fc-2/api/v1/secrets",
        "/api%5c..%5cc-2",
        "/api/./v1",
        "/..",
    ];
    for path in refused {
        let mut client = gateway.http2(None).await;
        let (code, body) = status(client.get(&format!("/clusters/one{path}"), &[TOKEN]).await).await;
        assert_eq!((code, body["reason"].as_str()), (StatusCode::BAD_REQUEST, Some("BadRequest")), "{path}");
        assert_eq!(backend.pending(), 0, "{path}");
    }
    for path in ["/api/v1/namespaces/..a/pods", "/api/v1/x?a=/../b", "/api/v1/namespaces/n/pods/a...b"] {
        let mut client = gateway.http2(None).await;
        let answer = client.get(&format!("/clusters/one{path}"), &[TOKEN]).await;
        assert_eq!(answer.status(), StatusCode::MOVED_PERMANENTLY, "{path}");
        assert_eq!(backend.take().unwrap().target, format!("{BACKEND}{path}"));
    }
}

#[tokio::test]
async fn a_redirect_to_a_path_of_the_backend_leads_back_through_the_gateway() {
    for (location, expected) in [
        ("/k8s/clusters/c-1/api/v1/x/proxy/?a=b", "/clusters/one/api/v1/x/proxy/?a=b"),
        ("https://api.test/k8s/clusters/c-1/x", "/clusters/one/x"),
        ("https://elsewhere.test/k8s/clusters/c-1/x", "https://elsewhere.test/k8s/clusters/c-1/x"),
        ("/login", "/login"),
    ] {
        let pki = Pki::new();
        let (_backend, gateway) = start(&pki, location).await;
        let mut client = gateway.http1(None).await;
        let answer = client.get("/clusters/one/api/v1/x/proxy?a=b", &[TOKEN, ("host", "api.test")]).await;
        assert_eq!(answer.status(), StatusCode::MOVED_PERMANENTLY);
        assert_eq!(answer.headers()["location"], expected);
    }
}
