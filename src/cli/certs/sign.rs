//! `portcullis certs sign`: a certificate for a request that somebody sent; their key stays with them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::super::check::{Output, print};
use super::super::terminal::sanitized;
use super::authority::AuthorityFlags;
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::life;
use super::kind::CertificateKind;
use super::signing::SigningOrder;
use crate::clock::Clock;
use crate::go::pem;
use crate::pki::issuance::request::{CertificateRequest, RequestError};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs inspect alice.csr
  portcullis certs sign alice.csr --profile client --duration 90d
  portcullis certs sign gateway.csr --profile front-proxy --out gateway-front.crt \\
    --ca-cert /etc/kubernetes/pki/front-proxy-ca.crt --ca-key /etc/kubernetes/pki/front-proxy-ca.key

The names in the request are signed as they are, without a question: look at them first, with inspect.";

/// What DER of a request begins with.
const DER: &[u8] = b"\x30";

/// The flags of `portcullis certs sign`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct SignFlags {
    /// The request, PKCS#10, PEM or DER.
    #[arg(value_name = "FILE")]
    request: PathBuf,
    /// What the certificate is for; this decides which authority of --dir signs it.
    #[arg(long, value_enum, value_name = "KIND")]
    profile: CertificateKind,
    /// Its usages, comma-separated, as in the API: `client auth` without `digital signature`, say. Default: all of the
    /// profile, which signs no others.
    #[arg(long, value_name = "USAGES", value_delimiter = ',')]
    usages: Vec<String>,
    /// How long it is good, at most as long as its authority. Default: 90d for a client, who cannot be revoked, else 365d.
    #[arg(long, value_name = "DURATION", value_parser = life)]
    duration: Option<Duration>,
    /// Sign a request for the group system:masters, which may do everything.
    #[arg(long)]
    allow_system_masters: bool,
    #[command(flatten)]
    authority: AuthorityFlags,
    /// The file to write the certificate to, followed by its intermediate. Default: FILE with .crt for its extension.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Replace a file that is there.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(super) fn run(flags: &SignFlags) -> Result<ExitCode, CommandError> {
    let name = flags.request.display();
    let bytes = std::fs::read(&flags.request).map_err(|error| CommandError::about(&name, error))?;
    let parsed = match CertificateRequest::from_pem(&bytes) {
        Err(RequestError::NotPem) if bytes.starts_with(DER) => CertificateRequest::from_der(&bytes),
        parsed => parsed,
    };
    let request = parsed.map_err(|error| CommandError::about(&name, explained(&error, &bytes)))?;
    let issuing = flags.authority.open(flags.profile.role())?;
    let now = Clock::system().now();
    let order = SigningOrder {
        kind: flags.profile,
        request: &request,
        usages: &flags.usages,
        duration: flags.duration,
        system_masters: flags.allow_system_masters,
    };
    let mut signed = order.sign(&issuing, now)?;
    let out = flags.out.clone().unwrap_or_else(|| flags.request.with_extension("crt"));
    let mut files = NewFiles::new(flags.force);
    files.stage_public(&out, signed.chain(&issuing).as_bytes())?;
    signed.report.certificate_file = Some(out);
    let report = signed.hand_out(&issuing, files, now)?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

/// What is wrong with a file that is no request, in words for those who have mixed up their files.
fn explained(error: &RequestError, bytes: &[u8]) -> String {
    match error {
        RequestError::Malformed(_) | RequestError::NotPem => match pem::decode(bytes) {
            Some((block, _)) if block.kind != b"CERTIFICATE REQUEST" => {
                let kind = sanitized(&String::from_utf8_lossy(&block.kind));
                format!(
                    "a PEM file of the type {kind}, and not a CERTIFICATE REQUEST; `certs inspect` says what it is"
                )
            }
            Some(_) => error.to_string(),
            None => "neither PEM nor DER of a certificate request (PKCS#10); `certs inspect` says what it is"
                .to_owned(),
        },
        error => error.to_string(),
    }
}
