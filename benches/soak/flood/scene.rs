//! A gateway that knows tokens of every kind, and whom it asks about them: an API server, an issuer and a webhook, which
//! count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Response};
use serde_json::json;

use crate::pki::Issued;
use crate::support::accounts::{self, Accounts};
use crate::support::client::Client;
use crate::support::issuer::{Issuer, SigningKey, now};
use crate::support::process::Process;
use crate::support::questions::respond;
use crate::support::{Backend, H2, Pki, flags, full};

const AUDIENCE: &str = "flooded";

pub struct Scene {
    pub process: Process,
    pub alice: Issued,
    pub accounts: Arc<Accounts>,
    pub key: SigningKey,
    pub issuer: Issuer,
    pub webhook: Backend,
    pub backend: Backend,
    /// What the API server was asked for by the gateway itself, beside the check of identities.
    own: Arc<AtomicUsize>,
    _pki: Pki,
}

impl Scene {
    pub async fn start() -> Arc<Self> {
        let (pki, accounts, key) = (Pki::new(), Accounts::new(), SigningKey::new("k"));
        let own = Arc::new(AtomicUsize::new(0));
        let (known, count) = (Arc::clone(&accounts), Arc::clone(&own));
        let backend = Backend::start_saying(
            &pki,
            H2,
            move |request| {
                let answer = known.answer(request)?;
                // The check of identities is made by POST, and by the clock.
                count.fetch_add(usize::from(request.method() == Method::GET), Ordering::Relaxed);
                Some(answer)
            },
            |_| Box::pin(async { Response::new(full(vec![b'x'; 2048])) }),
        )
        .await;
        let issuer = Issuer::start(&pki, &[&key]).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = Backend::of_everybody(&pki, listener, |_| {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": {"authenticated": false},
            });
            Box::pin(async move { respond(http::StatusCode::OK, &review) })
        });
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: w, cluster: {{server: 'https://{}', certificate-authority: servers-ca.crt}}}}]\n\
             contexts: [{{name: c, context: {{cluster: w}}}}]\n",
            webhook.address
        );
        let kubeconfig = pki.write("webhook.kubeconfig", kubeconfig);
        let authority = pki.directory.path().join("servers-ca.crt");
        let flags = flags(&pki, backend.address).into_iter().chain([
            "--enable-bootstrap-token-auth".to_owned(),
            format!("--service-account-issuer={}", accounts::ISSUER),
            format!("--oidc-issuer-url={}", issuer.url),
            format!("--oidc-client-id={AUDIENCE}"),
            "--oidc-signing-algs=ES256".to_owned(),
            format!("--oidc-ca-file={}", authority.display()),
            "--authentication-token-webhook-version=v1".to_owned(),
            format!("--authentication-token-webhook-config-file={}", kubeconfig.display()),
        ]);
        let process = Process::start(flags).await;
        let alice = pki.clients.leaf().cn("alice").issue();
        let scene = Self { process, alice, accounts, key, issuer, webhook, backend, own, _pki: pki };
        scene.until_known().await;
        Arc::new(scene)
    }

    /// Waits until watches have told of everything, and the issuer of its keys.
    async fn until_known(&self) {
        let tokens =
            [|scene: &Self| scene.accounts.token(), |scene: &Self| scene.key.sign(&scene.claims("first"))];
        for token in tokens {
            let is_known = async || {
                let mut client = Client::connect(&self.process.gateway, false, None).await;
                client.code(&[("authorization", &format!("Bearer {}", token(self)))]).await == 200
            };
            while !is_known().await {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }

    pub fn gateway(&self) -> std::net::SocketAddr {
        self.process.gateway.address
    }

    /// What a token of the issuer says.
    pub fn claims(&self, id: &str) -> serde_json::Value {
        json!({"iss": self.issuer.url, "aud": AUDIENCE, "sub": "carol", "jti": id, "exp": now() + 3600})
    }

    /// How often the API server was asked by the gateway itself.
    pub fn own_questions(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }
}
