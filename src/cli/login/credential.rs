//! `portcullis credential`: the exec plugin of kubectl and of every client that uses client-go.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;

use super::browser::BrowserEnvironment;
use super::cache;
use super::error::LoginError;
use super::exec_credential::{ExecRequest, VARIABLE};
use super::secret_of_environment;
use super::session::{Session, from_file};
use super::settings::ProviderFlags;
use crate::cli::check::print;
use crate::cli::print_error;
use crate::clock::Clock;

/// The flags of `portcullis credential`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct CredentialFlags {
    #[command(flatten)]
    provider: ProviderFlags,
}

pub(super) async fn run(flags: &CredentialFlags) -> Result<ExitCode, LoginError> {
    let info = std::env::var(VARIABLE).ok();
    let mut request = ExecRequest::parse(info.as_deref())?;
    let config = std::mem::take(&mut request.config);
    let clock = Clock::system();
    let provider = flags.provider.clone().or(config);
    let credential = if let Some(file) = provider.token_file()? {
        from_file(file, clock.now())?
    } else {
        let settings = provider.settings(secret_of_environment())?;
        let directory = (!provider.no_cache).then(|| cache::directory(provider.cache_dir.as_deref()));
        let directory = directory.and_then(|directory| {
            directory.map_err(|error| print_error(&format!("warning: the login cache: {error}"))).ok()
        });
        let session = Session {
            settings: &settings,
            cache: directory.as_deref(),
            clock: &clock,
            interactive: request.interactive.unwrap_or_else(|| std::io::stdin().is_terminal()),
            force: false,
            browser: BrowserEnvironment::current(),
        };
        session.credential().await?
    };
    Ok(print(&request.answer(&credential)?))
}
