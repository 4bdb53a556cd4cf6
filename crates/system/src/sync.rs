//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic of its last holder: no holder here leaves half a change behind.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
