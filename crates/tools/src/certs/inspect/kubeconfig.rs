//! Inspects kubeconfigs: the CA of each cluster and the certificate of each user, embedded or in files. Names the other
//! kinds of credentials, and never prints them.

use std::path::Path;

use kube::config::Kubeconfig;
use portcullis_go::base64;
use portcullis_kubernetes::kubeconfig::unreadable;
use portcullis_system::clock::UnixTime;
use secrecy::ExposeSecret;

use super::super::error::CommandError;
use super::certificate::IntendedUse;
use super::{Facts, Findings, InspectedItem, material};
use crate::certs::named_file;

/// Inspects every cluster and user of a kubeconfig.
pub(super) fn inspect(
    path: &Path,
    bytes: &[u8],
    now: UnixTime,
    findings: &mut Findings,
) -> Result<(), CommandError> {
    let name = path.display();
    let unknown = |problem: String| {
        CommandError::about(
            &name,
            format!(
                "neither PEM, DER nor a kubeconfig ({problem}); give a certificate, request, key or kubeconfig (convert \
                 PKCS#12 or PKCS#7 with `openssl pkcs12 -in FILE` or `openssl pkcs7 -print_certs -in FILE`)"
            ),
        )
    };
    // `kube` panics on truncated UTF-16.
    if str::from_utf8(bytes).is_err() {
        return Err(unknown("it is not text".to_owned()));
    }
    let parsed = match str::from_utf8(bytes) {
        Ok(text) if path == Path::new("-") => Kubeconfig::from_yaml(text),
        _ => Kubeconfig::read_from(path),
    };
    let config = parsed.map_err(|error| unknown(unreadable(&error)))?;
    if config.clusters.is_empty() && config.auth_infos.is_empty() {
        return Err(unknown("it has no clusters and no users".to_owned()));
    }
    let base = path.parent();
    for named in &config.clusters {
        let item = format!("{name}, cluster {}", named.name);
        let Some(cluster) = &named.cluster else { continue };
        let mut facts: Facts = vec![("server", cluster.server.clone().unwrap_or_default().into())];
        if cluster.insecure_skip_tls_verify == Some(true) {
            findings.error(
                &item,
                "insecure-skip-tls-verify: any attacker on the network can impersonate the server; give its CA instead",
            );
        }
        let data = cluster.certificate_authority_data.as_deref();
        let file = cluster.certificate_authority.as_deref();
        let held = held(data, file, base);
        if held.is_none() {
            facts.push(("CA", "none: the system's CAs are used".into()));
        }
        findings.items.push(InspectedItem { kind: "cluster", name: item.clone(), facts });
        look(&item, "certificate-authority", held, None, now, findings);
    }
    for named in &config.auth_infos {
        let item = format!("{name}, user {}", named.name);
        let Some(user) = &named.auth_info else { continue };
        let certificate =
            held(user.client_certificate_data.as_deref(), user.client_certificate.as_deref(), base);
        let key_data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        let key = held(key_data, user.client_key.as_deref(), base);
        let others = [
            (user.token.is_some(), "a token"),
            (user.token_file.is_some(), "a token file"),
            (user.exec.is_some(), "an exec plugin"),
            (user.auth_provider.is_some(), "an auth provider"),
            (user.username.is_some() || user.password.is_some(), "a user name and password"),
        ];
        let others = others.iter().filter(|(given, _)| *given).map(|(_, what)| ("has", (*what).into()));
        findings.items.push(InspectedItem { kind: "user", name: item.clone(), facts: others.collect() });
        match (&certificate, &key) {
            (Some(_), None) => findings.error(&item, "a client certificate without its client-key"),
            (None, Some(_)) => findings.error(&item, "a client-key without its client certificate"),
            _ => {}
        }
        let mut pieces = read(&item, "client-certificate", certificate, findings);
        pieces.extend(read(&item, "client-key", key, findings));
        material::inspect(&pieces, Some(IntendedUse::Client), now, findings);
    }
    Ok(())
}

/// The data, or the error of reading it.
type KubeconfigData = Result<Vec<u8>, String>;

/// Inline data takes precedence over the file, as for client-go.
fn held(data: Option<&str>, file: Option<&str>, base: Option<&Path>) -> Option<KubeconfigData> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        return Some(base64::decode(data).map_err(|_| "it is not base64".to_owned()));
    }
    // `kube` joins even an empty path with the directory.
    let file = file.filter(|file| !file.is_empty() && Some(Path::new(file)) != base)?;
    let content = named_file::read(Path::new(file)).map(|content| content.to_vec());
    Some(content.map_err(|error| format!("{file}: {error}")))
}

fn read(
    item: &str,
    field: &str,
    held: Option<KubeconfigData>,
    findings: &mut Findings,
) -> Vec<material::FilePart> {
    let name = format!("{item}, {field}");
    match held {
        None => Vec::new(),
        Some(Err(problem)) => {
            findings.error(&name, problem);
            Vec::new()
        }
        Some(Ok(bytes)) => {
            let pieces = material::pieces(&name, &bytes, None);
            if pieces.is_empty() {
                findings.error(&name, "it contains no PEM");
            }
            pieces
        }
    }
}

fn look(
    item: &str,
    field: &str,
    held: Option<KubeconfigData>,
    wanted: Option<IntendedUse>,
    now: UnixTime,
    findings: &mut Findings,
) {
    let pieces = read(item, field, held, findings);
    material::inspect(&pieces, wanted, now, findings);
}
