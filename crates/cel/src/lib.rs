//! The Common Expression Language (CEL) of an `AuthenticationConfiguration`, compatible with kube-apiserver: it
//! compiles the same expressions, evaluates them to the same values, and fails with the same errors.
//!
//! "The reference" in this crate is cel-go as kube-apiserver configures it. The steps:
//!
//! 1. `syntax` parses an expression with the `cel` crate, which no other module uses. That crate lacks a type checker,
//!    a cost limit and the error texts of the reference; this crate supplies them.
//! 2. `check` infers types by the overloads in `signatures`, and rejects an invalid expression when the configuration
//!    is loaded, not when a user logs in.
//! 3. `plan` folds constants, and compiles literal patterns (`pattern` parses them by Go's rules).
//! 4. `eval` evaluates the tree, and stops at the reference's cost limit, whatever the token contains. No input may
//!    make it panic, recurse without bound or run for long.
//!
//! Unsupported parts of the reference, which fail to compile with an error that names them:
//!
//! | unsupported | reason |
//! |---|---|
//! | `duration`, `timestamp` and their accessors | claims have no such type, and there is no `now` |
//! | `format` of strings, named formats | they serve computed messages, which these rules do not have |
//! | `url`, `ip`, `cidr`, `quantity`, `semver` | types of API objects |
//! | the authorizer's functions | these expressions have no authorizer |
//! | messages (`google.protobuf.Int64Value{value: 1}`) | equivalent to a literal |
//! | macros with two variables over `claims` itself | the reference uses the values as keys there |
//! | map keys that are lists, maps, bytes or types | lookups never find them, and some crash the API server |
//! | more than 10,000 bytes, 60 open brackets, 240 `?`, a tree deeper than 120 | the parser is recursive |
//! | patterns of more than 10,000 bytes, 100 nested groups, 1 MiB compiled | a token may contain a pattern |
//!
//! The cost of a call that creates a string or list is the length of the result; the reference counts the operand only.

mod check;
mod eval;
mod float;
mod functions;
mod lists;
mod number;
mod pattern;
mod plan;
mod signatures;
mod strings;
mod syntax;
#[cfg(test)]
mod tests;
mod types;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pattern::Patterns;
use syntax::{CompileFault, ExprNode, NodeKind};
use value::{Datum, RootVariable};

/// The use of an expression, which determines its variable and result type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Maps `claims` to a name, groups, a UID or extra values; the result type is checked at evaluation.
    ClaimMapping,
    /// A condition on `claims`.
    ClaimRule,
    /// A condition on `user`.
    UserRule,
}

/// A compiled expression. Cheap to clone.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    text: String,
    purpose: Purpose,
    tree: ExprNode,
    patterns: Patterns,
}

/// Why an expression does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("compilation failed: ERROR: <input>:{line}:{column}: {reason}")]
pub struct CompileError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The problem.
    pub reason: String,
}

/// Why an evaluation failed: an error of the token or the rule, never of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(String);

/// The variable of expressions; build it once for many of them.
#[derive(Debug, Clone)]
pub struct Variable {
    name: &'static str,
    value: Datum,
}

/// The result of an expression, with the types that authenticators use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// A list.
    List(Vec<Self>),
    /// The type name of any other value. Includes the results of `split` and `findAll`, which kube-apiserver does not
    /// accept as a list of strings.
    Other(String),
}

impl Expression {
    /// Compiles an expression. Takes milliseconds and spawns a thread: call it only while loading a configuration.
    pub fn compile(text: &str, purpose: Purpose) -> Result<Self, CompileError> {
        let compile = || {
            let mut tree = syntax::parse(text)?;
            check::check(&tree, purpose)?;
            let mut patterns = Patterns::default();
            plan::plan(&mut tree, &mut patterns)?;
            Ok(Compiled { text: text.to_owned(), purpose, tree, patterns })
        };
        compile().map(|compiled| Self(Arc::new(compiled))).map_err(|CompileFault { at, text: reason }| {
            let before: String = text.chars().take(at).collect();
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            CompileError {
                line: before.matches('\n').count() + 1,
                column: before.get(line_start..).map_or(0, |line| line.chars().count()) + 1,
                reason,
            }
        })
    }

    /// The source text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Whether the expression selects this claim, as `claims.email` or `claims.?email`, but not as `claims["email"]`.
    // apiserver: pkg/apis/apiserver/validation/validation.go — usesEmailClaim
    pub fn uses_claim(&self, field: &str) -> bool {
        let selects = |node: &ExprNode| match &node.kind {
            NodeKind::Select { operand, field: selected, how: _ } => {
                selected == field && matches!(&operand.kind, NodeKind::Name(name) if name == "claims")
            }
            _ => false,
        };
        self.0.tree.any(&selects)
    }

    /// Evaluates the expression. The variable must match its purpose.
    pub fn evaluate(&self, variable: &Variable) -> Result<Value, EvalError> {
        let patterns = &self.0.patterns;
        match eval::Machine::new(variable.name, variable.value.clone(), patterns).eval(&self.0.tree) {
            Ok(value) => Ok(Value::from(&value)),
            Err(eval::Halt::Error(text)) => Err(EvalError(text)),
            Err(eval::Halt::Unsuited) => Err(EvalError("no such overload".to_owned())),
            Err(eval::Halt::Cost) => {
                Err(EvalError("operation cancelled: actual cost limit exceeded".to_owned()))
            }
        }
    }
}

/// Expressions are equal if their texts and purposes are.
impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        (self.text(), self.0.purpose) == (other.text(), other.0.purpose)
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compiled { text, purpose, .. } = &*self.0;
        out.debug_struct("Expression").field("text", text).field("purpose", purpose).finish_non_exhaustive()
    }
}

impl Variable {
    /// The variable `claims`, from the claims of a token.
    pub fn claims(claims: &serde_json::Map<String, serde_json::Value>) -> Self {
        let fields = claims.iter().map(|(name, value)| (name.clone(), Datum::from_json(value))).collect();
        Self::new("claims", "kubernetes.claims", fields)
    }

    /// The variable `user`, from the mapped claims.
    pub fn user(username: &str, uid: &str, groups: &[String], extra: &BTreeMap<String, Vec<String>>) -> Self {
        let list = |items: &[String]| Datum::list(items.iter().map(|item| Datum::string(item)).collect());
        let extra = extra.iter().map(|(key, values)| (key.as_str().into(), list(values))).collect();
        let fields = [
            ("username", Datum::string(username)),
            ("uid", Datum::string(uid)),
            ("groups", list(groups)),
            ("extra", Datum::map(extra)),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self::new("user", "kubernetes.UserInfo", fields)
    }

    fn new(name: &'static str, type_name: &'static str, fields: BTreeMap<String, Datum>) -> Self {
        Self { name, value: Datum::Root(Arc::new(RootVariable { type_name, fields })) }
    }
}

impl From<&Datum> for Value {
    fn from(value: &Datum) -> Self {
        match value {
            Datum::Null => Self::Null,
            Datum::Bool(value) => Self::Bool(*value),
            Datum::String(text) => Self::String(text.to_string()),
            Datum::List(list) if !list.opaque => Self::List(list.items.iter().map(Self::from).collect()),
            other => Self::Other(other.type_name().to_owned()),
        }
    }
}

/// The overloads of a function in the reference's format, for conformance tests.
#[doc(hidden)]
pub fn overloads(function: &str) -> Option<Vec<String>> {
    signatures::overloads(function).map(|overloads| overloads.iter().map(ToString::to_string).collect())
}

/// Whether this crate lacks a function of the reference.
#[doc(hidden)]
pub fn is_missing(function: &str) -> bool {
    signatures::is_missing(function)
}

/// All matches of a pattern in texts, for conformance tests against Go's `regexp`.
#[doc(hidden)]
pub fn pattern_matches(pattern: &str, texts: &[String]) -> Result<Vec<Vec<String>>, String> {
    pattern::find_all(pattern, texts)
}

/// The characters that a pattern for one character matches, as ranges, for conformance tests against Go; `None` for
/// other patterns.
#[doc(hidden)]
pub fn pattern_characters(pattern: &str) -> Result<Option<Vec<(char, char)>>, String> {
    pattern::characters(pattern)
}

/// Parses a double, for conformance tests against Go's `ParseFloat`.
#[doc(hidden)]
pub fn read_double(text: &str) -> Option<f64> {
    float::parse(text)
}
