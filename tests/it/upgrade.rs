//! An upgrade keeps flags, keys of the configuration file and metrics: those of the last release are in `last_release/`, and one may be
//! gone only if that release has warned of it (docs/upgrade.md).
//!
//! At a release, `PORTCULLIS_RELEASE=1 cargo test --test it upgrade` writes the files anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use portcullis::internal::{command_line, metric_labels};

/// The end of a line whose name the release has warned about.
const DEPRECATED: &str = " (deprecated)";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/last_release").join(name)
}

/// The flags and arguments of a command and of those below it.
fn flags(command: &Command, names: &str, found: &mut BTreeSet<String>) {
    for flag in command.get_arguments() {
        let is_deprecated = flag.get_help().is_some_and(|help| help.to_string().starts_with("Deprecated"));
        let end = if is_deprecated { DEPRECATED } else { "" };
        let aliases = flag.get_all_aliases().unwrap_or_default().into_iter();
        let long = flag.get_long().into_iter().chain(aliases).map(|name| format!("--{name}"));
        let short = flag.get_short().into_iter().map(|letter| format!("-{letter}"));
        let argument = Some(flag).filter(|flag| flag.is_positional()).map(argument);
        found.extend(long.chain(short).chain(argument).map(|name| format!("{names} {name}{end}")));
    }
    for below in command.get_subcommands() {
        flags(below, &format!("{names} {}", below.get_name()), found);
    }
}

fn argument(argument: &Arg) -> String {
    format!("[{}]", argument.get_id())
}

/// The keys of docs/configuration.md, which is made of the definitions: `SECTION.KEY`.
fn keys() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix('#') {
            section = title.trim_start_matches('#').trim().trim_matches('`');
        } else if let Some(key) = line.strip_prefix("| `").and_then(|row| row.split('`').next())
            && !key.starts_with('-')
        {
            found.insert(format!("{section}.{key}"));
        }
    }
    found
}

/// The metrics, and each label of them: others may be added.
fn metrics() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, labels) in metric_labels() {
        found.extend(labels.iter().map(|label| format!("{name} {label}")));
        found.insert(name);
    }
    found
}

/// What a release had, it did not warn about, and is not there any more.
fn gone(before: &str, now: &BTreeSet<String>) -> Vec<String> {
    let kept = |line: &&str| {
        line.ends_with(DEPRECATED) || now.contains(*line) || now.contains(&format!("{line}{DEPRECATED}"))
    };
    before.lines().filter(|line| !line.starts_with('#') && !kept(line)).map(str::to_owned).collect()
}

#[test]
fn nothing_of_the_last_release_is_gone_without_a_warning() {
    let mut all = BTreeSet::new();
    flags(&command_line(), "portcullis", &mut all);
    let now = [("flags.txt", all), ("keys.txt", keys()), ("metrics.txt", metrics())];
    for (name, now) in now {
        assert!(now.len() > 60, "{name}: only {}", now.len());
        if std::env::var_os("PORTCULLIS_RELEASE").is_some() {
            let lines: String = now.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            let text =
                format!("# Of {}. Written by tests/it/upgrade.rs.\n{lines}", env!("CARGO_PKG_VERSION"));
            std::fs::write(file(name), text).unwrap();
        }
        let before = std::fs::read_to_string(file(name)).unwrap();
        assert!(before.starts_with("# Of "), "{name} names no release");
        let gone = gone(&before, &now);
        assert!(
            gone.is_empty(),
            "{name}: gone without a warning for one release; keep the old name, with help that begins with Deprecated \
             (docs/upgrade.md): {gone:#?}"
        );
    }
}

#[test]
fn what_is_gone_is_found() {
    let now: BTreeSet<String> =
        ["serve --new", "serve --kept", "serve --old (deprecated)"].map(str::to_owned).into();
    let before = "# Of 0.1.0.\nserve --kept\nserve --old\nserve --older (deprecated)\nserve --lost\n";
    assert_eq!(gone(before, &now), ["serve --lost"]);
}
