//! Inspects the certificates of a TLS server, and verifies them as a client would. The handshake accepts any
//! certificate, so no data is ever sent over the connection.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_http::client_tls::{ServerVerifier, TrustedRoots};
use portcullis_pki::x509::server::public_key;
use portcullis_pki::x509::{BundleError, CaBundle, handshake};
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::sync::lock;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use super::super::error::CommandError;
use super::super::progress::Spinner;
use super::certificate::IntendedUse;
use super::{Facts, Findings, InspectedItem, material};
use crate::certs::named_file;

const SERVER_PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Does a TLS handshake, and inspects the server's chain.
pub(super) fn inspect(
    address: &str,
    name: Option<&str>,
    ca_file: Option<&Path>,
    now: UnixTime,
) -> Result<Findings, CommandError> {
    let usage = || CommandError::Usage(format!("--server {address}: give HOST:PORT"));
    let (host, port) = address.rsplit_once(':').ok_or_else(usage)?;
    let port: u16 = port.parse().map_err(|_| usage())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = name.unwrap_or(host);
    let server_name = ServerName::try_from(name.to_owned())
        .map_err(|error| CommandError::Usage(format!("--server-name {name}: {error}")))?;
    let roots = roots(ca_file)?;
    let runtime = crate::output::runtime().map_err(|error| CommandError::Failed(error.to_string()))?;
    let shown = {
        let _spinner = Spinner::new(&format!("waiting for {address}"));
        runtime.block_on(async { timeout(SERVER_PROBE_TIMEOUT, shake(host, port, &server_name)).await })
    };
    let slow = || format!("no TLS handshake within {} s", SERVER_PROBE_TIMEOUT.as_secs());
    let shown = shown.unwrap_or_else(|_| Err(slow())).map_err(|error| CommandError::about(address, error))?;
    let mut findings = Findings::default();
    let mut facts: Facts = vec![
        ("protocol", shown.protocol.into()),
        ("cipher", shown.cipher.into()),
        ("ALPN", shown.alpn.into()),
    ];
    match &shown.client_authorities {
        None => facts.push(("clients", "does not request a certificate".into())),
        Some(names) if names.is_empty() => {
            facts.push(("clients", "requests a certificate of any CA".into()));
        }
        Some(names) => facts
            .extend(names.iter().map(|name| ("clients", format!("requests a certificate of {name}").into()))),
    }
    let says = verdict(&shown.chain, &server_name, roots, now);
    let verified = says.clone().map_or_else(|problem| problem, |()| format!("good for {name}"));
    facts.push(("verified", verified.into()));
    findings.items.push(InspectedItem { kind: "server", name: address.to_owned(), facts });
    if let Err(problem) = says {
        let with = ca_file.map_or_else(
            || "with the system's CAs (give --ca-file for others)".to_owned(),
            |file| format!("with {}", file.display()),
        );
        findings.error(address, format!("a client that verifies it {with} refuses it: {problem}"));
    }
    let mut pieces = Vec::new();
    for (place, certificate) in shown.chain.iter().enumerate() {
        pieces.extend(material::pieces(&format!("{address} ({})", place + 1), certificate, None));
    }
    material::inspect(&pieces, Some(IntendedUse::Server), now, &mut findings);
    Ok(findings)
}

/// The parameters of a handshake.
struct ObservedHandshake {
    chain: Vec<CertificateDer<'static>>,
    protocol: String,
    cipher: String,
    alpn: String,
    /// The CAs of a CertificateRequest; `None` if the server sent none.
    client_authorities: Option<Vec<String>>,
}

async fn shake(host: &str, port: u16, name: &ServerName<'static>) -> Result<ObservedHandshake, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let asked = Arc::new(ClientCaRecorder::default());
    let resolver: Arc<dyn ResolvesClientCert> = Arc::<ClientCaRecorder>::clone(&asked);
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
        .with_client_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name.clone(), stream);
    let stream = connecting.await.map_err(|error| format!("the TLS handshake failed: {error}"))?;
    let (_, session) = stream.get_ref();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let protocol = session.protocol_version().and_then(|version| version.as_str());
    let client_authorities = lock(&asked.0).take();
    Ok(ObservedHandshake {
        chain: session.peer_certificates().unwrap_or_default().to_vec(),
        protocol: protocol.unwrap_or("unknown").replace("TLSv", "TLS ").replace('_', "."),
        cipher: session
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
            .unwrap_or("unknown")
            .to_owned(),
        alpn: session.alpn_protocol().map_or_else(|| "none".to_owned(), text),
        client_authorities,
    })
}

fn roots(ca_file: Option<&Path>) -> Result<TrustedRoots, CommandError> {
    let Some(file) = ca_file else { return Ok(TrustedRoots::system()) };
    let failed = |problem: String| CommandError::about(format!("--ca-file {}", file.display()), problem);
    let content = named_file::read(file).map_err(|error| failed(error.to_string()))?;
    CaBundle::from_pem(&content).map(TrustedRoots::from_bundle).map_err(|error| match error {
        BundleError::NoCertificates => failed("it contains no certificate".to_owned()),
        error @ BundleError::Malformed(_) => failed(error.to_string()),
    })
}

/// Verifies a chain as a client that trusts these roots.
fn verdict(
    chain: &[CertificateDer<'static>],
    name: &ServerName<'_>,
    roots: TrustedRoots,
    now: UnixTime,
) -> Result<(), String> {
    if chain.is_empty() {
        return Err("it presents no certificate".to_owned());
    }
    if roots.is_empty() {
        return Err("there is no CA to verify it with".to_owned());
    }
    let verifier =
        ServerVerifier::with_clock(roots, &aws_lc_rs::default_provider(), Clock::from_fn(move || now));
    verifier.verify(chain, name).map_err(|refusal| format!("{refusal}; fix: {}", refusal.fix()))
}

/// Accepts every certificate: the connection is closed after the handshake, without sending data.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl AcceptAnyCertificate {
    fn algorithms(&self) -> WebPkiSupportedAlgorithms {
        self.0.signature_verification_algorithms
    }
}

fn key(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, rustls::Error> {
    public_key(certificate).map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))
}

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        handshake::verify_tls12_signature(message, &key(certificate)?, signature, &self.algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        handshake::verify_tls13_signature(message, &key(certificate)?, signature, &self.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }
}

/// Presents no client certificate, and records the CAs that the server requests.
#[derive(Debug, Default)]
struct ClientCaRecorder(Mutex<Option<Vec<String>>>);

impl ResolvesClientCert for ClientCaRecorder {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let names = hints.iter().filter_map(|name| X509Name::from_der(name).ok());
        let names = names.map(|(_, name)| name.to_string()).collect();
        *lock(&self.0) = Some(names);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}
