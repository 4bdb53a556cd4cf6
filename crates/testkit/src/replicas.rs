//! Several kube-apiservers on one etcd behind several gateways, under a mixed load, while each of them is terminated,
//! killed and stopped in turn.
//!
//! The clients behave as client-go behind a layer-4 load balancer that follows the readiness of the gateways (`balancer`,
//! `client`). A request has failed if its response has an error status or ends in its middle, or if the connection of a
//! write breaks. A connection that no gateway accepts is the load balancer's matter: it chooses another gateway. A read
//! whose connection to the gateway breaks is sent again by the client, as client-go does, and counted apart: only a
//! gateway that is killed may cause that.

mod balancer;
mod client;
mod faults;
mod load;
mod member;
mod record;
mod report;
mod tunnels;
mod watches;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::messages::full;
use crate::pki::{Ca, Issued, Key, KeyKind, pem};
use crate::real::{
    ApiServer, IDENTITY_HEADERS, Programs, ServerProcess, account_flags, certificate_kubeconfig, eventually,
    free_ports, start_etcd,
};
use crate::tls::{identified, tls_client};

pub use balancer::Balancer;
pub use faults::{Fault, Phase, Target, Timing};
pub use load::{Amount, Load, NAMESPACES};
pub use member::Member;
pub use record::{Kind, Operation, Outcome, StreamEnd};
pub use report::{PhaseReport, header};

/// How long a direct request may take on a busy machine.
const DIRECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The running processes.
pub struct Replicas {
    /// The API servers.
    pub servers: Vec<Member>,
    /// The gateways.
    pub gateways: Vec<Member>,
    /// The addresses of the gateways for readiness probes.
    health: Vec<SocketAddr>,
    files: Files,
    _kubelet: tunnels::EchoKubelet,
    _etcd: ServerProcess,
}

/// The number of processes, and the settings that matter.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The API servers.
    pub servers: usize,
    /// The gateways.
    pub gateways: usize,
    /// kube-apiserver's `--goaway-chance`.
    pub goaway_chance: f64,
}

/// What is not the same for all clusters.
#[derive(Debug, Default)]
pub struct Setup {
    /// The kube-apiservers of the first servers. The others are those of the programs.
    pub kube_apiservers: Vec<PathBuf>,
    /// Further flags of all API servers.
    pub flags: Vec<String>,
}

impl Replicas {
    /// Starts all processes with their files and logs in `dir`, and creates the objects that the load needs.
    pub async fn start(
        layout: Layout,
        programs: &Programs,
        gateway: &Path,
        dir: &Path,
    ) -> Result<Self, String> {
        let mut replicas = Self::start_servers(layout, &Setup::default(), programs, dir).await?;
        for _ in 0..layout.gateways {
            replicas.add_gateway(gateway, &json!({})).await?;
        }
        Ok(replicas)
    }

    /// The same without gateways.
    pub async fn start_servers(
        layout: Layout,
        setup: &Setup,
        programs: &Programs,
        dir: &Path,
    ) -> Result<Self, String> {
        let files = Files::write(dir, layout.servers);
        let (etcd_port, etcd) = start_etcd(programs, dir).await?;
        let serving = files.servers.server(&["127.0.0.1", "localhost"]);
        let kubelet = tunnels::EchoKubelet::start(&files.clients, &serving, &files.kubelet_clients).await;
        let mut servers = Vec::new();
        for index in 0..layout.servers {
            let [port] = free_ports()?;
            let (name, address) = (format!("server-{index}"), SocketAddr::from(([127, 0, 0, 1], port)));
            let own = [files.server_flags(index, layout.goaway_chance), setup.flags.clone()].concat();
            let flags = ApiServer { programs, dir, name: &name, etcd_port }.flags(port, &own);
            let program = setup.kube_apiservers.get(index).unwrap_or(&programs.kube_apiserver);
            let mut server = Member::new(name, address, dir, program, flags);
            server.start()?;
            // One after the other: the first one creates the objects that all need.
            server.until("ready", async || server_is_ready(address, &files.user).await).await?;
            servers.push(server);
        }
        create_objects(servers[0].address, &files.user, kubelet.port).await?;
        let (gateways, health) = (Vec::new(), Vec::new());
        Ok(Self { servers, gateways, health, files, _kubelet: kubelet, _etcd: etcd })
    }

    /// Starts another gateway in front of all API servers, with `more` in its configuration.
    pub async fn add_gateway(&mut self, program: &Path, more: &Value) -> Result<(), String> {
        let index = self.gateways.len();
        let [port, metrics] = free_ports()?;
        let addresses: Vec<SocketAddr> = self.servers.iter().map(|server| server.address).collect();
        let config = self.files.gateway_config(index, port, metrics, &addresses, more);
        let flags = vec!["serve".to_owned(), format!("--config={}", config.display())];
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let probe = SocketAddr::from(([127, 0, 0, 1], metrics));
        let name = format!("gateway-{index}");
        let mut member = Member::new(name, address, &self.files.dir, program, flags);
        member.start()?;
        member.until("ready", async || balancer::is_ready(probe).await).await?;
        self.gateways.push(member);
        self.health.push(probe);
        Ok(())
    }

    /// A member of `system:masters`.
    pub fn user(&self) -> &Issued {
        &self.files.user
    }

    /// The address of a gateway for probes and metrics.
    pub fn health(&self, gateway: usize) -> SocketAddr {
        self.health[gateway]
    }

    /// A certificate of a user.
    pub fn client(&self, name: &str) -> Issued {
        self.files.clients.leaf().cn(name).issue()
    }

    /// The certificate of a node's kubelet.
    pub fn node(&self, name: &str) -> Issued {
        self.files.clients.leaf().cn(&format!("system:node:{name}")).org("system:nodes").issue()
    }

    /// Ends an API server as an administrator does, and starts this program at its address.
    pub async fn replace_server(&mut self, index: usize, program: &Path) -> Result<(), String> {
        let server = &mut self.servers[index];
        server.signal(rustix::process::Signal::TERM)?;
        server.until_ended().await?;
        server.set_program(program);
        server.start()?;
        self.until_server_ready(index).await?;
        self.until_all_are_trusted().await
    }

    /// A load balancer over the gateways.
    pub fn balancer(&self) -> Arc<Balancer> {
        let targets = self.gateways.iter().map(|gateway| gateway.address).zip(self.health.iter().copied());
        Arc::new(Balancer::start(&targets.collect::<Vec<_>>(), &self.files.user))
    }

    /// The short requests for objects of the load that each API server has answered since its start.
    pub async fn requests(&self) -> Result<Vec<u64>, String> {
        let mut counts = Vec::new();
        for server in &self.servers {
            let (_, text) = direct(server.address, &self.files.user, "GET", "/metrics", None).await?;
            counts.push(short_requests(&text));
        }
        Ok(counts)
    }

    /// Waits until each gateway uses each API server again: the pauses between its self-checks grow while a server starts.
    pub async fn until_all_are_trusted(&self) -> Result<(), String> {
        eventually("the trust of all gateways in all API servers", async || {
            for gateway in &self.health {
                let metrics = balancer::get(*gateway, "/metrics").await.unwrap_or_default();
                let is_trusted = |server: &Member| {
                    let of_server = format!("endpoint=\"{}\"}} 1", server.address);
                    let mut lines = metrics.lines();
                    lines.any(|line| {
                        line.starts_with("portcullis_endpoint_trusted{") && line.ends_with(&of_server)
                    })
                };
                if !self.servers.iter().all(is_trusted) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    async fn until_server_ready(&mut self, index: usize) -> Result<(), String> {
        let (server, user) = (&mut self.servers[index], &self.files.user);
        let address = server.address;
        server.until("ready", async || server_is_ready(address, user).await).await
    }

    async fn until_gateway_ready(&mut self, index: usize) -> Result<(), String> {
        let health = self.health[index];
        self.gateways[index].until("ready", async || balancer::is_ready(health).await).await
    }
}

/// Sums the requests of the load: neither watches nor `exec`.
fn short_requests(metrics: &str) -> u64 {
    let is_counted = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && (line.contains(r#"resource="configmaps""#) || line.contains(r#"resource="namespaces""#))
            && !line.contains(r#"verb="WATCH""#)
    };
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    metrics.lines().filter(is_counted).filter_map(value).map(|value| value as u64).sum()
}

async fn server_is_ready(address: SocketAddr, user: &Issued) -> bool {
    matches!(direct(address, user, "GET", "/readyz", None).await, Ok((StatusCode::OK, _)))
}

/// A request to an API server, beside the gateways.
pub async fn direct(
    address: SocketAddr,
    user: &Issued,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(StatusCode, String), String> {
    let sending = async {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        let mut config = identified(tls_client(rustls::DEFAULT_VERSIONS), Some(user));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let stream = TokioIo::new(stream.map_err(|error| error.to_string())?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let mut request = http::Request::builder().method(method).uri(path).header("host", "localhost");
        if method == "PATCH" {
            request = request.header("content-type", "application/merge-patch+json");
        } else if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let text = body.map(ToString::to_string).unwrap_or_default();
        let response = sender
            .send_request(request.body(full(text)).unwrap())
            .await
            .map_err(|error| error.to_string())?;
        let code = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok((code, String::from_utf8_lossy(&body).into_owned()))
    };
    timeout(DIRECT_TIMEOUT, sending).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}

/// Creates the namespaces of the load, and the Pod of the tunnels.
async fn create_objects(server: SocketAddr, user: &Issued, kubelet_port: u16) -> Result<(), String> {
    let mut objects = Vec::new();
    for number in 0..NAMESPACES {
        let name = format!("load-{number}");
        objects.push(("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": name}})));
    }
    objects.push((
        "/api/v1/namespaces/load-0/serviceaccounts".to_owned(),
        json!({"metadata": {"name": "default"}}),
    ));
    objects.push(("/api/v1/nodes".to_owned(), json!({"metadata": {"name": "node"}})));
    let containers = json!([{"name": "main", "image": "example.com/none"}]);
    objects.push((
        "/api/v1/namespaces/load-0/pods".to_owned(),
        json!({"metadata": {"name": "tunnelled"}, "spec": {
            "nodeName": "node", "containers": containers, "automountServiceAccountToken": false}}),
    ));
    for (path, object) in objects {
        let (code, answer) = direct(server, user, "POST", &path, Some(&object)).await?;
        if code != StatusCode::CREATED {
            return Err(format!("{path}: {code} {answer}"));
        }
    }
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let (code, answer) = direct(server, user, "PATCH", "/api/v1/nodes/node/status", Some(&status)).await?;
    if code == StatusCode::OK { Ok(()) } else { Err(format!("the Node: {code} {answer}")) }
}

/// The certificates and files that the processes read.
struct Files {
    dir: PathBuf,
    servers: Ca,
    clients: Ca,
    user: Issued,
    /// The certificate with which each API server connects to kubelets.
    kubelet_clients: Vec<Issued>,
}

impl Files {
    fn write(dir: &Path, server_count: usize) -> Self {
        let [servers, clients, front] = ["servers", "clients", "front"].map(Ca::new);
        let serving = servers.server(&["127.0.0.1", "localhost"]);
        let gateway = front.leaf().cn("front-proxy").issue();
        let accounts = Key::generate(KeyKind::P256);
        let mut contents = vec![
            ("servers-ca.crt".to_owned(), servers.cert_pem()),
            ("clients-ca.crt".to_owned(), clients.cert_pem()),
            ("clients-ca.key".to_owned(), clients.key_pem()),
            ("front-ca.crt".to_owned(), front.cert_pem()),
            ("server.crt".to_owned(), serving.cert_pem()),
            ("server.key".to_owned(), serving.key_pem()),
            ("front.crt".to_owned(), gateway.cert_pem()),
            ("front.key".to_owned(), gateway.key_pem()),
            ("sa.key".to_owned(), accounts.pem()),
            ("sa.pub".to_owned(), pem("PUBLIC KEY", &accounts.spki())),
        ];
        let issue = |index| clients.leaf().cn(&format!("server-{index}")).issue();
        let kubelet_clients: Vec<Issued> = (0..server_count).map(issue).collect();
        for (index, issued) in kubelet_clients.iter().enumerate() {
            contents.push((format!("kubelet-{index}.crt"), issued.cert_pem()));
            contents.push((format!("kubelet-{index}.key"), issued.key_pem()));
        }
        for (name, content) in contents {
            std::fs::write(dir.join(name), content).unwrap();
        }
        let user = clients.leaf().cn("alice").org("system:masters").issue();
        Self { dir: dir.to_owned(), servers, clients, user, kubelet_clients }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn server_flags(&self, index: usize, goaway_chance: f64) -> Vec<String> {
        let mut flags = vec![
            format!("--client-ca-file={}", self.path("clients-ca.crt")),
            format!("--kubelet-client-certificate={}", self.path(&format!("kubelet-{index}.crt"))),
            format!("--kubelet-client-key={}", self.path(&format!("kubelet-{index}.key"))),
            "--authorization-mode=RBAC".to_owned(),
            // As in production: the gateways see that it shuts down before it stops.
            "--shutdown-delay-duration=5s".to_owned(),
            // By default it waits for its request timeout, a minute, if watches are open.
            "--shutdown-watch-termination-grace-period=5s".to_owned(),
            format!("--goaway-chance={goaway_chance}"),
            format!("--requestheader-client-ca-file={}", self.path("front-ca.crt")),
            "--requestheader-allowed-names=front-proxy".to_owned(),
        ];
        flags.extend(account_flags(&self.dir));
        flags.extend(IDENTITY_HEADERS.map(str::to_owned));
        flags
    }

    fn gateway_config(
        &self,
        index: usize,
        port: u16,
        metrics: u16,
        servers: &[SocketAddr],
        more: &Value,
    ) -> PathBuf {
        let kubeconfig = certificate_kubeconfig(servers[0], &self.dir.join("servers-ca.crt"), "front");
        std::fs::write(self.dir.join("backend.kubeconfig"), kubeconfig).unwrap();
        let endpoints: Vec<String> = servers.iter().map(|address| format!("https://{address}")).collect();
        let mut config = json!({
            "apiVersion": "portcullis.dev/v1alpha1",
            "kind": "GatewayConfiguration",
            "serving": {
                "bindAddress": "127.0.0.1", "securePort": port,
                "tlsCertFile": "server.crt", "tlsPrivateKeyFile": "server.key",
            },
            "operation": {
                "metricsBindAddress": format!("127.0.0.1:{metrics}"), "workers": 1,
                // As in front of a Service.
                "shutdownDelayDuration": "5s", "shutdownGracePeriod": "6s",
                "shutdownWatchTerminationGracePeriod": "5s",
                "loggingFormat": "json",
            },
            "authentication": {"clientCAFile": "clients-ca.crt"},
            "clusters": [{
                "name": "c", "kubeconfig": "backend.kubeconfig", "endpoints": endpoints,
                "requestheaderUsernameHeaders": ["X-Remote-User"],
                "requestheaderUIDHeaders": ["X-Remote-Uid"],
                "requestheaderGroupHeaders": ["X-Remote-Group"],
                "requestheaderExtraHeadersPrefix": ["X-Remote-Extra-"],
            }],
        });
        merge(&mut config, more);
        let path = self.dir.join(format!("gateway-{index}.yaml"));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

/// Puts the members of `more` into `value`; an item of a list belongs to the one at its place.
fn merge(value: &mut Value, more: &Value) {
    match (value, more) {
        (Value::Object(value), Value::Object(more)) => {
            more.iter().for_each(|(key, more)| merge(value.entry(key).or_insert(Value::Null), more));
        }
        (Value::Array(value), Value::Array(more)) => {
            value.iter_mut().zip(more).for_each(|(value, more)| merge(value, more));
        }
        (value, more) => *value = more.clone(),
    }
}
