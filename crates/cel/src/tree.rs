//! The syntax tree of an expression. The macros stay unexpanded: checking and evaluating `all` or `map` is simpler and
//! cheaper on the call itself.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use super::registry::Callee;
use super::value::{Datum, MapKey};

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
        /// Set by the checker if the operand is an object that the expression makes, or an operation of a patch.
        of_message: OnceLock<()>,
    },
    Call {
        function: String,
        target: Option<Box<ExprNode>>,
        arguments: Vec<ExprNode>,
        /// What the checker resolved the name to.
        callee: OnceLock<Callee>,
    },
    /// Elements, with a flag for `?element`.
    List(Vec<(ExprNode, bool)>),
    Map(Vec<(ExprNode, ExprNode, bool)>),
    /// An object of this type.
    Message(Arc<str>, Vec<FieldNode>),
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

/// A field of an object that an expression makes.
#[derive(Debug)]
pub(super) struct FieldNode {
    pub(super) name: Arc<str>,
    pub(super) value: ExprNode,
    /// Whether it is `?name`.
    pub(super) optional: bool,
    pub(super) at: usize,
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
    /// The function that sorts by the keys of `sortBy`.
    pub(super) callee: OnceLock<Callee>,
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
            NodeKind::Message(_, fields) => fields.iter().map(|field| &field.value).collect(),
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
            NodeKind::Message(_, fields) => fields.iter_mut().map(|field| &mut field.value).collect(),
            NodeKind::And(operands) | NodeKind::Or(operands) => operands.iter_mut().collect(),
            NodeKind::Conditional(parts) => parts.iter_mut().collect(),
            NodeKind::Fold(fold) => {
                let Fold { range, filter, body, .. } = &mut **fold;
                [Some(range), filter.as_mut(), Some(body)].into_iter().flatten().collect()
            }
            NodeKind::WithOptional { target, body, .. } => vec![target, body],
        }
    }

    /// Leaves a constant in the place of the node.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self { kind: NodeKind::Literal(Datum::Null), at: 0 })
    }

    /// The number of nodes on the longest path.
    pub(super) fn depth(&self) -> usize {
        1 + self.children().into_iter().map(Self::depth).max().unwrap_or(0)
    }

    /// Whether the predicate holds for this node or a descendant.
    pub(super) fn any(&self, holds: &impl Fn(&Self) -> bool) -> bool {
        holds(self) || self.children().into_iter().any(|child| child.any(holds))
    }
}
