//! `portcullis certs rotate --dry-run`: the rehearsal of a rotation. Lists what trusts a CA and how long its certificates live,
//! and the steps with their days. It changes nothing.

mod places;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use portcullis_go::time::{self, Time};
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::name_text::rfc4514;
use portcullis_system::clock::{Clock, UnixTime};
use serde::Serialize;

use super::super::cluster::ClusterFlags;
use super::error::CommandError;
use super::index::IssuanceIndex;
use super::{fingerprint, named_file, table};
use crate::output::{Output, print};
use places::{Finding, TrustPlace, in_cluster, in_files};

pub(super) const EXAMPLE: &str = "Example:\n  \
    portcullis certs rotate --dry-run --ca-cert pki/client-ca.crt --search /etc/portcullis --search /etc/kubernetes --cluster";

/// The flags of `portcullis certs rotate`.
#[derive(Debug, Clone, Args)]
pub struct RotateFlags {
    /// List what a rotation needs, and change nothing. Required: `renew-ca --new-key` creates the new CA.
    #[arg(long, required = true)]
    dry_run: bool,
    /// The certificate of the CA, PEM.
    #[arg(long, value_name = "FILE")]
    ca_cert: PathBuf,
    /// A file, or a directory with files, that may trust the CA. Repeatable.
    #[arg(long, value_name = "PATH")]
    search: Vec<PathBuf>,
    /// Also search the cluster of the kubeconfig: trust bundles, ConfigMaps of the system, webhooks, aggregated APIs,
    /// conversions. Secrets are not read.
    #[arg(long, help_heading = "Cluster")]
    cluster: bool,
    #[command(flatten)]
    of_cluster: ClusterFlags,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// What a rotation needs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RotationReport {
    subject: String,
    sha256: String,
    not_after: String,
    /// The certificates that it has signed and that are valid now, by its index.
    valid_certificates: usize,
    /// When the last of them expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_not_after: Option<String>,
    trusted_by: Vec<TrustPlace>,
    steps: Vec<String>,
}

pub(super) fn run(flags: &RotateFlags) -> Result<ExitCode, CommandError> {
    let ca = authority(&flags.ca_cert)?;
    let index = IssuanceIndex::beside(&flags.ca_cert);
    let mut trusted_by = in_files(&flags.search, &ca);
    if flags.cluster {
        trusted_by.extend(in_cluster(&flags.of_cluster, &ca)?);
    }
    let report = RotationReport::of(&ca, &index, trusted_by, Clock::system().now())?;
    Ok(print(&flags.output.rendered(&report).unwrap_or_else(|| report.text())))
}

/// The only certificate of a file.
fn authority(file: &std::path::Path) -> Result<Certificate, CommandError> {
    let about = |problem: &dyn std::fmt::Display| CommandError::about(file.display(), problem);
    let content = named_file::read(file).map_err(|error| about(&error))?;
    let bundle = CaBundle::from_pem(&content).map_err(|error| about(&error))?;
    match bundle.certificates() {
        [ca] if ca.extensions.basic_constraints.is_some_and(|constraints| constraints.is_ca) => {
            Ok(ca.clone())
        }
        [_] => Err(about(&"is not the certificate of a CA")),
        several => Err(about(&format!("has {} certificates; give the file of one CA", several.len()))),
    }
}

impl RotationReport {
    fn of(
        ca: &Certificate,
        index: &IssuanceIndex,
        trusted_by: Vec<TrustPlace>,
        now: UnixTime,
    ) -> Result<Self, CommandError> {
        let sha256 = fingerprint(&ca.der);
        let ends: Vec<UnixTime> = index
            .read()?
            .into_iter()
            .filter(|entry| entry.issuer_sha256.as_ref() == Some(&sha256))
            .filter_map(|entry| Time::parse_rfc3339(&entry.not_after).map(|end| end.since_epoch()))
            .filter(|end| *end > now)
            .collect();
        let last = ends.iter().max().map(|last| time::format_since_epoch(*last));
        let not_after = time::format_utc(ca.not_after);
        let steps = steps(&trusted_by, last.as_deref().unwrap_or(&not_after), last.is_some());
        Ok(Self {
            subject: rfc4514(&ca.raw_subject),
            sha256,
            not_after,
            valid_certificates: ends.len(),
            last_not_after: last,
            trusted_by,
            steps,
        })
    }

    fn text(&self) -> String {
        let mut rows = vec![
            ("CA", self.subject.clone()),
            ("SHA-256", self.sha256.clone()),
            ("until", self.not_after.clone()),
        ];
        let valid = match &self.last_not_after {
            Some(last) => format!("{} valid, the last until {last}", self.valid_certificates),
            None => "no valid ones in the index beside the CA".to_owned(),
        };
        rows.push(("certificates", valid));
        let mut text = table::facts(rows) + "\n";
        if self.trusted_by.is_empty() {
            text += "nothing that was searched trusts it\n";
        } else {
            let rows = self.trusted_by.iter().map(|found| {
                let finding = match &found.finding {
                    Finding::Certificate => "trusts this certificate".to_owned(),
                    Finding::SameKey => "trusts another certificate of the same key".to_owned(),
                    Finding::NotRead(problem) => format!("not searched: {}", problem.replace('\n', " ")),
                };
                [found.place.clone(), finding]
            });
            text += &table::columns(["PLACE", "FINDING"], rows);
        }
        let steps =
            (1..).zip(&self.steps).map(|(number, step): (u32, &String)| format!("{number}. {step}\n"));
        text + "\n" + &steps.collect::<String>()
    }
}

/// The steps, each with its day.
fn steps(trusted_by: &[TrustPlace], last: &str, is_known: bool) -> Vec<String> {
    let trusting = trusted_by.iter().filter(|found| !matches!(found.finding, Finding::NotRead(_))).count();
    let unread = trusted_by.len() - trusting;
    let mut steps = vec![format!(
        "create the new CA, and add its certificate beside the old one in each of these {trusting} places; bundles with the \
         publisher portcullis follow by themselves"
    )];
    if unread > 0 {
        steps.push(format!("search the {unread} places that were not searched: they may trust the CA, too"));
    }
    steps.push("once all of them have it, sign with the new CA".to_owned());
    let until = if is_known { "when its last certificate has expired" } else { "when it has expired itself" };
    steps.push(format!("after {last}, {until}, remove the old certificate from each"));
    steps
}

#[cfg(test)]
mod tests {
    use testkit::pki::Ca;

    use super::super::index::IndexEntry;
    use super::*;

    const DAY: u64 = 86_400;

    fn entry(issuer: &str, day: u64) -> IndexEntry {
        let times = [0, day].map(|day| time::format_since_epoch(UnixTime::from_secs(day * DAY)));
        IndexEntry::for_test(issuer, times)
    }

    #[test]
    fn the_old_ca_stays_until_its_last_certificate_has_expired() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("client-ca.crt");
        let ca = Ca::build("ca").validity(0, 1_000 * 86_400).issue_ca();
        std::fs::write(&file, ca.cert_pem()).unwrap();
        let (ca, index) = (authority(&file).unwrap(), IssuanceIndex::beside(&file));
        let now = UnixTime::from_secs(100 * DAY);
        let place = |name: &str, finding| TrustPlace { place: name.to_owned(), finding };
        let places = vec![
            place("a.kubeconfig", Finding::Certificate),
            place("b.crt", Finding::SameKey),
            place("/etc/x", Finding::NotRead("permission denied".to_owned())),
        ];
        let report = RotationReport::of(&ca, &index, places.clone(), now).unwrap();
        assert!(
            report.steps[3].starts_with("after 1972-09-27T00:00:00Z, when it has expired itself"),
            "{report:?}"
        );
        let own = fingerprint(&ca.der);
        let entries = [entry(&own, 90), entry(&own, 200), entry(&own, 150), entry("other", 900)];
        index.record(&entries).unwrap();
        let report = RotationReport::of(&ca, &index, places, now).unwrap();
        let text = report.text();
        for expected in [
            "2 valid, the last until 1970-07-20T00:00:00Z",
            "a.kubeconfig  trusts this certificate",
            "b.crt         trusts another certificate of the same key",
            "/etc/x        not searched: permission denied",
            "beside the old one in each of these 2 places",
            "search the 1 places that were not searched",
            "4. after 1970-07-20T00:00:00Z, when its last certificate has expired, remove the old certificate",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
    }

    #[test]
    fn only_the_file_of_one_ca_is_rotated() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.crt");
        let ca = Ca::new("ca");
        for (content, problem) in [
            (ca.leaf().cn("alice").issue().cert_pem(), "is not the certificate of a CA"),
            (ca.cert_pem() + &Ca::new("b").cert_pem(), "has 2 certificates; give the file of one CA"),
        ] {
            std::fs::write(&file, content).unwrap();
            let error = authority(&file).unwrap_err().to_string();
            assert!(error.ends_with(problem), "{error}");
        }
    }
}
