//! Usages, durations, and the rules of the signers (pkg/controller/certificates/signer, authority/policies,
//! pkg/apis/certificates).

use testkit::csr::Csr;
use testkit::pki::{Key, KeyKind};

use crate::case::{CLIENT, Case, KUBELET, SERVING, case};

const GROUP: &str = "usages";
const RULES: &str = "rules";
const DURATIONS: &str = "durations";
const POLICIES: &str = "authority/policies_test.go: usages become KeyUsage and ExtKeyUsage";
const CLIENTS: &str = "signer_test.go: TestHandle, kube-apiserver-client usages";
const KUBELETS: &str = "certificates/v1beta1/defaults_test.go: TestIsKubeletClientCSR";
const SERVINGS: &str = "certificates/v1beta1/defaults_test.go: TestIsKubeletServingCSR";
const CLAMP: &str = "signer_test.go: Test_signer_duration; authority_test.go: TestCertificateAuthority";

/// All usages of the API.
const ALL: [&str; 23] = [
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let alice = Csr::new().cn("alice");
    for usage in ALL {
        cases.push(case(GROUP, usage, POLICIES, &alice).legacy().usages(&[usage]));
    }
    let legacy = |name, usages: &[&'static str]| case(GROUP, name, POLICIES, &alice).legacy().usages(usages);
    let mut backwards = ALL;
    backwards.reverse();
    cases.extend([
        legacy("all usages at once", &ALL),
        legacy("all usages backwards", &backwards),
        legacy("two names of one usage", &["signing", "digital signature", "s/mime", "email protection"]),
        legacy("a usage twice", &["client auth", "client auth", "digital signature", "digital signature"]),
        // The API server validates the whole request on every write, and rejects it.
        legacy("no usage", &[]).conditions(&[super::stored_approval()]).steps(&[]).nothing(),
        legacy("an unknown usage", &["client auth", "teleportation"]).nothing(),
        legacy("an unknown usage in other letters", &["Client Auth"]).nothing(),
    ]);
    cases.extend(clients());
    cases.extend(kubelets());
    cases.extend(servings());
    cases.extend(durations());
    cases
}

fn clients() -> Vec<Case> {
    let alice = Csr::new().cn("alice").org("dev");
    let client = |name, usages: &[&'static str]| case(RULES, name, CLIENTS, &alice).usages(usages);
    vec![
        client("client: all it may have", &["digital signature", "key encipherment", "client auth"]),
        client("client: client auth alone", &["client auth"]),
        client("client: in another order", &["client auth", "digital signature"]),
        client("client: server auth", &["client auth", "server auth"]).fails(),
        client("client: no client auth", &["digital signature"]).fails(),
        client("client: the first bad usage is named", &["code signing", "any", "client auth"]).fails(),
        client("client: a bad usage comes before a missing one", &["digital signature", "cert sign"]).fails(),
        client("client: signing is not digital signature", &["client auth", "signing"]).fails(),
        client("client: any", &["any"]).fails(),
    ]
}

fn kubelets() -> Vec<Case> {
    let node = || Csr::node("n1");
    let kubelet = |name, csr: &Csr| case(RULES, name, KUBELETS, csr).kubelet();
    vec![
        kubelet("kubelet: as it is", &node()),
        kubelet("kubelet: without key encipherment", &node()).usages(&["client auth", "digital signature"]),
        kubelet("kubelet: usages in another order", &node()).usages(&[
            "client auth",
            "key encipherment",
            "digital signature",
        ]),
        kubelet("kubelet: an empty node name", &Csr::node("")),
        kubelet("kubelet: a node name with a colon", &Csr::node("a:b")),
        kubelet("kubelet: no organization", &Csr::new().cn("system:node:n1")).fails(),
        kubelet("kubelet: another organization", &Csr::new().org("nodes").cn("system:node:n1")).fails(),
        kubelet("kubelet: two organizations", &node().org("other")).fails(),
        kubelet("kubelet: system:nodes twice", &node().org("system:nodes")).fails(),
        kubelet("kubelet: system:masters, too", &Csr::new().org("system:masters").cn("system:node:n1"))
            .fails(),
        kubelet("kubelet: a DNS name", &node().dns("n1")).fails(),
        kubelet("kubelet: an e-mail address", &node().email("a@b.c")).fails(),
        kubelet("kubelet: an address", &node().ip("192.0.2.1")).fails(),
        kubelet("kubelet: a URI", &node().uri("spiffe://a/b")).fails(),
        kubelet("kubelet: all kinds of names", &{
            node().uri("a:b").ip("192.0.2.1").email("a@b.c").dns("n1")
        })
        .fails(),
        kubelet("kubelet: the organization comes before the names", &{
            Csr::new().org("x").cn("system:node:n1").dns("n1")
        })
        .fails(),
        kubelet("kubelet: another common name", &Csr::new().org("system:nodes").cn("node:n1")).fails(),
        kubelet("kubelet: the common name in capitals", &Csr::new().org("system:nodes").cn("System:Node:n1"))
            .fails(),
        kubelet("kubelet: no common name", &Csr::new().org("system:nodes")).fails(),
        kubelet("kubelet: the last common name counts", &node().cn("alice")).fails(),
        kubelet(
            "kubelet: the last common name is good",
            &Csr::new().cn("alice").org("system:nodes").cn("system:node:a"),
        ),
        kubelet("kubelet: the name comes before the usages", &Csr::new().org("system:nodes").cn("x"))
            .usages(&["server auth"])
            .fails(),
        kubelet("kubelet: server auth", &node())
            .usages(&["digital signature", "key encipherment", "client auth", "server auth"])
            .fails(),
        kubelet("kubelet: only client auth", &node()).usages(&["client auth"]).fails(),
        kubelet("kubelet: no client auth", &node())
            .usages(&["digital signature", "key encipherment"])
            .fails(),
        kubelet("kubelet: the organization as IA5", &{
            Csr::new().attr(testkit::pki::O, testkit::pki::string::IA5, b"system:nodes").cn("system:node:n1")
        }),
        kubelet("kubelet: with an RSA key", &node().with_key(Key::pooled(KeyKind::Rsa2048, 100))),
        kubelet("kubelet: another signer's name", &node()).signer(SERVING).fails(),
    ]
}

fn servings() -> Vec<Case> {
    let node = || Csr::node("n1");
    let serving = |name, csr: &Csr| case(RULES, name, SERVINGS, csr).serving();
    vec![
        serving("serving: a DNS name", &node().dns("n1.example")),
        serving("serving: an address", &node().ip("192.0.2.1")),
        serving("serving: both", &node().ip("192.0.2.1").dns("n1").ip("2001:db8::1")),
        serving("serving: without key encipherment", &node().dns("n1"))
            .usages(&["digital signature", "server auth"]),
        serving("serving: no names", &node()).fails(),
        serving("serving: an e-mail address", &node().dns("n1").email("a@b.c")).fails(),
        serving("serving: a URI", &node().dns("n1").uri("https://a/")).fails(),
        serving("serving: only a URI", &node().uri("https://a/")).fails(),
        serving("serving: an e-mail address and a URI", &node().dns("n1").uri("https://a/").email("a@b.c"))
            .fails(),
        serving("serving: no organization", &Csr::new().cn("system:node:n1").dns("n1")).fails(),
        serving("serving: two organizations", &node().org("x").dns("n1")).fails(),
        serving("serving: another common name", &Csr::new().org("system:nodes").cn("n1").dns("n1")).fails(),
        serving(
            "serving: the usages come before the name",
            &Csr::new().org("system:nodes").cn("n1").dns("n1"),
        )
        .usages(&["client auth"])
        .fails(),
        serving("serving: client auth", &node().dns("n1"))
            .usages(&["digital signature", "key encipherment", "client auth"])
            .fails(),
        serving("serving: both auths", &node().dns("n1"))
            .usages(&["digital signature", "server auth", "client auth"])
            .fails(),
        serving("serving: another signer's rules", &node().dns("n1")).signer(KUBELET).fails(),
        serving("serving: as an API client", &node().dns("n1")).signer(CLIENT).fails(),
    ]
}

fn durations() -> Vec<Case> {
    let alice = Csr::new().cn("alice");
    let lasts = |name, seconds| case(DURATIONS, name, CLAMP, &alice).expiration(seconds);
    let mut cases = vec![case(DURATIONS, "as long as the signer gives", CLAMP, &alice)];
    cases.extend([
        lasts("ten minutes", 600),
        lasts("ten minutes and a second", 601),
        lasts("an hour", 3600),
        lasts("a second less than eight hours", 28_799),
        lasts("eight hours", 28_800),
        lasts("a second more than eight hours", 28_801),
        lasts("a day", 86_400),
        lasts("a year", 31_536_000),
        lasts("the maximum of the signer", 946_080_000),
        lasts("a second more than that", 946_080_001),
        lasts("the maximum of the field", 2_147_483_647),
    ]);
    let stored = |name, seconds| lasts(name, seconds).legacy();
    cases.extend([
        stored("stored: an hour", 3600),
        // The API server validates the whole request when the certificate is written, and rejects it.
        stored("stored: too short", 599).conditions(&[super::stored_approval()]).steps(&[]).nothing(),
    ]);
    cases
}
