//! IP addresses and networks.

use std::net::IpAddr;

use portcullis_go::netip::{self, Prefix};
use portcullis_go::quote::Quoted;

use crate::evaluation::{EvalResult, Evaluation, Halt, error, no_such_overload};
use crate::library::{Call, Library};
use crate::native::{Native, unconvertible};
use crate::price::{self, Price, tenth};
use crate::value::Datum;

/// An address.
#[derive(Debug)]
struct Ip(IpAddr);

/// A network.
#[derive(Debug)]
struct Cidr(Prefix);

/// The functions of IP addresses and networks, from Kubernetes.
#[derive(Debug)]
pub(crate) struct IpAddresses;

const SIGNATURES: &str = "
string | (net.IP) -> string | (net.CIDR) -> string
ip | (string) -> net.IP | net.CIDR.() -> net.IP
isIP | (string) -> bool
ip.isCanonical | (string) -> bool
family | net.IP.() -> int
isUnspecified | net.IP.() -> bool
isLoopback | net.IP.() -> bool
isLinkLocalMulticast | net.IP.() -> bool
isLinkLocalUnicast | net.IP.() -> bool
isGlobalUnicast | net.IP.() -> bool
cidr | (string) -> net.CIDR
isCIDR | (string) -> bool
containsIP | net.CIDR.(string) -> bool | net.CIDR.(net.IP) -> bool
containsCIDR | net.CIDR.(string) -> bool | net.CIDR.(net.CIDR) -> bool
masked | net.CIDR.() -> net.CIDR
prefixLength | net.CIDR.() -> int
";

impl Library for IpAddresses {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        let first = call.size(0);
        Price::Units(match call.function {
            "ip" if call.values.first().and_then(Datum::native::<Cidr>).is_some() => 1,
            "ip" | "cidr" | "isIP" | "isCIDR" => tenth(first),
            "ip.isCanonical" => first.div_ceil(5),
            // The comparison of bytes, and the text of the other.
            "containsIP" => tenth(first.saturating_mul(2)) + text_price(call.values.get(1)),
            "containsCIDR" => {
                tenth(first.saturating_mul(2)) + tenth(first) + 1 + text_price(call.values.get(1))
            }
            _ => 1,
        })
    }

    // apiserver: pkg/cel/library/ip.go, cidr.go
    fn call(&self, _evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let Some((target, arguments)) = call.values.split_first() else { return Err(Halt::Unsuited) };
        match target {
            Datum::String(text) if arguments.is_empty() => of_text(text, call.function),
            Datum::Native(native) => {
                if let Some(Ip(address)) = native.downcast() {
                    of_address(*address, call.function)
                } else if let Some(Cidr(network)) = native.downcast() {
                    of_network(*network, call.function, arguments)
                } else {
                    Err(Halt::Unsuited)
                }
            }
            _ => Err(Halt::Unsuited),
        }
    }
}

/// The price of reading an operand that is a text.
fn text_price(value: Option<&Datum>) -> usize {
    match value {
        Some(Datum::Native(_) | Datum::Duration(_) | Datum::Timestamp(_)) | None => 0,
        Some(value) => tenth(price::size(value)),
    }
}

fn of_text(text: &str, function: &str) -> EvalResult {
    match function {
        "ip" => parse_address(text).map(Ip).map(Datum::of_native),
        "cidr" => parse_network(text).map(Cidr).map(Datum::of_native),
        "isIP" => Ok(Datum::Bool(parse_address(text).is_ok())),
        "isCIDR" => Ok(Datum::Bool(parse_network(text).is_ok())),
        "ip.isCanonical" => Ok(Datum::Bool(parse_address(text)?.to_string() == *text)),
        _ => Err(Halt::Unsuited),
    }
}

fn of_address(address: IpAddr, function: &str) -> EvalResult {
    Ok(match function {
        "string" => Datum::string(&address.to_string()),
        "family" => Datum::Int(if address.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => Datum::Bool(address.is_unspecified()),
        "isLoopback" => Datum::Bool(address.is_loopback()),
        "isLinkLocalMulticast" => Datum::Bool(is_link_local_multicast(address)),
        "isLinkLocalUnicast" => Datum::Bool(is_link_local_unicast(address)),
        "isGlobalUnicast" => Datum::Bool(is_global_unicast(address)),
        _ => return Err(Halt::Unsuited),
    })
}

fn of_network(network: Prefix, function: &str, arguments: &[Datum]) -> EvalResult {
    Ok(match (function, arguments) {
        ("string", []) => Datum::string(&network.to_string()),
        ("ip", []) => Datum::of_native(Ip(network.address)),
        ("prefixLength", []) => Datum::Int(network.bits.into()),
        ("masked", []) => Datum::of_native(Cidr(network.masked())),
        ("containsIP", [other]) => {
            match address(other) {
                Ok(address) => Datum::Bool(network.contains(address)),
                // As in the reference, for a text that is not an address, too.
                Err(Halt::Error(_)) => return no_such_overload(),
                Err(halt) => return Err(halt),
            }
        }
        ("containsCIDR", [other]) => {
            let other = self::network(other)?;
            Datum::Bool(network.overlaps(other) && network.bits <= other.bits)
        }
        _ => return Err(Halt::Unsuited),
    })
}

/// An address, or its text.
fn address(value: &Datum) -> Result<IpAddr, Halt> {
    match value {
        Datum::String(text) => parse_address(text),
        value => value.native().map(|Ip(address)| *address).ok_or(Halt::Unsuited),
    }
}

/// A network, or its text.
fn network(value: &Datum) -> Result<Prefix, Halt> {
    match value {
        Datum::String(text) => parse_network(text),
        value => value.native().map(|Cidr(network)| *network).ok_or(Halt::Unsuited),
    }
}

// apiserver: pkg/cel/library/ip.go — parseIPAddr
fn parse_address(text: &str) -> Result<IpAddr, Halt> {
    let parsed = match netip::parse_addr(text) {
        Ok(parsed) => parsed,
        Err(problem) => {
            return error(format!(
                "IP Address {} parse error during conversion from string: {problem}",
                Quoted(text)
            ));
        }
    };
    if !parsed.zone.is_empty() {
        return error(format!("IP address {} with zone value is not allowed", Quoted(text)));
    }
    if netip::is_4_in_6(parsed.address) {
        return error(format!("IPv4-mapped IPv6 address {} is not allowed", Quoted(text)));
    }
    Ok(parsed.address)
}

// apiserver: pkg/cel/library/cidr.go — stringToCIDR, parseCIDR
fn parse_network(text: &str) -> Result<Prefix, Halt> {
    const CONTEXT: &str = "network address parse error during conversion from string";
    match netip::parse_prefix(text) {
        Ok(network) if netip::is_4_in_6(network.address) => {
            error(format!("{CONTEXT}: IPv4-mapped IPv6 address {} is not allowed", Quoted(text)))
        }
        Ok(network) => Ok(network),
        // The reference says it twice.
        Err(problem) => error(format!("{CONTEXT}: {CONTEXT}: {problem}")),
    }
}

// Go: net/netip/netip.go
fn is_link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(address) => address.segments().first().is_some_and(|first| first & 0xff0f == 0xff02),
    }
}

fn is_global_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let elsewhere = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !broadcast && !elsewhere && !is_link_local_unicast(address)
}

impl Native for Ip {
    fn type_name(&self) -> &'static str {
        "net.IP"
    }

    fn go_type(&self) -> &'static str {
        "cel.IP"
    }

    fn shown(&self) -> Option<String> {
        Some(self.0.to_string())
    }

    fn go_round_trip(&self) -> Result<(), String> {
        Err(unconvertible("netip.Addr", &self.0.to_string()))
    }

    fn length(&self) -> usize {
        if self.0.is_ipv4() { 4 } else { 16 }
    }

    fn equals(&self, other: &dyn Native) -> Option<bool> {
        other.downcast().map(|Self(other)| self.0 == *other)
    }
}

impl Native for Cidr {
    fn type_name(&self) -> &'static str {
        "net.CIDR"
    }

    fn go_type(&self) -> &'static str {
        "cel.CIDR"
    }

    fn shown(&self) -> Option<String> {
        Some(self.0.to_string())
    }

    fn go_round_trip(&self) -> Result<(), String> {
        Err(unconvertible("netip.Prefix", &self.0.to_string()))
    }

    fn length(&self) -> usize {
        usize::from(self.0.bits).div_ceil(8)
    }

    fn equals(&self, other: &dyn Native) -> Option<bool> {
        other.downcast().map(|Self(other)| self.0 == *other)
    }
}
