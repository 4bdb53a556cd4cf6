//! Decisions about requests against a reference check, and the controller against an API server that stores objects.

mod decisions;
mod revocation;
mod running;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use portcullis_cel::{Expression, ResultType};
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::pod::{PodCertificateProfile, PodKeyType};
use portcullis_pki::issuance::request;
use portcullis_pki::issuance::signer::{KeyKind, PemKey, Signer};
use portcullis_pki::issuance::subject::Subject;
use portcullis_pki::issuance::usage::CertificateUsage;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use super::rules::{ENVIRONMENT, PodRule, PodSignerRules};
use crate::controllers::settings::PodSignerSettings;

/// The name of the signer.
const SIGNER: &str = "example.com/workload";
/// The annotation that it knows.
const ANNOTATION: &str = "example.com/purpose";

fn expression(text: &str, result: ResultType) -> Expression {
    Expression::compile(text, ENVIRONMENT, result).unwrap()
}

fn authority(end: i32, signer: impl FnOnce(PemKey) -> Box<dyn Signer>) -> Arc<CertificateAuthority> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(end, 1, 1));
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let key = PemKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
    Arc::new(CertificateAuthority::new(certificate.as_bytes(), signer(key)).unwrap())
}

/// A signer of SPIFFE certificates for pods with the label `app`, with ECDSA or Ed25519 keys.
fn signer() -> PodSignerSettings {
    signer_by(authority(2031, |key| Box::new(key)))
}

fn signer_by(authority: Arc<CertificateAuthority>) -> PodSignerSettings {
    let rule = PodRule {
        expression: expression("'app' in pod.metadata.labels", ResultType::Bool),
        message: Some("label the pod with app".to_owned()),
    };
    let uri =
        "['spiffe://example.com/ns/' + request.metadata.namespace + '/sa/' + serviceAccount.metadata.name]";
    PodSignerSettings {
        name: SIGNER.parse().unwrap(),
        profile: PodCertificateProfile {
            usages: [CertificateUsage::DigitalSignature, CertificateUsage::ClientAuth].into(),
            key_types: [PodKeyType::EcdsaP256, PodKeyType::Ed25519].into(),
            max_duration: Duration::from_hours(24),
            identity: None,
        },
        rules: PodSignerRules {
            user_annotations: BTreeSet::from([ANNOTATION.to_owned()]),
            rules: vec![rule],
            dns_names: Some(expression("[pod.metadata.labels.app + '.a.svc']", ResultType::DynamicStrings)),
            uris: Some(expression(uri, ResultType::DynamicStrings)),
            ..PodSignerRules::default()
        },
        authority,
        digest: Vec::new(),
        anchors: Vec::new(),
        records: None,
    }
}

/// A stub request with a new key, as kubelets write it.
fn stub(kind: KeyKind) -> String {
    let key = PemKey::generate(kind).unwrap();
    let request = request::build(&Subject::default(), &AltNames::default(), &key).unwrap();
    BASE64_STANDARD.encode(request.der())
}

/// A request for the pod of [`pod`].
fn pod_request() -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "PodCertificateRequest",
        "metadata": {"name": "req-1", "namespace": "a", "uid": "uid-of-request", "resourceVersion": "7"},
        "spec": {
            "signerName": SIGNER,
            "podName": "web-0", "podUID": "uid-of-pod",
            "serviceAccountName": "web", "serviceAccountUID": "uid-of-account",
            "nodeName": "n1", "nodeUID": "uid-of-node",
            "maxExpirationSeconds": 86400,
            "stubPKCS10Request": stub(KeyKind::EcdsaP256),
        },
    })
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "a", "uid": "uid-of-pod", "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n1", "serviceAccountName": "web",
            "volumes": [
                {"name": "a", "emptyDir": {}},
                {"name": "b", "projected": {"sources": [{"configMap": {}}, {"podCertificate": {"signerName": SIGNER}}]}},
            ],
        },
        "status": {"phase": "Pending"},
    })
}

fn service_account() -> Value {
    json!({"metadata": {"name": "web", "namespace": "a", "uid": "uid-of-account"}})
}

fn node() -> Value {
    json!({"metadata": {"name": "n1", "uid": "uid-of-node"}})
}
