//! `portcullis certs`: the commands of `crates/tools`, and those that need the gateway's configuration.

mod verify;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use portcullis_tools::certs::profile::SignerProfile;

use crate::config::resolve::signer_profiles;

/// The examples of `portcullis certs --help`.
pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs init --dir pki
  portcullis certs issue client --common-name alice --organization developers --out alice
  portcullis certs inspect alice.crt";

/// The commands of `portcullis certs`.
#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    #[command(flatten)]
    WithoutGateway(Box<portcullis_tools::certs::CertsCommand>),
    /// Verify a client certificate as the gateway does, and print the user that it authenticates.
    ///
    /// Uses the gateway's own authenticator, with the CAs of --client-ca-file or of a cluster in the configuration.
    /// Exits 0 if the certificate is accepted, 1 if not, 64 if the configuration is invalid.
    // Beside `inspect`.
    #[command(after_help = verify::EXAMPLE, display_order = 4)]
    Verify(Box<verify::CertificateVerifyFlags>),
}

impl CertsCommand {
    pub(super) fn run(&self) -> ExitCode {
        match self {
            Self::WithoutGateway(command) => command.run(read_profiles),
            Self::Verify(flags) => verify::run(flags),
        }
    }
}

/// Reads the profiles of `certs issue` and `certs sign` as `--signer-profiles` of the gateway does.
fn read_profiles(key: &str, file: &Path) -> Result<Vec<SignerProfile>, String> {
    let read = signer_profiles(key, file).map_err(|errors| {
        let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        errors.join("\n")
    })?;
    let profiles = read.into_iter().map(|signer| {
        let ((cert_key, certificate), (key_key, key)) =
            (signer.authority.certificate(), signer.authority.key());
        let (certificate, key) =
            ((cert_key.to_owned(), certificate.to_owned()), (key_key.to_owned(), key.clone()));
        SignerProfile { name: signer.name, rules: signer.rules, certificate, key }
    });
    Ok(profiles.collect())
}
