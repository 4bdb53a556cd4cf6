//! Bound service-account tokens cause no requests to the API server once the watch caches and the signing keys are
//! loaded.

use std::sync::Arc;

use http::{Response, StatusCode};
use testkit::client::Client;
use testkit::fake_accounts::{FakeAccounts, ISSUER};
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, until};

use crate::gateway::InProcess as _;

/// A gateway whose watch caches of the objects behind tokens are complete.
struct SyncedGateway {
    accounts: Arc<FakeAccounts>,
    backend: FakeBackend,
    gateway: Gateway,
    client: Client,
}

impl SyncedGateway {
    async fn start(key_file: bool) -> Self {
        let (pki, accounts) = (Pki::new(), FakeAccounts::new());
        let known = Arc::clone(&accounts);
        let say = move |request: &_| known.answer(request);
        let answer = |_| -> testkit::ResponseFuture { Box::pin(async { Response::new(full("ok")) }) };
        let backend = FakeBackend::with_self_check(&pki, H2, say, answer).await;
        let mut flags = flags(&pki, backend.address);
        flags.push(format!("--service-account-issuer={ISSUER}"));
        if key_file {
            let file = pki.write("accounts.pub", accounts.key.public_pem());
            flags.push(format!("--service-account-key-file={}", file.display()));
        }
        let gateway = Gateway::with(flags);
        let client = Client::connect(&gateway, true, None).await;
        let mut setup = Self { accounts, backend, gateway, client };
        let mut connections = 1;
        // Tokens of objects outside the watch caches are refused here, since the fake API server has no single objects.
        while setup.request_with_new_token().await != StatusCode::OK {
            assert!(connections < 1000, "the watch caches are never complete");
            // A refusal ends its connection.
            setup.client = Client::connect(&setup.gateway, true, None).await;
            connections += 1;
        }
        setup
    }

    /// The status code of a request with a new token.
    async fn request_with_new_token(&mut self) -> StatusCode {
        let token = format!("Bearer {}", self.accounts.token());
        self.client.code(&[("authorization", &token)]).await
    }

    async fn lookups(&self, source: &str) -> u64 {
        self.gateway.count_all("portcullis_lookups_total", &[&format!("source=\"{source}\"")]).await
    }

    async fn assert_tokens_cause_no_requests(mut self) {
        let before = (self.lookups("live").await, self.accounts.asked());
        let watched = self.lookups("watch").await;
        while self.backend.take().is_some() {}
        for _ in 0..100 {
            assert_eq!(self.request_with_new_token().await, StatusCode::OK);
        }
        assert_eq!((self.lookups("live").await, self.accounts.asked()), before);
        assert_eq!(self.lookups("watch").await, watched + 200, "a service account and a pod for each token");
        // The backend received only forwarded requests.
        until("the last request", || self.backend.pending() == 100).await;
    }
}

#[tokio::test]
async fn tokens_verified_by_a_key_file_cause_no_requests_once_the_objects_are_cached() {
    SyncedGateway::start(true).await.assert_tokens_cause_no_requests().await;
}

#[tokio::test]
async fn tokens_verified_by_published_keys_cause_no_requests_once_the_keys_are_cached() {
    let setup = SyncedGateway::start(false).await;
    let (_, keys) = setup.accounts.asked();
    assert!(keys > 0, "the keys come from the API server");
    setup.assert_tokens_cause_no_requests().await;
}
