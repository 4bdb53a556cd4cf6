//! The TLS of a client: trusted CAs, client certificate, server name and proxy; and the one verifier of servers.
//!
//! Every outgoing connection verifies its server by [`ServerVerifier`], with the rules of Go's `crypto/x509`, which
//! kube-apiserver's clients and kubectl follow. General-purpose validators accept and refuse other certificates: not, for
//! example, a CA as the certificate of a server, which `openssl req -x509` makes.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::handshake::{offered_schemes, verify_tls12_signature, verify_tls13_signature};
use portcullis_pki::x509::server::{public_key, verify_server};
use portcullis_pki::x509::{CaBundle, CertificateKeyPair, ServerCertError};
use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, OtherError, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::proxy::ProxyChoice;

/// The settings of a client's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// The CAs that verify the server's certificate.
    pub roots: TrustedRoots,
    /// The client certificate presented to the server.
    pub client_certificate: Option<CertificateKeyPair>,
    /// The name that the server's certificate must have; `None`: the host of the URL.
    pub server_name: Option<ServerName<'static>>,
    /// The proxy between the client and the server.
    pub proxy: ProxyChoice,
    /// Whether `http://` is supported too.
    pub plain_http: PlainHttp,
}

/// To which servers a client may speak without TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlainHttp {
    /// To none.
    #[default]
    Never,
    /// To addresses of loopback, which names do not lead to. Only this machine can read what is sent; but the process that
    /// answers is any that has taken the port.
    ToLoopback,
}

impl PlainHttp {
    /// Whether a client may send a request to this host without TLS.
    pub fn permits(self, host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
        self == Self::ToLoopback && address.is_ok_and(|address| address.is_loopback())
    }
}

impl ClientTls {
    /// Settings without a client certificate, for the host of the URL, with the proxy of the environment.
    pub fn trusting(roots: TrustedRoots) -> Self {
        Self {
            roots,
            client_certificate: None,
            server_name: None,
            proxy: ProxyChoice::default(),
            plain_http: PlainHttp::Never,
        }
    }

    /// The rustls configuration, without ALPN. Fails if the provider supports none of our TLS versions.
    pub(super) fn config(&self, provider: &Arc<CryptoProvider>) -> Result<ClientConfig, rustls::Error> {
        let verifier = Arc::new(ServerVerifier::new(self.roots.clone(), provider));
        let builder = verifying(&verifier, provider)?;
        let mut config = match &self.client_certificate {
            Some(pair) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())))
            }
            None => builder.with_no_client_auth(),
        };
        // A resumed session would not verify the server's certificate again, which may have expired. Like Go.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The configuration for a proxy of `https`, which does not get the client certificate.
    // go: net/http/transport.go, dialConn — the CAs of the server count for the proxy
    pub(super) fn config_for_proxy(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<ClientConfig, rustls::Error> {
        Self { client_certificate: None, ..self.clone() }.config(provider)
    }
}

/// Begins a configuration with this verifier. Fails if the provider supports none of our TLS versions.
pub fn verifying(
    verifier: &Arc<ServerVerifier>,
    provider: &Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::<ServerVerifier>::clone(verifier)))
}

/// Verifies servers as Go's clients do.
pub struct ServerVerifier {
    roots: TrustedRoots,
    algorithms: WebPkiSupportedAlgorithms,
    clock: Clock,
}

impl ServerVerifier {
    /// A verifier with the system's clock.
    pub fn new(roots: TrustedRoots, provider: &CryptoProvider) -> Self {
        Self::with_clock(roots, provider, Clock::system())
    }

    /// A verifier with this clock.
    pub fn with_clock(roots: TrustedRoots, provider: &CryptoProvider, clock: Clock) -> Self {
        Self { roots, algorithms: provider.signature_verification_algorithms, clock }
    }

    /// Verifies the certificates of a server, its own first.
    pub fn verify<'a>(
        &self,
        chain: impl IntoIterator<Item = &'a CertificateDer<'a>>,
        name: &ServerName<'_>,
    ) -> Result<(), ServerCertError> {
        // Not the time of rustls: it has whole seconds, in which a certificate would outlive its notAfter.
        let now = self.clock.now();
        match name {
            ServerName::DnsName(name) => verify_server(&self.roots.0, chain, name.as_ref(), now),
            ServerName::IpAddress(address) => {
                let address = std::net::IpAddr::from(*address).to_string();
                verify_server(&self.roots.0, chain, &address, now)
            }
            // No other kind of name exists.
            _ => Err(portcullis_pki::x509::VerifyError::UnknownAuthority(None).into()),
        }
    }

    /// Verifies the server of a resumed session again: the handshake has not, and time has passed.
    pub fn verify_resumed(
        &self,
        session: &rustls::ClientConnection,
        name: &ServerName<'_>,
    ) -> Result<(), ServerCertError> {
        match session.handshake_kind() {
            Some(rustls::HandshakeKind::Full | rustls::HandshakeKind::FullWithHelloRetryRequest) => Ok(()),
            _ => self.verify(session.peer_certificates().unwrap_or_default(), name),
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain = std::iter::once(end_entity).chain(intermediates);
        self.verify(chain, server_name).map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = public_key(certificate).map_err(|error| refused(error.into()))?;
        verify_tls12_signature(message, &key, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = public_key(certificate).map_err(|error| refused(error.into()))?;
        verify_tls13_signature(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        offered_schemes(&self.algorithms)
    }
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerVerifier").field("roots", &self.roots).finish_non_exhaustive()
    }
}

fn refused(error: ServerCertError) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

/// Why [`ServerVerifier`] has refused a certificate, if this error of rustls says so.
pub fn refusal(error: &rustls::Error) -> Option<&ServerCertError> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner.downcast_ref(),
        _ => None,
    }
}

/// Trusted certificates: CAs, and servers themselves. Equality depends on their order.
#[derive(Debug, Clone)]
pub struct TrustedRoots(Arc<CaBundle>);

/// The system's CAs as they were read last, which many clients share.
static SYSTEM: Mutex<Weak<CaBundle>> = Mutex::new(Weak::new());

impl TrustedRoots {
    /// The system's CAs, read now. As in Go, those that do not parse are left out.
    pub fn system() -> Self {
        let found = rustls_native_certs::load_native_certs().certs;
        let read = CaBundle::of(found.into_iter().filter_map(|der| Certificate::parse(der).ok()));
        let mut last = lock(&SYSTEM);
        match last.upgrade() {
            Some(known) if known.fingerprint() == read.fingerprint() => Self(known),
            _ => {
                let read = Arc::new(read);
                *last = Arc::downgrade(&read);
                Self(read)
            }
        }
    }

    /// All certificates of a bundle.
    pub fn from_bundle(bundle: CaBundle) -> Self {
        Self(Arc::new(bundle))
    }

    /// No certificate: every server is refused.
    pub fn none() -> Self {
        Self(Arc::new(CaBundle::of([])))
    }

    /// The number of certificates.
    pub fn len(&self) -> usize {
        self.0.certificates().len()
    }

    /// Whether there is no certificate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether each of these certificates is one of `others`.
    pub fn is_subset_of(&self, others: &Self) -> bool {
        self.0.certificates().iter().all(|certificate| others.0.contains(certificate))
    }
}

impl PartialEq for TrustedRoots {
    fn eq(&self, other: &Self) -> bool {
        self.0.fingerprint() == other.0.fingerprint()
    }
}

impl Eq for TrustedRoots {}

#[cfg(test)]
mod tests;
