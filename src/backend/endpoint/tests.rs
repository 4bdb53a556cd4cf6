//! What a check knows of an endpoint, and for how long it counts.

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, server::danger::ClientCertVerifier};
use testkit::pki::Ca;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::backend::settings::TrustedRoots;
use crate::pki::x509::CertificateKeyPair;
use crate::user::IdentityMode;

fn roots(ca: &Ca) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.cert.clone()).unwrap();
    Arc::new(roots)
}

/// An endpoint at `port`, and the authorities of its certificate and of the gateway's.
fn endpoint(port: u16, servers: &Ca, front: &Ca) -> Endpoint {
    let issued = front.leaf().cn("portcullis").issue();
    let pair =
        CertificateKeyPair::from_pem(issued.cert_pem().as_bytes(), issued.key_pem().as_bytes()).unwrap();
    let endpoint = settings::Endpoint {
        address: HostPort { host: "127.0.0.1".to_owned(), port },
        server_name: "backend.test".try_into().unwrap(),
    };
    let backend = settings::Backend {
        endpoints: vec![endpoint.clone()],
        path_prefix: String::new(),
        roots: TrustedRoots(roots(servers)),
        client_certificate: Some(pair),
        bearer_token: None,
        identity: IdentityMode::RequestHeader,
        identity_headers: None,
    };
    Endpoint::new(&endpoint, &Connectors::new(&backend, &Arc::new(default_provider())).unwrap())
}

#[tokio::test]
async fn how_a_certificate_was_asked_for_is_of_the_last_handshake_of_the_check_alone() {
    let [servers, front, other] = ["servers", "front", "other"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap().port(), &servers, &front);
    let provider = Arc::new(default_provider());
    let accept = async |verifier: Arc<dyn ClientCertVerifier>| {
        let issued = servers.server(&["backend.test"]);
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(issued.chain, issued.key)
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        // The gateway's certificate may not please it.
        TlsAcceptor::from(Arc::new(config)).accept(stream).await.ok();
    };
    let asking = |ca: &Ca| {
        let builder = WebPkiClientVerifier::builder_with_provider(roots(ca), Arc::clone(&provider));
        builder.build().unwrap()
    };
    let check = endpoint.for_checks();
    assert_eq!(check.asked(), CertificateRequest::Never);
    let (stream, ()) = tokio::join!(check.connect(Offer::Either), accept(asking(&front)));
    drop(stream);
    assert_eq!(check.asked(), CertificateRequest::ForOurs);
    // A request's connection, and the check of another endpoint, are of no account.
    let (stream, ()) = tokio::join!(endpoint.connect(Offer::Either), accept(asking(&other)));
    drop(stream);
    let another = endpoint.for_checks();
    let (stream, ()) = tokio::join!(another.connect(Offer::Either), accept(asking(&other)));
    drop(stream);
    assert_eq!(
        (check.asked(), another.asked()),
        (CertificateRequest::ForOurs, CertificateRequest::ForOthers)
    );
    // Started anew, without the flag.
    let (stream, ()) =
        tokio::join!(check.connect(Offer::Either), accept(WebPkiClientVerifier::no_client_auth()));
    stream.unwrap();
    assert_eq!(check.asked(), CertificateRequest::Never);
}

#[tokio::test]
async fn a_check_counts_for_nothing_if_the_endpoint_went_away_meanwhile() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap().port(), &servers, &front);
    let before = endpoint.trust();
    assert!(endpoint.set_trusted(before) && endpoint.is_trusted());
    // Another check of one that is trusted.
    let before = endpoint.trust();
    assert!(endpoint.set_trusted(before) && endpoint.is_trusted());
    // It refuses, and nobody else is given the port meanwhile.
    SockRef::from(&listener).shutdown(std::net::Shutdown::Both).unwrap();
    endpoint.connect(Offer::Either).await.unwrap_err();
    assert!(!endpoint.is_trusted());
    assert!(!endpoint.set_trusted(before) && !endpoint.is_trusted(), "that was of the one before");
    let before = endpoint.trust();
    endpoint.distrust();
    assert!(!endpoint.set_trusted(before) && !endpoint.is_trusted());
    let before = endpoint.for_checks().trust();
    assert!(endpoint.set_trusted(before) && endpoint.for_checks().is_trusted());
}
