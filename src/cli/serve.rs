//! `portcullis serve`: starts the gateway, notifies systemd, and shuts down gracefully on SIGTERM or SIGINT. A second
//! signal forces the shutdown.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args as _, FromArgMatches as _};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::{failed, misconfigured};
use crate::config::ConfigErrors;
use crate::config::flags::ServeFlags;
use crate::config::source::ConfigSource;
use crate::server::{Server, ServiceNotifier};
use crate::state::effective_config::EffectiveConfig;
use crate::telemetry;

pub(super) fn run(flags: &ServeFlags) -> ExitCode {
    let server = match start(flags) {
        Ok(server) => server,
        Err(code) => return code,
    };
    let service = match ServiceNotifier::start(&server) {
        Ok(service) => service,
        Err(error) => return failed(&format!("cannot start a thread: {error}")),
    };
    match wait_for_signal(|| server.reload()) {
        Ok(name) => info!(signal = name, "received a signal, shutting down"),
        Err(error) => return failed(&format!("cannot wait for signals: {error}")),
    }
    service.stopping();
    let force_shutdown = server.force_shutdown();
    std::thread::spawn(move || {
        if wait_for_signal(|| {}).is_ok() {
            force_shutdown.trigger();
        }
    });
    server.shut_down();
    ExitCode::SUCCESS
}

/// Parses flags of `serve` for another command.
pub(super) fn flags<T>(arguments: impl IntoIterator<Item = T>) -> Result<ServeFlags, clap::Error>
where
    T: Into<OsString> + Clone,
{
    let command = ServeFlags::augment_args(clap::Command::new("serve").no_binary_name(true));
    ServeFlags::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

/// Loads the configuration, and starts logging and the gateway. Prints the errors before it returns an exit code.
pub(super) fn start(flags: &ServeFlags) -> Result<Server, ExitCode> {
    let mut source = ConfigSource::new(flags.clone());
    let config = source.load().map_err(|errors| misconfigured(&errors))?;
    let effective = EffectiveConfig::at_start(&config).map_err(|errors| misconfigured(&errors))?;
    let refused = errors_of_refused(&effective);
    if effective.settings.clusters.is_empty() && !refused.0.is_empty() {
        // Nothing could be served: then a mistake is better told at once.
        return Err(misconfigured(&refused));
    }
    let operation = &config.settings.operation;
    telemetry::init(operation.verbosity, operation.log_format);
    Server::start(&config, source).map_err(|error| failed(&error.to_string()))
}

/// The errors of the clusters that are refused.
pub(super) fn errors_of_refused(config: &EffectiveConfig) -> ConfigErrors {
    ConfigErrors(config.refused().flat_map(|refused| refused.errors).cloned().collect())
}

/// Waits for SIGTERM or SIGINT; each SIGHUP triggers a reload.
pub(super) fn wait_for_signal(reload: impl Fn()) -> std::io::Result<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok("SIGTERM"),
                _ = interrupt.recv() => return Ok("SIGINT"),
                _ = hang_up.recv() => reload(),
            }
        }
    })
}
