//! The type checker. Rejects the same expressions at load time as the reference.

mod fold;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::OnceLock;

use super::composition::VariableTypes;
use super::environment::{Environment, NotAnObject, ResultType, VARIABLES, field_names, field_type};
use super::faults::CompileFault;
use super::library::{LiteralCheck, Operand};
use super::registry::Callee;
use super::signatures::Overload;
use super::tree::{ExprNode, FieldNode, NodeKind, Selection};
use super::types::{Solution, Type};
use super::value::{Datum, JSON_PATCH};

/// Checks an expression against its environment and the type that its result must have.
pub(super) fn check(
    tree: &ExprNode,
    environment: Environment,
    variables: &VariableTypes,
    required: ResultType,
) -> Result<Type, CompileFault> {
    let mut checker = Checker::new(environment, variables);
    let result = checker.node(tree)?;
    let result = checker.solution.solve(&result, true);
    if let Some(fault) = checker.unequal_literals().into_iter().next() {
        return Err(fault);
    }
    for (at, used) in std::mem::take(&mut checker.uses) {
        if checker.solution.solve(&used, true).parts().0 == "type" {
            return fault(at, "a variable cannot stand for a type");
        }
    }
    checker.check_literals()?;
    let permitted = required.permitted();
    if permitted.is_empty() || permitted.contains(&result) {
        return checker.later.map_or(Ok(result), Err);
    }
    let permitted = required.named().map_or(permitted, |named| vec![named]);
    // Not as it displays `null`: the reference formats a list of types here.
    let names: Vec<&str> = permitted.iter().map(|permitted| permitted.parts().0).collect();
    let mut text = match names.as_slice() {
        [_] => {
            let text = permitted.first().map(Type::to_string).unwrap_or_default();
            format!("must evaluate to {text}")
        }
        names => format!("must evaluate to one of [{}]", names.join(" ")),
    };
    if environment.names_wrong_result {
        write!(text, " but got {result:#}").ok();
    }
    Err(CompileFault::of_whole(text))
}

/// Checks an expression of which `object` is known, and returns all its errors. The result may have any type.
pub(super) fn check_object(
    tree: &ExprNode,
    environment: Environment,
    variables: &VariableTypes,
    object: &Type,
) -> Result<Type, Vec<CompileFault>> {
    let mut checker = Checker::new(environment, variables);
    checker.object = Some(object);
    checker.faults = Some(Vec::new());
    let result = checker.node(tree).map_err(|fault| vec![fault])?;
    let mut faults = checker.faults.take().unwrap_or_default();
    if faults.is_empty() {
        faults.extend(checker.unequal_literals());
    }
    if faults.is_empty() {
        faults.extend(checker.check_literals().err());
    }
    if faults.is_empty() { Ok(checker.solution.solve(&result, true)) } else { Err(faults) }
}

/// The variables that are objects of the kind that a policy is about.
const OBJECTS: [&str; 2] = ["object", "oldObject"];

fn fault<T>(at: usize, text: impl Into<String>) -> Result<T, CompileFault> {
    Err(CompileFault::new(at, text))
}

struct Checker<'a> {
    environment: Environment,
    variables: &'a VariableTypes,
    /// The type of `object` and `oldObject`, if it is known.
    object: Option<&'a Type>,
    /// The errors so far; `None` if the first one ends the check.
    faults: Option<Vec<CompileFault>>,
    /// The variables of macros, the innermost last.
    scope: Vec<(&'a str, Type)>,
    solution: Solution,
    /// Elements of list and map literals that must turn out to be of one type.
    literals: Vec<LiteralElement>,
    /// Uses of the variables of macros.
    uses: Vec<(usize, Type)>,
    /// Calls of functions that check their literal list.
    checked_lists: Vec<(&'a ExprNode, LiteralCheck)>,
    /// How many of these calls the current node is part of.
    within_checked: usize,
    /// The types of the nodes there.
    checked_types: HashMap<*const ExprNode, Type>,
    /// The first error that the reference has after those of types.
    later: Option<CompileFault>,
}

/// An element of a list or map literal, after the first one.
struct LiteralElement {
    at: usize,
    /// The place of the list, of which only the first fault counts; `None` of a map.
    list: Option<usize>,
    first: Type,
    found: Type,
}

impl<'a> Checker<'a> {
    fn new(environment: Environment, variables: &'a VariableTypes) -> Self {
        Self {
            environment,
            variables,
            object: None,
            faults: None,
            scope: Vec::new(),
            solution: Solution::default(),
            literals: Vec::new(),
            uses: Vec::new(),
            checked_lists: Vec::new(),
            within_checked: 0,
            checked_types: HashMap::new(),
            later: None,
        }
    }

    /// Notes an error and goes on, unless the first one ends the check.
    fn note(&mut self, fault: CompileFault) -> Result<Type, CompileFault> {
        match &mut self.faults {
            None => Err(fault),
            Some(faults) => {
                faults.push(fault);
                Ok(Type::ERROR)
            }
        }
    }

    fn node(&mut self, node: &'a ExprNode) -> Result<Type, CompileFault> {
        let (outside, within_checked) = (self.scope.len(), self.within_checked);
        let found = match self.infer(node) {
            Ok(found) => found,
            Err(fault) => {
                self.scope.truncate(outside);
                self.within_checked = within_checked;
                self.note(fault)?
            }
        };
        if self.within_checked > 0 {
            self.checked_types.insert(std::ptr::from_ref(node), found.clone());
        }
        Ok(found)
    }

    fn infer(&mut self, node: &'a ExprNode) -> Result<Type, CompileFault> {
        match &node.kind {
            NodeKind::Literal(value) => Ok(Type::of(value)),
            NodeKind::Name(name) => self.name(name, node.at),
            NodeKind::Select { operand, field, how, of_message } => {
                self.select(node.at, operand, (field, *how), of_message)
            }
            NodeKind::Message(name, fields) => self.message(node.at, name, fields),
            NodeKind::Call { function, target, arguments, callee } => {
                let mut given = Vec::new();
                let declared = self.environment.functions().find(function);
                let literal_check = declared.and_then(|function| function.literal_check);
                self.checked_lists.extend(literal_check.map(|check| (node, check)));
                self.within_checked += usize::from(literal_check.is_some());
                for part in target.iter().map(|target| &**target).chain(arguments) {
                    given.push(self.node(part)?);
                }
                self.within_checked -= usize::from(literal_check.is_some());
                let (result, resolved) = self.resolve(node.at, function, &given, target.is_some())?;
                // A tree is checked once.
                callee.set(resolved).ok();
                Ok(result)
            }
            NodeKind::List(elements) => {
                let mut joined = None;
                let mut first = None;
                for (element, optional) in elements {
                    let found = self.node(element)?;
                    self.element(&mut joined, &mut first, (element.at, Some(node.at)), found, *optional)?;
                }
                let element = joined.unwrap_or_else(|| self.solution.fresh());
                Ok(Type::list(element))
            }
            NodeKind::Map(entries) => {
                let (mut keys, mut values, mut first_key, mut first_value) = (None, None, None, None);
                for (key, value, optional) in entries {
                    let found = self.node(key)?;
                    self.element(&mut keys, &mut first_key, (key.at, None), found, false)?;
                    let found = self.node(value)?;
                    self.element(&mut values, &mut first_value, (value.at, None), found, *optional)?;
                }
                let key = keys.unwrap_or_else(|| self.solution.fresh());
                let value = values.unwrap_or_else(|| self.solution.fresh());
                Ok(Type::map(key, value))
            }
            NodeKind::And(operands) | NodeKind::Or(operands) => {
                for operand in operands {
                    self.boolean(operand)?;
                }
                Ok(Type::BOOL)
            }
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let parts = [self.node(condition)?, self.node(yes)?, self.node(no)?];
                self.conditional(node.at, &parts)
            }
            NodeKind::Fold(fold) => self.fold(node.at, fold),
            NodeKind::Member(..) => Ok(Type::BOOL),
            NodeKind::WithOptional { target, variable, body, flat } => {
                let held = self.node(target)?;
                self.resolve(target.at, "hasValue", std::slice::from_ref(&held), true)?;
                let (held, _) = self.resolve(target.at, "value", &[held], true)?;
                self.scope.push((variable, held));
                let body = self.node(body)?;
                self.scope.pop();
                let full = if *flat { body } else { Type::optional(body) };
                let empty = Type::optional(self.solution.fresh());
                self.conditional(node.at, &[Type::BOOL, full, empty])
            }
        }
    }

    fn name(&mut self, name: &str, at: usize) -> Result<Type, CompileFault> {
        // Names keep a leading dot only where they are not the variables of macros.
        let global = name.strip_prefix('.').unwrap_or(name);
        let local = self.scope.iter().rev().find(|(known, _)| *known == name);
        if let Some((_, found)) = local {
            self.uses.push((at, found.clone()));
            return Ok(found.clone());
        }
        if let Some(made) = self.environment.message_type(global) {
            self.later.get_or_insert(CompileFault::undefined_type(global));
            return Ok(Type::Named("type", vec![made]));
        }
        if let Some(object) = self.object.filter(|_| OBJECTS.contains(&global))
            && self.environment.declares(global)
        {
            return Ok(object.clone());
        }
        self.environment.variable(global).ok_or_else(|| {
            CompileFault::new(at, format!("undeclared reference to '{name}' (in container '')"))
                .with_fix(format!("the variables are: {}", self.environment.names()))
        })
    }

    fn select(
        &mut self,
        at: usize,
        operand: &'a ExprNode,
        (field, how): (&str, Selection),
        of_message: &OnceLock<()>,
    ) -> Result<Type, CompileFault> {
        let target = self.node(operand)?;
        let (target, was_optional) = self.solution.solve(&target, false).unwrapped();
        if !was_optional && matches!(target, Type::Object(_)) {
            // A tree is checked once.
            of_message.set(()).ok();
        }
        let found = match &target {
            Type::Named("map", parameters) => parameters.get(1).cloned().unwrap_or(Type::DYN),
            Type::Parameter(_) => {
                self.solution.assign(&Type::DYN, &target);
                Type::DYN
            }
            dynamic @ Type::Named(..) if dynamic.is_unknown() => Type::DYN,
            Type::Named(VARIABLES, _) => {
                let variables = self.variables;
                let fix = || format!("the variables are: {}", variables.names());
                self.field(variables.get(field).cloned(), (at, field), fix)?
            }
            Type::Object(_) => Type::DYN,
            Type::Declared(object) => {
                let fix = || format!("the fields of {target} are: {}", object.names());
                self.field(object.field(field), (at, field), fix)?
            }
            other @ Type::Named(name, _) => match field_type(name, field) {
                Ok(Some(found)) => found,
                // It has a type which is none.
                Ok(None) if *name == JSON_PATCH && how == Selection::Test => Type::DYN,
                Ok(None) if *name == JSON_PATCH => {
                    let text = "unexpected compilation error: missing type conversion to proto: ";
                    let fault = CompileFault::of_whole(text);
                    self.later.get_or_insert(
                        fault.with_fix(format!("the fields of {name} are: {}", field_names(name))),
                    );
                    Type::DYN
                }
                Ok(None) => {
                    let fix = || format!("the fields of {name} are: {}", field_names(name));
                    self.field(None, (at, field), fix)?
                }
                Err(NotAnObject) => {
                    let text = format!("type '{other}' does not support field selection");
                    self.note(CompileFault::new(at, text))?;
                    Type::DYN
                }
            },
        };
        Ok(match how {
            Selection::Test => Type::BOOL,
            Selection::Optional => Type::optional(found),
            Selection::Plain if was_optional => Type::optional(found),
            Selection::Plain => self.solution.solve(&found, false),
        })
    }

    /// The type of a field, or the error that there is none.
    fn field(
        &mut self,
        found: Option<Type>,
        (at, name): (usize, &str),
        fix: impl FnOnce() -> String,
    ) -> Result<Type, CompileFault> {
        if let Some(found) = found {
            return Ok(found);
        }
        let fault = CompileFault::new(at, format!("undefined field '{name}'"));
        // That of the first fault is shown.
        let is_first = self.faults.as_ref().is_none_or(Vec::is_empty);
        self.note(if is_first { fault.with_fix(fix()) } else { fault })
    }

    /// The type of an object, whose fields must have the types that it declares.
    // cel-go: checker/checker.go — checkCreateStruct
    fn message(&mut self, at: usize, name: &str, fields: &'a [FieldNode]) -> Result<Type, CompileFault> {
        let Some(made) = self.environment.message_type(name) else {
            return fault(at, format!("undeclared reference to '{name}' (in container '')"));
        };
        for FieldNode { name: field, value, optional, at } in fields {
            let mut given = self.node(value)?;
            if *optional {
                let (held, was_optional) = self.solution.solve(&given, false).unwrapped();
                if !was_optional && !held.is_dynamic() {
                    return fault(
                        value.at,
                        format!("expected type 'optional_type({held})' but found '{held}'"),
                    );
                }
                given = held;
            }
            let declared = match &made {
                Type::Named(name, _) => match field_type(name, field) {
                    Ok(Some(declared)) => declared,
                    // Its type is none, to which only values of any type are assignable.
                    _ if given.is_dynamic() => continue,
                    _ => {
                        let given = self.solution.solve(&given, true);
                        let text =
                            format!("expected type of field '{field}' is '' but provided type is '{given}'");
                        let fix = format!("the fields of {name} are: {}", field_names(name));
                        return Err(CompileFault::new(*at, text).with_fix(fix));
                    }
                },
                _ => continue,
            };
            if !self.solution.assign(&given, &declared) {
                let given = self.solution.solve(&given, true);
                let text = format!(
                    "expected type of field '{field}' is '{declared}' but provided type is '{given}'"
                );
                return fault(*at, text);
            }
        }
        Ok(made)
    }

    /// The result type of the overloads that accept the given types, and the function with the overload if only one does.
    fn resolve(
        &mut self,
        at: usize,
        function: &str,
        given: &[Type],
        member: bool,
    ) -> Result<(Type, Callee), CompileFault> {
        let functions = self.environment.functions();
        let Some(declared) = functions.find(function) else {
            return Err(CompileFault::undeclared_function(at, function, functions.names()));
        };
        let overloads = declared.overloads.as_slice();
        let mut result: Option<Type> = None;
        let mut only = None;
        for overload in overloads.iter().filter(|overload| overload.member == member) {
            let fresh = self.instance(overload);
            if !self.solution.assign_all(given, &fresh.parameters) {
                continue;
            }
            let found = self.solution.solve(&fresh.result, false);
            only = if result.is_none() { Some(overload) } else { None };
            result = Some(match result {
                None => found,
                Some(before) if before.is_dynamic() || before == found => before,
                Some(_) => Type::DYN,
            });
        }
        result.map(|found| (found, Callee::new(declared, only))).ok_or_else(|| {
            let given: Vec<String> =
                given.iter().map(|part| self.solution.solve(part, true).to_string()).collect();
            let applied = match given.split_first() {
                Some((target, arguments)) if member => format!("{target}.({})", arguments.join(", ")),
                _ => format!("({})", given.join(", ")),
            };
            let text = format!("found no matching overload for '{function}' applied to '{applied}'");
            let declared: Vec<String> = overloads.iter().map(ToString::to_string).collect();
            CompileFault::new(at, text)
                .with_fix(format!("'{function}' is declared as: {}", declared.join(" | ")))
        })
    }

    /// Instantiates an overload with fresh type parameters.
    fn instance(&mut self, overload: &Overload) -> Overload {
        let mut renamed = Vec::new();
        let parameters = overload.parameters.iter().map(|part| self.renamed(part, &mut renamed)).collect();
        let result = self.renamed(&overload.result, &mut renamed);
        Overload { member: overload.member, parameters, result }
    }

    fn renamed(&mut self, part: &Type, renamed: &mut Vec<(u32, Type)>) -> Type {
        match part {
            Type::Parameter(letter) => {
                if let Some((_, known)) = renamed.iter().find(|(known, _)| known == letter) {
                    return known.clone();
                }
                let fresh = self.solution.fresh();
                renamed.push((*letter, fresh.clone()));
                fresh
            }
            Type::Named(name, parameters) => {
                Type::Named(name, parameters.iter().map(|part| self.renamed(part, renamed)).collect())
            }
            Type::Object(_) | Type::Declared(_) => part.clone(),
        }
    }

    /// Adds an element to a literal, whose elements must have one type.
    fn element(
        &mut self,
        joined: &mut Option<Type>,
        first: &mut Option<Type>,
        (at, list): (usize, Option<usize>),
        found: Type,
        optional: bool,
    ) -> Result<(), CompileFault> {
        let found = if optional {
            match found.unwrapped() {
                (held, true) => held,
                // The reference ends in a panic, except in the arguments of a format.
                (other, false) if other.is_dynamic() && self.within_checked > 0 => other,
                (other, false) => {
                    return fault(at, format!("expected type 'optional_type({other})' but found '{other}'"));
                }
            }
        } else {
            found
        };
        match first {
            None => *first = Some(found.clone()),
            // The arguments of a format may be of different types.
            Some(_) if self.within_checked > 0 => {}
            Some(first) => {
                let (first, found) = (first.clone(), found.clone());
                self.literals.push(LiteralElement { at, list, first, found });
            }
        }
        *joined = Some(match joined.take() {
            None => found,
            Some(before) if self.solution.assign(&before, &found) => before.most_general(found),
            // The elements of literals are compared at the end.
            Some(_) if self.within_checked > 0 || self.faults.is_some() => Type::DYN,
            Some(before) => {
                let (before, found) = (self.solution.solve(&before, true), self.solution.solve(&found, true));
                return fault(at, format!("expected type '{before}' but found '{found}'"));
            }
        });
        Ok(())
    }

    /// Elements of literals that are not of one type, when all types are known.
    // cel-go: cel/validator.go — homogeneousAggregateLiteralValidator
    fn unequal_literals(&mut self) -> Vec<CompileFault> {
        let mut faulty_lists = HashSet::new();
        let mut faults = Vec::new();
        for LiteralElement { at, list, first, found } in std::mem::take(&mut self.literals) {
            let (first, found) = (self.solution.solve(&first, true), self.solution.solve(&found, true));
            if first != found && list.is_none_or(|list| faulty_lists.insert(list)) {
                faults.push(CompileFault::new(at, format!("expected type '{first}' but found '{found}'")));
            }
        }
        faults
    }

    /// Checks the calls with literal lists, when all types are known.
    fn check_literals(&self) -> Result<(), CompileFault> {
        for (node, check) in &self.checked_lists {
            if let NodeKind::Call { target: Some(target), arguments, .. } = &node.kind
                && let NodeKind::Literal(Datum::String(text)) = &target.kind
                && let [ExprNode { kind: NodeKind::List(list), .. }] = arguments.as_slice()
            {
                let operands: Vec<Operand> = list.iter().map(|(element, _)| self.operand(element)).collect();
                check(node.at, text, &operands)?;
            }
        }
        Ok(())
    }

    fn operand(&self, node: &ExprNode) -> Operand {
        let found = self.checked_types.get(&std::ptr::from_ref(node));
        let parts = match &node.kind {
            NodeKind::List(_) | NodeKind::Map(_) => node.children(),
            _ => Vec::new(),
        };
        Operand {
            at: node.at,
            kind: found.map_or(Type::DYN, |found| self.solution.solve(found, true)),
            elements: parts.into_iter().map(|part| self.operand(part)).collect(),
        }
    }

    fn boolean(&mut self, node: &'a ExprNode) -> Result<(), CompileFault> {
        let found = self.node(node)?;
        if self.solution.assign(&found, &Type::BOOL) {
            return Ok(());
        }
        let found = self.solution.solve(&found, true);
        self.note(CompileFault::new(node.at, format!("expected type 'bool' but found '{found}'")))?;
        Ok(())
    }

    fn conditional(&mut self, at: usize, parts: &[Type; 3]) -> Result<Type, CompileFault> {
        let result = self.solution.fresh();
        if self.solution.assign_all(parts, &[Type::BOOL, result.clone(), result.clone()]) {
            return Ok(self.solution.solve(&result, false));
        }
        let given: Vec<String> =
            parts.iter().map(|part| self.solution.solve(part, true).to_string()).collect();
        fault(at, format!("found no matching overload for '_?_:_' applied to '({})'", given.join(", ")))
    }
}
