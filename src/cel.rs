//! The Common Expression Language of kube-apiserver's configuration.

use serde_json::{Map, Value as Json};

/// What an expression is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Makes a part of the identity of `claims`.
    ClaimMapping,
    /// Decides over `claims`.
    ClaimRule,
    /// Decides over `user`.
    UserRule,
}

/// A compiled expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
    purpose: Purpose,
}

/// Why an expression cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("compilation failed: {0}")]
pub struct CompileError(pub String);

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(pub String);

/// What an expression is over.
#[derive(Debug, Clone)]
pub struct Variable;

/// A value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// A list.
    List(Vec<Value>),
    /// Anything else: the name of its type.
    Other(String),
}

impl Variable {
    /// The claims of a token.
    pub fn claims(_claims: &Map<String, Json>) -> Self {
        Self
    }
}

impl Expression {
    /// Compiles an expression.
    pub fn compile(text: &str, purpose: Purpose) -> Result<Self, CompileError> {
        Ok(Self { text: text.to_owned(), purpose })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether `claims.<field>` is selected anywhere in it.
    pub fn uses_claim(&self, _field: &str) -> bool {
        false
    }

    /// Its value.
    pub fn evaluate(&self, _variable: &Variable) -> Result<Value, EvalError> {
        Err(EvalError("not there yet".to_owned()))
    }
}
