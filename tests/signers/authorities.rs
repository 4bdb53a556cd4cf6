//! Signing authorities of other kinds, put in the place of one while the controllers run: they read their files again
//! (`signer/ca_provider.go`, `authority/authority_test.go`).

use std::fs;
use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::pki::{self, Ca, KeyKind, integer, octets, oid, pem, seq, string, tlv};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use crate::case::{CSRS, Case, Outcome, SERVING, case, is_signed, now, timestamp};
use crate::certificate::all;
use crate::clusters::{Cluster, Clusters, Side};
use crate::scenario::Scenario;
use testkit::real::eventually;

const GROUP: &str = "authorities";
const SIGNS: &str = "authority_test.go: TestCertificateAuthority; ca_provider.go: currentCA";
const EXPIRED: &str = "authority.go: Sign, when the authority has expired";
const FLAG: &str = "kubelet-serving";

/// An authority as its two files.
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

fn asked(name: &str) -> Case {
    case(GROUP, "", "", &Csr::node(name).dns("node.example").ip("192.0.2.1")).serving()
}

/// The authorities are the usual ones for as long as this is held.
pub(crate) async fn usual<'a>(
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
            signs(clusters, cluster, &files.ca).await?;
        }
        *exchanged = false;
    }
    Ok(())
}

/// Puts an authority in its place, for as long as this is held. The next caller that needs the usual one restores it.
async fn exchange<'a>(
    clusters: &Clusters,
    cluster: &'a Cluster,
    files: &Files,
) -> Result<RwLockWriteGuard<'a, bool>, String> {
    let mut exchanged = cluster.signing.write().await;
    *exchanged = true;
    files.write(clusters, cluster)?;
    Ok(exchanged)
}

/// Until what is signed is signed by this authority. There may be one more by the old one.
async fn signs(clusters: &Clusters, cluster: &Cluster, ca: &Ca) -> Result<(), String> {
    eventually("the other authority", async || {
        let outcome = asked("probe").play_with(clusters, cluster, ca).await?;
        Ok(matches!(outcome.certificate, Some(Ok(_))))
    })
    .await
}

/// What it issues, for a short and for the longest life.
async fn issues(clusters: &Clusters, cluster: &Cluster, files: &Files) -> Result<Value, String> {
    if cluster.side == Side::Bare {
        return Ok(Value::Null);
    }
    let _exchanged = exchange(clusters, cluster, files).await?;
    signs(clusters, cluster, &files.ca).await?;
    let mut told = Vec::new();
    for case in [asked("n1"), asked("n1").expiration(3600), asked("n1").expiration(86_400)] {
        let outcome = case.play_with(clusters, cluster, &files.ca).await?;
        let Outcome { conditions, certificate: Some(Ok(certificate)) } = outcome else {
            return Err(format!("{outcome:?}"));
        };
        told.push(json!({"conditions": conditions, "certificate": certificate.lines}));
    }
    Ok(told.into())
}

/// Makes a request each second until the log has this line, for what was made before the files were read is signed by the old
/// one; the name of the last.
async fn refused(clusters: &Clusters, cluster: &Cluster, told: &str) -> Result<String, String> {
    let mut waiting = String::new();
    let mut asked_at = None;
    eventually("the refusal", async || {
        if asked_at != Some(now()) {
            asked_at = Some(now());
            waiting = asked("waits").create(clusters, cluster).await?;
        }
        let log = fs::read(&cluster.log).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&log).contains(told))
    })
    .await?;
    Ok(waiting)
}

/// As Go prints a time.
fn printed(time: i64) -> String {
    timestamp(time).replace('T', " ").replace('Z', " +0000 UTC")
}

/// An authority that ends while it is used signs nothing more; the log says why in upstream's words, and what was asked for is
/// signed by the next authority.
async fn ends(clusters: &Clusters, cluster: &Cluster) -> Result<Value, String> {
    const TOLD: &str = "refusing to sign a certificate that expired in the past: NotAfter";
    if cluster.side == Side::Bare {
        return Ok(Value::Null);
    }
    let waiting = {
        let mut exchanged = cluster.signing.write().await;
        *exchanged = true;
        // Long enough for the files to be read.
        let end = now() + 10;
        let files = Files::of(Ca::build("ends").validity(now() - 86_400, end).issue_ca());
        files.write(clusters, cluster)?;
        signs(clusters, cluster, &files.ca).await?;
        let waiting = refused(clusters, cluster, &format!("{TOLD}={}", printed(end))).await?;
        let object = cluster.api.get(&format!("{CSRS}/{waiting}")).await?.ok()?;
        if is_signed(Some(&object)) {
            return Err(format!("signed all the same: {object}"));
        }
        waiting
    };
    let _usual = usual(clusters, cluster).await?;
    cluster.api.until(CSRS, &waiting, is_signed).await?;
    Ok(json!({"log": TOLD}))
}

/// An authority that is unfit to sign. Kubernetes accepts it; the gateway keeps the one before, and logs why.
async fn unfit(
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
    // So that it is known which is the one before.
    restore(clusters, cluster, &mut exchanged).await?;
    *exchanged = true;
    files.write(clusters, cluster)?;
    if cluster.side == Side::Gateway {
        refused(clusters, cluster, ours).await?;
        let before = &clusters.authorities.signing(SERVING).ok_or("no authority")?.ca;
        return signs(clusters, cluster, before).await.map(|()| json!("signs with the one before"));
    }
    if upstream.is_empty() {
        return signs(clusters, cluster, &files.ca).await.map(|()| json!("signs"));
    }
    refused(clusters, cluster, upstream).await.map(|_| json!("signs nothing"))
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
        |clusters, cluster| ends(clusters, cluster).boxed_local(),
    ));
    let ended = now() - 3600;
    let expired = Files::of(built("expired").validity(now() - 86_400, ended).issue_ca());
    let leaf = built("leaf").basic_constraints(false, None).issue_ca();
    for (name, files, reference, upstream, ours) in [
        (
            "ended an hour ago",
            expired,
            "signs nothing",
            format!("the signer has expired: NotAfter={}", printed(ended)),
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
                async move { unfit(clusters, cluster, &files, &upstream, &ours).await }.boxed_local()
            });
        scenarios.push(scenario.declared("D-unfit-authority", "signs with the one before".into()));
    }
    scenarios
}

/// The content of a PKCS#8 key: PKCS#1 or SEC 1.
fn inner_key(ca: &Ca) -> Vec<u8> {
    // Version, algorithm, and the octets that are wanted.
    parts(ca.key.pkcs8().secret_der())[2].clone()
}

/// RFC 5915: outside PKCS#8 the curve must be named.
fn sec1(ca: &Ca, curve: &str) -> Vec<u8> {
    let key = &parts(&inner_key(ca))[1];
    seq(&[integer(1), octets(key), tlv(0xa0, &oid(curve)), tlv(0xa1, &pki::bits(ca.key.public()))])
}

/// The contents of a sequence's elements.
fn parts(sequence: &[u8]) -> Vec<Vec<u8>> {
    let outer = all(sequence).unwrap();
    all(outer[0].content).unwrap().iter().map(|element| element.content.to_vec()).collect()
}
