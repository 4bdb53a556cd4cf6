//! Tokens, keys, and keys that come from elsewhere.

use super::*;

#[test]
fn tokens_are_taken_apart() {
    let cases = [
        ("", Some(Malformed::Parts)),
        ("a.b", Some(Malformed::Parts)),
        ("e30.e30.e30.e30", Some(Malformed::Parts)),
        ("e30.e30.", None),
        ("e30=.e30.", Some(Malformed::Base64("header"))),
        ("e30.e31.", None),
        ("e30.W10.", Some(Malformed::Json("payload"))),
        ("e30.e30.+", Some(Malformed::Base64("signature"))),
    ];
    for (token, expected) in cases {
        assert_eq!(Jwt::parse(token).err(), expected, "{token:?}");
    }
}
