//! `portcullis dev`: the demonstration backend, and in front of it the gateway that `portcullis serve` would start.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser;

use super::serve::wait_for_signal;
use super::{failed, misconfigured};
use crate::clock::Clock;
use crate::config::flags::ServeFlags;
use crate::config::resolve::resolve;
use crate::dev::{Dev, DevOptions};
use crate::server::Server;
use crate::telemetry;

/// The flags of the gateway, read as `portcullis serve` reads them.
#[derive(Debug, Parser)]
struct GatewayFlags {
    #[command(flatten)]
    serve: ServeFlags,
}

pub(super) fn run(options: &DevOptions) -> ExitCode {
    // The backend's threads; the gateway has its own.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("cannot start a thread: {error}")),
    };
    let dev = match runtime.block_on(Dev::start(options, Clock::system())) {
        Ok(dev) => dev,
        Err(error) => return failed(&error.to_string()),
    };
    let flags = std::iter::once("portcullis".to_owned()).chain(dev.gateway_flags());
    let flags = match GatewayFlags::try_parse_from(flags) {
        Ok(flags) => flags.serve,
        Err(error) => return failed(&error.to_string()),
    };
    telemetry::init(flags.operation.verbosity, flags.operation.logging_format);
    let server = match resolve(&flags) {
        Ok(resolved) => Server::start(&resolved.settings),
        Err(errors) => return misconfigured(&errors),
    };
    let server = match server {
        Ok(server) => server,
        Err(error) => return failed(&error.to_string()),
    };
    let mut out = std::io::stdout();
    let announcement = dev.announcement(server.metrics_address(), out.is_terminal()).to_string();
    // A closed pipe is no reason to stop serving.
    out.write_all(announcement.as_bytes()).and_then(|()| out.flush()).ok();
    if let Err(error) = wait_for_signal() {
        return failed(&format!("cannot wait for signals: {error}"));
    }
    // Whoever tries it out does not wait for a watch to end.
    drop(server);
    drop(dev);
    ExitCode::SUCCESS
}
