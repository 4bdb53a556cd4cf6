//! What `portcullis dev` prints: the first text a newcomer reads. Every command in it can be pasted as it is.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use super::pki::{Paths, Pki};

/// Everything the text names.
#[derive(Debug)]
pub(super) struct Announcement<'a> {
    pub(super) paths: &'a Paths,
    pub(super) port: u16,
    pub(super) pki: Pki,
    pub(super) backend: SocketAddr,
    pub(super) flags: &'a [String],
    pub(super) color: bool,
}

/// A command and what it shows.
type Line = (String, &'static str);

impl fmt::Display for Announcement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = format!("https://127.0.0.1:{}", self.port);
        let pki = self.pki;
        let file = |path: &Path| quoted(&path.display().to_string());
        let curl = format!("curl --cacert {}", file(&self.paths.pki("server-ca.crt")));
        let here = std::env::current_dir()
            .map(|here| quoted(&here.display().to_string()))
            .unwrap_or_default();

        writeln!(f, "{}", self.bold("Portcullis is running."))?;
        writeln!(f)?;
        writeln!(
            f,
            "  gateway   {gateway}   the real one, as `portcullis serve` runs it"
        )?;
        writeln!(
            f,
            "  backend   https://{}   in memory, for trying only; it trusts the gateway alone",
            self.backend
        )?;
        writeln!(
            f,
            "  files     {}   throw-away PKI, {}, good until {}",
            file(self.paths.dir()),
            pki.origin,
            pki.expires.date()
        )?;

        self.section(
            f,
            "In another terminal",
            &[
                (format!("cd {here}"), ""),
                (
                    format!("export KUBECONFIG={}", file(&self.paths.kubeconfig())),
                    "",
                ),
            ],
        )?;
        let kubectl = |rest: &str| format!("kubectl {rest}");
        self.section(
            f,
            "Who am I? Three contexts: alice, bob and admin",
            &[
                (kubectl("auth whoami"), "alice, by her client certificate"),
                (kubectl("--context bob auth whoami"), "bob, by a bearer token"),
                (
                    kubectl("--context admin auth whoami --as carol"),
                    "admin as carol: impersonation",
                ),
            ],
        )?;
        self.section(
            f,
            "Work as usual",
            &[
                (kubectl("get ns"), ""),
                (kubectl("create configmap hello --from-literal=from=alice"), ""),
                (
                    kubectl("get configmaps -w"),
                    "a watch; Ctrl-C ends it at the backend too",
                ),
                (
                    kubectl("get secrets -n kube-system"),
                    "forbidden to alice, not to admin",
                ),
            ],
        )?;
        self.section(
            f,
            "Without kubectl",
            &[
                (format!("{curl} {gateway}/version"), "anonymous: may see this"),
                (format!("{curl} {gateway}/api/v1/namespaces"), "anonymous: 403"),
                (
                    format!("{curl} -H 'Authorization: Bearer wrong' {gateway}/version"),
                    "a bad token: 401",
                ),
                (
                    format!(
                        "{curl} -H \"Authorization: Bearer $(cat {})\" {gateway}/api",
                        file(&self.paths.token())
                    ),
                    "bob",
                ),
            ],
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "{}",
            self.bold("The same gateway without `dev`, while this backend runs")
        )?;
        writeln!(f)?;
        write!(f, "  {}", self.command("portcullis serve"))?;
        for flag in self.flags {
            write!(f, " \\\n    {}", self.command(&quoted(flag)))?;
        }
        writeln!(f, "\n\n{}", self.bold("Ctrl-C stops everything."))
    }
}

impl Announcement<'_> {
    /// A heading, and commands with their remarks in one column.
    fn section(&self, f: &mut fmt::Formatter<'_>, heading: &str, lines: &[Line]) -> fmt::Result {
        writeln!(f, "\n{}\n", self.bold(heading))?;
        let width = lines
            .iter()
            .filter(|(_, remark)| !remark.is_empty())
            .map(|(line, _)| line.chars().count())
            .max();
        for (line, remark) in lines {
            if remark.is_empty() {
                writeln!(f, "  {}", self.command(line))?;
            } else {
                let gap = width.unwrap_or_default().saturating_sub(line.chars().count());
                writeln!(
                    f,
                    "  {}{:gap$}   {}",
                    self.command(line),
                    "",
                    self.dim(&format!("# {remark}"))
                )?;
            }
        }
        Ok(())
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    fn command(&self, text: &str) -> String {
        self.paint("36", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// A word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
