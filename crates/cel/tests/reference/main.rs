//! Expressions, compared with kube-apiserver's own code: compilation, types, values and the texts of evaluation errors
//! must be the same, and no cost may be lower.
//!
//! `STRICTER` lists the differences with their reasons; an unused entry fails the test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test program: a panic is a failed test"
)]
#![allow(clippy::print_stderr, clippy::print_stdout, missing_docs, reason = "the output of a test program")]

mod expressions;
mod format;
mod generated;
mod patterns;
mod time;

use std::collections::{BTreeMap, BTreeSet};

use portcullis_cel::{
    AccessDecision, AccessQuestion, AccessTarget, Bindings, Environment, Expression, ResourceTarget,
    ResultType, conformance,
};
use serde_json::json;
use testkit::go_program::GoProgram;
use testkit::random::seed;

/// Expressions that we refuse or fail and kube-apiserver does not: a part of our error, and the reason.
const STRICTER: &[(&str, &str)] = &[
    ("messages are not supported", "a literal says the same"),
    ("nested too deeply", "the parser recurses; a depth that no expression needs"),
    ("expression is longer than", "the same"),
    ("unsupported key type", "keys that no lookup finds, or that end the API server"),
    ("actual cost limit exceeded", "strings that a call makes are paid for by their own length"),
    ("NaN values cannot be ordered", "where a sort puts them is left to Go's algorithm"),
    ("unknown time zone posix/", "a directory of the tz database in some distributions, not a zone"),
    ("the time zone 'Local'", "the zone of the API server's machine, which is not known here"),
    (
        "no such key: a__dot__b",
        "a claim that cannot be reached fails a walk over all claims at once, not when used",
    ),
];

const BAD_PATTERN: &str = "error parsing regexp: ";

/// The use of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    ClaimMapping,
    ClaimRule,
    UserRule,
    /// A condition of an authorization webhook.
    Review,
    /// A condition of an admission webhook, of any type.
    Admission,
    Policy,
    Mutation,
}

impl Purpose {
    /// The name in the questions to the Go program.
    fn name(self) -> &'static str {
        match self {
            Self::ClaimMapping => "mapping",
            Self::ClaimRule => "claimRule",
            Self::UserRule => "userRule",
            Self::Review => "review",
            Self::Admission => "admission",
            Self::Policy => "policy",
            Self::Mutation => "mutation",
        }
    }

    fn compile(self, text: &str) -> Result<Expression, portcullis_cel::CompileError> {
        let (environment, result) = match self {
            Self::ClaimMapping => (Environment::CLAIMS, ResultType::Any),
            Self::ClaimRule => (Environment::CLAIMS, ResultType::Bool),
            Self::UserRule => (Environment::USER, ResultType::Bool),
            Self::Review => (Environment::SUBJECT_ACCESS_REVIEW, ResultType::Bool),
            Self::Admission => (Environment::ADMISSION, ResultType::Any),
            Self::Policy => (Environment::POLICY, ResultType::Any),
            Self::Mutation => (Environment::MUTATION, ResultType::Any),
        };
        Expression::compile(text, environment, result)
    }
}

/// One expression on one set of variables.
#[derive(Debug, Clone)]
struct Case {
    purpose: Purpose,
    text: String,
    claims: serde_json::Value,
    user: serde_json::Value,
    /// The variables of the purposes other than authentication.
    variables: serde_json::Value,
}

/// The result of one implementation.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It does not compile.
    Refused(String),
    /// Its evaluation fails.
    Failed(String),
    Value(serde_json::Value),
}

/// The authorizer of the Go program: it allows `get`, cannot answer `fail`, and describes the question as the reason.
fn authorize(question: &AccessQuestion) -> AccessDecision {
    let user = match &question.service_account {
        Some(account) => format!("system:serviceaccount:{}:{}", account.namespace, account.name),
        None => "asker".to_owned(),
    };
    let mut parts = vec![("user", user), ("verb", question.verb.clone())];
    match &question.target {
        AccessTarget::Path(path) => parts.push(("path", path.clone())),
        AccessTarget::Resource(target) => {
            let ResourceTarget { group, resource, subresource, namespace, name, .. } = target.clone();
            parts.extend([
                ("group", group),
                ("resource", resource),
                ("subresource", subresource),
                ("namespace", namespace),
                ("name", name),
            ]);
        }
    }
    let parts = parts.into_iter().filter(|(_, value)| !value.is_empty());
    let reason = parts.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
    let error = (question.verb == "fail").then(|| "cannot answer".to_owned());
    AccessDecision { allowed: question.verb == "get", reason, error }
}

fn bindings(case: &Case) -> Bindings {
    match case.purpose {
        Purpose::ClaimMapping | Purpose::ClaimRule => Bindings::claims(case.claims.as_object().unwrap()),
        Purpose::UserRule => {
            let extra: BTreeMap<String, Vec<String>> =
                serde_json::from_value(case.user["extra"].clone()).unwrap();
            let groups: Vec<String> = serde_json::from_value(case.user["groups"].clone()).unwrap();
            let text = |field: &str| case.user[field].as_str().unwrap().to_owned();
            Bindings::user(&text("username"), &text("uid"), &groups, &extra)
        }
        Purpose::Review => Bindings::default().with("request", &case.variables["request"]),
        Purpose::Admission | Purpose::Policy | Purpose::Mutation => {
            let request = ResourceTarget {
                group: "apps".to_owned(),
                resource: "deployments".to_owned(),
                subresource: "scale".to_owned(),
                namespace: "team".to_owned(),
                name: "web".to_owned(),
                ..ResourceTarget::default()
            };
            let names = ["object", "oldObject", "namespaceObject", "request", "params"];
            let bindings = names
                .into_iter()
                .fold(Bindings::default(), |bindings, name| bindings.with(name, &case.variables[name]));
            bindings.with_authorizer(request)
        }
    }
}

/// Our verdict and its cost.
fn ours(case: &Case) -> (Verdict, u64) {
    let expression = match case.purpose.compile(&case.text) {
        Ok(expression) => expression,
        Err(error) => return (Verdict::Refused(error.to_string()), 0),
    };
    match conformance::evaluate(&expression, &bindings(case), authorize) {
        (Ok(value), cost) => (Verdict::Value(value), cost),
        (Err(error), cost) => (Verdict::Failed(error), cost),
    }
}

fn theirs(program: &GoProgram, cases: &[Case]) -> Vec<(Verdict, u64)> {
    let questions: Vec<serde_json::Value> = cases
        .iter()
        .map(|case| {
            json!({
                "purpose": case.purpose.name(),
                "expression": case.text,
                "claims": case.claims,
                "user": case.user,
                "variables": case.variables,
            })
        })
        .collect();
    let answers = program.ask(&questions);
    answers.iter().map(|answer| (verdict(answer), answer["cost"].as_u64().unwrap())).collect()
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
    let (mut failures, mut cheaper, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    let (mut refused, mut failed, mut values) = (0, 0, 0);
    for (case, (go, their_cost)) in cases.iter().zip(answers) {
        let (we, our_cost) = ours(case);
        if our_cost < their_cost && we == go {
            cheaper.push(format!("{:?} {}: {our_cost}, not {their_cost}", case.purpose, case.text));
        }
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
    for line in cheaper.iter().take(60) {
        eprintln!("cheaper than the reference: {line}");
    }
    eprintln!("{} are cheaper than the reference", cheaper.len());
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
fn times_are_as_in_the_api_server() {
    let Some(program) = GoProgram::build("cel") else { return };
    compare(&program, &time::all());
    let seed = seed();
    eprintln!("seed {seed}");
    compare(&program, &time::random(seed, &conformance::time_zones()));
}

#[test]
fn formats_are_as_in_the_api_server() {
    let Some(program) = GoProgram::build("cel") else { return };
    compare(&program, &format::all());
    let seed = seed();
    eprintln!("seed {seed}");
    compare(&program, &format::random(seed));
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
        let ours = conformance::overloads(name).unwrap_or_default();
        seen += 1;
        if &ours != overloads {
            wrong.push(format!("{name}: {ours:?}, not {overloads:?}"));
        }
    }
    assert!(seen > 140, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
