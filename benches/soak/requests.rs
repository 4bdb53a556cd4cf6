//! Thousands of requests that are not signed, for a gateway whose controllers sign: the gateway must keep the lease, sign
//! a wanted request within seconds, and the latency of its clients must not rise much. The fake API server runs in this process and shares the machine's processors.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P521_SHA512, SignatureAlgorithm,
};
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::fake_cluster::{FakeCluster, LEASES, POD_REQUESTS, STRANGER};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::{Pki, flags};
use tokio::time::sleep;

use crate::memory::Memory;

/// Pause between two requests of the client whose latency is measured.
const PAUSE: Duration = Duration::from_millis(10);
const QUIET: Duration = Duration::from_secs(10);
/// The signer of no controller here.
const OTHER_SIGNER: &str = "example.com/other";
/// How long a wanted request may stay unsigned.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The lines of the gateway's log that a run shows that fails.
const SHOWN_LINES: usize = 20;

/// A kind of requests that a controller of the gateway signs.
pub(crate) trait Requests {
    /// Of those that stay pending.
    const PENDING: &str;
    /// The queue in which the pending requests wait.
    const QUEUE: &str;

    /// The flags of the gateway, whose files are in the directory.
    fn flags(directory: &Path) -> Vec<String>;
    /// Prepares the cluster.
    fn new(cluster: &Arc<FakeCluster>) -> Self;
    /// Creates a request that is not signed: one half is for a signer without a controller here.
    fn add_pending(&self, number: usize);
    /// Creates one that is signed.
    fn add_wanted(&self, name: &str);
    /// Whether that was signed.
    fn is_issued(&self, name: &str) -> bool;
}

/// The signing request of a key, in DER and PEM.
fn signing_request(algorithm: &'static SignatureAlgorithm, params: &CertificateParams) -> (Vec<u8>, String) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let request = params.serialize_request(&key).unwrap();
    (request.der().to_vec(), request.pem().unwrap())
}

/// Certificate signing requests. Those that stay pending are of users who may not request certificates of kubelets.
pub(crate) struct SigningRequests {
    cluster: Arc<FakeCluster>,
    other: Value,
    refused: Value,
    kubelet: Value,
}

impl Requests for SigningRequests {
    const PENDING: &str = "certificate signing requests";
    const QUEUE: &str = "csrapproving";

    fn flags(directory: &Path) -> Vec<String> {
        vec![
            "--controllers=csrsigning,csrapproving".to_owned(),
            format!("--cluster-signing-cert-file={}", directory.join("ca.crt").display()),
            format!("--cluster-signing-key-file={}", directory.join("ca.key").display()),
        ]
    }

    fn new(cluster: &Arc<FakeCluster>) -> Self {
        const KUBELETS: &str = "kubernetes.io/kube-apiserver-client-kubelet";
        let spec = |algorithm, signer: &str, user: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, "system:node:one");
            params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
            let (_, request) = signing_request(algorithm, &params);
            json!({"request": BASE64_STANDARD.encode(request), "signerName": signer, "username": user,
                "usages": ["digital signature", "client auth"]})
        };
        Self {
            cluster: Arc::clone(cluster),
            other: spec(&PKCS_ECDSA_P521_SHA512, OTHER_SIGNER, STRANGER),
            refused: spec(&PKCS_ECDSA_P521_SHA512, KUBELETS, STRANGER),
            kubelet: spec(&PKCS_ECDSA_P256_SHA256, KUBELETS, "system:node:one"),
        }
    }

    fn add_pending(&self, number: usize) {
        let spec = if number.is_multiple_of(2) { &self.other } else { &self.refused };
        self.cluster.request(&format!("a-{number:06}"), spec, &json!({}));
    }

    fn add_wanted(&self, name: &str) {
        self.cluster.request(name, &self.kubelet, &json!({}));
    }

    fn is_issued(&self, name: &str) -> bool {
        self.cluster.status(name)["certificate"].is_string()
    }
}

/// Requests of certificates for pods. Those that are not signed are for pods that do not exist, in one namespace.
pub(crate) struct PodRequests {
    cluster: Arc<FakeCluster>,
    stub: String,
}

impl PodRequests {
    const SIGNER: &str = "example.com/workload";

    fn add(&self, namespace: &str, name: &str, signer: &str, pod: &str) {
        let spec = json!({
            "signerName": signer, "podName": pod, "podUID": "uid-of-pod", "serviceAccountName": "web",
            "serviceAccountUID": "uid-of-account", "nodeName": "n1", "nodeUID": "uid-of-node",
            "maxExpirationSeconds": 86400, "stubPKCS10Request": self.stub,
        });
        self.cluster.pod_request(namespace, name, &spec);
    }
}

impl Requests for PodRequests {
    const PENDING: &str = "requests of certificates for pods";
    const QUEUE: &str = "podcertificaterequest-signing";

    fn flags(directory: &Path) -> Vec<String> {
        // Not the CA of the clients.
        let workload = Pki::new().clients;
        for (name, content) in [("workload.crt", workload.cert_pem()), ("workload.key", workload.key_pem())] {
            std::fs::write(directory.join(name), content).unwrap();
        }
        let file = directory.join("signers.yaml");
        let profiles = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "PodSignerProfiles",
            "signers": [{
                "signerName": Self::SIGNER, "certFile": "workload.crt", "keyFile": "workload.key",
                "usages": ["digital signature", "client auth"], "keyTypes": ["ECDSAP256"], "maxDuration": "24h",
                "uris": "['spiffe://example.com/ns/' + request.metadata.namespace]",
            }],
        });
        std::fs::write(&file, profiles.to_string()).unwrap();
        vec![
            "--controllers=podcertificaterequest-signing".to_owned(),
            format!("--pod-signer-profiles={}", file.display()),
        ]
    }

    fn new(cluster: &Arc<FakeCluster>) -> Self {
        let sources = json!([{"podCertificate": {"signerName": Self::SIGNER}}]);
        let pod = json!({
            "metadata": {"name": "web", "namespace": "quiet", "uid": "uid-of-pod"},
            "spec": {"nodeName": "n1", "serviceAccountName": "web",
                "volumes": [{"name": "v", "projected": {"sources": sources}}]},
            "status": {"phase": "Pending"},
        });
        let account = json!({"metadata": {"name": "web", "namespace": "quiet", "uid": "uid-of-account"}});
        cluster.unwatched("/api/v1/namespaces/quiet/pods/web", pod);
        cluster.unwatched("/api/v1/namespaces/quiet/serviceaccounts/web", account);
        cluster.unwatched("/api/v1/nodes/n1", json!({"metadata": {"name": "n1", "uid": "uid-of-node"}}));
        let (stub, _) = signing_request(&PKCS_ECDSA_P256_SHA256, &CertificateParams::default());
        Self { cluster: Arc::clone(cluster), stub: BASE64_STANDARD.encode(stub) }
    }

    fn add_pending(&self, number: usize) {
        let signer = if number.is_multiple_of(2) { OTHER_SIGNER } else { Self::SIGNER };
        self.add("flood", &format!("a-{number:06}"), signer, &format!("gone-{number}"));
    }

    fn add_wanted(&self, name: &str) {
        self.add("quiet", name, Self::SIGNER, "web");
    }

    fn is_issued(&self, name: &str) -> bool {
        let object = self.cluster.get(&format!("{POD_REQUESTS}/quiet/{name}"));
        object.is_some_and(|object| object["status"]["certificateChain"].is_string())
    }
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

async fn until_issued(requests: &impl Requests, name: &str) -> Option<Duration> {
    let start = Instant::now();
    while !requests.is_issued(name) {
        if start.elapsed() > MAX_WAIT {
            return None;
        }
        sleep(Duration::from_millis(5)).await;
    }
    Some(start.elapsed())
}

/// Runs the test with `pending` requests.
pub(crate) async fn run<R: Requests>(pending: usize) -> ExitCode {
    let pki = Pki::new();
    pki.write("ca.crt", pki.clients.cert_pem());
    pki.write("ca.key", pki.clients.key_pem());
    let alice = pki.clients.leaf().cn("alice").issue();
    let cluster = FakeCluster::new();
    let backend = cluster.serve(&pki).await;
    let flags: Vec<String> = flags(&pki, backend.address)
        .into_iter()
        .chain(["--workers=0".to_owned()])
        .chain(R::flags(pki.directory.path()))
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

    let requests = R::new(&cluster);
    (0..pending).for_each(|number| requests.add_pending(number));
    requests.add_wanted("z-before");
    println!("{pending} {} are pending", R::PENDING);
    let transitions = || {
        let lease = cluster.get(&format!("{LEASES}/portcullis-controllers"));
        lease.map_or(0, |lease| lease["spec"]["leaseTransitions"].as_u64().unwrap())
    };
    let before = transitions();
    let process = GatewayProcess::start(crate::PORTCULLIS, flags).await;
    let end = AtomicBool::new(false);
    let measuring = latencies(&process, &alice, &end);
    let working = async {
        let first = until_issued(&requests, "z-before").await;
        let depth = &format!("workqueue_depth{{cluster=\"backend\",name=\"{}\"}}", R::QUEUE);
        let waiting = process.gateway.count(depth).await;
        requests.add_wanted("after");
        let second = until_issued(&requests, "after").await;
        let start = Instant::now();
        let mut rss = 0;
        // Until the controller has processed each request once. A SubjectAccessReview that is denied requeues its request.
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
    let (_, log) = process.end().await;
    println!("lease: lost {lost} times, {changes} change(s) of holder (1 is the start of this gateway)");
    println!(
        "a wanted request, created before: {first:?}, {waiting} other requests still queued; created after: {second:?}"
    );
    println!("every pending request processed once {drained:?} later");
    println!("memory: {rss_quiet} KiB without, {rss} KiB with pending requests; {peak}");
    let shown = [500, 900, 990].map(|part| (part, quantile(&quiet, part), quantile(&flooded, part)));
    for (part, quiet, flooded) in shown {
        let ratio = flooded.as_secs_f64() / quiet.as_secs_f64();
        println!("latency of {part} in 1000: {quiet:?} without, {flooded:?} with ({ratio:.1} x)");
    }
    if lost == 0 && first.is_some() && second.is_some() {
        return ExitCode::SUCCESS;
    }
    println!("the end of the gateway's log:");
    let lines: Vec<&str> = log.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
        println!("{line}");
    }
    ExitCode::FAILURE
}
