//! Where the files of a user are.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::System;

/// The variables of the environment that decide about [`cache_home`].
pub const CACHE_VARIABLES: &[&str] = match System::THIS {
    System::Xdg | System::MacOs => &["HOME", "XDG_CACHE_HOME"],
    System::Windows => &["LOCALAPPDATA", "USERPROFILE"],
};

/// What separates the paths of a list in an environment variable.
pub const LIST_SEPARATOR: char = match System::THIS {
    System::Xdg | System::MacOs => ':',
    System::Windows => ';',
};

/// The directory for the caches of the user's programs. `None`: no variable names one, and there is no home directory.
pub fn cache_home() -> Option<PathBuf> {
    cache_home_of(System::THIS, |name| std::env::var_os(name), std::env::home_dir())
}

// XDG Base Directory Specification: a relative path is invalid and ignored
// Apple, File System Programming Guide: Library/Caches has files that can be made again, and that backups leave out
fn cache_home_of(
    system: System,
    variable: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Option<PathBuf> {
    let (name, below_home) = match system {
        System::Xdg => ("XDG_CACHE_HOME", ".cache"),
        // Also on macOS a user who has set it means it.
        System::MacOs => ("XDG_CACHE_HOME", "Library/Caches"),
        // Not APPDATA, which a company may copy from machine to machine.
        System::Windows => ("LOCALAPPDATA", "AppData/Local"),
    };
    let home = || home.filter(|home| home.is_absolute()).map(|home| home.join(below_home));
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)
}

/// The absolute path of a file without symbolic links, as other programs take it.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    std::fs::canonicalize(path).map(without_verbatim_prefix)
}

/// On Windows a canonical path begins with `\\?\`, which people do not type and some programs do not take.
fn without_verbatim_prefix(path: PathBuf) -> PathBuf {
    // Beyond this length only a path with the prefix can be opened by all of them.
    const MAX_PATH: usize = 260;
    let plain = path.to_str().and_then(|path| path.strip_prefix(r"\\?\")).filter(|plain| {
        let mut start = plain.chars();
        let is_on_drive = start.next().is_some_and(|c| c.is_ascii_alphabetic()) && start.next() == Some(':');
        is_on_drive && plain.len() < MAX_PATH
    });
    plain.map(PathBuf::from).unwrap_or(path)
}

/// The directory in which kubectl looks for `.kube/config`.
pub fn user_home() -> Option<PathBuf> {
    match System::THIS {
        System::Xdg | System::MacOs => std::env::home_dir(),
        System::Windows => {
            windows_home(|name| std::env::var_os(name), Path::exists).or_else(std::env::home_dir)
        }
    }
}

// client-go: util/homedir/homedir.go, HomeDir. Whether a directory is writable is not asked: its mode does not tell on Windows.
fn windows_home(
    variable: impl Fn(&str) -> Option<OsString>,
    exists: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let home = set("HOME").map(PathBuf::from);
    let profile = set("USERPROFILE").map(PathBuf::from);
    let drive = set("HOMEDRIVE").zip(set("HOMEPATH")).map(|(mut drive, path)| {
        drive.push(path);
        PathBuf::from(drive)
    });
    let has_config = |home: &&PathBuf| exists(&home.join(".kube").join("config"));
    let with_config = [&home, &drive, &profile].into_iter().flatten().find(has_config);
    let known = || [&home, &profile, &drive].into_iter().flatten();
    let found = with_config.or_else(|| known().find(|home| exists(home))).or_else(|| known().next());
    found.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables of the environment, with their values.
    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn variable(set: Variables<'_>) -> impl Fn(&str) -> Option<OsString> {
        move |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }

    /// The same path on the system of the test, where an absolute one may need a drive.
    fn path(text: &str) -> PathBuf {
        if cfg!(windows) && text.starts_with('/') { format!("C:{text}").into() } else { text.into() }
    }

    #[test]
    fn caches_are_where_the_system_has_them() {
        let xdg = ("XDG_CACHE_HOME", "/x");
        let cases: [(System, Variables<'_>, Option<&str>, Option<&str>); 11] = [
            (System::Xdg, &[xdg], Some("/home/a"), Some("/x")),
            (System::Xdg, &[("XDG_CACHE_HOME", "relative")], Some("/home/a"), Some("/home/a/.cache")),
            (System::Xdg, &[], Some("/home/a"), Some("/home/a/.cache")),
            (System::Xdg, &[], Some(""), None),
            (System::Xdg, &[], None, None),
            (System::MacOs, &[xdg], Some("/Users/a"), Some("/x")),
            (System::MacOs, &[], Some("/Users/a"), Some("/Users/a/Library/Caches")),
            (System::Windows, &[("LOCALAPPDATA", "/l"), xdg], Some("/u"), Some("/l")),
            (System::Windows, &[("LOCALAPPDATA", "l"), xdg], Some("/u"), Some("/u/AppData/Local")),
            (System::Windows, &[], Some("/u"), Some("/u/AppData/Local")),
            (System::Windows, &[], None, None),
        ];
        for (system, set, home, expected) in cases {
            let variable = |name: &str| Some(path(variable(set)(name)?.to_str()?).into());
            let found = cache_home_of(system, variable, home.map(path));
            assert_eq!(found, expected.map(path), "{system:?} {set:?} {home:?}");
        }
    }

    #[test]
    fn paths_have_no_prefix_that_others_do_not_take() {
        let long = format!(r"\\?\C:\{}", "a".repeat(300));
        let cases = [
            ("/home/a", "/home/a"),
            (r"\\?\C:\Users\a", r"C:\Users\a"),
            (r"\\?\UNC\server\share", r"\\?\UNC\server\share"),
            (long.as_str(), long.as_str()),
        ];
        for (path, expected) in cases {
            assert_eq!(without_verbatim_prefix(path.into()), Path::new(expected));
        }
    }

    #[test]
    fn the_home_on_windows_is_kubectls() {
        let all = [("HOME", "/h"), ("USERPROFILE", "/p"), ("HOMEDRIVE", "/d"), ("HOMEPATH", "/e")];
        let cases: [(Variables<'_>, &[&str], Option<&str>); 9] = [
            (&all, &["/p/.kube/config", "/d/e/.kube/config"], Some("/d/e")),
            (&all, &["/p/.kube/config", "/h"], Some("/p")),
            (&all, &["/h/.kube/config"], Some("/h")),
            (&all, &["/p", "/d/e"], Some("/p")),
            (&all, &["/d/e"], Some("/d/e")),
            (&all, &[], Some("/h")),
            (&[("HOME", ""), ("USERPROFILE", "/p")], &[], Some("/p")),
            (&[("HOMEDRIVE", "/d")], &["/d"], None),
            (&[], &[], None),
        ];
        for (set, existing, expected) in cases {
            let exists = |path: &Path| existing.iter().any(|known| path == Path::new(known));
            let found = windows_home(variable(set), exists);
            assert_eq!(found, expected.map(PathBuf::from), "{set:?} {existing:?}");
        }
    }
}
