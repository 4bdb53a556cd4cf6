//! The TLS of the connections to an endpoint: configurations with the gateway's client certificate, and the texts of failed
//! handshakes.

use std::sync::Arc;

use portcullis_http::client_tls::{ServerVerifier, refusal, verifying};
use portcullis_pki::x509::{ServerCertError, VerifyError};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;

use super::super::dials::ClusterDials;
use super::super::policy::PolicyInForce;
use super::super::settings;
use crate::backend::client_certificate::{CertificateRecorder, ClientCertificate};
use crate::metrics::BackendTimings;

/// The TLS configurations for an endpoint, with the gateway's client certificate.
#[derive(Clone)]
pub(in crate::backend) struct EndpointTls {
    pub(super) http2_or_http1: Arc<ClientConfig>,
    pub(super) http1_only: Arc<ClientConfig>,
    pub(super) verifier: Arc<ServerVerifier>,
    pub(super) certificate: Option<Arc<ClientCertificate>>,
    pub(super) recorder: Option<Arc<CertificateRecorder>>,
    pub(super) dials: ClusterDials,
    pub(super) policy: Arc<PolicyInForce>,
    pub(super) timings: Arc<BackendTimings>,
}

impl EndpointTls {
    /// Fails if the provider supports neither TLS 1.2 nor TLS 1.3.
    pub(in crate::backend) fn new(
        settings: &settings::Backend,
        provider: &Arc<CryptoProvider>,
        timings: &Arc<BackendTimings>,
        dials: ClusterDials,
        policy: &Arc<PolicyInForce>,
    ) -> Result<Self, rustls::Error> {
        let verifier = Arc::new(ServerVerifier::new(settings.roots.clone(), provider));
        let builder = verifying(&verifier, provider)?;
        let certificate =
            settings.client_certificate.as_ref().map(|pair| Arc::new(ClientCertificate::new(pair)));
        let mut http2_or_http1 = match &certificate {
            Some(certificate) => builder.with_client_cert_resolver(certificate.clone()),
            None => builder.with_no_client_auth(),
        };
        let mut http1_only = http2_or_http1.clone();
        http2_or_http1.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1_only.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            http2_or_http1: Arc::new(http2_or_http1),
            http1_only: Arc::new(http1_only),
            verifier,
            certificate,
            recorder: None,
            dials,
            policy: Arc::clone(policy),
            timings: Arc::clone(timings),
        })
    }

    /// The same without session resumption, and with a recorder of the server's `CertificateRequest`.
    pub(super) fn recording(&self) -> Self {
        let recorder = self
            .certificate
            .as_ref()
            .map(|certificate| Arc::new(CertificateRecorder::new(Arc::clone(certificate))));
        let without_resumption = |config: &Arc<ClientConfig>| {
            let mut config = ClientConfig::clone(config);
            config.resumption = Resumption::disabled();
            if let Some(recorder) = &recorder {
                config.client_auth_cert_resolver = recorder.clone();
            }
            Arc::new(config)
        };
        Self {
            http2_or_http1: without_resumption(&self.http2_or_http1),
            http1_only: without_resumption(&self.http1_only),
            verifier: Arc::clone(&self.verifier),
            certificate: self.certificate.clone(),
            recorder,
            dials: self.dials.clone(),
            policy: Arc::clone(&self.policy),
            timings: Arc::clone(&self.timings),
        }
    }
}

/// Why a TLS handshake failed, with the fix where the certificate is at fault.
pub(super) fn tls_cause(error: &std::io::Error) -> String {
    let refused = error.get_ref().and_then(|error| error.downcast_ref()).and_then(refusal);
    refused.map_or_else(|| error.to_string(), refusal_cause)
}

/// Why the certificate of an API server is refused, with the fix.
pub(super) fn refusal_cause(refusal: &ServerCertError) -> String {
    let fix = match refusal {
        ServerCertError::Untrusted(VerifyError::UnknownAuthority(_)) => {
            "its certificate is not signed by the CA of the kubeconfig. Fix, if the CA was replaced: add the new one to \
             certificate-authority"
        }
        ServerCertError::Untrusted(VerifyError::HostName(_)) => {
            "Fix: set tls-server-name of the kubeconfig to a name in the certificates of all API servers"
        }
        refusal => return format!("{refusal}; Fix: {}", refusal.fix()),
    };
    format!("{refusal}; {fix}")
}
