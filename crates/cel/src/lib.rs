//! The Common Expression Language (CEL) as Kubernetes runs it: the same expressions compile, with the same types, to the
//! same values, the same errors, and never at a lower cost.
//!
//! ```
//! use portcullis_cel::{Bindings, Environment, Expression, ResultType, Value};
//!
//! let rule = Expression::compile("claims.hd == 'example.com'", Environment::CLAIMS, ResultType::Bool)?;
//! let claims = serde_json::json!({"hd": "example.com"});
//! let bindings = Bindings::claims(claims.as_object().unwrap());
//! assert_eq!(rule.evaluate(&bindings), Ok(Value::Bool(true)));
//!
//! let error = Expression::compile("claims.hd.startWith('a')", Environment::CLAIMS, ResultType::Bool).unwrap_err();
//! assert_eq!(error.fix(), Some("did you mean 'startsWith'?"));
//! # Ok::<(), portcullis_cel::CompileError>(())
//! ```
//!
//! An [`Environment`] says which variables an expression may use, and their types. [`Expression::compile`] parses, checks
//! and plans an expression once, when a configuration is loaded; the result is immutable, cheap to clone, and shared by all
//! requests. [`Bindings`] hold the values of the variables; they are built once for all expressions of a request.
//! [`Expression::evaluate`] is synchronous, and ends at the reference's cost limit whatever the values are.
//!
//! An expression of [`Environment::ADMISSION`] may call the authorizer. [`Expression::evaluate_with`] then ends with
//! [`Outcome::Review`]; have the access review decided and evaluate again with the decision. A check costs 350,000 of the
//! 1,000,000 units, so no expression needs more than two. [`Evaluated::cost`] is what a [`Budget`] of several expressions is charged.
//!
//! An expression of [`Environment::MUTATION`] may make objects, as `Object{spec: Object.spec{replicas: 3}}` and `JSONPatch{op: 'remove',
//! path: '/spec/a'}`. Compiled for [`ResultType::ApplyConfiguration`] or [`ResultType::JsonPatch`], it ends with [`Outcome::Patch`]. Each
//! mutation of a policy has [`VariableValues`] of its own: the one before may have changed the object.
//!
//! "The reference" in this crate is cel-go as kube-apiserver configures it: that of [`CelGo::REFERENCE`], unless
//! [`Environment::of`] selects another release. The modules, from the top to the bottom; a
//! module imports only modules below it, and a test holds this:
//!
//! | module | purpose |
//! |---|---|
//! | `conformance` | what the comparison with the reference needs |
//! | `budget` | the budget of several expressions |
//! | `type_check` | checks expressions against the declared type of an object |
//! | `variables` | the variables of a policy: named expressions |
//! | `explain` | the values of the parts of an expression, for people |
//! | `expression` | an expression: compiled in the steps `syntax`, `check`, `plan`, and evaluated by `eval` |
//! | `bindings` | the values of the variables |
//! | `patch` | the JSON of the values of mutations |
//! | `plan` | folds constants, and compiles literal patterns |
//! | `check` | infers types, resolves each call, and rejects an invalid expression when the configuration is loaded |
//! | `syntax` | parses an expression with the `cel` crate, which no other module uses |
//! | `eval` | evaluates the tree; no input may make it panic, recurse without bound or run for long |
//! | `tree` | the syntax tree |
//! | `environment` | the variables and the functions that an expression may use |
//! | `registry` | the functions of several libraries by name, and the calls that they are resolved to |
//! | `libraries` | the functions: CEL's own, those of cel-go's extensions and of Kubernetes |
//! | `arithmetic` | sums and products of values |
//! | `equality` | equality and order of values |
//! | `go_form` | the values of Go that the objects of patches hold |
//! | `library` | the contract of a library: what its functions are, what they cost, what they do |
//! | `price` | what calls cost, as far as libraries have it in common |
//! | `composition` | the types and values of the variables of a policy |
//! | `evaluation` | one evaluation: its cost and limit, its ends, the patterns and decisions that its calls share |
//! | `signatures` | the notation of declarations |
//! | `types` | the types of the checker, and assignability between them |
//! | `declared` | the types of objects, as this crate's caller declares them |
//! | `value` | the values |
//! | `native` | the values of types that libraries add |
//! | `time` | durations and timestamps |
//! | `number` | conversions between numbers, and their texts |
//! | `float` | doubles, as Go parses them |
//! | `patterns` | the regular expressions of an expression, as Go parses them |
//! | `access` | access reviews for the authorizer, and its decisions |
//! | `faults` | errors of compilation, as the reference words them |
//! | `stack` | threads with a larger stack |
//! | `cel_go` | the releases of the reference, and what differs between them |
//!
//! The `cel` crate lacks a type checker, a cost limit and the error texts of the reference; this crate supplies them. The
//! evaluator, the checker and the planner know libraries by the trait `library::Library` alone. The checker resolves a
//! call to a function of the environment's `registry::Registry`, so that an evaluation looks up no name. To add a
//! function, add a line and its call to a library; to add a library, implement the trait and list it in `libraries`.
//!
//! Unsupported parts of the reference, which fail with an error that names them:
//!
//! | unsupported | reason |
//! |---|---|
//! | messages of Protocol Buffers (`google.protobuf.Int64Value{value: 1}`) | equivalent to a literal |
//! | comparing objects of patches that hold one list of a variable, or values of libraries | equal if Go holds them alike |
//! | macros with two variables over `claims` itself | the reference uses the values as keys there |
//! | map keys that are lists, maps, bytes or types | lookups never find them, and some crash the API server |
//! | quantities of more than 1,000 digits, exponents beyond 1,000 | comparing them does not end in the reference |
//! | patterns of more than 10,000 bytes, 100 nested groups, 1 MiB compiled | a token may contain a pattern |
//!
//! Time zones are those of the tz database that the crate `jiff` brings, not of the machine. `Local`, the zone of the API
//! server's machine, fails when it is used, and so do names of files that are not zones, such as `posix/UTC`.
//!
//! The price of a call is the reference's or higher; the libraries say where it is higher, and why.

mod access;
mod arithmetic;
mod bindings;
mod budget;
mod cel_go;
mod check;
mod composition;
#[doc(hidden)]
pub mod conformance;
mod declared;
mod environment;
mod equality;
mod eval;
mod evaluation;
mod explain;
mod expression;
mod faults;
mod float;
mod go_form;
mod libraries;
mod library;
mod native;
mod number;
mod patch;
mod patterns;
mod plan;
mod price;
mod registry;
mod signatures;
mod stack;
mod syntax;
#[cfg(test)]
mod tests;
mod time;
mod tree;
mod type_check;
mod types;
mod value;
mod variables;

pub use access::{AccessDecision, AccessReview, AccessTarget, ResourceTarget, ServiceAccount};
pub use bindings::Bindings;
pub use budget::{Budget, BudgetExceeded};
pub use cel_go::CelGo;
pub use composition::VariableValues;
pub use declared::{Declared, ObjectFields};
pub use environment::{Environment, ResultType};
pub use explain::ExplainedPart;
pub use expression::{EvalError, Evaluated, Expression, Outcome, Value};
pub use faults::CompileError;
pub use libraries::quantity::{QuantityError, canonical as canonical_quantity};
pub use type_check::{TypeCheck, VariableCheck};
pub use value::is_identifier;
pub use variables::{VariableOutcome, Variables};
