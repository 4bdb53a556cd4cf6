//! The policies of a folder, of one kind, with their bindings.

use std::collections::BTreeMap;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::strict::DecodeError;
use serde_json::Value;

use super::{Folder, FolderContent, Manifests, Place, STATIC_SUFFIX};
use crate::configuration::policies::{FolderPolicy, ReadBinding, ReadPolicy};
use crate::{MutatingPolicy, ValidatingPolicy};

/// The policies of a folder.
#[derive(Debug)]
pub struct PoliciesOfFolder<P: FolderPolicy> {
    /// The files of the names.
    policy_names: BTreeMap<String, String>,
    binding_names: BTreeMap<String, String>,
    policies: BTreeMap<String, P>,
    /// By name.
    bindings: BTreeMap<String, FoundBinding<P::Binding>>,
}

/// A binding whose policy may come later.
#[derive(Debug)]
struct FoundBinding<B> {
    binding: B,
    policy: String,
    file: String,
    document: usize,
    path: String,
}

impl<P: FolderPolicy> Default for PoliciesOfFolder<P> {
    fn default() -> Self {
        Self {
            policy_names: BTreeMap::new(),
            binding_names: BTreeMap::new(),
            policies: BTreeMap::new(),
            bindings: BTreeMap::new(),
        }
    }
}

impl Manifests<PoliciesOfFolder<ValidatingPolicy>> {
    /// No policies yet. The rules are those of `release`.
    pub fn policies(release: Release) -> Self {
        Self::of(PoliciesOfFolder::default(), release)
    }
}

impl Manifests<PoliciesOfFolder<MutatingPolicy>> {
    /// No mutating policies yet. The rules are those of `release`.
    pub fn mutating_policies(release: Release) -> Self {
        Self::of(PoliciesOfFolder::default(), release)
    }
}

impl<P: FolderPolicy> FolderContent for PoliciesOfFolder<P> {
    type Item = P;

    fn kinds(&self) -> &'static [&'static str] {
        &P::KINDS
    }

    fn accept(&mut self, kind: &str, object: &Value, place: Place<'_>, folder: &mut Folder) {
        let [_, of_binding] = P::KINDS;
        let accepted = if kind == of_binding {
            self.binding(object, place, folder)
        } else {
            self.policy(object, place, folder)
        };
        if let Err(DecodeError { field, problem, fix }) = accepted {
            folder.undecodable(place, &field, &problem, fix);
        }
    }

    // validateBindingReferences
    fn finish(self, folder: &mut Folder) -> Vec<P> {
        let Self { mut policies, bindings, policy_names, .. } = self;
        for (name, FoundBinding { binding, policy, file, document, path }) in bindings {
            if let Some(policy) = policies.get_mut(&policy) {
                policy.bind(binding);
            } else if !policy_names.contains_key(&policy) {
                let problem = format!(
                    "binding {} references policy {} which does not exist in the manifest directory",
                    Quoted(&name),
                    Quoted(&policy)
                );
                let place = Place { file: &file, document, path: &path, in_list: false };
                folder.other(place, "spec.policyName", problem, "give the name of a policy of this folder");
            }
        }
        policies.into_values().collect()
    }
}

impl<P: FolderPolicy> PoliciesOfFolder<P> {
    fn policy(&mut self, object: &Value, place: Place<'_>, folder: &mut Folder) -> Result<(), DecodeError> {
        let ReadPolicy { name, has_parameters, validated } = P::read(object, &mut folder.context)?;
        let [kind, _] = P::KINDS;
        let before = folder.errors.len();
        let validated = validated.map_err(|errors| folder.invalid(place, (kind, &name), errors));
        folder.name(place, &name, &mut self.policy_names);
        if has_parameters {
            let problem =
                format!("{kind} {}: spec.paramKind is not supported for static manifests", Quoted(&name));
            folder.other(
                place,
                "spec.paramKind",
                problem,
                "remove it, and write the values into the expressions",
            );
        }
        if let (Ok(policy), true) = (validated, folder.errors.len() == before) {
            self.policies.insert(name, policy);
        }
        Ok(())
    }

    fn binding(&mut self, object: &Value, place: Place<'_>, folder: &mut Folder) -> Result<(), DecodeError> {
        let ReadBinding { name, policy, has_parameters, validated } =
            P::read_binding(object, &mut folder.context)?;
        let [_, kind] = P::KINDS;
        let before = folder.errors.len();
        let validated = validated.map_err(|errors| folder.invalid(place, (kind, &name), errors));
        folder.name(place, &name, &mut self.binding_names);
        // Validation has reported a missing name.
        if !policy.is_empty() && !policy.ends_with(STATIC_SUFFIX) {
            let problem = format!(
                "binding {}: spec.policyName {} must end with \"{STATIC_SUFFIX}\"",
                Quoted(&name),
                Quoted(&policy)
            );
            folder.other(place, "spec.policyName", problem, "give the name of a policy of this folder");
        }
        if has_parameters {
            let problem =
                format!("binding {}: spec.paramRef is not supported for static manifests", Quoted(&name));
            folder.other(place, "spec.paramRef", problem, "remove it");
        }
        if let (Ok(binding), true) = (validated, folder.errors.len() == before) {
            let found = FoundBinding {
                binding,
                policy,
                file: place.file.to_owned(),
                document: place.document,
                path: place.path.to_owned(),
            };
            self.bindings.insert(name, found);
        }
        Ok(())
    }
}
