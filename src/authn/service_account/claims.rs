//! The claims, as Go's JSON decoder reads them into kube-apiserver's structures: names are compared byte for byte, none
//! may come twice in an object that is read, and `null` is nothing.
// go-jose v2: jwt/claims.go; kubernetes: pkg/serviceaccount/{claims,legacy}.go

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::Value;

use crate::go::json::DistinctObject;
use crate::go::json::JsonValue;

/// The claims that every token may have.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Public {
    #[serde(default, rename = "iss", deserialize_with = "or_default")]
    pub(super) issuer: String,
    #[serde(default, rename = "sub", deserialize_with = "or_default")]
    pub(super) subject: String,
    #[serde(default, rename = "aud")]
    pub(super) audience: Audience,
    #[serde(rename = "exp")]
    pub(super) expiry: Option<Date>,
    #[serde(rename = "nbf")]
    pub(super) not_before: Option<Date>,
    #[serde(rename = "iat")]
    pub(super) issued_at: Option<Date>,
    #[serde(default, rename = "jti", deserialize_with = "or_default")]
    pub(super) id: String,
}

/// What a bound token is bound to.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Bound {
    #[serde(default, rename = "kubernetes.io", deserialize_with = "object_or_default")]
    pub(super) kubernetes: Kubernetes,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Kubernetes {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) namespace: String,
    #[serde(default, rename = "serviceaccount", deserialize_with = "object_or_default")]
    pub(super) service_account: Reference,
    #[serde(default, deserialize_with = "object")]
    pub(super) pod: Option<Reference>,
    #[serde(default, deserialize_with = "object")]
    pub(super) secret: Option<Reference>,
    #[serde(default, deserialize_with = "object")]
    pub(super) node: Option<Reference>,
    #[serde(rename = "warnafter")]
    pub(super) warn_after: Option<Date>,
}

/// An object.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Reference {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) uid: String,
}

/// What a legacy token stands for.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Legacy {
    #[serde(
        default,
        rename = "kubernetes.io/serviceaccount/service-account.name",
        deserialize_with = "or_default"
    )]
    pub(super) name: String,
    #[serde(
        default,
        rename = "kubernetes.io/serviceaccount/service-account.uid",
        deserialize_with = "or_default"
    )]
    pub(super) uid: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/secret.name", deserialize_with = "or_default")]
    pub(super) secret: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/namespace", deserialize_with = "or_default")]
    pub(super) namespace: String,
}

fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    Ok(Option::deserialize(value)?.map(|DistinctObject(value)| value))
}

fn object_or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    value: D,
) -> Result<T, D::Error> {
    Ok(object(value)?.unwrap_or_default())
}

/// Whom a token is for: a text, or a list of them.
#[derive(Debug, Default)]
pub(super) struct Audience(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Audience {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let one = |value: Value| match value {
            Value::String(audience) => Some(audience),
            _ => None,
        };
        let JsonValue(value) = JsonValue::deserialize(value)?;
        let all = match value {
            Value::Array(several) => several.into_iter().map(one).collect(),
            value => one(value).map(|audience| vec![audience]),
        };
        let all = all.ok_or_else(|| {
            de::Error::custom("go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience")
        })?;
        Ok(Self(all))
    }
}

/// A time: whole seconds since 1970, what is behind the point being left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Date(pub(super) i64);

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        // Go counts from year 1: time.Unix takes later dates for the distant past.
        const TO_1970: i64 = 62_135_596_800;
        #[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "saturates, as meant")]
        let whole = JsonValue::deserialize(value)?.0.as_f64().map(|number| number as i64);
        let whole = whole.filter(|whole| whole.checked_add(TO_1970).is_some()).ok_or_else(|| {
            de::Error::custom("go-jose/go-jose/jwt: expected number value to unmarshal NumericDate")
        })?;
        Ok(Self(whole))
    }
}
