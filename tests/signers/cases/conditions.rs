//! The conditions under which a signer signs or ignores a request (`certificate_controller.go`,
//! `certificate_controller_utils.go`, `signer.go`).

use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::now;
use testkit::pki::Ca;

use crate::case::{
    CLIENT, Case, Expect, KUBELET, LEGACY, SERVING, Step, approved, case, condition, timestamp,
};

const GROUP: &str = "conditions";
const HANDLE: &str = "signer_test.go: TestHandle";
const UTILS: &str =
    "certificate_controller_utils_test.go: TestIsCertificateRequestApproved, TestHasCondition";
const FRAME: &str = "certificate_controller_test.go: TestCertificateController";

/// A condition as the API server stores it.
pub(crate) fn stored(kind: &str, status: &str) -> Value {
    let mut condition = condition(kind, status);
    condition["lastUpdateTime"] = timestamp(now()).into();
    condition["lastTransitionTime"] = timestamp(now()).into();
    condition
}

pub(crate) fn cases() -> Vec<Case> {
    let alice = || Csr::new().cn("alice");
    let of = |name, from| case(GROUP, name, from, &alice());
    let node = |name| case(GROUP, name, HANDLE, &Csr::node("n1"));
    let denied = Step::Approval(condition("Denied", "True"));
    let failed = Step::Status(condition("Failed", "True"));
    let custom = |kind, status| Step::Status(condition(kind, status));
    let mut cases = vec![
        // pkg/apis/certificates/validation: a name may be any single path segment
        of("a name of blanks and line breaks", FRAME).name_suffix(" \r\n\tB_c "),
        of("a name of delimiters", FRAME).name_suffix("?#&+;:@'\"<ä>"),
        node("kubelet: a name with a line break").kubelet().name_suffix("\nb"),
    ];
    for (name, signer) in [("client", CLIENT), ("kubelet", KUBELET), ("serving", SERVING)] {
        let names: [&'static str; 4] = match name {
            "client" => [
                "client: not approved",
                "client: denied",
                "client: approved",
                "client: failed, then approved",
            ],
            "kubelet" => [
                "kubelet: not approved",
                "kubelet: denied",
                "kubelet: approved",
                "kubelet: failed, then approved",
            ],
            _ => [
                "serving: not approved",
                "serving: denied",
                "serving: approved",
                "serving: failed, then approved",
            ],
        };
        let of = |name| {
            let csr = if signer == SERVING { Csr::node("n1").dns("n1") } else { Csr::node("n1") };
            let case = case(GROUP, name, HANDLE, &csr);
            match signer {
                CLIENT => case,
                KUBELET => case.kubelet(),
                _ => case.serving(),
            }
        };
        cases.extend([
            of(names[0]).steps(&[]).nothing(),
            of(names[1]).steps(std::slice::from_ref(&denied)).nothing(),
            of(names[2]),
            of(names[3]).steps(&[failed.clone(), approved()]).nothing(),
        ]);
    }
    let strange = |name, signer| of(name, HANDLE).signer(signer).nothing();
    cases.extend([
        strange("an unknown signer", "example.com/signer"),
        strange("an unknown signer of Kubernetes", "kubernetes.io/unknown"),
        strange("a signer with a similar name", "kubernetes.io/kube-apiserver-client-x"),
        strange("an unknown signer, approved and denied by rules", "example.com/kubernetes.io"),
        node("a broken rule, not approved").steps(&[]).nothing(),
        node("a broken rule, denied")
            .kubelet()
            .usages(&["server auth"])
            .steps(std::slice::from_ref(&denied))
            .nothing(),
        of("a condition of another controller, then approved", UTILS)
            .steps(&[custom("Checked", "True"), approved()]),
        of("a condition of another controller that is false", UTILS)
            .steps(&[custom("Checked", "False"), approved()]),
        of("a condition of another controller that is unknown", UTILS)
            .steps(&[custom("Checked", "Unknown"), approved()]),
        of("two conditions of other controllers", UTILS).steps(&[
            custom("A", "True"),
            custom("B", "False"),
            approved(),
        ]),
        of("only a condition of another controller", UTILS).steps(&[custom("Checked", "True")]).nothing(),
        of("another controller's condition in the approval", UTILS)
            .steps(&[Step::Approval(condition("Checked", "True")), approved()]),
        of("failed by the approval, then approved", HANDLE)
            .steps(&[Step::Approval(condition("Failed", "True")), approved()])
            .nothing(),
        of("a condition that is called like the reason", UTILS)
            .steps(&[custom("SignerValidationFailure", "True"), approved()]),
        of("failed, and not approved", HANDLE).steps(std::slice::from_ref(&failed)).nothing(),
        of("failed, denied", HANDLE).steps(&[failed, denied]).nothing(),
    ]);
    cases.extend(with_certificates());
    cases.extend(stored_ones());
    cases
}

/// Requests that already have a certificate.
fn with_certificates() -> Vec<Case> {
    let of = |name, csr: &Csr| case(GROUP, name, FRAME, csr);
    let other = Ca::new("other").leaf().cn("other").issue().cert_pem();
    let put = Step::Certificate(base64(&other));
    vec![
        of("a certificate before the approval", &Csr::new().cn("a"))
            .steps(&[put.clone(), approved()])
            .nothing(),
        of("a certificate, not approved", &Csr::new().cn("a")).steps(std::slice::from_ref(&put)).nothing(),
        of("a certificate, and a rule that would fail", &Csr::new().cn("a"))
            .usages(&["server auth"])
            .steps(&[put.clone(), approved()])
            .nothing(),
        of("a certificate before the approver came", &Csr::node("n1"))
            .kubelet()
            .by(crate::client::Person::new("held", &["testers"]))
            .steps(&[put, Step::Grant("nodeclient")])
            .nothing(),
    ]
}

/// Objects that the API server refuses to create.
fn stored_ones() -> Vec<Case> {
    let of = |name, conditions: &[Value]| {
        case(GROUP, name, UTILS, &Csr::new().cn("alice")).legacy().steps(&[]).conditions(conditions)
    };
    let both = [stored("Approved", "True"), stored("Denied", "True")];
    let (approved, failed) = (stored("Approved", "True"), stored("Failed", "True"));
    let statusless = json!({"type": "Failed", "reason": "x", "lastUpdateTime": timestamp(now()),
        "lastTransitionTime": timestamp(now())});
    let malformed =
        "-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n".to_owned();
    vec![
        of("stored: approved", std::slice::from_ref(&approved)).expect(Expect::Issued),
        of("stored: approved and denied", &both).nothing(),
        of("stored: denied and approved", &[both[1].clone(), both[0].clone()]).nothing(),
        of("stored: approved is false", &[stored("Approved", "False")]).nothing(),
        of("stored: approved is unknown", &[stored("Approved", "Unknown")]).nothing(),
        of("stored: approved, without times", &[condition("Approved", "True")]).nothing(),
        of("stored: approved and failed", &[approved.clone(), failed.clone()]).nothing(),
        of("stored: failed and approved", &[failed, approved.clone()]).nothing(),
        of("stored: approved, failed is false", &[approved.clone(), stored("Failed", "False")]).nothing(),
        of("stored: approved, failed without a status", &[approved.clone(), statusless]).nothing(),
        of("stored: approved twice", &[approved.clone(), approved.clone()]).expect(Expect::Issued),
        of("stored: approved and an empty type", &[approved.clone(), stored("", "True")])
            .expect(Expect::Issued),
        of("stored: approved, another signer", std::slice::from_ref(&approved))
            .signer(CLIENT)
            .expect(Expect::Issued),
        of("stored: an invalid request", std::slice::from_ref(&approved))
            .request(malformed.clone())
            .nothing(),
        of("stored: a request of another type", std::slice::from_ref(&approved))
            .request(Csr::new().cn("a").pem().replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"))
            .nothing(),
        of("stored: a request with another's signature", std::slice::from_ref(&approved))
            .request(Csr::new().cn("a").corrupt_signature().pem())
            .nothing(),
        of("stored: a rule is broken, and no key of it can be read", std::slice::from_ref(&approved))
            .signer(KUBELET)
            .request(malformed)
            .nothing(),
        of("stored: no signer", std::slice::from_ref(&approved)).signer("").nothing(),
        of("stored: the signer in capitals", std::slice::from_ref(&approved))
            .signer("Kubernetes.io/legacy-unknown")
            .nothing(),
        of("stored: the old signer, without rules", &[approved])
            .request(Csr::new().cn("system:masters").org("system:masters").uri("a:b").pem())
            .signer(LEGACY)
            .usages(&["cert sign", "any"])
            .expect(Expect::Issued),
    ]
}

pub(crate) fn base64(text: &str) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(text)
}
