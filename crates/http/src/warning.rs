//! `Warning` headers, as kube-apiserver writes them.
// apiserver: pkg/endpoints/filters/warning.go; apimachinery: pkg/util/net/http.go, NewWarningHeader; RFC 7234, section 5.5

use std::collections::HashSet;

use http::header::{HeaderMap, HeaderValue, WARNING};

/// The characters of all warnings, beyond which each one is shortened, and none is added.
const MAX_TOTAL_CHARACTERS: usize = 4 << 10;
/// The characters of a shortened warning.
const MAX_ITEM_CHARACTERS: usize = 256;

/// The text of a `Warning` header that kube-apiserver has written.
pub fn text_of(value: &HeaderValue) -> Option<String> {
    let text = std::str::from_utf8(value.as_bytes()).ok()?;
    let quoted = text.strip_prefix("299 - \"")?.strip_suffix('"')?;
    let mut plain = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        plain.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(plain)
}

/// Adds warnings to those that the headers have. Of equal ones the first is kept.
pub fn add(headers: &mut HeaderMap, texts: &[String]) {
    if texts.is_empty() {
        return;
    }
    let mut warnings = Warnings::default();
    let given: Vec<HeaderValue> = headers.get_all(WARNING).iter().cloned().collect();
    for value in given {
        match text_of(&value) {
            Some(text) => warnings.add(&text),
            None => warnings.foreign.push(value),
        }
    }
    for text in texts {
        warnings.add(text);
    }
    headers.remove(WARNING);
    for value in warnings.foreign.into_iter().chain(warnings.values) {
        headers.append(WARNING, value);
    }
}

#[derive(Default)]
struct Warnings {
    /// Those that another server has written in its own way.
    foreign: Vec<HeaderValue>,
    known: HashSet<String>,
    ordered: Vec<String>,
    values: Vec<HeaderValue>,
    characters: usize,
    is_shortening: bool,
}

impl Warnings {
    // warning.go, AddWarning
    fn add(&mut self, text: &str) {
        let is_full = self.is_shortening && self.characters >= MAX_TOTAL_CHARACTERS;
        if text.is_empty() || is_full || !self.known.insert(text.to_owned()) {
            return;
        }
        let length = text.chars().count();
        self.ordered.push(text.to_owned());
        if self.is_shortening {
            self.write_shortened(text);
        } else if header(text).is_some() && self.characters + length > MAX_TOTAL_CHARACTERS {
            self.is_shortening = true;
            self.characters = 0;
            self.values.clear();
            for text in std::mem::take(&mut self.ordered) {
                self.write_shortened(&text);
            }
        } else {
            self.write(text, length);
        }
    }

    fn write_shortened(&mut self, text: &str) {
        let short: String = text.chars().take(MAX_ITEM_CHARACTERS).collect();
        self.write(&short, short.chars().count());
    }

    fn write(&mut self, text: &str, length: usize) {
        if let Some(value) = header(text) {
            self.characters += length;
            self.values.push(value);
        }
    }
}

/// The header; `None` for a text with control characters.
fn header(text: &str) -> Option<HeaderValue> {
    if text.chars().any(char::is_control) {
        return None;
    }
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(given: &[&str], texts: &[String]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for value in given {
            headers.append(WARNING, value.parse().unwrap());
        }
        add(&mut headers, texts);
        let values = headers.get_all(WARNING).iter();
        values.map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap()).collect()
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn warnings_are_added_once_each() {
        let given = ["299 - \"a \\\"b\\\" \\\\\"", "199 other \"x\""];
        assert_eq!(
            added(&given, &texts(&["a \"b\" \\", "", "c\nd", "ü", "ü"])),
            ["199 other \"x\"", "299 - \"a \\\"b\\\" \\\\\"", "299 - \"ü\""]
        );
        assert_eq!(added(&given, &[]), given);
    }

    #[test]
    fn many_warnings_are_shortened() {
        let (long, fits, over) = ("x".repeat(3000), "y".repeat(1096), "ü".repeat(1097));
        let lengths = |texts: &[String]| {
            added(&[], texts).iter().map(|value| value.chars().count() - 8).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[long.clone(), fits]), [3000, 1096]);
        assert_eq!(lengths(&[long, over, "z".to_owned()]), [256, 256, 1]);
        let many: Vec<String> = (0..40).map(|number| format!("{number:02}{}", "z".repeat(298))).collect();
        assert_eq!(lengths(&many), [256; 16]);
    }
}
