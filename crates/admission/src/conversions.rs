//! Objects in other versions and groups, which only the API server can make.

use std::future::{Future, ready};

use serde_json::Value;

use crate::{Attributes, ServedResource};

/// What the API server makes of the objects of one request for webhooks with `matchPolicy: Equivalent`.
pub trait Conversions: Sync {
    /// By which other resources the API server serves the objects of the request, in its order; `None` if that is not known.
    /// Asked only if a rule may match one of them.
    // apimachinery: pkg/runtime/mapper.go, EquivalentResourcesFor
    fn equivalents(
        &self,
        attributes: &Attributes,
    ) -> impl Future<Output = Option<Vec<ServedResource>>> + Send;

    /// The object after the request, in the form of `to`; why there is none. It may be in any form of the request's objects.
    fn convert(
        &self,
        object: &Value,
        to: &ServedResource,
    ) -> impl Future<Output = Result<Value, String>> + Send;

    /// The stored object, which is in the form of the request, in the form of `to`; why there is none.
    fn convert_old(
        &self,
        old: &Value,
        to: &ServedResource,
    ) -> impl Future<Output = Result<Value, String>> + Send;
}

/// There is no API server: everything that may be equivalent counts, and nothing is converted.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoConversions;

/// Why there is no object in another form where there is no API server.
const NO_API_SERVER: &str = "only the API server can convert objects";

impl Conversions for NoConversions {
    fn equivalents(&self, _: &Attributes) -> impl Future<Output = Option<Vec<ServedResource>>> + Send {
        ready(None)
    }

    fn convert(&self, _: &Value, _: &ServedResource) -> impl Future<Output = Result<Value, String>> + Send {
        ready(Err(NO_API_SERVER.to_owned()))
    }

    fn convert_old(
        &self,
        _: &Value,
        _: &ServedResource,
    ) -> impl Future<Output = Result<Value, String>> + Send {
        ready(Err(NO_API_SERVER.to_owned()))
    }
}
