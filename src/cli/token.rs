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
use secrecy::ExposeSecret as _;

use super::check::print;
use super::cluster::{ClusterFlags, runtime};
use super::{BAD_CONFIGURATION, complain, failed};
use crate::clock::Clock;
use crate::go::duration::parse_duration;
use crate::pki::bootstrap_tokens::secret::NAMESPACE;
use crate::pki::bootstrap_tokens::token::{Token, TokenId};

/// As long as a token and a line end, and then some.
const LONGEST_TOKEN: u64 = 1024;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis token create --description 'the new rack' --ttl 2h
  portcullis token create --print-join-command
  portcullis token list
  portcullis token delete abcdef";

/// What is done with bootstrap tokens.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum TokenCommand {
    /// Print a random token, and create nothing.
    Generate,
    /// Create a token in the cluster, and print it.
    Create(create::CreateFlags),
    /// List the tokens of the cluster, with their secrets.
    List(list::ListFlags),
    /// Delete tokens of the cluster.
    ///
    /// Whoever has used one stays what it has become: a node keeps its certificate.
    Delete(DeleteFlags),
}

/// The flags of `portcullis token delete`.
#[derive(Debug, Clone, Args)]
pub(super) struct DeleteFlags {
    /// The ids of tokens, such as abcdef; a whole token will do, and only its id is used.
    #[arg(value_name = "TOKEN", required = true)]
    tokens: Vec<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

pub(super) fn run(command: &TokenCommand) -> ExitCode {
    finish(match command {
        TokenCommand::Generate => return generate(),
        TokenCommand::List(flags) => in_runtime(list::run(flags, &Clock::system())),
        TokenCommand::Create(flags) => in_runtime(create::run(flags, &Clock::system())),
        TokenCommand::Delete(flags) => in_runtime(delete(flags)),
    })
}

/// Says what went wrong, if anything did.
pub(super) fn finish(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(problem)) => {
            complain(&problem);
            ExitCode::from(BAD_CONFIGURATION)
        }
        Err(Failure::Cluster(problem)) => failed(&problem),
        Err(Failure::Told) => ExitCode::FAILURE,
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was asked for nonsense.
    Usage(String),
    /// The cluster did not do it.
    Cluster(String),
    /// What went wrong has been said.
    Told,
}

impl Failure {
    #[expect(clippy::needless_pass_by_value, reason = "what `map_err` takes")]
    pub(super) fn cluster(error: impl ToString) -> Self {
        Self::Cluster(error.to_string())
    }
}

pub(super) fn in_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    runtime().map_err(Failure::cluster)?.block_on(work)
}

/// Prints, or says that nobody reads.
pub(super) fn say(text: &str) -> Result<(), Failure> {
    if print(text) == ExitCode::SUCCESS { Ok(()) } else { Err(Failure::Told) }
}

/// The Secrets of tokens.
fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn generate() -> ExitCode {
    match Token::generate() {
        Ok(token) => print(&format!("{}\n", token.expose().expose_secret())),
        Err(error) => failed(&error.to_string()),
    }
}

/// All of them, whatever becomes of one.
// kubeadm: cmd/token.go, RunDeleteTokens; ends at the first that fails
async fn delete(flags: &DeleteFlags) -> Result<(), Failure> {
    let id = |text: &String| TokenId::parse(text).or_else(|| Token::parse(text).ok().map(|token| token.id));
    let ids = flags.tokens.iter().map(id).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Failure::Usage("TOKEN: give ids of tokens, six of a-z and 0-9, or whole tokens".to_owned())
    })?;
    let cluster = flags.cluster.connect().await.map_err(Failure::cluster)?;
    let (secrets, options) = (secrets(&cluster.client), DeleteParams::default());
    let mut outcome = Ok(());
    for id in ids {
        let name = id.secret_name();
        let doing = format!("delete the bootstrap token {id}");
        match cluster.ask(&doing, secrets.delete(&name, &options)).await {
            Ok(_) => say(&format!("bootstrap token \"{id}\" deleted\n"))?,
            Err(problem) => {
                complain(&problem);
                outcome = Err(Failure::Told);
            }
        }
    }
    outcome
}

/// A duration as Go writes it, not negative.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(nanoseconds).map(Duration::from_nanos).map_err(|_| "must not be negative".to_owned())
}

/// A token from standard input.
pub(super) fn read_token(mut input: impl std::io::Read) -> Result<Token, Failure> {
    let mut text = String::new();
    let read = input.by_ref().take(LONGEST_TOKEN).read_to_string(&mut text);
    read.map_err(|error| Failure::Usage(format!("the token: {error}")))?;
    Token::parse(text.trim_end_matches(['\r', '\n']))
        .map_err(|error| Failure::Usage(format!("the token: {error}")))
}
