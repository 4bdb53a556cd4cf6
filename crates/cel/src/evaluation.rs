//! One evaluation: its cost and its limit, the ways in which it ends, and what its calls share.
//!
//! Costs and limit are those of the reference; work that it does not count, like the comparison of nested values, has a
//! cost here as well. Every step is charged to the one limit, so that an evaluation always ends soon.

use std::collections::VecDeque;
use std::sync::Arc;

use portcullis_go::regexp::Pattern;

use super::access::{AccessDecision, AccessReview};
use super::cel_go::Rules;
use super::patterns::Patterns;
use super::value::Datum;

/// The cost limit of one evaluation, as in the reference.
// apiserver: pkg/apis/cel/config.go — PerCallLimit
pub(super) const COST_LIMIT: u64 = 1_000_000;
/// The error of an evaluation beyond it.
pub(super) const COST_EXCEEDED: &str = "operation cancelled: actual cost limit exceeded";
/// The limit of nodes that one evaluation visits. It bounds the work that has no cost, like that of `true && true`, and is
/// beyond what an expression needs within the cost limit.
const STEP_LIMIT: u64 = 5 * COST_LIMIT;

/// What a brief evaluation may cost, on a thread on which others wait: less than a millisecond.
pub(super) const BRIEF_COST: u64 = 10_000;

/// How far an evaluation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// To the end, or to the limit.
    Whole,
    /// No further than this cost.
    Brief(u64),
}

/// The number of computed patterns that one evaluation keeps.
const MAX_PATTERNS: usize = 4;

/// Why an evaluation ended without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// An error, which `&&` and `||` may absorb.
    Error(String),
    /// No overload accepts the values; `Library::refusal` is the reference's error for the function.
    Unsuited,
    /// What is not supported here, or is beyond a bound of this program. It says nothing about the input, so no operator may absorb it.
    Unsupported(String),
    /// The cost limit is exceeded.
    Cost,
    /// The evaluation is not brief.
    Long,
    /// The authorizer must decide an access review first.
    Review(Box<AccessReview>),
    /// This variable of the policy must be evaluated first.
    Variable(String),
}

impl Halt {
    /// Whether the evaluation ends, whatever other operands of `&&` and `||` are.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Error(_) | Self::Unsuited => false,
            Self::Unsupported(_) | Self::Cost | Self::Long | Self::Review(_) | Self::Variable(_) => true,
        }
    }
}

/// How an evaluation ended without a value, with the reference's text.
pub(super) enum HaltKind {
    Error(String),
    /// What is not supported here.
    Unsupported(String),
    /// The evaluation is not brief.
    Long,
    Review(Box<AccessReview>),
    Variable(String),
}

impl Halt {
    /// The end as the callers of an evaluation see it.
    pub(super) fn kind(self) -> HaltKind {
        match self {
            Self::Error(text) => HaltKind::Error(text),
            Self::Unsupported(text) => HaltKind::Unsupported(text),
            Self::Unsuited => HaltKind::Error("no such overload".to_owned()),
            Self::Cost => HaltKind::Error(COST_EXCEEDED.to_owned()),
            Self::Long => HaltKind::Long,
            Self::Review(review) => HaltKind::Review(review),
            Self::Variable(name) => HaltKind::Variable(name),
        }
    }
}

pub(super) type EvalResult = Result<Datum, Halt>;

pub(super) fn error<T>(text: impl Into<String>) -> Result<T, Halt> {
    Err(Halt::Error(text.into()))
}

pub(super) fn no_such_overload<T>() -> Result<T, Halt> {
    error("no such overload")
}

pub(super) fn unsupported<T>(text: impl Into<String>) -> Result<T, Halt> {
    Err(Halt::Unsupported(text.into()))
}

/// A value, or its error.
pub(super) fn sound(value: Datum) -> EvalResult {
    match value {
        Datum::Failed(text) => error(&*text),
        value => Ok(value),
    }
}

/// The cost of one evaluation so far, and what its calls share.
pub(super) struct Evaluation<'a> {
    rules: &'static Rules,
    patterns: &'a Patterns,
    /// The last computed patterns.
    computed: VecDeque<(String, Arc<Pattern>)>,
    decisions: &'a [(AccessReview, AccessDecision)],
    spent: u64,
    /// What of it the reference charges at least.
    certain: u64,
    steps: u64,
    extent: Extent,
}

/// What an evaluation has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) cost: u64,
    /// Whether it may be within the limit in the reference.
    pub(super) may_be_within: bool,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(
        rules: &'static Rules,
        patterns: &'a Patterns,
        decisions: &'a [(AccessReview, AccessDecision)],
        extent: Extent,
    ) -> Self {
        Self { rules, patterns, computed: VecDeque::new(), decisions, spent: 0, certain: 0, steps: 0, extent }
    }

    /// The rules of the release that is followed.
    pub(super) fn rules(&self) -> &'static Rules {
        self.rules
    }

    /// The cost so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// The decision of an access review, if it is known.
    pub(super) fn decision(&self, review: &AccessReview) -> Option<&'a AccessDecision> {
        self.decisions.iter().find(|(decided, _)| decided == review).map(|(_, decision)| decision)
    }

    /// The same, with what the reference may think of it.
    pub(super) fn outlay(&self) -> Spent {
        Spent { cost: self.spent, may_be_within: self.certain <= COST_LIMIT }
    }

    pub(super) fn patterns(&self) -> &'a Patterns {
        self.patterns
    }

    /// A literal pattern of the expression, or one of the last that were computed.
    pub(super) fn pattern(&self, text: &str) -> Option<Arc<Pattern>> {
        let computed = || self.computed.iter().find(|(known, _)| known == text);
        self.patterns.find(text).or_else(|| computed().map(|(_, pattern)| Arc::clone(pattern)))
    }

    /// Keeps a computed pattern for the next call.
    pub(super) fn keep_pattern(&mut self, text: &str, pattern: Arc<Pattern>) {
        if self.computed.len() >= MAX_PATTERNS {
            self.computed.pop_front();
        }
        self.computed.push_back((text.to_owned(), pattern));
    }

    /// Charges work before it is done.
    pub(super) fn charge(&mut self, price: usize) -> Result<(), Halt> {
        self.spent = self.spent.saturating_add(u64::try_from(price).unwrap_or(u64::MAX));
        self.within(self.spent, COST_LIMIT)
    }

    /// Charges what the reference charges, too.
    pub(super) fn charge_alike(&mut self, price: usize) -> Result<(), Halt> {
        self.certain = self.certain.saturating_add(u64::try_from(price).unwrap_or(u64::MAX));
        self.charge(price)
    }

    /// Charges reading `length` characters or bytes.
    pub(super) fn charge_reading(&mut self, length: usize) -> Result<(), Halt> {
        self.charge(length.div_ceil(10))
    }

    /// Counts a node, also where the reference has no cost for it.
    pub(super) fn step(&mut self) -> Result<(), Halt> {
        self.steps += 1;
        self.within(self.steps, STEP_LIMIT)
    }

    fn within(&self, used: u64, limit: u64) -> Result<(), Halt> {
        match self.extent {
            Extent::Brief(most) if used > most => Err(Halt::Long),
            _ if used > limit => Err(Halt::Cost),
            _ => Ok(()),
        }
    }
}
