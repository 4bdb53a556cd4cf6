//! A fixed number of places, or of bytes, without a queue, for owners of all kinds: each tenant has a share of them, and all
//! tenants have one together, half of which may be divided among them; each network of unauthenticated clients has a share, and
//! all have one together; each flow of the operator's clusters has a share; and a reserve stays free for what must always work.

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
    tenant_count: usize,
    per_flow: usize,
    flow_floor: usize,
    per_network: usize,
    networks: usize,
}

impl BudgetShares {
    /// Places of which any owner may have all.
    pub const fn new(total: usize) -> Self {
        let (per_network, networks) = (total, total);
        let (per_tenant, tenants, per_flow) = (total, total, total);
        let (reserve, tenant_count, flow_floor) = (0, 0, 0);
        Self {
            total,
            reserve,
            per_tenant,
            tenants,
            tenant_count,
            per_flow,
            flow_floor,
            per_network,
            networks,
        }
    }

    /// The same, of which this many are for [`Budget::try_acquire_reserved`], and for the first places of flows
    /// ([`Self::with_flow_floor`]), alone.
    #[must_use]
    pub const fn with_reserve(self, reserve: usize) -> Self {
        Self { reserve, ..self }
    }

    /// The same, of which each tenant may have so many, and all tenants so many together.
    #[must_use]
    pub const fn with_tenants(self, each: usize, together: usize) -> Self {
        Self { per_tenant: each, tenants: together, ..self }
    }

    /// The same, where half of what tenants have together is divided among so many of them: each has its part, however many of the
    /// others take all they get. Otherwise the first ones may take all of it.
    #[must_use]
    pub const fn divided_among(self, tenant_count: usize) -> Self {
        Self { tenant_count, ..self }
    }

    /// The same, of which each flow may have so many.
    #[must_use]
    pub const fn with_flows(self, each: usize) -> Self {
        Self { per_flow: each, ..self }
    }

    /// The same, where a flow may take its first so many also of the reserve: they are there, whatever a few others take.
    #[must_use]
    pub const fn with_flow_floor(self, floor: usize) -> Self {
        Self { flow_floor: floor, ..self }
    }

    /// The same, of which each network of unauthenticated clients may have so many, and all of them so many together.
    #[must_use]
    pub const fn with_networks(self, each: usize, together: usize) -> Self {
        Self { per_network: each, networks: together, ..self }
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

    /// What each tenant may have whatever the others have.
    fn floor(self) -> usize {
        (self.tenants / 2).checked_div(self.tenant_count).map_or(0, |floor| floor.min(self.per_tenant))
    }

    /// What the tenants may have beyond their floors, together.
    fn undivided(self) -> usize {
        self.tenants - self.floor() * self.tenant_count
    }

    fn beyond_floor(self, places: usize) -> usize {
        places.saturating_sub(self.floor())
    }
}

/// The places that are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetUsage {
    /// By requests that may take the reserve.
    pub privileged: usize,
    /// By tenants.
    pub tenants: usize,
    /// By networks of unauthenticated clients.
    pub networks: usize,
    /// By all others.
    pub others: usize,
}

impl BudgetUsage {
    /// All of them.
    pub const fn total(self) -> usize {
        self.privileged + self.unprivileged()
    }

    const fn unprivileged(self) -> usize {
        self.tenants + self.networks + self.others
    }
}

/// Places, of which each owner has at most the share of its kind. Cheap to clone: a clone is the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    shares: BudgetShares,
    /// What tenants have beyond their floors.
    beyond: usize,
    usage: BudgetUsage,
    owners: HashMap<Owner, usize>,
}

/// Places of one owner, returned on drop.
#[derive(Debug)]
#[must_use = "the places are returned when this is dropped"]
pub struct BudgetPermit {
    budget: Budget,
    holder: Holder,
    places: usize,
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
        Self(Arc::new(Mutex::new(Taken {
            shares,
            beyond: 0,
            usage: BudgetUsage::default(),
            owners: HashMap::new(),
        })))
    }

    /// The shares in force.
    pub fn shares(&self) -> BudgetShares {
        lock(&self.0).shares
    }

    /// Puts other shares in force. What is taken beyond lower ones stays.
    pub fn set_shares(&self, shares: BudgetShares) {
        let mut taken = lock(&self.0);
        if shares != taken.shares {
            taken.shares = shares;
            let of_tenants = taken.owners.iter().filter(|(owner, _)| matches!(owner, Owner::Tenant(_)));
            taken.beyond = of_tenants.map(|(_, places)| shares.beyond_floor(*places)).sum();
        }
    }

    /// Divides half of what tenants have together among so many of them, from now on.
    pub fn divide_among(&self, tenant_count: usize) {
        self.set_shares(self.shares().divided_among(tenant_count));
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

    /// No place yet, for an owner that takes them one by one.
    pub fn reserve(&self, owner: Owner) -> BudgetPermit {
        BudgetPermit { budget: self.clone(), holder: Holder { owner, is_privileged: false }, places: 0 }
    }

    fn acquire(&self, holder: Holder) -> Option<BudgetPermit> {
        let mut permit = BudgetPermit { budget: self.clone(), holder, places: 0 };
        permit.grow(1).then_some(permit)
    }
}

impl BudgetPermit {
    /// Their number.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Whose places they are.
    pub fn owner(&self) -> &Owner {
        &self.holder.owner
    }

    /// Takes so many more; `false`, and none, if the share of the owner does not permit all of them.
    #[must_use]
    pub fn grow(&mut self, places: usize) -> bool {
        let enters = places == 0 || lock(&self.budget.0).enter(&self.holder, places);
        if enters {
            self.places += places;
        }
        enters
    }

    /// Whether so many more could be taken now.
    pub fn could_grow(&self, places: usize) -> bool {
        lock(&self.budget.0).has_room(&self.holder, places)
    }

    /// Keeps so many alone; `false`, and as many as before, if the share of the owner does not permit all of them.
    #[must_use]
    pub fn resize(&mut self, places: usize) -> bool {
        let Some(surplus) = self.places.checked_sub(places) else { return self.grow(places - self.places) };
        self.shrink(surplus);
        true
    }

    /// Keeps at most so many.
    pub fn lower(&mut self, places: usize) {
        self.shrink(self.places.saturating_sub(places));
    }

    /// Returns all of them.
    pub fn release(&mut self) {
        self.shrink(self.places);
    }

    fn shrink(&mut self, places: usize) {
        if places > 0 {
            self.places -= places;
            lock(&self.budget.0).leave(&self.holder, places);
        }
    }

    /// Makes the places those of this owner, if its share permits. Else they stay what they were.
    pub fn pass_to(&mut self, owner: Owner) -> bool {
        let next = Holder { owner, is_privileged: false };
        if next == self.holder {
            return true;
        }
        let mut taken = lock(&self.budget.0);
        taken.leave(&self.holder, self.places);
        let enters = taken.enter(&next, self.places);
        if !enters {
            taken.serve(&self.holder, self.places);
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
        self.release();
    }
}

impl Taken {
    fn enter(&mut self, holder: &Holder, places: usize) -> bool {
        let enters = self.has_room(holder, places);
        if enters {
            self.serve(holder, places);
        }
        enters
    }

    fn has_room(&self, Holder { owner, is_privileged }: &Holder, places: usize) -> bool {
        let Self { shares, usage, owners, .. } = self;
        let fits = |used: usize, limit: usize| used.checked_add(places).is_some_and(|used| used <= limit);
        let is_within_total = fits(usage.total(), shares.total);
        if *is_privileged || !is_within_total {
            return is_within_total;
        }
        let own = owners.get(owner).copied().unwrap_or_default();
        let is_within_share = match owner {
            Owner::Tenant(_) => self.has_room_for_tenant(own, places),
            Owner::Network(_) => fits(own, shares.per_network) && fits(usage.networks, shares.networks),
            Owner::Flow { .. } => fits(own, shares.per_flow),
            Owner::Gateway => true,
        };
        let may_take_reserve = matches!(owner, Owner::Flow { .. }) && fits(own, shares.flow_floor);
        let unreserved = shares.total.saturating_sub(shares.reserve);
        is_within_share && (may_take_reserve || fits(usage.unprivileged(), unreserved))
    }

    /// Within the floor of a tenant it does not matter what the others have; beyond, they share what is not divided.
    // threat: tenant-caches
    fn has_room_for_tenant(&self, own: usize, places: usize) -> bool {
        let Self { shares, usage, beyond, .. } = self;
        let Some(after) = own.checked_add(places) else { return false };
        let others_beyond = beyond.saturating_sub(shares.beyond_floor(own));
        after <= shares.floor()
            || after <= shares.per_tenant
                && others_beyond.saturating_add(shares.beyond_floor(after)) <= shares.undivided()
                && usage.tenants.saturating_add(places) <= shares.tenants
    }

    fn serve(&mut self, holder: &Holder, places: usize) {
        *self.count_of(holder) += places;
        // A privileged place is none of the owner's share.
        if !holder.is_privileged {
            self.set_places_of(&holder.owner, |own| own + places);
        }
    }

    fn leave(&mut self, holder: &Holder, places: usize) {
        let count = self.count_of(holder);
        *count = count.saturating_sub(places);
        if !holder.is_privileged {
            self.set_places_of(&holder.owner, |own| own.saturating_sub(places));
        }
    }

    fn set_places_of(&mut self, owner: &Owner, change: impl FnOnce(usize) -> usize) {
        let before = self.owners.get(owner).copied().unwrap_or_default();
        let after = change(before);
        if after == 0 {
            self.owners.remove(owner);
        } else if let Some(own) = self.owners.get_mut(owner) {
            *own = after;
        } else {
            self.owners.insert(owner.clone(), after);
        }
        if matches!(owner, Owner::Tenant(_)) {
            let others = self.beyond.saturating_sub(self.shares.beyond_floor(before));
            self.beyond = others + self.shares.beyond_floor(after);
        }
    }

    fn count_of(&mut self, holder: &Holder) -> &mut usize {
        match &holder.owner {
            _ if holder.is_privileged => &mut self.usage.privileged,
            Owner::Tenant(_) => &mut self.usage.tenants,
            Owner::Network(_) => &mut self.usage.networks,
            Owner::Gateway | Owner::Flow { .. } => &mut self.usage.others,
        }
    }
}

#[cfg(test)]
mod tests;
