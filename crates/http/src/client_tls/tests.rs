use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::{TLS12, TLS13};
use testkit::pki::{Ca, Issued, KeyKind, NOT_AFTER, SERVER_AUTH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

fn trusting(ca: &Ca) -> TrustedRoots {
    TrustedRoots::from_bundle(CaBundle::from_pem(ca.cert_pem().as_bytes()).unwrap())
}

fn server(own: &Issued, version: &'static rustls::SupportedProtocolVersion) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(own.chain.clone(), own.key.clone_key());
    Arc::new(config.unwrap())
}

fn client(verifier: &Arc<ServerVerifier>) -> Arc<ClientConfig> {
    Arc::new(verifying(verifier, &Arc::new(default_provider())).unwrap().with_no_client_auth())
}

/// Shakes hands, and reads a byte, before which the server sends its tickets.
async fn connect(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &ServerName<'static>,
) -> std::io::Result<TlsStream<tokio::io::DuplexStream>> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let acceptor = TlsAcceptor::from(Arc::clone(server));
    let serve = async {
        let mut stream = acceptor.accept(far).await?;
        stream.write_all(b"x").await?;
        stream.flush().await?;
        Ok::<_, std::io::Error>(stream)
    };
    let ask = async {
        let mut stream = TlsConnector::from(Arc::clone(client)).connect(name.clone(), near).await?;
        stream.read_u8().await?;
        Ok::<_, std::io::Error>(stream)
    };
    let (served, asked) = tokio::join!(serve, ask);
    let stream = asked?;
    served.map(|_| stream)
}

fn refused(error: &std::io::Error) -> ServerCertError {
    let error = error.get_ref().and_then(|error| error.downcast_ref()).and_then(refusal);
    error.expect("the certificate is refused").clone()
}

#[tokio::test]
async fn a_trusted_self_signed_certificate_is_accepted_and_another_is_not() {
    let name = ServerName::try_from("a.test").unwrap();
    for kind in [KeyKind::P256, KeyKind::Rsa2048, KeyKind::Ed25519] {
        let build = |cn| Ca::build(cn).key(kind).san_dns("a.test").issue_ca();
        let (own, other) = (build("own"), build("own"));
        let clientele = Ca::build("own").key(kind).san_dns("a.test").eku(&["1.3.6.1.5.5.7.3.2"]).issue_ca();
        for version in [&TLS12, &TLS13] {
            let server = server(&own.as_leaf(), version);
            let with = |roots| client(&Arc::new(ServerVerifier::new(roots, &default_provider())));
            connect(&with(trusting(&own)), &server, &name).await.unwrap();
            for roots in [trusting(&other), trusting(&clientele), TrustedRoots::none()] {
                let error = connect(&with(roots), &server, &name).await.unwrap_err();
                assert!(refused(&error).to_string().contains("unknown authority"), "{error}");
            }
            let elsewhere = ServerName::try_from("b.test").unwrap();
            let error = connect(&with(trusting(&own)), &server, &elsewhere).await.unwrap_err();
            assert!(refused(&error).to_string().contains("valid for a.test, not b.test"), "{error}");
        }
    }
}

#[tokio::test]
async fn the_server_must_have_the_key_of_its_certificate() {
    let ca = Ca::new("ca");
    let name = ServerName::try_from("a.test").unwrap();
    let good = ca.server(&["a.test"]);
    let stranger = Ca::new("stranger").server(&["a.test"]);
    let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&stranger.key).unwrap();
    let stolen = rustls::sign::CertifiedKey::new(good.chain.clone(), signer);
    for version in [&TLS12, &TLS13] {
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(stolen.clone())));
        let verifier = Arc::new(ServerVerifier::new(trusting(&ca), &default_provider()));
        let error = connect(&client(&verifier), &Arc::new(config), &name).await.unwrap_err();
        assert!(error.to_string().contains("BadSignature"), "{error}");
    }
}

#[tokio::test]
async fn a_resumed_session_does_not_outlive_the_certificate() {
    let ca = Ca::new("ca");
    let own = ca.leaf().eku(&[SERVER_AUTH]).san_dns("a.test").issue();
    let name = ServerName::try_from("a.test").unwrap();
    let end = NOT_AFTER.unsigned_abs();
    for version in [&TLS12, &TLS13] {
        let now = Arc::new(AtomicU64::new(end));
        let clock = Clock::from_fn({
            let now = Arc::clone(&now);
            move || Duration::from_secs(now.load(Ordering::SeqCst))
        });
        let verifier = Arc::new(ServerVerifier::with_clock(trusting(&ca), &default_provider(), clock));
        let (client, server) = (client(&verifier), server(&own, version));
        let kinds = async || {
            let stream = connect(&client, &server, &name).await.unwrap();
            let session = stream.get_ref().1;
            (session.handshake_kind().unwrap(), verifier.verify_resumed(session, &name))
        };
        assert_eq!(kinds().await, (rustls::HandshakeKind::Full, Ok(())));
        assert_eq!(kinds().await, (rustls::HandshakeKind::Resumed, Ok(())));
        now.store(end + 1, Ordering::SeqCst);
        let (kind, verdict) = kinds().await;
        assert_eq!(kind, rustls::HandshakeKind::Resumed);
        assert!(verdict.unwrap_err().to_string().contains("has expired"));
    }
}

#[test]
fn clients_resume_no_sessions() {
    // `Resumption` does not compare; its text names the mode.
    let tls = ClientTls::trusting(TrustedRoots::none());
    let config = tls.config(&Arc::new(default_provider())).unwrap();
    let disabled = format!("{:?}", Resumption::disabled());
    assert_eq!(format!("{:?}", config.resumption), disabled);
}

#[test]
fn roots_are_compared_by_their_certificates() {
    let (one, two) = (Ca::new("one"), Ca::new("two"));
    let both = CaBundle::from_pem(format!("{}{}", one.cert_pem(), two.cert_pem()).as_bytes()).unwrap();
    let both = TrustedRoots::from_bundle(both);
    assert!(trusting(&one) == trusting(&one) && trusting(&one) != both);
    assert!(trusting(&one).is_subset_of(&both) && !both.is_subset_of(&trusting(&one)));
    assert!(TrustedRoots::none().is_empty() && both.len() == 2);
    assert_eq!(TrustedRoots::system(), TrustedRoots::system());
}
