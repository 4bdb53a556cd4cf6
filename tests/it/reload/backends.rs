//! A changed kubeconfig: new requests use it, open streams stay on their connections, and connections to an unchanged
//! API server are kept.

use std::time::Instant;

use testkit::body::Frames;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::{FakeBackend, Gateway, Pki, TEST_TIMEOUT, flags, kubeconfig};
use tokio::sync::mpsc;

use super::{Watch, reload, watched};
use crate::gateway::InProcess as _;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

struct Setup {
    pki: Pki,
    backend: FakeBackend,
    started: mpsc::UnboundedReceiver<Frames>,
    gateway: Gateway,
    /// One client per version of HTTP.
    clients: [Client; 2],
    /// One watch per version of HTTP.
    watches: Vec<Watch>,
}

impl Setup {
    async fn start() -> Self {
        let pki = Pki::new();
        let (backend, mut started) = watched(&pki).await;
        let gateway = Gateway::with(flags(&pki, backend.address));
        let clients =
            [Client::connect(&gateway, false, None).await, Client::connect(&gateway, true, None).await];
        let mut watches = Vec::new();
        for http2 in [false, true] {
            let mut client = Client::connect(&gateway, http2, None).await;
            watches.push(Watch::open(&mut client, &[TOKEN], &mut started).await);
        }
        Self { pki, backend, started, gateway, clients, watches }
    }

    fn replace(&self, name: &str, content: impl AsRef<[u8]>) {
        replace(&self.pki.directory.path().join(name), content);
    }

    /// Sends authenticated and anonymous requests over each version of HTTP.
    async fn send_requests(&mut self) {
        for client in &mut self.clients {
            assert_eq!(client.code(&[TOKEN]).await, 200);
        }
        for http2 in [false, true] {
            let mut anonymous = Client::connect(&self.gateway, http2, None).await;
            assert_eq!(anonymous.code(&[]).await, 200);
        }
    }

    async fn send_requests_until(&mut self, event: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{event} never happened");
            self.send_requests().await;
        }
    }

    async fn watches_continue(&mut self, event: &str) {
        for watch in &mut self.watches {
            watch.passes(event).await;
        }
    }
}

#[tokio::test]
async fn new_requests_use_the_new_address_and_open_watches_continue() {
    let mut setup = Setup::start().await;
    setup.send_requests().await;
    setup.watches_continue("before\n").await;
    let (other, mut started) = watched(&setup.pki).await;
    let path = |name: &str| setup.pki.directory.path().join(name);
    let moved = kubeconfig(other.address, &path("servers-ca.crt"), &path("front.crt"), &path("front.key"));
    setup.replace("backend.kubeconfig", moved);
    reload(&setup.gateway).await;
    // The new address is used once its self-check has passed; until then the old one is.
    setup.send_requests_until("a request to the new address", |_| other.pending() > 0).await;
    let before = std::iter::from_fn(|| setup.backend.take()).count();
    assert!(before > 0);
    setup.send_requests().await;
    assert_eq!(setup.backend.pending(), 0, "no request is sent to the old address");
    setup.watches_continue("after\n").await;
    for http2 in [false, true] {
        let mut client = Client::connect(&setup.gateway, http2, None).await;
        let mut watch = Watch::open(&mut client, &[TOKEN], &mut started).await;
        watch.passes("at the new address\n").await;
    }
    setup.watches_continue("long after\n").await;
    assert!(setup.started.is_empty(), "no new watch is sent to the old address");
}

#[tokio::test]
async fn connections_to_an_unchanged_api_server_are_kept() {
    let mut setup = Setup::start().await;
    setup.send_requests().await;
    let connections = setup.backend.connections();
    for round in 0..3 {
        setup.replace("tokens.csv", format!("good-token,carol,7\nof-round-{round},dave,8\n"));
        let same = std::fs::read_to_string(setup.pki.directory.path().join("backend.kubeconfig")).unwrap();
        setup.replace("backend.kubeconfig", format!("# round {round}\n{same}"));
        reload(&setup.gateway).await;
        setup.send_requests().await;
        setup.watches_continue("event\n").await;
    }
    assert_eq!(setup.backend.connections(), connections);
    // A new credential uses new connections; open streams continue on the old ones.
    let next = setup.pki.front.leaf().cn("portcullis").issue();
    setup.replace("front.crt", next.cert_pem());
    setup.replace("front.key", next.key_pem());
    reload(&setup.gateway).await;
    let of_new_credential = |setup: &Setup| setup.backend.connections() >= connections + 2;
    setup.send_requests_until("a connection with the new credential", of_new_credential).await;
    setup.watches_continue("after a rotation\n").await;
}
