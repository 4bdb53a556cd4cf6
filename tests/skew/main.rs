//! The gateway in front of several releases of kube-apiserver: what clients see through it is what the same API server answers them
//! directly.
//!
//! ```text
//! cargo test --test skew                                 the oldest release and the newest
//! PORTCULLIS_SKEW=all cargo test --test skew             all releases, and kubectl of the oldest; prints the table of docs/releases.md
//! cargo test --test skew -- upgrade::                    an upgrade: API servers of two releases in one cluster
//! ```
//!
//! Logins are not here: `openid::` of `tests/real` has them, and no API server takes part. The servers are built on first use, see
//! `tests/go/README.md`. `release.rs` starts a cluster of one release, `rows.rs` has what is tried with each, `upgrade.rs` the cluster
//! of two releases, `table.rs` the table.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test program: a panic is a failed test, and its messages go to the terminal"
)]

mod release;
mod rows;
mod table;
mod upgrade;
mod webhooks;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use testkit::real::{Source, newest_release, older_releases, run, skip_if_absent, without_go};

use table::Table;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

/// Why the servers are not those of the pinned releases, if so.
fn other_servers() -> Option<String> {
    let is_set = std::env::var_os("KUBEBUILDER_ASSETS").is_some_and(|value| !value.is_empty());
    is_set.then(|| "KUBEBUILDER_ASSETS is set, whose release is not known".to_owned())
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each has servers of its own.
    arguments.test_threads.get_or_insert(2);
    let all = std::env::var_os("PORTCULLIS_SKEW").is_some_and(|value| value == "all");
    let source = Source::find();
    let absent = source.absent().or_else(without_go).or_else(other_servers);
    let older = older_releases();
    let tried = if all { &older[..] } else { &older[..1] };
    let table = Arc::new(Table::default());
    let mut trials = vec![Trial::test("upgrade::two releases in one cluster", {
        let source = source.clone();
        move || upgrade::run(&source).map_err(Into::into)
    })];
    for version in tried.iter().cloned().chain(newest_release()) {
        let (source, table) = (source.clone(), Arc::clone(&table));
        let name = format!("releases::{version}");
        trials.push(Trial::test(name, move || {
            release::run(&source, &version, all, &table).map_err(Into::into)
        }));
    }
    let mut trials = match skip_if_absent("skew", absent, trials) {
        Ok(trials) => trials,
        Err(code) => return code,
    };
    trials.push(Trial::test("the table has the releases that are pinned", || {
        table::is_of_the_pinned_releases().map_err(Into::into)
    }));
    let (conclusion, _) = run(&arguments, trials);
    if all {
        eprintln!("\n{}", table.markdown());
    }
    conclusion.exit_code()
}
