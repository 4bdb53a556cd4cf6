//! The fields of the types of `autoscaling/v1` and `autoscaling/v2`, in the order in which Go writes them.
// api: autoscaling/v1/types.go, autoscaling/v2/types.go; apimachinery: pkg/apis/meta/v1/types.go

use crate::pipeline::admission::typed::{Field, Type};
use Type::{Bool, Int32, Int64, List, Quantity, Raw, Struct, Text, Texts, Time};

const fn always(name: &'static str, of: Type) -> Field {
    Field::always(name, of)
}

const fn omitted(name: &'static str, of: Type) -> Field {
    Field::omitted_if_empty(name, of)
}

const fn pointer(name: &'static str, of: Type) -> Field {
    Field::pointer(name, of)
}

const METADATA: Type = Struct(&[
    omitted("name", Text),
    omitted("generateName", Text),
    omitted("namespace", Text),
    omitted("selfLink", Text),
    omitted("uid", Text),
    omitted("resourceVersion", Text),
    omitted("generation", Int64),
    omitted("creationTimestamp", Time),
    pointer("deletionTimestamp", Time),
    pointer("deletionGracePeriodSeconds", Int64),
    omitted("labels", Texts),
    omitted("annotations", Texts),
    omitted("ownerReferences", List(&OWNER)),
    omitted("finalizers", List(&Text)),
    omitted("managedFields", List(&MANAGED_FIELDS)),
]);
const OWNER: Type = Struct(&[
    always("apiVersion", Text),
    always("kind", Text),
    always("name", Text),
    always("uid", Text),
    pointer("controller", Bool),
    pointer("blockOwnerDeletion", Bool),
]);
const MANAGED_FIELDS: Type = Struct(&[
    omitted("manager", Text),
    omitted("operation", Text),
    omitted("apiVersion", Text),
    pointer("time", Time),
    omitted("fieldsType", Text),
    pointer("fieldsV1", Raw),
    omitted("subresource", Text),
]);
const SELECTOR: Type =
    Struct(&[omitted("matchLabels", Texts), omitted("matchExpressions", List(&SELECTOR_REQUIREMENT))]);
const SELECTOR_REQUIREMENT: Type =
    Struct(&[always("key", Text), always("operator", Text), omitted("values", List(&Text))]);

/// The same in both versions.
const REFERENCE: Type = Struct(&[always("kind", Text), always("name", Text), omitted("apiVersion", Text)]);
pub(super) const CONDITION_V1: Type = Struct(&[
    always("type", Text),
    always("status", Text),
    always("lastTransitionTime", Time),
    omitted("reason", Text),
    omitted("message", Text),
    pointer("observedGeneration", Int64),
]);
const CONDITION_V2: Type = CONDITION_V1;

pub(super) const OBJECT_V1: Type = Struct(&[
    omitted("kind", Text),
    omitted("apiVersion", Text),
    always("metadata", METADATA),
    always("spec", SPEC_V1),
    always("status", STATUS_V1),
]);
const SPEC_V1: Type = Struct(&[
    always("scaleTargetRef", REFERENCE),
    pointer("minReplicas", Int32),
    always("maxReplicas", Int32),
    pointer("targetCPUUtilizationPercentage", Int32),
]);
const STATUS_V1: Type = Struct(&[
    pointer("observedGeneration", Int64),
    pointer("lastScaleTime", Time),
    always("currentReplicas", Int32),
    always("desiredReplicas", Int32),
    pointer("currentCPUUtilizationPercentage", Int32),
]);

pub(super) const METRIC_SPEC_V1: Type = Struct(&[
    always("type", Text),
    pointer("object", OBJECT_SOURCE_V1),
    pointer("pods", PODS_SOURCE_V1),
    pointer("resource", RESOURCE_SOURCE_V1),
    pointer("containerResource", CONTAINER_SOURCE_V1),
    pointer("external", EXTERNAL_SOURCE_V1),
]);
const OBJECT_SOURCE_V1: Type = Struct(&[
    always("target", REFERENCE),
    always("metricName", Text),
    always("targetValue", Quantity),
    pointer("selector", SELECTOR),
    pointer("averageValue", Quantity),
]);
const PODS_SOURCE_V1: Type = Struct(&[
    always("metricName", Text),
    always("targetAverageValue", Quantity),
    pointer("selector", SELECTOR),
]);
const RESOURCE_SOURCE_V1: Type = Struct(&[
    always("name", Text),
    pointer("targetAverageUtilization", Int32),
    pointer("targetAverageValue", Quantity),
]);
const CONTAINER_SOURCE_V1: Type = Struct(&[
    always("name", Text),
    pointer("targetAverageUtilization", Int32),
    pointer("targetAverageValue", Quantity),
    always("container", Text),
]);
const EXTERNAL_SOURCE_V1: Type = Struct(&[
    always("metricName", Text),
    pointer("metricSelector", SELECTOR),
    pointer("targetValue", Quantity),
    pointer("targetAverageValue", Quantity),
]);

pub(super) const METRIC_STATUS_V1: Type = Struct(&[
    always("type", Text),
    pointer("object", OBJECT_STATUS_V1),
    pointer("pods", PODS_STATUS_V1),
    pointer("resource", RESOURCE_STATUS_V1),
    pointer("containerResource", CONTAINER_STATUS_V1),
    pointer("external", EXTERNAL_STATUS_V1),
]);
const OBJECT_STATUS_V1: Type = Struct(&[
    always("target", REFERENCE),
    always("metricName", Text),
    always("currentValue", Quantity),
    pointer("selector", SELECTOR),
    pointer("averageValue", Quantity),
]);
const PODS_STATUS_V1: Type = Struct(&[
    always("metricName", Text),
    always("currentAverageValue", Quantity),
    pointer("selector", SELECTOR),
]);
const RESOURCE_STATUS_V1: Type = Struct(&[
    always("name", Text),
    pointer("currentAverageUtilization", Int32),
    always("currentAverageValue", Quantity),
]);
const CONTAINER_STATUS_V1: Type = Struct(&[
    always("name", Text),
    pointer("currentAverageUtilization", Int32),
    always("currentAverageValue", Quantity),
    always("container", Text),
]);
const EXTERNAL_STATUS_V1: Type = Struct(&[
    always("metricName", Text),
    pointer("metricSelector", SELECTOR),
    always("currentValue", Quantity),
    pointer("currentAverageValue", Quantity),
]);

pub(super) const OBJECT_V2: Type = Struct(&[
    omitted("kind", Text),
    omitted("apiVersion", Text),
    always("metadata", METADATA),
    always("spec", SPEC_V2),
    always("status", STATUS_V2),
]);
const SPEC_V2: Type = Struct(&[
    always("scaleTargetRef", REFERENCE),
    pointer("minReplicas", Int32),
    always("maxReplicas", Int32),
    omitted("metrics", List(&METRIC_SPEC_V2)),
    pointer("behavior", RULES_OF_BEHAVIOR),
]);
const STATUS_V2: Type = Struct(&[
    pointer("observedGeneration", Int64),
    pointer("lastScaleTime", Time),
    omitted("currentReplicas", Int32),
    always("desiredReplicas", Int32),
    always("currentMetrics", List(&METRIC_STATUS_V2)),
    omitted("conditions", List(&CONDITION_V2)),
]);

/// An annotation of `v1` has these fields under the names of the internal type, which are Go's.
pub(super) const RULES_OF_BEHAVIOR: Type =
    Struct(&[pointer("scaleUp", SCALING_RULES), pointer("scaleDown", SCALING_RULES)]);
const SCALING_RULES: Type = Struct(&[
    pointer("stabilizationWindowSeconds", Int32),
    pointer("selectPolicy", Text),
    omitted("policies", List(&SCALING_POLICY)),
    pointer("tolerance", Quantity),
]);
const SCALING_POLICY: Type =
    Struct(&[always("type", Text), always("value", Int32), always("periodSeconds", Int32)]);

const METRIC_SPEC_V2: Type = Struct(&[
    always("type", Text),
    pointer("object", OBJECT_SOURCE_V2),
    pointer("pods", METRIC_SOURCE_V2),
    pointer("resource", RESOURCE_SOURCE_V2),
    pointer("containerResource", CONTAINER_SOURCE_V2),
    pointer("external", METRIC_SOURCE_V2),
]);
const OBJECT_SOURCE_V2: Type =
    Struct(&[always("describedObject", REFERENCE), always("target", TARGET), always("metric", METRIC)]);
/// Of pods, and of what is external.
const METRIC_SOURCE_V2: Type = Struct(&[always("metric", METRIC), always("target", TARGET)]);
const RESOURCE_SOURCE_V2: Type = Struct(&[always("name", Text), always("target", TARGET)]);
const CONTAINER_SOURCE_V2: Type =
    Struct(&[always("name", Text), always("target", TARGET), always("container", Text)]);
const METRIC: Type = Struct(&[always("name", Text), pointer("selector", SELECTOR)]);
const TARGET: Type = Struct(&[
    always("type", Text),
    pointer("value", Quantity),
    pointer("averageValue", Quantity),
    pointer("averageUtilization", Int32),
]);

const METRIC_STATUS_V2: Type = Struct(&[
    always("type", Text),
    pointer("object", OBJECT_STATUS_V2),
    pointer("pods", METRIC_SOURCE_STATUS_V2),
    pointer("resource", RESOURCE_STATUS_V2),
    pointer("containerResource", CONTAINER_STATUS_V2),
    pointer("external", METRIC_SOURCE_STATUS_V2),
]);
const OBJECT_STATUS_V2: Type =
    Struct(&[always("metric", METRIC), always("current", CURRENT), always("describedObject", REFERENCE)]);
/// Of pods, and of what is external.
const METRIC_SOURCE_STATUS_V2: Type = Struct(&[always("metric", METRIC), always("current", CURRENT)]);
const RESOURCE_STATUS_V2: Type = Struct(&[always("name", Text), always("current", CURRENT)]);
const CONTAINER_STATUS_V2: Type =
    Struct(&[always("name", Text), always("current", CURRENT), always("container", Text)]);
const CURRENT: Type = Struct(&[
    pointer("value", Quantity),
    pointer("averageValue", Quantity),
    pointer("averageUtilization", Int32),
]);
