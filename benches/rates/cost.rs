//! Processor time of another process.

/// Time in nanoseconds, of one request or of many.
#[derive(Clone, Copy)]
pub struct Cost(f64);

impl Cost {
    /// What all threads of the process have used so far.
    pub fn of(process: u32) -> Self {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let used = |thread: std::fs::DirEntry| -> f64 {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
            text.split(' ').next().unwrap().parse().unwrap()
        };
        Self(threads.map(|thread| used(thread.unwrap())).sum())
    }

    pub fn since(self, before: Self) -> Self {
        Self(self.0 - before.0)
    }

    pub fn of_one(self, requests: usize) -> Self {
        Self(self.0 / f64::from(u32::try_from(requests).unwrap()))
    }

    pub fn ratio(self, other: Self) -> f64 {
        self.0 / other.0
    }

    pub fn microseconds(self) -> f64 {
        self.0 / 1000.0
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
