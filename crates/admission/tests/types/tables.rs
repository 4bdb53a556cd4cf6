//! Expressions, policies, and a custom resource with odd schemas.

use serde_json::{Value, json};

const POD: &str = "v1/pods";
const CONFIG_MAP: &str = "v1/configmaps";
const SECRET: &str = "v1/secrets";
const SERVICE: &str = "v1/services";
const DEPLOYMENT: &str = "apps/v1/deployments";
const DEFINITION: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGET: &str = "example.com/v1/widgets";

/// Expressions about the objects of a resource.
pub(crate) const EXPRESSIONS: &[(&str, &str)] = &[
    (DEPLOYMENT, "object.spec.replicas > 3"),
    (DEPLOYMENT, "object.spec.replica > 3"),
    (DEPLOYMENT, "object.spec.replicas == '3'"),
    (DEPLOYMENT, "object.spec.replicas + 'a'"),
    (DEPLOYMENT, "oldObject.spec.replicas >= object.spec.replicas"),
    (DEPLOYMENT, "object.spec.template.spec.containers.all(c, c.image.startsWith('a/'))"),
    (DEPLOYMENT, "object.spec.template.spec.containers.all(c, c.images.startsWith('a/'))"),
    (DEPLOYMENT, "object.spec.template.spec.containers.exists(c, c.name == 1)"),
    (DEPLOYMENT, "object.spec.template.spec.containers.exists_one(c, c.name)"),
    (DEPLOYMENT, "object.spec.template.spec.containers.filter(c, c.name)"),
    (DEPLOYMENT, "object.spec.template.spec.containers.filter(c, c.nam == 'a').size() > 0"),
    (DEPLOYMENT, "object.spec.template.spec.containers.map(c, c.name).join(',')"),
    (DEPLOYMENT, "object.spec.template.spec.containers.map(c, c.ports).join(',')"),
    (DEPLOYMENT, "object.spec.template.spec.containers.map(c, c.stdin, c.name)"),
    (DEPLOYMENT, "object.spec.template.spec.containers.map(c, c.name, c.name)"),
    (DEPLOYMENT, "object.spec.template.spec.containers[0].ports[0].containerPort < 1024"),
    (DEPLOYMENT, "object.spec.template.spec.containers['a']"),
    (DEPLOYMENT, "object.spec.template.spec.containers.name"),
    (DEPLOYMENT, "object.spec.template.spec.containers + [1]"),
    (DEPLOYMENT, "object.spec.template.spec.containers == [object.spec]"),
    (
        DEPLOYMENT,
        "object.spec.template.spec.containers.all(c, c.resources.limits['cpu'] == 1 || c.resources.limits.memory == '1Gi')",
    ),
    (
        DEPLOYMENT,
        "object.spec.strategy.rollingUpdate.maxSurge == 1 || object.spec.strategy.rollingUpdate.maxSurge == '25%'",
    ),
    (DEPLOYMENT, "has(object.spec.replica) || has(object.spec.paused)"),
    (DEPLOYMENT, "has(object.spec.wrong) ? object.spec.replicas : object.spec.missing"),
    (DEPLOYMENT, "has(object.metadata.labels.a) && object.metadata.labels['a'] == 'b'"),
    (DEPLOYMENT, "object.metadata.labels.a.b"),
    (DEPLOYMENT, "object.metadata.labels.a == 1"),
    (DEPLOYMENT, "object.metadata.labels.all(k, k.startsWith('a'))"),
    (DEPLOYMENT, "object.metadata.labels.all(k, v, k == v)"),
    (DEPLOYMENT, "object.metadata.labels.all(k, v, k == 1 && v == 1)"),
    (DEPLOYMENT, "object.metadata.labels.transformMap(k, v, v + 1)"),
    (DEPLOYMENT, "object.metadata.labels.transformList(k, v, k + v).join(',')"),
    (DEPLOYMENT, "object.spec.template.spec.containers.transformMapEntry(i, c, {c.name: c.nam})"),
    (DEPLOYMENT, "object.spec.template.spec.containers.sortBy(c, c.name)[0].nam"),
    (DEPLOYMENT, "object.metadata.namespace == object.metadata.__namespace__"),
    (DEPLOYMENT, "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')"),
    (DEPLOYMENT, "object.metadata.creationTimestamp == '2026-01-01T00:00:00Z'"),
    (DEPLOYMENT, "object.metadata.managedFields[0].fieldsV1.a.b == 1"),
    (DEPLOYMENT, "object.metadata.managedFields[0].fieldsV2"),
    (DEPLOYMENT, "object.metadata.finalizers.exists(f, f == 'a') && 'a' in object.metadata.finalizers"),
    (DEPLOYMENT, "1 in object.metadata.finalizers"),
    (DEPLOYMENT, "'a' in object.metadata"),
    (DEPLOYMENT, "object == null || oldObject == null || object.spec == null"),
    (DEPLOYMENT, "object.spec.replicas == null"),
    (DEPLOYMENT, "object.spec == object.status"),
    (DEPLOYMENT, "object.spec == oldObject.spec && object.spec.template == oldObject.spec.template"),
    (DEPLOYMENT, "object.all(k, true)"),
    (DEPLOYMENT, "object.spec.replicas.all(k, k.x)"),
    (DEPLOYMENT, "object.?spec.?replicas.orValue(1) > 3"),
    (DEPLOYMENT, "object.?spec.?replicas.orValue('a')"),
    (DEPLOYMENT, "object.?spec.?wrong.hasValue()"),
    (DEPLOYMENT, "object.spec.?template.spec.wrong.x"),
    (DEPLOYMENT, "[object.spec.replicas, object.metadata.name, object.spec.paused]"),
    (DEPLOYMENT, "[object.spec.replicas, object.status.replicas]"),
    (DEPLOYMENT, "[object.spec, object.status]"),
    (DEPLOYMENT, "{'a': object.spec.replicas, 'b': object.metadata.name}"),
    (DEPLOYMENT, "{object.spec.replicas: 1, object.metadata.name: 2}"),
    (DEPLOYMENT, "[?object.?spec.?replicas, object.metadata.name]"),
    (DEPLOYMENT, "object.spec.paused ? object.spec.replicas : object.metadata.name"),
    (DEPLOYMENT, "object.spec.replicas ? 1 : 2"),
    (DEPLOYMENT, "object.spec.replicas && object.metadata.name || object.spec.paused"),
    (DEPLOYMENT, "!object.spec.replicas"),
    (DEPLOYMENT, "-object.metadata.name"),
    (DEPLOYMENT, "object.a && object.b && object.c"),
    (DEPLOYMENT, "object.a +\n  object.b == object.spec.c\n\t|| object.d"),
    (DEPLOYMENT, "size(object.spec.replicas)"),
    (DEPLOYMENT, "object.metadata.name.size() > object.spec.template.spec.containers.size()"),
    (DEPLOYMENT, "object.metadata.name.matches(object.spec.replicas)"),
    (DEPLOYMENT, "string(object.spec)"),
    (DEPLOYMENT, "type(object.spec.replicas) == int"),
    (DEPLOYMENT, "dyn(object.spec).anything.at.all"),
    (DEPLOYMENT, "'%d %s'.format([object.spec.replicas, object.spec.wrong])"),
    (DEPLOYMENT, "'%d'.format([object.metadata.name])"),
    (DEPLOYMENT, "object.kind == 'Deployment' && object.apiVersion == 'apps/v1'"),
    (DEPLOYMENT, "object.spec.`replicas` == 1"),
    (
        DEPLOYMENT,
        "namespaceObject.metadata.labels.a == object.metadata.name && request.name == object.metadata.name",
    ),
    (DEPLOYMENT, "namespaceObject.metadata.annotations == object.metadata.annotations"),
    (
        DEPLOYMENT,
        "authorizer.group('apps').resource('deployments').name(object.metadata.name).check('get').allowed()",
    ),
    (DEPLOYMENT, "authorizer.group(object.spec.replicas).resource('deployments')"),
    (DEPLOYMENT, "quantity(object.metadata.name).isGreaterThan(object.spec.replicas)"),
    (
        DEPLOYMENT,
        "object.spec.template.spec.containers.all(c, c.ports.all(p, p.containerPort > 1 && p.hostport > 1))",
    ),
    (DEPLOYMENT, "object.spec.template.spec.volumes.all(v, !has(v.hostPath) || v.hostPath.path != '/')"),
    (DEPLOYMENT, "object.spec.template.spec.volumes.map(v, v.hostpath).size() == 0"),
    (DEPLOYMENT, "sets.contains(object.metadata.finalizers, [1])"),
    (DEPLOYMENT, "object.metadata.finalizers.indexOf(object.spec)"),
    (DEPLOYMENT, "optional.of(object.spec).optMap(s, s.wrong)"),
    (DEPLOYMENT, "optional.of(object.spec).orValue(object.status)"),
    (POD, "object.spec.containers.all(c, c.securityContext.runAsNonRoot)"),
    (POD, "object.spec.containers.all(c, c.securityContext.runAsNonRoots)"),
    (
        POD,
        "object.spec.containers.all(c, c.livenessProbe.httpGet.port == 80 || c.livenessProbe.httpGet.port == 'http')",
    ),
    (POD, "object.spec.overhead.cpu == '1' && object.spec.overhead['memory'] == 2"),
    (POD, "object.spec.template.spec"),
    (POD, "object.status.containerStatuses[0].state.running.startedAt.getFullYear() > 2020"),
    (CONFIG_MAP, "object.data.a == 'b' && object.data['c'].size() < 10"),
    (CONFIG_MAP, "object.data.a == b'b'"),
    (CONFIG_MAP, "object.binaryData.a == b'b' && object.binaryData.a.size() < 10"),
    (CONFIG_MAP, "object.spec.replicas"),
    (CONFIG_MAP, "object.immutable == 'true'"),
    (SECRET, "object.data.password.size() > 8 && object.type == 'Opaque'"),
    (SECRET, "object.stringData.all(k, object.stringData[k] == object.data[k])"),
    (SERVICE, "object.spec.ports.all(p, p.targetPort == 80 || p.targetPort == 'http')"),
    (SERVICE, "object.spec.ports.all(p, p.port == 'http')"),
    (DEFINITION, "object.spec.versions.all(v, v.schema.openAPIV3Schema.type == 'object')"),
    (DEFINITION, "object.spec.versions.all(v, v.schema.openAPIV3Schema.typ == 'object')"),
    (DEFINITION, "object.spec.versions.all(v, v.schema.openAPIV3Schema.properties.a.type == 'object')"),
    (WIDGET, "object.spec.count > 1 && object.spec.ratio > 0.5 && object.spec.on"),
    (WIDGET, "object.spec.count == object.spec.ratio"),
    (WIDGET, "object.spec.count + object.spec.ratio"),
    (WIDGET, "object.spec.anything.x.y == 1 && object.spec.open.x == 2 && object.spec.empty.x == 3"),
    (WIDGET, "object.spec.kept.known == 'x' || object.spec.kept.unknown.more == 1"),
    (WIDGET, "object.spec.port == 1 || object.spec.port == 'a'"),
    (WIDGET, "object.spec.untypedList[0].x == 1 || object.spec.untypedMap.a.b == 2"),
    (WIDGET, "object.spec.untypedMap.all(k, k == 1)"),
    (WIDGET, "object.spec.closed.known == object.spec.closed.unknown"),
    (WIDGET, "object.spec.embedded.metadata.name == object.spec.embedded.kind"),
    (WIDGET, "object.spec.embedded.metadata.labels.a"),
    (WIDGET, "object.spec.embedded.metadata.labels == {} || object.spec.embedded.metadata.nam == 'a'"),
    (WIDGET, "object.spec.bare.metadata.name == object.spec.bare.size"),
    (WIDGET, "object.spec.bare.metadata.labels"),
    (
        WIDGET,
        "object.spec.a__dash__b == object.spec.c__dot__d && object.spec.e__slash__f && object.spec.g__underscores__h",
    ),
    (WIDGET, "object.spec.a__dash__b == 1"),
    (WIDGET, "object.spec.a_b"),
    (WIDGET, "object.spec.`a-b` == 'x'"),
    (WIDGET, "object.spec.__if__ == 1 && object.spec.__in__ == 1"),
    (WIDGET, "object.spec.dollar"),
    (WIDGET, "object.spec.wait > duration('1s') && object.spec.day < timestamp('2026-01-01T00:00:00Z')"),
    (WIDGET, "object.spec.wait == '1s'"),
    (WIDGET, "object.spec.nested[0][0].x == 1 && object.spec.nested[0][0].y"),
    (WIDGET, "object.spec.nested[0] == object.spec.matrix.a.b"),
    (WIDGET, "object.spec.matrix.a.b.c.d"),
    (WIDGET, "object.spec.nullable == null && object.spec.nullable == 'a'"),
    (WIDGET, "object.spec.several == 'a'"),
    (WIDGET, "object.spec.referred.part.a == object.spec.wrapped.part.b"),
    (WIDGET, "object.spec.list[0].list[0].name"),
    (WIDGET, "object.metadata.name == object.status.phase"),
    (
        WIDGET,
        "object.status.phase == 1 || object.status.conditions.exists(c, c.type == 'Ready' && c.states == 'True')",
    ),
];

/// Valid expressions with a part of the error that kube-controller-manager has for them, and the reason of it.
pub(crate) const DIFFERENCES: &[(&str, &str, &str, &str)] = &[
    (
        POD,
        "object.spec.containers.all(c, c.resources.limits.cpu == '1')",
        "undefined field 'limits'",
        "quantities are of no type",
    ),
    (POD, "object.spec.overhead.cpu == '1'", "undefined field 'overhead'", "quantities are of no type"),
    (
        POD,
        "object.metadata.managedFields[0].fieldsV1.a == {}",
        "undefined field 'a'",
        "an object without properties",
    ),
    (
        POD,
        "authorizer.requestResource.check('get').allowed()",
        "unexpected failed resolution of 'kubernetes.authorization.Authorizer'",
        "the type checker does not declare this variable",
    ),
    (WIDGET, "object.spec.anything.x == 1", "undefined field 'anything'", "a value of no type"),
    (WIDGET, "object.spec.empty.x == 1", "undefined field 'x'", "an object without properties"),
    (
        WIDGET,
        "object.spec.kept.unknown == 1",
        "undefined field 'unknown'",
        "an object that keeps unknown fields",
    ),
    (WIDGET, "object.spec.open.x == 1", "undefined field 'x'", "an object that allows more properties"),
    (WIDGET, "object.spec.untypedList[0] == 1", "undefined field 'untypedList'", "elements of no type"),
    (
        DEFINITION,
        "object.spec.versions.all(v, v.schema.openAPIV3Schema.properties.a.type == 'object')",
        "undefined field 'type'",
        "a schema that refers to itself",
    ),
];

/// Whole policies, by the resources of their rules.
pub(crate) fn policies() -> Vec<(Vec<&'static str>, Value)> {
    let both = || vec![DEPLOYMENT, POD];
    vec![
        (both(), json!({"validations": [{"expression": "object.metadata.name.startsWith('a')"}]})),
        (both(), json!({"validations": [{"expression": "object.spec.replicas > 1"}]})),
        (
            vec![POD, WIDGET, DEPLOYMENT, CONFIG_MAP],
            json!({"validations": [{"expression": "object.spec.replicas > 1 || object.data == {}", "messageExpression": "string(object.spec.x)"}]}),
        ),
        (
            both(),
            json!({
                "variables": [
                    {"name": "containers", "expression": "object.kind == 'Pod' ? dyn(object).spec.containers : dyn(object).spec.template.spec.containers"},
                    {"name": "spec", "expression": "object.spec"},
                    {"name": "replicas", "expression": "object.spec.replicas"},
                    {"name": "names", "expression": "object.metadata.finalizers"},
                    {"name": "labels", "expression": "object.metadata.labels"},
                    {"name": "list", "expression": "[object.spec, object.spec]"},
                ],
                "matchConditions": [{"name": "m", "expression": "object.spec.replicas > 1"}],
                "validations": [
                    {"expression": "variables.containers.all(c, c.x == 1)"},
                    {"expression": "variables.spec.anything == 1"},
                    {"expression": "variables.replicas == 'a'", "messageExpression": "string(variables.replicas) + object.x"},
                    {"expression": "variables.names.all(n, n == 1) || variables.labels.a == 1"},
                    {"expression": "variables.labels.a.b == 'a'", "messageExpression": "string(variables.names)"},
                    {"expression": "variables.list[0].x == 1"},
                ],
                "auditAnnotations": [{"key": "k", "valueExpression": "string(object.spec.nodeName)"}],
            }),
        ),
        (
            vec![DEPLOYMENT],
            json!({
                "variables": [{"name": "spec", "expression": "object.spec"}],
                "reinvocationPolicy": "Never",
                "mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.spec.replicas + 1}]"}},
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{spec: Object.spec{replicas: object.spec.replicas + 1}}"}},
                ],
            }),
        ),
        (
            vec![DEPLOYMENT],
            json!({
                "variables": [{"name": "wrong", "expression": "object.wrong"}],
                "reinvocationPolicy": "Never",
                "mutations": [
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'replace', path: '/metadata/labels/' + jsonpatch.escapeKey(object.spec.replicas), value: object.wrong}]"}},
                    {"patchType": "JSONPatch", "jsonPatch": {"expression": "object.spec.replicas > 1 ? [JSONPatch{op: object.spec.replicas, path: '/a'}] : []"}},
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{spec: Object.spec{replicas: object.replicas, other: variables.wrong.x}, metadata: Object.metadata{labels: Object.metadata.labels{a: oldObject.metadata.label.a}}}"}},
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{?name: object.metadata.name}}"}},
                ],
            }),
        ),
    ]
}

/// A document as it is published for a custom resource.
pub(crate) fn widgets() -> Value {
    let string = || json!({"type": "string"});
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let spec = json!({
        "count": {"type": "integer", "format": "int32"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "anything": {},
        "open": {"type": "object", "additionalProperties": true},
        "empty": {"type": "object"},
        "kept": {"type": "object", "properties": {"known": string()}, "x-kubernetes-preserve-unknown-fields": true},
        "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "untypedList": {"type": "array", "items": {}},
        "untypedMap": {"type": "object", "additionalProperties": {}},
        "closed": {"type": "object", "properties": {"known": string()}, "additionalProperties": false},
        "embedded": {
            "type": "object", "x-kubernetes-embedded-resource": true,
            "properties": {"apiVersion": string(), "kind": string(), "metadata": {"allOf": [reference("Meta")]}},
        },
        "bare": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"size": {"type": "integer"}}},
        "a-b": string(), "c.d": string(), "e/f": {"type": "boolean"}, "g__h": {"type": "boolean"}, "$dollar": string(),
        "if": {"type": "integer"}, "in": {"type": "integer"},
        "wait": {"type": "string", "format": "duration"},
        "day": {"type": "string", "format": "date"},
        "nested": {"type": "array", "items": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
        "matrix": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": string()}},
        "nullable": {"type": "string", "nullable": true},
        "several": {"type": ["string", "integer"]},
        "referred": reference("Part"),
        "wrapped": {"allOf": [reference("Part")], "description": "a part", "default": {}},
        "list": {"type": "array", "items": {"type": "object", "properties": {
            "name": string(), "list": {"type": "array", "items": {"type": "object", "properties": {"name": string()}}},
        }}},
    });
    json!({"openapi": "3.0.0", "components": {"schemas": {
        "com.example.v1.Widget": {
            "type": "object",
            "x-kubernetes-group-version-kind": [{"group": "example.com", "version": "v1", "kind": "Widget"}],
            "properties": {
                "apiVersion": string(), "kind": string(), "metadata": {"allOf": [reference("Meta")], "description": "metadata"},
                "spec": {"type": "object", "properties": spec},
                "status": {"type": "object", "properties": {
                    "phase": string(),
                    "conditions": {"type": "array", "items": {"type": "object", "properties": {"type": string(), "status": string()}}},
                }},
            },
        },
        "Part": {"type": "object", "properties": {"part": {"type": "object", "additionalProperties": {"type": "integer"}}}},
        "Meta": {"type": "object", "properties": {
            "name": string(), "generateName": string(), "labels": {"type": "object", "additionalProperties": string()},
        }},
    }}})
}
