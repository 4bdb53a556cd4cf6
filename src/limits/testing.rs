//! What tests of shared limits have in common.

use portcullis_limits::Owner;
use portcullis_limits::budget::Budget;

/// Eight of nine tenants take all they get; the ninth has this part all the same, and nothing beyond it.
pub(crate) fn assert_the_last_of_nine_tenants_has(part: usize, of: &Budget) {
    let tenant = |number: usize| of.reserve(Owner::Tenant(number.to_string().into()));
    let floods: Vec<_> = (1..9)
        .map(|number| {
            let mut flood = tenant(number);
            while flood.grow(1024) {}
            flood
        })
        .collect();
    let mut calm = tenant(0);
    assert!(calm.grow(part));
    assert!(!calm.grow(1024), "the floods have what is not divided");
    drop(floods);
}
