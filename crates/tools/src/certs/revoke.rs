//! `portcullis certs revoke`: revokes certificates that a CA has signed, by a CRL, a deny list, or both.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use portcullis_go::hex::hex;
use portcullis_go::pem;
use portcullis_go::time;
use portcullis_pki::issuance::subject::Subject;
use portcullis_pki::revocation::deny_list::{DenyList, octets};
use portcullis_pki::x509::Crl;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::{Clock, UnixTime};
use serde::Serialize;

use super::super::terminal::sanitized;
use super::authority::{AuthorityFlags, CaRole, IssuingCa};
use super::ca_certificates::CaCertificates;
use super::error::CommandError;
use super::files::NewFiles;
use super::flags::life;
use super::index::{IndexEntry, IssuanceIndex};
use super::revocation_list::{self, ExistingCrl};
use super::revocations::{RevocationReason, RevocationRecord, RevocationRecords};
use super::{fingerprint, table};
use crate::certs::named_file;
use crate::output::{Output, print};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs revoke alice.crt --reason keyCompromise --crl client-ca.crl --deny-list denied
  portcullis certs revoke --user alice --deny-list denied
  portcullis certs revoke --serial 5f3c1d… --crl client-ca.crl
  portcullis certs revoke --crl client-ca.crl          # sign it again before its nextUpdate

The gateway reads the files with --client-ca-crl-file and --credential-deny-list-file. It notices a
changed deny list within a second.";

/// The CAs that revoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RevokingCa {
    /// The root: ca. It revokes the CAs below it.
    Root,
    /// The CA for clients: client-ca.
    Client,
    /// The CA for servers: serving-ca.
    Serving,
    /// The CA for front proxies: front-proxy-ca.
    FrontProxy,
}

/// The flags of `portcullis certs revoke`.
#[derive(Debug, Clone, Args)]
pub struct RevokeFlags {
    /// Certificates to revoke, PEM. Of a file with several, the first.
    #[arg(value_name = "FILE")]
    certificates: Vec<PathBuf>,
    /// The serial number of a certificate in the index, in hexadecimal. Repeat for several.
    #[arg(long, value_name = "HEX")]
    serial: Vec<String>,
    /// The SHA-256 of a certificate in the index, in hexadecimal. Repeat for several.
    #[arg(long, value_name = "HEX")]
    sha256: Vec<String>,
    /// Revoke every certificate in the index with this common name that has not expired. To deny the user with all of its
    /// credentials, also later ones, add a line user=NAME to the deny list.
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    /// Why.
    #[arg(long, value_enum, value_name = "REASON", default_value_t = RevocationReason::Unspecified)]
    reason: RevocationReason,
    /// The CA of --dir that has signed the certificates.
    #[arg(long = "authority", value_enum, value_name = "AUTHORITY", default_value_t = RevokingCa::Client)]
    revoking: RevokingCa,
    #[command(flatten)]
    authority: AuthorityFlags,
    /// Write a CRL, signed by the CA, with all certificates that it has revoked. An existing CRL is replaced; its entries
    /// stay.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    crl: Option<PathBuf>,
    /// The time from now until the nextUpdate of the CRL. Then the gateway refuses all certificates of the CA: sign it
    /// again before.
    #[arg(long, value_name = "DURATION", value_parser = life, default_value = "30d", requires = "crl", help_heading = "Output")]
    next_update: Duration,
    /// Add the certificates to a deny list.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    deny_list: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// The output of `revoke`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RevocationReport {
    revoked: Vec<RevocationRecord>,
    /// The certificates that were revoked before.
    already_revoked: Vec<RevocationRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crl: Option<CrlSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny_list_file: Option<PathBuf>,
    record_file: PathBuf,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CrlSummary {
    file: PathBuf,
    issuer: String,
    number: String,
    next_update: String,
    entries: usize,
}

impl RevokingCa {
    fn role(self) -> Option<CaRole> {
        match self {
            Self::Root => None,
            Self::Client => Some(CaRole::Client),
            Self::Serving => Some(CaRole::Serving),
            Self::FrontProxy => Some(CaRole::FrontProxy),
        }
    }
}

pub(super) fn run(flags: &RevokeFlags) -> Result<ExitCode, CommandError> {
    if flags.crl.is_none() && flags.deny_list.is_none() {
        let text = "give --crl FILE, --deny-list FILE, or both: the files that the gateway reads";
        return Err(CommandError::Usage(text.to_owned()));
    }
    let selects = !flags.certificates.is_empty()
        || [&flags.serial, &flags.sha256, &flags.user].into_iter().any(|given| !given.is_empty());
    if !selects && flags.crl.is_none() {
        let text = "give the certificates to revoke: FILE, --serial, --sha256 or --user";
        return Err(CommandError::Usage(text.to_owned()));
    }
    let now = Clock::system().now();
    let certificate = flags.authority.certificate_of(flags.revoking.role())?;
    // The key first: a wrong passphrase must not leave a record.
    let issuing = match &flags.crl {
        Some(_) => Some(flags.authority.open_role(flags.revoking.role())?),
        None => None,
    };
    let index = IssuanceIndex::beside(&certificate);
    let _locked = index.lock()?;
    let records = RevocationRecords::beside(&certificate);
    let known = records.read()?;
    let authority = CaCertificates::read(&certificate)?;
    let selected = selected(flags, &authority, &index.read()?, now)?;
    let (already_revoked, revoked): (Vec<_>, Vec<_>) =
        selected.into_iter().partition(|one| known.iter().any(|known| known.sha256 == one.sha256));
    let mut files = NewFiles::new(true);
    let all: Vec<_> = known.iter().chain(&revoked).collect();
    let crl = match (&flags.crl, &issuing) {
        (Some(file), Some(issuing)) => {
            let existing = existing_crl(file, &authority, (records.path(), &known))?;
            let crl = CrlTarget { file, next_update: flags.next_update, existing };
            Some(crl.stage(issuing, &all, &mut files, now)?)
        }
        _ => None,
    };
    if let Some(file) = &flags.deny_list {
        stage_deny_list(file, revoked.iter().chain(&already_revoked), &mut files)?;
    }
    records.append(&revoked)?;
    files.commit()?;
    let report = RevocationReport {
        revoked,
        already_revoked,
        crl,
        deny_list_file: flags.deny_list.clone(),
        record_file: records.path().to_owned(),
    };
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

/// The certificates that the flags name, without repetitions.
fn selected(
    flags: &RevokeFlags,
    authority: &CaCertificates,
    index: &[IndexEntry],
    now: UnixTime,
) -> Result<Vec<RevocationRecord>, CommandError> {
    let record = |entry: &IndexEntry| RevocationRecord {
        serial: entry.serial.clone(),
        subject: entry.subject.clone(),
        revoked_at: time::format_since_epoch(now),
        not_after: entry.not_after.clone(),
        reason: flags.reason,
        sha256: entry.sha256.clone(),
        namespace: entry.pod.as_ref().map(|pod| pod.namespace.clone()),
    };
    let mut found: Vec<RevocationRecord> = Vec::new();
    for file in &flags.certificates {
        found.push(of_file(file, authority, index, flags.reason, now)?);
    }
    let number = |text: &str| {
        let digits: String = text.chars().filter(|letter| *letter != ':').collect();
        octets(&digits)
    };
    for serial in &flags.serial {
        let wanted =
            number(serial).ok_or_else(|| CommandError::about("--serial", "give hexadecimal digits"))?;
        let entry = index.iter().find(|entry| number(&entry.serial).as_ref() == Some(&wanted));
        found.push(record(entry.ok_or_else(|| not_in_index(serial))?));
    }
    for sha256 in &flags.sha256 {
        let wanted = sha256.replace(':', "").to_ascii_lowercase();
        let entry = index.iter().find(|entry| entry.sha256 == wanted);
        found.push(record(entry.ok_or_else(|| not_in_index(sha256))?));
    }
    for user in &flags.user {
        let of_user =
            index.iter().filter(|entry| names(&entry.subject, user) && !has_ended(&entry.not_after, now));
        let before = found.len();
        found.extend(of_user.map(record));
        if found.len() == before {
            return Err(CommandError::about(
                user,
                "the index has no certificate with this common name that has not expired",
            ));
        }
    }
    let mut once: Vec<RevocationRecord> = Vec::new();
    for one in found {
        if !once.iter().any(|known| known.sha256 == one.sha256) {
            once.push(one);
        }
    }
    Ok(once)
}

fn not_in_index(what: &str) -> CommandError {
    CommandError::about(
        what,
        "the index has no such certificate; give its file, or another CA with --authority or --ca-cert",
    )
}

/// The first certificate of a file. The CA must have signed it; another one could not revoke it.
fn of_file(
    file: &Path,
    authority: &CaCertificates,
    index: &[IndexEntry],
    reason: RevocationReason,
    now: UnixTime,
) -> Result<RevocationRecord, CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let content = named_file::read(file).map_err(|error| about(&error))?;
    let first =
        pem::certificate_chain(&content).into_iter().next().ok_or_else(|| about(&"no certificate in it"))?;
    let certificate = Certificate::parse(first).map_err(|error| about(&error))?;
    let sha256 = fingerprint(&certificate.der);
    let is_recorded = index.iter().any(|entry| entry.sha256 == sha256);
    authority.check_signed(&certificate, is_recorded).map_err(|problem| about(&problem))?;
    Ok(RevocationRecord {
        serial: hex(&certificate.serial),
        subject: certificate.subject.name.to_string(),
        revoked_at: time::format_since_epoch(now),
        not_after: time::format_utc(certificate.not_after),
        reason,
        sha256,
        namespace: None,
    })
}

/// Whether the subject of an index entry has this common name.
fn names(subject: &str, user: &str) -> bool {
    let wanted = Subject { common_name: user.to_owned(), ..Subject::default() }.to_string();
    let mut start = 0;
    let mut is_escaped = false;
    let mut attributes = Vec::new();
    for (index, letter) in subject.char_indices() {
        if letter == ',' && !is_escaped {
            attributes.push(subject.get(start..index));
            start = index + 1;
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    attributes.push(subject.get(start..));
    attributes.into_iter().flatten().any(|attribute| attribute.trim_start() == wanted)
}

fn has_ended(not_after: &str, now: UnixTime) -> bool {
    time::Time::parse_rfc3339(not_after).is_some_and(|time| time.since_epoch() < now)
}

/// The CRL to write.
struct CrlTarget<'a> {
    file: &'a Path,
    next_update: Duration,
    existing: Option<ExistingCrl>,
}

impl CrlTarget<'_> {
    /// Stages the CRL of a CA: the entries of the existing one, and all records.
    fn stage(
        self,
        issuing: &IssuingCa,
        records: &[&RevocationRecord],
        files: &mut NewFiles,
        now: UnixTime,
    ) -> Result<CrlSummary, CommandError> {
        let Self { file, next_update, existing } = self;
        let about = |problem: String| CommandError::about(file.display(), problem);
        let signed = revocation_list::sign(
            &issuing.authority,
            existing.as_ref(),
            |_| true,
            records,
            (now, next_update),
        );
        let signed = signed.map_err(about)?;
        files.stage_public(file, &signed.content)?;
        Ok(CrlSummary {
            file: file.to_owned(),
            issuer: issuing.authority.subject().to_string(),
            number: signed.number.to_string(),
            next_update: time::format_since_epoch(signed.next_update),
            entries: signed.entries,
        })
    }
}

/// The CRL that a new one replaces. It must be of the same CA: entries of another one are no certificates of this CA, and
/// the other CA would lose its own.
fn existing_crl(
    file: &Path,
    authority: &CaCertificates,
    records: (&Path, &[RevocationRecord]),
) -> Result<Option<ExistingCrl>, CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let Some(existing) = ExistingCrl::read(file).map_err(|problem| about(&problem))? else { return Ok(None) };
    if !authority.have_signed(&existing.crl) {
        return Err(about(&not_signed(&existing.crl, authority, records)));
    }
    Ok(Some(existing))
}

/// The error for a CRL that no known key of the CA has signed. If a former key has, whose certificate is no longer in the bundle,
/// the gateway still reads the file under this name, and the operator must know how to go on without losing an entry.
fn not_signed(crl: &Crl, authority: &CaCertificates, records: (&Path, &[RevocationRecord])) -> String {
    let label = authority.label();
    let other = format!("a CRL of another CA than {label}, by its signature; give another name");
    if !authority.has_issuer_name_of(crl) {
        return other;
    }
    let (record_file, known) = records;
    let recorded: HashSet<_> = known.iter().filter_map(|record| octets(&record.serial)).collect();
    let unrecorded: Vec<_> = crl
        .entries
        .iter()
        .filter(|entry| !recorded.contains::<[u8]>(entry.serial.as_ref()))
        .map(|entry| hex(&entry.serial))
        .collect();
    let record_file = record_file.display();
    let fix = match unrecorded.as_slice() {
        [] => format!(
            "move it away: the new CRL has the entries of {record_file}, and these are all of the old one"
        ),
        [first, ..] => format!(
            "know that {record_file}, from which the new CRL is made, lacks {} of its entries, such as serial {first}: revoke \
             these certificates first, with --deny-list, then move the file away",
            unrecorded.len()
        ),
    };
    format!(
        "{other}. If it is of a former key (renew-ca --new-key) whose certificate is no longer in the bundle, {fix}"
    )
}

/// Stages a deny list with further entries.
fn stage_deny_list<'a>(
    file: &Path,
    records: impl Iterator<Item = &'a RevocationRecord>,
    files: &mut NewFiles,
) -> Result<(), CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let existing = named_file::read_if_present(file).map_err(|error| about(&error))?;
    let mut content = existing.map(|content| content.to_vec()).unwrap_or_default();
    let list = DenyList::parse(&content).map_err(|error| about(&error))?;
    if content.last().is_some_and(|last| *last != b'\n') {
        content.push(b'\n');
    }
    for record in records.filter(|record| !list.has_credential(&format!("X509SHA256={}", record.sha256))) {
        let mut line = format!("X509SHA256={}", record.sha256);
        // The certificate is valid until the end of this second.
        if let Some(end) = time::Time::parse_rfc3339(&record.not_after) {
            write!(line, " until={}", time::format_since_epoch(end.since_epoch() + Duration::from_secs(1)))
                .ok();
        }
        let subject = sanitized(&record.subject);
        writeln!(line, " # {subject}, {}, revoked {}", record.reason.name(), record.revoked_at).ok();
        content.extend_from_slice(line.as_bytes());
    }
    DenyList::parse(&content).map_err(|error| about(&error))?;
    Ok(files.stage_public(file, &content)?)
}

impl RevocationReport {
    fn text(&self) -> String {
        let rows = self
            .revoked
            .iter()
            .map(|record| ("revoked", record))
            .chain(self.already_revoked.iter().map(|record| ("revoked before", record)));
        let mut facts: Vec<(&str, String)> = rows
            .map(|(title, record)| {
                let RevocationRecord { subject, serial, reason, .. } = record;
                (title, format!("{subject}, serial {serial}, {}", reason.name()))
            })
            .collect();
        if let Some(CrlSummary { file, number, next_update, entries, .. }) = &self.crl {
            let plural = if *entries == 1 { "y" } else { "ies" };
            let file = file.display();
            facts.push((
                "CRL",
                format!("{file}, number {number}, {entries} entr{plural}, next update {next_update}"),
            ));
        }
        facts.extend(self.deny_list_file.iter().map(|file| ("deny list", file.display().to_string())));
        facts.push(("recorded in", self.record_file.display().to_string()));
        table::facts(facts)
    }
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use portcullis_go::pem::encode_pem;
    use portcullis_pki::issuance::authority::CertificateAuthority;
    use portcullis_pki::issuance::ca::CaCertificate;
    use portcullis_pki::issuance::crl::CrlPlan;
    use portcullis_pki::issuance::signer::{KeyKind, PemKey};
    use portcullis_pki::issuance::validity::Validity;
    use portcullis_pki::x509::crl::RevokedEntry;

    use super::*;

    const NOW: UnixTime = UnixTime::from_secs(1_790_000_000);

    /// A CA of this name with a new key, and its certificate.
    fn authority(common_name: &str) -> (String, CertificateAuthority) {
        let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
        let validity = Validity { not_before: NOW, not_after: NOW + Duration::from_hours(24) };
        let plan = CaCertificate { common_name, validity, path_length: 0, purpose: None, key_id: None };
        let pem = encode_pem("CERTIFICATE", &plan.self_signed(&key).unwrap().der);
        let authority = CertificateAuthority::new(pem.as_bytes(), Box::new(key)).unwrap();
        (pem, authority)
    }

    fn crl(authority: &CertificateAuthority, serials: &[u8]) -> Vec<u8> {
        let entry =
            |serial: &u8| RevokedEntry { serial: vec![*serial].into(), revoked_at: 1_790_000_000, reason: 0 };
        let entries: Vec<_> = serials.iter().map(entry).collect();
        let next_update = NOW + Duration::from_hours(1);
        let plan = CrlPlan { number: &BigUint::from(1_u8), this_update: NOW, next_update, entries: &entries };
        authority.sign_crl(&plan).unwrap()
    }

    fn record(serial: &str) -> RevocationRecord {
        RevocationRecord {
            serial: serial.to_owned(),
            subject: "CN=alice".to_owned(),
            revoked_at: "2026-09-21T00:00:00Z".to_owned(),
            not_after: "2027-09-21T00:00:00Z".to_owned(),
            reason: RevocationReason::Unspecified,
            sha256: serial.to_owned(),
            namespace: None,
        }
    }

    #[test]
    fn the_crl_of_a_former_key_is_moved_away_once_the_record_has_its_entries() {
        let directory = tempfile::tempdir().unwrap();
        let [ca, bundle, file, record_file] =
            ["ca.crt", "ca.bundle.crt", "crl", "ca.revoked.jsonl"].map(|name| directory.path().join(name));
        let ((former_pem, former), (current_pem, current)) = (authority("ca"), authority("ca"));
        std::fs::write(&ca, &current_pem).unwrap();
        let found = |content: &[u8], serials: &[&str]| {
            std::fs::write(&file, content).unwrap();
            let known: Vec<_> = serials.iter().map(|serial| record(serial)).collect();
            existing_crl(&file, &CaCertificates::read(&ca).unwrap(), (&record_file, &known))
                .map(|existing| existing.unwrap().crl.entries.len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(found(&crl(&current, &[0x17, 0x18]), &[]), Ok(2));
        let of_former = crl(&former, &[0x17, 0x18]);
        for (serials, part) in [
            (&["17", "18"][..], "move it away: the new CRL has the entries of"),
            (&["18", "19"], "lacks 1 of its entries, such as serial 17: revoke these certificates first"),
            (&[], "lacks 2 of its entries"),
        ] {
            let error = found(&of_former, serials).unwrap_err();
            assert!(error.contains("a CRL of another CA than ca") && error.contains(part), "{error}");
            assert!(error.contains("ca.revoked.jsonl"), "{error}");
        }
        // A CA of another name never had this key.
        let error = found(&crl(&authority("other").1, &[0x17]), &["17"]).unwrap_err();
        assert!(error.ends_with("by its signature; give another name"), "{error}");
        std::fs::write(&bundle, current_pem + &former_pem).unwrap();
        assert_eq!(found(&of_former, &[]), Ok(2));
    }

    #[test]
    fn a_user_is_the_common_name_and_nothing_that_looks_like_it() {
        for (subject, user, expected) in [
            ("CN=alice", "alice", true),
            ("O=dev + O=ops, CN=alice", "alice", true),
            ("O=dev, CN=alice, SERIALNUMBER=1", "alice", true),
            ("CN=alice2", "alice", false),
            ("O=x\\, CN=alice, CN=bob", "alice", false),
            ("O=x\\\\, CN=alice", "alice", true),
            ("CN=a\\, b", "a, b", true),
            ("CN=a\\, CN=b", "b", false),
        ] {
            assert_eq!(names(subject, user), expected, "{subject} {user}");
        }
    }
}
