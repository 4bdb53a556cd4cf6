//! The TLS of the connections to an endpoint: configurations with the gateway's client certificate, and the texts of failed
//! handshakes.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, ClientConfig};

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
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&settings.roots.0));
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
    let fix = match error.get_ref().and_then(|error| error.downcast_ref()) {
        // A new CA of the same name shows as a bad signature.
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => {
            "its certificate is not signed by the CA of the kubeconfig. Fix, if the CA was replaced: add the new one to \
             certificate-authority"
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "Fix: set tls-server-name of the kubeconfig to a name in the certificates of all API servers",
        _ => return error.to_string(),
    };
    format!("{error}; {fix}")
}
