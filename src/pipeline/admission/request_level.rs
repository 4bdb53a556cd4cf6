//! Reviews of the object that the client sent: of every CREATE with `--admission-mode=requestLevel`, and of those that no dry run
//! shows: tokens, evictions and bindings.

use bytes::Bytes;
use portcullis_admission::{Objects, Operation};
use serde_json::Value;

use super::document::{metadata, set_metadata};
use super::messages;
use super::options::write_options;
use super::reviewer::{Reviewer, Stop, as_sent, kind_of, unexpressible};
use super::splice::Encoding;
use crate::pipeline::stages::{Authorized, JSON, ReviewedWrite};

impl Reviewer<'_> {
    /// Reviews the object in the client's body.
    pub(super) async fn create_as_sent(
        &self,
        authorized: &Authorized,
        body: &Bytes,
    ) -> Result<ReviewedWrite, Stop> {
        // No dry run has told whether the user may create it.
        self.authorize(authorized).await?;
        self.decode_body(body).await?;
        let object = self.sent_object(authorized, body)?;
        self.review_as_sent(authorized, body, object).await
    }

    /// Reviews an object of a request that the backend allows.
    pub(super) async fn review_as_sent(
        &self,
        authorized: &Authorized,
        body: &Bytes,
        object: Value,
    ) -> Result<ReviewedWrite, Stop> {
        let options = write_options(Operation::Create, authorized.query().unwrap_or_default());
        let name = if self.subject.name.is_empty() { metadata(&object, "name") } else { &self.subject.name };
        let attributes =
            self.attributes(authorized, Operation::Create, kind_of(&object), name, Some(options));
        let mut objects = Objects { object: Some(object), old_object: None };
        self.surroundings.note_as_sent();
        let changed = self.mutate(authorized, &attributes, &mut objects).await?;
        self.validate(authorized, &attributes, &mut objects).await?;
        if !changed {
            return Ok(as_sent(body.clone()));
        }
        let object = objects.object.ok_or_else(|| unexpressible("object"))?;
        let body = serde_json::to_vec(&object).map_err(|_| unexpressible("object"))?;
        Ok(ReviewedWrite { content_type: Some(JSON), body: body.into(), ..ReviewedWrite::default() })
    }

    /// The object in the client's body, with the namespace of the path: JSON that every parser reads alike, or protobuf of a kind that no
    /// dry run shows.
    pub(super) fn sent_object(&self, authorized: &Authorized, body: &Bytes) -> Result<Value, Stop> {
        let read = match Encoding::of(authorized.request().headers()) {
            Encoding::Json => self.take_body(body),
            Encoding::Protobuf => messages::read(body),
            Encoding::Other => {
                let reason = "the gateway reads this object in JSON and protobuf only".to_owned();
                return Err(Stop::Unreadable(reason));
            }
        };
        let mut object =
            read.map_err(|error| Stop::Unreadable(format!("the gateway cannot read the body: {error}")))?;
        if kind_of(&object).kind.is_empty() {
            return Err(Stop::Unreadable("the body has no kind".to_owned()));
        }
        let namespace = &self.subject.namespace;
        if metadata(&object, "namespace").is_empty() && !namespace.is_empty() {
            set_metadata(&mut object, "namespace", namespace);
        }
        Ok(object)
    }
}
