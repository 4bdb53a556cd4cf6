//! The certificates of deleted pods are in the CRL, whether the controller sees the deletion, starts after it, or cannot write
//! at first.

use std::path::Path;
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

/// Issues a certificate to the pod.
async fn issue(cluster: &FakeCluster, signer: &PodSignerSettings) {
    serve(cluster, V1);
    cluster.put(&path(V1, "req-1"), pod_request());
    run_for(&context(cluster, signer.clone()), SECONDS(3)).await;
    assert_eq!(condition(cluster, &path(V1, "req-1")), "Issued Issued");
}

#[tokio::test]
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

#[tokio::test]
async fn a_restart_finds_the_pods_that_were_deleted_meanwhile_and_no_others() {
    for (name, change, expected) in [
        ("as before", (|_| {}) as fn(&FakeCluster), 0),
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
    ] {
        let (directory, cluster) = (tempfile::tempdir().unwrap(), cluster());
        let signer = signer_with_crl(&directory);
        issue(&cluster, &signer).await;
        change(&cluster);
        run_for(&context(&cluster, signer), SECONDS(4)).await;
        assert_eq!(listed(directory.path()), Some(expected), "{name}");
    }
}

/// A list may be older than the pod.
#[tokio::test]
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

#[tokio::test]
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
