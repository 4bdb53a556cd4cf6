//! TLS bootstrapping of a kubelet, from its token to the renewal of its certificate, like
//! k8s.io/kubernetes/pkg/kubelet/certificate/bootstrap. On our side, all requests pass through the gateway.
//!
//! The client then connects to the API server directly, which verifies the certificates with Go's crypto/x509.

use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::FutureExt as _;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::pki::{Issued, Key, KeyKind};

use crate::case::{CSRS, KUBELET, SERVING, is_signed};
use crate::client::{Api, escaped, text};
use crate::clusters::{Cluster, Clusters, Side, unique};
use crate::scenario::Scenario;

const GROUP: &str = "kubelet";
const FLOW: &str = "kubelet/certificate/bootstrap/bootstrap.go: LoadClientCert, requestNodeCertificate";
const ROTATION: &str = "client-go/util/certificate: the manager renews with its current certificate";

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A node and its cluster.
struct Node<'a> {
    clusters: &'a Clusters,
    cluster: &'a Cluster,
    name: String,
    kind: KeyKind,
}

impl Node<'_> {
    /// A client of the gateway, or of the API server on sides without one.
    fn api(&self, certificate: Option<&Issued>) -> Api {
        let address = self.cluster.gateway.unwrap_or(self.cluster.server);
        Api::new(address, &self.clusters.authorities.servers, certificate)
    }

    /// Creates a bootstrap token, and waits until the authenticator accepts it.
    async fn token(&self) -> Result<String, String> {
        let id = format!("k{:05}", unique());
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}")},
            "stringData": {"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:workers"},
        });
        self.cluster.api.post("/api/v1/namespaces/kube-system/secrets", &secret).await?.ok()?;
        let token = format!("{id}.0123456789abcdef");
        let api = self.api(None).with_token(&token);
        // The authenticator's informer receives the secret with a delay.
        testkit::real::eventually("authentication with the token", async || {
            Ok(api.get("/api").await?.status != 401)
        })
        .await?;
        Ok(token)
    }

    fn usages(&self, auth: &str) -> Vec<String> {
        let mut usages = vec!["digital signature".to_owned(), auth.to_owned()];
        if self.kind == KeyKind::Rsa2048 {
            usages.push("key encipherment".to_owned());
        }
        usages
    }

    /// Creates the request with the kubelet's credentials, and waits until it is approved and signed.
    async fn request(&self, api: &Api, key: &Arc<Key>) -> Result<(Issued, Value), String> {
        let csr = Csr::node(&self.name).with_key(Arc::clone(key));
        // The kubelet derives the name of the request from its key: mixed case, `_` and `-`.
        let name = digest::digest(&digest::SHA512_256, &key.spki());
        let name = format!("node-csr-{}", URL_SAFE_NO_PAD.encode(name));
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": STANDARD.encode(csr.pem()), "signerName": KUBELET, "usages": self.usages("client auth")},
        });
        let made = api.post(CSRS, &object).await?.ok()?;
        if self.cluster.side == Side::Bare {
            return Err("no controller signs".to_owned());
        }
        self.cluster.check()?;
        let done = |object: Option<&Value>| {
            object.is_some_and(|object| {
                let approved = object["status"]["conditions"].to_string().contains("\"Approved\"");
                approved && object["status"]["certificate"].is_string()
            })
        };
        let object = api.until(CSRS, &name, done).await?.unwrap_or_default();
        if object["metadata"]["uid"] != made["metadata"]["uid"] {
            return Err("the request was replaced".to_owned());
        }
        let pem =
            STANDARD.decode(object["status"]["certificate"].as_str().unwrap_or_default()).map_err(text)?;
        let certificate = CertificateDer::from_pem_slice(&pem).map_err(|error| format!("{error:?}"))?;
        let issued = Issued { chain: vec![certificate], key: key.pkcs8(), private: Arc::clone(key) };
        let condition = &object["status"]["conditions"][0];
        let condition = json!([condition["type"], condition["reason"], condition["message"]]);
        Ok((
            issued,
            json!({"approved": condition, "by": object["spec"]["username"], "groups": object["spec"]["groups"]}),
        ))
    }

    /// The user that a certificate authenticates as, through the gateway and at the API server.
    async fn self_subject_reviews(&self, issued: &Issued) -> Result<Value, String> {
        let direct = Api::new(self.cluster.server, &self.clusters.authorities.servers, Some(issued));
        let mut users = Vec::new();
        for api in [self.api(Some(issued)), direct] {
            let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
            let answer = api.post(REVIEWS, &review).await?.ok()?;
            let mut user = answer["status"]["userInfo"].clone();
            // The credential ID, which contains the digest of the certificate.
            user["extra"] = user["extra"].as_object().map_or(0, serde_json::Map::len).into();
            users.push(user);
        }
        Ok(users.into())
    }

    /// Replaces the names that differ between two nodes by placeholders.
    fn normalized(&self, outcome: &Value) -> Result<Value, String> {
        let text = outcome.to_string().replace(&self.name, "NODE");
        let text = match text.find("system:bootstrap:k") {
            Some(at) => text.replace(&text[at..at + "system:bootstrap:k00000".len()], "BOOTSTRAP"),
            None => text,
        };
        serde_json::from_str(&text).map_err(crate::client::text)
    }
}

/// Runs the bootstrap and one renewal.
async fn from_token_to_renewal(
    clusters: &Clusters,
    cluster: &Cluster,
    kind: KeyKind,
) -> Result<Value, String> {
    let node = Node { clusters, cluster, name: format!("node-{}", unique()), kind };
    let token = node.token().await?;
    let bootstrap = node.api(None).with_token(&token);
    let key = Key::generate(kind);
    let (first, requested) = node.request(&bootstrap, &key).await?;
    let users = node.self_subject_reviews(&first).await?;
    let key = Key::generate(kind);
    let (second, renewed) = node.request(&node.api(Some(&first)), &key).await?;
    let again = node.self_subject_reviews(&second).await?;
    let outcome = json!({"asked": requested, "who": users, "renewed": renewed, "again": again});
    node.normalized(&outcome)
}

/// A node's serving certificate, approved by the administrator: a TLS client that trusts the signer's CA accepts it.
async fn serving(clusters: &Clusters, cluster: &Cluster) -> Result<Value, String> {
    let node = Node { clusters, cluster, name: format!("node-{}", unique()), kind: KeyKind::P256 };
    let token = node.token().await?;
    let (issued, _) = node.request(&node.api(None).with_token(&token), &Key::generate(KeyKind::P256)).await?;
    let api = node.api(Some(&issued));
    let key = Key::generate(KeyKind::P256);
    let csr = Csr::node(&node.name).dns("localhost").ip("127.0.0.1").with_key(Arc::clone(&key));
    let name = format!("serving-{}", unique());
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(csr.pem()), "signerName": SERVING, "usages": node.usages("server auth")},
    });
    let _signing = crate::authorities::use_default(clusters, cluster).await?;
    let mut made = api.post(CSRS, &object).await?.ok()?;
    made["status"] =
        json!({"conditions": [{"type": "Approved", "status": "True", "reason": "ByHand", "message": ""}]});
    let path = format!("{CSRS}/{}", escaped(&name));
    cluster.api.put(&format!("{path}/approval"), &made).await?.ok()?;
    let object = api.until(CSRS, &name, is_signed).await?.unwrap_or_default();
    let pem = STANDARD.decode(object["status"]["certificate"].as_str().unwrap_or_default()).map_err(text)?;
    let certificate = CertificateDer::from_pem_slice(&pem).map_err(|error| format!("{error:?}"))?;
    let authority = &clusters.authorities.signing(SERVING).ok_or("no authority")?.ca;
    let (mut names, mut refused) = (Vec::new(), Vec::new());
    for name in ["localhost", "127.0.0.1", "other.example", "127.0.0.2"] {
        match handshake(&certificate, key.pkcs8(), &authority.cert, name).await {
            Ok(()) => names.push(name),
            Err(_) => refused.push(name),
        }
    }
    Ok(json!({"taken for": names, "not for": refused}))
}

/// A TLS handshake over a pipe between a server with this certificate and a client that trusts this CA.
pub(crate) async fn handshake(
    certificate: &CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    authority: &CertificateDer<'static>,
    name: &str,
) -> Result<(), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(text)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .map_err(text)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.clone()).map_err(text)?;
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(text)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = tokio::io::duplex(65_536);
    let name = name.to_owned().try_into().map_err(|_| "not a name".to_owned())?;
    let (client, server) = (
        tokio_rustls::TlsConnector::from(Arc::new(client)),
        tokio_rustls::TlsAcceptor::from(Arc::new(server)),
    );
    let (connected, _) = tokio::join!(client.connect(name, near), server.accept(far));
    connected.map(drop).map_err(text)
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let user = json!({"username": "system:node:NODE", "groups": ["system:nodes", "system:authenticated"], "extra": 1});
    let flow = json!({
        "asked": {
            "approved": ["Approved", "AutoApproved", "Auto approving kubelet client certificate after SubjectAccessReview."],
            "by": "BOOTSTRAP",
            "groups": ["system:bootstrappers", "system:bootstrappers:workers", "system:authenticated"],
        },
        "who": [user, user],
        "renewed": {
            "approved": ["Approved", "AutoApproved", "Auto approving self kubelet client certificate after SubjectAccessReview."],
            "by": "system:node:NODE",
            "groups": ["system:nodes", "system:authenticated"],
        },
        "again": [user, user],
    });
    let names = json!({"taken for": ["localhost", "127.0.0.1"], "not for": ["other.example", "127.0.0.2"]});
    let mut scenarios: Vec<Scenario> =
        [("from a token to a renewal", KeyKind::P256), ("the same with RSA keys", KeyKind::Rsa2048)]
            .into_iter()
            .map(|(name, kind)| {
                Scenario::new(GROUP, name, FLOW, Some(flow.clone()), move |clusters, cluster| {
                    from_token_to_renewal(clusters, cluster, kind).boxed_local()
                })
            })
            .collect();
    scenarios.push(Scenario::new(
        GROUP,
        "a serving certificate",
        ROTATION,
        Some(names),
        |clusters, cluster| serving(clusters, cluster).boxed_local(),
    ));
    scenarios
}
