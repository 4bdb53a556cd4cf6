//! The text that `portcullis dev` prints at the start. Every command in it can be pasted.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use portcullis_go::time;

use super::Dev;

const BOLD: &str = "1";
const DIM: &str = "2";
const CYAN: &str = "36";

pub(super) struct Announcement<'a> {
    pub(super) dev: &'a Dev,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) color: bool,
}

impl fmt::Display for Announcement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dev { paths, port, pki, server, .. } = self.dev;
        let gateway = format!("https://127.0.0.1:{port}");
        let expires = time::format_since_epoch(pki.expires);
        let day = expires.split('T').next().unwrap_or_default();
        let pki = format!("a throw-away PKI, {}; good until {day}", pki.origin);
        let metrics = self.metrics.map_or_else(String::new, |address| format!("http://{address}/metrics"));
        let backend = format!("https://{}", server.address);
        let rows = [
            ("gateway", &gateway, "the real one, as `portcullis serve` runs it"),
            ("metrics", &metrics, "Prometheus metrics"),
            ("backend", &backend, "in memory, for trying only; trusts the gateway alone"),
            ("files", &quoted_path(paths.dir()), &pki),
        ];
        let width = rows.iter().map(|(_, place, _)| place.chars().count()).max().unwrap_or_default();
        writeln!(f, "{}\n", self.paint(BOLD, "Portcullis is running."))?;
        for (name, place, remark) in rows.into_iter().filter(|(_, place, _)| !place.is_empty()) {
            writeln!(f, "  {name:<9} {place:<width$}   {}", self.paint(DIM, remark))?;
        }
        for line in self.commands(&gateway).lines() {
            let (text, remark) = line.split_at(line.find("   # ").unwrap_or(line.len()));
            let is_comment = text.starts_with("  #");
            let style = if is_comment {
                DIM
            } else if text.starts_with(' ') {
                CYAN
            } else {
                BOLD
            };
            writeln!(f, "{}{}", self.paint(style, text), self.paint(DIM, remark))?;
        }
        Ok(())
    }
}

impl Announcement<'_> {
    /// Headings at the margin, and commands with remarks below them.
    fn commands(&self, gateway: &str) -> String {
        let paths = &self.dev.paths;
        let directory = quoted_path(&std::env::current_dir().unwrap_or_default());
        let (kubeconfig, token) = (quoted_path(&paths.kubeconfig()), quoted_path(&paths.token()));
        let curl = format!("curl --cacert {}", quoted_path(&paths.pki("server-ca.crt")));
        let serve = format!("{} serve", program());
        let flags = self.dev.gateway_flags().iter().map(|flag| quoted(flag)).collect::<Vec<_>>();
        let serve = [&[serve], &flags[..]].concat().join(" \\\n    ");
        format!(
            r#"
In another terminal

  cd {directory}
  export KUBECONFIG={kubeconfig}

Who am I?

  kubectl auth whoami                              # alice, by her certificate
  kubectl --context bob auth whoami                # bob, by a bearer token
  kubectl --context admin auth whoami --as carol   # admin, acting as carol

Work as usual

  kubectl get ns
  kubectl create configmap hello --from-literal=from=alice
  kubectl get configmaps -w            # a watch, until Ctrl-C
  kubectl get secrets -n kube-system   # forbidden to alice, not to admin

Without kubectl

  # a client without a credential may see the version, and nothing else (403)
  {curl} {gateway}/version
  {curl} {gateway}/api/v1/namespaces
  # a wrong token is not anonymous (401), bob's is good
  {curl} {gateway}/version -H 'Authorization: Bearer wrong'
  {curl} {gateway}/api/v1/namespaces -H "Authorization: Bearer $(cat {token})"

The full command (with another --secure-port it runs beside this one)

  {serve}

Ctrl-C stops everything.
"#
        )
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The command that the user typed, such as the path that `cargo run` uses. In a test, its name.
fn program() -> String {
    let typed = std::env::args().next().unwrap_or_default();
    let is_portcullis = Path::new(&typed).file_name().is_some_and(|name| name == "portcullis");
    if is_portcullis { quoted(&typed) } else { "portcullis".to_owned() }
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
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
