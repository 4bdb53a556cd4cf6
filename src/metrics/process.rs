//! Metrics of the process itself, under the names that dashboards of API servers know. Each exposition reads them from `/proc`.
// prometheus/client_golang: prometheus/process_collector.go

use procfs::WithCurrentSystemInfo as _;
use procfs::process::{LimitValue, Process};
use prometheus::{Counter, Gauge};

use super::registrar::Registrar;

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    resident: Gauge,
    virtual_memory: Gauge,
    open_files: Gauge,
    max_files: Gauge,
    started: Gauge,
}

/// What `/proc` says of the process.
struct ProcessState {
    cpu_seconds: f64,
    resident: u64,
    virtual_memory: u64,
    open_files: usize,
    max_files: Option<u64>,
    started: f64,
}

impl ProcessMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| registrar.float_gauge(name, help);
        Ok(Self {
            cpu_seconds: registrar.float_counter(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            )?,
            resident: gauge("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            virtual_memory: gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            open_files: gauge("process_open_fds", "Number of open file descriptors.")?,
            max_files: gauge("process_max_fds", "Maximum number of open file descriptors.")?,
            started: gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            )?,
        })
    }

    /// Reads the state of the process. Where `/proc` cannot be read, the last values stay.
    pub(super) fn update(&self) {
        let Ok(state) = ProcessState::read() else { return };
        self.cpu_seconds.inc_by((state.cpu_seconds - self.cpu_seconds.get()).max(0.0));
        self.resident.set(float(state.resident));
        self.virtual_memory.set(float(state.virtual_memory));
        self.open_files.set(float(u64::try_from(state.open_files).unwrap_or(u64::MAX)));
        // No limit: the largest number, as in Go.
        self.max_files.set(float(state.max_files.unwrap_or(u64::MAX)));
        self.started.set(state.started);
    }
}

impl ProcessState {
    fn read() -> procfs::ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let seconds = |ticks: u64| float(ticks) / float(procfs::ticks_per_second());
        let max_files = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(most) => Some(most),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_seconds: seconds(stat.utime + stat.stime),
            resident: stat.rss_bytes().get(),
            virtual_memory: stat.vsize,
            open_files: process.fd_count()?,
            max_files,
            started: float(procfs::boot_time_secs()?) + seconds(stat.starttime),
        })
    }
}

#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "numbers in this format are floats")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use portcullis_system::clock::Clock;

    use super::*;

    #[test]
    fn numbers_are_exact_as_far_as_they_can_be() {
        assert_eq!(
            [0, 1, 1 << 32, (1 << 53) - 1].map(|number| float(number).to_string()),
            ["0", "1", "4294967296", "9007199254740991"]
        );
    }

    #[test]
    fn the_process_is_seen() {
        let metrics = ProcessMetrics::new(&Registrar::default()).unwrap();
        metrics.update();
        let is_recent =
            |started: f64| (-1.0..86_400.0).contains(&(Clock::system().now().as_secs_f64() - started));
        assert!(is_recent(metrics.started.get()), "{}", metrics.started.get());
        assert!(metrics.resident.get() > 1e6 && metrics.virtual_memory.get() >= metrics.resident.get());
        assert!(metrics.open_files.get() >= 3.0 && metrics.max_files.get() > metrics.open_files.get());
        let before = metrics.cpu_seconds.get();
        metrics.update();
        assert!(metrics.cpu_seconds.get() >= before);
    }
}
