use std::sync::Arc;

use http::Method;
use serde_json::json;
use tokio::time::sleep;

use super::super::settings::ControllerSettings;
use super::super::testing::FakeCluster;
use super::plan::tests::{anchor, signer};
use super::*;

const V1: &str = "/apis/certificates.k8s.io/v1";
const V1BETA1: &str = "/apis/certificates.k8s.io/v1beta1";
const NAME: &str = "example.com:service:portcullis";

/// A cluster that serves the resource in these versions.
fn cluster(versions: &[&str]) -> FakeCluster {
    let cluster = FakeCluster::new();
    serve(&cluster, versions);
    cluster
}

fn serve(cluster: &FakeCluster, versions: &[&str]) {
    for version in [V1, V1BETA1] {
        let resource = json!({"name": PLURAL, "singularName": "", "namespaced": false, "kind": "ClusterTrustBundle",
            "verbs": ["list"]});
        let resources = if versions.contains(&version) { json!([resource]) } else { json!([]) };
        cluster.put(version, json!({"groupVersion": version, "resources": resources}));
    }
}

fn context(cluster: &FakeCluster, published: Vec<PublishedSigner>) -> ControllerContext {
    let mut context = cluster.context();
    let settings = ControllerSettings::clone(&context.settings);
    context.settings = Arc::new(ControllerSettings { published, ..settings });
    context
}

/// The certificates of a bundle.
fn anchors(cluster: &FakeCluster, path: &str) -> usize {
    let bundle = cluster.get(path).unwrap_or_default();
    bundle["spec"]["trustBundle"].as_str().unwrap_or_default().matches("BEGIN CERTIFICATE").count()
}

fn at(version: &str) -> String {
    format!("{version}/{PLURAL}/{NAME}")
}

async fn a_moment() {
    sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn the_best_version_that_is_served_is_written() {
    for (versions, expected) in [(&[V1, V1BETA1][..], V1), (&[V1BETA1], V1BETA1), (&[V1], V1)] {
        let cluster = cluster(versions);
        tokio::spawn(run(context(&cluster, vec![signer(&[&anchor("a", 2040)], 90)])));
        a_moment().await;
        assert_eq!(cluster.writes(), [(Method::POST, format!("{expected}/{PLURAL}"), 201)]);
        let bundle = cluster.get(&at(expected)).unwrap();
        assert_eq!(bundle["apiVersion"], expected.strip_prefix("/apis/").unwrap());
        assert_eq!(bundle["kind"], "ClusterTrustBundle");
        assert_eq!(bundle["spec"]["signerName"], "example.com/service");
        // Nothing changes: no write for a day.
        sleep(Duration::from_hours(24)).await;
        assert_eq!(cluster.writes(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn many_signers_are_published_as_soon_as_the_list_is_complete() {
    let cluster = cluster(&[V1]);
    let of = |number| PublishedSigner {
        name: format!("example.com/s{number}"),
        ..signer(&[&anchor("a", 2040)], 90)
    };
    tokio::spawn(run(context(&cluster, (0..12).map(of).collect())));
    a_moment().await;
    assert_eq!(cluster.writes().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_upgraded_is_noticed() {
    let cluster = cluster(&[]);
    tokio::spawn(run(context(&cluster, vec![signer(&[&anchor("a", 2040)], 90)])));
    sleep(Duration::from_mins(5)).await;
    assert_eq!(cluster.writes(), []);
    serve(&cluster, &[V1BETA1]);
    sleep(VERSION_RETRY_INTERVAL * 2).await;
    assert_eq!(anchors(&cluster, &at(V1BETA1)), 1);
    serve(&cluster, &[V1, V1BETA1]);
    sleep(VERSION_INTERVAL * 2).await;
    assert_eq!(anchors(&cluster, &at(V1)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bundle_that_is_changed_or_deleted_is_restored() {
    let cluster = cluster(&[V1]);
    tokio::spawn(run(context(&cluster, vec![signer(&[&anchor("a", 2040)], 90)])));
    a_moment().await;
    let mut bundle = cluster.get(&at(V1)).unwrap();
    bundle["spec"]["trustBundle"] = "".into();
    cluster.put(&at(V1), bundle);
    a_moment().await;
    assert_eq!(anchors(&cluster, &at(V1)), 1);
    cluster.remove(&at(V1));
    a_moment().await;
    assert_eq!(anchors(&cluster, &at(V1)), 1);
}

#[tokio::test(start_paused = true)]
async fn the_former_ca_is_removed_when_its_time_has_come() {
    let cluster = cluster(&[V1]);
    let (old, new) = (anchor("old", 2040), anchor("new", 2040));
    let first = tokio::spawn(run(context(&cluster, vec![signer(&[&old], 90)])));
    a_moment().await;
    first.abort();
    tokio::spawn(run(context(&cluster, vec![signer(&[&new], 90)])));
    a_moment().await;
    assert_eq!(anchors(&cluster, &at(V1)), 2);
    cluster.writes();
    sleep(Duration::from_hours(90 * 24)).await;
    assert_eq!((anchors(&cluster, &at(V1)), cluster.writes()), (2, vec![]));
    sleep(Duration::from_hours(2)).await;
    assert_eq!(anchors(&cluster, &at(V1)), 1);
    assert_eq!(cluster.writes(), [(Method::PUT, at(V1), 200)]);
}

#[tokio::test(start_paused = true)]
async fn only_own_bundles_of_signers_that_are_gone_are_deleted() {
    let cluster = cluster(&[V1]);
    let first = tokio::spawn(run(context(&cluster, vec![signer(&[&anchor("old", 2040)], 90)])));
    a_moment().await;
    first.abort();
    let mut foreign = cluster.get(&at(V1)).unwrap();
    foreign["spec"]["signerName"] = "example.com/other".into();
    foreign["metadata"] = json!({"labels": {"app.kubernetes.io/managed-by": "portcullis"},
        "annotations": {"portcullis.dev/publisher": "other/lease", "portcullis.dev/trust-anchors": "{}"}});
    let others = format!("{V1}/{PLURAL}/example.com:other:portcullis");
    cluster.put(&others, foreign.clone());
    tokio::spawn(run(context(&cluster, vec![])));
    sleep(Duration::from_hours(89 * 24)).await;
    assert_eq!(anchors(&cluster, &at(V1)), 1);
    sleep(Duration::from_hours(3 * 24)).await;
    assert_eq!(cluster.get(&at(V1)), None);
    assert_eq!(cluster.get(&others).unwrap()["spec"], foreign["spec"]);
}

#[tokio::test(start_paused = true)]
async fn a_bundle_without_the_label_is_not_overwritten() {
    let cluster = cluster(&[V1]);
    let foreign = json!({"spec": {"signerName": "example.com/service", "trustBundle": "theirs"}});
    cluster.put(&at(V1), foreign.clone());
    // The fake API server ignores the label selector; a real one does not show the object.
    let context = context(&cluster, vec![signer(&[&anchor("a", 2040)], 90)]);
    let lines = crate::controllers::csr::testing::CapturedLog::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(log);
    tokio::spawn(run(context));
    sleep(Duration::from_hours(1)).await;
    assert_eq!(cluster.get(&at(V1)).unwrap()["spec"], foreign["spec"]);
    assert_eq!(cluster.writes(), []);
    let text = lines.text();
    let expected =
        "cannot publish the trust bundle, will retry: the object is not this gateway's, and is not changed";
    assert_eq!(text.matches(expected).count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_retried_and_logged_once_with_the_missing_right() {
    let status = |message: &str| Status { code: 403, message: message.to_owned(), ..Status::default() };
    let attest = "clustertrustbundles.certificates.k8s.io \"x\" is forbidden: user not permitted to attest for signerName \"example.com/service\"";
    let rule = missing_right(&status(attest));
    assert!(
        rule.ends_with("resources: [signers], resourceNames: [example.com/service], verbs: [attest]}"),
        "{rule}"
    );
    let rule = missing_right(&status("User \"u\" cannot create resource"));
    assert!(
        rule.contains("resources: [clustertrustbundles], verbs: [list, watch, create, update, delete]"),
        "{rule}"
    );
    let cluster = cluster(&[V1]);
    for _ in 0..3 {
        cluster.refuse(403);
    }
    tokio::spawn(run(context(&cluster, vec![signer(&[&anchor("a", 2040)], 90)])));
    sleep(Duration::from_mins(1)).await;
    let codes: Vec<u16> = cluster.writes().iter().map(|write| write.2).collect();
    assert_eq!(codes, [403, 403, 403, 201]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_list_is_complete() {
    let cluster = cluster(&[V1]);
    let collection = format!("{V1}/{PLURAL}");
    cluster.hold(&collection, true);
    tokio::spawn(run(context(&cluster, vec![signer(&[&anchor("a", 2040)], 90)])));
    sleep(Duration::from_mins(5)).await;
    assert_eq!(cluster.writes(), []);
    cluster.hold(&collection, false);
    sleep(Duration::from_mins(20)).await;
    assert_eq!(anchors(&cluster, &at(V1)), 1);
}
