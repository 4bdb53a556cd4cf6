//! From wire types to settings: every file is read, every rule is applied, and every error is collected.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs as crypto;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::error::{ConfigError, ConfigErrors};
use super::flags::{
    AuthenticationFlags, ImpersonationMode, MetricsAddress, OperationFlags, ServeFlags, ServingFlags,
};
use super::kubeconfig;
use super::settings::{Operation, Settings};
use crate::authn::Audience;
use crate::authn::request_header::RequestHeaderNames;
use crate::authn::settings::{Authentication, RequestHeader};
use crate::authn::static_token::StaticTokenAuthenticator;
use crate::authn::x509::CaBundle;
use crate::listen::settings::{Limits, Serving, ServingCertificate};
use crate::request::deadline::parse_duration;

/// Settings, and what in them deserves a warning.
#[derive(Debug)]
pub struct Resolved {
    /// What the gateway runs by.
    pub settings: Settings,
    /// What is allowed but odd; printed by `check`, logged by `serve`.
    pub warnings: Vec<String>,
}

/// Judges flags and reads every file they name.
pub fn resolve(flags: &ServeFlags) -> Result<Resolved, ConfigErrors> {
    let mut resolver = Resolver::default();
    let serving = resolver.serving(&flags.serving);
    let authentication = resolver.authentication(&flags.authentication);
    let backend = match &flags.backend.backend_kubeconfig {
        Some(file) => {
            kubeconfig::load("--backend-kubeconfig", file, flags.backend.identity, &mut resolver.errors)
        }
        None => resolver.fail(ConfigError::new("--backend-kubeconfig", "is required").fix(
            "give a kubeconfig with the address and CA of the API server, and the gateway's certificate",
        )),
    };
    if flags.backend.impersonation == ImpersonationMode::Gateway {
        resolver.errors.push(
            ConfigError::new("--impersonation", "gateway is not available yet")
                .fix("use --impersonation=backend, with --identity=requestHeader"),
        );
    }
    let operation = resolver.operation(&flags.operation);
    match (serving, backend, operation) {
        (Some(serving), Some(backend), Some(operation)) if resolver.errors.is_empty() => {
            let impersonation = flags.backend.impersonation;
            let settings = Settings { serving, authentication, backend, impersonation, operation };
            Ok(Resolved { settings, warnings: resolver.warnings })
        }
        _ => Err(ConfigErrors(resolver.errors)),
    }
}

#[derive(Default)]
struct Resolver {
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
}

impl Resolver {
    fn fail<T>(&mut self, error: ConfigError) -> Option<T> {
        self.errors.push(error);
        None
    }

    fn ok<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    fn read(&mut self, key: &str, file: &Path) -> Option<Vec<u8>> {
        let result = std::fs::read(file).map_err(|error| {
            ConfigError::new(key, error.to_string()).in_file(file).fix("give a readable file")
        });
        self.ok(result)
    }

    fn duration(&mut self, key: &str, text: &str) -> Option<Duration> {
        let parsed = parse_duration(text).map_err(|error| error.to_string()).and_then(|nanoseconds| {
            u64::try_from(nanoseconds)
                .map(Duration::from_nanos)
                .map_err(|_| "must not be negative".to_owned())
        });
        let result = parsed
            .map_err(|problem| ConfigError::new(key, problem).fix("give a duration such as 60s or 1m30s"));
        self.ok(result)
    }

    fn serving(&mut self, flags: &ServingFlags) -> Option<Serving> {
        let certificate = match (&flags.tls_cert_file, &flags.tls_private_key_file) {
            (Some(cert), Some(key)) => {
                self.certificate("--tls-cert-file", cert, "--tls-private-key-file", key, None)
            }
            (None, None) => self.fail(
                ConfigError::new("--tls-cert-file", "is required, with --tls-private-key-file")
                    .fix("give the gateway's serving certificate and its key"),
            ),
            (Some(_), None) => self.fail(
                ConfigError::new("--tls-private-key-file", "is required with --tls-cert-file")
                    .fix("give the key"),
            ),
            (None, Some(_)) => self.fail(
                ConfigError::new("--tls-cert-file", "is required with --tls-private-key-file")
                    .fix("give the certificate"),
            ),
        };
        let sni_certificates = self.sni_certificates(&flags.tls_sni_cert_key);
        let versions = self.versions(flags.tls_min_version.as_deref());
        let provider = self.provider(&listed(&flags.tls_cipher_suites));
        let strict_transport_security = self.hsts(&listed(&flags.strict_transport_security_directives));
        Some(Serving {
            address: SocketAddr::new(flags.bind_address, flags.secure_port),
            permit_port_sharing: flags.permit_port_sharing,
            certificate: certificate?,
            sni_certificates: sni_certificates?,
            provider,
            versions: versions?,
            limits: limits(flags),
            strict_transport_security,
        })
    }

    fn certificate(
        &mut self,
        cert_flag: &str,
        cert_file: &Path,
        key_flag: &str,
        key_file: &Path,
        names: Option<Vec<String>>,
    ) -> Option<ServingCertificate> {
        let cert_pem = self.read(cert_flag, cert_file);
        let key_pem = self.read(key_flag, key_file);
        let (cert_pem, key_pem) = (cert_pem?, key_pem?);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert_pem).collect();
        let chain = match chain {
            Ok(chain) if !chain.is_empty() => Some(chain),
            Ok(_) => self.fail(
                ConfigError::new(cert_flag, "holds no certificate")
                    .in_file(cert_file)
                    .fix("give PEM certificates"),
            ),
            Err(error) => self.fail(
                ConfigError::new(cert_flag, error.to_string())
                    .in_file(cert_file)
                    .fix("give PEM certificates"),
            ),
        };
        let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| {
            ConfigError::new(key_flag, error.to_string()).in_file(key_file).fix("give a PEM private key")
        });
        let key = self.ok(key);
        let (chain, key) = (chain?, key?);
        let key = crypto::sign::any_supported_type(&key).map_err(|error| {
            ConfigError::new(key_flag, error.to_string())
                .in_file(key_file)
                .fix("give an RSA, ECDSA or Ed25519 key")
        });
        let key = self.ok(key)?;
        let leaf_names = names.or_else(|| chain.first().map(certificate_names)).unwrap_or_default();
        let certified = CertifiedKey::new(chain, key);
        if let Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) =
            certified.keys_match()
        {
            return self.fail(
                ConfigError::new(key_flag, format!("is not the key of {}", cert_file.display()))
                    .in_file(key_file)
                    .fix("give the key that belongs to the certificate"),
            );
        }
        Some(ServingCertificate { key: Arc::new(certified), names: leaf_names, file: cert_file.to_owned() })
    }

    fn sni_certificates(&mut self, values: &[String]) -> Option<Vec<ServingCertificate>> {
        // The same flag and file for both halves, since they share one value.
        let flag = "--tls-sni-cert-key";
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
                    ConfigError::new(flag, format!("{value:?} is not a pair of files"))
                        .fix("give cert,key[:names]"),
                );
                continue;
            };
            found.extend(self.certificate(flag, Path::new(cert.trim()), flag, Path::new(key.trim()), names));
        }
        (found.len() == values.len()).then_some(found)
    }

    fn versions(&mut self, minimum: Option<&str>) -> Option<Vec<&'static rustls::SupportedProtocolVersion>> {
        use rustls::version::{TLS12, TLS13};
        match minimum {
            None | Some("" | "VersionTLS12") => Some(vec![&TLS13, &TLS12]),
            Some("VersionTLS13") => Some(vec![&TLS13]),
            Some(old @ ("VersionTLS10" | "VersionTLS11")) => {
                self.warnings.push(format!("--tls-min-version: {old} is not supported; using VersionTLS12"));
                Some(vec![&TLS13, &TLS12])
            }
            Some(other) => self.fail(
                ConfigError::new("--tls-min-version", format!("unknown tls version {other:?}"))
                    .fix("give VersionTLS12 or VersionTLS13"),
            ),
        }
    }

    fn provider(&mut self, names: &[String]) -> Arc<CryptoProvider> {
        let mut provider = crypto::default_provider();
        if names.is_empty() {
            return Arc::new(provider);
        }
        // As Go, whose TLS 1.3 suites cannot be configured: the flag is about TLS 1.2.
        let all = std::mem::take(&mut provider.cipher_suites);
        let name_of = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
        for name in names.iter().filter(|name| !GO_CIPHER_SUITES.contains(&name.as_str())) {
            self.errors.push(
                ConfigError::new(
                    "--tls-cipher-suites",
                    format!("Cipher suite {name} not supported or doesn't exist"),
                )
                .fix("give IANA names such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
            );
        }
        for name in names.iter().filter(|name| GO_CIPHER_SUITES.contains(&name.as_str())) {
            if !all.iter().any(|suite| name_of(suite).replace("TLS13_", "TLS_") == go_name(name)) {
                self.warnings.push(format!("--tls-cipher-suites: {name} is not safe and not offered"));
            }
        }
        provider.cipher_suites = all
            .into_iter()
            .filter(|suite| {
                suite.tls13().is_some() || names.iter().any(|name| go_name(name) == name_of(suite))
            })
            .collect();
        if !provider.cipher_suites.iter().any(|suite| suite.tls13().is_none()) {
            self.warnings
                .push("--tls-cipher-suites: none of them is usable with TLS 1.2; only TLS 1.3 is".to_owned());
        }
        Arc::new(provider)
    }

    fn hsts(&mut self, directives: &[String]) -> Option<http::HeaderValue> {
        // apiserver: pkg/server/options/server_run_options.go, validateHSTSDirectives
        let valid = |directive: &str| {
            let age = directive.strip_prefix("max-age=");
            directive == "includeSubDomains"
                || directive == "preload"
                || age.is_some_and(|age| age.parse::<u64>().is_ok())
        };
        for bad in directives.iter().filter(|directive| !valid(directive)) {
            self.errors.push(
                ConfigError::new(
                    "--strict-transport-security-directives",
                    format!("{bad:?} is not a directive"),
                )
                .fix("give max-age=SECONDS, includeSubDomains or preload"),
            );
        }
        let value = http::HeaderValue::from_str(&directives.join("; ")).ok();
        value.filter(|value| !value.is_empty())
    }

    /// What is wrong is in `self.errors`; a method whose files are bad is off here, and nothing is served.
    fn authentication(&mut self, flags: &AuthenticationFlags) -> Authentication {
        let client_ca =
            flags.client_ca_file.as_ref().and_then(|file| self.ca_bundle("--client-ca-file", file));
        let request_header = if let Some(file) = &flags.requestheader_client_ca_file {
            self.request_header(file, flags, client_ca.as_deref())
        } else {
            self.unused_request_header_flags(flags);
            None
        };
        let static_tokens = flags.token_auth_file.as_ref().and_then(|file| self.static_tokens(file));
        let none_on = flags.client_ca_file.is_none()
            && flags.requestheader_client_ca_file.is_none()
            && flags.token_auth_file.is_none();
        if none_on && !flags.anonymous_auth {
            self.errors.push(
                ConfigError::new("--anonymous-auth", "is off, and no other authentication method is on")
                    .fix("give --client-ca-file, --token-auth-file or --requestheader-client-ca-file"),
            );
        }
        Authentication {
            client_ca,
            request_header,
            static_tokens,
            anonymous: flags.anonymous_auth,
            audiences: listed(&flags.api_audiences).into_iter().map(Audience).collect(),
        }
    }

    fn static_tokens(&mut self, file: &Path) -> Option<Arc<StaticTokenAuthenticator>> {
        let csv = self.read("--token-auth-file", file)?;
        let parsed = StaticTokenAuthenticator::parse(&file.display().to_string(), &csv).map_err(|error| {
            // The text names the file, as upstream's does.
            ConfigError::new("--token-auth-file", error.to_string())
                .fix("give CSV lines of token,user,uid[,\"group1,group2\"]")
        });
        self.ok(parsed).map(Arc::new)
    }

    fn ca_bundle(&mut self, flag: &str, file: &Path) -> Option<Arc<CaBundle>> {
        let pem = self.read(flag, file)?;
        let parsed = CaBundle::from_pem(&pem).map_err(|error| {
            ConfigError::new(flag, error.to_string()).in_file(file).fix("give PEM certificates of the CAs")
        });
        self.ok(parsed).map(Arc::new)
    }

    fn request_header(
        &mut self,
        file: &Path,
        flags: &AuthenticationFlags,
        client_ca: Option<&CaBundle>,
    ) -> Option<RequestHeader> {
        let ca = self.ca_bundle("--requestheader-client-ca-file", file);
        let allowed_names = listed(&flags.requestheader_allowed_names);
        // kubernetes: pkg/kubeapiserver/options/authentication.go, RequestHeaderAuthenticationOptions.Validate
        for (name, values) in [
            ("requestheader-username-headers", &flags.requestheader_username_headers),
            ("requestheader-uid-headers", &flags.requestheader_uid_headers),
            ("requestheader-group-headers", &flags.requestheader_group_headers),
            ("requestheader-extra-headers-prefix", &flags.requestheader_extra_headers_prefix),
            ("requestheader-allowed-names", &flags.requestheader_allowed_names),
        ] {
            if listed(values).iter().any(|value| value.trim().is_empty()) {
                let error = ConfigError::new(format!("--{name}"), format!("empty value in {name:?}"));
                self.errors.push(error.fix("remove the empty entry"));
            }
        }
        for (flag, values, standard) in [
            ("username-headers", &flags.requestheader_username_headers, "X-Remote-User"),
            ("group-headers", &flags.requestheader_group_headers, "X-Remote-Group"),
            ("extra-headers-prefix", &flags.requestheader_extra_headers_prefix, "X-Remote-Extra-"),
        ] {
            if !values.is_empty() && !values.iter().any(|value| value.eq_ignore_ascii_case(standard)) {
                self.warnings.push(format!(
                    "--requestheader-{flag} is set without specifying the standard {standard} header - \
                     API aggregation will not work"
                ));
            }
        }
        let uids = listed(&flags.requestheader_uid_headers);
        if !uids.is_empty() && !uids.iter().any(|value| value.eq_ignore_ascii_case("X-Remote-Uid")) {
            let problem = "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - \
                           API aggregation will not work";
            self.errors
                .push(ConfigError::new("--requestheader-uid-headers", problem).fix("add X-Remote-Uid"));
        }
        if listed(&flags.requestheader_username_headers).is_empty() {
            self.errors.push(
                ConfigError::new(
                    "--requestheader-username-headers",
                    "is required with --requestheader-client-ca-file: without it no front proxy can name a user",
                )
                .fix("give X-Remote-User"),
            );
        }
        let ca = ca?;
        if allowed_names.is_empty()
            && client_ca.is_some_and(|client_ca| client_ca.shares_certificate_with(&ca))
        {
            return self.fail(
                ConfigError::new(
                    "--requestheader-allowed-names",
                    "--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; \
                     --requestheader-allowed-names must be specified to ensure regular client certificates cannot \
                     set authenticating proxy headers for arbitrary users",
                )
                .fix("give the CommonName of the front proxy's certificate"),
            );
        }
        let headers = RequestHeaderNames::new(
            &listed(&flags.requestheader_username_headers),
            &uids,
            &listed(&flags.requestheader_group_headers),
            &listed(&flags.requestheader_extra_headers_prefix),
        );
        let headers = headers.map_err(|error| {
            ConfigError::new("--requestheader-username-headers", error.to_string())
                .fix("give valid header names")
        });
        Some(RequestHeader { ca, allowed_names, headers: self.ok(headers)? })
    }

    fn unused_request_header_flags(&mut self, flags: &AuthenticationFlags) {
        for (name, values) in [
            ("username-headers", &flags.requestheader_username_headers),
            ("uid-headers", &flags.requestheader_uid_headers),
            ("group-headers", &flags.requestheader_group_headers),
            ("extra-headers-prefix", &flags.requestheader_extra_headers_prefix),
            ("allowed-names", &flags.requestheader_allowed_names),
        ] {
            if !listed(values).is_empty() {
                self.warnings.push(format!(
                    "--requestheader-{name} has no effect without --requestheader-client-ca-file"
                ));
            }
        }
    }

    fn operation(&mut self, flags: &OperationFlags) -> Option<Operation> {
        let request_timeout = self.duration("--request-timeout", &flags.request_timeout);
        let shutdown_grace_period = self.duration("--shutdown-grace-period", &flags.shutdown_grace_period);
        if request_timeout.is_some_and(|timeout| timeout.is_zero()) {
            self.errors.push(ConfigError::new("--request-timeout", "must be positive").fix("give 1m0s"));
        }
        let metrics = MetricsAddress::parse(&flags.metrics_bind_address).map_err(|error| {
            ConfigError::new("--metrics-bind-address", error.to_string())
                .fix("give IP:PORT, or 0 to turn it off")
        });
        let metrics = self.ok(metrics);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Some(Operation {
            request_timeout: request_timeout?,
            shutdown_grace_period: shutdown_grace_period?,
            metrics: metrics?,
            workers: if flags.workers == 0 { cores } else { flags.workers },
            verbosity: flags.verbosity,
            log_format: flags.logging_format,
        })
    }
}

/// How much clients may take up; 0 stands for the default.
fn limits(flags: &ServingFlags) -> Limits {
    let defaults = Limits::default();
    Limits {
        max_connections: NonZeroUsize::new(flags.max_connections),
        http2_max_streams: match flags.http2_max_streams_per_connection {
            0 => defaults.http2_max_streams,
            streams => streams,
        },
        ..defaults
    }
}

/// A list flag's values; an empty value alone (`--flag=`) is an empty list.
fn listed(values: &[String]) -> Vec<String> {
    match values {
        [only] if only.is_empty() => Vec::new(),
        values => values.to_vec(),
    }
}

/// The names a serving certificate is for: its DNS names and addresses, else its common name.
// apiserver: pkg/server/dynamiccertificates/named_certificates.go
fn certificate_names(leaf: &CertificateDer<'static>) -> Vec<String> {
    use x509_parser::extensions::GeneralName;
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(leaf) else {
        return Vec::new();
    };
    let mut names: Vec<String> = Vec::new();
    if let Ok(Some(alternative)) = parsed.subject_alternative_name() {
        names.extend(alternative.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_lowercase()),
            _ => None,
        }));
    }
    if names.is_empty() {
        let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        names.extend(common.map(str::to_lowercase));
    }
    names
}

/// The name rustls has for a cipher suite: Go accepts two old names without the hash.
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
