//! Turns the cases into tests, runs each on the reference and on another cluster, and compares the outcomes.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::real::{is_selected, test_name};
use tokio::sync::OnceCell;

use crate::case::{Case, Expect, Outcome, explained};
use crate::clusters::{Cluster, Clusters, SharedClusters, Side};
use crate::replicas::ControllerKind;
use crate::scenario::Scenario;
use crate::{
    authorities, cases, cleaner, cluster_info, kubelet, pages, pod_certificates, replicas, tokens,
    trust_bundles, volumes,
};

/// A case and its outcome on the reference, where it runs once.
struct SharedCase {
    case: Case,
    reference: OnceCell<Result<Outcome, String>>,
}

enum Kind {
    /// One case on the reference and on another side.
    Compare {
        played: Arc<SharedCase>,
        side: Side,
    },
    /// Checks that without controllers the outcome of every case of a group differs, if the case expects a change.
    Differs {
        played: Vec<Arc<SharedCase>>,
    },
    /// One scenario on the reference and on another side.
    Scenario {
        scenario: Arc<Scenario>,
        side: Side,
    },
    ScenariosDiffer {
        scenarios: Vec<Arc<Scenario>>,
    },
    /// A separate test, and the clusters that it needs.
    Other {
        test: Other,
        sides: &'static [Side],
    },
    /// A test of the harness.
    Rule(Rule),
}

type Rule = fn() -> Result<(), String>;

type Other = for<'a> fn(&'a Clusters) -> LocalBoxFuture<'a, Result<(), String>>;

struct PlannedTest {
    name: String,
    kind: Kind,
}

pub(crate) struct Plan {
    planned: Vec<PlannedTest>,
}

impl Plan {
    /// The tests that the arguments select.
    pub(crate) fn new(arguments: &Arguments) -> Self {
        let played: Vec<Arc<SharedCase>> = cases::all()
            .into_iter()
            .map(|case| Arc::new(SharedCase { case, reference: OnceCell::new() }))
            .collect();
        let mut planned = Vec::new();
        for (prefix, side) in [("gateway", Side::Gateway), ("proof::same", Side::Second)] {
            for played in &played {
                let name = format!("{prefix}::{}::{}", played.case.group, test_name(played.case.name));
                planned.push(PlannedTest { name, kind: Kind::Compare { played: Arc::clone(played), side } });
            }
        }
        let groups: BTreeSet<&str> = played.iter().map(|played| played.case.group).collect();
        for group in groups {
            let played = played.iter().filter(|played| played.case.group == group).map(Arc::clone).collect();
            planned.push(PlannedTest {
                name: format!("proof::differs::{group}"),
                kind: Kind::Differs { played },
            });
        }
        plan_scenarios(&mut planned);
        for (name, sides, test) in OTHERS {
            planned.push(PlannedTest { name: (*name).to_owned(), kind: Kind::Other { test: *test, sides } });
        }
        for (name, rule) in RULES {
            planned.push(PlannedTest {
                name: format!("proof::rules::{}", test_name(name)),
                kind: Kind::Rule(*rule),
            });
        }
        let mut names = BTreeSet::new();
        for test in &planned {
            assert!(names.insert(test.name.clone()), "two tests are called {}", test.name);
        }
        planned.retain(|test| is_selected(arguments, &test.name));
        Self { planned }
    }

    /// The clusters that the tests need.
    pub(crate) fn sides(&self) -> Vec<Side> {
        let sides = self.planned.iter().flat_map(|test| match &test.kind {
            Kind::Compare { side, .. } | Kind::Scenario { side, .. } => vec![*side],
            Kind::Differs { .. } | Kind::ScenariosDiffer { .. } => vec![Side::Bare],
            Kind::Other { sides, .. } => sides.to_vec(),
            Kind::Rule(_) => Vec::new(),
        });
        sides.collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(crate) fn trials(self, shared: &Arc<SharedClusters>) -> Vec<Trial> {
        let trial = |test: PlannedTest| {
            let shared = Arc::clone(shared);
            Trial::test(test.name, move || {
                if let Kind::Rule(rule) = test.kind {
                    return rule().map_err(Failed::from);
                }
                let clusters = shared.clusters().map_err(Failed::from)?;
                shared.runtime().block_on(run(clusters, &test.kind)).map_err(Failed::from)
            })
        };
        self.planned.into_iter().map(trial).collect()
    }
}

fn plan_scenarios(planned: &mut Vec<PlannedTest>) {
    let scenarios =
        [tokens::scenarios(), cluster_info::scenarios(), kubelet::scenarios(), authorities::scenarios()];
    for group in scenarios {
        let group: Vec<Arc<Scenario>> = group.into_iter().map(Arc::new).collect();
        for (prefix, side) in [("gateway", Side::Gateway), ("proof::same", Side::Second)] {
            planned.extend(group.iter().map(|scenario| PlannedTest {
                name: format!("{prefix}::{}::{}", scenario.group, test_name(&scenario.name)),
                kind: Kind::Scenario { scenario: Arc::clone(scenario), side },
            }));
        }
        if let Some(first) = group.first() {
            let name = format!("proof::differs::{}", first.group);
            let scenarios = group.iter().filter(|scenario| scenario.acts).map(Arc::clone).collect();
            planned.push(PlannedTest { name, kind: Kind::ScenariosDiffer { scenarios } });
        }
    }
}

impl SharedCase {
    /// Runs the case on the reference, and checks that the outcome is the expected one.
    async fn on_reference(&self, clusters: &Clusters) -> Result<&Outcome, String> {
        let play = async || {
            let outcome = self.case.play(clusters, clusters.cluster(Side::Reference)?).await?;
            let kind = outcome.kind(&self.case);
            if kind != self.case.expect {
                return Err(format!(
                    "the outcome is {kind:?}, the case expects {:?}: {outcome:?}",
                    self.case.expect
                ));
            }
            match &outcome.certificate {
                Some(Err(wrong)) if kind == Expect::Issued => Err(wrong.clone()),
                _ => Ok(outcome),
            }
        };
        let with_source = |error: &String| {
            format!("the reference differs from the case's expectation ({}): {error}", self.case.from)
        };
        self.reference.get_or_init(play).await.as_ref().map_err(with_source)
    }

    async fn differences(
        &self,
        clusters: &Clusters,
        cluster: &Cluster,
    ) -> Result<(Vec<String>, Outcome), String> {
        let (reference, subject) =
            tokio::join!(self.on_reference(clusters), self.case.play(clusters, cluster));
        let subject =
            subject.map_err(|error| format!("{} ({}): {error}", cluster.side.name(), self.case.from))?;
        Ok((reference?.differences(&subject), subject))
    }
}

async fn run(clusters: &Clusters, kind: &Kind) -> Result<(), String> {
    match kind {
        Kind::Rule(_) => Ok(()),
        Kind::Other { test, .. } => test(clusters).await,
        Kind::Scenario { scenario, side } => scenario.compare(clusters, *side).await,
        Kind::ScenariosDiffer { scenarios } => {
            let mut equal = Vec::new();
            for scenario in scenarios {
                if scenario.compare(clusters, Side::Bare).await.is_ok() {
                    equal.push(&scenario.name);
                }
            }
            if equal.is_empty() {
                Ok(())
            } else {
                Err(format!("without controllers, these cases have the same outcome: {equal:?}"))
            }
        }
        Kind::Compare { played, side } => {
            let (differences, subject) = played.differences(clusters, clusters.cluster(*side)?).await?;
            judge(&played.case, *side, &differences, &subject)
        }
        Kind::Differs { played } => {
            let cluster = clusters.cluster(Side::Bare)?;
            let mut equal = Vec::new();
            for played in played.iter().filter(|played| played.case.expect != Expect::Nothing) {
                let (differences, _) = played.differences(clusters, cluster).await?;
                if differences.is_empty() {
                    equal.push(played.case.name);
                }
            }
            if equal.is_empty() {
                Ok(())
            } else {
                Err(format!("without controllers, these cases have the same outcome: {equal:?}"))
            }
        }
    }
}

/// Fails if there are undeclared differences, or if a declared difference does not occur.
fn judge(case: &Case, side: Side, differences: &[String], subject: &Outcome) -> Result<(), String> {
    let report = || {
        let lines: Vec<String> = differences.iter().map(|each| format!("  - {each}")).collect();
        format!("the {} differs from the reference ({}):\n{}", side.name(), case.from, lines.join("\n"))
    };
    let Some(declared) = case.declared.filter(|_| side == Side::Gateway) else {
        return if differences.is_empty() { Ok(()) } else { Err(report()) };
    };
    explained(declared.id)?;
    if differences.is_empty() {
        return Err(format!("the declared difference {} no longer occurs", declared.id));
    }
    if subject.kind(case) != declared.expect {
        return Err(format!("the difference is not the one that {} declares: {}", declared.id, report()));
    }
    Ok(())
}

/// Tests that do not compare a case on two sides.
const OTHERS: &[(&str, &[Side], Other)] = &[
    ("gateway::pages::certificates", &[Side::Bare], |clusters| {
        pages::replay(clusters, "certificates").boxed_local()
    }),
    ("gateway::pages::bootstrap", &[Side::Bare], |clusters| {
        pages::replay(clusters, "bootstrap").boxed_local()
    }),
    ("gateway::cleaner", &[Side::Bare, Side::Gateway], |clusters| cleaner::compare(clusters).boxed_local()),
    ("gateway::trust_bundles", &[], |clusters| trust_bundles::published(clusters).boxed_local()),
    ("gateway::replicas::killed_in_turn", &[Side::Gateway], |clusters| {
        replicas::killed(clusters, "killed", ControllerKind::Gateways).boxed_local()
    }),
    ("gateway::replicas::racing", &[Side::Gateway], |clusters| {
        replicas::racing(clusters, "racing", ControllerKind::Gateways).boxed_local()
    }),
    ("gateway::pod_certificates::decisions", &[], |clusters| {
        pod_certificates::decisions(clusters).boxed_local()
    }),
    ("gateway::pod_certificates::node", &[], |clusters| pod_certificates::node(clusters).boxed_local()),
    ("gateway::pod_certificates::page", &[], |clusters| pod_certificates::page(clusters).boxed_local()),
    ("gateway::pod_certificates::racing", &[], |clusters| pod_certificates::racing(clusters).boxed_local()),
    ("gateway::pod_certificates::older_version", &[], |clusters| {
        pod_certificates::older_version(clusters).boxed_local()
    }),
    ("gateway::pod_certificates::key_of_older_version", &[], |clusters| {
        pod_certificates::key_of_older_version(clusters).boxed_local()
    }),
    ("gateway::pod_certificates::api_client", &[], |clusters| {
        pod_certificates::api_client(clusters).boxed_local()
    }),
    ("gateway::pod_certificates::missing_permission", &[], |clusters| {
        pod_certificates::missing_permission(clusters).boxed_local()
    }),
    ("gateway::volumes::written", &[], |clusters| volumes::written(clusters).boxed_local()),
    ("gateway::volumes::used", &[], |clusters| volumes::used(clusters).boxed_local()),
    ("gateway::volumes::renewed", &[], |clusters| volumes::renewed(clusters).boxed_local()),
    ("proof::same::replicas::killed_in_turn", &[Side::Second], |clusters| {
        replicas::killed(clusters, "proof-killed", ControllerKind::ControllerManagers).boxed_local()
    }),
    ("proof::same::replicas::racing", &[Side::Second], |clusters| {
        replicas::racing(clusters, "proof-racing", ControllerKind::ControllerManagers).boxed_local()
    }),
];

/// Tests of the harness: it must report differences.
const RULES: &[(&str, Rule)] = &[
    ("a difference fails", || fails(judge(&some(), Side::Gateway, &["x".to_owned()], &nothing()), "x")),
    ("no difference passes", || judge(&some(), Side::Gateway, &[], &nothing())),
    ("an unknown declaration fails", || {
        let case = some().declared("D-none", Expect::Nothing);
        fails(judge(&case, Side::Gateway, &["x".to_owned()], &nothing()), "not declared")
    }),
    ("a declaration does not cover the second reference", || {
        let case = some().declared("D-none", Expect::Nothing);
        fails(judge(&case, Side::Second, &["x".to_owned()], &nothing()), "x")
    }),
];

fn some() -> Case {
    crate::case::case("", "", "", &testkit::csr::Csr::new())
}

fn nothing() -> Outcome {
    Outcome { conditions: Vec::new(), certificate: None }
}

fn fails(result: Result<(), String>, with: &str) -> Result<(), String> {
    match result {
        Err(error) if error.contains(with) => Ok(()),
        Err(error) => Err(format!("it failed with another error: {error}")),
        Ok(()) => Err("it passed".to_owned()),
    }
}
