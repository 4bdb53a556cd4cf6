//! `portcullis token`: bootstrap tokens, with the commands, flags and output of `kubeadm token`.

mod create;
mod list;

use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kube::{Api, Client};
use portcullis_go::duration::parse_duration;
use portcullis_pki::bootstrap_tokens::secret::NAMESPACE;
use portcullis_pki::bootstrap_tokens::token::{BootstrapToken, TokenId};
use portcullis_system::clock::Clock;
use secrecy::ExposeSecret as _;

use super::cluster::ClusterFlags;
use super::{BAD_CONFIGURATION, failed, print_error};
use crate::output::print;
use crate::output::runtime;

/// Input that is read for a token, which has 23 bytes.
const MAX_TOKEN_INPUT: u64 = 1024;

/// The examples of `portcullis token --help`.
pub const EXAMPLE: &str = "\
Examples:
  portcullis token create --description 'the new rack' --ttl 2h
  portcullis token create --print-join-command
  portcullis token list
  portcullis token delete abcdef";

/// The commands of `portcullis token`.
#[derive(Debug, Clone, Subcommand)]
pub enum TokenCommand {
    /// Print a random token without creating it in a cluster.
    #[command(after_help = "Example:\n  portcullis token generate")]
    Generate,
    /// Create a token in the cluster, and print it.
    #[command(after_help = "Example:\n  portcullis token create --ttl 2h --print-join-command")]
    Create(create::TokenCreateFlags),
    /// List the tokens of the cluster, including their secrets.
    #[command(after_help = "Example:\n  portcullis token list")]
    List(list::TokenListFlags),
    /// Delete tokens of the cluster.
    ///
    /// Does not affect nodes that have joined with a token: they keep their certificates.
    #[command(after_help = "Example:\n  portcullis token delete abcdef")]
    Delete(TokenDeleteFlags),
}

/// The flags of `portcullis token delete`.
#[derive(Debug, Clone, Args)]
pub struct TokenDeleteFlags {
    /// Token IDs, such as abcdef, or whole tokens, of which only the ID is used.
    #[arg(value_name = "TOKEN", required = true)]
    tokens: Vec<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// Runs `portcullis token`.
pub fn run(command: &TokenCommand) -> ExitCode {
    finish(match command {
        TokenCommand::Generate => return generate(),
        TokenCommand::List(flags) => in_runtime(list::run(flags, &Clock::system())),
        TokenCommand::Create(flags) => in_runtime(create::run(flags, &Clock::system())),
        TokenCommand::Delete(flags) => in_runtime(delete(flags)),
    })
}

/// Prints the error, if any, and returns the exit code.
pub fn finish(done: Result<(), BootstrapError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(BootstrapError::Usage(problem)) => {
            print_error(&problem);
            ExitCode::from(BAD_CONFIGURATION)
        }
        Err(BootstrapError::Cluster(problem)) => failed(&problem),
        Err(BootstrapError::Reported) => ExitCode::FAILURE,
    }
}

/// Why a command of `portcullis token` or `cluster-info` failed.
#[derive(Debug)]
pub enum BootstrapError {
    /// The command line or its input is invalid.
    Usage(String),
    /// An operation on the cluster failed.
    Cluster(String),
    /// The failure was already printed.
    Reported,
}

impl BootstrapError {
    /// A failure of a request to the cluster.
    #[expect(clippy::needless_pass_by_value, reason = "what `map_err` takes")]
    pub fn cluster(error: impl ToString) -> Self {
        Self::Cluster(error.to_string())
    }
}

pub(crate) fn in_runtime(
    work: impl Future<Output = Result<(), BootstrapError>>,
) -> Result<(), BootstrapError> {
    runtime().map_err(BootstrapError::cluster)?.block_on(work)
}

/// Prints to standard output; fails if that is closed.
pub fn say(text: &str) -> Result<(), BootstrapError> {
    if print(text) == ExitCode::SUCCESS { Ok(()) } else { Err(BootstrapError::Reported) }
}

/// The API for the Secrets of tokens.
fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn generate() -> ExitCode {
    match BootstrapToken::generate() {
        Ok(token) => print(&format!("{}\n", token.expose().expose_secret())),
        Err(error) => failed(&error.to_string()),
    }
}

/// Deletes every token, continuing after failures.
// kubeadm: cmd/token.go, RunDeleteTokens; ends at the first that fails
async fn delete(flags: &TokenDeleteFlags) -> Result<(), BootstrapError> {
    let id = |text: &String| {
        TokenId::parse(text).or_else(|| BootstrapToken::parse(text).ok().map(|token| token.id))
    };
    let ids = flags.tokens.iter().map(id).collect::<Option<Vec<_>>>().ok_or_else(|| {
        BootstrapError::Usage(
            "TOKEN: give token IDs, six characters of a-z and 0-9, or whole tokens".to_owned(),
        )
    })?;
    let cluster = flags.cluster.connect().await.map_err(BootstrapError::cluster)?;
    let (secrets, options) = (secrets(&cluster.client), DeleteParams::default());
    let mut outcome = Ok(());
    for id in ids {
        let name = id.secret_name();
        let doing = format!("delete the bootstrap token {id}");
        match cluster.ask(&doing, secrets.delete(&name, &options)).await {
            Ok(_) => say(&format!("bootstrap token \"{id}\" deleted\n"))?,
            Err(problem) => {
                print_error(&problem);
                outcome = Err(BootstrapError::Reported);
            }
        }
    }
    outcome
}

/// Parses a non-negative Go duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| "must not be negative".to_owned())
}

/// Reads a token from a file or standard input.
pub(crate) fn read_token(mut input: impl std::io::Read) -> Result<BootstrapToken, BootstrapError> {
    let mut text = String::new();
    let read = input.by_ref().take(MAX_TOKEN_INPUT).read_to_string(&mut text);
    read.map_err(|error| BootstrapError::Usage(format!("the token: {error}")))?;
    BootstrapToken::parse(text.trim_end_matches(['\r', '\n']))
        .map_err(|error| BootstrapError::Usage(format!("the token: {error}")))
}
