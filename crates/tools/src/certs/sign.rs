//! `portcullis certs sign`: signs a PKCS#10 certificate request; the private key stays with its owner.

use std::io::Write as _;
use std::path::{Path, PathBuf};
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
use super::log::LogFlags;
use super::profile::{ProfileSource, ReadSignerProfiles};
use super::signing::SigningOrder;
use crate::certs::named_file;
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs inspect alice.csr
  portcullis certs sign alice.csr --profile client --duration 90d
  portcullis certs sign gateway.csr --profile front-proxy --out gateway-front.crt \\
    --ca-cert /etc/kubernetes/pki/front-proxy-ca.crt --ca-key /etc/kubernetes/pki/front-proxy-ca.key

  openssl req -new -key alice.key -subj /CN=alice | portcullis certs sign - --profile client > alice.crt

Signs the names of the request unchanged and without confirmation: review them first with inspect.";

/// The first octet of a request in DER, a SEQUENCE.
const DER: &[u8] = b"\x30";

/// The flags of `portcullis certs sign`.
#[derive(Debug, Clone, Args)]
pub struct SignFlags {
    /// The request, PKCS#10, PEM or DER. `-` is standard input.
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
    /// Write the certificate with its intermediate to this file. `-` is standard output; the report is then printed to
    /// standard error. Default: FILE with the extension .crt, or standard output if FILE is `-`.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    #[command(flatten)]
    log: LogFlags,
    /// Replace an existing file.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(super) fn run(flags: &SignFlags, read_profiles: ReadSignerProfiles) -> Result<ExitCode, CommandError> {
    let name = flags.request.display();
    let is_file = flags.request.as_os_str() != "-";
    let read = if is_file { named_file::read(&flags.request) } else { named_file::read_standard_input() };
    let bytes = read.map_err(|error| CommandError::about(&name, error))?;
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
    let chain = signed.chain(&issuing);
    let mut files = NewFiles::new(flags.force);
    let out = flags.out_file();
    if let Some(out) = &out {
        files.stage_public(out, chain.as_bytes())?;
    }
    let is_printed = out.is_none();
    signed.report.certificate_file = out;
    let report = signed.hand_out(&issuing, files, &flags.log, now)?;
    let text = flags.output.rendered(&report).unwrap_or_else(|| report.text());
    if is_printed {
        // Best effort: the certificate matters.
        std::io::stderr().write_all(text.as_bytes()).ok();
        return Ok(print(&chain));
    }
    Ok(print(&text))
}

impl SignFlags {
    /// The file of the certificate; `None` for standard output.
    fn out_file(&self) -> Option<PathBuf> {
        let is_standard = |path: &Path| path.as_os_str() == "-";
        match &self.out {
            Some(out) => Some(out.clone()).filter(|out| !is_standard(out)),
            None if is_standard(&self.request) => None,
            None => Some(self.request.with_extension("crt")),
        }
    }
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
