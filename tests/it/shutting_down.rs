//! API servers that shut down refuse requests in a response, before they do anything with them. Another endpoint takes them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::{BoxedBody, FakeBackend, Gateway, H1, H2, Pki, full, get, text};

use crate::endpoints::{several, trusts};

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const STATUS: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"apiserver is shutting down","reason":"ServiceUnavailable","code":503}"#;
const PODS: &str = "/api/v1/namespaces/n/pods";

/// A response that a server gives.
#[derive(Clone)]
struct Refusal {
    code: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Refusal {
    fn new(code: u16, headers: &[(&'static str, &str)], body: &str) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        Self { code: StatusCode::from_u16(code).unwrap(), headers: map, body: body.to_owned() }
    }

    /// As kube-apiserver writes it.
    fn of_kube_apiserver() -> Self {
        let headers = [
            ("content-type", "application/json"),
            ("retry-after", "1"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-cache, private"),
        ];
        Self::new(503, &headers, &format!("{STATUS}\n\n"))
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.insert(name, HeaderValue::from_str(value).unwrap());
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    fn response(&self) -> Response<BoxedBody> {
        let mut response = Response::new(full(self.body.clone()));
        *response.status_mut() = self.code;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// A gateway with two endpoints, of which the one that gets a request first refuses it.
struct Replicas {
    gateway: Gateway,
    _endpoints: Vec<FakeBackend>,
    /// The refusal, and how many requests get it.
    refusal: Arc<Mutex<(Refusal, usize)>>,
    received: Arc<AtomicUsize>,
}

impl Replicas {
    async fn start(alpn: &[&[u8]], count: usize) -> Self {
        let pki = Pki::new();
        let refusal = Arc::new(Mutex::new((Refusal::of_kube_apiserver(), 0)));
        let received: Arc<AtomicUsize> = Arc::default();
        let mut endpoints = Vec::new();
        for _ in 0..count {
            let (refusal, received) = (Arc::clone(&refusal), Arc::clone(&received));
            let answer = move |request: Request<Incoming>| -> testkit::ResponseFuture {
                let (refusal, received) = (Arc::clone(&refusal), Arc::clone(&received));
                Box::pin(async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    received.fetch_add(1, Ordering::SeqCst);
                    let mut refusal = refusal.lock().unwrap();
                    if refusal.1 > 0 {
                        refusal.1 -= 1;
                        return refusal.0.response();
                    }
                    Response::new(full(format!("taken: {}", String::from_utf8_lossy(&body))))
                })
            };
            endpoints.push(FakeBackend::start(&pki, alpn, answer).await);
        }
        let gateway = several(&pki, &endpoints.iter().collect::<Vec<_>>());
        for endpoint in &endpoints {
            trusts(&gateway, endpoint, true).await;
        }
        Self { gateway, _endpoints: endpoints, refusal, received }
    }

    /// The answer to a request of which the first `times` attempts are refused, and the number of attempts.
    async fn send(
        &self,
        refusal: &Refusal,
        times: usize,
        request: Request<BoxedBody>,
    ) -> (StatusCode, String, usize) {
        *self.refusal.lock().unwrap() = (refusal.clone(), times);
        self.received.store(0, Ordering::SeqCst);
        let response = self.gateway.http1(None).await.send(request).await.unwrap();
        let code = response.status();
        (code, text(response).await, self.received.load(Ordering::SeqCst))
    }
}

fn request(method: &str, target: &str, body: &str) -> Request<BoxedBody> {
    let method: Method = method.parse().unwrap();
    if body.is_empty() {
        let mut request = get(target, &[TOKEN]);
        *request.method_mut() = method;
        return request;
    }
    let request = Request::builder().method(method).uri(target).header(TOKEN.0, TOKEN.1);
    request.header("host", "localhost").body(full(body.to_owned())).unwrap()
}

#[tokio::test]
async fn another_endpoint_takes_what_one_that_shuts_down_has_refused() {
    for alpn in [H1, H2] {
        let replicas = Replicas::start(alpn, 2).await;
        let cases = [
            ("GET", PODS, ""),
            ("GET", "/apis/example.com/v1/things", ""),
            ("POST", PODS, "{\"a\":1}"),
            ("DELETE", "/api/v1/namespaces/n/pods/p", ""),
            ("PUT", "/apis/apps/v1/namespaces/n/deployments/d", "{}"),
        ];
        let refusal = Refusal::of_kube_apiserver();
        for (method, target, body) in cases {
            let answer = replicas.send(&refusal, 1, request(method, target, body)).await;
            assert_eq!(answer, (StatusCode::OK, format!("taken: {body}"), 2), "{method} {target}");
        }
        // If both shut down, the client gets their own response.
        let answer = replicas.send(&refusal, 2, request("POST", PODS, "{}")).await;
        assert_eq!(answer, (refusal.code, refusal.body.clone(), 2));
    }
    // There is no other endpoint.
    let replicas = Replicas::start(H2, 1).await;
    let refusal = Refusal::of_kube_apiserver();
    let answer = replicas.send(&refusal, 1, request("GET", PODS, "")).await;
    assert_eq!(answer, (refusal.code, refusal.body.clone(), 1));
}

// threat: forged-shutdown
#[tokio::test]
async fn no_other_response_repeats_a_request() {
    let replicas = Replicas::start(H2, 2).await;
    let genuine = Refusal::of_kube_apiserver;
    let other_text = |from: &str, to: &str| Refusal { body: STATUS.replace(from, to), ..genuine() };
    let cases = [
        // kube-apiserver has authenticated the request, so it has passed the filter.
        ("authenticated", genuine().with("x-kubernetes-pf-flowschema-uid", "u"), "POST", PODS),
        ("another message", other_text("apiserver is", "webhook said: apiserver is"), "POST", PODS),
        ("another reason", other_text("ServiceUnavailable", "InternalError"), "POST", PODS),
        ("more fields", other_text("\"code\"", "\"details\":{},\"code\""), "POST", PODS),
        ("more text", Refusal { body: format!("{STATUS}\n{{}}"), ..genuine() }, "POST", PODS),
        ("no Retry-After", genuine().without("retry-after"), "POST", PODS),
        ("another Retry-After", genuine().with("retry-after", "2"), "POST", PODS),
        ("another type", genuine().with("content-type", "text/plain"), "POST", PODS),
        ("another code", Refusal { code: StatusCode::INTERNAL_SERVER_ERROR, ..genuine() }, "POST", PODS),
        ("too many requests", Refusal { code: StatusCode::TOO_MANY_REQUESTS, ..genuine() }, "POST", PODS),
        // Others may choose these responses.
        ("an aggregated API server", genuine(), "POST", "/apis/example.com/v1/things"),
        ("a pod", genuine(), "POST", "/api/v1/namespaces/n/services/s/proxy/x"),
        ("a read of a pod", genuine(), "GET", "/api/v1/namespaces/n/pods/p/log"),
        ("a node", genuine(), "POST", "/api/v1/nodes/n/proxy/run"),
    ];
    for (name, refusal, method, target) in cases {
        let body = if method == "POST" { "{}" } else { "" };
        let answer = replicas.send(&refusal, 1, request(method, target, body)).await;
        assert_eq!(answer, (refusal.code, refusal.body.clone(), 1), "{name}");
    }
}

/// What kube-apiserver's own filters write is recognized, with all headers of the filters around them.
#[tokio::test]
async fn the_refusals_of_kube_apiservers_filters_are_recognized() {
    let Some(program) = GoProgram::build("shutdown") else { return };
    let mut questions = Vec::new();
    for http2 in [false, true] {
        for send_retry_after in [false, true] {
            for (method, target) in
                [("GET", PODS.to_owned()), ("POST", PODS.to_owned()), ("GET", format!("{PODS}?watch=true"))]
            {
                questions.push(json!({"method": method, "target": target, "http2": http2, "sendRetryAfter": send_retry_after}));
            }
        }
    }
    let replicas = Replicas::start(H2, 2).await;
    for (question, answer) in questions.iter().zip(program.ask(&questions)) {
        assert_eq!(answer["handled"], false, "{question}");
        let mut headers = HeaderMap::new();
        for (name, values) in answer["header"].as_object().unwrap() {
            for value in values.as_array().unwrap() {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                headers.append(name, HeaderValue::from_str(value.as_str().unwrap()).unwrap());
            }
        }
        headers.remove("connection");
        let code = u16::try_from(answer["code"].as_u64().unwrap()).unwrap();
        let body = answer["body"].as_str().unwrap().to_owned();
        let refusal = Refusal { code: StatusCode::from_u16(code).unwrap(), headers, body };
        let text = |key: &str| question[key].as_str().unwrap();
        let body = if text("method") == "POST" { "{}" } else { "" };
        let taken = replicas.send(&refusal, 1, request(text("method"), text("target"), body)).await;
        assert_eq!(
            taken,
            (StatusCode::OK, format!("taken: {body}"), 2),
            "{question}: {}",
            Value::clone(&answer)
        );
    }
}
