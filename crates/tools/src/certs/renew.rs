//! `portcullis certs renew-ca`: the root signs a new certificate for a CA, with its old key or a new one. Never changes
//! the subject, purpose or constraints of a CA.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use portcullis_go::pem::encode_pem;
use portcullis_go::time;
use portcullis_pki::issuance::ca::CaIssuer;
use portcullis_pki::issuance::signer::{PemKey, PrivateKeyError, Signer as _};
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::{Clock, UnixTime};
use secrecy::SecretString;
use serde::Serialize;

use super::authority::{CaRole, ROOT};
use super::error::CommandError;
use super::exposure;
use super::files::NewFiles;
use super::flags::{KeyType, life};
use super::index::IssuanceIndex;
use super::making::{COLUMNS, CaPlan, CreatedCa, entry, new_key, staggered};
use super::passphrase::PassphraseFlags;
use super::table;
use crate::certs::named_file;
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs renew-ca client                        # the same key, a new expiration
  portcullis certs renew-ca client --new-key              # the key was lost or compromised
  portcullis certs renew-ca serving --root-dir /media/root-ca
  portcullis certs renew-ca root

With the same key, issued certificates stay valid. With a new key, NAME.bundle.crt contains both
certificates: verifiers trust it until the certificates of the old key have expired.
A root with a new key is a new root: create it with `init --dir`, and distribute both.";

/// The CAs that can be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RenewableCa {
    /// The root itself: ca.
    Root,
    /// The CA for clients: client-ca.
    Client,
    /// The CA for servers: serving-ca.
    Serving,
    /// The CA for front proxies: front-proxy-ca.
    FrontProxy,
}

/// The flags of `portcullis certs renew-ca`.
#[derive(Debug, Clone, Args)]
pub struct RenewFlags {
    /// The CA to renew.
    #[arg(value_enum, value_name = "AUTHORITY")]
    which: RenewableCa,
    /// The directory with the CAs of `init`.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// The directory with the root's ca.crt and ca.key. Default: --dir.
    #[arg(long, value_name = "DIR")]
    root_dir: Option<PathBuf>,
    /// Also generate a new key, because the old one was lost or compromised.
    #[arg(long)]
    new_key: bool,
    /// The type of the new key.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KeyType::EcdsaP256, requires = "new_key")]
    key_type: KeyType,
    /// The validity, limited by that of the root. Default: 5y, and 10y for the root.
    #[arg(long, value_name = "DURATION", value_parser = life)]
    validity: Option<Duration>,
    #[command(flatten)]
    passphrase: PassphraseFlags,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

const YEAR: Duration = Duration::from_hours(365 * 24);

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RenewalReport {
    authority: CreatedCa,
    /// The expiration of the replaced certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_not_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bundle_file: Option<PathBuf>,
    index_file: PathBuf,
    #[serde(skip)]
    role: Option<CaRole>,
}

/// The root CA with its key.
struct RootCa {
    certificate: Certificate,
    key: PemKey,
    /// `None` if the key is not encrypted.
    passphrase: Option<SecretString>,
    index: IssuanceIndex,
}

impl RenewableCa {
    fn role(self) -> Option<CaRole> {
        match self {
            Self::Root => None,
            Self::Client => Some(CaRole::Client),
            Self::Serving => Some(CaRole::Serving),
            Self::FrontProxy => Some(CaRole::FrontProxy),
        }
    }
}

pub(super) fn run(flags: &RenewFlags) -> Result<ExitCode, CommandError> {
    let role = flags.which.role();
    if role.is_none() && flags.new_key {
        return Err(CommandError::Usage(
            "--new-key: a root with a new key is a new root: create it with `portcullis certs init --dir NEW`, \
             distribute both roots, and reissue all certificates before you remove the old one"
                .to_owned(),
        ));
    }
    let now = Clock::system().now();
    let root = RootCa::open(flags, now)?;
    let report = match role {
        None => renew_root(flags, &root, now)?,
        Some(role) => renew_intermediate(flags, &root, role, now)?,
    };
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text(flags))))
}

impl RootCa {
    fn open(flags: &RenewFlags, now: UnixTime) -> Result<Self, CommandError> {
        let directory = flags.root_dir.as_ref().unwrap_or(&flags.dir);
        let [certificate_file, key_file] =
            ["crt", "key"].map(|extension| directory.join(ROOT).with_extension(extension));
        let certificate = parsed(&certificate_file)?.ok_or_else(|| {
            let hint = "there is no root CA; give the directory with ca.crt and ca.key with --root-dir";
            CommandError::about(certificate_file.display(), hint)
        })?;
        let about = |problem: &dyn std::fmt::Display| CommandError::about(key_file.display(), problem);
        let pem = named_file::read(&key_file).map_err(|error| {
            about(&format!("{error}; renewal needs the root's key: give its directory with --root-dir"))
        })?;
        let mut passphrase = None;
        let key = match PemKey::from_pem(&pem) {
            Err(PrivateKeyError::Encrypted) => {
                let given = passphrase.insert(flags.passphrase.to_open(&key_file)?);
                PemKey::from_encrypted_pem(&pem, given)
            }
            read => read,
        };
        let key = key.map_err(|error| about(&error))?;
        exposure::warn_of_key(&key_file);
        if key.public_key() != certificate.spki {
            return Err(about(&format!("it is not the key of {}", certificate_file.display())));
        }
        // An expired root may renew itself, but certificates that it signs for other CAs would be invalid.
        if flags.which != RenewableCa::Root && end(&certificate) <= now {
            let hint = "the root has expired; renew it first: portcullis certs renew-ca root";
            return Err(CommandError::about(certificate_file.display(), hint));
        }
        Ok(Self { certificate, key, passphrase, index: IssuanceIndex::beside(&certificate_file) })
    }

    /// Its name without `root CA`.
    fn name(&self) -> &str {
        let name = self.certificate.subject.name.common_name.as_str();
        name.strip_suffix(" root CA").unwrap_or(name)
    }
}

fn renew_root(flags: &RenewFlags, root: &RootCa, now: UnixTime) -> Result<RenewalReport, CommandError> {
    let directory = flags.root_dir.as_ref().unwrap_or(&flags.dir);
    let life = flags.validity.unwrap_or(10 * YEAR);
    let plan = like(CaPlan::new(None, root.name(), life, now), &root.certificate);
    let certificate = plan.self_signed(&root.key)?;
    must_be_like(&certificate, &root.certificate, &directory.join(ROOT).with_extension("crt"))?;
    let mut files = NewFiles::new(true);
    let key = root.certificate.public_key.to_string();
    let authority = CreatedCa::stage(&plan, directory, &certificate, &key, None, &mut files)?;
    root.index.record(&[entry(&plan, &certificate, &certificate.der, now)])?;
    files.commit()?;
    Ok(RenewalReport {
        authority,
        replaced_not_after: Some(time::format_since_epoch(end(&root.certificate))),
        bundle_file: None,
        index_file: root.index.path().to_owned(),
        role: None,
    })
}

fn renew_intermediate(
    flags: &RenewFlags,
    root: &RootCa,
    role: CaRole,
    now: UnixTime,
) -> Result<RenewalReport, CommandError> {
    let file = flags.dir.join(role.file()).with_extension("crt");
    let before = parsed(&file)?;
    let life = staggered(role, flags.validity.unwrap_or(5 * YEAR));
    let mut plan = CaPlan::new(Some(role), root.name(), life, now).until(end(&root.certificate));
    // Also refuses a root of another tool: an intermediate below it could be trusted for more than this PKI.
    let expected = like(CaPlan::new(None, "", life, now), &root.certificate).certificate().name();
    if !expected.is_ok_and(|name| name == root.certificate.raw_subject) {
        return Err(CommandError::about(ROOT, NOT_OF_INIT));
    }
    let issuer = CaIssuer { certificate: &root.certificate, key: &root.key };
    let mut files = NewFiles::new(true);
    let (certificate, authority) = if flags.new_key {
        if let Some(before) = &before {
            plan.common_name.clone_from(&before.subject.name.common_name);
        }
        let key = new_key(flags.key_type)?;
        let passphrase = new_passphrase(flags, root, role)?;
        let certificate = plan.signed_by(key.public_key(), issuer)?;
        let new_key = Some((&key, passphrase.as_ref()));
        let kind = flags.key_type.to_string();
        let made = CreatedCa::stage(&plan, &flags.dir, &certificate, &kind, new_key, &mut files)?;
        (certificate, made)
    } else {
        let Some(before) = &before else {
            let hint = "there is no certificate to renew; create the CA with --new-key";
            return Err(CommandError::about(file.display(), hint));
        };
        plan = like(plan, before);
        let certificate = plan.signed_by(&before.spki, issuer)?;
        let kind = before.public_key.to_string();
        let made = CreatedCa::stage(&plan, &flags.dir, &certificate, &kind, None, &mut files)?;
        (certificate, made)
    };
    if let Some(before) = &before {
        must_be_like(&certificate, before, &file)?;
    }
    let bundle_file = match &before {
        Some(before) if flags.new_key => Some(stage_bundle(&file, &certificate, before, now, &mut files)?),
        _ => None,
    };
    root.index.record(&[entry(&plan, &certificate, &root.certificate.der, now)])?;
    files.commit()?;
    Ok(RenewalReport {
        authority,
        replaced_not_after: before.as_ref().map(|before| time::format_since_epoch(end(before))),
        bundle_file,
        index_file: root.index.path().to_owned(),
        role: Some(role),
    })
}

/// The passphrase for a new key, if the old key was encrypted: that of the root's key if it has one.
fn new_passphrase(
    flags: &RenewFlags,
    root: &RootCa,
    role: CaRole,
) -> Result<Option<SecretString>, CommandError> {
    let file = flags.dir.join(role.file()).with_extension("key");
    let was_encrypted = named_file::read(&file)
        .is_ok_and(|pem| matches!(PemKey::from_pem(&pem), Err(PrivateKeyError::Encrypted)));
    match (&root.passphrase, was_encrypted) {
        (_, false) => Ok(None),
        (Some(passphrase), true) => Ok(Some(passphrase.clone())),
        (None, true) => flags.passphrase.to_open(&file).map(Some),
    }
}

/// Stages the bundle that verifiers trust meanwhile: both certificates, and the valid ones of an earlier bundle.
fn stage_bundle(
    certificate_file: &Path,
    new: &Certificate,
    before: &Certificate,
    now: UnixTime,
    files: &mut NewFiles,
) -> Result<PathBuf, CommandError> {
    let file = certificate_file.with_extension("bundle.crt");
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let earlier = match named_file::read_if_present(&file).map_err(|error| about(&error))? {
        Some(pem) => CaBundle::from_pem(&pem).map_err(|error| about(&error))?.certificates().to_vec(),
        None => Vec::new(),
    };
    let mut ders = vec![new.der.as_ref()];
    for certificate in std::iter::once(before).chain(&earlier) {
        if end(certificate) > now && !ders.contains(&certificate.der.as_ref()) {
            ders.push(&certificate.der);
        }
    }
    let pem: String = ders.into_iter().map(|der| encode_pem("CERTIFICATE", der)).collect();
    files.stage_public(&file, pem.as_bytes())?;
    Ok(file)
}

/// Reads the certificate of a file; `None` if the file does not exist.
fn parsed(file: &Path) -> Result<Option<Certificate>, CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let Some(pem) = named_file::read_if_present(file).map_err(|error| about(&error))? else {
        return Ok(None);
    };
    let bundle = CaBundle::from_pem(&pem).map_err(|error| about(&error))?;
    match bundle.certificates() {
        [certificate] => Ok(Some(certificate.clone())),
        several => Err(about(&format!("expected 1 certificate, found {}", several.len()))),
    }
}

/// Copies the name and key identifier of the old certificate to a plan.
fn like(mut plan: CaPlan, before: &Certificate) -> CaPlan {
    plan.common_name.clone_from(&before.subject.name.common_name);
    plan.key_id.clone_from(&before.extensions.subject_key_id);
    plan
}

const NOT_OF_INIT: &str = "it is not a CA of `certs init`: its subject, purpose, path length or name constraints differ, \
                           and renewal would change them; renew it with the tool that created it";

/// Fails if the new certificate differs from the old one in subject, usages or constraints.
fn must_be_like(new: &Certificate, before: &Certificate, file: &Path) -> Result<(), CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let of = |certificate: &Certificate| {
        let extensions = &certificate.extensions;
        let below =
            extensions.basic_constraints.map(|constraints| (constraints.is_ca, constraints.path_length));
        let usage = &extensions.extended_key_usage;
        (
            certificate.raw_subject.clone(),
            below,
            extensions.key_usage,
            (usage.any, usage.purposes.clone()),
            extensions.constraints.is_some(),
            extensions.unhandled_critical,
        )
    };
    if of(new) == of(before) { Ok(()) } else { Err(about(&NOT_OF_INIT)) }
}

fn end(certificate: &Certificate) -> UnixTime {
    UnixTime::from_secs(u64::try_from(certificate.not_after).unwrap_or_default())
}

impl RenewalReport {
    fn text(&self, flags: &RenewFlags) -> String {
        let mut text = table::columns(COLUMNS, [self.authority.row()]);
        let dir = flags.dir.display();
        let old_end = self.replaced_not_after.as_deref().unwrap_or_default();
        text += "\nNext:\n";
        let mut step = |line: String| text.extend(["  ", line.as_str(), "\n"]);
        match (self.role, &self.bundle_file) {
            (None, _) => {
                let root = flags.root_dir.as_ref().unwrap_or(&flags.dir).display();
                step(format!(
                    "distribute the new {root}/{ROOT}.crt to all verifiers of the root, before {old_end}"
                ));
                step("name and key are unchanged: issued certificates stay valid under the old and the new certificate".to_owned());
            }
            (Some(role), Some(bundle)) => {
                let (name, bundle) = (role.file(), bundle.display());
                for line in trusts(role, &format!("{bundle}, which also contains the old certificate")) {
                    step(format!("1. {line}"));
                }
                step(format!(
                    "2. reissue the certificates of {name}, listed by: portcullis certs index --ca-cert {dir}/{name}.crt"
                ));
                for line in trusts(role, &format!("{dir}/{name}.crt alone; then remove {bundle}")) {
                    step(format!("3. {line}"));
                }
                step(format!(
                    "if the old key is compromised, begin with step 3: it can sign until {old_end}"
                ));
            }
            (Some(role), None) => {
                let name = role.file();
                for line in trusts(role, &format!("{dir}/{name}.crt")) {
                    step(line);
                }
                if !old_end.is_empty() && !flags.new_key {
                    step(format!(
                        "issued certificates stay valid; reissue those with the old {name}.crt in their chain before {old_end}"
                    ));
                }
            }
        }
        text + &format!("Recorded in {}.\n", self.index_file.display())
    }
}

/// The configuration of the verifiers of a CA.
fn trusts(role: CaRole, file: &str) -> Vec<String> {
    match role {
        CaRole::Client => vec![format!("gateways and API servers: --client-ca-file={file}")],
        CaRole::FrontProxy => {
            vec![format!("gateways and API servers: --requestheader-client-ca-file={file}")]
        }
        CaRole::Serving => {
            vec![format!("clients that trust the root need no change; clients that trust this CA: {file}")]
        }
    }
}
