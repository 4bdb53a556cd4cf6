//! One gateway in front of many clusters: prints its memory, open files and processor time after the start, after
//! requests to every cluster, and when they are idle again; and the time of reloads that change one cluster. Fails if a
//! request fails, or if a reload rebuilds more than one cluster.
//!
//! `cargo bench --bench clusters -- --clusters 500 --requests 10`

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a load test that is started manually")]

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use http::StatusCode;
use rustix::process::Signal;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::gateway_process::GatewayProcess;
use testkit::{FakeBackend, Pki, kubeconfig, open_files};
use tokio::time::sleep;

/// The path of the binary.
const PORTCULLIS: &str = env!("CARGO_BIN_EXE_portcullis");
const RELOADS: u32 = 5;

/// One gateway in front of many clusters.
#[derive(Parser)]
struct Options {
    /// Number of clusters, each with a backend and a token of its own.
    #[arg(long, default_value_t = 500)]
    clusters: usize,
    /// Number of requests to each cluster.
    #[arg(long, default_value_t = 10)]
    requests: usize,
    /// Seconds without requests, after which connections are counted again.
    #[arg(long, default_value_t = 100)]
    idle: u64,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    open_files::raise_limit();
    let pki = Pki::new();
    let directory = pki.directory.path().join("clusters.d");
    std::fs::create_dir(&directory).unwrap();
    let flags = write_gateway(&pki);
    let mut backends = Vec::with_capacity(options.clusters);
    for index in 0..options.clusters {
        let backend = FakeBackend::plain(&pki).await;
        write_cluster(&pki, &directory, index, &backend);
        backends.push(backend);
    }

    let began = Instant::now();
    let process = GatewayProcess::start(PORTCULLIS, flags).await;
    let gateway = &process.gateway;
    let trusted = async || gateway.count_all("portcullis_endpoint_trusted", &[]).await;
    while usize::try_from(trusted().await).unwrap() < options.clusters {
        sleep(Duration::from_millis(20)).await;
    }
    println!("{:<44} {:>9} {:>6} {:>9}", "", "RSS KiB", "files", "seconds");
    show(&process, "every cluster has passed its self-check", began.elapsed());

    let began = Instant::now();
    let mut client = Client::connect(gateway, false, None).await;
    for index in 0..options.clusters {
        let (path, token) = (format!("/clusters/c{index}/api"), format!("Bearer token-{index}"));
        for _ in 0..options.requests {
            assert_eq!(client.code_at(&path, &[("authorization", &token)]).await, StatusCode::OK);
        }
    }
    show(&process, &format!("{} requests to each", options.requests), began.elapsed());

    for round in 0..RELOADS {
        let rebuilt = gateway.count("portcullis_clusters_rebuilt_total").await;
        let before = gateway.generation().await;
        replace(&directory.join("c0.csv"), format!("token-{round},user-{round},7\n"));
        let began = Instant::now();
        process.signal(Signal::HUP);
        gateway.reloaded(before).await;
        let took = began.elapsed();
        let rebuilt = gateway.count("portcullis_clusters_rebuilt_total").await - rebuilt;
        assert!(rebuilt <= 1, "{rebuilt} clusters were rebuilt");
        show(&process, "a reload that changes one cluster", took);
    }

    let idle = Duration::from_secs(options.idle);
    sleep(idle).await;
    show(&process, "idle", idle);
    drop(backends);
}

fn show(process: &GatewayProcess, what: &str, took: Duration) {
    let directory = format!("/proc/{}", process.id());
    let status = std::fs::read_to_string(format!("{directory}/status")).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let files = std::fs::read_dir(format!("{directory}/fd")).unwrap().count();
    println!("{what:<44} {:>9} {files:>6} {:>9.2}", rss.trim().trim_end_matches(" kB"), took.as_secs_f64());
}

fn write_gateway(pki: &Pki) -> Vec<String> {
    pki.write_pair("front", &pki.front.leaf().cn("portcullis").issue());
    pki.write("servers-ca.crt", pki.servers.cert_pem());
    pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
    let file = pki.write(
        "gateway.yaml",
        "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}
operation: {metricsBindAddress: '127.0.0.1:0', workers: 2}
authentication: {anonymousAuth: false}
clusterDirectory: clusters.d
",
    );
    vec![format!("--config={}", file.display())]
}

fn write_cluster(pki: &Pki, directory: &Path, index: usize, backend: &FakeBackend) {
    let path = |name: &str| pki.directory.path().join(name);
    let config = kubeconfig(backend.address, &path("servers-ca.crt"), &path("front.crt"), &path("front.key"));
    let write = |name: String, text: String| std::fs::write(directory.join(name), text).unwrap();
    write(format!("c{index}.kubeconfig"), config);
    write(format!("c{index}.csv"), format!("token-{index},user-{index},7\n"));
    write(
        format!("c{index}.yaml"),
        format!(
            "apiVersion: portcullis.dev/v1alpha1\nkind: ClusterConfiguration\nname: c{index}\nkubeconfig: \
             c{index}.kubeconfig\nmatch: {{pathPrefix: /clusters/c{index}}}\nauthentication: {{tokenAuthFile: c{index}.csv}}\n"
        ),
    );
}
