//! What came of a flood.

use std::process::ExitCode;
use std::time::Instant;

use super::flooded_gateway::FloodedGateway;
use super::honest::{Kind, Times};
use crate::memory::Memory;

/// As many of the flood's tokens are on their way at the end.
const IN_PROGRESS: usize = super::CLIENTS * (1 + super::senders::AT_ONCE);

/// What was counted until one time.
pub(crate) struct Moment {
    at: Instant,
    rss: u64,
    issuer: usize,
    webhook: usize,
    keys: usize,
    secrets: usize,
    rate_limited: u64,
    taken_back: u64,
    reset_limit_closed: u64,
    refused: u64,
}

impl Moment {
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
            taken_back: gateway.count_all("apiserver_request_total", &["code=\"499\""]).await,
            reset_limit_closed: gateway.count("portcullis_reset_limit_closed_connections_total").await,
            refused: gateway.count_all("portcullis_refused_connections_total", &[]).await,
        }
    }
}

/// A failure if an honest request failed, or a server was asked more often than its bound.
pub(crate) fn print(
    sent: u64,
    before: &Moment,
    after: &Moment,
    quiet: &[(Kind, Times)],
    subject: &[(Kind, Times)],
    said: &str,
) -> ExitCode {
    // The last clients had to be waited for.
    let lasting = (after.at - before.at).as_secs() + 1;
    let seconds = usize::try_from(lasting).unwrap();
    println!("a flood of {sent}, {} each second", sent / lasting);
    // A server, its bound, how often it was asked, and how often it may be.
    let keys = after.keys - before.keys;
    let rows = [
        ("issuer", "a second between two fetches of keys", after.issuer - before.issuer, seconds + 1),
        ("backend, for its keys", "a second between two fetches of keys", keys, seconds + 1),
        (
            "backend, for secrets",
            "10 live reads each second, 20 at once",
            after.secrets - before.secrets,
            10 * seconds + 20,
        ),
        (
            "webhook",
            "one call for each token, so many at a time",
            after.webhook - before.webhook,
            usize::try_from(sent).unwrap() + IN_PROGRESS,
        ),
    ];
    let mut good = true;
    for (who, by, calls, most) in rows {
        good &= calls <= most;
        println!("{who:>24}  {calls} calls, {} each second; bounded by {by}", calls / seconds);
    }
    for (what, how_many) in [
        ("reads rate limited", after.rate_limited - before.rate_limited),
        ("requests taken back", after.taken_back - before.taken_back),
        ("connections refused", after.refused - before.refused),
        ("closed at reset limit", after.reset_limit_closed - before.reset_limit_closed),
    ] {
        println!("{what:>24}  {how_many}");
    }
    println!("{:>24}  {} MiB at first, {} MiB at last", "RSS", before.rss / 1024, after.rss / 1024);
    for ((kind, quiet), (_, subject)) in quiet.iter().zip(subject) {
        let (usual, now) = (quiet.percentile_99(), subject.percentile_99());
        good &= quiet.failed() + subject.failed() == 0;
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
    for complaint in said.lines().filter(|line| line.contains("\"ERROR\"")).take(10) {
        good = false;
        println!("{complaint}");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
