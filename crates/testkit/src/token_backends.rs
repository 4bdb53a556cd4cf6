//! The servers that a gateway calls for token authentication: an API server, an issuer and a webhook.

use crate::now;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::Client;
use crate::fake_accounts::{self, FakeAccounts};
use crate::fake_backend::{FakeBackend, H2};
use crate::gateway::{Gateway, flags};
use crate::issuer::{Issuer, SigningKey};
use crate::messages::{BoxedBody, ResponseFuture, full};
use crate::self_check::respond;
use crate::test_pki::Pki;

const AUDIENCE: &str = "asked";

/// The servers, and the key of the issuer.
pub struct TokenBackends {
    /// The service accounts of the API server.
    pub accounts: Arc<FakeAccounts>,
    /// The issuer.
    pub issuer: Issuer,
    /// The webhook.
    pub webhook: FakeBackend,
    /// The API server.
    pub backend: FakeBackend,
    key: SigningKey,
    made: AtomicUsize,
    secret_reads: Arc<AtomicUsize>,
}

impl TokenBackends {
    /// Starts the servers, with `webhook` as the response of the webhook.
    pub async fn start(
        pki: &Pki,
        webhook: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        let (accounts, key) = (FakeAccounts::new(), SigningKey::new("k"));
        let secret_reads = Arc::new(AtomicUsize::new(0));
        let (known, count) = (Arc::clone(&accounts), Arc::clone(&secret_reads));
        let backend = FakeBackend::with_self_check(
            pki,
            H2,
            move |request| {
                let answer = known.answer(request)?;
                let reads_secret =
                    request.method() == Method::GET && request.uri().path().contains("/secrets/");
                count.fetch_add(usize::from(reads_secret), Ordering::Relaxed);
                Some(answer)
            },
            |_| Box::pin(async { Response::new(full(vec![b'x'; 2048])) }),
        )
        .await;
        let issuer = Issuer::start(pki, &[&key]).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = FakeBackend::without_client_auth(pki, listener, webhook);
        Self { accounts, issuer, webhook, backend, key, made: AtomicUsize::new(0), secret_reads }
    }

    /// The flags of a gateway that uses all servers.
    pub fn flags(&self, pki: &Pki) -> Vec<String> {
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: w, cluster: {{server: 'https://{}', certificate-authority: servers-ca.crt}}}}]\n\
             contexts: [{{name: c, context: {{cluster: w}}}}]\n",
            self.webhook.address
        );
        let kubeconfig = pki.write("webhook.kubeconfig", kubeconfig);
        let mut all = flags(pki, self.backend.address);
        all.extend([
            "--enable-bootstrap-token-auth".to_owned(),
            format!("--service-account-issuer={}", fake_accounts::ISSUER),
            format!("--oidc-issuer-url={}", self.issuer.url),
            format!("--oidc-client-id={AUDIENCE}"),
            "--oidc-signing-algs=ES256".to_owned(),
            format!("--oidc-ca-file={}", pki.directory.path().join("servers-ca.crt").display()),
            "--authentication-token-webhook-version=v1".to_owned(),
            format!("--authentication-token-webhook-config-file={}", kubeconfig.display()),
        ]);
        all
    }

    /// A token of the issuer; each token is different.
    pub fn id_token(&self) -> String {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let claims = json!({"iss": self.issuer.url, "aud": AUDIENCE, "sub": "carol", "jti": number, "exp": now() + 3600});
        self.key.sign(&claims)
    }

    /// Waits until the gateway's watch caches are complete and it has the keys of the issuer.
    pub async fn until_known(&self, gateway: &Gateway) {
        for token in [|servers: &Self| servers.accounts.token(), Self::id_token] {
            let is_known = async || {
                let mut client = Client::connect(gateway, false, None).await;
                client.code(&[("authorization", &format!("Bearer {}", token(self)))]).await == StatusCode::OK
            };
            while !is_known().await {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }

    /// The number of reads of a single secret.
    pub fn secret_reads(&self) -> usize {
        self.secret_reads.load(Ordering::Relaxed)
    }
}

/// The answer of a webhook that does not know the token.
pub fn unknown() -> Response<BoxedBody> {
    let status: Value = json!({"authenticated": false});
    respond(
        StatusCode::OK,
        &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}),
    )
}
