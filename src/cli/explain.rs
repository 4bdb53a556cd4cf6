//! `portcullis explain`: what each authenticator makes of a credential, and why.

mod advice;
mod credential;
mod report;

use std::future::Future;
use std::io::{IsTerminal as _, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::{sleep, timeout};
use tracing_subscriber::EnvFilter;

use super::check::{Output, print};
use super::{failed, misconfigured, print_error};
use advice::reasons;
pub(super) use credential::Credential;
use credential::Kind;
use report::{Explanation, Row, User};

use crate::authn::chain::AuthnChain;
use crate::authn::settings::Authentication;
use crate::authn::trace::AuthnTrace;
use crate::authn::x509::{UnverifiedChain, VerdictMemo};
use crate::authn::{Audience, AuthnInput, ConnInfo, ProvenIdentity};
use crate::clock::{Clock, UnixTime};
use crate::cluster::authenticators::AuthnDeps;
use crate::config::flags::ServeFlags;
use crate::config::inputs::ConfigInputs;
use crate::config::resolve::resolve;
use crate::go::quote::Quoted;
use crate::metrics::Metrics;
use crate::request::credentials::Credentials;
use crate::server::self_check::SelfCheck;
use crate::state::{Live, Snapshot};
use crate::user::IdentityMode;

/// How long the API server and an issuer may take to be there.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the whole verdict may take.
const TOO_LONG: Duration = Duration::from_secs(20);
/// A terminal shows what is waited for after this time.
const SOON: Duration = Duration::from_secs(2);
/// As large as a header may be.
const LARGEST_TOKEN: u64 = 1 << 20;

pub(super) const EXAMPLE: &str = "\
Examples:
  kubectl create token builder | portcullis explain --config gateway.yaml --cluster prod
  portcullis explain --config gateway.yaml --certificate alice.crt
  portcullis explain --config gateway.yaml --output json < alice.token | jq .reasons

The first line is the verdict; `why` and `fix` say what the credential is refused for, and which claim, flag or key to
look at. Then stands what the credential says of itself, and each step of the authenticators it is for.";

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
    /// Show the steps of every authenticator, also of those that the credential is not for.
    #[arg(long, help_heading = "Output")]
    all: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(super) fn run(flags: &ExplainFlags) -> ExitCode {
    let settings = match resolve(&flags.serve, &mut ConfigInputs::default()) {
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
    let deps = AuthnDeps::new(runtime.handle().clone(), Arc::new(Metrics::new()));
    let snapshot = match Snapshot::build(&settings, None, &deps) {
        Ok(snapshot) => snapshot,
        Err(error) => return failed(&error.to_string()),
    };
    let names: Vec<_> = settings.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let index = match &flags.cluster {
        Some(name) => names.iter().position(|known| known == name),
        None if names.len() == 1 => Some(0),
        None => None,
    };
    let Some((index, cluster)) = index.and_then(|index| Some((index, settings.clusters.get(index)?))) else {
        return failed(&format!("--cluster: give one of {}", names.join(", ")));
    };
    let question =
        Question { index, credential, audiences: &flags.audiences, settings: &cluster.authentication };
    let explanation = runtime.block_on(async { timeout(TOO_LONG, question.judge(snapshot, deps)).await });
    let Ok(explanation) = explanation else {
        return failed(&format!(
            "there is no verdict after {} s: an issuer, the webhook or the API server does not \
                                answer; the log of serve has which",
            TOO_LONG.as_secs()
        ));
    };
    let Some(explanation) = explanation else { return failed("there is no such cluster") };
    let printed = print(&flags.output.rendered(&explanation).unwrap_or_else(|| explanation.text(flags.all)));
    if explanation.authenticated { printed } else { ExitCode::FAILURE }
}

fn credential(flags: &ExplainFlags) -> Result<Credential, String> {
    if let Some(file) = &flags.certificate {
        return Credential::certificate(file);
    }
    let mut input = std::io::stdin();
    if input.is_terminal() {
        print_error("reading a token from standard input; end with Ctrl-D");
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

/// Whose credential it is, for which cluster.
struct Question<'a> {
    index: usize,
    credential: Credential,
    audiences: &'a [String],
    settings: &'a Authentication,
}

impl Question<'_> {
    /// Asks the authenticators of the cluster; nothing if there is no such cluster.
    async fn judge(self, snapshot: Snapshot, deps: AuthnDeps) -> Option<Explanation> {
        let kind = self.credential.kind();
        let now = Clock::system().now();
        let live = Live::new(snapshot, Arc::clone(&deps.reload));
        let snapshot = live.snapshot();
        let cluster = snapshot.clusters().get(self.index)?;
        if cluster.authn.reads_cluster_objects() && self.depends_on_the_backend(&kind) {
            tell_of_the_backend();
            let self_check = SelfCheck::new(Arc::clone(&live), Arc::clone(&deps.metrics));
            tokio::spawn(async move { self_check.run().await });
            let looked = async {
                while !cluster.backend.is_trusted() && !cluster.backend.is_checked() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(PATIENCE, waiting_for("the API server", looked)).await.ok();
            if !cluster.backend.is_trusted() {
                print_error("the API server cannot be asked about this token; going on without it");
            }
        }
        if let Kind::Jwt(issuer) = &kind {
            let try_initialize = cluster.authn.issuers.try_initialize(issuer);
            if timeout(PATIENCE, waiting_for("the issuer", try_initialize)).await.is_err() {
                print_error(&format!("the issuer {} does not answer; going on without it", Quoted(issuer)));
            }
        }
        let requested: Vec<Audience> = match self.audiences {
            [] => cluster.authn.audiences.clone(),
            audiences => audiences.iter().cloned().map(Audience).collect(),
        };
        let judge = Judge {
            cluster: &cluster.name,
            chain: &cluster.authn.chain,
            settings: self.settings,
            identity: cluster.backend.identity(),
            audiences: &requested,
            generation: snapshot.generation,
        };
        Some(waiting_for("a verdict", judge.explain(self.credential, now)).await)
    }

    /// Whether the API server must be asked about it.
    fn depends_on_the_backend(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Jwt(issuer) => self
                .settings
                .service_accounts
                .as_ref()
                .is_some_and(|accounts| issuer == advice::LEGACY || accounts.issuers.contains(issuer)),
            Kind::Bootstrap => true,
            Kind::Damaged(_) | Kind::Opaque | Kind::Certificate => false,
        }
    }
}

/// Those who judge: the authenticators of a cluster, and what they were told.
#[derive(Debug)]
pub(super) struct Judge<'a> {
    pub(super) cluster: &'a str,
    pub(super) chain: &'a AuthnChain,
    pub(super) settings: &'a Authentication,
    /// How the backend learns the identity.
    pub(super) identity: IdentityMode,
    pub(super) audiences: &'a [Audience],
    pub(super) generation: u64,
}

impl Judge<'_> {
    /// What they make of a credential, and why.
    pub(super) async fn explain(&self, credential: Credential, now: UnixTime) -> Explanation {
        let (kind, facts) = (credential.kind(), credential.facts(now));
        let (certificates, authorization) = match credential {
            Credential::Token(token) => (Vec::new(), Some(format!("Bearer {token}"))),
            Credential::Certificate(certificates) => (certificates, None),
        };
        let trace = AuthnTrace::with_steps();
        let input = AuthnInput {
            conn: &ConnInfo {
                peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                server_name: None,
                peer_chain: UnverifiedChain::new(certificates),
                verdicts: VerdictMemo::default(),
            },
            credentials: &Credentials { authorization, ..Credentials::default() },
            path: "/api",
            audiences: self.audiences,
            generation: self.generation,
            now,
            trace: &trace,
        };
        let verdict = self.chain.authenticate(&input).await;
        let noted = trace.take();
        let mut steps: Vec<Row> = noted.steps.into_iter().map(Row::from).collect();
        // The gateway refuses an identity that no header carries, by this function.
        let unfit = verdict.as_ref().ok().and_then(|proven| proven.identity().lines(self.identity).err());
        steps.extend(unfit.as_ref().map(Row::of_unencodable_identity));
        let proven = verdict.as_ref().ok().filter(|_| unfit.is_none());
        let user = proven.map(ProvenIdentity::user).cloned();
        Explanation {
            cluster: self.cluster.to_owned(),
            authenticated: proven.is_some(),
            authenticator: proven.map(|proven| proven.method().name()),
            user: user.map(|user| User {
                username: user.name,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
            }),
            reasons: if proven.is_some() { Vec::new() } else { reasons(&steps, &kind, self.settings) },
            error: verdict.err().map(|error| error.to_string()).or(unfit.map(|unfit| unfit.to_string())),
            credential: facts,
            steps,
            warnings: noted.warnings,
            audit_annotations: noted.annotations,
        }
    }
}

/// Says on standard error what is wrong with the API server, if anything.
fn tell_of_the_backend() {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("portcullis::server::self_check=warn"))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time();
    let _already_there = lines.try_init().is_err();
}

/// Says on a terminal what is waited for, if it takes long.
async fn waiting_for<F: Future>(what: &str, future: F) -> F::Output {
    let told = async {
        sleep(SOON).await;
        if std::io::stderr().is_terminal() {
            print_error(&format!("waiting for {what} …"));
        }
        std::future::pending::<F::Output>().await
    };
    tokio::select! {
        output = future => output,
        output = told => output,
    }
}
