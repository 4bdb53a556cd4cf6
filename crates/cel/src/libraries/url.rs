//! URLs, as Go's `net/url` parses them.

use std::collections::BTreeMap;

use portcullis_go::url::{self, query};

use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library};
use crate::native::{Native, unconvertible};
use crate::price::{self, Price, tenth};
use crate::value::{Datum, MapKey};

/// A URL. Two are equal if they print alike.
#[derive(Debug)]
struct Url {
    parsed: url::Url,
    text: String,
}

/// The functions of URLs, from Kubernetes.
#[derive(Debug)]
pub(crate) struct Urls;

const SIGNATURES: &str = "
url | (string) -> kubernetes.URL
isURL | (string) -> bool
getScheme | kubernetes.URL.() -> string
getHost | kubernetes.URL.() -> string
getHostname | kubernetes.URL.() -> string
getPort | kubernetes.URL.() -> string
getEscapedPath | kubernetes.URL.() -> string
getQuery | kubernetes.URL.() -> map(string, list(string))
";

impl Library for Urls {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        match call.function {
            "url" => Price::Units(tenth(call.size(0))),
            // One unit in the reference, however long the text is.
            "isURL" => Price::Units(tenth(call.size(0)).max(1)),
            _ => Price::ONE,
        }
    }

    // apiserver: pkg/cel/library/urls.go
    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let [value] = call.values else { return Err(Halt::Unsuited) };
        match (call.function, value) {
            ("isURL", Datum::String(text)) => Ok(Datum::Bool(url::Url::check_request_uri(text).is_ok())),
            ("url", Datum::String(text)) => match parse(text) {
                Ok(url) => Ok(Datum::of_native(url)),
                Err(problem) => error(format!("URL parse error during conversion from string: {problem}")),
            },
            (function, value) => match value.native() {
                Some(url) => part(evaluation, url, function),
                None => Err(Halt::Unsuited),
            },
        }
    }
}

fn parse(text: &str) -> Result<Url, url::UrlError> {
    // The reference refuses what is no request target, and then reads the fragment.
    url::Url::check_request_uri(text)?;
    let parsed = url::Url::parse(text)?;
    let text = parsed.to_string();
    Ok(Url { parsed, text })
}

fn part(evaluation: &mut Evaluation<'_>, url: &Url, function: &str) -> EvalResult {
    evaluation.charge(url.text.len() / 10)?;
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
            evaluation.charge(query::pairs(query).count().saturating_mul(price::LIST))?;
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

impl Native for Url {
    fn type_name(&self) -> &'static str {
        "kubernetes.URL"
    }

    fn go_type(&self) -> &'static str {
        "cel.URL"
    }

    fn shown(&self) -> Option<String> {
        Some(self.text.clone())
    }

    fn go_round_trip(&self) -> Result<(), String> {
        Err(unconvertible("*url.URL", &self.text))
    }

    fn compared_length(&self) -> usize {
        self.text.len().max(1)
    }

    fn equals(&self, other: &dyn Native) -> Option<bool> {
        other.downcast::<Self>().map(|other| self.text == other.text)
    }
}
