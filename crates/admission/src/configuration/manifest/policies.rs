//! The validating policies of a folder, with their bindings.

use std::collections::BTreeMap;

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::release::Release;
use portcullis_kubernetes::strict::DecodeError;
use serde_json::Value;

use super::{Folder, FolderContent, Manifests, Place, STATIC_SUFFIX};
use crate::configuration::policies::{Binding, Policy};
use crate::{PolicyBinding, ValidatingPolicy};

const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// The policies of a folder.
#[derive(Debug, Default)]
pub struct PoliciesOfFolder {
    /// The files of the names.
    policy_names: BTreeMap<String, String>,
    binding_names: BTreeMap<String, String>,
    policies: BTreeMap<String, ValidatingPolicy>,
    /// By name.
    bindings: BTreeMap<String, FoundBinding>,
}

/// A binding whose policy may come later.
#[derive(Debug)]
struct FoundBinding {
    binding: PolicyBinding,
    policy: String,
    file: String,
    document: usize,
    path: String,
}

impl Manifests<PoliciesOfFolder> {
    /// No policies yet. The rules are those of `release`.
    pub fn policies(release: Release) -> Self {
        Self::of(PoliciesOfFolder::default(), release)
    }
}

impl FolderContent for PoliciesOfFolder {
    type Item = ValidatingPolicy;

    fn kinds(&self) -> &'static [&'static str] {
        &[POLICY, BINDING]
    }

    fn accept(&mut self, kind: &str, object: &Value, place: Place<'_>, folder: &mut Folder) {
        let accepted = if kind == BINDING {
            self.binding(object, place, folder)
        } else {
            self.policy(object, place, folder)
        };
        if let Err(DecodeError { field, problem, fix }) = accepted {
            folder.undecodable(place, &field, &problem, fix);
        }
    }

    // validateBindingReferences
    fn finish(self, folder: &mut Folder) -> Vec<ValidatingPolicy> {
        let Self { mut policies, bindings, policy_names, .. } = self;
        for (name, FoundBinding { binding, policy, file, document, path }) in bindings {
            if let Some(policy) = policies.get_mut(&policy) {
                policy.bindings.push(binding);
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

impl PoliciesOfFolder {
    fn policy(&mut self, object: &Value, place: Place<'_>, folder: &mut Folder) -> Result<(), DecodeError> {
        let policy = Policy::decode(object)?;
        let before = folder.errors.len();
        let name = policy.name();
        let validated = policy.validated(&mut folder.context);
        let validated = validated.map_err(|errors| folder.invalid(place, (POLICY, name), errors));
        folder.name(place, name, &mut self.policy_names);
        if policy.has_parameters() {
            let problem =
                format!("{POLICY} {}: spec.paramKind is not supported for static manifests", Quoted(name));
            folder.other(
                place,
                "spec.paramKind",
                problem,
                "remove it, and write the values into the expressions",
            );
        }
        if let (Ok(policy), true) = (validated, folder.errors.len() == before) {
            self.policies.insert(name.to_owned(), policy);
        }
        Ok(())
    }

    fn binding(&mut self, object: &Value, place: Place<'_>, folder: &mut Folder) -> Result<(), DecodeError> {
        let binding = Binding::decode(object)?;
        let before = folder.errors.len();
        let (name, policy) = (binding.name(), binding.policy());
        let validated = binding.validated(&mut folder.context);
        let validated = validated.map_err(|errors| folder.invalid(place, (BINDING, name), errors));
        folder.name(place, name, &mut self.binding_names);
        // Validation has reported a missing name.
        if !policy.is_empty() && !policy.ends_with(STATIC_SUFFIX) {
            let problem = format!(
                "binding {}: spec.policyName {} must end with \"{STATIC_SUFFIX}\"",
                Quoted(name),
                Quoted(policy)
            );
            folder.other(place, "spec.policyName", problem, "give the name of a policy of this folder");
        }
        if binding.has_parameters() {
            let problem =
                format!("binding {}: spec.paramRef is not supported for static manifests", Quoted(name));
            folder.other(place, "spec.paramRef", problem, "remove it");
        }
        if let (Ok(validated), true) = (validated, folder.errors.len() == before) {
            let found = FoundBinding {
                binding: validated,
                policy: policy.to_owned(),
                file: place.file.to_owned(),
                document: place.document,
                path: place.path.to_owned(),
            };
            self.bindings.insert(name.to_owned(), found);
        }
        Ok(())
    }
}
