//! The recorded certificate request of an endpoint, and for how long a self-check counts.

use portcullis_http::https_client::testing::trusting;
use portcullis_http::identity::IdentityMode;
use portcullis_pki::x509::CertificateKeyPair;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, server::danger::ClientCertVerifier};
use testkit::pki::{Ca, Issued};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use futures_util::FutureExt as _;
use socket2::SockRef;

use super::*;
use crate::backend::policy::PolicyInForce;
use crate::backend::settings::AddressPolicy;
use crate::backend::testing::dials;

fn roots(ca: &Ca) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.cert.clone()).unwrap();
    Arc::new(roots)
}

/// An endpoint at `port`. `servers` is the CA of its certificate, `front` that of the gateway's.
fn endpoint(port: u16, servers: &Ca, front: &Ca) -> Endpoint {
    endpoint_at("127.0.0.1", port, AddressPolicy::Any, servers, front)
}

fn endpoint_at(host: &str, port: u16, addresses: AddressPolicy, servers: &Ca, front: &Ca) -> Endpoint {
    let issued = front.leaf().cn("portcullis").issue();
    let pair =
        CertificateKeyPair::from_pem(issued.cert_pem().as_bytes(), issued.key_pem().as_bytes()).unwrap();
    let endpoint = settings::Endpoint {
        address: HostPort { host: host.to_owned(), port },
        server_name: "backend.test".try_into().unwrap(),
        source: settings::EndpointSource::default(),
    };
    let backend = settings::Backend {
        endpoints: vec![endpoint.clone()],
        path_prefix: String::new(),
        roots: trusting(servers).roots,
        client_certificate: Some(pair),
        bearer_token: None,
        identity: IdentityMode::RequestHeader,
        identity_headers: None,
        discovery: settings::EndpointDiscovery::None,
        policy: settings::BackendPolicy { addresses, ..settings::BackendPolicy::default() },
    };
    let policy = PolicyInForce::new(backend.policy);
    let tls = EndpointTls::new(&backend, &Arc::new(default_provider()), &Arc::default(), dials(), &policy);
    Endpoint::new(&endpoint, &tls.unwrap())
}

/// Accepts connections with this certificate, and asks for none.
fn acceptor(issued: Issued) -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(issued.chain, issued.key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Connects as the gateway itself.
async fn connected(endpoint: &Endpoint, offer: AlpnOffer) -> Result<EndpointStream, ConnectError> {
    endpoint.connect(offer, endpoint.connection_place(&RequestAuthor::Gateway).unwrap()).await
}

#[tokio::test]
async fn the_recorded_certificate_request_is_that_of_the_last_handshake_of_the_self_check() {
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
        // It may refuse the gateway's certificate.
        TlsAcceptor::from(Arc::new(config)).accept(stream).await.ok();
    };
    let requesting = |ca: &Ca| {
        let builder = WebPkiClientVerifier::builder_with_provider(roots(ca), Arc::clone(&provider));
        builder.build().unwrap()
    };
    let check = endpoint.for_self_check();
    assert_eq!(check.certificate_request(), ClientCertificateRequest::NotSent);
    let (stream, ()) = tokio::join!(connected(&check, AlpnOffer::Http2OrHttp1), accept(requesting(&front)));
    drop(stream);
    assert_eq!(check.certificate_request(), ClientCertificateRequest::OurCa);
    // The connection of a request, and another self-check, do not count.
    let (stream, ()) =
        tokio::join!(connected(&endpoint, AlpnOffer::Http2OrHttp1), accept(requesting(&other)));
    drop(stream);
    let another = endpoint.for_self_check();
    let (stream, ()) = tokio::join!(connected(&another, AlpnOffer::Http2OrHttp1), accept(requesting(&other)));
    drop(stream);
    assert_eq!(
        (check.certificate_request(), another.certificate_request()),
        (ClientCertificateRequest::OurCa, ClientCertificateRequest::OtherCas)
    );
    // The server restarts without the flag.
    let (stream, ()) = tokio::join!(
        connected(&check, AlpnOffer::Http2OrHttp1),
        accept(WebPkiClientVerifier::no_client_auth())
    );
    stream.unwrap();
    assert_eq!(check.certificate_request(), ClientCertificateRequest::NotSent);
}

#[tokio::test]
async fn what_this_machine_lacks_is_no_failure_of_the_endpoint() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let endpoint = endpoint(6443, &servers, &front);
    assert!(endpoint.set_trusted(endpoint.trust_version()));
    let (address, cause) = ("a".to_owned(), "c".to_owned());
    let cases = [
        (ConnectError::Local { address: address.clone(), cause: cause.clone() }, false),
        (ConnectError::Tcp { address, cause }, true),
    ];
    for (error, counts) in cases {
        endpoint.note_connect_failure(&error);
        assert_eq!(endpoint.last_error().is_some(), counts, "{error}");
        assert_eq!(endpoint.balance().ejected_until(Instant::now()).is_some(), counts, "{error}");
        assert_eq!(endpoint.recheck_requested().now_or_never().is_some(), counts, "{error}");
        assert!(endpoint.is_trusted(), "{error}");
    }
}

#[tokio::test]
async fn a_self_check_does_not_count_if_the_endpoint_went_away_meanwhile() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap().port(), &servers, &front);
    let before = endpoint.trust_version();
    assert!(endpoint.set_trusted(before) && endpoint.is_trusted());
    // Another self-check of a trusted endpoint.
    let before = endpoint.trust_version();
    assert!(endpoint.set_trusted(before) && endpoint.is_trusted());
    // It refuses connections, and the port stays taken.
    SockRef::from(&listener).shutdown(std::net::Shutdown::Both).unwrap();
    connected(&endpoint, AlpnOffer::Http2OrHttp1).await.unwrap_err();
    assert!(!endpoint.is_trusted());
    assert!(
        !endpoint.set_trusted(before) && !endpoint.is_trusted(),
        "the self-check was of the previous process"
    );
    let before = endpoint.trust_version();
    endpoint.distrust();
    assert!(!endpoint.set_trusted(before) && !endpoint.is_trusted());
    let before = endpoint.for_self_check().trust_version();
    assert!(endpoint.set_trusted(before) && endpoint.for_self_check().is_trusted());
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_a_break_of_the_trust() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap().port(), &servers, &front);
    let acceptor = acceptor(servers.server(&["backend.test"]));
    let accept = async || acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
    let connect = async |endpoint: &Endpoint| {
        let (connected, _server) = tokio::join!(connected(endpoint, AlpnOffer::Http1Only), accept());
        connected.unwrap().trust
    };
    assert!(!connect(&endpoint).await.holds(), "made before the endpoint was trusted");
    assert!(connect(&endpoint.for_self_check()).await.holds(), "the self-check uses its own");
    assert!(endpoint.set_trusted(endpoint.trust_version()));
    let trust = connect(&endpoint).await;
    assert!(trust.holds());
    endpoint.distrust();
    assert!(!trust.holds());
    assert!(endpoint.set_trusted(endpoint.trust_version()) && !trust.holds());
}

#[tokio::test]
async fn an_api_server_with_a_trusted_self_signed_certificate_is_connected_to_and_a_namesake_is_not() {
    let front = Ca::new("front");
    let own = || Ca::build("own").san_dns("backend.test").issue_ca();
    let (trusted, namesake) = (own(), own());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = endpoint(listener.local_addr().unwrap().port(), &trusted, &front);
    let connect = async |server: &Ca| {
        let acceptor = acceptor(server.as_leaf());
        let accept = async { acceptor.accept(listener.accept().await.unwrap().0).await.map(drop).ok() };
        let (connected, _) = tokio::join!(connected(&endpoint, AlpnOffer::Http1Only), accept);
        connected.map(drop).map_err(|error| error.to_string())
    };
    connect(&trusted).await.unwrap();
    let error = connect(&namesake).await.unwrap_err();
    assert!(error.contains("unknown authority") && error.contains("certificate-authority"), "{error}");
}

#[tokio::test]
async fn an_address_that_is_no_longer_permitted_loses_its_trust_and_its_connections() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = endpoint(address.port(), &servers, &front);
    let issued = servers.server(&["backend.test"]);
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(issued.chain, issued.key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let accept = async || acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
    let connect = async |endpoint: &Endpoint| {
        let (connected, server) = tokio::join!(connected(endpoint, AlpnOffer::Http1Only), accept());
        (connected.unwrap(), server)
    };
    assert!(endpoint.set_trusted(endpoint.trust_version()));
    let (for_requests, _one) = connect(&endpoint).await;
    let (for_checks, _two) = connect(&endpoint.for_self_check()).await;
    assert!(for_requests.trust.holds());
    endpoint.tls.policy.replace(settings::BackendPolicy {
        addresses: AddressPolicy::NoLocal,
        ..settings::BackendPolicy::default()
    });
    endpoint.enforce_policy();
    assert!(!endpoint.is_trusted() && !for_requests.trust.holds());
    for connection in [for_requests, for_checks] {
        assert_eq!(connection.permitted.drive(std::future::pending::<()>()).await, None, "it is closed");
    }
    // Nor does the self-check connect, of a name or of an address.
    for one in [endpoint.for_self_check(), endpoint.for_self_check_of(address)] {
        let error = connected(&one, AlpnOffer::Http1Only).await.unwrap_err().to_string();
        assert!(error.contains("managementCluster.allowLocalAddresses"), "{error}");
    }
    let named = endpoint_at("name.test", address.port(), AddressPolicy::NoLocal, &servers, &front);
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], address.port()));
    named.set_vetted(&[address, elsewhere], &[]);
    let trusts = [address, elsewhere].map(|one| named.health.vetted.trust(one));
    named.enforce_policy();
    assert_eq!(trusts.map(|trust| trust.holds()), [false, true]);
}

#[tokio::test]
async fn requests_do_not_connect_to_an_address_that_the_self_check_has_not_seen() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = listener.local_addr().unwrap();
    let moved = TcpListener::bind(("127.0.0.2", first.port())).await.unwrap();
    let second = moved.local_addr().unwrap();
    let endpoint = endpoint_at("name.test", first.port(), AddressPolicy::Any, &servers, &front);
    let resolves_to = async |addresses: &[SocketAddr]| {
        // Fresh for as long as the test takes.
        let at = Instant::now() + Duration::from_hours(1);
        *endpoint.health.known_addresses.lock().await = Some((at, addresses.into()));
    };
    let dial = async || {
        let peer = endpoint.dial_tcp().await.map(|(stream, trust, _)| (stream.peer_addr().unwrap(), trust));
        peer.map_err(|error| error.to_string())
    };
    let is_requested = || endpoint.recheck_requested().now_or_never().is_some();
    resolves_to(&[first]).await;
    assert!(dial().await.unwrap_err().contains("has passed the self-check"));
    assert!(is_requested());
    endpoint.set_vetted(&[first], &[]);
    let (peer, trust) = dial().await.unwrap();
    assert!(peer == first && trust.holds() && !is_requested());
    // The name is given another address, beside the first one and instead of it.
    for found in [vec![second, first], vec![second]] {
        resolves_to(&found).await;
        assert_eq!(dial().await.unwrap().0, first);
        assert!(is_requested(), "the new address is checked");
    }
    assert_eq!(endpoint.for_self_check_of(second).dial_tcp().await.unwrap().0.peer_addr().unwrap(), second);
    endpoint.set_vetted(&[second], &[]);
    assert_eq!(dial().await.unwrap().0, second);
    assert!(!trust.holds(), "the connection to the former address is used no more");
}

#[tokio::test]
async fn an_endpoint_of_a_secret_is_not_dialled_at_a_local_address() {
    let [servers, front] = ["servers", "front"].map(Ca::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let dial = async |host: &str, policy| {
        let endpoint = endpoint_at(host, port, policy, &servers, &front);
        endpoint.dial_tcp().await.map(drop).map_err(|error| error.to_string())
    };
    for host in ["127.0.0.1", "::ffff:127.0.0.1", "::1", "0.0.0.0", "localhost", "169.254.169.254"] {
        let error = dial(host, AddressPolicy::NoLocal).await.unwrap_err();
        assert!(error.contains("managementCluster.allowLocalAddresses"), "{host}: {error}");
    }
    dial("127.0.0.1", AddressPolicy::Any).await.unwrap();
    let error = dial("localhost", AddressPolicy::Any).await.unwrap_err();
    assert!(error.contains("self-check"), "{error}");
    // One connection, which the kernel has accepted, and no more.
    listener.accept().await.unwrap();
    let further =
        std::future::poll_fn(|context| std::task::Poll::Ready(listener.poll_accept(context).is_ready()));
    assert!(!further.await, "a refused address was dialled");
}
