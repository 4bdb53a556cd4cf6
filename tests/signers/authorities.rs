//! Replacement of a signing CA by other kinds of CAs while the controllers run and reload its files
//! (`signer/ca_provider.go`, `authority/authority_test.go`).

use std::fs;
use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::now;
use testkit::pki::{self, Ca, KeyKind, integer, octets, oid, pem, seq, string, tlv};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use crate::case::{CSRS, Case, Outcome, SERVING, case, is_signed, timestamp};
use crate::certificate::all;
use crate::clusters::{Cluster, Clusters, Side};
use crate::scenario::Scenario;
use testkit::real::eventually;

const GROUP: &str = "authorities";
const SIGNS: &str = "authority_test.go: TestCertificateAuthority; ca_provider.go: currentCA";
const EXPIRED: &str = "authority.go: Sign, when the authority has expired";
const FLAG: &str = "kubelet-serving";

/// A CA and the contents of its certificate and key files.
#[derive(Clone)]
struct Files {
    ca: Ca,
    certificate: String,
    key: String,
}

impl Files {
    fn of(ca: Ca) -> Self {
        Self { certificate: ca.cert_pem(), key: ca.key_pem(), ca }
    }

    fn write(&self, clusters: &Clusters, cluster: &Cluster) -> Result<(), String> {
        let (certificate, key) = cluster.signing_files(&clusters.dir, FLAG);
        fs::write(certificate, &self.certificate)
            .and_then(|()| fs::write(key, &self.key))
            .map_err(|e| e.to_string())
    }
}

fn kubelet_serving_case(name: &str) -> Case {
    case(GROUP, "", "", &Csr::node(name).dns("node.example").ip("192.0.2.1")).serving()
}

/// Restores the default CAs. No test replaces them while the guard is held.
pub(crate) async fn use_default<'a>(
    clusters: &Clusters,
    cluster: &'a Cluster,
) -> Result<RwLockReadGuard<'a, bool>, String> {
    let read = cluster.signing.read().await;
    if !*read {
        return Ok(read);
    }
    drop(read);
    let mut exchanged = cluster.signing.write().await;
    restore(clusters, cluster, &mut exchanged).await?;
    Ok(exchanged.downgrade())
}

async fn restore(clusters: &Clusters, cluster: &Cluster, exchanged: &mut bool) -> Result<(), String> {
    if *exchanged {
        let files = Files::of(clusters.authorities.signing(SERVING).ok_or("no authority")?.ca.clone());
        files.write(clusters, cluster)?;
        if cluster.side != Side::Bare {
            wait_for_ca(clusters, cluster, &files.ca).await?;
        }
        *exchanged = false;
    }
    Ok(())
}

/// Replaces the CA while the guard is held. The next caller of `use_default` restores it.
async fn replace<'a>(
    clusters: &Clusters,
    cluster: &'a Cluster,
    files: &Files,
) -> Result<RwLockWriteGuard<'a, bool>, String> {
    let mut exchanged = cluster.signing.write().await;
    *exchanged = true;
    files.write(clusters, cluster)?;
    Ok(exchanged)
}

/// Waits until the controller signs with this CA. It may sign more requests with the old one before.
async fn wait_for_ca(clusters: &Clusters, cluster: &Cluster, ca: &Ca) -> Result<(), String> {
    eventually("a certificate by the other CA", async || {
        let outcome = kubelet_serving_case("probe").play_with(clusters, cluster, ca).await?;
        Ok(matches!(outcome.certificate, Some(Ok(_))))
    })
    .await
}

/// Certificates that the CA issues with the default, a short and a long duration.
async fn issues(clusters: &Clusters, cluster: &Cluster, files: &Files) -> Result<Value, String> {
    if cluster.side == Side::Bare {
        return Ok(Value::Null);
    }
    let _replaced = replace(clusters, cluster, files).await?;
    wait_for_ca(clusters, cluster, &files.ca).await?;
    let mut issued = Vec::new();
    for case in [
        kubelet_serving_case("n1"),
        kubelet_serving_case("n1").expiration(3600),
        kubelet_serving_case("n1").expiration(86_400),
    ] {
        let outcome = case.play_with(clusters, cluster, &files.ca).await?;
        let Outcome { conditions, certificate: Some(Ok(certificate)) } = outcome else {
            return Err(format!("{outcome:?}"));
        };
        issued.push(json!({"conditions": conditions, "certificate": certificate.lines}));
    }
    Ok(issued.into())
}

/// Creates a request each second until the log has this message: the old CA signs requests until the files are
/// reloaded. Returns the name of the last request.
async fn wait_for_refusal(clusters: &Clusters, cluster: &Cluster, message: &str) -> Result<String, String> {
    let mut waiting = String::new();
    let mut created_at = None;
    eventually("the log message of a refusal", async || {
        if created_at != Some(now()) {
            created_at = Some(now());
            waiting = kubelet_serving_case("waits").create(clusters, cluster).await?;
        }
        let log = fs::read(&cluster.log).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&log).contains(message))
    })
    .await?;
    Ok(waiting)
}

/// A time in Go's default format.
fn go_time(time: i64) -> String {
    timestamp(time).replace('T', " ").replace('Z', " +0000 UTC")
}

/// A CA that expires in use signs nothing more. The log has upstream's message, and the next CA signs the waiting
/// request.
async fn expires(clusters: &Clusters, cluster: &Cluster) -> Result<Value, String> {
    const MESSAGE: &str = "refusing to sign a certificate that expired in the past: NotAfter";
    if cluster.side == Side::Bare {
        return Ok(Value::Null);
    }
    let waiting = {
        let mut exchanged = cluster.signing.write().await;
        *exchanged = true;
        // Leaves time for the controllers to reload the files.
        let end = now() + 10;
        let files = Files::of(Ca::build("ends").validity(now() - 86_400, end).issue_ca());
        files.write(clusters, cluster)?;
        wait_for_ca(clusters, cluster, &files.ca).await?;
        let waiting = wait_for_refusal(clusters, cluster, &format!("{MESSAGE}={}", go_time(end))).await?;
        let object = cluster.api.get(&format!("{CSRS}/{waiting}")).await?.ok()?;
        if is_signed(Some(&object)) {
            return Err(format!("the expired CA has signed: {object}"));
        }
        waiting
    };
    let _default = use_default(clusters, cluster).await?;
    cluster.api.until(CSRS, &waiting, is_signed).await?;
    Ok(json!({"log": MESSAGE}))
}

/// A CA that cannot sign valid certificates. Kubernetes uses it; the gateway keeps the previous CA and logs the reason.
async fn unsuitable(
    clusters: &Clusters,
    cluster: &Cluster,
    files: &Files,
    upstream: &str,
    ours: &str,
) -> Result<Value, String> {
    if cluster.side == Side::Bare {
        return Ok(Value::Null);
    }
    let mut exchanged = cluster.signing.write().await;
    // The previous CA must be the default one.
    restore(clusters, cluster, &mut exchanged).await?;
    *exchanged = true;
    files.write(clusters, cluster)?;
    if cluster.side == Side::Gateway {
        wait_for_refusal(clusters, cluster, ours).await?;
        let before = &clusters.authorities.signing(SERVING).ok_or("no authority")?.ca;
        return wait_for_ca(clusters, cluster, before).await.map(|()| json!("signs with the one before"));
    }
    if upstream.is_empty() {
        return wait_for_ca(clusters, cluster, &files.ca).await.map(|()| json!("signs"));
    }
    wait_for_refusal(clusters, cluster, upstream).await.map(|_| json!("signs nothing"))
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let kind = |name: &str, kind| Files::of(Ca::with_key(name, kind));
    let built = |name: &str| Ca::build(name).key(KeyKind::P256);
    let mut rows: Vec<(&str, Files)> = vec![
        ("RSA 2048", kind("rsa", KeyKind::Rsa2048)),
        ("RSA 3072", kind("rsa-3072", KeyKind::Rsa3072)),
        ("P-256", kind("p-256", KeyKind::P256)),
        ("P-384", kind("p-384", KeyKind::P384)),
        ("Ed25519", kind("ed25519", KeyKind::Ed25519)),
        ("no key identifier", Files::of(built("no-skid").skid(None).issue_ca())),
        ("a short key identifier", Files::of(built("short-skid").skid(Some(b"\x01\x02")).issue_ca())),
        (
            "a key identifier beginning with zero",
            Files::of(built("zero-skid").skid(Some(&[0; 20])).issue_ca()),
        ),
        (
            "ends in an hour and a half",
            Files::of(built("soon").validity(now() - 86_400, now() + 5400).issue_ca()),
        ),
        (
            "ends in twelve hours",
            Files::of(built("today").validity(now() - 86_400, now() + 43_200).issue_ca()),
        ),
        ("ends in 2050", Files::of(built("2050").validity(now() - 86_400, 2_524_608_000).issue_ca())),
        (
            "ends at the end of 2049",
            Files::of(built("2049").validity(now() - 86_400, 2_524_607_999).issue_ca()),
        ),
        ("an intermediate", Files::of(Ca::new("root").intermediate("middle"))),
        ("a path length of zero", Files::of(built("zero-path").path_len(0).issue_ca())),
        ("an empty subject", Files::of(Ca::build("").raw_subject(seq(&[])).key(KeyKind::P256).issue_ca())),
        ("several organizations", Files::of(built("groups").org("b").org("a").issue_ca())),
        (
            "a subject of odd strings",
            Files::of(built("odd").attr(pki::OU, string::BMP, b"\0o\0d\0d").issue_ca()),
        ),
    ];
    let mut files = kind("pkcs1", KeyKind::Rsa2048);
    files.key = pem("RSA PRIVATE KEY", &inner_key(&files.ca));
    rows.push(("a PKCS#1 key", files));
    let mut files = kind("sec1", KeyKind::P256);
    files.key = pem("EC PRIVATE KEY", &sec1(&files.ca, "1.2.840.10045.3.1.7"));
    rows.push(("a SEC 1 key", files));
    let mut files = kind("commented", KeyKind::P256);
    files.certificate = format!("# the signer\n{}# its end\n", files.certificate);
    files.key = format!("some text\n{}", files.key);
    rows.push(("text around the blocks", files));

    let mut scenarios: Vec<Scenario> = rows
        .into_iter()
        .map(|(name, files)| {
            let files = Arc::new(files);
            Scenario::new(GROUP, name, SIGNS, None, move |clusters, cluster| {
                let files = Arc::clone(&files);
                async move { issues(clusters, cluster, &files).await }.boxed_local()
            })
        })
        .collect();
    let text = json!({"log": "refusing to sign a certificate that expired in the past: NotAfter"});
    scenarios.push(Scenario::new(
        GROUP,
        "ends while it is used",
        EXPIRED,
        Some(text),
        |clusters, cluster| expires(clusters, cluster).boxed_local(),
    ));
    let ended = now() - 3600;
    let expired = Files::of(built("expired").validity(now() - 86_400, ended).issue_ca());
    let leaf = built("leaf").basic_constraints(false, None).issue_ca();
    for (name, files, reference, upstream, ours) in [
        (
            "ended an hour ago",
            expired,
            "signs nothing",
            format!("the signer has expired: NotAfter={}", go_time(ended)),
            format!("the CA certificate has expired: NotAfter={}", timestamp(ended)),
        ),
        (
            "not an authority",
            Files::of(leaf),
            "signs",
            String::new(),
            "the certificate is not a CA certificate".to_owned(),
        ),
        (
            "begins in an hour",
            Files::of(built("early").validity(now() + 3600, now() + 864_000).issue_ca()),
            "signs",
            String::new(),
            "the CA certificate is not valid yet: NotBefore=".to_owned(),
        ),
        (
            "for clients alone",
            Files::of(built("clients").eku(&["1.3.6.1.5.5.7.3.2"]).issue_ca()),
            "signs",
            String::new(),
            "the CA certificate allows client auth, but not server auth".to_owned(),
        ),
        (
            "with a critical extension that is not known",
            Files::of(built("critical").extension("1.3.6.1.4.1.55555.1", true, vec![5, 0]).issue_ca()),
            "signs",
            String::new(),
            "the certificate has a critical extension that verifiers do not support".to_owned(),
        ),
    ] {
        let files = Arc::new(files);
        let scenario =
            Scenario::new(GROUP, name, EXPIRED, Some(reference.into()), move |clusters, cluster| {
                let (files, upstream, ours) = (Arc::clone(&files), upstream.clone(), ours.clone());
                async move { unsuitable(clusters, cluster, &files, &upstream, &ours).await }.boxed_local()
            });
        scenarios.push(scenario.declared("D-unfit-authority", "signs with the one before".into()));
    }
    scenarios
}

/// The key in a PKCS#8 structure, in PKCS#1 or SEC 1 form.
fn inner_key(ca: &Ca) -> Vec<u8> {
    // The third element, after version and algorithm.
    parts(ca.key.pkcs8().secret_der())[2].clone()
}

/// RFC 5915: outside PKCS#8, the key must name its curve.
fn sec1(ca: &Ca, curve: &str) -> Vec<u8> {
    let key = &parts(&inner_key(ca))[1];
    seq(&[integer(1), octets(key), tlv(0xa0, &oid(curve)), tlv(0xa1, &pki::bits(ca.key.public()))])
}

/// The contents of a sequence's elements.
fn parts(sequence: &[u8]) -> Vec<Vec<u8>> {
    let outer = all(sequence).unwrap();
    all(outer[0].content).unwrap().iter().map(|element| element.content.to_vec()).collect()
}
