//! The gateway in front of real API servers that are configured in several ways.
//!
//! ```text
//! cargo test --test real                                 all groups
//! cargo test --test real -- admission::                  Helm and the control plane, with admission webhooks
//! cargo test --test real -- credential_end::             kubectl with tokens of ten seconds
//! cargo test --test real -- endpoint_discovery::         a server that publishes its address in an EndpointSlice
//! cargo test --test real -- misconfigured::              servers that do not accept the gateway's headers
//! cargo test --test real -- openid::                     users of a real OpenID provider
//! cargo test --test real -- page::                       the page of the clusters in headless Chromium
//! cargo test --test real -- recordings::                 recordings in asciinema's reader
//! cargo test --test real -- service_account_tokens::     the requests that tokens cost a server
//! cargo test --test real -- replicas::                   several servers and gateways, some of which fail
//! cargo test --test real -- sessions::                   kubectl's exec, attach, cp and port-forward, recorded
//! cargo test --test real -- static_pod::                 what `portcullis convert` makes of kubeadm's control plane, and README beside it
//! cargo test --test real -- two_clusters::               API servers of two clusters, configured as one
//! ```
//!
//! The servers are built on first use, see `tests/go/README.md`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test program: a panic is a failed test, and its messages go to the terminal"
)]

mod admission;
mod credential_end;
mod endpoint_discovery;
mod misconfigured;
mod openid;
mod page;
mod quick_start;
mod recordings;
mod replicas;
mod servers;
mod service_account_tokens;
mod sessions;
mod static_pod;
mod two_clusters;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use testkit::real::{Source, run, skip_if_absent};

use servers::RealServers;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

/// A test, given the servers of the run.
type Test = Box<dyn FnOnce(&RealServers) -> Result<(), String> + Send>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let source = Source::find();
    let absent = source.absent();
    let without_controllers = source.without_controllers();
    let without_admission = absent.clone().or_else(|| admission::absent(&source));
    let servers = Arc::new(RealServers::new(source));
    let trial_of = |group: &'static str| {
        let servers = Arc::clone(&servers);
        move |name: &str, test: Test| {
            let servers = Arc::clone(&servers);
            Trial::test(format!("{group}::{name}"), move || test(&servers).map_err(Into::into))
        }
    };
    let replicas = replicas::trials(&trial_of("replicas"));
    // Tests wait for servers, some of which they share. Those of replicas wait for each other, so that one runs beside others.
    arguments.test_threads.get_or_insert(3 + replicas.len());
    let groups = [
        (replicas, absent.clone()),
        (admission::trials(&trial_of("admission")), without_admission),
        (credential_end::trials(&trial_of("credential_end")), absent.clone()),
        (endpoint_discovery::trials(&trial_of("endpoint_discovery")), absent.clone()),
        (misconfigured::trials(&trial_of("misconfigured")), absent.clone()),
        (openid::trials(&trial_of("openid")), absent.clone().or_else(openid::absent)),
        (page::trials(&trial_of("page")), absent.clone().or_else(page::absent)),
        (recordings::trials(&trial_of("recordings")), openid::absent()),
        (service_account_tokens::trials(&trial_of("service_account_tokens")), absent.clone()),
        (sessions::trials(&trial_of("sessions")), absent.clone()),
        (static_pod::trials(&trial_of("static_pod")), absent.clone().or(without_controllers)),
        (two_clusters::trials(&trial_of("two_clusters")), absent),
    ];
    let mut trials = Vec::new();
    for (group, absent) in groups {
        match skip_if_absent("real", absent, group) {
            Ok(group) => trials.extend(group),
            Err(code) => return code,
        }
    }
    let (conclusion, keep_logs) = run(&arguments, trials);
    if let Some(servers) = Arc::into_inner(servers) {
        servers.finish(keep_logs);
    }
    conclusion.exit_code()
}
