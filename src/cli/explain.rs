//! `portcullis explain`: the verdict of each authenticator on a credential, with its reason.

mod access;
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
use portcullis_go::quote::Quoted;
use portcullis_http::identity::IdentityMode;
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_tools::output::{Output, print};
use tokio::time::{sleep, timeout};
use tracing_subscriber::EnvFilter;

use super::{failed, misconfigured, print_error};
use access::{ExplainedRequest, RequestFlags};
use advice::reasons;
pub(super) use credential::Credential;
pub(super) use credential::Kind;
use report::{Explanation, Row, User};

use crate::authn::chain::AuthnChain;
use crate::authn::settings::Authentication;
use crate::authn::trace::AuthnTrace;
use crate::authn::x509::UnverifiedChain;
use crate::authn::{Audience, AuthnInput, ConnInfo, ProvenIdentity};
use crate::cluster::authenticators::ClusterDeps;
use crate::config::flags::ServeFlags;

use crate::request::credentials::Credentials;
use crate::server::self_check::SelfCheck;
use crate::state::effective_config::EffectiveConfig;
use crate::state::{Live, Snapshot};

/// How long the first answer of the API server or of an issuer may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the whole verdict may take.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(20);
/// After this time, a terminal shows progress.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);
/// The maximum size of a header.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

pub(super) const EXAMPLE: &str = "\
Examples:
  kubectl create token builder | portcullis explain --config gateway.yaml --cluster prod
  portcullis explain --config gateway.yaml --certificate alice.crt
  portcullis explain --config gateway.yaml --output json < alice.token | jq .reasons
  portcullis explain --config gateway.yaml --as bob --verb list --resource pods --namespace dev < alice.token

The first line is the verdict. `why` is the reason of a refusal, and `fix` names the claim, flag or key to change. The \
content of the credential follows, and then each check of the authenticators that the credential is for. With --as or --verb, \
each check that authorizes the request comes last: those of the gateway's own authorizers, and those of the API server, and how \
the request is audited.";

/// The flags of `portcullis explain`: those of `serve`, and the credential.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(super) struct ExplainFlags {
    /// A PEM certificate to explain, followed by its intermediates. Default: a token from standard input.
    #[arg(long, value_name = "FILE", help_heading = "Credential")]
    certificate: Option<PathBuf>,
    /// The cluster whose authenticators are used, if there are several.
    #[arg(long, value_name = "NAME", help_heading = "Credential")]
    cluster: Option<String>,
    /// The required audiences of the token, comma-separated. Default: the API server's.
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',', help_heading = "Credential")]
    audiences: Vec<String>,
    #[command(flatten)]
    request: RequestFlags,
    /// Show the checks of every authenticator, also of those that the credential is not for.
    #[arg(long, help_heading = "Output")]
    all: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
    // Last: the command's own flags are first in its help.
    #[command(flatten)]
    pub(super) serve: ServeFlags,
}

pub(super) fn run(flags: &ExplainFlags) -> ExitCode {
    let config = match EffectiveConfig::load(&flags.serve) {
        Ok(config) => config,
        Err(errors) => return misconfigured(&errors),
    };
    let credential = match credential(flags) {
        Ok(credential) => credential,
        Err(problem) => return failed(&problem),
    };
    let asked = match flags.request.request() {
        Ok(asked) => asked,
        Err(problem) => return failed(&problem),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let deps = ClusterDeps::idle(runtime.handle());
    let snapshot = match Snapshot::build(&config, None, &deps) {
        Ok(snapshot) => snapshot,
        Err(error) => return failed(&error.to_string()),
    };
    let settings = &config.settings;
    let names: Vec<_> = settings.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let index = match &flags.cluster {
        Some(name) => names.iter().position(|known| known == name),
        None if names.len() == 1 => Some(0),
        None => None,
    };
    let Some((index, cluster)) = index.and_then(|index| Some((index, settings.clusters.get(index)?))) else {
        return failed(&format!("--cluster: give one of {}", names.join(", ")));
    };
    let request = ExplainRequest {
        index,
        credential,
        audiences: &flags.audiences,
        settings: &cluster.authentication,
        asked,
    };
    let explanation =
        runtime.block_on(async { timeout(VERDICT_TIMEOUT, request.explain(snapshot, deps)).await });
    let Ok(explanation) = explanation else {
        return failed(&format!(
            "no verdict within {} s: an issuer, the webhook or the API server does not answer; the log of serve names it",
            VERDICT_TIMEOUT.as_secs()
        ));
    };
    let Some(explanation) = explanation else { return failed("there is no such cluster") };
    let printed = print(&flags.output.rendered(&explanation).unwrap_or_else(|| explanation.text(flags.all)));
    if explanation.is_accepted() { printed } else { ExitCode::FAILURE }
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
    let mut limited = input.by_ref().take(MAX_TOKEN_BYTES + 1);
    limited.read_to_string(&mut token).map_err(|error| format!("standard input: {error}"))?;
    let token = token.trim_end_matches(['\r', '\n']);
    match token.len() {
        0 => Err("no token on standard input; give one, or --certificate FILE".to_owned()),
        length if u64::try_from(length).is_ok_and(|length| length > MAX_TOKEN_BYTES) => {
            Err("the token on standard input is larger than a header may be".to_owned())
        }
        _ => Ok(Credential::Token(token.to_owned())),
    }
}

/// A credential, and the cluster that explains it.
struct ExplainRequest<'a> {
    index: usize,
    credential: Credential,
    audiences: &'a [String],
    settings: &'a Authentication,
    /// The request to authorize.
    asked: Option<ExplainedRequest>,
}

impl ExplainRequest<'_> {
    /// Runs the authenticators of the cluster; `None` if the cluster does not exist.
    async fn explain(self, snapshot: Snapshot, deps: ClusterDeps) -> Option<Explanation> {
        let kind = self.credential.kind();
        let now = Clock::system().now();
        let live = Live::new(snapshot, Arc::clone(&deps.reload));
        let snapshot = live.snapshot();
        let cluster = snapshot.clusters().get(self.index)?;
        let needs_objects = cluster.authn.reads_cluster_objects() && self.depends_on_the_backend(&kind);
        if needs_objects || self.asked.is_some() {
            log_self_check();
            let self_check = SelfCheck::new(Arc::clone(&live), Arc::clone(&deps.metrics));
            tokio::spawn(async move { self_check.run().await });
            let checked = async {
                while !cluster.backend.is_trusted() && !cluster.backend.is_checked() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(CONNECT_TIMEOUT, waiting_for("the API server", checked)).await.ok();
            if !cluster.backend.is_trusted() {
                let use_of = match kind {
                    _ if !needs_objects => "access reviews",
                    Kind::PodCertificate => "this certificate",
                    _ => "this token",
                };
                print_error(&format!("the API server cannot be used for {use_of}; continuing without it"));
            }
        }
        if let Kind::Jwt(issuer) = &kind {
            let try_initialize = cluster.authn.issuers.try_initialize(issuer);
            if timeout(CONNECT_TIMEOUT, waiting_for("the issuer", try_initialize)).await.is_err() {
                print_error(&format!("the issuer {} does not answer; continuing without it", Quoted(issuer)));
            }
        }
        let requested: Vec<Audience> = match self.audiences {
            [] => cluster.authn.audiences.clone(),
            audiences => audiences.iter().cloned().map(Audience).collect(),
        };
        let explainer = Explainer {
            cluster: &cluster.name,
            chain: &cluster.authn.chain,
            settings: self.settings,
            identity: cluster.backend.identity(),
            audiences: &requested,
            generation: snapshot.generation,
        };
        let mut explanation = waiting_for("a verdict", explainer.explain(self.credential, now)).await;
        if let (Some(asked), Some(user)) = (self.asked, explanation.user()) {
            let access = waiting_for("access reviews", asked.explain(user, cluster)).await;
            explanation.authorization = Some(access);
        }
        Some(explanation)
    }

    /// Whether a verdict needs objects of the API server.
    fn depends_on_the_backend(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Jwt(issuer) => self
                .settings
                .service_accounts
                .as_ref()
                .is_some_and(|accounts| issuer == advice::LEGACY || accounts.issuers.contains(issuer)),
            Kind::Bootstrap => true,
            Kind::PodCertificate => self.settings.pod_client_ca.is_some(),
            Kind::Damaged(_) | Kind::Opaque | Kind::Certificate => false,
        }
    }
}

/// The authenticators of a cluster with their settings.
#[derive(Debug)]
pub(super) struct Explainer<'a> {
    pub(super) cluster: &'a str,
    pub(super) chain: &'a AuthnChain,
    pub(super) settings: &'a Authentication,
    /// How the backend learns the identity.
    pub(super) identity: IdentityMode,
    pub(super) audiences: &'a [Audience],
    pub(super) generation: u64,
}

impl Explainer<'_> {
    /// Runs the chain on a credential and reports every check.
    pub(super) async fn explain(&self, credential: Credential, now: UnixTime) -> Explanation {
        let (kind, facts) = (credential.kind(), credential.facts(now));
        let (certificates, authorization) = match credential {
            Credential::Token(token) => (Vec::new(), Some(format!("Bearer {token}"))),
            Credential::Certificate(certificates) => (certificates, None),
        };
        let trace = AuthnTrace::with_steps();
        let input = AuthnInput {
            conn: &ConnInfo::new(
                SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                None,
                UnverifiedChain::new(certificates),
            ),
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
        // The pipeline refuses an identity that headers cannot carry, with the same function.
        let unencodable =
            verdict.as_ref().ok().and_then(|proven| proven.identity().lines(self.identity).err());
        steps.extend(unencodable.as_ref().map(Row::of_unencodable_identity));
        let proven = verdict.as_ref().ok().filter(|_| unencodable.is_none());
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
            error: verdict
                .err()
                .map(|error| error.to_string())
                .or(unencodable.map(|unencodable| unencodable.to_string())),
            credential: facts,
            steps,
            warnings: noted.warnings,
            audit_annotations: noted.annotations,
            authorization: None,
        }
    }
}

/// Logs failures of the self-check on standard error.
fn log_self_check() {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("portcullis::server::self_check=warn"))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time();
    let _already_set = lines.try_init().is_err();
}

/// Shows on a terminal what the command waits for, if that takes long.
async fn waiting_for<F: Future>(what: &str, future: F) -> F::Output {
    let progress = async {
        sleep(PROGRESS_DELAY).await;
        if std::io::stderr().is_terminal() {
            print_error(&format!("waiting for {what} …"));
        }
        std::future::pending::<F::Output>().await
    };
    tokio::select! {
        output = future => output,
        output = progress => output,
    }
}
