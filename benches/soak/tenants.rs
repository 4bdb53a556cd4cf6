//! Isolation of tenants: one gateway with a cluster of the operator and three tenants, one of which attacks. Beside each
//! attack run the operator's clients, probes, reloads and audit, first without and then with the attack, and clients of
//! the other tenants. Each attack has a new gateway, so that it finds nothing that another one has left.

mod attack;
mod attacker;
mod attacker_process;
mod audit_trail;
mod connection;
mod figures;
mod gauge;
mod management;
mod operator_clients;
mod outcomes;
mod row;
mod secret;
mod site;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use tokio::time::sleep;

pub(crate) use attack::Attack;
pub(crate) use attacker::run as run_attacker;
use attacker_process::{AttackerProcess, Target};
use gauge::{Gauge, Processes};
use operator_clients::OperatorClients;
use outcomes::Outcomes;
use row::{Row, header};
use site::{Site, USER_TOKEN};

/// How long the clients run before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// The longest phase without the attack.
const MAX_QUIET: Duration = Duration::from_secs(20);
/// The most frequent log messages that are shown, and their length.
const SHOWN_MESSAGES: usize = 3;
const MESSAGE_LENGTH: usize = 100;

/// Runs these attacks, or all. Fails if a row is not within the figures.
pub(crate) async fn run(only: &[Attack], duration: Duration) -> ExitCode {
    let all = Attack::value_variants().iter().copied();
    let attacks: Vec<Attack> = all.filter(|attack| only.is_empty() || only.contains(attack)).collect();
    let quiet = duration.min(MAX_QUIET);
    println!("{}", machine());
    println!(
        "{} attacks of {} s, each after {} s without it; quiet / attacked; others: cores that other processes use\n",
        attacks.len(),
        duration.as_secs(),
        quiet.as_secs()
    );
    println!("{}", header());
    let mut failed = Vec::new();
    for attack in attacks {
        eprintln!("{}: {}", attack.name(), attack.description());
        let is_within = match tokio::spawn(measure(attack, quiet, duration)).await {
            Ok(row) => {
                println!("{}", row.text());
                row.faults().is_empty()
            }
            // A wait before the attack, or the attacker itself, has failed.
            Err(error) => {
                println!("{}: not measured: {error}", attack.name());
                false
            }
        };
        failed.extend((!is_within).then(|| attack.name()));
    }
    if failed.is_empty() {
        println!("\nall rows are within the figures");
        return ExitCode::SUCCESS;
    }
    println!("\nnot within the figures: {}", failed.join(", "));
    ExitCode::FAILURE
}

async fn measure(attack: Attack, quiet: Duration, duration: Duration) -> Row {
    let (mut attacker, secret) = AttackerProcess::start(attack).await;
    let site = Arc::new(Site::start(attack, secret).await);
    attacker.aim(&Target { gateway: site.address(), user_token: USER_TOKEN.to_owned() }).await;
    let outcomes = Arc::new(Outcomes::default());
    let clients = OperatorClients::start(&site, &outcomes);
    sleep(WARM_UP).await;
    outcomes.take();
    let processes = Processes { gateway: site.process.id(), attacker: attacker.id() };
    let gauge = Gauge::start(processes);
    sleep(quiet).await;
    let quiet_others = gauge.end().others;
    let quiet = outcomes.take();

    let logged = site.process.said("").len();
    let gauge = Gauge::start(processes);
    attacker.begin().await;
    sleep(duration).await;
    clients.end().await;
    let usage = gauge.end();
    let attacked = outcomes.take();
    let log = site.process.said("").split_off(logged);
    let attacker = attacker.end().await;
    let audited = [quiet.answered.clone(), attacked.answered.clone()].concat();
    Row {
        attack,
        duration,
        quiet,
        attacked,
        audited: audited.len(),
        lost: site.trail.lost(&audited).await,
        usage,
        quiet_others,
        open_files: site.open_files,
        lines: u64::try_from(log.len()).unwrap(),
        messages: most_frequent(&log),
        attacker,
    }
}

/// The most frequent messages, each with its number.
fn most_frequent(log: &[String]) -> Vec<String> {
    let mut counts = BTreeMap::<String, usize>::new();
    for message in log {
        *counts.entry(message.chars().take(MESSAGE_LENGTH).collect()).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    counts.into_iter().take(SHOWN_MESSAGES).map(|(message, times)| format!("{times} × {message}")).collect()
}

/// The machine, and how busy it is.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    format!("{cores} cores, load {load}")
}
