//! Compares the gateway with kube-apiserver: every case is sent to both, and the responses must be equal.
//!
//! ```text
//! cargo test --test twin -- gateway     the gateway in front of a kube-apiserver that trusts only request headers
//! cargo test --test twin -- proof       tests of the harness: a second, equal kube-apiserver differs in no case,
//!                                       the backend without the gateway differs in every group (otherwise only on
//!                                       change of the harness and once a day, see `proof.rs`)
//! cargo test --test twin -- ::x509::    one group
//! ```
//!
//! The servers are built on first use (`tests/go/README.md`). Modules: `case.rs` has the requests and expected
//! responses of a case, `cases/` the cases, `people.rs` the client certificates and the token file, `fixtures.rs` the
//! objects and RBAC, `servers.rs` the running servers, `client.rs` the HTTP client, `compare.rs` the comparison of
//! responses, and `kubectl.rs` the cases with kubectl. `kubelet.rs` is a fake kubelet for exec, attach, port-forward
//! and logs; `tunnels.rs` tests these from both ends. `authenticators.rs` configures the token authenticators,
//! `authorizers.rs` the authorization webhooks, `race.rs`, `random_writes.rs` and `hidden_metrics.rs` write behind admission webhooks, `limits.rs` occupies the places for requests in flight, `mint.rs` signs tokens, and `outside.rs` has the issuers and the webhooks.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stderr,
    clippy::format_push_string,
    clippy::needless_pass_by_value,
    reason = "a test program: a panic is a failed test, and its messages go to the terminal"
)]

mod admission;
mod audit;
mod authenticators;
mod authorizers;
mod case;
mod cases;
mod client;
mod compare;
mod fixtures;
mod hidden_metrics;
mod kubectl;
mod kubelet;
mod limits;
mod listener;
mod mint;
mod mutations;
mod outside;
mod people;
mod policies;
mod proof;
mod race;
mod random_policies;
mod random_writes;
mod run;
mod rust_client;
mod servers;
mod spdy;
mod tunnels;
mod websocket;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use testkit::real::{Source, is_required, skip_if_absent};

use servers::SharedTwin;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The tests mostly wait for servers, so more of them than cores can run.
    arguments.test_threads.get_or_insert(8);
    let source = Source::find();
    let without_controllers = source.without_controllers();
    let controllers = without_controllers.is_none();
    // A few cases need kube-controller-manager and are skipped without it, unless skipping is disabled.
    let absent = source.absent().or_else(|| without_controllers.filter(|_| is_required()));
    let plan = match proof::is_wanted(&arguments) {
        Ok(proof) => run::Plan::new(&arguments, proof),
        Err(error) => {
            eprintln!("twin: {error}");
            return ExitCode::FAILURE;
        }
    };
    let record = plan.record();
    let servers = Arc::new(SharedTwin::new(source, plan.sides()));
    let trials = match skip_if_absent("twin", absent, plan.trials(&servers, controllers)) {
        Ok(trials) => trials,
        Err(code) => return code,
    };
    if !controllers {
        eprintln!(
            "\ntwin: SKIPPED, the cases that need kube-controller-manager: it is not among KUBEBUILDER_ASSETS\n"
        );
    }
    let (conclusion, keep_logs) = testkit::real::run(&arguments, trials);
    if let Some(servers) = Arc::into_inner(servers) {
        servers.finish(keep_logs);
    }
    if let Err(error) = record.finish() {
        eprintln!("twin: tests/twin/proven.txt: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
