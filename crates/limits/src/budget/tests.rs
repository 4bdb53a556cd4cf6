//! Owners of each kind, of which one takes all that it gets.

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

const SHARES: BudgetShares = BudgetShares::new(40).with_reserve(4).with_tenants(5, 20).with_flows(10);

fn tenant(name: &str) -> Owner {
    Owner::Tenant(name.into())
}

fn flow(name: &str) -> Owner {
    Owner::flow("prod", name)
}

/// Takes places until the owner gets none.
fn flood(budget: &Budget, owner: &Owner) -> Vec<BudgetPermit> {
    std::iter::from_fn(|| budget.try_acquire(owner.clone())).collect()
}

#[test]
fn each_tenant_has_its_share_all_have_theirs_and_others_have_the_rest() {
    let budget = Budget::new(SHARES);
    let tenants: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| flood(&budget, &tenant(name))).into();
    assert_eq!(tenants.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5, 5, 0]);
    let flows: Vec<_> = ["x", "y"].map(|name| flood(&budget, &flow(name))).into();
    assert_eq!(flows.iter().map(Vec::len).collect::<Vec<_>>(), [10, 6], "all but the reserve");
    assert!(budget.try_acquire(flow("z")).is_none());
    assert!(budget.try_acquire_reserved(tenant("z")).is_none(), "no tenant is ever privileged");
    let reserved: Vec<_> = std::iter::from_fn(|| budget.try_acquire_reserved(Owner::Gateway)).collect();
    assert_eq!(reserved.len(), 4);
    assert_eq!(budget.usage(), BudgetUsage { privileged: 4, tenants: 20, networks: 0, others: 16 });
    drop((tenants, flows, reserved));
    assert_eq!(budget.usage(), BudgetUsage::default());
    assert!(lock(&budget.0).owners.is_empty(), "nothing is kept of owners without a place");
}

/// Each flow has its first places, also of the reserve, whatever a few others take; a tenant or a network has none of them.
#[test]
fn a_flow_has_its_floor_beside_others_that_take_all() {
    let budget = Budget::new(SHARES.with_networks(10, 10).with_flow_floor(2));
    let floods: Vec<_> = ["a", "b", "c", "d"].map(|name| flood(&budget, &flow(name))).into();
    assert_eq!(floods.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10, 6]);
    assert!(budget.try_acquire(tenant("t")).is_none());
    assert!(budget.try_acquire(Owner::Network([192, 0, 2, 1].into())).is_none());
    let calm: Vec<_> = ["x", "y", "z"].map(|name| flood(&budget, &flow(name))).into();
    assert_eq!(calm.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 0], "the reserve has four places");
    drop((floods, calm));
    assert_eq!(budget.usage(), BudgetUsage::default());
}

// Four tenants are enough to have all that tenants may have together.
#[test]
fn however_many_tenants_flood_each_other_one_has_its_part() {
    let budget = Budget::new(SHARES);
    budget.set_shares(SHARES.divided_among(10));
    let floods: Vec<_> = (0..9).map(|number| flood(&budget, &tenant(&format!("flood-{number}")))).collect();
    assert_eq!(floods.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 3, 1, 1, 1, 1, 1, 1]);
    assert_eq!(flood(&budget, &tenant("calm")).len(), 1);
    drop(floods);
    // A reload that removes tenants: the others share what they had.
    budget.set_shares(SHARES.divided_among(2));
    assert_eq!(flood(&budget, &tenant("flood-0")).len(), 5);
    // Those that are gone keep what they have until they return it, and cost the others no floor.
    let gone: Vec<_> = ["a", "b", "c", "d"].map(|name| flood(&budget, &tenant(name))).into();
    budget.set_shares(SHARES.divided_among(1));
    assert_eq!(gone.iter().map(Vec::len).sum::<usize>(), 20);
    assert_eq!(flood(&budget, &tenant("calm")).len(), 5);
}

#[test]
fn privileged_places_are_in_no_share_and_end_at_the_total() {
    let budget = Budget::new(SHARES);
    let privileged: Vec<_> = (0..30).map(|_| budget.try_acquire_reserved(flow("x")).unwrap()).collect();
    assert_eq!(flood(&budget, &flow("x")).len(), 10, "the total is reached");
    let held = flood(&budget, &flow("x"));
    assert!(budget.try_acquire_reserved(flow("x")).is_none());
    drop((privileged, held));
    assert_eq!(budget.usage(), BudgetUsage::default());
}

#[test]
fn a_place_passes_to_another_owner_within_its_share() {
    let budget = Budget::new(SHARES);
    let mut place = budget.try_acquire_reserved(Owner::Gateway).unwrap();
    assert!(place.pass_to(flow("x")));
    assert_eq!(budget.usage(), BudgetUsage { others: 1, ..BudgetUsage::default() });
    let full = flood(&budget, &flow("y"));
    assert!(!place.pass_to(flow("y")) && place.owner() == &flow("x"), "its share is used up");
    assert!(place.pass_to(flow("x")) && place.pass_to(tenant("a")));
    assert_eq!(budget.usage(), BudgetUsage { tenants: 1, others: 10, ..BudgetUsage::default() });
    drop((place, full));
    assert_eq!(budget.usage(), BudgetUsage::default());
}

#[test]
fn lower_shares_take_nothing_back() {
    let budget = Budget::new(SHARES);
    let mut held = flood(&budget, &flow("x"));
    budget.set_shares(BudgetShares::new(5));
    assert!(budget.try_acquire(flow("y")).is_none());
    held.truncate(4);
    assert!(budget.try_acquire(flow("y")).is_some());
}

#[test]
fn places_are_taken_and_returned_by_number() {
    let shares = BudgetShares::new(40).with_flows(10).with_tenants(10, 20).with_networks(10, 10);
    let budget = Budget::new(shares);
    let (mut one, mut same, mut other) =
        (budget.reserve(flow("x")), budget.reserve(flow("x")), budget.reserve(flow("y")));
    assert!(one.grow(9) && same.grow(1) && !same.grow(1) && other.grow(10));
    assert!(!one.resize(10) && one.resize(2) && same.resize(8) && !one.grow(usize::MAX));
    let networks = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|address| Owner::Network(address.into()));
    let [mut first, mut second] = networks.map(|network| budget.reserve(network));
    assert!(first.grow(6) && !second.grow(5) && second.grow(4), "all networks have one share together");
    assert_eq!(budget.usage(), BudgetUsage { networks: 10, others: 20, ..BudgetUsage::default() });
    one.release();
    assert!(same.grow(2) && first.pass_to(flow("z")) && second.grow(6));
    drop((one, same, other, first, second));
    assert_eq!(budget.usage(), BudgetUsage::default());
    assert!(lock(&budget.0).owners.is_empty());
}

proptest! {
    // Random owners, of which one tenant and one flow take all that they get: each of the others gets what it asks for
    // within its share, as long as the shares of all that ask fit.
    #[test]
    fn owners_that_take_all_take_nothing_from_the_others(steps in proptest::collection::vec((0_u8..4, any::<bool>()), 1..200)) {
        let budget = Budget::new(SHARES);
        let mut flooded = Vec::new();
        let mut calm: HashMap<u8, Vec<BudgetPermit>> = HashMap::new();
        for (of, ends) in steps {
            flooded.extend(flood(&budget, &tenant("flood")));
            flooded.extend(flood(&budget, &flow("flood")));
            let held = calm.entry(of).or_default();
            if ends {
                held.pop();
            } else if held.len() < 5 {
                let owner = if of < 2 { tenant(&of.to_string()) } else { flow(&of.to_string()) };
                let place = budget.try_acquire(owner);
                prop_assert!(place.is_some());
                held.extend(place);
            }
            let of_calm: usize = calm.values().map(Vec::len).sum();
            prop_assert_eq!((flooded.len(), budget.usage().total()), (15, 15 + of_calm));
        }
    }
}

proptest! {
    // In any order of takes, returns and reloads a tenant has its floor, and without reloads all together have no more than theirs.
    #[test]
    fn a_tenant_always_gets_its_floor(
        steps in proptest::collection::vec((0_usize..8, 0_usize..14), 1..120),
        reloads in proptest::collection::vec((0_usize..120, 8_usize..20), 0..4),
    ) {
        const TOGETHER: usize = 100;
        let shares = BudgetShares::new(1000).with_tenants(30, TOGETHER);
        let budget = Budget::new(shares);
        budget.set_shares(shares.divided_among(8));
        let mut count = 8;
        let mut permits: Vec<_> = (0..8).map(|name| budget.reserve(tenant(&name.to_string()))).collect();
        for (step, (owner, places)) in steps.into_iter().enumerate() {
            if let Some((_, tenants)) = reloads.iter().find(|(at, _)| *at == step) {
                budget.set_shares(shares.divided_among(*tenants));
                count = *tenants;
            }
            let held = permits[owner].places();
            let resized = permits[owner].resize(places * 3);
            let floor = TOGETHER / 2 / count;
            prop_assert!(resized || places * 3 > floor.max(held), "{held} {places} {floor}");
            let all: usize = permits.iter().map(BudgetPermit::places).sum();
            prop_assert!(budget.usage().tenants == all && (all <= TOGETHER || !reloads.is_empty()), "{all}");
            let beyond: usize = permits.iter().map(|permit| permit.places().saturating_sub(floor)).sum();
            prop_assert_eq!(lock(&budget.0).beyond, beyond);
        }
    }
}
