//! `portcullis certs`: authorities, certificates and requests, with no cluster at all and with one.

mod authority;
mod error;
mod files;
mod flags;
mod index;
mod init;
mod inspect;
mod issue;
mod kind;
mod kubeconfig;
mod listing;
mod making;
mod passphrase;
mod progress;
mod renew;
mod requests;
mod sign;
mod signing;
pub(super) mod table;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;
use x509_parser::certificate::X509Certificate;

use error::CommandError;

use crate::go::hex::hex;

/// The commands of `portcullis certs`.
#[derive(Debug, Subcommand)]
pub(super) enum CertsCommand {
    /// Make authorities: a root, and below it one for clients, one for servers and one for front proxies.
    #[command(after_help = init::EXAMPLE)]
    Init(init::InitFlags),
    /// Renew an authority: another certificate by the root's key, for the same key or for a new one.
    #[command(after_help = renew::EXAMPLE)]
    RenewCa(renew::RenewFlags),
    /// Issue a certificate with a new key.
    #[command(after_help = issue::EXAMPLE)]
    Issue(issue::IssueFlags),
    /// Sign a certificate request: the key stays with whoever made the request.
    #[command(after_help = sign::EXAMPLE)]
    Sign(sign::SignFlags),
    /// Inspect certificates, requests, keys, kubeconfigs or a server: what they say, and what is wrong.
    #[command(after_help = inspect::EXAMPLE)]
    Inspect(inspect::InspectFlags),
    /// Verify a client certificate: would the gateway accept it, and as whom.
    ///
    /// Judged by the gateway's own authenticator, with the CAs of its --client-ca-file, or of a cluster in its
    /// configuration. Exits 0 if it is accepted, 1 if not, 64 if the configuration is bad.
    #[command(after_help = verify::EXAMPLE)]
    Verify(Box<verify::VerifyFlags>),
    /// Request a certificate in a cluster, wait until it is approved and signed, and write it.
    #[command(after_help = requests::create::EXAMPLE)]
    Request(Box<requests::create::RequestFlags>),
    /// List the requests in a cluster, as `kubectl get csr` does.
    List(requests::list::ListFlags),
    /// Approve requests in a cluster, after showing what they ask for.
    Approve(requests::decide::ApproveFlags),
    /// Deny requests in a cluster.
    Deny(requests::decide::DenyFlags),
    /// Watch the requests in a cluster: a line for each, and for each change, until Ctrl-C.
    Watch(requests::watch::WatchFlags),
    /// List what an authority has signed.
    ///
    /// Each certificate is recorded in a file beside its authority's, client-ca.index.jsonl beside client-ca.crt: a line
    /// of JSON with its serial number, subject, profile, end and SHA-256, and the SHA-256 of its authority's certificate,
    /// written before the certificate is.
    Index(listing::IndexFlags),
}

impl CertsCommand {
    pub(super) fn run(&self) -> ExitCode {
        let done = match self {
            Self::Init(flags) => init::run(flags),
            Self::RenewCa(flags) => renew::run(flags),
            Self::Issue(flags) => issue::run(flags),
            Self::Sign(flags) => sign::run(flags),
            Self::Inspect(flags) => inspect::run(flags),
            Self::Verify(flags) => return verify::run(flags),
            Self::Request(flags) => requests::create::run(flags),
            Self::List(flags) => requests::list::run(flags),
            Self::Approve(flags) => requests::decide::approve(flags),
            Self::Deny(flags) => requests::decide::deny(flags),
            Self::Watch(flags) => requests::watch::run(flags),
            Self::Index(flags) => listing::run(flags),
        };
        done.unwrap_or_else(|error: CommandError| error.tell())
    }
}

/// The serial number of a certificate, without the octet that only says that it is positive.
fn serial(certificate: &X509Certificate<'_>) -> String {
    hex(&certificate.serial.to_bytes_be())
}

/// What a certificate is told by: its SHA-256.
fn fingerprint(der: &[u8]) -> String {
    hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der).as_ref())
}
