//! What the entries of a log say, for people and programs.

use std::collections::BTreeMap;

use portcullis_go::time;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::name_text::rfc4514;
use portcullis_system::clock::UnixTime;
use portcullis_tlog::entry::LogEntry;
use serde::Serialize;

use super::super::{fingerprint, hex};

/// A logged certificate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryRow {
    pub(super) index: u64,
    pub(super) logged_at: String,
    pub(super) subject: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) alt_names: Vec<String>,
    pub(super) serial: String,
    pub(super) not_after: String,
    pub(super) sha256: String,
    /// The cluster, signer, request and requester, as the signer has written them.
    pub(super) details: BTreeMap<String, String>,
    /// The names that patterns are compared with.
    #[serde(skip)]
    names: Vec<String>,
}

/// The certificate of an entry, in DER.
pub(super) fn certificate(entry: &[u8]) -> Option<Vec<u8>> {
    LogEntry::decode(entry).map(|entry| entry.certificate)
}

impl EntryRow {
    /// Reads an entry. One that cannot be read is a row, too: it is in the log.
    pub(super) fn of(index: u64, entry: &[u8]) -> Self {
        let entry = LogEntry::decode(entry);
        let parsed = entry.as_ref().map(|entry| Certificate::parse(entry.certificate.clone().into()));
        let logged_at = entry.as_ref().map_or_else(String::new, |entry| {
            time::format_since_epoch(UnixTime::from_millis(entry.timestamp))
        });
        let details = entry.as_ref().and_then(|entry| serde_json::from_str(&entry.details).ok());
        let sha256 = entry.as_ref().map_or_else(String::new, |entry| fingerprint(&entry.certificate));
        let mut row = Self {
            index,
            logged_at,
            subject: "<unreadable>".to_owned(),
            alt_names: Vec::new(),
            serial: String::new(),
            not_after: String::new(),
            sha256,
            details: details.unwrap_or_default(),
            names: Vec::new(),
        };
        if let Some(Ok(certificate)) = parsed {
            row.read(&certificate);
        }
        row
    }

    fn read(&mut self, certificate: &Certificate) {
        let names = &certificate.extensions.names;
        let texts = |kind: &str, names: Vec<String>| -> Vec<(String, String)> {
            names.into_iter().map(|name| (kind.to_owned(), name)).collect()
        };
        let uris = names.uris.iter().map(|(text, _)| text.clone()).collect();
        let ips = names.ips.iter().filter_map(|octets| address(octets)).collect();
        let all = [
            texts("DNS", names.dns.clone()),
            texts("IP", ips),
            texts("URI", uris),
            texts("email", names.emails.clone()),
        ]
        .concat();
        self.subject = rfc4514(&certificate.raw_subject);
        self.alt_names = all.iter().map(|(kind, name)| format!("{kind}:{name}")).collect();
        self.names = all.into_iter().map(|(_, name)| name).collect();
        self.names.push(certificate.subject.name.common_name.clone());
        self.serial = hex(&certificate.serial);
        self.not_after = time::format_utc(certificate.not_after);
    }

    /// Whether a name of the certificate matches one of the patterns. Without patterns, and for an entry that cannot be read,
    /// it does: a monitor must not miss it.
    pub(super) fn matches(&self, patterns: &[String]) -> bool {
        patterns.is_empty()
            || self.names.is_empty()
            || patterns.iter().any(|pattern| self.names.iter().any(|name| is_match(pattern, name)))
    }

    pub(super) fn cells(&self) -> [String; 6] {
        let names = if self.alt_names.is_empty() { "<none>".to_owned() } else { self.alt_names.join(", ") };
        let signer = self.details.get("signerName").map_or("<unknown>", String::as_str);
        [
            self.index.to_string(),
            self.logged_at.clone(),
            signer.to_owned(),
            self.subject.clone(),
            names,
            self.not_after.clone(),
        ]
    }
}

/// A pattern with at most one `*`, at its beginning or its end. Names are compared without regard to case.
fn is_match(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_lowercase(), name.to_lowercase());
    if let Some(rest) = pattern.strip_suffix('*') {
        return name.starts_with(rest);
    }
    pattern.strip_prefix('*').map_or_else(|| name == pattern, |rest| name.ends_with(rest))
}

fn address(octets: &[u8]) -> Option<String> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(std::net::IpAddr::from(octets).to_string());
    }
    <[u8; 16]>::try_from(octets).ok().map(|octets| std::net::IpAddr::from(octets).to_string())
}
