//! The token that a URI names, among those that the module shows.

use cryptoki::context::Pkcs11;
use cryptoki::error::Error;
use cryptoki::slot::{Slot, TokenInfo};
use portcullis_go::url::escape;

use super::error::{TokenError, one_line};
use super::uri::Pkcs11Uri;

/// How many tokens or keys a message lists.
pub(super) const MAX_LISTED: usize = 10;

/// A slot with a token.
struct FoundToken {
    slot: Slot,
    info: Result<TokenInfo, Error>,
}

impl FoundToken {
    /// The attributes of a URI that name the token; `slot-id` last, because some modules number their slots anew.
    fn attributes(&self) -> Vec<(&'static str, String)> {
        let mut attributes = Vec::new();
        if let Ok(info) = &self.info {
            for (name, text) in [
                ("token", info.label()),
                ("serial", info.serial_number()),
                ("manufacturer", info.manufacturer_id()),
                ("model", info.model()),
            ] {
                attributes.push((name, text.trim_end().to_owned()));
            }
        }
        attributes.push(("slot-id", self.slot.id().to_string()));
        attributes
    }

    // threat: token-of-others
    fn matches(&self, uri: &Pkcs11Uri) -> bool {
        if uri.slot_id.is_some_and(|id| id != self.slot.id()) {
            return false;
        }
        let same = |wanted: &Option<String>, text: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == text.trim_end())
        };
        match &self.info {
            Ok(info) => {
                info.token_initialized()
                    && same(&uri.token, info.label())
                    && same(&uri.serial, info.serial_number())
                    && same(&uri.manufacturer, info.manufacturer_id())
                    && same(&uri.model, info.model())
            }
            // The library of the gateway rejects a description with a malformed clock as a whole. The PIN goes to a token
            // that cannot be compared only if the URI says nothing to compare.
            Err(Error::Pkcs11(..)) => false,
            Err(_) => uri.slot_id.is_some() && !uri.describes_token(),
        }
    }

    fn describe(&self) -> String {
        let text = |found: &Self| {
            let attributes = found.attributes();
            let parts = attributes.iter().filter(|(_, value)| !value.is_empty());
            parts.map(|(name, value)| attribute(name, value.as_bytes())).collect::<Vec<_>>().join(";")
        };
        match &self.info {
            Ok(info) if info.token_initialized() => text(self),
            Ok(_) => format!("{} (not initialized)", text(self)),
            Err(error @ Error::Pkcs11(..)) => format!("{} ({})", text(self), one_line(error)),
            Err(error) => format!(
                "{} (its description cannot be read: {}; slot-id alone can name it)",
                text(self),
                one_line(error)
            ),
        }
    }
}

/// The slot of the only token that matches the URI.
pub(super) fn find(library: &Pkcs11, uri: &Pkcs11Uri) -> Result<Slot, TokenError> {
    let slots =
        library.get_slots_with_token().map_err(|error| TokenError::of("listing the tokens", &error))?;
    let tokens: Vec<FoundToken> =
        slots.into_iter().map(|slot| FoundToken { slot, info: library.get_token_info(slot) }).collect();
    let found: Vec<&FoundToken> = tokens.iter().filter(|token| token.matches(uri)).collect();
    match found.as_slice() {
        [token] => Ok(token.slot),
        [] => Err(TokenError::absent(format!(
            "no token matches {}; the module shows {}",
            uri.of_token(),
            list(&tokens.iter().map(FoundToken::describe).collect::<Vec<_>>(), "no token")
        ))),
        several => {
            let described: Vec<String> = several.iter().map(|token| token.describe()).collect();
            let attributes: Vec<_> = several.iter().map(|token| token.attributes()).collect();
            let fix = distinguishing(&attributes, |name| uri.has(name)).map_or_else(
                || "nothing tells them apart".to_owned(),
                |name| format!("add the {name} of one of them"),
            );
            Err(TokenError::refused(format!(
                "{} tokens match {}: {}; {fix}",
                several.len(),
                uri.of_token(),
                list(&described, "")
            )))
        }
    }
}

/// The first attribute that the URI lacks and that differs among all.
pub(super) fn distinguishing(
    of_each: &[Vec<(&'static str, String)>],
    is_given: impl Fn(&str) -> bool,
) -> Option<&'static str> {
    let first = of_each.first()?;
    first.iter().map(|(name, _)| *name).filter(|name| !is_given(name)).find(|name| {
        let mut values: Vec<_> = of_each
            .iter()
            .filter_map(|attributes| attributes.iter().find(|(other, _)| other == name))
            .map(|(_, value)| value)
            .filter(|value| !value.is_empty())
            .collect();
        values.sort_unstable();
        values.dedup();
        values.len() == of_each.len()
    })
}

/// An attribute as a URI has it.
pub(super) fn attribute(name: &str, value: &[u8]) -> String {
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    format!("{name}={}", escape(value, stays))
}

/// At most [`MAX_LISTED`] of them; `none` if there are none.
pub(super) fn list(described: &[String], none: &str) -> String {
    if described.is_empty() {
        return none.to_owned();
    }
    let shown = described.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
    match described.len().checked_sub(MAX_LISTED) {
        Some(more) if more > 0 => format!("{shown}, and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::{attribute, distinguishing, list};

    fn of(values: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        values.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[test]
    fn the_advice_names_what_differs_and_is_not_given() {
        let same_serial = [
            of(&[("token", "a"), ("serial", "0000"), ("slot-id", "1")]),
            of(&[("token", "a"), ("serial", "0000"), ("slot-id", "2")]),
        ];
        assert_eq!(distinguishing(&same_serial, |name| name == "token"), Some("slot-id"));
        let serials = [of(&[("serial", "1"), ("slot-id", "1")]), of(&[("serial", "2"), ("slot-id", "2")])];
        assert_eq!(distinguishing(&serials, |_| false), Some("serial"));
        assert_eq!(distinguishing(&serials, |name| name == "serial"), Some("slot-id"));
        let ids = [of(&[("id", "1")]), of(&[("id", "")])];
        assert_eq!(distinguishing(&ids, |_| false), None, "a URI cannot name an empty identifier");
    }

    #[test]
    fn lists_are_bounded_and_escaped() {
        assert_eq!(attribute("token", b"a b;\xff"), "token=a%20b%3B%FF");
        let many: Vec<String> = (0..12).map(|index| index.to_string()).collect();
        assert_eq!(list(&many, "none"), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more");
        assert_eq!(list(&[], "none"), "none");
    }
}
