//! How senders are known, and clients of each kind.

use tokio::task::JoinSet;

use crate::pki::Issued;
use crate::support::accounts::Accounts;
use crate::support::client::Client;
use crate::support::{Gateway, Pki};

/// Requests that are in progress at once.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Certificate,
    StaticToken,
    /// As long as a bound token, and as little known of its holder as by a short one.
    LongStaticToken,
    BoundToken,
}

impl Kind {
    /// All of them; the others are compared with the first.
    pub const ALL: [Self; 4] =
        [Self::Certificate, Self::StaticToken, Self::LongStaticToken, Self::BoundToken];

    pub fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::StaticToken => "static token",
            Self::LongStaticToken => "static token of 1000 characters",
            Self::BoundToken => "bound service-account token",
        }
    }
}

/// A token of carol.
pub fn long_token() -> String {
    "good-token".repeat(100)
}

/// Who is there.
pub struct Scene<'a> {
    gateway: &'a Gateway,
    alice: Issued,
    bound: String,
}

/// Connections that stay, and what their requests carry.
pub struct Crowd {
    clients: Vec<Client>,
    authorization: Option<String>,
}

impl<'a> Scene<'a> {
    pub fn new(gateway: &'a Gateway, pki: &Pki, accounts: &Accounts) -> Self {
        let alice = pki.clients.leaf().cn("alice").org("a").org("b").issue();
        Self { gateway, alice, bound: accounts.token() }
    }

    /// Clients of a kind: one connection for each request at once, or one for all.
    pub async fn crowd(&self, kind: Kind, http2: bool) -> Crowd {
        let (identity, authorization) = match kind {
            Kind::Certificate => (Some(&self.alice), None),
            Kind::StaticToken => (None, Some("Bearer good-token".to_owned())),
            Kind::LongStaticToken => (None, Some(format!("Bearer {}", long_token()))),
            Kind::BoundToken => (None, Some(format!("Bearer {}", self.bound))),
        };
        let mut clients = Vec::new();
        for _ in 0..if http2 { 1 } else { AT_ONCE } {
            clients.push(Client::connect(self.gateway, http2, identity).await);
        }
        if let [Client::Two(one)] = clients.as_slice() {
            clients = std::iter::repeat_with(|| Client::Two(one.share())).take(AT_ONCE).collect();
        }
        Crowd { clients, authorization }
    }
}

impl Crowd {
    /// Makes so many requests, all of which must be answered.
    pub async fn ask(&mut self, requests: usize) {
        let mut tasks = JoinSet::new();
        for mut client in self.clients.drain(..) {
            let authorization = self.authorization.clone();
            tasks.spawn(async move {
                let header = authorization.as_deref().map(|value| ("authorization", value));
                for _ in 0..requests / AT_ONCE {
                    assert_eq!(client.code(header.as_slice()).await, 200);
                }
                client
            });
        }
        self.clients = tasks.join_all().await;
    }
}
