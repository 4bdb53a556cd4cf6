//! Runs attacks that have succeeded on other proxies: on the gateway, where none may succeed, and on a deliberately
//! naive proxy, where they must succeed. The requests that reach the API server decide the outcome.
//!
//! `cargo test --test attacks -- --proxy 'COMMAND …'` runs them on another proxy; see the README beside this file.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test program: a panic is a failed test, and its table goes to the terminal"
)]

mod attacks;
mod environment;
mod impersonation;
mod naive;

use std::sync::{Arc, Mutex};

use libtest_mimic::{Arguments, Trial};
use testkit::TEST_TIMEOUT;

use attacks::Attack;
use environment::{AttackEnvironment, Needs, Proxy};

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");

const HANGS: &str = "the proxy hangs";

/// One attack and its outcome: an error if the attack succeeded.
struct Row {
    attack: &'static Attack,
    outcome: Result<(), String>,
}

fn main() {
    let mut words: Vec<String> = std::env::args().collect();
    let other = words.iter().position(|word| word == "--proxy").map(|at| {
        let command = words.get(at + 1).expect("--proxy needs a command").clone();
        words.drain(at..at + 2);
        command
    });
    let arguments = Arguments::from_iter(words);
    let rows: Arc<Mutex<Vec<Row>>> = Arc::default();
    let subject = other.map_or(Proxy::Gateway, Proxy::Other);
    let mut trials: Vec<Trial> = Vec::new();
    for attack in all() {
        if matches!(attack.needs, Needs::Clusters | Needs::LoadBalancer) && !matches!(subject, Proxy::Gateway)
        {
            continue;
        }
        let (rows, attacked) = (Arc::clone(&rows), subject.clone());
        trials.push(Trial::test(format!("gateway::{}", attack.name), move || {
            let outcome = attempt(attack, &attacked);
            rows.lock().unwrap().push(Row { attack, outcome: outcome.clone() });
            outcome.map_err(|got| format!("the attacker succeeds: {got}").into())
        }));
        if matches!(subject, Proxy::Gateway) && attack.naive.is_ok() {
            trials.push(Trial::test(format!("naive::{}", attack.name), move || {
                match attempt(attack, &Proxy::Naive) {
                    Ok(()) => Err("it fails even there, and so shows nothing".into()),
                    // A proxy that stops responding has not withstood the attack.
                    Err(got) if [environment::LOST, HANGS].iter().any(|broken| got.contains(broken)) => {
                        Err(got.into())
                    }
                    Err(_) => Ok(()),
                }
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        report(&mut rows.lock().unwrap());
    }
    conclusion.exit();
}

fn all() -> impl Iterator<Item = &'static Attack> {
    attacks::ATTACKS.iter().chain(impersonation::ATTACKS)
}

fn attempt(attack: &'static Attack, proxy: &Proxy) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut environment = AttackEnvironment::start(proxy, attack.needs).await;
        tokio::time::timeout(TEST_TIMEOUT * 2, (attack.attempt)(&mut environment))
            .await
            .unwrap_or_else(|_| Err(HANGS.to_owned()))
    })
}

fn report(rows: &mut [Row]) {
    rows.sort_by_key(|row| all().position(|attack| attack.name == row.attack.name));
    let width = |column: fn(&Row) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let (names, cases) = (width(|row| row.attack.name.len()), width(|row| row.attack.case.len()));
    println!("{:names$}  {:cases$}  outcome", "attack", "reproduces");
    for Row { attack, outcome } in &*rows {
        let Attack { name, case, .. } = attack;
        let outcome = match outcome {
            Ok(()) => "failed".to_owned(),
            Err(got) => format!("SUCCEEDED: {got}"),
        };
        println!("{name:names$}  {case:cases$}  {outcome}");
    }
    let succeeded = rows.iter().filter(|row| row.outcome.is_err()).count();
    println!("\n{} attacks, {succeeded} succeeded", rows.len());
    let unfooled = all().filter_map(|attack| Some((attack, attack.naive.err()?)));
    for (attack, reason) in unfooled {
        println!("not tried on the naive proxy: {} ({reason})", attack.name);
    }
}
