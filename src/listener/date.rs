//! The `Date` header of responses over HTTP/2.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, HeaderMap, HeaderValue};

thread_local! {
    /// The last second and its header value.
    static LAST: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
}

/// Sets `Date` unless the backend has set it.
// RFC 9110, section 6.6.1
pub(super) fn set_date(headers: &mut HeaderMap) {
    headers.entry(DATE).or_insert_with(now);
}

#[expect(clippy::disallowed_methods, reason = "hyper sets Date over HTTP/1.1 by the system clock")]
fn now() -> HeaderValue {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST.with_borrow_mut(|(last, text)| {
        if *last != second {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
            *text = HeaderValue::try_from(date).unwrap_or_else(|_| HeaderValue::from_static(""));
            *last = second;
        }
        text.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_has_one_date() {
        let mut headers = HeaderMap::new();
        set_date(&mut headers);
        let date = httpdate::parse_http_date(headers[DATE].to_str().unwrap()).unwrap();
        assert!(date > UNIX_EPOCH);
        headers.insert(DATE, HeaderValue::from_static("theirs"));
        set_date(&mut headers);
        assert_eq!(headers.get_all(DATE).iter().collect::<Vec<_>>(), ["theirs"]);
    }
}
