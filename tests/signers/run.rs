//! Turns the cases into tests, plays each on the reference and on a subject, and judges what is different.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::sync::OnceCell;

use crate::case::{Case, Expect, Outcome, explained};
use crate::clusters::{Cluster, Clusters, SharedClusters, Side};
use crate::replicas::Who;
use crate::scenario::Scenario;
use crate::{authorities, cases, cleaner, cluster_info, kubelet, pages, replicas, tokens};

/// A case, and what became of it on the reference, which is asked once.
struct Played {
    case: Case,
    reference: OnceCell<Result<Outcome, String>>,
}

enum Kind {
    /// One case on the reference and on another side.
    Compare {
        played: Arc<Played>,
        side: Side,
    },
    /// Every case of a group in which something happens differs where no controller runs.
    Differs {
        played: Vec<Arc<Played>>,
    },
    /// The same of what is not about certificate requests.
    Scenario {
        scenario: Arc<Scenario>,
        side: Side,
    },
    ScenariosDiffer {
        scenarios: Vec<Arc<Scenario>>,
    },
    /// A test of its own, and the clusters that it needs.
    Other {
        test: Other,
        sides: &'static [Side],
    },
    /// The harness fails where it should.
    Rule(Rule),
}

type Rule = fn() -> Result<(), String>;

type Other = for<'a> fn(&'a Clusters) -> LocalBoxFuture<'a, Result<(), String>>;

struct Planned {
    name: String,
    kind: Kind,
}

pub(crate) struct Plan {
    planned: Vec<Planned>,
}

impl Plan {
    /// The tests that the arguments select.
    pub(crate) fn new(arguments: &Arguments) -> Self {
        let played: Vec<Arc<Played>> = cases::all()
            .into_iter()
            .map(|case| Arc::new(Played { case, reference: OnceCell::new() }))
            .collect();
        let mut planned = Vec::new();
        for (prefix, side) in [("gateway", Side::Gateway), ("proof::same", Side::Second)] {
            for played in &played {
                let name = format!("{prefix}::{}::{}", played.case.group, test_name(played.case.name));
                planned.push(Planned { name, kind: Kind::Compare { played: Arc::clone(played), side } });
            }
        }
        let groups: BTreeSet<&str> = played.iter().map(|played| played.case.group).collect();
        for group in groups {
            let played = played.iter().filter(|played| played.case.group == group).map(Arc::clone).collect();
            planned
                .push(Planned { name: format!("proof::differs::{group}"), kind: Kind::Differs { played } });
        }
        plan_scenarios(&mut planned);
        for (name, sides, test) in OTHERS {
            planned.push(Planned { name: (*name).to_owned(), kind: Kind::Other { test: *test, sides } });
        }
        for (name, rule) in RULES {
            planned.push(Planned {
                name: format!("proof::rules::{}", test_name(name)),
                kind: Kind::Rule(*rule),
            });
        }
        let mut names = BTreeSet::new();
        for test in &planned {
            assert!(names.insert(test.name.clone()), "two tests are called {}", test.name);
        }
        planned.retain(|test| selected(arguments, &test.name));
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
        let trial = |test: Planned| {
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

fn plan_scenarios(planned: &mut Vec<Planned>) {
    let scenarios =
        [tokens::scenarios(), cluster_info::scenarios(), kubelet::scenarios(), authorities::scenarios()];
    for group in scenarios {
        let group: Vec<Arc<Scenario>> = group.into_iter().map(Arc::new).collect();
        for (prefix, side) in [("gateway", Side::Gateway), ("proof::same", Side::Second)] {
            planned.extend(group.iter().map(|scenario| Planned {
                name: format!("{prefix}::{}::{}", scenario.group, test_name(&scenario.name)),
                kind: Kind::Scenario { scenario: Arc::clone(scenario), side },
            }));
        }
        if let Some(first) = group.first() {
            let name = format!("proof::differs::{}", first.group);
            let scenarios = group.iter().filter(|scenario| scenario.acts).map(Arc::clone).collect();
            planned.push(Planned { name, kind: Kind::ScenariosDiffer { scenarios } });
        }
    }
}

/// The filter of libtest-mimic, which it does not export; it is applied here to know which servers to start.
pub(crate) fn selected(arguments: &Arguments, name: &str) -> bool {
    let matches = |filter: &String| {
        if arguments.exact { name == filter } else { name.contains(filter.as_str()) }
    };
    arguments.filter.as_ref().is_none_or(&matches) && !arguments.skip.iter().any(matches)
}

pub(crate) fn test_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect()
}

impl Played {
    /// What becomes of it on the reference: it must be what the case says.
    async fn on_reference(&self, clusters: &Clusters) -> Result<&Outcome, String> {
        let play = async || {
            let outcome = self.case.play(clusters, clusters.cluster(Side::Reference)?).await?;
            let kind = outcome.kind(&self.case);
            if kind != self.case.expect {
                return Err(format!("it is {kind:?}, the case says {:?}: {outcome:?}", self.case.expect));
            }
            match &outcome.certificate {
                Some(Err(wrong)) if kind == Expect::Issued => Err(wrong.clone()),
                _ => Ok(outcome),
            }
        };
        let told = |error: &String| {
            format!("the reference does not do what the case says ({}): {error}", self.case.from)
        };
        self.reference.get_or_init(play).await.as_ref().map_err(told)
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
                Err(format!("without controllers, these are equal: {equal:?}"))
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
                Err(format!("without controllers, these are equal: {equal:?}"))
            }
        }
    }
}

/// Differences are a failure unless they are declared; a declared difference that does not occur is one too.
fn judge(case: &Case, side: Side, differences: &[String], subject: &Outcome) -> Result<(), String> {
    let told = || {
        let lines: Vec<String> = differences.iter().map(|each| format!("  - {each}")).collect();
        format!("the {} differs from the reference ({}):\n{}", side.name(), case.from, lines.join("\n"))
    };
    let Some(declared) = case.declared.filter(|_| side == Side::Gateway) else {
        return if differences.is_empty() { Ok(()) } else { Err(told()) };
    };
    explained(declared.id)?;
    if differences.is_empty() {
        return Err(format!("the declared difference {} no longer occurs", declared.id));
    }
    if subject.kind(case) != declared.expect {
        return Err(format!("not the difference that {} declares: {}", declared.id, told()));
    }
    Ok(())
}

/// Those that are not a case played on two sides.
const OTHERS: &[(&str, &[Side], Other)] = &[
    ("gateway::pages::certificates", &[Side::Bare], |clusters| {
        pages::replay(clusters, "certificates").boxed_local()
    }),
    ("gateway::pages::bootstrap", &[Side::Bare], |clusters| {
        pages::replay(clusters, "bootstrap").boxed_local()
    }),
    ("gateway::cleaner", &[Side::Bare, Side::Gateway], |clusters| cleaner::compare(clusters).boxed_local()),
    ("gateway::replicas::killed_in_turn", &[Side::Gateway], |clusters| {
        replicas::killed(clusters, "killed", Who::Gateways).boxed_local()
    }),
    ("gateway::replicas::racing", &[Side::Gateway], |clusters| {
        replicas::racing(clusters, "racing", Who::Gateways).boxed_local()
    }),
    ("proof::same::replicas::killed_in_turn", &[Side::Second], |clusters| {
        replicas::killed(clusters, "proof-killed", Who::ControllerManagers).boxed_local()
    }),
    ("proof::same::replicas::racing", &[Side::Second], |clusters| {
        replicas::racing(clusters, "proof-racing", Who::ControllerManagers).boxed_local()
    }),
];

/// The harness must fail where it should.
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
        Err(error) => Err(format!("it failed otherwise: {error}")),
        Ok(()) => Err("it passed".to_owned()),
    }
}
