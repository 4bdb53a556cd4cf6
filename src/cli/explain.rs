//! `portcullis explain`: what each authenticator makes of a credential, and why.

use std::io::{IsTerminal as _, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use clap::Args;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::check::{Output, print};
use super::{complain, failed, misconfigured};
use crate::authn::remarks::{Noted, Outcome, Remarks, Step};
use crate::authn::x509::{UnverifiedChain, VerdictMemo};
use crate::authn::{Audience, AuthnError, AuthnInput, ConnInfo, Proven};
use crate::clock::Clock;
use crate::config::flags::ServeFlags;
use crate::config::inputs::Inputs;
use crate::config::resolve::resolve;
use crate::methods::Means;
use crate::metrics::Metrics;
use crate::request::credentials::Credentials;
use crate::self_check::SelfCheck;
use crate::snapshot::Snapshot;

/// How long the API server and issuers may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// As large as a header may be.
const LARGEST_TOKEN: u64 = 1 << 20;

pub(super) const EXAMPLE: &str = "\
Examples:
  kubectl create token builder | portcullis explain --config gateway.yaml --cluster prod
  portcullis explain --client-ca-file clients-ca.crt --backend-kubeconfig backend.kubeconfig --certificate alice.crt";

/// The flags of `portcullis explain`: those of `serve`, and the credential.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(super) struct ExplainFlags {
    #[command(flatten)]
    serve: ServeFlags,
    /// A certificate to explain, PEM, with its intermediates behind it. Default: a token from standard input.
    #[arg(long, value_name = "FILE", help_heading = "Credential")]
    certificate: Option<PathBuf>,
    /// The cluster to judge for, if there are several.
    #[arg(long, value_name = "NAME", help_heading = "Credential")]
    cluster: Option<String>,
    /// The audiences the token is to be good for, comma-separated. Default: those of the API server.
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',', help_heading = "Credential")]
    audiences: Vec<String>,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

/// A credential. Shown nowhere.
enum Credential {
    Token(String),
    Certificate(Vec<CertificateDer<'static>>),
}

/// What came of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    cluster: String,
    authenticated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    authenticator: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    steps: Vec<Row>,
    warnings: Vec<String>,
    audit_annotations: std::collections::BTreeMap<String, String>,
}

/// As `SelfSubjectReview` shows it.
#[derive(Debug, Serialize)]
struct User {
    username: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    groups: Vec<String>,
    extra: std::collections::BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Serialize)]
struct Row {
    authenticator: String,
    check: String,
    result: &'static str,
    detail: String,
}

impl From<Step> for Row {
    fn from(step: Step) -> Self {
        let result = match step.outcome {
            Outcome::Passed => "ok",
            Outcome::Failed => "failed",
            Outcome::NotApplicable => "-",
        };
        Self { authenticator: step.authenticator, check: step.check, result, detail: step.detail }
    }
}

pub(super) fn run(flags: &ExplainFlags) -> ExitCode {
    let settings = match resolve(&flags.serve, &mut Inputs::default()) {
        Ok(resolved) => resolved.settings,
        Err(errors) => return misconfigured(&errors),
    };
    let credential = match credential(flags) {
        Ok(credential) => credential,
        Err(problem) => return failed(&problem),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let means = Means::new(runtime.handle().clone(), Arc::new(Metrics::new()), Arc::default());
    let snapshot = match Snapshot::build(&settings, None, &means) {
        Ok(snapshot) => snapshot,
        Err(error) => return failed(&error.to_string()),
    };
    let clusters = snapshot.router.clusters();
    let index = match &flags.cluster {
        Some(name) => clusters.iter().position(|cluster| cluster.name == *name),
        None if clusters.len() == 1 => Some(0),
        None => None,
    };
    let Some(index) = index else {
        let names: Vec<_> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        return failed(&format!("--cluster: give one of {}", names.join(", ")));
    };
    let explanation = runtime.block_on(explain(snapshot, index, credential, &flags.audiences, means));
    let Some(explanation) = explanation else { return failed("there is no such cluster") };
    let printed = print(&flags.output.rendered(&explanation).unwrap_or_else(|| explanation.table()));
    if explanation.authenticated { printed } else { ExitCode::FAILURE }
}

fn credential(flags: &ExplainFlags) -> Result<Credential, String> {
    if let Some(file) = &flags.certificate {
        let certificates =
            CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        return match certificates {
            Ok(certificates) if certificates.is_empty() => {
                Err(format!("{}: no certificate in it", file.display()))
            }
            Ok(certificates) => Ok(Credential::Certificate(certificates)),
            Err(error) => Err(format!("{}: {error}", file.display())),
        };
    }
    let mut input = std::io::stdin();
    if input.is_terminal() {
        complain("reading a token from standard input; end with Ctrl-D");
    }
    let mut token = String::new();
    let mut limited = input.by_ref().take(LARGEST_TOKEN + 1);
    limited.read_to_string(&mut token).map_err(|error| format!("standard input: {error}"))?;
    let token = token.trim_end_matches(['\r', '\n']);
    match token.len() {
        0 => Err("no token on standard input; give one, or --certificate FILE".to_owned()),
        length if u64::try_from(length).is_ok_and(|length| length > LARGEST_TOKEN) => {
            Err("the token on standard input is larger than a header may be".to_owned())
        }
        _ => Ok(Credential::Token(token.to_owned())),
    }
}

async fn explain(
    snapshot: Snapshot,
    index: usize,
    credential: Credential,
    audiences: &[String],
    means: Means,
) -> Option<Explanation> {
    let current = Arc::new(ArcSwap::from_pointee(snapshot));
    let snapshot = current.load_full();
    let cluster = snapshot.router.clusters().get(index)?;
    let methods = snapshot.methods.get(index)?;
    let is_token = matches!(credential, Credential::Token(_));
    if is_token && methods.ask_the_backend() {
        let check = SelfCheck {
            current: Arc::clone(&current),
            metrics: Arc::clone(&means.metrics),
            swapped: Arc::new(Notify::new()),
            reload: Arc::clone(&means.reload),
            refused: Arc::new(Notify::new()),
        };
        tokio::spawn(async move { check.run().await });
        if timeout(PATIENCE, cluster.upstream.until_trusted()).await.is_err() {
            complain("the API server cannot be asked: run serve to see why; going on without it");
        }
    }
    if is_token && timeout(PATIENCE, methods.issuers().until_known()).await.is_err() {
        for (_, reason) in methods.issuers().waiting() {
            complain(&format!("{reason}; going on without it"));
        }
    }
    let (certificates, authorization) = match credential {
        Credential::Token(token) => (Vec::new(), Some(format!("Bearer {token}"))),
        Credential::Certificate(certificates) => (certificates, None),
    };
    let remarks = Remarks::traced();
    let requested: Vec<Audience> = match audiences {
        [] => cluster.audiences.clone(),
        audiences => audiences.iter().cloned().map(Audience).collect(),
    };
    let input = AuthnInput {
        conn: &ConnInfo {
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            server_name: None,
            peer_chain: UnverifiedChain::new(certificates),
            verdicts: VerdictMemo::default(),
        },
        credentials: &Credentials { authorization, ..Credentials::default() },
        path: "/api",
        audiences: &requested,
        generation: snapshot.generation,
        now: Clock::system().now(),
        remarks: &remarks,
    };
    let verdict = cluster.chain.authenticate(&input).await;
    Some(Explanation::of(cluster.name.clone(), verdict, remarks.take()))
}

impl Explanation {
    fn of(cluster: String, verdict: Result<Proven, AuthnError>, noted: Noted) -> Self {
        let (proven, error) = match verdict {
            Ok(proven) => (Some(proven), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let user = proven.as_ref().map(|proven| proven.user().clone());
        Self {
            cluster,
            authenticated: proven.is_some(),
            authenticator: proven.as_ref().map(Proven::method),
            user: user.map(|user| User {
                username: user.name,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
            }),
            error,
            steps: noted.steps.into_iter().map(Row::from).collect(),
            warnings: noted.warnings,
            audit_annotations: noted.annotations,
        }
    }

    fn table(&self) -> String {
        let width = |title: &str, column: fn(&Row) -> &str| {
            let cells = self.steps.iter().map(column).chain([title]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let by = width("AUTHENTICATOR", |row| &row.authenticator);
        let check = width("CHECK", |row| &row.check);
        let result = width("RESULT", |row| row.result);
        let mut lines =
            vec![format!("{:by$}  {:check$}  {:result$}  DETAIL", "AUTHENTICATOR", "CHECK", "RESULT")];
        let mut last = "";
        for row in &self.steps {
            let name = if row.authenticator == last { "" } else { row.authenticator.as_str() };
            lines.push(format!("{name:by$}  {:check$}  {:result$}  {}", row.check, row.result, row.detail));
            last = &row.authenticator;
        }
        lines.push(String::new());
        match (&self.user, self.authenticator, &self.error) {
            (Some(user), Some(authenticator), _) => {
                lines.push(format!("accepted by {authenticator} for cluster {}", self.cluster));
                lines.push(format!("  username  {}", user.username));
                lines.extend(user.uid.iter().map(|uid| format!("  uid       {uid}")));
                lines.extend(user.groups.iter().map(|group| format!("  group     {group}")));
                for (key, values) in &user.extra {
                    lines.extend(values.iter().map(|value| format!("  extra     {key}={value}")));
                }
            }
            (_, _, error) => {
                let error = error.as_deref().unwrap_or_default();
                lines.push(format!("refused (401 Unauthorized) for cluster {}: {error}", self.cluster));
            }
        }
        lines.extend(self.warnings.iter().map(|warning| format!("  warning   {warning}")));
        let annotations = self.audit_annotations.iter();
        lines.extend(annotations.map(|(key, value)| format!("  audit     {key}={value}")));
        // A token may say anything, also what a terminal would obey.
        let is_obeyed = |c: char| {
            c.is_control()
                || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        let harmless = |c: char| if is_obeyed(c) { '\u{fffd}' } else { c };
        lines
            .iter()
            .map(|line| line.trim_end().chars().map(harmless).chain(['\n']).collect::<String>())
            .collect()
    }
}
