//! A naive proxy with vulnerabilities of real products, to check that the attacks can succeed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::ServerName;
use serde_json::json;
use testkit::{AnyServer, BoxedBody, Pki, empty, full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::environment::{Needs, REVIEWS};

struct Naive {
    backend: SocketAddr,
    tls: TlsConnector,
    prefix: &'static str,
    /// The impersonations that the API server has allowed: requester and user.
    allowed: Mutex<HashSet<[String; 2]>>,
}

pub(crate) async fn start(pki: &Pki, backend: SocketAddr, needs: Needs) -> SocketAddr {
    let front = pki.front.leaf().cn("portcullis").issue();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_auth_cert(front.chain.clone(), front.key.clone_key())
        .unwrap();
    let issued = pki.servers.server(&["localhost"]);
    let server = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(Arc::new(AnyClient))
        .with_single_cert(issued.chain.clone(), issued.key.clone_key())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let prefix = if needs == Needs::Impersonation { "impersonate-" } else { "x-remote-" };
    let naive = Arc::new(Naive {
        backend,
        tls: TlsConnector::from(Arc::new(config)),
        prefix,
        allowed: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, naive) = (acceptor.clone(), Arc::clone(&naive));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let certificate =
                    stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
                let service = hyper::service::service_fn(move |request| {
                    let (naive, certificate) = (Arc::clone(&naive), certificate.clone());
                    async move { naive.handle(request, certificate.as_deref()).await }
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await
                    .ok();
            });
        }
    });
    address
}

impl Naive {
    async fn handle(
        &self,
        mut request: Request<Incoming>,
        certificate: Option<&[u8]>,
    ) -> Result<Response<BoxedBody>, std::io::Error> {
        let upgrading = request.headers().contains_key("upgrade").then(|| hyper::upgrade::on(&mut request));
        let origin = request.headers().get("origin").cloned();
        let elsewhere = request.headers().get("x-forwarded-host").cloned();
        // Vulnerability: upgrades and access reviews need no permission.
        if upgrading.is_none()
            && request.uri().path() != REVIEWS
            && let Some(wanted) = request.headers().get("impersonate-user").cloned()
        {
            if !self.may_impersonate(request.headers(), certificate, wanted.to_str().unwrap_or("")).await? {
                let mut response = Response::new(full("forbidden"));
                *response.status_mut() = StatusCode::FORBIDDEN;
                return Ok(response);
            }
            request.headers_mut().insert(self.named("user"), wanted);
        }
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?;
        let mut request = Request::from_parts(parts, ());
        let headers = request.headers_mut();
        self.identify(headers, certificate);
        if headers.remove(TRANSFER_ENCODING).is_some() {
            // Vulnerability: merges the trailers into the header.
            headers.extend(body.trailers().cloned().unwrap_or_default());
            headers.insert(CONTENT_LENGTH, 0.into());
        }
        let body = body.to_bytes();
        if headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, body.len().into());
        }
        // Vulnerability: removes nominated headers after it has set the identity headers.
        if upgrading.is_none() || headers["connection"].as_bytes().contains(&b',') {
            let nominated: Vec<String> = headers
                .get_all("connection")
                .iter()
                .flat_map(|line| {
                    line.to_str().unwrap_or_default().split(',').map(|name| name.trim().to_owned())
                })
                .collect();
            for name in
                nominated.iter().filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("upgrade"))
            {
                if let Ok(name) = name.parse::<HeaderName>() {
                    headers.remove(name);
                }
            }
        }
        if let Some(host) = elsewhere.and_then(|host| host.to_str().ok()?.parse::<SocketAddr>().ok()) {
            TcpStream::connect(host).await?.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
        }
        let mut stream = self.dial().await?;
        stream.write_all(&head(&request)).await?;
        stream.write_all(&body).await?;
        let (code, answered) = answer(&mut stream).await?;
        if let Some(upgrading) = upgrading {
            // Vulnerability: opens the tunnel for any status.
            tokio::spawn(async move {
                if let Ok(client) = upgrading.await {
                    tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut stream).await.ok();
                }
            });
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            return Ok(response);
        }
        if let Some(location) = answered.to_lowercase().split("location: http://").nth(1) {
            let to = location.split('/').next().unwrap_or_default();
            TcpStream::connect(to).await?.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
        }
        let mut response = Response::new(full("ok"));
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
        if let Some(origin) = origin {
            response.headers_mut().insert("access-control-allow-origin", origin);
        }
        Ok(response)
    }

    fn named(&self, name: &str) -> HeaderName {
        format!("{}{name}", self.prefix).parse().unwrap()
    }

    /// Vulnerability: knows requesters by their names alone, and an allowed impersonation forever.
    async fn may_impersonate(
        &self,
        headers: &HeaderMap,
        certificate: Option<&[u8]>,
        wanted: &str,
    ) -> std::io::Result<bool> {
        let all = |name: &str| -> Vec<&str> {
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
        };
        let user = all("x-remote-user").first().map(|user| (*user).to_owned());
        let user = user.unwrap_or_else(|| user_of(headers, certificate).0);
        let key = [user.clone(), wanted.to_owned()];
        if self.allowed.lock().unwrap().contains(&key) {
            return Ok(true);
        }
        let groups = [all("x-remote-group"), vec!["system:authenticated"]].concat();
        let review = json!({"spec": {
            "user": user, "uid": all("x-remote-uid").first(), "groups": groups,
            "extra": {"scopes": all("x-remote-extra-scopes")},
            "resourceAttributes": {"verb": "impersonate", "resource": "users", "name": wanted},
        }});
        let review = Bytes::from(review.to_string());
        let head = format!(
            "POST {REVIEWS} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            review.len()
        );
        let mut stream = self.dial().await?;
        stream.write_all(&[head.as_bytes(), &review].concat()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok();
        let allowed = String::from_utf8_lossy(&answer).contains(r#""allowed":true"#);
        if allowed {
            self.allowed.lock().unwrap().insert(key);
        }
        Ok(allowed)
    }

    /// Vulnerability: accepts the client's identity headers.
    fn identify(&self, headers: &mut HeaderMap, certificate: Option<&[u8]>) {
        let (user, groups) = user_of(headers, certificate);
        headers.remove("authorization");
        // Vulnerability: sets the user only if the header is absent, and appends the groups.
        headers.entry(self.named("user")).or_insert_with(|| user.trim().parse().unwrap());
        if user == "carol" {
            headers.entry(self.named("uid")).or_insert_with(|| "7".parse().unwrap());
        }
        for group in groups {
            headers.append(self.named("group"), group.parse().unwrap());
        }
    }

    async fn dial(&self) -> std::io::Result<client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.backend).await?;
        self.tls.connect(ServerName::try_from("backend.test").unwrap(), stream).await
    }
}

/// Vulnerabilities: accepts any certificate, and the last token.
fn user_of(headers: &HeaderMap, certificate: Option<&[u8]>) -> (String, Vec<&'static str>) {
    let mut tokens = headers.get_all("authorization").iter().filter_map(|value| value.to_str().ok());
    let known = match tokens.next_back() {
        Some("Bearer good-token") => Some(("carol".to_owned(), vec!["a", "b", "system:authenticated"])),
        Some(_) => Some(("padded".to_owned(), vec!["system:masters", "system:authenticated"])),
        None => certificate.map(|certificate| (common_name(certificate), vec!["system:authenticated"])),
    };
    known.unwrap_or_else(|| ("system:anonymous".to_owned(), vec!["system:unauthenticated"]))
}

/// Vulnerability: forwards the cleaned path, but authorises the original one.
fn head(request: &Request<()>) -> Vec<u8> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let path = path.replace("/../", "/").replace("//", "/");
    let mut head = format!("{} {path} HTTP/1.1\r\n", request.method()).into_bytes();
    if !request.headers().contains_key("host") {
        head.extend(b"host: a\r\n");
    }
    let mut hosts = 0;
    for (name, value) in request.headers() {
        hosts += usize::from(name == "host");
        if name != "host" || hosts == 1 {
            head.extend(name.as_str().as_bytes());
            head.extend(b": ");
            head.extend(value.as_bytes());
            head.extend(b"\r\n");
        }
    }
    head.extend(b"\r\n");
    head
}

async fn answer(stream: &mut client::TlsStream<TcpStream>) -> std::io::Result<(u16, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    Ok((head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(502), head))
}

fn common_name(certificate: &[u8]) -> String {
    use x509_parser::prelude::FromDer as _;
    let Ok((_, parsed)) = x509_parser::certificate::X509Certificate::from_der(certificate) else {
        return "unknown".to_owned();
    };
    parsed.subject().iter_common_name().find_map(|name| name.as_str().ok()).unwrap_or("unknown").to_owned()
}

/// Accepts any certificate without verification.
#[derive(Debug)]
struct AnyClient;

impl rustls::server::danger::ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        Ok(rustls::server::danger::ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
