//! The controllers of a gateway, against a fake API server that stores objects.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::{Value, json};
use testkit::config_reload::replace;
use testkit::fake_cluster::FakeCluster;
use testkit::pki::{Key, KeyKind};
use testkit::{FakeBackend, Gateway, Pki, flags};

use crate::gateway::InProcess as _;

mod audit;
mod election;
mod mistakes;
mod pod_signers;
mod published;
mod request_flood;
mod requests;
mod tenants;

/// A gateway with controllers, whose signers use the client CA.
struct ControllerGateway {
    pki: Pki,
    cluster: Arc<FakeCluster>,
    backend: FakeBackend,
}

const LEASE: &str = "portcullis-controllers";

impl ControllerGateway {
    async fn new() -> Self {
        let (pki, cluster) = (Pki::new(), FakeCluster::new());
        pki.write("ca.crt", pki.clients.cert_pem());
        pki.write("ca.key", pki.clients.key_pem());
        let backend = cluster.serve(&pki).await;
        Self { pki, cluster, backend }
    }

    /// A gateway with these controllers and additional flags.
    fn gateway(&self, controllers: &str, further: &[&str]) -> Gateway {
        Gateway::with(self.flags(controllers, further))
    }

    fn flags(&self, controllers: &str, further: &[&str]) -> Vec<String> {
        let mut flags = flags(&self.pki, self.backend.address);
        let file = |name: &str| self.pki.directory.path().join(name).display().to_string();
        flags.push(format!("--controllers={controllers}"));
        flags.push(format!("--cluster-signing-cert-file={}", file("ca.crt")));
        flags.push(format!("--cluster-signing-key-file={}", file("ca.key")));
        flags.extend(further.iter().map(|flag| flag.replace("DIR", &self.path().display().to_string())));
        flags
    }

    fn path(&self) -> &Path {
        self.pki.directory.path()
    }
}

/// A certificate signing request and its key.
struct TestCsr {
    key: Arc<Key>,
    spec: Value,
}

impl TestCsr {
    /// A kubelet's request for its client certificate.
    fn node(name: &str) -> Self {
        Self::of(
            "kubernetes.io/kube-apiserver-client-kubelet",
            &format!("system:node:{name}"),
            &["system:nodes"],
            &[],
        )
    }

    fn of(signer: &str, name: &str, organizations: &[&str], dns: &[&str]) -> Self {
        Self::with_key(KeyKind::P256, signer, name, organizations, dns)
    }

    fn with_key(kind: KeyKind, signer: &str, name: &str, organizations: &[&str], dns: &[&str]) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        for organization in organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        params.subject_alt_names =
            dns.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
        let key = Key::generate(kind);
        let pair = KeyPair::from_pem(&key.pem()).unwrap();
        let request = params.serialize_request(&pair).unwrap().pem().unwrap();
        let spec = json!({
            "request": BASE64_STANDARD.encode(request), "signerName": signer, "username": name,
            "usages": ["digital signature", "client auth"],
        });
        Self { key, spec }
    }
}

fn approved() -> Value {
    json!({"conditions": [{"type": "Approved", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}]})
}

fn is_issued(status: &Value) -> bool {
    status["certificate"].is_string()
}

/// The condition of this type.
fn condition(status: &Value, kind: &str) -> Option<Value> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

/// The certificate in a status, PEM.
fn certificate(status: &Value) -> String {
    let bytes = BASE64_STANDARD.decode(status["certificate"].as_str().unwrap()).unwrap();
    String::from_utf8(bytes).unwrap()
}
