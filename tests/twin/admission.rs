//! The admission webhooks of [`Setting::Admission`](crate::authenticators::Setting): the same ones as objects in the API of the
//! reference, and in the files of the gateway. Their answers are in the requests: `outside/admission.rs`.
//!
//! The webhook of Kubernetes' end-to-end tests is among them, for config maps with the label `agnhost`.
//!
//! All servers share the objects, so the others run without the webhook plugins.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::{Value, json};
use testkit::webhooks::write_static_plugins;

use crate::{mutations, policies, random_policies};

/// The flag of the servers that do not call webhooks.
pub(crate) const DISABLED: &str =
    "--disable-admission-plugins=MutatingAdmissionWebhook,ValidatingAdmissionWebhook";
/// A namespace with labels that webhooks select.
pub(crate) const SELECTED_NAMESPACE: &str = "twin-selected";
const DIRECTORY: &str = "admission";
const GATEWAY_FILE: &str = "gateway.json";
const REFERENCE_FILE: &str = "reference.json";
/// The group of the custom resource.
const GROUP: &str = "twin.test";

/// Where webhooks are: those of `outside/admission.rs`, and that of Kubernetes' end-to-end tests.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    pub(crate) webhooks: String,
    pub(crate) agnhost: String,
}

/// The webhooks, mutating and validating.
fn webhooks(Addresses { webhooks: address, agnhost }: &Addresses, ca: &str) -> [Vec<Value>; 2] {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    let everything =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    let webhook = |name: &str, more: Value| {
        let mut webhook = json!({
            "name": format!("{name}.twin.test"),
            "clientConfig": {"url": format!("{address}/admission/{name}"), "caBundle": ca},
            "rules": everything,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 2,
        });
        for (field, value) in more.as_object().expect("an object") {
            webhook[field] = value.clone();
        }
        webhook
    };
    let on = |operations: &[&str], group: &str, version: &str, resource: &str, scope: &str| json!([{"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource], "scope": scope}]);
    let condition = |expression: &str| json!([{"name": "condition", "expression": expression}]);
    let label = |key: &str, value: &str| json!({"matchLabels": {key: value}});
    let of_condition =
        |name: &str| format!("object.?metadata.annotations[?'condition'].orValue('') != 'skip-{name}'");
    let strict = "request.operation != 'CREATE' || request.resource.resource != 'configmaps' || \
                  !has(object.metadata.annotations) || !('fails' in object.metadata.annotations) || \
                  object.data.absent == 'x'";
    let authorizer = "request.resource.resource == 'configmaps' && object != null && has(object.metadata.labels) && \
                      'authorizer' in object.metadata.labels && \
                      authorizer.group('').resource('configmaps').namespace(request.namespace).check(object.metadata.labels['authorizer']).allowed() && \
                      !authorizer.requestResource.check('fly').allowed()";
    let closed = |name: &str, more: Value| {
        let mut webhook = webhook(name, more);
        webhook["clientConfig"]["url"] = json!("https://127.0.0.1:1/closed");
        webhook["objectSelector"] = label("closed", name);
        webhook
    };
    let agnhost = |name: &str, path: &str| {
        let mut webhook =
            webhook(name, json!({"rules": on(&["CREATE", "UPDATE", "DELETE"], "", "v1", "configmaps", "*")}));
        webhook["clientConfig"]["url"] = json!(format!("{agnhost}/{path}"));
        webhook["objectSelector"] = label("agnhost", path);
        webhook
    };
    // A webhook for the objects with its own label.
    let labelled = |name: &str, more: Value| {
        let mut webhook = webhook(name, more);
        webhook["objectSelector"] = label("only", name);
        webhook
    };
    let rules = |rules: &[[&[&str]; 4]]| {
        rules
            .iter()
            .map(|[operations, groups, versions, resources]| {
                json!({"operations": operations, "apiGroups": groups, "apiVersions": versions, "resources": resources})
            })
            .collect::<Value>()
    };
    let mutating = vec![
        agnhost("agnhost-mutates", "mutating-configmaps"),
        agnhost("agnhost-labels", "add-label"),
        webhook("m1", json!({})),
        webhook(
            "m2",
            json!({"failurePolicy": "Ignore", "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v1beta1", "v1"]}),
        ),
        webhook("m3", json!({"objectSelector": label("third", "yes")})),
        webhook("mdelete", json!({"rules": on(&["DELETE"], "*", "*", "*/*", "*")})),
        webhook(
            "m4",
            json!({"matchConditions": condition(&of_condition("m4")), "failurePolicy": "Ignore",
            "rules": on(&["CREATE", "UPDATE"], "", "v1", "configmaps", "*")}),
        ),
        labelled("mdry", json!({"sideEffects": "NoneOnDryRun"})),
        labelled(
            "mequivalent",
            json!({"rules": on(&["*"], "autoscaling", "v1", "horizontalpodautoscalers", "*"), "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded"}),
        ),
        labelled("mscalers2", json!({"rules": on(&["*"], "autoscaling", "v2", "*", "*")})),
        labelled("mcoreevents", json!({"rules": on(&["*"], "", "v1", "events", "*")})),
        labelled("mwidgets", json!({"rules": on(&["*"], GROUP, "v1", "widgets/*", "*")})),
    ];
    let validating = vec![
        agnhost("agnhost-validates", "configmaps"),
        agnhost("agnhost-denies", "always-deny"),
        webhook("v1", json!({})),
        webhook("v2", json!({"failurePolicy": "Ignore", "admissionReviewVersions": ["v2", "v1beta1"]})),
        webhook("vdelete", json!({"rules": on(&["DELETE"], "*", "*", "*/*", "*")})),
        webhook("vnamespace", json!({"namespaceSelector": label("environment", "production")})),
        webhook(
            "vexpression",
            json!({"namespaceSelector": {"matchExpressions": [
            {"key": "environment", "operator": "NotIn", "values": ["production"]},
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["twin", SELECTED_NAMESPACE]}]}}),
        ),
        webhook(
            "vobject",
            json!({"objectSelector": {"matchExpressions": [{"key": "pick", "operator": "In", "values": ["yes", "true"]}]}}),
        ),
        webhook("vstrict", json!({"matchConditions": condition(strict)})),
        webhook("vlax", json!({"matchConditions": condition(strict), "failurePolicy": "Ignore"})),
        webhook("vauthorizer", json!({"matchConditions": condition(authorizer)})),
        webhook("vcluster", json!({"rules": on(&["*"], "*", "*", "*", "Cluster")})),
        webhook(
            "vnamespaced",
            json!({"rules": on(&["CREATE", "DELETE"], "", "v1", "configmaps", "Namespaced")}),
        ),
        webhook("vscale", json!({"rules": on(&["UPDATE"], "apps", "v1", "*/scale", "*")})),
        webhook("vstatus", json!({"rules": on(&["UPDATE"], "*", "*", "*/status", "*")})),
        webhook("vpods", json!({"rules": on(&["*"], "", "v1", "pods/*", "*")})),
        webhook(
            "vexact",
            json!({"matchPolicy": "Exact", "rules": on(&["*"], "autoscaling", "v1", "horizontalpodautoscalers", "*")}),
        ),
        labelled(
            "vequivalent",
            json!({"rules": on(&["*"], "autoscaling", "v1", "horizontalpodautoscalers", "*")}),
        ),
        labelled(
            "vequivalentlax",
            json!({"rules": on(&["*"], "autoscaling", "v1", "horizontalpodautoscalers", "*"), "failurePolicy": "Ignore"}),
        ),
        labelled(
            "vscalers",
            json!({"rules": on(&["*"], "autoscaling", "v1", "horizontalpodautoscalers/*", "*")}),
        ),
        labelled("vscalers2", json!({"rules": on(&["*"], "autoscaling", "v2", "*", "*")})),
        labelled(
            "vcoreevents",
            json!({"rules": on(&["*"], "", "v1", "events", "*"), "failurePolicy": "Ignore"}),
        ),
        labelled(
            "vevents",
            json!({"rules": on(&["CREATE", "UPDATE"], "events.k8s.io", "v1", "events", "*"), "failurePolicy": "Ignore"}),
        ),
        labelled(
            "vgone1",
            json!({"rules": rules(&[[&["DELETE"], &["autoscaling", "", GROUP], &["v1"], &["*"]]])}),
        ),
        labelled(
            "vgone2",
            json!({"rules": rules(&[[&["DELETE"], &["autoscaling"], &["v2"], &["*"]]]), "failurePolicy": "Ignore"}),
        ),
        labelled(
            "vconverted",
            json!({"rules": on(&["*"], "autoscaling", "v1", "*", "*"), "matchConditions": condition(
            "request.kind.version == 'v1' && request.requestKind.version == 'v2' && request.resource.version == 'v2' && \
             object.apiVersion == 'autoscaling/v1' && (oldObject == null || oldObject.apiVersion == 'autoscaling/v1')")}),
        ),
        labelled("vunserved", json!({"rules": on(&["*"], "apps", "v1beta1", "deployments", "*")})),
        labelled("vwidgets", json!({"rules": on(&["*"], GROUP, "v1", "widgets/*", "*")})),
        labelled(
            "vexactwidgets",
            json!({"rules": on(&["*"], GROUP, "v1", "widgets/*", "*"), "matchPolicy": "Exact"}),
        ),
        // apiserver: pkg/admission/plugin/webhook/predicates/rules/rules_test.go
        labelled(
            "vgroups",
            json!({"rules": rules(&[[&["*"], &["", GROUP], &["v1"], &["configmaps", "widgets"]]])}),
        ),
        labelled(
            "vversions",
            json!({"rules": rules(&[[&["*"], &["*"], &["v1", "v2"], &["widgets"]]]), "matchPolicy": "Exact"}),
        ),
        labelled("vplain", json!({"rules": rules(&[[&["*"], &["*"], &["*"], &["*"]]])})),
        labelled("vtree", json!({"rules": rules(&[[&["*"], &["*"], &["*"], &["widgets/*"]]])})),
        labelled("vone", json!({"rules": rules(&[[&["*"], &["*"], &["*"], &["widgets/status"]]])})),
        labelled(
            "vsubresources",
            json!({"rules": rules(&[[&["*"], &["*"], &["*"], &["*/status", "*/scale"]]])}),
        ),
        labelled("vupdates", json!({"rules": rules(&[[&["UPDATE", "DELETE"], &["*"], &["*"], &["*/*"]]])})),
        labelled(
            "vrules",
            json!({"rules": rules(&[
                [&["CREATE"], &["absent.test"], &["*"], &["*"]], [&["DELETE"], &["*"], &["*"], &["configmaps"]],
                [&["CREATE"], &["*"], &["*"], &["widgets"]],
            ])}),
        ),
        labelled(
            "vold",
            json!({"matchConditions": condition(
            "oldObject != null && (object == null || oldObject.?data != object.?data)")}),
        ),
        labelled(
            "vrequest",
            json!({"matchConditions": condition(
            "request.userInfo.username == 'admin' && 'system:masters' in request.userInfo.groups && \
             request.operation in ['CREATE', 'UPDATE'] && request.name != '' && request.namespace == 'twin' && \
             request.requestKind.kind == request.kind.kind && request.?options.kind.orValue('').endsWith('Options') && \
             !request.dryRun")}),
        ),
        labelled(
            "vfalse",
            json!({"matchConditions": [
            {"name": "fails", "expression": "object.data.absent == 'x'"}, {"name": "false", "expression": "false"}]}),
        ),
        labelled(
            "vcostly",
            json!({"matchConditions": condition(
            "object.data.all(a, object.data.all(b, object.data.all(c, (a + b + c).size() > 0)))")}),
        ),
        closed("vdown", json!({})),
        closed("vdownignored", json!({"failurePolicy": "Ignore"})),
    ];
    [mutating, validating]
}

fn configuration(kind: &str, name: &str, webhooks: &[Value]) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
        "metadata": {"name": name}, "webhooks": webhooks})
}

/// The configurations as objects of the API.
pub(crate) fn objects(addresses: &Addresses, ca: &str) -> Vec<(String, Value)> {
    let [mutating, validating] = webhooks(addresses, ca);
    [("Mutating", mutating), ("Validating", validating)]
        .map(|(kind, webhooks)| {
            let path =
                format!("/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations", kind.to_lowercase());
            (path, configuration(kind, "twin", &webhooks))
        })
        .into()
}

/// Writes the configurations as files of the gateway, and the policies as files of both.
pub(crate) fn write(dir: &Path, addresses: &Addresses, ca: &str) -> std::io::Result<()> {
    let [mutating, validating] = webhooks(addresses, ca);
    let directory = absolute(dir);
    fs::create_dir_all(&directory)?;
    let configurations = [("Mutating", mutating), ("Validating", validating)]
        .map(|(kind, webhooks)| configuration(kind, "twin.static.k8s.io", &webhooks));
    let policies = [policies::manifests(), mutations::manifests(), random_policies::manifests()].concat();
    write_static_plugins(&directory, GATEWAY_FILE, &configurations, &policies);
    write_static_plugins(&directory, REFERENCE_FILE, &[], &policies);
    Ok(())
}

/// The flags of the reference, which has the policies in files, too.
pub(crate) fn reference_flags(dir: &Path) -> [String; 2] {
    let file = absolute(dir).join(REFERENCE_FILE);
    [
        format!("--admission-control-config-file={}", file.display()),
        "--feature-gates=ManifestBasedAdmissionControlConfig=true".to_owned(),
    ]
}

/// The flags of the gateway.
pub(crate) fn flags(dir: &Path) -> [String; 2] {
    let file = absolute(dir).join(GATEWAY_FILE);
    [
        format!("--admission-control-config-file={}", file.display()),
        "--admission-mode=pinnedDryRun".to_owned(),
    ]
}

/// The configuration requires absolute paths.
fn absolute(dir: &Path) -> PathBuf {
    std::path::absolute(dir.join(DIRECTORY)).expect("a path")
}
