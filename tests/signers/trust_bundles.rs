//! The CAs that the gateway publishes as `ClusterTrustBundle`s, on a real API server: what a pod reads of them, through a
//! rotation; bundles of others; and the end of a bundle.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::go_program::GoProgram;
use testkit::now;
use testkit::pki::{Ca, pem};
use testkit::real::eventually;

use crate::case::CSRS;
use crate::client::{Api, text};
use crate::clusters::{Clusters, Gateway, unique};

const BUNDLES: &str = "/apis/certificates.k8s.io/v1/clustertrustbundles";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const SERVICE: &str = "example.com/bundled";
/// A signer whose CA ends soon.
const SHORT: &str = "example.com/short";
/// A signer whose bundle exists and is another publisher's.
const THEIRS: &str = "example.com/theirs";
const SERVING: &str = "kubernetes.io/kube-apiserver-serving";

/// The files of a signer's CA.
struct SignerFiles<'a> {
    dir: &'a Path,
    name: &'static str,
}

impl SignerFiles<'_> {
    fn file(&self, end: &str) -> PathBuf {
        self.dir.join(format!("{}.{end}", self.name.replace('/', "-")))
    }

    fn write(&self, ca: &Ca) -> Result<(), String> {
        fs::write(self.file("crt"), ca.cert_pem()).map_err(text)?;
        fs::write(self.file("key"), ca.key_pem()).map_err(text)
    }

    fn profile(&self) -> Value {
        let mut profile = json!({"signerName": self.name, "certFile": self.file("crt"), "keyFile": self.file("key"),
            "commonNames": ["*"], "allowedUsages": ["client auth"], "maxDuration": "24h"});
        if self.file("next.crt").exists() {
            profile["trustAnchorsFile"] = json!(self.file("next.crt"));
        }
        profile
    }
}

fn object(signer: &str) -> String {
    format!("{BUNDLES}/{}:portcullis", signer.replace('/', ":"))
}

/// The number of certificates in the gateway's bundle of a signer; `None` without a bundle.
async fn anchors(api: &Api, signer: &str) -> Result<Option<usize>, String> {
    let answer = api.get(&object(signer)).await?;
    if answer.status == 404 {
        return Ok(None);
    }
    let bundle = answer.ok()?;
    let pem = bundle["spec"]["trustBundle"].as_str().unwrap_or_default();
    Ok(Some(pem.matches("BEGIN CERTIFICATE").count()))
}

async fn until_anchors(api: &Api, signer: &str, expected: Option<usize>) -> Result<(), String> {
    eventually(&format!("{expected:?} certificates of {signer}"), async || {
        Ok(anchors(api, signer).await? == expected)
    })
    .await
}

/// What a pod reads of a signer's bundles, by the kubelet's code: its trust anchors, and whether certificates verify.
async fn projected(
    api: &Api,
    go: &GoProgram,
    signer: &str,
    certificates: &[String],
) -> Result<Value, String> {
    let list = api.get(BUNDLES).await?.ok()?;
    let answers =
        go.ask(&[json!({"bundles": list["items"], "signer": signer, "certificates": certificates})]);
    Ok(answers[0].clone())
}

fn fingerprints(cas: &[&Ca]) -> Vec<String> {
    let of = |ca: &&Ca| {
        portcullis_go::hex::hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &ca.cert).as_ref())
    };
    let mut all: Vec<String> = cas.iter().map(of).collect();
    all.sort();
    all
}

/// The certificate of an approved request.
async fn issued(api: &Api, signer: &str) -> Result<String, String> {
    let name = format!("bundled-{}", unique());
    let request = Csr::new().cn("workload").pem();
    let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"request": STANDARD.encode(request), "signerName": signer,
        "usages": ["client auth"]}});
    let mut created = api.post(CSRS, &body).await?.ok()?;
    created["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
    let at = format!("{CSRS}/{name}");
    api.put(&format!("{at}/approval"), &created).await?.ok()?;
    let mut certificate = String::new();
    eventually("a certificate", async || {
        let object = api.get(&at).await?.ok()?;
        object["status"]["certificate"].as_str().unwrap_or_default().clone_into(&mut certificate);
        Ok(!certificate.is_empty())
    })
    .await?;
    String::from_utf8(STANDARD.decode(&certificate).map_err(text)?).map_err(text)
}

async fn start(
    clusters: &Clusters,
    server: SocketAddr,
    signers: &[&SignerFiles<'_>],
    name: &str,
) -> Result<Gateway, String> {
    let profiles = clusters.dir.join(format!("{name}.yaml"));
    let listed: Vec<Value> = signers.iter().map(|signer| signer.profile()).collect();
    let file = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "SignerProfiles", "signers": listed});
    fs::write(&profiles, file.to_string()).map_err(text)?;
    let flags = [
        "--controllers=csrsigning,clustertrustbundle-publishing".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--signer-profiles={}", profiles.display()),
        format!("--cluster-trust-bundle-serving-ca-file={}", clusters.dir.join("servers-ca.crt").display()),
    ];
    clusters.starter().gateway(name, server, &flags).await
}

/// Grants `sign` and `attest` for the signers of this test.
async fn grant(api: &Api) -> Result<(), String> {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "bundled-signers"}, "rules": [{"apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"], "resourceNames": [SERVICE, SHORT, THEIRS], "verbs": ["sign", "attest"]}]});
    api.post(&format!("{RBAC}/clusterroles"), &role).await?.ok()?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "bundled-signers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bundled-signers"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:portcullis"}]});
    api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await?.ok().map(drop)
}

fn foreign(name: &str, signer: &str, ca: &Ca) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": {"name": name},
        "spec": {"signerName": signer, "trustBundle": pem("CERTIFICATE", &ca.cert)}})
}

pub(crate) async fn published(clusters: &Clusters) -> Result<(), String> {
    let Some(go) = GoProgram::build("trustbundles") else { return Ok(()) };
    // A cluster of its own: the transcripts of the documentation list all requests of the others.
    let starter = clusters.starter();
    let (server, _process) = starter.apiserver("bundled").await?;
    let api = &Api::new(server, &clusters.authorities.servers, Some(&clusters.authorities.admin));
    starter.grant(api).await?;
    grant(api).await?;
    let [service, short, theirs] =
        [SERVICE, SHORT, THEIRS].map(|name| SignerFiles { dir: &clusters.dir, name });
    let (old, new, other) = (Ca::new("bundled-old"), Ca::new("bundled-new"), Ca::new("theirs"));
    service.write(&old)?;
    fs::write(service.file("next.crt"), old.cert_pem()).map_err(text)?;
    theirs.write(&Ca::new("ours"))?;
    let end = now() + 30;
    short.write(&Ca::build("short").validity(now() - 3600, end).issue_ca())?;
    // What other publishers have made: one under a name of the gateway's, one beside it.
    let taken = foreign("example.com:theirs:portcullis", THEIRS, &other);
    let beside = foreign("kubernetes.io:kube-apiserver-serving:other", SERVING, &other);
    for bundle in [&taken, &beside] {
        api.post(BUNDLES, bundle).await?.ok()?;
    }

    // Published, as a pod reads it.
    let gateway = start(clusters, server, &[&service, &short, &theirs], "bundles").await?;
    for signer in [SERVICE, SHORT, SERVING] {
        until_anchors(api, signer, Some(1)).await?;
    }
    let before = issued(api, SERVICE).await?;
    let view = projected(api, &go, SERVICE, std::slice::from_ref(&before)).await?;
    equal("one CA", &view, &json!({"error": "", "anchors": fingerprints(&[&old]), "verified": [""]}))?;
    let view = projected(api, &go, SERVING, &[]).await?;
    let servers = fingerprints(&[&clusters.authorities.servers, &other]);
    equal("beside another publisher", &view, &json!({"error": "", "anchors": servers, "verified": null}))?;

    // The next CA is published before it signs.
    fs::write(service.file("next.crt"), new.cert_pem()).map_err(text)?;
    until_anchors(api, SERVICE, Some(2)).await?;
    if !signed_by(&issued(api, SERVICE).await?, "bundled-old") {
        return Err("the next CA has signed before its time".to_owned());
    }

    // Rotated: both, and certificates of both verify.
    service.write(&new)?;
    let mut after = String::new();
    eventually("a certificate of the new CA", async || {
        after = issued(api, SERVICE).await?;
        let view = projected(api, &go, SERVICE, std::slice::from_ref(&after)).await?;
        Ok(view["verified"][0] == "" && signed_by(&after, "bundled-new"))
    })
    .await?;
    let view = projected(api, &go, SERVICE, &[before.clone(), after]).await?;
    equal(
        "two CAs",
        &view,
        &json!({"error": "", "anchors": fingerprints(&[&old, &new]), "verified": ["", ""]}),
    )?;

    // The bundle of a signer that is gone stays while a certificate may need it.
    drop(gateway);
    let gateway = start(clusters, server, &[&theirs], "bundles-later").await?;
    until_anchors(api, SHORT, None).await?;
    if now() < end {
        return Err(format!("the bundle of {SHORT} was deleted before the end of its CA"));
    }
    let view = projected(api, &go, SERVICE, &[before]).await?;
    equal("a signer that is gone", &view["anchors"], &json!(fingerprints(&[&old, &new])))?;

    // Bundles of others are as they were.
    for bundle in [&taken, &beside] {
        let name = bundle["metadata"]["name"].as_str().unwrap_or_default();
        let found = api.get(&format!("{BUNDLES}/{name}")).await?.ok()?;
        equal(name, &found["spec"], &bundle["spec"])?;
        equal(name, &found["metadata"]["labels"], &Value::Null)?;
    }
    let log = fs::read_to_string(clusters.dir.join("bundles-later.log")).map_err(text)?;
    if !log.contains("it exists without the gateway's label") {
        return Err(format!("the log does not name the bundle of another publisher: {log}"));
    }
    drop(gateway);
    Ok(())
}

/// Whether the issuer of a certificate has this CN.
fn signed_by(certificate: &str, name: &str) -> bool {
    let body: String = certificate.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(body).unwrap_or_default();
    der.windows(name.len()).any(|window| window == name.as_bytes())
}

fn equal(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found}, expected {expected}")) }
}
