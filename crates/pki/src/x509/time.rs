//! Certificate times: parsing, comparison, formatting.

use portcullis_system::clock::UnixTime;

use super::certificate::ParseError;
use super::der::{DerReader, tag};

/// Parses a UTCTime or GeneralizedTime into seconds since 1970.
///
/// Go accepts more than RFC 5280 allows: offsets from UTC, and a UTCTime without seconds. Years 50 to 99 of a UTCTime
/// are 1950 to 1999.
// go: crypto/x509/parser.go, parseTime; cryptobyte/asn1.go, ReadASN1UTCTime, ReadASN1GeneralizedTime
pub fn read(der: &mut DerReader<'_>) -> Result<i64, ParseError> {
    if der.peek(tag::UTC_TIME) {
        der.read(tag::UTC_TIME).and_then(utc_time).ok_or(ParseError("x509: malformed UTCTime"))
    } else if der.peek(tag::GENERALIZED_TIME) {
        der.read(tag::GENERALIZED_TIME)
            .and_then(generalized_time)
            .ok_or(ParseError("x509: malformed GeneralizedTime"))
    } else {
        Err(ParseError("x509: unsupported time format"))
    }
}

fn utc_time(text: &[u8]) -> Option<i64> {
    let (year, rest) = number(text, 2)?;
    let year = if year < 50 { 2000 + year } else { 1900 + year };
    // Ten digits and a zone, or twelve.
    let with_seconds = rest.get(8).is_some_and(u8::is_ascii_digit);
    date_and_time(year, rest, with_seconds)
}

fn generalized_time(text: &[u8]) -> Option<i64> {
    let (year, rest) = number(text, 4)?;
    date_and_time(year, rest, true)
}

fn date_and_time(year: i64, rest: &[u8], with_seconds: bool) -> Option<i64> {
    let (month, rest) = number(rest, 2)?;
    let (day, rest) = number(rest, 2)?;
    let (hour, rest) = number(rest, 2)?;
    let (minute, rest) = number(rest, 2)?;
    let (second, rest) = if with_seconds { number(rest, 2)? } else { (0, rest) };
    let offset = match rest {
        [b'Z'] => 0,
        [sign @ (b'+' | b'-'), zone @ ..] => {
            let (hours, zone) = number(zone, 2)?;
            let (minutes, zone) = number(zone, 2)?;
            let offset = (hours * 60 + minutes) * 60;
            // An offset of zero must be encoded as `Z`.
            if !zone.is_empty() || hours > 24 || minutes > 59 || offset == 0 {
                return None;
            }
            if *sign == b'+' { offset } else { -offset }
        }
        _ => return None,
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    if !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset)
}

/// Parses the first `width` digits.
fn number(text: &[u8], width: usize) -> Option<(i64, &[u8])> {
    let (digits, rest) = text.split_at_checked(width)?;
    let value = digits
        .iter()
        .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0')))?;
    Some((value, rest))
}

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day of a year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Whether `now` is before the second `limit`.
pub fn is_before(now: UnixTime, limit: i64) -> bool {
    u64::try_from(limit).is_ok_and(|limit| now < UnixTime::from_secs(limit))
}

/// Whether `now` is after the second `limit`, even by a fraction of a second.
pub fn is_after(now: UnixTime, limit: i64) -> bool {
    u64::try_from(limit).map_or(true, |limit| now > UnixTime::from_secs(limit))
}

#[cfg(test)]
mod tests {
    use portcullis_go::time::format_utc;

    use super::{generalized_time, is_after, is_before, utc_time};
    use std::time::Duration;

    #[test]
    fn times_are_parsed_as_go_parses_them() {
        const UTC: &[(&str, Option<&str>)] = &[
            ("200101000000Z", Some("2020-01-01T00:00:00Z")),
            ("491231235959Z", Some("2049-12-31T23:59:59Z")),
            ("500101000000Z", Some("1950-01-01T00:00:00Z")),
            ("690101000000Z", Some("1969-01-01T00:00:00Z")),
            ("2001010000Z", Some("2020-01-01T00:00:00Z")),
            ("200101000000+0130", Some("2019-12-31T22:30:00Z")),
            ("2001010000-0100", Some("2020-01-01T01:00:00Z")),
            ("200101000000+0000", None),
            ("200101000000+2500", None),
            ("200101000000", None),
            ("20010100000Z", None),
            ("200101000000.5Z", None),
            ("200230000000Z", None),
            ("210229000000Z", None),
            ("200229000000Z", Some("2020-02-29T00:00:00Z")),
            ("200101240000Z", None),
            ("200101000060Z", None),
            ("", None),
        ];
        const GENERALIZED: &[(&str, Option<&str>)] = &[
            ("20990101000000Z", Some("2099-01-01T00:00:00Z")),
            ("99991231235959Z", Some("9999-12-31T23:59:59Z")),
            ("00000101000000Z", Some("0000-01-01T00:00:00Z")),
            ("21000229000000Z", None),
            ("209901010000Z", None),
            ("20990101000000.5Z", None),
        ];
        for (text, want) in UTC {
            assert_eq!(utc_time(text.as_bytes()).map(format_utc).as_deref(), *want, "{text}");
        }
        for (text, want) in GENERALIZED {
            assert_eq!(generalized_time(text.as_bytes()).map(format_utc).as_deref(), *want, "{text}");
        }
    }

    #[test]
    fn a_certificate_expires_at_the_first_instant_after_not_after() {
        assert!(!is_after(Duration::from_secs(10), 10));
        assert!(is_after(Duration::from_nanos(10_000_000_001), 10));
        assert!(is_after(Duration::ZERO, -1));
        assert!(!is_before(Duration::from_secs(10), 10));
        assert!(is_before(Duration::from_millis(9_999), 10));
        assert!(!is_before(Duration::ZERO, -5));
    }
}
