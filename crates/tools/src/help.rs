//! Help in two screens: `--help` has the flags that a command needs at first, each in a line or two, and `--help-all` has every flag,
//! with the details.

use clap::{Arg, ArgAction, Command};

/// Gives a command and those below it `--help`, and `--help-all` to those that have no commands below them.
pub fn arranged(command: Command) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    let all = Arg::new("help-all").long("help-all").action(ArgAction::HelpLong);
    let all = all.help("Print every flag, with the details");
    // Behind the command's own flags, under none of their headings.
    let placed = |flag: Arg| flag.display_order(1000).help_heading(None::<&str>);
    let command = command.disable_help_flag(true).arg(placed(help));
    if below.is_empty() {
        return command.arg(placed(all));
    }
    below.into_iter().fold(command, |command, name| command.mut_subcommand(name, arranged))
}

/// Lets the command that these words name, by itself or below another one, show its whole description in `--help`, too.
// Not for the others: the list of commands has the first line of each description.
pub fn described(command: Command, words: &[String]) -> Command {
    let below = words.first().and_then(|name| command.find_subcommand(name));
    match (below.map(|below| below.get_name().to_owned()), words) {
        (Some(name), [_, words @ ..]) => command.mut_subcommand(name, |below| described(below, words)),
        _ => match command.get_long_about().cloned() {
            Some(description) => command.about(description),
            None => command,
        },
    }
}
