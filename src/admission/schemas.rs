//! The schemas that the API servers of a cluster publish, by group and version: by them, an `ApplyConfiguration` of a mutating admission
//! policy is merged into an object.
//!
//! They are read as the gateway, when a policy first needs them, and again when the index of the API server gives a document another
//! hash. The index counts for [`INDEX_TTL`], as in kube-apiserver.
//!
//! A tenant chooses what its API server publishes. A text counts among the bytes in buffers as it arrives. What it takes to turn it into
//! schemas is reserved before, within the memory that documents of all clusters have for it; so the largest ones, which take half a
//! second, are read one after the other, in turns of clusters. What is kept of all documents of a cluster is bounded by
//! [`MAX_KEPT_BYTES`], and by the share of its caches: the ones that were not used for longest are read again.
// threat: published-schemas
// apiserver: pkg/admission/plugin/policy/mutating/patch/typeconverter.go

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use portcullis_limits::Owner;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_merge::{Declarations, MAX_SIZE, SchemaError, Schemas};
use serde::Deserialize;
use tokio::time::Instant;

use super::cached_reads::{CachedReads, DocumentReader, DocumentText, ReadError, cut};
use super::memory::ClusterReviewMemory;
use super::served::is_segment;
use crate::tasks::compute::ClusterComputePool;

/// How long the index counts.
const INDEX_TTL: Duration = Duration::from_secs(5);
/// The largest index: that of Kubernetes has 10 KiB.
const MAX_INDEX_BYTES: usize = 1 << 20;
/// The largest document: the largest one of Kubernetes, that of the core group, has 2 MiB.
const MAX_DOCUMENT_BYTES: usize = 16 << 20;
/// What is kept of the documents of a cluster.
const MAX_KEPT_BYTES: usize = MAX_SIZE;

/// The longest URL of a document: with a group, a version and a hash.
const MAX_URL_BYTES: usize = 2 << 10;
/// How long a document waits for the memory to read it.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(5);

/// The schemas of a cluster.
#[derive(Debug)]
pub(super) struct PublishedSchemas {
    parser: Parser,
    index: CachedReads<(), ReadIndex>,
    documents: ParsedDocuments<Arc<Schemas>>,
}

#[derive(Debug, Clone)]
struct ReadIndex {
    read: Instant,
    index: Arc<Index>,
}

/// Turns documents into schemas, or into types.
#[derive(Debug, Clone)]
struct Parser {
    compute: ClusterComputePool,
    memory: ClusterReviewMemory,
}

/// What the index says of each document, by its path without `/openapi/v3/`.
#[derive(Debug, Default, Deserialize)]
struct Index {
    paths: HashMap<String, IndexEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexEntry {
    /// With the hash of the document.
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

/// Documents as they are used, by their paths.
#[derive(Debug)]
pub(super) struct ParsedDocuments<T> {
    parser: Parser,
    documents: CachedReads<String, ParsedDocument<T>>,
    form: DocumentForm<T>,
}

/// How a document is read, and how many bytes of memory that takes afterwards.
#[derive(Debug)]
struct DocumentForm<T> {
    read: fn(&[u8]) -> Result<T, SchemaError>,
    size: fn(&T) -> usize,
}

#[derive(Debug, Clone)]
struct ParsedDocument<T> {
    /// What the index said of it.
    url: String,
    /// What is in it; or why it cannot be used, which reading the same document again does not change.
    parsed: Result<T, String>,
    size: usize,
}

impl<T: Clone + Send + 'static> ParsedDocuments<T> {
    fn new(reader: &DocumentReader, parser: &Parser, form: DocumentForm<T>, caches: &CacheShare) -> Self {
        let size = |document: &ParsedDocument<T>| document.size;
        let documents = CachedReads::within(reader, (MAX_KEPT_BYTES, size), caches);
        Self { parser: parser.clone(), documents, form }
    }

    /// What is in a document.
    pub(super) async fn of(
        &self,
        (flow, owner): (&str, &Owner),
        PublishedDocument { path, url }: PublishedDocument,
    ) -> Result<T, ReadError> {
        let wanted = url.clone();
        let is_fresh = |known: &ParsedDocument<T>, _| known.url == wanted;
        let (key, parser, owner) = (path.clone(), self.parser.clone(), owner.clone());
        let DocumentForm { read: parse, size } = self.form;
        let read = move |reader: DocumentReader| async move {
            let document = reader.read_text(&path, MAX_DOCUMENT_BYTES).await?;
            let document = document.ok_or_else(|| ReadError::unreadable(&"the document is not there"))?;
            let parsed = parser.parse(owner, document, parse).await?;
            let size = url.len() + parsed.as_ref().map_or_else(String::len, size);
            Ok(ParsedDocument { url, parsed, size })
        };
        let document = self.documents.get(flow, key, is_fresh, read).await?;
        document.parsed.map_err(ReadError::Unreadable)
    }
}

impl PublishedSchemas {
    pub(super) fn new(
        reader: &DocumentReader,
        compute: &ClusterComputePool,
        memory: &ClusterReviewMemory,
        caches: &CacheShare,
    ) -> Self {
        let parser = Parser { compute: compute.clone(), memory: memory.clone() };
        let form = DocumentForm {
            read: |text| Schemas::read(text).map(Arc::new),
            size: |schemas: &Arc<Schemas>| schemas.size(),
        };
        let documents = ParsedDocuments::new(reader, &parser, form, caches);
        Self { parser, index: CachedReads::new(reader), documents }
    }

    /// The types of the kinds in the same documents, within the same bounds: of texts, of the memory to read them, and of what is kept.
    pub(super) fn declarations(
        &self,
        reader: &DocumentReader,
        caches: &CacheShare,
    ) -> ParsedDocuments<Declarations> {
        let form = DocumentForm { read: Declarations::read, size: Declarations::size };
        ParsedDocuments::new(reader, &self.parser, form, caches)
    }

    /// The schemas of a group and version; `None` if the API server does not publish any.
    pub(super) async fn of(
        &self,
        (flow, owner): (&str, &Owner),
        group: &str,
        version: &str,
    ) -> Result<Option<Arc<Schemas>>, ReadError> {
        let Some(document) = self.document(flow, group, version).await? else { return Ok(None) };
        self.documents.of((flow, owner), document).await.map(Some)
    }

    /// The document of a group and version, as the index has it.
    pub(super) async fn document(
        &self,
        flow: &str,
        group: &str,
        version: &str,
    ) -> Result<Option<PublishedDocument>, ReadError> {
        let Some(name) = document_name(group, version) else { return Ok(None) };
        let is_fresh =
            |known: &ReadIndex, then: Instant| then.saturating_duration_since(known.read) < INDEX_TTL;
        let index = self.index.get(flow, (), is_fresh, read_index).await?.index;
        let entry = index.paths.get(&name);
        let Some(IndexEntry { url }) = entry else { return Ok(None) };
        if url.len() > MAX_URL_BYTES {
            return Err(ReadError::unreadable(&"its URL in the index is too long"));
        }
        Ok(Some(PublishedDocument { path: format!("/openapi/v3/{name}"), url: url.clone() }))
    }
}

/// A document that the API servers publish.
#[derive(Debug, Clone)]
pub(super) struct PublishedDocument {
    path: String,
    /// With its hash.
    pub(super) url: String,
}

async fn read_index(reader: DocumentReader) -> Result<ReadIndex, ReadError> {
    let read = Instant::now();
    let index = reader.read("/openapi/v3", MAX_INDEX_BYTES).await?;
    Ok(ReadIndex { read, index: Arc::new(index.unwrap_or_default()) })
}

impl Parser {
    /// What is in a document; why it has none, or, as the outer error, why that is not known now.
    async fn parse<T: Send + 'static>(
        &self,
        owner: Owner,
        document: DocumentText,
        read: fn(&[u8]) -> Result<T, SchemaError>,
    ) -> Result<Result<T, String>, ReadError> {
        let bytes = match Schemas::memory_to_read(&document.text) {
            Ok(bytes) => bytes + MAX_SIZE,
            Err(error) => return Ok(Err(cut(&error))),
        };
        let (document, until) = (Arc::new(document), Instant::now() + MEMORY_TIMEOUT);
        loop {
            let turn = async {
                self.memory.wait_for_document(bytes, until).await.map_err(|_| ReadError::Busy)?;
                let (memory, document) = (self.memory.clone(), Arc::clone(&document));
                // Others may have taken it since; it is not held while this waits for its turn.
                let read = move || {
                    let _reserved = memory.reserve_for_document(bytes)?;
                    Some(read(&document.text).map_err(|error| cut(&error)))
                };
                let read = self.compute.compute(owner.clone(), read).await;
                read.ok_or_else(|| ReadError::unreadable(&"the work on it was cancelled"))
            };
            let found = tokio::select! {
                found = turn => found?,
                () = document.revoked() => return Err(ReadError::Busy),
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }
}

/// The name of a document in the index. A group that would name another path has none.
fn document_name(group: &str, version: &str) -> Option<String> {
    match group {
        _ if !is_segment(version) => None,
        "" => Some(format!("api/{version}")),
        _ => is_segment(group).then(|| format!("apis/{group}/{version}")),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use portcullis_limits::ClusterOwner;
    use portcullis_system::sync::lock;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::admission::memory::ReviewMemory;
    use crate::tasks::compute::ComputePool;

    /// The paths that an API server was asked for, and what it says in the index, and of the group.
    #[derive(Default)]
    struct Server {
        asked: Vec<String>,
        hash: u32,
        is_broken: bool,
    }

    fn schemas(server: &Arc<Mutex<Server>>) -> PublishedSchemas {
        let server = Arc::clone(server);
        let service = service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let mut server = lock(&server);
            let text = if path == "/openapi/v3" {
                let url = format!("/openapi/v3/apis/apps/v1?hash={}", server.hash);
                json!({"paths": {"apis/apps/v1": {"serverRelativeURL": url}}}).to_string()
            } else if server.is_broken {
                "{".to_owned()
            } else {
                json!({"components": {"schemas": {}}}).to_string()
            };
            server.asked.push(path);
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(text.into_bytes()))))
        });
        let reader = DocumentReader::of_test(kube::Client::new(service, "default"));
        let memory = ReviewMemory::default().of_cluster(&ClusterOwner::operator("c"));
        PublishedSchemas::new(
            &reader,
            &ComputePool::of_test().of_cluster("c"),
            &memory,
            &CacheShare::UNBOUNDED,
        )
    }

    async fn ask(schemas: &PublishedSchemas, group: &str) -> Result<bool, ReadError> {
        let known = schemas.of(("flow", &Owner::flow("c", "flow")), group, "v1").await?;
        Ok(known.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_is_read_again_when_it_has_another_hash() {
        let server = Arc::<Mutex<Server>>::default();
        let schemas = schemas(&server);
        let asked = |index, document| {
            let asked = std::mem::take(&mut lock(&server).asked);
            let of = |path: &str| asked.iter().filter(|asked| *asked == path).count();
            assert_eq!((of("/openapi/v3"), of("/openapi/v3/apis/apps/v1")), (index, document), "{asked:?}");
        };
        for _ in 0..3 {
            assert_eq!(ask(&schemas, "apps").await, Ok(true));
        }
        assert_eq!(ask(&schemas, "batch").await, Ok(false), "the index does not have it");
        asked(1, 1);
        tokio::time::advance(INDEX_TTL).await;
        assert_eq!(ask(&schemas, "apps").await, Ok(true));
        asked(1, 0);
        // A document that cannot be used is not read again either, until it is another one.
        for (is_broken, hash) in [(true, 1), (false, 2)] {
            tokio::time::advance(INDEX_TTL).await;
            {
                let mut server = lock(&server);
                (server.is_broken, server.hash) = (is_broken, hash);
            }
            for _ in 0..3 {
                assert_eq!(ask(&schemas, "apps").await.is_err(), is_broken);
            }
            asked(1, 1);
        }
    }

    #[test]
    fn documents_are_named_as_in_the_index() {
        assert_eq!(document_name("", "v1").as_deref(), Some("api/v1"));
        assert_eq!(document_name("apps", "v1").as_deref(), Some("apis/apps/v1"));
        for (group, version) in [("..", "v1"), ("a/b", "v1"), ("a", ".."), ("", "v1?x"), ("a", "")] {
            assert_eq!(document_name(group, version), None, "{group} {version}");
        }
    }
}
