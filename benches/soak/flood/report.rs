//! The result of a flood.

use std::process::ExitCode;
use std::time::Instant;

use super::flooded_gateway::FloodedGateway;
use super::honest::{ClientKind, ResponseTimes};
use crate::memory::Memory;

/// Maximum number of the flood's tokens in flight when the counters are read.
const IN_PROGRESS: usize = super::CLIENTS * (1 + super::senders::CONCURRENCY);

/// The values of the counters at one time.
pub(crate) struct CounterSnapshot {
    at: Instant,
    rss: u64,
    issuer: usize,
    webhook: usize,
    keys: usize,
    secrets: usize,
    rate_limited: u64,
    client_resets: u64,
    reset_limit_closed: u64,
    refused: u64,
}

impl CounterSnapshot {
    pub(crate) async fn of(subject: &FloodedGateway) -> Self {
        let gateway = &subject.process.gateway;
        let (_, keys) = subject.accounts.asked();
        Self {
            at: Instant::now(),
            rss: Memory::of(subject.process.id()).rss,
            issuer: subject.issuer.server.pending(),
            webhook: subject.webhook.pending(),
            keys,
            secrets: subject.secret_reads(),
            rate_limited: gateway.count_all("portcullis_lookups_total", &["source=\"rate_limited\""]).await,
            client_resets: gateway.count_all("apiserver_request_total", &["code=\"499\""]).await,
            reset_limit_closed: gateway.count("portcullis_reset_limit_closed_connections_total").await,
            refused: gateway.count_all("portcullis_refused_connections_total", &[]).await,
        }
    }
}

/// Prints the result. Fails if a request of a well-behaved client failed, or if the gateway called a server more often
/// than its rate limit allows.
pub(crate) fn print(
    sent: u64,
    before: &CounterSnapshot,
    after: &CounterSnapshot,
    quiet: &[(ClientKind, ResponseTimes)],
    subject: &[(ClientKind, ResponseTimes)],
    log: &str,
) -> ExitCode {
    // Rounded up: the measurement ended after the last clients.
    let duration = (after.at - before.at).as_secs() + 1;
    let seconds = usize::try_from(duration).unwrap();
    println!("a flood of {sent}, {} per second", sent / duration);
    // Server, description of the limit, calls, maximum.
    let keys = after.keys - before.keys;
    let rows = [
        ("issuer", "one fetch of keys per second", after.issuer - before.issuer, seconds + 1),
        ("backend, for its keys", "one fetch of keys per second", keys, seconds + 1),
        (
            "backend, for secrets",
            "10 live reads per second, bursts of 20",
            after.secrets - before.secrets,
            10 * seconds + 20,
        ),
        (
            "webhook",
            "one call per token",
            after.webhook - before.webhook,
            usize::try_from(sent).unwrap() + IN_PROGRESS,
        ),
    ];
    let mut passed = true;
    for (server, limit, calls, max_calls) in rows {
        passed &= calls <= max_calls;
        println!("{server:>24}  {calls} calls, {} per second; limit: {limit}", calls / seconds);
    }
    for (name, count) in [
        ("reads rate limited", after.rate_limited - before.rate_limited),
        ("streams reset", after.client_resets - before.client_resets),
        ("connections refused", after.refused - before.refused),
        ("closed at reset limit", after.reset_limit_closed - before.reset_limit_closed),
    ] {
        println!("{name:>24}  {count}");
    }
    println!("{:>24}  {} MiB at first, {} MiB at last", "RSS", before.rss / 1024, after.rss / 1024);
    for ((kind, quiet), (_, subject)) in quiet.iter().zip(subject) {
        let (usual, now) = (quiet.percentile(99), subject.percentile(99));
        passed &= quiet.failed() + subject.failed() == 0;
        println!(
            "{:>24}  {} requests, {} failed; 99 of 100 within {:.1} ms, {:.1} times as long as without ({} requests, {} failed)",
            kind.name(),
            subject.count(),
            subject.failed(),
            now.as_secs_f64() * 1000.0,
            now.as_secs_f64() / usual.as_secs_f64(),
            quiet.count(),
            quiet.failed(),
        );
    }
    for error in log.lines().filter(|line| line.contains("\"ERROR\"")).take(10) {
        passed = false;
        println!("{error}");
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
