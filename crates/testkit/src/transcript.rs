//! Replays the transcripts of `docs/`: runs the command behind each `$ ` of a fenced block and compares its output.
//!
//! ````text
//! ```console               everywhere
//! ```console cluster       with a fake or real API server
//! ```console kubernetes    with a real API server and kubectl
//! $ portcullis certs init --dir pki
//! NAME   NOT AFTER
//! root   <time>
//! ```
//! ````
//!
//! `<word>` matches text that varies from run to run, a line `…` any number of lines. Repeated blanks count as one,
//! since tables are as wide as their content. The output of a command with an exit code other than 0 ends in `exit
//! status N`. All commands of a page run in one directory, one after another. `cluster-info verify` is repeated until it
//! prints the text of the page, since the controllers need a moment to act.
//!
//! A command that ends in ` &` runs until the last command has ended. The next command follows when its output contains each
//! line of the page, `…` aside.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use regex::Regex;

/// How long `cluster-info verify` is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a command in the background may take to print the lines of the page.
const BACKGROUND_TIMEOUT: Duration = Duration::from_mins(1);

/// One command and its output according to the page.
#[derive(Debug, PartialEq, Eq)]
struct Exchange {
    line: usize,
    command: String,
    printed: Vec<String>,
}

/// Runs the blocks of these kinds of a page's transcript in `dir`. `prepare` sets the environment of each command. The
/// error contains the differences.
pub fn replay(
    page: &Path,
    kinds: &[&str],
    dir: &Path,
    prepare: impl Fn(&mut Command),
) -> Result<usize, String> {
    replay_as(page, kinds, dir, &[], prepare)
}

/// As [`replay`], with the names of the page, such as an address or a directory, replaced by those of this run, in order.
pub fn replay_as(
    page: &Path,
    kinds: &[&str],
    dir: &Path,
    names: &[(&str, String)],
    prepare: impl Fn(&mut Command),
) -> Result<usize, String> {
    let text = std::fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let exchanges = exchanges(&text, kinds);
    let mut wrong = Vec::new();
    let mut running = Vec::new();
    for Exchange { line, command, printed } in &exchanges {
        let command = names.iter().fold(command.clone(), |text, (name, real)| text.replace(name, real));
        if let Some(command) = command.strip_suffix(" &") {
            running.push(Background::start(command, printed, dir, &prepare)?);
            continue;
        }
        let started = Instant::now();
        let mut seen = run(&command, dir, &prepare)?;
        while command.contains("cluster-info verify")
            && !matches(printed, &seen)
            && started.elapsed() < PATIENCE
        {
            seen = run(&command, dir, &prepare)?;
        }
        if !matches(printed, &seen) {
            wrong.push(format!(
                "{}:{line}: $ {command}\n--- the page says\n{}\n--- it printed\n{}\n",
                page.display(),
                printed.join("\n"),
                seen.join("\n")
            ));
        }
    }
    if exchanges.is_empty() {
        return Err(format!("{} has no transcript", page.display()));
    }
    if wrong.is_empty() { Ok(exchanges.len()) } else { Err(wrong.join("\n")) }
}

/// A command that runs beside those after it.
struct Background(Child);

impl Background {
    /// Starts it, and waits until it has printed what the page says.
    fn start(
        command: &str,
        printed: &[String],
        dir: &Path,
        prepare: &impl Fn(&mut Command),
    ) -> Result<Self, String> {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec 2>&1\nexec {command}")]).current_dir(dir);
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        prepare(&mut shell);
        let mut background = Self(shell.spawn().map_err(|error| error.to_string())?);
        let output = background.0.stdout.take().ok_or("no output")?;
        let (lines, received) = mpsc::channel();
        // Reads on when nothing waits for the lines any more, or the command could not write.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                lines.send(line).ok();
            }
        });
        let mut missing: Vec<&str> = printed.iter().map(|line| line.trim()).collect();
        missing.retain(|line| !line.is_empty() && *line != "…");
        let (mut seen, deadline) = (Vec::new(), Instant::now() + BACKGROUND_TIMEOUT);
        while !missing.is_empty() {
            match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    missing.retain(|part| !line.contains(part));
                    seen.push(line);
                }
                Err(error) => {
                    let end =
                        if error == RecvTimeoutError::Timeout { "has not printed" } else { "ended without" };
                    return Err(format!("$ {command} &\n{end} {missing:?}; it printed\n{}", seen.join("\n")));
                }
            }
        }
        Ok(background)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The output of a command, with its exit code if that is not 0.
fn run(command: &str, dir: &Path, prepare: &impl Fn(&mut Command)) -> Result<Vec<String>, String> {
    let mut shell = Command::new("bash");
    // Standard output and standard error, interleaved as written.
    shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(dir).stdin(Stdio::null());
    prepare(&mut shell);
    let output = shell.output().map_err(|error| error.to_string())?;
    let mut seen: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if !output.status.success() {
        seen.push(output.status.to_string().replace("exit status: ", "exit status "));
    }
    Ok(seen)
}

fn exchanges(page: &str, kinds: &[&str]) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    let mut block: Option<usize> = None;
    for (index, text) in page.lines().enumerate() {
        let wanted = text.strip_prefix("```console").map(str::trim);
        match (block, text.trim_end()) {
            (None, _) if wanted.is_some_and(|kind| kind.is_empty() || kinds.contains(&kind)) => {
                block = Some(found.len());
            }
            (Some(_), "```") => block = None,
            (None, _) => {}
            (Some(first), text) => {
                let within = found.len() > first;
                match (text.strip_prefix("$ "), found.last_mut().filter(|_| within)) {
                    (Some(command), _) => {
                        let (line, command) = (index + 1, command.to_owned());
                        found.push(Exchange { line, command, printed: Vec::new() });
                    }
                    (None, Some(exchange)) if exchange.command.ends_with('\\') => {
                        exchange.command.push('\n');
                        exchange.command.push_str(text);
                    }
                    (None, Some(exchange)) => exchange.printed.push(text.to_owned()),
                    (None, None) => panic!("line {}: a transcript begins with a command", index + 1),
                }
            }
        }
    }
    found
}

fn matches(expected: &[String], seen: &[String]) -> bool {
    let squeezed = |lines: &[String]| -> Vec<String> {
        let lines = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.filter(|line| !line.is_empty()).collect()
    };
    let placeholder = Regex::new("<[a-z][a-z -]*>").unwrap();
    let pattern = |line: &String| {
        if line == "…" {
            return "(?:.*\n)*?".to_owned();
        }
        let literal = placeholder.split(line).map(regex::escape).collect::<Vec<_>>();
        format!("{}\n", literal.join(".+?"))
    };
    let pattern: String = squeezed(expected).iter().map(pattern).collect();
    let seen: String = squeezed(seen).iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    Regex::new(&format!("^{pattern}$")).unwrap().is_match(&seen)
}

#[cfg(test)]
mod tests {
    use super::{exchanges, replay, replay_as};

    #[test]
    fn a_command_in_the_background_runs_beside_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.md");
        let replayed = |text: &str| {
            std::fs::write(&page, text).unwrap();
            replay_as(&page, &[], dir.path(), &[("NAME", "home".to_owned())], |_| {})
        };
        // The writer waits for the reader.
        let text = "\
```console
$ sh -c 'mkfifo asked; echo listens at NAME, port 1; exec cat asked' &
…
listens at home
$ echo asks > asked
```
";
        assert_eq!(replayed(text), Ok(2));
        let error = replayed("```console\n$ echo listens at NAME &\nlistens at sea\n```\n").unwrap_err();
        assert!(error.contains("ended without [\"listens at sea\"]"), "{error}");
        assert!(error.contains("listens at home"), "{error}");
    }

    #[test]
    fn a_page_that_differs_from_the_output_is_found() {
        let page = "\
```console
$ printf 'NAME   AGE\\none    %s\\n' 12s
NAME  AGE
one   <age>
$ echo a; echo \\
  b c; exit 3
…
b c
exit status 3
```
```sh
$ not this
```
```console cluster
$ echo cluster
```
";
        assert_eq!(exchanges(page, &[]).len(), 2);
        assert_eq!(exchanges(page, &["cluster"]).len(), 3);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("page.md");
        let replayed = |page: &str| {
            std::fs::write(&file, page).unwrap();
            replay(&file, &[], dir.path(), |_| {})
        };
        assert_eq!(replayed(page), Ok(2));
        for (from, to) in
            [("one   <age>", "two   <age>"), ("exit status 3", "exit status 4"), ("one   <age>\n", "")]
        {
            assert!(page.contains(from) && replayed(&page.replace(from, to)).is_err(), "{from} as {to}");
        }
    }
}
