//! The requests that each profile accepts, and the error texts for the others.

mod custom;

use super::CertificateProfile;
use crate::issuance::alt_names::AltNames;
use crate::issuance::subject::Subject;
use crate::issuance::testing::{request, strings, subject};

/// A request as a row of a table.
struct Case {
    name: &'static str,
    subject: Subject,
    alt_names: AltNames,
    usages: &'static [&'static str],
    refusal: Option<&'static str>,
}

const CLIENT: &[&str] = &["digital signature", "key encipherment", "client auth"];
const SERVING: &[&str] = &["digital signature", "key encipherment", "server auth"];

fn node() -> Subject {
    subject("system:node:nodename", &["system:nodes"])
}

fn nothing() -> AltNames {
    AltNames::default()
}

fn dns(names: &[&str]) -> AltNames {
    AltNames { dns: strings(names), ..nothing() }
}

fn ips(ips: &[&str]) -> AltNames {
    AltNames { ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(), ..nothing() }
}

fn emails(names: &[&str]) -> AltNames {
    AltNames { emails: strings(names), ..nothing() }
}

fn uris(names: &[&str]) -> AltNames {
    AltNames { uris: strings(names), ..nothing() }
}

fn case(
    name: &'static str,
    subject: Subject,
    alt_names: AltNames,
    usages: &'static [&'static str],
    refusal: Option<&'static str>,
) -> Case {
    Case { name, subject, alt_names, usages, refusal }
}

fn run(profile: &CertificateProfile, cases: Vec<Case>) {
    let mut wrong = Vec::new();
    for case in cases {
        let request = request(&case.subject, &case.alt_names);
        let refusal = profile.check(&request, &strings(case.usages)).err().map(|refusal| refusal.to_string());
        if refusal.as_deref() != case.refusal {
            wrong.push(format!("{}: {refusal:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", profile.signer_name(), wrong.join("\n"));
}

const NOT_NODES: Option<&str> = Some("subject organization is not system:nodes");
const NOT_NODE: Option<&str> = Some("subject common name does not begin with system:node:");
const CLIENT_SET: Option<&str> =
    Some("usages did not match [client auth digital signature key encipherment]");
const SERVING_SET: Option<&str> =
    Some("usages did not match [digital signature key encipherment server auth]");

// kubernetes: pkg/apis/certificates/v1beta1/defaults_test.go, TestIsKubeletClientCSR
#[test]
fn kubelets_as_clients() {
    let every = || AltNames { ips: ips(&["192.0.2.1"]).ips, emails: strings(&["a@b"]), ..dns(&["a"]) };
    run(
        &CertificateProfile::kubelet_client(),
        vec![
            case("good", node(), nothing(), CLIENT, None),
            case("without key encipherment", node(), nothing(), &["client auth", "digital signature"], None),
            case(
                "in another order, and twice",
                node(),
                nothing(),
                &["client auth", "digital signature", "client auth"],
                None,
            ),
            case(
                "a name without a node",
                subject("system:node:", &["system:nodes"]),
                nothing(),
                CLIENT,
                None,
            ),
            case("no organization", subject("system:node:a", &[]), nothing(), CLIENT, NOT_NODES),
            case("another organization", subject("system:node:a", &["nodes"]), nothing(), CLIENT, NOT_NODES),
            case(
                "a second organization",
                subject("system:node:a", &["system:nodes", "b"]),
                nothing(),
                CLIENT,
                NOT_NODES,
            ),
            case(
                "the same organization twice",
                subject("system:node:a", &["system:nodes", "system:nodes"]),
                nothing(),
                CLIENT,
                NOT_NODES,
            ),
            case("another name", subject("alice", &["system:nodes"]), nothing(), CLIENT, NOT_NODE),
            case("a longer name", subject("a-system:node:a", &["system:nodes"]), nothing(), CLIENT, NOT_NODE),
            case("DNS", node(), dns(&["a"]), CLIENT, Some("DNS subjectAltNames are not allowed")),
            case("email", node(), emails(&["a@b"]), CLIENT, Some("Email subjectAltNames are not allowed")),
            case("IP", node(), ips(&["192.0.2.1"]), CLIENT, Some("IP subjectAltNames are not allowed")),
            case("URI", node(), uris(&["urn:a"]), CLIENT, Some("URI subjectAltNames are not allowed")),
            case(
                "an unexpected usage",
                node(),
                nothing(),
                &["digital signature", "key encipherment", "client auth", "server auth"],
                CLIENT_SET,
            ),
            case(
                "a missing usage",
                node(),
                nothing(),
                &["digital signature", "key encipherment"],
                CLIENT_SET,
            ),
            case("a missing usage without key encipherment", node(), nothing(), &["client auth"], CLIENT_SET),
            case("another word for it", node(), nothing(), &["signing", "client auth"], CLIENT_SET),
            case("no usage", node(), nothing(), &[], CLIENT_SET),
            case("organization before names", subject("alice", &["b"]), every(), &[], NOT_NODES),
            case(
                "DNS before email",
                subject("alice", &["system:nodes"]),
                every(),
                &[],
                Some("DNS subjectAltNames are not allowed"),
            ),
            case(
                "names before the name",
                subject("alice", &["system:nodes"]),
                uris(&["urn:a"]),
                &[],
                Some("URI subjectAltNames are not allowed"),
            ),
            case("the name before usages", subject("alice", &["system:nodes"]), nothing(), &[], NOT_NODE),
        ],
    );
}

// kubernetes: pkg/apis/certificates/v1beta1/defaults_test.go, TestIsKubeletServingCSR
#[test]
fn kubelets_as_servers() {
    const REQUIRED: Option<&str> = Some("DNS or IP subjectAltName is required");
    run(
        &CertificateProfile::kubelet_serving(),
        vec![
            case("with DNS", node(), dns(&["node"]), SERVING, None),
            case("with IP", node(), ips(&["192.0.2.1"]), SERVING, None),
            case(
                "without key encipherment",
                node(),
                dns(&["node"]),
                &["server auth", "digital signature"],
                None,
            ),
            case("no organization", subject("system:node:a", &[]), dns(&["a"]), SERVING, NOT_NODES),
            case(
                "two organizations",
                subject("system:node:a", &["a", "system:nodes"]),
                dns(&["a"]),
                SERVING,
                NOT_NODES,
            ),
            case("no names", node(), nothing(), SERVING, REQUIRED),
            case("a URI is not a name", node(), uris(&["urn:a"]), SERVING, REQUIRED),
            case(
                "email",
                node(),
                AltNames { emails: strings(&["a@b"]), ..dns(&["a"]) },
                SERVING,
                Some("Email subjectAltNames are not allowed"),
            ),
            case(
                "URI",
                node(),
                AltNames { uris: strings(&["urn:a"]), ..dns(&["a"]) },
                SERVING,
                Some("URI subjectAltNames are not allowed"),
            ),
            case(
                "an unexpected usage",
                node(),
                dns(&["a"]),
                &["digital signature", "key encipherment", "server auth", "client auth"],
                SERVING_SET,
            ),
            case("a missing usage", node(), dns(&["a"]), &["key encipherment", "server auth"], SERVING_SET),
            case("usages of a client", node(), dns(&["a"]), CLIENT, SERVING_SET),
            case("another name", subject("alice", &["system:nodes"]), dns(&["a"]), SERVING, NOT_NODE),
            case(
                "usages before the name",
                subject("alice", &["system:nodes"]),
                dns(&["a"]),
                &[],
                SERVING_SET,
            ),
            case("organization before names", subject("alice", &[]), nothing(), &[], NOT_NODES),
        ],
    );
}

// kubernetes: pkg/controller/certificates/signer/signer.go, validAPIServerClientUsages
#[test]
fn clients_of_the_api_server() {
    let alice = || subject("alice", &["system:masters"]);
    run(
        &CertificateProfile::kube_apiserver_client(),
        vec![
            case("client auth alone", alice(), nothing(), &["client auth"], None),
            case("all three", alice(), dns(&["a"]), CLIENT, None),
            case("no subject at all", Subject::default(), nothing(), CLIENT, None),
            case(
                "server auth",
                alice(),
                nothing(),
                &["client auth", "server auth"],
                Some("invalid usage for client certificate: server auth"),
            ),
            case(
                "the first bad one in order",
                alice(),
                nothing(),
                &["any", "server auth"],
                Some("invalid usage for client certificate: any"),
            ),
            case(
                "unknown",
                alice(),
                nothing(),
                &["client auth", "x"],
                Some("invalid usage for client certificate: x"),
            ),
            case(
                "another word",
                alice(),
                nothing(),
                &["client auth", "signing"],
                Some("invalid usage for client certificate: signing"),
            ),
            case(
                "cert sign",
                alice(),
                nothing(),
                &["client auth", "cert sign"],
                Some("invalid usage for client certificate: cert sign"),
            ),
            case(
                "missing",
                alice(),
                nothing(),
                &["digital signature"],
                Some("missing required usage for client certificate: client auth"),
            ),
            case(
                "none",
                alice(),
                nothing(),
                &[],
                Some("missing required usage for client certificate: client auth"),
            ),
        ],
    );
    run(
        &CertificateProfile::legacy_unknown(),
        vec![case("anything", alice(), uris(&["urn:a"]), &["any", "cert sign", "x"], None)],
    );
}

#[test]
fn profiles_of_the_certs_command() {
    let name = Some("subject common name is required");
    run(
        &CertificateProfile::client(),
        vec![
            case("good", subject("alice", &["a", "b"]), nothing(), CLIENT, None),
            case("no common name", subject("", &["a"]), nothing(), CLIENT, name),
            case(
                "a server",
                subject("alice", &[]),
                nothing(),
                SERVING,
                Some("invalid usage for client certificate: server auth"),
            ),
        ],
    );
    run(
        &CertificateProfile::front_proxy(),
        vec![
            case("good", subject("front-proxy", &[]), nothing(), CLIENT, None),
            case("no subject", Subject::default(), nothing(), CLIENT, name),
        ],
    );
    run(
        &CertificateProfile::serving(),
        vec![
            case("good", Subject::default(), dns(&["a"]), SERVING, None),
            case(
                "no names",
                subject("a", &[]),
                nothing(),
                SERVING,
                Some("DNS or IP subjectAltName is required"),
            ),
            case(
                "a client",
                subject("a", &[]),
                dns(&["a"]),
                CLIENT,
                Some("invalid usage for serving certificate: client auth"),
            ),
        ],
    );
}
