//! An OpenID provider with the device flow and a revocation endpoint, which logs everybody in at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use testkit::Pki;
use testkit::issuer::{CONFIGURATION, Issuer, SigningKey, respond};

/// The provider, and the tokens that it has issued.
pub(crate) struct Provider {
    pki: Pki,
    issuer: Issuer,
    tokens: Arc<Vec<String>>,
    seen: std::sync::Mutex<Vec<String>>,
}

/// More than a test needs.
const MAX_LOGINS: usize = 40;

impl Provider {
    pub(crate) async fn start() -> Self {
        let (pki, key) = (Pki::new(), SigningKey::new("key"));
        let issuer = Issuer::start(&pki, &[&key]).await;
        pki.write("provider-ca.crt", pki.servers.cert_pem());
        let url = issuer.url.clone();
        let document = json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/auth"),
            "token_endpoint": format!("{url}/token"),
            "jwks_uri": format!("{url}/keys"),
            "device_authorization_endpoint": format!("{url}/device"),
            "revocation_endpoint": format!("{url}/revoke"),
        });
        let now = testkit::now();
        let token = |number: usize| {
            key.sign(&json!({"iss": url, "aud": "kubernetes", "sub": "alice", "iat": now, "exp": now + 3600,
                "jti": number}))
        };
        let tokens: Arc<Vec<String>> = Arc::new((0..MAX_LOGINS).map(token).collect());
        let answer = |path, body: Value| {
            issuer.answers(path, move || {
                let response = respond(200, "application/json", body.to_string());
                Box::pin(async { response })
            });
        };
        answer(CONFIGURATION, document);
        answer("/revoke", json!({}));
        answer(
            "/device",
            json!({"device_code": "d", "user_code": "ABCD-EFGH", "verification_uri": format!("{url}/d"),
                "expires_in": 600, "interval": 1}),
        );
        let (issued, next) = (Arc::clone(&tokens), AtomicUsize::new(0));
        issuer.answers("/token", move || {
            let number = next.fetch_add(1, Ordering::SeqCst);
            let body = json!({"access_token": "access", "token_type": "Bearer", "id_token": issued[number],
                "refresh_token": format!("refresh-{number}")});
            let response = respond(200, "application/json", body.to_string());
            Box::pin(async { response })
        });
        Self { pki, issuer, tokens, seen: std::sync::Mutex::default() }
    }

    /// The token of a login.
    pub(crate) fn token(&self, number: usize) -> String {
        self.tokens[number].clone()
    }

    /// The flags of this provider.
    pub(crate) fn flags(&self) -> Vec<String> {
        let authority = self.pki.directory.path().join("provider-ca.crt");
        vec![
            format!("--issuer={}", self.issuer.url),
            "--client-id=kubernetes".to_owned(),
            format!("--issuer-certificate-authority={}", authority.display()),
            "--flow=device".to_owned(),
        ]
    }

    /// How often logins were begun, tokens issued, and refresh tokens revoked.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 3] {
        let mut seen = self.seen.lock().unwrap();
        while let Some(request) = self.issuer.server.take() {
            seen.push(request.target);
        }
        ["/device", "/token", "/revoke"]
            .map(|path| (path, seen.iter().filter(|target| *target == path).count()))
    }
}
