//! What the process has once, and clients and clusters share: places, rates, queues, lookups, memory.
//!
//! Each thing here has an [`Owner`] rule: it cannot be made without the share of one owner beside that of all, and cannot be
//! used without an owner. What uses it says only *what* is shared and *how much*; how a share is kept, whose turn it is and
//! who gives way is decided here, once, and tested here with an owner that abuses it beside one that does not.
//!
//! | module | what is shared | who gives way |
//! |---|---|---|
//! | [`fair_limiter`] | places, such as requests in flight | who has used its share waits; a free place goes to the owner with the fewest |
//! | [`rate`] | events in time, such as lines of the log | who is beyond its rate |
//! | [`turn_queue`] | a queue, such as that of work items | the longest lane; lanes take turns |
//! | [`shared_lookup`] | the result of a lookup, such as the verdict on a token | nobody: each owner waits for lookups of its own |
//! | [`byte_ledger`] | the memory of streams | the streams of the owner that holds the most |

pub mod byte_ledger;
pub mod fair_limiter;
mod fair_queue;
pub mod owner;
pub mod rate;
pub mod shared_lookup;
pub mod turn_queue;

pub use owner::{ClusterOwner, Owner, OwnerKey};
