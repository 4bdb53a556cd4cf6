//! The evaluator. Charges every step to one budget, so that an evaluation always ends soon.
//!
//! Costs and limit are those of the reference; work that it does not count, like the comparison of nested values, has a
//! cost here as well.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::functions;
use super::libraries::authorizer::{AccessDecision, AccessQuestion};
use super::number;
use super::pattern::Patterns;
use super::signatures::Overload;
use super::syntax::{ExprNode, Fold, FoldKind, NodeKind, Selection};
use super::value::{Datum, MapKey};

/// The cost limit of one evaluation, as in the reference.
// apiserver: pkg/apis/cel/config.go — PerCallLimit
pub(super) const COST_LIMIT: u64 = 1_000_000;

/// Why an evaluation ended without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// An error, which `&&` and `||` may absorb.
    Error(String),
    /// No overload accepts the values; `unsuited` converts it to the reference's error for the function.
    Unsuited,
    /// The cost limit is exceeded.
    Cost,
    /// The authorizer must answer a question first.
    Ask(Box<AccessQuestion>),
}

impl Halt {
    /// Whether the evaluation ends, whatever other operands of `&&` and `||` are.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Error(_) | Self::Unsuited => false,
            Self::Cost | Self::Ask(_) => true,
        }
    }
}

pub(super) type EvalResult = Result<Datum, Halt>;

pub(super) fn error<T>(text: impl Into<String>) -> Result<T, Halt> {
    Err(Halt::Error(text.into()))
}

pub(super) fn no_such_overload<T>() -> Result<T, Halt> {
    error(NO_SUCH_OVERLOAD)
}

const NO_SUCH_OVERLOAD: &str = "no such overload";

/// One evaluation.
pub(super) struct Machine<'a> {
    /// The variables in scope, innermost last.
    scope: Vec<(&'a str, Datum)>,
    patterns: &'a Patterns,
    answers: &'a [(AccessQuestion, AccessDecision)],
    spent: u64,
}

impl<'a> Machine<'a> {
    pub(super) fn new(
        variables: &'a [(&'static str, Datum)],
        patterns: &'a Patterns,
        answers: &'a [(AccessQuestion, AccessDecision)],
    ) -> Self {
        let scope = variables.iter().map(|(name, value)| (*name, value.clone())).collect();
        Self { scope, patterns, answers, spent: 0 }
    }

    /// The cost so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// The answer to a question, if it has been given.
    pub(super) fn answer(&self, question: &AccessQuestion) -> Option<&'a AccessDecision> {
        self.answers.iter().find(|(answered, _)| answered == question).map(|(_, decision)| decision)
    }

    pub(super) fn patterns(&self) -> &'a Patterns {
        self.patterns
    }

    /// Charges work before it is done.
    pub(super) fn charge(&mut self, price: usize) -> Result<(), Halt> {
        self.spent = self.spent.saturating_add(u64::try_from(price).unwrap_or(u64::MAX));
        if self.spent > COST_LIMIT { Err(Halt::Cost) } else { Ok(()) }
    }

    /// Charges reading `length` characters or bytes.
    pub(super) fn charge_reading(&mut self, length: usize) -> Result<(), Halt> {
        self.charge(length.div_ceil(10))
    }

    pub(super) fn eval(&mut self, node: &'a ExprNode) -> EvalResult {
        match &node.kind {
            NodeKind::Literal(value) => Ok(value.clone()),
            NodeKind::Name(name) => {
                self.charge(1)?;
                self.name(name)
            }
            NodeKind::Select { operand, field, how } => self.select(operand, field, *how),
            NodeKind::Call { function, target, arguments, only } => {
                self.call(function, target.as_deref(), arguments, only.get().copied())
            }
            NodeKind::List(elements) => {
                self.charge(10)?;
                let mut list = Vec::with_capacity(elements.len());
                for (element, optional) in elements {
                    match (self.eval(element)?, optional) {
                        (Datum::Optional(held), true) => list.extend(held.map(|held| held.as_ref().clone())),
                        (value, true) => {
                            return error(format!(
                                "cannot initialize optional list element from non-optional value {}",
                                functions::shown(&value)
                            ));
                        }
                        (value, false) => list.push(value),
                    }
                }
                Ok(Datum::list(list))
            }
            NodeKind::Map(entries) => self.map(entries),
            NodeKind::And(operands) => self.junction(operands, false),
            NodeKind::Or(operands) => self.junction(operands, true),
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                match self.eval(condition)? {
                    Datum::Bool(true) => self.eval(yes),
                    Datum::Bool(false) => self.eval(no),
                    _ => no_such_overload(),
                }
            }
            NodeKind::Fold(fold) => self.fold(fold),
            NodeKind::WithOptional { target, variable, body, flat } => {
                let held = match self.eval(target)? {
                    Datum::Optional(held) => held,
                    other => return error(format!("no such overload: hasValue({})", other.type_name())),
                };
                self.charge(2)?;
                let Some(held) = held else { return Ok(Datum::Optional(None)) };
                self.scope.push((variable, held.as_ref().clone()));
                let result = self.eval(body);
                self.scope.pop();
                result.map(|value| if *flat { value } else { Datum::Optional(Some(Arc::new(value))) })
            }
        }
    }

    fn call(
        &mut self,
        function: &str,
        target: Option<&'a ExprNode>,
        arguments: &'a [ExprNode],
        only: Option<&Overload>,
    ) -> EvalResult {
        // `or` and `orValue` are lazy, and treat a value that is not an optional as a present one.
        if let ("or" | "orValue", Some(target), [other]) = (function, target, arguments) {
            self.charge(1)?;
            return match self.eval(target)? {
                Datum::Optional(None) => self.eval(other),
                Datum::Optional(Some(held)) if function == "orValue" => Ok(held.as_ref().clone()),
                value => Ok(value),
            };
        }
        let mut values = Vec::with_capacity(arguments.len() + 1);
        for argument in target.into_iter().chain(arguments) {
            // Indexing an empty optional does not evaluate the index.
            if matches!((function, values.as_slice()), ("_[_]" | "_[?_]", [Datum::Optional(None)])) {
                return Ok(Datum::Optional(None));
            }
            values.push(self.eval(argument)?);
        }
        match (function, values.as_slice()) {
            ("_[_]" | "_[?_]", [target, index]) => {
                self.charge(1)?;
                index_value(target, index, function == "_[?_]")
            }
            _ => functions::call(self, function, &values, only),
        }
    }

    fn name(&self, name: &str) -> EvalResult {
        match self.scope.iter().rev().find(|(known, _)| *known == name) {
            Some((_, value)) => Ok(value.clone()),
            None => error(format!("no such attribute(s): {name}")),
        }
    }

    fn select(&mut self, operand: &'a ExprNode, field: &str, how: Selection) -> EvalResult {
        self.charge(1)?;
        let target = self.eval(operand)?;
        let key = Datum::string(field);
        match how {
            Selection::Plain => index_value(&target, &key, false),
            Selection::Optional => index_value(&target, &key, true),
            Selection::Test => match index_value(&target, &key, true)? {
                Datum::Optional(held) => Ok(Datum::Bool(held.is_some())),
                _ => no_such_overload(),
            },
        }
    }

    fn map(&mut self, entries: &'a [(ExprNode, ExprNode, bool)]) -> EvalResult {
        self.charge(30)?;
        let mut map = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = match (self.eval(value)?, optional) {
                (Datum::Optional(Some(held)), true) => held.as_ref().clone(),
                (Datum::Optional(None), true) => continue,
                (value, true) => {
                    return error(format!(
                        "cannot initialize optional entry '{}' from non-optional value {}",
                        functions::shown(&key),
                        functions::shown(&value)
                    ));
                }
                (value, false) => value,
            };
            insert(&mut map, &key, value)?;
        }
        Ok(Datum::map(map))
    }

    /// `&&` and `||`: a deciding operand absorbs the errors of all others.
    fn junction(&mut self, operands: &'a [ExprNode], decides: bool) -> EvalResult {
        let mut failed = None;
        for operand in operands {
            match self.eval(operand) {
                Ok(Datum::Bool(value)) if value == decides => return Ok(Datum::Bool(decides)),
                Ok(Datum::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(Halt::Error(NO_SUCH_OVERLOAD.to_owned()))),
                Err(halt) if halt.is_final() => return Err(halt),
                Err(halt) => failed = failed.or(Some(halt)),
            }
        }
        failed.map_or(Ok(Datum::Bool(!decides)), Err)
    }

    fn fold(&mut self, fold: &'a Fold) -> EvalResult {
        let range = self.eval(&fold.range)?;
        let outside = self.scope.len();
        let mut result = Gathered::new(fold.kind);
        for pair in pairs(&range, fold.second.is_some())? {
            let (first, second) = pair?;
            // The cost of the reference's macro expansion: a condition, an accumulator, a list of one element.
            self.charge(match fold.kind {
                FoldKind::Map | FoldKind::Filter | FoldKind::SortBy => 12,
                FoldKind::TransformMap
                | FoldKind::TransformMapEntry
                | FoldKind::All
                | FoldKind::Exists
                | FoldKind::ExistsOne => 3,
            })?;
            self.scope.push((&fold.variable, first.clone()));
            if let Some(name) = &fold.second {
                self.scope.push((name, second));
            }
            let more = self.step(fold, first, &mut result);
            self.scope.truncate(outside);
            if !more? {
                break;
            }
        }
        result.finish(self, &range)
    }

    /// Processes one element; `false` when the result is final.
    fn step(&mut self, fold: &'a Fold, first: Datum, result: &mut Gathered) -> Result<bool, Halt> {
        if let Some(filter) = &fold.filter {
            match self.eval(filter)? {
                Datum::Bool(true) => {}
                Datum::Bool(false) => return Ok(true),
                _ => return no_such_overload(),
            }
        }
        let value = self.eval(&fold.body);
        match result {
            Gathered::Verdict { decides, failed, settled } => match value {
                Ok(Datum::Bool(value)) if value == *decides => {
                    *settled = true;
                    return Ok(false);
                }
                Ok(Datum::Bool(_)) => {}
                Ok(_) => *failed = failed.take().or(Some(Halt::Error(NO_SUCH_OVERLOAD.to_owned()))),
                Err(halt) if halt.is_final() => return Err(halt),
                Err(halt) => *failed = failed.take().or(Some(halt)),
            },
            Gathered::Count(count) => match value? {
                Datum::Bool(true) => *count += 1,
                Datum::Bool(false) => {}
                _ => return no_such_overload(),
            },
            Gathered::Kept(kept) => match value? {
                Datum::Bool(true) => kept.push(first),
                Datum::Bool(false) => {}
                _ => return no_such_overload(),
            },
            Gathered::List(list) | Gathered::Keys(list) => list.push(value?),
            Gathered::Map(map) => insert_new(map, &first, value?)?,
            Gathered::Entries(map) => {
                let entries = match value? {
                    Datum::Map(entries) => entries,
                    other => {
                        return error(format!(
                            "no such overload: cel.@mapInsert(map, {})",
                            other.type_name()
                        ));
                    }
                };
                for (key, value) in entries.entries.iter() {
                    self.charge(1)?;
                    insert_new(map, &key.datum(), value.clone())?;
                }
            }
        }
        Ok(true)
    }
}

/// The accumulator of a macro.
enum Gathered {
    Verdict { decides: bool, failed: Option<Halt>, settled: bool },
    Count(usize),
    Kept(Vec<Datum>),
    List(Vec<Datum>),
    Keys(Vec<Datum>),
    Map(BTreeMap<MapKey, Datum>),
    Entries(BTreeMap<MapKey, Datum>),
}

impl Gathered {
    fn new(kind: FoldKind) -> Self {
        match kind {
            FoldKind::All => Self::Verdict { decides: false, failed: None, settled: false },
            FoldKind::Exists => Self::Verdict { decides: true, failed: None, settled: false },
            FoldKind::ExistsOne => Self::Count(0),
            FoldKind::Filter => Self::Kept(Vec::new()),
            FoldKind::Map => Self::List(Vec::new()),
            FoldKind::SortBy => Self::Keys(Vec::new()),
            FoldKind::TransformMap => Self::Map(BTreeMap::new()),
            FoldKind::TransformMapEntry => Self::Entries(BTreeMap::new()),
        }
    }

    fn finish(self, machine: &mut Machine<'_>, range: &Datum) -> EvalResult {
        match self {
            Self::Verdict { decides, settled: true, .. } => Ok(Datum::Bool(decides)),
            Self::Verdict { failed: Some(halt), .. } => Err(halt),
            Self::Verdict { decides, .. } => Ok(Datum::Bool(!decides)),
            Self::Count(count) => Ok(Datum::Bool(count == 1)),
            Self::Kept(list) | Self::List(list) => Ok(Datum::list(list)),
            Self::Keys(keys) => {
                functions::call(machine, "@sortByAssociatedKeys", &[range.clone(), Datum::list(keys)], None)
            }
            Self::Map(map) | Self::Entries(map) => Ok(Datum::map(map)),
        }
    }
}

/// The values of a macro's variables. Lazy, so that no element is created before it is charged.
type Pairs<'a> = Box<dyn Iterator<Item = Result<(Datum, Datum), Halt>> + 'a>;

/// The iteration of a macro with one or two variables.
fn pairs(range: &Datum, two: bool) -> Result<Pairs<'_>, Halt> {
    Ok(match range {
        Datum::List(list) if two => Box::new(
            list.items
                .iter()
                .enumerate()
                .map(|(at, item)| Ok((Datum::Int(functions::length(at)), item.clone()))),
        ),
        Datum::List(list) => Box::new(list.items.iter().map(|item| Ok((item.clone(), Datum::Null)))),
        Datum::Map(map) => Box::new(
            map.entries
                .iter()
                .map(move |(key, value)| Ok((key.datum(), if two { value.clone() } else { Datum::Null }))),
        ),
        // As in the reference, iteration over the variable itself yields values, not keys.
        Datum::Root(root) if !two => Box::new(root.fields.keys().map(|name| match root.find(name) {
            Some(value) => Ok((value, Datum::Null)),
            None => error(format!("no such key: {name}")),
        })),
        Datum::Root(_) => return error("a macro with two variables over all claims is not supported here"),
        other if two => return error(format!("unsupported comprehension range type: {}", go_type(other))),
        other => return error(format!("got '{}', expected iterable type", go_type(other))),
    })
}

/// The Go type name of a value in the reference's errors.
fn go_type(value: &Datum) -> &'static str {
    match value {
        Datum::Null => "types.Null",
        Datum::Bool(_) => "types.Bool",
        Datum::Int(_) => "types.Int",
        Datum::Uint(_) => "types.Uint",
        Datum::Double(_) => "types.Double",
        Datum::String(_) => "types.String",
        Datum::Bytes(_) => "types.Bytes",
        Datum::List(list) => {
            if list.escaped {
                "*oidc.unescapeLister"
            } else {
                "*types.baseList"
            }
        }
        Datum::Map(map) => {
            if map.escaped {
                "*oidc.unescapeMapper"
            } else {
                "*types.baseMap"
            }
        }
        Datum::Optional(_) => "*types.Optional",
        Datum::Type(_) => "*types.Type",
        Datum::Root(_) => "*lazy.MapValue",
        Datum::Native(native) => native.go_type(),
    }
}

fn insert(map: &mut BTreeMap<MapKey, Datum>, key: &Datum, value: Datum) -> Result<(), Halt> {
    let Some(key) = MapKey::exact(key) else {
        return error(format!("unsupported key type: {}", key.type_name()));
    };
    map.insert(key, value);
    Ok(())
}

fn insert_new(map: &mut BTreeMap<MapKey, Datum>, key: &Datum, value: Datum) -> Result<(), Halt> {
    let Some(exact) = MapKey::exact(key) else {
        return error(format!("unsupported key type: {}", key.type_name()));
    };
    if map.insert(exact, value).is_some() {
        return error(format!("insert failed: key {} already exists", functions::shown(key)));
    }
    Ok(())
}

/// `target[index]` and `target.field`; with `optional`, a missing element is an empty optional.
pub(super) fn index_value(target: &Datum, index: &Datum, optional: bool) -> EvalResult {
    let (found, optional) = match target {
        Datum::Optional(None) => return Ok(Datum::Optional(None)),
        Datum::Optional(Some(held)) => (lookup(held, index)?, true),
        target => (lookup(target, index)?, optional),
    };
    match (found, optional) {
        (Some(value), true) => Ok(Datum::Optional(Some(Arc::new(value)))),
        (None, true) => Ok(Datum::Optional(None)),
        (Some(value), false) => Ok(value),
        (None, false) => error(match target {
            Datum::List(_) => format!("index out of bounds: {}", functions::shown(index)),
            _ => format!("no such key: {}", functions::shown(index)),
        }),
    }
}

/// Whether a value has a type that can be an index.
pub(super) fn is_index(value: &Datum) -> bool {
    matches!(value, Datum::Bool(_) | Datum::Int(_) | Datum::Uint(_) | Datum::Double(_) | Datum::String(_))
}

fn lookup(target: &Datum, index: &Datum) -> Result<Option<Datum>, Halt> {
    if !is_index(index) {
        return error(format!("invalid qualifier type: {}", go_type(index)));
    }
    match target {
        Datum::Map(map) => Ok(map.find(index)),
        Datum::Root(root) => match index {
            Datum::String(name) => Ok(root.find(name)),
            _ => no_such_overload(),
        },
        Datum::List(list) => {
            let at = match index {
                Datum::Int(at) => usize::try_from(*at).ok(),
                Datum::Uint(at) => usize::try_from(*at).ok(),
                Datum::Double(at) => match number::exact_int(*at) {
                    Some(at) => usize::try_from(at).ok(),
                    None => {
                        return error(format!("unsupported index value {} in list", functions::shown(index)));
                    }
                },
                other => return error(format!("unsupported index type '{}' in list", other.type_name())),
            };
            Ok(at.and_then(|at| list.get(at)))
        }
        _ => Ok(None),
    }
}

/// `==`; the cost is the compared length.
pub(super) fn equal(machine: &mut Machine<'_>, left: &Datum, right: &Datum) -> Result<bool, Halt> {
    Ok(match (left, right) {
        (Datum::Null, Datum::Null) => true,
        (Datum::Bool(left), Datum::Bool(right)) => left == right,
        (
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
        ) => number::compare(left, right) == Some(Ordering::Equal),
        (Datum::String(left), Datum::String(right)) => {
            machine.charge_reading(left.len().min(right.len()))?;
            left == right
        }
        (Datum::Bytes(left), Datum::Bytes(right)) => {
            machine.charge_reading(left.len().min(right.len()))?;
            left == right
        }
        (Datum::Type(left), Datum::Type(right)) => left == right,
        (Datum::Optional(left), Datum::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => equal(machine, left, right)?,
            (left, right) => left.is_none() && right.is_none(),
        },
        (Datum::List(left), Datum::List(right)) => {
            if left.items.len() != right.items.len() {
                return Ok(false);
            }
            machine.charge_reading(left.items.len())?;
            for (left, right) in left.items.iter().zip(right.items.iter()) {
                if !equal(machine, left, right)? {
                    return Ok(false);
                }
            }
            true
        }
        (Datum::Map(left), Datum::Map(right)) => {
            if left.entries.len() != right.entries.len() {
                return Ok(false);
            }
            machine.charge_reading(left.entries.len())?;
            for (key, value) in left.entries.iter() {
                match right.find(&key.datum()) {
                    Some(other) if equal(machine, value, &other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Datum::Root(left), Datum::Root(right)) => Arc::ptr_eq(left, right),
        (Datum::Native(left), Datum::Native(right)) => match left.equals(right) {
            Some(equal) => equal,
            None if left.is_time() => false,
            None => return no_such_overload(),
        },
        (Datum::Native(left), right) if !matches!(right, Datum::Null) && !left.is_time() => {
            return no_such_overload();
        }
        _ => false,
    })
}

/// The order of two values of one type, or of two numbers of any types.
pub(super) fn compare(machine: &mut Machine<'_>, left: &Datum, right: &Datum) -> Result<Ordering, Halt> {
    Ok(match (left, right) {
        (Datum::Bool(left), Datum::Bool(right)) => left.cmp(right),
        (
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
        ) => match number::compare(left, right) {
            Some(order) => order,
            None => return error("NaN values cannot be ordered"),
        },
        (Datum::String(left), Datum::String(right)) => {
            machine.charge_reading(left.len().min(right.len()))?;
            left.cmp(right)
        }
        (Datum::Bytes(left), Datum::Bytes(right)) => {
            machine.charge_reading(left.len().min(right.len()))?;
            left.cmp(right)
        }
        (Datum::Native(left), Datum::Native(right)) => match left.compare(right) {
            Some(order) => order,
            None => return Err(Halt::Unsuited),
        },
        _ => return Err(Halt::Unsuited),
    })
}
