//! From text to a tree of our own: the one file that the `cel` crate's parser is called from.
//!
//! The parser is recursive, and its stack is not bounded by anything but the text. So the text is bounded first, and
//! parsed on a thread of its own with room for the deepest text that is left; a panic in there is an error here. The
//! crate's macros stay unexpanded: checking and evaluating `all` or `map` is simpler and cheaper on the call itself.

use std::sync::OnceLock;

use cel::common::ast::operators as op;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo};

use super::signatures::{self, Overload};
use super::types::type_named;
use super::value::Datum;

/// The longest expression, in bytes. The reference takes 100,000 code points.
pub(super) const MAX_LENGTH: usize = 10_000;
/// The most brackets that may be open at once, and conditionals in one another.
pub(super) const MAX_NESTING: usize = 60;
/// The deepest tree; the reference's parser gives up at 250 of any one grammar rule.
const MAX_DEPTH: usize = 120;
const STACK: usize = 256 << 20;

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The offset of the place in the text, in characters.
    pub(super) at: usize,
    pub(super) text: String,
}

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// The offset in the text, in characters.
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// A constant; the name of a type is one.
    Literal(Datum),
    /// A variable.
    Name(String),
    Select {
        operand: Box<Node>,
        field: String,
        how: Selection,
    },
    Call {
        function: String,
        target: Option<Box<Node>>,
        arguments: Vec<Node>,
        /// The overload that the checker left: no other is called, whatever the values are.
        only: OnceLock<&'static Overload>,
    },
    /// Elements; the flag marks `?element`.
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Conditional(Box<[Node; 3]>),
    Fold(Box<Fold>),
    /// `optMap` and `optFlatMap`.
    WithOptional {
        target: Box<Node>,
        variable: String,
        body: Box<Node>,
        flat: bool,
    },
}

/// The three ways to take a field.
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
    pub(super) range: Node,
    pub(super) variable: String,
    pub(super) second: Option<String>,
    pub(super) filter: Option<Node>,
    pub(super) body: Node,
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

impl Node {
    /// The nodes right below.
    pub(super) fn children(&self) -> Vec<&Self> {
        match &self.kind {
            Kind::Literal(_) | Kind::Name(_) => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { target, arguments, .. } => {
                target.iter().map(|target| &**target).chain(arguments).collect()
            }
            Kind::List(elements) => elements.iter().map(|(element, _)| element).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value, _)| [key, value]).collect(),
            Kind::And(operands) | Kind::Or(operands) => operands.iter().collect(),
            Kind::Conditional(parts) => parts.iter().collect(),
            Kind::Fold(fold) => {
                [Some(&fold.range), fold.filter.as_ref(), Some(&fold.body)].into_iter().flatten().collect()
            }
            Kind::WithOptional { target, body, .. } => vec![target, body],
        }
    }

    /// The same, to be changed.
    pub(super) fn children_mut(&mut self) -> Vec<&mut Self> {
        match &mut self.kind {
            Kind::Literal(_) | Kind::Name(_) => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call { target, arguments, .. } => {
                target.iter_mut().map(|target| &mut **target).chain(arguments).collect()
            }
            Kind::List(elements) => elements.iter_mut().map(|(element, _)| element).collect(),
            Kind::Map(entries) => entries.iter_mut().flat_map(|(key, value, _)| [key, value]).collect(),
            Kind::And(operands) | Kind::Or(operands) => operands.iter_mut().collect(),
            Kind::Conditional(parts) => parts.iter_mut().collect(),
            Kind::Fold(fold) => {
                let Fold { range, filter, body, .. } = &mut **fold;
                [Some(range), filter.as_mut(), Some(body)].into_iter().flatten().collect()
            }
            Kind::WithOptional { target, body, .. } => vec![target, body],
        }
    }

    /// Whether something holds for this node or one below.
    pub(super) fn any(&self, holds: &impl Fn(&Self) -> bool) -> bool {
        holds(self) || self.children().into_iter().any(|child| child.any(holds))
    }
}

/// Reads an expression.
pub(super) fn parse(text: &str) -> Result<Node, Fault> {
    bounded(text)?;
    let owned = text.to_owned();
    std::thread::Builder::new()
        .name("cel-parser".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let (tree, source) =
                cel::Env::default().parser().parse_with_source_info(&owned).map_err(|errors| match errors
                    .errors
                    .into_iter()
                    .next()
                {
                    Some(error) => Fault { at: offset(&owned, error.pos), text: error.msg },
                    None => Fault { at: 0, text: "syntax error".to_owned() },
                })?;
            Reader { source: &source, bound: Vec::new() }.node(tree, 0)
        })
        .map_err(|error| Fault { at: 0, text: format!("cannot be parsed now: {error}") })?
        .join()
        .unwrap_or_else(|_| Err(Fault { at: 0, text: "cannot be parsed".to_owned() }))
}

/// The offset of a line and column that count from one.
fn offset(text: &str, (line, column): (isize, isize)) -> usize {
    let lines = usize::try_from(line - 1).unwrap_or(0);
    let before: usize = text.split_inclusive('\n').take(lines).map(|line| line.chars().count()).sum();
    before + usize::try_from(column - 1).unwrap_or(0)
}

/// Refuses what the crate's parser must not see: it recurses into brackets and conditionals.
fn bounded(text: &str) -> Result<(), Fault> {
    if text.len() > MAX_LENGTH {
        return Err(Fault { at: 0, text: format!("expression is longer than {MAX_LENGTH} bytes") });
    }
    // Brackets and question marks inside of string literals count too: that can only refuse more, and only texts that
    // hold dozens of them; reading literals here would be a second lexer that must agree with the first.
    let (mut open, mut conditionals) = (0_usize, 0_usize);
    for (at, character) in text.chars().enumerate() {
        match character {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            '?' => conditionals += 1,
            _ => {}
        }
        if open > MAX_NESTING || conditionals > 4 * MAX_NESTING {
            return Err(Fault { at, text: "expression is nested too deeply".to_owned() });
        }
    }
    Ok(())
}

struct Reader<'a> {
    source: &'a SourceInfo,
    /// The variables of macros: they hide types of their names.
    bound: Vec<String>,
}

impl Reader<'_> {
    fn fault<T>(&self, id: u64, text: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at: self.at(id), text: text.into() })
    }

    fn at(&self, id: u64) -> usize {
        self.source.offset_for(id).and_then(|(start, _)| usize::try_from(start).ok()).unwrap_or(0)
    }

    fn nodes(&mut self, trees: Vec<IdedExpr>, depth: usize) -> Result<Vec<Node>, Fault> {
        trees.into_iter().map(|tree| self.node(tree, depth)).collect()
    }

    fn boxed(&mut self, tree: IdedExpr, depth: usize) -> Result<Box<Node>, Fault> {
        self.node(tree, depth).map(Box::new)
    }

    fn node(&mut self, tree: IdedExpr, depth: usize) -> Result<Node, Fault> {
        let id = tree.id;
        if depth > MAX_DEPTH {
            return self.fault(id, "expression is nested too deeply");
        }
        let depth = depth + 1;
        let kind = match tree.expr {
            Expr::Literal(literal) => Kind::Literal(constant(&literal)),
            Expr::Ident(name) => {
                let name = name.trim_start_matches('.').to_owned();
                match type_named(&name).filter(|_| !self.bound.contains(&name)) {
                    Some(named) => Kind::Literal(Datum::Type(named.into())),
                    None => Kind::Name(name),
                }
            }
            Expr::Select(select) => {
                match qualified(&select.operand.expr)
                    .and_then(|prefix| type_named(&format!("{prefix}.{}", select.field)))
                {
                    Some(named) => Kind::Literal(Datum::Type(named.into())),
                    None => Kind::Select {
                        operand: self.boxed(*select.operand, depth)?,
                        field: select.field,
                        how: Selection::Plain,
                    },
                }
            }
            Expr::List(list) => {
                let optional = list.optional_indices;
                let elements = list.elements.into_iter().enumerate();
                Kind::List(
                    elements
                        .map(|(index, tree)| Ok((self.node(tree, depth)?, optional.contains(&index))))
                        .collect::<Result<_, Fault>>()?,
                )
            }
            Expr::Map(map) => {
                let entries = map.entries.into_iter().map(|entry| match entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        Ok((self.node(entry.key, depth)?, self.node(entry.value, depth)?, entry.optional))
                    }
                    EntryExpr::StructField(_) => self.fault(entry.id, "syntax error"),
                });
                Kind::Map(entries.collect::<Result<_, Fault>>()?)
            }
            Expr::Struct(message) => {
                return self.fault(id, format!("messages are not supported: '{}'", message.type_name));
            }
            Expr::Call(call) => self.call(id, call, depth)?,
            Expr::Comprehension(_) | Expr::Unspecified => return self.fault(id, "syntax error"),
        };
        Ok(Node { kind, at: self.at(id) })
    }

    fn call(&mut self, id: u64, call: CallExpr, depth: usize) -> Result<Kind, Fault> {
        let CallExpr { func_name, target, args } = call;
        let name = func_name.trim_start_matches('.').to_owned();
        let Some(target) = target else { return self.global(id, name, args, depth) };
        if let Some(prefix) = qualified(&target.expr) {
            let function = format!("{prefix}.{name}");
            if signatures::is_function(&function) {
                return Ok(Kind::Call {
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
                return Ok(Kind::WithOptional { target, variable, body, flat: name == "optFlatMap" });
            }
            return self.fault(id, "syntax error");
        }
        let target = self.boxed(*target, depth)?;
        Ok(Kind::Call {
            function: name,
            target: Some(target),
            arguments: self.nodes(args, depth)?,
            only: OnceLock::new(),
        })
    }

    /// Calls without a target: operators, `has`, functions.
    fn global(&mut self, id: u64, name: String, args: Vec<IdedExpr>, depth: usize) -> Result<Kind, Fault> {
        match (name.as_str(), args.len()) {
            (op::LOGICAL_AND, _) => Ok(Kind::And(self.operands(op::LOGICAL_AND, args, depth)?)),
            (op::LOGICAL_OR, _) => Ok(Kind::Or(self.operands(op::LOGICAL_OR, args, depth)?)),
            (op::CONDITIONAL, _) => match <[Node; 3]>::try_from(self.nodes(args, depth)?) {
                Ok(parts) => Ok(Kind::Conditional(Box::new(parts))),
                Err(_) => self.fault(id, "syntax error"),
            },
            ("has", 1) => match self.nodes(args, depth)?.pop().map(|node| node.kind) {
                Some(Kind::Select { operand, field, how: Selection::Plain }) => {
                    Ok(Kind::Select { operand, field, how: Selection::Test })
                }
                _ => self.fault(id, "invalid argument to has() macro"),
            },
            (op::OPT_SELECT, 2) => {
                let mut parts = self.nodes(args, depth)?.into_iter();
                match (parts.next(), parts.next().map(|node| node.kind)) {
                    (Some(operand), Some(Kind::Literal(Datum::String(field)))) => Ok(Kind::Select {
                        operand: Box::new(operand),
                        field: field.to_string(),
                        how: Selection::Optional,
                    }),
                    _ => self.fault(id, "syntax error"),
                }
            }
            _ => Ok(Kind::Call {
                function: name,
                target: None,
                arguments: self.nodes(args, depth)?,
                only: OnceLock::new(),
            }),
        }
    }

    /// `a && b && c` is a tree of pairs; its leaves in their order are all that counts.
    fn operands(&mut self, operator: &str, args: Vec<IdedExpr>, depth: usize) -> Result<Vec<Node>, Fault> {
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

    fn variable(&self, tree: IdedExpr) -> Result<String, Fault> {
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
    ) -> Result<Kind, Fault> {
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
            || args.next().ok_or_else(|| Fault { at, text: format!("too few arguments to {name}()") });
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
        Ok(Kind::Fold(Box::new(Fold { kind, range, variable, second, filter, body })))
    }
}

/// The macros on a target: which, with how many variables, and with a condition before the result.
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

/// `a.b.c` of names alone.
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
