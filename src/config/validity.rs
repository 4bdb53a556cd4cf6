//! Warns about configured certificates that are expired or not yet valid. An error would block every other change of
//! the configuration, revocations included.

use std::path::Path;

use portcullis_go::time;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_system::clock::UnixTime;

/// The number of certificates that one warning names.
const MAX_NAMED: usize = 3;

/// A warning that lists the certificates that are expired or not yet valid. `key` is the configuration key that names
/// `file`; `field` is the field of the file that has the certificates, empty if the file is a bundle.
pub(super) fn warning(
    key: &str,
    file: &Path,
    field: &str,
    certificates: &[Certificate],
    now: UnixTime,
) -> Option<String> {
    let problems: Vec<String> =
        certificates.iter().filter_map(|certificate| problem(certificate, now)).collect();
    let more = problems.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
    let named = problems.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = more.map_or_else(String::new, |more| format!(", and {more} more"));
    let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
    (!problems.is_empty()).then(|| format!("{key}: {}: {field}{named}{more}", file.display()))
}

fn problem(certificate: &Certificate, now: UnixTime) -> Option<String> {
    let time = |seconds: i64| UnixTime::from_secs(u64::try_from(seconds).unwrap_or(0));
    let (begin, end) = (time(certificate.not_before), time(certificate.not_after));
    let name = certificate.label();
    if end < now {
        Some(format!("the certificate {name:?} expired at {}: renew it", time::format_since_epoch(end)))
    } else if begin > now {
        let begin = time::format_since_epoch(begin);
        Some(format!(
            "the certificate {name:?} is not valid before {begin}: check the clocks of both machines"
        ))
    } else {
        None
    }
}
