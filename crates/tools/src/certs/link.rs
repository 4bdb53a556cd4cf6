//! Symbolic links on the way to a file that a command replaces or appends to.
//!
//! The kernel refuses to open a file through another user's link in a shared directory such as /tmp
//! (`fs.protected_symlinks`), because such a link makes its victim replace a file of the other user's choice. A command
//! that renames a file into place opens nothing there, so it has to apply the rule itself: it follows its user's own
//! links and those of root wherever they are, and those of others only in directories that nobody else can change.
// proc_sys_fs(5), protected_symlinks
// threat: planted-link

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

/// As many as Linux follows.
const MAX_LINKS: usize = 40;
const ROOT: u32 = 0;
/// Write permission of the group or of all.
const SHARED: u32 = 0o022;

/// Why a path is not followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// Another user can have placed the link.
    #[error(
        "{}: it is a symbolic link of the user {owner}, in a directory that others can write to; give the path of the file \
         behind it, or remove the link",
        link.display()
    )]
    Foreign {
        /// The link.
        link: PathBuf,
        /// The uid of its owner.
        owner: u32,
    },
    /// The links have no end.
    #[error("{}: too many symbolic links", .0.display())]
    TooMany(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The path without symbolic links. Its end need not exist.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, LinkError> {
    resolve_as(path, current_user())
}

fn resolve_as(path: &Path, user: u32) -> Result<PathBuf, LinkError> {
    let mut resolved = PathBuf::new();
    let mut rest: VecDeque<OsString> = names(path).collect();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            leave(&mut resolved);
            continue;
        }
        let next = resolved.join(&name);
        let found = match fs::symlink_metadata(&next) {
            // What is behind it does not exist either; the caller reports a missing directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(rest.iter().fold(next, |path, name| path.join(name)));
            }
            found => found.map_err(|source| LinkError::Io { path: next.clone(), source })?,
        };
        if !found.is_symlink() {
            resolved = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(LinkError::TooMany(path.to_owned()));
        }
        let target = followed(&next, &found, &resolved, user)?;
        // An absolute target replaces the path so far, by its first component.
        names(&target).rev().for_each(|name| rest.push_front(name));
    }
    Ok(resolved)
}

/// Goes to the parent of a directory whose path has no links.
fn leave(directory: &mut PathBuf) {
    match directory.components().next_back() {
        Some(Component::Normal(_)) => drop(directory.pop()),
        Some(Component::RootDir | Component::Prefix(_)) => {}
        Some(Component::ParentDir | Component::CurDir) | None => directory.push(".."),
    }
}

/// The components of a path, `/` and `..` included.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + use<> {
    let names: Vec<_> = path
        .components()
        .filter(|component| *component != Component::CurDir)
        .map(|component| component.as_os_str().to_owned())
        .collect();
    names.into_iter()
}

/// The target of a link that may be followed.
fn followed(link: &Path, found: &Metadata, directory: &Path, user: u32) -> Result<PathBuf, LinkError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LinkError::Io { path, source }
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let around = fs::metadata(directory).map_err(failed(directory))?;
    let (owner, _) = owner_and_mode(found);
    let (directory_owner, directory_mode) = owner_and_mode(&around);
    if !may_follow(owner, directory_owner, directory_mode, user) {
        return Err(LinkError::Foreign { link: link.to_owned(), owner });
    }
    fs::read_link(link).map_err(failed(link))
}

/// Whether a user may follow a link, by its owner, and the owner and mode of its directory.
fn may_follow(owner: u32, directory_owner: u32, directory_mode: u32, user: u32) -> bool {
    let is_trusted = |owner: u32| owner == user || owner == ROOT;
    is_trusted(owner) || (is_trusted(directory_owner) && directory_mode & SHARED == 0)
}

#[cfg(unix)]
fn current_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(unix)]
fn owner_and_mode(metadata: &Metadata) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.uid(), metadata.mode())
}

/// Where owners are not known, links are followed: on Windows only administrators place them by default.
#[cfg(not(unix))]
fn current_user() -> u32 {
    ROOT
}

#[cfg(not(unix))]
fn owner_and_mode(_: &Metadata) -> (u32, u32) {
    (ROOT, 0)
}

#[cfg(test)]
#[cfg(unix)]
pub(super) mod testing {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, lchown};
    use std::path::Path;

    /// Makes a link that of another user, in a directory that a group can write to. `false`: only root can.
    pub(in crate::certs) fn give_away(link: &Path) -> bool {
        set_permissions(link.parent().unwrap(), Permissions::from_mode(0o770)).unwrap();
        super::current_user() == super::ROOT && lchown(link, Some(1001), None).is_ok()
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};

    use super::*;

    #[test]
    fn links_are_resolved_as_by_the_system() {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        let path = |name: &str| base.join(name);
        fs::create_dir_all(path("real/deep")).unwrap();
        fs::write(path("real/file"), "").unwrap();
        symlink("real", path("relative")).unwrap();
        symlink(path("real"), path("absolute")).unwrap();
        symlink("../file", path("real/deep/up")).unwrap();
        symlink("relative/file", path("chain")).unwrap();
        for name in [
            "real/file",
            "relative/file",
            "absolute/file",
            "relative/deep/up",
            "chain",
            "relative/deep/../file",
        ] {
            assert_eq!(resolve(&path(name)).unwrap(), fs::canonicalize(path(name)).unwrap(), "{name}");
        }
        symlink("absent/file", path("dangling")).unwrap();
        for (name, expected) in [
            ("absent", "absent"),
            ("dangling", "absent/file"),
            ("relative/new", "real/new"),
            ("a/b/c", "a/b/c"),
        ] {
            assert_eq!(resolve(&path(name)).unwrap(), path(expected), "{name}");
        }
        assert_eq!(resolve(Path::new("../../b")).unwrap(), Path::new("../../b"));
        assert_eq!(resolve(Path::new("/../a")).unwrap(), Path::new("/a"));
        symlink("loop", path("loop")).unwrap();
        assert!(matches!(resolve(&path("loop")), Err(LinkError::TooMany(_))));
    }

    #[test]
    fn a_link_of_another_user_counts_only_where_others_cannot_place_one() {
        const ME: u32 = 1000;
        const OTHER: u32 = 1001;
        for (owner, directory, mode, expected) in [
            (ME, OTHER, 0o777, true),
            (ME, ROOT, 0o1777, true),
            (ROOT, ROOT, 0o1777, true),
            (OTHER, ROOT, 0o1777, false),
            (OTHER, ME, 0o777, false),
            (OTHER, ME, 0o775, false),
            (OTHER, OTHER, 0o700, false),
            (OTHER, ME, 0o755, true),
            (OTHER, ROOT, 0o755, true),
        ] {
            let followed = may_follow(owner, directory, mode, ME);
            assert_eq!(followed, expected, "link of {owner}, directory {mode:o} of {directory}");
        }
        // root itself trusts its own links alone.
        assert!(!may_follow(ME, ME, 0o700, ROOT) && may_follow(ME, ROOT, 0o755, ROOT));
    }

    #[test]
    fn a_foreign_link_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        let (link, me) = (base.join("link"), fs::metadata(&base).unwrap().uid());
        symlink("file", &link).unwrap();
        fs::set_permissions(&base, Permissions::from_mode(0o1777)).unwrap();
        // Every user trusts the links of root.
        let (owner, user) = if me == ROOT { (1001, ROOT) } else { (me, me + 1) };
        if me == ROOT {
            lchown(&link, Some(owner), None).unwrap();
        }
        let error = resolve_as(&link, user).unwrap_err().to_string();
        assert!(error.contains(&format!("link: it is a symbolic link of the user {owner}")), "{error}");
        assert!(resolve_as(&link.with_file_name("file"), user).is_ok());
    }
}
