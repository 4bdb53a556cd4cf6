//! The command line: subcommands with their flags, output and exit codes. Nothing printed may contain a credential or
//! control characters from remote text.

#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]

mod admit;
mod certs;
mod check;
mod clusters;
mod command_line;
mod convert;
#[cfg(feature = "dev")]
mod dev;
mod explain;
pub(crate) mod foreign_flags;
mod kubeconfig;
mod serve;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args as _, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use portcullis_tools::output::{BAD_CONFIGURATION, failed, print_error};
use portcullis_tools::{cluster_info, login, token};

use crate::config::ConfigErrors;
use crate::config::flags::ServeFlags;

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
    /// Check a configuration: print what `serve` would run, or its errors, and exit 64 if it would not start.
    Check(Box<check::CheckFlags>),
    /// Convert the flags of a kube-apiserver: print the command line with which the gateway takes its place.
    ///
    /// Reads the manifest of a static pod, or the Pod from a cluster, and prints the equivalent flags of `serve`, a
    /// kubeconfig for that API server as the backend, what stays with the backend, what the gateway does not do, and
    /// where the files are on the node. Reads no file but the manifest, and no cluster. Exits 1 if a flag cannot be
    /// converted, 64 if the manifest cannot be read.
    #[command(after_help = convert::EXAMPLE)]
    Convert(convert::ConvertFlags),
    /// Explain a credential: print which authenticator accepts or refuses it, and why, step by step.
    ///
    /// Reads a bearer token from standard input, or a certificate with --certificate, and authenticates it exactly as
    /// `serve` would with the same flags, including requests to issuers and the API server. Never prints the token.
    /// Exits 0 if the credential is accepted, 1 if not, 64 if the configuration is invalid.
    #[command(after_help = explain::EXAMPLE)]
    Explain(Box<explain::ExplainFlags>),
    /// Try admission webhooks: send an object to them without a cluster, and print what each would do.
    ///
    /// Calls the webhooks of the configuration for a dry run of the request. Exits 0 if they admit it, 1 if not, 64 if the
    /// configuration is invalid.
    #[command(after_help = admit::EXAMPLE)]
    Admit(Box<admit::AdmitFlags>),
    /// Print the clusters of a running gateway: health, endpoints, requests in progress and errors.
    ///
    /// Reads them from the gateway's metrics port. Exits 1 if it cannot be read.
    #[command(after_help = clusters::EXAMPLE)]
    Clusters(clusters::ClustersFlags),
    /// Manage bootstrap tokens, with which nodes join a cluster.
    ///
    /// A token is a public ID of six characters, a dot and a secret of sixteen, stored in a Secret in kube-system.
    /// Nodes authenticate with it, and its signature on the ConfigMap kube-public/cluster-info lets them verify the
    /// cluster.
    #[command(subcommand, after_help = token::EXAMPLE)]
    Token(token::TokenCommand),
    /// Publish the ConfigMap cluster-info for joining nodes, and verify it as they do.
    #[command(subcommand, after_help = cluster_info::EXAMPLE)]
    ClusterInfo(cluster_info::ClusterInfoCommand),
    /// Manage certificates: create CAs, issue, sign, inspect and verify; request and approve them in a cluster.
    #[command(subcommand, arg_required_else_help = true)]
    Certs(Box<certs::CertsCommand>),
    /// Log in to a cluster with an OpenID provider, and write a kubeconfig for it.
    ///
    /// Opens a browser, or shows a code to enter on another device. Keeps what else is in the kubeconfig, except
    /// comments, and a copy of the old file beside it.
    #[command(after_help = login::LOGIN_EXAMPLE)]
    Login(Box<login::LoginFlags>),
    /// Log out: remove the cached tokens of a login, and revoke them at the provider.
    Logout(Box<login::LogoutFlags>),
    /// Print the credential of a login, as an exec plugin of kubectl.
    ///
    /// kubectl runs it by the kubeconfig that `login` writes. Uses the cached token, refreshes it, or logs in: where
    /// the client leaves a terminal to it, and on a desktop by a browser (--open-browser). Machines use --flow
    /// client-credentials or token-file.
    Credential(Box<login::CredentialFlags>),
    /// Print a kubeconfig for users of the gateway, who log in with it: it has no secret.
    #[command(after_help = kubeconfig::EXAMPLE)]
    Kubeconfig(Box<kubeconfig::KubeconfigFlags>),
    /// Try the gateway: start it in front of a small in-memory backend, and print commands to run.
    ///
    /// Has no other dependencies. Creates a throw-away PKI and a kubeconfig in DIR; Ctrl-C stops everything.
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

/// The commands that take the flags of `serve` beside their own.
const CONFIGURED: [&str; 4] = ["check", "explain", "admit", "kubeconfig"];

const CONFIGURED_HELP: &str =
    "Takes the configuration flags of `serve`, too, which `portcullis serve --help` explains.";

/// The command line. The help of [`CONFIGURED`] leaves out the flags of `serve` but --config.
// Not an attribute of the commands: completions still list every flag.
fn command() -> clap::Command {
    let serve = ServeFlags::augment_args(clap::Command::new("serve"));
    CONFIGURED.into_iter().fold(Cli::command(), |cli, name| {
        cli.mut_subcommand(name, |command| {
            let examples = command.get_after_help().map(|help| format!("\n\n{help}")).unwrap_or_default();
            command.after_help(format!("{CONFIGURED_HELP}{examples}")).mut_args(|flag| {
                let is_of_serve = serve.get_arguments().any(|known| known.get_id() == flag.get_id());
                let hidden = is_of_serve && flag.get_id() != "config";
                flag.hide(hidden)
            })
        })
    })
}

impl Cli {
    /// Parses the command line and runs the command.
    pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
        match command_line::parse(arguments.collect()) {
            Ok(cli) => cli.run(),
            Err(error) => {
                // --help and --version are errors to clap, too; it prints each to the right stream.
                error.print().ok();
                if error.use_stderr() { ExitCode::from(BAD_CONFIGURATION) } else { ExitCode::SUCCESS }
            }
        }
    }

    /// The flags of `serve`, if the command takes them.
    fn serve_flags(&mut self) -> Option<&mut ServeFlags> {
        match &mut self.command {
            Command::Serve(flags) => Some(flags),
            Command::Check(flags) => Some(&mut flags.serve),
            Command::Explain(flags) => Some(&mut flags.serve),
            Command::Admit(flags) => Some(&mut flags.serve),
            Command::Kubeconfig(flags) => Some(&mut flags.serve),
            _ => None,
        }
    }

    fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(flags) => serve::run(&flags),
            Command::Check(flags) => check::run(&flags),
            Command::Convert(flags) => convert::run(&flags),
            Command::Explain(flags) => explain::run(&flags),
            Command::Admit(flags) => admit::run(&flags),
            Command::Clusters(flags) => clusters::run(&flags),
            Command::Token(command) => token::run(&command),
            Command::ClusterInfo(command) => cluster_info::run(&command),
            Command::Certs(command) => command.run(),
            Command::Login(flags) => login::run_login(&flags),
            Command::Logout(flags) => login::run_logout(&flags),
            Command::Credential(flags) => login::run_credential(&flags),
            Command::Kubeconfig(flags) => kubeconfig::run(&flags),
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

/// Prints configuration errors to standard error.
fn misconfigured(errors: &ConfigErrors) -> ExitCode {
    print_error(&errors.to_string());
    ExitCode::from(BAD_CONFIGURATION)
}
