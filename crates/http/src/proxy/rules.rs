//! The variables of the environment, and the hosts that they exclude.

use std::net::{IpAddr, Ipv6Addr};

use portcullis_go::netip;
use portcullis_go::url::Url;

use super::{ProxyError, ProxyUrl, canonical, network, parse_ip};

/// The proxies that `HTTPS_PROXY` and `HTTP_PROXY` name, and the hosts of `NO_PROXY`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyRules {
    https: Option<Result<ProxyUrl, ProxyError>>,
    http: Option<Result<ProxyUrl, ProxyError>>,
    /// Whether the process is a CGI script, whose client sets `HTTP_PROXY`.
    is_cgi: bool,
    no_proxy: NoProxy,
}

/// The hosts to which connections are direct.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NoProxy {
    all: bool,
    networks: Vec<Network>,
    /// Addresses, each with a port unless it is empty.
    addresses: Vec<(IpAddr, String)>,
    domains: Vec<Domain>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Network {
    first: Ipv6Addr,
    bits: u8,
    is_v4: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Domain {
    /// With a leading period.
    suffix: String,
    /// Empty for every port.
    port: String,
    /// Whether the name without the period matches too.
    has_apex: bool,
}

impl ProxyRules {
    /// The rules of an environment. A variable in capitals takes precedence over the other, unless it is empty.
    // go: httpproxy, FromEnvironment
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let any = |names: [&str; 2]| {
            names.into_iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
        };
        Self {
            https: any(["HTTPS_PROXY", "https_proxy"]).and_then(|text| parse_proxy(&text)),
            http: any(["HTTP_PROXY", "http_proxy"]).and_then(|text| parse_proxy(&text)),
            is_cgi: variable("REQUEST_METHOD").is_some_and(|value| !value.is_empty()),
            no_proxy: NoProxy::parse(&any(["NO_PROXY", "no_proxy"]).unwrap_or_default()),
        }
    }

    /// The proxy for a host. Loopback never has one.
    // go: httpproxy, proxyForURL
    pub fn proxy(&self, scheme: &str, host: &str, port: u16) -> Result<Option<&ProxyUrl>, ProxyError> {
        let configured = match scheme {
            "https" => self.https.as_ref(),
            "http" if self.is_cgi => None,
            "http" => self.http.as_ref(),
            _ => None,
        };
        let Some(configured) = configured else { return Ok(None) };
        if self.no_proxy.has(host, port) {
            return Ok(None);
        }
        configured.as_ref().map(Some).map_err(Clone::clone)
    }
}

/// The proxy of a variable; without a scheme it is `http`. Like Go, ignores what is not a URL either way.
// go: httpproxy, parseProxy
fn parse_proxy(text: &str) -> Option<Result<ProxyUrl, ProxyError>> {
    let parsed = Url::parse(text);
    let is_complete = parsed.as_ref().is_ok_and(|url| !url.scheme.is_empty() && !url.host.is_empty());
    let url = if is_complete { parsed } else { Url::parse(&format!("http://{text}")).or(parsed) };
    url.ok().map(|url| ProxyUrl::of(&url))
}

impl NoProxy {
    // go: httpproxy, config.init
    fn parse(list: &str) -> Self {
        let mut rules = Self::default();
        for entry in list.split(',') {
            let entry = entry.trim().to_lowercase();
            if entry.is_empty() {
                continue;
            }
            if entry == "*" {
                return Self { all: true, ..Self::default() };
            }
            if let Some(network) = Network::parse(&entry) {
                rules.networks.push(network);
                continue;
            }
            let (host, port) = split_host_port(&entry).unwrap_or((entry.as_str(), ""));
            if let Some(address) = parse_ip(host) {
                rules.addresses.push((address, port.to_owned()));
            } else if !host.is_empty() {
                rules.domains.push(Domain::of(host, port));
            }
        }
        rules
    }

    /// Whether connections to this host are direct.
    // go: httpproxy, useProxy
    fn has(&self, host: &str, port: u16) -> bool {
        if host == "localhost" {
            return true;
        }
        let port = port.to_string();
        let is_port = |wanted: &str| wanted.is_empty() || wanted == port;
        if let Ok(parsed) = netip::parse_addr(host) {
            let address = canonical(parsed.address);
            return address.is_loopback()
                || self.all
                || self.networks.iter().any(|network| network.contains(address))
                || self.addresses.iter().any(|(own, port)| *own == address && is_port(port));
        }
        let host = host.trim().to_lowercase();
        self.all || self.domains.iter().any(|domain| domain.has(&host) && is_port(&domain.port))
    }
}

impl Domain {
    fn of(host: &str, port: &str) -> Self {
        let host = if host.starts_with("*.") { host.get(1..).unwrap_or(host) } else { host };
        let has_apex = !host.starts_with('.');
        let suffix = if has_apex { format!(".{host}") } else { host.to_owned() };
        Self { suffix, port: port.to_owned(), has_apex }
    }

    fn has(&self, host: &str) -> bool {
        host.ends_with(&self.suffix) || self.has_apex && self.suffix.strip_prefix('.') == Some(host)
    }
}

impl Network {
    // go: net/ip.go, ParseCIDR
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let parsed = netip::parse_addr(address).ok().filter(|parsed| parsed.zone.is_empty())?;
        if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let bits: u8 = length.parse().ok()?;
        let most = if parsed.address.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return None;
        }
        let (first, bits) = network(parsed.address, bits);
        let first = mask(first, bits);
        // An IPv4-mapped network is one of IPv4, if its mask leaves it mapped.
        Some(Self { is_v4: first.to_ipv4_mapped().is_some(), first, bits })
    }

    // go: net/ip.go, IPNet.Contains
    fn contains(&self, address: IpAddr) -> bool {
        if address.is_ipv4() != self.is_v4 {
            return false;
        }
        let (address, _) = network(address, 0);
        // Of an IPv4 network only the bits of the address count.
        let first = if self.is_v4 { low(self.first) } else { self.first };
        let masked = mask(address, self.bits);
        let masked = if self.is_v4 { low(masked) } else { masked };
        masked == first
    }
}

fn mask(address: Ipv6Addr, bits: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits).min(128)).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

/// The last 32 bits.
fn low(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & u128::from(u32::MAX))
}

/// Host and port of `host:port` or `[host]:port`; `None` if it is neither.
// go: net/ipsock.go, SplitHostPort
fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (before, port) = text.rsplit_once(':')?;
    let host = match before.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|host| !host.contains(['[', ']']))?,
        None if before.contains(':') => return None,
        None => before,
    };
    let has_brackets = |text: &str| text.contains(['[', ']']);
    let is_plain = !before.starts_with('[') && has_brackets(host);
    if is_plain || has_brackets(port) { None } else { Some((host, port)) }
}

#[cfg(test)]
mod tests;
