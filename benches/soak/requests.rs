//! Thousands of certificate signing requests that stay pending, for a gateway whose controllers approve and sign: the
//! gateway must keep the lease, sign a kubelet's request within seconds, and the latency of its clients must not rise
//! much. The fake API server runs in this process and shares the machine's processors.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P521_SHA512, SignatureAlgorithm,
};
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::fake_cluster::{FakeCluster, LEASES, STRANGER};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::{Pki, flags};
use tokio::time::sleep;

use crate::memory::Memory;

const KUBELETS: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Pause between two requests of the client whose latency is measured.
const PAUSE: Duration = Duration::from_millis(10);
const QUIET: Duration = Duration::from_secs(10);
/// How long a kubelet's request may stay unsigned.
const MAX_WAIT: Duration = Duration::from_secs(30);

fn spec(algorithm: &'static SignatureAlgorithm, signer: &str, user: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "system:node:one");
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    let key = KeyPair::generate_for(algorithm).unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({"request": BASE64_STANDARD.encode(request), "signerName": signer, "username": user,
        "usages": ["digital signature", "client auth"]})
}

/// Latencies of one client's requests, sorted.
async fn latencies(process: &GatewayProcess, alice: &Issued, end: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    let mut client = Client::connect(&process.gateway, true, Some(alice)).await;
    while !end.load(Ordering::SeqCst) {
        let start = Instant::now();
        assert_eq!(client.code(&[]).await, 200);
        took.push(start.elapsed());
        sleep(PAUSE).await;
    }
    took.sort();
    took
}

/// A quantile of sorted latencies, in thousandths.
fn quantile(sorted: &[Duration], thousandths: usize) -> Duration {
    sorted[(sorted.len() * thousandths / 1000).min(sorted.len() - 1)]
}

async fn until_issued(cluster: &FakeCluster, name: &str) -> Option<Duration> {
    let start = Instant::now();
    while !cluster.status(name)["certificate"].is_string() {
        if start.elapsed() > MAX_WAIT {
            return None;
        }
        sleep(Duration::from_millis(5)).await;
    }
    Some(start.elapsed())
}

/// Runs the test with `pending` requests: half for a signer without a controller here, half for the kubelet signer from
/// users who may not request its certificates.
pub(crate) async fn run(pending: usize) -> ExitCode {
    let pki = Pki::new();
    pki.write("ca.crt", pki.clients.cert_pem());
    pki.write("ca.key", pki.clients.key_pem());
    let alice = pki.clients.leaf().cn("alice").issue();
    let cluster = FakeCluster::new();
    let backend = cluster.serve(&pki).await;
    let file = |name: &str| pki.directory.path().join(name).display().to_string();
    let flags: Vec<String> = flags(&pki, backend.address)
        .into_iter()
        .chain([
            "--workers=0".to_owned(),
            "--controllers=csrsigning,csrapproving".to_owned(),
            format!("--cluster-signing-cert-file={}", file("ca.crt")),
            format!("--cluster-signing-key-file={}", file("ca.key")),
        ])
        .collect();

    let process = GatewayProcess::start(crate::PORTCULLIS, flags.clone()).await;
    let end = AtomicBool::new(false);
    let ending = async {
        sleep(QUIET).await;
        end.store(true, Ordering::SeqCst);
    };
    let (quiet, ()) = tokio::join!(latencies(&process, &alice, &end), ending);
    let rss_quiet = Memory::of(process.id()).rss;
    process.end().await;

    let other = spec(&PKCS_ECDSA_P521_SHA512, "example.com/other", STRANGER);
    let kubelets = spec(&PKCS_ECDSA_P521_SHA512, KUBELETS, STRANGER);
    for number in 0..pending {
        let spec = if number % 2 == 0 { &other } else { &kubelets };
        cluster.request(&format!("a-{number:06}"), spec, &json!({}));
    }
    let kubelet = spec(&PKCS_ECDSA_P256_SHA256, KUBELETS, "system:node:one");
    cluster.request("z-before", &kubelet, &json!({}));
    println!("{pending} requests are pending");
    let transitions = || {
        let lease = cluster.get(&format!("{LEASES}/portcullis-controllers"));
        lease.map_or(0, |lease| lease["spec"]["leaseTransitions"].as_u64().unwrap())
    };
    let before = transitions();
    let process = GatewayProcess::start(crate::PORTCULLIS, flags).await;
    let end = AtomicBool::new(false);
    let measuring = latencies(&process, &alice, &end);
    let working = async {
        let first = until_issued(&cluster, "z-before").await;
        let depth = "workqueue_depth{cluster=\"backend\",name=\"csrapproving\"}";
        let waiting = process.gateway.count(depth).await;
        cluster.request("after", &kubelet, &json!({}));
        let second = until_issued(&cluster, "after").await;
        let start = Instant::now();
        let mut rss = 0;
        // Until the controller has processed each request once. Their SubjectAccessReviews are denied, so they are
        // requeued.
        while process.gateway.count(depth).await > 0 && start.elapsed() < 20 * MAX_WAIT {
            rss = rss.max(Memory::of(process.id()).rss);
            sleep(Duration::from_millis(100)).await;
        }
        let drained = start.elapsed();
        end.store(true, Ordering::SeqCst);
        (first, waiting, second, drained, rss)
    };
    let (flooded, (first, waiting, second, drained, rss)) = tokio::join!(measuring, working);
    let threads = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let peak = threads.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default().to_owned();
    let lost = process.said("the lease is lost").len();
    // The previous gateway released the lease at its end: acquiring it is one change.
    let changes = transitions() - before;
    process.end().await;
    println!("lease: lost {lost} times, {changes} change(s) of holder (1 is the start of this gateway)");
    println!(
        "a kubelet's request, created before: {first:?}, {waiting} other requests still queued; created after: {second:?}"
    );
    println!("every pending request processed once {drained:?} later");
    println!("memory: {rss_quiet} KiB without, {rss} KiB with pending requests; {peak}");
    let shown = [500, 900, 990].map(|part| (part, quantile(&quiet, part), quantile(&flooded, part)));
    for (part, quiet, flooded) in shown {
        let ratio = flooded.as_secs_f64() / quiet.as_secs_f64();
        println!("latency of {part} in 1000: {quiet:?} without, {flooded:?} with ({ratio:.1} x)");
    }
    let passed = lost == 0 && first.is_some() && second.is_some();
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
