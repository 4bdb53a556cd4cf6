//! What to tell whoever wrote a key or a value that cannot be read: what is wrong in plain words, and what to write
//! instead.

use clap::{Args, Command};

use super::key_of;
use crate::config::flags::{AuthenticationFlags, ClusterKeys, MatchKeys, OperationFlags, ServingFlags};

/// What to write instead of an unknown key.
pub(super) fn suggestion<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let likeness = |candidate: &str| strsim::jaro_winkler(&key.to_lowercase(), &candidate.to_lowercase());
    let best = known.clone().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match (home_of(key), best.filter(|best| likeness(best) > 0.85)) {
        (Some(home), _) => format!("write it below {home}"),
        (None, Some(best)) => format!("write {best}"),
        (None, None) => format!("remove it; known here: {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// Where a key belongs that was written somewhere else.
fn home_of(key: &str) -> Option<&'static str> {
    let homes = [
        ("serving", has::<ServingFlags>(key)),
        ("authentication", has::<AuthenticationFlags>(key)),
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

/// The words of `serde` in those of an operator.
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
        ("a string", "a text, in quotes"),
    ];
    let Some((found, expected)) = problem.split_once(", expected ") else { return problem.to_owned() };
    let (subject, found) = found.split_once(": ").unwrap_or(("", found));
    let in_words = |text: &str| {
        let word = words.iter().find(|(theirs, _)| *theirs == text);
        word.map_or_else(|| text.to_owned(), |(_, ours)| (*ours).to_owned())
    };
    format!("{subject}: {}, expected {}", in_words(found), in_words(expected))
}

/// What the help says of a key.
pub(super) fn meaning<T: Args>(key: &str) -> String {
    let command = T::augment_args(Command::new(""));
    let mut arguments = command.get_arguments();
    let argument = arguments.find(|argument| argument.get_long().is_some_and(|long| key_of(long) == key));
    // What has no flag is made of keys.
    let Some(argument) = argument else {
        return "write its keys below it, indented; begin each cluster with a dash".to_owned();
    };
    let name =
        argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<String>();
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let list = if matches!(argument.get_action(), clap::ArgAction::Append) { "a list of " } else { "" };
    format!("give {list}{name}: {}", help.replace(", comma-separated", ""))
}
