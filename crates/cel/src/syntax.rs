//! Converts text to this crate's syntax tree; the only module that calls the parser of the `cel` crate.
//!
//! The parser is recursive: [`parse`] needs a stack of [`crate::stack::COMPILER`]. The tree is as deep as the reference allows.

use std::sync::OnceLock;

use cel::common::ast::operators as op;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo, StructExpr};

use super::environment::Environment;
use super::faults::CompileFault;
use super::tree::{ExprNode, FieldNode, Fold, FoldKind, NodeKind, Selection};
use super::types::type_named;
use super::value::Datum;

/// Maximum length of an expression, in characters.
// cel-go: parser/parser.go — NewParser
pub(super) const MAX_LENGTH: usize = 100_000;
/// Maximum nesting of expressions, and of the operators, selections and calls of methods in each other.
// cel-go: parser/parser.go — recursionListener, checkAndIncrementRecursionDepth
pub(super) const MAX_NESTING: u16 = 250;

/// Parses an expression.
pub(super) fn parse(text: &str, environment: Environment) -> Result<ExprNode, CompileFault> {
    let length = text.chars().count();
    if length > MAX_LENGTH {
        let reason = format!("expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}");
        return Err(CompileFault::unplaced(reason));
    }
    // The whole expression is the first level.
    let parser = cel::Env::default()
        .parser()
        .max_recursion_depth(MAX_NESTING - 1)
        .enable_ident_escape_syntax(environment.rules().quoted_fields);
    let (tree, source) =
        parser.parse_with_source_info(text).map_err(|errors| match errors.errors.into_iter().next() {
            Some(error) if error.msg.contains("Recursion limit of ") => {
                CompileFault::unplaced(format!("expression recursion limit exceeded: {MAX_NESTING}"))
            }
            Some(error) if error.msg == UNSUPPORTED_QUOTES => {
                let at = offset(text, error.pos);
                CompileFault::new(at + before_quote(text, at), error.msg)
            }
            Some(error) => CompileFault::new(offset(text, error.pos), error.msg),
            None => CompileFault::new(0, "syntax error"),
        })?;
    AstReader { source: &source, environment, bound: Vec::new() }.node(tree, 0)
}

/// The parser's error for a field name in back quotes, where these are not allowed. It has the position of the dot before.
const UNSUPPORTED_QUOTES: &str = "unsupported syntax: '`'";

/// The distance from an offset to the next back quote.
fn before_quote(text: &str, at: usize) -> usize {
    text.chars().skip(at).position(|character| character == '`').unwrap_or(0)
}

/// The offset of a line and column, which count from 1.
fn offset(text: &str, (line, column): (isize, isize)) -> usize {
    let lines = usize::try_from(line - 1).unwrap_or(0);
    let before: usize = text.split_inclusive('\n').take(lines).map(|line| line.chars().count()).sum();
    before + usize::try_from(column - 1).unwrap_or(0)
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

    fn is_bound(&self, name: &str) -> bool {
        self.bound.iter().any(|bound| bound == name)
    }

    /// Whether a name with a leading dot is also that of a macro's variable, and told apart from it.
    fn hides(&self, name: &str) -> bool {
        self.environment.rules().distinct_global_names
            && name.strip_prefix('.').is_some_and(|global| self.is_bound(global))
    }

    /// The same of the first name of a qualified one.
    fn is_hidden(&self, tree: &Expr) -> bool {
        qualified(tree).is_some_and(|(first, _)| self.hides(first))
    }

    /// The qualified name of a variable or a type of the environment, if a tree may be one.
    fn global_name(&self, tree: &Expr) -> Option<String> {
        let (first, name) = qualified(tree)?;
        let is_local = self.is_bound(first);
        (!is_local || !self.environment.rules().distinct_global_names).then_some(name)
    }

    fn nodes(&mut self, trees: Vec<IdedExpr>, depth: u16) -> Result<Vec<ExprNode>, CompileFault> {
        trees.into_iter().map(|tree| self.node(tree, depth)).collect()
    }

    fn boxed(&mut self, tree: IdedExpr, depth: u16) -> Result<Box<ExprNode>, CompileFault> {
        self.node(tree, depth).map(Box::new)
    }

    fn node(&mut self, tree: IdedExpr, depth: u16) -> Result<ExprNode, CompileFault> {
        let id = tree.id;
        let depth = if nests(&tree.expr) { deeper(depth)? } else { depth };
        let kind = match tree.expr {
            Expr::Literal(literal) => NodeKind::Literal(constant(&literal)),
            Expr::Ident(name) => {
                let global = name.trim_start_matches('.');
                let is_bound = self.is_bound(global);
                let is_hidden = self.hides(&name);
                match type_named(global).filter(|_| !is_bound || is_hidden) {
                    Some(_) if is_hidden => return Err(CompileFault::undefined_type(&format!(".{global}"))),
                    Some(named) => NodeKind::Literal(Datum::Type(named.into())),
                    // The dot also stays where the checker is to report the name.
                    None if is_hidden || !(is_bound || self.environment.declares(global)) => {
                        NodeKind::Name(name)
                    }
                    None => NodeKind::Name(global.to_owned()),
                }
            }
            Expr::Select(select) => {
                let name = self.global_name(&select.operand.expr);
                let name = name.map(|prefix| format!("{prefix}.{}", select.field));
                match name {
                    Some(name) if self.environment.declares(&name) => NodeKind::Name(name),
                    Some(name) if type_named(&name).is_some() && self.is_hidden(&select.operand.expr) => {
                        return Err(CompileFault::undefined_type(&format!(".{name}")));
                    }
                    // The type of an object, which is not one that an expression may name; the checker reports it.
                    Some(name) if self.environment.message_type(&name).is_some() => NodeKind::Name(name),
                    Some(name) if let Some(named) = type_named(&name) => {
                        NodeKind::Literal(Datum::Type(named.into()))
                    }
                    _ => NodeKind::Select {
                        operand: self.boxed(*select.operand, depth)?,
                        field: select.field,
                        how: Selection::Plain,
                        of_message: OnceLock::new(),
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
            Expr::Struct(message) => self.message(id, message, depth)?,
            Expr::Call(call) => self.call(id, call, depth)?,
            Expr::Comprehension(_) | Expr::Unspecified => return self.fault(id, "syntax error"),
        };
        Ok(ExprNode { kind, at: self.at(id) })
    }

    /// An object with its fields.
    fn message(&mut self, id: u64, message: StructExpr, depth: u16) -> Result<NodeKind, CompileFault> {
        let StructExpr { type_name, entries } = message;
        let name = type_name.trim_start_matches('.');
        if self.environment.message_type(name).is_none() {
            let is_message = ["google.", "kubernetes."].iter().any(|package| name.starts_with(package))
                || type_named(name).is_some();
            return self.fault(
                id,
                if is_message {
                    format!("messages are not supported: '{type_name}'")
                } else {
                    format!("undeclared reference to '{type_name}' (in container '')")
                },
            );
        }
        let mut fields = Vec::with_capacity(entries.len());
        for entry in entries {
            let EntryExpr::StructField(field) = entry.expr else {
                return self.fault(entry.id, "syntax error");
            };
            let value = self.node(field.value, depth)?;
            let (name, at) = (field.field.into(), self.at(entry.id));
            fields.push(FieldNode { name, value, optional: field.optional, at });
        }
        Ok(NodeKind::Message(name.into(), fields))
    }

    fn call(&mut self, id: u64, call: CallExpr, depth: u16) -> Result<NodeKind, CompileFault> {
        let CallExpr { func_name, target, args } = call;
        let name = func_name.trim_start_matches('.').to_owned();
        let Some(target) = target else { return self.global(id, name, args, depth) };
        if let Some((_, prefix)) = qualified(&target.expr) {
            let function = format!("{prefix}.{name}");
            if self.environment.functions().find(&function).is_some() {
                return Ok(NodeKind::Call {
                    function,
                    target: None,
                    arguments: self.nodes(args, depth)?,
                    callee: OnceLock::new(),
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
            callee: OnceLock::new(),
        })
    }

    /// Calls without a target: operators, `has`, functions.
    fn global(
        &mut self,
        id: u64,
        name: String,
        args: Vec<IdedExpr>,
        depth: u16,
    ) -> Result<NodeKind, CompileFault> {
        match (name.as_str(), args.len()) {
            (op::LOGICAL_AND, _) => Ok(NodeKind::And(self.operands(op::LOGICAL_AND, args, depth)?)),
            (op::LOGICAL_OR, _) => Ok(NodeKind::Or(self.operands(op::LOGICAL_OR, args, depth)?)),
            (op::CONDITIONAL, _) => match <[ExprNode; 3]>::try_from(self.nodes(args, depth)?) {
                Ok(parts) => Ok(NodeKind::Conditional(Box::new(parts))),
                Err(_) => self.fault(id, "syntax error"),
            },
            ("has", 1) => match args.into_iter().next().map(|tree| tree.expr) {
                // It is a selection also where the environment has a variable or a type of this name.
                Some(Expr::Select(select)) => Ok(NodeKind::Select {
                    operand: self.boxed(*select.operand, deeper(depth)?)?,
                    field: select.field,
                    how: Selection::Test,
                    of_message: OnceLock::new(),
                }),
                _ => self.fault(id, "invalid argument to has() macro"),
            },
            (op::OPT_SELECT, 2) => {
                let mut parts = self.nodes(args, depth)?.into_iter();
                match (parts.next(), parts.next().map(|node| node.kind)) {
                    (Some(operand), Some(NodeKind::Literal(Datum::String(field)))) => Ok(NodeKind::Select {
                        operand: Box::new(operand),
                        field: field.to_string(),
                        how: Selection::Optional,
                        of_message: OnceLock::new(),
                    }),
                    _ => self.fault(id, "syntax error"),
                }
            }
            _ => Ok(NodeKind::Call {
                function: name,
                target: None,
                arguments: self.nodes(args, depth)?,
                callee: OnceLock::new(),
            }),
        }
    }

    /// Flattens `a && b && c`, a tree of pairs, into its leaves.
    fn operands(
        &mut self,
        operator: &str,
        args: Vec<IdedExpr>,
        depth: u16,
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
        depth: u16,
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
            callee: OnceLock::new(),
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

/// The next level of nesting.
fn deeper(depth: u16) -> Result<u16, CompileFault> {
    if depth < MAX_NESTING {
        Ok(depth + 1)
    } else {
        Err(CompileFault::unplaced("max recursion depth exceeded"))
    }
}

/// The operators that the limit of nesting counts; `!`, `-`, `&&` and `||` are not among them.
const NESTED: [&str; 16] = [
    op::CONDITIONAL,
    op::ADD,
    op::SUBSTRACT,
    op::MULTIPLY,
    op::DIVIDE,
    op::MODULO,
    op::EQUALS,
    op::NOT_EQUALS,
    op::LESS,
    op::LESS_EQUALS,
    op::GREATER,
    op::GREATER_EQUALS,
    op::IN,
    op::INDEX,
    op::OPT_INDEX,
    op::OPT_SELECT,
];

/// Whether the limit of nesting counts a node.
fn nests(tree: &Expr) -> bool {
    match tree {
        Expr::Select(_) => true,
        Expr::Call(call) => call.target.is_some() || NESTED.contains(&call.func_name.as_str()),
        _ => false,
    }
}

/// `a.b.c`, if it consists of a few names only, as the names of variables, types and functions do; and the first of them,
/// with its leading dot.
fn qualified(tree: &Expr) -> Option<(&str, String)> {
    let mut fields = Vec::new();
    let mut tree = tree;
    while let Expr::Select(select) = tree {
        fields.push(select.field.as_str());
        tree = &select.operand.expr;
        if fields.len() > 3 {
            return None;
        }
    }
    let Expr::Ident(name) = tree else { return None };
    fields.push(name.trim_start_matches('.'));
    fields.reverse();
    Some((name, fields.join(".")))
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
