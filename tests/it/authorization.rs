//! The gateway's own authorizers, with a real webhook connection: what the client and the backend see, and reload.

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::self_check::{self, respond};
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, text};

use crate::gateway::InProcess as _;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

/// A backend that is also the authorization webhook, and its answer.
pub(crate) struct Authorizing {
    pub(crate) pki: Pki,
    pub(crate) backend: FakeBackend,
    answer: Arc<Mutex<Value>>,
    /// The specifications of the reviews.
    reviews: Arc<Mutex<Vec<Value>>>,
}

impl Authorizing {
    pub(crate) async fn start() -> Self {
        let pki = Pki::new();
        let answer = Arc::new(Mutex::new(json!({"allowed": true})));
        let reviews = Arc::<Mutex<Vec<Value>>>::default();
        let (current, record) = (Arc::clone(&answer), Arc::clone(&reviews));
        let self_check = |request: &Request<Incoming>| {
            if request.uri().path() == "/authorize" { None } else { self_check::answer(request) }
        };
        let backend = FakeBackend::with_self_check(&pki, H2, self_check, move |request| {
            let (current, record) = (Arc::clone(&current), Arc::clone(&record));
            Box::pin(async move {
                if request.uri().path() != "/authorize" {
                    return Response::new(full("ok"));
                }
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                record.lock().unwrap().push(review["spec"].clone());
                respond(StatusCode::OK, &json!({"status": *current.lock().unwrap()}))
            })
        })
        .await;
        let webhook = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             users: [{{name: u, user: {{client-certificate: front.crt, client-key: front.key}}}}]\n\
             clusters: [{{name: b, cluster: {{server: 'https://{}/authorize', certificate-authority: servers-ca.crt, tls-server-name: backend.test}}}}]\n\
             contexts: [{{name: c, context: {{cluster: b, user: u}}}}]\n",
            backend.address
        );
        pki.write("policy.kubeconfig", webhook);
        Self { pki, backend, answer, reviews }
    }

    fn answers(&self, answer: Value) {
        *self.answer.lock().unwrap() = answer;
    }

    fn reviewed(&self) -> Vec<Value> {
        std::mem::take(&mut *self.reviews.lock().unwrap())
    }

    /// The targets of forwarded requests since the last call.
    fn forwarded(&self) -> Vec<String> {
        let seen = std::iter::from_fn(|| self.backend.take()).map(|seen| seen.target);
        seen.filter(|target| !target.starts_with("/authorize")).collect()
    }

    /// Writes the configuration: a webhook without a cache, then `after`.
    pub(crate) fn write(&self, condition: &str, after: &str) {
        let directory = self.pki.directory.path().display().to_string();
        let configuration = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n\
             - type: Webhook\n  name: policy\n  webhook:\n    timeout: 3s\n    subjectAccessReviewVersion: v1\n\
             \x20   matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: Deny\n\
             \x20   cacheAuthorizedRequests: false\n    cacheUnauthorizedRequests: false\n\
             \x20   connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {directory}/policy.kubeconfig}}\n\
             \x20   matchConditions: [{{expression: \"{condition}\"}}]\n{after}"
        );
        self.pki.write("authorization.yaml", configuration);
    }

    fn gateway(&self) -> Gateway {
        self.gateway_with(&[])
    }

    /// A gateway with further flags.
    pub(crate) fn gateway_with(&self, more: &[String]) -> Gateway {
        let mut flags = flags(&self.pki, self.backend.address);
        let file = self.pki.directory.path().join("authorization.yaml");
        flags.push(format!("--authorization-config={}", file.display()));
        flags.extend_from_slice(more);
        Gateway::with(flags)
    }
}

async fn get(gateway: &Gateway, path: &str) -> (StatusCode, String) {
    let response = gateway.http1(None).await.get(path, &[TOKEN]).await;
    (response.status(), text(response).await)
}

/// A request that the authorizers refuse reaches no backend, and neither does one that the gateway answers itself.
#[tokio::test]
async fn a_refused_request_reaches_no_backend() {
    let authorizing = Authorizing::start().await;
    authorizing.write("true", "");
    let gateway = authorizing.gateway();
    assert_eq!(get(&gateway, "/api/v1/pods").await, (StatusCode::OK, "ok".to_owned()));
    assert_eq!(authorizing.forwarded(), ["/api/v1/pods"]);
    assert_eq!(authorizing.reviewed().len(), 1);
    authorizing.answers(json!({"denied": true, "reason": "not on Sundays"}));
    for path in ["/api/v1/pods", "/healthz", "/readyz", "/livez/ping", "/api/v1/pods?watch=true"] {
        let (code, body) = get(&gateway, path).await;
        assert_eq!(code, StatusCode::FORBIDDEN, "{path}");
        assert!(body.contains("not on Sundays"), "{body}");
    }
    assert_eq!(authorizing.reviewed().len(), 5);
    assert_eq!(authorizing.forwarded(), Vec::<String>::new());
}

/// A changed file takes effect at the next request, an invalid one changes nothing.
#[tokio::test]
async fn a_changed_file_takes_effect_and_an_invalid_one_does_not() {
    let authorizing = Authorizing::start().await;
    authorizing.answers(json!({"denied": true}));
    authorizing.write("true", "");
    let gateway = authorizing.gateway();
    assert_eq!(get(&gateway, "/api").await.0, StatusCode::FORBIDDEN);
    authorizing.write("request.user ==", "");
    gateway.server().reload();
    gateway.until_counted("portcullis_config_last_reload_successful 0").await;
    assert_eq!(get(&gateway, "/api").await.0, StatusCode::FORBIDDEN);
    authorizing.write("request.user != 'carol'", "- {type: AlwaysAllow, name: alwaysallow}\n");
    let before = gateway.generation().await;
    gateway.server().reload();
    gateway.reloaded(before).await;
    authorizing.reviewed();
    assert_eq!(get(&gateway, "/api").await.0, StatusCode::OK);
    assert_eq!(authorizing.reviewed(), Vec::<Value>::new());
}
