//! `portcullis certs init`: creates a root CA, and below it a CA for each role.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_go::hex::hex;
use portcullis_pki::issuance::ca::CaIssuer;
use portcullis_pki::issuance::signer::{PemKey, Signer as _};
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::{Clock, UnixTime};
use serde::Serialize;

use super::authority::{CaRole, ROOT};
use super::error::CommandError;
use super::exposure;
use super::files::{NewFiles, make_directory};
use super::flags::{KeyType, life, name};
use super::index::IssuanceIndex;
use super::making::{COLUMNS, CaPlan, CreatedCa, entry, new_key, staggered};
use super::passphrase::{KeyProtection, NewKeyPassphraseFlags};
use super::table;
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs init --dir pki
  portcullis certs init --dir pki --key-type ecdsa-p384 --validity 5y --passphrase
  portcullis certs init --dir pki --root-passphrase-file /run/secrets/root-passphrase

Creates ca.crt, the root, and below it client-ca.crt, serving-ca.crt and front-proxy-ca.crt, each
with its .key. Use client-ca.crt as --client-ca-file of the gateway and front-proxy-ca.crt as its
--requestheader-client-ca-file: the root there would accept certificates of all three CAs.
At a terminal it prompts for a passphrase for the root's key, unless a passphrase flag is given.";

/// The flags of `portcullis certs init`.
#[derive(Debug, Clone, Args)]
pub struct InitFlags {
    /// The directory for the CAs; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// The prefix of the CA names: `NAME root CA`, `NAME client CA` and so on. It should differ between installations:
    /// verifiers find a CRL by the name of its CA. Default: portcullis- and six random
    /// hexadecimal digits.
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,
    /// The type of the keys.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KeyType::EcdsaP256)]
    key_type: KeyType,
    /// The validity of the root: 90d, 10y, 8760h.
    #[arg(long, value_name = "DURATION", default_value = "10y", value_parser = life)]
    validity: Duration,
    /// The validity of the CAs below the root, limited by that of the root. They expire up to 28 days apart.
    #[arg(long, value_name = "DURATION", default_value = "5y", value_parser = life)]
    intermediate_validity: Duration,
    #[command(flatten)]
    passphrase: NewKeyPassphraseFlags,
    /// Replace existing CAs. This invalidates every certificate that they have signed.
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// The output of `init`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InitReport {
    directory: PathBuf,
    index_file: PathBuf,
    authorities: Vec<CreatedCa>,
    #[serde(skip)]
    keys: &'static str,
}

pub(super) fn run(flags: &InitFlags) -> Result<ExitCode, CommandError> {
    exposure::warn_of_directory(&flags.dir);
    let protection = flags.passphrase.ask()?;
    let now = Clock::system().now();
    let made = make_directory(&flags.dir).map_err(|error| CommandError::Failed(error.to_string()))?;
    let report = make(flags, &protection, now);
    if report.is_err() && made {
        // Removes only a directory created here, and only if it is empty.
        std::fs::remove_dir(&flags.dir).ok();
    }
    let report = report?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

/// A name that other installations do not have.
fn default_name() -> Result<String, CommandError> {
    let mut random = [0; 3];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| CommandError::Failed("the system has no random bytes".to_owned()))?;
    Ok(format!("portcullis-{}", hex(&random)))
}

fn make(flags: &InitFlags, protection: &KeyProtection, now: UnixTime) -> Result<InitReport, CommandError> {
    let mut files = NewFiles::new(flags.force);
    let index = IssuanceIndex::beside(&flags.dir.join(ROOT).with_extension("crt"));
    let mut authorities = Vec::new();
    let key_type = flags.key_type.to_string();
    let mut keep = |plan: &CaPlan, certificate: &Certificate, key: &PemKey| {
        let key = (key, protection.of(plan.role));
        authorities.push(CreatedCa::stage(plan, &flags.dir, certificate, &key_type, Some(key), &mut files)?);
        Ok::<_, CommandError>(())
    };

    let name = flags.name.clone().map_or_else(default_name, Ok)?;
    let plan = CaPlan::new(None, &name, flags.validity, now);
    let root_key = new_key(flags.key_type)?;
    let root = plan.self_signed(&root_key)?;
    keep(&plan, &root, &root_key)?;
    let (end, issuer) = (plan.not_after, CaIssuer { certificate: &root, key: &root_key });
    let mut entries = Vec::new();
    for role in CaRole::ALL {
        let life = staggered(role, flags.intermediate_validity.min(flags.validity));
        let plan = CaPlan::new(Some(role), &name, life, now).until(end);
        let key = new_key(flags.key_type)?;
        let certificate = plan.signed_by(key.public_key(), issuer)?;
        keep(&plan, &certificate, &key)?;
        entries.push(entry(&plan, &certificate, &root.der, now));
    }
    // The index before the files, as for every certificate: an entry without a certificate does no harm.
    index.record(&entries)?;
    files.commit()?;
    Ok(InitReport {
        directory: flags.dir.clone(),
        index_file: index.path().to_owned(),
        authorities,
        keys: protection.described(),
    })
}

impl InitReport {
    fn text(&self) -> String {
        let text = table::columns(COLUMNS, self.authorities.iter().map(CreatedCa::row));
        let (dir, keys) = (self.directory.display(), self.keys);
        let next = format!(
            "\n{keys} Signed certificates are listed in *.index.jsonl.\n\n\
             Next:\n  \
             store {dir}/{ROOT}.key offline: only certs renew-ca needs it\n  \
             gateway, to authenticate clients:       --client-ca-file={dir}/client-ca.crt\n  \
             gateway, to authenticate front proxies: --requestheader-client-ca-file={dir}/front-proxy-ca.crt\n  \
             clients, to verify servers:             certificate-authority: {dir}/{ROOT}.crt\n  \
             portcullis certs issue serving --dir {dir} --common-name gateway.example.com --dns gateway.example.com \
             --out gateway\n  \
             portcullis certs issue client --dir {dir} --common-name alice --organization developers --out alice\n",
        );
        text + &next
    }
}
