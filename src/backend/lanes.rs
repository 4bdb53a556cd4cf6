//! The lanes of HTTP/2 connections to one endpoint: requests that may share connections have one lane, and never use
//! the connections of another.

// threat: shared-connection-answers

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::sync::lock;
use tokio::time::Instant;

use super::counts::LaneKind;
use super::http2::Lane;
use super::sharing::SharingClass;
use crate::limits::FlowName;

/// The number of lanes for API groups that kube-apiserver does not serve itself.
const EXTENSION_LANES: usize = 8;
/// Users with a lane of their own. Requests of further users use HTTP/1.1, within limits of the pool: a client with the
/// credentials of many users could exhaust the gateway's file descriptors.
const MAX_USER_LANES: usize = 256;
/// Those of one flow: the service accounts of a namespace are one, and their creator can make any number.
const MAX_FLOW_LANES: usize = MAX_USER_LANES / 8;
/// How long the idle lane of a user is kept.
const IDLE_LANE_TIMEOUT: Duration = Duration::from_mins(1);

/// The lanes to one endpoint.
#[derive(Debug)]
pub(crate) struct Lanes {
    built_in: LanePair,
    extensions: Vec<LanePair>,
    /// Keyed, so that no client can choose which groups share a lane.
    hasher: RandomState,
    users: Mutex<HashMap<Box<str>, RelayLane>>,
}

/// A lane for short requests and one for watches.
#[derive(Debug)]
struct LanePair {
    short: Arc<Lane>,
    long: Arc<Lane>,
}

/// The lane for responses that the API server relays from pods and nodes to one user.
#[derive(Debug)]
struct RelayLane {
    lane: Arc<Lane>,
    flow: FlowName,
    last_used: Instant,
}

impl LanePair {
    fn new(short: LaneKind, long: LaneKind) -> Self {
        Self { short: Arc::new(Lane::of_short_requests(short)), long: Arc::new(Lane::of_streams(long, None)) }
    }

    fn lane(&self, is_long: bool) -> Arc<Lane> {
        Arc::clone(if is_long { &self.long } else { &self.short })
    }
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            built_in: LanePair::new(LaneKind::Short, LaneKind::Watch),
            extensions: (0..EXTENSION_LANES)
                .map(|_| LanePair::new(LaneKind::Extension, LaneKind::Extension))
                .collect(),
            hasher: RandomState::new(),
            users: Mutex::default(),
        }
    }

    /// The lane of a request; `None` if it must use HTTP/1.1. `flow` is that of its client.
    pub(crate) fn lane_for(
        &self,
        class: SharingClass<'_>,
        flow: impl FnOnce() -> FlowName,
    ) -> Option<Arc<Lane>> {
        match class {
            SharingClass::Relayed { user } => self.relay_lane(user, flow),
            _ => self.existing_lane(class),
        }
    }

    /// The lane of a request, if it has one already.
    pub(crate) fn existing_lane(&self, class: SharingClass<'_>) -> Option<Arc<Lane>> {
        match class {
            SharingClass::Short => Some(self.built_in.lane(false)),
            SharingClass::Long => Some(self.built_in.lane(true)),
            SharingClass::Extension { group, is_long } => Some(self.extension_lanes(group).lane(is_long)),
            SharingClass::Relayed { user } => {
                lock(&self.users).get(user).map(|relay| Arc::clone(&relay.lane))
            }
            SharingClass::Alone { .. } | SharingClass::Anonymous { .. } => None,
        }
    }

    /// Closes the connections that have had no stream since the last call.
    pub(crate) fn close_idle(&self) {
        for pair in std::iter::once(&self.built_in).chain(&self.extensions) {
            pair.short.close_idle();
            pair.long.close_idle();
        }
        lock(&self.users).values().for_each(|relay| relay.lane.close_idle());
    }

    fn extension_lanes(&self, group: &str) -> &LanePair {
        let count = u64::try_from(self.extensions.len()).unwrap_or(u64::MAX).max(1);
        let index = usize::try_from(self.hasher.hash_one(group) % count).unwrap_or_default();
        self.extensions.get(index).unwrap_or(&self.built_in)
    }

    /// The lane of this user; `None` if too many users have one, of this flow or of all.
    // threat: lanes-of-many-users
    fn relay_lane(&self, user: &str, flow: impl FnOnce() -> FlowName) -> Option<Arc<Lane>> {
        let mut users = lock(&self.users);
        let now = Instant::now();
        if let Some(relay) = users.get_mut(user) {
            relay.last_used = now;
            return Some(Arc::clone(&relay.lane));
        }
        // Dropping a lane closes its idle connections.
        let is_recent = |relay: &RelayLane| now.duration_since(relay.last_used) < IDLE_LANE_TIMEOUT;
        users.retain(|_, relay| relay.is_in_use() || is_recent(relay));
        let flow = flow();
        let of_flow =
            |users: &HashMap<_, RelayLane>| users.values().filter(|relay| relay.flow == flow).count();
        if users.len() >= MAX_USER_LANES || of_flow(&users) >= MAX_FLOW_LANES {
            users.retain(|_, relay| relay.is_in_use());
        }
        if users.len() >= MAX_USER_LANES || of_flow(&users) >= MAX_FLOW_LANES {
            return None;
        }
        let lane = Arc::new(Lane::of_streams(LaneKind::Relayed, Some(user.into())));
        users.insert(user.into(), RelayLane { lane: Arc::clone(&lane), flow, last_used: now });
        Some(lane)
    }
}

impl RelayLane {
    /// Whether a request uses the lane, or holds it to do so.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.lane) > 1 || self.lane.is_in_use()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_the_same_group_or_user_share_a_lane() {
        let lanes = Lanes::new();
        let lane = |class| lanes.lane_for(class, || "flow".into()).unwrap();
        let classes = [
            SharingClass::Short,
            SharingClass::Long,
            SharingClass::Extension { group: "a.example.com", is_long: false },
            SharingClass::Extension { group: "a.example.com", is_long: true },
            SharingClass::Relayed { user: "alice" },
            SharingClass::Relayed { user: "bob" },
        ];
        for (one, first) in classes.into_iter().enumerate() {
            for (other, second) in classes.into_iter().enumerate() {
                assert_eq!(Arc::ptr_eq(&lane(first), &lane(second)), one == other, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn groups_are_spread_over_all_lanes() {
        let lanes = Lanes::new();
        let found: std::collections::HashSet<_> = (0..1000)
            .map(|number| {
                let group = format!("g{number}.example.com");
                Arc::as_ptr(
                    &lanes.existing_lane(SharingClass::Extension { group: &group, is_long: false }).unwrap(),
                )
                .addr()
            })
            .collect();
        assert_eq!(found.len(), EXTENSION_LANES);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_lanes_of_users_are_removed() {
        let lanes = Lanes::new();
        let held = lanes.lane_for(SharingClass::Relayed { user: "held" }, || "held".into());
        for number in 0..10 {
            lanes.lane_for(SharingClass::Relayed { user: &number.to_string() }, || "flow".into());
        }
        assert_eq!(lanes.users.lock().unwrap().len(), 11);
        tokio::time::advance(IDLE_LANE_TIMEOUT).await;
        lanes.lane_for(SharingClass::Relayed { user: "late" }, || "late".into());
        assert_eq!(lanes.users.lock().unwrap().len(), 2);
        drop(held);
    }

    #[test]
    fn the_number_of_user_lanes_is_bounded() {
        let lanes = Lanes::new();
        let lane = |number: usize| {
            let user = number.to_string();
            lanes.lane_for(SharingClass::Relayed { user: &user }, || user.as_str().into())
        };
        let held: Vec<_> = (0..MAX_USER_LANES).map(lane).collect();
        assert!(lane(MAX_USER_LANES).is_none(), "its requests use HTTP/1.1");
        drop(held);
        assert!(lane(MAX_USER_LANES).is_some());
        assert_eq!(lanes.users.lock().unwrap().len(), 1, "idle lanes make room");
    }

    #[test]
    fn the_service_accounts_of_one_namespace_leave_lanes_to_other_users() {
        let lanes = Lanes::new();
        let lane = |user: &str, flow: &str| lanes.lane_for(SharingClass::Relayed { user }, || flow.into());
        let account =
            |number: usize| lane(&format!("system:serviceaccount:ci:{number}"), "system:serviceaccount:ci");
        let held: Vec<_> = (0..MAX_USER_LANES).filter_map(account).collect();
        assert_eq!(held.len(), MAX_FLOW_LANES);
        assert!(account(MAX_USER_LANES).is_none() && lane("alice", "alice").is_some());
    }
}
