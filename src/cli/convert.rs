//! `portcullis convert`: the gateway's command line for the flags of a kube-apiserver.

mod expansion;
mod flags;
mod manifest;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use portcullis_system::input_file;
use portcullis_tools::output::{Output, print};
use portcullis_tools::terminal::sanitized;
use serde::Serialize;
use serde_json::Value;

use super::check::CheckErrors;
use super::misconfigured;
use crate::config::{ConfigError, ConfigErrors};
use flags::{Conversion, KUBECONFIG, files};
use manifest::{ApiServerContainer, FileLocation};

pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis convert /etc/kubernetes/manifests/kube-apiserver.yaml
  kubectl get pod -n kube-system kube-apiserver-cp1 -o yaml | portcullis convert -
  portcullis convert --output json kube-apiserver.yaml | jq .leftToBackend
  portcullis convert -- --authorization-mode=Node,RBAC --secure-port=6443 …   # of k3s, or of a systemd unit

The output is a shell script: `portcullis serve` with its flags, the kubeconfig that it needs, and comments. The paths of
files are those in the container; the comments say where they are on the node. Before the gateway serves, run `portcullis \
check` with the same flags: it reads the files.

kube-apiserver's own command line works, too: portcullis serve --ignore-unknown-apiserver-flags FLAGS …";

/// The most bytes of standard input.
const MAX_INPUT: u64 = 16 << 20;

/// The flags of `portcullis convert`.
#[derive(Debug, Clone, Args)]
pub(super) struct ConvertFlags {
    /// The manifest of a static pod that runs kube-apiserver, YAML or JSON; - for standard input.
    #[arg(value_name = "FILE", required_unless_present = "flags")]
    manifest: Option<PathBuf>,
    /// The container, if several run kube-apiserver.
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
    /// The flags of kube-apiserver, in place of a manifest.
    #[arg(last = true, value_name = "FLAGS", conflicts_with_all = ["manifest", "container"])]
    flags: Vec<String>,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// The gateway in the place of a kube-apiserver.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConversionReport {
    /// Where the flags are from.
    source: String,
    /// The program and its arguments.
    command: Vec<String>,
    /// The content of the file in `--backend-kubeconfig`.
    kubeconfig: Value,
    /// What the backend does for requests through the gateway, too.
    left_to_backend: Vec<FlagNote>,
    /// What clients of the gateway do not get.
    not_supported: Vec<FlagNote>,
    /// The files that the gateway reads and writes.
    files: Vec<FileNote>,
    /// What to do before the gateway starts.
    notes: Vec<String>,
    /// The flags that cannot be converted.
    errors: Vec<ConfigError>,
}

/// A flag, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct FlagNote {
    flag: String,
    reason: String,
}

/// A file of a flag.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileNote {
    flag: String,
    path: String,
    /// Its path on the node; `None` if it has none.
    host_path: Option<String>,
    /// The kind of the volume that has it, or `image`, if it is not on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_in: Option<&'static str>,
}

pub(super) fn run(flags: &ConvertFlags) -> ExitCode {
    let report = match converted(flags) {
        Ok(report) => report,
        Err(error) => {
            let errors = ConfigErrors(vec![error]);
            if let Some(text) = flags.output.rendered(&CheckErrors { errors: &errors.0 }) {
                print(&text);
            }
            return misconfigured(&errors);
        }
    };
    let printed = print(&flags.output.rendered(&report).unwrap_or_else(|| report.script()));
    if report.errors.is_empty() { printed } else { ExitCode::FAILURE }
}

fn converted(flags: &ConvertFlags) -> Result<ConversionReport, ConfigError> {
    let Some(file) = &flags.manifest else {
        return Ok(ConversionReport::of("flags", flags.flags.clone(), None));
    };
    let text = content(file)?;
    let container = ApiServerContainer::read(&text, file, flags.container.as_deref())?;
    Ok(ConversionReport::of(&container.description, container.flags.clone(), Some(&container)))
}

fn content(file: &Path) -> Result<Vec<u8>, ConfigError> {
    let mut text = Vec::new();
    if file.as_os_str() == "-" {
        let read = std::io::stdin().take(MAX_INPUT).read_to_end(&mut text);
        return read.map(|_| text).map_err(|error| {
            ConfigError::new("manifest", error.to_string()).fix("give the manifest on standard input")
        });
    }
    input_file::read(file)
        .map_err(|error| ConfigError::new("manifest", error.to_string()).in_file(file).fix(error.fix()))
}

impl ConversionReport {
    fn of(source: &str, words: Vec<String>, container: Option<&ApiServerContainer>) -> Self {
        let command = super::command();
        let serve = command.find_subcommand("serve").cloned().unwrap_or_default();
        let Conversion { flags, left_to_backend, not_supported, kubeconfig, notes, mut errors } =
            Conversion::of(&serve, words);
        let words: Vec<String> = flags.iter().flat_map(|flag| flag.words.iter().cloned()).collect();
        let mut of_files = Vec::new();
        for flag in &flags {
            let name = format!("--{}", flag.name().unwrap_or_default());
            for path in files(&serve, flag).into_iter().filter(|path| path != KUBECONFIG) {
                let note = FileNote { flag: name.clone(), path, host_path: None, only_in: None };
                of_files.extend(container.map(|container| note.located(container)));
            }
        }
        for (variable, place) in container.iter().flat_map(|container| &container.unknown) {
            let reference = format!("$({variable})");
            for word in words.iter().filter(|word| word.contains(&reference)) {
                let key = word.split('=').next().unwrap_or_default();
                let problem = format!("{reference} has the value of {place}, which only the node knows");
                errors.push(ConfigError::new(key, problem).fix("put its value there"));
            }
        }
        for word in words.iter().filter(|word| sanitized(word) != **word) {
            let key = sanitized(word.split('=').next().unwrap_or_default());
            let error = ConfigError::new(key, "has a control character, which is not printed");
            errors.push(error.fix("give the value without it"));
        }
        Self {
            source: source.to_owned(),
            command: ["portcullis", "serve"].into_iter().map(str::to_owned).chain(words).collect(),
            kubeconfig,
            left_to_backend: without_duplicates(left_to_backend),
            not_supported: without_duplicates(not_supported),
            files: of_files,
            notes,
            errors,
        }
    }

    /// A shell script with comments.
    fn script(&self) -> String {
        let mut script = String::new();
        let kubeconfig = Output::Yaml.rendered(&self.kubeconfig).unwrap_or_default();
        let kubeconfig: String = kubeconfig.lines().map(|line| sanitized(line) + "\n").collect();
        comment(&mut script, &format!("The gateway in front of kube-apiserver, by {}.", self.source));
        write!(script, "cat > {KUBECONFIG} <<'EOF'\n{kubeconfig}EOF\n").ok();
        let words: Vec<String> = self.command.iter().map(|word| quoted(word)).collect();
        let (program, flags) = words.split_at_checked(2).unwrap_or_default();
        writeln!(script, "{} \\\n  {}", program.join(" "), flags.join(" \\\n  ")).ok();
        self.comments(&mut script);
        script
    }

    fn comments(&self, script: &mut String) {
        section(script, "Errors:", self.errors.iter().map(ToString::to_string));
        section(script, "Before it starts:", self.notes.iter().cloned());
        section(script, "Left to the API server (\"it\"):", by_reason(&self.left_to_backend));
        section(script, "Not done by the gateway:", by_reason(&self.not_supported));
        section(
            script,
            "Files that the flags name, by their paths in the container:",
            self.files.iter().map(FileNote::line),
        );
    }
}

impl FileNote {
    fn located(self, container: &ApiServerContainer) -> Self {
        match container.locate(&self.path) {
            FileLocation::Node(path) => Self { host_path: Some(path), ..self },
            FileLocation::Volume(kind) => Self { only_in: Some(kind), ..self },
            FileLocation::Image => Self { only_in: Some("image"), ..self },
        }
    }

    fn line(&self) -> String {
        let place = match (&self.host_path, self.only_in) {
            (Some(path), _) if *path == self.path => "the same path on the node".to_owned(),
            (Some(path), _) => format!("{path} on the node"),
            (None, Some("image")) => {
                "no volume has it: not on the node, or in the container's image".to_owned()
            }
            (None, kind) => format!("not on the node: in a volume of kind {}", kind.unwrap_or("unknown")),
        };
        format!("{} ({}): {place}", self.path, self.flag)
    }
}

/// One line for each reason, with its flags.
fn by_reason(notes: &[FlagNote]) -> Vec<String> {
    let mut groups: BTreeMap<usize, (&str, Vec<&str>)> = BTreeMap::new();
    for note in notes {
        let first = notes.iter().position(|first| first.reason == note.reason).unwrap_or_default();
        groups.entry(first).or_insert((&note.reason, Vec::new())).1.push(&note.flag);
    }
    groups.into_values().map(|(reason, flags)| format!("{}: {reason}", flags.join(" "))).collect()
}

fn without_duplicates(notes: Vec<FlagNote>) -> Vec<FlagNote> {
    let mut once: Vec<FlagNote> = Vec::with_capacity(notes.len());
    for note in notes {
        if !once.contains(&note) {
            once.push(note);
        }
    }
    once
}

fn section(script: &mut String, title: &str, lines: impl IntoIterator<Item = String>) {
    let mut lines = lines.into_iter().peekable();
    if lines.peek().is_none() {
        return;
    }
    script.push('\n');
    comment(script, title);
    for line in lines {
        for (index, part) in line.lines().enumerate() {
            comment(script, &format!("{}{}", if index == 0 { "- " } else { "  " }, part.trim_start()));
        }
    }
}

/// Writes a comment. The text may be from the manifest: nothing in it may end the line.
// threat: manifest-in-script
fn comment(script: &mut String, text: &str) {
    writeln!(script, "# {}", sanitized(text)).ok();
}

/// A word for a POSIX shell, without control characters.
// threat: manifest-in-script
fn quoted(word: &str) -> String {
    let word = sanitized(word);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+:,./@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
