mod rules;
mod selectors;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector as WireSelector, Status};
use portcullis_cel::{AccessDecision, AccessReview};
use serde_json::{Value, json};

use super::*;
use crate::InlineCost;
use crate::phases::ShadowCall;
use crate::review::ReviewRequest;
use crate::{
    CallError, Caller, Event, FailurePolicy, GroupVersionResource, MatchPolicy, NoConversions, Objects,
    ReinvocationPolicy, ReviewVersion, Rule, Scope, SideEffects, UserInfo, WebhookKind, WebhookResponse,
};

/// A gateway with namespaces and an authorizer, which writes down what it is asked for.
#[derive(Default)]
struct Fake {
    namespaces: HashMap<&'static str, Value>,
    /// The verbs that are allowed.
    allowed: &'static [&'static str],
    log: Mutex<Vec<String>>,
}

impl Caller for Fake {
    async fn call(&self, _: &Webhook, _: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        unreachable!("matching calls no webhook")
    }

    fn note(&self, event: Event<'_>) {
        self.log.lock().unwrap().push(match event {
            Event::ConditionFailed(of, operation) => format!("failed {} {operation}", of.name()),
            Event::ConditionExcluded(webhook, operation) => format!("excluded {} {operation}", webhook.name),
            Event::ConditionsEvaluated(of, operation, took) => {
                assert!(took < Duration::from_mins(1));
                format!("evaluated {} {operation}", of.name())
            }
            other => unreachable!("{other:?}"),
        });
    }
}

impl Surroundings for Fake {
    fn inline_cost(&self) -> &InlineCost {
        static SPENT: std::sync::LazyLock<InlineCost> = std::sync::LazyLock::new(InlineCost::default);
        &SPENT
    }

    async fn namespace_labels(&self, namespace: &str) -> Result<BTreeMap<String, String>, MatchError> {
        self.log.lock().unwrap().push(format!("namespace {namespace}"));
        match self.namespaces.get(namespace) {
            Some(labels) => Ok(serde_json::from_value(labels.clone()).unwrap()),
            None => Err(MatchError::Configuration(Box::new(Status {
                code: Some(404),
                message: Some(format!("namespaces \"{namespace}\" not found")),
                ..Status::default()
            }))),
        }
    }

    async fn authorize(&self, review: &AccessReview) -> Result<AccessDecision, Box<Status>> {
        self.log.lock().unwrap().push(format!("authorize {review:?}"));
        Ok(AccessDecision {
            allowed: self.allowed.contains(&review.verb.as_str()),
            reason: String::new(),
            error: None,
        })
    }

    fn is_late(&self) -> bool {
        false
    }

    async fn shadow(&self, _: ShadowCall) {
        unreachable!("matching calls no webhook")
    }
}

impl Fake {
    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

fn webhook(rules: Vec<Rule>) -> Webhook {
    Webhook {
        shadow: false,
        configuration: "c".to_owned(),
        name: "w.example.com".to_owned(),
        kind: WebhookKind::Validating,
        url: "https://w.example.com".to_owned(),
        ca_bundle: Vec::new(),
        rules,
        failure_policy: FailurePolicy::Fail,
        match_policy: MatchPolicy::Exact,
        namespace_selector: LabelSelector::default(),
        object_selector: LabelSelector::default(),
        side_effects: SideEffects::None,
        timeout: Duration::from_secs(10),
        review_version: ReviewVersion::V1,
        match_conditions: Vec::new(),
        reinvocation_policy: ReinvocationPolicy::Never,
    }
}

fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> Rule {
    Rule {
        resource_names: Vec::new(),
        operations: None,
        api_groups: strings(groups),
        api_versions: strings(versions),
        resources: strings(resources),
        scope: Scope::All,
    }
}

fn any_rule() -> Rule {
    rule(&["*"], &["*"], &["*"])
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn attributes(group: &str, version: &str, resource: &str, subresource: &str) -> Attributes {
    Attributes {
        operation: Operation::Create,
        kind: GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: format!("k{resource}"),
        },
        resource: GroupVersionResource {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
        },
        subresource: subresource.to_owned(),
        name: "name".to_owned(),
        namespace: "ns".to_owned(),
        user: UserInfo::default(),
        dry_run: false,
        options: None,
    }
}

fn selector(wire: Value) -> LabelSelector {
    LabelSelector::new(&serde_json::from_value::<WireSelector>(wire).unwrap()).unwrap()
}

/// What is to be done with a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Skip,
    Call,
    /// It expects another form of the objects.
    Convert,
}

fn should_call(
    webhook: &Webhook,
    attributes: &Attributes,
    objects: &Objects,
    fake: &Fake,
) -> Result<Verdict, Box<Status>> {
    let matcher = RequestMatcher::new(attributes, &NoConversions);
    verdict(&matcher, webhook, &shared(objects), fake)
}

fn verdict(
    matcher: &RequestMatcher<'_, NoConversions>,
    webhook: &Webhook,
    objects: &SharedObjects,
    fake: &Fake,
) -> Result<Verdict, Box<Status>> {
    match finish(matcher.matches(webhook, objects, fake))? {
        RuleMatch::No => return Ok(Verdict::Skip),
        RuleMatch::Exact => {}
        RuleMatch::Equivalent(_) | RuleMatch::Possible => return Ok(Verdict::Convert),
    }
    let seen = ConditionObjects { kind: &matcher.attributes.kind, objects, bindings: &OnceLock::new() };
    let holds = finish(matcher.conditions_hold(webhook, seen, fake))?;
    Ok(if holds { Verdict::Call } else { Verdict::Skip })
}

fn shared(objects: &Objects) -> SharedObjects {
    SharedObjects::take(&mut objects.clone())
}

/// The fake answers at once.
fn finish<T>(future: impl Future<Output = T> + Send) -> T {
    future.now_or_never().unwrap()
}
