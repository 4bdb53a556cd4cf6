//! `portcullis certs watch`: prints a line for each request and each change, until Ctrl-C.

use std::collections::HashMap;
use std::pin::pin;
use std::process::ExitCode;

use clap::Args;
use futures_util::StreamExt as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use portcullis_go::time;
use portcullis_system::clock::Clock;
use serde::Serialize;

use super::super::super::cluster::ClusterFlags;
use super::super::super::terminal::sanitized;
use super::super::error::CommandError;
use super::wait::refused_for_good;
use super::{RequestRow, with_cluster};
use crate::output::{Output, print};

/// The flags of `portcullis certs watch`.
#[derive(Debug, Clone, Args)]
pub struct WatchFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// The output format; json prints one document per line.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// One change, for the output.
#[derive(Debug, Serialize)]
struct RequestEvent<'a> {
    time: String,
    event: &'static str,
    request: &'a RequestRow,
}

pub(in crate::certs) fn run(flags: &WatchFlags) -> Result<ExitCode, CommandError> {
    with_cluster(&flags.cluster, async |cluster, api| {
        let mut known: HashMap<String, String> = HashMap::new();
        let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut interrupt = pin!(tokio::signal::ctrl_c());
        if flags.output == Output::Text {
            print(&line(
                ["TIME", "EVENT", "NAME", "SIGNERNAME", "REQUESTOR", "CONDITION"].map(str::to_owned),
            ));
        }
        loop {
            let event = tokio::select! {
                _ = &mut interrupt => return Ok(ExitCode::SUCCESS),
                event = events.next() => event,
            };
            match event {
                None => return Ok(ExitCode::SUCCESS),
                Some(Ok(Event::Apply(request) | Event::InitApply(request))) => {
                    let row = RequestRow::of(&request, Clock::system().now());
                    let before = known.insert(row.name.clone(), row.condition.clone());
                    let event = match before {
                        None => "added",
                        Some(before) if before != row.condition => "changed",
                        // The condition is unchanged.
                        Some(_) => continue,
                    };
                    if !print_event(flags.output, event, &row) {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                Some(Ok(Event::Delete(request))) => {
                    known.remove(super::name(&request));
                    deleted(flags.output, &request);
                }
                Some(Ok(Event::Init | Event::InitDone)) => {}
                Some(Err(error)) => {
                    if let Some(error) = refused_for_good(&error) {
                        let told = cluster.refusal("watch certificate signing requests", error);
                        return Err(CommandError::Failed(told));
                    }
                    super::super::super::print_error(&format!("{error}; retrying"));
                }
            }
        }
    })
}

fn deleted(output: Output, request: &CertificateSigningRequest) {
    print_event(output, "deleted", &RequestRow::of(request, Clock::system().now()));
}

/// Prints a change; `false` if standard output is closed.
fn print_event(output: Output, event: &'static str, request: &RequestRow) -> bool {
    let time = time::format_since_epoch(Clock::system().now());
    let text = match output {
        Output::Text => {
            let RequestRow { name, signer_name, requestor, condition, .. } = request;
            let cells = [name, signer_name, requestor, condition].map(Clone::clone);
            let [name, signer, requestor, condition] = cells;
            line([time, event.to_owned(), name, signer, requestor, condition])
        }
        Output::Json => {
            let seen = RequestEvent { time, event, request };
            serde_json::to_string(&seen).unwrap_or_default() + "\n"
        }
        Output::Yaml => {
            let seen = RequestEvent { time, event, request };
            format!("---\n{}", Output::Yaml.rendered(&seen).unwrap_or_default())
        }
    };
    print(&text) == ExitCode::SUCCESS
}

/// Columns of fixed width, since later rows are unknown.
fn line([time, event, name, signer, requestor, condition]: [String; 6]) -> String {
    let text = format!("{time:<20}  {event:<7}  {name:<24}  {signer:<44}  {requestor:<28}  {condition}");
    sanitized(text.trim_end()) + "\n"
}
