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
mod version;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args as _, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use portcullis_tools::output::{BAD_CONFIGURATION, failed, print_error};
use portcullis_tools::{cluster_info, help, login, man, sessions, token};

use crate::config::ConfigErrors;
use crate::config::flags::ServeFlags;

/// An authenticating and admitting front proxy for Kubernetes-style API servers.
#[derive(Debug, Parser)]
#[command(name = "portcullis", version, arg_required_else_help = true, max_term_width = 110)]
#[command(disable_version_flag = true, after_help = FIRST)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway: authenticate clients and forward their requests to an API server.
    ///
    /// Takes kube-apiserver's own flags. The API server behind the gateway must trust the gateway's certificate:
    /// its --requestheader-client-ca-file has signed it, --requestheader-allowed-names allows its CommonName, and
    /// --requestheader-{username,uid,group}-headers and -extra-headers-prefix name the X-Remote-* headers.
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(Box<ServeFlags>),
    /// Check a configuration: print what `serve` would run, or all of its errors, and exit 64 if it would not start.
    #[command(after_help = check::EXAMPLE)]
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
    /// Try admission webhooks and policies: show them an object without a cluster, and print what each would do, and why.
    ///
    /// Calls the webhooks of the configuration for a dry run of the request, and evaluates its policies. Exits 0 if they admit it, 1 if not, 64 if the
    /// configuration is invalid.
    #[command(after_help = admit::EXAMPLE)]
    Admit(Box<admit::AdmitFlags>),
    /// Print the clusters of a running gateway: health, endpoints, requests in progress and errors.
    ///
    /// Reads them from the gateway's metrics port. Exits 1 if it cannot be read.
    #[command(after_help = clusters::EXAMPLE)]
    Clusters(clusters::ClustersFlags),
    /// Read recorded sessions: list, show, play, export and verify what was done by exec, attach and port-forward.
    ///
    /// Reads a directory of recordings, which a gateway writes, and changes nothing in it. The text of a session cannot control
    /// the terminal that shows it.
    #[command(subcommand, arg_required_else_help = true, after_help = sessions::EXAMPLE)]
    Sessions(sessions::SessionsCommand),
    /// Manage bootstrap tokens, with which nodes join a cluster.
    ///
    /// A token is a public ID of six characters, a dot and a secret of sixteen, stored in a Secret in kube-system.
    /// Nodes authenticate with it, and its signature on the ConfigMap kube-public/cluster-info lets them verify the
    /// cluster.
    #[command(subcommand, after_help = token::EXAMPLE)]
    Token(token::TokenCommand),
    /// Publish and verify the ConfigMap cluster-info, by which nodes find a cluster to join.
    #[command(subcommand, after_help = cluster_info::EXAMPLE)]
    ClusterInfo(cluster_info::ClusterInfoCommand),
    /// Manage certificates: create CAs, issue, sign, inspect and verify; request and approve them in a cluster.
    #[command(subcommand, arg_required_else_help = true, after_help = certs::EXAMPLE)]
    Certs(Box<certs::CertsCommand>),
    /// Log in to a cluster with an OpenID provider, and write a kubeconfig for it.
    ///
    /// Opens a browser, or shows a code to enter on another device. Keeps what else is in the kubeconfig, except
    /// comments, and a copy of the old file beside it.
    #[command(after_help = login::LOGIN_EXAMPLE)]
    Login(Box<login::LoginFlags>),
    /// Log out of a cluster: remove the cached tokens of a login, and revoke them at the provider.
    #[command(after_help = login::LOGOUT_EXAMPLE)]
    Logout(Box<login::LogoutFlags>),
    /// Print the credential of a login, as an exec plugin of kubectl.
    ///
    /// kubectl runs it by the kubeconfig that `login` writes. Uses the cached token, refreshes it, or logs in: where
    /// the client leaves a terminal to it, and on a desktop by a browser (--open-browser). Machines use --flow
    /// client-credentials or token-file.
    #[command(after_help = login::CREDENTIAL_EXAMPLE)]
    Credential(Box<login::CredentialFlags>),
    /// Print a kubeconfig for users of the gateway: they log in with it, and it has no secret.
    #[command(after_help = kubeconfig::EXAMPLE)]
    Kubeconfig(Box<kubeconfig::KubeconfigFlags>),
    /// Try the gateway: start it in front of a small in-memory backend, and print commands to run.
    ///
    /// Has no other dependencies. Creates a throw-away PKI and a kubeconfig in DIR; Ctrl-C stops everything.
    #[cfg(feature = "dev")]
    #[command(after_help = DEV_EXAMPLE)]
    Dev(crate::dev::DevOptions),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  portcullis completion bash > /etc/bash_completion.d/portcullis")]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages to a directory, for packages.
    #[command(hide = true, after_help = man::EXAMPLE)]
    Man(man::ManFlags),
}

const SERVE_EXAMPLE: &str = "\
Example, in front of one API server:
  portcullis serve --tls-cert-file gateway.crt --tls-private-key-file gateway.key \\
    --client-ca-file clients-ca.crt --backend-kubeconfig backend.kubeconfig

Example, in front of many:
  portcullis serve --config gateway.yaml";

#[cfg(feature = "dev")]
const DEV_EXAMPLE: &str = "\
Examples:
  portcullis dev          # one cluster, with client certificates and tokens
  portcullis dev --full   # also logins, the page, a webhook and an audit log, for two clusters
  portcullis dev --tour   # the same, explained step by step; waits for Enter on a terminal";

/// The commands that take the flags of `serve` beside their own.
const CONFIGURED: [&str; 4] = ["check", "explain", "admit", "kubeconfig"];

const CONFIGURED_HELP: &str =
    "Takes the configuration flags of `serve`, too, which `portcullis serve --help-all` explains.";

const SERVE_HELP: &str =
    "These are the flags that most gateways need. `portcullis serve --help-all` explains all of them.";

/// The flags that `serve --help` shows.
const SERVE_FIRST: [&str; 30] = [
    "admission-control-config-file",
    "anonymous-auth",
    "audit-log-path",
    "audit-policy-file",
    "authentication-config",
    "authentication-token-webhook-config-file",
    "authorization-config",
    "backend-kubeconfig",
    "bind-address",
    "client-ca-file",
    "config",
    "controllers",
    "credential-deny-list-file",
    "identity",
    "ignore-unknown-apiserver-flags",
    "logging-format",
    "max-buffered-bytes",
    "max-requests-inflight",
    "metrics-bind-address",
    "oidc-client-id",
    "oidc-groups-claim",
    "oidc-issuer-url",
    "oidc-username-claim",
    "requestheader-client-ca-file",
    "secure-port",
    "service-account-issuer",
    "tls-cert-file",
    "tls-private-key-file",
    "token-auth-file",
    "v",
];

/// The commands by what they are for.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run a gateway", &["serve", "check", "convert", "kubeconfig", "clusters", "sessions"]),
    ("Try it, and find out why", &["dev", "explain", "admit"]),
    ("Log in", &["login", "logout", "credential"]),
    ("Certificates and joining nodes", &["certs", "token", "cluster-info"]),
    ("More", &["completion", "help"]),
];

const FIRST: &str = "\
Try first:
  portcullis dev --tour                    what a gateway does, step by step, in memory
  portcullis convert kube-apiserver.yaml   the flags that take the place of a kube-apiserver's
  portcullis check --config gateway.yaml   what a configuration does, or everything wrong with it

`portcullis COMMAND --help` explains a command in short, and --help-all all of its flags.";

/// The help of the program: the commands in [`GROUPS`], each by the first words of its description.
const OVERVIEW: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

fn overview(cli: &clap::Command) -> String {
    let line = |name: &&str| {
        let about = match cli.find_subcommand(name).and_then(clap::Command::get_about) {
            Some(about) => about.to_string(),
            None if *name == "help" => "Print the help of a command".to_owned(),
            // Not among the features of this build.
            None => return String::new(),
        };
        let about = about.split(": ").next().unwrap_or_default();
        format!("  {name:14}{about}\n")
    };
    let group = |(title, names): &(&str, &[&str])| {
        format!("{title}:\n{}", names.iter().map(line).collect::<String>())
    };
    GROUPS.iter().map(group).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// The command line. The help of [`CONFIGURED`] leaves out the flags of `serve` but --config, and that of `serve` those that few
/// gateways need; --help-all has them.
// Not an attribute of the flags: all of these commands share their definition.
pub fn command() -> clap::Command {
    let serve = ServeFlags::augment_args(clap::Command::new("serve"));
    let cli = Cli::command();
    let overview = overview(&cli);
    let version = clap::Arg::new("version").short('V').long("version").action(clap::ArgAction::Version);
    let version = version.help("Print the version; with --output json also what the program is made of");
    let cli = cli.before_help(overview).help_template(OVERVIEW).arg(version);
    let cli = CONFIGURED.into_iter().fold(cli, |cli, name| {
        cli.mut_subcommand(name, |command| {
            headed(command, CONFIGURED_HELP).mut_args(|flag| {
                let is_of_serve = serve.get_arguments().any(|known| known.get_id() == flag.get_id());
                let hidden = is_of_serve && flag.get_id() != "config";
                flag.hide_short_help(hidden)
            })
        })
    });
    let cli = cli.mut_subcommand("serve", |command| {
        headed(command, SERVE_HELP).mut_args(|flag| {
            let is_first = flag.get_long().is_some_and(|name| SERVE_FIRST.contains(&name));
            in_one_sentence(flag).hide_short_help(!is_first)
        })
    });
    help::arranged(cli)
}

/// The command line as the manual pages have it: the flags of `serve` are in its page alone.
fn manual() -> clap::Command {
    CONFIGURED.into_iter().fold(command(), |cli, name| {
        cli.mut_subcommand(name, |command| {
            command.mut_args(|flag| {
                let is_of_serve = flag.is_hide_short_help_set();
                flag.hide(is_of_serve)
            })
        })
    })
}

/// The flag with the first sentence of its help in --help, and all of it in --help-all.
fn in_one_sentence(flag: clap::Arg) -> clap::Arg {
    let Some(help) = flag.get_help().map(ToString::to_string) else { return flag };
    let flag = if flag.get_long_help().is_none() { flag.long_help(help.clone()) } else { flag };
    flag.help(first_sentence(&help).to_owned())
}

/// The first sentence, up to its colon if it is long.
fn first_sentence(text: &str) -> &str {
    const LONG: usize = 130;
    let first = text.split_once(". ").map_or(text, |(first, _)| first);
    if first.len() > LONG { first.split_once(": ").map_or(first, |(first, _)| first) } else { first }
}

/// Puts a text before the examples of a command.
fn headed(command: clap::Command, text: &str) -> clap::Command {
    let examples = command.get_after_help().map(|help| format!("\n\n{help}")).unwrap_or_default();
    command.after_help(format!("{text}{examples}"))
}

impl Cli {
    /// Parses the command line and runs the command.
    pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
        let arguments: Vec<String> = arguments.collect();
        if let [_, word, rest @ ..] = arguments.as_slice()
            && version::is_asked(word)
        {
            return version::run(rest);
        }
        match command_line::parse(arguments) {
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
            Command::Sessions(command) => command.run(),
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
                clap_complete::generate(shell, &mut command(), "portcullis", &mut script);
                std::io::stdout().write_all(&script).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
            }
            Command::Man(flags) => flags.run(manual()),
        }
    }
}

/// Prints configuration errors to standard error.
fn misconfigured(errors: &ConfigErrors) -> ExitCode {
    print_error(&errors.to_string());
    ExitCode::from(BAD_CONFIGURATION)
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, Command};

    use super::{GROUPS, SERVE_FIRST, command, command_line};

    /// Two screens.
    const MAX_LINES: usize = 100;

    /// What `portcullis WORDS` prints for help.
    fn help(words: &[&str]) -> String {
        let words = [&["portcullis"], words].concat().into_iter().map(str::to_owned).collect();
        command_line::parse(words).unwrap_err().to_string()
    }

    /// Every command and those below it, by their names.
    fn commands(command: &Command, above: &[String], found: &mut Vec<Vec<String>>) {
        for below in command.get_subcommands() {
            let names = [above, &[below.get_name().to_owned()]].concat();
            found.push(names.clone());
            commands(below, &names, found);
        }
    }

    #[test]
    fn help_fits_two_screens_and_ends_in_an_example() {
        let mut all = Vec::new();
        commands(&command(), &[], &mut all);
        assert!(all.len() > 25, "the commands were not found");
        let mut wrong = Vec::new();
        for names in all {
            let words: Vec<&str> = names.iter().map(String::as_str).chain(["--help"]).collect();
            let printed = help(&words);
            let lines = printed.lines().count();
            if lines > MAX_LINES {
                wrong.push(format!("{names:?}: {lines} lines"));
            }
            if !printed.contains("\nExample") {
                wrong.push(format!("{names:?}: no example"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn all_flags_are_behind_help_all() {
        let (short, all) = (help(&["check", "--help"]), help(&["check", "--help-all"]));
        assert!(short.contains("--config") && !short.contains("--token-auth-file"), "{short}");
        assert!(all.contains("--token-auth-file ") && all.contains("--audit-webhook-mode"), "{all}");
        let (short, all) = (help(&["serve", "--help"]), help(&["serve", "--help-all"]));
        assert!(short.contains("--client-ca-file ") && !short.contains("--audit-webhook-mode"), "{short}");
        assert!(all.contains("--audit-webhook-mode"), "{all}");
        assert_eq!(help(&["help", "certs", "issue"]), help(&["certs", "issue", "--help"]));
        assert_eq!(help(&["serve", "-h"]), help(&["serve", "--help"]));
    }

    #[test]
    fn first_flags_are_flags() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let known: Vec<&str> = serve.get_arguments().filter_map(clap::Arg::get_long).collect();
        for flag in SERVE_FIRST {
            assert!(known.contains(&flag), "--{flag}");
        }
    }

    #[test]
    fn each_command_is_in_one_group() {
        let command = command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut names: Vec<&str> = shown.map(Command::get_name).collect();
        names.push("help");
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        names.sort_unstable();
        listed.sort_unstable();
        // Of a feature.
        listed.retain(|name| cfg!(feature = "dev") || *name != "dev");
        assert_eq!(listed, names);
    }

    #[test]
    fn the_version_flag_is_that_of_the_program_alone() {
        let command = command();
        let version = command.get_arguments().find(|flag| flag.get_id() == "version").unwrap();
        assert!(matches!(version.get_action(), ArgAction::Version));
    }
}
