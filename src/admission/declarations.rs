//! The types of the kinds that the API servers of a cluster publish, for the checks of the expressions of policies.
//!
//! They are read as [`PublishedSchemas`] reads the same documents: within the same bounds, in turns of the same pool. What is kept
//! ends with the checks.
// threat: published-schemas

use std::sync::Arc;

use portcullis_limits::Owner;
use portcullis_merge::Declarations;

use super::cached_reads::{CachedReads, DocumentReader, ReadError};
use super::schemas::{MAX_DOCUMENT_BYTES, MAX_KEPT_BYTES, PublishedDocument, PublishedSchemas};
use crate::tasks::compute::ClusterComputePool;

/// The types of a cluster's kinds.
#[derive(Debug)]
pub(super) struct PublishedDeclarations {
    schemas: Arc<PublishedSchemas>,
    compute: ClusterComputePool,
    /// By the path of the document.
    documents: CachedReads<String, ReadDeclarations>,
}

#[derive(Debug, Clone)]
struct ReadDeclarations {
    /// What the index said of the document.
    url: String,
    /// The types; or why there are none, which reading the same document again does not change.
    declarations: Result<Declarations, String>,
}

impl ReadDeclarations {
    fn size(&self) -> usize {
        self.declarations.as_ref().map_or(0, Declarations::size)
    }
}

impl PublishedDeclarations {
    pub(super) fn new(
        reader: &DocumentReader,
        schemas: &Arc<PublishedSchemas>,
        compute: &ClusterComputePool,
    ) -> Self {
        let documents = CachedReads::within(reader, MAX_KEPT_BYTES, ReadDeclarations::size);
        Self { schemas: Arc::clone(schemas), compute: compute.clone(), documents }
    }

    /// What the API servers publish of a group and version.
    pub(super) async fn document(
        &self,
        flow: &str,
        group: &str,
        version: &str,
    ) -> Result<Option<PublishedDocument>, ReadError> {
        self.schemas.document(flow, group, version).await
    }

    /// The types of a document.
    pub(super) async fn of(
        &self,
        (flow, owner): (&str, &Owner),
        PublishedDocument { path, url }: PublishedDocument,
    ) -> Result<Declarations, ReadError> {
        let wanted = url.clone();
        let is_fresh = |known: &ReadDeclarations, _| known.url == wanted;
        let (compute, owner) = (self.compute.clone(), owner.clone());
        let key = path.clone();
        let read = move |reader| read_declarations(reader, PublishedDocument { path, url }, (compute, owner));
        let read = self.documents.get(flow, key, is_fresh, read).await?;
        read.declarations.map_err(ReadError::Unreadable)
    }
}

async fn read_declarations(
    reader: DocumentReader,
    PublishedDocument { path, url }: PublishedDocument,
    (compute, owner): (ClusterComputePool, Owner),
) -> Result<ReadDeclarations, String> {
    let text = reader.read_text(&path, MAX_DOCUMENT_BYTES).await?.ok_or("the document is not there")?;
    let declarations = compute.compute(owner, move || declarations_of(&text)).await;
    Ok(ReadDeclarations { url, declarations: declarations.ok_or("the work on it was cancelled")? })
}

fn declarations_of(text: &[u8]) -> Result<Declarations, String> {
    let declarations = Declarations::read(text).map_err(|error| error.to_string())?;
    if declarations.size() > MAX_KEPT_BYTES {
        return Err(format!("its types take more than {} MiB", MAX_KEPT_BYTES >> 20));
    }
    Ok(declarations)
}
