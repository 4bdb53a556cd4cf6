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

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regex::Regex;

/// How long `cluster-info verify` is repeated.
const PATIENCE: Duration = Duration::from_secs(10);

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
    let text = std::fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let exchanges = exchanges(&text, kinds);
    let mut wrong = Vec::new();
    for Exchange { line, command, printed } in &exchanges {
        let started = Instant::now();
        let mut seen = run(command, dir, &prepare)?;
        while command.contains("cluster-info verify")
            && !matches(printed, &seen)
            && started.elapsed() < PATIENCE
        {
            seen = run(command, dir, &prepare)?;
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
    use super::{exchanges, replay};

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
