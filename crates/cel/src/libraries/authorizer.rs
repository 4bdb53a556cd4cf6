//! The authorizer: `authorizer.group('apps').resource('deployments').check('create').allowed()`.
//!
//! `check` calls no authorizer. It ends the evaluation with an access review, [`Halt::Review`], unless its decision is known;
//! the caller has it decided and evaluates again.

use std::sync::Arc;

use super::named_formats;
use crate::access::{AccessDecision, AccessReview, AccessTarget, ResourceTarget, ServiceAccount};
use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library};
use crate::native::Native;
use crate::price::{self, LIST, Price, STRUCT, tenth};
use crate::value::Datum;

/// The variable `authorizer`, for the user of the request or for a service account.
#[derive(Debug, Clone, Default)]
struct Authorizer(Option<Arc<ServiceAccount>>);

/// `authorizer.path(path)`.
#[derive(Debug)]
struct PathCheck {
    authorizer: Authorizer,
    path: Arc<str>,
}

/// `authorizer.group(group)`.
#[derive(Debug)]
struct GroupCheck {
    authorizer: Authorizer,
    group: Arc<str>,
}

/// `authorizer.group(group).resource(resource)`, and `authorizer.requestResource`.
#[derive(Debug, Clone)]
struct ResourceCheck {
    authorizer: Authorizer,
    target: ResourceTarget,
}

/// The result of a check.
#[derive(Debug)]
struct Decision(AccessDecision);

/// The functions of the authorizer, from Kubernetes.
#[derive(Debug)]
pub(crate) struct Authorizers;

const SIGNATURES: &str = "
path | kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.PathCheck
group | kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.GroupCheck
serviceAccount | kubernetes.authorization.Authorizer.(string, string) -> kubernetes.authorization.Authorizer
resource | kubernetes.authorization.GroupCheck.(string) -> kubernetes.authorization.ResourceCheck
subresource | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
namespace | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
name | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
fieldSelector | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
labelSelector | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck
check | kubernetes.authorization.PathCheck.(string) -> kubernetes.authorization.Decision | kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.Decision
allowed | kubernetes.authorization.Decision.() -> bool
reason | kubernetes.authorization.Decision.() -> string
errored | kubernetes.authorization.Decision.() -> bool
error | kubernetes.authorization.Decision.() -> string
";

impl Library for Authorizers {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    fn has_fixed_price(&self, function: &str) -> bool {
        function == "check"
    }

    // apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        Price::Units(match call.function {
            // A check is for two access reviews in an expression.
            "check" => 350_000,
            // A list, and for every two characters a requirement with a list.
            "fieldSelector" | "labelSelector" => {
                let text = call.size(1);
                text.div_ceil(2).saturating_mul(LIST + STRUCT).saturating_add(LIST + tenth(text))
            }
            _ => 1,
        })
    }

    // apiserver: pkg/cel/library/authz.go
    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let Some((Datum::Native(target), arguments)) = call.values.split_first() else {
            return Err(Halt::Unsuited);
        };
        let target = &**target;
        charge(evaluation, target, arguments)?;
        if let Some(authorizer) = target.downcast::<Authorizer>() {
            of_authorizer(authorizer, call.function, arguments)
        } else if let Some(check) = target.downcast::<GroupCheck>() {
            of_group(check, call.function, arguments)
        } else if let Some(check) = target.downcast::<PathCheck>() {
            match (call.function, arguments) {
                ("check", [Datum::String(verb)]) => {
                    review(evaluation, &check.authorizer, verb, AccessTarget::Path(check.path.to_string()))
                }
                _ => Err(Halt::Unsuited),
            }
        } else if let Some(check) = target.downcast::<ResourceCheck>() {
            of_resource(evaluation, check, call.function, arguments)
        } else if let (Some(Decision(decision)), []) = (target.downcast(), arguments) {
            decided(decision, call.function)
        } else {
            Err(Halt::Unsuited)
        }
    }
}

fn of_authorizer(authorizer: &Authorizer, function: &str, arguments: &[Datum]) -> EvalResult {
    let authorizer = authorizer.clone();
    Ok(match (function, arguments) {
        ("path", [Datum::String(path)]) => {
            if path.trim().is_empty() {
                return error("path must not be empty");
            }
            Datum::of_native(PathCheck { authorizer, path: Arc::clone(path) })
        }
        ("group", [Datum::String(group)]) => {
            Datum::of_native(GroupCheck { authorizer, group: Arc::clone(group) })
        }
        ("serviceAccount", [Datum::String(namespace), Datum::String(name)]) => {
            Datum::of_native(service_account(namespace, name)?)
        }
        _ => return Err(Halt::Unsuited),
    })
}

fn of_group(check: &GroupCheck, function: &str, arguments: &[Datum]) -> EvalResult {
    let ("resource", [Datum::String(resource)]) = (function, arguments) else { return Err(Halt::Unsuited) };
    if resource.trim().is_empty() {
        return error("resource must not be empty");
    }
    let target = ResourceTarget {
        group: check.group.to_string(),
        resource: resource.to_string(),
        ..ResourceTarget::default()
    };
    Ok(Datum::of_native(ResourceCheck { authorizer: check.authorizer.clone(), target }))
}

fn of_resource(
    evaluation: &mut Evaluation<'_>,
    check: &ResourceCheck,
    function: &str,
    arguments: &[Datum],
) -> EvalResult {
    let [Datum::String(value)] = arguments else { return Err(Halt::Unsuited) };
    if function == "check" {
        return review(evaluation, &check.authorizer, value, AccessTarget::Resource(check.target.clone()));
    }
    let mut check = ResourceCheck::clone(check);
    let ResourceTarget { subresource, namespace, name, field_selector, label_selector, .. } =
        &mut check.target;
    let attribute = match function {
        "subresource" => subresource,
        "namespace" => namespace,
        "name" => name,
        "fieldSelector" => field_selector,
        "labelSelector" => label_selector,
        _ => return Err(Halt::Unsuited),
    };
    *attribute = value.to_string();
    Ok(Datum::of_native(check))
}

/// Charges the texts that a call reads and copies. One unit in the reference, however long they are.
fn charge(evaluation: &mut Evaluation<'_>, target: &dyn Native, arguments: &[Datum]) -> Result<(), Halt> {
    let copied = if let Some(check) = target.downcast::<GroupCheck>() {
        check.group.len()
    } else if let Some(check) = target.downcast::<PathCheck>() {
        check.path.len()
    } else if let Some(check) = target.downcast::<ResourceCheck>() {
        check.target.size()
    } else if let Some(Decision(decision)) = target.downcast() {
        decision.reason.len() + decision.error.as_ref().map_or(0, String::len)
    } else {
        0
    };
    evaluation.charge(arguments.iter().map(price::size).fold(copied, usize::saturating_add) / 50)
}

fn service_account(namespace: &str, name: &str) -> Result<Authorizer, Halt> {
    if !named_formats::is_dns1123_subdomain(name) {
        return error("Invalid service account name");
    }
    if !named_formats::is_dns1123_label(namespace) {
        return error("Invalid service account namespace");
    }
    Ok(Authorizer(Some(Arc::new(ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() }))))
}

fn review(
    evaluation: &mut Evaluation<'_>,
    authorizer: &Authorizer,
    verb: &str,
    target: AccessTarget,
) -> EvalResult {
    let service_account = authorizer.0.as_deref().cloned();
    let review = AccessReview { service_account, verb: verb.to_owned(), target };
    match evaluation.decision(&review) {
        Some(decision) => Ok(Datum::of_native(Decision(decision.clone()))),
        None => Err(Halt::Review(Box::new(review))),
    }
}

fn decided(decision: &AccessDecision, fact: &str) -> EvalResult {
    Ok(match fact {
        "allowed" => Datum::Bool(decision.allowed),
        "reason" => Datum::string(&decision.reason),
        "errored" => Datum::Bool(decision.error.is_some()),
        "error" => Datum::string(decision.error.as_deref().unwrap_or_default()),
        _ => return Err(Halt::Unsuited),
    })
}

/// The values of `authorizer` and `authorizer.requestResource` for a request with these attributes.
pub(crate) fn variables(request: ResourceTarget) -> [Datum; 2] {
    let authorizer = Authorizer::default();
    let request = ResourceCheck { authorizer: authorizer.clone(), target: request };
    [Datum::of_native(authorizer), Datum::of_native(request)]
}

impl Native for Authorizer {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Authorizer"
    }

    fn go_type(&self) -> &'static str {
        "library.authorizerVal"
    }
}

impl Native for PathCheck {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.PathCheck"
    }

    fn go_type(&self) -> &'static str {
        "library.pathCheckVal"
    }
}

impl Native for GroupCheck {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.GroupCheck"
    }

    fn go_type(&self) -> &'static str {
        "library.groupCheckVal"
    }
}

impl Native for ResourceCheck {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.ResourceCheck"
    }

    fn go_type(&self) -> &'static str {
        "library.resourceCheckVal"
    }
}

impl Native for Decision {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }

    fn go_type(&self) -> &'static str {
        "library.decisionVal"
    }
}
