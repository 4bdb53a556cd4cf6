//! A store that fails, at any object, before or after it has stored it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::*;
use crate::storage::verify::verify;

const LIMITS: PartLimits = PartLimits { size: 10, age: Duration::from_secs(5) };

/// Objects in memory, and what becomes of the next writes, the next one last.
#[derive(Debug, Default)]
struct FaultyStore {
    objects: Mutex<BTreeMap<ObjectName, Vec<u8>>>,
    faults: Mutex<Vec<Option<Fault>>>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Nothing is stored.
    Before,
    /// The object is stored, and the write fails.
    After,
}

impl RecordingStore for FaultyStore {
    fn put(&self, _: &SessionName, object: &ObjectName, content: &[u8]) -> io::Result<()> {
        let fault = self.faults.lock().unwrap().pop().flatten();
        if matches!(fault, Some(Fault::Before)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut objects = self.objects.lock().unwrap();
        if objects.contains_key(object) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        objects.insert(*object, content.to_vec());
        if fault.is_some() { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn get(&self, _: &SessionName, object: &ObjectName) -> io::Result<Option<Vec<u8>>> {
        Ok(self.objects.lock().unwrap().get(object).cloned())
    }

    fn objects(&self, _: &SessionName) -> io::Result<Vec<ObjectName>> {
        Ok(self.objects.lock().unwrap().keys().copied().collect())
    }

    fn sessions(&self) -> io::Result<Vec<SessionName>> {
        Ok(vec![name()])
    }
}

fn name() -> SessionName {
    SessionName::new(Duration::from_secs(1_767_323_045), "2c7bb2b6-1f6f", [0; 8])
}

fn begin(store: &Arc<FaultyStore>) -> SessionWriter<Arc<FaultyStore>> {
    SessionWriter::begin(Arc::clone(store), name(), &SessionStart::default(), PartForm::Cast, LIMITS).unwrap()
}

/// A part or its link fails once or twice, before or after it was stored, and more lines come meanwhile.
#[test]
fn what_could_not_be_written_is_written_as_it_was() {
    use Fault::{After, Before};
    for faults in [
        vec![Some(Before)],
        vec![Some(After)],
        vec![Some(Before), Some(Before)],
        vec![Some(Before), Some(After)],
        // The part, then its link.
        vec![None, Some(Before)],
        vec![None, Some(After)],
        vec![Some(After), None, Some(Before)],
        // The part is there, and its link fails twice.
        vec![None, Some(Before), None, Some(After)],
    ] {
        let store = Arc::new(FaultyStore::default());
        let mut writer = begin(&store);
        *store.faults.lock().unwrap() = faults.iter().rev().copied().collect();
        let (mut failures, mut sent) = (0, Vec::new());
        for number in 0..8 {
            let line = format!("line {number}, which is a part\n");
            sent.extend_from_slice(line.as_bytes());
            failures += usize::from(writer.write(Duration::ZERO, line.as_bytes()).is_err());
        }
        assert_eq!(failures, faults.iter().flatten().count(), "{faults:?}");
        let head = writer.end(&SessionEnd::default()).unwrap();
        let found = verify(&store, &name()).unwrap();
        assert_eq!((found.problems.len(), found.has_ended, found.head), (0, true, head), "{faults:?}");
        let stored = store.objects.lock().unwrap();
        let parts = stored.iter().filter(|(object, _)| matches!(object, ObjectName::Part(..)));
        assert_eq!(parts.flat_map(|(_, content)| content.clone()).collect::<Vec<u8>>(), sent, "{faults:?}");
    }
}

#[test]
fn the_end_may_be_tried_again() {
    for fault in [Fault::Before, Fault::After] {
        let store = Arc::new(FaultyStore::default());
        let mut writer = begin(&store);
        writer.write(Duration::ZERO, b"line\n").unwrap();
        *store.faults.lock().unwrap() = vec![Some(fault)];
        let end = SessionEnd::default();
        writer.end(&end).unwrap_err();
        writer.end(&end).unwrap();
        let found = verify(&store, &name()).unwrap();
        assert_eq!((found.problems.len(), found.has_ended, found.parts), (0, true, 1));
    }
}

/// A store that fails for ever costs a bounded amount of memory.
#[test]
fn unwritten_lines_are_bounded() {
    let store = Arc::new(FaultyStore::default());
    let mut writer = begin(&store);
    *store.faults.lock().unwrap() = vec![Some(Fault::Before); 1000];
    let line = vec![b'x'; 1 << 20];
    let failures: Vec<io::ErrorKind> =
        (0..100).map(|_| writer.write(Duration::ZERO, &line).unwrap_err().kind()).collect();
    assert!(writer.pending() <= 2 * MAX_OBJECT);
    assert_eq!(failures.last(), Some(&io::ErrorKind::StorageFull));
    store.faults.lock().unwrap().clear();
    assert!(writer.flush().unwrap());
    assert!(store.objects.lock().unwrap().values().all(|object| object.len() <= MAX_OBJECT));
}

/// Two writers of one session: the second does not take the objects of the first for its own.
#[test]
fn a_session_that_exists_is_not_begun_again() {
    let store = Arc::new(FaultyStore::default());
    let _first = begin(&store);
    let again =
        SessionWriter::begin(Arc::clone(&store), name(), &SessionStart::default(), PartForm::Cast, LIMITS);
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}
