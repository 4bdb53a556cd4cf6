//! A kubeconfig that is read, changed and written again with everything else in it, except comments and the order of
//! keys. [`kubeconfigs`] are all those of a user.

mod kubeconfigs;

use std::ffi::OsString;
use std::io;
use std::path::Path;

use portcullis_system::input_file::{self, ReadFileError};
use portcullis_system::platform;
use serde_json::{Map, Value, json};

use super::error::LoginError;
use super::settings::ClusterConfig;
pub(super) use kubeconfigs::{KubeconfigLocks, KubeconfigPaths, Kubeconfigs};

/// Commands whose users `login` may replace.
const OWN_COMMANDS: [&str; 3] = ["portcullis", "portcullis-login", PLUGIN];

/// The command as a plugin of kubectl, which `kubectl portcullis` runs.
pub(super) const PLUGIN: &str = "kubectl-portcullis";

/// The extension of a cluster that client-go gives exec plugins.
// client-go: tools/clientcmd/client_config.go, clusterExtensionKey
const CLUSTER_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A parsed kubeconfig.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeconfigFile(Map<String, Value>);

/// A context with its cluster and user.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeconfigTarget {
    /// The name of the context.
    pub context: String,
    /// The name of the cluster.
    pub cluster_name: String,
    /// The entry of the cluster.
    pub cluster: Value,
    /// The name of the user.
    pub user_name: String,
    /// The entry of the user.
    pub user: Value,
}

/// The lists of named entries, each with the key of its content.
const CLUSTERS: (&str, &str) = ("clusters", "cluster");
const USERS: (&str, &str) = ("users", "user");
const CONTEXTS: (&str, &str) = ("contexts", "context");

impl KubeconfigFile {
    /// An empty one.
    // client-go: tools/clientcmd/api/v1/types.go, Config
    #[expect(clippy::new_without_default, reason = "a kubeconfig is made on purpose")]
    pub fn new() -> Self {
        let mut content = Map::new();
        content.insert("apiVersion".to_owned(), json!("v1"));
        content.insert("kind".to_owned(), json!("Config"));
        Self(content)
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::new());
        }
        let value = portcullis_kubernetes::yaml::value(text)?;
        let Value::Object(content) = value else { return Err("is not a kubeconfig".to_owned()) };
        match content.get("kind") {
            None => {}
            Some(kind) if kind == "Config" => {}
            Some(kind) => return Err(format!("is of kind {kind}, not Config")),
        }
        for (list, _) in [CLUSTERS, USERS, CONTEXTS] {
            let is_list = content.get(list).is_none_or(|value| value.is_null() || value.is_array());
            if !is_list {
                return Err(format!("{list} is not a list"));
            }
        }
        Ok(Self(content))
    }

    /// Reads a file; an absent one is empty.
    pub(super) fn read(path: &Path) -> Result<Self, LoginError> {
        Ok(Self::read_existing(path)?.unwrap_or_else(Self::new))
    }

    /// Reads a file, if it exists.
    fn read_existing(path: &Path) -> Result<Option<Self>, LoginError> {
        let problem = |problem: &str| LoginError::usage(&format!("{}: {problem}", path.display()));
        match input_file::read(path) {
            Ok(text) => Self::parse(&text).map(Some).map_err(|error| problem(&error)),
            Err(ReadFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(problem(&format!("{error}; {}", error.fix()))),
        }
    }

    /// The file as text.
    pub fn to_yaml(&self) -> Result<String, LoginError> {
        serde_saphyr::to_string(&self.0).map_err(LoginError::other)
    }

    pub(super) fn current_context(&self) -> Option<&str> {
        self.0.get("current-context").and_then(Value::as_str).filter(|name| !name.is_empty())
    }

    /// Sets the context that kubectl uses by default.
    pub fn set_current_context(&mut self, name: &str) {
        self.0.insert("current-context".to_owned(), json!(name));
    }

    /// The names of all contexts.
    pub(super) fn contexts(&self) -> Vec<&str> {
        let contexts = self.0.get(CONTEXTS.0).and_then(Value::as_array);
        contexts.into_iter().flatten().filter_map(|context| context.get("name")?.as_str()).collect()
    }

    fn entry(&self, (list, key): (&str, &str), name: &str) -> Option<&Value> {
        let entries = self.0.get(list)?.as_array()?;
        entries.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?.get(key)
    }

    /// A context with its cluster and user.
    pub(super) fn target(&self, context: &str) -> Result<KubeconfigTarget, String> {
        let found = self.entry(CONTEXTS, context).ok_or_else(|| {
            format!("there is no context {context:?}; the contexts are {}", self.contexts().join(", "))
        })?;
        let named = |key: &str| {
            let name = found.get(key).and_then(Value::as_str);
            name.map(str::to_owned).ok_or_else(|| format!("the context {context:?} has no {key}"))
        };
        let (cluster_name, user_name) = (named("cluster")?, named("user")?);
        let cluster = self.entry(CLUSTERS, &cluster_name).cloned();
        let user = self.entry(USERS, &user_name).cloned();
        Ok(KubeconfigTarget {
            cluster: cluster.ok_or_else(|| format!("there is no cluster {cluster_name:?}"))?,
            user: user.ok_or_else(|| format!("there is no user {user_name:?}"))?,
            context: context.to_owned(),
            cluster_name,
            user_name,
        })
    }

    /// This file with the entries of another one whose names it does not have, as kubectl reads both.
    // client-go: tools/clientcmd/loader.go, ClientConfigLoadingRules.Load
    #[must_use]
    pub(super) fn or(mut self, other: &Self) -> Self {
        for kind @ (list, key) in [CLUSTERS, USERS, CONTEXTS] {
            for entry in other.0.get(list).and_then(Value::as_array).into_iter().flatten() {
                if let (Some(name), Some(content)) =
                    (entry.get("name").and_then(Value::as_str), entry.get(key))
                    && self.entry(kind, name).is_none()
                {
                    self.put(kind, name, content.clone());
                }
            }
        }
        if let (None, Some(name)) = (self.current_context(), other.current_context()) {
            self.set_current_context(name);
        }
        self
    }

    /// Adds a target. Entries of the same names are replaced only if `login` has written them, or with `overwrite`.
    pub fn merge(&mut self, target: &KubeconfigTarget, overwrite: bool) -> Result<(), String> {
        if !overwrite {
            self.check_conflicts(target)?;
        }
        let mut context =
            self.entry(CONTEXTS, &target.context).and_then(Value::as_object).cloned().unwrap_or_default();
        // A namespace that the user has chosen stays.
        context.insert("cluster".to_owned(), json!(target.cluster_name));
        context.insert("user".to_owned(), json!(target.user_name));
        self.put(CLUSTERS, &target.cluster_name, target.cluster.clone());
        self.put(USERS, &target.user_name, target.user.clone());
        self.put(CONTEXTS, &target.context, Value::Object(context));
        Ok(())
    }

    fn check_conflicts(&self, target: &KubeconfigTarget) -> Result<(), String> {
        const FIX: &str = "give another --name, or --overwrite";
        if let Some(user) = self.entry(USERS, &target.user_name)
            && *user != target.user
            && !is_own(user)
        {
            return Err(format!("the user {:?} exists with another credential; {FIX}", target.user_name));
        }
        // Other users of the entry trust its CAs, its server name and its proxy.
        // threat: hostile-kubeconfig
        if let Some(cluster) = self.entry(CLUSTERS, &target.cluster_name)
            && *cluster != target.cluster
        {
            let differs = |key: &str| cluster.get(key) != target.cluster.get(key);
            let what = if differs("server") { "another server" } else { "other settings" };
            return Err(format!("the cluster {:?} exists with {what}; {FIX}", target.cluster_name));
        }
        if let Some(context) = self.entry(CONTEXTS, &target.context)
            && (context.get("cluster") != Some(&json!(target.cluster_name))
                || context.get("user") != Some(&json!(target.user_name)))
        {
            return Err(format!(
                "the context {:?} exists with another cluster or user; {FIX}",
                target.context
            ));
        }
        Ok(())
    }

    /// Fails if a context that is not one of `replaced` uses the user that the target would change: it would log in with
    /// another issuer.
    // threat: hostile-kubeconfig
    pub(super) fn check_shared_user(
        &self,
        target: &KubeconfigTarget,
        replaced: &[&str],
    ) -> Result<(), String> {
        let arguments = credential_arguments(&target.user);
        let is_same = |user: &Value| {
            *user == target.user || arguments.is_some() && credential_arguments(user) == arguments
        };
        if self.entry(USERS, &target.user_name).is_none_or(is_same) {
            return Ok(());
        }
        // A context of the same cluster trusts the file as much: with other settings, the cluster is a conflict, too.
        let uses = |context: &&str| {
            let context = self.entry(CONTEXTS, context);
            let names = |key, name: &str| context.and_then(|context| context.get(key)) == Some(&json!(name));
            names("user", &target.user_name) && !names("cluster", &target.cluster_name)
        };
        match self.contexts().into_iter().filter(|context| !replaced.contains(context)).find(uses) {
            Some(context) => Err(format!(
                "the user {:?} exists with other arguments, and your context {context:?} uses it; give --overwrite to \
                 change it",
                target.user_name
            )),
            None => Ok(()),
        }
    }

    fn put(&mut self, (list, key): (&str, &str), name: &str, content: Value) {
        let entries = self.0.entry(list).or_insert_with(|| json!([]));
        if entries.is_null() {
            *entries = json!([]);
        }
        let Some(entries) = entries.as_array_mut() else { return };
        match entries.iter_mut().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name)) {
            Some(Value::Object(entry)) => {
                entry.insert(key.to_owned(), content);
            }
            _ => entries.push(json!({"name": name, key: content})),
        }
    }
}

/// Whether `login` has written a user: its exec plugin is this program.
fn is_own(user: &Value) -> bool {
    credential_arguments(user).is_some()
}

/// The arguments after `credential` of a user whose exec plugin is this program.
pub(super) fn credential_arguments(user: &Value) -> Option<Vec<String>> {
    let exec = user.get("exec")?;
    let program = Path::new(exec.get("command")?.as_str()?).file_name()?;
    let arguments: Option<Vec<String>> =
        exec.get("args")?.as_array()?.iter().map(|argument| argument.as_str().map(str::to_owned)).collect();
    let arguments = arguments?;
    let is_plugin = OWN_COMMANDS.iter().any(|own| platform::is_named(program, own))
        && arguments.first().is_some_and(|first| first == "credential");
    is_plugin.then(|| arguments.into_iter().skip(1).collect())
}

/// What the entry of a cluster gives exec plugins.
// client-go: tools/clientcmd/client_config.go, getUserIdentificationPartialConfig, and plugin/pkg/client/auth/exec/exec.go
pub(super) fn cluster_config(cluster: &Value) -> Result<ClusterConfig, String> {
    let extensions = cluster.get("extensions").and_then(Value::as_array);
    let found = extensions
        .into_iter()
        .flatten()
        .find(|extension| extension.get("name").and_then(Value::as_str) == Some(CLUSTER_EXTENSION));
    let config = found.and_then(|extension| extension.get("extension")).cloned().unwrap_or_default();
    let config: Option<ClusterConfig> = serde_json::from_value(config)
        .map_err(|error| format!("the extension {CLUSTER_EXTENSION}: {error}"))?;
    Ok(config.unwrap_or_default())
}

/// Whether client-go gives the exec plugin of a user the cluster.
pub(super) fn has_cluster_info(user: &Value) -> bool {
    user.pointer("/exec/provideClusterInfo") == Some(&json!(true))
}

/// Fails if client-go runs the exec plugin of a user with another cache, keyring or secret than this process has: with another
/// value of one of `variables`.
pub(super) fn check_environment(
    user: &Value,
    variables: &[&'static str],
    own: impl Fn(&str) -> Option<OsString>,
) -> Result<(), String> {
    let of_stanza = user.pointer("/exec/env").and_then(Value::as_array);
    let of_plugin = of_stanza.into_iter().flatten().filter_map(|variable| {
        let (name, value) = (variable.get("name")?.as_str()?, variable.get("value")?.as_str()?);
        Some((variables.iter().find(|known| **known == name)?, value))
    });
    for (name, value) in of_plugin {
        if own(name).is_none_or(|own| own != value) {
            return Err(format!(
                "the exec stanza sets {name}, so that kubectl would not find this login; run the command with the same \
                 {name}"
            ));
        }
    }
    Ok(())
}

/// The exec stanza of a user.
// client-go: tools/clientcmd/api/v1/types.go, ExecConfig
pub fn exec_user(command: &str, arguments: &[String]) -> Value {
    let mut all = vec!["credential".to_owned()];
    all.extend_from_slice(arguments);
    json!({"exec": {
        "apiVersion": super::exec_credential::V1,
        "command": command,
        "args": all,
        "env": null,
        "installHint": "Install portcullis and put it into your PATH: kubectl asks it for your login.",
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": true,
    }})
}

/// The same user with other arguments. What else its owner has set stays: variables of the plugin, `as`, certificates.
pub(super) fn with_arguments(mut user: Value, command: &str, arguments: &[String]) -> Value {
    let fresh = exec_user(command, arguments);
    match (user.get_mut("exec"), fresh.get("exec")) {
        (Some(Value::Object(exec)), Some(fresh)) => {
            // A certificate needs the cluster.
            for field in ["command", "args", "provideClusterInfo"] {
                exec.insert(field.to_owned(), fresh.get(field).cloned().unwrap_or_default());
            }
            user
        }
        _ => fresh,
    }
}

#[cfg(test)]
mod tests;
