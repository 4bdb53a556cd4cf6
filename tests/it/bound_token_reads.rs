//! Bound service-account tokens cost the API server nothing once what they are judged by is known.

use std::sync::Arc;

use http::{Response, StatusCode};
use testkit::client::Client;
use testkit::fake_accounts::{FakeAccounts, ISSUER};
use testkit::{Backend, Gateway, H2, Pki, flags, full, until};

use crate::gateway::InProcess as _;

/// A gateway whose watches of the objects behind tokens are complete.
struct SyncedGateway {
    accounts: Arc<FakeAccounts>,
    backend: Backend,
    gateway: Gateway,
    client: Client,
}

impl SyncedGateway {
    async fn start(key_file: bool) -> Self {
        let (pki, accounts) = (Pki::new(), FakeAccounts::new());
        let known = Arc::clone(&accounts);
        let say = move |request: &_| known.answer(request);
        let answer = |_| -> testkit::ResponseFuture { Box::pin(async { Response::new(full("ok")) }) };
        let backend = Backend::with_self_check(&pki, H2, say, answer).await;
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
        // A token of an object that no watch has told of is refused here: single objects are not found.
        while setup.ask().await != StatusCode::OK {
            assert!(connections < 1000, "tokens are never known");
            // Each refusal is the last answer on its connection.
            setup.client = Client::connect(&setup.gateway, true, None).await;
            connections += 1;
        }
        setup
    }

    /// The answer to a request with a new token.
    async fn ask(&mut self) -> StatusCode {
        let token = format!("Bearer {}", self.accounts.token());
        self.client.code(&[("authorization", &token)]).await
    }

    async fn lookups(&self, source: &str) -> u64 {
        self.gateway.count_all("portcullis_lookups_total", &[&format!("source=\"{source}\"")]).await
    }

    async fn every_token_is_judged_without_a_question(mut self) {
        let before = (self.lookups("live").await, self.accounts.asked());
        let watched = self.lookups("watch").await;
        while self.backend.take().is_some() {}
        for _ in 0..100 {
            assert_eq!(self.ask().await, StatusCode::OK);
        }
        assert_eq!((self.lookups("live").await, self.accounts.asked()), before);
        assert_eq!(self.lookups("watch").await, watched + 200, "a service account and a pod for each token");
        // What arrived is what was forwarded, and nothing else.
        until("the last request", || self.backend.pending() == 100).await;
    }
}

#[tokio::test]
async fn tokens_by_a_key_file_cost_the_api_server_nothing_once_its_objects_are_known() {
    SyncedGateway::start(true).await.every_token_is_judged_without_a_question().await;
}

#[tokio::test]
async fn tokens_by_published_keys_cost_the_api_server_nothing_once_they_are_known() {
    let setup = SyncedGateway::start(false).await;
    let (_, keys) = setup.accounts.asked();
    assert!(keys > 0, "the keys come from the API server");
    setup.every_token_is_judged_without_a_question().await;
}
