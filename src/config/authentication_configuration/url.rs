//! URLs of issuers as kube-apiserver reads them; what is wrong with one is said in Go's words.
//!
//! Follows `net/url`'s `Parse`. Only what validation asks for is kept.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::go::escape::{Mode, unescape};
use crate::go::quote::Quoted;

/// What validation asks of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parts {
    pub(super) https: bool,
    pub(super) user: bool,
    pub(super) query: bool,
    pub(super) fragment: bool,
}

/// Takes a URL apart.
pub(super) fn parse(url: &str) -> Result<Parts, String> {
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let parts = without_fragment(rest).map_err(|problem| format!("parse {}: {problem}", Quoted(rest)))?;
    well_escaped(fragment).map_err(|problem| format!("parse {}: {problem}", Quoted(url)))?;
    Ok(Parts { fragment: !fragment.is_empty(), ..parts })
}

fn without_fragment(url: &str) -> Result<Parts, String> {
    if url.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (scheme, rest) = split_scheme(url)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut parts =
        Parts { https: scheme.eq_ignore_ascii_case("https"), query: !query.is_empty(), ..Parts::default() };
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            return Ok(parts);
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    let mut path = rest;
    if let Some(authority) = rest.strip_prefix("//") {
        let (authority, after) = authority
            .find('/')
            .and_then(|slash| authority.split_at_checked(slash))
            .unwrap_or((authority, ""));
        path = after;
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        check_host(scheme, host)?;
        if let Some(user) = user {
            parts.user = true;
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !user.chars().all(allowed) {
                return Err("net/url: invalid userinfo".to_owned());
            }
            well_escaped(user)?;
        }
    }
    well_escaped(path)?;
    Ok(parts)
}

fn split_scheme(url: &str) -> Result<(&str, &str), String> {
    match url.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)) {
        Some(0) if url.starts_with(':') => Err("missing protocol scheme".to_owned()),
        Some(end) if url.starts_with(|c: char| c.is_ascii_alphabetic()) => match url.split_at_checked(end) {
            Some((scheme, rest)) => Ok(rest.strip_prefix(':').map_or(("", url), |rest| (scheme, rest))),
            None => Ok(("", url)),
        },
        _ => Ok(("", url)),
    }
}

fn check_host(scheme: &str, host: &str) -> Result<(), String> {
    match host.rfind('[') {
        Some(0) => {
            let (inside, port) = host.rsplit_once(']').ok_or("missing ']' in host")?;
            check_port(port)?;
            let address = inside.trim_start_matches('[');
            let address = address.split_once("%25").map_or(address, |(address, _zone)| address);
            check_octets(inside)?;
            if address.parse::<Ipv4Addr>().is_ok() {
                return Err("invalid IP-literal".to_owned());
            }
            let invalid = format!("invalid host: ParseAddr({}): unable to parse IP", Quoted(address));
            return address.parse::<Ipv6Addr>().map(drop).map_err(|_| invalid);
        }
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {}
    }
    let strict = ["http", "https"].iter().any(|strict| scheme.eq_ignore_ascii_case(strict));
    let colon = if strict { host.find(':') } else { host.rfind(':') };
    if let Some((_, port)) = colon.and_then(|colon| host.split_at_checked(colon)) {
        check_port(port)?;
    }
    check_octets(host)
}

fn check_port(port: &str) -> Result<(), String> {
    let digits = port.strip_prefix(':');
    if port.is_empty() || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return Ok(());
    }
    Err(format!("invalid port {} after host", Quoted(port)))
}

/// In a host, escapes stand for what is not ASCII, or for the percent sign.
fn check_octets(host: &str) -> Result<(), String> {
    well_escaped(host)?;
    let escapes = host.match_indices('%').filter_map(|(at, _)| host.get(at..at + 3));
    let bad = |escape: &&str| *escape != "%25" && escape.as_bytes().get(1).is_some_and(|digit| *digit < b'8');
    if let Some(escape) = escapes.into_iter().find(bad) {
        return Err(format!("invalid URL escape {}", Quoted(escape)));
    }
    let allowed =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c);
    match host.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(format!("invalid character {} in host name", Quoted(&c.to_string()))),
        None => Ok(()),
    }
}

fn well_escaped(text: &str) -> Result<(), String> {
    unescape(text, Mode::Path).map(drop).map_err(|error| error.to_string())
}
