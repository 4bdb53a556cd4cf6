//! Selections through optionals, keys of maps, and other rows whose results depend on how the reference represents a value.

use serde_json::{Value, json};

use super::{Case, Purpose, conditions};

/// All rows.
pub(super) fn all() -> Vec<Case> {
    let objects = OBJECTS
        .iter()
        .map(|text| Case { variables: variables(), ..conditions::case(Purpose::Admission, text) });
    objects.collect()
}

fn variables() -> Value {
    json!({
        "object": {"s": "text", "m": {"a": 1, "b": {"c": 2}}, "l": [1, 2], "yes": true},
        "oldObject": null, "namespaceObject": null, "request": {},
    })
}

const OBJECTS: &[&str] = &[
    // The needle is the left operand; a quantity that is computed is another type in Go.
    "sets.contains([quantity('1').add(quantity('2'))], [quantity('3')])",
    "sets.contains([quantity('3')], [quantity('1').add(quantity('2'))])",
    "sets.intersects([quantity('1').add(quantity('2'))], [quantity('3')])",
    "sets.intersects([quantity('3')], [quantity('1').add(quantity('2'))])",
    "sets.equivalent([quantity('1').add(quantity('2'))], [quantity('3')])",
    "sets.equivalent([quantity('3')], [quantity('1').add(quantity('2'))])",
    "quantity('3') in [quantity('1').add(quantity('2'))]",
    "quantity('1').add(quantity('2')) in [quantity('3')]",
];
