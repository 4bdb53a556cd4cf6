//! The proxies of outgoing connections: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` by the rules of Go's `httpproxy`, which
//! kube-apiserver's clients and kubectl follow, and `proxy-url` of a kubeconfig.
//!
//! Decides which connections go through a proxy. TLS ends at the server and never at the proxy. Must never show the
//! password of a proxy, nor connect directly where a proxy does not answer. A variable that is no URL counts as unset, as in Go.
// go: golang.org/x/net/http/httpproxy/proxy.go; client-go: transport/cache.go, tools/clientcmd/helpers.go, parseProxyURL

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use portcullis_go::netip;
use portcullis_go::url::{Part, Url, unescape};

mod rules;

pub use rules::ProxyRules;

/// The rules of this process' environment, which are read once.
static ENVIRONMENT: LazyLock<Arc<ProxyRules>> =
    LazyLock::new(|| Arc::new(ProxyRules::from_variables(|name| std::env::var(name).ok())));

/// Which proxy the connections of a client use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// The one that the environment names for the host.
    #[default]
    Environment,
    /// By these rules.
    Rules(Arc<ProxyRules>),
    /// This one, for every host.
    Fixed(ProxyUrl),
}

impl ProxyChoice {
    /// `proxy-url` of a kubeconfig; without it, the environment's.
    // client-go: tools/clientcmd/client_config.go — `proxy-url` counts for every host, whatever NO_PROXY says
    pub fn of_kubeconfig(proxy_url: Option<&str>) -> Result<Self, ProxyError> {
        let Some(text) = proxy_url.filter(|text| !text.is_empty()) else { return Ok(Self::default()) };
        let url = Url::parse(text).map_err(|_| ProxyError::Invalid)?;
        if !matches!(url.scheme.as_str(), "http" | "https" | "socks5") {
            return Err(ProxyError::Scheme(url.scheme));
        }
        ProxyUrl::of(&url).map(Self::Fixed)
    }

    /// The proxy for the host of a URL, if there is one. No proxy gets a request that TLS does not protect.
    pub fn of_url(&self, url: &http::Uri) -> Result<Option<&ProxyUrl>, ProxyError> {
        if url.scheme_str().is_some_and(|scheme| scheme != "https") {
            return Ok(None);
        }
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        self.proxy("https", host, url.port_u16().unwrap_or(443))
    }

    /// The proxy for a host, if there is one.
    fn proxy(&self, scheme: &str, host: &str, port: u16) -> Result<Option<&ProxyUrl>, ProxyError> {
        match self {
            Self::Environment => ENVIRONMENT.proxy(scheme, host, port),
            Self::Rules(rules) => rules.proxy(scheme, host, port),
            Self::Fixed(proxy) => Ok(Some(proxy)),
        }
    }
}

/// Why no connection is made through a proxy. No text has its password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The address is not a URL.
    #[error("the address of the proxy is not a URL")]
    Invalid,
    /// The scheme is not supported.
    #[error("the scheme {0:?} of the proxy is not supported: it is http, https or socks5")]
    Scheme(String),
    /// The connection through the proxy failed.
    #[error("the proxy {proxy}: {cause}")]
    Failed {
        /// The proxy, without its credentials.
        proxy: String,
        /// The cause.
        cause: String,
    },
}

/// How a client speaks to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// HTTP's CONNECT.
    Http,
    /// HTTP's CONNECT, over TLS.
    Https,
    /// SOCKS, version 5; the proxy resolves names.
    Socks5,
}

impl ProxyProtocol {
    fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Socks5 => "socks5",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
            Self::Socks5 => 1080,
        }
    }
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// How it is spoken to.
    pub protocol: ProxyProtocol,
    /// Its host, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What authenticates the client; never shown.
    pub(crate) credential: Option<ProxyCredential>,
}

/// A user with a password, decoded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ProxyCredential {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl ProxyUrl {
    fn of(url: &Url) -> Result<Self, ProxyError> {
        let protocol = match url.scheme.as_str() {
            "http" => ProxyProtocol::Http,
            "https" => ProxyProtocol::Https,
            "socks5" | "socks5h" => ProxyProtocol::Socks5,
            other => return Err(ProxyError::Scheme(other.to_owned())),
        };
        let host = url.hostname().to_owned();
        if host.is_empty() {
            return Err(ProxyError::Invalid);
        }
        let port = match url.port() {
            "" => protocol.default_port(),
            port => port.parse().map_err(|_| ProxyError::Invalid)?,
        };
        let decode = |text: &str| unescape(text, Part::User).map(Cow::into_owned);
        let credential = match &url.user {
            Some(user) => {
                let (user, password) = user.split_once(':').unwrap_or((user.as_str(), ""));
                let decoded = (decode(user), decode(password));
                let (Ok(user), Ok(password)) = decoded else { return Err(ProxyError::Invalid) };
                Some(ProxyCredential { user, password })
            }
            None => None,
        };
        let proxy = Self { protocol, host, port, credential };
        proxy.uri()?;
        Ok(proxy)
    }

    /// The user and the password, empty without them.
    pub fn user_and_password(&self) -> (&str, &str) {
        let credential = self.credential.as_ref();
        credential.map_or(("", ""), |credential| (&credential.user, &credential.password))
    }

    /// Its address, without credentials.
    pub(crate) fn uri(&self) -> Result<http::Uri, ProxyError> {
        self.to_string().parse().map_err(|_| ProxyError::Invalid)
    }
}

/// The address without credentials.
impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, host, port, credential: _ } = self;
        let scheme = protocol.scheme();
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({self})")
    }
}

/// An address; IPv4-mapped ones are IPv4 addresses.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// An address without a zone.
// go: net/ip.go, ParseIP
fn parse_ip(text: &str) -> Option<IpAddr> {
    netip::parse_addr(text)
        .ok()
        .filter(|parsed| parsed.zone.is_empty())
        .map(|parsed| canonical(parsed.address))
}

/// The first address of a network, and the number of its fixed bits among 128; of an IPv4 network those of its mapped form.
fn network(address: IpAddr, bits: u8) -> (Ipv6Addr, u8) {
    match address {
        IpAddr::V4(address) => (address.to_ipv6_mapped(), bits.saturating_add(96)),
        IpAddr::V6(address) => (address, bits),
    }
}
