//! Converts text to this crate's syntax tree; the only module that calls the parser of the `cel` crate.
//!
//! The parser is recursive, and only the text bounds its stack. This module therefore limits the nesting of the text
//! first, and parses on a separate thread with a stack for the deepest allowed text; a panic there becomes an error.
//! The macros stay unexpanded: checking and evaluating `all` or `map` is simpler and cheaper on the call itself.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use cel::common::ast::operators as op;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo};

use super::environment::Environment;
use super::faults::CompileFault;
use super::signatures::{self, Overload};
use super::types::type_named;
use super::value::{Datum, MapKey};

/// Maximum length of an expression, in bytes. The reference allows 100,000 code points.
pub(super) const MAX_LENGTH: usize = 10_000;
/// Maximum nesting of brackets, and of conditionals.
pub(super) const MAX_NESTING: usize = 60;
/// Maximum depth of the tree; the reference's parser fails at 250 levels of one grammar rule.
const MAX_DEPTH: usize = 120;
const PARSER_STACK_SIZE: usize = 256 << 20;

/// A node of the tree.
#[derive(Debug)]
pub(super) struct ExprNode {
    pub(super) kind: NodeKind,
    /// The offset in the text, in characters.
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    /// A constant, including type names.
    Literal(Datum),
    /// A variable.
    Name(String),
    Select {
        operand: Box<ExprNode>,
        field: String,
        how: Selection,
    },
    Call {
        function: String,
        target: Option<Box<ExprNode>>,
        arguments: Vec<ExprNode>,
        /// The overload that the checker selected; evaluation calls no other, whatever the values.
        only: OnceLock<&'static Overload>,
    },
    /// Elements, with a flag for `?element`.
    List(Vec<(ExprNode, bool)>),
    Map(Vec<(ExprNode, ExprNode, bool)>),
    And(Vec<ExprNode>),
    Or(Vec<ExprNode>),
    Conditional(Box<[ExprNode; 3]>),
    Fold(Box<Fold>),
    /// `in` a list of constants.
    Member(Box<ExprNode>, BTreeSet<MapKey>),
    /// `optMap` and `optFlatMap`.
    WithOptional {
        target: Box<ExprNode>,
        variable: String,
        body: Box<ExprNode>,
        flat: bool,
    },
}

/// The kinds of field selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selection {
    /// `a.b`
    Plain,
    /// `a.?b`
    Optional,
    /// `has(a.b)`
    Test,
}

/// A macro over a list or a map.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) kind: FoldKind,
    pub(super) range: ExprNode,
    pub(super) variable: String,
    pub(super) second: Option<String>,
    pub(super) filter: Option<ExprNode>,
    pub(super) body: ExprNode,
    /// The overload of `sortBy` that the checker selected.
    pub(super) only: OnceLock<&'static Overload>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformMap,
    TransformMapEntry,
    SortBy,
}

impl ExprNode {
    /// The child nodes.
    pub(super) fn children(&self) -> Vec<&Self> {
        match &self.kind {
            NodeKind::Literal(_) | NodeKind::Name(_) => Vec::new(),
            NodeKind::Select { operand, .. } | NodeKind::Member(operand, _) => vec![operand],
            NodeKind::Call { target, arguments, .. } => {
                target.iter().map(|target| &**target).chain(arguments).collect()
            }
            NodeKind::List(elements) => elements.iter().map(|(element, _)| element).collect(),
            NodeKind::Map(entries) => entries.iter().flat_map(|(key, value, _)| [key, value]).collect(),
            NodeKind::And(operands) | NodeKind::Or(operands) => operands.iter().collect(),
            NodeKind::Conditional(parts) => parts.iter().collect(),
            NodeKind::Fold(fold) => {
                [Some(&fold.range), fold.filter.as_ref(), Some(&fold.body)].into_iter().flatten().collect()
            }
            NodeKind::WithOptional { target, body, .. } => vec![target, body],
        }
    }

    /// The child nodes, mutable.
    pub(super) fn children_mut(&mut self) -> Vec<&mut Self> {
        match &mut self.kind {
            NodeKind::Literal(_) | NodeKind::Name(_) => Vec::new(),
            NodeKind::Select { operand, .. } | NodeKind::Member(operand, _) => vec![operand],
            NodeKind::Call { target, arguments, .. } => {
                target.iter_mut().map(|target| &mut **target).chain(arguments).collect()
            }
            NodeKind::List(elements) => elements.iter_mut().map(|(element, _)| element).collect(),
            NodeKind::Map(entries) => entries.iter_mut().flat_map(|(key, value, _)| [key, value]).collect(),
            NodeKind::And(operands) | NodeKind::Or(operands) => operands.iter_mut().collect(),
            NodeKind::Conditional(parts) => parts.iter_mut().collect(),
            NodeKind::Fold(fold) => {
                let Fold { range, filter, body, .. } = &mut **fold;
                [Some(range), filter.as_mut(), Some(body)].into_iter().flatten().collect()
            }
            NodeKind::WithOptional { target, body, .. } => vec![target, body],
        }
    }

    /// Whether the predicate holds for this node or a descendant.
    pub(super) fn any(&self, holds: &impl Fn(&Self) -> bool) -> bool {
        holds(self) || self.children().into_iter().any(|child| child.any(holds))
    }
}

/// Parses an expression.
pub(super) fn parse(text: &str, environment: Environment) -> Result<ExprNode, CompileFault> {
    bounded(text)?;
    let owned = text.to_owned();
    std::thread::Builder::new()
        .name("cel-parser".to_owned())
        .stack_size(PARSER_STACK_SIZE)
        .spawn(move || {
            let (tree, source) =
                cel::Env::default().parser().parse_with_source_info(&owned).map_err(|errors| match errors
                    .errors
                    .into_iter()
                    .next()
                {
                    Some(error) => CompileFault::new(offset(&owned, error.pos), error.msg),
                    None => CompileFault::new(0, "syntax error"),
                })?;
            AstReader { source: &source, environment, bound: Vec::new() }.node(tree, 0)
        })
        .map_err(|error| CompileFault::new(0, format!("cannot be parsed now: {error}")))?
        .join()
        .unwrap_or_else(|_| Err(CompileFault::new(0, "cannot be parsed")))
}

/// The offset of a line and column, which count from 1.
fn offset(text: &str, (line, column): (isize, isize)) -> usize {
    let lines = usize::try_from(line - 1).unwrap_or(0);
    let before: usize = text.split_inclusive('\n').take(lines).map(|line| line.chars().count()).sum();
    before + usize::try_from(column - 1).unwrap_or(0)
}

/// Rejects texts with too deep brackets or conditionals, into which the crate's parser recurses.
fn bounded(text: &str) -> Result<(), CompileFault> {
    if text.len() > MAX_LENGTH {
        return Err(CompileFault::new(0, format!("expression is longer than {MAX_LENGTH} bytes")));
    }
    // Also counts brackets and question marks within string literals. That rejects more, but only texts with dozens of
    // them; skipping literals would need a second lexer that agrees with the parser's.
    let (mut open, mut conditionals) = (0_usize, 0_usize);
    for (at, character) in text.chars().enumerate() {
        match character {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            '?' => conditionals += 1,
            _ => {}
        }
        if open > MAX_NESTING || conditionals > 4 * MAX_NESTING {
            return Err(CompileFault::new(at, "expression is nested too deeply"));
        }
    }
    Ok(())
}

struct AstReader<'a> {
    source: &'a SourceInfo,
    environment: Environment,
    /// The variables of macros, which shadow types of the same name.
    bound: Vec<String>,
}

impl AstReader<'_> {
    fn fault<T>(&self, id: u64, text: impl Into<String>) -> Result<T, CompileFault> {
        Err(CompileFault::new(self.at(id), text))
    }

    fn at(&self, id: u64) -> usize {
        self.source.offset_for(id).and_then(|(start, _)| usize::try_from(start).ok()).unwrap_or(0)
    }

    fn nodes(&mut self, trees: Vec<IdedExpr>, depth: usize) -> Result<Vec<ExprNode>, CompileFault> {
        trees.into_iter().map(|tree| self.node(tree, depth)).collect()
    }

    fn boxed(&mut self, tree: IdedExpr, depth: usize) -> Result<Box<ExprNode>, CompileFault> {
        self.node(tree, depth).map(Box::new)
    }

    fn node(&mut self, tree: IdedExpr, depth: usize) -> Result<ExprNode, CompileFault> {
        let id = tree.id;
        if depth > MAX_DEPTH {
            return self.fault(id, "expression is nested too deeply");
        }
        let depth = depth + 1;
        let kind = match tree.expr {
            Expr::Literal(literal) => NodeKind::Literal(constant(&literal)),
            Expr::Ident(name) => {
                let name = name.trim_start_matches('.').to_owned();
                match type_named(&name).filter(|_| !self.bound.contains(&name)) {
                    Some(named) => NodeKind::Literal(Datum::Type(named.into())),
                    None => NodeKind::Name(name),
                }
            }
            Expr::Select(select) => {
                let name = qualified(&select.operand.expr).map(|prefix| format!("{prefix}.{}", select.field));
                match name {
                    Some(name) if self.environment.declares(&name) => NodeKind::Name(name),
                    Some(name) if let Some(named) = type_named(&name) => {
                        NodeKind::Literal(Datum::Type(named.into()))
                    }
                    _ => NodeKind::Select {
                        operand: self.boxed(*select.operand, depth)?,
                        field: select.field,
                        how: Selection::Plain,
                    },
                }
            }
            Expr::List(list) => {
                let optional = list.optional_indices;
                let elements = list.elements.into_iter().enumerate();
                NodeKind::List(
                    elements
                        .map(|(index, tree)| Ok((self.node(tree, depth)?, optional.contains(&index))))
                        .collect::<Result<_, CompileFault>>()?,
                )
            }
            Expr::Map(map) => {
                let entries = map.entries.into_iter().map(|entry| match entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        Ok((self.node(entry.key, depth)?, self.node(entry.value, depth)?, entry.optional))
                    }
                    EntryExpr::StructField(_) => self.fault(entry.id, "syntax error"),
                });
                NodeKind::Map(entries.collect::<Result<_, CompileFault>>()?)
            }
            Expr::Struct(message) => {
                return self.fault(id, format!("messages are not supported: '{}'", message.type_name));
            }
            Expr::Call(call) => self.call(id, call, depth)?,
            Expr::Comprehension(_) | Expr::Unspecified => return self.fault(id, "syntax error"),
        };
        Ok(ExprNode { kind, at: self.at(id) })
    }

    fn call(&mut self, id: u64, call: CallExpr, depth: usize) -> Result<NodeKind, CompileFault> {
        let CallExpr { func_name, target, args } = call;
        let name = func_name.trim_start_matches('.').to_owned();
        let Some(target) = target else { return self.global(id, name, args, depth) };
        if let Some(prefix) = qualified(&target.expr) {
            let function = format!("{prefix}.{name}");
            if signatures::is_function(&function) && self.environment.has_function(&function) {
                return Ok(NodeKind::Call {
                    function,
                    target: None,
                    arguments: self.nodes(args, depth)?,
                    only: OnceLock::new(),
                });
            }
        }
        if let Some(fold) = fold(&name, args.len()) {
            return self.fold(fold, &name, *target, args, depth);
        }
        if args.len() == 2 && (name == "optMap" || name == "optFlatMap") {
            let mut args = args.into_iter();
            if let (Some(variable), Some(body)) = (args.next(), args.next()) {
                let target = self.boxed(*target, depth)?;
                let variable = self.variable(variable)?;
                self.bound.push(variable.clone());
                let body = self.boxed(body, depth)?;
                self.bound.pop();
                return Ok(NodeKind::WithOptional { target, variable, body, flat: name == "optFlatMap" });
            }
            return self.fault(id, "syntax error");
        }
        let target = self.boxed(*target, depth)?;
        Ok(NodeKind::Call {
            function: name,
            target: Some(target),
            arguments: self.nodes(args, depth)?,
            only: OnceLock::new(),
        })
    }

    /// Calls without a target: operators, `has`, functions.
    fn global(
        &mut self,
        id: u64,
        name: String,
        args: Vec<IdedExpr>,
        depth: usize,
    ) -> Result<NodeKind, CompileFault> {
        match (name.as_str(), args.len()) {
            (op::LOGICAL_AND, _) => Ok(NodeKind::And(self.operands(op::LOGICAL_AND, args, depth)?)),
            (op::LOGICAL_OR, _) => Ok(NodeKind::Or(self.operands(op::LOGICAL_OR, args, depth)?)),
            (op::CONDITIONAL, _) => match <[ExprNode; 3]>::try_from(self.nodes(args, depth)?) {
                Ok(parts) => Ok(NodeKind::Conditional(Box::new(parts))),
                Err(_) => self.fault(id, "syntax error"),
            },
            ("has", 1) => match self.nodes(args, depth)?.pop().map(|node| node.kind) {
                Some(NodeKind::Select { operand, field, how: Selection::Plain }) => {
                    Ok(NodeKind::Select { operand, field, how: Selection::Test })
                }
                _ => self.fault(id, "invalid argument to has() macro"),
            },
            (op::OPT_SELECT, 2) => {
                let mut parts = self.nodes(args, depth)?.into_iter();
                match (parts.next(), parts.next().map(|node| node.kind)) {
                    (Some(operand), Some(NodeKind::Literal(Datum::String(field)))) => Ok(NodeKind::Select {
                        operand: Box::new(operand),
                        field: field.to_string(),
                        how: Selection::Optional,
                    }),
                    _ => self.fault(id, "syntax error"),
                }
            }
            _ => Ok(NodeKind::Call {
                function: name,
                target: None,
                arguments: self.nodes(args, depth)?,
                only: OnceLock::new(),
            }),
        }
    }

    /// Flattens `a && b && c`, a tree of pairs, into its leaves.
    fn operands(
        &mut self,
        operator: &str,
        args: Vec<IdedExpr>,
        depth: usize,
    ) -> Result<Vec<ExprNode>, CompileFault> {
        let mut found = Vec::new();
        for tree in args {
            match tree.expr {
                Expr::Call(call) if call.func_name == operator && call.target.is_none() => {
                    found.extend(self.operands(operator, call.args, depth)?);
                }
                expr => found.push(self.node(IdedExpr { id: tree.id, expr }, depth)?),
            }
        }
        Ok(found)
    }

    fn variable(&self, tree: IdedExpr) -> Result<String, CompileFault> {
        match tree.expr {
            Expr::Ident(name) if !name.starts_with('.') => Ok(name),
            _ => self.fault(tree.id, "argument must be a simple name"),
        }
    }

    fn fold(
        &mut self,
        (kind, variables, filtered): (FoldKind, usize, bool),
        name: &str,
        target: IdedExpr,
        args: Vec<IdedExpr>,
        depth: usize,
    ) -> Result<NodeKind, CompileFault> {
        let id = target.id;
        if kind == FoldKind::SortBy
            && !matches!(target.expr, Expr::List(_) | Expr::Select(_) | Expr::Ident(_) | Expr::Call(_))
        {
            return self.fault(
                id,
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression",
            );
        }
        let range = self.node(target, depth)?;
        let mut args = args.into_iter();
        let at = self.at(id);
        let mut next =
            || args.next().ok_or_else(|| CompileFault::new(at, format!("too few arguments to {name}()")));
        let variable = self.variable(next()?)?;
        let second = if variables == 2 { Some(self.variable(next()?)?) } else { None };
        if second.as_deref() == Some(variable.as_str()) {
            return self.fault(id, format!("duplicate variable name: {variable}"));
        }
        if [Some(variable.as_str()), second.as_deref()].contains(&Some("__result__")) {
            return self.fault(id, "iteration variable overwrites accumulator variable");
        }
        let outside = self.bound.len();
        self.bound.extend([Some(variable.clone()), second.clone()].into_iter().flatten());
        let filter = if filtered { Some(self.node(next()?, depth)?) } else { None };
        let body = self.node(next()?, depth)?;
        self.bound.truncate(outside);
        Ok(NodeKind::Fold(Box::new(Fold {
            kind,
            range,
            variable,
            second,
            filter,
            body,
            only: OnceLock::new(),
        })))
    }
}

/// The macros with a target: kind, number of variables, and whether a condition precedes the result.
fn fold(name: &str, arguments: usize) -> Option<(FoldKind, usize, bool)> {
    Some(match (name, arguments) {
        ("all", 2) => (FoldKind::All, 1, false),
        ("all", 3) => (FoldKind::All, 2, false),
        ("exists", 2) => (FoldKind::Exists, 1, false),
        ("exists", 3) => (FoldKind::Exists, 2, false),
        ("exists_one", 2) => (FoldKind::ExistsOne, 1, false),
        ("exists_one" | "existsOne", 3) => (FoldKind::ExistsOne, 2, false),
        ("map", 2) => (FoldKind::Map, 1, false),
        ("map", 3) => (FoldKind::Map, 1, true),
        ("filter", 2) => (FoldKind::Filter, 1, false),
        ("transformList", 3) => (FoldKind::Map, 2, false),
        ("transformList", 4) => (FoldKind::Map, 2, true),
        ("transformMap", 3) => (FoldKind::TransformMap, 2, false),
        ("transformMap", 4) => (FoldKind::TransformMap, 2, true),
        ("transformMapEntry", 3) => (FoldKind::TransformMapEntry, 2, false),
        ("transformMapEntry", 4) => (FoldKind::TransformMapEntry, 2, true),
        ("sortBy", 2) => (FoldKind::SortBy, 1, false),
        _ => return None,
    })
}

/// `a.b.c`, if it consists of names only.
fn qualified(tree: &Expr) -> Option<String> {
    match tree {
        Expr::Ident(name) => Some(name.trim_start_matches('.').to_owned()),
        Expr::Select(select) => {
            qualified(&select.operand.expr).map(|prefix| format!("{prefix}.{}", select.field))
        }
        _ => None,
    }
}

fn constant(literal: &LiteralValue) -> Datum {
    match literal {
        LiteralValue::Boolean(value) => Datum::Bool(*value.inner()),
        LiteralValue::Bytes(value) => Datum::Bytes(value.inner().into()),
        LiteralValue::Double(value) => Datum::Double(*value.inner()),
        LiteralValue::Int(value) => Datum::Int(*value.inner()),
        LiteralValue::Null => Datum::Null,
        LiteralValue::String(value) => Datum::string(value.inner()),
        LiteralValue::UInt(value) => Datum::Uint(*value.inner()),
    }
}
