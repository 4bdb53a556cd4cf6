//! A gateway that accepts tokens of every kind, and the servers that it asks about them.

use std::ops::Deref;
use std::sync::Arc;

use testkit::Pki;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::token_backends::{TokenBackends, unknown};

/// Fewer than a flood of connections opens.
const MAX_CONNECTIONS: usize = 1000;

pub(crate) struct FloodedGateway {
    pub(crate) process: GatewayProcess,
    pub(crate) alice: Issued,
    asked: TokenBackends,
    _pki: Pki,
}

impl FloodedGateway {
    pub(crate) async fn start() -> Arc<Self> {
        let pki = Pki::new();
        let asked = TokenBackends::start(&pki, |_| Box::pin(async { unknown() })).await;
        let most = format!("--max-connections={MAX_CONNECTIONS}");
        let process =
            GatewayProcess::start(crate::PORTCULLIS, asked.flags(&pki).into_iter().chain([most])).await;
        asked.until_known(&process.gateway).await;
        let alice = pki.clients.leaf().cn("alice").issue();
        Arc::new(Self { process, alice, asked, _pki: pki })
    }
}

impl Deref for FloodedGateway {
    type Target = TokenBackends;

    fn deref(&self) -> &TokenBackends {
        &self.asked
    }
}
