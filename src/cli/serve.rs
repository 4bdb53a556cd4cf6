//! `portcullis serve`: from flags to a running gateway, and to its graceful end on SIGTERM or Ctrl-C.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::{failed, misconfigured};
use crate::config::flags::ServeFlags;
use crate::config::inputs::Inputs;
use crate::config::resolve::resolve;
use crate::server::Server;
use crate::telemetry;

pub(super) fn run(flags: &ServeFlags) -> ExitCode {
    let server = match start(flags) {
        Ok(server) => server,
        Err(code) => return code,
    };
    match wait_for_signal() {
        Ok(name) => info!(signal = name, "asked to end"),
        Err(error) => return failed(&format!("cannot wait for signals: {error}")),
    }
    server.shut_down();
    ExitCode::SUCCESS
}

/// Reads the configuration, and starts logging and the gateway. What is wrong was told when this fails with an exit code.
pub(super) fn start(flags: &ServeFlags) -> Result<Server, ExitCode> {
    let resolved = resolve(flags, &mut Inputs::default()).map_err(|errors| misconfigured(&errors))?;
    let operation = &resolved.settings.operation;
    telemetry::init(operation.verbosity, operation.log_format);
    for warning in &resolved.warnings {
        warn!("{warning}");
    }
    Server::start(&resolved.settings).map_err(|error| failed(&error.to_string()))
}

/// Waits for SIGTERM or SIGINT.
pub(super) fn wait_for_signal() -> std::io::Result<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        Ok(tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        })
    })
}
