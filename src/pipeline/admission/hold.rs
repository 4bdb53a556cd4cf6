//! The decoded objects that a review holds: their memory is reserved before they are decoded.

use std::sync::Mutex;

use bytes::Bytes;
use portcullis_admission::review::{DecodedSize, decode_value, internal_error};
use portcullis_admission::{DEEP, LARGE, Surroundings as _};
use portcullis_limits::Owner;
use portcullis_system::sync::lock;
use serde_json::Value;

use super::body::entity_too_large;
use super::document::parse_unambiguous;
use super::reviewer::{Reviewer, Stop, busy};
use super::subject::Action;
use crate::admission::{MemoryOwner, NoMemory, ReservedMemory};
use crate::limits::ProcessPriority;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::stages::Authorized;

/// How much larger a value of another version may be than the text of it in an annotation: it has more objects in it, and is there in
/// both forms while it is converted.
const GROWTH: usize = 4;

/// The memory of one request under review.
pub(super) struct ReviewHold<'a> {
    of: MemoryOwner<'a>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    memory: Vec<ReservedMemory>,
    reserved: usize,
    used: usize,
    /// The client's body, until it is taken.
    body: Option<Result<Value, String>>,
}

impl<'a> ReviewHold<'a> {
    /// Nothing yet, of this owner.
    pub(super) fn new(authorized: &Authorized, owner: &'a Owner, flow: &'a str) -> Self {
        let is_privileged =
            matches!(authorized.process_priority(), ProcessPriority::Exempt | ProcessPriority::Reserved);
        Self { of: MemoryOwner { owner, flow, is_privileged }, held: Mutex::default() }
    }

    /// Forgets the objects of a review that is over.
    pub(super) fn release(&self) {
        let before = std::mem::take(&mut *lock(&self.held));
        drop(before);
    }
}

impl Reviewer<'_> {
    /// Decodes the client's body, where the gateway reads it.
    pub(super) async fn decode_body(&self, body: &Bytes) -> Result<(), Stop> {
        // What is not JSON is not decoded.
        if body.is_empty() || !self.hold_body(body).await? {
            return Ok(());
        }
        let decoded = self.compute(body, 0, parse_unambiguous).await;
        lock(&self.hold.held).body = Some(decoded.ok_or(Refusal::Panic)?);
        Ok(())
    }

    /// Reserves what the client's body takes once it is decoded; `false` if it is not JSON.
    pub(super) async fn hold_body(&self, body: &Bytes) -> Result<bool, Stop> {
        let Ok(size) = self.size_of(body).await? else { return Ok(false) };
        self.hold(size.bytes, self.admission.review_size(size.bytes).saturating_mul(2)).await?;
        Ok(true)
    }

    /// Takes the client's body. Only JSON that every parser reads alike.
    pub(super) fn take_body(&self, body: &Bytes) -> Result<Value, String> {
        let decoded = lock(&self.hold.held).body.take();
        decoded.unwrap_or_else(|| parse_unambiguous(body))
    }

    /// Decodes an object that the API server has shown.
    pub(super) async fn decode(&self, text: &Bytes) -> Result<Value, Stop> {
        let size = self.size_of(text).await?.map_err(|error| unreadable(&error))?;
        let needed = self.admission.review_size(size.bytes);
        self.hold(needed, if self.subject.action == Action::Delete { 0 } else { needed }).await?;
        let decoded = self.compute(text, size.nesting, decode_value).await;
        let object = decoded.ok_or(Refusal::Panic)?.map_err(|error| unreadable(&error))?;
        if object.is_object() { Ok(object) } else { Err(unreadable("it is not an object")) }
    }

    /// Decodes the object that a write has stored. Its memory is that of the reviewed object, which is reserved: a write that is
    /// stored is not given up.
    pub(super) async fn decode_stored(&self, text: &Bytes) -> Option<Value> {
        self.compute(text, 0, decode_value).await?.ok().filter(Value::is_object)
    }

    /// Reserves what texts take that become values of an object in another version.
    // threat: review-memory
    pub(super) async fn hold_texts(&self, texts: Vec<Vec<u8>>) -> Result<(), Stop> {
        if texts.is_empty() {
            return Ok(());
        }
        let size = move || {
            let sizes = texts.iter().map(|text| DecodedSize::of(text).map_or(0, |size| size.bytes));
            sizes.fold(0_usize, usize::saturating_add)
        };
        let size = self.surroundings.compute(true, size).await.ok_or(Refusal::Panic)?;
        self.hold(self.admission.review_size(size).saturating_mul(GROWTH), 0).await
    }

    async fn size_of(&self, text: &Bytes) -> Result<Result<DecodedSize, String>, Stop> {
        Ok(self.compute(text, 0, DecodedSize::of).await.ok_or(Refusal::Panic)?)
    }

    /// Reads a text, elsewhere if that takes long.
    async fn compute<T: Send + 'static>(
        &self,
        text: &Bytes,
        nesting: usize,
        read: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Option<T> {
        let (is_large, text) = (text.len() > LARGE || nesting > DEEP, text.clone());
        self.surroundings.compute(is_large, move || read(&text)).await
    }

    /// Reserves so many bytes. The first object of a review reserves also what the review is expected to take more, for the object of
    /// a dry run and the stored one: a review that holds memory does not wait for more.
    // threat: review-memory
    async fn hold(&self, needed: usize, more: usize) -> Result<(), Stop> {
        let (used, missing, is_first) = {
            let mut held = lock(&self.hold.held);
            held.used = held.used.saturating_add(needed);
            (held.used, held.used.saturating_sub(held.reserved), held.memory.is_empty())
        };
        if missing == 0 {
            return Ok(());
        }
        let reserve = |bytes| self.admission.memory().reserve(self.hold.of, bytes, !is_first);
        let more = if is_first { more } else { 0 };
        let (memory, reserved) = match reserve(missing.saturating_add(more)).await {
            Err(NoMemory::TooLarge { .. }) if more > 0 => (reserve(missing).await, missing),
            memory => (memory, missing.saturating_add(more)),
        };
        let memory = memory.map_err(|error| match error {
            NoMemory::Busy { limit } if used <= limit => busy(),
            NoMemory::Busy { limit } | NoMemory::TooLarge { limit } => too_large(used, limit),
        })?;
        let mut held = lock(&self.hold.held);
        held.memory.push(memory);
        held.reserved += reserved;
        Ok(())
    }
}

fn unreadable(error: &str) -> Stop {
    let text = format!("the gateway cannot read the object of the dry run: {error}");
    Stop::Refused(Refusal::NotAdmitted(internal_error(&text)))
}

/// The object has so many parts that its review takes more memory than any owner has.
fn too_large(needed: usize, limit: usize) -> Stop {
    let text = format!(
        "Request entity too large: admission webhooks or policies match the request, and the review of its object takes {needed} bytes of \
         memory, limit is {limit}"
    );
    Stop::Refused(Refusal::NotAdmitted(entity_too_large(text)))
}
