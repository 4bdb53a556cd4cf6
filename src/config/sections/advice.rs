//! Problem and fix for a key or value that cannot be read, in the operator's words.

use clap::{Args, Command};

use super::key_of;
use crate::config::flags::{
    AdmissionFlags, AuthenticationFlags, AuthorizationFlags, ClusterKeys, LimitFlags, MatchKeys,
    OperationFlags, ServingFlags,
};

/// The fix for an unknown key.
pub(super) fn suggestion<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let likeness = |candidate: &str| strsim::jaro_winkler(&key.to_lowercase(), &candidate.to_lowercase());
    let best = known.clone().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match (home_of(key), best.filter(|best| likeness(best) > 0.85)) {
        (Some(home), _) => format!("write it below {home}"),
        (None, Some(best)) => format!("write {best}"),
        (None, None) => format!("remove it; known keys: {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// The section that a misplaced key belongs to.
fn home_of(key: &str) -> Option<&'static str> {
    let homes = [
        ("serving", has::<ServingFlags>(key)),
        ("authentication", has::<AuthenticationFlags>(key)),
        ("authorization", has::<AuthorizationFlags>(key)),
        ("admission", has::<AdmissionFlags>(key)),
        ("limits", has::<LimitFlags>(key)),
        ("an entry of clusters", has::<ClusterKeys>(key)),
        ("a cluster's match", has::<MatchKeys>(key)),
        ("operation", has::<OperationFlags>(key)),
    ];
    homes.into_iter().find(|(_, has)| *has).map(|(home, _)| home)
}

fn has<T: Args>(key: &str) -> bool {
    let command = T::augment_args(Command::new(""));
    command.get_arguments().filter_map(clap::Arg::get_long).any(|flag| key_of(flag) == key)
}

/// Translates an error of `serde` for operators.
pub(super) fn plain(problem: &str) -> String {
    let words = [
        ("a boolean", "true or false"),
        ("a sequence", "a list"),
        ("sequence", "a list"),
        ("map", "a map"),
        ("u16", "a number from 0 to 65535"),
        ("u8", "a number from 0 to 255"),
        ("u32", "a whole number"),
        ("usize", "a whole number"),
        ("path string", "a path"),
        ("a string", "a string in quotes"),
    ];
    let Some((found, expected)) = problem.split_once(", expected ") else { return problem.to_owned() };
    let (subject, found) = found.split_once(": ").unwrap_or(("", found));
    let translated = |text: &str| {
        let word = words.iter().find(|(serde, _)| *serde == text);
        word.map_or_else(|| text.to_owned(), |(_, plain)| (*plain).to_owned())
    };
    format!("{subject}: {}, expected {}", translated(found), translated(expected))
}

/// The fix for a value of the wrong type: the help of its flag.
pub(super) fn meaning<T: Args>(key: &str) -> String {
    let command = T::augment_args(Command::new(""));
    let mut arguments = command.get_arguments();
    let argument = arguments.find(|argument| argument.get_long().is_some_and(|long| key_of(long) == key));
    // Keys without a flag are maps.
    let Some(argument) = argument else {
        return "write its keys below it, indented; begin each cluster with a dash".to_owned();
    };
    let name =
        argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<String>();
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let list = if matches!(argument.get_action(), clap::ArgAction::Append) { "a list of " } else { "" };
    format!("give {list}{name}: {}", help.replace(", comma-separated", ""))
}
