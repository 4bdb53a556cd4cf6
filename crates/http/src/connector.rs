//! Connections of clients: TCP, directly or through a proxy, and TLS to the server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Service;

use super::https_client::{CONNECT_TIMEOUT, Cause, PING_INTERVAL, innermost};
use super::proxy::{ProxyChoice, ProxyCredential, ProxyError, ProxyProtocol, ProxyUrl};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to the server or to the proxy, which may speak TLS itself.
type ProxiedStream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// The connections of a client.
pub type Connector = HttpsConnector<ProxyConnector>;

/// Connects by TLS, and to `http` URLs without, until [`HttpsConnector::enforce_https`] forbids it. `config` verifies the server, which must have `server_name`, else the host of the URL. `to_proxy`
/// verifies a proxy of `https`, by the name in its URL. Offers HTTP/2 only if `http2` is set.
pub fn connector(
    config: ClientConfig,
    to_proxy: ClientConfig,
    server_name: Option<ServerName<'static>>,
    proxy: ProxyChoice,
    http2: bool,
) -> Connector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(PING_INTERVAL));
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let to_proxy = HttpsConnectorBuilder::new().with_tls_config(to_proxy).https_or_http().enable_http1();
    let to_proxy = to_proxy.wrap_connector(tcp.clone());
    let tcp = ProxyConnector { direct: tcp, to_proxy, choice: Arc::new(proxy) };
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    let connector = match server_name {
        Some(name) => connector.with_server_name_resolver(FixedServerNameResolver::new(name)),
        None => connector,
    };
    if http2 {
        connector.enable_all_versions().wrap_connector(tcp)
    } else {
        connector.enable_http1().wrap_connector(tcp)
    }
}

/// Connects to a host, through a proxy where one is configured. The TLS of the server is above it.
#[derive(Debug, Clone)]
pub struct ProxyConnector {
    direct: HttpConnector,
    to_proxy: HttpsConnector<HttpConnector>,
    choice: Arc<ProxyChoice>,
}

impl ProxyConnector {
    async fn connect(mut self, host: Uri) -> Result<ProxiedStream, BoxError> {
        let Some(proxy) = self.choice.of_url(&host)?.cloned() else {
            return Ok(MaybeHttpsStream::Http(self.direct.call(host).await?));
        };
        let port = host.port_u16().unwrap_or(443);
        let target = format!("https://{}:{port}", host.host().unwrap_or_default()).parse::<Uri>()?;
        let through = timeout(CONNECT_TIMEOUT, self.through(&proxy, target)).await;
        let through = through.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}")));
        through.map_err(|cause| ProxyError::Failed { proxy: proxy.to_string(), cause }.into())
    }

    async fn through(self, proxy: &ProxyUrl, target: Uri) -> Result<ProxiedStream, String> {
        let address = proxy.uri().map_err(|error| error.to_string())?;
        match proxy.protocol {
            ProxyProtocol::Http | ProxyProtocol::Https => {
                let tunnel = Tunnel::new(address, self.to_proxy);
                let mut tunnel = match &proxy.credential {
                    Some(credential) => tunnel.with_auth(basic(credential)?),
                    None => tunnel,
                };
                tunnel.call(target).await.map_err(|error| describe(&error))
            }
            ProxyProtocol::Socks5 => {
                let socks = SocksV5::new(address, self.direct);
                let mut socks = match &proxy.credential {
                    Some(ProxyCredential { user, password }) => {
                        socks.with_auth(user.clone(), password.clone())
                    }
                    None => socks,
                };
                let connected = socks.call(target).await;
                connected.map(MaybeHttpsStream::Http).map_err(|error| describe(&error))
            }
        }
    }
}

impl Service<Uri> for ProxyConnector {
    type Response = ProxiedStream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ProxiedStream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, host: Uri) -> Self::Future {
        Box::pin(self.clone().connect(host))
    }
}

/// The value of `Proxy-Authorization`.
fn basic(credential: &ProxyCredential) -> Result<HeaderValue, String> {
    let encoded = STANDARD.encode(format!("{}:{}", credential.user, credential.password));
    let value = HeaderValue::from_str(&format!("Basic {encoded}"));
    let mut value = value.map_err(|_| "its user and password are not a header value".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Why a proxy has made no connection, with the fix where it wants a password.
fn describe(error: Cause<'_>) -> String {
    let text = error.to_string();
    let cause = innermost(error);
    if text.contains("authorization required") || text.contains("auth") && text.contains("method") {
        return format!("{cause}; fix: give the user and the password of the proxy in its URL");
    }
    if cause == text { text } else { format!("{text}: {cause}") }
}

#[cfg(test)]
mod tests;
