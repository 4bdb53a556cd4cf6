//! Certificate signing requests by the thousand that stay undecided, in front of a gateway whose controllers approve
//! and sign: the lease must be kept, a kubelet's request be signed within seconds, and the gateway's own clients notice
//! little. The API server is in this process and takes its part of the machine.

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
/// Between two requests of the client whose latency is measured.
const PAUSE: Duration = Duration::from_millis(10);
const QUIET: Duration = Duration::from_secs(10);
/// How long a kubelet may wait.
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

/// How long requests of one client took, in order of time taken.
async fn latencies(process: &GatewayProcess, alice: &Issued, end: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    let mut client = Client::connect(&process.gateway, true, Some(alice)).await;
    while !end.load(Ordering::SeqCst) {
        let begun = Instant::now();
        assert_eq!(client.code(&[]).await, 200);
        took.push(begun.elapsed());
        sleep(PAUSE).await;
    }
    took.sort();
    took
}

/// The time within which so many of a thousand requests were answered.
fn quantile(sorted: &[Duration], of_thousand: usize) -> Duration {
    sorted[(sorted.len() * of_thousand / 1000).min(sorted.len() - 1)]
}

async fn until_issued(cluster: &FakeCluster, name: &str) -> Option<Duration> {
    let begun = Instant::now();
    while !cluster.status(name)["certificate"].is_string() {
        if begun.elapsed() > MAX_WAIT {
            return None;
        }
        sleep(Duration::from_millis(5)).await;
    }
    Some(begun.elapsed())
}

/// Half of `pending` for a signer that is not here, half for the one that approves and signs.
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
        let begun = Instant::now();
        let mut rss = 0;
        // Until each was looked at once; their reviews are refused, and they are looked at again now and then.
        while process.gateway.count(depth).await > 0 && begun.elapsed() < 20 * MAX_WAIT {
            rss = rss.max(Memory::of(process.id()).rss);
            sleep(Duration::from_millis(100)).await;
        }
        let drained = begun.elapsed();
        end.store(true, Ordering::SeqCst);
        (first, waiting, second, drained, rss)
    };
    let (flooded, (first, waiting, second, drained, rss)) = tokio::join!(measuring, working);
    let threads = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let peak = threads.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default().to_owned();
    let lost = process.said("the lease is lost").len();
    // The one that ended gave it up: taking it is one change.
    let changes = transitions() - before;
    process.end().await;
    println!("lease: lost {lost} times, {changes} change(s) of holder (1 is the start of this gateway)");
    println!(
        "a kubelet's request, made before: {first:?}, {waiting} of strangers still waiting; made after: {second:?}"
    );
    println!("each stranger's request looked at once {drained:?} later");
    println!("memory: {rss_quiet} KiB without, {rss} KiB with pending requests; {peak}");
    let shown = [500, 900, 990].map(|part| (part, quantile(&quiet, part), quantile(&flooded, part)));
    for (part, quiet, flooded) in shown {
        let ratio = flooded.as_secs_f64() / quiet.as_secs_f64();
        println!("latency of {part} in 1000: {quiet:?} without, {flooded:?} with ({ratio:.1} x)");
    }
    let is_good = lost == 0 && first.is_some() && second.is_some();
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
