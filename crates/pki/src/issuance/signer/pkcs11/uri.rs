//! RFC 7512 URIs of keys in PKCS#11 tokens.

use std::fmt;
use std::path::PathBuf;

use portcullis_go::url::{Part, unescape_bytes};

use super::slots::attribute;
use crate::issuance::signer::PrivateKeyError;

/// A parsed URI: the module, the token, the key, and the file of the PIN.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pkcs11Uri {
    pub(super) token: Option<String>,
    pub(super) serial: Option<String>,
    pub(super) manufacturer: Option<String>,
    pub(super) model: Option<String>,
    pub(super) slot_id: Option<u64>,
    /// The key's label.
    pub(super) object: Option<String>,
    /// The key's identifier, `CKA_ID`.
    pub(super) id: Option<Vec<u8>>,
    pub(super) module_path: PathBuf,
    /// The file of the PIN; without it, the gateway does not log in.
    pub(super) pin_source: Option<PathBuf>,
}

impl Pkcs11Uri {
    /// The URI of the token: without the key.
    pub(super) fn of_token(&self) -> Self {
        Self { object: None, id: None, ..self.clone() }
    }

    /// The attributes that name the key, for messages.
    pub(super) fn of_key(&self) -> String {
        let parts = [
            self.object.as_ref().map(|label| attribute("object", label.as_bytes())),
            self.id.as_ref().map(|id| attribute("id", id)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(";")
    }

    /// Whether it says more of the token than the number of its slot.
    pub(super) fn describes_token(&self) -> bool {
        [&self.token, &self.serial, &self.manufacturer, &self.model].iter().any(|given| given.is_some())
    }

    /// Whether it has the attribute.
    pub(super) fn has(&self, name: &str) -> bool {
        match name {
            "token" => self.token.is_some(),
            "serial" => self.serial.is_some(),
            "manufacturer" => self.manufacturer.is_some(),
            "model" => self.model.is_some(),
            "slot-id" => self.slot_id.is_some(),
            "object" => self.object.is_some(),
            "id" => self.id.is_some(),
            _ => false,
        }
    }

    /// Parses a URI. Rejects unsupported attributes: if they were ignored, the URI could select another key.
    // RFC 7512 §2.3
    pub(super) fn parse(uri: &str) -> Result<Self, PrivateKeyError> {
        let rest = uri.strip_prefix("pkcs11:").ok_or_else(|| wrong("it must begin with pkcs11:"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parsed = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        let mut module = None;
        for (text, in_query) in
            path.split(';').map(|part| (part, false)).chain(query.split('&').map(|part| (part, true)))
        {
            if text.is_empty() {
                continue;
            }
            let (name, value) =
                text.split_once('=').ok_or_else(|| wrong("every attribute needs a name, = and a value"))?;
            if seen.contains(&name) {
                return Err(wrong(&format!("{name} is given twice")));
            }
            seen.push(name);
            // The value is a secret: rejects the attribute before any error could quote it.
            if name == "pin-value" {
                return Err(wrong(
                    "pin-value would expose the PIN in the process list: write it to a file and set pin-source=file:…",
                ));
            }
            let octets = octets(name, value)?;
            let string =
                || String::from_utf8(octets.clone()).map_err(|_| wrong(&format!("{name} is not UTF-8")));
            match (name, in_query) {
                ("token", false) => parsed.token = Some(string()?),
                ("serial", false) => parsed.serial = Some(string()?),
                ("manufacturer", false) => parsed.manufacturer = Some(string()?),
                ("model", false) => parsed.model = Some(string()?),
                ("slot-id", false) => {
                    let number = string()?.parse().map_err(|_| wrong("slot-id is not a number"))?;
                    parsed.slot_id = Some(number);
                }
                ("object", false) => parsed.object = Some(string()?),
                ("id", false) => parsed.id = Some(octets),
                ("type", false) => match string()?.as_str() {
                    "private" => {}
                    _ => return Err(wrong("type must be private, if it is given")),
                },
                ("module-path", true) => module = Some(PathBuf::from(string()?)),
                ("pin-source", true) => {
                    let source = string()?;
                    let file = source.strip_prefix("file:").unwrap_or(&source);
                    // file:///path and file:/path are the same file.
                    let file = file.strip_prefix("//").unwrap_or(file);
                    if !file.starts_with('/') {
                        return Err(wrong("pin-source must be file: and an absolute path"));
                    }
                    parsed.pin_source = Some(PathBuf::from(file));
                }
                _ => return Err(wrong(&format!("the attribute {name} is not supported"))),
            }
        }
        parsed.module_path =
            module.ok_or_else(|| wrong("module-path must name the library of the token, as in ?module-path=/usr/lib/softhsm/libsofthsm2.so"))?;
        if parsed.object.is_none() && parsed.id.is_none() {
            return Err(wrong("object or id must name the key"));
        }
        Ok(parsed)
    }
}

/// The attributes that name the token, for messages.
impl fmt::Display for Pkcs11Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            |name, value: &Option<String>| value.as_ref().map(|value| attribute(name, value.as_bytes()));
        let slot = self.slot_id.map(|id| format!("slot-id={id}"));
        let parts = [
            text("token", &self.token),
            text("serial", &self.serial),
            text("manufacturer", &self.manufacturer),
            text("model", &self.model),
            slot,
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "the URI, which names none" } else { "" })?;
        f.write_str(&parts.join(";"))
    }
}

fn octets(name: &str, value: &str) -> Result<Vec<u8>, PrivateKeyError> {
    match unescape_bytes(value, Part::Path) {
        Ok(decoded) => Ok(decoded.unwrap_or_else(|| value.as_bytes().to_vec())),
        Err(_) => Err(wrong(&format!("{name} has a percent sign without two hexadecimal digits"))),
    }
}

fn wrong(reason: &str) -> PrivateKeyError {
    PrivateKeyError::Uri(format!("the pkcs11 URI of the key cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::Pkcs11Uri;

    #[test]
    fn uris_identify_a_key() {
        let uri = "pkcs11:token=My%20token;object=ca;id=%01%ff;type=private?module-path=/usr/lib/m.so&pin-source=file:/run/pin";
        let parsed = Pkcs11Uri::parse(uri).unwrap();
        assert_eq!(parsed.token.as_deref(), Some("My token"));
        assert_eq!(parsed.object.as_deref(), Some("ca"));
        assert_eq!(parsed.id.as_deref(), Some(&[1, 0xff][..]));
        assert_eq!(parsed.module_path.to_str(), Some("/usr/lib/m.so"));
        assert_eq!(parsed.pin_source.as_deref().and_then(|path| path.to_str()), Some("/run/pin"));
        for source in ["file:///run/pin", "/run/pin", "file:%2frun%2fpin"] {
            let parsed =
                Pkcs11Uri::parse(&format!("pkcs11:object=a?module-path=/m&pin-source={source}")).unwrap();
            assert_eq!(parsed.pin_source.unwrap().to_str(), Some("/run/pin"), "{source}");
        }
        assert_eq!(Pkcs11Uri::parse("pkcs11:slot-id=7;id=a?module-path=/m").unwrap().slot_id, Some(7));
    }

    #[test]
    fn ambiguous_uris_are_rejected() {
        const CASES: &[(&str, &str)] = &[
            ("file:/x", "must begin with pkcs11:"),
            ("pkcs11:object=a", "module-path must name"),
            ("pkcs11:token=a?module-path=/m", "object or id must name"),
            ("pkcs11:object=a;object=b?module-path=/m", "object is given twice"),
            ("pkcs11:object=a;x-vendor=b?module-path=/m", "x-vendor is not supported"),
            ("pkcs11:object=a;module-path=/m", "module-path is not supported"),
            ("pkcs11:object=a?module-path=/m&module-name=b", "module-name is not supported"),
            ("pkcs11:object=a?module-path=/m&pin-source=|cat", "pin-source must be file:"),
            ("pkcs11:object=a?module-path=/m&pin-source=https://h/", "pin-source must be file:"),
            ("pkcs11:object=a;type=public?module-path=/m", "type must be private"),
            ("pkcs11:object=%zz?module-path=/m", "without two hexadecimal digits"),
            ("pkcs11:object=%ff?module-path=/m", "object is not UTF-8"),
            ("pkcs11:object?module-path=/m", "every attribute needs"),
            ("pkcs11:slot-id=a;object=a?module-path=/m", "slot-id is not a number"),
            ("pkcs11:object=a?module-path=/m&pin-value=hunter2", "pin-source=file:"),
            ("pkcs11:pin-value=hunter2;object=a?module-path=/m", "pin-source=file:"),
        ];
        for (uri, want) in CASES {
            let error = Pkcs11Uri::parse(uri).unwrap_err().to_string();
            assert!(error.contains(want) && !error.contains("hunter2"), "{uri}: {error}");
        }
    }
}
