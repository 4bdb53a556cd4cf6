//! The Common Expression Language of an `AuthenticationConfiguration`: what kube-apiserver compiles and evaluates, with
//! the same verdicts and the same values.
//!
//! The `cel` crate parses; nothing else in the gateway knows it. It has no type checker, no meter and no error texts of
//! the reference, and a rule that is refused only when somebody logs in is a rule that was never checked. So the tree
//! is checked (`check`) and evaluated (`eval`) here: an expression that compiles has the types that the reference would
//! give it, and its evaluation ends within the reference's cost limit, whatever the token contains.
//!
//! Missing, and refused with a text that says so when the configuration is loaded:
//!
//! | of the reference | why |
//! |---|---|
//! | `duration`, `timestamp` and their accessors | no claim has such a type, and there is no `now` |
//! | `format` of strings, named formats | for messages, which rules here do not compute |
//! | `url`, `ip`, `cidr`, `quantity`, `semver` | values of API objects |
//! | the authorizer's functions | there is no authorizer in these expressions |
//! | messages (`google.protobuf.Int64Value{value: 1}`) | a literal says the same |
//! | macros of two variables over `claims` itself | the reference looks up values as if they were keys |
//! | map keys that are lists, maps, bytes or types | no lookup finds them, and some end the API server |
//! | more than 10,000 bytes, 60 open brackets, 240 `?`, a tree deeper than 120 | the parser recurses |
//! | patterns of more than 10,000 bytes, 100 groups in each other, 1 MiB compiled | a token may hold one |
//!
//! Strings and lists that a call makes are paid for by their own length, where the reference counts the operand alone.

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
use syntax::{Fault, Kind, Node};
use value::{Datum, Root};

/// What an expression is for: it decides the variable and the type of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Maps `claims` to a name, groups, a UID or extra values; of any type until it is evaluated.
    ClaimMapping,
    /// A condition on `claims`.
    ClaimRule,
    /// A condition on `user`.
    UserRule,
}

/// An expression that compiles. Cheap to clone.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    text: String,
    purpose: Purpose,
    tree: Node,
    patterns: Patterns,
}

/// Why an expression does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("compilation failed: ERROR: <input>:{line}:{column}: {reason}")]
pub struct CompileError {
    /// The line, from one.
    pub line: usize,
    /// The column in characters, from one.
    pub column: usize,
    /// What is wrong there.
    pub reason: String,
}

/// Why an evaluation has no result: a fault of the token or of the rule, never of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(String);

/// The variable of expressions: built once, used for many of them.
#[derive(Debug, Clone)]
pub struct Variable {
    name: &'static str,
    value: Datum,
}

/// The result of an expression, as far as an authenticator looks into it.
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
    /// Anything else, by the name of its type. Lists that a string function made (`split`, `findAll`) are among them:
    /// kube-apiserver takes them for no list of strings.
    Other(String),
}

impl Expression {
    /// Compiles an expression. Takes milliseconds, and a thread of its own: for the loading of a configuration.
    pub fn compile(text: &str, purpose: Purpose) -> Result<Self, CompileError> {
        let compile = || {
            let mut tree = syntax::parse(text)?;
            check::check(&tree, purpose)?;
            let mut patterns = Patterns::default();
            plan::plan(&mut tree, &mut patterns)?;
            Ok(Compiled { text: text.to_owned(), purpose, tree, patterns })
        };
        compile().map(|compiled| Self(Arc::new(compiled))).map_err(|Fault { at, text: reason }| {
            let before: String = text.chars().take(at).collect();
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            CompileError {
                line: before.matches('\n').count() + 1,
                column: before.get(line_start..).map_or(0, |line| line.chars().count()) + 1,
                reason,
            }
        })
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Whether the expression selects this claim, as `claims.email` or `claims.?email`. `claims["email"]` does not
    /// count.
    // apiserver: pkg/apis/apiserver/validation/validation.go — usesEmailClaim
    pub fn uses_claim(&self, field: &str) -> bool {
        let selects = |node: &Node| match &node.kind {
            Kind::Select { operand, field: selected, how: _ } => {
                selected == field && matches!(&operand.kind, Kind::Name(name) if name == "claims")
            }
            _ => false,
        };
        self.0.tree.any(&selects)
    }

    /// Evaluates the expression. The variable must be the one of its purpose.
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

/// Equal are expressions that are written alike and for the same purpose.
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
    /// `claims`, from the claims of a token.
    pub fn claims(claims: &serde_json::Map<String, serde_json::Value>) -> Self {
        let fields = claims.iter().map(|(name, value)| (name.clone(), Datum::from_json(value))).collect();
        Self::new("claims", "kubernetes.claims", fields)
    }

    /// `user`, from what the claims were mapped to.
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
        Self { name, value: Datum::Root(Arc::new(Root { type_name, fields })) }
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

/// The overloads of a function as the reference writes them, for comparison with its own.
#[doc(hidden)]
pub fn overloads(function: &str) -> Option<Vec<String>> {
    signatures::overloads(function).map(|overloads| overloads.iter().map(ToString::to_string).collect())
}

/// Whether a function of the reference is missing here.
#[doc(hidden)]
pub fn is_missing(function: &str) -> bool {
    signatures::is_missing(function)
}

/// All matches of a pattern in texts, for comparison with Go's `regexp`.
#[doc(hidden)]
pub fn pattern_matches(pattern: &str, texts: &[String]) -> Result<Vec<Vec<String>>, String> {
    pattern::find_all(pattern, texts)
}

/// The characters that a pattern for one character stands for, as ranges, for comparison with Go's; `None` for another
/// pattern.
#[doc(hidden)]
pub fn pattern_characters(pattern: &str) -> Result<Option<Vec<(char, char)>>, String> {
    pattern::characters(pattern)
}

/// A double in text, for comparison with Go's `ParseFloat`.
#[doc(hidden)]
pub fn read_double(text: &str) -> Option<f64> {
    float::parse(text)
}
