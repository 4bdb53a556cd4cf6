//! Patches of mutating webhooks, to a new object, to a changed one and to a custom resource, and responses that are no usual JSON.

use serde_json::json;

use super::{MAPS, OWN, by_admin, create, map};
use crate::case::Case;

const MERGE: &str = "application/merge-patch+json";

/// The patch, and the status if m1 answers it to a CREATE and to an UPDATE of a config map.
const PATCHES: &[(&str, u16, u16)] = &[
    ("rename", 201, 422),
    ("kind", 500, 500),
    ("version", 500, 409),
    ("namespace", 400, 400),
    ("new-uid", 201, 422),
    ("finalizer", 201, 200),
    ("owners", 201, 200),
    ("generation", 201, 200),
    ("deletion", 201, 422),
    ("created-at", 201, 200),
    ("managed", 201, 200),
    ("whole", 201, 200),
    ("copy", 201, 200),
    ("move", 201, 200),
    ("escape", 201, 200),
    ("null", 201, 200),
    ("test-passes", 201, 200),
    ("remove-missing", 500, 500),
    ("replace-missing", 201, 200),
    ("no-op", 500, 500),
    ("no-path", 500, 500),
    ("no-value", 201, 200),
    ("no-slash", 500, 500),
    ("null-patch", 201, 200),
    ("twice-op", 201, 200),
    ("trailing-patch", 500, 500),
    ("html", 201, 200),
];

/// The response, and the status if it is the answer of m1 and of v1.
const RESPONSES: &[(&str, u16, u16)] = &[
    ("redirect-301", 500, 500),
    ("redirect-302", 500, 500),
    ("redirect-307", 201, 201),
    ("redirect-308", 201, 201),
    ("redirect-loop", 500, 500),
    ("redirect-away", 500, 500),
    ("redirect-nowhere", 500, 500),
    ("plain", 201, 201),
    ("no-verdict", 400, 400),
    ("allowed-text", 500, 500),
    ("allowed-null", 400, 400),
    ("other-case", 400, 400),
    ("twice", 400, 400),
    ("twice-denied", 201, 201),
    ("code-text", 500, 500),
    ("code-float", 500, 500),
    ("code-large", 500, 500),
    ("surrogate", 400, 400),
    ("large", 201, 201),
    ("trailing", 500, 500),
    ("deny-399", 400, 400),
    ("deny-negative", 400, 400),
    ("deny-999", 999, 999),
    ("deny-status", 400, 400),
    ("deny-allowed", 201, 201),
    ("deny-empty-message", 418, 418),
    ("deny-newline", 400, 400),
    ("deny-401", 401, 401),
    ("deny-404", 404, 404),
    ("deny-503", 503, 503),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (patch, created, updated) in PATCHES {
        let asks = format!("m1={patch};");
        let found = *created == 201 && *patch != "rename";
        cases.push(
            by_admin(&format!("a patch of a new object: {patch}"), "POST", MAPS)
                .json(&map(&asks).to_string())
                .answers(*created)
                .then("GET", OWN)
                .answers(if found { 200 } else { 404 }),
        );
        let body = json!({"metadata": {"annotations": {"asks": asks}}}).to_string();
        cases.push(
            by_admin(&format!("a patch of a changed object: {patch}"), "POST", MAPS)
                .json(&map("").to_string())
                .answers(201)
                .then("PATCH", OWN)
                .body(MERGE, body.as_bytes())
                .answers(*updated)
                .then("GET", OWN)
                .answers(200),
        );
    }
    for (answer, mutating, validating) in RESPONSES {
        for (webhook, status) in [("m1", *mutating), ("v1", *validating)] {
            let case =
                create(&format!("{webhook} responds {answer}"), &format!("{webhook}={answer};"), status);
            let redirects = answer.starts_with("redirect-");
            cases.push(if redirects { case.declared("D-redirects", 404) } else { case });
        }
    }
    cases
}
