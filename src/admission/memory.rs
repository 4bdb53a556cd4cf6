//! The memory of objects under review, for all clusters of the process.
//!
//! An object in memory takes many times its text if it has many small parts, so its memory is measured in the text, before it is
//! decoded (`DecodedSize`). What a review needs is reserved in the share of its owner: a tenant's cluster, in which its users have
//! shares, or else a user. Small objects have a part of their own, in which they never wait behind large ones, and a part is for
//! administrators and nodes of the operator's clusters.
//!
//! The texts themselves are not counted here but among the bytes in buffers, whose largest owner gives way: see
//! `portcullis_http::held_texts`.
// threat: review-memory

use std::sync::Arc;
use std::time::Duration;

use portcullis_limits::fair_limiter::{FairLimiter, Permit, Refused, Shares};
use portcullis_limits::{ClusterOwner, Owner};
use tokio::time::Instant;

/// The least memory of all reviews, in bytes: that of the largest objects that are common, such as definitions of custom resources.
const MIN_TOTAL: usize = 128 << 20;
/// The largest review that counts as small, in KiB: of a typical object, several thousand bytes of text.
const SMALL: usize = 1 << 10;
/// How many requests wait, in all and of one owner.
const QUEUE: (usize, usize) = (1024, 128);
/// How long a request waits for memory.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory of all reviews. Cheap to clone: a clone is the same.
#[derive(Debug, Clone)]
pub(crate) struct ReviewMemory {
    small: FairLimiter,
    large: FairLimiter,
    reserve: FairLimiter,
    documents: FairLimiter<Arc<str>>,
    checks: FairLimiter<Arc<str>>,
}

/// Documents that are read to check policies, of all clusters and of one. A reload ends the check before.
const CHECKS: Shares = Shares::new(4, 1).with_queue(1 << 20, 4);

fn document_weight(bytes: usize) -> usize {
    bytes.div_ceil(1 << 10).max(1)
}

/// What documents of API servers take while they are turned into types, in KiB: of all clusters, and of one. So there is one of the
/// largest documents at a time, and clusters take turns.
const DOCUMENTS: Shares = Shares::new(176 << 10, 152 << 10).with_queue(1024, 64);

/// How the memory is divided, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    small: Shares,
    large: Shares,
    reserve: Shares,
}

impl Division {
    /// Of this many bytes: a quarter for small objects, an eighth for administrators and nodes, and the rest for large objects. An
    /// owner has a sixteenth of the first, half of the second, and a third of the last.
    fn of(total: usize) -> Self {
        let total = total.max(MIN_TOTAL) >> 10;
        let (small, reserve) = (total / 4, total / 8);
        let large = total - small - reserve;
        let (waiting, waiting_per_owner) = QUEUE;
        let with_queue = |shares: Shares| shares.with_queue(waiting, waiting_per_owner);
        Self {
            small: with_queue(Shares::new(small, small / 16)),
            large: with_queue(Shares::new(large, large / 3)),
            reserve: Shares::new(reserve, reserve / 2),
        }
    }
}

impl Default for ReviewMemory {
    fn default() -> Self {
        let Division { small, large, reserve } = Division::of(MIN_TOTAL);
        Self {
            small: FairLimiter::new(small),
            large: FairLimiter::new(large),
            reserve: FairLimiter::new(reserve),
            documents: FairLimiter::new(DOCUMENTS),
            checks: FairLimiter::new(CHECKS),
        }
    }
}

impl ReviewMemory {
    /// Puts another total in force, in bytes.
    pub(crate) fn set_total(&self, total: usize) {
        let Division { small, large, reserve } = Division::of(total);
        self.small.set_shares(small);
        self.large.set_shares(large);
        self.reserve.set_shares(reserve);
    }

    /// The part of a cluster.
    pub(crate) fn of_cluster(&self, cluster: &ClusterOwner) -> ClusterReviewMemory {
        // The owner of a tenant's requests is the tenant, so its users have shares of its share.
        let of_users = |limiter: &FairLimiter| {
            let share = limiter.shares().per_owner();
            let (waiting, waiting_per_owner) = QUEUE;
            let shares = Shares::new(share, share / 2).with_queue(waiting, waiting_per_owner);
            UserShares { limiter: FairLimiter::new(shares), of: limiter.clone() }
        };
        let users = cluster.is_of_tenant().then(|| [of_users(&self.small), of_users(&self.large)]);
        ClusterReviewMemory { cluster: Arc::clone(cluster.cluster()), process: self.clone(), users }
    }
}

/// The memory of the reviews of one cluster. Cheap to clone: a clone is the same.
#[derive(Debug, Clone)]
pub(crate) struct ClusterReviewMemory {
    cluster: Arc<str>,
    process: ReviewMemory,
    /// The shares of a tenant's users, of small and of large reviews.
    users: Option<[UserShares; 2]>,
}

/// What a tenant's users have of the tenant's share.
#[derive(Debug, Clone)]
struct UserShares {
    limiter: FairLimiter<Arc<str>>,
    of: FairLimiter,
}

impl UserShares {
    /// Half of the tenant's share, as it is now.
    fn limiter(&self) -> &FairLimiter<Arc<str>> {
        let (share, known) = (self.of.shares().per_owner(), self.limiter.shares());
        if known.total() != share {
            let shares = Shares::new(share, share / 2);
            self.limiter.set_shares(shares.with_queue(known.waiting(), known.waiting_per_owner()));
        }
        &self.limiter
    }
}

/// Whose memory it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryOwner<'a> {
    /// The owner in the process.
    pub(crate) owner: &'a Owner,
    /// The user within the cluster.
    pub(crate) flow: &'a str,
    /// Whether the operator names it as an administrator or a node.
    pub(crate) is_privileged: bool,
}

/// Memory that is reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    _of_process: Permit,
    _of_user: Option<Permit<Arc<str>>>,
}

/// Why there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoMemory {
    /// More than any review may have: this many bytes.
    TooLarge {
        /// The most that one owner may have.
        limit: usize,
    },
    /// It is in use.
    Busy {
        /// The most that one owner may have.
        limit: usize,
    },
}

impl ClusterReviewMemory {
    /// Waits until the bytes are free that turning a document of an API server into types takes, or refuses.
    // threat: published-schemas
    pub(super) async fn wait_for_document(&self, bytes: usize, until: Instant) -> Result<(), Refused> {
        self.process
            .documents
            .acquire(Arc::clone(&self.cluster), document_weight(bytes), until)
            .await
            .map(drop)
    }

    /// The bytes, if they are free. They are taken within a turn of the pool that reads documents, and not while one waits for it.
    pub(super) fn reserve_for_document(&self, bytes: usize) -> Option<Permit<Arc<str>>> {
        self.process.documents.try_acquire(Arc::clone(&self.cluster), document_weight(bytes))
    }

    /// Waits for the turn to read a document to check policies by it: of all clusters few are at a time, so that requests find room.
    pub(super) async fn turn_to_check(&self) -> Result<Permit<Arc<str>>, Refused> {
        self.process.checks.acquire_untimed(Arc::clone(&self.cluster), 1).await
    }

    /// Waits for so many bytes. With `at_once` it does not wait: a review that holds memory must not wait for more of it, or two of
    /// them would wait for each other.
    pub(crate) async fn reserve(
        &self,
        of: MemoryOwner<'_>,
        bytes: usize,
        at_once: bool,
    ) -> Result<ReservedMemory, NoMemory> {
        let weight = bytes.div_ceil(1 << 10).max(1);
        let is_small = weight <= SMALL;
        let pool = if is_small { &self.process.small } else { &self.process.large };
        if of.is_privileged
            && let Some(permit) = pool
                .try_acquire(of.owner.clone(), weight)
                .or_else(|| self.process.reserve.try_acquire(of.owner.clone(), weight))
        {
            return Ok(ReservedMemory { _of_process: permit, _of_user: None });
        }
        let users = self.users.as_ref().map(|[small, large]| if is_small { small } else { large });
        let users = users.map(UserShares::limiter);
        let limit = users.map_or(pool.shares().per_owner(), |users| users.shares().per_owner());
        if weight > limit {
            return Err(NoMemory::TooLarge { limit: limit << 10 });
        }
        let busy = |_: Refused| NoMemory::Busy { limit: limit << 10 };
        let until = if at_once { Instant::now() } else { Instant::now() + QUEUE_TIMEOUT };
        let of_user = match users {
            Some(users) => Some(users.acquire(of.flow.into(), weight, until).await.map_err(busy)?),
            None => None,
        };
        let of_process = pool.acquire(of.owner.clone(), weight, until).await.map_err(busy)?;
        Ok(ReservedMemory { _of_process: of_process, _of_user: of_user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn user(name: &str) -> Owner {
        Owner::flow("prod", name)
    }

    fn of<'a>(owner: &'a Owner, flow: &'a str, is_privileged: bool) -> MemoryOwner<'a> {
        MemoryOwner { owner, flow, is_privileged }
    }

    /// Takes pieces of this size until none is left at once.
    async fn flood(memory: &ClusterReviewMemory, of: MemoryOwner<'_>, bytes: usize) -> Vec<ReservedMemory> {
        let mut held = Vec::new();
        while let Ok(reserved) = memory.reserve(of, bytes, true).await {
            held.push(reserved);
        }
        held
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_takes_all_it_can_leaves_a_share_to_another_one() {
        let memory = ReviewMemory::default();
        let prod = memory.of_cluster(&ClusterOwner::operator("prod"));
        let (mallory, bob) = (user("mallory"), user("bob"));
        let anonymous = Owner::Network([10, 0, 0, 1].into());
        for abuser in [&mallory, &anonymous] {
            for bytes in [MIB / 2, 9 * MIB] {
                let held = flood(&prod, of(abuser, "m", false), bytes).await;
                assert!(!held.is_empty());
                prod.reserve(of(&bob, "bob", false), bytes, true).await.unwrap();
                let refused = prod.reserve(of(abuser, "m", false), bytes, false).await.unwrap_err();
                assert!(matches!(refused, NoMemory::Busy { .. }), "{refused:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_reviews_do_not_wait_for_large_ones_and_the_reserve_is_for_masters() {
        let memory = ReviewMemory::default();
        let prod = memory.of_cluster(&ClusterOwner::operator("prod"));
        let owners: Vec<_> = (0..20).map(|number| user(&format!("user-{number}"))).collect();
        let mut held = Vec::new();
        for owner in &owners {
            held.extend(flood(&prod, of(owner, "m", false), 9 * MIB).await);
        }
        let (bob, root) = (user("bob"), user("root"));
        let refused = prod.reserve(of(&bob, "bob", false), 9 * MIB, false).await.unwrap_err();
        assert!(matches!(refused, NoMemory::Busy { .. }), "{refused:?}");
        prod.reserve(of(&bob, "bob", false), MIB / 2, true).await.unwrap();
        prod.reserve(of(&root, "root", true), 5 * MIB, true).await.unwrap();
        for owner in &owners {
            held.extend(flood(&prod, of(owner, "m", false), MIB / 2).await);
        }
        prod.reserve(of(&root, "root", true), MIB / 2, true).await.unwrap();
        // A master that floods leaves their shares to users, and to another master.
        drop(held);
        let flooded = flood(&prod, of(&root, "root", true), 5 * MIB).await;
        prod.reserve(of(&bob, "bob", false), 9 * MIB, true).await.unwrap();
        let other = user("other-master");
        prod.reserve(of(&other, "other-master", true), 5 * MIB, true).await.unwrap();
        drop(flooded);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_has_one_share_and_its_users_have_parts_of_it() {
        let memory = ReviewMemory::default();
        let tenant = ClusterOwner::tenant("t");
        let (theirs, prod) = (memory.of_cluster(&tenant), memory.of_cluster(&ClusterOwner::operator("prod")));
        let owner = tenant.of_flow("mallory");
        let held = flood(&theirs, of(&owner, "mallory", false), MIB).await;
        theirs.reserve(of(&owner, "alice", false), MIB, true).await.unwrap();
        let mut all = held;
        for number in 0..9 {
            all.extend(flood(&theirs, of(&owner, &number.to_string(), false), MIB).await);
        }
        assert!(theirs.reserve(of(&owner, "alice", false), MIB, true).await.is_err());
        prod.reserve(of(&user("bob"), "bob", false), MIB, true).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_owner_may_have_is_refused_at_once() {
        let memory = ReviewMemory::default();
        let prod = memory.of_cluster(&ClusterOwner::operator("prod"));
        let bob = user("bob");
        let refused = prod.reserve(of(&bob, "bob", false), 100 * MIB, false).await.unwrap_err();
        assert!(matches!(refused, NoMemory::TooLarge { limit } if limit < 100 * MIB), "{refused:?}");
        memory.set_total(1 << 30);
        prod.reserve(of(&bob, "bob", false), 100 * MIB, true).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_with_many_documents_leaves_turns_to_others() {
        let memory = ReviewMemory::default();
        let [tenant, other] = ["t", "u"].map(|name| memory.of_cluster(&ClusterOwner::tenant(name)));
        let (largest, until) = (151 * MIB, Instant::now() + Duration::from_secs(5));
        let held = tenant.reserve_for_document(largest).unwrap();
        assert!(tenant.reserve_for_document(MIB * 2).is_none(), "its share is used");
        let flood: Vec<_> = (0..20)
            .map(|_| {
                let tenant = tenant.clone();
                tokio::spawn(async move { tenant.wait_for_document(largest, until).await })
            })
            .collect();
        tokio::task::yield_now().await;
        // Small ones find room beside it, large ones are next.
        drop(other.reserve_for_document(16 * MIB).unwrap());
        let ((), large) = tokio::join!(async { drop(held) }, other.wait_for_document(largest, until));
        large.unwrap();
        assert!(tenant.wait_for_document(200 * MIB, until).await.is_err());
        for waited in flood {
            waited.await.unwrap().unwrap();
        }
    }

    #[test]
    fn the_parts_are_the_whole() {
        for total in [0, MIN_TOTAL, 512 * MIB, 1 << 34] {
            let Division { small, large, reserve } = Division::of(total);
            assert_eq!(small.total() + large.total() + reserve.total(), total.max(MIN_TOTAL) >> 10);
            assert!(SMALL <= small.per_owner());
        }
    }
}
