//! Reads the command line of a command that takes the flags of `serve`, so that every error of it is reported, together with
//! those of the files that it names: clap itself stops at the first one.
//!
//! Words are divided as by kube-apiserver (`spf13/pflag`): the value of a flag may be the next word, whatever it begins
//! with; `_` in a name is `-`; a truth value may also be `1`, `T` or `True`.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, FromArgMatches as _};
use portcullis_go::quote::Quoted;
use portcullis_tools::help;

use super::foreign_flags::{ALL, ForeignFlag, ForeignRole, IGNORE};
use super::{CONFIGURED, Cli, first_sentence};
use crate::config::ConfigError;
use crate::config::flags::CommandLineFindings;

/// The likeness from which on a flag is taken for a misspelt one.
const LIKENESS: f64 = 0.85;

/// Parses a command line. Errors of single flags of a command that reads the configuration go to its `ServeFlags`, which
/// `resolve` reports with its own.
pub(super) fn parse(arguments: Vec<String>) -> Result<Cli, clap::Error> {
    let mut arguments = help_of_command(arguments).into_iter();
    let head: Vec<String> = arguments.by_ref().take(2).collect();
    let is_configured = |name: &String| name == "serve" || CONFIGURED.contains(&name.as_str());
    let command = super::command();
    let Some(subcommand) = head.get(1).filter(|name| is_configured(name)) else {
        return read(head.into_iter().chain(arguments));
    };
    let Some(subcommand) = command.find_subcommand(subcommand) else {
        return read(head.into_iter().chain(arguments));
    };
    let mut line = CommandLine::split(subcommand, arguments);
    let words = |line: &CommandLine| {
        let kept = line.kept.iter().flat_map(|flag| flag.words.iter().cloned());
        head.iter().cloned().chain(kept).collect::<Vec<_>>()
    };
    let mut cli = match read(words(&line)) {
        Ok(cli) => cli,
        // --help and --version are errors to clap, too.
        Err(error) if !error.use_stderr() => return Err(error),
        Err(error) => {
            line.check(subcommand);
            // Clap reports what concerns no single flag: one that is missing, or --help.
            read(words(&line)).map_err(|second| if second.use_stderr() { error } else { second })?
        }
    };
    if let Some(flags) = cli.serve_flags() {
        flags.command_line = line.findings(flags.ignore_unknown_apiserver_flags);
    }
    Ok(cli)
}

/// `help NAME …` as `NAME … --help`, which is shorter than what clap prints for it.
fn help_of_command(arguments: Vec<String>) -> Vec<String> {
    match arguments.as_slice() {
        [program, help, names @ ..] if help == "help" => {
            [std::slice::from_ref(program), names, &["--help".to_owned()]].concat()
        }
        _ => arguments,
    }
}

fn read(arguments: impl IntoIterator<Item = String>) -> Result<Cli, clap::Error> {
    let arguments: Vec<String> = arguments.into_iter().collect();
    let command = help::described(super::command(), arguments.get(1..).unwrap_or_default());
    let mut matches = command.try_get_matches_from(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut super::command()))
}

/// A flag with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenFlag {
    /// As it is given to clap: `--name=value` if the flag has a long name and a value.
    pub(super) words: Vec<String>,
}

impl GivenFlag {
    /// Its name, without dashes; `None` for a short flag, or a word that is no flag.
    pub(super) fn name(&self) -> Option<&str> {
        let word = self.words.first()?.strip_prefix("--")?;
        Some(word.split_once('=').map_or(word, |(name, _)| name))
    }

    /// The value of a flag with a long name.
    pub(super) fn value(&self) -> Option<&str> {
        self.name()?;
        self.words.first()?.split_once('=').map(|(_, value)| value)
    }
}

/// A flag of kube-apiserver that the gateway does not have, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenForeignFlag {
    pub(super) flag: ForeignFlag,
    pub(super) value: Option<String>,
}

/// The flags of a command line.
#[derive(Debug, Default)]
pub(super) struct CommandLine {
    /// Those for clap, in order.
    pub(super) kept: Vec<GivenFlag>,
    pub(super) foreign: Vec<GivenForeignFlag>,
    /// The errors of single flags, which are not in `kept`.
    pub(super) errors: Vec<ConfigError>,
    /// The flags that misspelt ones probably stand for.
    meant: Vec<String>,
}

impl CommandLine {
    /// Divides the words behind the name of a command into flags.
    pub(super) fn split(command: &Command, words: impl IntoIterator<Item = String>) -> Self {
        let mut line = Self::default();
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let Some((name, value)) = long_flag(&word) else {
                let mut words_of_flag = vec![word];
                if let [word] = words_of_flag.as_slice()
                    && short_flag_takes_next(command, word)
                {
                    words_of_flag.extend(words.next());
                }
                line.kept.push(GivenFlag { words: words_of_flag });
                continue;
            };
            let name = canonical_name(command, name);
            let known = command.get_arguments().find(|argument| argument.get_long() == Some(name.as_str()));
            let foreign = ForeignFlag::find(&name).filter(|_| known.is_none());
            let is_in_next_word = value.is_none()
                && match (known, &foreign) {
                    (Some(known), _) => takes_next(known),
                    (None, Some(foreign)) => !foreign.is_switch,
                    // Probably its value.
                    (None, None) => words.peek().is_some_and(|next| !next.starts_with('-')),
                };
            let value = if is_in_next_word { words.next() } else { value.map(str::to_owned) };
            match (known, foreign) {
                (_, Some(flag)) => line.foreign.push(GivenForeignFlag { flag, value }),
                (known, None) => {
                    let value = value.map(|value| match known {
                        Some(known) if is_truth_value(known) => go_truth_value(value),
                        _ => value,
                    });
                    line.kept.push(GivenFlag { words: vec![joined(&name, value)] });
                }
            }
        }
        line
    }

    /// Moves the flags that `command` refuses from `kept` to the errors.
    pub(super) fn check(&mut self, command: &Command) {
        // A single flag is parsed at a time: no other one is required.
        let command = command.clone().no_binary_name(true).mut_args(|argument| argument.required(false));
        for flag in std::mem::take(&mut self.kept) {
            match command.clone().try_get_matches_from(&flag.words) {
                Err(error) if error.use_stderr() => {
                    let (error, meant) = flag_error(&command, &flag, &error);
                    self.errors.push(error);
                    self.meant.extend(meant);
                }
                // Also --help.
                Ok(_) | Err(_) => self.kept.push(flag),
            }
        }
    }

    /// What `resolve` has to know of it. Flags that the gateway does not have are errors, or warnings if they are ignored.
    fn findings(self, ignores: bool) -> CommandLineFindings {
        let Self { kept: _, foreign, errors, meant } = self;
        let mut findings = CommandLineFindings { errors: Vec::new(), meant, warnings: Vec::new() };
        for GivenForeignFlag { flag: ForeignFlag { name, role, .. }, .. } in foreign {
            let reason = role.reason();
            if ignores {
                findings.warnings.push(match role {
                    ForeignRole::Backend(_) => format!("--{name} is {reason}"),
                    ForeignRole::Lacking(_) => format!("--{name} has no effect: {reason}"),
                });
            } else {
                let problem = format!("is a kube-apiserver flag that portcullis does not support; {reason}");
                let fix = format!("remove it, or give {IGNORE}");
                findings.errors.push(ConfigError::new(format!("--{name}"), problem).fix(fix));
            }
        }
        findings.errors.extend(errors);
        findings
    }
}

/// The name and the value of a word that is a flag with a long name.
fn long_flag(word: &str) -> Option<(&str, Option<&str>)> {
    let flag = word.strip_prefix("--").filter(|name| !name.is_empty())?;
    Some(flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value))))
}

fn joined(name: &str, value: Option<String>) -> String {
    match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    }
}

/// The name with `-` in place of `_`, if there is such a flag.
// component-base: cli/flag/flags.go, WordSepNormalizeFunc
fn canonical_name(command: &Command, name: &str) -> String {
    let dashed = name.replace('_', "-");
    let is_known = command.get_arguments().any(|argument| argument.get_long() == Some(dashed.as_str()));
    if is_known || ForeignFlag::find(&dashed).is_some() { dashed } else { name.to_owned() }
}

/// Whether the value of a flag is the next word.
fn takes_next(argument: &Arg) -> bool {
    argument.get_action().takes_values() && !argument.is_require_equals_set()
}

/// Whether a word is a short flag without its value, such as `-v`.
fn short_flag_takes_next(command: &Command, word: &str) -> bool {
    let mut letters = word.chars();
    let (Some('-'), Some(short), None) = (letters.next(), letters.next(), letters.next()) else {
        return false;
    };
    command.get_arguments().any(|argument| argument.get_short() == Some(short) && takes_next(argument))
}

fn is_truth_value(argument: &Arg) -> bool {
    argument.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "BOOL"))
}

/// A truth value as clap spells it.
// Go: strconv.ParseBool
fn go_truth_value(value: String) -> String {
    match value.as_str() {
        "1" | "t" | "T" | "TRUE" | "True" => "true".to_owned(),
        "0" | "f" | "F" | "FALSE" | "False" => "false".to_owned(),
        _ => value,
    }
}

/// The error of a flag, and the flag that it probably stands for.
fn flag_error(command: &Command, flag: &GivenFlag, error: &clap::Error) -> (ConfigError, Option<String>) {
    let first = flag.words.first().map(String::as_str).unwrap_or_default();
    let key = flag.name().map_or_else(|| first.to_owned(), |name| format!("--{name}"));
    let known = command.get_arguments().find(|argument| argument.get_long() == flag.name());
    let known = known.filter(|_| flag.name().is_some());
    match (error.kind(), flag.name()) {
        (ErrorKind::UnknownArgument, Some(name)) => {
            let meant = most_alike(command, name).map(|meant| format!("--{meant}"));
            let fix = meant.as_ref().map_or_else(
                || "remove it; `portcullis serve --help-all` explains every flag".to_owned(),
                |meant| format!("give {meant}"),
            );
            (ConfigError::new(key, "unknown flag").fix(fix), meant)
        }
        (ErrorKind::UnknownArgument, None) => {
            let fix = "remove it, or put quotes around a value with blanks";
            (ConfigError::new(key, "is neither a flag nor the value of one").fix(fix), None)
        }
        _ => {
            let fix = known.map_or_else(|| "see `portcullis serve --help-all`".to_owned(), value_help);
            (ConfigError::new(key, value_problem(error)).fix(fix), None)
        }
    }
}

/// Why the value of a flag is not accepted.
// pflag: errors.go, InvalidValueError
fn value_problem(error: &clap::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) if !value.is_empty() => Some(value),
        _ => None,
    };
    match (error.kind(), value) {
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(value)) => {
            format!("invalid argument {}{cause}", Quoted(value))
        }
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, None) => "flag needs an argument".to_owned(),
        (ErrorKind::TooManyValues, _) => "takes no value".to_owned(),
        (kind, _) => kind.to_string(),
    }
}

/// Which values a flag has.
fn value_help(argument: &Arg) -> String {
    if is_truth_value(argument) {
        return "give true or false".to_owned();
    }
    let possible: Vec<String> =
        argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !possible.is_empty() {
        return format!("give one of {}", possible.join(", "));
    }
    let name = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let help = first_sentence(&help);
    match name.collect::<String>() {
        name if name.is_empty() => format!("give the flag alone: {help}"),
        name => format!("give {name}: {help}"),
    }
}

/// The flag that is most like a name, if one is.
fn most_alike(command: &Command, name: &str) -> Option<String> {
    let ours = command.get_arguments().filter_map(Arg::get_long);
    let all = ours.chain(ALL.iter().map(|flag| flag.name));
    let likeness = all.map(|known| (strsim::jaro_winkler(name, known), known));
    let best = likeness.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(likeness, _)| *likeness > LIKENESS).map(|(_, known)| known.to_owned())
}

#[cfg(test)]
mod tests;
