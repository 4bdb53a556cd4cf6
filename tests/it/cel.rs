//! Expressions of an `AuthenticationConfiguration`, compared with kube-apiserver's own code: compilation, values and
//! the texts of evaluation errors must be the same.
//!
//! `STRICTER` lists the differences with their reasons; an unused entry fails the test.

mod expressions;
mod generated;
mod patterns;

use std::collections::{BTreeMap, BTreeSet};

use portcullis_cel::{Expression, Purpose, Value, Variable};
use serde_json::json;
use testkit::go_program::GoProgram;
use testkit::random::seed;

/// Expressions that we refuse or fail and kube-apiserver does not: a part of our error, and the reason.
const STRICTER: &[(&str, &str)] = &[
    ("is not supported here", "functions for API objects and messages: the module lists them"),
    ("messages are not supported", "a literal says the same"),
    ("nested too deeply", "the parser recurses; a depth that no expression needs"),
    ("expression is longer than", "the same"),
    ("unsupported key type", "keys that no lookup finds, or that end the API server"),
    ("actual cost limit exceeded", "strings that a call makes are paid for by their own length"),
    (
        "no such key: a__dot__b",
        "a claim that cannot be reached fails a walk over all claims at once, not when used",
    ),
];

const BAD_PATTERN: &str = "error parsing regexp: ";

/// One expression on one set of claims or one user.
#[derive(Debug, Clone)]
struct Case {
    purpose: Purpose,
    text: String,
    claims: serde_json::Value,
    user: serde_json::Value,
}

/// The result of one implementation: a compile error, a value, or an evaluation error.
#[derive(Debug, PartialEq)]
enum Verdict {
    Refused(String),
    Failed(String),
    Value(serde_json::Value),
}

fn described(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => json!({"null": true}),
        Value::Bool(value) => json!({"bool": value}),
        Value::String(text) => json!({"string": text}),
        Value::List(items) => json!({"list": items.iter().map(described).collect::<Vec<_>>()}),
        Value::Other(name) => json!({"other": name}),
    }
}

fn ours(case: &Case) -> Verdict {
    let expression = match Expression::compile(&case.text, case.purpose) {
        Ok(expression) => expression,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let variable = match case.purpose {
        Purpose::UserRule => {
            let extra: BTreeMap<String, Vec<String>> =
                serde_json::from_value(case.user["extra"].clone()).unwrap();
            let groups: Vec<String> = serde_json::from_value(case.user["groups"].clone()).unwrap();
            let text = |field: &str| case.user[field].as_str().unwrap().to_owned();
            Variable::user(&text("username"), &text("uid"), &groups, &extra)
        }
        Purpose::ClaimMapping | Purpose::ClaimRule => Variable::claims(case.claims.as_object().unwrap()),
    };
    match expression.evaluate(&variable) {
        Ok(value) => Verdict::Value(described(&value)),
        Err(error) => Verdict::Failed(error.to_string()),
    }
}

fn theirs(program: &GoProgram, cases: &[Case]) -> Vec<Verdict> {
    let questions: Vec<serde_json::Value> = cases
        .iter()
        .map(|case| {
            let purpose = match case.purpose {
                Purpose::ClaimMapping => "mapping",
                Purpose::ClaimRule => "claimRule",
                Purpose::UserRule => "userRule",
            };
            json!({"purpose": purpose, "expression": case.text, "claims": case.claims, "user": case.user})
        })
        .collect();
    program.ask(&questions).iter().map(verdict).collect()
}

fn verdict(answer: &serde_json::Value) -> Verdict {
    let text = |key: &str| answer[key].as_str().unwrap().to_owned();
    match (text("compileError"), text("evalError")) {
        (error, _) if !error.is_empty() => Verdict::Refused(error),
        (_, error) if !error.is_empty() => Verdict::Failed(error),
        _ => Verdict::Value(answer["value"].clone()),
    }
}

/// Compares both implementations on all cases; returns the entries of `STRICTER` that occurred.
fn compare(program: &GoProgram, cases: &[Case]) -> BTreeSet<&'static str> {
    let answers = theirs(program, cases);
    let (mut failures, mut seen) = (Vec::new(), BTreeSet::new());
    let (mut refused, mut failed, mut values) = (0, 0, 0);
    for (case, go) in cases.iter().zip(answers) {
        let we = ours(case);
        match &we {
            Verdict::Refused(_) => refused += 1,
            Verdict::Failed(_) => failed += 1,
            Verdict::Value(_) => values += 1,
        }
        let same = match (&we, &go) {
            // Compile errors differ in their texts.
            (Verdict::Refused(_), Verdict::Refused(_)) => true,
            // Errors in patterns differ in their details.
            (Verdict::Failed(we), Verdict::Failed(go)) if we.starts_with(BAD_PATTERN) => {
                go.starts_with(BAD_PATTERN)
            }
            // A failed type assertion in kube-apiserver.
            (Verdict::Failed(_), Verdict::Failed(go)) if go.starts_with("internal error: ") => true,
            (we, go) => we == go,
        };
        if same {
            continue;
        }
        let declared = match &we {
            Verdict::Refused(text) | Verdict::Failed(text) => {
                STRICTER.iter().find(|(part, _)| text.contains(part))
            }
            Verdict::Value(_) => None,
        };
        match declared {
            Some((part, _)) => drop(seen.insert(*part)),
            None => {
                failures
                    .push(format!("{:?} {}\n  ours:   {we:?}\n  theirs: {go:?}", case.purpose, case.text));
            }
        }
    }
    eprintln!("{} expressions: {refused} refused, {failed} failed, {values} have a value", cases.len());
    for failure in failures.iter().take(60) {
        eprintln!("{failure}");
    }
    assert!(failures.is_empty(), "{} of {} expressions are judged differently", failures.len(), cases.len());
    seen
}

#[test]
fn expressions_evaluate_as_in_the_api_server() {
    let Some(program) = GoProgram::build("cel") else { return };
    let cases = expressions::all();
    assert!(cases.len() >= 250);
    let seen = compare(&program, &cases);
    for (part, _) in STRICTER {
        assert!(seen.contains(part), "no longer stricter: {part}");
    }
}

#[test]
fn random_expressions_evaluate_as_in_the_api_server() {
    let Some(program) = GoProgram::build("cel") else { return };
    let seed = seed();
    eprintln!("seed {seed}");
    compare(&program, &generated::expressions(seed, 3000));
}

#[test]
fn the_functions_are_those_of_the_api_server() {
    let Some(program) = GoProgram::build("cel") else { return };
    let theirs: BTreeMap<String, Vec<String>> =
        serde_json::from_slice(&program.run(&["functions"], b"")).unwrap();
    // Functions that the parser generates for macros and conditions, and operators whose names cannot be written in
    // CEL.
    let internal =
        ["_&&_", "_||_", "_?_:_", "_?._", "@not_strictly_false", "__not_strictly_false__", "in", "_in_"];
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, overloads) in &theirs {
        if internal.contains(&name.as_str()) || name == "cel.@mapInsert" {
            continue;
        }
        match portcullis_cel::overloads(name) {
            // The types of IP addresses are not supported, nor are their functions.
            Some(ours) => {
                let overloads: Vec<&String> =
                    overloads.iter().filter(|text| !text.contains("net.")).collect();
                seen += 1;
                if ours.iter().ne(overloads.iter().copied()) {
                    wrong.push(format!("{name}: {ours:?}, not {overloads:?}"));
                }
            }
            None if portcullis_cel::is_missing(name) => {}
            // Methods of types that only unsupported functions return.
            None if overloads.iter().all(|text| text.contains("kubernetes.") || text.contains("net.")) => {}
            None => wrong.push(format!("{name} is missing: {overloads:?}")),
        }
    }
    assert!(seen > 60, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
