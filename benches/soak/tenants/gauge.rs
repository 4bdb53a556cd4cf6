//! What the gateway's process needs while a phase lasts, and how busy the machine is with other work, from `/proc`.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// `USER_HZ` of Linux.
const TICKS_PER_SECOND: f64 = 100.0;
const SHOWN_THREADS: usize = 3;

/// The processes of the test.
#[derive(Clone, Copy)]
pub(crate) struct Processes {
    pub(crate) gateway: u32,
    pub(crate) attacker: u32,
}

/// A running measurement.
pub(crate) struct Gauge {
    processes: Processes,
    began: Instant,
    before: Ticks,
    peak: Arc<Peak>,
    _sampling: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Peak {
    rss: AtomicU64,
    files: AtomicU64,
}

/// Processor time, in ticks.
struct Ticks {
    machine: u64,
    gateway: u64,
    own: u64,
    threads: BTreeMap<String, u64>,
}

/// What the process needed at most, and the processor time in cores.
pub(crate) struct Usage {
    /// In MiB.
    pub(crate) rss: u64,
    pub(crate) files: u64,
    pub(crate) gateway: f64,
    /// Of processes that do not belong to the test.
    pub(crate) others: f64,
    /// The busiest threads of the gateway.
    pub(crate) threads: Vec<(String, f64)>,
    /// Whether the gateway still runs.
    pub(crate) is_alive: bool,
}

impl Gauge {
    pub(crate) fn start(processes: Processes) -> Self {
        let peak = Arc::<Peak>::default();
        let sampled = Arc::clone(&peak);
        let sampling = tokio::spawn(async move {
            loop {
                sampled.sample(processes.gateway);
                sleep(SAMPLE_INTERVAL).await;
            }
        });
        Self {
            processes,
            began: Instant::now(),
            before: Ticks::of(processes),
            peak,
            _sampling: AbortOnDropHandle::new(sampling),
        }
    }

    pub(crate) fn end(self) -> Usage {
        let (now, before) = (Ticks::of(self.processes), &self.before);
        let seconds = self.began.elapsed().as_secs_f64();
        let cores = |now: u64, before: u64| {
            let ticks = u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
            f64::from(ticks) / TICKS_PER_SECOND / seconds
        };
        let mut threads: Vec<_> = now
            .threads
            .iter()
            .map(|(name, ticks)| {
                (name.clone(), cores(*ticks, before.threads.get(name).copied().unwrap_or_default()))
            })
            .collect();
        threads.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        threads.truncate(SHOWN_THREADS);
        let others = cores(now.machine, before.machine) - cores(now.own, before.own);
        Usage {
            rss: self.peak.rss.load(Ordering::Relaxed) / 1024,
            files: self.peak.files.load(Ordering::Relaxed),
            gateway: cores(now.gateway, before.gateway),
            others: others.max(0.0),
            threads,
            is_alive: status(self.processes.gateway, "VmRSS:").is_some(),
        }
    }
}

impl Peak {
    fn sample(&self, gateway: u32) {
        // The process is new: its own peak is that of the test.
        self.rss.fetch_max(status(gateway, "VmHWM:").unwrap_or_default(), Ordering::Relaxed);
        let files = std::fs::read_dir(format!("/proc/{gateway}/fd")).map_or(0, Iterator::count);
        self.files.fetch_max(u64::try_from(files).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// A value of the process's status, in KiB. A process that has ended has none.
fn status(process: u32, key: &str) -> Option<u64> {
    let text = read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

impl Ticks {
    fn of(processes: Processes) -> Self {
        let gateway = used(&format!("/proc/{}", processes.gateway)).map_or(0, |(_, ticks)| ticks);
        let others = [std::process::id(), processes.attacker].map(|id| used(&format!("/proc/{id}")));
        let own = gateway + others.into_iter().flatten().map(|(_, ticks)| ticks).sum::<u64>();
        let mut threads = BTreeMap::new();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", processes.gateway));
        for task in tasks.into_iter().flatten().flatten() {
            if let Some((name, ticks)) = used(&task.path().display().to_string()) {
                *threads.entry(name).or_default() += ticks;
            }
        }
        Self { machine: machine(), gateway, own, threads }
    }
}

/// The name of a process or thread, and its user and system time.
fn used(directory: &str) -> Option<(String, u64)> {
    let stat = read_to_string(format!("{directory}/stat")).ok()?;
    // The name may contain any character and ends at the last parenthesis; user and system time are fields 14 and 15.
    let (begin, rest) = stat.rsplit_once(") ")?;
    let (_, name) = begin.split_once('(')?;
    let ticks = rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap_or_default());
    Some((name.to_owned(), ticks.sum()))
}

/// The time of all processes, and what the hypervisor has taken.
fn machine() -> u64 {
    const USER_NICE_SYSTEM_STEAL: [usize; 4] = [0, 1, 2, 7];
    let text = read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    USER_NICE_SYSTEM_STEAL.iter().filter_map(|at| fields.get(*at)).sum()
}
