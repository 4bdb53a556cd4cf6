//! Decisions about single requests: a table of refusals, and random requests, pods and rules against a reference check.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis_cel::ResultType;
use portcullis_pki::issuance::pod::{Jitter, PodIdentityMode};
use portcullis_pki::issuance::signer::KeyKind;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::pod_identity::PodIdentity;
use proptest::prelude::*;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use x509_parser::prelude::FromDer as _;

use super::super::decision::{PodCertificate, PodDecision, decide};
use super::super::objects::{ReadObject, RequestObjects};
use super::super::request::PodRequest;
use super::super::rules::PodRule;
use super::{
    ANNOTATION, authority, expression, node, pod, pod_request, service_account, signer, signer_by, stub,
};
use crate::controllers::settings::PodSignerSettings;

/// 2030-01-01T00:00:00Z, when the authority is valid.
const NOW: Duration = Duration::from_hours(525_960);

/// A request, its objects and its signer.
#[derive(Clone)]
struct Situation {
    namespace: Option<Value>,
    request: Value,
    pod: Option<Value>,
    service_account: Option<Value>,
    node: Option<Value>,
    signer: PodSignerSettings,
}

impl Situation {
    fn new() -> Self {
        Self {
            namespace: None,
            request: pod_request(),
            pod: Some(pod()),
            service_account: Some(service_account()),
            node: Some(node()),
            signer: signer(),
        }
    }

    fn decision(&self) -> PodDecision {
        let read = |object: &Option<Value>| object.clone().map_or(ReadObject::Gone, ReadObject::Found);
        let objects = RequestObjects {
            pod: read(&self.pod),
            service_account: read(&self.service_account),
            node: read(&self.node),
            namespace: self.namespace.clone().map(ReadObject::Found),
        };
        let request = PodRequest::parse(self.request.clone()).unwrap();
        decide(&request, &objects, &self.signer, NOW, [Jitter(0); 2])
    }

    /// `issued`, or the condition, its reason and its message, or `later: …`.
    fn outcome(&self) -> String {
        match self.decision() {
            PodDecision::Issued(_) => "issued".to_owned(),
            PodDecision::Later(problem) => format!("later: {problem}"),
            PodDecision::Refused(refusal) => {
                format!("{} {}: {}", refusal.kind.name(), refusal.reason, refusal.message)
            }
        }
    }

    fn issued(&self) -> PodCertificate {
        match self.decision() {
            PodDecision::Issued(certificate) => *certificate,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_certificate_names_what_the_templates_say_and_lasts_as_long_as_the_request_permits() {
    let mut situation = Situation::new();
    for (seconds, hours) in [(3600, 1), (7200, 2), (86_400, 24), (7_862_400, 24)] {
        situation.request["spec"]["maxExpirationSeconds"] = json!(seconds);
        let PodCertificate { issued, validity, chain, .. } = situation.issued();
        let lifetime = validity.not_after.checked_sub(validity.not_before);
        assert_eq!(lifetime, Some(Duration::from_hours(hours)), "{seconds}");
        assert_eq!(chain, issued.pem(), "a root is not in the chain");
        let (_, read) = x509_parser::certificate::X509Certificate::from_der(issued.der()).unwrap();
        let names = &read.subject_alternative_name().unwrap().unwrap().value.general_names;
        assert_eq!(
            format!("{names:?}"),
            "[DNSName(\"web.a.svc\"), URI(\"spiffe://example.com/ns/a/sa/web\")]"
        );
        assert!(read.subject().iter().next().is_none());
        let parsed = Certificate::parse(CertificateDer::from(issued.der().to_vec()));
        assert!(parsed.is_ok());
    }
}

/// A signer of certificates that are those of the service account.
fn with_identity() -> Situation {
    let mut situation = Situation::new();
    situation.namespace = Some(json!({"metadata": {"name": "a", "uid": "uid-of-namespace"}}));
    situation.signer.profile.identity = Some(PodIdentityMode::Critical);
    (situation.signer.rules.dns_names, situation.signer.rules.uris) = (None, None);
    situation
}

type Edit = fn(&mut Situation);

#[test]
fn the_identity_of_a_pod_is_that_of_the_objects_and_not_of_the_request() {
    let issued = with_identity().issued().issued;
    let read = Certificate::parse(CertificateDer::from(issued.der().to_vec())).unwrap();
    let PodIdentity {
        namespace,
        namespace_uid,
        service_account_name,
        service_account_uid,
        pod_name,
        pod_uid,
        node_name,
        node_uid,
    } = PodIdentity::of_certificate(&read).unwrap();
    let found = [namespace, namespace_uid, service_account_name, service_account_uid];
    assert_eq!(found, ["a", "uid-of-namespace", "web", "uid-of-account"]);
    assert_eq!([pod_name, pod_uid, node_name, node_uid], ["web-0", "uid-of-pod", "n1", "uid-of-node"]);
    assert_eq!(issued.subject().common_name, "system:serviceaccount:a:web");
    assert_eq!(issued.subject().organization, ["system:serviceaccounts", "system:serviceaccounts:a"]);
    let cases: &[(&str, Edit, &str)] = &[
        ("no namespace", |all| all.namespace = None, "Failed InvalidName: the namespace was not read"),
        (
            "another namespace",
            |all| all.namespace.as_mut().unwrap()["metadata"]["name"] = json!("b"),
            "Failed InvalidName: the objects are not in the namespace of the request",
        ),
        (
            "a pod of another namespace",
            |all| all.pod.as_mut().unwrap()["metadata"]["namespace"] = json!("b"),
            "Failed InvalidName: the objects are not in the namespace of the request",
        ),
        (
            "no UID of the namespace",
            |all| all.namespace.as_mut().unwrap()["metadata"]["uid"] = json!(""),
            "Failed InvalidName: the PodIdentity extension has an invalid namespaceUID",
        ),
        (
            "another UID of the node in the request",
            |all| all.request["spec"]["nodeUID"] = json!("other"),
            "Denied NodeNotFound: node n1 has UID",
        ),
    ];
    for (name, edit, expected) in cases {
        let mut situation = with_identity();
        edit(&mut situation);
        let outcome = situation.outcome();
        assert!(outcome.starts_with(expected), "{name}: {outcome}");
    }
}

/// The rules of `certs/workload.yaml`, which docs/pod-certificates.md shows.
#[test]
fn the_rules_of_the_sample_permit_what_they_say() {
    use portcullis_cel::{Bindings, Value as CelValue};
    let sample: Value = serde_saphyr::from_str(include_str!("../../../../certs/workload.yaml")).unwrap();
    let rules = sample["signers"][0]["rules"].as_array().unwrap();
    let rules: Vec<_> =
        rules.iter().map(|rule| expression(rule["expression"].as_str().unwrap(), ResultType::Bool)).collect();
    let verdicts = |labels: &Value| {
        let bindings = Bindings::default()
            .with("request", &pod_request())
            .with("pod", &pod())
            .with("namespaceObject", &json!({"metadata": {"name": "a", "labels": labels}}));
        rules.iter().map(|rule| rule.evaluate(&bindings) == Ok(CelValue::Bool(true))).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&json!({"example.com/workload-certificates": "true"})), [true]);
    assert_eq!(verdicts(&Value::Null), [false]);
    assert_eq!(verdicts(&json!({"example.com/workload-certificates": "false"})), [false]);
}

#[test]
fn each_refusal_has_a_reason_and_says_what_to_do() {
    let cases: &[(&str, Edit, &str)] = &[
        ("nothing wrong", |_| {}, "issued"),
        (
            "a known annotation",
            |all| all.request["spec"]["unverifiedUserAnnotations"] = json!({ANNOTATION: "x"}),
            "issued",
        ),
        (
            "an Ed25519 key",
            |all| all.request["spec"]["stubPKCS10Request"] = json!(stub(KeyKind::Ed25519)),
            "issued",
        ),
        ("no pod", |all| all.pod = None, "Denied PodNotFound: pod a/web-0 does not exist"),
        (
            "a pod of the same name",
            |all| all.pod.as_mut().unwrap()["metadata"]["uid"] = json!("another"),
            "Denied PodNotFound: pod a/web-0 has UID \"another\", not \"uid-of-pod\": it was deleted and created again",
        ),
        (
            "a pod that was deleted a minute ago and more",
            |all| all.pod.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2029-12-31T23:58:59Z"),
            "Denied PodNotFound: pod a/web-0 has been deleted",
        ),
        (
            "a pod that ends within its grace period",
            |all| all.pod.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2029-12-31T23:59:00Z"),
            "issued",
        ),
        (
            "a pod that has ended",
            |all| all.pod.as_mut().unwrap()["status"]["phase"] = json!("Succeeded"),
            "Denied PodTerminated: pod a/web-0 has ended: its phase is Succeeded",
        ),
        (
            "a mirror pod",
            |all| {
                all.pod.as_mut().unwrap()["metadata"]["annotations"] =
                    json!({"kubernetes.io/config.mirror": "x"});
            },
            "Denied MirrorPod: pod a/web-0 is a mirror pod, which has no service account",
        ),
        (
            "a pod on another node",
            |all| all.pod.as_mut().unwrap()["spec"]["nodeName"] = json!("n2"),
            "Denied NodeMismatch: pod a/web-0 runs on node \"n2\", not on \"n1\"",
        ),
        (
            "a pod on no node",
            |all| drop(all.pod.as_mut().unwrap()["spec"].as_object_mut().unwrap().remove("nodeName")),
            "Denied NodeMismatch: pod a/web-0 is not assigned to a node",
        ),
        (
            "a pod of another service account",
            |all| all.pod.as_mut().unwrap()["spec"]["serviceAccountName"] = json!("other"),
            "Denied ServiceAccountMismatch: pod a/web-0 runs as service account \"other\", not as \"web\"",
        ),
        (
            "a pod with a certificate of another signer",
            |all| {
                all.pod.as_mut().unwrap()["spec"]["volumes"][1]["projected"]["sources"][1]["podCertificate"]
                    ["signerName"] = json!("example.com/other");
            },
            "Denied VolumeNotFound: pod a/web-0 has no volume with a certificate of the signer \"example.com/workload\"",
        ),
        (
            "a pod without volumes",
            |all| drop(all.pod.as_mut().unwrap()["spec"].as_object_mut().unwrap().remove("volumes")),
            "Denied VolumeNotFound: pod a/web-0 has no volume",
        ),
        (
            "a name that is not signed",
            |all| {
                all.signer.rules.uris =
                    Some(expression("['spiffe://example.com./a']", ResultType::DynamicStrings));
            },
            "Failed InvalidName: ",
        ),
        (
            "no service account",
            |all| all.service_account = None,
            "Denied ServiceAccountNotFound: service account a/web does not exist",
        ),
        (
            "a service account of the same name",
            |all| all.service_account.as_mut().unwrap()["metadata"]["uid"] = json!("another"),
            "Denied ServiceAccountNotFound: service account a/web has UID \"another\"",
        ),
        ("no node", |all| all.node = None, "Denied NodeNotFound: node n1 does not exist"),
        (
            "a node of the same name",
            |all| all.node.as_mut().unwrap()["metadata"]["uid"] = json!("another"),
            "Denied NodeNotFound: node n1 has UID \"another\"",
        ),
        (
            "an empty UID on both sides",
            |all| {
                all.request["spec"]["nodeUID"] = json!("");
                all.node.as_mut().unwrap()["metadata"]["uid"] = json!("");
            },
            "Denied NodeNotFound: node n1 has UID \"\"",
        ),
        (
            "a key of another type",
            |all| all.request["spec"]["stubPKCS10Request"] = json!(stub(KeyKind::EcdsaP384)),
            "Denied UnsupportedKeyType: keys of the type ECDSA P-384 are not accepted: this signer accepts ED25519, ECDSAP256",
        ),
        (
            "no key",
            |all| all.request["spec"]["stubPKCS10Request"] = Value::Null,
            "Failed InvalidRequest: the request has no public key",
        ),
        (
            "two keys",
            |all| all.request["spec"]["pkixPublicKey"] = json!("AA=="),
            "Failed InvalidRequest: the request has two public keys",
        ),
        (
            "a stub that does not parse",
            |all| all.request["spec"]["stubPKCS10Request"] = json!("AA=="),
            "Failed InvalidRequest: asn1",
        ),
        (
            "another annotation",
            |all| all.request["spec"]["unverifiedUserAnnotations"] = json!({"example.com/other": "x"}),
            "Denied InvalidUnverifiedUserAnnotations: the annotation \"example.com/other\" is not known: this signer \
             accepts example.com/purpose",
        ),
        (
            "a rule that is false",
            |all| all.pod.as_mut().unwrap()["metadata"]["labels"] = json!({}),
            "Denied NotPermitted: label the pod with app",
        ),
        (
            "a rule that fails",
            |all| drop(all.pod.as_mut().unwrap()["metadata"].as_object_mut().unwrap().remove("labels")),
            "Denied NotPermitted: rule 0 of the signer cannot be evaluated: no such key: labels: 'app' in pod.metadata.labels",
        ),
        (
            "a name that is not valid",
            |all| all.pod.as_mut().unwrap()["metadata"]["labels"]["app"] = json!("a_b"),
            "Failed InvalidName: DNS name \"a_b.a.svc\" is not allowed",
        ),
        (
            "a template that fails",
            |all| {
                all.signer.rules.uris =
                    Some(expression("[pod.metadata.labels.team]", ResultType::DynamicStrings));
            },
            "Failed InvalidName: uris cannot be evaluated: no such key: team",
        ),
        (
            "a template of another type",
            |all| all.signer.rules.uris = Some(expression("pod.metadata.name", ResultType::DynamicStrings)),
            "Failed InvalidName: uris is a string, not a list of strings",
        ),
        (
            "a template of a reserved name",
            |all| {
                all.signer.rules.common_name =
                    Some(expression("'system:' + pod.metadata.labels.app", ResultType::DynamicString));
            },
            "Failed InvalidName: common name \"system:web\" is not allowed: Kubernetes reserves names",
        ),
        (
            "an authority that has expired",
            |all| all.signer = signer_by(authority(2029, |key| Box::new(key))),
            "later: the signer has expired",
        ),
    ];
    let mut wrong = Vec::new();
    for (name, edit, expected) in cases {
        let mut situation = Situation::new();
        edit(&mut situation);
        let found = situation.outcome();
        if !found.starts_with(expected) {
            wrong.push(format!("{name}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_public_key_of_a_request_of_the_older_version_is_accepted() {
    use base64::Engine as _;
    use portcullis_pki::issuance::signer::{PemKey, Signer as _};
    let key = PemKey::generate(KeyKind::Ed25519).unwrap();
    let mut situation = Situation::new();
    let spec = situation.request["spec"].as_object_mut().unwrap();
    spec.insert("stubPKCS10Request".to_owned(), json!(""));
    spec.insert("pkixPublicKey".to_owned(), json!(base64::prelude::BASE64_STANDARD.encode(key.public_key())));
    let issued = situation.issued().issued;
    let (_, read) = x509_parser::certificate::X509Certificate::from_der(issued.der()).unwrap();
    assert_eq!(read.public_key().raw, key.public_key());
}

/// What is varied about a request.
#[derive(Debug, Clone)]
struct Variation {
    /// The UIDs that are another's: of the pod, the account and the node.
    other_uids: [bool; 3],
    /// The objects that do not exist.
    absent: [bool; 3],
    other_node: bool,
    other_account: bool,
    phase: &'static str,
    key: usize,
    annotations: Vec<&'static str>,
    label: Option<&'static str>,
    rule: bool,
    max_seconds: u32,
}

/// Mostly true, since several reasons would hide each other.
fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.08)
}

fn variations() -> impl Strategy<Value = Variation> {
    let phases =
        prop::sample::select(vec!["Pending", "Running", "Running", "Succeeded", "Failed", "Unknown"]);
    let labels = prop::option::weighted(0.9, prop::sample::select(vec!["web", "db-1", "a_b", "-x", "ü"]));
    let annotations =
        prop::collection::vec(prop::sample::select(vec![ANNOTATION, ANNOTATION, "example.com/x"]), 0..2);
    (
        [rarely(), rarely(), rarely()],
        [rarely(), rarely(), rarely()],
        rarely(),
        rarely(),
        phases,
        0_usize..4,
        annotations,
        labels,
        prop::bool::weighted(0.9),
        3600_u32..=7_862_400,
    )
        .prop_map(
            |(
                other_uids,
                absent,
                other_node,
                other_account,
                phase,
                key,
                annotations,
                label,
                rule,
                max_seconds,
            )| {
                Variation {
                    other_uids,
                    absent,
                    other_node,
                    other_account,
                    phase,
                    key,
                    annotations,
                    label,
                    rule,
                    max_seconds,
                }
            },
        )
}

/// The keys of the requests, and whether the signer accepts their type.
const KEYS: [(KeyKind, bool); 4] = [
    (KeyKind::EcdsaP256, true),
    (KeyKind::Ed25519, true),
    (KeyKind::EcdsaP384, false),
    (KeyKind::EcdsaP521, false),
];

/// The reasons for which a signer must or may refuse a request, written from the documentation of the type and of the
/// signer, not from the code.
// api: certificates/v1/types.go; docs/pod-certificates.md
fn reasons(of: &Variation) -> BTreeSet<&'static str> {
    let [pod_uid, account_uid, node_uid] = of.other_uids;
    let [no_pod, no_account, no_node] = of.absent;
    let label = of.label.unwrap_or_default();
    let is_label = !label.is_empty()
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !label.starts_with('-');
    [
        ("PodNotFound", no_pod || pod_uid),
        ("PodTerminated", ["Succeeded", "Failed"].contains(&of.phase)),
        ("NodeMismatch", of.other_node),
        ("ServiceAccountMismatch", of.other_account),
        ("ServiceAccountNotFound", no_account || account_uid),
        ("NodeNotFound", no_node || node_uid),
        ("UnsupportedKeyType", !KEYS[of.key].1),
        ("InvalidUnverifiedUserAnnotations", of.annotations.iter().any(|key| *key != ANNOTATION)),
        ("NotPermitted", !of.rule || of.label.is_none()),
        ("InvalidName", !is_label),
    ]
    .into_iter()
    .filter_map(|(reason, holds)| holds.then_some(reason))
    .collect()
}

impl Variation {
    fn situation(&self, stubs: &[String; 4]) -> Situation {
        let mut all = Situation::new();
        let spec = &mut all.request["spec"];
        spec["stubPKCS10Request"] = json!(stubs[self.key]);
        spec["maxExpirationSeconds"] = json!(self.max_seconds);
        for key in &self.annotations {
            spec["unverifiedUserAnnotations"][key] = json!("x");
        }
        let pod = all.pod.as_mut().unwrap();
        pod["status"]["phase"] = json!(self.phase);
        match self.label {
            Some(label) => pod["metadata"]["labels"]["app"] = json!(label),
            None => pod["metadata"]["labels"] = json!({"tier": "x"}),
        }
        if self.other_node {
            pod["spec"]["nodeName"] = json!("n2");
        }
        if self.other_account {
            pod["spec"]["serviceAccountName"] = json!("other");
        }
        if !self.rule {
            let expression = expression("node.metadata.name.startsWith('edge-')", ResultType::Bool);
            all.signer.rules.rules.push(PodRule { expression, message: None });
        }
        let objects = [&mut all.pod, &mut all.service_account, &mut all.node];
        for ((object, other), absent) in objects.into_iter().zip(self.other_uids).zip(self.absent) {
            if other {
                object.as_mut().unwrap()["metadata"]["uid"] = json!("another");
            }
            if absent {
                *object = None;
            }
        }
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn random_requests_are_decided_as_the_documentation_says(variation in variations()) {
        static STUBS: std::sync::LazyLock<[String; 4]> = std::sync::LazyLock::new(|| KEYS.map(|(kind, _)| stub(kind)));
        let expected = reasons(&variation);
        match variation.situation(&STUBS).decision() {
            PodDecision::Issued(certificate) => {
                prop_assert!(expected.is_empty(), "issued, despite {:?}", expected);
                let lifetime = certificate.validity.not_after.saturating_sub(certificate.validity.not_before);
                let max = Duration::from_secs(variation.max_seconds.into()).min(Duration::from_hours(24));
                prop_assert!(lifetime <= max && lifetime >= Duration::from_hours(1), "{:?}", lifetime);
            }
            PodDecision::Refused(refusal) => {
                prop_assert!(expected.contains(refusal.reason), "{:?}, not one of {:?}", refusal, expected);
                prop_assert!(!refusal.message.is_empty());
            }
            PodDecision::Later(problem) => prop_assert!(false, "{}", problem),
        }
    }
}
