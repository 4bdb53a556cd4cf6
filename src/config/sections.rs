//! A section of the configuration, from its defaults, the file and the command line: which value counts, where it was
//! given, and so what errors call it and what a relative path in it is relative to.

mod advice;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ConfigError;
use advice::{meaning, plain, suggestion};

/// Words that Kubernetes writes in capitals, unless a key begins with one.
// kubernetes: contributors/devel/sig-architecture/api-conventions.md, naming conventions
const ACRONYMS: [&str; 8] = ["ca", "id", "jwks", "sni", "ttl", "uid", "uri", "url"];

/// The key of a flag in the configuration file: `client-ca-file` is `clientCAFile`. What the command line says with
/// `--backend-` is said of a cluster in the file.
pub fn key_of(flag: &str) -> String {
    let words = flag.strip_prefix("backend-").unwrap_or(flag).split('-').enumerate();
    words.map(|(index, word)| if index == 0 { word.to_owned() } else { capitalised(word) }).collect()
}

fn capitalised(word: &str) -> String {
    if ACRONYMS.contains(&word) {
        return word.to_uppercase();
    }
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// The flags of a section that were given on the command line, by their keys; those left to their default are absent.
#[derive(Debug, Clone)]
pub struct Given<T> {
    values: Map<String, Value>,
    section: PhantomData<fn() -> T>,
}

impl<T: Args + Serialize> FromArgMatches for Given<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut values = object(&T::from_arg_matches(matches)?)?;
        for argument in T::augment_args(Command::new("")).get_arguments() {
            if matches.value_source(argument.get_id().as_str()) != Some(ValueSource::CommandLine) {
                values.remove(&key_of(argument.get_long().unwrap_or_default()));
            }
        }
        Ok(Self { values, section: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.values.extend(Self::from_arg_matches(matches)?.values);
        Ok(())
    }
}

impl<T: Args + Serialize> Args for Given<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T> Given<T> {
    /// The names of the flags that were given.
    pub(super) fn names(&self) -> Vec<String>
    where
        T: Args,
    {
        let command = T::augment_args(Command::new(""));
        let all = command.get_arguments().filter_map(clap::Arg::get_long);
        all.filter(|flag| self.values.contains_key(&key_of(flag))).map(|flag| format!("--{flag}")).collect()
    }

    /// What was given, to be laid over a file.
    pub(super) fn layer(&self) -> Layer {
        Layer { values: self.values.clone(), origin: Origin::CommandLine }
    }
}

/// A section as `clap` has it when no flag is given: each key with its default.
fn defaults<T: Args + Serialize>() -> Result<Map<String, Value>, clap::Error> {
    let command = T::augment_args(Command::new("").no_binary_name(true));
    object(&T::from_arg_matches(&command.try_get_matches_from(std::iter::empty::<&str>())?)?)
}

fn object(section: &impl Serialize) -> Result<Map<String, Value>, clap::Error> {
    let value = serde_json::to_value(section)
        .map_err(|error| clap::Error::raw(clap::error::ErrorKind::InvalidUtf8, error.to_string()))?;
    Ok(if let Value::Object(object) = value { object } else { Map::new() })
}

/// Where values were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// As flags.
    CommandLine,
    /// In the map at this path of the configuration file, which is in this directory.
    File { path: String, directory: PathBuf },
}

impl Origin {
    fn place(&self, flag: &str) -> Place {
        match self {
            Self::CommandLine => Place { key: format!("--{flag}"), directory: PathBuf::new() },
            Self::File { directory, .. } => {
                Place { key: self.key(&key_of(flag)), directory: directory.clone() }
            }
        }
    }

    /// What errors call a key that may not be one.
    fn key(&self, key: &str) -> String {
        match self {
            Self::CommandLine => key.to_owned(),
            Self::File { path, .. } if path.is_empty() => key.to_owned(),
            Self::File { path, .. } => format!("{path}.{key}"),
        }
    }
}

/// Where one value was given, or would be.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The flag, or the path of the key in the file.
    pub(super) key: String,
    directory: PathBuf,
}

impl Place {
    /// A path that was given here: relative to the configuration file's directory, or to the working directory.
    pub(super) fn path(&self, given: &Path) -> PathBuf {
        self.directory.join(given)
    }
}

/// Values of one section that were given in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) values: Map<String, Value>,
    pub(super) origin: Origin,
}

/// A section as it counts, and where each value of it was given.
#[derive(Debug)]
pub(super) struct Section<T> {
    /// The values.
    pub(super) values: T,
    given: BTreeMap<String, Origin>,
    home: Origin,
}

impl<T: Args + Serialize + DeserializeOwned> Section<T> {
    /// Lays `layers` over each other, key by key: a later one wins. Every key that is unknown or has a value of the
    /// wrong kind is told in `unread` and left out. A value of `null` stands for the default.
    pub(super) fn read(
        layers: impl IntoIterator<Item = Layer>,
        unread: &mut Vec<ConfigError>,
    ) -> Option<Self> {
        // Neither of the two can be while the types are what they are: a test reads every section's defaults.
        let broken = |problem: String| ConfigError::new("defaults", problem);
        let defaults = defaults::<T>().map_err(|error| unread.push(broken(error.to_string()))).ok()?;
        let mut values = defaults.clone();
        let mut given = BTreeMap::new();
        let mut home = Origin::CommandLine;
        for layer in layers {
            for (key, value) in layer.values {
                let is_default = value.is_null();
                match checked::<T>(&defaults, &key, value) {
                    Ok(checked) => {
                        if is_default {
                            given.remove(&key);
                        } else {
                            given.insert(key.clone(), layer.origin.clone());
                        }
                        values.insert(key, checked);
                    }
                    Err((problem, fix)) => {
                        unread.push(ConfigError::new(layer.origin.key(&key), problem).fix(fix));
                    }
                }
            }
            if layer.origin != Origin::CommandLine {
                home = layer.origin;
            }
        }
        let values = serde_json::from_value(Value::Object(values));
        let values = values.map_err(|error| unread.push(broken(error.to_string()))).ok()?;
        Some(Self { values, given, home })
    }
}

impl<T> Section<T> {
    /// Where the value of a flag was given; where it belongs, if it was not.
    pub(super) fn place(&self, flag: &str) -> Place {
        self.given.get(&key_of(flag)).unwrap_or(&self.home).place(flag)
    }

    /// Whether a flag has a value that somebody gave, be it the default.
    pub(super) fn is_given(&self, flag: &str) -> bool {
        self.given.contains_key(&key_of(flag))
    }

    /// What was given below a key of the file, as a section of its own.
    pub(super) fn below(&self, key: &str, values: &Map<String, Value>) -> Layer {
        let place = self.home.place(key);
        let origin = Origin::File { path: place.key, directory: place.directory };
        Layer { values: values.clone(), origin }
    }

    /// Whether it is a section of a file.
    pub(super) fn in_file(&self) -> bool {
        self.home != Origin::CommandLine
    }

    /// What errors call a flag.
    pub(super) fn key(&self, flag: &str) -> String {
        self.place(flag).key
    }
}

/// The value of a key, if the section has such a key and this is a value for it; else what is wrong, and the way out.
fn checked<T: Args + DeserializeOwned>(
    defaults: &Map<String, Value>,
    key: &str,
    value: Value,
) -> Result<Value, (String, String)> {
    let Some(default) = defaults.get(key) else {
        return Err(("unknown key".to_owned(), suggestion(key, defaults.keys().map(String::as_str))));
    };
    if value.is_null() {
        return Ok(default.clone());
    }
    let mut trial = defaults.clone();
    trial.insert(key.to_owned(), value.clone());
    match serde_json::from_value::<T>(Value::Object(trial)) {
        Ok(_) => Ok(value),
        Err(error) => Err((plain(&error.to_string()), meaning::<T>(key))),
    }
}

/// Values of a choice, written as its flag takes them.
pub(super) mod by_flag_name {
    use clap::ValueEnum;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de, ser};

    pub(crate) fn serialize<T: ValueEnum, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let name = value.to_possible_value().ok_or_else(|| ser::Error::custom("a value without a name"))?;
        name.get_name().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: ValueEnum, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let name = String::deserialize(deserializer)?;
        T::from_str(&name, false).map_err(|_| {
            let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let names: Vec<String> = names.map(|name| name.get_name().to_owned()).collect();
            de::Error::custom(format!("{name:?} is none of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::{
        AuthenticationFlags, BackendFlags, ClusterKeys, ControllerFlags, MatchKeys, OperationFlags,
        ServingFlags, SignerProfileKeys,
    };

    /// `clap` and `serde` name every value alike: `without_flag` are the keys that have no flag.
    fn keys_are_those_of_flags<T: Args + Serialize + DeserializeOwned>(without_flag: &[&str]) {
        let command = T::augment_args(Command::new(""));
        let flags = command.get_arguments().filter_map(clap::Arg::get_long).map(key_of);
        let mut expected: Vec<String> = flags.chain(without_flag.iter().map(|&key| key.to_owned())).collect();
        expected.sort();
        let defaults = defaults::<T>().unwrap();
        assert_eq!(defaults.keys().cloned().collect::<Vec<_>>(), expected);
        assert!(serde_json::from_value::<T>(Value::Object(defaults)).is_ok(), "the defaults are values");
    }

    #[test]
    fn every_flag_has_its_key() {
        keys_are_those_of_flags::<ServingFlags>(&[]);
        keys_are_those_of_flags::<AuthenticationFlags>(&[]);
        keys_are_those_of_flags::<BackendFlags>(&[]);
        keys_are_those_of_flags::<ClusterKeys>(&["authentication", "controllerManager", "match"]);
        keys_are_those_of_flags::<MatchKeys>(&[]);
        keys_are_those_of_flags::<ControllerFlags>(&[]);
        keys_are_those_of_flags::<SignerProfileKeys>(&[]);
        keys_are_those_of_flags::<OperationFlags>(&[]);
    }

    #[test]
    fn keys_are_written_as_kubernetes_writes_them() {
        let cases = [
            ("client-ca-file", "clientCAFile"),
            ("tls-sni-cert-key", "tlsSNICertKey"),
            ("requestheader-uid-headers", "requestheaderUIDHeaders"),
            ("oidc-issuer-url", "oidcIssuerURL"),
            ("backend-kubeconfig", "kubeconfig"),
            ("v", "v"),
        ];
        for (flag, key) in cases {
            assert_eq!(key_of(flag), key);
        }
    }
}
