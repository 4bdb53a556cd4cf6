//! `portcullis check`: what `serve` would say, without serving.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{failed, misconfigured};
use crate::clusters::settings::Cluster;
use crate::clusters::settings::IdentityMode;
use crate::config::ConfigErrors;
use crate::config::flags::{MetricsAddress, ServeFlags};
use crate::config::inputs::Inputs;
use crate::config::resolve::{Resolved, resolve};
use crate::snapshot::Snapshot;

/// The flags of `portcullis check`: those of `serve`, and how to print.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(super) struct CheckFlags {
    #[command(flatten)]
    serve: ServeFlags,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table, for people.
    Text,
    /// JSON, for programs.
    Json,
}

/// What would be served.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    serving: String,
    metrics: Option<String>,
    backend: String,
    identity: &'static str,
    authenticators: Vec<String>,
    request_timeout_seconds: u64,
    warnings: Vec<String>,
}

/// What is wrong.
#[derive(Debug, Serialize)]
struct Failure<'a> {
    errors: Vec<FailureItem<'a>>,
}

#[derive(Debug, Serialize)]
struct FailureItem<'a> {
    key: &'a str,
    file: Option<&'a std::path::Path>,
    problem: &'a str,
    fix: Option<&'a str>,
}

pub(super) fn run(flags: &CheckFlags) -> ExitCode {
    let resolved = match resolve(&flags.serve, &mut Inputs::default()) {
        Ok(resolved) => resolved,
        Err(errors) => return report_errors(&errors, flags.output),
    };
    if let Err(error) = Snapshot::build(&resolved.settings, None) {
        return failed(&error.to_string());
    }
    let Some(cluster) = resolved.settings.clusters.first() else { return failed("no cluster") };
    let report = Report::of(&resolved, cluster);
    let text = match flags.output {
        Output::Text => report.table(),
        Output::Json => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
    };
    print(&text)
}

fn report_errors(errors: &ConfigErrors, output: Output) -> ExitCode {
    if output == Output::Json {
        let items = errors.0.iter().map(|error| FailureItem {
            key: &error.key,
            file: error.file.as_deref(),
            problem: &error.problem,
            fix: error.fix.as_deref(),
        });
        let failure = Failure { errors: items.collect() };
        print(&(serde_json::to_string_pretty(&failure).unwrap_or_default() + "\n"));
    }
    misconfigured(errors)
}

fn print(text: &str) -> ExitCode {
    std::io::stdout().write_all(text.as_bytes()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

impl Report {
    fn of(resolved: &Resolved, cluster: &Cluster) -> Self {
        let settings = &resolved.settings;
        let Cluster { authentication, backend, .. } = cluster;
        let mut authenticators = Vec::new();
        if let Some(request_header) = &authentication.request_header {
            let names = match request_header.allowed_names.as_slice() {
                [] => "any front proxy of its CA".to_owned(),
                names => format!("front proxies {}", names.join(", ")),
            };
            authenticators.push(format!("request headers, from {names}"));
        }
        if authentication.client_ca.is_some() {
            authenticators.push("client certificates".to_owned());
        }
        if let Some(tokens) = &authentication.static_tokens {
            let count = tokens.count();
            authenticators.push(format!("token file, {count} token{}", if count == 1 { "" } else { "s" }));
        }
        if authentication.anonymous {
            authenticators.push("anonymous".to_owned());
        }
        let metrics = match settings.operation.metrics {
            MetricsAddress::On(address) => Some(format!("http://{address}/metrics")),
            MetricsAddress::Off => None,
        };
        Self {
            serving: format!("https://{}", settings.serving.address),
            metrics,
            backend: backend
                .endpoints
                .iter()
                .map(|endpoint| format!("https://{}{}", endpoint.address, backend.path_prefix))
                .collect::<Vec<_>>()
                .join(", "),
            identity: match backend.identity {
                IdentityMode::RequestHeader => "requestHeader",
                IdentityMode::Impersonate => "impersonate",
            },
            authenticators,
            request_timeout_seconds: settings.operation.request_timeout.as_secs(),
            warnings: resolved.warnings.clone(),
        }
    }

    fn table(&self) -> String {
        let mut rows = vec![
            ("serves", self.serving.clone()),
            ("metrics", self.metrics.clone().unwrap_or_else(|| "off".to_owned())),
            ("backend", self.backend.clone()),
            ("identity", self.identity.to_owned()),
        ];
        let mut title = "clients";
        for authenticator in &self.authenticators {
            rows.push((title, authenticator.clone()));
            title = "";
        }
        rows.push(("timeout", format!("{}s", self.request_timeout_seconds)));
        for warning in &self.warnings {
            rows.push(("warning", warning.clone()));
        }
        let lines =
            rows.iter().map(|(title, value)| format!("{title:<9} {value}").trim_end().to_owned() + "\n");
        lines.chain(std::iter::once("the configuration is good\n".to_owned())).collect()
    }
}
