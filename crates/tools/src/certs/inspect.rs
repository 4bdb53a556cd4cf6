//! `portcullis certs inspect`: prints the contents and problems of certificates, requests, keys, kubeconfigs and TLS
//! servers. Reads private keys only to match them with certificates; never prints them.

pub(super) mod certificate;
mod kubeconfig;
mod material;
mod public_key;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use portcullis_system::clock::{Clock, UnixTime};
use secrecy::SecretString;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::error::CommandError;
use super::exposure;
use super::passphrase::PassphraseFlags;
use super::table;
use crate::certs::named_file;
use crate::output::{Output, print};
use material::FilePart;

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs inspect alice.crt alice.key
  portcullis certs inspect ~/.kube/config
  portcullis certs inspect --server gateway.example.com:6443 --ca-file pki/ca.crt

Exits 1 if it finds errors; with --fail-on-warnings also for warnings, such as an expiration within
30 days.";

/// The flags of `portcullis certs inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectFlags {
    /// Certificates, requests or keys, PEM or DER, or kubeconfigs. Files given together are matched: a key with its
    /// certificate, a certificate with its issuer. `-` is standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Get the certificates of a server, by a TLS handshake without verification.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "files", help_heading = "Server")]
    server: Option<String>,
    /// The server name (SNI) to send and to verify. Default: the host.
    #[arg(long, value_name = "NAME", requires = "server", help_heading = "Server")]
    server_name: Option<String>,
    /// The CAs to verify the server with, PEM. Default: the system's.
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "Server")]
    ca_file: Option<PathBuf>,
    #[command(flatten)]
    passphrase: PassphraseFlags,
    /// Exit 1 also for warnings.
    #[arg(long, help_heading = "Output")]
    fail_on_warnings: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// Names and values, in the order of the output.
type Facts = Vec<(&'static str, Fact)>;

/// A value, with a text and a JSON form.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fact {
    Text(String),
    /// Usages and purposes.
    Several(Vec<String>),
    /// A CA, and its path length constraint.
    Authority(Option<u32>),
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Fact {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Fact {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Several(texts) => texts.join(", "),
            Self::Authority(None) => "yes".to_owned(),
            Self::Authority(Some(path_length)) => format!("yes, path length {path_length}"),
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Several(texts) => {
                // Converts `Digital Signature`, but not `OCSPSigning` and OIDs.
                let name =
                    |text: &String| if text.contains(' ') { in_camel_case(text) } else { text.clone() };
                texts.iter().map(name).collect::<Vec<_>>().into()
            }
            Self::Authority(None) => json!({"isCA": true}),
            Self::Authority(Some(below)) => json!({"isCA": true, "pathLength": below}),
        }
    }
}

/// One inspected object.
#[derive(Debug, Serialize)]
struct InspectedItem {
    /// `certificate`, `private key` and so on.
    kind: &'static str,
    /// The file, or the place within it.
    name: String,
    #[serde(serialize_with = "in_order")]
    facts: Facts,
}

/// Facts that may occur more than once.
const LISTS: [&str; 4] = ["names", "asks for", "clients", "has"];

fn in_order<S: Serializer>(facts: &[(&'static str, Fact)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut all: Vec<(String, Value)> = Vec::new();
    for (name, value) in facts {
        let key = in_camel_case(name);
        let value = match value {
            // The distance from now is in the text output only.
            Fact::Text(text) if ["from", "until"].contains(name) => {
                text.split(' ').next().unwrap_or_default().into()
            }
            value => value.value(),
        };
        let known = all.iter_mut().find(|(known, _)| *known == key);
        match (LISTS.contains(name), known) {
            (true, Some((_, Value::Array(values)))) => values.push(value),
            (true, _) => all.push((key, Value::Array(vec![value]))),
            (false, _) => all.push((key, value)),
        }
    }
    serializer.collect_map(all)
}

/// `key usage` as `keyUsage`.
fn in_camel_case(name: &str) -> String {
    let words = name.split([' ', '-']).map(|word| word.trim_end_matches("'s").to_ascii_lowercase());
    let capital = |word: String| {
        word.get(..1).unwrap_or_default().to_ascii_uppercase() + word.get(1..).unwrap_or_default()
    };
    words.enumerate().map(|(place, word)| if place == 0 { word } else { capital(word) }).collect()
}

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ProblemSeverity {
    /// Verifiers refuse it, or should.
    Error,
    /// It works for now, or with some verifiers.
    Warning,
}

/// A problem of one item.
#[derive(Debug, Serialize)]
struct InspectionProblem {
    severity: ProblemSeverity,
    /// The name of the item.
    item: String,
    #[serde(rename = "problem")]
    text: String,
}

/// The inspected items and their problems.
#[derive(Debug, Default, Serialize)]
struct Findings {
    items: Vec<InspectedItem>,
    problems: Vec<InspectionProblem>,
}

impl Findings {
    fn error(&mut self, item: &str, problem: impl Into<String>) {
        self.problem(ProblemSeverity::Error, item, problem.into());
    }

    fn warning(&mut self, item: &str, problem: impl Into<String>) {
        self.problem(ProblemSeverity::Warning, item, problem.into());
    }

    fn problem(&mut self, severity: ProblemSeverity, item: &str, text: String) {
        self.problems.push(InspectionProblem { severity, item: item.to_owned(), text });
    }

    fn has(&self, severity: ProblemSeverity) -> bool {
        self.problems.iter().any(|problem| problem.severity == severity)
    }

    fn text(&self) -> String {
        let mut rows: Vec<(&str, String)> = Vec::new();
        for item in &self.items {
            rows.push((item.kind, item.name.clone()));
            let mut last = "";
            for (name, value) in &item.facts {
                rows.push((if *name == last { "" } else { name }, value.text()));
                last = name;
            }
            rows.push(("", String::new()));
        }
        let mut text = table::facts(rows);
        if self.problems.is_empty() {
            return text + "no problems found\n";
        }
        text += "problems\n";
        let of = |severity: ProblemSeverity| {
            self.problems.iter().filter(move |problem| problem.severity == severity)
        };
        let problems = of(ProblemSeverity::Error).chain(of(ProblemSeverity::Warning)).map(
            |InspectionProblem { severity, item, text }| {
                let severity = match severity {
                    ProblemSeverity::Error => "  error",
                    ProblemSeverity::Warning => "  warning",
                };
                [severity.to_owned(), item.clone(), text.clone()]
            },
        );
        text + &table::rows(problems)
    }
}

pub(super) fn run(flags: &InspectFlags) -> Result<ExitCode, CommandError> {
    let now = Clock::system().now();
    let findings = match &flags.server {
        Some(server) => server::inspect(server, flags.server_name.as_deref(), flags.ca_file.as_deref(), now)?,
        None if flags.files.is_empty() => {
            let problem = "nothing to inspect: give files, or --server HOST:PORT";
            return Err(CommandError::Usage(problem.to_owned()));
        }
        None => files(&flags.files, flags.passphrase.given()?.as_ref(), now)?,
    };
    let printed = print(&flags.output.rendered(&findings).unwrap_or_else(|| findings.text()));
    let bad = findings.has(ProblemSeverity::Error)
        || flags.fail_on_warnings && findings.has(ProblemSeverity::Warning);
    Ok(if bad { ExitCode::FAILURE } else { printed })
}

fn files(
    paths: &[PathBuf],
    passphrase: Option<&SecretString>,
    now: UnixTime,
) -> Result<Findings, CommandError> {
    let mut findings = Findings::default();
    let mut found = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        let is_file = name != "-";
        let read = if is_file { named_file::read(path) } else { named_file::read_standard_input() };
        let bytes = read.map_err(|error| CommandError::about(&name, error))?;
        let pieces = material::pieces(&name, &bytes, passphrase);
        if is_file && pieces.iter().any(FilePart::is_key) {
            for problem in exposure::problems_of_key(path) {
                findings.warning(&name, problem);
            }
        }
        if pieces.is_empty() {
            kubeconfig::inspect(path, &bytes, now, &mut findings)?;
        }
        found.extend(pieces);
    }
    material::inspect(&found, None, now, &mut findings);
    Ok(findings)
}
