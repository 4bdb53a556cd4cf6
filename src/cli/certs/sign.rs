//! `portcullis certs sign`: a certificate for a request that somebody sent; their key stays with them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::super::check::{Output, print};
use super::authority::AuthorityFlags;
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::life;
use super::kind::Kind;
use super::signing::Order;
use crate::certificates::request::CertificateRequest;
use crate::clock::Clock;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs inspect alice.csr
  portcullis certs sign alice.csr --profile client --duration 90d
  portcullis certs sign gateway.csr --profile front-proxy --out gateway-front.crt \\
    --ca-cert /etc/kubernetes/pki/front-proxy-ca.crt --ca-key /etc/kubernetes/pki/front-proxy-ca.key

The names in the request are signed as they are, without a question: look at them first, with inspect.";

/// The flags of `portcullis certs sign`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct SignFlags {
    /// The request, PKCS#10, PEM or DER.
    #[arg(value_name = "FILE")]
    request: PathBuf,
    /// What the certificate is for; this decides which authority of --dir signs it.
    #[arg(long, value_enum, value_name = "KIND")]
    profile: Kind,
    /// Its usages, comma-separated, as in the API: `digital signature,client auth`. Default: those of the profile.
    #[arg(long, value_name = "USAGES", value_delimiter = ',')]
    usages: Vec<String>,
    /// How long it is good, at most as long as its authority.
    #[arg(long, value_name = "DURATION", default_value = "365d", value_parser = life)]
    duration: Duration,
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
    let parsed = if bytes.trim_ascii_start().starts_with(b"-----BEGIN") {
        CertificateRequest::from_pem(&bytes)
    } else {
        CertificateRequest::from_der(&bytes)
    };
    let request = parsed.map_err(|error| CommandError::about(&name, error))?;
    let issuing = flags.authority.open(flags.profile.role())?;
    let now = Clock::system().now();
    let order =
        Order { kind: flags.profile, request: &request, usages: &flags.usages, duration: flags.duration };
    let mut signed = order.sign(&issuing, now)?;
    let out = flags.out.clone().unwrap_or_else(|| flags.request.with_extension("crt"));
    let mut files = NewFiles::new(flags.force);
    files.stage(&out, signed.chain(&issuing).as_bytes())?;
    signed.report.certificate_file = Some(out);
    let report = signed.hand_out(&issuing, files, now)?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}
