//! Expressions, compared with kube-apiserver's own code, of each release that the crate knows: compilation, types, values and
//! the texts of evaluation errors must be the same, and no cost may be lower.
//!
//! `STRICTER` lists the differences with their reasons; an unused entry fails the test.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program: a panic is a failed test")]
#![allow(
    clippy::print_stderr,
    clippy::explicit_auto_deref,
    missing_docs,
    reason = "the output of a test program"
)]

mod addresses;
mod conditions;
mod costs;
mod expressions;
mod format;
mod generated;
mod generated_conditions;
mod generated_names;
mod generated_types;
mod generated_values;
mod mutations;
mod named_formats;
mod patterns;
mod quantities;
mod releases;
mod selections;
mod time;
mod urls;
mod versions;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use portcullis_cel::{
    AccessDecision, AccessReview, AccessTarget, Bindings, CelGo, Environment, Expression, ResourceTarget,
    ResultType, conformance,
};
use serde_json::json;
use testkit::go_program::GoProgram;
use testkit::random::{inputs, seed};

/// Expressions that we refuse or fail and kube-apiserver does not: a part of our error, and the reason.
const STRICTER: &[(&str, &str)] = &[
    ("messages are not supported", "a literal says the same"),
    (
        "quantities have at most 1000 digits",
        "the reference has no bound, and comparing large ones does not end there",
    ),
    (
        "a macro with two variables over all claims is not supported here",
        "the reference uses the values as keys there",
    ),
    ("unsupported key type", "keys that no lookup finds, or that end the API server"),
    (
        "cannot be compared here",
        "objects are equal if Go holds their fields alike, which is not known of all values",
    ),
    ("actual cost limit exceeded", "strings that a call makes are paid for by their own length"),
    ("NaN values cannot be ordered", "where a sort puts them is left to Go's algorithm"),
    ("the time zone 'posix/", "a file of some API servers' machines, which is not known here"),
    ("the time zone 'Local'", "the zone of the API server's machine, which is not known here"),
    (
        "no such key: a__dot__b",
        "a claim that cannot be reached fails a walk over all claims at once, not when used",
    ),
];

const QUANTITY_OF_GO: &str = "unsupported conversion to ref.Val: (*resource.Quantity)";

const GO_TYPES: [(&str, &str); 3] = [
    ("invalid qualifier type: types.Null", "invalid qualifier type: <nil>"),
    ("invalid qualifier type: *types.baseMap", "invalid qualifier type: map[string]interface {}"),
    ("invalid qualifier type: *types.baseList", "invalid qualifier type: []interface {}"),
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
    /// A condition of an admission webhook, of any type, as one of a new object.
    Admission,
    /// Expressions of stored policies.
    Policy,
    Mutation,
    ApplyConfiguration,
    JsonPatch,
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
            Self::ApplyConfiguration => "applyConfiguration",
            Self::JsonPatch => "jsonPatch",
        }
    }

    fn compile(self, cel_go: CelGo, text: &str) -> Result<Expression, portcullis_cel::CompileError> {
        let (environment, result) = match self {
            Self::ClaimMapping => (Environment::CLAIMS, ResultType::Any),
            Self::ClaimRule => (Environment::CLAIMS, ResultType::Bool),
            Self::UserRule => (Environment::USER, ResultType::Bool),
            Self::Review => (Environment::SUBJECT_ACCESS_REVIEW, ResultType::Bool),
            Self::Admission => (Environment::ADMISSION, ResultType::Any),
            Self::Policy => (Environment::POLICY.stored(), ResultType::Any),
            Self::Mutation => (Environment::MUTATION.stored(), ResultType::Any),
            Self::ApplyConfiguration => (Environment::MUTATION.stored(), ResultType::ApplyConfiguration),
            Self::JsonPatch => (Environment::MUTATION.stored(), ResultType::JsonPatch),
        };
        Expression::compile(text, environment.of(cel_go), result)
    }
}

/// kube-apiserver's code of one release.
struct Reference {
    cel_go: CelGo,
    program: GoProgram,
}

/// Both releases; none without Go.
fn references() -> Vec<Reference> {
    let program = |cel_go| match cel_go {
        CelGo::V0_26 => GoProgram::build_of("cel", "1.36"),
        CelGo::V0_29 => GoProgram::build("cel"),
    };
    CelGo::ALL
        .into_iter()
        .filter_map(|cel_go| Some(Reference { cel_go, program: program(cel_go)? }))
        .collect()
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

/// The authorizer of the Go program: it allows `get`, cannot answer `fail`, and describes the review as the reason.
fn authorize(review: &AccessReview) -> AccessDecision {
    let user = match &review.service_account {
        Some(account) => format!("system:serviceaccount:{}:{}", account.namespace, account.name),
        None => "asker".to_owned(),
    };
    let mut parts = vec![("user", user), ("verb", review.verb.clone())];
    match &review.target {
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
    let error = (review.verb == "fail").then(|| "cannot answer".to_owned());
    AccessDecision { allowed: review.verb == "get", reason, error }
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
        Purpose::Admission
        | Purpose::Policy
        | Purpose::Mutation
        | Purpose::ApplyConfiguration
        | Purpose::JsonPatch => {
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
fn ours(cel_go: CelGo, case: &Case) -> (Verdict, u64) {
    let expression = match case.purpose.compile(cel_go, &case.text) {
        Ok(expression) => expression,
        Err(error) => return (Verdict::Refused(error.to_string()), 0),
    };
    match conformance::evaluate(&expression, &bindings(case), authorize) {
        (Ok(value), cost) => (Verdict::Value(mutations::merged(case.purpose, in_order(value))), cost),
        (Err(error), cost) => (Verdict::Failed(error), cost),
    }
}

fn theirs(program: &GoProgram, cases: &[Case]) -> Vec<(Verdict, u64)> {
    let questions: Vec<serde_json::Value> = cases
        .iter()
        .map(|case| {
            json!({
                "purpose": case.purpose.name(),
                "new": case.purpose == Purpose::Admission,
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
        _ if !text("misfit").is_empty() => {
            Verdict::Failed(format!("{}{}", conformance::MISFIT, text("misfit")))
        }
        _ => Verdict::Value(mutations::numbers(in_order(answer["value"].clone()))),
    }
}

/// A value whose maps have their entries in one order.
fn in_order(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value::{Array, Object};
    match value {
        Array(items) => items.into_iter().map(in_order).collect(),
        Object(fields) => {
            let ordered = |(name, value)| match (name, in_order(value)) {
                (name, Array(mut entries)) if name == "map" => {
                    entries.sort_by_key(ToString::to_string);
                    (name, Array(entries))
                }
                field => field,
            };
            fields.into_iter().map(ordered).collect()
        }
        scalar => scalar,
    }
}

/// The costs of expressions with the same verdict.
#[derive(Default)]
struct Costs {
    equal: usize,
    /// Ours, theirs, and the expression.
    higher: Vec<(u64, u64, Case)>,
    lower: Vec<(u64, u64, Case)>,
}

impl Costs {
    fn add(&mut self, case: &Case, ours: u64, theirs: u64) {
        let row = (ours, theirs, case.clone());
        match ours.cmp(&theirs) {
            Ordering::Equal => self.equal += 1,
            Ordering::Greater => self.higher.push(row),
            Ordering::Less => self.lower.push(row),
        }
    }

    /// Maps have no order in the reference: where a macro ends early, its cost depends on chance.
    fn ask_again(&mut self, program: &GoProgram) {
        for (ours, _, case) in std::mem::take(&mut self.lower) {
            let answers = theirs(program, &vec![case.clone(); 60]);
            let cheapest = answers.iter().map(|(_, cost)| *cost).min().unwrap();
            self.add(&case, ours, cheapest);
        }
    }

    /// Prints how many costs are equal and higher; fails if one is lower. Returns the expressions with a higher cost.
    fn report(mut self) -> Vec<(u64, u64, Case)> {
        self.higher
            .sort_by_key(|(ours, theirs, _)| std::cmp::Reverse(ours.saturating_mul(1000) / (theirs + 1)));
        for (ours, theirs, case) in self.higher.iter().take(12) {
            eprintln!("costs {ours}, not {theirs}: {:?} {}", case.purpose, case.text);
        }
        eprintln!("costs: {} equal, {} higher, {} lower", self.equal, self.higher.len(), self.lower.len());
        for (ours, theirs, case) in self.lower.iter().take(60) {
            eprintln!("costs only {ours}, not {theirs}: {:?} {}", case.purpose, case.text);
        }
        assert!(self.lower.is_empty(), "{} expressions are cheaper than in the reference", self.lower.len());
        self.higher
    }
}

/// What a comparison found.
struct Compared {
    /// The entries of `STRICTER` that occurred.
    stricter: BTreeSet<&'static str>,
    /// Ours, theirs, and the expression.
    dearer: Vec<(u64, u64, Case)>,
}

/// Compares both implementations on all cases.
fn compare(reference: &Reference, cases: &[Case]) -> Compared {
    let Reference { cel_go, program } = reference;
    let answers = theirs(program, cases);
    let (mut failures, mut costs, mut seen) = (Vec::new(), Costs::default(), BTreeSet::new());
    let (mut refused, mut failed, mut values, mut worded_alike) = (0, 0, 0, 0);
    for (case, (go, their_cost)) in cases.iter().zip(answers) {
        let (we, our_cost) = ours(*cel_go, case);
        if we == go {
            costs.add(case, our_cost, their_cost);
        }
        match &we {
            Verdict::Refused(_) => refused += 1,
            Verdict::Failed(_) => failed += 1,
            Verdict::Value(_) => values += 1,
        }
        let same = match (&we, &go) {
            (Verdict::Refused(we), Verdict::Refused(go)) => {
                // The reference lists all errors.
                let first = we.strip_prefix("compilation failed: ").unwrap_or(we);
                worded_alike += usize::from(go.contains(first));
                true
            }
            // Errors in patterns differ in their details.
            (Verdict::Failed(we), Verdict::Failed(go)) if we.starts_with(BAD_PATTERN) => {
                go.starts_with(BAD_PATTERN)
            }
            // The reference prints its canonical form, which nothing else needs.
            (Verdict::Failed(we), Verdict::Failed(go)) if we.starts_with(QUANTITY_OF_GO) => {
                go.starts_with(QUANTITY_OF_GO)
            }
            // The type in Go of what an object contains.
            (Verdict::Failed(we), Verdict::Failed(go)) if GO_TYPES.contains(&(we, go)) => true,
            (Verdict::Failed(we), Verdict::Failed(go)) if mutations::are_misfits(we, go) => true,
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
    eprintln!(
        "{cel_go:?}: {} expressions: {refused} refused, {failed} failed, {values} have a value",
        cases.len()
    );
    eprintln!("{worded_alike} of the {refused} errors are the reference's, word for word");
    for failure in failures.iter().take(std::env::var("SHOW_ALL").map_or(60, |_| usize::MAX)) {
        eprintln!("{failure}");
    }
    costs.ask_again(program);
    let dearer = costs.report();
    let (count, all) = (failures.len(), cases.len());
    assert!(failures.is_empty(), "{count} of {all} expressions are judged differently by {cel_go:?}");
    assert!(
        refused < 100 || worded_alike * 5 >= refused * 4,
        "most errors are the reference's, word for word"
    );
    Compared { stricter: seen, dearer }
}

#[test]
fn expressions_evaluate_as_in_the_api_server() {
    let mut cases = expressions::all();
    assert!(cases.len() >= 250);
    cases.extend(mutations::incomparable());
    let mut seen = BTreeSet::new();
    let references = references();
    for reference in &references {
        seen.extend(compare(reference, &cases).stricter);
    }
    for (part, _) in STRICTER {
        assert!(references.is_empty() || seen.contains(part), "no longer stricter: {part}");
    }
}

#[test]
fn costs_are_those_of_the_api_server() {
    let cases = costs::all();
    assert!(cases.len() >= 3000);
    let mut seen = BTreeSet::new();
    let mut unexplained = 0;
    let references = references();
    for reference in &references {
        for (ours, theirs, Case { text, .. }) in compare(reference, &cases).dearer {
            let reasons: Vec<&str> =
                costs::DEARER.iter().map(|(part, _)| *part).filter(|part| text.contains(part)).collect();
            if reasons.is_empty() {
                eprintln!("costs {ours}, not {theirs}, without a reason: {text}");
                unexplained += 1;
            }
            seen.extend(reasons);
        }
    }
    assert_eq!(unexplained, 0, "higher costs have reasons");
    let unused: Vec<&str> =
        costs::DEARER.iter().map(|(part, _)| *part).filter(|part| !seen.contains(part)).collect();
    assert!(references.is_empty() || unused.is_empty(), "no longer dearer: {unused:?}");
}

#[test]
fn conditions_evaluate_as_in_the_api_server() {
    let cases = conditions::all();
    assert!(cases.len() >= 250);
    compare_all(&cases);
}

#[test]
fn selections_evaluate_as_in_the_api_server() {
    compare_all(&selections::all());
}

#[test]
fn what_changed_between_releases_is_as_in_the_api_server() {
    compare_all(&releases::all());
}

#[test]
fn random_expressions_evaluate_as_in_the_api_server() {
    compare_all(&generated::expressions(noted_seed(), inputs(1500)));
}

#[test]
fn mutations_give_the_patches_of_the_api_server() {
    let of_reference = |reference: &Reference| reference.cel_go == CelGo::REFERENCE;
    let cases = mutations::all().chain(mutations::random(noted_seed(), inputs(6000))).collect::<Vec<_>>();
    for reference in references().iter().filter(|reference| of_reference(reference)) {
        compare(reference, &cases);
    }
}

#[test]
fn named_formats_evaluate_as_in_the_api_server() {
    compare_all(&named_formats::all());
}

#[test]
fn quantities_evaluate_as_in_the_api_server() {
    compare_all(&quantities::all());
    compare_all(&quantities::random(noted_seed(), inputs(1500)));
}

#[test]
fn addresses_urls_and_versions_evaluate_as_in_the_api_server() {
    compare_all(&[addresses::all(), urls::all(), versions::all()].concat());
}

#[test]
fn random_conditions_evaluate_as_in_the_api_server() {
    compare_all(&generated_conditions::expressions(noted_seed(), inputs(2500)));
}

#[test]
fn random_names_evaluate_as_in_the_api_server() {
    compare_all(&generated_names::expressions(noted_seed(), inputs(1500)));
}

#[test]
fn times_are_as_in_the_api_server() {
    compare_all(&time::all());
    compare_all(&time::random(noted_seed(), &conformance::time_zones()));
}

#[test]
fn formats_are_as_in_the_api_server() {
    compare_all(&format::all());
    compare_all(&format::random(noted_seed()));
}

#[test]
fn random_texts_of_library_types_evaluate_as_in_the_api_server() {
    let seed = noted_seed();
    for kind in generated_types::KINDS {
        compare_all(&generated_types::expressions(kind, seed, inputs(1500)));
    }
}

fn compare_all(cases: &[Case]) {
    for reference in references() {
        compare(&reference, cases);
    }
}

fn noted_seed() -> u64 {
    let seed = seed();
    eprintln!("seed {seed}");
    seed
}

#[test]
fn the_functions_are_those_of_the_api_server() {
    for Reference { cel_go, program } in references() {
        for (kind, environment) in
            [("new", Environment::MUTATION), ("stored", Environment::MUTATION.stored())]
        {
            let theirs: BTreeMap<String, Vec<String>> =
                serde_json::from_slice(&program.run(&["functions", kind], b"")).unwrap();
            // Functions that the parser generates for macros and conditions, and operators whose names cannot be written
            // in CEL.
            let internal = [
                "_&&_",
                "_||_",
                "_?_:_",
                "_?._",
                "@not_strictly_false",
                "__not_strictly_false__",
                "in",
                "_in_",
            ];
            let mut wrong = Vec::new();
            let mut seen = 0;
            for (name, overloads) in &theirs {
                if internal.contains(&name.as_str()) || name == "cel.@mapInsert" {
                    continue;
                }
                let ours = conformance::overloads(environment.of(cel_go), name).unwrap_or_default();
                seen += 1;
                if &ours != overloads {
                    wrong.push(format!("{name}: {ours:?}, not {overloads:?}"));
                }
            }
            assert!(seen > 140, "{seen}");
            assert!(wrong.is_empty(), "{cel_go:?}, {kind}: {}", wrong.join("\n"));
            let added = conformance::overloads(environment.of(cel_go), "includes").is_some();
            assert_eq!(added, theirs.contains_key("includes"), "{cel_go:?}, {kind}");
        }
    }
}
