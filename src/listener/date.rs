//! When an answer was made, for those that do not say so themselves.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, HeaderMap, HeaderValue};

thread_local! {
    /// The last second, as it is written.
    static LAST: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
}

/// Says when, unless that is said.
// RFC 9110, section 6.6.1
pub(super) fn set_date(headers: &mut HeaderMap) {
    headers.entry(DATE).or_insert_with(now);
}

#[expect(
    clippy::disallowed_methods,
    reason = "over HTTP/1.1 it is hyper that says so, by the system's clock"
)]
fn now() -> HeaderValue {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST.with_borrow_mut(|(last, text)| {
        if *last != second {
            let written = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            *text = HeaderValue::try_from(written).unwrap_or_else(|_| HeaderValue::from_static(""));
            *last = second;
        }
        text.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_when_it_was_made_once() {
        let mut headers = HeaderMap::new();
        set_date(&mut headers);
        let said = httpdate::parse_http_date(headers[DATE].to_str().unwrap()).unwrap();
        assert!(said > UNIX_EPOCH);
        headers.insert(DATE, HeaderValue::from_static("theirs"));
        set_date(&mut headers);
        assert_eq!(headers.get_all(DATE).iter().collect::<Vec<_>>(), ["theirs"]);
    }
}
