//! `portcullis certs`: CAs, certificates and certificate requests, as files and in a cluster. A private key is never
//! printed, and never on disk without 0600 permissions.

mod authority;
mod bundle;
mod ca_certificates;
pub(super) mod error;
mod expiring;
mod exposure;
pub(super) mod files;
pub(super) mod flags;
mod index;
mod init;
mod inspect;
mod issue;
mod kind;
mod kubeconfig;
pub(super) mod link;
mod listing;
mod log;
mod making;
pub(super) mod named_file;
mod passphrase;
pub mod profile;
pub(super) mod progress;
#[cfg(unix)]
mod prompt;
mod record_file;
mod renew;
pub(super) mod requests;
mod revocation_list;
mod revocations;
mod revoke;
mod rotate;
mod sign;
pub mod signer_records;
pub(super) mod signing;

use std::process::ExitCode;

use clap::Subcommand;
use portcullis_go::hex::hex;
use x509_parser::certificate::X509Certificate;

use error::CommandError;
use profile::ReadSignerProfiles;

use super::table;

/// The commands of `portcullis certs`.
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Create CAs: a root, and below it one CA each for clients, servers and front proxies.
    #[command(after_help = init::EXAMPLE)]
    Init(init::InitFlags),
    /// Renew a CA: the root signs a new certificate, for the same key or a new one.
    #[command(after_help = renew::EXAMPLE)]
    RenewCa(renew::RenewFlags),
    /// Issue a certificate with a new key.
    #[command(after_help = issue::EXAMPLE)]
    Issue(issue::IssueFlags),
    /// Sign a certificate request; the private key stays with its owner.
    #[command(after_help = sign::EXAMPLE)]
    Sign(sign::SignFlags),
    /// Inspect certificates, requests, keys, kubeconfigs or a server: print their contents and problems.
    #[command(after_help = inspect::EXAMPLE)]
    Inspect(inspect::InspectFlags),
    /// Request a certificate in a cluster, wait for approval and signature, and write it to a file.
    #[command(after_help = requests::create::EXAMPLE)]
    Request(Box<requests::create::RequestFlags>),
    /// List the requests in a cluster, as `kubectl get csr` does.
    #[command(after_help = "Example:\n  portcullis certs list --pending")]
    List(requests::list::RequestListFlags),
    /// Approve requests in a cluster, after printing their contents.
    #[command(after_help = "Example:\n  portcullis certs approve node-csr-worker-1")]
    Approve(requests::decide::ApproveFlags),
    /// Deny requests in a cluster.
    #[command(after_help = "Example:\n  portcullis certs deny node-csr-worker-1 --message 'unknown node'")]
    Deny(requests::decide::DenyFlags),
    /// Watch the requests in a cluster: print a line for each request and each change, until Ctrl-C.
    #[command(after_help = "Example:\n  portcullis certs watch --output json")]
    Watch(requests::watch::WatchFlags),
    /// Print or verify the CAs that a cluster publishes as ClusterTrustBundles.
    #[command(subcommand, after_help = bundle::EXAMPLE)]
    Bundle(bundle::BundleCommand),
    /// List the certificates that must be replaced soon, by which day, and how.
    #[command(after_help = expiring::EXAMPLE)]
    Expiring(expiring::ExpiringFlags),
    /// Rehearse the rotation of a CA: list what trusts it, how long its certificates live, and the steps.
    #[command(after_help = rotate::EXAMPLE)]
    Rotate(rotate::RotateFlags),
    /// A log of issued certificates from which nothing can be removed unnoticed: create, verify, prove, monitor.
    #[command(subcommand, after_help = log::EXAMPLE)]
    Log(log::LogCommand),
    /// Revoke certificates: write a CRL, a deny list, or both.
    #[command(after_help = revoke::EXAMPLE)]
    Revoke(Box<revoke::RevokeFlags>),
    /// List the certificates that a CA has signed.
    ///
    /// Each CA has an index file beside its certificate, client-ca.index.jsonl beside client-ca.crt. Before a
    /// certificate is written, it is recorded there as a line of JSON with its serial number, subject, profile,
    /// expiration and SHA-256, and the SHA-256 of the CA certificate. Revocations are in client-ca.revoked.jsonl.
    #[command(after_help = "Example:\n  portcullis certs index --expires-within 30d")]
    Index(listing::IndexFlags),
}

impl CertsCommand {
    /// Runs the command. `read_profiles` reads the files of `--profile`.
    pub fn run(&self, read_profiles: ReadSignerProfiles) -> ExitCode {
        let done = match self {
            Self::Init(flags) => init::run(flags),
            Self::RenewCa(flags) => renew::run(flags),
            Self::Issue(flags) => issue::run(flags, read_profiles),
            Self::Sign(flags) => sign::run(flags, read_profiles),
            Self::Inspect(flags) => inspect::run(flags),
            Self::Request(flags) => requests::create::run(flags),
            Self::List(flags) => requests::list::run(flags),
            Self::Approve(flags) => requests::decide::approve(flags),
            Self::Deny(flags) => requests::decide::deny(flags),
            Self::Watch(flags) => requests::watch::run(flags),
            Self::Bundle(command) => bundle::run(command),
            Self::Log(command) => log::run(command),
            Self::Expiring(flags) => expiring::run(flags),
            Self::Rotate(flags) => rotate::run(flags),
            Self::Revoke(flags) => revoke::run(flags),
            Self::Index(flags) => listing::run(flags),
        };
        done.unwrap_or_else(|error: CommandError| error.report())
    }
}

/// The serial number of a certificate in hexadecimal, without the leading zero octet of its DER encoding.
fn serial(certificate: &X509Certificate<'_>) -> String {
    hex(&certificate.serial.to_bytes_be())
}

/// The SHA-256 of a certificate, in hexadecimal.
fn fingerprint(der: &[u8]) -> String {
    hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der).as_ref())
}
