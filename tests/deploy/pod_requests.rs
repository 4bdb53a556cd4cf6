//! A pod with a request for its certificate, as a kubelet writes it, and the signer in the gateway.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::csr::Csr;

use crate::cluster::Running;

/// The file of the signer, which `rbac-pod-certificates.yaml` names. Its rule reads the namespace.
pub(crate) fn write_signer(running: &Running) -> String {
    let file = |name: &str| running.dir.join(name);
    let signers = "apiVersion: portcullis.dev/v1alpha1\nkind: PodSignerProfiles\nsigners:\n\
        - signerName: example.com/workload\n  certFile: pki/ca.crt\n  keyFile: pki/ca.key\n  usages: [server auth]\n  \
        indexFile: pods.index.jsonl\n  crlFile: pods.crl\n  rules: [{expression: 'namespaceObject.metadata.name == \"default\"'}]\n  dnsNames: '[\"a.example.com\"]'\n";
    fs::write(file("pod-signers.yaml"), signers).unwrap();
    file("pod-signers.yaml").display().to_string()
}

/// Creates the node, the pod of the service account `app`, and the request.
pub(crate) fn create(running: &Running, name: &str) -> Result<(), String> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"nodeName": "n1", "serviceAccountName": "app", "automountServiceAccountToken": false,
            "containers": [{"name": "web", "image": "example.com/web"}],
            "volumes": [{"name": "identity", "projected": {"sources": [{"podCertificate":
                {"signerName": "example.com/workload", "keyType": "ECDSAP256", "credentialBundlePath": "a.pem"}}]}}]}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    running.apply("pod", &format!("{node}\n---\n{pod}"), &[])?;
    let uid = |kind: &str, name: &str| {
        running.kubectl(&["get", kind, name, "--output=jsonpath={.metadata.uid}"]).map(Value::from)
    };
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "signerName": "example.com/workload",
            "podName": "web", "podUID": uid("pod", "web")?,
            "serviceAccountName": "app", "serviceAccountUID": uid("serviceaccount", "app")?,
            "nodeName": "n1", "nodeUID": uid("node", "n1")?,
            "stubPKCS10Request": BASE64_STANDARD.encode(Csr::new().der()),
        },
    });
    running.apply("pod-request", &request.to_string(), &[]).map(drop)
}
