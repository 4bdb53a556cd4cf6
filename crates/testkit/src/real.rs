//! The real Kubernetes servers: finding or building them, starting them as processes that end with the test program,
//! and skipping tests without them.

mod api_server;
mod kubelet;
mod older;
mod programs;
mod server_process;
mod shared;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Conclusion, Trial};
use serde_json::{Value, json};

pub use api_server::{ApiServer, IDENTITY_HEADERS, account_flags};
pub use kubelet::Kubelet;
pub use older::{KUBELET, older_releases, program_of, without_go};
pub(crate) use programs::note;
pub use programs::{Programs, Source, newest_release};
pub use server_process::{ServerProcess, free_ports};
pub use shared::SharedServers;

/// How long a server may take to become ready, on a machine that starts several.
pub const START_TIMEOUT: Duration = Duration::from_mins(3);

/// Whether a skipped test is a failure: `PORTCULLIS_REQUIRE_TWIN=1`.
pub fn is_required() -> bool {
    std::env::var_os("PORTCULLIS_REQUIRE_TWIN").is_some_and(|value| value == "1")
}

/// If the programs are absent: prints the reason, marks the trials as ignored, and fails if no test may be skipped.
pub fn skip_if_absent(
    target: &str,
    absent: Option<String>,
    trials: Vec<Trial>,
) -> Result<Vec<Trial>, ExitCode> {
    let Some(reason) = absent else { return Ok(trials) };
    if is_required() {
        eprintln!("{target}: PORTCULLIS_REQUIRE_TWIN is set, but {reason}");
        return Err(ExitCode::FAILURE);
    }
    eprintln!("\n{target}: SKIPPED, {} tests: {reason}\n", trials.len());
    Ok(trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect())
}

/// Whether the filters of the command line select a test, by libtest-mimic's rule, which it does not export.
pub fn is_selected(arguments: &Arguments, name: &str) -> bool {
    let matches = |filter: &String| {
        if arguments.exact { name == filter } else { name.contains(filter.as_str()) }
    };
    arguments.filter.as_ref().is_none_or(&matches) && !arguments.skip.iter().any(matches)
}

/// The name of a case as part of a test's name.
pub fn test_name(case: &str) -> String {
    case.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect()
}

/// Runs the trials; also returns whether to keep the logs of the servers.
pub fn run(arguments: &Arguments, trials: Vec<Trial>) -> (Conclusion, bool) {
    let conclusion = libtest_mimic::run(arguments, trials);
    let keep_logs = conclusion.has_failed() || std::env::var_os("PORTCULLIS_KEEP_TWIN").is_some();
    (conclusion, keep_logs)
}

/// Polls a condition until it holds; fails on its error and after [`START_TIMEOUT`].
pub async fn eventually(
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let started = Instant::now();
    while !condition().await? {
        if started.elapsed() > START_TIMEOUT {
            return Err(format!("{what}: not ready after {} s", START_TIMEOUT.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Starts a server again if another process has taken its port between [`free_ports`] and the server's bind.
pub async fn retry_on_collision<T>(mut start: impl AsyncFnMut() -> Result<T, String>) -> Result<T, String> {
    let mut result = start().await;
    for _ in 0..3 {
        match &result {
            Err(error) if error.to_lowercase().contains("address already in use") => result = start().await,
            _ => break,
        }
    }
    result
}

/// Starts etcd with its log in `dir`, and its data until it ends; returns its client port and the process.
pub async fn start_etcd(programs: &Programs, dir: &Path) -> Result<(u16, ServerProcess), String> {
    retry_on_collision(async || {
        let [client, peer] = free_ports()?;
        let (client_url, peer_url) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let data = dir.join("etcd");
        let flags = [
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
            // The data is not needed after the run.
            "--unsafe-no-fsync".to_owned(),
        ];
        let mut process = ServerProcess::start_with_data(dir, "etcd", &programs.etcd, flags, Some(&data))?;
        eventually("etcd", async || {
            process.check()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", client)).is_ok())
        })
        .await
        .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
        Ok((client, process))
    })
    .await
}

/// A kubeconfig with the credentials of `user`, for a server whose certificate is signed by `authority`.
pub fn kubeconfig(server: SocketAddr, authority: &Path, user: &Value) -> String {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": authority}}],
        "users": [{"name": "u", "user": user}],
    });
    kubeconfig.to_string()
}

/// A kubeconfig for a user whose certificate and key are `NAME.crt` and `NAME.key` beside `authority`.
pub fn certificate_kubeconfig(server: SocketAddr, authority: &Path, name: &str) -> String {
    let file = |extension| authority.with_file_name(format!("{name}.{extension}"));
    kubeconfig(server, authority, &certificate_user(&file("crt"), &file("key")))
}

/// A kubeconfig user with a client certificate.
pub fn certificate_user(certificate: &Path, key: &Path) -> Value {
    json!({"client-certificate": certificate, "client-key": key})
}
