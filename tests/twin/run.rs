//! Turns the cases into named tests, determines the servers that they need, and runs them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::authenticators::Setting;
use crate::case::{Case, Declared, ExpectedReviews, Step, Values, case};
use crate::client::{self, Version};
use crate::compare::{self, Outcome};
use crate::proof::{self, Record};
use crate::servers::{SharedTwin, Side, TwinServers};
use crate::{audit, cases, hidden_metrics, kubectl, limits, race, random_writes, rust_client, tunnels};
use testkit::real::{is_selected, test_name};

/// One test by name.
struct PlannedTest {
    name: String,
    kind: Kind,
}

/// A check without servers.
type Rule = fn() -> Result<(), String>;

/// The kinds of tests.
enum Kind {
    Http {
        case: Arc<Case>,
        version: Version,
        side: Side,
    },
    Kubectl {
        case: Arc<kubectl::Case>,
        side: Side,
    },
    Tunnel {
        case: Arc<tunnels::Case>,
        side: Side,
    },
    /// Checks that a case of the group differs on the backend without the gateway.
    Differs {
        http: Vec<Arc<Case>>,
        kubectl: Vec<Arc<kubectl::Case>>,
        tunnels: Vec<Arc<tunnels::Case>>,
    },
    /// The kube-rs client.
    RustClient {
        side: Side,
    },
    /// Limits on requests in flight. The backend without the gateway must differ.
    Limits {
        side: Side,
    },
    /// Writers behind the gateway and beside it, on the same objects.
    Race,
    /// Patches of one object at once, behind the gateway.
    Together,
    /// Random writes with admission webhooks.
    RandomWrites,
    /// Autoscalers of which a version hides a part.
    HiddenMetrics,
    /// A test of the harness, without servers.
    Rule(Rule),
}

/// The tests of this run.
pub(crate) struct Plan {
    planned: Vec<PlannedTest>,
    record: Arc<Record>,
}

impl Plan {
    /// The tests that the arguments select, with or without the proof of the harness.
    pub(crate) fn new(arguments: &Arguments, proof: bool) -> Self {
        let cases = cases::all();
        let audited = audit::of_others(&cases);
        let http: Vec<Arc<Case>> = cases.into_iter().map(Arc::new).collect();
        let kubectl: Vec<Arc<kubectl::Case>> = kubectl::all().into_iter().map(Arc::new).collect();
        let tunnels: Vec<Arc<tunnels::Case>> = tunnels::all().into_iter().map(Arc::new).collect();
        // The longest ones first: no others would run beside them at the end.
        let mut planned: Vec<PlannedTest> = [
            ("race", Kind::Race),
            ("together", Kind::Together),
            ("random_writes", Kind::RandomWrites),
            ("hidden_metrics", Kind::HiddenMetrics),
        ]
        .into_iter()
        .map(|(name, kind)| PlannedTest { name: format!("gateway::admission::{name}"), kind })
        .collect();
        // The tests of the harness run first, so that the second reference can be stopped early.
        for (prefix, side) in [("proof::same", Side::Second), ("gateway", Side::Gateway)] {
            for case in &http {
                for version in case.versions {
                    let protocol = if *version == Version::H1 { "h1" } else { "h2" };
                    planned.push(PlannedTest {
                        name: format!("{prefix}::{}::{protocol}::{}", case.group, test_name(&case.name)),
                        kind: Kind::Http { case: case.clone(), version: *version, side },
                    });
                }
            }
            for case in &kubectl {
                planned.push(PlannedTest {
                    name: format!("{prefix}::kubectl::{}", test_name(&case.name)),
                    kind: Kind::Kubectl { case: case.clone(), side },
                });
            }
            for case in &tunnels {
                planned.push(PlannedTest {
                    name: format!("{prefix}::tunnels::{}", test_name(&case.name)),
                    kind: Kind::Tunnel { case: case.clone(), side },
                });
            }
            planned.push(PlannedTest {
                name: format!("{prefix}::rust_client"),
                kind: Kind::RustClient { side },
            });
            planned.push(PlannedTest { name: format!("{prefix}::limits"), kind: Kind::Limits { side } });
            if side == Side::Second {
                let groups: BTreeSet<&str> = http.iter().map(|case| case.group).collect();
                for group in groups {
                    let http = http.iter().filter(|case| case.group == group).cloned().collect();
                    planned.push(PlannedTest {
                        name: format!("proof::differs::{group}"),
                        kind: Kind::Differs { http, kubectl: Vec::new(), tunnels: Vec::new() },
                    });
                }
                planned.push(PlannedTest {
                    name: "proof::differs::kubectl".to_owned(),
                    kind: Kind::Differs { http: Vec::new(), kubectl: kubectl.clone(), tunnels: Vec::new() },
                });
                planned.push(PlannedTest {
                    name: "proof::differs::limits".to_owned(),
                    kind: Kind::Limits { side: Side::Backend },
                });
                planned.push(PlannedTest {
                    name: "proof::differs::tunnels".to_owned(),
                    kind: Kind::Differs { http: Vec::new(), kubectl: Vec::new(), tunnels: tunnels.clone() },
                });
            }
        }
        for (prefix, side) in [("proof::same", Side::Second), ("gateway", Side::Gateway)] {
            for case in audited.iter().map(|case| Arc::new(case.clone())) {
                planned.push(PlannedTest {
                    name: format!("{prefix}::audit::of_{}::{}", case.group, test_name(&case.name)),
                    kind: Kind::Http { version: *case.versions.last().unwrap_or(&Version::H1), case, side },
                });
            }
        }
        // Only what an identity mode changes: how the backend receives the user.
        for case in http.iter().filter(|case| case.group == "impersonation") {
            for version in case.versions {
                let protocol = if *version == Version::H1 { "h1" } else { "h2" };
                let name = test_name(&case.name);
                planned.push(PlannedTest {
                    name: format!("impersonating::{}::{protocol}::{name}", case.group),
                    kind: Kind::Http { case: case.clone(), version: *version, side: Side::Impersonating },
                });
            }
        }
        for case in kubectl.iter().filter(|case| case.impersonates) {
            planned.push(PlannedTest {
                name: format!("impersonating::kubectl::{}", test_name(&case.name)),
                kind: Kind::Kubectl { case: case.clone(), side: Side::Impersonating },
            });
        }
        for (name, rule) in RULES {
            planned.push(PlannedTest { name: format!("proof::rules::{name}"), kind: Kind::Rule(*rule) });
        }
        let mut names = BTreeSet::new();
        for test in &planned {
            assert!(names.insert(test.name.clone()), "two tests are called {}", test.name);
        }
        let record = Record::new(names.iter().filter(|name| proof::is_part(name)).count());
        planned.retain(|test| is_selected(arguments, &test.name) && (proof || !proof::is_part(&test.name)));
        Self { planned, record: Arc::new(record) }
    }

    /// The results of the proof, which the trials fill.
    pub(crate) fn record(&self) -> Arc<Record> {
        self.record.clone()
    }

    /// The servers that the tests need.
    pub(crate) fn sides(&self) -> Vec<Side> {
        self.planned
            .iter()
            .flat_map(|test| match &test.kind {
                Kind::Http { case, side, .. } => {
                    vec![side.with(case.setting), Side::Reference.with(case.setting)]
                }
                Kind::Kubectl { case, side } => {
                    vec![side.with(case.setting), Side::Reference.with(case.setting)]
                }
                Kind::Tunnel { side, .. } | Kind::RustClient { side } => vec![*side],
                Kind::Limits { side } => {
                    vec![side.with(Setting::Limits), Side::Reference.with(Setting::Limits)]
                }
                Kind::Differs { http, kubectl, .. } => {
                    let settings = http.iter().map(|case| case.setting);
                    let settings = settings.chain(kubectl.iter().map(|case| case.setting));
                    settings.map(|setting| Side::Reference.with(setting)).chain([Side::Backend]).collect()
                }
                Kind::Race => vec![Side::AdmissionGateway],
                Kind::Together | Kind::RandomWrites | Kind::HiddenMetrics => {
                    vec![Side::AdmissionGateway, Side::Reference.with(Setting::Admission)]
                }
                Kind::Rule(_) => Vec::new(),
            })
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    pub(crate) fn trials(self, twin: &Arc<SharedTwin>, controllers: bool) -> Vec<Trial> {
        let on_second = |kind: &Kind| match kind {
            Kind::Http { side, .. }
            | Kind::Kubectl { side, .. }
            | Kind::Tunnel { side, .. }
            | Kind::Limits { side }
            | Kind::RustClient { side } => *side == Side::Second,
            Kind::Differs { .. }
            | Kind::Race
            | Kind::Together
            | Kind::RandomWrites
            | Kind::HiddenMetrics
            | Kind::Rule(_) => false,
        };
        let left = self.planned.iter().filter(|test| on_second(&test.kind)).count();
        let left = Arc::new(AtomicUsize::new(left));
        self.planned
            .into_iter()
            .map(|test| {
                let (twin, left, record) = (twin.clone(), left.clone(), self.record.clone());
                let lacking =
                    !controllers && matches!(&test.kind, Kind::Kubectl { case, .. } if case.controllers);
                let name = test.name.clone();
                Trial::test(test.name, move || {
                    if let Kind::Rule(rule) = test.kind {
                        return rule().map_err(Failed::from);
                    }
                    let servers = twin.servers().map_err(Failed::from)?;
                    let result = record.run(&name, || run(&twin, servers, &test.kind));
                    if on_second(&test.kind) && left.fetch_sub(1, Ordering::SeqCst) == 1 {
                        servers.stop(Side::Second);
                        servers.stop(Side::FlagsSecond);
                        servers.stop(Side::WebhooksSecond);
                        servers.stop(Side::AdmissionSecond);
                        servers.stop(Side::AuditSecond);
                        servers.stop(Side::LimitsSecond);
                    }
                    result
                })
                .with_ignored_flag(lacking)
            })
            .collect()
    }
}

fn run(twin: &SharedTwin, servers: &TwinServers, kind: &Kind) -> Result<(), Failed> {
    match kind {
        Kind::Http { case, version, side } => {
            let found = twin.runtime().block_on(http(servers, case, *version, *side))?;
            judge(&found, case.declared, *side)
        }
        Kind::Kubectl { case, side } => judge(&kubectl::run(servers, case, *side)?, case.declared, *side),
        Kind::Tunnel { case, side } => {
            judge(&twin.runtime().block_on(tunnels::run(servers, case, *side))?, None, *side)
        }
        Kind::RustClient { side } => {
            judge(&twin.runtime().block_on(rust_client::run(servers, *side))?, None, *side)
        }
        Kind::Limits { side: Side::Backend } => {
            let found = twin.runtime().block_on(limits::run(servers, Side::Backend))?;
            if found.differences.is_empty() {
                return Err("no case differs on the backend without the gateway".into());
            }
            Ok(())
        }
        Kind::Limits { side } => judge(&twin.runtime().block_on(limits::run(servers, *side))?, None, *side),
        Kind::Race => {
            let side = Side::AdmissionGateway;
            judge(&twin.runtime().block_on(race::run(servers, side))?, None, side)
        }
        Kind::Together => {
            let side = Side::AdmissionGateway;
            judge(&twin.runtime().block_on(race::patch_together(servers, side))?, None, side)
        }
        Kind::RandomWrites => {
            let side = Side::AdmissionGateway;
            judge(&twin.runtime().block_on(random_writes::run(servers))?, None, side)
        }
        Kind::HiddenMetrics => {
            let side = Side::AdmissionGateway;
            judge(&twin.runtime().block_on(hidden_metrics::run(servers))?, None, side)
        }
        Kind::Rule(rule) => rule().map_err(Failed::from),
        Kind::Differs { http: cases, kubectl, tunnels } => {
            let mut equal = Vec::new();
            for case in cases {
                for version in case.versions {
                    if !twin
                        .runtime()
                        .block_on(http(servers, case, *version, Side::Backend))?
                        .differences
                        .is_empty()
                    {
                        return Ok(());
                    }
                }
                equal.push(case.name.clone());
            }
            for case in kubectl {
                if !kubectl::run(servers, case, Side::Backend)?.differences.is_empty() {
                    return Ok(());
                }
                equal.push(case.name.clone());
            }
            for case in tunnels {
                if !twin
                    .runtime()
                    .block_on(tunnels::run(servers, case, Side::Backend))?
                    .differences
                    .is_empty()
                {
                    return Ok(());
                }
                equal.push(case.name.clone());
            }
            Err(format!("no case of this group differs on the backend without the gateway: {equal:?}").into())
        }
    }
}

/// The result of a comparison of a subject with the reference.
pub(crate) struct Compared {
    /// One description per step with differences.
    pub(crate) differences: Vec<String>,
    /// The subject's last status or exit code; 0 without one.
    pub(crate) last: u16,
}

/// Fails if there are undeclared differences, or if a declared difference does not occur.
pub(crate) fn judge(found: &Compared, declared: Option<Declared>, side: Side) -> Result<(), Failed> {
    let is_declared = |declared: &Declared| {
        side.is_gateway() && (side == Side::Impersonating || !declared.only_by_decision)
    };
    let Some(Declared { id, status, only_reviews, .. }) = declared.filter(is_declared) else {
        let text = found.differences.join("\n");
        return if text.is_empty() { Ok(()) } else { Err(text.into()) };
    };
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md");
    let declaration = format!("### {id}");
    let text = fs::read_to_string(&document).unwrap_or_default();
    if !text.lines().any(|line| line == declaration) {
        return Err(format!("the difference {id} is not declared in {}", document.display()).into());
    }
    if found.differences.is_empty() {
        return Err(format!("the declared difference {id} no longer occurs").into());
    }
    if found.last != status {
        let text = found.differences.join("\n");
        return Err(format!(
            "the difference is not the one that {id} declares, which ends with {status}:\n{text}"
        )
        .into());
    }
    let others = found.differences.iter().filter(|text| !compare::is_of_reviews(text));
    let others: Vec<&str> = others.map(String::as_str).collect();
    if only_reviews && !others.is_empty() {
        return Err(format!("{id} declares a difference of reviews only:\n{}", others.join("\n")).into());
    }
    Ok(())
}

/// Runs the case on both sides and returns the differences. Fails if the reference does not respond as expected.
pub(crate) async fn http(
    servers: &TwinServers,
    case: &Case,
    version: Version,
    side: Side,
) -> Result<Compared, Failed> {
    let (reference, mut reference_values) = side_of(servers, Side::Reference.with(case.setting))?;
    let (subject, mut subject_values) = side_of(servers, side.with(case.setting))?;
    reference_values.mint(&case.tokens);
    subject_values.mint(&case.tokens);
    let mut found = Vec::new();
    let mut audited = Vec::new();
    let mut last = 0;
    for (number, step) in case.steps.iter().enumerate() {
        let identity = match step.certificate {
            None => None,
            Some(name) => {
                Some(servers.identity(name).ok_or_else(|| format!("people.rs has no client called {name}"))?)
            }
        };
        let send = async |target, values: &Values, retry: bool| -> Outcome {
            let request = step.request(version, values);
            let mut outcome = client::exchange(target, identity, &request).await;
            // kube-apiserver closes HTTP/2 connections of unauthenticated clients. If it does so while the client still
            // sends the body, the response is lost, about once in forty times.
            for _ in 0..if retry && version == Version::H2 { 5 } else { 0 } {
                if outcome.is_ok() {
                    break;
                }
                outcome = client::exchange(target, identity, &request).await;
            }
            outcome
        };
        let (left, right) = tokio::join!(
            send(reference, &reference_values, true),
            send(subject, &subject_values, !side.is_gateway())
        );
        remember(&left, &mut reference_values);
        remember(&right, &mut subject_values);
        let wrong = compare::against_expectation(step, &left, &reference_values);
        if !wrong.is_empty() {
            return Err(describe_failure(
                "the reference does not respond as the case expects",
                number,
                step,
                &wrong,
                &left,
                &right,
            )
            .into());
        }
        let differences = compare::differences(
            step,
            (&left, &reference_values),
            (&right, &subject_values),
            case.managed_fields,
        );
        if !differences.is_empty() {
            found.push(describe_failure("the responses differ", number, step, &differences, &left, &right));
        }
        last = right.as_ref().map_or(0, |answer| answer.status);
        if let (Ok(left), Ok(right)) = (&left, &right) {
            audited.push((left.all("audit-id").join(""), right.all("audit-id").join("")));
        }
    }
    if case.setting == Setting::Audit {
        for (left, right) in audited.iter().filter(|(left, _)| !left.is_empty()) {
            if case.unaudited {
                for (side, id) in [(Side::AuditReference, left), (side.with(Setting::Audit), right)] {
                    if !servers.audit.is_absent(side, id)? {
                        return Err(format!("{} has an event", side.name()).into());
                    }
                }
                continue;
            }
            let left = servers.audit.complete(Side::AuditReference, left).await?;
            let right = match side {
                Side::Backend => Vec::new(),
                _ => servers.audit.complete(side.with(Setting::Audit), right).await?,
            };
            let mut left = audit::normalised(&left, &reference_values);
            let mut right = audit::normalised(&right, &subject_values);
            if side.is_gateway() {
                audit::without_declared(&mut left, &mut right);
            }
            found.extend(audit::differences(&left, &right));
        }
    }
    if case.setting == Setting::Admission {
        let reviews =
            reviews(servers, (&reference_values, &subject_values), case.managed_fields, case.reviews);
        found.extend(reviews?);
    }
    Ok(Compared { differences: found, last })
}

/// Differences between the reviews of both sides. Fails if the reference's webhooks receive some unexpectedly, or none.
pub(crate) fn reviews(
    servers: &TwinServers,
    (reference, subject): (&Values, &Values),
    managed_fields: bool,
    expected: ExpectedReviews,
) -> Result<Vec<String>, Failed> {
    let reviews = |values: &Values| {
        let received = servers.outside.admission.take(&values.unique);
        let mut reviews = compare::reviews(received, values, managed_fields);
        if expected == ExpectedReviews::Repeated {
            let mut known = HashSet::new();
            reviews.retain(|review| known.insert(review.clone()));
        }
        reviews
    };
    let (left, right) = (reviews(reference), reviews(subject));
    if left.is_empty() != (expected == ExpectedReviews::None) {
        return Err(format!("the webhooks of the reference receive {} reviews", left.len()).into());
    }
    if expected == ExpectedReviews::Uncompared {
        return Ok(Vec::new());
    }
    Ok(compare::review_differences(&left, &right))
}

fn remember(outcome: &Outcome, values: &mut Values) {
    let Ok(answer) = outcome else { return };
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if let Some(token) = body["metadata"]["continue"].as_str() {
        token.clone_into(&mut values.next);
    }
    if let Some(version) = body["metadata"]["resourceVersion"].as_str() {
        version.clone_into(&mut values.version);
    }
    if let (Some("TokenRequest"), Some(token)) = (body["kind"].as_str(), body["status"]["token"].as_str()) {
        values.tokens.insert("minted", token.to_owned());
    }
}

fn describe_failure(
    summary: &str,
    number: usize,
    step: &Step,
    wrong: &[String],
    left: &Outcome,
    right: &Outcome,
) -> String {
    format!(
        "{summary} (step {}):\n  - {}\nsent: {}\nreference: {}\nsubject: {}",
        number + 1,
        wrong.join("\n  - "),
        step.describe(),
        compare::show(left),
        compare::show(right)
    )
}

pub(crate) fn side_of(servers: &TwinServers, side: Side) -> Result<(&client::Target, Values), Failed> {
    let target = servers.target(side).map_err(Failed::from)?;
    let values = Values {
        unique: unique(),
        side: format!("side-{}", side.name()),
        address: target.address.to_string(),
        resource_version: servers.resource_version.clone(),
        next: String::new(),
        version: String::new(),
        tokens: BTreeMap::new(),
        mint: Some(Arc::clone(&servers.outside.mint)),
    };
    Ok((target, values))
}

/// How unique names begin.
pub(crate) const UNIQUE_PREFIX: &str = "uniq";

/// A name that is unique in this run, of constant length.
pub(crate) fn unique() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{UNIQUE_PREFIX}{:06}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Tests of the harness: it must report differences.
const RULES: &[(&str, Rule)] = &[
    ("a difference fails", || fails(judge(&compared(&["x"], 401), None, Side::Gateway), "x")),
    ("no difference passes", || {
        judge(&compared(&[], 200), None, Side::Gateway).map_err(|_| "it failed".to_owned())
    }),
    ("an unknown declaration fails", || {
        let declared = Declared { id: "D-none", status: 401, only_reviews: false, only_by_decision: false };
        fails(judge(&compared(&["x"], 401), Some(declared), Side::Gateway), "not declared")
    }),
    ("a declaration does not cover the second reference", || {
        let declared = Declared { id: "D-none", status: 401, only_reviews: false, only_by_decision: false };
        fails(judge(&compared(&["x"], 401), Some(declared), Side::Second), "x")
    }),
    ("a declaration about reviews does not cover responses", || {
        let of = |text| compared(&[text, "the reviews: x"], 401);
        let declared =
            Declared { id: "D-admission-prepared", status: 401, only_reviews: true, only_by_decision: false };
        fails(judge(&of("the responses differ"), Some(declared), Side::Gateway), "reviews only")?;
        judge(&of("the webhooks asked: x"), Some(declared), Side::Gateway).map_err(|_| "it failed".to_owned())
    }),
    ("the order of members counts", || {
        let of = |body: &str| Ok(client::Answer { status: 200, body: body.into(), ..Default::default() });
        let step = &case("", "", "POST", "/").steps[0];
        let count = |right: &str| {
            let values = &some_values();
            compare::differences(step, (&of(r#"{"a":1,"b":2}"#), values), (&of(right), values), true).len()
        };
        let found = [r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#, r#"{"a":1,"b":3}"#].map(count);
        if found == [0, 1, 1] { Ok(()) } else { Err(format!("{found:?}")) }
    }),
    ("values that differ between equal servers are replaced", || {
        let values = some_values();
        let text = concat!(
            r#"{"name":"uniq000001","uid":"01234567-89ab-cdef-0123-456789abcdef","resourceVersion":"12","#,
            r#""time":"2026-01-02T03:04:05Z","micro":"2026-01-02T03:04:05.000006Z","continue":"eyJ2","age":"3m5s","x":"12","#,
            r#""self":"https://127.0.0.1:6443/a","token":"ey.J.x","error":"at 2026-01-02 03:04:05 +0000 UTC"}"#
        );
        let expected = concat!(
            r#"{"name":"{unique}","uid":"<uuid>","resourceVersion":"<rv>","#,
            r#""time":"<time>","micro":"<time>","continue":"<continue>","age":"<age>","x":"12","#,
            r#""self":"https://{addr}/a","token":"{token:t}","error":"at <time> +0000 UTC"}"#
        );
        let got = compare::normalise(text, &values);
        if got == expected { Ok(()) } else { Err(format!("{got}\n{expected}")) }
    }),
];

/// Values for tests without servers.
fn some_values() -> Values {
    Values {
        unique: "uniq000001".to_owned(),
        side: "side-second".to_owned(),
        address: "127.0.0.1:6443".to_owned(),
        resource_version: "7".to_owned(),
        next: String::new(),
        version: String::new(),
        tokens: BTreeMap::from([("t", "ey.J.x".to_owned())]),
        mint: None,
    }
}

fn compared(differences: &[&str], last: u16) -> Compared {
    Compared { differences: differences.iter().map(|text| (*text).to_owned()).collect(), last }
}

fn fails(result: Result<(), Failed>, with: &str) -> Result<(), String> {
    match result {
        Err(failed) if failed.message().is_some_and(|message| message.contains(with)) => Ok(()),
        Err(failed) => Err(format!("it failed with another error: {:?}", failed.message())),
        Ok(()) => Err("it passed".to_owned()),
    }
}
