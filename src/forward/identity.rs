//! The one function that writes who a request is made by.

use http::HeaderMap;

use super::headers::strip_identity;
use crate::user::{Identity, IdentityMode, UnfitIdentity};

/// Removes whatever might be read as an identity from `headers`, then writes `identity`.
// threat: forged-identity-headers
pub(crate) fn write_identity(
    headers: &mut HeaderMap,
    identity: &Identity,
    mode: IdentityMode,
) -> Result<(), UnfitIdentity> {
    strip_identity(headers);
    let lines = identity.lines(mode)?;
    headers.reserve(lines.len().min(16));
    for (name, value) in lines {
        headers.append(name, value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::user::UserInfo;

    #[test]
    fn what_was_there_is_no_part_of_an_identity() {
        for mode in [IdentityMode::RequestHeader, IdentityMode::Impersonate] {
            let mut headers = HeaderMap::new();
            headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
            headers.append("impersonate-user", HeaderValue::from_static("eve"));
            write_identity(&mut headers, &Identity::from(UserInfo::named("alice")), mode).unwrap();
            let values: Vec<_> = headers.values().collect();
            assert_eq!(values, ["alice"]);
        }
    }
}
