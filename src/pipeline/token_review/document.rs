//! A `TokenReview` in the encodings of kube-apiserver's responses. Everything but the status stays unchanged.

use std::collections::BTreeMap;
use std::fmt;

use portcullis_kubernetes::encoding::{self, Envelope};
use portcullis_kubernetes::user::UserInfo;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::authn::Authenticated;

const KIND: &str = "TokenReview";

/// A review from a response.
pub(super) struct Document {
    form: ReviewForm,
    spec: Spec,
    status: Status,
}

enum ReviewForm {
    Json { review: Box<JsonReview>, is_pretty: bool },
    Yaml { before_status: String },
    Protobuf(Box<(Envelope, Review)>),
}

/// Fields are in the order of kube-apiserver's JSON. Raw values keep the text of fields that are not read.
#[derive(Deserialize)]
struct JsonReview {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    metadata: Box<RawValue>,
    spec: Box<RawValue>,
    #[serde(default)]
    status: Status,
}

/// Keys are sorted, so the status is the last.
#[derive(Deserialize)]
struct YamlReview {
    kind: String,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// The token and the audiences to review.
// k8s.io/api: authentication/v1/generated.proto
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[prost(skip_debug)]
#[serde(default)]
pub(super) struct Spec {
    #[prost(string, required, tag = "1")]
    pub(super) token: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) audiences: Vec<String>,
}

/// The result of the review. Fields are in the order of kube-apiserver's JSON.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[prost(bool, required, tag = "1")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    authenticated: bool,
    #[prost(message, required, tag = "2")]
    user: User,
    #[prost(string, repeated, tag = "4")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audiences: Vec<String>,
    #[prost(string, required, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
struct User {
    #[prost(string, required, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[prost(string, required, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[prost(string, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    #[serde(with = "extra", skip_serializing_if = "Vec::is_empty")]
    extra: Vec<Extra>,
}

/// An entry of a map. `prost` has maps, but leaves empty keys and values out, which Go writes.
#[derive(Clone, PartialEq, Eq, Message)]
struct Extra {
    #[prost(string, required, tag = "1")]
    key: String,
    #[prost(message, required, tag = "2")]
    values: Values,
}

#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(transparent)]
struct Values {
    #[prost(string, repeated, tag = "1")]
    items: Vec<String>,
}

/// The entries as a map, which they are in JSON and YAML.
mod extra {
    use super::{BTreeMap, Deserialize as _, Extra, Values};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(extra: &[Extra], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(extra.iter().map(|Extra { key, values }| (key, values)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Extra>, D::Error> {
        let map = BTreeMap::<String, Values>::deserialize(deserializer)?;
        Ok(map.into_iter().map(|(key, values)| Extra { key, values }).collect())
    }
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Review {
    #[prost(bytes = "vec", required, tag = "1")]
    metadata: Vec<u8>,
    #[prost(bytes = "vec", required, tag = "2")]
    spec: Vec<u8>,
    #[prost(message, required, tag = "3")]
    status: Status,
}

/// The media types that [`Document::read`] parses.
const READABLE: [&[u8]; 3] =
    [b"application/json", b"application/yaml", b"application/vnd.kubernetes.protobuf"];

fn media_type(content_type: &[u8]) -> &[u8] {
    content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

impl Document {
    /// Parses a response; `None` if it is not a review or the encoding is unknown.
    pub(super) fn read(content_type: &[u8], bytes: &[u8]) -> Option<Self> {
        match media_type(content_type) {
            b"application/json" => {
                let mut review = serde_json::from_slice::<Box<JsonReview>>(bytes).ok()?;
                let spec = serde_json::from_str::<Spec>(review.spec.get()).ok()?;
                let status = std::mem::take(&mut review.status);
                let is_review = review.kind == KIND;
                let form = ReviewForm::Json { review, is_pretty: bytes.starts_with(b"{\n") };
                is_review.then_some(Self { form, spec, status })
            }
            b"application/yaml" => {
                let text = std::str::from_utf8(bytes).ok()?;
                let (before_status, _) = text.split_once("\nstatus:")?;
                let YamlReview { kind, spec, status } = serde_saphyr::from_str(text).ok()?;
                let form = ReviewForm::Yaml { before_status: before_status.to_owned() };
                (kind == KIND).then_some(Self { form, spec, status })
            }
            b"application/vnd.kubernetes.protobuf" => {
                let envelope = Envelope::read(bytes).filter(|envelope| envelope.meta.kind == KIND)?;
                let mut review = Review::decode(envelope.raw.as_slice()).ok()?;
                let spec = Spec::decode(review.spec.as_slice()).ok()?;
                let status = std::mem::take(&mut review.status);
                Some(Self { form: ReviewForm::Protobuf(Box::new((envelope, review))), spec, status })
            }
            _ => None,
        }
    }

    /// The token and the audiences to review.
    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The backend's result.
    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// Whether a response of this content type can be parsed. Types that kube-apiserver sends beside them (`as=Table`)
    /// are forms of these, without a status.
    pub(super) fn is_readable(content_type: &[u8]) -> bool {
        READABLE.contains(&media_type(content_type))
    }

    /// The name and extra values of the user, if the backend has authenticated the token.
    pub(super) fn authenticated_user(&self) -> Option<UserInfo> {
        let Status { authenticated, user: User { username, extra, .. }, .. } = &self.status;
        let extra = extra.iter().map(|Extra { key, values }| (key.clone(), values.items.clone()));
        authenticated.then(|| UserInfo { extra: extra.collect(), ..UserInfo::named(username) })
    }

    /// Encodes the document with another status; `None` if that fails.
    pub(super) fn with_result(self, status: &Status) -> Option<Vec<u8>> {
        match self.form {
            ReviewForm::Json { review, is_pretty } => review.with(status, is_pretty),
            ReviewForm::Yaml { before_status } => {
                let status = encoding::yaml(&json!({ "status": status }))?;
                Some(format!("{before_status}\n{status}").into_bytes())
            }
            ReviewForm::Protobuf(parts) => {
                let (mut envelope, review) = *parts;
                envelope.raw = Review { status: status.clone(), ..review }.encode_to_vec();
                Some(envelope.to_bytes())
            }
        }
    }
}

impl JsonReview {
    fn with(&self, status: &Status, is_pretty: bool) -> Option<Vec<u8>> {
        let [kind, version] = [&self.kind, &self.api_version].map(|text| Value::from(text.as_str()));
        let (metadata, spec) = (&self.metadata, &self.spec);
        let text = if is_pretty {
            let status = encoding::pretty_json(status).ok()?.replace('\n', "\n  ");
            format!(
                "{{\n  \"kind\": {kind},\n  \"apiVersion\": {version},\n  \"metadata\": {metadata},\n  \"spec\": {spec},\n  \
                 \"status\": {status}\n}}"
            )
        } else {
            let status = encoding::json(status).ok()?;
            format!(
                "{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{metadata},\"spec\":{spec},\"status\":{status}}}\n"
            )
        };
        Some(text.into_bytes())
    }
}

impl Status {
    /// The status of an authenticated token.
    // kubernetes: pkg/registry/authentication/tokenreview/storage.go
    pub(super) fn of(found: &Authenticated) -> Self {
        let user = &found.user;
        let extra = user.extra.iter();
        let extra =
            extra.map(|(key, items)| Extra { key: key.clone(), values: Values { items: items.clone() } });
        Self {
            authenticated: true,
            user: User {
                username: user.name.clone(),
                uid: user.uid.clone().unwrap_or_default(),
                groups: user.groups.clone(),
                extra: extra.collect(),
            },
            error: String::new(),
            audiences: found.audiences.iter().map(|audience| audience.0.clone()).collect(),
        }
    }

    /// The status of a token that is not authenticated.
    pub(super) fn refused(error: &str) -> Self {
        Self { error: error.to_owned(), ..Self::default() }
    }

    /// The status of a token that is not authenticated, with the gateway's errors added to the backend's, as one server
    /// would list all of them.
    // apimachinery: pkg/util/errors/errors.go, aggregate.Error
    pub(super) fn with_errors(&self, ours: &[&str]) -> Self {
        let before = self.error.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let before = before.unwrap_or(&self.error);
        // A text may have commas of its own.
        let told = |text: &&&str| format!(", {before}, ").contains(&format!(", {text}, "));
        let new = ours.iter().filter(|text| !told(text)).copied();
        let all: Vec<&str> =
            Some(before).into_iter().filter(|before| !before.is_empty()).chain(new).collect();
        let error = match all.as_slice() {
            // Either it was a list, or it is one text.
            [_] if !self.error.is_empty() => self.error.clone(),
            [one] => (*one).to_owned(),
            all => format!("[{}]", all.join(", ")),
        };
        Self { error, ..self.clone() }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spec")
    }
}

impl fmt::Debug for Review {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Review")
    }
}

#[cfg(test)]
mod tests {
    use portcullis_kubernetes::user::UserInfo;

    use super::*;
    use crate::authn::testing::success;

    #[test]
    fn a_status_says_all_that_is_known_of_a_user() {
        let mut found = success("alice", &["api"]);
        let mut user = UserInfo::named("alice");
        user.extra.insert("a/b".to_owned(), vec!["1".to_owned(), "2".to_owned()]);
        found.user = user.into();
        let status = Status::of(&found);
        let user = json!({"username": "alice", "extra": {"a/b": ["1", "2"]}});
        let expected = json!({"authenticated": true, "user": user, "audiences": ["api"]});
        assert_eq!(serde_json::to_value(&status).unwrap(), expected);
        let values = b"\x0a\x011\x0a\x012";
        let extra = [b"\x22\x0d\x0a\x03a/b\x12\x06", &values[..]].concat();
        let bytes =
            [b"\x08\x01\x12\x18\x0a\x05alice\x12\x00", extra.as_slice(), b"\x1a\x00\x22\x03api"].concat();
        assert_eq!(status.encode_to_vec(), bytes);
    }

    #[test]
    fn nothing_of_a_token_is_shown() {
        let spec = Spec { token: "secret".to_owned(), audiences: Vec::new() };
        let review = Review { spec: spec.encode_to_vec(), ..Review::default() };
        let envelope = Envelope::of("v1", KIND, &review);
        assert_eq!(format!("{spec:?} {review:?} {envelope:?}"), "Spec Review Envelope");
    }
}
