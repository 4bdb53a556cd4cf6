//! Webhook configurations and policies: decoding, defaults and validation, with kube-apiserver's errors.
//!
//! [`manifest`] reads the objects of a folder of static manifests. Must never return a webhook, or a policy, of an object with an error.

pub mod manifest;
mod policies;

mod validation;
mod warnings;
mod wire;

pub use warnings::FieldWarning;

use std::collections::BTreeMap;

use portcullis_cel::{CelGo, CompileError, Environment, Expression, ResultType};
use portcullis_kubernetes::field::FieldError;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::strict::{self, DecodeError};
use serde_json::Value;

use crate::{Webhook, WebhookKind};

impl WebhookKind {
    /// The kind of its configurations.
    pub fn configuration_kind(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }
}

/// A decoded configuration, not validated yet.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookConfiguration {
    kind: WebhookKind,
    wire: wire::WebhookConfiguration,
}

impl WebhookConfiguration {
    /// Decodes an object of `admissionregistration.k8s.io/v1`, strictly. Does not look at its kind.
    pub fn decode(kind: WebhookKind, object: &Value) -> Result<Self, DecodeError> {
        let prune = |known: &mut Value| wire::remove_foreign_fields(kind, known);
        Ok(Self { kind, wire: strict::decode(object, prune)? })
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        &self.wire.metadata.name
    }

    /// The webhooks, with defaults, in order; or every error.
    pub fn webhooks(&self, context: &mut ValidationContext) -> Result<Vec<Webhook>, Vec<FieldError>> {
        validation::webhooks(self.kind, &self.wire, context)
    }

    /// The rules that name a resource which no webhook sees.
    pub fn warnings(&self, release: Release) -> Vec<FieldWarning> {
        warnings::excluded_resources(&self.wire, release)
    }
}

/// By which rules configurations are validated, and what is known of their expressions.
#[derive(Debug, Default)]
pub struct ValidationContext {
    release: Release,
    /// Compiled expressions by their text: the conditions of several webhooks are often equal, and compiling one takes
    /// milliseconds.
    expressions: BTreeMap<String, Result<Expression, CompileError>>,
}

impl ValidationContext {
    /// The rules of this release.
    pub fn new(release: Release) -> Self {
        Self { release, expressions: BTreeMap::new() }
    }

    /// The environment as the release has it.
    fn of_release(&self, environment: Environment) -> Environment {
        environment.of(CelGo::of_kubernetes(self.release.minor()))
    }

    fn compile(&mut self, text: &str) -> Result<Expression, CompileError> {
        if let Some(known) = self.expressions.get(text) {
            return known.clone();
        }
        let compiled = Expression::compile(text, self.of_release(Environment::ADMISSION), ResultType::Bool);
        self.expressions.insert(text.to_owned(), compiled.clone());
        compiled
    }
}
