//! Lists the objects of a resource page by page. Only the fields of `T` stay in memory; a page that exceeds the maximum
//! response size is requested again with a smaller limit.
//!
//! A continue token contains the name of the last object. Names may have no maximum length, so a token may be too long
//! for a URL; the next page then begins after all names with the same prefix. The same holds for a name that is not
//! UTF-8, which a token cannot contain.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::ListParams;
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _, Serialize};
use serde_json::value::RawValue;

use super::policy::{FollowPolicy, FollowedResource};
use crate::backend::response_size::is_too_large;

/// The maximum length of a token to send: a URL has at most 64 KiB, and also contains a selector.
const MAX_TOKEN: usize = 48 * 1024;
/// The length of the prefix to keep from a name whose token is too long. A byte takes at most eight bytes in a token.
const MAX_START: usize = 4 * 1024;

#[derive(Deserialize)]
struct ListPage<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: &'a RawValue,
}

/// Parses at most `max` objects. The parser skips fields that `T` does not have.
struct Objects<T> {
    max: usize,
    objects: PhantomData<T>,
}

// threat: endless-response
impl<'de, T: Deserialize<'de>> Visitor<'de> for Objects<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} objects", self.max)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == self.max {
                return Err(A::Error::invalid_length(items.len() + 1, &self));
            }
            items.push(item);
        }
        Ok(items)
    }

    // Go's `null` is an empty slice.
    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }
}

fn parse<T: DeserializeOwned>(text: &str, max: usize) -> serde_json::Result<(ListMeta, Vec<T>)> {
    let ListPage { metadata, items } = serde_json::from_str(text)?;
    let objects = Objects { max, objects: PhantomData };
    Ok((metadata, serde_json::Deserializer::from_str(items.get()).deserialize_any(objects)?))
}

/// A list in pages.
#[derive(Debug)]
pub(crate) struct PagedList {
    resource: FollowedResource,
    page_size: u32,
    max_objects: usize,
    limit: u32,
    /// The token of the next page, empty for the first; `None` after the last.
    next: Option<String>,
    /// The last token that the API server sent.
    last: String,
    /// The name at which the next page begins, if the token is kube-apiserver's.
    start: String,
    has_skipped: bool,
    /// The version of the list.
    version: String,
}

impl PagedList {
    pub(crate) fn new(resource: FollowedResource, policy: &FollowPolicy) -> Self {
        Self {
            resource,
            page_size: policy.page_size,
            max_objects: policy.max_objects,
            limit: policy.page_size,
            next: Some(String::new()),
            last: String::new(),
            start: String::new(),
            has_skipped: false,
            version: String::new(),
        }
    }

    /// The version from which a watch continues.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Whether the list may have skipped names because one is not UTF-8.
    pub(crate) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// The objects of the next page; `None` after the last.
    pub(crate) async fn next<T: DeserializeOwned>(
        &mut self,
        client: &Client,
    ) -> kube::Result<Option<Vec<T>>> {
        let Some(token) = self.next.clone() else { return Ok(None) };
        loop {
            let mut params = ListParams::default().limit(self.limit);
            params.continue_token = Some(token.clone()).filter(|token| !token.is_empty());
            match client.request_text(self.resource.list(params)?).await {
                Ok(text) => {
                    let (metadata, objects) =
                        parse(&text, self.max_objects).map_err(kube::Error::SerdeError)?;
                    self.limit = (self.limit * 2).min(self.page_size);
                    let token = metadata.continue_.filter(|token| !token.is_empty());
                    self.next = token.map(|token| self.follow(token)).transpose()?.flatten();
                    self.version = metadata.resource_version.unwrap_or_default();
                    return Ok(Some(objects));
                }
                Err(error) if self.limit > 1 && is_too_large(&error) => {
                    self.limit = (self.limit / 8).max(1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The token to send after `token` was received; `None` if no name can follow. A token in another format than
    /// kube-apiserver's is returned unchanged. Fails if the token does not advance.
    // threat: pending-requests-flood
    fn follow(&mut self, token: String) -> kube::Result<Option<String>> {
        let stuck = || {
            kube::Error::SerdeError(serde_json::Error::custom(
                "the continue token of the list does not advance",
            ))
        };
        if token == self.last {
            return Err(stuck());
        }
        self.last.clone_from(&token);
        let json = BASE64_URL_SAFE_NO_PAD.decode(&token).ok();
        let known = json.as_deref().and_then(|json| serde_json::from_slice::<ContinueToken<'_>>(json).ok());
        let Some(mut known) = known else { return Ok(Some(token)) };
        let unclear = known.start.find(char::REPLACEMENT_CHARACTER);
        self.has_skipped |= unclear.is_some();
        let is_long = token.len() > MAX_TOKEN;
        if unclear.is_some() || is_long {
            // Names with an ASCII character at that position sort before, and were listed already.
            known.start.truncate(unclear.unwrap_or(usize::MAX));
            if is_long {
                known.start.truncate(known.start.floor_char_boundary(MAX_START));
            }
            let Some(start) = first_after_prefix(known.start) else { return Ok(None) };
            known.start = start;
        }
        if known.start <= self.start {
            return Err(stuck());
        }
        self.start.clone_from(&known.start);
        if unclear.is_none() && !is_long {
            return Ok(Some(token));
        }
        let json = serde_json::to_vec(&known).map_err(kube::Error::SerdeError)?;
        Ok(Some(BASE64_URL_SAFE_NO_PAD.encode(json)))
    }
}

/// kube-apiserver's token.
// apiserver: pkg/storage/continue.go, continueToken
#[derive(Debug, Deserialize, Serialize)]
struct ContinueToken<'a> {
    v: Cow<'a, str>,
    rv: i64,
    start: String,
}

/// The first name after all names with this prefix, in byte order.
fn first_after_prefix(mut text: String) -> Option<String> {
    loop {
        let next = match text.pop()? {
            // The next character is '/', which no name contains; kube-apiserver refuses a start key with it.
            '.' => Some('0'),
            last => (last..=char::MAX).nth(1),
        };
        if let Some(next) = next {
            text.push(next);
            // kube-apiserver refuses a start key that ends in these, and neither is a valid name.
            if matches!(text.as_str(), "." | "..") {
                text.push('\0');
            }
            return Some(text);
        }
    }
}
