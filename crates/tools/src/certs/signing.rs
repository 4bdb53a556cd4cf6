//! Signs a request, records the certificate in the index and writes it, in this order. Refuses certificates that the
//! gateway would refuse.

use std::path::PathBuf;
use std::time::Duration;

use portcullis_go::time;
use portcullis_http::identity::{Identity, IdentityMode, UnencodableIdentity};
use portcullis_kubernetes::user::{GATEWAY, UserInfo};
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::issue::{IssuanceRequest, IssuedCertificate};
use portcullis_pki::issuance::profile::SYSTEM_MASTERS;
use portcullis_pki::issuance::request::CertificateRequest;
use portcullis_pki::issuance::subject::{Subject, check_name};
use portcullis_pki::issuance::validity::{BACKDATE, SHORT_LIFETIME};
use portcullis_system::clock::UnixTime;
use serde::Serialize;

use super::super::terminal::when;
use super::authority::IssuingCa;
use super::error::CommandError;
use super::files::NewFiles;
use super::index::IndexEntry;
use super::log::LogFlags;
use super::profile::IssuanceProfile;
use super::{fingerprint, hex, table};

/// A validity reduced by less than this is due to backdating, not to the end of the CA.
const END_TOLERANCE: Duration = Duration::from_mins(10);

/// The certificate to sign.
#[derive(Debug)]
pub(super) struct SigningOrder<'a> {
    pub(super) profile: &'a IssuanceProfile,
    pub(super) request: &'a CertificateRequest,
    /// Empty for those of the profile.
    pub(super) usages: &'a [String],
    /// `None` for that of the profile.
    pub(super) duration: Option<Duration>,
    /// Whether a client may be in the group system:masters.
    pub(super) system_masters: bool,
}

/// A signed certificate, before it is recorded and written.
#[derive(Debug)]
pub(super) struct SignedCertificate {
    issued: IssuedCertificate,
    pub(super) report: SigningReport,
}

/// The output of `issue` and `sign`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SigningReport {
    profile: String,
    subject: String,
    alt_names: Vec<String>,
    usages: Vec<String>,
    key: String,
    issuer: String,
    serial: String,
    not_before: String,
    not_after: String,
    sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) certificate_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kubeconfig: Option<PathBuf>,
    index_file: PathBuf,
    /// The place in the log of --log.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_index: Option<u64>,
    remarks: Vec<String>,
    #[serde(skip)]
    until: String,
}

impl SigningOrder<'_> {
    /// Signs the certificate, if profile and CA allow it.
    pub(super) fn sign(&self, issuing: &IssuingCa, now: UnixTime) -> Result<SignedCertificate, CommandError> {
        let Self { profile, request, usages, .. } = self;
        self.check_names()?;
        let duration = self.duration.unwrap_or(profile.duration());
        let key = request.public_key().to_string();
        let usages = if usages.is_empty() { profile.usages(&key) } else { usages.to_vec() };
        // `prepare` subtracts the backdating from longer validities; added here, so that `--duration` is exact.
        let signing_duration =
            if duration < SHORT_LIFETIME { duration } else { duration.saturating_add(BACKDATE) };
        let wanted = IssuanceRequest { request, usages: &usages, expiration: None, signing_duration };
        let issued = issuing
            .authority
            .prepare(&profile.rules(signing_duration), &wanted, now)
            .and_then(|prepared| issuing.authority.issue(prepared))
            .map_err(|error| CommandError::about(format!("not signed as {}", profile.name()), error))?;
        let mut remarks = Vec::new();
        if issued.not_after().saturating_add(END_TOLERANCE) < now.saturating_add(duration) {
            let limit = match profile.shortens(duration) {
                Some(file) if issued.not_after() < issuing.authority.not_after() => {
                    format!("maxDuration of {}", file.display())
                }
                _ => "that of the CA".to_owned(),
            };
            remarks.push(format!("the validity is limited by {limit}"));
        }
        if profile.is_client() && request.subject().organization.iter().any(|group| group == SYSTEM_MASTERS) {
            remarks.push(format!(
                "the group {SYSTEM_MASTERS} has full access, regardless of RBAC, until the certificate expires"
            ));
        }
        let seconds = i64::try_from(issued.not_after().as_secs()).unwrap_or(i64::MAX);
        let report = SigningReport {
            profile: profile.name().to_owned(),
            subject: issued.subject().to_string(),
            alt_names: in_words(request.alt_names()),
            usages,
            key,
            issuer: issuing.authority.subject().to_string(),
            serial: issued.serial_hex(),
            not_before: time::format_since_epoch(issued.not_before()),
            not_after: time::format_since_epoch(issued.not_after()),
            sha256: fingerprint(issued.der()),
            certificate_file: None,
            key_file: None,
            kubeconfig: None,
            index_file: issuing.index.path().to_owned(),
            log_index: None,
            remarks,
            until: when(seconds, now),
        };
        Ok(SignedCertificate { issued, report })
    }
}

impl SigningOrder<'_> {
    /// Refuses names that the gateway would refuse, and system:masters unless allowed by flag.
    fn check_names(&self) -> Result<(), CommandError> {
        if !self.profile.is_client() {
            return Ok(());
        }
        let subject = self.request.subject();
        let refused = |problem: String| {
            Err(CommandError::about(format!("not signed as {}", self.profile.name()), problem))
        };
        if !self.system_masters && subject.organization.iter().any(|group| group == SYSTEM_MASTERS) {
            return refused(format!(
                "the request is for the group {SYSTEM_MASTERS}, which has full access, regardless of RBAC, until the \
                 certificate expires; sign it with --allow-system-masters if that is intended"
            ));
        }
        if self.profile.names_user(subject) {
            check_user(subject).or_else(refused)?;
        }
        check_visible(subject).or_else(refused)
    }
}

/// Fails if the gateway would refuse the user of a client certificate.
pub(crate) fn check_user(subject: &Subject) -> Result<(), String> {
    if subject.common_name == GATEWAY {
        return Err(format!(
            "{GATEWAY} is the gateway's own user, and the gateway refuses clients of this name: choose another name"
        ));
    }
    must_arrive(subject).map_err(|error| error.to_string())
}

/// Fails if a reader would see another user or group than the certificate has.
pub(crate) fn check_visible(subject: &Subject) -> Result<(), String> {
    // Whether there must be one is a matter of the profile.
    let common_name = Some(&subject.common_name).filter(|name| !name.is_empty());
    let named = common_name.map(|name| ("common name", name)).into_iter();
    for (field, name) in named.chain(subject.organization.iter().map(|group| ("organization", group))) {
        check_name(name).map_err(|error| format!("subject {field} {name:?}: {error}"))?;
    }
    Ok(())
}

/// Fails if identity headers cannot carry the name or groups: the gateway would refuse the certificate.
fn must_arrive(subject: &Subject) -> Result<(), UnencodableIdentity> {
    let mut user = UserInfo::named(&subject.common_name);
    user.groups.clone_from(&subject.organization);
    Identity::from(user).lines(IdentityMode::RequestHeader).map(drop)
}

impl SignedCertificate {
    /// The certificate followed by that of its CA, unless that is a root.
    pub(super) fn chain(&self, issuing: &IssuingCa) -> String {
        self.issued.pem().to_owned() + &issuing.chain
    }

    /// Records the certificate in the index and in the log, then commits the files.
    pub(super) fn hand_out(
        self,
        issuing: &IssuingCa,
        files: NewFiles,
        log: &LogFlags,
        now: UnixTime,
    ) -> Result<SigningReport, CommandError> {
        let mut report = self.report;
        issuing.record(&IndexEntry {
            serial: report.serial.clone(),
            subject: report.subject.clone(),
            alt_names: report.alt_names.clone(),
            profile: report.profile.clone(),
            issued_at: time::format_since_epoch(now),
            not_after: report.not_after.clone(),
            sha256: report.sha256.clone(),
            issuer_sha256: Some(hex(issuing.authority.fingerprint())),
            pod: None,
            cluster: None,
            issuer_key_sha256: None,
        })?;
        report.log_index = log.append(self.issued.der(), &report.profile, now)?;
        files.commit()?;
        Ok(report)
    }
}

impl SigningReport {
    pub(super) fn text(&self) -> String {
        let mut rows = vec![("subject", self.subject.clone())];
        rows.extend(self.alt_names.iter().enumerate().map(|(place, name)| {
            let title = if place == 0 { "names" } else { "" };
            (title, name.clone())
        }));
        rows.extend([
            ("usages", self.usages.join(", ")),
            ("key", self.key.clone()),
            ("until", self.until.clone()),
            ("serial", self.serial.clone()),
            ("signed by", self.issuer.clone()),
        ]);
        rows.extend(written([&self.certificate_file, &self.key_file, &self.kubeconfig].map(Option::as_ref)));
        rows.push(("recorded in", self.index_file.display().to_string()));
        rows.extend(self.log_index.map(|index| ("logged as", format!("entry {index}"))));
        rows.extend(self.remarks.iter().map(|remark| ("note", remark.clone())));
        table::facts(rows)
    }
}

/// Each name with its kind, in openssl's format.
pub(super) fn in_words(names: &AltNames) -> Vec<String> {
    let of = |kind: &str, names: &[String]| -> Vec<String> {
        names.iter().map(|name| format!("{kind}:{name}")).collect()
    };
    let ips: Vec<String> = names.ips.iter().map(ToString::to_string).collect();
    [of("DNS", &names.dns), of("IP", &ips), of("URI", &names.uris), of("email", &names.emails)].concat()
}

/// Rows for the written files: certificate, key and kubeconfig.
pub(super) fn written(files: [Option<&PathBuf>; 3]) -> impl Iterator<Item = (&'static str, String)> {
    let names = ["certificate", "private key", "kubeconfig"];
    names.into_iter().zip(files).filter_map(|(name, path)| Some((name, path?.display().to_string())))
}
