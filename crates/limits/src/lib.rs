//! What the process has once, and clients and clusters share: places, rates, queues, lookups, memory.
//!
//! Each thing here has an [`Owner`] rule: it cannot be made without the share of one owner beside that of all, and cannot be
//! used without an owner. What uses it says only *what* is shared and *how much*; how a share is kept, whose turn it is and
//! who gives way is decided here, once, and tested here with an owner that abuses it beside one that does not.
//!
//! | module | what is shared | who gives way |
//! |---|---|---|
//! | [`fair_limiter`] | places, such as requests in flight | who has used its share waits; a free place goes to the owner with the fewest |
//! | [`budget`] | places without a queue, of owners of all kinds, such as descriptors | who is beyond the share of its kind is refused |
//! | [`seats`] | places that are held for as long as one likes, such as connections | the owner with the most |
//! | [`rate`] | events in time, such as lines of the log | who is beyond its rate |
//! | [`paced_limiter`] | how often requests of a tenant begin | requests that come faster wait; the next one is of the owner that began the fewest |
//! | [`poll_turns`] | processor time, for futures that compute much | each poll is a turn; owners take turns, in a group and between groups |
//! | [`turn_queue`] | a queue, such as that of work items | the longest lane; lanes take turns |
//! | [`shared_lookup`] | the result of a lookup, such as the verdict on a token | no owner: each waits for lookups of its own |
//! | [`weights`] | who holds how much of a bounded thing, such as the lanes of a buffer | the heaviest, for one that would then hold less |
//! | [`cache_budget`] | the memory of caches | entries of the same cache; a tenant that has its share keeps no more |
//! | [`byte_ledger`] | the memory of streams | the streams of the owner that holds the most; all networks of unauthenticated clients are one |

pub mod budget;
pub mod byte_ledger;
pub mod cache_budget;
pub mod fair_limiter;
mod fair_queue;
pub mod owner;
pub mod paced_limiter;
pub mod poll_turns;
pub mod rate;
pub mod seats;
pub mod shared_lookup;
pub mod turn_queue;
pub mod weights;

pub use owner::{ClusterOwner, Owner, OwnerKey};
