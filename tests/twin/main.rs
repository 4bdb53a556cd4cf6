//! The gateway beside the real kube-apiserver: every case is sent to both, and the answers must be equal.
//!
//! ```text
//! cargo test --test twin -- gateway     the real binary in front of a kube-apiserver that trusts only request headers
//! cargo test --test twin -- proof       the harness proves itself: a second, equal kube-apiserver shows no difference
//!                                       in any case, the bare backend shows one in every group
//! cargo test --test twin -- ::x509::    one group
//! ```
//!
//! The servers are built on first use (`tests/backend/README.md`). How it fits together: `case.rs` is what is sent and what the
//! reference must answer, `cases/` the cases, `people.rs` the client certificates and tokens, `fixtures.rs` the objects and rights,
//! `servers.rs` the running servers, `client.rs` the wire, `compare.rs` what equal means, `kubectl.rs` the same with kubectl. `kubelet.rs`
//! is the far end of exec, attach, port-forward and logs; `tunnels.rs` looks at those from both ends. `authenticators.rs` is whose
//! tokens are taken, `mint.rs` signs them, `outside.rs` are the issuers and the webhook that are asked about them.
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

mod authenticators;
mod case;
mod cases;
mod client;
mod compare;
mod fixtures;
mod kubectl;
mod kubelet;
mod listener;
mod mint;
mod outside;
mod people;
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
    // The cases wait for servers; they do not compute.
    arguments.test_threads.get_or_insert(8);
    let source = Source::find();
    let without_controllers = source.without_controllers();
    let controllers = without_controllers.is_none();
    // A few cases need kube-controller-manager; without it these are skipped, unless none may be.
    let absent = source.absent().or_else(|| without_controllers.filter(|_| is_required()));
    let plan = run::Plan::new(&arguments);
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
    conclusion.exit_code()
}
