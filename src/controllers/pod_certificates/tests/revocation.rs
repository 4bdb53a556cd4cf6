//! The certificates of deleted pods are in the CRL, whether the controller sees the deletion, starts after it, or cannot write
//! at first.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_pki::issuance::ca::CaCertificate;
use portcullis_pki::issuance::signer::{KeyKind as SigningKey, PemKey};
use portcullis_pki::issuance::validity::Validity;
use portcullis_pki::x509::Crl;
use portcullis_tools::certs::signer_records::{SignerCrl, SignerRecords};
use tempfile::TempDir;
use tokio::time::sleep;

use super::running::{POD, V1, cluster, condition, context, path, run_for, serve};
use super::*;
use crate::controllers::ControllerContext;
use crate::controllers::settings::ControllerSettings;
use crate::controllers::testing::{BEGINNING, FakeCluster};

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

fn signer_with_crl(directory: &TempDir) -> PodSignerSettings {
    let key = PemKey::generate(SigningKey::EcdsaP256).unwrap();
    let validity = Validity { not_before: BEGINNING, not_after: BEGINNING + Duration::from_hours(8760) };
    let plan = CaCertificate { common_name: "pods", validity, path_length: 0, purpose: None, key_id: None };
    let pem = portcullis_go::pem::encode_pem("CERTIFICATE", &plan.self_signed(&key).unwrap().der);
    let authority = Arc::new(CertificateAuthority::new(pem.as_bytes(), Box::new(key)).unwrap());
    let file = |name: &str| directory.path().join(name);
    let crl = SignerCrl { file: file("pods.crl"), lifetime: Duration::from_hours(24) };
    let records = SignerRecords { index: file("pods.index.jsonl"), crl: Some(crl) };
    PodSignerSettings { records: Some(records), ..signer_by(authority) }
}

/// The number of entries in the CRL; `None` if there is none.
fn listed(directory: &Path) -> Option<usize> {
    let content = std::fs::read(directory.join("pods.crl")).ok()?;
    let block = portcullis_go::pem::blocks(&content).into_iter().next()?;
    Some(Crl::parse(&block.content).unwrap().entries.len())
}

/// The answer of an API server that fails.
fn failure() -> http::Response<kube::client::Body> {
    let status = json!({"kind": "Status", "status": "Failure", "code": 500, "message": "no"});
    let body = kube::client::Body::from(status.to_string().into_bytes());
    http::Response::builder().status(500).body(body).unwrap()
}

/// Issues a certificate to the pod.
async fn issue(cluster: &FakeCluster, signer: &PodSignerSettings) {
    serve(cluster, V1);
    cluster.put(&path(V1, "req-1"), pod_request());
    run_for(&context(cluster, signer.clone()), SECONDS(3)).await;
    assert_eq!(condition(cluster, &path(V1, "req-1")), "Issued Issued");
}

#[tokio::test(start_paused = true)]
async fn the_certificate_of_a_deleted_pod_is_revoked_while_the_controller_runs() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    serve(&cluster, V1);
    cluster.put(&path(V1, "req-1"), pod_request());
    let deleting = async {
        sleep(SECONDS(2)).await;
        assert_eq!(condition(&cluster, &path(V1, "req-1")), "Issued Issued");
        assert_eq!(listed(directory.path()), Some(0), "the first CRL");
        cluster.remove(POD);
    };
    let context = context(&cluster, signer);
    tokio::join!(run_for(&context, SECONDS(6)), deleting);
    assert_eq!(listed(directory.path()), Some(1));
}

/// What happens between two runs.
type Change = fn(&FakeCluster);

#[tokio::test(start_paused = true)]
async fn a_restart_finds_the_pods_that_were_deleted_meanwhile_and_no_others() {
    let cases: [(&str, Change, usize); 3] = [
        ("as before", |_| {}, 0),
        ("deleted", |cluster| cluster.remove(POD), 1),
        (
            "created again",
            |cluster| {
                let mut other = pod();
                other["metadata"]["uid"] = json!("another");
                cluster.put(POD, other);
            },
            1,
        ),
    ];
    for (name, change, expected) in cases {
        let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
        let signer = signer_with_crl(&directory);
        issue(&cluster, &signer).await;
        change(&cluster);
        run_for(&context(&cluster, signer), SECONDS(4)).await;
        assert_eq!(listed(directory.path()), Some(expected), "{name}");
    }
}

/// A list may be older than the pod.
#[tokio::test(start_paused = true)]
async fn a_pod_that_a_list_lacks_and_that_exists_keeps_its_certificate() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    issue(&cluster, &signer).await;
    let mut context = context(&cluster, signer);
    let client = context.client.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            let is_list = request.uri().path() == "/api/v1/pods";
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch"));
            if is_list && !is_watch {
                let empty = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
                return Ok(http::Response::new(kube::client::Body::from(empty.to_string().into_bytes())));
            }
            client.send(request).await
        }
    });
    context.client = kube::Client::new(service, "default");
    run_for(&context, SECONDS(4)).await;
    assert_eq!(listed(directory.path()), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_cannot_be_recorded_is_not_issued() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    serve(&cluster, V1);
    cluster.put(&path(V1, "req-1"), pod_request());
    std::fs::create_dir(directory.path().join("pods.index.jsonl")).unwrap();
    run_for(&context(&cluster, signer.clone()), SECONDS(3)).await;
    assert_eq!(condition(&cluster, &path(V1, "req-1")), " ");
    std::fs::remove_dir(directory.path().join("pods.index.jsonl")).unwrap();
    run_for(&context(&cluster, signer), SECONDS(3)).await;
    assert_eq!(condition(&cluster, &path(V1, "req-1")), "Issued Issued");
    let index = std::fs::read_to_string(directory.path().join("pods.index.jsonl")).unwrap();
    let line: Value = serde_json::from_str(index.lines().next().unwrap()).unwrap();
    let expected = json!({"namespace": "a", "name": "web-0", "uid": "uid-of-pod", "serviceAccount": "web", "node": "n1"});
    assert_eq!(line["pod"], expected);
    assert_eq!(line["profile"], SIGNER);
}

/// A signer of another name, with files of its own.
fn renamed(signer: PodSignerSettings, name: &str) -> PodSignerSettings {
    PodSignerSettings { name: name.parse().unwrap(), ..signer }
}

fn with_signers(cluster: &FakeCluster, signers: Vec<PodSignerSettings>) -> ControllerContext {
    let mut context = context(cluster, signers[0].clone());
    let settings = ControllerSettings::clone(&context.settings);
    context.settings = Arc::new(ControllerSettings { pod_signers: signers, ..settings });
    context
}

/// One signer has more requests than there are workers, and another process has its index locked.
#[tokio::test(start_paused = true)]
async fn an_index_that_is_locked_stops_no_other_signer() {
    const OTHER: &str = "example.com/other";
    let (bad, good, cluster) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster());
    let signers = vec![signer_with_crl(&bad), renamed(signer_with_crl(&good), OTHER)];
    let mut both = pod();
    both["spec"]["volumes"][1]["projected"]["sources"]
        .as_array_mut()
        .unwrap()
        .push(json!({"podCertificate": {"signerName": OTHER}}));
    cluster.put(POD, both);
    serve(&cluster, V1);
    let index = std::fs::File::create(bad.path().join("pods.index.jsonl")).unwrap();
    index.lock().unwrap();
    let context = with_signers(&cluster, signers);
    for number in 0..10 {
        cluster.put(&path(V1, &format!("bad-{number}")), pod_request());
    }
    let adding = async {
        sleep(SECONDS(1)).await;
        let mut request = pod_request();
        request["spec"]["signerName"] = json!(OTHER);
        cluster.put(&path(V1, "good"), request);
        sleep(SECONDS(8)).await;
        assert_eq!(listed(good.path()), Some(0), "the CRL of the other signer");
        // The pause after the failure has not ended.
        drop(index);
    };
    tokio::join!(run_for(&context, SECONDS(10)), adding);
    assert_eq!(condition(&cluster, &path(V1, "good")), "Issued Issued");
    assert_eq!(condition(&cluster, &path(V1, "bad-0")), " ");
    assert_eq!(std::fs::read_to_string(good.path().join("pods.index.jsonl")).unwrap().lines().count(), 1);
}

/// An index that cannot be read at the start is read later, and its pods are compared with the list then.
#[tokio::test(start_paused = true)]
async fn an_index_that_cannot_be_read_at_first_stops_no_other_crl_and_is_read_later() {
    const OTHER: &str = "example.com/other";
    let (bad, good, cluster) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster());
    let signers = vec![signer_with_crl(&bad), renamed(signer_with_crl(&good), OTHER)];
    issue(&cluster, &signers[0]).await;
    let (index, away) = (bad.path().join("pods.index.jsonl"), bad.path().join("away"));
    std::fs::rename(&index, &away).unwrap();
    std::fs::create_dir(&index).unwrap();
    cluster.remove(POD);
    let context = with_signers(&cluster, signers);
    let mending = async {
        sleep(SECONDS(3)).await;
        assert_eq!(listed(good.path()), Some(0));
        std::fs::remove_dir(&index).unwrap();
        std::fs::rename(&away, &index).unwrap();
    };
    tokio::join!(run_for(&context, SECONDS(15)), mending);
    assert_eq!(listed(bad.path()), Some(1));
}

/// The certificate log only grows: what cannot be recorded in the index must not be added to it again and again.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_cannot_be_recorded_is_not_logged() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    serve(&cluster, V1);
    for number in 0..10 {
        cluster.put(&path(V1, &format!("req-{number}")), pod_request());
    }
    let index = directory.path().join("pods.index.jsonl");
    std::fs::create_dir(&index).unwrap();
    let log = directory.path().join("log");
    portcullis_tlog::certificate_log::create(&log, "example.com/log").unwrap();
    let opened = Arc::new(portcullis_tlog::CertificateLog::open(&log).unwrap());
    let mut context = context(&cluster, signer);
    let settings = ControllerSettings::clone(&context.settings);
    let policy = crate::controllers::signing_log::LogFailurePolicy::Fail;
    let logging = Some(crate::controllers::settings::SigningLog::new(Arc::clone(&opened), policy));
    context.settings = Arc::new(ControllerSettings { log: logging, ..settings });
    run_for(&context, SECONDS(3)).await;
    let logged = || {
        let (mut entries, directory) = (0, portcullis_tlog::LogDirectory::new(&log));
        portcullis_tlog::verify::verified(&directory, opened.verifier(), |_, _| {
            entries += 1;
            Ok(())
        })
        .unwrap();
        entries
    };
    assert_eq!(logged(), 0);
    // The other way round: a log that cannot be written adds one attempt after each pause to the index.
    std::fs::remove_dir(&index).unwrap();
    std::fs::rename(log.join("tile"), log.join("gone")).ok();
    std::fs::write(log.join("tile"), "no directory").unwrap();
    run_for(&context, SECONDS(3)).await;
    let lines = std::fs::read_to_string(&index).unwrap().lines().count();
    assert!((1..=5).contains(&lines), "{lines} lines");
}

/// The pods of one namespace have half of the index.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_fills_the_index_gets_no_more_and_the_others_do() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    issue(&cluster, &signer).await;
    let index = directory.path().join("pods.index.jsonl");
    let own = std::fs::read_to_string(&index).unwrap();
    let mut large: Value = serde_json::from_str(&own).unwrap();
    large["pod"]["namespace"] = json!("flood");
    large["subject"] = json!("x".repeat(1 << 20));
    std::fs::write(&index, own + &format!("{large}\n").repeat(32)).unwrap();
    let mut elsewhere = pod();
    elsewhere["metadata"]["namespace"] = json!("flood");
    cluster.put("/api/v1/namespaces/flood/pods/web-0", elsewhere);
    cluster.put("/api/v1/namespaces/flood/serviceaccounts/web", service_account());
    let context = context(&cluster, signer);
    let gauge = || context.metrics.controllers.record_size.with_label_values(&["c", SIGNER, "index"]).get();
    let measuring = async {
        sleep(SECONDS(1)).await;
        for namespace in ["flood", "a"] {
            let mut request = pod_request();
            request["metadata"]["namespace"] = json!(namespace);
            cluster.put(&format!("{V1}/namespaces/{namespace}/podcertificaterequests/next"), request);
        }
        sleep(SECONDS(8)).await;
        assert!((32 << 20..33 << 20).contains(&gauge()), "{}", gauge());
    };
    tokio::join!(run_for(&context, SECONDS(10)), measuring);
    assert_eq!(condition(&cluster, &path(V1, "next")), "Issued Issued");
    let refused = format!("{V1}/namespaces/flood/podcertificaterequests/next");
    assert_eq!(condition(&cluster, &refused), " ");
    // Its certificates have ended, or the operator has made room.
    let text = std::fs::read_to_string(&index).unwrap();
    let kept = text.lines().filter(|line| !line.contains("\"flood\"")).map(|line| line.to_owned() + "\n");
    std::fs::write(&index, kept.collect::<String>()).unwrap();
    run_for(&context, SECONDS(10)).await;
    assert_eq!(condition(&cluster, &refused), "Issued Issued");
}

/// The CA has a new key, and its former certificate comes later.
#[tokio::test(start_paused = true)]
async fn the_former_certificate_of_a_new_key_is_found_while_the_controller_runs() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let former = signer_with_crl(&directory);
    issue(&cluster, &former).await;
    let context = context(&cluster, signer_with_crl(&directory));
    let replacing = async {
        sleep(SECONDS(60)).await;
        let pem = portcullis_go::pem::encode_pem("CERTIFICATE", &former.authority.certificate().der);
        std::fs::write(directory.path().join("pods.bundle.crt"), pem).unwrap();
        sleep(SECONDS(60)).await;
        assert_eq!(listed(directory.path()), Some(0));
        cluster.remove(POD);
    };
    tokio::join!(run_for(&context, SECONDS(180)), replacing);
    assert_eq!(listed(directory.path()), Some(1));
}

/// 300 pods with certificates, of which the cluster has none: as with the kubeconfig of another cluster. A read that fails after the
/// release does not hold the rest back again.
#[tokio::test(start_paused = true)]
async fn most_pods_missing_at_once_are_held_back_until_the_operator_releases_them() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    issue(&cluster, &signer).await;
    let index = directory.path().join("pods.index.jsonl");
    let line: Value =
        serde_json::from_str(std::fs::read_to_string(&index).unwrap().lines().next().unwrap()).unwrap();
    let many: Vec<String> = (0..300)
        .map(|number| {
            let mut line = line.clone();
            line["pod"]["uid"] = json!(format!("uid-{number}"));
            line["sha256"] = json!(format!("{number:064x}"));
            line["serial"] = json!(format!("{:032x}", number + 1));
            line.to_string()
        })
        .collect();
    std::fs::write(&index, many.join("\n") + "\n").unwrap();
    let held = directory.path().join("pods.held");
    let mut context = context(&cluster, signer);
    let (client, reads) = (context.client.clone(), Arc::new(AtomicUsize::new(0)));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, reads) = (client.clone(), Arc::clone(&reads));
        async move {
            if request.uri().path() == POD && reads.fetch_add(1, Ordering::SeqCst) == 100 {
                return Ok(failure());
            }
            client.send(request).await
        }
    });
    context.client = kube::Client::new(service, "default");
    let releasing = async {
        sleep(SECONDS(4)).await;
        assert_eq!(listed(directory.path()), Some(0));
        let text = std::fs::read_to_string(&held).unwrap();
        assert_eq!(text, "300 of 300 pods with certificates are missing in cluster c\n");
        std::fs::remove_file(&held).unwrap();
    };
    tokio::join!(run_for(&context, SECONDS(60)), releasing);
    assert_eq!(listed(directory.path()), Some(300));
    assert!(!held.exists());
}

/// A pod that cannot be read delays no CRL, and the rest is not asked for.
#[tokio::test(start_paused = true)]
async fn reads_that_fail_end_with_the_first_and_delay_no_crl() {
    let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let signer = signer_with_crl(&directory);
    issue(&cluster, &signer).await;
    let index = directory.path().join("pods.index.jsonl");
    let line: Value =
        serde_json::from_str(std::fs::read_to_string(&index).unwrap().lines().next().unwrap()).unwrap();
    let many: Vec<String> = (0..90)
        .map(|number| {
            let mut line = line.clone();
            line["pod"]["uid"] = json!(format!("uid-{number}"));
            line["pod"]["name"] = json!(format!("gone-{number}"));
            line.to_string()
        })
        .collect();
    std::fs::write(&index, many.join("\n") + "\n").unwrap();
    let mut context = context(&cluster, signer);
    let asked = Arc::new(AtomicUsize::new(0));
    let (client, count) = (context.client.clone(), Arc::clone(&asked));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, count) = (client.clone(), Arc::clone(&count));
        async move {
            if request.uri().path().contains("/pods/gone-") {
                let first = count.fetch_add(1, Ordering::SeqCst) == 0;
                sleep(SECONDS(if first { 3 } else { 60 })).await;
                return Ok(failure());
            }
            client.send(request).await
        }
    });
    context.client = kube::Client::new(service, "default");
    let looking = async {
        sleep(SECONDS(2)).await;
        assert_eq!(listed(directory.path()), Some(0), "written while the pods are read");
    };
    tokio::join!(run_for(&context, SECONDS(6)), looking);
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 9, "{asked} reads");
}
