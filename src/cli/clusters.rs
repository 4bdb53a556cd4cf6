//! `portcullis clusters`: prints the status of the clusters of a running gateway, which its metrics port serves.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use portcullis_go::time::Time;
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_tools::output::{Output, print};
use portcullis_tools::table::columns;
use portcullis_tools::terminal::when;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{failed, print_error};
use crate::server::cluster_status::{
    API_VERSION, CertificateStatus, ClusterHealth, ClusterStatus, ClusterStatusList, ConfigurationState,
    EndpointStatus, KIND,
};

pub(super) const EXAMPLE: &str = "\
Example, on the machine of the gateway:
  portcullis clusters
  portcullis clusters -w --output wide

In a pod of Kubernetes:
  kubectl port-forward deploy/portcullis 9094 & portcullis clusters";

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer: far above that of the largest gateway.
const MAX_ANSWER: usize = 64 << 20;
/// The interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// The longest error in a table.
const MAX_ERROR: usize = 80;

/// The flags of `portcullis clusters`.
#[derive(Debug, Clone, Args)]
pub(super) struct ClustersFlags {
    /// The gateway's --metrics-bind-address, IP:PORT.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9094")]
    metrics_address: SocketAddr,
    /// Print the status again whenever it has changed, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    /// The output format. With --watch, JSON and YAML have one document for each change.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = ClustersOutput::Text, help_heading = "Output")]
    output: ClustersOutput,
}

/// The output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClustersOutput {
    /// A table with one line for each cluster.
    Text,
    /// The same with further columns, and a line for each endpoint.
    Wide,
    /// JSON, for programs.
    Json,
    /// YAML, for both.
    Yaml,
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
enum ClustersError {
    #[error(
        "cannot connect to {0}: {1}\n      fix: give the gateway's --metrics-bind-address by --metrics-address; it \
         is reachable from its own machine unless configured otherwise"
    )]
    Connect(SocketAddr, std::io::Error),
    #[error("{0} has not answered within {TIMEOUT:?}")]
    Timeout(SocketAddr),
    #[error("{0} broke off: {1}")]
    Http(SocketAddr, String),
    #[error(
        "{0} shows the clusters only to clients on its own machine\n      fix: run the command there, in a pod with kubectl \
         exec or kubectl port-forward; or set --metrics-expose-cluster-status on the gateway"
    )]
    Forbidden(SocketAddr),
    #[error("{0} answers {1}: it is not the metrics port of a portcullis that has /clusters")]
    Status(SocketAddr, StatusCode),
    #[error("{0} answers with another document than a {KIND} of {API_VERSION}")]
    Document(SocketAddr),
}

pub(super) fn run(flags: &ClustersFlags) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    runtime.block_on(async {
        if flags.watch {
            return watch(flags).await;
        }
        match status(flags.metrics_address).await {
            Ok(list) => print(&flags.output.text(&list, Clock::system().now())),
            Err(error) => failed(&error.to_string()),
        }
    })
}

/// Prints each change until Ctrl-C, also while the gateway restarts.
async fn watch(flags: &ClustersFlags) -> ExitCode {
    let mut last: Option<Result<ClusterStatusList, String>> = None;
    loop {
        let next = tokio::select! {
            next = status(flags.metrics_address) => next.map_err(|error| error.to_string()),
            _ = tokio::signal::ctrl_c() => return ExitCode::SUCCESS,
        };
        if last.as_ref() != Some(&next) {
            match &next {
                Ok(list) => {
                    let separator = if last.is_some() { flags.output.separator() } else { "" };
                    let text = flags.output.text(list, Clock::system().now());
                    // A closed pipe ends the watch.
                    if print(&format!("{separator}{text}")) != ExitCode::SUCCESS {
                        return ExitCode::FAILURE;
                    }
                }
                Err(error) => print_error(error),
            }
            last = Some(next);
        }
        tokio::select! {
            () = sleep(INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return ExitCode::SUCCESS,
        }
    }
}

/// Reads the status of a gateway.
async fn status(address: SocketAddr) -> Result<ClusterStatusList, ClustersError> {
    timeout(TIMEOUT, read(address)).await.unwrap_or(Err(ClustersError::Timeout(address)))
}

async fn read(address: SocketAddr) -> Result<ClusterStatusList, ClustersError> {
    let broken = |error: &dyn std::fmt::Display| ClustersError::Http(address, error.to_string());
    let stream = TcpStream::connect(address).await.map_err(|error| ClustersError::Connect(address, error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    let connection = tokio::spawn(connection);
    let request = Request::get("/clusters").header(HOST, address.to_string()).body(Empty::<Bytes>::new());
    let response = sender.send_request(request.map_err(|error| broken(&error))?).await;
    let response = response.map_err(|error| broken(&error))?;
    let status = response.status();
    match status {
        StatusCode::OK => {}
        StatusCode::FORBIDDEN => return Err(ClustersError::Forbidden(address)),
        status => return Err(ClustersError::Status(address, status)),
    }
    let body =
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| broken(&error))?;
    connection.abort();
    let list: ClusterStatusList =
        serde_json::from_slice(&body.to_bytes()).map_err(|_| ClustersError::Document(address))?;
    if list.kind == KIND && list.api_version == API_VERSION {
        Ok(list)
    } else {
        Err(ClustersError::Document(address))
    }
}

impl ClustersOutput {
    fn text(self, list: &ClusterStatusList, now: UnixTime) -> String {
        match self {
            Self::Text => table(list, now),
            Self::Wide => wide(list, now),
            Self::Json => Output::Json.rendered(list).unwrap_or_default(),
            Self::Yaml => Output::Yaml.rendered(list).unwrap_or_default(),
        }
    }

    fn separator(self) -> &'static str {
        match self {
            Self::Text | Self::Wide => "\n",
            Self::Json => "",
            Self::Yaml => "---\n",
        }
    }
}

const HEADING: [&str; 9] =
    ["NAME", "HEALTH", "CONFIG", "VERSION", "ENDPOINTS", "REQUESTS", "WATCHES", "CERTIFICATE", "ERROR"];

fn table(list: &ClusterStatusList, now: UnixTime) -> String {
    columns(HEADING, list.items.iter().map(|cluster| row(cluster, now)))
}

fn row(cluster: &ClusterStatus, now: UnixTime) -> [String; 9] {
    let requests = &cluster.requests;
    [
        name(cluster),
        cluster.health.name().to_owned(),
        cluster.configuration.name().to_owned(),
        or_none(cluster.server_version.clone()),
        format!(
            "{}/{}",
            cluster.endpoints.iter().filter(|endpoint| endpoint.ready).count(),
            cluster.endpoints.len()
        ),
        (requests.read_only + requests.mutating).to_string(),
        (requests.watches + requests.streams).to_string(),
        or_none(cluster.client_certificate.as_ref().map(|certificate| end(certificate, now))),
        or_none(cluster.last_error.as_deref().map(short)),
    ]
}

/// The clusters, each with its endpoints below it.
fn wide(list: &ClusterStatusList, now: UnixTime) -> String {
    const WIDE: [&str; 10] = [
        "NAME",
        "HEALTH",
        "CONFIG",
        "VERSION",
        "ENDPOINTS",
        "REQUESTS",
        "WATCHES",
        "CERTIFICATE",
        "SOURCE",
        "ERROR",
    ];
    let mut rows = Vec::new();
    for cluster in &list.items {
        let [name, health, configuration, version, endpoints, requests, watches, certificate, _] =
            row(cluster, now);
        rows.push([
            name,
            health,
            configuration,
            version,
            endpoints,
            requests,
            watches,
            certificate,
            cluster.source.clone(),
            or_none(cluster.last_error.clone()),
        ]);
        rows.extend(cluster.endpoints.iter().map(|endpoint| {
            let mut row = [const { String::new() }; 10];
            let [name, health, _, _, _, requests, watches, .., error] = &mut row;
            *name = format!("  {}", endpoint.address);
            *requests = endpoint.requests.to_string();
            *watches = endpoint.watches.to_string();
            endpoint.state().clone_into(health);
            *error = or_none(endpoint.last_error.clone());
            row
        }));
    }
    columns(WIDE, rows)
}

fn name(cluster: &ClusterStatus) -> String {
    // A refused configuration may not even say its name: its file is shown instead.
    cluster.name.clone().unwrap_or_else(|| cluster.source.clone())
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn end(certificate: &CertificateStatus, now: UnixTime) -> String {
    let end = Time::parse_rfc3339(&certificate.not_after);
    let end = end.and_then(|end| i64::try_from(end.since_epoch().as_secs()).ok());
    end.map_or_else(|| certificate.not_after.clone(), |end| when(end, now))
}

fn short(error: &str) -> String {
    match error.char_indices().nth(MAX_ERROR) {
        Some((end, _)) => format!("{}…", error.get(..end).unwrap_or_default()),
        None => error.to_owned(),
    }
}

impl ClusterHealth {
    fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Degraded => "Degraded",
            Self::Checking => "Checking",
            Self::Unavailable => "Unavailable",
            Self::Refused => "Refused",
        }
    }
}

impl ConfigurationState {
    fn name(self) -> &'static str {
        match self {
            Self::Current => "Current",
            Self::Pending => "Pending",
            Self::Stale => "Stale",
            Self::Refused => "Refused",
        }
    }
}

impl EndpointStatus {
    fn state(&self) -> &'static str {
        match self {
            Self { ejected: true, .. } => "Ejected",
            Self { ready: true, .. } => "Ready",
            Self { trusted: true, .. } => "Trusted",
            _ => "Untrusted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::cluster_status::{RequestCounts, RoutesStatus};

    fn list() -> ClusterStatusList {
        let endpoint = |address: &str, trusted: bool, error: Option<&str>| EndpointStatus {
            address: address.to_owned(),
            trusted,
            ready: trusted && error.is_none(),
            ejected: false,
            requests: 3,
            watches: 43,
            last_error: error.map(str::to_owned),
        };
        let prod = ClusterStatus {
            name: Some("prod".to_owned()),
            source: "configuration".to_owned(),
            health: ClusterHealth::Degraded,
            configuration: ConfigurationState::Stale,
            routes: Some(RoutesStatus {
                server_names: vec!["prod.example.com".to_owned()],
                path_prefix: None,
            }),
            server_version: Some("v1.36.3".to_owned()),
            endpoints: vec![
                endpoint("10.0.0.1:6443", true, None),
                endpoint("10.0.0.2:6443", false, Some("cannot connect to 10.0.0.2:6443: \u{1b}[2J")),
            ],
            client_certificate: Some(CertificateStatus {
                common_name: "portcullis".to_owned(),
                not_after: "1970-01-11T00:00:00Z".to_owned(),
            }),
            requests: RequestCounts { read_only: 2, mutating: 1, watches: 40, streams: 3 },
            last_error: Some("an error ".repeat(20)),
        };
        let refused = ClusterStatus {
            name: None,
            source: "/etc/portcullis/clusters.d/b.yaml".to_owned(),
            health: ClusterHealth::Refused,
            configuration: ConfigurationState::Refused,
            routes: None,
            server_version: None,
            endpoints: Vec::new(),
            client_certificate: None,
            requests: RequestCounts::default(),
            last_error: Some("it is empty".to_owned()),
        };
        ClusterStatusList {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            generation: 3,
            items: vec![prod, refused],
        }
    }

    #[tokio::test]
    async fn a_refusal_names_the_command_and_the_flag() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        });
        let error = status(address).await.unwrap_err().to_string();
        assert!(
            error.contains("kubectl exec") && error.contains("--metrics-expose-cluster-status"),
            "{error}"
        );
    }

    #[test]
    fn the_status_is_printed_in_every_format() {
        let formats = [
            (ClustersOutput::Text, "table"),
            (ClustersOutput::Wide, "wide"),
            (ClustersOutput::Json, "json"),
            (ClustersOutput::Yaml, "yaml"),
        ];
        for (format, name) in formats {
            insta::assert_snapshot!(name, format.text(&list(), UnixTime::from_secs(0)));
        }
    }
}
