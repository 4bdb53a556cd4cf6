//! Warns if other users of the machine can read a private key, or replace the files of a CA. The commands write neither;
//! copies, backups and `chmod` make them.

use std::path::Path;

use super::files::directory_of;
use crate::output::print_error;

const READABLE_BY_ALL: u32 = 0o004;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_ALL: u32 = 0o002;
/// In a directory such as /tmp, users cannot replace the files of others.
const STICKY: u32 = 0o1000;

/// The problems of a private key's file and its directory. Its group may be meant to read it, as that of a server is.
pub(super) fn problems_of_key(file: &Path) -> Vec<String> {
    let readable = mode(file).filter(|mode| mode & READABLE_BY_ALL != 0).map(|mode| {
        format!(
            "every user of this machine can read this key (mode {mode:04o}): chmod 600, and replace it if others have \
             had access"
        )
    });
    readable.into_iter().chain(problem_of_directory(directory_of(file))).collect()
}

/// The problem of a directory with keys or CAs.
pub(super) fn problem_of_directory(directory: &Path) -> Option<String> {
    let mode = mode(directory)?;
    let who = match mode {
        _ if mode & STICKY != 0 => return None,
        _ if mode & WRITABLE_BY_ALL != 0 => "every user of this machine",
        _ if mode & WRITABLE_BY_GROUP != 0 => "every member of the group",
        _ => return None,
    };
    let directory = directory.display();
    Some(format!("{who} can replace files in {directory} (mode {mode:04o}): chmod go-w"))
}

/// Prints the problems of a CA's key, unless it is in a token.
pub(super) fn warn_of_key(file: &Path) {
    for problem in problems_of_key(file) {
        print_error(&format!("warning: {}: {problem}", file.display()));
    }
}

/// Prints the problem of a directory.
pub(super) fn warn_of_directory(directory: &Path) {
    if let Some(problem) = problem_of_directory(directory) {
        print_error(&format!("warning: {problem}"));
    }
}

#[cfg(unix)]
fn mode(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    // A pipe of a shell has the permissions of its process.
    (metadata.is_file() || metadata.is_dir()).then(|| metadata.permissions().mode() & 0o7777)
}

/// Other systems have lists of access, which are not read.
#[cfg(not(unix))]
fn mode(_: &Path) -> Option<u32> {
    None
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_others_can_do_is_a_problem() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("ca.key");
        fs::write(&key, "").unwrap();
        for (file, around, expected) in [
            (0o600, 0o700, &[][..]),
            (0o640, 0o755, &[]),
            (0o640, 0o775, &["every member of the group can replace files in"]),
            (0o600, 0o1770, &[]),
            (0o600, 0o1777, &[]),
            (0o644, 0o755, &["can read this key (mode 0644)"]),
            (0o600, 0o777, &["every user of this machine can replace files in"]),
            (0o666, 0o757, &["can read this key (mode 0666)", "(mode 0757)"]),
        ] {
            fs::set_permissions(&key, Permissions::from_mode(file)).unwrap();
            fs::set_permissions(directory.path(), Permissions::from_mode(around)).unwrap();
            let problems = problems_of_key(&key);
            assert_eq!(problems.len(), expected.len(), "{file:o} {around:o}: {problems:?}");
            for (problem, part) in problems.iter().zip(expected) {
                assert!(problem.contains(part), "{problem}");
            }
        }
        assert!(problems_of_key(Path::new("/absent/ca.key")).is_empty());
    }
}
