//! The authorizer: `authorizer.group('apps').resource('deployments').check('create').allowed()`.
//!
//! `check` does not ask anything itself. It ends the evaluation with a question, [`Halt::Ask`], unless the question has
//! been answered before; the caller answers it and evaluates again.

use std::sync::Arc;

use crate::eval::{EvalResult, Halt, Machine, error};
use crate::libraries::named_formats;
use crate::native::Native;
use crate::price;
use crate::value::Datum;

/// A question of an expression: may the user, or a service account, do this?
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessQuestion {
    /// The service account that the question is about; without one, the user of the request.
    pub service_account: Option<ServiceAccount>,
    /// The verb of the API or of HTTP.
    pub verb: String,
    /// What the verb applies to.
    pub target: AccessTarget,
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What a question is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AccessTarget {
    /// A path that is not a resource's.
    Path(String),
    /// A resource, in any version.
    Resource(ResourceTarget),
}

/// The attributes of a resource. Empty: any, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ResourceTarget {
    /// The API group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// A field selector, not parsed.
    pub field_selector: String,
    /// A label selector, not parsed.
    pub label_selector: String,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision {
    /// Whether the access is allowed.
    pub allowed: bool,
    /// The authorizer's reason.
    pub reason: String,
    /// Why the question could not be answered.
    pub error: Option<String>,
}

/// The variable `authorizer`, for the user of the request or for a service account.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authorizer(Option<Arc<ServiceAccount>>);

/// `authorizer.path(path)`.
#[derive(Debug)]
pub(crate) struct PathCheck {
    authorizer: Authorizer,
    path: Arc<str>,
}

/// `authorizer.group(group)`.
#[derive(Debug)]
pub(crate) struct GroupCheck {
    authorizer: Authorizer,
    group: Arc<str>,
}

/// `authorizer.group(group).resource(resource)`, and `authorizer.requestResource`.
#[derive(Debug, Clone)]
pub(crate) struct ResourceCheck {
    pub(crate) authorizer: Authorizer,
    pub(crate) target: ResourceTarget,
}

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Decision(AccessDecision);

// apiserver: pkg/cel/library/authz.go
pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    let Some((Datum::Native(target), arguments)) = values.split_first() else { return Err(Halt::Unsuited) };
    charge(machine, target, arguments)?;
    Ok(Datum::Native(match (target, function, arguments) {
        (Native::Authorizer(authorizer), "path", [Datum::String(path)]) => {
            if path.trim().is_empty() {
                return error("path must not be empty");
            }
            Native::PathCheck(Arc::new(PathCheck { authorizer: authorizer.clone(), path: Arc::clone(path) }))
        }
        (Native::Authorizer(authorizer), "group", [Datum::String(group)]) => {
            Native::GroupCheck(Arc::new(GroupCheck {
                authorizer: authorizer.clone(),
                group: Arc::clone(group),
            }))
        }
        (Native::Authorizer(_), "serviceAccount", [Datum::String(namespace), Datum::String(name)]) => {
            Native::Authorizer(service_account(namespace, name)?)
        }
        (Native::GroupCheck(check), "resource", [Datum::String(resource)]) => {
            if resource.trim().is_empty() {
                return error("resource must not be empty");
            }
            let target = ResourceTarget {
                group: check.group.to_string(),
                resource: resource.to_string(),
                ..ResourceTarget::default()
            };
            Native::ResourceCheck(Arc::new(ResourceCheck { authorizer: check.authorizer.clone(), target }))
        }
        (Native::PathCheck(check), "check", [Datum::String(verb)]) => {
            ask(machine, &check.authorizer, verb, AccessTarget::Path(check.path.to_string()))?
        }
        (Native::ResourceCheck(check), "check", [Datum::String(verb)]) => {
            ask(machine, &check.authorizer, verb, AccessTarget::Resource(check.target.clone()))?
        }
        (Native::ResourceCheck(check), attribute, [Datum::String(value)]) => {
            let mut check = ResourceCheck::clone(check);
            let ResourceTarget { subresource, namespace, name, field_selector, label_selector, .. } =
                &mut check.target;
            let field = match attribute {
                "subresource" => subresource,
                "namespace" => namespace,
                "name" => name,
                "fieldSelector" => field_selector,
                "labelSelector" => label_selector,
                _ => return Err(Halt::Unsuited),
            };
            *field = value.to_string();
            Native::ResourceCheck(Arc::new(check))
        }
        (Native::Decision(decision), fact, []) => return decided(&decision.0, fact),
        _ => return Err(Halt::Unsuited),
    }))
}

/// Charges the texts that a call reads and copies. One unit in the reference, however long they are.
fn charge(machine: &mut Machine<'_>, target: &Native, arguments: &[Datum]) -> Result<(), Halt> {
    let copied = match target {
        Native::GroupCheck(check) => check.group.len(),
        Native::PathCheck(check) => check.path.len(),
        Native::ResourceCheck(check) => check.target.size(),
        Native::Decision(decision) => {
            let Decision(decision) = &**decision;
            decision.reason.len() + decision.error.as_ref().map_or(0, String::len)
        }
        _ => 0,
    };
    machine.charge(arguments.iter().map(price::size).fold(copied, usize::saturating_add) / 50)
}

impl ResourceTarget {
    /// The length of all texts.
    fn size(&self) -> usize {
        let Self { group, resource, subresource, namespace, name, field_selector, label_selector } = self;
        let texts = [group, resource, subresource, namespace, name, field_selector, label_selector];
        texts.into_iter().map(String::len).fold(0, usize::saturating_add)
    }
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

fn ask(
    machine: &mut Machine<'_>,
    authorizer: &Authorizer,
    verb: &str,
    target: AccessTarget,
) -> Result<Native, Halt> {
    let service_account = authorizer.0.as_deref().cloned();
    let question = AccessQuestion { service_account, verb: verb.to_owned(), target };
    match machine.answer(&question) {
        Some(decision) => Ok(Native::Decision(Arc::new(Decision(decision.clone())))),
        None => Err(Halt::Ask(Box::new(question))),
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
