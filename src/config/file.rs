//! The configuration file: reads it, checks its version and kind, and splits it into sections. [`super::resolve`]
//! validates the sections, together with the command line.

use std::path::{Path, PathBuf};

use clap::Args;
use portcullis_kubernetes::yaml::{self, KeyLines};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{ConfigError, FilePosition};
use super::inputs::InputReader;
use super::sections::{ConfigLayer, MergedSection, ValueOrigin};

/// The expected `apiVersion` and `kind` of a file.
pub(super) type FileEnvelope = [(&'static str, &'static str); 2];

const ENVELOPE: FileEnvelope = [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "GatewayConfiguration")];

/// A configuration file.
#[derive(Debug)]
pub(super) struct GatewayFile {
    /// Its sections.
    pub(super) sections: MergedSection<FileSections>,
    /// Where its keys are.
    pub(super) positions: KeyPositions,
}

/// The positions of the keys of a configuration file.
#[derive(Debug)]
pub(super) struct KeyPositions {
    file: PathBuf,
    lines: KeyLines,
}

/// The sections of a file. They have no flags; [`Args`] is derived because [`MergedSection::read`] requires it.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileSections {
    #[arg(skip)]
    pub(super) serving: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) authentication: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) authorization: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) admission: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) audit: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) sessions: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) limits: Map<String, Value>,
    /// The defaults of every cluster.
    #[arg(skip)]
    pub(super) controller_manager: Map<String, Value>,
    #[arg(skip)]
    pub(super) clusters: Vec<Map<String, Value>>,
    /// A directory with one cluster in each file.
    #[arg(skip)]
    pub(super) cluster_directory: Option<PathBuf>,
    /// A management cluster, whose Secrets are clusters.
    #[arg(skip)]
    pub(super) management_cluster: Option<Map<String, Value>>,
    #[arg(skip)]
    pub(super) operation: Map<String, Value>,
    #[arg(skip)]
    pub(super) page: Map<String, Value>,
}

impl GatewayFile {
    /// Reads a file. Fails with a single error if it is not YAML or not a configuration file. Errors of single keys go
    /// to `unread`.
    pub(super) fn load(
        file: &Path,
        inputs: &mut InputReader,
        unread: &mut Vec<ConfigError>,
    ) -> Result<Self, ConfigError> {
        let (values, lines) = document("--config", file, ENVELOPE, inputs)?;
        let directory = file.parent().unwrap_or(Path::new("")).to_owned();
        let origin = ValueOrigin::File { path: String::new(), directory };
        let Some(sections) = MergedSection::read([ConfigLayer { values, origin }], unread) else {
            return Err(ConfigError::new("--config", "cannot be read").in_file(file));
        };
        Ok(Self { sections, positions: KeyPositions { file: file.to_owned(), lines } })
    }
}

impl KeyPositions {
    /// Adds to each error the line of its key, or of the nearest enclosing key.
    pub(super) fn locate(&self, errors: &mut [ConfigError]) {
        for error in
            errors.iter_mut().filter(|error| error.position.is_none() && !error.key.starts_with("--"))
        {
            error.position = Some(FilePosition { file: self.file.clone(), line: self.lines.of(&error.key) });
        }
    }
}

/// Reads a YAML file with the version and kind of `envelope`. Returns its other keys, and the line of each. `key` is
/// the configuration key that names the file, for the error.
pub(super) fn document(
    key: &str,
    file: &Path,
    envelope: FileEnvelope,
    inputs: &mut InputReader,
) -> Result<(Map<String, Value>, KeyLines), ConfigError> {
    let bad = |problem: String| ConfigError::new(key, problem).in_file(file);
    let [(version, api_version), (kind, expected)] = envelope;
    let envelope_fix = format!("begin with {version}: {api_version} and {kind}: {expected}");
    let text = inputs.read(file).map_err(|error| bad(error.to_string()).fix(error.fix()))?;
    let document = yaml::parse(&text).map_err(|problem| {
        bad(problem).fix("give one YAML document; indent by spaces, write each key once")
    })?;
    let mut values = match document.value {
        Value::Object(values) => values,
        Value::Null => return Err(bad("is empty".to_owned()).fix(envelope_fix)),
        _ => return Err(bad("is not a map".to_owned()).fix(envelope_fix)),
    };
    for (key, expected) in envelope {
        match values.remove(key).unwrap_or_default() {
            Value::Null => return Err(bad(format!("has no {key}")).fix(envelope_fix)),
            Value::String(given) if given == expected => {}
            given => return Err(bad(format!("unknown {key} {given}")).fix(envelope_fix)),
        }
    }
    Ok((values, document.lines))
}
