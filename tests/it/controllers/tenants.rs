//! Signing authorities of several clusters: what one cluster approves must be nothing to another.

use testkit::kubeconfig;
use testkit::pki::Ca;

use super::*;
use crate::gateway::resolved;

/// Files of two clusters; `a-ca` signs for A and is believed there, `b-ca` is B's.
struct TwoTenants {
    pki: Pki,
}

const HEAD: &str = "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}
";

impl TwoTenants {
    fn new() -> Self {
        let pki = Pki::new();
        let front = pki.front.leaf().cn("portcullis").issue();
        let (cert, key) = pki.write_pair("front", &front);
        let server_ca = pki.write("servers-ca.crt", pki.servers.cert_pem());
        pki.write("backend.kubeconfig", kubeconfig("127.0.0.1:6443", &server_ca, &cert, &key));
        pki.write_pair("gateway", &pki.servers.server(&["a.example.com"]));
        let (a, root) = (Ca::new("a"), Ca::new("root"));
        for (name, ca) in [
            ("a-ca", &a),
            ("a-ca-by-root", &root.cross_sign(&a)),
            ("b-ca", &Ca::new("b")),
            ("below-root", &root.intermediate("below root")),
            ("root", &root),
        ] {
            pki.write(&format!("{name}.crt"), ca.cert_pem());
            pki.write(&format!("{name}.key"), ca.key_pem());
        }
        pki.write("a-ca-both.crt", a.cert_pem() + &root.cross_sign(&a).cert_pem());
        for ca in ["a-ca", "b-ca"] {
            let path = pki.directory.path().join(ca).display().to_string();
            let profiles = format!(
                "apiVersion: portcullis.dev/v1alpha1\nkind: SignerProfiles\nsigners:\n- signerName: example.com/{ca}\n  certFile: {path}.crt\n  keyFile: {path}.key\n  commonNames: [service-*]\n  allowedUsages: [digital signature, client auth]\n  maxDuration: 24h\n"
            );
            pki.write(&format!("by-{ca}.yaml"), profiles);
        }
        Self { pki }
    }

    /// What is said of this configuration, whose clusters have these further lines.
    fn judged(&self, head: &str, [a, b]: [&str; 2]) -> Result<(), String> {
        let cluster = |name: &str, further: &str| {
            format!(
                "- name: {name}\n  kubeconfig: backend.kubeconfig\n  match: {{serverNames: [{name}.example.com]}}\n{further}"
            )
        };
        let text = format!("{HEAD}{head}clusters:\n{}{}", cluster("a", a), cluster("b", b));
        let file = self.pki.write("gateway.yaml", text);
        let directory = self.pki.directory.path().display().to_string();
        let judged = resolved([format!("--config={}", file.display())]);
        judged.map(drop).map_err(|errors| errors.to_string().replace(&directory, "DIR"))
    }
}

fn signs(ca: &str) -> String {
    format!(
        "  controllerManager: {{controllers: [csrsigning], clusterSigningCertFile: {ca}.crt, clusterSigningKeyFile: {ca}.key}}\n"
    )
}

/// With signers of its own alone.
fn signs_own(ca: &str) -> String {
    format!("  controllerManager: {{controllers: [csrsigning], signerProfiles: by-{ca}.yaml}}\n")
}

fn believes(ca: &str) -> String {
    format!("  authentication: {{clientCAFile: {ca}.crt}}\n")
}

#[test]
fn an_authority_that_signs_for_one_cluster_is_believed_by_no_other() {
    let two = TwoTenants::new();
    let global = "controllerManager: {controllers: [csrsigning], clusterSigningCertFile: a-ca.crt, clusterSigningKeyFile: a-ca.key}\n";
    let proxies = "  authentication: {tokenAuthFile: tokens.csv, requestheaderClientCAFile: a-ca.crt, requestheaderAllowedNames: [p], requestheaderUsernameHeaders: [X-Remote-User]}\n";
    two.pki.write("tokens.csv", "good-token,carol,7\n");
    // The head, what A and B have besides, and what is said.
    let cases: &[(&str, &str, [String; 2], &str)] = &[
        (
            "one block for all",
            global,
            [believes("a-ca"), believes("b-ca")],
            "gateway.yaml:4: controllerManager.clusterSigningCertFile: DIR/a-ca.crt: clusters a and b sign with the same CA",
        ),
        (
            "the same CA named twice",
            "",
            [signs("a-ca") + &believes("a-ca"), signs("a-ca") + &believes("b-ca")],
            "clusters a and b sign with the same CA",
        ),
        (
            "B believes A's",
            "",
            [signs("a-ca") + &believes("a-ca"), believes("a-ca")],
            "clusters[0].controllerManager.clusterSigningCertFile: DIR/a-ca.crt: cluster b accepts client certificates of this CA",
        ),
        (
            "A believes B's",
            "",
            [believes("b-ca"), signs("b-ca") + &believes("b-ca")],
            "clusters[1].controllerManager.clusterSigningCertFile: DIR/b-ca.crt: cluster a accepts client certificates of this CA",
        ),
        (
            "B believes what A's is signed by",
            "",
            [signs("below-root") + &believes("below-root"), believes("root")],
            "cluster b accepts client certificates of this CA",
        ),
        (
            "B believes another certificate of A's",
            "",
            [signs("a-ca") + &believes("a-ca"), believes("a-ca-by-root")],
            "cluster b accepts client certificates of this CA",
        ),
        (
            "A signs for a signer of its own with what B signs for nodes with",
            "",
            [signs_own("b-ca"), signs("b-ca")],
            "clusters a and b sign with the same CA",
        ),
        (
            "the same the other way round",
            "",
            [signs("a-ca"), signs_own("a-ca")],
            "clusters a and b sign with the same CA",
        ),
        (
            "B believes what one of A's certificates is signed by",
            "",
            [signs("a-ca") + &believes("a-ca-both"), believes("root")],
            "clusters[0].controllerManager.clusterSigningCertFile: DIR/a-ca.crt: cluster b accepts client certificates of this CA",
        ),
        (
            "front proxies of B are of A's",
            "",
            [signs("a-ca") + &believes("a-ca"), proxies.to_owned()],
            "cluster b accepts front proxies with certificates of this CA",
        ),
    ];
    for (name, head, [a, b], expected) in cases {
        let said = two.judged(head, [a, b]).expect_err(name);
        assert!(said.contains(expected), "{name}: {said}");
        assert!(said.contains("fix: give each cluster"), "{name}: {said}");
    }
}

#[test]
fn authorities_that_only_their_own_cluster_believes_are_good() {
    let two = TwoTenants::new();
    let own = [signs("a-ca") + &believes("a-ca"), signs("b-ca") + &believes("b-ca")];
    assert_eq!(two.judged("", [&own[0], &own[1]]), Ok(()));
    // What certificates for signers of one's own are good for is not the gateway's to know.
    assert_eq!(two.judged("", [&signs_own("a-ca"), &signs_own("a-ca")]), Ok(()));
    // What is global is what is not of one cluster.
    let cleaning = "controllerManager: {controllers: [csrcleaner]}\n";
    assert_eq!(two.judged(cleaning, [&believes("a-ca"), &believes("a-ca")]), Ok(()));
    // An authority above that of another cluster is not the other's: B believes what the intermediate signs alone.
    let above = [signs("root") + &believes("root"), believes("below-root")];
    assert_eq!(two.judged("", [&above[0], &above[1]]), Ok(()));
}
