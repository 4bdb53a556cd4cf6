//! Resolves the serving section: address, certificates, TLS options and connection limits.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use portcullis_http::peer::{IpNetwork, NetworkError};
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::{CertificateKeyPair, KeyPairError};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs as crypto;

use super::{ConfigResolver, listed};
use crate::config::error::ConfigError;
use crate::config::flags::{ProxyProtocolMode, ServingFlags};
use crate::config::sections::{KeyLocation, MergedSection};
use crate::listener::settings::{
    ClientLimits, ProxyProtocol, ProxyProtocolVersions, ServingCertificate, ServingSettings,
};
use crate::request::cors::AllowedOrigins;

impl ConfigResolver<'_> {
    pub(super) fn serving(&mut self, given: &MergedSection<ServingFlags>) -> Option<ServingSettings> {
        let flags = &given.values;
        let (cert_place, key_place) = (given.place("tls-cert-file"), given.place("tls-private-key-file"));
        let certificate = match (&flags.tls_cert_file, &flags.tls_private_key_file) {
            (Some(cert), Some(key)) => self.certificate(&cert_place, cert, &key_place, key, None),
            (None, None) => self.fail(
                ConfigError::new(&cert_place.key, format!("is required, with {}", key_place.key))
                    .fix("give the gateway's serving certificate and its key"),
            ),
            (Some(_), None) => self.fail(
                ConfigError::new(&key_place.key, format!("is required with {}", cert_place.key))
                    .fix("give the key"),
            ),
            (None, Some(_)) => self.fail(
                ConfigError::new(&cert_place.key, format!("is required with {}", key_place.key))
                    .fix("give the certificate"),
            ),
        };
        let sni_certificates =
            self.sni_certificates(&given.place("tls-sni-cert-key"), &flags.tls_sni_cert_key);
        let versions = self.versions(&given.key("tls-min-version"), flags.tls_min_version.as_deref());
        let provider = self.provider(&given.key("tls-cipher-suites"), &listed(&flags.tls_cipher_suites));
        let strict_transport_security = self.hsts(
            &given.key("strict-transport-security-directives"),
            &listed(&flags.strict_transport_security_directives),
        );
        let allowed_origins =
            self.allowed_origins(&given.key("cors-allowed-origins"), &listed(&flags.cors_allowed_origins));
        let proxy_protocol = self.proxy_protocol(
            (&given.key("proxy-protocol"), flags.proxy_protocol),
            (&given.key("proxy-protocol-trusted-networks"), &flags.proxy_protocol_trusted_networks),
        );
        Some(ServingSettings {
            address: SocketAddr::new(flags.bind_address, flags.secure_port),
            permit_port_sharing: flags.permit_port_sharing,
            certificate: certificate?,
            sni_certificates: sni_certificates?,
            provider,
            versions: versions?,
            limits: limits(flags),
            strict_transport_security,
            allowed_origins,
            proxy_protocol,
        })
    }

    /// The PROXY protocol of a listener, by the keys and values of its mode and of its networks; `None` also after an
    /// error, which prevents the start anyway.
    // threat: forged-proxy-header
    pub(super) fn proxy_protocol(
        &mut self,
        (mode_key, mode): (&str, ProxyProtocolMode),
        (key, networks): (&str, &[String]),
    ) -> Option<Arc<ProxyProtocol>> {
        let networks = listed(networks);
        let versions = match mode {
            ProxyProtocolMode::Off if networks.is_empty() => return None,
            ProxyProtocolMode::Off => {
                let error = ConfigError::new(mode_key, format!("is required with {key}"));
                return self.fail(error.fix("give the version that the load balancers send: v1, v2 or any"));
            }
            ProxyProtocolMode::V1 => ProxyProtocolVersions::V1,
            ProxyProtocolMode::V2 => ProxyProtocolVersions::V2,
            ProxyProtocolMode::Any => ProxyProtocolVersions::Any,
        };
        if networks.is_empty() {
            let error = ConfigError::new(key, format!("is required with {mode_key}"));
            return self.fail(error.fix("list the networks of the load balancers, such as 10.0.0.0/24"));
        }
        let networks = networks.iter().filter_map(|text| self.trusted_network(key, text)).collect();
        Some(Arc::new(ProxyProtocol { versions, trusted_networks: networks }))
    }

    fn trusted_network(&mut self, key: &str, text: &str) -> Option<IpNetwork> {
        let network = text.parse::<IpNetwork>().map_err(|error| {
            let fix = match error {
                NetworkError::Syntax => "give networks such as 10.0.0.0/24, or 10.0.0.5/32 for one address",
                NetworkError::HostBits => {
                    "give the first address of the network, or /32 (IPv6: /128) for one address"
                }
                NetworkError::Mapped => "write it as IPv4",
            };
            ConfigError::new(key, format!("{text:?} {error}")).fix(fix)
        });
        let network = self.ok(network)?;
        if network.is_everything() {
            let error = ConfigError::new(key, format!("{text:?} lets every client claim any address"));
            return self.fail(error.fix("list the networks of the load balancers alone"));
        }
        Some(network)
    }

    pub(super) fn certificate(
        &mut self,
        cert_place: &KeyLocation,
        cert_file: &Path,
        key_place: &KeyLocation,
        key_file: &Path,
        names: Option<Vec<String>>,
    ) -> Option<ServingCertificate> {
        let (cert_file, key_file) = (&cert_place.path(cert_file), &key_place.path(key_file));
        let cert_pem = self.read(&cert_place.key, cert_file);
        let key_pem = self.read(&key_place.key, key_file);
        let (cert_pem, key_pem) = (cert_pem?, key_pem?);
        let pair = CertificateKeyPair::from_pem(&cert_pem, &key_pem).map_err(|error| {
            let (key, file) =
                if error.concerns_key() { (&key_place.key, key_file) } else { (&cert_place.key, cert_file) };
            let problem = match error {
                KeyPairError::Mismatch => format!("is not the key of {}", cert_file.display()),
                ref error => error.to_string(),
            };
            ConfigError::new(key, problem).in_file(file).fix(error.fix())
        });
        let pair = self.ok(pair)?;
        self.warn_of_dates(&cert_place.key, cert_file, "", pair.certificates());
        let names = names.or_else(|| pair.certificates().first().map(certificate_names)).unwrap_or_default();
        Some(ServingCertificate { pair, names, file: cert_file.clone() })
    }

    fn sni_certificates(
        &mut self,
        place: &KeyLocation,
        values: &[String],
    ) -> Option<Vec<ServingCertificate>> {
        let mut found = Vec::with_capacity(values.len());
        for value in values {
            // component-base: cli/flag/namedcertkey_flag.go
            let (files, names) = match value.split_once(':') {
                Some((files, names)) => {
                    (files, Some(names.split(',').map(str::trim).map(str::to_lowercase).collect()))
                }
                None => (value.as_str(), None),
            };
            let Some((cert, key)) =
                files.split_once(',').filter(|(_, key)| !key.is_empty() && !key.contains(','))
            else {
                self.errors.push(
                    ConfigError::new(&place.key, format!("{value:?} is not a pair of files"))
                        .fix("give cert,key[:names]"),
                );
                continue;
            };
            found.extend(self.certificate(
                place,
                Path::new(cert.trim()),
                place,
                Path::new(key.trim()),
                names,
            ));
        }
        (found.len() == values.len()).then_some(found)
    }

    fn versions(
        &mut self,
        key: &str,
        minimum: Option<&str>,
    ) -> Option<Vec<&'static rustls::SupportedProtocolVersion>> {
        use rustls::version::{TLS12, TLS13};
        match minimum {
            None | Some("" | "VersionTLS12") => Some(vec![&TLS13, &TLS12]),
            Some("VersionTLS13") => Some(vec![&TLS13]),
            Some(old @ ("VersionTLS10" | "VersionTLS11")) => {
                self.warnings.push(format!("{key}: {old} is not supported; using VersionTLS12"));
                Some(vec![&TLS13, &TLS12])
            }
            Some(other) => self.fail(
                ConfigError::new(key, format!("unknown tls version {other:?}"))
                    .fix("give VersionTLS12 or VersionTLS13"),
            ),
        }
    }

    fn provider(&mut self, key: &str, names: &[String]) -> Arc<CryptoProvider> {
        let mut provider = crypto::default_provider();
        if names.is_empty() {
            return Arc::new(provider);
        }
        // As in Go, the flag applies to TLS 1.2; the suites of TLS 1.3 cannot be configured.
        let all = std::mem::take(&mut provider.cipher_suites);
        let name_of = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
        for name in names.iter().filter(|name| !GO_CIPHER_SUITES.contains(&name.as_str())) {
            self.errors.push(
                ConfigError::new(key, format!("Cipher suite {name} not supported or doesn't exist"))
                    .fix("give IANA names such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
            );
        }
        for name in names.iter().filter(|name| GO_CIPHER_SUITES.contains(&name.as_str())) {
            if !all.iter().any(|suite| name_of(suite).replace("TLS13_", "TLS_") == go_name(name)) {
                self.warnings.push(format!("{key}: {name} is insecure and not offered"));
            }
        }
        provider.cipher_suites = all
            .into_iter()
            .filter(|suite| {
                suite.tls13().is_some() || names.iter().any(|name| go_name(name) == name_of(suite))
            })
            .collect();
        if !provider.cipher_suites.iter().any(|suite| suite.tls13().is_none()) {
            self.warnings.push(format!("{key}: no suite for TLS 1.2 remains; only TLS 1.3 is offered"));
        }
        Arc::new(provider)
    }

    fn allowed_origins(&mut self, key: &str, patterns: &[String]) -> AllowedOrigins {
        AllowedOrigins::new(patterns).unwrap_or_else(|errors| {
            let fix = "match the whole host name: begin with '^' or '//', end with '$' or ':', such as '//example\\.com(:|$)'";
            self.errors.extend(errors.into_iter().map(|error| ConfigError::new(key, error.to_string()).fix(fix)));
            AllowedOrigins::default()
        })
    }

    fn hsts(&mut self, key: &str, directives: &[String]) -> Option<http::HeaderValue> {
        // apiserver: pkg/server/options/server_run_options.go, validateHSTSDirectives
        let valid = |directive: &str| {
            let age = directive.strip_prefix("max-age=");
            directive == "includeSubDomains"
                || directive == "preload"
                || age.is_some_and(|age| age.parse::<u64>().is_ok())
        };
        for bad in directives.iter().filter(|directive| !valid(directive)) {
            self.errors.push(
                ConfigError::new(key, format!("{bad:?} is not a directive"))
                    .fix("give max-age=SECONDS, includeSubDomains or preload"),
            );
        }
        let value = http::HeaderValue::from_str(&directives.join("; ")).ok();
        value.filter(|value| !value.is_empty())
    }
}

/// The limits on clients; 0 stands for the default.
fn limits(flags: &ServingFlags) -> ClientLimits {
    let defaults = ClientLimits::default();
    ClientLimits {
        max_connections: NonZeroUsize::new(flags.max_connections),
        max_connections_per_tenant: NonZeroUsize::new(flags.max_connections_per_tenant),
        http2_max_streams: match flags.http2_max_streams_per_connection {
            0 => defaults.http2_max_streams,
            streams => streams,
        },
        ..defaults
    }
}

/// The server names of a serving certificate: its DNS names, else its common name.
// apiserver: pkg/server/dynamiccertificates/named_certificates.go
fn certificate_names(leaf: &Certificate) -> Vec<String> {
    let names = &leaf.extensions.names.dns;
    if !names.is_empty() {
        return names.iter().map(|name| name.to_lowercase()).collect();
    }
    let common_name = leaf.subject.name.common_name.to_lowercase();
    if common_name.is_empty() { Vec::new() } else { vec![common_name] }
}

/// The IANA name of a cipher suite: Go also accepts two old names without the hash.
fn go_name(name: &str) -> String {
    match name {
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => {
            format!("{name}_SHA256")
        }
        name => name.to_owned(),
    }
}

/// The names kube-apiserver accepts for `--tls-cipher-suites`.
// component-base: cli/flag/ciphersuites_flag.go
const GO_CIPHER_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
