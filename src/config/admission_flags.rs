//! The flags of admission at the gateway: kube-apiserver's, with its names, and a few of our own. They have a
//! cluster's section of the configuration file, `admission`.
#![expect(clippy::doc_markdown, reason = "the doc comments are the text of --help")]
// apiserver: pkg/server/options/admission.go

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::admission::settings::AdmissionMode;

/// Which admission webhooks the gateway calls, and which policies it evaluates.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[command(next_help_heading = "Admission")]
pub struct AdmissionFlags {
    /// File with an AdmissionConfiguration (apiserver.config.k8s.io): for the plugins MutatingAdmissionPolicy,
    /// MutatingAdmissionWebhook, ValidatingAdmissionPolicy and ValidatingAdmissionWebhook the folder of manifests, and the
    /// credentials for webhooks.
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Admission plugins to enable, comma-separated: MutatingAdmissionPolicy, MutatingAdmissionWebhook,
    /// ValidatingAdmissionPolicy, ValidatingAdmissionWebhook. All four are enabled by default; all others run in the backend.
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable, comma-separated: MutatingAdmissionPolicy, MutatingAdmissionWebhook,
    /// ValidatingAdmissionPolicy, ValidatingAdmissionWebhook. What a disabled plugin has in its folder is not read.
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// Which object admission webhooks and policies see; required with them, and without default. `pinnedDryRun`: the object as
    /// the backend would store it, from a dry run; the write is pinned to what they saw. `requestLevel`: the
    /// object as the client sent it, without the backend's defaults; only CREATE and CONNECT.
    #[arg(long, value_enum, value_name = "MODE")]
    #[serde(rename = "mode", with = "super::sections::by_optional_flag_name")]
    pub admission_mode: Option<AdmissionMode>,
    /// Names of admission webhooks, comma-separated, that are called without effect on requests: to try them out.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "shadowWebhooks")]
    pub admission_shadow_webhooks: Vec<String>,
    /// Names of admission policies, comma-separated, that are evaluated without effect on requests: to try
    /// them out.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(rename = "shadowPolicies")]
    pub admission_shadow_policies: Vec<String>,
}
