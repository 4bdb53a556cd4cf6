//! The configuration file: its envelope, and its sections as layers. What is in the sections is judged by
//! [`super::resolve`], together with the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{ConfigError, Position};
use super::inputs::Inputs;
use super::sections::{Layer, Origin, suggestion};
use super::yaml;

const API_VERSION: &str = "portcullis.dev/v1alpha1";
const KIND: &str = "GatewayConfiguration";
const ENVELOPE: &str = "begin with apiVersion: portcullis.dev/v1alpha1 and kind: GatewayConfiguration";
const SECTIONS: [&str; 4] = ["serving", "authentication", "clusters", "operation"];

/// A configuration file. Without one, everything in it is absent.
#[derive(Debug, Default)]
pub(super) struct GatewayFile {
    pub(super) serving: Option<Layer>,
    pub(super) authentication: Option<Layer>,
    pub(super) operation: Option<Layer>,
    pub(super) clusters: Vec<ClusterEntry>,
    file: PathBuf,
    lines: BTreeMap<String, u64>,
}

/// One of the clusters that a file lists, or the one that flags describe.
#[derive(Debug)]
pub(super) struct ClusterEntry {
    pub(super) keys: Layer,
    pub(super) routes: Option<Layer>,
    pub(super) authentication: Option<Layer>,
}

impl GatewayFile {
    /// Reads a file. A file that is something else is one error, and all that is said of it; what is wrong with its
    /// keys goes to `errors`, with what will be found wrong with their values.
    pub(super) fn load(
        file: &Path,
        inputs: &mut Inputs,
        errors: &mut Vec<ConfigError>,
    ) -> Result<Self, ConfigError> {
        let unreadable = |problem: String| ConfigError::new("--config", problem).in_file(file);
        let text =
            inputs.read(file).map_err(|error| unreadable(error.to_string()).fix("give a readable file"))?;
        let document = yaml::parse(&text).map_err(|problem| {
            unreadable(problem).fix("give one YAML document; indent by spaces, write each key once")
        })?;
        let mut map = match document.value {
            Value::Object(map) => map,
            other => {
                return Err(unreadable(format!("is {}, not a map", kind_of(&other))).fix(ENVELOPE));
            }
        };
        for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match map.remove(key).unwrap_or_default() {
                Value::Null => return Err(unreadable(format!("has no {key}")).fix(ENVELOPE)),
                Value::String(given) if given == expected => {}
                given => {
                    return Err(unreadable(format!("{key} {given} is not known here")).fix(ENVELOPE));
                }
            }
        }
        let directory = file.parent().unwrap_or(Path::new(""));
        let mut section = |name: &str| {
            Some(layer(map.remove(name).unwrap_or_default(), name.to_owned(), directory, errors))
        };
        let serving = section("serving");
        let authentication = section("authentication");
        let operation = section("operation");
        let clusters = clusters(map.remove("clusters").unwrap_or_default(), directory, errors);
        for key in map.keys() {
            let fix = suggestion(key, SECTIONS.into_iter());
            errors.push(ConfigError::new(key, "unknown key").fix(fix));
        }
        let (file, lines) = (file.to_owned(), document.lines);
        Ok(Self { serving, authentication, operation, clusters, file, lines })
    }

    /// Writes into errors of keys where the file has them, or else the nearest key around them.
    pub(super) fn locate(&self, errors: &mut [ConfigError]) {
        for error in errors.iter_mut().filter(|error| !error.key.starts_with("--")) {
            let mut path = error.key.as_str();
            let line = loop {
                match self.lines.get(path) {
                    Some(line) => break *line,
                    None => path = path.rsplit_once(['.', '[']).map_or("", |(around, _)| around),
                }
                if path.is_empty() {
                    break 1;
                }
            };
            error.position = Some(Position { file: self.file.clone(), line });
        }
    }
}

fn clusters(given: Value, directory: &Path, errors: &mut Vec<ConfigError>) -> Vec<ClusterEntry> {
    let given = match given {
        Value::Array(given) => given,
        Value::Null => Vec::new(),
        other => {
            let problem = format!("is {}, not a list", kind_of(&other));
            errors
                .push(ConfigError::new("clusters", problem).fix("begin each cluster with a dash: - name: …"));
            Vec::new()
        }
    };
    let entries = given.into_iter().enumerate().map(|(index, cluster)| {
        let path = format!("clusters[{index}]");
        let mut keys = layer(cluster, path.clone(), directory, errors);
        let mut inner = |name: &str| {
            let given = keys.values.remove(name)?;
            Some(layer(given, format!("{path}.{name}"), directory, errors))
        };
        let (routes, authentication) = (inner("match"), inner("authentication"));
        ClusterEntry { keys, routes, authentication }
    });
    entries.collect()
}

/// A map of the file; a key without a value is an empty one.
fn layer(value: Value, path: String, directory: &Path, errors: &mut Vec<ConfigError>) -> Layer {
    let values = match value {
        Value::Object(values) => values,
        Value::Null => Map::new(),
        other => {
            let problem = format!("is {}, not a map", kind_of(&other));
            errors.push(
                ConfigError::new(&path, problem).fix("write its keys below it, indented, as key: value"),
            );
            Map::new()
        }
    };
    Layer { values, origin: Origin::File { path, directory: directory.to_owned() } }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
