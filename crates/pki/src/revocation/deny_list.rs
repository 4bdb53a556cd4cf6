//! The file of denied credentials, `--credential-deny-list-file`: a line for each certificate, token or user.
//!
//! ```text
//! # comment
//! X509SHA256=2c54…                                   # the reason
//! JTI=7fb8d9a4-…                      until=2027-01-01T00:00:00Z
//! serial=0A1B issuer="CN=clients,O=example"
//! user=alice
//! ```
//!
//! A line that does not parse is an error, and the file is then not used: a misspelled entry would deny nothing.

use std::collections::HashMap;

use portcullis_go::time;
use portcullis_kubernetes::user::{ANONYMOUS, CREDENTIAL_ID_KEY, UserInfo};
use portcullis_system::clock::UnixTime;

use crate::x509::name_text::ComparableName;

use super::path::CertificatePath;

/// The denied credentials of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DenyList {
    /// By credential ID, as kube-apiserver writes it: `JTI=…`, `X509SHA256=…`.
    credential_ids: HashMap<String, DenyEntry>,
    /// By issuer and serial number.
    serials: HashMap<(ComparableName, Vec<u8>), DenyEntry>,
    users: HashMap<String, DenyEntry>,
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenyEntry {
    /// The line of the file, from 1.
    pub line: usize,
    /// The entry has no effect from then on.
    until: Option<UnixTime>,
}

/// Why a file is not a deny list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct DenyListError {
    /// The first line that does not parse, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

/// The words of a line.
type Words = Vec<(String, String)>;

impl DenyList {
    /// Parses the content of a file.
    pub fn parse(content: &[u8]) -> Result<Self, DenyListError> {
        let mut list = Self::default();
        for (index, line) in content.split(|octet| *octet == b'\n').enumerate() {
            list.add(index + 1, line).map_err(|problem| DenyListError { line: index + 1, problem })?;
        }
        Ok(list)
    }

    fn add(&mut self, line: usize, text: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8".to_owned())?;
        let mut words = words(text)?;
        if words.is_empty() {
            return Ok(());
        }
        let entry = DenyEntry { line, until: take(&mut words, "until").map(|text| time(&text)).transpose()? };
        match words.as_mut_slice() {
            [(kind, value)] if kind == "X509SHA256" => {
                let digest = digits(value).filter(|digits| digits.len() == 64);
                let digest =
                    digest.ok_or("X509SHA256: give the SHA-256 of the certificate, 64 hexadecimal digits")?;
                keep(&mut self.credential_ids, format!("X509SHA256={digest}"), entry);
            }
            [(kind, value)] if kind == "JTI" && !value.is_empty() => {
                keep(&mut self.credential_ids, format!("JTI={value}"), entry);
            }
            [(kind, value)] if kind == "user" && value == ANONYMOUS => {
                return Err(format!(
                    "user: {ANONYMOUS} has no credential; refuse it with --anonymous-auth=false"
                ));
            }
            [(kind, value)] if kind == "user" && !value.is_empty() => {
                keep(&mut self.users, std::mem::take(value), entry);
            }
            [(one, first), (other, second)] if one != other => {
                let (serial, issuer) = match (one.as_str(), other.as_str()) {
                    ("serial", "issuer") => (first, second),
                    ("issuer", "serial") => (second, first),
                    _ => return Err(FORMS.to_owned()),
                };
                let issuer = ComparableName::parse(issuer).ok_or(
                    "issuer: give the issuer's name as in RFC 4514, such as issuer=\"CN=clients,O=example\"",
                )?;
                let serial = digits(serial).as_deref().and_then(octets);
                let serial = serial.ok_or("serial: give the serial number in hexadecimal")?;
                keep(&mut self.serials, (issuer, serial), entry);
            }
            _ => return Err(FORMS.to_owned()),
        }
        Ok(())
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.credential_ids.len() + self.serials.len() + self.users.len()
    }

    /// Whether the list denies everything that `other` denies from `now` on, for at least as long.
    pub fn includes(&self, other: &Self, now: UnixTime) -> bool {
        fn all<K: std::hash::Hash + Eq>(
            own: &HashMap<K, DenyEntry>,
            other: &HashMap<K, DenyEntry>,
            now: UnixTime,
        ) -> bool {
            other
                .iter()
                .filter(|(_, entry)| entry.holds(now))
                .all(|(key, entry)| own.get(key).is_some_and(|own| own.end() >= entry.end()))
        }
        all(&self.credential_ids, &other.credential_ids, now)
            && all(&self.serials, &other.serials, now)
            && all(&self.users, &other.users, now)
    }

    /// The entry for a user: for its name or its credential.
    pub fn denies_user(&self, user: &UserInfo, now: UnixTime) -> Option<DenyEntry> {
        let ids = user.extra.get(CREDENTIAL_ID_KEY).into_iter().flatten();
        let mut found = ids.filter_map(|id| self.credential_ids.get(id)).chain(self.users.get(&user.name));
        found.find(|entry| entry.holds(now)).copied()
    }

    /// The entry for a certificate of a chain.
    pub fn denies_path(&self, path: &CertificatePath, now: UnixTime) -> Option<DenyEntry> {
        path.certificates().iter().find_map(|certificate| {
            let by_id = certificate.credential_ids.iter().filter_map(|id| self.credential_ids.get(id));
            let by_serial = || {
                let issuer = certificate.comparable_issuer.clone().filter(|_| !self.serials.is_empty())?;
                self.serials.get(&(issuer, certificate.serial.clone()))
            };
            by_id.chain(by_serial()).find(|entry| entry.holds(now)).copied()
        })
    }

    /// Whether an entry names this credential, whether or not it has ended.
    pub fn has_credential(&self, id: &str) -> bool {
        self.credential_ids.contains_key(id)
    }
}

impl DenyEntry {
    fn holds(self, now: UnixTime) -> bool {
        now < self.end()
    }

    fn end(self) -> UnixTime {
        self.until.unwrap_or(UnixTime::MAX)
    }
}

const FORMS: &str = "give one of X509SHA256=<hex>, JTI=<id>, user=<name>, serial=<hex> issuer=<name>, and until=<time> \
                     if the entry ends; a value with blanks or quotes is a JSON string";

/// Keeps the entry that ends last.
fn keep<K: std::hash::Hash + Eq>(entries: &mut HashMap<K, DenyEntry>, key: K, entry: DenyEntry) {
    let kept = entries.entry(key).or_insert(entry);
    if entry.end() > kept.end() {
        *kept = entry;
    }
}

fn take(words: &mut Words, key: &str) -> Option<String> {
    let at = words.iter().position(|(name, _)| name == key)?;
    Some(words.remove(at).1)
}

fn time(text: &str) -> Result<UnixTime, String> {
    let time = time::Time::parse_rfc3339(text).map(|time| time.since_epoch());
    time.ok_or_else(|| "until: give a time as in RFC 3339, such as 2027-01-31T00:00:00Z".to_owned())
}

/// Hexadecimal digits in lower case; colons may separate octets, as OpenSSL prints them.
fn digits(text: &str) -> Option<String> {
    let digits: String =
        text.chars().filter(|letter| *letter != ':').map(|letter| letter.to_ascii_lowercase()).collect();
    (!digits.is_empty() && digits.chars().all(|letter| letter.is_ascii_hexdigit())).then_some(digits)
}

/// The octets of a number, big-endian, without leading zeros except for zero itself.
pub fn octets(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.trim_start_matches('0');
    let digits =
        if digits.len() % 2 == 1 || digits.is_empty() { format!("0{digits}") } else { digits.to_owned() };
    if digits == "0" {
        return Some(vec![0]);
    }
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// The words `key=value` of a line, without its comment. A value may be a JSON string.
fn words(mut text: &str) -> Result<Words, String> {
    let mut words = Words::new();
    loop {
        text = text.trim_ascii_start();
        if text.is_empty() || text.starts_with('#') {
            return Ok(words);
        }
        let (key, rest) = text.split_once('=').ok_or(FORMS)?;
        let (value, rest) = value(key, rest)?;
        if words.iter().any(|(known, _)| known == key) {
            return Err(format!("{key}: is given twice"));
        }
        words.push((key.to_owned(), value));
        text = rest;
    }
}

/// The value of a word, and the text after it.
fn value<'a>(key: &str, text: &'a str) -> Result<(String, &'a str), String> {
    if !text.starts_with('"') {
        let end = text.find(|letter: char| letter.is_ascii_whitespace()).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        let plain = (!value.contains('"')).then(|| (value.to_owned(), rest));
        return plain.ok_or_else(|| format!("{key}: quote the whole value"));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = values.next().and_then(Result::ok);
    let value = value.ok_or_else(|| format!("{key}: the quoted value is not a JSON string"))?;
    let rest = text.get(values.byte_offset()..).unwrap_or_default();
    if !rest.is_empty() && !rest.starts_with(|letter: char| letter.is_ascii_whitespace()) {
        return Err(format!("{key}: a blank must follow the quoted value"));
    }
    Ok((value, rest))
}

#[cfg(test)]
mod tests;
