//! Mistakes in a new configuration are logged once, and change nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use portcullis::internal::RESTART;
use rustix::process::Signal;
use testkit::client::Client;
use testkit::config_reload::replace;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Ca;
use testkit::{FakeBackend, Gateway, Pki, flags, until};

use crate::gateway::InProcess as _;
use crate::gateway::start_process;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const REFUSED: &str = "the configuration is not reloaded";

/// Files and invalid contents; `None` for a missing file.
const MISTAKES: &[(&str, Option<&str>)] = &[
    ("clients-ca.crt", Some("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")),
    ("clients-ca.crt", Some("")),
    ("clients-ca.crt", None),
    ("client-front-ca.crt", Some("garbage")),
    ("gateway.crt", Some("garbage")),
    ("gateway.crt", Some("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")),
    ("gateway.crt", None),
    ("gateway.key", Some("")),
    ("tokens.csv", Some("only,two\n")),
    ("tokens.csv", None),
    ("backend.kubeconfig", Some("{")),
    ("backend.kubeconfig", None),
    ("front.key", Some("")),
    ("servers-ca.crt", Some("garbage")),
];

struct Setup {
    pki: Pki,
    _backend: FakeBackend,
    gateway: Gateway,
    /// One client per version of HTTP.
    clients: [Client; 2],
}

impl Setup {
    async fn start() -> Self {
        let pki = Pki::new();
        let backend = FakeBackend::plain(&pki).await;
        let gateway = Gateway::with(flags(&pki, backend.address));
        let clients =
            [Client::connect(&gateway, false, None).await, Client::connect(&gateway, true, None).await];
        Self { pki, _backend: backend, gateway, clients }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.pki.directory.path().join(name)
    }

    fn reload(&self) {
        self.gateway.server().reload();
    }

    /// Checks that requests succeed on old and new connections.
    async fn serves(&mut self, case: &str) {
        for (index, client) in self.clients.iter_mut().enumerate() {
            assert_eq!(client.code(&[TOKEN]).await, 200, "{case}");
            let mut new = Client::connect(&self.gateway, index == 1, None).await;
            assert_eq!(new.code(&[TOKEN]).await, 200, "{case}");
        }
    }
}

#[tokio::test]
async fn a_mistake_keeps_the_configuration_in_use_until_it_is_fixed() {
    // A valid certificate that does not match the key.
    let foreign = Ca::new("another").leaf().cn("another").issue().cert_pem();
    let foreign = ["gateway.crt", "front.crt"].map(|name| (name, Some(foreign.as_str())));
    join_all(MISTAKES.iter().copied().chain(foreign).map(async |(name, content)| {
        let case = format!("{name} {content:?}");
        let mut setup = Setup::start().await;
        let file = setup.file(name);
        let valid = std::fs::read(&file).unwrap();
        match content {
            Some(content) => replace(&file, content),
            None => std::fs::remove_file(&file).unwrap(),
        }
        setup.reload();
        setup.gateway.until_counted("portcullis_config_last_reload_successful 0").await;
        setup.gateway.until_counted("portcullis_config_reloads_total{result=\"failure\"} 1").await;
        assert_eq!(setup.gateway.generation().await, 1, "{case}");
        setup.serves(&case).await;
        replace(&file, valid);
        setup.reload();
        setup.gateway.until_counted("portcullis_config_last_reload_successful 1").await;
        setup.gateway.until_counted("portcullis_config_reloads_total{result=\"failure\"} 1").await;
        setup.gateway.reloaded(1).await;
        setup.serves(&case).await;
    }))
    .await;
}

/// Writes a configuration file with these keys of `serving` and `operation`; returns the flag that names it.
fn write_configuration(pki: &Pki, backend: &FakeBackend, serving: &str, operation: &str) -> String {
    flags(pki, backend.address);
    let content = format!(
        "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {{tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key, {serving}}}
operation: {{{operation}}}
authentication: {{tokenAuthFile: tokens.csv}}
clusters: [{{name: c, kubeconfig: backend.kubeconfig}}]
"
    );
    let file = pki.directory.path().join("gateway.yaml");
    replace(&file, content);
    format!("--config={}", file.display())
}

/// Reloads the configuration and waits for the log line that follows the warnings. Twice, since the watch of the files
/// may reload the old content before.
async fn reload(process: &GatewayProcess) {
    let reloads = || process.said("configuration reloaded").len();
    for _ in 0..2 {
        let before = reloads();
        process.signal(Signal::HUP);
        until("the reload", || reloads() > before).await;
    }
}

#[tokio::test]
async fn warnings_are_logged_once_until_they_change() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let write = |version: &str, workers: usize| {
        write_configuration(
            &pki,
            &backend,
            &format!("bindAddress: 127.0.0.1, securePort: 0, tlsMinVersion: {version}"),
            &format!("metricsBindAddress: '127.0.0.1:0', workers: {workers}"),
        )
    };
    let process = start_process([write("VersionTLS10", 1)]).await;
    let steps = [
        ("VersionTLS10", 1, [1, 0]),
        ("VersionTLS10", 2, [1, 1]),
        ("VersionTLS10", 2, [1, 1]),
        ("VersionTLS11", 3, [2, 2]),
        ("VersionTLS12", 1, [2, 2]),
        ("VersionTLS11", 2, [3, 3]),
    ];
    for (index, (version, workers, expected)) in steps.into_iter().enumerate() {
        write(version, workers);
        reload(&process).await;
        let lines =
            ["is not supported; using", "restart to change them"].map(|part| process.said(part).len());
        assert_eq!(lines, expected, "step {index}");
    }
}

// All but the last, --logging-format: the process has it as a flag, which overrides the file.
#[tokio::test]
async fn a_change_of_any_setting_that_is_not_reloaded_warns() {
    const SERVING: [(&str, &str, &str); 5] = [
        ("bind-address", "bindAddress: 127.0.0.1", "bindAddress: 127.0.0.2"),
        ("secure-port", "securePort: 0", "securePort: 1"),
        ("permit-port-sharing", "permitPortSharing: false", "permitPortSharing: true"),
        ("max-connections", "maxConnections: 100", "maxConnections: 99"),
        ("max-connections-per-tenant", "maxConnectionsPerTenant: 10", "maxConnectionsPerTenant: 9"),
    ];
    const OPERATION: [(&str, &str, &str); 3] = [
        ("metrics-bind-address", "metricsBindAddress: '127.0.0.1:0'", "metricsBindAddress: '127.0.0.2:0'"),
        ("workers", "workers: 1", "workers: 2"),
        ("v", "v: 0", "v: 1"),
    ];
    let tested: Vec<&str> = SERVING.iter().chain(&OPERATION).map(|(flag, ..)| *flag).collect();
    assert_eq!(tested, RESTART[..8]);

    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let write = |changed: &str| {
        let section = |keys: &[(&str, &str, &str)]| {
            let keys =
                keys.iter().map(|(flag, before, after)| if *flag == changed { *after } else { *before });
            keys.collect::<Vec<_>>().join(", ")
        };
        write_configuration(&pki, &backend, &section(&SERVING), &section(&OPERATION))
    };
    let process = start_process([write("none")]).await;
    for (count, flag) in tested.into_iter().enumerate() {
        write(flag);
        process.signal(Signal::HUP);
        until(flag, || process.said("restart to change them").len() == count + 1).await;
    }
}

#[tokio::test]
async fn a_certificate_that_is_written_before_its_key_is_not_a_mistake() {
    // A key that follows more than a second later is a mistake, which happens here only on a busy machine.
    for _ in 0..5 {
        let mut setup = Setup::start().await;
        let next = setup.pki.servers.leaf().cn("next").issue();
        replace(&setup.file("gateway.crt"), next.cert_pem());
        // Repeated reload requests do not change that.
        let written = Instant::now();
        while written.elapsed() < Duration::from_millis(300) {
            setup.reload();
            setup.serves("half of a pair").await;
        }
        replace(&setup.file("gateway.key"), next.key_pem());
        let is_in_time = written.elapsed() < Duration::from_millis(900);
        setup.gateway.reloaded(1).await;
        let stream = setup.gateway.tls(b"h2", None).await;
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap(), next.chain);
        if is_in_time {
            let metrics = setup.gateway.metrics("/metrics").await;
            assert!(!metrics.contains("portcullis_config_reloads_total{result=\"failure\"}"), "{metrics}");
            return;
        }
    }
    panic!("the machine is too busy for this test");
}

#[tokio::test]
async fn a_mistake_is_logged_once_however_long_it_lasts() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let process = start_process(flags(&pki, backend.address)).await;
    let mut client = Client::connect(&process.gateway, true, None).await;
    let tokens = pki.write("tokens.csv", "only,two\n");
    until("a log line about the mistake", || !process.said(REFUSED).is_empty()).await;
    let lines = process.said(REFUSED);
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.contains("--token-auth-file") && line.contains(&tokens.display().to_string()), "{line}");
    // Longer than the poll interval, with additional reload requests.
    let logged_at = Instant::now();
    while logged_at.elapsed() < Duration::from_millis(2500) {
        process.signal(Signal::HUP);
        assert_eq!(client.code(&[TOKEN]).await, 200);
    }
    // After a valid configuration the same mistake is logged again.
    replace(&tokens, "good-token,carol,7\n");
    process.gateway.until_counted("portcullis_config_last_reload_successful 1").await;
    assert_eq!(process.said(REFUSED).len(), 1);
    replace(&tokens, "only,two\n");
    process.signal(Signal::HUP);
    until("another log line about the mistake", || process.said(REFUSED).len() > 1).await;
    assert_eq!(client.code(&[TOKEN]).await, 200);
    let (ended, log) = process.end().await;
    assert!(ended.success());
    assert_eq!(log.matches(REFUSED).count(), 2, "{log}");
}
