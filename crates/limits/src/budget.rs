//! A fixed number of places, without a queue, for owners of all kinds: each tenant has a share of them, and all tenants have
//! one together; each flow of the operator's clusters has a share; and a reserve stays free for what must always work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use portcullis_system::sync::lock;

use crate::Owner;

/// How many places there are, and how many of them the owners of each kind may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetShares {
    total: usize,
    reserve: usize,
    per_tenant: usize,
    tenants: usize,
    per_flow: usize,
}

impl BudgetShares {
    /// Places of which any owner may have all.
    pub const fn new(total: usize) -> Self {
        Self { total, reserve: 0, per_tenant: total, tenants: total, per_flow: total }
    }

    /// The same, of which this many are for [`Budget::try_acquire_reserved`] alone.
    #[must_use]
    pub const fn with_reserve(self, reserve: usize) -> Self {
        Self { reserve, ..self }
    }

    /// The same, of which each tenant may have so many, and all tenants so many together.
    #[must_use]
    pub const fn with_tenants(self, each: usize, together: usize) -> Self {
        Self { per_tenant: each, tenants: together, ..self }
    }

    /// The same, of which each flow may have so many.
    #[must_use]
    pub const fn with_flows(self, each: usize) -> Self {
        Self { per_flow: each, ..self }
    }

    /// All places.
    pub const fn total(self) -> usize {
        self.total
    }

    /// Those that are for [`Budget::try_acquire_reserved`] alone.
    pub const fn reserve(self) -> usize {
        self.reserve
    }

    /// The most of one tenant.
    pub const fn per_tenant(self) -> usize {
        self.per_tenant
    }

    /// The most of all tenants.
    pub const fn tenants(self) -> usize {
        self.tenants
    }

    /// The most of one flow.
    pub const fn per_flow(self) -> usize {
        self.per_flow
    }
}

/// The places that are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetUsage {
    /// By requests that may take the reserve.
    pub privileged: usize,
    /// By tenants.
    pub tenants: usize,
    /// By all others.
    pub others: usize,
}

impl BudgetUsage {
    /// All of them.
    pub const fn total(self) -> usize {
        self.privileged + self.tenants + self.others
    }
}

/// Places, of which each owner has at most the share of its kind. Cheap to clone: a clone is the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    shares: BudgetShares,
    usage: BudgetUsage,
    owners: HashMap<Owner, usize>,
}

/// A place, returned on drop.
#[derive(Debug)]
#[must_use = "the place is returned when this is dropped"]
pub struct BudgetPermit {
    budget: Budget,
    holder: Holder,
}

/// Who takes a place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    owner: Owner,
    /// Whether it may take the reserve.
    is_privileged: bool,
}

impl Budget {
    /// Nothing is taken yet.
    pub fn new(shares: BudgetShares) -> Self {
        Self(Arc::new(Mutex::new(Taken { shares, usage: BudgetUsage::default(), owners: HashMap::new() })))
    }

    /// The shares in force.
    pub fn shares(&self) -> BudgetShares {
        lock(&self.0).shares
    }

    /// Puts other shares in force. What is taken beyond lower ones stays.
    pub fn set_shares(&self, shares: BudgetShares) {
        lock(&self.0).shares = shares;
    }

    /// The places that are taken.
    pub fn usage(&self) -> BudgetUsage {
        lock(&self.0).usage
    }

    /// A place in the share of this owner, if there is one.
    pub fn try_acquire(&self, owner: Owner) -> Option<BudgetPermit> {
        self.acquire(Holder { owner, is_privileged: false })
    }

    /// Any free place, also of the reserve. The caller decides that this owner may have it: a tenant never may.
    pub fn try_acquire_reserved(&self, owner: Owner) -> Option<BudgetPermit> {
        let is_privileged = !matches!(owner, Owner::Tenant(_));
        self.acquire(Holder { owner, is_privileged })
    }

    fn acquire(&self, holder: Holder) -> Option<BudgetPermit> {
        let enters = lock(&self.0).enter(&holder);
        enters.then(|| BudgetPermit { budget: self.clone(), holder })
    }
}

impl BudgetPermit {
    /// Whose place it is.
    pub fn owner(&self) -> &Owner {
        &self.holder.owner
    }

    /// Makes the place one of this owner, if its share permits. Else it stays what it was.
    pub fn pass_to(&mut self, owner: Owner) -> bool {
        let next = Holder { owner, is_privileged: false };
        if next == self.holder {
            return true;
        }
        let mut taken = lock(&self.budget.0);
        taken.leave(&self.holder);
        let enters = taken.enter(&next);
        if !enters {
            taken.serve(&self.holder);
        }
        drop(taken);
        if enters {
            self.holder = next;
        }
        enters
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        lock(&self.budget.0).leave(&self.holder);
    }
}

impl Taken {
    fn enter(&mut self, holder: &Holder) -> bool {
        let enters = self.has_room(holder);
        if enters {
            self.serve(holder);
        }
        enters
    }

    fn has_room(&self, Holder { owner, is_privileged }: &Holder) -> bool {
        let Self { shares, usage, owners } = self;
        if usage.total() >= shares.total {
            return false;
        }
        if *is_privileged {
            return true;
        }
        let own = owners.get(owner).copied().unwrap_or_default();
        let is_within_share = match owner {
            Owner::Tenant(_) => own < shares.per_tenant && usage.tenants < shares.tenants,
            Owner::Flow { .. } => own < shares.per_flow,
            Owner::Gateway | Owner::Network(_) => true,
        };
        is_within_share && usage.tenants + usage.others < shares.total.saturating_sub(shares.reserve)
    }

    fn serve(&mut self, holder: &Holder) {
        *self.count_of(holder) += 1;
        // A privileged place is none of the owner's share.
        if !holder.is_privileged {
            *self.owners.entry(holder.owner.clone()).or_default() += 1;
        }
    }

    fn leave(&mut self, holder: &Holder) {
        let count = self.count_of(holder);
        *count = count.saturating_sub(1);
        if !holder.is_privileged
            && let Some(own) = self.owners.get_mut(&holder.owner)
        {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.owners.remove(&holder.owner);
            }
        }
    }

    fn count_of(&mut self, holder: &Holder) -> &mut usize {
        match &holder.owner {
            _ if holder.is_privileged => &mut self.usage.privileged,
            Owner::Tenant(_) => &mut self.usage.tenants,
            Owner::Gateway | Owner::Flow { .. } | Owner::Network(_) => &mut self.usage.others,
        }
    }
}

#[cfg(test)]
mod tests;
