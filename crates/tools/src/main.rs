//! `portcullis-login`: the commands of people's machines, without the gateway. kubectl starts it as an exec plugin.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use clap_complete::Shell;
use portcullis_tools::output::{BAD_CONFIGURATION, print};
use portcullis_tools::{help, login, man};

/// Log in to clusters with an OpenID provider.
///
/// The commands of `portcullis` for people's machines, in a smaller program. Install it under the name portcullis where the
/// gateway is not installed: kubeconfigs and messages name that.
#[derive(Debug, Parser)]
#[command(name = "portcullis-login", version, arg_required_else_help = true, max_term_width = 110)]
enum Cli {
    /// Log in to a cluster with an OpenID provider, and write a kubeconfig for it.
    ///
    /// Opens a browser, or shows a code to enter on another device. Keeps what else is in the kubeconfig, except
    /// comments, and a copy of the old file beside it.
    #[command(after_help = login::LOGIN_EXAMPLE.replace("portcullis login", "portcullis-login login"))]
    Login(Box<login::LoginFlags>),
    /// Log out of a cluster: remove the cached tokens of a login, and revoke them at the provider.
    #[command(after_help = login::LOGOUT_EXAMPLE.replace("portcullis", "portcullis-login"))]
    Logout(Box<login::LogoutFlags>),
    /// Print the credential of a login, as an exec plugin of kubectl.
    ///
    /// kubectl runs it by the kubeconfig that `login` writes. Uses the cached token, refreshes it, or logs in: where
    /// the client leaves a terminal to it, and on a desktop by a browser (--open-browser). Machines use --flow
    /// client-credentials or token-file.
    Credential(Box<login::CredentialFlags>),
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  portcullis-login completion bash > /etc/bash_completion.d/portcullis-login"
    )]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages to a directory, for packages.
    #[command(hide = true, after_help = man::EXAMPLE.replace("portcullis", "portcullis-login"))]
    Man(man::ManFlags),
}

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let command = help::described(help::arranged(Cli::command()), &words);
    let parsed = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(Cli::Login(flags)) => login::run_login(&flags),
        Ok(Cli::Logout(flags)) => login::run_logout(&flags),
        Ok(Cli::Credential(flags)) => login::run_credential(&flags),
        Ok(Cli::Completion { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(
                shell,
                &mut help::arranged(Cli::command()),
                "portcullis-login",
                &mut script,
            );
            print(&String::from_utf8_lossy(&script))
        }
        Ok(Cli::Man(flags)) => flags.run(help::arranged(Cli::command())),
        Err(error) => {
            // --help and --version are errors to clap, too; it prints each to the right stream.
            error.print().ok();
            if error.use_stderr() { ExitCode::from(BAD_CONFIGURATION) } else { ExitCode::SUCCESS }
        }
    }
}
