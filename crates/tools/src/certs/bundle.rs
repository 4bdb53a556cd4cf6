//! `portcullis certs bundle`: the trust anchors that a cluster publishes as `ClusterTrustBundle`s, as a pod reads them.
//!
//! The kubelet merges the bundles of a signer, without duplicates and in any order; here the order is that of the
//! certificates' encoding, so that two outputs can be compared.

mod objects;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use portcullis_go::pem::{certificate_chain, encode_pem};
use portcullis_go::time;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::name_text::rfc4514;
use portcullis_pki::x509::verify::{PeerRole, verify};
use portcullis_pki::x509::{CaBundle, VerifyError};
use portcullis_system::clock::{Clock, UnixTime};
use serde::Serialize;

use super::super::cluster::ClusterFlags;
use super::super::terminal::{sanitized, when};
use super::error::CommandError;
use super::flags::life;
use super::{fingerprint, named_file, table};
use crate::output::{Output, print};
use objects::{PublishedBundle, published};

pub(super) const EXAMPLE: &str = "Examples:\n  \
    portcullis certs bundle print --signer-name example.com/service > service-ca.crt\n  \
    portcullis certs bundle verify --signer-name example.com/service service.crt";

/// The commands of `portcullis certs bundle`.
#[derive(Debug, Subcommand)]
pub enum BundleCommand {
    /// Print the trust anchors of a signer, or of one bundle, as a pod's projected volume has them.
    #[command(
        after_help = "Example:\n  portcullis certs bundle print --signer-name example.com/service > service-ca.crt"
    )]
    Print(BundlePrintFlags),
    /// Check the trust anchors of a signer, or of one bundle, and whether certificates verify with them.
    #[command(
        after_help = "Example:\n  portcullis certs bundle verify --signer-name example.com/service service.crt"
    )]
    Verify(BundleVerifyFlags),
}

/// Which bundles are read.
#[derive(Debug, Clone, Args)]
struct SelectionFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// All bundles of this signer, such as kubernetes.io/kube-apiserver-serving.
    #[arg(long, value_name = "NAME", required_unless_present = "name", conflicts_with = "name")]
    signer_name: Option<String>,
    /// Only bundles of --signer-name with these labels, as `kubectl --selector` takes them.
    #[arg(long, value_name = "SELECTOR", requires = "signer_name")]
    selector: Option<String>,
    /// The bundle of this name, such as example.com:service:portcullis.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// The flags of `portcullis certs bundle print`.
#[derive(Debug, Clone, Args)]
pub struct BundlePrintFlags {
    #[command(flatten)]
    selection: SelectionFlags,
    /// The output format: the text is PEM.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// The flags of `portcullis certs bundle verify`.
#[derive(Debug, Clone, Args)]
pub struct BundleVerifyFlags {
    #[command(flatten)]
    selection: SelectionFlags,
    /// Certificates that must verify with the trust anchors, PEM, each with its intermediates.
    #[arg(value_name = "FILE")]
    certificates: Vec<PathBuf>,
    /// Report trust anchors that expire within this time.
    #[arg(long, value_name = "DURATION", value_parser = life, default_value = "30d")]
    expires_within: Duration,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// A trust anchor, and the bundles that have it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnchorRow {
    subject: String,
    not_before: String,
    not_after: String,
    sha256: String,
    bundles: Vec<String>,
    /// Until when certificates of a former CA may be valid, as the gateway has recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    needed_until: Option<String>,
    #[serde(skip)]
    until: String,
    #[serde(skip)]
    certificate: Certificate,
}

/// The output of `verify`.
#[derive(Debug, Serialize)]
struct BundleReport {
    anchors: Vec<AnchorRow>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

/// Runs one of the commands.
pub(super) fn run(command: &BundleCommand) -> Result<ExitCode, CommandError> {
    let now = Clock::system().now();
    match command {
        BundleCommand::Print(flags) => {
            let (anchors, problems) = anchors(&read(&flags.selection)?, now);
            if let Some(problem) = problems.first() {
                return Err(CommandError::Failed(problem.clone()));
            }
            let text = flags.output.rendered(&anchors).unwrap_or_else(|| {
                anchors.iter().map(|row| encode_pem("CERTIFICATE", &row.certificate.der)).collect()
            });
            Ok(print(&text))
        }
        BundleCommand::Verify(flags) => {
            let report = BundleReport::of(&read(&flags.selection)?, flags, now)?;
            let text = flags.output.rendered(&report).unwrap_or_else(|| report.text());
            let printed = print(&text);
            Ok(if report.problems.is_empty() { printed } else { ExitCode::FAILURE })
        }
    }
}

/// The bundles of the selection, at least one.
fn read(selection: &SelectionFlags) -> Result<Vec<PublishedBundle>, CommandError> {
    let SelectionFlags { cluster, signer_name, selector, name } = selection;
    let found = published(cluster, selector.as_deref(), |bundle| {
        signer_name.as_ref().is_none_or(|signer| bundle.signer_name() == signer)
            && name.as_ref().is_none_or(|name| bundle.name() == name)
    })?;
    if found.is_empty() {
        let what = match (signer_name, name) {
            (Some(signer), _) => format!("no ClusterTrustBundle of the signer {signer}"),
            (None, name) => format!("no ClusterTrustBundle {}", name.as_deref().unwrap_or_default()),
        };
        let fix = "list them with: kubectl get clustertrustbundles";
        return Err(CommandError::Failed(format!("{what}\n  fix: {fix}")));
    }
    Ok(found)
}

/// The trust anchors of bundles, without duplicates, in the order of their encoding; and what a reader would refuse.
// kubernetes: pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go, normalizeTrustAnchors
fn anchors(bundles: &[PublishedBundle], now: UnixTime) -> (Vec<AnchorRow>, Vec<String>) {
    let (mut rows, mut problems): (Vec<AnchorRow>, Vec<String>) = (Vec::new(), Vec::new());
    for bundle in bundles {
        let name = bundle.name();
        let chain = certificate_chain(bundle.pem().as_bytes());
        if chain.is_empty() {
            problems.push(format!("{name}: has no certificate"));
        }
        for der in chain {
            if let Some(known) = rows.iter_mut().find(|row| row.certificate.der == der) {
                known.bundles.push(name.to_owned());
                continue;
            }
            match Certificate::parse(der) {
                Ok(certificate) => rows.push(AnchorRow::of(certificate, bundle, now)),
                Err(error) => problems.push(format!("{name}: {error}")),
            }
        }
    }
    rows.sort_by(|one, other| one.certificate.der.cmp(&other.certificate.der));
    (rows, problems)
}

impl AnchorRow {
    fn of(certificate: Certificate, bundle: &PublishedBundle, now: UnixTime) -> Self {
        let sha256 = fingerprint(&certificate.der);
        Self {
            subject: rfc4514(&certificate.raw_subject),
            not_before: time::format_utc(certificate.not_before),
            not_after: time::format_utc(certificate.not_after),
            needed_until: bundle.needed_until(&sha256),
            sha256,
            bundles: vec![bundle.name().to_owned()],
            until: when(certificate.not_after, now),
            certificate,
        }
    }
}

impl BundleReport {
    fn of(
        bundles: &[PublishedBundle],
        flags: &BundleVerifyFlags,
        now: UnixTime,
    ) -> Result<Self, CommandError> {
        let (anchors, mut problems) = anchors(bundles, now);
        let mut warnings = Vec::new();
        let (mut valid, soon) = (0, now.saturating_add(flags.expires_within));
        let seconds = |time: UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        for row in &anchors {
            let AnchorRow { certificate, subject, not_after, .. } = row;
            if !certificate.extensions.basic_constraints.is_some_and(|constraints| constraints.is_ca) {
                problems.push(format!("{subject}: is not the certificate of a CA"));
            }
            if certificate.not_after < seconds(now) {
                warnings.push(format!("{subject}: has expired at {not_after}"));
                continue;
            }
            valid += 1;
            // A former CA is meant to end.
            if certificate.not_after < seconds(soon) && row.needed_until.is_none() {
                warnings.push(format!("{subject}: expires at {not_after}; replace the CA before"));
            }
        }
        if valid == 0 {
            problems.push("every trust anchor has expired".to_owned());
        }
        let trusted = CaBundle::of(anchors.iter().map(|row| row.certificate.clone()));
        for file in &flags.certificates {
            let name = file.display();
            let content = named_file::read(file).map_err(|error| CommandError::about(&name, error))?;
            if let Err(problem) = verified(&content, &trusted, now) {
                problems.push(format!("{name}: {problem}"));
            }
        }
        Ok(Self { anchors, problems, warnings })
    }

    fn text(&self) -> String {
        let rows = self.anchors.iter().map(|row| {
            let needed = row.needed_until.clone().unwrap_or_else(|| "in use".to_owned());
            [row.subject.clone(), row.until.clone(), needed, row.bundles.join(", ")]
        });
        let mut text = table::columns(["TRUST ANCHOR", "UNTIL", "NEEDED UNTIL", "BUNDLES"], rows);
        for (kind, lines) in [("error", &self.problems), ("warning", &self.warnings)] {
            for line in lines {
                // With names of the API server's objects.
                text = text + kind + "  " + &sanitized(line) + "\n";
            }
        }
        if self.problems.is_empty() { text + "no problems found\n" } else { text }
    }
}

/// Verifies the first certificate of a file, with the others as intermediates, for the purpose that it has.
fn verified(content: &[u8], trusted: &CaBundle, now: UnixTime) -> Result<(), String> {
    let chain: Result<Vec<Certificate>, _> =
        certificate_chain(content).into_iter().map(Certificate::parse).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    let Some((leaf, others)) = chain.split_first() else { return Err("has no certificate".to_owned()) };
    let client: Result<_, VerifyError> = verify(PeerRole::Client, trusted, leaf, others, now);
    let Err(error) = client else { return Ok(()) };
    let host = leaf.extensions.names.dns.first().map(|name| name.replacen('*', "any", 1));
    match host {
        Some(host) => verify(PeerRole::Server { host: &host }, trusted, leaf, others, now),
        None => return Err(error.to_string()),
    }
    .map(drop)
    .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
