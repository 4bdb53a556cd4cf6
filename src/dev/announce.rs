//! What `portcullis dev` prints: the first text a newcomer reads. Every command in it can be pasted as it is.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use super::pki::{Paths, Pki};
use crate::clock::rfc3339;

/// Everything the text names.
#[derive(Debug)]
pub(super) struct Announcement<'a> {
    pub(super) paths: &'a Paths,
    pub(super) port: u16,
    pub(super) pki: Pki,
    pub(super) backend: SocketAddr,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) flags: Vec<String>,
    pub(super) color: bool,
}

/// A command and what it shows.
type Line = (String, &'static str);

impl fmt::Display for Announcement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = format!("https://127.0.0.1:{}", self.port);
        let file = |path: &Path| quoted(&path.display().to_string());
        let curl = format!("curl --cacert {}", file(&self.paths.pki("server-ca.crt")));
        let here = std::env::current_dir().unwrap_or_default();
        let expires = rfc3339(self.pki.expires);
        let day = expires.split('T').next().unwrap_or_default();
        let pki = format!("a throw-away PKI, {}; good until {day}", self.pki.origin);

        writeln!(f, "{}\n", self.paint(BOLD, "Portcullis is running."))?;
        let mut facts = vec![
            ("gateway", gateway.clone(), "the real one, as `portcullis serve` runs it"),
            (
                "backend",
                format!("https://{}", self.backend),
                "in memory, for trying only; trusts the gateway alone",
            ),
            ("files", file(self.paths.dir()), &pki),
        ];
        if let Some(metrics) = self.metrics {
            facts.insert(1, ("metrics", format!("http://{metrics}/metrics"), "what the gateway counts"));
        }
        let width = facts.iter().map(|(_, what, _)| what.chars().count()).max().unwrap_or_default();
        for (name, what, remark) in facts {
            writeln!(f, "  {name:<9} {what:<width$}   {}", self.paint(DIM, remark))?;
        }

        self.section(
            f,
            "In another terminal",
            &[
                (format!("cd {}", file(&here)), ""),
                (format!("export KUBECONFIG={}", file(&self.paths.kubeconfig())), ""),
            ],
        )?;
        self.section(
            f,
            "Who am I?",
            &[
                ("kubectl auth whoami".to_owned(), "alice, by her certificate"),
                ("kubectl --context bob auth whoami".to_owned(), "bob, by a bearer token"),
                ("kubectl --context admin auth whoami --as carol".to_owned(), "admin, acting as carol"),
            ],
        )?;
        self.section(
            f,
            "Work as usual",
            &[
                ("kubectl get ns".to_owned(), ""),
                ("kubectl create configmap hello --from-literal=from=alice".to_owned(), ""),
                ("kubectl get configmaps -w".to_owned(), "a watch, until Ctrl-C"),
                ("kubectl get secrets -n kube-system".to_owned(), "forbidden to alice, not to admin"),
            ],
        )?;
        let token = format!("-H \"Authorization: Bearer $(cat {})\"", file(&self.paths.token()));
        self.section(
            f,
            "Without kubectl",
            &[
                (
                    "# a client without a credential may see the version, and nothing else (403)".to_owned(),
                    "",
                ),
                (format!("{curl} {gateway}/version"), ""),
                (format!("{curl} {gateway}/api/v1/namespaces"), ""),
                ("# a wrong token is not anonymous (401), bob's is good".to_owned(), ""),
                (format!("{curl} {gateway}/version -H 'Authorization: Bearer wrong'"), ""),
                (format!("{curl} {gateway}/api/v1/namespaces {token}"), ""),
            ],
        )?;
        self.section(f, "What this runs, in long (with another --secure-port it runs beside this one)", &[])?;
        write!(f, "  {}", self.paint(COMMAND, &format!("{} serve", program())))?;
        for flag in &self.flags {
            write!(f, " \\\n    {}", self.paint(COMMAND, &quoted(flag)))?;
        }
        writeln!(f, "\n\n{}", self.paint(BOLD, "Ctrl-C stops everything."))
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const COMMAND: &str = "36";

impl Announcement<'_> {
    /// A heading, and commands with their remarks in one column.
    fn section(&self, f: &mut fmt::Formatter<'_>, heading: &str, lines: &[Line]) -> fmt::Result {
        writeln!(f, "\n{}\n", self.paint(BOLD, heading))?;
        let width =
            lines.iter().filter(|(_, remark)| !remark.is_empty()).map(|(line, _)| line.chars().count()).max();
        for (line, remark) in lines {
            let style = if line.starts_with('#') { DIM } else { COMMAND };
            write!(f, "  {}", self.paint(style, line))?;
            if !remark.is_empty() {
                let gap = width.unwrap_or_default().saturating_sub(line.chars().count());
                write!(f, "{:gap$}   {}", "", self.paint(DIM, &format!("# {remark}")))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The command as it was typed (`cargo run` types a path); in a test, its name.
fn program() -> String {
    let typed = std::env::args().next().unwrap_or_default();
    if Path::new(&typed).file_name().is_some_and(|name| name == "portcullis") {
        quoted(&typed)
    } else {
        "portcullis".to_owned()
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

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_survive_a_shell() {
        for (word, want) in [
            ("/a/b-c_1.kubeconfig", "/a/b-c_1.kubeconfig"),
            ("--flag=a,b", "--flag=a,b"),
            ("my dir", "'my dir'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), want);
        }
    }
}
