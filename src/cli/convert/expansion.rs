//! References to environment variables in the command of a container, `$(NAME)`, as the kubelet resolves them.
//!
//! Follows `k8s.io/kubernetes/third_party/forked/golang/expansion/expand.go` and, for the values of variables,
//! `pkg/kubelet/kubelet_pods.go`, `makeEnvironmentVariables`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource};

/// The environment variables of a container.
#[derive(Debug, Default)]
pub(super) struct Environment(BTreeMap<String, EnvValue>);

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EnvValue {
    Known(String),
    /// Known on the node alone: its source.
    OnNode(String),
}

/// A text with the values of its variables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expanded {
    /// References to variables without a known value are as they were.
    pub(super) text: String,
    /// Each variable with a value that only the node knows, and the source of the value.
    pub(super) unknown: BTreeSet<(String, String)>,
}

impl Environment {
    /// The variables of a container. A later one of the same name counts, and one may refer to earlier ones.
    pub(super) fn of(container: &Container) -> Self {
        let mut environment = Self::default();
        for EnvVar { name, value, value_from } in container.env.iter().flatten() {
            let value = match value_from {
                Some(source) => EnvValue::OnNode(source_name(source)),
                None => environment.value(value.as_deref().unwrap_or_default()),
            };
            environment.0.insert(name.clone(), value);
        }
        environment
    }

    fn value(&self, text: &str) -> EnvValue {
        let Expanded { text, unknown } = self.expand(text);
        match unknown.into_iter().next() {
            Some((_, source)) => EnvValue::OnNode(source),
            None => EnvValue::Known(text),
        }
    }

    /// Resolves the references in a text. `$$` is `$`; a reference to no variable stays.
    pub(super) fn expand(&self, text: &str) -> Expanded {
        let mut expanded = Expanded::default();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            expanded.text.push_str(before);
            rest = match (
                after.strip_prefix('$'),
                after.strip_prefix('(').and_then(|name| name.split_once(')')),
            ) {
                (Some(behind), _) => {
                    expanded.text.push('$');
                    behind
                }
                (None, Some((name, behind))) => {
                    match self.0.get(name) {
                        Some(EnvValue::Known(value)) => expanded.text.push_str(value),
                        unknown => {
                            expanded.text.extend(["$(", name, ")"]);
                            if let Some(EnvValue::OnNode(source)) = unknown {
                                expanded.unknown.insert((name.to_owned(), source.clone()));
                            }
                        }
                    }
                    behind
                }
                (None, None) => {
                    expanded.text.push('$');
                    after
                }
            };
        }
        expanded.text.push_str(rest);
        expanded
    }
}

/// Where the value of a variable comes from, in the words of a manifest.
fn source_name(source: &EnvVarSource) -> String {
    let field = source.field_ref.as_ref().map(|field| format!("the field {}", field.field_path));
    let resource = source.resource_field_ref.as_ref().map(|field| format!("the resource {}", field.resource));
    let map = source.config_map_key_ref.as_ref().map(|key| format!("the ConfigMap {}", key.name));
    let secret = source.secret_key_ref.as_ref().map(|key| format!("the Secret {}", key.name));
    field.or(resource).or(map).or(secret).unwrap_or_else(|| "its valueFrom".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn environment() -> Environment {
        let container = json!({"name": "a", "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)2$(LATER)$$(A)"},
            {"name": "LATER", "value": "x"},
            {"name": "EMPTY"},
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "URL", "value": "https://$(HOST_IP):6443"},
            {"name": "A.b-c", "value": "odd"},
        ]});
        Environment::of(&serde_json::from_value(container).unwrap())
    }

    // kubernetes: third_party/forked/golang/expansion/expand_test.go has these forms
    #[test]
    fn references_are_resolved_as_by_the_kubelet() {
        let cases = [
            ("$(A)", "1"),
            ("___$(A)___", "___1___"),
            ("$(B)", "12$(LATER)$(A)"),
            ("$(EMPTY)!", "!"),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$A ${A} $", "$A ${A} $"),
            ("$(A", "$(A"),
            ("$(A$(A)", "$(A$(A)"),
            ("$((A))", "$((A))"),
            ("$()", "$()"),
            ("$(A.b-c)", "odd"),
            ("foo$(A)bar$(A)", "foo1bar1"),
            ("é$é$(A)", "é$é1"),
        ];
        for (text, expected) in cases {
            let expanded = environment().expand(text);
            assert_eq!((expanded.text.as_str(), expanded.unknown.len()), (expected, 0), "{text}");
        }
    }

    #[test]
    fn variables_that_only_the_node_knows_are_named() {
        for (text, name) in [("--a=$(HOST_IP)", "HOST_IP"), ("--a=$(URL)", "URL")] {
            let expanded = environment().expand(text);
            assert_eq!(expanded.text, text);
            let unknown = (name.to_owned(), "the field status.hostIP".to_owned());
            assert_eq!(expanded.unknown, BTreeSet::from([unknown]));
        }
    }
}
