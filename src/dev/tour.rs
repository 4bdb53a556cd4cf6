//! `portcullis dev --tour`: commands one after another, what each shows, and whether it showed that.
//!
//! Each step runs a command as the reader would type it: this program, kubectl if there is one, or else the request that
//! `curl` would send. A step promises words of its output; the first one that does not keep its promise ends the tour with
//! an error that names it.

mod client;
mod steps;

use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use secrecy::ExposeSecret as _;

use super::full::Full;
use super::https::BoxError;
use super::terminal::{Painter, Style, program, quoted, wrapped};
use super::{Dev, cluster_url};
use client::RequestParts;
use steps::{Step, steps};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest wait for the gateway, and for what it does beside a request.
const WAIT: Duration = Duration::from_secs(30);

/// Why a tour has ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TourError {
    #[error("the tour needs --full")]
    NotFull,
    #[error("the tour cannot be printed: {0}")]
    Print(#[from] io::Error),
    #[error("the tour ended at the step {0:?}: {1}")]
    Step(&'static str, String),
}

/// What a step has run.
#[derive(Debug)]
struct Shown {
    /// The command, also over several lines.
    command: String,
    output: String,
}

/// The tour.
#[derive(Debug)]
pub(crate) struct Tour<'a> {
    dev: &'a Dev,
    full: &'a Full,
    painter: Painter,
    /// Whether it waits for Enter between two steps.
    waits: bool,
    kubectl: Option<PathBuf>,
    /// This program.
    portcullis: PathBuf,
}

impl<'a> Tour<'a> {
    /// A tour of a gateway that serves. Waits between steps only if input and output are a terminal.
    pub(crate) fn new(dev: &'a Dev, color: bool) -> Result<Self, TourError> {
        let full = dev.full.as_ref().ok_or(TourError::NotFull)?;
        let waits = io::stdin().is_terminal() && io::stdout().is_terminal();
        let portcullis = std::env::current_exe()?;
        Ok(Self { dev, full, painter: Painter { color }, waits, kubectl: kubectl(), portcullis })
    }

    /// Runs all steps, and prints them.
    pub(crate) async fn run(mut self, out: &mut impl Write) -> Result<(), TourError> {
        let steps = steps();
        writeln!(out, "{}", self.paint(Style::Bold, "A tour of Portcullis"))?;
        let files = self.dev.paths.dir().display();
        writeln!(
            out,
            "{}",
            wrapped(
                &format!(
                    "{} commands, one after another, against the gateway and the two in-memory clusters of `portcullis \
                     dev --full`. Its files, and the gateway's log, are in {files}.",
                    steps.len(),
                ),
                "",
            )
        )?;
        if self.kubectl.is_some() {
            let kubeconfig = quoted(&self.dev.paths.kubeconfig().display().to_string());
            let line = format!("  $ export KUBECONFIG={kubeconfig}");
            writeln!(out, "\n{}", self.paint(Style::Cyan, &line))?;
        }
        self.wait_for_clusters().await.map_err(|error| TourError::Step("the start", error.to_string()))?;
        let count = steps.len();
        for (number, step) in steps.into_iter().enumerate() {
            self.show(out, &format!("{}/{count}", number + 1), step).await?;
            if number + 1 < count {
                self.pause(out)?;
            }
        }
        let program = program();
        writeln!(out, "\n{}", self.paint(Style::Bold, "That was the tour."))?;
        let end = format!(
            "`{program} dev --full` starts all of this, and leaves it running for your own commands. README.md says how \
             a gateway stands in front of your API server."
        );
        writeln!(out, "{}", wrapped(&end, ""))?;
        out.flush()?;
        Ok(())
    }

    /// Prints a step, runs it, and checks its promises.
    async fn show(&self, out: &mut impl Write, place: &str, step: Step) -> Result<(), TourError> {
        let Step { title, text, promises, run } = step;
        let rule = "─".repeat(88_usize.saturating_sub(title.chars().count() + place.len()));
        let head = format!(
            "{} {} {}",
            self.paint(Style::Dim, place),
            self.paint(Style::Bold, title),
            self.paint(Style::Dim, &rule)
        );
        writeln!(out, "\n{head}\n{}\n", wrapped(text, ""))?;
        out.flush()?;
        let shown = run(self).await.map_err(|error| TourError::Step(title, error.to_string()))?;
        let mut prompt = "$";
        for line in shown.command.lines() {
            writeln!(out, "  {}", self.paint(Style::Cyan, &format!("{prompt} {line}")))?;
            prompt = if line.ends_with('\\') { " " } else { "$" };
        }
        writeln!(out)?;
        for line in shown.output.trim_end().lines() {
            writeln!(out, "{}", format!("  {line}").trim_end())?;
        }
        let missing = promises.iter().find(|promise| !shown.output.contains(**promise));
        let (style, sign) = if missing.is_some() { (Style::Red, "✗") } else { (Style::Green, "✓") };
        writeln!(out, "\n  {}", self.paint(style, &format!("{sign} {}", promises.join(", "))))?;
        out.flush()?;
        match missing {
            Some(missing) => Err(TourError::Step(title, format!("its output has no {missing:?}"))),
            None => Ok(()),
        }
    }

    /// Waits for Enter. At the end of the input the rest runs through.
    fn pause(&mut self, out: &mut impl Write) -> Result<(), TourError> {
        if !self.waits {
            return Ok(());
        }
        write!(out, "\n  {} ", self.paint(Style::Dim, "Enter: the next step; Ctrl-C: the end"))?;
        out.flush()?;
        if io::stdin().lock().read_line(&mut String::new())? == 0 {
            self.waits = false;
            writeln!(out)?;
        }
        Ok(())
    }

    fn paint(&self, style: Style, text: &str) -> String {
        self.painter.paint(style, text)
    }

    /// Waits until both clusters have passed the gateway's self-check, and know the keys of the provider.
    async fn wait_for_clusters(&self) -> Result<(), BoxError> {
        for cluster in ["blue", "green"] {
            let url = format!("{}/api", cluster_url(self.dev.port, cluster)).parse()?;
            self.poll("the clusters are not ready", async || {
                let token = format!("Bearer {}", self.full.token.expose_secret());
                let headers = vec![("Authorization", token)];
                let answer =
                    client::send(&self.dev.paths, &url, RequestParts { headers, ..RequestParts::default() });
                Ok(answer.await?.status.is_success().then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Asks until there is an answer.
    async fn poll<T>(
        &self,
        problem: &str,
        ask: impl AsyncFn() -> Result<Option<T>, BoxError>,
    ) -> Result<T, BoxError> {
        let asking = async {
            loop {
                if let Some(answer) = ask().await? {
                    return Ok(answer);
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(WAIT, asking).await.map_err(|_| problem.to_owned())?
    }

    /// Runs this program with arguments.
    fn portcullis(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.portcullis);
        command.args(arguments).stdin(Stdio::null());
        command
    }
}

/// The text that a command prints on a terminal.
fn printed(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    text
}

/// The kubectl in the PATH.
fn kubectl() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join("kubectl")).find(|file| file.is_file())
}
