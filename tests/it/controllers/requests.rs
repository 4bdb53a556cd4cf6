//! Certificate signing requests, from creation to the issued certificate.

use std::sync::atomic::Ordering;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use testkit::ambiguous_pem::ambiguous;
use testkit::client::Client;
use testkit::pki::Issued;
use testkit::until;

use super::*;

/// The issued certificate with the key of its request.
fn identity(csr: &TestCsr, pem: &str) -> Issued {
    let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
    Issued { chain, key: csr.key.pkcs8(), private: Arc::clone(&csr.key) }
}

#[tokio::test]
async fn a_kubelet_gets_a_certificate_that_authenticates_it_as_its_node() {
    let setup = ControllerGateway::new().await;
    let gateway = setup.gateway("csrsigning,csrapproving", &[]);
    let csr = TestCsr::node("one");
    setup.cluster.request("one", &csr.spec, &json!({}));
    let status = setup.cluster.until_status("one", is_issued).await;
    let approval = condition(&status, "Approved").unwrap();
    assert_eq!(approval["reason"], "AutoApproved");
    assert_eq!(
        approval["message"],
        "Auto approving self kubelet client certificate after SubjectAccessReview."
    );
    // The certificate is accepted at once.
    let mut client = Client::connect(&gateway, true, Some(&identity(&csr, &certificate(&status)))).await;
    while setup.backend.take().is_some() {}
    assert_eq!(client.code(&[]).await, 200);
    let forwarded = std::iter::from_fn(|| setup.backend.take())
        .find(|seen| seen.target == "/api")
        .expect("the request was forwarded");
    assert_eq!(forwarded.all("x-remote-user"), ["system:node:one"]);
    assert_eq!(forwarded.all("x-remote-group"), ["system:nodes", "system:authenticated"]);
    gateway
        .until_counted(
            "portcullis_certificates_signed_total{cluster=\"backend\",signer=\"kubernetes.io/kube-apiserver-client-kubelet\"} 1",
        )
        .await;
}

#[tokio::test]
async fn a_request_that_breaks_a_rule_fails_and_other_signers_requests_are_ignored() {
    let setup = ControllerGateway::new().await;
    let gateway = setup.gateway("csrsigning", &[]);
    let kubelet = "kubernetes.io/kube-apiserver-client-kubelet";
    let denied =
        json!({"conditions": [{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]});
    setup.cluster.request("pending", &TestCsr::node("pending").spec, &json!({}));
    setup.cluster.request("denied", &TestCsr::node("denied").spec, &denied);
    setup.cluster.request("other", &TestCsr::of("example.com/other", "x", &[], &[]).spec, &approved());
    let csr = TestCsr::of(kubelet, "system:node:bad", &["system:masters"], &[]);
    setup.cluster.request("bad", &csr.spec, &approved());
    let status = setup.cluster.until_status("bad", |status| condition(status, "Failed").is_some()).await;
    let failed = condition(&status, "Failed").unwrap();
    assert_eq!(failed["reason"], "SignerValidationFailure");
    assert_eq!(failed["message"], "subject organization is not system:nodes");
    assert_eq!(failed["status"], "True");
    assert!(failed["lastUpdateTime"].is_string(), "{failed}");
    // Requests are processed in order: once a later one is signed, the earlier ones have been processed.
    setup.cluster.request("good", &TestCsr::node("good").spec, &approved());
    setup.cluster.until_status("good", is_issued).await;
    for name in ["pending", "denied", "other", "bad"] {
        assert!(!is_issued(&setup.cluster.status(name)), "{name}");
    }
    assert_eq!(condition(&setup.cluster.status("denied"), "Failed"), None);
    let refused =
        format!("portcullis_certificates_refused_total{{cluster=\"backend\",signer=\"{kubelet}\"}} 1");
    gateway.until_counted(&refused).await;
}

/// If the approver and the signer parse a request differently, an attacker gets a certificate that was never approved.
/// In each of these texts the request that Go parses, and people approve, is harmless.
#[tokio::test]
async fn an_ambiguous_request_is_never_approved_or_signed() {
    let setup = ControllerGateway::new().await;
    let gateway = setup.gateway("csrsigning,csrapproving", &[]);
    let kubelet = "kubernetes.io/kube-apiserver-client-kubelet";
    let client = "kubernetes.io/kube-apiserver-client";
    let text = |csr: &TestCsr| {
        let pem = BASE64_STANDARD.decode(csr.spec["request"].as_str().unwrap()).unwrap();
        String::from_utf8(pem).unwrap()
    };
    let harmful = text(&TestCsr::of(client, "attacker", &["system:masters"], &[]));
    let victim = text(&TestCsr::of(kubelet, "system:node:victim", &["system:nodes"], &[]));
    let mut texts = Vec::new();
    let mut write = |spec: &Value, request: &str, status: &Value| {
        let name = format!("ambiguous-{}", texts.len());
        let mut spec = spec.clone();
        spec["request"] = BASE64_STANDARD.encode(request).into();
        setup.cluster.request(&name, &spec, status);
        texts.push(name);
    };
    // Approved by a person, or by an approver that parses with Go.
    let harmless = TestCsr::of(client, "harmless", &["dev"], &[]);
    let own = TestCsr::node("own");
    for (_, request) in ambiguous(&text(&harmless), &harmful) {
        write(&harmless.spec, &request, &approved());
    }
    for (_, request) in ambiguous(&text(&own), &victim) {
        write(&own.spec, &request, &approved());
    }
    for name in &texts {
        let status = setup
            .cluster
            .until_status(name, |status| condition(status, "Failed").is_some() || is_issued(status));
        let status = status.await;
        let failed = condition(&status, "Failed").unwrap_or_else(|| panic!("{name} is signed: {status}"));
        assert_eq!(failed["reason"], "SignerValidationFailure");
        assert_eq!(
            failed["message"],
            "the certificate request is not one PEM block alone: remove its headers and all text before and after it"
        );
    }
    // Pending: our approver ignores them, and approves the kubelet's later request.
    let mut pending = Vec::new();
    for (place, (_, request)) in ambiguous(&text(&own), &victim).into_iter().enumerate() {
        let mut spec = own.spec.clone();
        spec["request"] = BASE64_STANDARD.encode(request).into();
        pending.push(format!("pending-{place}"));
        setup.cluster.request(&pending[place], &spec, &json!({}));
    }
    setup.cluster.request("good", &TestCsr::node("good").spec, &json!({}));
    setup.cluster.until_status("good", is_issued).await;
    for name in &pending {
        assert_eq!(condition(&setup.cluster.status(name), "Approved"), None, "{name}");
    }
    assert_eq!(setup.cluster.certificates().len(), 1, "only the kubelet has a certificate");
    drop(gateway);
}

#[tokio::test]
async fn a_conflict_is_counted_and_retried() {
    let setup = ControllerGateway::new().await;
    let gateway = setup.gateway("csrsigning,csrapproving", &[]);
    for name in ["signed", "approved"] {
        setup.cluster.conflict_once(name);
    }
    setup.cluster.request("signed", &TestCsr::node("signed").spec, &approved());
    setup.cluster.until_status("signed", is_issued).await;
    gateway
        .until_counted("portcullis_status_conflicts_total{cluster=\"backend\",controller=\"csrsigning\"} 1")
        .await;
    setup.cluster.request("approved", &TestCsr::node("approved").spec, &json!({}));
    setup.cluster.until_status("approved", is_issued).await;
    gateway
        .until_counted("portcullis_status_conflicts_total{cluster=\"backend\",controller=\"csrapproving\"} 1")
        .await;
    assert_eq!(setup.cluster.refused(), 2);
    assert_eq!(setup.cluster.certificates().len(), 2, "each has one certificate");
    assert!(gateway.count("workqueue_retries_total{cluster=\"backend\",name=\"csrsigning\"}").await >= 1);
}

#[tokio::test]
async fn a_request_stays_pending_until_its_user_is_authorized() {
    let setup = ControllerGateway::new().await;
    setup.cluster.allows.store(false, Ordering::SeqCst);
    let gateway = setup.gateway("csrapproving", &[]);
    let mut csr = TestCsr::node("one");
    csr.spec["username"] = json!("system:bootstrap:abcdef");
    setup.cluster.request("one", &csr.spec, &json!({}));
    let retries = "workqueue_retries_total{cluster=\"backend\",name=\"csrapproving\"}";
    gateway.until_counted(&format!("{retries} 2")).await;
    assert_eq!(condition(&setup.cluster.status("one"), "Denied"), None, "no request is ever denied");
    setup.cluster.allows.store(true, Ordering::SeqCst);
    let status = setup.cluster.until_status("one", |status| condition(status, "Approved").is_some()).await;
    assert_eq!(
        condition(&status, "Approved").unwrap()["message"],
        "Auto approving kubelet client certificate after SubjectAccessReview."
    );
}

#[tokio::test]
async fn the_cleaner_deletes_only_stale_requests() {
    let setup = ControllerGateway::new().await;
    // Both were created long ago; a request without conditions is pending.
    let spec = TestCsr::node("old").spec;
    setup.cluster.request("old", &spec, &json!({}));
    setup.cluster.request("new", &spec, &json!({"conditions": [{"type": "Looked", "status": "True"}]}));
    let _gateway = setup.gateway("csrcleaner", &[]);
    let path = format!("{}/old", testkit::fake_cluster::CSRS);
    until("the deletion of the old request", || setup.cluster.get(&path).is_none()).await;
    assert!(setup.cluster.get(&path.replace("old", "new")).is_some());
}

#[tokio::test]
async fn a_custom_signer_follows_its_profile() {
    let setup = ControllerGateway::new().await;
    setup.pki.write("own.crt", setup.pki.servers.cert_pem());
    setup.pki.write("own.key", setup.pki.servers.key_pem());
    setup.pki.write(
        "profiles.yaml",
        "apiVersion: portcullis.dev/v1alpha1\nkind: SignerProfiles\nsigners:\n\
         - signerName: example.com/service\n  certFile: own.crt\n  keyFile: own.key\n  commonNames: ['service-*']\n  \
         dnsNames: ['*.svc.example.com']\n  allowedUsages: [digital signature, client auth]\n  maxDuration: 1h\n",
    );
    let _gateway = setup.gateway("csrsigning", &["--signer-profiles=DIR/profiles.yaml"]);
    let good = TestCsr::of("example.com/service", "service-a", &[], &["a.svc.example.com"]);
    let bad = TestCsr::of("example.com/service", "service-a", &["system:masters"], &["a.svc.example.com"]);
    setup.cluster.request("good", &good.spec, &approved());
    setup.cluster.request("bad", &bad.spec, &approved());
    let status = setup.cluster.until_status("good", is_issued).await;
    let pem = CertificateDer::from_pem_slice(certificate(&status).as_bytes()).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&pem).unwrap();
    assert_eq!(parsed.issuer().iter_common_name().next().unwrap().as_str().unwrap(), "servers");
    let life = parsed.validity().not_after.timestamp() - parsed.validity().not_before.timestamp();
    assert_eq!(life, 3600 + 300, "an hour, and five minutes of backdating");
    setup.cluster.until_status("bad", |status| condition(status, "Failed").is_some()).await;
    assert_eq!(setup.cluster.certificates().len(), 1);
}

#[tokio::test]
async fn a_replaced_authority_signs_after_a_reload() {
    let setup = ControllerGateway::new().await;
    let gateway = setup.gateway("csrsigning", &[]);
    let issuer = |status: &Value| {
        let pem = CertificateDer::from_pem_slice(certificate(status).as_bytes()).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&pem).unwrap();
        parsed.issuer().iter_common_name().next().unwrap().as_str().unwrap().to_owned()
    };
    setup.cluster.request("before", &TestCsr::node("before").spec, &approved());
    assert_eq!(issuer(&setup.cluster.until_status("before", is_issued).await), "clients");
    // A certificate without its new key is refused; the old pair stays in use.
    let next = testkit::pki::Ca::new("next");
    let refused = gateway.count("portcullis_config_reloads_total{result=\"failure\"}").await;
    replace(&setup.path().join("ca.crt"), next.cert_pem());
    gateway.server().reload();
    gateway
        .until_counted(&format!("portcullis_config_reloads_total{{result=\"failure\"}} {}", refused + 1))
        .await;
    setup.cluster.request("meanwhile", &TestCsr::node("meanwhile").spec, &approved());
    assert_eq!(issuer(&setup.cluster.until_status("meanwhile", is_issued).await), "clients");
    let (generation, holder) = (gateway.generation().await, setup.cluster.holder(LEASE));
    replace(&setup.path().join("ca.key"), next.key_pem());
    gateway.server().reload();
    gateway.reloaded(generation).await;
    // The controllers restart asynchronously after a reload.
    until("the new controllers", || setup.cluster.holder(LEASE) != holder).await;
    until("the next lease", || setup.cluster.holder(LEASE).is_some_and(|holder| !holder.is_empty())).await;
    setup.cluster.request("after", &TestCsr::node("after").spec, &approved());
    assert_eq!(issuer(&setup.cluster.until_status("after", is_issued).await), "next");
}
