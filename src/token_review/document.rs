//! A `TokenReview` in the encodings that API servers answer with. What is not looked at stays as it is.

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::authn::Authenticated;

/// Before an object in protobuf.
// apimachinery: pkg/runtime/serializer/protobuf/protobuf.go
const MAGIC: &[u8] = b"k8s\0";
const KIND: &str = "TokenReview";

/// A review, taken out of an answer.
pub(super) struct Document {
    form: Form,
    spec: Spec,
    status: Status,
}

enum Form {
    Json { review: Value, is_pretty: bool },
    Yaml { review: Value },
    Protobuf(Box<(Envelope, Review)>),
}

/// What is asked.
// k8s.io/api: authentication/v1/generated.proto
#[derive(Clone, PartialEq, Message, Deserialize)]
#[prost(skip_debug)]
#[serde(default)]
pub(super) struct Spec {
    #[prost(string, tag = "1")]
    pub(super) token: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) audiences: Vec<String>,
}

/// What is answered.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[prost(bool, tag = "1")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    authenticated: bool,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<User>,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    #[prost(string, repeated, tag = "4")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audiences: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
struct User {
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[prost(string, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[prost(btree_map = "string, message", tag = "4")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Values>,
}

#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(transparent)]
struct Values {
    #[prost(string, repeated, tag = "1")]
    items: Vec<String>,
}

/// Around every object in protobuf.
// apimachinery: pkg/runtime/generated.proto, Unknown
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(string, tag = "3")]
    content_encoding: String,
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Review {
    #[prost(bytes = "vec", tag = "1")]
    metadata: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    spec: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    status: Option<Status>,
}

impl Document {
    /// Reads an answer; `None` if it is no review, or in no known encoding.
    pub(super) fn read(content_type: &[u8], bytes: &[u8]) -> Option<Self> {
        let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match media_type {
            b"application/json" => {
                let review = serde_json::from_slice(bytes).ok()?;
                Self::of_value(review, |review| Form::Json { review, is_pretty: bytes.starts_with(b"{\n") })
            }
            b"application/yaml" => {
                Self::of_value(serde_saphyr::from_slice(bytes).ok()?, |review| Form::Yaml { review })
            }
            b"application/vnd.kubernetes.protobuf" => {
                let envelope = Envelope::decode(bytes.strip_prefix(MAGIC)?).ok()?;
                envelope.meta.as_ref().filter(|meta| meta.kind == KIND)?;
                let mut review = Review::decode(envelope.raw.as_slice()).ok()?;
                let spec = Spec::decode(review.spec.as_slice()).ok()?;
                let status = review.status.take().unwrap_or_default();
                Some(Self { form: Form::Protobuf(Box::new((envelope, review))), spec, status })
            }
            _ => None,
        }
    }

    fn of_value(mut review: Value, form: impl FnOnce(Value) -> Form) -> Option<Self> {
        if review.get("kind")? != KIND {
            return None;
        }
        let spec = Spec::deserialize(review.get("spec")?).ok()?;
        let status = match review.get_mut("status").map(Value::take) {
            Some(status) if !status.is_null() => serde_json::from_value(status).ok()?,
            _ => Status::default(),
        };
        Some(Self { form: form(review), spec, status })
    }

    /// What is asked.
    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What is answered so far.
    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// Whether nobody has vouched for the token.
    pub(super) fn is_refused(&self) -> bool {
        !self.status.authenticated
    }

    /// The same document with another status; `None` if it cannot be written.
    pub(super) fn answered(self, status: Status) -> Option<Vec<u8>> {
        match self.form {
            Form::Json { mut review, is_pretty } => {
                review.as_object_mut()?.insert("status".to_owned(), serde_json::to_value(status).ok()?);
                if is_pretty {
                    return serde_json::to_vec_pretty(&review).ok();
                }
                let mut bytes = serde_json::to_vec(&review).ok()?;
                bytes.push(b'\n');
                Some(bytes)
            }
            Form::Yaml { mut review } => {
                review.as_object_mut()?.insert("status".to_owned(), serde_json::to_value(status).ok()?);
                serde_saphyr::to_string(&review).ok().map(String::into_bytes)
            }
            Form::Protobuf(parts) => {
                let (mut envelope, mut review) = *parts;
                review.status = Some(status);
                envelope.raw = review.encode_to_vec();
                let mut bytes = MAGIC.to_vec();
                envelope.encode(&mut bytes).ok()?;
                Some(bytes)
            }
        }
    }
}

impl Status {
    /// A token that somebody vouched for.
    // kubernetes: pkg/registry/authentication/tokenreview/storage.go
    pub(super) fn of(found: &Authenticated) -> Self {
        let user = &found.user;
        let extra = user.extra.iter().map(|(key, items)| (key.clone(), Values { items: items.clone() }));
        Self {
            authenticated: true,
            user: Some(User {
                username: user.name.clone(),
                uid: user.uid.clone().unwrap_or_default(),
                groups: user.groups.clone(),
                extra: extra.collect(),
            }),
            error: String::new(),
            audiences: found.audiences.iter().map(|audience| audience.0.clone()).collect(),
        }
    }

    /// A token that nobody vouched for, for another reason too: in one list, as a server that knows both would have it.
    // apimachinery: pkg/util/errors/errors.go, aggregate.Error
    pub(super) fn with_error(&self, ours: &str) -> Self {
        fn listed(text: &str) -> &str {
            text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text)
        }
        let (before, more) = (listed(&self.error), listed(ours));
        let error = if before.is_empty() {
            ours.to_owned()
        } else if before.split(", ").any(|text| text == more) {
            self.error.clone()
        } else {
            format!("[{before}, {more}]")
        };
        Self { error, ..self.clone() }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spec")
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Envelope")
    }
}

impl fmt::Debug for Review {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Review")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::authn::testing::success;

    #[test]
    fn a_status_says_all_that_is_known_of_a_user() {
        let mut found = success("alice", &["api"]);
        let user = std::sync::Arc::make_mut(&mut found.user);
        user.extra.insert("a/b".to_owned(), vec!["1".to_owned(), "2".to_owned()]);
        let status = Status::of(&found);
        let user = json!({"username": "alice", "extra": {"a/b": ["1", "2"]}});
        let expected = json!({"authenticated": true, "user": user, "audiences": ["api"]});
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        let values = b"\x0a\x011\x0a\x012";
        let extra = [b"\x22\x0d\x0a\x03a/b\x12\x06", &values[..]].concat();
        let bytes = [b"\x08\x01\x12\x16\x0a\x05alice", extra.as_slice(), b"\x22\x03api"].concat();
        assert_eq!(status.encode_to_vec(), bytes);
    }

    #[test]
    fn nothing_of_a_token_is_shown() {
        let spec = Spec { token: "secret".to_owned(), audiences: Vec::new() };
        let review = Review { spec: spec.encode_to_vec(), ..Review::default() };
        let envelope = Envelope { raw: review.encode_to_vec(), ..Envelope::default() };
        assert_eq!(format!("{spec:?} {review:?} {envelope:?}"), "Spec Review Envelope");
    }
}
