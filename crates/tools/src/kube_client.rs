//! Clients of the Kubernetes API whose connections verify the server as kubectl does: kube with the TLS of
//! `portcullis_http`.

mod retry;

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::{Client, Config};
use portcullis_http::client_tls::{ServerVerifier, TrustedRoots, verifying};
use portcullis_http::connector::connector;
use portcullis_http::proxy::ProxyChoice;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::time::timeout;
use tower::retry::RetryLayer;
use tower::{Service as _, ServiceBuilder};

use retry::RetryAfter;

/// The timeout of a connection without one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of this configuration; connects on the first call.
pub(crate) fn client(config: &Config, proxy: &ProxyChoice) -> Result<Client, String> {
    if config.cluster_url.scheme_str() != Some("https") {
        // Without TLS kube connects, and does so directly.
        let mut config = config.clone();
        config.proxy_url = None;
        config.default_retry = false;
        return Client::try_from(config).map_err(|error| error.to_string());
    }
    let name = config.tls_server_name.clone().map(ServerName::try_from).transpose();
    let name = name.map_err(|_| "tls-server-name is not a host name".to_owned())?;
    let mut connector = connector(tls(config)?, to_proxy(config)?, name, proxy.clone(), false);
    connector.enforce_https();
    let limit = config.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    let proxy = proxy.clone();
    let connect = tower::service_fn(move |host: Uri| {
        let mut connector = connector.clone();
        let through = proxy.of_url(&host).ok().flatten().map(|proxy| format!(" through the proxy {proxy}"));
        Box::pin(async move {
            let connected = timeout(limit, connector.call(host)).await;
            let through = through.unwrap_or_default();
            connected.unwrap_or_else(|_| Err(format!("no connection{through} within {limit:?}").into()))
        })
    });
    let client: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connect);
    let failed = |error: kube::Error| error.to_string();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(RetryAfter::default()))
        .option_layer(config.auth_layer().map_err(failed)?)
        .layer(config.extra_headers_layer().map_err(failed)?)
        .map_err(tower::BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// The TLS settings, with the client certificate of the configuration.
fn tls(config: &Config) -> Result<rustls::ClientConfig, String> {
    // kube refuses CAs that its own validator, which is replaced here, cannot use.
    let mut without_roots = config.clone();
    without_roots.root_cert = Some(Vec::new());
    without_roots.root_cert_file = None;
    let mut tls = without_roots.rustls_client_config().map_err(|error| error.to_string())?;
    if !config.accept_invalid_certs {
        let verifier = ServerVerifier::new(roots(config)?, &default_provider());
        tls.dangerous().set_certificate_verifier(Arc::new(verifier));
    }
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

/// The TLS settings for a proxy of `https`, which does not get the client certificate.
fn to_proxy(config: &Config) -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(ServerVerifier::new(roots(config)?, &provider));
    let mut tls = verifying(&verifier, &provider).map_err(|error| error.to_string())?.with_no_client_auth();
    tls.resumption = Resumption::disabled();
    Ok(tls)
}

/// The CAs of the configuration, else those of the system.
fn roots(config: &Config) -> Result<TrustedRoots, String> {
    let Some(listed) = &config.root_cert else { return Ok(TrustedRoots::system()) };
    let parse = |der: &Vec<u8>| Certificate::parse(CertificateDer::from(der.clone()));
    let certificates: Result<Vec<_>, _> = listed.iter().map(parse).collect();
    let certificates = certificates.map_err(|error| format!("certificate-authority: {error}"))?;
    Ok(TrustedRoots::from_bundle(CaBundle::of(certificates)))
}
