//! The text that `portcullis dev` prints at the start. Every command in it can be pasted.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use portcullis_go::time;

use super::full::{Full, GREEN_NAMESPACE};
use super::provider::KUBECTL_CLIENT;
use super::terminal::{Painter, Style, command_line, program, quoted, quoted_path};
use super::{Dev, cluster_url};

pub(super) struct Announcement<'a> {
    pub(super) dev: &'a Dev,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) painter: Painter,
}

impl fmt::Display for Announcement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dev { port, full, .. } = self.dev;
        let gateway = format!("https://127.0.0.1:{port}");
        let title = match full {
            None => "Portcullis is running.",
            Some(_) => {
                "Portcullis is running, with two clusters, logins, a page, a webhook and an audit log."
            }
        };
        writeln!(f, "{}\n", self.painter.paint(Style::Bold, title))?;
        let rows = match full {
            None => self.rows(&gateway),
            Some(full) => self.rows_of_full(full),
        };
        let width = rows.iter().map(|(_, place, _)| place.chars().count()).max().unwrap_or_default();
        for (name, place, remark) in rows.into_iter().filter(|(_, place, _)| !place.is_empty()) {
            writeln!(f, "  {name:<9} {place:<width$}   {}", self.painter.paint(Style::Dim, &remark))?;
        }
        let commands = match full {
            None => self.commands(&gateway),
            Some(full) => self.commands_of_full(full),
        };
        for line in commands.lines() {
            let (text, remark) = line.split_at(line.find("   # ").unwrap_or(line.len()));
            let is_comment = text.starts_with("  #");
            let style = if is_comment {
                Style::Dim
            } else if text.starts_with(' ') {
                Style::Cyan
            } else {
                Style::Bold
            };
            let [text, remark] =
                [(style, text), (Style::Dim, remark)].map(|(style, text)| self.painter.paint(style, text));
            writeln!(f, "{text}{remark}")?;
        }
        Ok(())
    }
}

/// A name, an address and a remark.
type Row = (&'static str, String, String);

impl Announcement<'_> {
    fn rows(&self, gateway: &str) -> Vec<Row> {
        let backend = format!("https://{}", self.dev.backend_address());
        let mut rows =
            vec![("gateway", gateway.to_owned(), "the real one, as `portcullis serve` runs it".to_owned())];
        rows.extend(self.metrics());
        rows.push(("backend", backend, "in memory, for trying only; trusts the gateway alone".to_owned()));
        rows.push(self.files());
        rows
    }

    fn rows_of_full(&self, full: &Full) -> Vec<Row> {
        let cluster = |name: &'static str, accepts: &str| {
            (name, cluster_url(self.dev.port, name), format!("in memory, for trying only; {accepts}"))
        };
        let without = "no passwords: any user of this machine can log in";
        let mut rows = vec![
            cluster("blue", "certificates, tokens, logins"),
            cluster("green", "certificates, logins"),
            ("page", full.page.clone(), "a user's clusters; the browser warns of its CA".to_owned()),
            ("provider", full.issuer.clone(), without.to_owned()),
        ];
        rows.extend(self.metrics());
        rows.push(self.files());
        rows
    }

    fn metrics(&self) -> Option<Row> {
        let place = format!("http://{}/metrics", self.metrics?);
        Some(("metrics", place, "Prometheus metrics".to_owned()))
    }

    fn files(&self) -> Row {
        let Dev { paths, pki, .. } = self.dev;
        let expires = time::format_since_epoch(pki.expires);
        let day = expires.split('T').next().unwrap_or_default();
        ("files", quoted_path(paths.dir()), format!("a throw-away PKI, {}; good until {day}", pki.origin))
    }

    /// Headings at the margin, and commands with remarks below them.
    fn commands(&self, gateway: &str) -> String {
        let paths = &self.dev.paths;
        let directory = quoted_path(&std::env::current_dir().unwrap_or_default());
        let (kubeconfig, token) = (quoted_path(&paths.kubeconfig()), quoted_path(&paths.token()));
        let curl = format!("curl --cacert {}", quoted_path(&paths.pki("server-ca.crt")));
        let serve = format!("{} serve", program());
        let flags = self.dev.gateway_flags().iter().map(|flag| quoted(flag)).collect::<Vec<_>>();
        let serve = [&[serve], &flags[..]].concat().join(" \\\n    ");
        let program = program();
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

Ctrl-C stops everything. `{program} dev --tour` shows more: clusters, logins, a page, admission, audit.
"#
        )
    }

    fn commands_of_full(&self, full: &Full) -> String {
        let paths = &self.dev.paths;
        let directory = quoted_path(&std::env::current_dir().unwrap_or_default());
        let kubeconfig = quoted_path(&paths.kubeconfig());
        let [config, token, audit, denied, logged_in] = [
            paths.gateway_config(),
            paths.token(),
            paths.audit_log(),
            paths.deny_list(),
            paths.login_kubeconfig(),
        ]
        .map(|path| quoted_path(&path));
        let (program, blue) = (program(), cluster_url(self.dev.port, "blue"));
        let curl = format!("curl --cacert {}", quoted_path(&paths.pki("server-ca.crt")));
        let login = self.dev.login_command(full);
        let login = login.iter().map(|word| quoted(word));
        let login = command_line(&std::iter::once(program.clone()).chain(login).collect::<Vec<_>>(), "    ");
        format!(
            r#"
In another terminal

  cd {directory}
  export KUBECONFIG={kubeconfig}

  kubectl auth whoami                              # alice, by her certificate
  kubectl --context bob auth whoami                # bob, by a bearer token
  kubectl --context admin auth whoami --as carol   # admin, acting as carol
  kubectl --context green-alice get namespaces     # another cluster, which has {GREEN_NAMESPACE}
  kubectl --context green-bob get namespaces       # refused: green does not know bob's token
  {program} explain --config {config} --cluster green < {token}   # why

  kubectl create configmap hello -o yaml           # the webhook annotates it
  tail -n 1 {audit}   # the audit event of that
  echo user=bob >> {denied}   # revokes bob's credentials; remove the line to undo

Log in, as alice or bob; or open the page, and download a kubeconfig

  {login}
  kubectl --kubeconfig {logged_in} auth whoami

Without kubectl

  {curl} {blue}/api/v1/namespaces -H "Authorization: Bearer $(cat {token})"

Ctrl-C stops everything. `{program} dev --tour` runs such commands, and says what each shows.
"#
        )
    }
}

impl Dev {
    /// The arguments of a login in the first cluster of `--full`.
    pub(super) fn login_command(&self, full: &Full) -> Vec<String> {
        let paths = &self.paths;
        let path = |path: PathBuf| path.display().to_string();
        let ca = path(paths.pki("server-ca.crt"));
        let flags = [
            ("--server", cluster_url(self.port, "blue")),
            ("--certificate-authority", ca.clone()),
            ("--issuer", full.issuer.clone()),
            ("--issuer-certificate-authority", ca),
            ("--client-id", KUBECTL_CLIENT.to_owned()),
            ("--kubeconfig", path(paths.login_kubeconfig())),
            ("--cache-dir", path(paths.logins())),
            ("--name", "blue".to_owned()),
        ];
        let flags = flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        std::iter::once("login".to_owned()).chain(flags).collect()
    }
}
