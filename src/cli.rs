//! The commands: what each is called with, what it prints, and its exit code.

#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]

mod certs;
mod check;
mod cluster;
mod cluster_info;
#[cfg(feature = "dev")]
mod dev;
mod explain;
mod foreign_flags;
mod serve;
mod terminal;
mod token;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::ConfigErrors;
use crate::config::flags::ServeFlags;

/// The exit code for a configuration that cannot be served.
// sysexits.h, EX_USAGE
const BAD_CONFIGURATION: u8 = 64;

/// An authenticating and admitting front proxy for Kubernetes-style API servers.
#[derive(Debug, Parser)]
#[command(name = "portcullis", version, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve: authenticate clients and forward their requests to an API server.
    ///
    /// Takes kube-apiserver's own flags. The API server behind the gateway must trust the gateway's certificate:
    /// its --requestheader-client-ca-file has signed it, --requestheader-allowed-names allows its CommonName, and
    /// --requestheader-{username,uid,group}-headers and -extra-headers-prefix name the X-Remote-* headers.
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(Box<ServeFlags>),
    /// Check a configuration: print what `serve` would say, and exit 64 if it would not start.
    Check(Box<check::CheckFlags>),
    /// Explain a credential: print which authenticator accepts or refuses it, and why, step by step.
    ///
    /// Reads a bearer token from standard input, or takes a certificate with --certificate, and judges it exactly as
    /// `serve` would with the same flags: issuers and the API server are asked. The token is printed nowhere. Exits 0 if
    /// it is accepted, 1 if not, 64 if the configuration is bad.
    #[command(after_help = explain::EXAMPLE)]
    Explain(Box<explain::ExplainFlags>),
    /// Manage bootstrap tokens: what a node joins a cluster with.
    ///
    /// A token is six public characters, a dot and sixteen secret ones, and lives in a Secret in kube-system. Clients
    /// authenticate with it, and it signs the ConfigMap kube-public/cluster-info, by which they know the cluster.
    #[command(subcommand, after_help = token::EXAMPLE)]
    Token(token::TokenCommand),
    /// Publish where the cluster is, and check it as a joining node does.
    #[command(subcommand, after_help = cluster_info::EXAMPLE)]
    ClusterInfo(cluster_info::ClusterInfoCommand),
    /// Certificates: make authorities, issue, sign, inspect and verify; request and approve them in a cluster.
    #[command(subcommand, arg_required_else_help = true)]
    Certs(Box<certs::CertsCommand>),
    /// Try it: start a small in-memory backend and the gateway in front of it, and print what to type.
    ///
    /// Needs nothing else on the machine. Makes a throw-away PKI and a kubeconfig in DIR; Ctrl-C stops everything.
    #[cfg(feature = "dev")]
    Dev(crate::dev::DevOptions),
    /// Print a completion script for a shell.
    ///
    /// For example: portcullis completion bash > /etc/bash_completion.d/portcullis
    Completion {
        /// The shell.
        shell: Shell,
    },
}

const SERVE_EXAMPLE: &str = "\
Example, in front of one API server:
  portcullis serve --tls-cert-file gateway.crt --tls-private-key-file gateway.key \\
    --client-ca-file clients-ca.crt --token-auth-file tokens.csv --backend-kubeconfig backend.kubeconfig

Example, in front of many:
  portcullis serve --config gateway.yaml";

impl Cli {
    /// Reads the command line and runs the command to its end.
    pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
        let (arguments, left_out) = match foreign_flags::take_out(arguments.collect()) {
            Ok(taken) => taken,
            Err(errors) => return misconfigured(&errors),
        };
        for flag in left_out {
            print_error(&format!(
                "warning: {flag} is a flag of kube-apiserver that has no meaning here; ignored"
            ));
        }
        match Self::try_parse_from(arguments) {
            Ok(cli) => cli.run(),
            Err(error) => {
                // Help and version are no errors, and clap knows where each belongs.
                error.print().ok();
                if error.use_stderr() { ExitCode::from(BAD_CONFIGURATION) } else { ExitCode::SUCCESS }
            }
        }
    }

    fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(flags) => serve::run(&flags),
            Command::Check(flags) => check::run(&flags),
            Command::Explain(flags) => explain::run(&flags),
            Command::Token(command) => token::run(&command),
            Command::ClusterInfo(command) => cluster_info::run(&command),
            Command::Certs(command) => command.run(),
            #[cfg(feature = "dev")]
            Command::Dev(options) => dev::run(&options),
            Command::Completion { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "portcullis", &mut script);
                std::io::stdout().write_all(&script).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
            }
        }
    }
}

/// Says on standard error what went wrong.
fn failed(message: &str) -> ExitCode {
    print_error(message);
    ExitCode::FAILURE
}

/// Says on standard error what is wrong with the configuration.
fn misconfigured(errors: &ConfigErrors) -> ExitCode {
    print_error(&errors.to_string());
    ExitCode::from(BAD_CONFIGURATION)
}

/// Says something on standard error. It may be in a stranger's words: an API server's, or those in an object.
fn print_error(message: &str) {
    let message = message.split('\n').map(terminal::sanitized).collect::<Vec<_>>().join("\n");
    // Nobody is left to tell if standard error is gone.
    writeln!(std::io::stderr(), "portcullis: {message}").ok();
}
