//! URLs of issuers as kube-apiserver reads them; what is wrong with one is said in Go's words.
//!
//! Follows `net/url`'s `Parse`. Only what validation asks for is kept.

use crate::escape::{Mode, unescape};
use crate::status::quote::Quoted;

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
    if let Some(authority) = rest.strip_prefix("//")
        && (!scheme.is_empty() || !rest.starts_with("///"))
    {
        let (authority, after) = authority
            .find('/')
            .and_then(|slash| authority.split_at_checked(slash))
            .unwrap_or((authority, ""));
        path = after;
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        check_host(host)?;
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

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let Some((_, port)) = host.rsplit_once(']') else {
            return Err("missing ']' in host".to_owned());
        };
        port
    } else {
        host.rfind(':').and_then(|colon| host.split_at_checked(colon)).map_or("", |(_, port)| port)
    };
    let digits = port.strip_prefix(':');
    if !port.is_empty() && !digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(format!("invalid port {} after host", Quoted(port)));
    }
    well_escaped(host)?;
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
