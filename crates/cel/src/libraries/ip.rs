//! IP addresses and networks.

use std::net::IpAddr;

use portcullis_go::netip::{self, Prefix};
use portcullis_go::quote::Quoted;

use crate::eval::{EvalResult, Halt, Machine, error, no_such_overload};
use crate::native::Native;
use crate::value::Datum;

// apiserver: pkg/cel/library/ip.go, cidr.go
pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    if let [Datum::String(text)] = values {
        return match function {
            "ip" => parse_address(text).map(Native::Ip).map(Datum::Native),
            "cidr" => parse_network(text).map(Native::Cidr).map(Datum::Native),
            "isIP" => Ok(Datum::Bool(parse_address(text).is_ok())),
            "isCIDR" => Ok(Datum::Bool(parse_network(text).is_ok())),
            "ip.isCanonical" => Ok(Datum::Bool(parse_address(text)?.to_string() == **text)),
            _ => Err(Halt::Unsuited),
        };
    }
    match values {
        [Datum::Native(Native::Ip(address))] => of_address(*address, function),
        [Datum::Native(Native::Cidr(network)), arguments @ ..] => {
            of_network(machine, *network, function, arguments)
        }
        _ => Err(Halt::Unsuited),
    }
}

fn of_address(address: IpAddr, function: &str) -> EvalResult {
    Ok(match function {
        "family" => Datum::Int(if address.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => Datum::Bool(address.is_unspecified()),
        "isLoopback" => Datum::Bool(address.is_loopback()),
        "isLinkLocalMulticast" => Datum::Bool(is_link_local_multicast(address)),
        "isLinkLocalUnicast" => Datum::Bool(is_link_local_unicast(address)),
        "isGlobalUnicast" => Datum::Bool(is_global_unicast(address)),
        _ => return Err(Halt::Unsuited),
    })
}

fn of_network(machine: &mut Machine<'_>, network: Prefix, function: &str, arguments: &[Datum]) -> EvalResult {
    let size = usize::from(network.bits).div_ceil(8);
    Ok(match (function, arguments) {
        ("ip", []) => Datum::Native(Native::Ip(network.address)),
        ("prefixLength", []) => Datum::Int(network.bits.into()),
        ("masked", []) => Datum::Native(Native::Cidr(network.masked())),
        ("containsIP", [other]) => {
            machine.charge_reading(2 * size)?;
            match address(machine, other) {
                Ok(address) => Datum::Bool(network.contains(address)),
                // As in the reference, for a text that is not an address, too.
                Err(Halt::Error(_)) => return no_such_overload(),
                Err(halt) => return Err(halt),
            }
        }
        ("containsCIDR", [other]) => {
            machine.charge_reading(2 * size)?;
            machine.charge_reading(size)?;
            machine.charge(1)?;
            let other = self::network(machine, other)?;
            Datum::Bool(network.overlaps(other) && network.bits <= other.bits)
        }
        _ => return Err(Halt::Unsuited),
    })
}

/// An address, or its text.
fn address(machine: &mut Machine<'_>, value: &Datum) -> Result<IpAddr, Halt> {
    match value {
        Datum::Native(Native::Ip(address)) => Ok(*address),
        Datum::String(text) => {
            machine.charge_reading(text.len())?;
            parse_address(text)
        }
        _ => Err(Halt::Unsuited),
    }
}

/// A network, or its text.
fn network(machine: &mut Machine<'_>, value: &Datum) -> Result<Prefix, Halt> {
    match value {
        Datum::Native(Native::Cidr(network)) => Ok(*network),
        Datum::String(text) => {
            machine.charge_reading(text.len())?;
            parse_network(text)
        }
        _ => Err(Halt::Unsuited),
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
