//! Bootstrap tokens: the required data of the secret, and the resulting user.

use super::credentials::{ALL, by};
use crate::case::{BOTH, Case};

const BASE: &str = "system:bootstrappers";

/// A case with the token of a secret in the fixtures.
fn of(id: &str, name: &str) -> Case {
    by("bootstrap", name, format!("{id}.0123456789abcdef").as_str())
}

fn node(id: &str, name: &str, groups: &[&str]) -> Case {
    let user = format!("system:bootstrap:{id}");
    let groups: Vec<&str> = [BASE].iter().chain(groups).chain(&[ALL]).copied().collect();
    of(id, name).accepted(&user, &groups).lacks(r#""uid""#).lacks(r#""extra""#)
}

fn accepted() -> Vec<Case> {
    vec![
        node("good00", "good", &[]).only(BOTH),
        node("groups", "extra groups are sorted", &["system:bootstrappers:a:b-c", "system:bootstrappers:z"]),
        node("dupgrp", "a repeated group counts once", &["system:bootstrappers:x"]),
        node("emptyg", "empty extra groups", &[]),
        node("future", "expires in the future", &[]),
        node("zoned0", "expires in the future in another zone", &[]),
        node("emptye", "empty expiration is none", &[]),
        node("fracti", "expiration with a fraction of a second", &[]),
    ]
}

/// Tokens for which a review reports only that no authenticator accepts them.
fn refused() -> Vec<Case> {
    [
        ("foreig", "a group that is not a bootstrap group"),
        ("mixgrp", "a valid group and one that is not a bootstrap group"),
        ("trailg", "comma after the last group"),
        ("spaceg", "space after a comma"),
        ("basegr", "the base group as an extra group"),
        ("colong", "group that ends with a colon"),
        ("upperg", "group with an upper-case letter"),
        ("nlgrps", "group that ends with a newline"),
        ("nousag", "no usage"),
        ("uppert", "usage True"),
        ("numbrt", "usage 1"),
        ("falset", "usage false"),
        ("blankt", "usage true with a blank"),
        ("signin", "usage for signing only"),
        ("wrongs", "the secret differs"),
        ("prefxs", "the secret is a prefix"),
        ("nosecr", "no secret in the secret"),
        ("wrongi", "the id in the secret differs"),
        ("noidxx", "no id in the secret"),
        ("past00", "expired"),
        ("pastzo", "expired in another zone"),
        ("dateon", "expiration is a date alone"),
        ("wordse", "expiration is a word"),
        ("blanke", "blank before the expiration"),
        ("lowert", "expiration in lower case"),
        ("leaped", "expiration on a day that does not exist"),
        ("opaque", "secret of another type"),
        ("elsewh", "secret in another namespace"),
        ("gone00", "deleted secret"),
        ("leavin", "secret that is being deleted"),
        ("nobody", "no such secret"),
    ]
    .into_iter()
    .map(|(id, name)| of(id, name).unknown())
    .collect()
}

fn shapes() -> Vec<Case> {
    [
        ("wrong secret", "good00.0123456789abcdee"),
        ("upper-case id", "GOOD00.0123456789abcdef"),
        ("upper-case secret", "good00.0123456789ABCDEF"),
        ("id of five", "good0.0123456789abcdef"),
        ("id of seven", "good000.0123456789abcdef"),
        ("secret of fifteen", "good00.0123456789abcde"),
        ("secret of seventeen", "good00.0123456789abcdef0"),
        ("no dot", "good000123456789abcdef"),
        ("two dots", "good00.01234567.9abcdef"),
        ("colon for dot", "good00:0123456789abcdef"),
        ("path in the id", "../a00.0123456789abcdef"),
        ("only the id", "good00."),
        ("only the secret", ".0123456789abcdef"),
        ("letters beyond ASCII", "goöd0.0123456789abcdef"),
    ]
    .into_iter()
    .map(|(name, token)| by("bootstrap", &format!("shape {name}"), token).unknown())
    .collect()
}

pub(crate) fn cases() -> Vec<Case> {
    [accepted(), refused(), shapes()].concat()
}
