//! `portcullis login`, `logout` and `credential`: people and machines log in to clusters with an OpenID provider.
//!
//! The parts: [`settings`] are the flags, [`provider`] speaks the protocol, [`callback`] receives the browser's
//! redirect, [`id_token`] verifies, [`cache`] keeps tokens, [`session`] decides which of them is needed, [`kubeconfig_file`]
//! has the kubeconfigs of a user, [`consent`] asks about those of someone else.

mod api_server;
mod browser;
mod cache;
mod callback;
mod client_certificate;
mod command;
mod consent;
mod credential;
mod exec_credential;
mod kubeconfig_file;
mod logout;
mod pasted_address;
mod review;
mod session;
mod settings;

use std::process::ExitCode;
use std::time::Duration;

use portcullis_openid::{error, id_token, provider};
use tokio::time::timeout;

pub use command::{LoginFlags, cluster_entry};
pub use credential::CredentialFlags;
pub use kubeconfig_file::{KubeconfigFile, KubeconfigTarget, exec_user};
pub use logout::LogoutFlags;
pub use portcullis_openid::error::LoginError;
pub use settings::ProviderFlags;

use super::failed;
use super::{BAD_CONFIGURATION, print_error};
pub(crate) use crate::interrupt::{TerminationSignal, interrupted};
use crate::output::runtime;

/// How long an interrupted command waits for a refresh: longer than the provider may take to answer, and the cache to write.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(45);

/// The examples of `portcullis login --help`.
pub const LOGIN_EXAMPLE: &str = "\
Examples:
  portcullis login --server https://gateway.example.com:6443 --certificate-authority gateway-ca.crt \\
    --issuer https://login.example.com --client-id kubernetes
  portcullis login --from company.kubeconfig --all      # of an administrator: portcullis kubeconfig
  portcullis login                                      # again, to the current context
  portcullis login --flow device                        # on a machine without a browser

Then kubectl works as ever: it gets the token from `portcullis credential`, which refreshes it.";

/// The examples of `portcullis logout --help`.
pub const LOGOUT_EXAMPLE: &str = "\
Examples:
  portcullis logout          # the user of the current context
  portcullis logout --all    # every cached login";

/// The example of `portcullis credential --help`.
pub const CREDENTIAL_EXAMPLE: &str = "\
Example, as kubectl runs it by a kubeconfig:
  portcullis credential --issuer https://login.example.com --client-id kubernetes";

/// Runs `portcullis login`.
pub fn run_login(flags: &LoginFlags) -> ExitCode {
    run(command::run(flags))
}

/// Runs `portcullis credential`.
pub fn run_credential(flags: &CredentialFlags) -> ExitCode {
    run(credential::run(flags))
}

/// Runs `portcullis logout`.
pub fn run_logout(flags: &LogoutFlags) -> ExitCode {
    run(logout::run(flags))
}

/// Runs a command until it ends or a signal ends it. Files are written between two awaits: none is left half-written.
fn run(work: impl Future<Output = Result<ExitCode, LoginError>>) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let outcome = runtime.block_on(completed(work, interrupted));
    // Without waiting for its threads, which may look up a name for minutes.
    runtime.shutdown_background();
    match outcome {
        Ok(outcome) => outcome.unwrap_or_else(|error| exit(&error)),
        Err(interrupt) => interrupt.exit_code(),
    }
}

/// Runs a command until it ends or is interrupted. A refresh, or the exchange of a login, that was begun is completed first: the
/// provider may accept the cached refresh token no longer. Only a second Ctrl-C ends that, too: a terminal that closes may send SIGHUP twice.
async fn completed<T, F: Future<Output = TerminationSignal>>(
    work: impl Future<Output = T>,
    interrupted: impl Fn() -> F,
) -> Result<T, TerminationSignal> {
    let mut work = std::pin::pin!(work);
    let interrupt = tokio::select! {
        outcome = &mut work => return Ok(outcome),
        interrupt = interrupted() => interrupt,
    };
    if session::REFRESHING.try_write().is_err() {
        print_error(
            "the login is being completed or renewed, which must not be cut off; press Ctrl-C again to end it at once",
        );
    }
    let insisted = async { while interrupted().await != TerminationSignal::Interrupt {} };
    tokio::select! {
        biased;
        _ = timeout(INTERRUPT_TIMEOUT, session::REFRESHING.write()) => Err(interrupt),
        outcome = work => Ok(outcome),
        () = insisted => Err(interrupt),
    }
}

/// Prints the error and returns the exit code.
pub fn exit(error: &LoginError) -> ExitCode {
    match error {
        LoginError::Usage(problem) => {
            print_error(problem);
            ExitCode::from(BAD_CONFIGURATION)
        }
        error => failed(&error.to_string()),
    }
}

/// The client secret of the environment.
fn secret_of_environment() -> Option<String> {
    std::env::var(settings::SECRET_VARIABLE).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_command_ends_before_its_name_server_answers() {
        let (answer, name_server) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            run(async {
                // As getaddrinfo.
                drop(tokio::task::spawn_blocking(move || name_server.recv()));
                Ok(ExitCode::SUCCESS)
            });
            ended.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_mins(1)).unwrap();
        drop(answer);
    }
}
