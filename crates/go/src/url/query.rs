//! Query strings by the rules of Go's `net/url`, with which kube-apiserver parses requests.
//!
//! Follows `url.ParseQuery` as `URL.Query()` uses it: invalid pairs are dropped, a `;` makes its pair invalid, keys are
//! compared after decoding, and a query of too many pairs is empty. Values that are not UTF-8 have U+FFFD in place of each
//! invalid byte, as in Go's JSON; the query itself is forwarded unchanged.

use std::borrow::Cow;

use super::{Part, unescape as unescape_part};

/// Go reads a query of more pairs as an empty one.
// net/url: defaultMaxParams
const MAX_PAIRS: usize = 10_000;

/// The readable pairs of a query, decoded, in order.
pub fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let query = if query.bytes().filter(|byte| *byte == b'&').count() < MAX_PAIRS { query } else { "" };
    query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((unescape(key)?, unescape(value)?))
    })
}

/// The first value of a key, if the key is there at all.
pub fn first<'a>(query: &'a str, key: &str) -> Option<Cow<'a, str>> {
    pairs(query).find(|(name, _)| name == key).map(|(_, value)| value)
}

fn unescape(text: &str) -> Option<Cow<'_, str>> {
    unescape_part(text, Part::Query).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_as_go_reads_them() {
        struct Case {
            query: &'static str,
            pairs: &'static [(&'static str, &'static str)],
        }
        let cases = [
            Case { query: "", pairs: &[] },
            Case { query: "a", pairs: &[("a", "")] },
            Case { query: "a=1&b=2&a=3", pairs: &[("a", "1"), ("b", "2"), ("a", "3")] },
            Case { query: "&&a=1&", pairs: &[("a", "1")] },
            Case { query: "=1", pairs: &[("", "1")] },
            Case { query: "a=b=c", pairs: &[("a", "b=c")] },
            Case { query: "a=1;b=2&c=3", pairs: &[("c", "3")] },
            Case { query: "a=%zz&b=%4", pairs: &[] },
            Case { query: "%zz=1&b=%41+%2B", pairs: &[("b", "A +")] },
            Case { query: "%61=1", pairs: &[("a", "1")] },
            Case { query: "a=%ff%c3%a9", pairs: &[("a", "\u{fffd}é")] },
        ];
        for case in &cases {
            let read: Vec<_> = pairs(case.query).collect();
            let read: Vec<_> = read.iter().map(|(key, value)| (&**key, &**value)).collect();
            assert_eq!(read, case.pairs, "{:?}", case.query);
        }
    }

    #[test]
    fn the_first_value_counts_and_an_absent_key_is_not_an_empty_one() {
        assert_eq!(first("a=1&a=2", "a").as_deref(), Some("1"));
        assert_eq!(first("a=;&a=2", "a").as_deref(), Some("2"));
        assert_eq!(first("a", "a").as_deref(), Some(""));
        assert_eq!(first("b=1", "a"), None);
    }

    #[test]
    fn a_query_of_too_many_pairs_is_empty() {
        let most = "a=1&".repeat(9_999);
        assert_eq!(pairs(&most).count(), 9_999);
        let too_many = "a=1&".repeat(10_000);
        assert_eq!(pairs(&too_many).count(), 0);
    }
}
