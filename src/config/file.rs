//! The configuration file: what it is, and what it is made of. What is in it is judged by [`super::resolve`], together
//! with the command line.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{ConfigError, Position};
use super::inputs::Inputs;
use super::sections::{Layer, Origin, Section};
use super::yaml::{self, Lines};

/// What a file of ours begins with: its version and its kind.
pub(super) type Envelope = [(&'static str, &'static str); 2];

const ENVELOPE: Envelope = [("apiVersion", "portcullis.dev/v1alpha1"), ("kind", "GatewayConfiguration")];

/// A configuration file.
#[derive(Debug)]
pub(super) struct GatewayFile {
    /// What it is made of.
    pub(super) sections: Section<Sections>,
    file: PathBuf,
    lines: Lines,
}

/// The sections of a file. None of it has a flag; `clap` is here because every section is read in one way.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sections {
    #[arg(skip)]
    pub(super) serving: Map<String, Value>,
    /// A template for every cluster.
    #[arg(skip)]
    pub(super) authentication: Map<String, Value>,
    /// A template for every cluster.
    #[arg(skip)]
    pub(super) controller_manager: Map<String, Value>,
    #[arg(skip)]
    pub(super) clusters: Vec<Map<String, Value>>,
    #[arg(skip)]
    pub(super) operation: Map<String, Value>,
}

impl GatewayFile {
    /// Reads a file. A file that is something else is one error, and all that is said of it; keys that cannot be read
    /// go to `unread`.
    pub(super) fn load(
        file: &Path,
        inputs: &mut Inputs,
        unread: &mut Vec<ConfigError>,
    ) -> Result<Self, ConfigError> {
        let (values, lines) = document("--config", file, ENVELOPE, inputs)?;
        let directory = file.parent().unwrap_or(Path::new("")).to_owned();
        let origin = Origin::File { path: String::new(), directory };
        let Some(sections) = Section::read([Layer { values, origin }], unread) else {
            return Err(ConfigError::new("--config", "cannot be read").in_file(file));
        };
        Ok(Self { sections, file: file.to_owned(), lines })
    }

    /// Writes into errors of its keys where the file has them, or else the nearest key around them.
    pub(super) fn locate(&self, errors: &mut [ConfigError]) {
        for error in
            errors.iter_mut().filter(|error| error.position.is_none() && !error.key.starts_with("--"))
        {
            error.position = Some(Position { file: self.file.clone(), line: self.lines.of(&error.key) });
        }
    }
}

/// Reads a file of ours that begins with `envelope`: the rest of its keys, and their lines. What is wrong is one error of
/// `key`, which names the file.
pub(super) fn document(
    key: &str,
    file: &Path,
    envelope: Envelope,
    inputs: &mut Inputs,
) -> Result<(Map<String, Value>, Lines), ConfigError> {
    let bad = |problem: String| ConfigError::new(key, problem).in_file(file);
    let [(version, api_version), (kind, expected)] = envelope;
    let beginning = format!("begin with {version}: {api_version} and {kind}: {expected}");
    let text = inputs.read(file).map_err(|error| bad(error.to_string()).fix(error.fix()))?;
    let document = yaml::parse(&text).map_err(|problem| {
        bad(problem).fix("give one YAML document; indent by spaces, write each key once")
    })?;
    let mut values = match document.value {
        Value::Object(values) => values,
        Value::Null => return Err(bad("is empty".to_owned()).fix(beginning)),
        _ => return Err(bad("is not a map".to_owned()).fix(beginning)),
    };
    for (key, expected) in envelope {
        match values.remove(key).unwrap_or_default() {
            Value::Null => return Err(bad(format!("has no {key}")).fix(beginning)),
            Value::String(given) if given == expected => {}
            given => return Err(bad(format!("{key} {given} is not known here")).fix(beginning)),
        }
    }
    Ok((values, document.lines))
}
