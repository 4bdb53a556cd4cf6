//! What is remembered, and who is being asked for what is not: one lock, held for a look and never longer.

use std::collections::HashMap;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use lru::LruCache;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::{AuthnError, AuthnVerdict};
use super::key::Key;
use crate::authn::trace::TraceRecord;
use crate::clock::UnixTime;

/// What a lookup came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) verdict: AuthnVerdict,
    pub(super) noted: TraceRecord,
}

/// A lookup in progress; the outcome comes once. Closed without one if whoever began it went away before it started.
pub(super) type Flight = watch::Receiver<Option<Arc<Outcome>>>;

/// What is known of a key.
pub(super) enum Known {
    /// Remembered.
    Outcome(Arc<Outcome>),
    /// Somebody is asking.
    Flight(Flight),
    /// Nobody is, and the caller must: this is where the outcome goes.
    Nothing(watch::Sender<Option<Arc<Outcome>>>),
}

/// One part of a cache.
#[derive(Debug)]
pub(super) struct Shelf {
    kept: LruCache<Key, Kept>,
    flights: HashMap<Key, Flight>,
    /// Tokens whose last verdict was good, also those whose verdict is no longer remembered.
    good: Option<LruCache<Key, ()>>,
    weight: usize,
    capacity: usize,
}

#[derive(Debug)]
struct Kept {
    outcome: Arc<Outcome>,
    until: Instant,
    weight: usize,
}

impl Shelf {
    /// Remembers as much as `capacity` bytes hold, and of so many tokens that their last verdict was good.
    pub(super) fn new(capacity: usize, good_tokens: usize) -> Self {
        let good = NonZeroUsize::new(good_tokens).map(LruCache::new);
        Self { kept: LruCache::unbounded(), flights: HashMap::new(), good, weight: 0, capacity }
    }

    /// Whether the last verdict on a token was good.
    pub(super) fn was_good(&self, key: &Key) -> bool {
        self.good.as_ref().is_some_and(|good| good.contains(key))
    }

    /// Notes whether the last verdict on a token is good.
    pub(super) fn note_good(&mut self, key: Key, is_good: bool) {
        let Some(good) = &mut self.good else { return };
        if is_good {
            good.put(key, ());
        } else {
            good.pop(&key);
        }
    }

    /// What is known at this moment. `now` is the time by which credentials expire, `instant` that by which the cache
    /// forgets: setting the clock back must not make it remember longer.
    pub(super) fn look(&mut self, key: Key, now: UnixTime, instant: Instant) -> Known {
        if let Some(kept) = self.kept.get(&key)
            && instant < kept.until
            && kept.outcome.holds_at(now)
        {
            return Known::Outcome(Arc::clone(&kept.outcome));
        }
        if let Some(flight) = self.flights.get(&key) {
            return Known::Flight(flight.clone());
        }
        let (sender, receiver) = watch::channel(None);
        self.flights.insert(key, receiver);
        Known::Nothing(sender)
    }

    /// The lookup of `key` is over, or never began.
    pub(super) fn land(&mut self, key: &Key) {
        self.flights.remove(key);
    }

    /// Remembers an outcome in place of those that were not asked for longest, and drops what is forgotten anyway.
    pub(super) fn keep(&mut self, key: Key, outcome: Arc<Outcome>, until: Instant, instant: Instant) {
        let weight = outcome.weight();
        self.weight += weight;
        if let Some(before) = self.kept.put(key, Kept { outcome, until, weight }) {
            self.weight -= before.weight;
        }
        while let Some((_, oldest)) = self.kept.peek_lru()
            && (self.weight > self.capacity || oldest.until <= instant)
        {
            self.weight -= oldest.weight;
            self.kept.pop_lru();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    #[cfg(test)]
    pub(super) fn flights(&self) -> usize {
        self.flights.len()
    }
}

impl Outcome {
    /// An error, and nothing beside it.
    pub(super) fn of(error: AuthnError) -> Self {
        Self { verdict: Err(error), noted: TraceRecord::default() }
    }

    /// Whether a credential that it vouches for has not come to its end.
    pub(super) fn holds_at(&self, now: UnixTime) -> bool {
        match &self.verdict {
            Ok(Some(found)) => found.expires.is_none_or(|expires| now < expires),
            Ok(None) | Err(_) => true,
        }
    }

    /// About as many bytes as it takes to remember it: a text for the text, and something for its keeping. What is told
    /// of a user is there once more, as lines of a header.
    fn weight(&self) -> usize {
        const EACH: usize = 2 * size_of::<String>();
        let text = |text: &String| EACH + text.len();
        let told = |told: &String| 2 * text(told) + size_of::<(HeaderName, HeaderValue)>();
        let verdict = match &self.verdict {
            Ok(Some(found)) => {
                let user = &found.user;
                let of_extra = |(key, values): (&String, &Vec<String>)| -> usize {
                    text(key) + values.iter().map(|value| text(key) + told(value)).sum::<usize>()
                };
                told(&user.name)
                    + user.uid.as_ref().map_or(0, told)
                    + user.groups.iter().map(told).sum::<usize>()
                    + user.extra.iter().map(of_extra).sum::<usize>()
                    + found.audiences.iter().map(|audience| text(&audience.0)).sum::<usize>()
            }
            Ok(None) => 0,
            Err(error) => text(&error.to_string()),
        };
        let noted = self.noted.warnings.iter().map(text).sum::<usize>()
            + self.noted.annotations.iter().map(|(key, value)| text(key) + text(value)).sum::<usize>();
        size_of::<Key>() + size_of::<Kept>() + size_of::<Self>() + 256 + verdict + noted
    }
}
