//! The macros over lists and maps, with the costs of the loops that the reference expands them to.
//!
//! A loop has a condition, a step and a result, which are expressions with costs of their own. An error of a step is a value
//! there: the loop goes on to the end of the range, and a later error may take its place.

use std::collections::BTreeMap;

use super::{Evaluator, insert};
use crate::evaluation::{EvalResult, Halt, error, no_such_overload, sound};
use crate::number;
use crate::price::{self, LIST};
use crate::tree::{ExprNode, Fold, FoldKind, NodeKind};
use crate::value::{Datum, MapKey};

/// The values so far.
enum Gathered {
    /// `all` and `exists`, with the value that ends the loop.
    Verdict {
        decides: bool,
        settled: bool,
    },
    Count(usize),
    List(Vec<Datum>),
    Map(BTreeMap<MapKey, Datum>),
}

/// The accumulator of a macro.
struct Loop<'a> {
    fold: &'a Fold,
    gathered: Gathered,
    failed: Option<Halt>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn fold(&mut self, fold: &'a Fold) -> EvalResult {
        let by_keys = fold.kind == FoldKind::SortBy;
        // The reference binds the range of `sortBy` to a variable, which it reads twice, and calls a function.
        let (reading, calling) = if by_keys { (2, 1) } else { (0, 0) };
        let range = self.eval(&fold.range);
        self.charge(reading)?;
        let range = range.or_else(|halt| self.charge(calling).and(Err(halt)))?;
        let mut state = Loop { fold, gathered: Gathered::new(fold.kind), failed: None };
        let pairs = pairs(&range, fold.second.is_some());
        for pair in pairs.or_else(|halt| self.charge(calling).and(Err(halt)))? {
            let (first, second) = pair?;
            if !state.goes_on(self)? {
                break;
            }
            self.charge(state.key_price(&first))?;
            let outside = self.bind(&fold.variable, first.clone());
            if let Some(name) = &fold.second {
                self.bind(name, second);
            }
            let result = state.step(self, first);
            self.unbind(outside);
            result?;
        }
        state.finish(self, range)
    }

    /// A truth value, or the error of the reference for another.
    fn condition(&mut self, node: &'a ExprNode) -> Result<bool, Halt> {
        match self.eval(node)? {
            Datum::Bool(value) => Ok(value),
            _ => no_such_overload(),
        }
    }
}

impl Gathered {
    fn new(kind: FoldKind) -> Self {
        match kind {
            FoldKind::All => Self::Verdict { decides: false, settled: false },
            FoldKind::Exists => Self::Verdict { decides: true, settled: false },
            FoldKind::ExistsOne => Self::Count(0),
            FoldKind::Filter | FoldKind::Map | FoldKind::SortBy => Self::List(Vec::new()),
            FoldKind::TransformMap | FoldKind::TransformMapEntry => Self::Map(BTreeMap::new()),
        }
    }
}

impl<'a> Loop<'a> {
    /// Evaluates the condition of the loop.
    fn goes_on(&self, evaluator: &mut Evaluator<'a>) -> Result<bool, Halt> {
        match self.gathered {
            // `exists` reads the accumulator, negates it and asks whether it may be true; `all` does not negate it.
            Gathered::Verdict { decides, settled } => {
                evaluator.charge_alike(2 + usize::from(decides))?;
                Ok(!settled)
            }
            _ => Ok(true),
        }
    }

    /// What a long key costs; the reference inserts it for nothing.
    fn key_price(&self, key: &Datum) -> usize {
        if matches!(self.gathered, Gathered::Map(_)) { price::size(key) / 100 } else { 0 }
    }

    /// Evaluates the step for one element. Fails only if the evaluation ends.
    fn step(&mut self, evaluator: &mut Evaluator<'a>, element: Datum) -> Result<(), Halt> {
        // A condition of the step is evaluated before the accumulator: its error takes the place of an earlier one.
        let chosen = match self.fold.kind {
            FoldKind::Filter | FoldKind::ExistsOne => Some(&self.fold.body),
            _ => self.fold.filter.as_ref(),
        };
        if let Some(condition) = chosen {
            match evaluator.condition(condition) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(halt) if halt.is_final() => return Err(halt),
                Err(halt) => {
                    self.failed = Some(halt);
                    return Ok(());
                }
            }
        }
        match self.gather(evaluator, element) {
            Err(halt) if halt.is_final() => Err(halt),
            Err(halt) => {
                self.failed.get_or_insert(halt);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn gather(&mut self, evaluator: &mut Evaluator<'a>, element: Datum) -> Result<(), Halt> {
        let body = &self.fold.body;
        match &mut self.gathered {
            Gathered::Verdict { decides, settled } => {
                evaluator.charge_alike(1)?;
                *settled = evaluator.condition(body)? == *decides;
                Ok(())
            }
            // The accumulator, and a sum.
            Gathered::Count(count) => {
                evaluator.charge_alike(2)?;
                *count += 1;
                Ok(())
            }
            Gathered::List(list) => {
                let value = if self.fold.kind == FoldKind::Filter {
                    evaluator.charge_alike(3 + LIST)?;
                    sound(element)?
                } else {
                    // The accumulator, a list of one element, and a sum; a list of a constant is a constant.
                    evaluator.charge_alike(2 + if is_literal(body) { 0 } else { LIST })?;
                    evaluator.eval(body)?
                };
                if self.failed.is_none() {
                    list.push(value);
                }
                Ok(())
            }
            Gathered::Map(map) => {
                evaluator.charge(1)?;
                let by_entry = self.fold.kind == FoldKind::TransformMapEntry;
                if self.failed.is_some() && !by_entry {
                    return Ok(());
                }
                evaluator.charge(if by_entry { 1 } else { 2 })?;
                let value = evaluator.eval(body)?;
                if self.failed.is_some() {
                    return Ok(());
                }
                if by_entry { add_entries(evaluator, map, value) } else { insert_new(map, &element, value) }
            }
        }
    }

    fn finish(self, evaluator: &mut Evaluator<'a>, range: Datum) -> EvalResult {
        let Self { fold, gathered, failed } = self;
        // The result reads the accumulator; `exists_one` compares it as well.
        evaluator.charge(1 + usize::from(fold.kind == FoldKind::ExistsOne))?;
        match (gathered, failed) {
            (Gathered::Verdict { decides, settled: true }, _) => Ok(Datum::Bool(decides)),
            (_, Some(halt)) => {
                evaluator.charge(usize::from(fold.kind == FoldKind::SortBy))?;
                Err(halt)
            }
            (Gathered::Verdict { decides, settled: false }, None) => Ok(Datum::Bool(!decides)),
            (Gathered::Count(count), None) => Ok(Datum::Bool(count == 1)),
            (Gathered::List(keys), None) if fold.kind == FoldKind::SortBy => {
                let values = [range, Datum::list(keys)];
                match fold.callee.get() {
                    Some(sort) => sort.call(&mut evaluator.evaluation, &values),
                    None => no_such_overload(),
                }
            }
            (Gathered::List(list), None) => Ok(Datum::list(list)),
            (Gathered::Map(map), None) => Ok(Datum::map(map)),
        }
    }
}

fn is_literal(node: &ExprNode) -> bool {
    matches!(node.kind, NodeKind::Literal(_))
}

fn add_entries(
    evaluator: &mut Evaluator<'_>,
    map: &mut BTreeMap<MapKey, Datum>,
    added: Datum,
) -> Result<(), Halt> {
    let Datum::Map(added) = added else {
        return error(format!("no such overload: cel.@mapInsert(map, {})", added.type_name()));
    };
    // One entry is in the price of the step.
    evaluator.charge(added.entries.len().saturating_sub(1))?;
    for (key, value) in added.entries.iter() {
        let key = key.datum();
        evaluator.charge(price::size(&key) / 100)?;
        insert_new(map, &key, value.clone())?;
    }
    Ok(())
}

fn insert_new(map: &mut BTreeMap<MapKey, Datum>, key: &Datum, value: Datum) -> Result<(), Halt> {
    if insert(map, key, value)?.is_some() {
        return error(format!("insert failed: key {} already exists", key.shown()));
    }
    Ok(())
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
                .map(|(at, item)| Ok((Datum::Int(number::length(at)), item.clone()))),
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
        other if two => return error(format!("unsupported comprehension range type: {}", other.go_type())),
        other => return error(format!("got '{}', expected iterable type", other.go_type())),
    })
}
