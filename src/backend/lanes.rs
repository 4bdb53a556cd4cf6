//! The lanes of HTTP/2 connections to one endpoint: which one a request takes.

// threat: shared-connection-answers

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::http2::Lane;
use super::pool::lock;
use super::sharing::SharingClass;

/// Windows of a short request's response and of a long stream, in bytes. A connection's is large enough for all of its
/// streams, so that stalled readers cannot use it up.
const SHORT_WINDOW: u32 = 256 * 1024;
const LONG_WINDOW: u32 = 64 * 1024;
/// Over how many lanes API groups are spread that kube-apiserver does not serve itself.
const EXTENSION_LANES: usize = 8;
/// Users with a lane of their own. Requests of further users travel alone, within bounds of their own: one client with
/// the credentials of many could use up the gateway's open files.
const MAX_USER_LANES: usize = 256;
/// How long a user's lane is kept that carries no request.
const IDLE_LANE_TIMEOUT: Duration = Duration::from_mins(1);

/// Lanes for requests that may share a connection.
#[derive(Debug)]
pub(crate) struct Lanes {
    own: Pair,
    extensions: Vec<Pair>,
    /// No client can choose which groups share a lane.
    hasher: RandomState,
    users: Mutex<HashMap<Box<str>, UserLane>>,
}

/// A lane for short requests and one for watches.
#[derive(Debug)]
struct Pair {
    short: Arc<Lane>,
    long: Arc<Lane>,
}

/// What is relayed for one user.
#[derive(Debug)]
struct UserLane {
    lane: Arc<Lane>,
    last_used: Instant,
}

impl Pair {
    fn new() -> Self {
        Self { short: Arc::new(Lane::new(SHORT_WINDOW)), long: Arc::new(Lane::new(LONG_WINDOW)) }
    }

    fn of(&self, is_long: bool) -> Arc<Lane> {
        Arc::clone(if is_long { &self.long } else { &self.short })
    }
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            own: Pair::new(),
            extensions: (0..EXTENSION_LANES).map(|_| Pair::new()).collect(),
            hasher: RandomState::new(),
            users: Mutex::default(),
        }
    }

    /// The lane of a request; none if it must not travel over HTTP/2.
    pub(crate) fn of(&self, kind: SharingClass<'_>) -> Option<Arc<Lane>> {
        match kind {
            SharingClass::Short => Some(self.own.of(false)),
            SharingClass::Long => Some(self.own.of(true)),
            SharingClass::Extension { group, is_long } => Some(self.of_group(group).of(is_long)),
            SharingClass::Relayed { user } => self.of_user(user),
            SharingClass::Alone { .. } | SharingClass::Anonymous { .. } => None,
        }
    }

    fn of_group(&self, group: &str) -> &Pair {
        let count = u64::try_from(self.extensions.len()).unwrap_or(u64::MAX).max(1);
        let index = usize::try_from(self.hasher.hash_one(group) % count).unwrap_or_default();
        self.extensions.get(index).unwrap_or(&self.own)
    }

    /// A lane of this user alone; none if there are too many.
    fn of_user(&self, user: &str) -> Option<Arc<Lane>> {
        let mut users = lock(&self.users);
        let now = Instant::now();
        if let Some(known) = users.get_mut(user) {
            known.last_used = now;
            return Some(Arc::clone(&known.lane));
        }
        // The connections of a lane that is dropped end by themselves.
        let is_recent = |user: &UserLane| now.duration_since(user.last_used) < IDLE_LANE_TIMEOUT;
        users.retain(|_, user| user.is_in_use() || is_recent(user));
        if users.len() >= MAX_USER_LANES {
            users.retain(|_, user| user.is_in_use());
        }
        if users.len() >= MAX_USER_LANES {
            return None;
        }
        let lane = Arc::new(Lane::new(LONG_WINDOW));
        users.insert(user.into(), UserLane { lane: Arc::clone(&lane), last_used: now });
        Some(lane)
    }
}

impl UserLane {
    /// Whether it carries a request, or one is about to use it and holds it.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.lane) > 1 || self.lane.is_in_use()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_shared_by_requests_of_the_same_group_or_user() {
        let lanes = Lanes::new();
        let lane = |kind| lanes.of(kind).unwrap();
        let kinds = [
            SharingClass::Short,
            SharingClass::Long,
            SharingClass::Extension { group: "a.example.com", is_long: false },
            SharingClass::Extension { group: "a.example.com", is_long: true },
            SharingClass::Relayed { user: "alice" },
            SharingClass::Relayed { user: "bob" },
        ];
        for (one, first) in kinds.into_iter().enumerate() {
            for (other, second) in kinds.into_iter().enumerate() {
                assert_eq!(Arc::ptr_eq(&lane(first), &lane(second)), one == other, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn groups_are_spread_over_the_lanes() {
        let lanes = Lanes::new();
        let found: std::collections::HashSet<_> = (0..1000)
            .map(|number| {
                let group = format!("g{number}.example.com");
                Arc::as_ptr(&lanes.of(SharingClass::Extension { group: &group, is_long: false }).unwrap())
                    .addr()
            })
            .collect();
        assert_eq!(found.len(), EXTENSION_LANES);
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_of_users_who_have_left_are_forgotten() {
        let lanes = Lanes::new();
        let held = lanes.of(SharingClass::Relayed { user: "held" });
        for number in 0..10 {
            lanes.of(SharingClass::Relayed { user: &number.to_string() });
        }
        assert_eq!(lanes.users.lock().unwrap().len(), 11);
        tokio::time::advance(IDLE_LANE_TIMEOUT).await;
        lanes.of(SharingClass::Relayed { user: "late" });
        assert_eq!(lanes.users.lock().unwrap().len(), 2);
        drop(held);
    }

    #[test]
    fn no_number_of_users_takes_a_connection_each() {
        let lanes = Lanes::new();
        let lane = |number: usize| lanes.of(SharingClass::Relayed { user: &number.to_string() });
        let held: Vec<_> = (0..MAX_USER_LANES).map(lane).collect();
        assert!(lane(MAX_USER_LANES).is_none(), "it travels alone");
        drop(held);
        assert!(lane(MAX_USER_LANES).is_some());
        assert_eq!(lanes.users.lock().unwrap().len(), 1, "those that are idle give way");
    }
}
