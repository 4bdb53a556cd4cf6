//! What a request costs by how its sender is known: processor time of the gateway with one worker, each kind as a ratio
//! to a client certificate. The kinds take turns, so that whatever else the machine does falls on all of them.
//!
//! `cargo bench --bench rates -- --rounds 20 --requests 2000`

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
    reason = "a measurement that is run by hand"
)]

mod cost;
mod kinds;

#[path = "../../tests/support/pki.rs"]
mod pki;
#[path = "../../tests/it"]
#[allow(dead_code, reason = "the tests use the rest")]
mod it {
    pub mod support;
}
use it::support;

use std::sync::Arc;

use clap::Parser;

use cost::{Cost, median};
use kinds::{Kind, Scene};
use support::accounts::Accounts;
use support::process::Process;
use support::{Backend, H2, Pki, flags, full};

/// The cost of a request by kind of sender.
#[derive(Parser, Clone, Copy)]
struct Load {
    /// How often every kind has its turn.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// How many requests each makes in a turn.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    let load = Load::parse();
    let (pki, accounts) = (Pki::new(), Accounts::new());
    let known = Arc::clone(&accounts);
    let backend = Backend::start_saying(
        &pki,
        H2,
        move |request| known.answer(request),
        |_| Box::pin(async { http::Response::new(full(vec![b'x'; 512])) }),
    )
    .await;
    let keys = pki.write("accounts.pub", accounts.key.public_pem());
    let flags = flags(&pki, backend.address).into_iter().chain([
        format!("--service-account-issuer={}", support::accounts::ISSUER),
        format!("--service-account-key-file={}", keys.display()),
    ]);
    let tokens =
        ["good-token".to_owned(), kinds::long_token()].map(|token| format!("{token},carol,7,\"a,b\"\n"));
    pki.write("tokens.csv", tokens.concat());
    let process = Process::start(flags).await;
    let scene = Scene::new(&process.gateway, &pki, &accounts);

    for http2 in [false, true] {
        let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); Kind::ALL.len()];
        let mut crowds = Vec::new();
        for kind in Kind::ALL {
            crowds.push(scene.crowd(kind, http2).await);
        }
        // The first round warms everything up, and does not count.
        for round in 0..=load.rounds {
            for turn in 0..Kind::ALL.len() {
                let index = (round + turn) % Kind::ALL.len();
                let before = Cost::of(process.id());
                crowds[index].ask(load.requests).await;
                let cost = Cost::of(process.id()).since(before).of_one(load.requests);
                while backend.take().is_some() {}
                if round > 0 {
                    costs[index].push(cost);
                }
            }
        }
        println!("HTTP/{}", if http2 { "2" } else { "1.1" });
        for (kind, own) in Kind::ALL.iter().zip(&costs) {
            let rates: Vec<f64> =
                costs[0].iter().zip(own).map(|(certificate, own)| certificate.ratio(*own)).collect();
            println!(
                "{:>36}  {:>6.1} µs of processor time, {:.3} of the rate by certificate",
                kind.name(),
                median(own.iter().copied().map(Cost::microseconds)),
                median(rates.into_iter()),
            );
        }
    }
}
