//! The values of types that Kubernetes' libraries add, and of time.

use std::cmp::Ordering;

use portcullis_go::netip::Prefix;

use super::libraries::authorizer::{Authorizer, Decision, GroupCheck, PathCheck, ResourceCheck};
use super::libraries::named_formats::NamedFormat;
use super::libraries::quantity::Quantity;
use super::libraries::semver::Semver;
use super::libraries::time::{Duration, Timestamp};
use super::libraries::url::Url;

/// A value with functions, but without fields.
#[derive(Debug, Clone)]
pub(super) enum Native {
    Duration(Duration),
    Timestamp(Timestamp),
    NamedFormat(NamedFormat),
    Ip(std::net::IpAddr),
    Cidr(Prefix),
    Quantity(std::sync::Arc<Quantity>),
    Url(std::sync::Arc<Url>),
    Semver(std::sync::Arc<Semver>),
    Authorizer(Authorizer),
    PathCheck(std::sync::Arc<PathCheck>),
    GroupCheck(std::sync::Arc<GroupCheck>),
    ResourceCheck(std::sync::Arc<ResourceCheck>),
    Decision(std::sync::Arc<Decision>),
}

impl Native {
    /// The name of the type at evaluation.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::NamedFormat(_) => "kubernetes.NamedFormat",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Url(_) => "kubernetes.URL",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Self::PathCheck(_) => "kubernetes.authorization.PathCheck",
            Self::GroupCheck(_) => "kubernetes.authorization.GroupCheck",
            Self::ResourceCheck(_) => "kubernetes.authorization.ResourceCheck",
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    /// The name of the type in Go, which some error texts contain.
    pub(super) fn go_type(&self) -> &'static str {
        match self {
            Self::Duration(_) => "types.Duration",
            Self::Timestamp(_) => "types.Timestamp",
            Self::NamedFormat(_) => "cel.Format",
            Self::Ip(_) => "cel.IP",
            Self::Cidr(_) => "cel.CIDR",
            Self::Quantity(quantity) if quantity.is_computed() => "*cel.Quantity",
            Self::Quantity(_) => "cel.Quantity",
            Self::Url(_) => "cel.URL",
            Self::Semver(_) => "cel.Semver",
            Self::Authorizer(_) => "library.authorizerVal",
            Self::PathCheck(_) => "library.pathCheckVal",
            Self::GroupCheck(_) => "library.groupCheckVal",
            Self::ResourceCheck(_) => "library.resourceCheckVal",
            Self::Decision(_) => "library.decisionVal",
        }
    }

    /// The value after a conversion to a value of Go and back, or the error of the reference, which converts few of them.
    pub(super) fn returned(self) -> Result<Self, String> {
        let go_type = match &self {
            Self::Duration(_) | Self::Timestamp(_) | Self::NamedFormat(_) => return Ok(self),
            Self::Ip(_) => "netip.Addr",
            Self::Cidr(_) => "netip.Prefix",
            Self::Quantity(_) => "*resource.Quantity",
            Self::Url(_) => "*url.URL",
            Self::Semver(_) => "semver.Version",
            Self::Authorizer(_)
            | Self::PathCheck(_)
            | Self::GroupCheck(_)
            | Self::ResourceCheck(_)
            | Self::Decision(_) => return Err("no such overload".to_owned()),
        };
        Err(unconvertible(go_type, &self.shown()))
    }

    /// The value as a text.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Duration(duration) => duration.0.to_string(),
            Self::Timestamp(timestamp) => timestamp.in_utc(),
            Self::NamedFormat(format) => format.name().to_owned(),
            Self::Ip(address) => address.to_string(),
            Self::Cidr(network) => network.to_string(),
            Self::Quantity(quantity) => quantity.shown(),
            Self::Url(url) => url.to_string(),
            Self::Semver(version) => version.to_string(),
            other => other.type_name().to_owned(),
        }
    }

    /// Whether this is a duration or a timestamp, which are types of CEL itself.
    pub(super) fn is_time(&self) -> bool {
        matches!(self, Self::Duration(_) | Self::Timestamp(_))
    }

    /// The length of what a comparison reads; one of a value of bounded size.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Url(url) => url.size().max(1),
            Self::Semver(version) => version.size().max(1),
            _ => 1,
        }
    }

    /// Whether two values are equal; `None` where the reference has no such overload.
    pub(super) fn equals(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Duration(left), Self::Duration(right)) => Some(left == right),
            (Self::Timestamp(left), Self::Timestamp(right)) => Some(left == right),
            (Self::Duration(_) | Self::Timestamp(_), _) => Some(false),
            (Self::NamedFormat(left), Self::NamedFormat(right)) => Some(left == right),
            (Self::Ip(left), Self::Ip(right)) => Some(left == right),
            (Self::Cidr(left), Self::Cidr(right)) => Some(left == right),
            (Self::Quantity(left), Self::Quantity(right)) => left.equals(right),
            (Self::Url(left), Self::Url(right)) => Some(left == right),
            (Self::Semver(left), Self::Semver(right)) => Some(left.is_equal(right)),
            _ => None,
        }
    }

    /// The order of two values, where `<` is declared.
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Duration(left), Self::Duration(right)) => Some(left.cmp(right)),
            (Self::Timestamp(left), Self::Timestamp(right)) => Some(left.cmp(right)),
            _ => None,
        }
    }
}

/// The reference's error for a value of Go that has no type in CEL.
// cel-go: common/types/err.go — UnsupportedRefValConversionErr
pub(super) fn unconvertible(go_type: &str, text: &str) -> String {
    format!("unsupported conversion to ref.Val: ({go_type}){text}")
}
