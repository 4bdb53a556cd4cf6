//! The evaluator: walks the tree of an expression.
//!
//! It evaluates the operators that are not functions (conditions, selections, macros), and calls all others as the checker
//! resolved them ([`Callee`]).

mod fold;
mod selection;

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_go::quote::Quoted;

use super::access::{AccessDecision, AccessReview};
use super::cel_go::Rules;
use super::composition::VariableValues;
use super::environment::VARIABLES;
use super::evaluation::{
    EvalResult, Evaluation, Extent, Halt, Spent, error, no_such_overload, sound, unsupported,
};
use super::go_form::{Converter, GoValue};
use super::patterns::Patterns;
use super::price::{self, LIST, MAP, STRUCT};
use super::registry::Callee;
use super::tree::{ExprNode, FieldNode, NodeKind, Selection};
use super::value::{Datum, JSON_PATCH, MapKey, Message, MessageKind};
use selection::Reached;

/// The evaluator of one expression.
pub(super) struct Evaluator<'a> {
    /// The variables in scope, innermost last.
    scope: Vec<(&'a str, Datum)>,
    /// How many of them are those of the environment, not of macros.
    globals: usize,
    /// Those of a policy's variables that are known.
    values: &'a VariableValues,
    evaluation: Evaluation<'a>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        rules: &'static Rules,
        variables: &'a [(&'static str, Datum)],
        patterns: &'a Patterns,
        (decisions, values): (&'a [(AccessReview, AccessDecision)], &'a VariableValues),
        extent: Extent,
    ) -> Self {
        let scope: Vec<_> = variables.iter().map(|(name, value)| (*name, value.clone())).collect();
        Self {
            globals: scope.len(),
            scope,
            values,
            evaluation: Evaluation::new(rules, patterns, decisions, extent),
        }
    }

    /// The cost so far.
    pub(super) fn spent(&self) -> u64 {
        self.evaluation.spent()
    }

    /// The same, with what the reference may think of it.
    pub(super) fn outlay(&self) -> Spent {
        self.evaluation.outlay()
    }

    /// Charges work before it is done.
    fn charge(&mut self, price: usize) -> Result<(), Halt> {
        self.evaluation.charge(price)
    }

    /// Charges what the reference charges, too.
    fn charge_alike(&mut self, price: usize) -> Result<(), Halt> {
        self.evaluation.charge_alike(price)
    }

    /// Evaluates a node.
    pub(super) fn eval(&mut self, node: &'a ExprNode) -> EvalResult {
        self.evaluation.step()?;
        match &node.kind {
            NodeKind::Literal(value) => Ok(value.clone()),
            // A conditional has no cost of its own, nor has a test for presence beyond its selections.
            NodeKind::Conditional(_) => self.attribute(node).and_then(Reached::into_datum),
            // The branch of a conditional that is a test through an optional is what it finds there.
            NodeKind::Select { how: Selection::Test, .. } => Ok(match self.attribute(node)? {
                Reached::Optional(found) => Datum::Bool(found.is_some()),
                Reached::Value(present) => present,
            }),
            NodeKind::Name(_) | NodeKind::Select { .. } => {
                self.charge_alike(1)?;
                self.attribute(node).and_then(Reached::into_datum)
            }
            NodeKind::Call { arguments, .. } if is_attribute(node) => {
                self.charge_alike(1)?;
                self.index(node, arguments).and_then(Reached::into_datum)
            }
            NodeKind::Call { function, target, arguments, callee } => {
                self.call(function, target.as_deref(), arguments, callee.get().copied())
            }
            NodeKind::List(elements) => self.list(elements),
            NodeKind::Map(entries) => self.map(entries),
            NodeKind::Message(name, fields) => self.message(name, fields),
            NodeKind::And(operands) => self.junction(operands, false),
            NodeKind::Or(operands) => self.junction(operands, true),
            NodeKind::Fold(fold) => self.fold(fold),
            NodeKind::Member(operand, set) => {
                let value = self.eval(operand)?;
                self.charge(price::size(&value) / 100)?;
                Ok(Datum::Bool(MapKey::candidates(&value).iter().flatten().any(|key| set.contains(key))))
            }
            NodeKind::WithOptional { target, variable, body, flat } => {
                self.with_optional(target, variable, body, *flat)
            }
        }
    }

    /// Evaluates a node that a selection, an index or a conditional is applied to. A chain of them pays for its root once,
    /// in `eval`.
    // cel-go: interpreter/attributes.go — Resolve
    fn attribute(&mut self, node: &'a ExprNode) -> Result<Reached, Halt> {
        match &node.kind {
            NodeKind::Name(name) => self.name(name).map(|value| self.root(value)),
            NodeKind::Select { operand, field, how, of_message } => {
                let target = self.attribute(operand)?;
                if let (Reached::Value(target), Some(()), Selection::Plain | Selection::Test) =
                    (&target, of_message.get(), how)
                {
                    return self.field(target, field, *how).map(Reached::Value);
                }
                if target.is_root_of(VARIABLES) {
                    return self.variable(field, *how);
                }
                let key = Datum::string(field);
                match how {
                    Selection::Plain => self.qualified(target, &key, false),
                    Selection::Optional => self.qualified(target, &key, true),
                    Selection::Test => {
                        self.charge(usize::from(!target.is_absent()))?;
                        target.tested(&key)
                    }
                }
            }
            NodeKind::Call { arguments, .. } if is_attribute(node) => self.index(node, arguments),
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                match self.eval(condition)? {
                    Datum::Bool(true) => self.attribute(yes),
                    Datum::Bool(false) => self.attribute(no),
                    _ => no_such_overload(),
                }
            }
            _ => self.eval(node).map(|value| self.root(value)),
        }
    }

    /// Selects a variable of the policy. A test for its presence evaluates it, too.
    // apiserver: pkg/cel/lazy/lazy.go
    fn variable(&mut self, name: &str, how: Selection) -> Result<Reached, Halt> {
        self.charge(1)?;
        let value = self.values.selected(name)?;
        Ok(match how {
            Selection::Plain => Reached::Value(value),
            Selection::Optional => Reached::Optional(Some(value)),
            Selection::Test => Reached::Value(Datum::Bool(true)),
        })
    }

    fn index(&mut self, node: &'a ExprNode, arguments: &'a [ExprNode]) -> Result<Reached, Halt> {
        let [target, index] = arguments else { return no_such_overload() };
        let optional = matches!(&node.kind, NodeKind::Call { function, .. } if function == "_[?_]");
        let target = self.attribute(target)?;
        // Indexing an empty optional does not evaluate the index.
        if target.is_absent() {
            return Ok(target);
        }
        let hidden = if has_global_root(node) { self.hide_locals() } else { Vec::new() };
        let index = self.attribute(index).and_then(Reached::into_datum);
        self.scope.extend(hidden);
        let index = match index {
            Ok(index) => index,
            Err(halt) => return self.charge(1).and(Err(halt)),
        };
        self.charge(price::size(&index) / 100)?;
        self.qualified(target, &index, optional)
    }

    /// The start of a chain of selections.
    fn root(&self, value: Datum) -> Reached {
        Reached::root(value, self.evaluation.rules().optionals_convert)
    }

    /// Takes the variables of macros out of the scope.
    fn hide_locals(&mut self) -> Vec<(&'a str, Datum)> {
        self.scope.split_off(self.globals.min(self.scope.len()))
    }

    /// Selects from a value. What an optional selection does not find is free.
    fn qualified(&mut self, target: Reached, key: &Datum, optional: bool) -> Result<Reached, Halt> {
        let found = target.qualified(key, optional);
        self.charge(usize::from(!found.as_ref().is_ok_and(Reached::is_absent)))?;
        found
    }

    fn list(&mut self, elements: &'a [(ExprNode, bool)]) -> EvalResult {
        // Ten elements are in the reference's price, which is the same for all lists.
        self.charge(LIST + elements.len().saturating_sub(10) / 5)?;
        let mut list = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            match (self.eval(element)?, optional) {
                (Datum::Optional(held), true) => list.extend(held.map(|held| held.as_ref().clone())),
                (value, true) => {
                    return error(format!(
                        "cannot initialize optional list element from non-optional value {}",
                        value.shown()
                    ));
                }
                (value, false) => list.push(value),
            }
        }
        Ok(Datum::list(list))
    }

    /// `optMap` and `optFlatMap`. The reference evaluates the target twice; here, its cost is charged twice.
    fn with_optional(
        &mut self,
        target: &'a ExprNode,
        variable: &'a str,
        body: &'a ExprNode,
        flat: bool,
    ) -> EvalResult {
        let before = self.spent();
        let held = self.eval(target);
        let again = usize::try_from(self.spent() - before).unwrap_or(usize::MAX);
        // `hasValue`
        self.charge(1)?;
        let held = match held? {
            Datum::Optional(held) => held,
            other => return error(format!("no such overload: hasValue({})", other.type_name())),
        };
        // `optional.of` or `optional.none`
        self.charge(usize::from(held.is_none() || !flat))?;
        let Some(held) = held else { return Ok(Datum::Optional(None)) };
        // `value`
        self.charge(again.saturating_add(1))?;
        let outside = self.bind(variable, held.as_ref().clone());
        let result = self.eval(body);
        self.unbind(outside);
        let result = result.map(|value| if flat { value } else { Datum::Optional(Some(Arc::new(value))) });
        // It is a conditional in the reference.
        result.and_then(|value| self.root(value).into_datum())
    }

    /// Binds a variable of a macro; returns what `unbind` needs.
    pub(super) fn bind(&mut self, variable: &'a str, value: Datum) -> usize {
        self.scope.push((variable, value));
        self.scope.len() - 1
    }

    fn unbind(&mut self, outside: usize) {
        self.scope.truncate(outside);
    }

    fn call(
        &mut self,
        function: &str,
        target: Option<&'a ExprNode>,
        arguments: &'a [ExprNode],
        callee: Option<Callee>,
    ) -> EvalResult {
        // `or` and `orValue` are lazy, and have no cost.
        if let ("or" | "orValue", Some(target), [other]) = (function, target, arguments) {
            return match self.eval(target)? {
                Datum::Optional(None) => self.eval(other),
                Datum::Optional(Some(held)) if function == "orValue" => sound(held.as_ref().clone()),
                present @ Datum::Optional(Some(_)) => Ok(present),
                _ if self.evaluation.rules().or_takes_optionals_only => no_such_overload(),
                value => Ok(value),
            };
        }
        // The checker resolves each call.
        let Some(callee) = callee else { return no_such_overload() };
        let count = arguments.len() + usize::from(target.is_some());
        let mut values = Vec::with_capacity(count);
        let mut failed = None;
        for argument in target.into_iter().chain(arguments) {
            match self.eval(argument) {
                Ok(value) => values.push(value),
                Err(halt) if halt.is_final() => return Err(halt),
                Err(halt) => {
                    failed = failed.or(Some(halt));
                    values.push(Datum::Null);
                }
            }
            // In the reference, calls with one or two operands evaluate both, and others end at an error.
            if failed.is_some() && count > 2 {
                break;
            }
        }
        let Some(failed) = failed else {
            return callee.call(&mut self.evaluation, &values).and_then(sound);
        };
        // With all its operands, a call is paid for although it is not made.
        if values.len() == count {
            callee.charge(&mut self.evaluation, &values)?;
        }
        Err(failed)
    }

    fn name(&self, name: &str) -> EvalResult {
        // With a leading dot, a variable of the environment, also where a macro has one of the same name.
        let mut scope = self.scope.iter().enumerate();
        let found = match name.strip_prefix('.') {
            Some(global) => scope.take(self.globals).find(|(_, (known, _))| *known == global),
            None => scope.rfind(|(_, (known, _))| *known == name),
        };
        match found {
            // One that is not read: see `Bindings::with`.
            Some((place, (_, Datum::Failed(text)))) if place < self.globals => unsupported(&**text),
            Some((_, (_, value))) => Ok(value.clone()),
            None => error(format!("no such attribute(s): {name}")),
        }
    }

    fn map(&mut self, entries: &'a [(ExprNode, ExprNode, bool)]) -> EvalResult {
        // The same for entries, which are larger.
        self.charge(MAP + entries.len().saturating_sub(10))?;
        let mut map = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = match (self.eval(value)?, optional) {
                (Datum::Optional(Some(held)), true) => held.as_ref().clone(),
                // It deletes an earlier entry.
                (Datum::Optional(None), true) => {
                    self.charge(price::size(&key) / 100)?;
                    match MapKey::exact(&key) {
                        Some(key) if key.is_nan() => {}
                        Some(key) => drop(map.remove(&key)),
                        // Not a key of a map in Go.
                        None if !is_go_key(&key) => {
                            return unsupported_key(&key);
                        }
                        None => {}
                    }
                    continue;
                }
                (value, true) => {
                    return error(format!(
                        "cannot initialize optional entry '{}' from non-optional value {}",
                        key.shown(),
                        value.shown()
                    ));
                }
                (value, false) => value,
            };
            self.charge(price::size(&key) / 100)?;
            insert(&mut map, &key, value)?;
        }
        Ok(Datum::map(map))
    }

    /// An object of a patch.
    // cel-go: interpreter/interpretable.go — evalObj
    fn message(&mut self, name: &Arc<str>, fields: &'a [FieldNode]) -> EvalResult {
        self.charge(STRUCT + fields.len().saturating_sub(10))?;
        let mut made = BTreeMap::new();
        for FieldNode { name, value, optional, .. } in fields {
            let value = match (self.eval(value)?, optional) {
                (Datum::Optional(Some(held)), true) => held.as_ref().clone(),
                // It deletes an earlier field.
                (Datum::Optional(None), true) => {
                    made.remove(name);
                    continue;
                }
                (value, true) => {
                    return error(format!(
                        "cannot initialize optional entry '{name}' from non-optional value {}",
                        value.shown()
                    ));
                }
                (value, false) => value,
            };
            made.insert(Arc::clone(name), value);
        }
        let message = if **name == *JSON_PATCH {
            self.operation(made)?
        } else {
            Message { kind: MessageKind::Object(Arc::clone(name)), fields: made }
        };
        Ok(Datum::Message(Arc::new(message)))
    }

    /// An operation of a patch, whose parts are texts, but for its value.
    // apiserver: pkg/cel/mutation/jsonpatch.go — Val
    fn operation(&mut self, fields: BTreeMap<Arc<str>, Datum>) -> Result<Message, Halt> {
        let mut parts: BTreeMap<Arc<str>, Datum> =
            ["op", "path", "from"].map(|name| (name.into(), Datum::string(""))).into();
        for (name, value) in fields {
            let value = match &*name {
                "value" => value,
                "op" | "path" | "from" => match self.go_value(&value)? {
                    GoValue::Scalar(text @ Datum::String(_)) => text,
                    other => {
                        return error(format!("unexpected type {other} for JSONPatchType '{name}' field"));
                    }
                },
                _ => return error(format!("unexpected JSONPatchType field: {name}")),
            };
            parts.insert(name, value);
        }
        Ok(Message { kind: MessageKind::JsonPatch, fields: parts })
    }

    fn go_value(&mut self, value: &Datum) -> Result<GoValue, Halt> {
        Converter(|elements| self.evaluation.charge(elements / 10)).value(value)
    }

    /// Selects a field of an object of a known type, or tests for its presence. The reference first converts all of them.
    // apiserver: pkg/cel/mutation/dynamic/objects.go — Field
    fn field(&mut self, target: &Datum, name: &str, how: Selection) -> EvalResult {
        self.charge(1)?;
        let found = match self.go_value(target)? {
            GoValue::Map(mut fields) => Some(fields.remove(name).map(GoValue::into_datum)),
            GoValue::Raw(Datum::Map(map)) => Some(map.raw(&Datum::string(name)).cloned()),
            _ => None,
        };
        match (how, found) {
            (Selection::Test, found) => Ok(Datum::Bool(found.flatten().is_some())),
            (_, Some(found)) => sound(found.unwrap_or(Datum::Null)),
            (_, None) => error(format!("cannot get field {}", Quoted(name))),
        }
    }

    /// `&&` and `||`: a deciding operand absorbs the errors of all others.
    fn junction(&mut self, operands: &'a [ExprNode], decides: bool) -> EvalResult {
        let mut failed = None;
        for operand in operands {
            match self.eval(operand) {
                Ok(Datum::Bool(value)) if value == decides => return Ok(Datum::Bool(decides)),
                Ok(Datum::Bool(_)) => {}
                Ok(_) => failed = failed.or_else(|| no_such_overload::<Datum>().err()),
                Err(halt) if halt.is_final() => return Err(halt),
                Err(halt) => failed = failed.or(Some(halt)),
            }
        }
        failed.map_or(Ok(Datum::Bool(!decides)), Err)
    }
}

/// Whether Go accepts a value as the key of a map.
fn is_go_key(value: &Datum) -> bool {
    match value {
        Datum::Bytes(_) => false,
        Datum::Native(native) => native.is_go_key(),
        _ => true,
    }
}

fn unsupported_key<T>(key: &Datum) -> Result<T, Halt> {
    error(format!("unsupported key type: {}", key.type_name()))
}

/// Inserts an entry; returns the value that it replaces.
fn insert(map: &mut BTreeMap<MapKey, Datum>, key: &Datum, value: Datum) -> Result<Option<Datum>, Halt> {
    match MapKey::new_in(map, key) {
        Some(key) => {
            // The new key stays, where it is a zero of another sign.
            let replaced = map.remove(&key);
            map.insert(key, value);
            Ok(replaced)
        }
        None => unsupported_key(key),
    }
}

/// Whether a chain of selections starts from a name that a macro hides. The reference resolves the indexes of such a chain
/// without the variables of macros.
// cel-go: interpreter/attributes.go — absoluteAttribute
fn has_global_root(node: &ExprNode) -> bool {
    match &node.kind {
        NodeKind::Name(name) => name.starts_with('.'),
        NodeKind::Select { operand, .. } => has_global_root(operand),
        NodeKind::Call { arguments, .. } if is_attribute(node) => {
            arguments.first().is_some_and(has_global_root)
        }
        _ => false,
    }
}

/// Whether a node is a name, or selects from a value: costs of a chain of them are those of one.
fn is_attribute(node: &ExprNode) -> bool {
    match &node.kind {
        NodeKind::Name(_) | NodeKind::Select { .. } | NodeKind::Conditional(_) => true,
        NodeKind::Call { function, arguments, .. } => {
            matches!(function.as_str(), "_[_]" | "_[?_]") && arguments.len() == 2
        }
        _ => false,
    }
}
