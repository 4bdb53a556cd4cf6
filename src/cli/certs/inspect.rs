//! `portcullis certs inspect`: what a certificate, request, key or kubeconfig says, or a server shows, and what is wrong
//! with it. Private keys are read, to see whose they are; nothing of them is shown.

pub(super) mod certificate;
mod kubeconfig;
mod material;
mod public_key;
mod server;

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use secrecy::SecretString;
use secrecy::zeroize::Zeroizing;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::super::check::{Output, print};
use super::error::CommandError;
use super::passphrase::PassphraseFlags;
use super::table;
use crate::clock::{Clock, UnixTime};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis certs inspect alice.crt alice.key
  portcullis certs inspect ~/.kube/config
  portcullis certs inspect --server gateway.example.com:6443 --ca-file pki/ca.crt

Exits 1 if something is wrong. What is only noteworthy, such as an end within 30 days, is told too,
and counts with --fail-on-warnings.";

/// The flags of `portcullis certs inspect`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct InspectFlags {
    /// Certificates, requests or keys, PEM or DER, or kubeconfigs. Files given together are looked at together: does the
    /// key fit the certificate? `-` is the standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Ask a server for its certificates, by a TLS handshake that verifies nothing.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "files", help_heading = "Server")]
    server: Option<String>,
    /// The name to ask the server for. Default: its host.
    #[arg(long, value_name = "NAME", requires = "server", help_heading = "Server")]
    server_name: Option<String>,
    /// The CAs of a client that verifies the server, PEM. Default: the system's.
    #[arg(long, value_name = "FILE", requires = "server", help_heading = "Server")]
    ca_file: Option<PathBuf>,
    #[command(flatten)]
    passphrase: PassphraseFlags,
    /// Exit 1 for what is only noteworthy, too.
    #[arg(long, help_heading = "Output")]
    fail_on_warnings: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// Names and values, in an order to be read in.
type Facts = Vec<(&'static str, Fact)>;

/// A value, for people and for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fact {
    Text(String),
    /// Usages and purposes.
    Several(Vec<String>),
    /// An authority, and how many levels of authorities may stand below it.
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
            Self::Authority(Some(0)) => "yes, for no authority below".to_owned(),
            Self::Authority(Some(1)) => "yes, for one level of authorities below".to_owned(),
            Self::Authority(Some(below)) => format!("yes, for {below} levels of authorities below"),
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Several(texts) => {
                // `Digital Signature`, but `OCSPSigning` and OIDs as they are.
                let name =
                    |text: &String| if text.contains(' ') { in_camel_case(text) } else { text.clone() };
                texts.iter().map(name).collect::<Vec<_>>().into()
            }
            Self::Authority(None) => json!({"isCA": true}),
            Self::Authority(Some(below)) => json!({"isCA": true, "pathLength": below}),
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct InspectedItem {
    /// What it is.
    kind: &'static str,
    /// Where it was found.
    name: String,
    #[serde(serialize_with = "in_order")]
    facts: Facts,
}

/// Facts of which there may be several.
const LISTS: [&str; 4] = ["names", "asks for", "clients", "has"];

fn in_order<S: Serializer>(facts: &[(&'static str, Fact)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut all: Vec<(String, Value)> = Vec::new();
    for (name, value) in facts {
        let key = in_camel_case(name);
        let value = match value {
            // How far away a time is, is for people.
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

/// `key usage` as programs have it: `keyUsage`.
fn in_camel_case(name: &str) -> String {
    let words = name.split([' ', '-']).map(|word| word.trim_end_matches("'s").to_ascii_lowercase());
    let capital = |word: String| {
        word.get(..1).unwrap_or_default().to_ascii_uppercase() + word.get(1..).unwrap_or_default()
    };
    words.enumerate().map(|(place, word)| if place == 0 { word } else { capital(word) }).collect()
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ProblemSeverity {
    /// It will be refused, or ought to be.
    Error,
    /// It works, for now, or for some.
    Warning,
}

/// Something that is wrong.
#[derive(Debug, Serialize)]
struct InspectionProblem {
    severity: ProblemSeverity,
    /// Which thing it is wrong with.
    item: String,
    #[serde(rename = "problem")]
    text: String,
}

/// Everything that was found.
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
            return text + "nothing is wrong\n";
        }
        text += "what is wrong\n";
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
        let mut bytes = Zeroizing::new(Vec::new());
        let read = if name == "-" {
            std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
        } else {
            std::fs::read(path).map(|read| *bytes = read)
        };
        read.map_err(|error| CommandError::about(&name, error))?;
        let pieces = material::pieces(&name, &bytes, passphrase);
        if pieces.is_empty() {
            kubeconfig::inspect(path, &bytes, now, &mut findings)?;
        }
        found.extend(pieces);
    }
    material::inspect(&found, None, now, &mut findings);
    Ok(findings)
}
