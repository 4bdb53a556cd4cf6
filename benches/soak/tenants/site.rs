//! One gateway with a cluster of the operator and three tenants, of which the third is the attacker.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use rustix::process::{Resource, getrlimit};
use testkit::config_reload::replace;
use testkit::fake_accounts::{self, FakeAccounts};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::{BoxedBody, BoxedError, FakeBackend, H2, Pki, ResponseFuture, full, in_time, kubeconfig};
use tokio::time::sleep;

use super::attack::{Attack, GatewayLimits};
use super::audit_trail::AuditTrail;
use super::connection::SharedConnection;
use super::management::{self, NAMESPACE};
use super::secret::{SecretText, secret};
use crate::backend::{WATCH, events};

/// The clusters.
pub(crate) const OWN: &str = "own";
pub(crate) const CALM: [&str; 2] = ["calm-1", "calm-2"];
pub(crate) const ATTACKER: &str = "attacker";
/// A static token of a user of the operator's cluster.
pub(crate) const USER_TOKEN: &str = "user-token";
/// A static token of the first calm tenant. The second has service-account tokens.
pub(crate) const CALM_TOKEN: &str = "calm-token";
/// In the paths of requests that the operator's API server does not answer, and of watches without events.
pub(crate) const HELD: &str = "/namespaces/held/";
/// `--max-buffered-bytes` with the memory limit of the chart, a quarter of 2 GiB. That of this machine would depend on its memory.
const MAX_BUFFERED_BYTES: usize = 512 << 20;
/// The `max-age` of HSTS before the first reload; each reload adds one.
const MAX_AGE: u32 = 1000;

pub(crate) struct Site {
    pub(crate) process: GatewayProcess,
    pub(crate) trail: AuditTrail,
    pub(crate) alice: Arc<Issued>,
    /// The address of the operator's API server, and the gateway's certificate there.
    pub(crate) own: (SocketAddr, Arc<Issued>),
    pub(crate) accounts: Arc<FakeAccounts>,
    /// The service accounts of the second calm tenant.
    pub(crate) calm_accounts: Arc<FakeAccounts>,
    pub(crate) open_files: u64,
    attack: Attack,
    pki: Pki,
    _servers: Vec<Arc<FakeBackend>>,
}

impl Site {
    /// Starts the gateway, and waits until all clusters are in use.
    pub(crate) async fn start(attack: Attack, attacker: SecretText) -> Self {
        let (pki, limits) = (Pki::new(), attack.gateway());
        let [accounts, calm_accounts] = [(); 2].map(|()| FakeAccounts::new());
        let own = api_server(&pki, &accounts).await;
        let first = api_server(&pki, &FakeAccounts::new()).await;
        let second = api_server(&pki, &calm_accounts).await;
        let tokens = format!("{CALM_TOKEN},carol,7\n");
        let secrets = [
            (CALM[0], secret(&pki, &[first.address], &tokens)),
            (CALM[1], secret(&pki, &[second.address], &tokens)),
            (ATTACKER, attacker),
        ];
        let management = Arc::new(management::serve(&pki, &secrets).await);
        forget_requests(&management);
        write_files(&pki, own.address, management.address);
        let trail = AuditTrail::start(&pki, limits.webhook_delay).await;
        pki.write("gateway.yaml", configuration(&limits, 0));
        let (process, open_files) = serve(&pki, &limits).await;
        let alice = Arc::new(pki.clients.leaf().cn("alice").issue());
        let own_address = (own.address, Arc::new(pki.front.leaf().cn("portcullis").issue()));
        let servers = vec![own, first, second, management];
        let site = Self {
            process,
            trail,
            alice,
            own: own_address,
            accounts,
            calm_accounts,
            open_files,
            attack,
            pki,
            _servers: servers,
        };
        site.until_ready().await;
        site
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.gateway.address
    }

    /// Changes the configuration file. Returns the header value by which the change shows in responses.
    pub(crate) fn change_configuration(&self, round: u32) -> String {
        let file = self.pki.directory.path().join("gateway.yaml");
        replace(&file, configuration(&self.attack.gateway(), round));
        format!("max-age={}", MAX_AGE + round)
    }

    async fn until_ready(&self) {
        let clusters = [OWN, CALM[0], CALM[1]].into_iter();
        for name in clusters.chain(self.attack.passes_self_checks().then_some(ATTACKER)) {
            let start = format!("portcullis_endpoint_trusted{{cluster=\"{name}\"");
            let is_trusted = |line: &str| line.starts_with(&start) && line.ends_with(" 1");
            self.process.gateway.until_counted_as(&start, is_trusted).await;
        }
        let connection = SharedConnection::new(self.address(), None);
        for (path, accounts) in [("/own/api", &self.accounts), ("/clusters/calm-2/api", &self.calm_accounts)]
        {
            in_time(async {
                while !is_accepted(&connection, path, &accounts.token()).await {
                    sleep(Duration::from_millis(50)).await;
                }
            })
            .await;
        }
    }
}

async fn is_accepted(connection: &SharedConnection, path: &str, token: &str) -> bool {
    let answer = connection.get(path, &[("authorization", &format!("Bearer {token}"))]).await;
    answer.is_ok_and(|response| response.status() == 200)
}

/// Starts the gateway with as many open files as it may have, at most those of `limits`.
async fn serve(pki: &Pki, limits: &GatewayLimits) -> (GatewayProcess, u64) {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let open_files = limits.open_files.min(most);
    let script = format!("ulimit -n {open_files} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, crate::PORTCULLIS, "serve"]);
    command.arg(format!("--config={}", pki.directory.path().join("gateway.yaml").display()));
    (GatewayProcess::serve(command).await, open_files)
}

fn write_files(pki: &Pki, own: SocketAddr, management: SocketAddr) {
    let (cert, key) = pki.write_pair("front", &pki.front.leaf().cn("portcullis").issue());
    let ca = pki.write("servers-ca.crt", pki.servers.cert_pem());
    for (name, address) in [("own", own), ("management", management)] {
        pki.write(&format!("{name}.kubeconfig"), kubeconfig(address, &ca, &cert, &key));
    }
    pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
    pki.write("clients-ca.crt", pki.clients.cert_pem());
    pki.write("own.csv", format!("{USER_TOKEN},mallory,9\n"));
}

fn configuration(limits: &GatewayLimits, round: u32) -> String {
    let GatewayLimits { max_connections, max_requests_inflight, max_per_endpoint, .. } = limits;
    let per_endpoint = max_per_endpoint
        .map(|most| format!("  maxRequestsPerEndpoint: {most}\n  maxWatchesPerEndpoint: {most}\n"))
        .unwrap_or_default();
    format!(
        "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {{bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key,
  maxConnections: {max_connections}, strictTransportSecurityDirectives: [max-age={}]}}
operation: {{metricsBindAddress: '127.0.0.1:0', maxRequestsInflightTotal: {max_requests_inflight},
  maxBufferedBytes: {MAX_BUFFERED_BYTES}}}
authentication: {{serviceAccountIssuer: ['{}']}}
audit: {{auditPolicyFile: audit-policy.yaml, auditWebhookConfigFile: audit-webhook.kubeconfig, auditWebhookBatchMaxWait: 1s}}
managementCluster: {{kubeconfig: management.kubeconfig, namespace: {NAMESPACE}, pathPrefix: /clusters, allowLocalAddresses: true}}
clusters:
- name: {OWN}
  kubeconfig: own.kubeconfig
  match: {{pathPrefix: /{OWN}}}
  authentication: {{clientCAFile: clients-ca.crt, tokenAuthFile: own.csv}}
{per_endpoint}",
        MAX_AGE + round,
        fake_accounts::ISSUER,
    )
}

/// An API server with service accounts, one watch with an event per second, and requests that it does not answer.
async fn api_server(pki: &Pki, accounts: &Arc<FakeAccounts>) -> Arc<FakeBackend> {
    let accounts = Arc::clone(accounts);
    let answer = |request: Request<Incoming>| -> ResponseFuture {
        Box::pin(async move {
            let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
            let is_watch = target.contains("watch=true");
            match target.as_str() {
                WATCH => Response::new(events()),
                held if held.contains(HELD) && is_watch => Response::new(silence()),
                held if held.contains(HELD) => std::future::pending().await,
                _ => Response::new(full(vec![b'x'; 2048])),
            }
        })
    };
    let self_check = move |request: &Request<Incoming>| accounts.answer(request);
    let server = Arc::new(FakeBackend::with_self_check(pki, H2, self_check, answer).await);
    forget_requests(&server);
    server
}

/// A body without data that does not end.
fn silence() -> BoxedBody {
    StreamBody::new(futures_util::stream::pending::<Result<Frame<_>, BoxedError>>()).boxed()
}

/// Discards the requests that a fake backend records, until it is dropped.
pub(crate) fn forget_requests(server: &Arc<FakeBackend>) {
    let server = Arc::downgrade(server);
    tokio::spawn(async move {
        while let Some(server) = server.upgrade() {
            while server.take().is_some() {}
            drop(server);
            sleep(Duration::from_millis(50)).await;
        }
    });
}
