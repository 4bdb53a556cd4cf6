//! `portcullis certs sign`: signs a PKCS#10 certificate request; the private key stays with its owner.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_go::pem;
use portcullis_pki::issuance::request::{CertificateRequest, RequestError};
use portcullis_system::clock::Clock;

use super::super::terminal::sanitized;
use super::authority::AuthorityFlags;
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::life;
use super::profile::{ProfileSource, ReadSignerProfiles};
use super::signing::SigningOrder;
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs inspect alice.csr
  portcullis certs sign alice.csr --profile client --duration 90d
  portcullis certs sign gateway.csr --profile front-proxy --out gateway-front.crt \\
    --ca-cert /etc/kubernetes/pki/front-proxy-ca.crt --ca-key /etc/kubernetes/pki/front-proxy-ca.key

Signs the names of the request unchanged and without confirmation: review them first with inspect.";

/// The first octet of a request in DER, a SEQUENCE.
const DER: &[u8] = b"\x30";

/// The flags of `portcullis certs sign`.
#[derive(Debug, Clone, Args)]
pub struct SignFlags {
    /// The request, PKCS#10, PEM or DER.
    #[arg(value_name = "FILE")]
    request: PathBuf,
    /// A built-in profile, which selects the CA of --dir that signs: client, serving, front-proxy, kubelet-client or
    /// kubelet-serving; or a SignerProfiles file with the CA and its rules, as --signer-profiles of `serve` reads it.
    #[arg(long, value_name = "KIND|FILE")]
    profile: ProfileSource,
    /// The signer, if the file of --profile lists several.
    #[arg(long, value_name = "NAME")]
    signer_name: Option<String>,
    /// The usages, comma-separated, as in the API, for example `client auth` without `digital signature`. Default: all
    /// usages of the profile, which allows no others.
    #[arg(long, value_name = "USAGES", value_delimiter = ',')]
    usages: Vec<String>,
    /// The validity, limited by that of the CA and by maxDuration of a profile file. Default: that of the file, or 90d
    /// for clients, which kube-apiserver cannot revoke, else 365d.
    #[arg(long, value_name = "DURATION", value_parser = life)]
    duration: Option<Duration>,
    /// Allow the group system:masters, which has full access regardless of RBAC.
    #[arg(long)]
    allow_system_masters: bool,
    #[command(flatten)]
    authority: AuthorityFlags,
    /// Write the certificate with its intermediate to this file. Default: FILE with the extension .crt.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(super) fn run(flags: &SignFlags, read_profiles: ReadSignerProfiles) -> Result<ExitCode, CommandError> {
    let name = flags.request.display();
    let bytes = std::fs::read(&flags.request).map_err(|error| CommandError::about(&name, error))?;
    let parsed = match CertificateRequest::from_pem_file(&bytes) {
        Err(RequestError::NotPem) if bytes.starts_with(DER) => CertificateRequest::from_der(&bytes),
        parsed => parsed,
    };
    let request = parsed.map_err(|error| CommandError::about(&name, explained(&error, &bytes)))?;
    let profile = flags.profile.load(flags.signer_name.as_deref(), read_profiles)?;
    let issuing = flags.authority.open(&profile)?;
    let now = Clock::system().now();
    let order = SigningOrder {
        profile: &profile,
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

/// Explains a parse error; names the type of a file that is not a certificate request.
fn explained(error: &RequestError, bytes: &[u8]) -> String {
    match error {
        RequestError::Malformed(_) | RequestError::NotPem => match pem::decode(bytes) {
            Some((block, _)) if block.kind != b"CERTIFICATE REQUEST" => {
                let kind = sanitized(&String::from_utf8_lossy(&block.kind));
                format!("a PEM file of the type {kind}, not a CERTIFICATE REQUEST; see `certs inspect`")
            }
            Some(_) => error.to_string(),
            None => "neither PEM nor DER of a certificate request (PKCS#10); see `certs inspect`".to_owned(),
        },
        error => error.to_string(),
    }
}
