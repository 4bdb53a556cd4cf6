//! Claims and fields of a credential, verified or not, for comparison with the configuration. Never the credential, nor
//! a part that could be used.

use std::path::Path;

use portcullis_go::pem;
use portcullis_go::quote::{Quoted, QuotedList};
use portcullis_openid::jwt::Jwt;
use portcullis_system::clock::UnixTime;
use portcullis_tools::terminal::when;
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::authn::bootstrap;
use crate::authn::x509::UnverifiedChain;

/// A credential. Shown nowhere.
pub(in crate::cli) enum Credential {
    Token(String),
    Certificate(Vec<CertificateDer<'static>>),
}

/// The kind of a credential, by its form.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum Kind {
    /// A JSON Web Token, and the issuer it names.
    Jwt(String),
    /// Three parts that cannot be read.
    Damaged(String),
    Bootstrap,
    Opaque,
    Certificate,
    /// A certificate with a PodIdentity extension.
    PodCertificate,
}

impl Credential {
    /// The certificates in a file, PEM, as a client presents them; an error names the file.
    pub(in crate::cli) fn certificate(file: &Path) -> Result<Self, String> {
        let content = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let certificates = pem::certificate_chain(&content);
        if certificates.is_empty() {
            return Err(format!("{}: no certificate in it", file.display()));
        }
        Ok(Self::Certificate(certificates))
    }

    pub(in crate::cli) fn kind(&self) -> Kind {
        let token = match self {
            Self::Certificate(chain) if UnverifiedChain::new(chain.clone()).claims_pod() => {
                return Kind::PodCertificate;
            }
            Self::Certificate(_) => return Kind::Certificate,
            Self::Token(token) => token,
        };
        match Jwt::parse(token) {
            Ok(jwt) => Kind::Jwt(jwt.issuer().unwrap_or_default().to_owned()),
            Err(error) if token.matches('.').count() == 2 => Kind::Damaged(error.to_string()),
            Err(_) if bootstrap::is_token(token) => Kind::Bootstrap,
            Err(_) => Kind::Opaque,
        }
    }

    /// Names and values, in an order to be read in.
    pub(super) fn facts(&self, now: UnixTime) -> Vec<(&'static str, String)> {
        match self {
            Self::Token(token) => Jwt::parse(token).map(|jwt| of_token(&jwt, now)).unwrap_or_default(),
            Self::Certificate(chain) => {
                let leaf = chain.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
                leaf.map(|(_, leaf)| of_certificate(&leaf, now)).unwrap_or_default()
            }
        }
    }
}

fn of_token(jwt: &Jwt<'_>, now: UnixTime) -> Vec<(&'static str, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => Quoted(text).to_string(),
        Value::Array(values) => {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let texts: Vec<_> = values.iter().map(plain).collect();
            QuotedList(&texts).to_string()
        }
        other => other.to_string(),
    };
    let date = |value: &Value| value.as_i64().map_or_else(|| text(value), |date| when(date, now));
    let claims = jwt.claims().unwrap_or_default();
    let claim = |name| claims.get(name);
    let header = |value: Option<&str>| value.map(|value| Quoted(value).to_string());
    [
        ("iss", claim("iss").map(text)),
        ("sub", claim("sub").map(text)),
        ("aud", claim("aud").map(text)),
        ("exp", claim("exp").map(date)),
        ("nbf", claim("nbf").map(date)),
        ("alg", header(jwt.algorithm())),
        ("kid", header(jwt.key_id())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

fn of_certificate(leaf: &X509Certificate<'_>, now: UnixTime) -> Vec<(&'static str, String)> {
    let usages = leaf.extended_key_usage().ok().flatten().map(|usages| {
        let known = [
            (usages.value.client_auth, "clientAuth"),
            (usages.value.server_auth, "serverAuth"),
            (usages.value.any, "any"),
            (usages.value.code_signing, "codeSigning"),
            (usages.value.email_protection, "emailProtection"),
        ];
        known.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect::<Vec<_>>().join(", ")
    });
    let validity = leaf.validity();
    [
        ("subject", Some(leaf.subject().to_string())),
        ("issuer", Some(leaf.issuer().to_string())),
        ("from", Some(when(validity.not_before.timestamp(), now))),
        ("until", Some(when(validity.not_after.timestamp(), now))),
        ("usage", usages),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}
