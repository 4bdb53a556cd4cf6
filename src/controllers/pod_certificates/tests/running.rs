//! The controller against an API server that stores objects, refuses stale writes, and serves one version or another.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_pki::issuance::signer::{PemKey, SignError, Signer, SigningAlgorithm};
use portcullis_tlog::entry::LogEntry;
use portcullis_tlog::verify::verified;
use portcullis_tlog::{CertificateLog, LogDirectory, certificate_log};
use tokio::time::sleep;
use tracing::instrument::WithSubscriber as _;

use super::*;
use crate::controllers::ControllerContext;
use crate::controllers::csr::testing::CapturedLog;
use crate::controllers::settings::{ControllerSettings, SigningLog};
use crate::controllers::signing_log::LogFailurePolicy;
use crate::controllers::testing::FakeCluster;

pub(super) const V1: &str = "/apis/certificates.k8s.io/v1";
const V1_BETA_1: &str = "/apis/certificates.k8s.io/v1beta1";
pub(super) const POD: &str = "/api/v1/namespaces/a/pods/web-0";

pub(super) fn serve(cluster: &FakeCluster, version: &str) {
    cluster.put(version, json!({"resources": [{"name": "podcertificaterequests"}]}));
}

/// A cluster with the objects of a request.
pub(super) fn cluster() -> FakeCluster {
    let cluster = FakeCluster::new();
    cluster.put(POD, pod());
    cluster.put("/api/v1/namespaces/a/serviceaccounts/web", service_account());
    cluster.put("/api/v1/nodes/n1", node());
    cluster
}

pub(super) fn path(version: &str, name: &str) -> String {
    format!("{version}/namespaces/a/podcertificaterequests/{name}")
}

pub(super) fn context(cluster: &FakeCluster, signer: PodSignerSettings) -> ControllerContext {
    let mut context = cluster.context();
    let settings = ControllerSettings::clone(&context.settings);
    context.settings = Arc::new(ControllerSettings { pod_signers: vec![signer], ..settings });
    context
}

/// Runs the controller for a while, of a clock that stands still while there is work.
pub(super) async fn run_for(context: &ControllerContext, lasting: Duration) {
    let running = super::super::run(context.clone());
    assert!(tokio::time::timeout(lasting, running).await.is_err());
}

pub(super) fn condition(cluster: &FakeCluster, path: &str) -> String {
    let object = cluster.get(path).unwrap_or_default();
    let condition = &object["status"]["conditions"][0];
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    format!("{} {}", text("type"), text("reason"))
}

#[tokio::test(start_paused = true)]
async fn a_request_gets_its_certificate_and_times_in_one_write_of_the_served_version() {
    for (version, both) in [(V1, true), (V1, false), (V1_BETA_1, false)] {
        let cluster = cluster();
        serve(&cluster, version);
        if both {
            serve(&cluster, V1_BETA_1);
        }
        cluster.put(&path(version, "req-1"), pod_request());
        let context = context(&cluster, signer());
        run_for(&context, Duration::from_secs(2)).await;
        let object = cluster.get(&path(version, "req-1")).unwrap();
        assert_eq!(condition(&cluster, &path(version, "req-1")), "Issued Issued", "{version}");
        let status = &object["status"];
        assert!(status["certificateChain"].as_str().unwrap().starts_with("-----BEGIN CERTIFICATE-----\n"));
        for time in ["notBefore", "beginRefreshAt", "notAfter"] {
            assert!(status[time].as_str().unwrap().ends_with('Z'), "{status}");
        }
        let writes = cluster.writes();
        assert_eq!(writes.len(), 1, "{writes:?}");
        let signed = context.metrics.controllers.signed.with_label_values(&["c", SIGNER]).get();
        assert_eq!(signed, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_controller_waits_for_an_api_server_that_serves_the_requests() {
    let cluster = cluster();
    let context = context(&cluster, signer());
    let lines = CapturedLog::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let failing = || {
        let labels = ["c", "podcertificaterequest-signing", SIGNER];
        context.metrics.controllers.watch_failing.with_label_values(&labels).get()
    };
    let serving = async {
        sleep(Duration::from_mins(5)).await;
        assert_eq!(failing(), 1);
        serve(&cluster, V1);
        cluster.put(&path(V1, "req-1"), pod_request());
        sleep(Duration::from_mins(2)).await;
        assert_eq!(failing(), 0);
    };
    tokio::join!(run_for(&context, Duration::from_mins(8)).with_subscriber(log), serving);
    assert_eq!(condition(&cluster, &path(V1, "req-1")), "Issued Issued");
    let text = lines.text();
    let logged = text.lines().filter(|line| line.contains("serves no requests of pods")).count();
    assert!(logged == 1 && text.contains("Kubernetes 1.37 serves them by default"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_next_version_is_used_once_the_api_server_no_longer_serves_this_one() {
    let cluster = cluster();
    serve(&cluster, V1_BETA_1);
    cluster.put(&path(V1_BETA_1, "req-1"), pod_request());
    let upgrading = async {
        sleep(Duration::from_mins(1)).await;
        assert_eq!(condition(&cluster, &path(V1_BETA_1, "req-1")), "Issued Issued");
        cluster.retire(&format!("{V1_BETA_1}/podcertificaterequests"));
        serve(&cluster, V1);
        cluster.put(&path(V1, "req-2"), pod_request());
    };
    let context = context(&cluster, signer());
    tokio::join!(run_for(&context, Duration::from_mins(4)), upgrading);
    assert_eq!(condition(&cluster, &path(V1, "req-2")), "Issued Issued");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_announces_requests_and_does_not_serve_them_is_not_asked_in_a_loop() {
    let cluster = cluster();
    serve(&cluster, V1);
    cluster.retire(&format!("{V1}/podcertificaterequests"));
    let mut context = context(&cluster, signer());
    let (asked, client) = (Arc::new(AtomicUsize::new(0)), context.client.clone());
    let counted = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        let count = counted.fetch_add(1, Ordering::SeqCst);
        assert!(count < 1000, "asked in a loop");
        async move { client.send(request).await }
    });
    context.client = kube::Client::new(service, "default");
    run_for(&context, Duration::from_mins(10)).await;
    // A list and the versions, six times a minute.
    let asked = asked.load(Ordering::SeqCst);
    assert!((60..=150).contains(&asked), "{asked} requests in ten minutes");
}

/// The key of a request by v1beta1, which v1 does not show.
#[tokio::test(start_paused = true)]
async fn a_key_that_v1_does_not_show_is_read_by_v1beta1() {
    for (uid, expected) in [("uid-of-request", "Issued Issued"), ("another", "Failed InvalidRequest")] {
        let cluster = cluster();
        serve(&cluster, V1);
        let mut shown = pod_request();
        shown["spec"].as_object_mut().unwrap().remove("stubPKCS10Request");
        let mut older = shown.clone();
        let key = PemKey::generate(KeyKind::EcdsaP256).unwrap();
        older["spec"]["pkixPublicKey"] = json!(BASE64_STANDARD.encode(key.public_key()));
        older["metadata"]["uid"] = json!(uid);
        cluster.put(&path(V1, "req-1"), shown);
        cluster.put(&path(V1_BETA_1, "req-1"), older);
        run_for(&context(&cluster, signer()), Duration::from_secs(2)).await;
        assert_eq!(condition(&cluster, &path(V1, "req-1")), expected, "{uid}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_requests_does_not_delay_another() {
    let cluster = cluster();
    serve(&cluster, V1);
    // The queue of a long lane is served from its end, and the list has the quiet namespace in the middle.
    for number in 0..150 {
        for namespace in ["a-flood", "z-flood"] {
            let path = format!("{V1}/namespaces/{namespace}/podcertificaterequests/r-{number}");
            cluster.put(&path, pod_request());
        }
    }
    let quiet_path = format!("{V1}/namespaces/quiet/podcertificaterequests/r");
    cluster.put(&quiet_path, pod_request());
    let context = context(&cluster, signer());
    run_for(&context, Duration::from_mins(1)).await;
    // Their pods do not exist in these namespaces.
    let writes = cluster.writes();
    let place = writes.iter().position(|(_, path, _)| *path == quiet_path).unwrap();
    assert!(writes.len() == 301 && place < 60, "{place} of {}", writes.len());
}

#[tokio::test(start_paused = true)]
async fn a_decided_request_and_one_of_another_signer_are_left_alone() {
    let cluster = cluster();
    serve(&cluster, V1);
    let mut other = pod_request();
    other["spec"]["signerName"] = json!("example.com/other");
    cluster.put(&path(V1, "other"), other);
    for kind in ["Issued", "Denied", "Failed"] {
        let mut decided = pod_request();
        decided["status"] = json!({"conditions": [{"type": kind, "status": "True"}]});
        cluster.put(&path(V1, &kind.to_lowercase()), decided);
    }
    run_for(&context(&cluster, signer()), Duration::from_secs(2)).await;
    assert_eq!(cluster.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn of_two_controllers_one_writes_a_certificate() {
    let cluster = cluster();
    serve(&cluster, V1);
    for number in 0..20 {
        cluster.put(&path(V1, &format!("req-{number}")), pod_request());
    }
    let (one, other) = (context(&cluster, signer()), context(&cluster, signer()));
    tokio::join!(run_for(&one, Duration::from_secs(4)), run_for(&other, Duration::from_secs(4)));
    let written = cluster.writes().into_iter().filter(|(.., code)| *code == 200).count();
    assert_eq!(written, 20);
    for number in 0..20 {
        assert_eq!(condition(&cluster, &path(V1, &format!("req-{number}"))), "Issued Issued");
    }
}

/// A key in a token, which calls a function before it signs.
struct Slow<F> {
    key: PemKey,
    before: F,
}

impl<F> std::fmt::Debug for Slow<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slow")
    }
}

impl<F: Fn() + Send + Sync> Signer for Slow<F> {
    fn public_key(&self) -> &[u8] {
        self.key.public_key()
    }

    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError> {
        (self.before)();
        self.key.sign(algorithm, message)
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_while_its_certificate_is_signed_gets_none() {
    let cluster = cluster();
    serve(&cluster, V1);
    cluster.put(&path(V1, "req-1"), pod_request());
    let deleting = cluster.clone();
    let before = move || deleting.remove(POD);
    let authority = authority(2031, |key| Box::new(Slow { key, before }));
    run_for(&context(&cluster, signer_by(authority)), Duration::from_secs(2)).await;
    let object = cluster.get(&path(V1, "req-1")).unwrap();
    assert_eq!(condition(&cluster, &path(V1, "req-1")), "Denied PodNotFound");
    assert!(object["status"]["certificateChain"].is_null(), "{object}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_fails_is_retried_without_a_condition() {
    let cluster = cluster();
    serve(&cluster, V1);
    cluster.put(&path(V1, "req-1"), pod_request());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let failing = Mutex::new(true);
    let authority = authority(2031, |key| {
        let before = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let is_first = std::mem::take(&mut *failing.lock().unwrap());
            assert!(!is_first, "the token does not answer");
        };
        Box::new(Slow { key, before })
    });
    run_for(&context(&cluster, signer_by(authority)), Duration::from_secs(2)).await;
    assert_eq!(condition(&cluster, &path(V1, "req-1")), "Issued Issued");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_logged_counted_and_written_once() {
    let cluster = cluster();
    serve(&cluster, V1);
    cluster.remove(POD);
    cluster.put(&path(V1, "req-1"), pod_request());
    let context = context(&cluster, signer());
    let lines = CapturedLog::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    run_for(&context, Duration::from_secs(2)).with_subscriber(log).await;
    assert_eq!(condition(&cluster, &path(V1, "req-1")), "Denied PodNotFound");
    assert_eq!(cluster.writes().len(), 1);
    assert_eq!(context.metrics.controllers.refused.with_label_values(&["c", SIGNER]).get(), 1);
    let text = lines.text();
    let line = text.lines().find(|line| line.contains("certificate refused")).unwrap_or_default();
    assert!(line.contains("pod a/web-0 does not exist") && line.contains("a/req-1"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_cannot_be_logged_is_not_issued() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("log");
    certificate_log::create(&directory, "example.com/log").unwrap();
    let cluster = cluster();
    serve(&cluster, V1);
    let run = async |name: &str| {
        cluster.put(&path(V1, name), pod_request_named(name));
        let mut context = context(&cluster, signer());
        let log =
            SigningLog::new(Arc::new(CertificateLog::open(&directory).unwrap()), LogFailurePolicy::Fail);
        let settings = ControllerSettings::clone(&context.settings);
        context.settings = Arc::new(ControllerSettings { log: Some(log), ..settings });
        run_for(&context, Duration::from_secs(2)).await;
        condition(&cluster, &path(V1, name))
    };
    assert_eq!(run("logged").await, "Issued Issued");
    let log = CertificateLog::open(&directory).unwrap();
    let mut details = Vec::new();
    verified(&LogDirectory::new(&directory), log.verifier(), |_, entry| {
        details.push(LogEntry::decode(entry).unwrap().details);
        Ok(())
    })
    .unwrap();
    let expected = json!({"cluster": "c", "signerName": SIGNER, "request": "a/logged", "uid": "uid-of-request",
        "requester": "system:serviceaccount:a:web"});
    let details: Vec<Value> = details.iter().map(|details| serde_json::from_str(details).unwrap()).collect();
    assert_eq!(details, [expected]);
    // As on a full disk.
    std::fs::remove_dir_all(directory.join("tile/entries")).unwrap();
    std::fs::write(directory.join("tile/entries"), "").unwrap();
    assert_eq!(run("not-logged").await, " ");
}

fn pod_request_named(name: &str) -> Value {
    let mut request = pod_request();
    request["metadata"]["name"] = name.into();
    request
}
