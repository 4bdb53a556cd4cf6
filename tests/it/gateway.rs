//! The gateway under test: in this process, and as a child process.

use std::ffi::OsStr;

use clap::Parser;
use portcullis::internal::ClientLimits;
use portcullis::internal::ConfigErrors;
use portcullis::internal::ConfigSource;
use portcullis::internal::EffectiveConfig;
use portcullis::internal::ServeFlags;
use portcullis::internal::Server;
use portcullis::internal::Settings;
use testkit::gateway_process::GatewayProcess;
use testkit::{FakeBackend, Gateway, Pki, flags};

/// The path of the binary.
pub(crate) const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    serve: ServeFlags,
}

/// The flags of a command line.
pub(crate) fn parse(flags: impl IntoIterator<Item = String>) -> ServeFlags {
    parsed(flags).unwrap_or_else(|error| error.exit())
}

/// The same; an error if a flag is unknown or its value has another type.
pub(crate) fn parsed(flags: impl IntoIterator<Item = String>) -> Result<ServeFlags, clap::Error> {
    let arguments = std::iter::once("serve".to_owned()).chain(flags);
    CommandLine::try_parse_from(arguments).map(|line| line.serve)
}

/// Starts gateways in this process.
pub(crate) trait InProcess: Sized {
    /// A gateway in front of `backend`, with [`flags`].
    fn start(pki: &Pki, backend: &FakeBackend) -> Self {
        Self::with(flags(pki, backend.address))
    }

    /// A gateway with these flags.
    fn with(flags: Vec<String>) -> Self {
        Self::limited(flags, |_| {})
    }

    /// A gateway whose limits are lowered so that a test can reach them.
    fn limited(flags: Vec<String>, limit: impl FnOnce(&mut ClientLimits)) -> Self {
        Self::adjusted(flags, |settings| limit(&mut settings.serving.limits))
    }

    /// A gateway whose settings are changed so that a test need not wait.
    fn adjusted(flags: Vec<String>, adjust: impl FnOnce(&mut Settings)) -> Self;

    /// The server of the gateway.
    fn server(&self) -> &Server;

    /// Takes the server, so that the test can shut it down.
    fn take_server(&mut self) -> Server;
}

impl InProcess for Gateway {
    fn adjusted(flags: Vec<String>, adjust: impl FnOnce(&mut Settings)) -> Self {
        let mut source = ConfigSource::new(parse(flags));
        let mut resolved = source.load().unwrap_or_else(|errors| panic!("{errors}"));
        adjust(&mut resolved.settings);
        let server = Server::start(&resolved, source).unwrap();
        Self::in_process(server.address(), server.metrics_address(), server)
    }

    fn server(&self) -> &Server {
        self.running().unwrap()
    }

    fn take_server(&mut self) -> Server {
        self.take_running().unwrap()
    }
}

/// Starts the binary with these flags.
pub(crate) async fn start_process(flags: impl IntoIterator<Item = String>) -> GatewayProcess {
    GatewayProcess::start(OsStr::new(PORTCULLIS), flags).await
}

/// The configuration of a gateway that starts with a command line.
pub(crate) fn resolved(flags: impl IntoIterator<Item = String>) -> Result<EffectiveConfig, ConfigErrors> {
    EffectiveConfig::load(&parse(flags))
}
