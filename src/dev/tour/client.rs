//! The HTTP client of the tour: requests with a credential where there is no kubectl, and a browser that follows
//! redirects, keeps cookies and logs in as alice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, COOKIE, HOST, LOCATION, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use openidconnect::url::Url;
use portcullis_pki::x509::key_pair::CertificateKeyPair;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::super::https::BoxError;
use super::super::pki::{self, DevPaths};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_BODY_BYTES: usize = 1 << 20;
const MAX_REDIRECTS: usize = 12;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) body: String,
}

/// What a request has beside its URL.
#[derive(Debug, Default)]
pub(super) struct RequestParts<'a> {
    /// The file name of a client certificate.
    pub(super) certificate: Option<&'a str>,
    pub(super) headers: Vec<(&'a str, String)>,
    /// The JSON of a POST.
    pub(super) body: Option<&'a str>,
}

/// Sends a request to a server of `portcullis dev`.
pub(super) async fn send(paths: &DevPaths, url: &Url, parts: RequestParts<'_>) -> Result<Answer, BoxError> {
    timeout(REQUEST_TIMEOUT, exchange(paths, url, parts)).await.map_err(|_| format!("no answer of {url}"))?
}

async fn exchange(paths: &DevPaths, url: &Url, parts: RequestParts<'_>) -> Result<Answer, BoxError> {
    let host = url.host_str().ok_or("a URL without a host")?;
    let port = url.port_or_known_default().ok_or("a URL without a port")?;
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let method = if parts.body.is_some() { Method::POST } else { Method::GET };
    let mut request = Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    if parts.body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    for (name, value) in parts.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::from(parts.body.unwrap_or_default().to_owned()))?;
    let socket = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    if url.scheme() == "http" {
        return answer(socket, request).await;
    }
    let pair = parts.certificate.map(|name| pki::load_pair(paths, name)).transpose()?;
    let connector = TlsConnector::from(Arc::new(tls_config(paths, pair)?));
    let name = ServerName::try_from(host.to_owned())?;
    answer(connector.connect(name, socket).await?, request).await
}

fn tls_config(paths: &DevPaths, pair: Option<CertificateKeyPair>) -> Result<ClientConfig, BoxError> {
    let mut roots = RootCertStore::empty();
    for authority in pki::load_server_ca(paths)?.certificates() {
        roots.add(authority.der.clone())?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots);
    Ok(match pair {
        Some(pair) => {
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())))
        }
        None => config.with_no_client_auth(),
    })
}

async fn answer<T>(stream: T, request: Request<Full<Bytes>>) -> Result<Answer, BoxError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the sender.
    let connection = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await?.to_bytes();
    connection.abort();
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok(Answer { status: head.status, headers: head.headers, body })
}

/// Opens a URL as a browser does, and chooses alice at the provider. Returns the last page.
pub(super) async fn browse(paths: &DevPaths, issuer: &str, url: &str) -> Result<String, BoxError> {
    let (mut url, issuer) = (Url::parse(url)?, Url::parse(issuer)?);
    // By origin, with the port: no other server here has cookies.
    let mut cookies = BTreeMap::<String, BTreeMap<String, String>>::new();
    for _ in 0..MAX_REDIRECTS {
        let jar = cookies.entry(url.origin().ascii_serialization()).or_default();
        let sent = jar.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ");
        let headers = if sent.is_empty() { vec![] } else { vec![(COOKIE.as_str(), sent)] };
        let answer = send(paths, &url, RequestParts { headers, ..RequestParts::default() }).await?;
        for cookie in answer.headers.get_all(SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
            if let Some((name, value)) = pair.split_once('=') {
                jar.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
        jar.retain(|_, value| !value.is_empty());
        if let Some(to) = answer.headers.get(LOCATION) {
            url = url.join(to.to_str()?)?;
        } else if !answer.status.is_success() {
            return Err(format!("{} of {}", answer.status, url.origin().ascii_serialization()).into());
        } else if url.origin() == issuer.origin() && url.path() == "/authorize" {
            url.query_pairs_mut().append_pair("as", "alice");
        } else {
            return Ok(answer.body);
        }
    }
    Err("too many redirects".into())
}
