//! The page's cookies. Their prefix `__Host-` makes a browser accept them from this host alone, over HTTPS and without a
//! `Domain`: a page on a sibling host can neither read nor plant them.
// RFC 6265bis, section 4.1.3.2
// threat: page-forged-cookie

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// A login that has begun. Each has a cookie of its own, so that two tabs can log in at the same time.
const LOGIN: &str = "__Host-portcullis-login-";
/// Octets of the digest of a login's state in the name of its cookie, and their length in Base64.
const LOGIN_ID_OCTETS: usize = 6;
const LOGIN_ID_LENGTH: usize = 8;
/// The parts of a session. Browsers keep at least 4,096 bytes of a cookie, its name and attributes included.
const SESSION: [&str; 3] =
    ["__Host-portcullis-session-1", "__Host-portcullis-session-2", "__Host-portcullis-session-3"];
/// The longest value of one cookie.
const MAX_VALUE: usize = 3800;

/// A cookie to set; without a value: to delete.
fn cookie(name: &str, value: Option<(&str, u64)>) -> Option<HeaderValue> {
    let (value, age) = value.unwrap_or_default();
    let text = format!("{name}={value}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Lax");
    HeaderValue::try_from(text).ok()
}

/// Sets a cookie for some seconds.
pub(super) fn set(name: &str, value: &str, seconds: u64) -> Option<HeaderValue> {
    cookie(name, Some((value, seconds)))
}

/// Deletes a cookie.
pub(super) fn delete(name: &str) -> Option<HeaderValue> {
    cookie(name, None)
}

/// The name of the cookie of the login with this state.
pub(super) fn login_name(state: &str) -> String {
    let digest = digest(&SHA256, state.as_bytes());
    let id = digest.as_ref().get(..LOGIN_ID_OCTETS).unwrap_or_default();
    format!("{LOGIN}{}", URL_SAFE_NO_PAD.encode(id))
}

/// The names and the values of the logins that have begun.
pub(super) fn logins(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let is_id = |id: &str| {
        id.len() == LOGIN_ID_LENGTH
            && id.bytes().all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_'))
    };
    pairs(headers).filter(move |(name, _)| name.strip_prefix(LOGIN).is_some_and(is_id))
}

/// Sets the cookies of a session, and deletes those that it does not need. `None`: it is too large.
pub(super) fn set_session(sealed: &str, seconds: u64) -> Option<Vec<HeaderValue>> {
    let mut rest = sealed;
    let mut cookies = Vec::with_capacity(SESSION.len());
    for name in SESSION {
        let (part, after) = rest.split_at_checked(MAX_VALUE.min(rest.len()))?;
        cookies.push(if part.is_empty() { delete(name) } else { set(name, part, seconds) }?);
        rest = after;
    }
    rest.is_empty().then_some(cookies)
}

/// Deletes the cookies of a session.
pub(super) fn delete_session() -> Vec<HeaderValue> {
    SESSION.into_iter().filter_map(delete).collect()
}

/// The value of a cookie. The first one counts, as a browser with one cookie of a name sends it.
pub(super) fn get<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut pairs = pairs(headers);
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value).filter(|value| value.len() <= MAX_VALUE)
}

/// All names and values.
fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

/// The sealed session, put together.
pub(super) fn session(headers: &HeaderMap) -> Option<String> {
    let parts: String = SESSION.into_iter().map_while(|name| get(headers, name)).collect();
    (!parts.is_empty()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a browser sends after these cookies were set.
    fn sent(cookies: &[HeaderValue]) -> HeaderMap {
        let text = |cookie: &HeaderValue| cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
        let kept = cookies.iter().filter(|cookie| !cookie.to_str().unwrap().contains("Max-Age=0"));
        let line = kept.map(text).collect::<Vec<_>>().join("; ");
        HeaderMap::from_iter([(COOKIE, line.parse().unwrap())])
    }

    #[test]
    fn every_cookie_has_every_protection() {
        let login = login_name("state");
        let all: Vec<_> = [set(&login, "x", 600), delete(&login)]
            .into_iter()
            .flatten()
            .chain(set_session("x", 60).unwrap())
            .chain(delete_session())
            .collect();
        assert_eq!(all.len(), 8);
        for cookie in all {
            let text = cookie.to_str().unwrap();
            let attributes: Vec<_> = text.split("; ").skip(1).collect();
            assert!(text.starts_with("__Host-"), "{text}");
            for attribute in ["Path=/", "Secure", "HttpOnly", "SameSite=Lax"] {
                assert!(attributes.contains(&attribute), "{text}");
            }
            assert!(!text.contains("Domain"), "{text}");
            assert!(text.len() < 4096);
        }
    }

    #[test]
    fn a_session_is_split_and_put_together() {
        for length in [1, MAX_VALUE, MAX_VALUE + 1, 3 * MAX_VALUE] {
            let sealed: String = ('a'..='z').cycle().take(length).collect();
            let cookies = set_session(&sealed, 60).unwrap();
            assert_eq!(session(&sent(&cookies)).as_deref(), Some(sealed.as_str()), "{length}");
        }
        assert!(set_session(&"x".repeat(3 * MAX_VALUE + 1), 60).is_none());
        assert_eq!(session(&HeaderMap::new()), None);
    }

    #[test]
    fn a_cookie_of_a_similar_name_is_another_one() {
        let (name, short) = (login_name("state"), login_name("state").replace("__Host-", ""));
        let line = format!("{short}=planted; x{name}=planted; {name}=own; {name}x=planted; {LOGIN}=planted");
        let headers = HeaderMap::from_iter([(COOKIE, line.parse().unwrap())]);
        assert_eq!(get(&headers, &name), Some("own"));
        assert_eq!(logins(&headers).collect::<Vec<_>>(), [(name.as_str(), "own")]);
        assert_ne!(name, login_name("other"));
    }
}
