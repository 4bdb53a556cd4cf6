//! Where a CA is trusted: files, and objects of a cluster, that have its certificate in any form, PEM or the base64 of PEM.
//! Secrets are not read.

use std::path::{Path, PathBuf};

use http::Request;
use portcullis_go::json::JsonValue;
use portcullis_go::{base64, pem};
use portcullis_pki::x509::certificate::Certificate;
use serde::Serialize;
use serde_json::Value;

use super::super::super::cluster::{ClusterClient, ClusterFlags};
use super::super::error::CommandError;
use super::super::named_file;
use crate::output::runtime;

/// The objects that hold CA certificates, by the paths of their collections.
const COLLECTIONS: [&str; 8] = [
    "/apis/certificates.k8s.io/v1/clustertrustbundles",
    "/apis/certificates.k8s.io/v1beta1/clustertrustbundles",
    "/api/v1/namespaces/kube-system/configmaps",
    "/api/v1/namespaces/kube-public/configmaps",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
];
/// The maximum number of files that are searched.
const MAX_FILES: usize = 10_000;
/// The shortest text that can be a certificate in base64.
const MIN_ENCODED: usize = 100;

/// A place that trusts the CA, or that could not be searched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrustPlace {
    pub(super) place: String,
    pub(super) finding: Finding,
}

/// What a place has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Finding {
    /// The certificate of the CA.
    Certificate,
    /// Another certificate with the same name and key, such as before or after a renewal.
    SameKey,
    /// It could not be searched.
    NotRead(String),
}

/// What a text has of the CA.
pub(super) fn finding_in(text: &[u8], ca: &Certificate) -> Option<Finding> {
    let mut found = pem::authorities(text);
    let tokens = text.split(|octet| octet.is_ascii_whitespace() || b"\"',{}[]".contains(octet));
    for token in tokens.filter(|token| token.len() >= MIN_ENCODED) {
        let decoded = std::str::from_utf8(token).ok().and_then(|token| base64::decode(token).ok());
        found.extend(pem::authorities(&decoded.unwrap_or_default()));
    }
    let mut same_key = None;
    for der in found {
        if der == ca.der {
            return Some(Finding::Certificate);
        }
        let Ok(other) = Certificate::parse(der) else { continue };
        if other.raw_subject == ca.raw_subject && other.spki == ca.spki {
            same_key = Some(Finding::SameKey);
        }
    }
    same_key
}

/// The files that have the CA, among these and those in these directories.
pub(super) fn in_files(paths: &[PathBuf], ca: &Certificate) -> Vec<TrustPlace> {
    let (mut found, mut pending, mut count) = (Vec::new(), paths.to_vec(), 0);
    pending.reverse();
    while let Some(path) = pending.pop() {
        let place = path.display().to_string();
        count += 1;
        if count > MAX_FILES {
            let problem = format!("more than {MAX_FILES} files: search fewer at a time");
            found.push(TrustPlace { place, finding: Finding::NotRead(problem) });
            break;
        }
        let finding = if path.is_dir() {
            match children(&path) {
                Ok(mut children) => {
                    pending.append(&mut children);
                    None
                }
                Err(error) => Some(Finding::NotRead(error.to_string())),
            }
        } else {
            match named_file::read(&path) {
                Ok(content) => finding_in(&content, ca),
                Err(error) => Some(Finding::NotRead(error.to_string())),
            }
        };
        found.extend(finding.map(|finding| TrustPlace { place, finding }));
    }
    found
}

/// The entries of a directory in reverse order. Links are not followed: they would lead around in circles.
fn children(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let is_link = entry.file_type()?.is_symlink();
        if !is_link {
            children.push(entry.path());
        }
    }
    children.sort();
    children.reverse();
    Ok(children)
}

/// The objects of a cluster that have the CA.
pub(super) fn in_cluster(flags: &ClusterFlags, ca: &Certificate) -> Result<Vec<TrustPlace>, CommandError> {
    let failed = |error: &dyn std::fmt::Display| CommandError::Failed(error.to_string());
    let runtime = runtime().map_err(|error| failed(&error))?;
    runtime.block_on(async {
        let cluster = flags.connect().await.map_err(|error| failed(&error))?;
        let mut found = Vec::new();
        for path in COLLECTIONS {
            match list(&cluster, path).await {
                Ok(items) => found.extend(items.iter().filter_map(|item| of_item(path, item, ca))),
                // Not served by this release, or in another version.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    let problem = cluster.refusal("list it", &error);
                    found.push(TrustPlace { place: path.to_owned(), finding: Finding::NotRead(problem) });
                }
            }
        }
        // Both versions have the same bundles.
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|place| seen.insert(place.place.clone()));
        Ok(found)
    })
}

async fn list(cluster: &ClusterClient, path: &str) -> kube::Result<Vec<Value>> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let text = cluster.client.request_text(request).await?;
    let JsonValue(list) = serde_json::from_str::<JsonValue>(&text).map_err(kube::Error::SerdeError)?;
    Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// What an object has, in any of its texts.
fn of_item(path: &str, item: &Value, ca: &Certificate) -> Option<TrustPlace> {
    let mut texts = Vec::new();
    collect(item, &mut texts);
    let mut findings = texts.iter().filter_map(|text| finding_in(text.as_bytes(), ca));
    let first = findings.next()?;
    let has_certificate =
        first == Finding::Certificate || findings.any(|other| other == Finding::Certificate);
    let finding = if has_certificate { Finding::Certificate } else { first };
    let metadata = |key: &str| item.pointer(&format!("/metadata/{key}")).and_then(Value::as_str);
    let kind = path.rsplit('/').next().unwrap_or_default();
    let namespace = metadata("namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let place = format!("{kind} {namespace}{}", metadata("name").unwrap_or_default());
    Some(TrustPlace { place, finding })
}

fn collect<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Object(members) => members.values().for_each(|member| collect(member, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::pki::Ca;

    use super::*;

    fn parsed(ca: &Ca) -> Certificate {
        Certificate::parse(ca.cert.clone()).unwrap()
    }

    #[test]
    fn a_ca_is_found_in_each_form_in_which_kubernetes_has_it() {
        let (ca, other) = (Ca::new("ca"), Ca::new("ca"));
        let (pem, encoded) = (ca.cert_pem(), base64::encode(ca.cert_pem().as_bytes()));
        let cases = [
            (pem.clone(), Some(Finding::Certificate)),
            (other.cert_pem() + &pem, Some(Finding::Certificate)),
            (
                format!("clusters:\n- cluster: {{certificate-authority-data: {encoded}}}\n"),
                Some(Finding::Certificate),
            ),
            (format!("caBundle: \"{encoded}\""), Some(Finding::Certificate)),
            (other.cert_pem(), None),
            (base64::encode(other.cert_pem().as_bytes()), None),
            (encoded.chars().skip(4).collect(), None),
            ("x".repeat(500), None),
            (String::new(), None),
        ];
        for (text, expected) in cases {
            assert_eq!(finding_in(text.as_bytes(), &parsed(&ca)), expected, "{text}");
        }
        let renewed = Ca::build("ca").with_key(std::sync::Arc::clone(&ca.key)).issue_ca();
        assert_eq!(finding_in(renewed.cert_pem().as_bytes(), &parsed(&ca)), Some(Finding::SameKey));
        let both = renewed.cert_pem() + &pem;
        assert_eq!(finding_in(both.as_bytes(), &parsed(&ca)), Some(Finding::Certificate));
    }

    #[test]
    fn directories_are_searched_and_what_cannot_be_read_is_named() {
        let (ca, directory) = (Ca::new("ca"), tempfile::tempdir().unwrap());
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(path("a/b")).unwrap();
        std::fs::write(path("a/b/ca.crt"), ca.cert_pem()).unwrap();
        std::fs::write(path("a/other"), "nothing").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("..", path("a/circle")).unwrap();
        let found = in_files(&[path("a"), path("absent")], &parsed(&ca));
        let places: Vec<&str> = found.iter().map(|found| found.place.as_str()).collect();
        assert_eq!(places, [path("a/b/ca.crt").display().to_string(), path("absent").display().to_string()]);
        assert_eq!(found[0].finding, Finding::Certificate);
        assert!(matches!(found[1].finding, Finding::NotRead(_)));
    }

    #[test]
    fn objects_are_found_by_any_of_their_texts() {
        let ca = Ca::new("ca");
        let bundle = base64::encode(ca.cert_pem().as_bytes());
        let webhook =
            json!({"metadata": {"name": "w"}, "webhooks": [{"clientConfig": {"caBundle": bundle}}]});
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let found = of_item(path, &webhook, &parsed(&ca)).unwrap();
        assert_eq!(found.place, "validatingwebhookconfigurations w");
        let map = json!({"metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {"client-ca-file": ca.cert_pem()}});
        let found = of_item(COLLECTIONS[2], &map, &parsed(&ca)).unwrap();
        assert_eq!(found.place, "configmaps kube-system/extension-apiserver-authentication");
        assert_eq!(of_item(COLLECTIONS[2], &json!({"metadata": {"name": "x"}}), &parsed(&ca)), None);
    }
}
