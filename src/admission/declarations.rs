//! The types of the kinds that the API servers of a cluster publish, for the checks of the expressions of policies.
//!
//! They are read as [`PublishedSchemas`] reads the same documents: within the same bounds of texts, of the memory to read them and of
//! what is kept, in turns of the same pool. What is kept ends with the checks.
// threat: published-schemas

use std::sync::Arc;

use portcullis_limits::Owner;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_merge::Declarations;

use super::cached_reads::{CachedReads, DocumentReader, ReadError};
use super::schemas::{
    MAX_DOCUMENT_BYTES, MAX_KEPT_BYTES, NOT_THERE, Parser, PublishedDocument, PublishedSchemas,
};

/// The types of a cluster's kinds.
#[derive(Debug)]
pub(super) struct PublishedDeclarations {
    schemas: Arc<PublishedSchemas>,
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
        self.url.len() + self.declarations.as_ref().map_or_else(String::len, Declarations::size)
    }
}

impl PublishedDeclarations {
    pub(super) fn new(reader: &DocumentReader, schemas: &Arc<PublishedSchemas>, caches: &CacheShare) -> Self {
        let documents = CachedReads::within(reader, (MAX_KEPT_BYTES, ReadDeclarations::size), caches);
        Self { schemas: Arc::clone(schemas), documents }
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
        let (parser, owner) = (self.schemas.parser(), owner.clone());
        let key = path.clone();
        let read = move |reader| read_declarations(reader, PublishedDocument { path, url }, (parser, owner));
        let read = self.documents.get(flow, key, is_fresh, read).await?;
        read.declarations.map_err(ReadError::Unreadable)
    }
}

async fn read_declarations(
    reader: DocumentReader,
    PublishedDocument { path, url }: PublishedDocument,
    (parser, owner): (Parser, Owner),
) -> Result<ReadDeclarations, ReadError> {
    let document = reader.read_text(&path, MAX_DOCUMENT_BYTES).await?;
    let document = document.ok_or_else(|| ReadError::unreadable(&NOT_THERE))?;
    let declarations = parser.parse(owner, document, Declarations::read).await?;
    Ok(ReadDeclarations { url, declarations })
}
