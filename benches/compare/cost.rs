//! Processor time and memory of another process.

/// Processor time in nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct CpuTime(f64);

impl CpuTime {
    /// The sum over all threads of the process.
    pub(crate) fn of(process: u32) -> Self {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let used = |thread: std::fs::DirEntry| -> f64 {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
            text.split(' ').next().unwrap().parse().unwrap()
        };
        Self(threads.map(|thread| used(thread.unwrap())).sum())
    }

    /// `count` events per second of the processor time since `before`.
    pub(crate) fn rate(self, before: Self, count: usize) -> f64 {
        f64::from(u32::try_from(count).unwrap()) * 1e9 / (self.0 - before.0)
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 50)
}

/// The smallest value that at least `percent` of the values do not exceed.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, percent: usize) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

/// Proportional set size (PSS) in KiB: pages shared by n processes count 1/n.
pub(crate) fn memory(process: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
