//! Compares the certificate signing requests that upstream's cleaner, as a Go program, and the gateway's cleaner
//! delete. Both see the same objects of an API server: hundreds of requests of all ages.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::csr::Csr;
use testkit::go_program::GoProgram;
use testkit::now;
use testkit::pki::{Ca, pem};

use crate::case::{CSRS, timestamp};
use crate::clusters::{Clusters, Side, unique};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// The last name in sort order; the cleaner deletes it last.
const LAST: &str = "cleaner-zz";

/// Values of `status.certificate`.
fn certificates() -> Vec<Option<String>> {
    let ca = Ca::new("issuer");
    let of = |begins: i64, ends: i64| {
        ca.leaf().cn("x").validity(now() + begins, now() + ends).issue().leaf().to_vec()
    };
    let (valid, expired) = (of(-DAY, DAY), of(-2 * DAY, -HOUR));
    let certificate = |der: &[u8]| pem("CERTIFICATE", der);
    vec![
        None,
        Some(certificate(&valid)),
        Some(certificate(&expired)),
        Some(certificate(&of(-DAY, -60))),
        Some(certificate(&of(-DAY, 60))),
        Some(certificate(&of(HOUR, DAY))),
        // Of several certificates, the first counts.
        Some(certificate(&expired) + &certificate(&valid)),
        Some(certificate(&valid) + &certificate(&expired)),
        Some(certificate(&[expired.clone(), valid.clone()].concat())),
        Some(certificate(&[valid.clone(), expired.clone()].concat())),
        Some(format!("issued:\n{}", certificate(&expired))),
        // The cleaner ignores the PEM label.
        Some(pem("ANYTHING", &expired)),
        Some(certificate(b"no certificate")),
        Some(certificate(&[])),
        Some("no PEM".to_owned()),
        Some(String::new()),
        Some(certificate(&expired).replace("-----END", "----END")),
    ]
}

fn condition(kind: &str, status: &str, age: Option<i64>) -> Value {
    let mut condition = json!({"type": kind, "status": status});
    if let Some(age) = age {
        condition["lastUpdateTime"] = timestamp(now() - age).into();
    }
    condition
}

fn object(name: &str, age: Option<i64>, conditions: &[Value], certificate: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "uid": format!("00000000-0000-4000-9000-{:012}", unique())},
        "spec": {"request": STANDARD.encode(Csr::new().pem()), "signerName": "example.com/signer", "usages": ["any"]},
        "status": {"conditions": conditions},
    });
    if let Some(age) = age {
        object["metadata"]["creationTimestamp"] = timestamp(now() - age).into();
    }
    if let Some(certificate) = certificate {
        object["status"]["certificate"] = STANDARD.encode(certificate).into();
    }
    object
}

/// The cases of `cleaner_test.go` (`TestCleanerWithApprovedExpiredCSR`), and others for the six rules.
fn table() -> Vec<Value> {
    let certificates = certificates();
    let mut objects = Vec::new();
    let mut add = |age: Option<i64>, conditions: &[Value], certificate: Option<&str>| {
        let name = format!("cleaner-a{:05}", unique());
        objects.push(object(&name, age, conditions, certificate));
    };
    // Two minutes on either side of every threshold, and objects without times.
    let around = [HOUR - 120, HOUR + 120, DAY - 120, DAY + 120, 30 * DAY, -HOUR];
    let ages: Vec<Option<i64>> = around.into_iter().map(Some).chain([None]).collect();
    for age in &ages {
        add(*age, &[], None);
        add(*age, &[condition("Custom", "True", Some(30 * DAY))], None);
        for certificate in &certificates {
            add(Some(60), &[condition("Approved", "True", *age)], certificate.as_deref());
        }
        for (kind, status) in
            [("Denied", "True"), ("Failed", "True"), ("Failed", "False"), ("Custom", "True")]
        {
            add(Some(60), &[condition(kind, status, *age)], None);
            add(Some(60), &[condition(kind, status, *age)], certificates[1].as_deref());
            add(Some(60), &[condition("Custom", "True", None), condition(kind, status, *age)], None);
            add(Some(60), &[condition("Approved", "True", Some(60)), condition(kind, status, *age)], None);
            add(Some(60), &[condition(kind, status, *age), condition("Approved", "False", Some(60))], None);
        }
        add(*age, &[], certificates[2].as_deref());
        add(Some(60), &[condition("Approved", "False", *age)], certificates[2].as_deref());
        add(Some(60), &[condition("Denied", "True", Some(60))], certificates[2].as_deref());
        add(Some(60), &[condition("Approved", "True", *age), condition("Approved", "True", Some(60))], None);
    }
    objects
}

/// Random objects from a fixed seed.
fn generated(count: usize) -> Vec<Value> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % limit
    };
    let certificates = certificates();
    let ages =
        [None, Some(0), Some(60), Some(HOUR - 120), Some(HOUR + 120), Some(DAY - 120), Some(DAY + 120)];
    let mut objects = Vec::new();
    for _ in 0..count {
        let conditions: Vec<Value> = (0..below(4))
            .map(|_| {
                let kind = ["Approved", "Denied", "Failed", "Custom"][below(4)];
                condition(kind, ["True", "False", "Unknown"][below(3)], ages[below(ages.len())])
            })
            .collect();
        let (age, certificate) =
            (ages[below(ages.len())], certificates[below(certificates.len())].as_deref());
        objects.push(object(&format!("cleaner-b{:05}", unique()), age, &conditions, certificate));
    }
    objects
}

/// The names of the objects that upstream's cleaner deletes.
fn upstream(program: &GoProgram, objects: &Value) -> BTreeSet<String> {
    let output = program.run(&[], objects.to_string().as_bytes());
    String::from_utf8_lossy(&output).lines().map(str::to_owned).collect()
}

async fn stored_names(clusters: &Clusters) -> Result<BTreeSet<String>, String> {
    let list = clusters.cluster(Side::Bare)?.api.get(CSRS).await?.ok()?;
    let names = list["items"].as_array().into_iter().flatten();
    let names = names.filter_map(|object| object["metadata"]["name"].as_str());
    Ok(names.filter(|name| name.starts_with("cleaner-")).map(str::to_owned).collect())
}

/// Runs both cleaners on the objects of the cluster without controllers.
pub(crate) async fn compare(clusters: &Clusters) -> Result<(), String> {
    let program = GoProgram::build("cleaner").ok_or("Go is required here")?;
    let cluster = clusters.cluster(Side::Bare)?;
    let mut objects = table();
    let rows = objects.len();
    objects.extend(generated(600));
    objects.push(object(LAST, Some(2 * DAY), &[], None));
    for some in objects.chunks(50) {
        let storing = some.iter().map(|object| {
            clusters.store(Side::Bare, object["metadata"]["name"].as_str().unwrap_or_default(), object)
        });
        futures_util::future::try_join_all(storing).await?;
    }
    // Both cleaners see the objects as the API server returns them.
    let list = cluster.api.get(CSRS).await?.ok()?;
    let items: Vec<Value> = list["items"].as_array().cloned().unwrap_or_default();
    let items = items
        .into_iter()
        .filter(|item| item["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("cleaner-")));
    let items = Value::Array(items.collect());
    let before = stored_names(clusters).await?;
    if before.len() != objects.len() {
        return Err(format!("{} of {} requests are stored", before.len(), objects.len()));
    }
    let expected = upstream(&program, &items);
    let flags = ["--leader-elect=false".to_owned(), "--controllers=csrcleaner".to_owned()];
    let gateway = clusters.starter().gateway("gateway-cleaner", cluster.server, &flags).await?;
    cluster.api.until(CSRS, LAST, |object| object.is_none()).await?;
    let after = stored_names(clusters).await?;
    drop(gateway);
    let deleted: BTreeSet<String> = before.difference(&after).cloned().collect();
    // The rules must delete some objects of the table and keep others; otherwise its ages are wrong.
    let of_table =
        |names: &BTreeSet<String>| names.iter().filter(|name| name.starts_with("cleaner-a")).count();
    if of_table(&expected) < rows / 5 || of_table(&expected) > rows * 4 / 5 {
        return Err(format!("upstream deletes {} of {rows} in the table", of_table(&expected)));
    }
    let describe = |names: Vec<&String>| {
        let items = items.as_array().into_iter().flatten();
        let found = items.filter(|item| names.iter().any(|name| item["metadata"]["name"] == name.as_str()));
        let line = |item: &Value| format!("{} {}", item["metadata"], item["status"]);
        found.take(5).map(line).collect::<Vec<_>>().join("\n    ")
    };
    let (more, less) = (
        deleted.difference(&expected).collect::<Vec<_>>(),
        expected.difference(&deleted).collect::<Vec<_>>(),
    );
    if more.is_empty() && less.is_empty() {
        return Ok(());
    }
    Err(format!(
        "of {} requests, upstream deletes {}, we {}; only we, {}:\n    {}\n  only upstream, {}:\n    {}",
        before.len(),
        expected.len(),
        deleted.len(),
        more.len(),
        describe(more),
        less.len(),
        describe(less)
    ))
}
