//! What a controller keeps of the objects that it watches: of a bounded size, since the cluster chooses how many there are.
//!
//! What does not fit is not kept. The key of an object that has changed, or was known before a list, is passed on all the same,
//! and the controller finds no object of that key, as if it had been deleted. It must do nothing then. So it never acts on an
//! object that is older than the last event about it. Whoever needs all objects at once asks whether something is left out.

use std::io::{self, Write};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Resource;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup as _, Store};
use kube::runtime::watcher::Event;
use portcullis_limits::cache_budget::{CacheMemory, CacheShare};
use serde::Serialize;

/// The memory of the objects of one resource that a controller watches: about 40,000 bootstrap tokens.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// The same at a tenant's cluster: about 2,500.
// threat: tenant-lists
pub(super) const MAX_TENANT_BYTES: usize = MAX_BYTES / 16;
/// How much memory a byte of text takes.
const MEMORY_OF_TEXT: usize = 2;
/// The approximate memory of an entry beyond its object.
const ENTRY_OVERHEAD: usize = 256;

/// The objects that there are, as far as they fit.
pub(super) struct BoundedStore<K: Resource<DynamicType = ()> + Clone + 'static> {
    objects: Store<K>,
    leaves_out: Arc<AtomicBool>,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> BoundedStore<K> {
    /// Whether an object of the last list, or a later one, did not fit.
    pub(super) fn leaves_out(&self) -> bool {
        self.leaves_out.load(Ordering::Acquire)
    }
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> Deref for BoundedStore<K> {
    type Target = Store<K>;

    fn deref(&self) -> &Store<K> {
        &self.objects
    }
}

/// Whether an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is.
    Kept,
    /// It does not fit.
    LeftOut {
        /// Whether it is the first one since the list began.
        is_first: bool,
    },
}

/// Writes a store, within its bound. While a list is read, the objects before it are kept as well, and count apart.
pub(super) struct BoundedWriter<K: Resource<DynamicType = ()> + Clone + 'static> {
    writer: Writer<K>,
    known: Store<K>,
    bytes: usize,
    /// Of the list that is being read.
    listed_bytes: usize,
    max_bytes: usize,
    /// Of the share of the cluster's caches.
    held: CacheMemory,
    /// Whether something did not fit since the last list began.
    overflows: bool,
    /// The same, for readers: not before the list is complete.
    leaves_out: Arc<AtomicBool>,
}

impl<K: Resource<DynamicType = ()> + Clone + Serialize + 'static> BoundedWriter<K> {
    /// Of an empty store, in the share of the cluster's caches.
    pub(super) fn new(max_bytes: usize, share: &CacheShare) -> Self {
        let writer = Writer::default();
        let known = writer.as_reader();
        Self {
            writer,
            known,
            bytes: 0,
            listed_bytes: 0,
            max_bytes,
            held: share.memory(),
            overflows: false,
            leaves_out: Arc::default(),
        }
    }

    /// The store.
    pub(super) fn store(&self) -> BoundedStore<K> {
        BoundedStore { objects: self.known.clone(), leaves_out: Arc::clone(&self.leaves_out) }
    }

    /// A list begins, whose objects replace those that there are.
    pub(super) fn begin_list(&mut self) {
        self.writer.apply_watcher_event(&Event::Init);
        (self.listed_bytes, self.overflows) = (0, false);
    }

    /// An object of the list.
    // threat: tenant-lists, tenant-caches
    pub(super) fn list(&mut self, object: K) -> Fit {
        let bytes = self.listed_bytes.saturating_add(memory(&object));
        if bytes > self.max_bytes || !self.held.set(self.bytes.saturating_add(bytes)) {
            return self.overflow();
        }
        self.listed_bytes = bytes;
        self.writer.apply_watcher_event(&Event::InitApply(object));
        Fit::Kept
    }

    /// The list is complete.
    pub(super) fn end_list(&mut self) {
        self.leaves_out.store(self.overflows, Ordering::Release);
        self.writer.apply_watcher_event(&Event::InitDone);
        self.bytes = self.listed_bytes;
        self.held.lower(self.bytes);
    }

    /// A new or changed object.
    pub(super) fn apply(&mut self, object: K) -> Fit {
        let bytes = self.bytes_without(&object).saturating_add(memory(&object));
        if bytes > self.max_bytes || !self.held.set(bytes) {
            self.leaves_out.store(true, Ordering::Release);
            self.delete(object);
            return self.overflow();
        }
        self.bytes = bytes;
        self.writer.apply_watcher_event(&Event::Apply(object));
        Fit::Kept
    }

    /// An object that was deleted.
    pub(super) fn delete(&mut self, object: K) {
        self.bytes = self.bytes_without(&object);
        self.held.lower(self.bytes);
        self.writer.apply_watcher_event(&Event::Delete(object));
    }

    /// The memory of all objects but this one.
    fn bytes_without(&self, object: &K) -> usize {
        let before = self.known.get(&object.to_object_ref(()));
        self.bytes.saturating_sub(before.map_or(0, |object| memory(&*object)))
    }

    fn overflow(&mut self) -> Fit {
        Fit::LeftOut { is_first: !std::mem::replace(&mut self.overflows, true) }
    }
}

/// The approximate memory of an object.
fn memory<K: Serialize>(object: &K) -> usize {
    let mut text = Length(0);
    // It counts alone, and an object that was decoded can be encoded.
    let encoded = serde_json::to_writer(&mut text, object);
    let text = if encoded.is_ok() { text.0 } else { usize::MAX };
    text.saturating_mul(MEMORY_OF_TEXT).saturating_add(size_of::<K>() + ENTRY_OVERHEAD)
}

/// Counts what is written.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(name: &str, length: usize) -> ConfigMap {
        let data = [("k".to_owned(), "x".repeat(length))];
        let mut map = ConfigMap { data: Some(data.into()), ..ConfigMap::default() };
        map.metadata.name = Some(name.to_owned());
        map
    }

    fn names(store: &Store<ConfigMap>) -> Vec<String> {
        let mut names: Vec<_> = store.state().iter().filter_map(|map| map.metadata.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_store_keeps_what_fits_and_nothing_older_than_the_last_event() {
        let one = memory(&map("a", 1000));
        let mut writer = BoundedWriter::new(3 * one, &CacheShare::UNBOUNDED);
        let store = writer.store();
        writer.begin_list();
        let overflows = ["a", "b", "c", "d", "e"].map(|name| writer.list(map(name, 1000)));
        writer.end_list();
        let [first, again] = [true, false].map(|is_first| Fit::LeftOut { is_first });
        assert_eq!(overflows, [Fit::Kept, Fit::Kept, Fit::Kept, first, again], "it is said once");
        assert!(store.leaves_out());
        assert_eq!(names(&store), ["a", "b", "c"]);
        writer.delete(map("b", 0));
        assert_eq!(writer.apply(map("d", 1000)), Fit::Kept);
        assert_eq!(names(&store), ["a", "c", "d"]);
        // It has grown: its old version must not be acted on.
        writer.apply(map("a", 2000));
        assert_eq!(names(&store), ["c", "d"]);
        writer.apply(map("a", 1000));
        assert_eq!((names(&store), writer.bytes), (["a", "c", "d"].map(str::to_owned).to_vec(), 3 * one));
        writer.begin_list();
        assert_eq!(writer.list(map("z", 1000)), Fit::Kept);
        assert!(store.leaves_out(), "those before the list are still there");
        writer.end_list();
        assert_eq!((names(&store), writer.bytes), (vec!["z".to_owned()], one));
        assert!(!store.leaves_out());
        writer.apply(map("large", 5000));
        assert!(store.leaves_out());
    }
}
