//! How much memory the process may use: the limit of its control group, or the memory of the machine.

use std::path::{Path, PathBuf};

/// A version 1 controller without a limit says so by a number near this.
// Linux: mm/page_counter.c, PAGE_COUNTER_MAX
const UNLIMITED: u64 = 1 << 60;

/// How much memory the process may use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The limit of its control group, or of one above it. The kernel ends a process that uses more.
    ControlGroup(u64),
    /// All that the machine has.
    Machine(u64),
}

impl MemoryLimit {
    /// Reads it; `None` where the machine does not tell.
    pub fn read() -> Option<Self> {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Option<Self> {
        let machine = memory_of_machine(root);
        match (memory_of_group(root), machine) {
            (Some(group), machine) if machine.is_none_or(|machine| group < machine) => {
                Some(Self::ControlGroup(group))
            }
            (_, machine) => machine.map(Self::Machine),
        }
    }
}

fn memory_of_machine(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The smallest limit of the group and of those above it.
// Linux: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst
fn memory_of_group(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut smallest = None;
    for group in groups.lines() {
        let mut parts = group.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let limits = ancestors(path).map(|path| limit_in(&root.join(mount).join(path).join(file)));
        smallest = smallest.into_iter().chain(limits.flatten()).min();
    }
    smallest
}

/// The group and those above it. In a container its own group may be the root, and its path that outside.
fn ancestors(path: &str) -> impl Iterator<Item = PathBuf> {
    let path = Path::new(path.trim_start_matches('/')).to_owned();
    let known = path.ancestors().map(Path::to_owned).collect::<Vec<_>>();
    known.into_iter().filter(|path| !path.components().any(|part| part.as_os_str() == ".."))
}

fn limit_in(file: &Path) -> Option<u64> {
    let limit: u64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < UNLIMITED).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine with 64 MiB and these files.
    fn read(files: &[(&str, &str)]) -> Option<MemoryLimit> {
        let root = tempfile::tempdir().unwrap();
        let machine = ("proc/meminfo", "MemFree:  1 kB\nMemTotal:       65536 kB\n");
        for (name, text) in [machine].iter().chain(files) {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        MemoryLimit::read_below(root.path())
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_of_those_above_it_counts() {
        let max = |bytes: u64| format!("{bytes}\n");
        let (small, large, none) = (max(8 * MIB), max(16 * MIB), "9223372036854771712\n");
        let own = ("proc/self/cgroup", "0::/kubepods/pod1\n");
        let old = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/x\n");
        let cases: &[(&str, &[(&str, &str)], MemoryLimit)] = &[
            ("no groups", &[], MemoryLimit::Machine(64 * MIB)),
            (
                "no limit",
                &[own, ("sys/fs/cgroup/kubepods/pod1/memory.max", "max\n")],
                MemoryLimit::Machine(64 * MIB),
            ),
            (
                "its own",
                &[
                    own,
                    ("sys/fs/cgroup/kubepods/pod1/memory.max", &small),
                    ("sys/fs/cgroup/kubepods/memory.max", &large),
                ],
                MemoryLimit::ControlGroup(8 * MIB),
            ),
            (
                "of the group above",
                &[
                    own,
                    ("sys/fs/cgroup/kubepods/pod1/memory.max", "max"),
                    ("sys/fs/cgroup/kubepods/memory.max", &large),
                ],
                MemoryLimit::ControlGroup(16 * MIB),
            ),
            (
                "in a container",
                &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", &small)],
                MemoryLimit::ControlGroup(8 * MIB),
            ),
            (
                "a path outside of the container",
                &[
                    ("proc/self/cgroup", "0::/../../x\n"),
                    ("sys/fs/cgroup/memory.max", &small),
                    ("sys/x/memory.max", "1"),
                ],
                MemoryLimit::ControlGroup(8 * MIB),
            ),
            (
                "version 1",
                &[
                    old,
                    ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", none),
                    ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", &small),
                ],
                MemoryLimit::ControlGroup(8 * MIB),
            ),
            (
                "version 1 in a container",
                &[old, ("sys/fs/cgroup/memory/memory.limit_in_bytes", &small)],
                MemoryLimit::ControlGroup(8 * MIB),
            ),
            (
                "more than the machine has",
                &[own, ("sys/fs/cgroup/kubepods/pod1/memory.max", &max(65 * MIB))],
                MemoryLimit::Machine(64 * MIB),
            ),
        ];
        for (name, files, expected) in cases {
            assert_eq!(read(files), Some(*expected), "{name}");
        }
    }
}
