//! A gateway with every token authenticator, and the fake servers that it calls to verify tokens.

use std::ops::Deref;
use std::sync::Arc;

use testkit::Pki;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::token_backends::{TokenBackends, unknown};

/// Fewer than the flood of silent connections opens.
const MAX_CONNECTIONS: usize = 1000;

pub(crate) struct FloodedGateway {
    pub(crate) process: GatewayProcess,
    pub(crate) alice: Issued,
    token_backends: TokenBackends,
    _pki: Pki,
}

impl FloodedGateway {
    pub(crate) async fn start() -> Arc<Self> {
        let pki = Pki::new();
        let token_backends = TokenBackends::start(&pki, |_| Box::pin(async { unknown() })).await;
        let max_connections = format!("--max-connections={MAX_CONNECTIONS}");
        let process = GatewayProcess::start(
            crate::PORTCULLIS,
            token_backends.flags(&pki).into_iter().chain([max_connections]),
        )
        .await;
        token_backends.until_known(&process.gateway).await;
        let alice = pki.clients.leaf().cn("alice").issue();
        Arc::new(Self { process, alice, token_backends, _pki: pki })
    }
}

impl Deref for FloodedGateway {
    type Target = TokenBackends;

    fn deref(&self) -> &TokenBackends {
        &self.token_backends
    }
}
