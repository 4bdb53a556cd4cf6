//! `portcullis certs init`: a root authority, and one below it for each kind of certificate. Each signs for one purpose
//! alone (its extended key usage says so, RFC 5280 section 4.2.1.12), so a server's authority can make no clients.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use time::OffsetDateTime;

use super::super::check::{Output, print};
use super::authority::{ROOT, Role};
use super::error::CommandError;
use super::files::{NewFiles, make_directory};
use super::flags::{KeyType, life};
use super::index::{Entry, Index};
use super::passphrase::PassphraseFlags;
use super::progress::patiently;
use super::{fingerprint, table};
use crate::certificates::signer::{KeyError, PemKey};
use crate::clock::{self, Clock, UnixTime};

/// Clocks of virtual machines lag; a certificate made now must be good for them too.
const BACKDATED: Duration = Duration::from_mins(5);

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs init --dir pki
  portcullis certs init --dir pki --key-type ecdsa-p384 --validity 5y --passphrase
  portcullis certs init --dir pki --passphrase-file /run/secrets/ca-passphrase

Makes ca.crt, the root, and below it client-ca.crt, serving-ca.crt and front-proxy-ca.crt, each
with its .key. The gateway takes client-ca.crt as its --client-ca-file and front-proxy-ca.crt as its
--requestheader-client-ca-file: with the root there, a certificate from any of them would do.";

/// The flags of `portcullis certs init`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct InitFlags {
    /// The directory to make them in; it is made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// What the authorities are called: `NAME root CA`, `NAME client CA` and so on.
    #[arg(long, value_name = "NAME", default_value = "portcullis")]
    name: String,
    /// The kind of their keys.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KeyType::EcdsaP256)]
    key_type: KeyType,
    /// How long they are good: 90d, 10y, 8760h.
    #[arg(long, value_name = "DURATION", default_value = "10y", value_parser = life)]
    validity: Duration,
    /// Ask at the terminal for a passphrase to encrypt the keys with. Default: they are not encrypted.
    #[arg(long, help_heading = "Passphrase", conflicts_with_all = ["passphrase_file", "passphrase_fd"])]
    passphrase: bool,
    #[command(flatten)]
    passphrase_from: PassphraseFlags,
    /// Replace authorities that are there. What they have signed is then worth nothing.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// What was made.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    directory: PathBuf,
    encrypted: bool,
    index_file: PathBuf,
    authorities: Vec<Made>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    name: &'static str,
    subject: String,
    key: String,
    not_after: String,
    sha256: String,
    certificate_file: PathBuf,
    key_file: PathBuf,
}

pub(super) fn run(flags: &InitFlags) -> Result<ExitCode, CommandError> {
    let passphrase = flags.passphrase_from.for_new_keys(flags.passphrase)?;
    let now = Clock::system().now();
    let made = make_directory(&flags.dir).map_err(|error| CommandError::Failed(error.to_string()))?;
    let report = make(flags, passphrase.as_ref(), now);
    if report.is_err() && made {
        // Only what was made here, and only if it is empty.
        std::fs::remove_dir(&flags.dir).ok();
    }
    let report = report?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

fn make(flags: &InitFlags, passphrase: Option<&SecretString>, now: UnixTime) -> Result<Report, CommandError> {
    let failed = |error: rcgen::Error| CommandError::about("making an authority", error);
    let mut files = NewFiles::new(flags.force);
    let mut report = Report {
        directory: flags.dir.clone(),
        encrypted: passphrase.is_some(),
        index_file: Index::beside(&flags.dir.join(ROOT).with_extension("crt")).path().to_owned(),
        authorities: Vec::new(),
    };
    let mut keep =
        |name: &'static str, certificate: &Certificate, params: &CertificateParams, key: &SecretString| {
            let path = flags.dir.join(name);
            let made = Made {
                name,
                subject: subject(params),
                key: flags.key_type.to_string(),
                not_after: clock::rfc3339(unix(params.not_after)),
                sha256: fingerprint(certificate.der()),
                certificate_file: path.with_extension("crt"),
                key_file: path.with_extension("key"),
            };
            let key = match passphrase {
                Some(passphrase) => encrypted(key, passphrase)?,
                None => key.clone(),
            };
            files.stage(&made.certificate_file, certificate.pem().as_bytes())?;
            files.stage(&made.key_file, key.expose_secret().as_bytes())?;
            report.authorities.push(made);
            Ok::<_, CommandError>(())
        };

    let root_params = params(flags, "root", 1, now).map_err(failed)?;
    let (root_pem, root_key) = new_key(flags.key_type)?;
    let root = root_params.self_signed(&root_key).map_err(failed)?;
    keep(ROOT, &root, &root_params, &root_pem)?;
    let issuer = Issuer::new(root_params, root_key);
    let mut entries = Vec::new();
    for role in Role::ALL {
        let mut params = params(flags, role.title(), 0, now).map_err(failed)?;
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![match role {
            Role::Client | Role::FrontProxy => ExtendedKeyUsagePurpose::ClientAuth,
            Role::Serving => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let (pem, key) = new_key(flags.key_type)?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        keep(role.file(), &certificate, &params, &pem)?;
        entries.push(entry(&certificate, &params, now)?);
    }
    // The root's index is a file like the others: all of them are there in the end, or none.
    let index = Index { path: report.index_file.clone() };
    files.stage(index.path(), index.with(&entries)?.as_bytes())?;
    files.commit()?;
    Ok(report)
}

/// Makes a key: as PEM, and for `rcgen`.
fn new_key(kind: KeyType) -> Result<(SecretString, KeyPair), CommandError> {
    let failed = |problem: String| CommandError::about("making a key", problem);
    let key = patiently(&format!("making a key ({kind})"), || PemKey::generate(kind.kind()));
    let pem = key.map_err(|error: KeyError| failed(error.to_string()))?.to_pem();
    let pair = KeyPair::from_pem(pem.expose_secret()).map_err(|error| failed(error.to_string()))?;
    Ok((pem, pair))
}

fn encrypted(key: &SecretString, passphrase: &SecretString) -> Result<SecretString, CommandError> {
    PemKey::from_pem(key.expose_secret().as_bytes())
        .and_then(|key| key.to_encrypted_pem(passphrase))
        .map_err(|error| CommandError::about("encrypting a key", error))
}

fn params(
    flags: &InitFlags,
    title: &str,
    below: u8,
    now: UnixTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.not_before = date(now.saturating_sub(BACKDATED));
    params.not_after = date(now.saturating_add(flags.validity));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{} {title} CA", flags.name));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    // RFC 5280 section 4.2.1.3: what an authority does, and nothing else.
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn subject(params: &CertificateParams) -> String {
    let name = params.distinguished_name.get(&DnType::CommonName);
    match name {
        Some(rcgen::DnValue::Utf8String(name)) => format!("CN={name}"),
        _ => String::new(),
    }
}

fn entry(
    certificate: &Certificate,
    params: &CertificateParams,
    now: UnixTime,
) -> Result<Entry, CommandError> {
    use x509_parser::prelude::FromDer as _;
    let (_, read) = x509_parser::certificate::X509Certificate::from_der(certificate.der())
        .map_err(|error| CommandError::about("reading the new authority again", error))?;
    Ok(Entry {
        serial: super::serial(&read),
        subject: subject(params),
        alt_names: Vec::new(),
        profile: "intermediate".to_owned(),
        issued_at: clock::rfc3339(now),
        not_after: clock::rfc3339(unix(params.not_after)),
        sha256: fingerprint(certificate.der()),
    })
}

fn date(time: UnixTime) -> OffsetDateTime {
    let seconds = i64::try_from(time.as_secs()).ok();
    seconds
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn unix(date: OffsetDateTime) -> UnixTime {
    UnixTime::from_secs(u64::try_from(date.unix_timestamp()).unwrap_or_default())
}

impl Report {
    fn text(&self) -> String {
        let rows = self.authorities.iter().map(|made| {
            let file = made.certificate_file.display().to_string();
            [made.name.to_owned(), made.subject.clone(), made.key.clone(), made.not_after.clone(), file]
        });
        let text = table::columns(["AUTHORITY", "SUBJECT", "KEY", "UNTIL", "CERTIFICATE"], rows);
        let dir = self.directory.display();
        let keys = if self.encrypted {
            "Their keys, *.key, are encrypted; the passphrase is needed whenever something is signed."
        } else {
            "Their keys, *.key, are not encrypted: whoever reads them can be anyone. --passphrase encrypts them."
        };
        let next = format!(
            "\n{keys} What they sign is listed in *.index.jsonl.\n\n\
             Next:\n  \
             keep {dir}/{ROOT}.key where it is safe, away from this machine: only new authorities need it\n  \
             gateway, whose certificates let clients in:     --client-ca-file={dir}/client-ca.crt\n  \
             gateway, whose certificates make front proxies: --requestheader-client-ca-file={dir}/front-proxy-ca.crt\n  \
             clients, whom servers are checked against:      certificate-authority: {dir}/{ROOT}.crt\n  \
             portcullis certs issue serving --dir {dir} --common-name gateway.example.com --dns gateway.example.com \
             --out gateway\n  \
             portcullis certs issue client --dir {dir} --common-name alice --organization developers --out alice\n",
        );
        text + &next
    }
}
