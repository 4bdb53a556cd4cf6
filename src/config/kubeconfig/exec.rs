//! Credential plugins: programs that print an `ExecCredential` of the API group `client.authentication.k8s.io`.
//!
//! [`plugin_cache`](super::plugin_cache) decides when a plugin runs. It runs without standard input; one with
//! `interactiveMode: Always` is rejected. Its output is a secret, and no error shows it.

use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::config::{ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use portcullis_go::time;
use portcullis_kubernetes::yaml;
use portcullis_system::clock::{Clock, UnixTime};
use serde::{Deserialize, Serialize};

use super::credential::{ClientCredential, CredentialError, NamedContent, bearer_token, client_certificate};
use super::process::{ProcessError, stdout_of};

/// The timeout of one run, enough for two requests to a distant server.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The environment variable with the plugin's input, an [`ExecInfo`].
const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
/// What systemd gives to the process alone: a plugin must not speak to it in the process's name.
// kube-apiserver unsets NOTIFY_SOCKET: go-systemd/daemon/sdnotify.go, SdNotify(true, …)
const SERVICE_MANAGER_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"];
const V1: &str = "client.authentication.k8s.io/v1";
const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

/// A plugin with its arguments and environment. Equal plugins share one credential.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::config) struct ExecPlugin {
    command: String,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    api_version: String,
    info: String,
    install_hint: Option<String>,
}

/// The credential from one run of a plugin.
#[derive(Debug, Clone)]
pub(in crate::config) struct PluginCredential {
    pub(super) credential: ClientCredential,
    /// When it expires; `None`: only when the backend rejects it.
    pub(super) expires: Option<UnixTime>,
}

/// Why a plugin gave no credential.
#[derive(Debug, thiserror::Error)]
pub(in crate::config) enum PluginError {
    /// The kubeconfig's exec section is invalid.
    #[error("{problem}")]
    Specification {
        /// The problem.
        problem: String,
        /// How to fix it.
        fix: &'static str,
    },
    /// The program does not exist.
    // client-go: plugin/pkg/client/auth/exec/exec.go, wrapCmdRunErrorLocked
    #[error("executable {command} not found")]
    NotFound {
        /// The program.
        command: String,
        /// The plugin's installHint.
        install_hint: Option<String>,
    },
    /// The program could not be run, or failed.
    #[error("{command} {error}")]
    Run {
        /// The program.
        command: String,
        /// The cause.
        #[source]
        error: ProcessError,
    },
    /// The output has no valid credential.
    #[error("{command} {problem}")]
    Output {
        /// The program.
        command: String,
        /// The problem, without any part of the output.
        problem: String,
    },
    /// The credential cannot be used.
    #[error("{command}: {error}")]
    Credential {
        /// The program.
        command: String,
        /// The cause.
        #[source]
        error: CredentialError,
    },
}

impl PluginError {
    /// How to fix it.
    pub(super) fn fix(&self) -> String {
        match self {
            Self::Specification { fix, .. } => (*fix).to_owned(),
            Self::NotFound { install_hint: Some(hint), .. } => hint.trim().to_owned(),
            Self::NotFound { install_hint: None, .. } => "install it, or give its path".to_owned(),
            Self::Run { .. } | Self::Output { .. } | Self::Credential { .. } => {
                "run the plugin by hand, as the gateway's user and with its environment".to_owned()
            }
        }
    }
}

/// The plugin's input in [`EXEC_INFO`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecInfo<'a> {
    api_version: &'a str,
    kind: &'static str,
    spec: ExecSpec,
}

#[derive(Serialize)]
struct ExecSpec {
    interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ExecAuthCluster>,
}

/// The plugin's output. No `Debug`: it holds secrets.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<Time>,
    #[serde(default)]
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ExecPlugin {
    /// Validates the exec section of a kubeconfig. `cluster` is set for a plugin with provideClusterInfo.
    // client-go: tools/clientcmd/validation.go, validateAuthInfo
    pub(super) fn new(exec: &ExecConfig, cluster: Option<ExecAuthCluster>) -> Result<Self, PluginError> {
        let wrong = |problem: &str, fix| Err(PluginError::Specification { problem: problem.to_owned(), fix });
        let command = exec.command.clone().unwrap_or_default();
        if command.is_empty() {
            return wrong("command must be specified", "give the name or the path of the plugin's program");
        }
        let api_version = exec.api_version.clone().unwrap_or_default();
        if ![V1, V1BETA1].contains(&api_version.as_str()) {
            let problem = format!("invalid apiVersion {api_version:?}");
            return wrong(&problem, "give client.authentication.k8s.io/v1, or v1beta1 for an older plugin");
        }
        match &exec.interactive_mode {
            Some(ExecInteractiveMode::Always) => {
                let problem = "has interactiveMode Always, and the gateway has no terminal";
                return wrong(
                    &format!("{command} {problem}"),
                    "give interactiveMode Never, and a plugin that needs no input",
                );
            }
            None if api_version == V1 => {
                let problem = format!("interactiveMode must be specified for {command}");
                return wrong(&problem, "give interactiveMode Never");
            }
            _ => {}
        }
        let mut environment = Vec::new();
        for variable in exec.env.iter().flatten() {
            let Some(name) = variable.get("name").filter(|name| !name.is_empty()) else {
                return wrong("an env variable has no name", "give name and value");
            };
            environment.push((name.clone(), variable.get("value").cloned().unwrap_or_default()));
        }
        let spec = ExecSpec { interactive: false, cluster };
        let info = ExecInfo { api_version: &api_version, kind: "ExecCredential", spec };
        let Ok(info) = serde_json::to_string(&info) else {
            return wrong("the cluster's extension cannot be written as JSON", "correct the extension");
        };
        let args = exec.args.clone().unwrap_or_default();
        let install_hint = exec.install_hint.clone().filter(|hint| !hint.trim().is_empty());
        Ok(Self { command, args, environment, api_version, info, install_hint })
    }

    /// The program, as written in the kubeconfig.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Runs the plugin. Blocks for at most [`PLUGIN_TIMEOUT`] and a second.
    pub(super) fn run(&self, clock: &Clock) -> Result<PluginCredential, PluginError> {
        let mut command = Command::new(&self.command);
        command.args(&self.args).stdin(Stdio::null());
        for variable in SERVICE_MANAGER_VARIABLES {
            command.env_remove(variable);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).env(EXEC_INFO, &self.info);
        let output = stdout_of(&mut command, PLUGIN_TIMEOUT).map_err(|error| match error {
            ProcessError::Start(error) if error.kind() == std::io::ErrorKind::NotFound => {
                PluginError::NotFound {
                    command: self.command.clone(),
                    install_hint: self.install_hint.clone(),
                }
            }
            error => PluginError::Run { command: self.command.clone(), error },
        })?;
        self.read(&output, clock.now())
    }

    // client-go: plugin/pkg/client/auth/exec/exec.go, refreshCredsLocked
    fn read(&self, output: &[u8], now: UnixTime) -> Result<PluginCredential, PluginError> {
        let wrong = |problem: String| PluginError::Output { command: self.command.clone(), problem };
        let given = decode(output).map_err(|problem| {
            wrong(format!("did not print an ExecCredential in JSON or YAML: {problem}"))
        })?;
        if given.kind != "ExecCredential" {
            return Err(wrong("printed an object of another kind than ExecCredential".to_owned()));
        }
        if given.api_version != self.api_version {
            let wanted = &self.api_version;
            return Err(wrong(format!("is configured to use API version {wanted} and returned another one")));
        }
        let status = given.status.ok_or_else(|| wrong("didn't return a status field".to_owned()))?;
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let pair = match (filled(status.client_certificate_data), filled(status.client_key_data)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(wrong("returned only certificate or key, not both".to_owned())),
        };
        let token = filled(status.token);
        if token.is_none() && pair.is_none() {
            return Err(wrong("didn't return a token or cert/key pair".to_owned()));
        }
        let refused = |error| PluginError::Credential { command: self.command.clone(), error };
        let material =
            |name: &str, text: String| NamedContent { name: name.to_owned(), bytes: text.into_bytes() };
        let certificate = pair.map(|(certificate, key)| {
            let certificate = material("clientCertificateData", certificate);
            client_certificate(certificate, material("clientKeyData", key))
        });
        let certificate = certificate.transpose().map_err(refused)?;
        let token = token.map(|token| bearer_token("token", &token)).transpose().map_err(refused)?;
        let credential = ClientCredential { certificate, token };
        // A time before 1970 counts as expired.
        let stated = status.expiration_timestamp.map(|time| u64::try_from(time.0.as_second()).unwrap_or(0));
        let stated = stated.map(UnixTime::from_secs);
        let expires = [stated, credential.expires()].into_iter().flatten().min();
        if let Some(end) = expires.filter(|end| *end <= now) {
            return Err(wrong(format!(
                "returned a credential that expired at {}",
                time::format_since_epoch(end)
            )));
        }
        Ok(PluginCredential { credential, expires })
    }
}

/// Decodes JSON or YAML. No error quotes a value.
// apimachinery: pkg/runtime/serializer/json/json.go, Decode
fn decode(output: &[u8]) -> Result<ExecCredential, String> {
    if output.trim_ascii_start().starts_with(b"{") {
        let place =
            |error: serde_json::Error| format!("error at line {}, column {}", error.line(), error.column());
        return serde_json::from_slice(output).map_err(place);
    }
    let value = yaml::value(output).map_err(|_| "it cannot be read".to_owned())?;
    ExecCredential::deserialize(value).map_err(|_| "a field has another type".to_owned())
}
