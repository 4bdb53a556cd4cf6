//! The gateway beside HAProxy and nginx at the same work: clients with certificates, identity in headers, TLS with a
//! certificate of the proxy's own to one backend. Everybody has one thread and takes turns with the others, so that
//! whatever else the machine does falls on all of them.
//!
//! `cargo bench --bench compare`, and `-- --help` for the rest.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement that is run by hand"
)]

mod child;
mod cost;
mod figures;
mod load;
mod proxies;
mod rates;
mod scene;
mod wire;

#[path = "../../tests/support/pki.rs"]
mod pki;
#[path = "../../tests/it"]
#[allow(dead_code, reason = "the tests use the rest")]
mod it {
    pub mod support;
}
use it::support;

use clap::Parser;

use figures::Figures;
use proxies::{Kind, Proxy};
use scene::Scene;
use support::process::raise_file_limit;

/// The gateway beside HAProxy and nginx at the same work.
#[derive(Parser, Clone)]
struct Options {
    /// How long each proxy is loaded in a turn.
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    seconds: f64,
    /// How often every proxy has its turn; medians of these are shown.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    child::become_program();
    let options = Options::parse();
    raise_file_limit();
    let scene = Scene::new();
    let mut proxies = Vec::new();
    for kind in Kind::present() {
        let proxy = Proxy::start(kind, &scene).await;
        scene.verify(kind.name(), proxy.address()).await;
        proxies.push((kind, proxy));
    }
    let mut figures = Figures::default();
    rates::measure(&options, &scene, &proxies, &mut figures).await;
    for figure in &figures.0 {
        println!("{figure:?}");
    }
}
