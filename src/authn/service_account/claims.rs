//! The claims of service-account tokens, decoded as Go's decoder fills kube-apiserver's structs: names match
//! case-sensitively, duplicates in a decoded object are errors, and `null` is the zero value.
// go-jose v2: jwt/claims.go; kubernetes: pkg/serviceaccount/{claims,legacy}.go

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::Value;

use portcullis_go::json::DistinctObject;
use portcullis_go::json::JsonValue;

use super::bound_objects::BoundObject;

/// The claims that both kinds of tokens share.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PublicClaims {
    #[serde(default, rename = "iss", deserialize_with = "or_default")]
    pub(super) issuer: String,
    #[serde(default, rename = "sub", deserialize_with = "or_default")]
    pub(super) subject: String,
    #[serde(default, rename = "aud")]
    pub(super) audience: AudienceClaim,
    #[serde(rename = "exp")]
    pub(super) expiry: Option<NumericDate>,
    #[serde(rename = "nbf")]
    pub(super) not_before: Option<NumericDate>,
    #[serde(rename = "iat")]
    pub(super) issued_at: Option<NumericDate>,
    #[serde(default, rename = "jti", deserialize_with = "or_default")]
    pub(super) id: String,
}

/// The private claims of a bound token.
#[derive(Debug, Default, Deserialize)]
pub(super) struct BoundClaims {
    #[serde(default, rename = "kubernetes.io", deserialize_with = "object_or_default")]
    pub(super) kubernetes: KubernetesClaim,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct KubernetesClaim {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) namespace: String,
    #[serde(default, rename = "serviceaccount", deserialize_with = "object_or_default")]
    pub(super) service_account: ClaimedObject,
    #[serde(default, deserialize_with = "object")]
    pub(super) pod: Option<ClaimedObject>,
    #[serde(default, deserialize_with = "object")]
    pub(super) secret: Option<ClaimedObject>,
    #[serde(default, deserialize_with = "object")]
    pub(super) node: Option<ClaimedObject>,
    /// A configuration of webhooks to which a token of Kubernetes 1.37 may be bound.
    #[serde(default, rename = "validatingwebhookconfiguration", deserialize_with = "object")]
    pub(super) validating_webhooks: Option<ClaimedObject>,
    #[serde(default, rename = "mutatingwebhookconfiguration", deserialize_with = "object")]
    pub(super) mutating_webhooks: Option<ClaimedObject>,
    #[serde(rename = "warnafter")]
    pub(super) warn_after: Option<NumericDate>,
}

/// Name and UID of an object that a token is bound to.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ClaimedObject {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) uid: String,
}

impl ClaimedObject {
    /// The object that it names.
    pub(super) fn bound(&self) -> BoundObject<'_> {
        BoundObject { name: &self.name, uid: &self.uid }
    }
}

/// The private claims of a legacy token.
#[derive(Debug, Default, Deserialize)]
pub(super) struct LegacyClaims {
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

/// The `aud` claim: a string or a list of strings.
#[derive(Debug, Default)]
pub(super) struct AudienceClaim(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for AudienceClaim {
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

/// A time in whole seconds since 1970; fractions are truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NumericDate(pub(super) i64);

impl<'de> Deserialize<'de> for NumericDate {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        // Go counts from the year 1: time.Unix overflows to the distant past for later dates.
        const TO_1970: i64 = 62_135_596_800;
        #[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "saturates, as meant")]
        let whole = JsonValue::deserialize(value)?.0.as_f64().map(|number| number as i64);
        let whole = whole.filter(|whole| whole.checked_add(TO_1970).is_some()).ok_or_else(|| {
            de::Error::custom("go-jose/go-jose/jwt: expected number value to unmarshal NumericDate")
        })?;
        Ok(Self(whole))
    }
}
