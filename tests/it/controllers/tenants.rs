//! Signing authorities of several clusters: certificates that one cluster approves must not authenticate to another.

use testkit::kubeconfig;
use testkit::pki::Ca;

use super::*;
use crate::gateway::resolved;

/// Files of two clusters; `a-ca` signs for A and is a client CA there, `b-ca` is B's.
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
            let pods = format!(
                "apiVersion: portcullis.dev/v1alpha1\nkind: PodSignerProfiles\nsigners:\n- signerName: example.com/{ca}\n  certFile: {path}.crt\n  keyFile: {path}.key\n  usages: [client auth]\n  uris: \"['spiffe://example.com/' + pod.metadata.name]\"\n"
            );
            pki.write(&format!("pods-by-{ca}.yaml"), pods);
        }
        Self { pki }
    }

    /// Resolves a configuration whose clusters have these additional lines; returns its errors.
    fn resolve(&self, head: &str, [a, b]: [&str; 2]) -> Result<(), String> {
        let cluster = |name: &str, further: &str| {
            format!(
                "- name: {name}\n  kubeconfig: backend.kubeconfig\n  match: {{serverNames: [{name}.example.com]}}\n{further}"
            )
        };
        let text = format!("{HEAD}{head}clusters:\n{}{}", cluster("a", a), cluster("b", b));
        let file = self.pki.write("gateway.yaml", text);
        let directory = self.pki.directory.path().display().to_string();
        let resolved = resolved([format!("--config={}", file.display())]);
        resolved.map(drop).map_err(|errors| errors.to_string().replace(&directory, "DIR"))
    }
}

fn signs(ca: &str) -> String {
    format!(
        "  controllerManager: {{controllers: [csrsigning], clusterSigningCertFile: {ca}.crt, clusterSigningKeyFile: {ca}.key}}\n"
    )
}

/// A cluster with custom signers only.
fn signs_own(ca: &str) -> String {
    format!("  controllerManager: {{controllers: [csrsigning], signerProfiles: by-{ca}.yaml}}\n")
}

/// A cluster with signers of pods only.
fn signs_pods(ca: &str) -> String {
    let controllers = "podcertificaterequest-signing";
    format!("  controllerManager: {{controllers: [{controllers}], podSignerProfiles: pods-by-{ca}.yaml}}\n")
}

fn trusts_pods(ca: &str) -> String {
    format!("  authentication: {{podClientCAFile: {ca}.crt}}\n")
}

fn trusts(ca: &str) -> String {
    format!("  authentication: {{clientCAFile: {ca}.crt}}\n")
}

#[test]
fn a_signing_authority_that_another_cluster_trusts_is_refused() {
    let two = TwoTenants::new();
    let global = "controllerManager: {controllers: [csrsigning], clusterSigningCertFile: a-ca.crt, clusterSigningKeyFile: a-ca.key}\n";
    let proxies = "  authentication: {tokenAuthFile: tokens.csv, requestheaderClientCAFile: a-ca.crt, requestheaderAllowedNames: [p], requestheaderUsernameHeaders: [X-Remote-User]}\n";
    two.pki.write("tokens.csv", "good-token,carol,7\n");
    // The global part, the additional lines of A and B, and the expected error.
    let cases: &[(&str, &str, [String; 2], &str)] = &[
        (
            "one block for all",
            global,
            [trusts("a-ca"), trusts("b-ca")],
            "gateway.yaml:4: controllerManager.clusterSigningCertFile: DIR/a-ca.crt: clusters a and b sign with the same CA",
        ),
        (
            "the same CA named twice",
            "",
            [signs("a-ca") + &trusts("a-ca"), signs("a-ca") + &trusts("b-ca")],
            "clusters a and b sign with the same CA",
        ),
        (
            "B trusts A's",
            "",
            [signs("a-ca") + &trusts("a-ca"), trusts("a-ca")],
            "clusters[0].controllerManager.clusterSigningCertFile: DIR/a-ca.crt: cluster b accepts client certificates of this CA",
        ),
        (
            "A trusts B's",
            "",
            [trusts("b-ca"), signs("b-ca") + &trusts("b-ca")],
            "clusters[1].controllerManager.clusterSigningCertFile: DIR/b-ca.crt: cluster a accepts client certificates of this CA",
        ),
        (
            "B trusts what A's is signed by",
            "",
            [signs("below-root") + &trusts("below-root"), trusts("root")],
            "cluster b accepts client certificates of this CA",
        ),
        (
            "B trusts another certificate of A's",
            "",
            [signs("a-ca") + &trusts("a-ca"), trusts("a-ca-by-root")],
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
            "B trusts what one of A's certificates is signed by",
            "",
            [signs("a-ca") + &trusts("a-ca-both"), trusts("root")],
            "clusters[0].controllerManager.clusterSigningCertFile: DIR/a-ca.crt: cluster b accepts client certificates of this CA",
        ),
        (
            "one CA for the pods of both",
            "",
            [signs_pods("a-ca"), signs_pods("a-ca")],
            "clusters a and b sign with the same CA: pods of a could have the names of those of b",
        ),
        (
            "one block of pods for all",
            "controllerManager: {controllers: [podcertificaterequest-signing], podSignerProfiles: pods-by-a-ca.yaml}\n",
            [trusts("b-ca"), trusts("b-ca")],
            "clusters a and b sign with the same CA: pods of a",
        ),
        (
            "A signs for pods with what B signs for a signer of its own with",
            "",
            [signs_pods("a-ca"), signs_own("a-ca")],
            "clusters a and b sign with the same CA: pods of a",
        ),
        (
            "B trusts A's pods",
            "",
            [signs_pods("a-ca"), trusts("a-ca")],
            "cluster b accepts client certificates of this CA: pods of a could act as any user in b",
        ),
        (
            "B trusts A's pods as pods",
            "",
            [signs_pods("a-ca"), trusts_pods("a-ca")],
            "cluster b accepts certificates of pods of this CA",
        ),
        (
            "front proxies of B are of A's",
            "",
            [signs("a-ca") + &trusts("a-ca"), proxies.to_owned()],
            "cluster b accepts front proxies with certificates of this CA",
        ),
    ];
    for (name, head, [a, b], expected) in cases {
        let errors = two.resolve(head, [a, b]).expect_err(name);
        assert!(errors.contains(expected), "{name}: {errors}");
        assert!(errors.contains("fix: give each cluster"), "{name}: {errors}");
    }
}

// Nobody approves the certificates of pods.
#[test]
fn a_ca_of_pods_is_no_other_ca_of_its_cluster() {
    let two = TwoTenants::new();
    two.pki.write("tokens.csv", "good-token,carol,7\n");
    let both = "  controllerManager: {controllers: [csrsigning, podcertificaterequest-signing], clusterSigningCertFile: a-ca.crt, clusterSigningKeyFile: a-ca.key, podSignerProfiles: pods-by-a-ca.yaml}\n";
    let errors = two.resolve("", [both, &trusts("b-ca")]).unwrap_err();
    assert!(errors.contains("sign with the same CA as that of pods"), "{errors}");
    let proxies = "  authentication: {tokenAuthFile: tokens.csv, requestheaderClientCAFile: a-ca.crt, requestheaderAllowedNames: [p], requestheaderUsernameHeaders: [X-Remote-User]}\n";
    let errors = two.resolve("", [&(signs_pods("a-ca") + proxies), &trusts("b-ca")]).unwrap_err();
    assert!(errors.contains("cluster a accepts front proxies with certificates of this CA"), "{errors}");
    assert!(errors.contains("fix: give the signer of pods a CA of its own"), "{errors}");
    assert_eq!(two.resolve("", [&signs_pods("a-ca"), &signs_pods("b-ca")]), Ok(()));
}

/// Each would find the pods of the other missing, and revoke their certificates.
#[test]
fn signers_of_two_clusters_do_not_share_the_files_of_their_certificates() {
    let two = TwoTenants::new();
    let directory = two.pki.directory.path().to_owned();
    std::fs::create_dir(directory.join("shared")).unwrap();
    std::os::unix::fs::symlink("shared", directory.join("link")).unwrap();
    let keep = |ca: &str, keys: &str| {
        let pods = std::fs::read_to_string(directory.join(format!("pods-by-{ca}.yaml"))).unwrap();
        two.pki.write(&format!("pods-by-{ca}-kept.yaml"), pods + keys);
    };
    keep("a-ca", "  indexFile: shared/pods.index.jsonl\n  crlFile: shared/a.crl\n");
    for (keys, expected) in [
        ("  indexFile: shared/b.index.jsonl\n  crlFile: shared/b.crl\n", None),
        ("  indexFile: shared/pods.index.jsonl\n", Some("pods.index.jsonl")),
        ("  indexFile: ./link/pods.index.jsonl\n", Some("pods.index.jsonl")),
        ("  indexFile: shared/b.index.jsonl\n  crlFile: link/a.crl\n", Some("a.crl")),
    ] {
        keep("b-ca", keys);
        let result = two.resolve("", [&signs_pods("a-ca-kept"), &signs_pods("b-ca-kept")]);
        let Some(expected) = expected else {
            assert_eq!(result, Ok(()));
            continue;
        };
        let errors = result.expect_err(keys);
        assert!(
            errors.contains(&format!(
                "shared/{expected}\" is already used by clusters[0].controllerManager.podSignerProfiles"
            )),
            "{keys}: {errors}"
        );
    }
}

#[test]
fn signing_authorities_that_only_their_own_cluster_trusts_are_accepted() {
    let two = TwoTenants::new();
    let own = [signs("a-ca") + &trusts("a-ca"), signs("b-ca") + &trusts("b-ca")];
    assert_eq!(two.resolve("", [&own[0], &own[1]]), Ok(()));
    // The gateway cannot know the use of custom signers' certificates, so clusters may share their CA.
    assert_eq!(two.resolve("", [&signs_own("a-ca"), &signs_own("a-ca")]), Ok(()));
    // The global section may enable controllers that do not sign.
    let cleaning = "controllerManager: {controllers: [csrcleaner]}\n";
    assert_eq!(two.resolve(cleaning, [&trusts("a-ca"), &trusts("a-ca")]), Ok(()));
    // A may sign with the root of B's intermediate: B trusts only certificates that the intermediate signed.
    let above = [signs("root") + &trusts("root"), trusts("below-root")];
    assert_eq!(two.resolve("", [&above[0], &above[1]]), Ok(()));
}
