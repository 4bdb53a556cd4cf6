//! The shares of flows in the bounds of an endpoint. Half of a bound is for whichever requests come first, which costs one
//! counter. Beyond that each flow may begin an eighth of the bound, so that no user keeps all others from the endpoint.

use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};

use super::Load;
use crate::limits::FlowName;

/// This part of a bound is for any flow.
const FREE_PART: usize = 2;
/// Beyond it, one flow has this part of the bound.
const FLOW_PART: usize = 8;

/// The requests that have begun beyond the half that any flow may have.
#[derive(Debug)]
pub(super) struct FlowShares {
    short: FairLimiter<FlowName>,
    long: FairLimiter<FlowName>,
}

/// One of them, until it is dropped.
pub(super) type FlowPlace = Permit<FlowName>;

/// The requests in progress up to which any flow may begin another one.
pub(super) fn free_for_all(bound: usize) -> usize {
    bound.div_ceil(FREE_PART)
}

/// The bound itself is kept by the caller.
fn shares(bound: usize) -> Shares {
    Shares::new(bound, (bound / FLOW_PART).max(1))
}

impl Default for FlowShares {
    fn default() -> Self {
        let none = || FairLimiter::new(shares(0));
        Self { short: none(), long: none() }
    }
}

impl FlowShares {
    /// A place in the share of a flow, if it has one left.
    // threat: endpoint-flood
    pub(super) fn try_enter(&self, load: Load, bound: usize, flow: FlowName) -> Option<FlowPlace> {
        let limiter = match load {
            Load::Short => &self.short,
            Load::Long => &self.long,
        };
        // The configuration may have changed.
        if limiter.shares() != shares(bound) {
            limiter.set_shares(shares(bound));
        }
        limiter.try_acquire(flow, 1)
    }
}
