//! Memory and open files of the gateway's process, from `/proc`.

use serde::Serialize;

/// Sizes in KiB, and the number of open files.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Memory {
    pub(crate) rss: u64,
    pub(crate) pss: u64,
    pub(crate) files: usize,
}

impl Memory {
    pub(crate) fn of(process: u32) -> Self {
        let directory = format!("/proc/{process}");
        let kibibytes = |file: &str, key: &str| -> u64 {
            let text = std::fs::read_to_string(format!("{directory}/{file}")).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
        };
        Self {
            rss: kibibytes("status", "VmRSS:"),
            pss: kibibytes("smaps_rollup", "Pss:"),
            files: std::fs::read_dir(format!("{directory}/fd")).unwrap().count(),
        }
    }
}
