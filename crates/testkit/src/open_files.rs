//! The limit of open files, most of which are connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process and its children to the maximum.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("the limit can be raised");
}
