//! `portcullis certs approve` and `deny`: what is decided on is shown first, and somebody at a terminal is asked.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Args;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use serde::Serialize;

use super::super::super::check::{Output, print};
use super::super::super::cluster::{Cluster, ClusterFlags};
use super::super::super::terminal::plain;
use super::super::error::CommandError;
use super::super::table;
use super::{Asks, RequestName, Row, has, read, with_cluster};
use crate::certificates::profile::SYSTEM_MASTERS;
use crate::certificates::request::{CertificateRequest, RequestError};
use crate::clock::Clock;

/// How often a decision is tried again when somebody else has changed the request meanwhile.
// kubectl: pkg/cmd/certificates/certificates.go, modifyCertificateCondition
const TRIES: usize = 10;

/// The flags of `portcullis certs approve`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ApproveFlags {
    #[command(flatten)]
    decision: DecisionFlags,
}

/// The flags of `portcullis certs deny`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct DenyFlags {
    #[command(flatten)]
    decision: DecisionFlags,
    /// The reason in the condition, one word in CamelCase.
    #[arg(long, value_name = "REASON", default_value = "PortcullisDeny")]
    reason: String,
    /// The message in the condition, for whoever made the request.
    #[arg(long, value_name = "TEXT", default_value = "This CSR was denied by portcullis certs deny.")]
    message: String,
}

#[derive(Debug, Clone, Args)]
struct DecisionFlags {
    /// The requests.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

const APPROVED: &str = "Approved";

/// What is written into a request.
struct Decision<'a> {
    /// The type of the condition.
    kind: &'static str,
    /// What is asked, and what was done.
    verbs: (&'static str, &'static str),
    reason: &'a str,
    message: &'a str,
}

/// What became of one request.
#[derive(Debug, Serialize)]
struct Decided {
    name: String,
    decision: &'static str,
    request: Row,
}

pub(in crate::cli::certs) fn approve(flags: &ApproveFlags) -> Result<ExitCode, CommandError> {
    let decision = Decision {
        kind: APPROVED,
        verbs: ("approve", "approved"),
        reason: "PortcullisApprove",
        message: "This CSR was approved by portcullis certs approve.",
    };
    decision.run(&flags.decision)
}

pub(in crate::cli::certs) fn deny(flags: &DenyFlags) -> Result<ExitCode, CommandError> {
    let decision = Decision {
        kind: "Denied",
        verbs: ("deny", "denied"),
        reason: &flags.reason,
        message: &flags.message,
    };
    decision.run(&flags.decision)
}

/// Fails for a request in which another signer might read something else than what is shown here.
fn refuse_ambiguous(requests: &[CertificateSigningRequest]) -> Result<(), CommandError> {
    for request in requests {
        if let Err(error @ RequestError::NotBare) = CertificateRequest::from_pem(&request.spec.request.0) {
            return Err(CommandError::about(format!("{} is not approved", super::name(request)), error));
        }
    }
    Ok(())
}

impl Decision<'_> {
    fn run(&self, flags: &DecisionFlags) -> Result<ExitCode, CommandError> {
        let (verb, done) = self.verbs;
        if !flags.yes && !std::io::stdin().is_terminal() {
            return Err(CommandError::Usage(format!(
                "there is no terminal to ask whether to {verb} them: look at them with certs list, and give --yes"
            )));
        }
        let names: Vec<_> =
            flags.names.iter().map(|name| RequestName::parse(name)).collect::<Result<_, _>>()?;
        with_cluster(&flags.cluster, async |cluster, api| {
            let now = Clock::system().now();
            // All are read before any is decided on: a wrong name is found in time.
            let mut requests = Vec::new();
            for name in &names {
                requests.push(read(cluster, &api, name).await?);
            }
            if self.kind == APPROVED {
                refuse_ambiguous(&requests)?;
            }
            let rows: Vec<Row> = requests.iter().map(|request| Row::of(request, now)).collect();
            let shown = shown(&rows);
            if flags.output == Output::Text {
                print(&shown);
            }
            if !flags.yes
                && !self.confirmed(&flags.names, (flags.output != Output::Text).then_some(&shown))?
            {
                return Err(CommandError::Failed("nothing was changed".to_owned()));
            }
            let mut decided = Vec::new();
            for ((request, name), row) in requests.into_iter().zip(&names).zip(rows) {
                self.write(cluster, &api, name, request).await?;
                if flags.output == Output::Text {
                    print(&format!("certificatesigningrequest.certificates.k8s.io/{} {done}\n", row.name));
                }
                decided.push(Decided { name: row.name.clone(), decision: self.kind, request: row });
            }
            Ok(flags.output.rendered(&decided).map_or(ExitCode::SUCCESS, |text| print(&text)))
        })
    }

    /// Asks whoever sits there.
    fn confirmed(&self, names: &[String], shown: Option<&String>) -> Result<bool, CommandError> {
        let (verb, _) = self.verbs;
        let mut out = std::io::stderr();
        let names: Vec<_> = names.iter().map(|name| plain(name)).collect();
        let question = format!("{}{verb} {}? [y/N] ", shown.map_or("", String::as_str), names.join(", "));
        let mut answer = String::new();
        out.write_all(question.as_bytes())
            .and_then(|()| out.flush())
            .and_then(|()| std::io::stdin().lock().read_line(&mut answer))
            .map_err(|error| CommandError::about("the terminal", error))?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// Adds the condition, unless it is there; again if the request was changed meanwhile, for as long as it is the one
    /// that was shown.
    async fn write(
        &self,
        cluster: &Cluster,
        api: &Api<CertificateSigningRequest>,
        name: &RequestName,
        mut request: CertificateSigningRequest,
    ) -> Result<(), CommandError> {
        let doing = format!("{} certificate signing request {}", self.verbs.0, name.name);
        // Who asks, whom, and for which usages is told beside the request proper, and decided on with it.
        let shown = (request.metadata.uid.clone(), request.spec.clone());
        for _ in 0..TRIES {
            if has(&request, self.kind) {
                return Ok(());
            }
            let conditions = &mut request.status.get_or_insert_default().conditions;
            conditions.get_or_insert_default().push(self.condition());
            let parameters = PostParams::default();
            let written = cluster.ask(&doing, async {
                match api.replace_subresource("approval", &name.segment, &parameters, &request).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
                    written => written.map(Some),
                }
            });
            if let Some(written) = written.await.map_err(CommandError::Failed)? {
                return name.check(written).map(drop);
            }
            request = read(cluster, api, name).await?;
            if (&request.metadata.uid, &request.spec) != (&shown.0, &shown.1) {
                let problem = "it was deleted and made anew; look at it again";
                return Err(CommandError::about(&name.name, problem));
            }
        }
        Err(CommandError::about(&name.name, "somebody else keeps changing it; try again"))
    }

    fn condition(&self) -> CertificateSigningRequestCondition {
        let now = i64::try_from(Clock::system().now().as_secs()).ok();
        let now = now.and_then(|seconds| Timestamp::from_second(seconds).ok()).map(Time);
        CertificateSigningRequestCondition {
            type_: self.kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(self.reason.to_owned()),
            message: Some(self.message.to_owned()),
            last_update_time: now,
            last_transition_time: None,
        }
    }
}

/// What is decided on: who asks for what.
fn shown(rows: &[Row]) -> String {
    let mut facts = Vec::new();
    for row in rows {
        facts.push(("request", plain(&row.name).into_owned()));
        match &row.asks {
            Asks::Request { subject, alt_names, key } => {
                facts.push(("subject", subject.clone()));
                facts.extend(alt_names.iter().map(|name| ("name", name.clone())));
                facts.push(("key", key.clone()));
                if subject.contains(SYSTEM_MASTERS) {
                    facts.push((
                        "WARNING",
                        format!("the group {SYSTEM_MASTERS} may do everything, whatever RBAC says"),
                    ));
                }
            }
            Asks::Unreadable(problem) => facts.push(("WARNING", format!("it cannot be read: {problem}"))),
        }
        facts.extend(row.also_asks_for.iter().map(|also| ("also", also.clone())));
        if row.asks_for_authority {
            facts.push((
                "WARNING",
                "it asks to be a certificate authority: a signer that grants it lets its holder sign for any name".to_owned(),
            ));
        }
        facts.push(("usages", row.usages.join(", ")));
        facts.push(("signer", row.signer_name.clone()));
        facts.push(("requestor", plain(&row.requestor).into_owned()));
        facts.extend(row.requestor_uid.iter().map(|uid| ("uid", plain(uid).into_owned())));
        facts.extend(row.requestor_groups.iter().map(|group| ("group", plain(group).into_owned())));
        for (key, values) in &row.requestor_extra {
            facts.extend(values.iter().map(|value| ("extra", format!("{}={}", plain(key), plain(value)))));
        }
        facts.push(("duration", row.requested_duration.clone()));
        facts.push(("condition", row.condition.clone()));
        facts.push(("", String::new()));
    }
    table::facts(facts)
}
