//! A gateway that knows tokens of every kind, and whom it asks about them.

use std::ops::Deref;
use std::sync::Arc;

use crate::pki::Issued;
use crate::support::Pki;
use crate::support::asked::{Asked, unknown};
use crate::support::process::Process;

/// Fewer than a flood of connections opens.
const MOST_CONNECTIONS: usize = 1000;

pub struct Scene {
    pub process: Process,
    pub alice: Issued,
    asked: Asked,
    _pki: Pki,
}

impl Scene {
    pub async fn start() -> Arc<Self> {
        let pki = Pki::new();
        let asked = Asked::start(&pki, |_| Box::pin(async { unknown() })).await;
        let most = format!("--max-connections={MOST_CONNECTIONS}");
        let process = Process::start(asked.flags(&pki).into_iter().chain([most])).await;
        asked.until_known(&process.gateway).await;
        let alice = pki.clients.leaf().cn("alice").issue();
        Arc::new(Self { process, alice, asked, _pki: pki })
    }
}

impl Deref for Scene {
    type Target = Asked;

    fn deref(&self) -> &Asked {
        &self.asked
    }
}
