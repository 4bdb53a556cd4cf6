//! The lines of a deny list.

use proptest::prelude::*;

use super::*;
use crate::revocation::path::{CertificatePath, PathCertificate};

const NOW: UnixTime = UnixTime::from_hours(500_000);
const SHA256: &str = "2c54f6e0a1b2c3d4e5f60718293a4b5c6d7e8f90123456789abcdef012345678";

fn user(name: &str, credential: Option<&str>) -> UserInfo {
    let mut user = UserInfo::named(name);
    user.extra.extend(credential.map(|id| (CREDENTIAL_ID_KEY.to_owned(), vec![id.to_owned()])));
    user
}

fn path(issuer: &str, serial: &[u8], id: &str) -> CertificatePath {
    CertificatePath::from(vec![PathCertificate {
        issuer: Vec::new(),
        comparable_issuer: ComparableName::parse(issuer),
        serial: serial.to_vec(),
        credential_ids: vec![id.to_owned()],
        is_regular: true,
    }])
}

fn parse(text: &str) -> DenyList {
    DenyList::parse(text.as_bytes()).unwrap()
}

#[test]
fn entries_name_users_and_credentials() {
    let list = parse(
        "# comment\n\
         \n\
         user=alice\r\n\
         \tuser=\"Jane Doe # \\\"x\\\"\"   # left\n\
         user=https://issuer#bob # a comment begins after a blank\n\
         JTI=7fb8#d9a4\n\
         JTI=\"a b\"",
    );
    assert_eq!(list.count(), 5);
    for (name, credential, line) in [
        ("alice", None, Some(3)),
        ("Alice", None, None),
        ("alice ", None, None),
        ("Jane Doe # \"x\"", None, Some(4)),
        ("https://issuer#bob", None, Some(5)),
        ("carol", Some("JTI=7fb8#d9a4"), Some(6)),
        ("carol", Some("JTI=7FB8#d9a4"), None),
        ("carol", Some("JTI=a b"), Some(7)),
        ("carol", Some("7fb8#d9a4"), None),
        ("carol", None, None),
        ("", None, None),
    ] {
        let found = list.denies_user(&user(name, credential), NOW).map(|entry| entry.line);
        assert_eq!(found, line, "{name:?} {credential:?}");
    }
}

#[test]
fn entries_name_certificates() {
    let colons: Vec<String> = SHA256
        .to_uppercase()
        .as_bytes()
        .chunks(2)
        .map(|pair| String::from_utf8(pair.to_vec()).unwrap())
        .collect();
    let list = parse(&format!(
        "X509SHA256={}\nserial=0A1B issuer=\"CN=Client CA,O=Example\"\nissuer=CN=x serial=0:00",
        colons.join(":")
    ));
    let id = format!("X509SHA256={SHA256}");
    for (path, line) in [
        (path("CN=y", b"\x01", &id), Some(1)),
        (path("CN=client ca,O=example", b"\x0a\x1b", "X509SHA256=00"), Some(2)),
        (path("CN=client ca,O=other", b"\x0a\x1b", "X509SHA256=00"), None),
        (path("CN=client ca,O=example", b"\x0a", "X509SHA256=00"), None),
        (path("CN=x", b"\0", "X509SHA256=00"), Some(3)),
    ] {
        assert_eq!(list.denies_path(&path, NOW).map(|entry| entry.line), line, "{path:?}");
    }
    assert_eq!(list.denies_user(&user("x", Some(&id)), NOW).map(|entry| entry.line), Some(1));
}

#[test]
fn an_entry_may_end() {
    let list = parse("user=alice until=2027-01-15T08:00:00Z\nuntil=2027-01-15T08:00:01+00:00 user=bob");
    let end = UnixTime::from_hours(500_000);
    for (name, now, denied) in [
        ("alice", end.saturating_sub(UnixTime::from_nanos(1)), true),
        ("alice", end, false),
        ("bob", end, true),
        ("bob", end + UnixTime::from_secs(1), false),
    ] {
        assert_eq!(list.denies_user(&user(name, None), now).is_some(), denied, "{name} {now:?}");
    }
    // The entry that ends last counts, in either order.
    for text in [
        "user=alice\nuser=alice until=2020-01-01T00:00:00Z",
        "user=alice until=2020-01-01T00:00:00Z\nuser=alice",
    ] {
        assert!(parse(text).denies_user(&user("alice", None), NOW).is_some(), "{text}");
    }
}

#[test]
fn a_list_includes_another_if_it_denies_as_much_for_as_long() {
    let includes = |own: &str, other: &str| parse(own).includes(&parse(other), NOW);
    assert!(includes("user=a\nJTI=b", "JTI=b"));
    assert!(includes("user=a", "user=a until=2030-01-01T00:00:00Z"));
    assert!(includes("", "user=a until=2020-01-01T00:00:00Z"), "it has ended");
    assert!(!includes("user=a until=2030-01-01T00:00:00Z", "user=a"));
    assert!(!includes("", "JTI=b"));
    assert!(!includes("user=b", "user=a"));
    assert!(!includes("", "serial=1 issuer=CN=x"));
}

#[test]
fn a_line_that_does_not_parse_is_an_error_with_its_number() {
    for (line, problem) in [
        ("alice", "give one of"),
        ("User=alice", "give one of"),
        ("user=", "give one of"),
        ("JTI=", "give one of"),
        ("user=alice JTI=b", "give one of"),
        ("until=2027-01-01T00:00:00Z", "give one of"),
        ("user=alice bob", "give one of"),
        ("user=alice reason=x", "give one of"),
        ("serial=0a", "give one of"),
        ("issuer=CN=x", "give one of"),
        ("user=alice user=bob", "user: is given twice"),
        ("user=system:anonymous", "--anonymous-auth=false"),
        ("user=\"alice", "not a JSON string"),
        ("user=\"alice\"x", "a blank must follow"),
        ("user=al\"ice", "quote the whole value"),
        ("user=alice until=tomorrow", "until: give a time"),
        ("user=alice until=2027-01-01", "until: give a time"),
        ("X509SHA256=00", "64 hexadecimal digits"),
        (
            "X509SHA256=2c54f6e0a1b2c3d4e5f60718293a4b5c6d7e8f90123456789abcdef01234567g",
            "64 hexadecimal digits",
        ),
        ("x509sha256=2c54f6e0a1b2c3d4e5f60718293a4b5c6d7e8f90123456789abcdef012345678", "give one of"),
        ("serial=xyz issuer=CN=x", "serial: give"),
        ("serial= issuer=CN=x", "serial: give"),
        ("serial=0a issuer=x", "issuer: give"),
        ("serial=0a issuer=CN=My CA", "give one of"),
        ("\u{feff}user=alice", "give one of"),
    ] {
        let error = DenyList::parse(format!("user=carol\n{line}\nuser=dave\n").as_bytes()).expect_err(line);
        assert_eq!(error.line, 2, "{line}");
        assert!(error.problem.contains(problem), "{line}: {error}");
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
    assert_eq!(DenyList::parse(b"user=a\n\xff").unwrap_err().to_string(), "line 2: is not UTF-8");
}

#[test]
fn serial_numbers_have_one_form() {
    for (digits, expected) in [
        ("0", &[0][..]),
        ("00", &[0]),
        ("a", &[10]),
        ("0a", &[10]),
        ("000a1b", &[10, 0x1b]),
        ("100", &[1, 0]),
    ] {
        assert_eq!(octets(digits).as_deref(), Some(expected), "{digits}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,60}|(user|JTI|serial|issuer|until)=[\"\\\\#=,+; a-zA-Z0-9.]{0,30}( issuer=\\PC{0,20})?") {
        DenyList::parse(text.as_bytes()).ok();
        ComparableName::parse(&text);
    }
}

/// A file may have 16 MiB.
#[test]
fn a_large_list_is_read_and_searched_at_once() {
    let lines: Vec<String> = (0..200_000).map(|index| format!("user=user-{index}")).collect();
    let list = parse(&lines.join("\n"));
    assert_eq!(list.count(), 200_000);
    assert_eq!(list.denies_user(&user("user-199999", None), NOW).map(|entry| entry.line), Some(200_000));
}
