//! Automatic approval: the recognisers, and the requester's permissions (approver/sarapprove.go).

use testkit::csr::Csr;
use testkit::pki::{Key, KeyKind};

use crate::case::{CLIENT, Case, Expect, Step, approved, case, condition};
use crate::client::Person;

const GROUP: &str = "approval";
const FLOW: &str = "sarapprove_test.go: TestHandle";
const SELF: &str = "sarapprove_test.go: TestRecognizers, of oneself";
const NODES: &str = "sarapprove_test.go: TestRecognizers";

/// The names of two cases, their request and its usages.
type UnrecognizedRequest = (&'static str, &'static str, fn() -> Csr, &'static [&'static str]);
const USAGES: &[&str] = &["digital signature", "key encipherment", "client auth"];

/// A user with a group that may request kubelet certificates.
fn person(name: &str, group: &str) -> Person {
    Person::new(name, &[group])
}

fn requested_by(name: &'static str, from: &'static str, csr: &Csr, by: Person) -> Case {
    case(GROUP, name, from, csr).kubelet().steps(&[]).by(by)
}

pub(crate) fn cases() -> Vec<Case> {
    let node = || Csr::node("n1");
    let myself = |group| person("system:node:n1", group);
    let other = |group| person("someone-else", group);
    let mut root = Person::new("root", &["system:masters"]);
    root.uid = Some("0");
    let mut all = Person::new("may-node-by-name", &["a", "b"]);
    all.uid = Some("u-1");
    all.extra = vec![("reason", "renewal"), ("reason", "again"), ("example.org%2fkey", "value")];
    let mut cases = vec![
        requested_by("a bootstrap token", FLOW, &node(), Person::bootstrap("abcdef")),
        requested_by(
            "a bootstrap token, with an RSA key",
            FLOW,
            &node().with_key(Key::pooled(KeyKind::Rsa2048, 100)),
            Person::bootstrap("abcdef"),
        ),
        requested_by("a node renews", FLOW, &node(), Person::node("n1")),
        requested_by("a node requests another's name", FLOW, &node(), Person::node("n2")).nothing(),
        requested_by("cluster administrator", FLOW, &node(), root),
        requested_by(
            "cluster administrator requests its own name",
            FLOW,
            &node(),
            person("system:node:n1", "system:masters"),
        ),
        requested_by("myself, may self", SELF, &node(), myself("may-self")),
        requested_by("myself, may node", SELF, &node(), myself("may-node")),
        requested_by("myself, may both", SELF, &node(), myself("may-both")),
        requested_by("myself, may nothing", SELF, &node(), myself("none")).nothing(),
        requested_by("another, may self", NODES, &node(), other("may-self")).nothing(),
        requested_by("another, may node", NODES, &node(), other("may-node")),
        requested_by("another, may both", NODES, &node(), other("may-both")),
        requested_by("another, may nothing", NODES, &node(), other("none")).nothing(),
        requested_by("a right by name, with a uid and more", FLOW, &node(), all),
        requested_by(
            "a name in other letters is not oneself",
            SELF,
            &node(),
            person("System:node:n1", "may-self"),
        )
        .nothing(),
        requested_by(
            "the last common name is oneself",
            SELF,
            &node().cn("system:node:n2"),
            person("system:node:n2", "may-self"),
        ),
        requested_by("an empty node name", NODES, &Csr::node(""), other("may-node")),
        requested_by("an empty node name, oneself", SELF, &Csr::node(""), person("system:node:", "may-self")),
        requested_by("a short certificate", FLOW, &node(), other("may-node")).expiration(600),
        requested_by("the right comes later", FLOW, &node(), person("late-node", "none"))
            .steps(&[Step::Grant("nodeclient")]),
        requested_by(
            "the right comes later, oneself",
            FLOW,
            &Csr::node("late"),
            person("system:node:late", "none"),
        )
        .steps(&[Step::Grant("selfnodeclient")]),
        requested_by("a useless right comes later", FLOW, &node(), person("late-useless", "none"))
            .steps(&[Step::Grant("selfnodeclient")])
            .nothing(),
        requested_by("denied before the right comes", FLOW, &node(), person("late-denied", "none"))
            .steps(&[Step::Approval(condition("Denied", "True")), Step::Grant("nodeclient")])
            .nothing(),
        requested_by("failed before the right comes", FLOW, &node(), person("late-failed", "none"))
            .steps(&[Step::Status(condition("Failed", "True")), Step::Grant("nodeclient")])
            .expect(Expect::Approved),
        requested_by(
            "another controller's condition before the right comes",
            FLOW,
            &node(),
            person("late-custom", "none"),
        )
        .steps(&[Step::Status(condition("Checked", "False")), Step::Grant("nodeclient")]),
        requested_by(
            "approved by the administrator before the right comes",
            FLOW,
            &node(),
            person("late-approved", "none"),
        )
        .steps(&[approved(), Step::Grant("nodeclient")]),
        requested_by("approved by its requester, then by no other user", FLOW, &node(), other("may-node"))
            .steps(&[Step::UntilApproved]),
        requested_by("stored", FLOW, &node(), other("may-node")).stored(),
        requested_by("stored: no request", FLOW, &node(), other("may-node"))
            .stored()
            .request("nothing".to_owned())
            .nothing(),
        requested_by("stored: another's signature", FLOW, &node().corrupt_signature(), other("may-node"))
            .stored()
            .nothing(),
        requested_by("a server's certificate", FLOW, &node().dns("n1"), other("may-both"))
            .serving()
            .nothing(),
        requested_by("a server's certificate, oneself", FLOW, &node().dns("n1"), myself("may-both"))
            .serving()
            .nothing(),
        requested_by("a client's certificate, oneself", FLOW, &node(), myself("may-both"))
            .signer(CLIENT)
            .nothing(),
        requested_by("an unknown signer, oneself", FLOW, &node(), myself("may-both"))
            .signer("example.com/x")
            .nothing(),
    ];
    let weak = requested_by("a weak key", FLOW, &node(), other("may-node"));
    let weak = weak.request(include_str!("../requests/node-rsa-1024.pem").to_owned());
    cases.push(weak.declared("D-csr-weak-key", Expect::Nothing));
    // Requests that neither recogniser accepts, for the requester's own node and for another.
    let unrecognized: [UnrecognizedRequest; 9] = [
        (
            "mine: another organization",
            "yours: another organization",
            || Csr::new().org("x").cn("system:node:n1"),
            USAGES,
        ),
        ("mine: two organizations", "yours: two organizations", || Csr::node("n1").org("x"), USAGES),
        ("mine: no organization", "yours: no organization", || Csr::new().cn("system:node:n1"), USAGES),
        ("mine: a DNS name", "yours: a DNS name", || Csr::node("n1").dns("n1"), USAGES),
        ("mine: an address", "yours: an address", || Csr::node("n1").ip("192.0.2.1"), USAGES),
        ("mine: an e-mail address", "yours: an e-mail address", || Csr::node("n1").email("a@b.c"), USAGES),
        ("mine: a URI", "yours: a URI", || Csr::node("n1").uri("a:b"), USAGES),
        ("mine: too few usages", "yours: too few usages", || Csr::node("n1"), &["client auth"]),
        (
            "mine: server auth",
            "yours: server auth",
            || Csr::node("n1"),
            &["client auth", "digital signature", "server auth"],
        ),
    ];
    for (mine, yours, csr, usages) in unrecognized {
        cases.push(requested_by(mine, SELF, &csr(), myself("may-both")).usages(usages).nothing());
        cases.push(requested_by(yours, NODES, &csr(), other("may-both")).usages(usages).nothing());
    }
    let alice = Csr::new().org("system:nodes").cn("alice");
    cases.push(requested_by("mine: no node's name", SELF, &alice, person("alice", "may-both")).nothing());
    cases.push(requested_by("yours: no node's name", NODES, &alice, other("may-both")).nothing());
    cases
}
