//! Merges a section of the configuration from its defaults, the file and the command line. Records the origin of each
//! value: errors name it, and relative paths resolve against it.
//!
//! Files are parsed strictly: unknown keys and values of another type are errors here, duplicate keys in `config::yaml`.
//! The files of `config::apiserver_config` have a decoder of their own, with kube-apiserver's errors.

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
use super::management_cluster::below;
use advice::{meaning, plain, suggestion};

/// The acronyms that keys write in capitals, except at their beginning.
// community: contributors/devel/sig-architecture/api-conventions.md, naming conventions
const ACRONYMS: [&str; 9] = ["ca", "crl", "id", "jwks", "sni", "ttl", "uid", "uri", "url"];

/// The key of a flag in the configuration file: `client-ca-file` is `clientCAFile`. The prefix `backend-` is omitted,
/// because the file has these keys in an entry of `clusters`; so are `admission-` of our own flags, in `admission`, and
/// `page-`, in `page`.
pub fn key_of(flag: &str) -> String {
    let shorter =
        ["backend-", "admission-", "page-"].into_iter().find_map(|prefix| flag.strip_prefix(prefix));
    let omits = flag != "admission-control-config-file";
    let words = shorter.filter(|_| omits).unwrap_or(flag).split('-').enumerate();
    words.map(|(index, word)| if index == 0 { word.to_owned() } else { capitalised(word) }).collect()
}

fn capitalised(word: &str) -> String {
    if ACRONYMS.contains(&word) {
        return word.to_uppercase();
    }
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// The values of a section's flags on the command line, by key. Flags left at their default are absent.
#[derive(Debug, Clone)]
pub struct GivenFlags<T> {
    values: Map<String, Value>,
    section: PhantomData<fn() -> T>,
}

impl<T: Args + Serialize> FromArgMatches for GivenFlags<T> {
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

impl<T: Args + Serialize> Args for GivenFlags<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T> GivenFlags<T> {
    /// The names of the flags that are set.
    pub(super) fn names(&self) -> Vec<String>
    where
        T: Args,
    {
        let command = T::augment_args(Command::new(""));
        let all = command.get_arguments().filter_map(clap::Arg::get_long);
        all.filter(|flag| self.values.contains_key(&key_of(flag))).map(|flag| format!("--{flag}")).collect()
    }

    /// The values as a layer that overrides the file.
    pub(super) fn layer(&self) -> ConfigLayer {
        ConfigLayer { values: self.values.clone(), origin: ValueOrigin::CommandLine }
    }
}

/// The defaults of a section's flags, by key.
fn defaults<T: Args + Serialize>() -> Result<Map<String, Value>, clap::Error> {
    let command = T::augment_args(Command::new("").no_binary_name(true));
    object(&T::from_arg_matches(&command.try_get_matches_from(std::iter::empty::<&str>())?)?)
}

fn object(section: &impl Serialize) -> Result<Map<String, Value>, clap::Error> {
    let value = serde_json::to_value(section)
        .map_err(|error| clap::Error::raw(clap::error::ErrorKind::InvalidUtf8, error.to_string()))?;
    Ok(if let Value::Object(object) = value { object } else { Map::new() })
}

/// The origin of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueOrigin {
    /// Flags.
    CommandLine,
    /// The map at `path` of the configuration file, which is in `directory`.
    File { path: String, directory: PathBuf },
}

impl ValueOrigin {
    fn place(&self, flag: &str) -> KeyLocation {
        match self {
            Self::CommandLine => KeyLocation { key: format!("--{flag}"), directory: PathBuf::new() },
            Self::File { directory, .. } => {
                KeyLocation { key: self.key(&key_of(flag)), directory: directory.clone() }
            }
        }
    }

    /// The path of a key, known or not, for errors.
    fn key(&self, key: &str) -> String {
        match self {
            Self::CommandLine => key.to_owned(),
            Self::File { path, .. } if path.is_empty() => key.to_owned(),
            Self::File { path, .. } => format!("{path}.{key}"),
        }
    }
}

/// The location of one value: where it is set, or where it belongs if it is not.
#[derive(Debug, Clone)]
pub(super) struct KeyLocation {
    /// The flag, or the path of the key in the configuration file.
    pub(super) key: String,
    directory: PathBuf,
}

impl KeyLocation {
    /// Resolves a path against the directory of the configuration file, or against the working directory for a flag.
    pub(super) fn path(&self, given: &Path) -> PathBuf {
        below(&self.directory, given)
    }
}

/// The values of one section from one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigLayer {
    pub(super) values: Map<String, Value>,
    pub(super) origin: ValueOrigin,
}

/// A merged section with the origin of each value.
#[derive(Debug)]
pub(super) struct MergedSection<T> {
    /// The values.
    pub(super) values: T,
    given: BTreeMap<String, ValueOrigin>,
    home: ValueOrigin,
}

impl<T: Args + Serialize + DeserializeOwned> MergedSection<T> {
    /// Merges `layers` key by key; a later layer overrides an earlier one. `null` restores the default. Unknown keys
    /// and values of the wrong type are left out and added to `unread`.
    pub(super) fn read(
        layers: impl IntoIterator<Item = ConfigLayer>,
        unread: &mut Vec<ConfigError>,
    ) -> Option<Self> {
        // Unreachable for the section types there are: a test reads the defaults of each.
        let broken = |problem: String| ConfigError::new("defaults", problem);
        let defaults = defaults::<T>().map_err(|error| unread.push(broken(error.to_string()))).ok()?;
        let mut values = defaults.clone();
        let mut given = BTreeMap::new();
        let mut home = ValueOrigin::CommandLine;
        for layer in layers {
            for (key, value) in layer.values {
                let is_default = value.is_null();
                match check_key::<T>(&defaults, &key, value) {
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
            if layer.origin != ValueOrigin::CommandLine {
                home = layer.origin;
            }
        }
        let values = serde_json::from_value(Value::Object(values));
        let values = values.map_err(|error| unread.push(broken(error.to_string()))).ok()?;
        Some(Self { values, given, home })
    }
}

impl<T> MergedSection<T> {
    /// The location of a flag's value.
    pub(super) fn place(&self, flag: &str) -> KeyLocation {
        self.given.get(&key_of(flag)).unwrap_or(&self.home).place(flag)
    }

    /// Whether the file or the command line sets a flag, possibly to its default.
    pub(super) fn is_given(&self, flag: &str) -> bool {
        self.given.contains_key(&key_of(flag))
    }

    /// The map below a key of the file, as a layer.
    pub(super) fn below(&self, key: &str, values: &Map<String, Value>) -> ConfigLayer {
        let place = self.home.place(key);
        let origin = ValueOrigin::File { path: place.key, directory: place.directory };
        ConfigLayer { values: values.clone(), origin }
    }

    /// Whether any layer came from the file.
    pub(super) fn in_file(&self) -> bool {
        self.home != ValueOrigin::CommandLine
    }

    /// The name of a flag in errors: the flag itself, or its key in the file.
    pub(super) fn key(&self, flag: &str) -> String {
        self.place(flag).key
    }
}

/// Checks that the section has the key and that the value has its type. Else returns the problem and the fix.
fn check_key<T: Args + DeserializeOwned>(
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

/// Serializes a choice as the value of its flag.
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
            de::Error::custom(format!("{name:?} is not one of {}", names.join(", ")))
        })
    }
}

/// Serializes an optional choice as the value of its flag.
pub(super) mod by_optional_flag_name {
    use clap::ValueEnum;
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub(crate) fn serialize<T: ValueEnum, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::by_flag_name::serialize(value, serializer),
            None => None::<()>.serialize(serializer),
        }
    }

    pub(crate) fn deserialize<'de, T: ValueEnum, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let value = Option::<serde_json::Value>::deserialize(deserializer)?;
        let parsed = value.map(super::by_flag_name::deserialize).transpose();
        parsed.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::{
        AdmissionFlags, AuditFlags, AuthenticationFlags, AuthorizationFlags, BackendFlags, ClusterKeys,
        ControllerFlags, LimitFlags, MatchKeys, OperationFlags, PageFlags, PodRuleKeys, PodSignerKeys,
        ServingFlags, SessionFlags, SignerProfileKeys,
    };
    use crate::config::management_cluster::ManagementClusterKeys;

    /// `clap` and `serde` agree on the name of every value. `without_flag` are the keys without a flag.
    fn keys_are_those_of_flags<T: Args + Serialize + DeserializeOwned>(without_flag: &[&str]) {
        let command = T::augment_args(Command::new(""));
        let flags = command.get_arguments().filter_map(clap::Arg::get_long).map(key_of);
        let mut expected: Vec<String> = flags.chain(without_flag.iter().map(|&key| key.to_owned())).collect();
        expected.sort();
        let defaults = defaults::<T>().unwrap();
        assert_eq!(defaults.keys().cloned().collect::<Vec<_>>(), expected);
        assert!(
            serde_json::from_value::<T>(Value::Object(defaults)).is_ok(),
            "the defaults must deserialize"
        );
    }

    #[test]
    fn every_flag_has_its_key() {
        keys_are_those_of_flags::<ServingFlags>(&[]);
        keys_are_those_of_flags::<AuthenticationFlags>(&[]);
        keys_are_those_of_flags::<AuthorizationFlags>(&[]);
        keys_are_those_of_flags::<AdmissionFlags>(&[]);
        keys_are_those_of_flags::<AuditFlags>(&[]);
        keys_are_those_of_flags::<SessionFlags>(&[]);
        keys_are_those_of_flags::<LimitFlags>(&[]);
        keys_are_those_of_flags::<BackendFlags>(&[]);
        keys_are_those_of_flags::<ClusterKeys>(&[
            "admission",
            "audit",
            "authentication",
            "authorization",
            "controllerManager",
            "limits",
            "match",
            "sessions",
        ]);
        keys_are_those_of_flags::<MatchKeys>(&[]);
        keys_are_those_of_flags::<ManagementClusterKeys>(&[]);
        keys_are_those_of_flags::<ControllerFlags>(&[]);
        keys_are_those_of_flags::<SignerProfileKeys>(&[]);
        keys_are_those_of_flags::<PodSignerKeys>(&["rules"]);
        keys_are_those_of_flags::<PodRuleKeys>(&[]);
        keys_are_those_of_flags::<OperationFlags>(&[]);
        keys_are_those_of_flags::<PageFlags>(&[]);
    }

    #[test]
    fn keys_are_written_as_kubernetes_writes_them() {
        let cases = [
            ("client-ca-file", "clientCAFile"),
            ("tls-sni-cert-key", "tlsSNICertKey"),
            ("requestheader-uid-headers", "requestheaderUIDHeaders"),
            ("oidc-issuer-url", "oidcIssuerURL"),
            ("backend-kubeconfig", "kubeconfig"),
            ("admission-mode", "mode"),
            ("admission-control-config-file", "admissionControlConfigFile"),
            ("v", "v"),
        ];
        for (flag, key) in cases {
            assert_eq!(key_of(flag), key);
        }
    }
}
