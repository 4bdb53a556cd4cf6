//! `portcullis certs init`: a root authority, and one below it for each kind of certificate.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::super::check::{Output, print};
use super::authority::{ROOT, Role};
use super::error::CommandError;
use super::files::{NewFiles, make_directory};
use super::flags::{KeyType, life, name};
use super::index::Index;
use super::making::{COLUMNS, Made, Plan, entry, new_key, staggered};
use super::passphrase::{NewKeyPassphraseFlags, Protection};
use super::table;
use crate::clock::{Clock, UnixTime};
use crate::pki::issuance::ca::CaIssuer;
use crate::pki::issuance::signer::{PemKey, Signer as _};
use crate::pki::x509::certificate::Certificate;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs init --dir pki
  portcullis certs init --dir pki --key-type ecdsa-p384 --validity 5y --passphrase
  portcullis certs init --dir pki --root-passphrase-file /run/secrets/root-passphrase

Makes ca.crt, the root, and below it client-ca.crt, serving-ca.crt and front-proxy-ca.crt, each
with its .key. The gateway takes client-ca.crt as its --client-ca-file and front-proxy-ca.crt as its
--requestheader-client-ca-file: with the root there, a certificate from any of them would do.
At a terminal it asks for a passphrase of the root's key, unless a flag says what to do.";

/// The flags of `portcullis certs init`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct InitFlags {
    /// The directory to make them in; it is made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// What the authorities are called: `NAME root CA`, `NAME client CA` and so on.
    #[arg(long, value_name = "NAME", default_value = "portcullis", value_parser = name)]
    name: String,
    /// The kind of their keys.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KeyType::EcdsaP256)]
    key_type: KeyType,
    /// How long the root is good: 90d, 10y, 8760h.
    #[arg(long, value_name = "DURATION", default_value = "10y", value_parser = life)]
    validity: Duration,
    /// How long the authorities below it are good, at most as long as the root. They end up to 28 days apart.
    #[arg(long, value_name = "DURATION", default_value = "5y", value_parser = life)]
    intermediate_validity: Duration,
    #[command(flatten)]
    passphrase: NewKeyPassphraseFlags,
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
    index_file: PathBuf,
    authorities: Vec<Made>,
    #[serde(skip)]
    keys: &'static str,
}

pub(super) fn run(flags: &InitFlags) -> Result<ExitCode, CommandError> {
    let protection = flags.passphrase.ask()?;
    let now = Clock::system().now();
    let made = make_directory(&flags.dir).map_err(|error| CommandError::Failed(error.to_string()))?;
    let report = make(flags, &protection, now);
    if report.is_err() && made {
        // Only what was made here, and only if it is empty.
        std::fs::remove_dir(&flags.dir).ok();
    }
    let report = report?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

fn make(flags: &InitFlags, protection: &Protection, now: UnixTime) -> Result<Report, CommandError> {
    let mut files = NewFiles::new(flags.force);
    let index = Index::beside(&flags.dir.join(ROOT).with_extension("crt"));
    let mut authorities = Vec::new();
    let key_type = flags.key_type.to_string();
    let mut keep = |plan: &Plan, certificate: &Certificate, key: &PemKey| {
        let key = (key, protection.of(plan.role));
        authorities.push(Made::stage(plan, &flags.dir, certificate, &key_type, Some(key), &mut files)?);
        Ok::<_, CommandError>(())
    };

    let plan = Plan::new(None, &flags.name, flags.validity, now);
    let root_key = new_key(flags.key_type)?;
    let root = plan.self_signed(&root_key)?;
    keep(&plan, &root, &root_key)?;
    let (end, issuer) = (plan.not_after, CaIssuer { certificate: &root, key: &root_key });
    let mut entries = Vec::new();
    for role in Role::ALL {
        let life = staggered(role, flags.intermediate_validity.min(flags.validity));
        let plan = Plan::new(Some(role), &flags.name, life, now).until(end);
        let key = new_key(flags.key_type)?;
        let certificate = plan.signed_by(key.public_key(), issuer)?;
        keep(&plan, &certificate, &key)?;
        entries.push(entry(&plan, &certificate, &root.der, now));
    }
    // As for every certificate: first the line, then the file. Lines of a certificate that was never written do no harm.
    index.record(&entries)?;
    files.commit()?;
    Ok(Report {
        directory: flags.dir.clone(),
        index_file: index.path().to_owned(),
        authorities,
        keys: protection.described(),
    })
}

impl Report {
    fn text(&self) -> String {
        let text = table::columns(COLUMNS, self.authorities.iter().map(Made::row));
        let (dir, keys) = (self.directory.display(), self.keys);
        let next = format!(
            "\n{keys} What they sign is listed in *.index.jsonl.\n\n\
             Next:\n  \
             keep {dir}/{ROOT}.key where it is safe, away from this machine: only certs renew-ca needs it\n  \
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
