//! The steps of the tour.

use std::fs;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _};
use std::pin::Pin;
use std::process::{Command, Stdio};

use openidconnect::url::Url;
use portcullis_go::json::JsonValue;
use serde_json::{Value, json};

use super::super::cluster_url;
use super::super::full::GREEN_NAMESPACE;
use super::super::https::BoxError;
use super::super::json::text;
use super::super::terminal::{command_line, program, quoted, quoted_path};
use super::client::{self, RequestParts};
use super::{Shown, Tour, printed};

type ShownFuture<'a> = Pin<Box<dyn Future<Output = Result<Shown, BoxError>> + 'a>>;

/// A step.
pub(super) struct Step {
    pub(super) title: &'static str,
    /// What it shows.
    pub(super) text: &'static str,
    /// What its output has.
    pub(super) promises: &'static [&'static str],
    pub(super) run: for<'a> fn(&'a Tour<'_>) -> ShownFuture<'a>,
}

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
const NAMESPACES: &str = "/api/v1/namespaces";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONFIG_MAP: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"hello"}}"#;

pub(super) fn steps() -> Vec<Step> {
    vec![
        Step {
            title: "A client certificate",
            text: "The gateway verifies alice's certificate as kube-apiserver does: the common name is the user, each \
                   organization a group. The API server behind it gets the user in headers, never the certificate.",
            promises: &["alice", "developers", "system:authenticated"],
            run: |tour| Box::pin(tour.ask(WHO_AM_I)),
        },
        Step {
            title: "A bearer token",
            text: "bob has a static token. The gateway takes it out of the request: the API server never sees it.",
            promises: &["bob", "testers"],
            run: |tour| Box::pin(tour.ask(Ask { context: "bob", ..WHO_AM_I })),
        },
        Step {
            title: "Impersonation",
            text: "admin acts as carol with a group. Whether admin may do so is decided before the request is forwarded.",
            promises: &["carol", "testers"],
            run: |tour| {
                Box::pin(tour.ask(Ask {
                    context: "admin",
                    kubectl: &["auth", "whoami", "--as", "carol", "--as-group", "testers"],
                    headers: &[("Impersonate-User", "carol"), ("Impersonate-Group", "testers")],
                    ..WHO_AM_I
                }))
            },
        },
        Step {
            title: "Many clusters",
            text: "One gateway serves many clusters; here the path of the URL chooses one. alice is known to green, too, \
                   which has other namespaces.",
            promises: &[GREEN_NAMESPACE],
            run: |tour| Box::pin(tour.ask(Ask { context: "green-alice", ..NAMESPACES_OF })),
        },
        Step {
            title: "A credential of another cluster",
            text: "bob's token is one of blue alone. Each cluster has its own authenticators, and to green it is a wrong \
                   credential: 401. A wrong credential is never anonymous.",
            promises: &["Unauthorized"],
            run: |tour| Box::pin(tour.ask(Ask { context: "green-bob", succeeds: false, ..NAMESPACES_OF })),
        },
        Step {
            title: "Why was it refused?",
            text: "The client learns nothing but 401. The operator asks the configuration, with the same token: the \
                   reason, and what to change.",
            promises: &["refused (401 Unauthorized) for cluster green"],
            run: |tour| Box::pin(std::future::ready(tour.explain())),
        },
        Step {
            title: "A login",
            text: "An OpenID provider knows alice by her e-mail address. kubectl gets its tokens from a login in the \
                   browser, which the tour plays here. The table is the answer of the cluster.",
            promises: &["alice@example.com", "login:developers"],
            run: |tour| Box::pin(tour.log_in()),
        },
        Step {
            title: "The page",
            text: "Users find their clusters in the browser, and download kubeconfigs that have no secret. The tour \
                   signs in as alice, and reads the page.",
            promises: &["alice@example.com", "blue", "green"],
            run: |tour| Box::pin(tour.read_page()),
        },
        Step {
            title: "A mutating webhook",
            text: "The gateway calls admission webhooks in front of clusters that know nothing of them. This one \
                   annotates a ConfigMap with the user who writes it.",
            promises: &["demo.portcullis.dev/written-by", "alice"],
            run: |tour| {
                Box::pin(tour.ask(Ask {
                    kubectl: &["create", "configmap", "hello", "--output=yaml"],
                    path: CONFIG_MAPS,
                    body: Some(CONFIG_MAP),
                    jq: ".metadata",
                    view: |object| object.get("metadata").cloned().unwrap_or_default(),
                    ..WHO_AM_I
                }))
            },
        },
        Step {
            title: "The audit event",
            text: "The gateway writes kube-apiserver's audit log for all clusters: who, what, when, from where, and \
                   which webhook has changed the request.",
            promises: &["alice", "create", "mutation.webhook.admission.k8s.io"],
            run: |tour| Box::pin(tour.audit()),
        },
        Step {
            title: "Revocation",
            text: "kube-apiserver cannot revoke a credential. A line in the gateway's deny list ends bob's within a \
                   second, also on open connections, without a restart.",
            promises: &["Unauthorized"],
            run: |tour| Box::pin(tour.revoke()),
        },
    ]
}

/// A request, as kubectl and as curl send it.
#[derive(Clone, Copy)]
struct Ask {
    /// The user, after `green-` in the second cluster: a context of the kubeconfig.
    context: &'static str,
    kubectl: &'static [&'static str],
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: Option<&'static str>,
    /// The part of the answer that is shown, in the words of jq.
    jq: &'static str,
    view: fn(&Value) -> Value,
    succeeds: bool,
}

const WHO_AM_I: Ask = Ask {
    context: "alice",
    kubectl: &["auth", "whoami"],
    path: REVIEWS,
    headers: &[],
    body: Some(REVIEW),
    jq: ".status.userInfo",
    view: |review| review.pointer("/status/userInfo").cloned().unwrap_or_default(),
    succeeds: true,
};

const NAMESPACES_OF: Ask = Ask {
    kubectl: &["get", "namespaces"],
    path: NAMESPACES,
    body: None,
    jq: "[.items[].metadata.name]",
    view: |list| {
        let items = list.get("items").and_then(Value::as_array);
        items.into_iter().flatten().map(|item| text(item, "/metadata/name")).collect()
    },
    ..WHO_AM_I
};

impl Ask {
    fn cluster_and_user(&self) -> (&'static str, &'static str) {
        self.context.strip_prefix("green-").map_or(("blue", self.context), |user| ("green", user))
    }
}

impl Tour<'_> {
    /// Sends a request: by kubectl, or as curl would.
    async fn ask(&self, ask: Ask) -> Result<Shown, BoxError> {
        let (shown, succeeded) = match &self.kubectl {
            Some(kubectl) => {
                let context = (ask.context != "alice").then(|| format!("--context={}", ask.context));
                let words = || context.as_deref().into_iter().chain(ask.kubectl.iter().copied());
                let mut command = Command::new(kubectl);
                command.args(words()).env("KUBECONFIG", self.dev.paths.kubeconfig()).stdin(Stdio::null());
                let output = command.output()?;
                let typed = std::iter::once("kubectl").chain(words()).map(str::to_owned).collect::<Vec<_>>();
                let shown = Shown { command: command_line(&typed, "    "), output: printed(&output) };
                (shown, output.status.success())
            }
            None => self.request(ask).await?,
        };
        if succeeded != ask.succeeds {
            return Err(format!("{} has not ended as expected: {}", shown.command, shown.output).into());
        }
        Ok(shown)
    }

    async fn request(&self, ask: Ask) -> Result<(Shown, bool), BoxError> {
        let (paths, (cluster, user)) = (&self.dev.paths, ask.cluster_and_user());
        let url = format!("{}{}", cluster_url(self.dev.port, cluster), ask.path);
        let mut words = ["curl".to_owned(), quoted(&url), "-s".to_owned(), "--cacert".to_owned()].to_vec();
        words.push(quoted_path(&paths.pki("server-ca.crt")));
        let mut parts = RequestParts { body: ask.body, ..RequestParts::default() };
        if user == "bob" {
            let token = fs::read_to_string(paths.token())?;
            parts.headers.push(("Authorization", format!("Bearer {}", token.trim())));
            let file = quoted_path(&paths.token());
            words.extend(["-H".to_owned(), format!("\"Authorization: Bearer $(cat {file})\"")]);
        } else {
            parts.certificate = Some(user);
            for (flag, kind) in [("--cert", "crt"), ("--key", "key")] {
                words.extend([flag.to_owned(), quoted_path(&paths.pki(&format!("{user}.{kind}")))]);
            }
        }
        for (name, value) in ask.headers {
            parts.headers.push((name, (*value).to_owned()));
            words.extend(["-H".to_owned(), quoted(&format!("{name}: {value}"))]);
        }
        if let Some(body) = ask.body {
            words.extend(["--json".to_owned(), quoted(body)]);
        }
        let answer = client::send(paths, &url.parse::<Url>()?, parts).await?;
        let succeeded = answer.status.is_success();
        let output = if succeeded {
            words.extend(["|".to_owned(), "jq".to_owned(), quoted(ask.jq)]);
            let JsonValue(object) = serde_json::from_str::<JsonValue>(&answer.body)?;
            format!("{:#}", (ask.view)(&object))
        } else {
            answer.body
        };
        Ok((Shown { command: command_line(&words, "    "), output }, succeeded))
    }

    fn explain(&self) -> Result<Shown, BoxError> {
        let config = self.dev.paths.gateway_config().display().to_string();
        let arguments = ["explain", "--config", &config, "--cluster", "green"].map(str::to_owned);
        let token = self.dev.paths.token();
        let output = self.portcullis(&arguments).stdin(fs::File::open(&token)?).output()?;
        if output.status.code() != Some(1) {
            return Err(format!("it ended with {}: {}", output.status, printed(&output)).into());
        }
        let words = arguments.iter().map(|word| quoted(word));
        let mut words: Vec<_> = std::iter::once(program()).chain(words).collect();
        words.extend(["<".to_owned(), quoted_path(&token)]);
        Ok(Shown { command: command_line(&words, "    "), output: printed(&output) })
    }

    /// Logs in. The command prints an address for the browser, which the tour opens.
    async fn log_in(&self) -> Result<Shown, BoxError> {
        let flags = ["--flow=browser", "--open-browser=never"].map(str::to_owned);
        let arguments = [self.dev.login_command(self.full), flags.to_vec()].concat();
        let mut command = self.portcullis(&arguments);
        let mut login = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut said = String::new();
        if let Some(errors) = login.stderr.take() {
            let mut errors = BufReader::new(errors);
            let mut address = None;
            while address.is_none() {
                let mut line = String::new();
                if errors.read_line(&mut line)? == 0 {
                    break;
                }
                address = line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned);
                said += &line;
            }
            if let Some(address) = address
                && let Err(error) = client::browse(&self.dev.paths, &self.full.issuer, &address).await
            {
                login.kill()?;
                login.wait()?;
                return Err(error);
            }
            errors.read_to_string(&mut said)?;
        }
        let output = login.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("it ended with {}: {said}", output.status).into());
        }
        let words = arguments.iter().map(|word| quoted(word));
        let words: Vec<_> = std::iter::once(program()).chain(words).collect();
        let output = said + &String::from_utf8_lossy(&output.stdout);
        Ok(Shown { command: command_line(&words, "    "), output })
    }

    /// Signs in to the page, and reads it.
    async fn read_page(&self) -> Result<Shown, BoxError> {
        let page = &self.full.page;
        let text = client::browse(&self.dev.paths, &self.full.issuer, &format!("{page}/sign-in")).await?;
        Ok(Shown { command: format!("xdg-open {page}   # in a browser"), output: text_of_page(&text) })
    }

    /// The audit event of the ConfigMap, which is written beside the response.
    async fn audit(&self) -> Result<Shown, BoxError> {
        let log = self.dev.paths.audit_log();
        let event = self
            .poll("the audit log has no event of it", async || {
                let lines = fs::read_to_string(&log).unwrap_or_default();
                let events =
                    lines.lines().rev().filter_map(|line| serde_json::from_str::<JsonValue>(line).ok());
                let mut events = events.map(|JsonValue(event)| event);
                Ok(events.find(|event| text(event, "/objectRef/resource") == "configmaps"))
            })
            .await?;
        let of = |pointer: &str| event.pointer(pointer).cloned().unwrap_or_default();
        // In the order in which this program prints members.
        let shown = json!({
            "annotations": of("/annotations"),
            "code": of("/responseStatus/code"),
            "from": of("/sourceIPs"),
            "user": of("/user/username"),
            "verb": of("/verb"),
        });
        let filter =
            "{annotations, code: .responseStatus.code, from: .sourceIPs, user: .user.username, verb}";
        let command = format!("grep configmaps {} | tail -n 1 | \\\n    jq '{filter}'", quoted_path(&log));
        Ok(Shown { command, output: format!("{shown:#}") })
    }

    /// Denies bob, and waits until he is refused.
    async fn revoke(&self) -> Result<Shown, BoxError> {
        let denied = self.dev.paths.deny_list();
        let list = fs::read_to_string(&denied)? + "user=bob\n";
        fs::write(&denied, list)?;
        let ask = Ask { context: "bob", succeeds: false, ..WHO_AM_I };
        let refused = async || Ok(self.request(ask).await?.1).map(|succeeded| (!succeeded).then_some(()));
        self.poll("bob's token is still accepted", refused).await?;
        let Shown { command, output } = self.ask(ask).await?;
        Ok(Shown { command: format!("echo user=bob >> {}\n{command}", quoted_path(&denied)), output })
    }
}

/// What a reader sees of the page: the user, and the rows of the table.
fn text_of_page(page: &str) -> String {
    let user = page.split_once("<p>Signed in as").map_or("", |(_, rest)| rest);
    let user = user.split("</p>").next().unwrap_or_default();
    let mut lines = vec![format!("Signed in as {}", without_tags(user)), String::new()];
    let rows = page.split("<tr>").skip(1).map(|row| row.split("</tr>").next().unwrap_or_default());
    let cells = |row: &str| {
        let cells = row.split("</th>").flat_map(|cells| cells.split("</td>")).map(without_tags);
        cells.filter(|cell| !cell.is_empty()).collect::<Vec<String>>()
    };
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row: &Vec<String>| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default() + 3
    };
    for row in &rows {
        let padded = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            format!("{cell:<width$}")
        });
        lines.push(padded.collect::<String>().trim_end().to_owned());
    }
    lines.join("\n")
}

/// The text between the tags, without what only screen readers see.
fn without_tags(markup: &str) -> String {
    let markup = markup.split("<span class=\"hidden\">").next().unwrap_or_default();
    let parts = markup.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    parts.collect::<Vec<_>>().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::super::webhook::ANNOTATION;
    use super::*;

    #[test]
    fn the_page_reads_as_a_table() {
        let page = "<p>Signed in as <strong>alice@example.com</strong></p>\n<tr><th scope=\"col\">Cluster</th>\
            <th scope=\"col\">Health</th></tr><tr>\n<th scope=\"row\">blue</th>\n<td data-label=\"Health\"><span>✓</span>\
            Ready</td><td><a href=\"/x\">Download<span class=\"hidden\"> of blue</span></a></td>\n</tr>";
        let text = text_of_page(page);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let want = [vec!["Signed", "in", "as", "alice@example.com"], vec![], vec!["Cluster", "Health"]];
        assert_eq!(rows[..3], want);
        assert_eq!(rows[3], ["blue", "✓", "Ready", "Download"]);
    }

    #[test]
    fn the_webhook_is_promised_by_its_annotation() {
        assert_eq!(ANNOTATION, "demo.portcullis.dev/written-by");
    }
}
