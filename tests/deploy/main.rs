//! The files of `deploy/`: the chart, the kustomizations, the permissions, the dashboard and the alerts.
//!
//! ```text
//! cargo test --test deploy                         all groups
//! cargo test --test deploy -- chart::              what helm renders, what it derives from the configuration, and copied files
//! cargo test --test deploy -- manifests::          a real API server accepts everything, unknown fields are errors
//! cargo test --test deploy -- monitoring::         metrics, alerts and their pages
//! cargo test --test deploy -- permissions::        without any one of its rules a feature of the gateway fails
//! cargo test --test deploy -- page::               the commands of docs/deployment.md
//! ```
//!
//! helm and promtool are built with Go on first use, as the real servers are (`tests/go/README.md`). kustomize is part of
//! kubectl.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program: a panic is a failed test")]

mod chart;
mod cluster;
mod derived;
mod manifests;
mod monitoring;
mod page;
mod permissions;
mod pod_requests;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use testkit::go_tool::{GoTool, HELM};
use testkit::real::{Source, run, skip_if_absent};

use cluster::Cluster;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

/// promtool, without service discovery, which takes most of its build.
const PROMTOOL: GoTool = GoTool {
    name: "promtool",
    module: "tests/deploy/promtool",
    flags: &["-ldflags=-s -w", "-tags=remove_all_sd"],
};

/// A test, given the API server of the run.
type Test = Box<dyn FnOnce(&Cluster) -> Result<(), String> + Send>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Tests wait for servers, some of which they share.
    arguments.test_threads.get_or_insert(4);
    let source = Source::find();
    let (absent, without_go) = (source.absent(), HELM.absent());
    // The page installs what `manifests` applies, and `permissions` takes it away: each has its own API server.
    let clusters = ["deploy", "deploy-page", "deploy-permissions"]
        .map(|target| Arc::new(Cluster::new(target, source.clone())));
    let [cluster, page, permissions] = &clusters;
    let trial_of = |group: &'static str, cluster: &Arc<Cluster>| {
        let cluster = Arc::clone(cluster);
        move |name: &str, test: Test| {
            let cluster = Arc::clone(&cluster);
            Trial::test(format!("{group}::{name}"), move || test(&cluster).map_err(Into::into))
        }
    };
    let rendering = trial_of("chart", cluster);
    let groups = [
        (
            [chart::trials(&rendering), derived::trials(&rendering)].into_iter().flatten().collect(),
            without_go.clone(),
        ),
        (manifests::trials(&trial_of("manifests", cluster)), absent.clone().or(without_go.clone())),
        (page::trials(&trial_of("page", page)), absent.clone().or(without_go.clone())),
        (permissions::trials(&trial_of("permissions", permissions)), absent.clone().or(without_go.clone())),
        (monitoring::trials(&trial_of("monitoring", cluster)), without_go),
    ];
    let mut trials = Vec::new();
    for (group, absent) in groups {
        match skip_if_absent("deploy", absent, group) {
            Ok(group) => trials.extend(group),
            Err(code) => return code,
        }
    }
    let (conclusion, keep_logs) = run(&arguments, trials);
    for cluster in clusters.into_iter().filter_map(Arc::into_inner) {
        cluster.finish(keep_logs);
    }
    conclusion.exit_code()
}
