//! `portcullis certs list`: the requests of a cluster, in the format of `kubectl get csr`.

use std::process::ExitCode;

use clap::Args;
use kube::api::ListParams;
use portcullis_system::clock::Clock;

use super::super::super::cluster::ClusterFlags;
use super::super::error::CommandError;
use super::super::table;
use super::{HEADING, RequestRow, with_cluster};
use crate::output::{Output, print};

/// The flags of `portcullis certs list`.
#[derive(Debug, Clone, Args)]
pub struct RequestListFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// List only requests that are neither approved nor denied.
    #[arg(long)]
    pending: bool,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(in crate::certs) fn run(flags: &RequestListFlags) -> Result<ExitCode, CommandError> {
    let found = with_cluster(&flags.cluster, async |cluster, api| {
        let parameters = ListParams::default();
        let asked = cluster.ask("list certificate signing requests", api.list(&parameters));
        asked.await.map_err(CommandError::Failed)
    })?;
    let now = Clock::system().now();
    let rows = found.items.iter().map(|request| RequestRow::of(request, now));
    let rows: Vec<RequestRow> = rows.filter(|row| !flags.pending || row.condition == "Pending").collect();
    let text = flags.output.rendered(&rows).unwrap_or_else(|| {
        if rows.is_empty() {
            return "No resources found\n".to_owned();
        }
        table::columns(HEADING, rows.iter().map(RequestRow::cells))
    });
    Ok(print(&text))
}
