//! URLs, as Go's `net/url` parses them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use portcullis_go::url::{self, query};

use crate::eval::{EvalResult, Halt, Machine, error};
use crate::native::Native;
use crate::price;
use crate::value::{Datum, MapKey};

/// A URL. Two are equal if they print alike.
#[derive(Debug, Clone)]
pub(crate) struct Url {
    parsed: url::Url,
    text: String,
}

// apiserver: pkg/cel/library/urls.go
pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    match (function, values) {
        ("isURL", [Datum::String(text)]) => Ok(Datum::Bool(url::Url::check_request_uri(text).is_ok())),
        ("url", [Datum::String(text)]) => match parse(text) {
            Ok(url) => Ok(Datum::Native(Native::Url(Arc::new(url)))),
            Err(problem) => error(format!("URL parse error during conversion from string: {problem}")),
        },
        (_, [Datum::Native(Native::Url(url))]) => part(machine, url, function),
        _ => Err(Halt::Unsuited),
    }
}

fn parse(text: &str) -> Result<Url, url::UrlError> {
    // The reference refuses what is no request target, and then reads the fragment.
    url::Url::check_request_uri(text)?;
    let parsed = url::Url::parse(text)?;
    let text = parsed.to_string();
    Ok(Url { parsed, text })
}

fn part(machine: &mut Machine<'_>, url: &Url, function: &str) -> EvalResult {
    machine.charge(url.text.len() / 10)?;
    let Url { parsed, .. } = url;
    Ok(match function {
        "getScheme" => Datum::string(&parsed.scheme),
        "getHost" => Datum::string(&parsed.host),
        "getHostname" => Datum::string(parsed.hostname()),
        "getPort" => Datum::string(parsed.port()),
        "getEscapedPath" => Datum::string(&parsed.escaped_path()),
        "getQuery" => {
            let query = parsed.query.as_deref().unwrap_or_default();
            // Each value is in a list.
            machine.charge(query::pairs(query).count().saturating_mul(price::LIST))?;
            pairs(query)
        }
        _ => return Err(Halt::Unsuited),
    })
}

/// The values of each key.
fn pairs(query: &str) -> Datum {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in query::pairs(query) {
        values.entry(key.into_owned()).or_default().push(value.into_owned());
    }
    let list = |values: Vec<String>| Datum::strings(values.iter().map(String::as_str));
    Datum::map(values.into_iter().map(|(key, values)| (MapKey::from(key.as_str()), list(values))).collect())
}

impl Url {
    /// The length of the text that a comparison reads.
    pub(crate) fn size(&self) -> usize {
        self.text.len()
    }
}

impl PartialEq for Url {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}
