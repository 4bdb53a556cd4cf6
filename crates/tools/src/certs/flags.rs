//! Flags that several commands of `portcullis certs` share.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use portcullis_go::duration::parse_duration;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::dns;
use portcullis_pki::issuance::signer::KeyKind;
use portcullis_pki::issuance::subject::{self, Subject};

const DAY: u64 = 86_400;

/// The supported key types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyType {
    /// ECDSA on P-256: small, fast and widely supported.
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
    /// RSA of 3072 bits.
    #[value(name = "rsa-3072")]
    Rsa3072,
    /// RSA of 4096 bits: generation takes seconds.
    #[value(name = "rsa-4096")]
    Rsa4096,
    /// Ed25519: supported by kube-apiserver, but not by some older clients.
    Ed25519,
}

impl KeyType {
    pub(super) fn kind(self) -> KeyKind {
        match self {
            Self::EcdsaP256 => KeyKind::EcdsaP256,
            Self::EcdsaP384 => KeyKind::EcdsaP384,
            Self::Rsa3072 => KeyKind::Rsa3072,
            Self::Rsa4096 => KeyKind::Rsa4096,
            Self::Ed25519 => KeyKind::Ed25519,
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EcdsaP256 => "ECDSA P-256",
            Self::EcdsaP384 => "ECDSA P-384",
            Self::Rsa3072 => "RSA 3072",
            Self::Rsa4096 => "RSA 4096",
            Self::Ed25519 => "Ed25519",
        })
    }
}

/// Flags for the subject and subjectAltName of a certificate.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Names")]
pub(crate) struct NameFlags {
    /// The CommonName: the user name of a client, or the first name of a server.
    #[arg(long, visible_alias = "cn", value_name = "NAME")]
    pub(super) common_name: String,
    /// An Organization: a group of a client. Repeatable.
    #[arg(long, short = 'O', value_name = "GROUP")]
    pub(super) organization: Vec<String>,
    /// A DNS name of a server, comma-separated or repeated. *.example.com matches every name one label below.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = dns_name)]
    pub(super) dns: Vec<String>,
    /// An IP address of a server, comma-separated or repeated.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(super) ip: Vec<IpAddr>,
}

impl NameFlags {
    pub(super) fn subject(&self) -> Subject {
        Subject {
            common_name: self.common_name.clone(),
            organization: self.organization.clone(),
            ..Subject::default()
        }
    }

    pub(super) fn alt_names(&self) -> AltNames {
        AltNames { dns: self.dns.clone(), ips: self.ip.clone(), ..AltNames::default() }
    }
}

/// Parses a name that is printable and fits into an HTTP header.
pub(crate) fn name(text: &str) -> Result<String, String> {
    subject::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

fn dns_name(text: &str) -> Result<String, String> {
    match dns::check(text, true) {
        Ok(()) => Ok(text.to_owned()),
        Err(dns::NotDnsName::Address) => Err("it is an IP address: give it with --ip".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a validity: a Go duration, or days and years such as `90d` and `10y`.
pub(crate) fn life(text: &str) -> Result<Duration, String> {
    let whole = |unit: char, seconds: u64| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(seconds).map(Duration::from_secs)
    };
    let parsed = whole('d', DAY).or_else(|| whole('y', 365 * DAY)).or_else(|| {
        let nanoseconds = parse_duration(text).ok()?;
        u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
    });
    match parsed {
        // The limit of X.509 dates is the year 9999.
        Some(life) if !life.is_zero() && life.as_secs() < 5000 * 365 * DAY => Ok(life),
        _ => Err("give a duration such as 8h, 90d or 10y".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validity_is_given_in_hours_days_or_years() {
        let cases = [
            ("90d", Some(90 * DAY)),
            ("10y", Some(3650 * DAY)),
            ("8760h", Some(365 * DAY)),
            ("1h30m", Some(5400)),
            ("0d", None),
            ("0s", None),
            ("-1h", None),
            ("-1d", None),
            ("10", None),
            ("d", None),
            ("", None),
            ("9999999999999999999d", None),
            ("18446744073709551615d", None),
            ("6000y", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(life(text).ok().map(|life| life.as_secs()), seconds, "{text}");
        }
    }
}
