//! Access reviews for an authorizer: the attributes of a request in the form of the API, `SubjectAccessReviewSpec`.
// apiserver: pkg/endpoints/filters/authorization.go, GetAuthorizerAttributes; plugin/pkg/authorizer/webhook/webhook.go

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldSelectorRequirement, LabelSelectorRequirement};
use portcullis_cel::{AccessReview, AccessTarget, ServiceAccount};
use portcullis_kubernetes::selectors::{self, LabelOperator};
use portcullis_kubernetes::status::{Attempt, AttemptTarget};
use portcullis_kubernetes::user::UserInfo;

use crate::request::info::{RequestInfo, RequestKind, RequestResource};

/// Whether `user` may do what `attributes` name.
pub(super) fn on_resource(user: &UserInfo, attributes: ResourceAttributes) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec { resource_attributes: Some(attributes), ..by(user) }
}

/// Whether `user` may make a request, with `verb` in the place of the request's own.
pub(super) fn on_request(user: &UserInfo, info: &RequestInfo, verb: String) -> SubjectAccessReviewSpec {
    match info.kind() {
        RequestKind::NonResource => SubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(info.path().to_owned()),
                verb: Some(verb),
            }),
            ..by(user)
        },
        RequestKind::Resource(resource) => {
            on_resource(user, of_resource(&resource, info.object_name(), verb))
        }
    }
}

fn of_resource(resource: &RequestResource<'_>, name: &str, verb: String) -> ResourceAttributes {
    let RequestResource { group, version, namespace, resource: plural, subresource, .. } = *resource;
    ResourceAttributes {
        namespace: given(namespace),
        verb: Some(verb),
        group: given(group),
        version: given(version),
        resource: given(plural),
        subresource: given(subresource),
        name: given(name),
        field_selector: field_selector(resource.field_selector),
        label_selector: label_selector(resource.label_selector),
    }
}

/// An access review of an expression about `user`, or about the service account that the expression names.
// apiserver: pkg/cel/library/authz.go, receiverAuthorizer
pub(crate) fn of_expression(user: &UserInfo, asked: &AccessReview) -> SubjectAccessReviewSpec {
    let account = asked.service_account.as_ref().map(|account| {
        let ServiceAccount { namespace, name } = account;
        let mut user = UserInfo::named(format!("system:serviceaccount:{namespace}:{name}"));
        user.groups =
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        user.in_authenticated_group()
    });
    let user = account.as_ref().unwrap_or(user);
    let verb = Some(asked.verb.clone());
    match &asked.target {
        AccessTarget::Path(path) => SubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes { path: Some(path.clone()), verb }),
            ..by(user)
        },
        AccessTarget::Resource(target) => on_resource(
            user,
            ResourceAttributes {
                namespace: given(&target.namespace),
                verb,
                group: given(&target.group),
                version: given("*"),
                resource: given(&target.resource),
                subresource: given(&target.subresource),
                name: given(&target.name),
                field_selector: field_selector(&target.field_selector),
                label_selector: label_selector(&target.label_selector),
            },
        ),
    }
}

/// The user of an access review, without attributes.
fn by(user: &UserInfo) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: user.uid.clone(),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    }
}

/// A field that is omitted if it is empty.
pub(super) fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The requirements of a field selector. Requirements that the API does not have are left out, and so are those of a
/// selector that does not parse: the access review then asks for more.
// webhook.go, fieldSelectorToAuthorizationAPI
fn field_selector(selector: &str) -> Option<FieldSelectorAttributes> {
    let requirements = selectors::parse_fields(selector).ok()?.into_iter();
    let requirements: Vec<_> = requirements
        .map(|requirement| FieldSelectorRequirement {
            key: requirement.field.to_owned(),
            operator: if requirement.equals { "In" } else { "NotIn" }.to_owned(),
            values: Some(vec![requirement.value.into_owned()]),
        })
        .collect();
    (!requirements.is_empty())
        .then_some(FieldSelectorAttributes { requirements: Some(requirements), raw_selector: None })
}

/// The same of a label selector.
// webhook.go, labelSelectorToAuthorizationAPI
fn label_selector(selector: &str) -> Option<LabelSelectorAttributes> {
    let requirements = selectors::parse_labels(selector).ok()?.into_iter();
    let requirements: Vec<_> = requirements
        .filter_map(|requirement| {
            let operator = match requirement.operator {
                LabelOperator::In | LabelOperator::Equals => "In",
                LabelOperator::NotIn | LabelOperator::NotEquals => "NotIn",
                LabelOperator::Exists => "Exists",
                LabelOperator::DoesNotExist => "DoesNotExist",
                LabelOperator::GreaterThan | LabelOperator::LessThan => return None,
            };
            Some(LabelSelectorRequirement {
                key: requirement.key,
                operator: operator.to_owned(),
                values: (!requirement.values.is_empty()).then_some(requirement.values),
            })
        })
        .collect();
    (!requirements.is_empty())
        .then_some(LabelSelectorAttributes { requirements: Some(requirements), raw_selector: None })
}

/// The access review as the message of a refusal describes it.
pub(super) fn attempt(spec: &SubjectAccessReviewSpec) -> Attempt<'_> {
    let path = spec.non_resource_attributes.as_ref();
    let (verb, on) = match &spec.resource_attributes {
        Some(on) => {
            let target = AttemptTarget::Resource {
                group: text(on.group.as_ref()),
                resource: text(on.resource.as_ref()),
                subresource: text(on.subresource.as_ref()),
                namespace: text(on.namespace.as_ref()),
                name: text(on.name.as_ref()),
            };
            (on.verb.as_ref(), target)
        }
        None => (
            path.and_then(|on| on.verb.as_ref()),
            AttemptTarget::Path(text(path.and_then(|on| on.path.as_ref()))),
        ),
    };
    Attempt { user: text(spec.user.as_ref()), verb: text(verb), on }
}

fn text(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;

    fn asked(method: &Method, path: &str, query: Option<&str>) -> Value {
        let info = RequestInfo::parse(method, path, query).unwrap();
        let user = UserInfo::named("alice").in_authenticated_group();
        let spec = on_request(&user, &info, info.verb().to_owned());
        let mut spec = serde_json::to_value(spec).unwrap();
        let fields = spec.as_object_mut().unwrap();
        assert_eq!(fields.remove("user"), Some(json!("alice")));
        assert_eq!(fields.remove("groups"), Some(json!(["system:authenticated"])));
        fields.remove("extra");
        spec
    }

    #[test]
    fn a_request_is_asked_for_as_in_the_api_server() {
        assert_eq!(
            asked(&Method::GET, "/apis/apps/v1/namespaces/a/deployments/b/scale", None),
            json!({"resourceAttributes": {"namespace": "a", "verb": "get", "group": "apps", "version": "v1",
                "resource": "deployments", "subresource": "scale", "name": "b"}})
        );
        assert_eq!(
            asked(&Method::POST, "/healthz", None),
            json!({"nonResourceAttributes": {"path": "/healthz", "verb": "post"}})
        );
        let query = "fieldSelector=metadata.name%3Da%2Cspec.x!%3Db&labelSelector=a%2C!b%2Cc+in+(x,y)%2Cd!%3D1%2Ce%3E2";
        assert_eq!(
            asked(&Method::GET, "/api/v1/pods", Some(query)),
            json!({"resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods", "name": "a",
                "fieldSelector": {"requirements": [
                    {"key": "metadata.name", "operator": "In", "values": ["a"]},
                    {"key": "spec.x", "operator": "NotIn", "values": ["b"]}]},
                "labelSelector": {"requirements": [
                    {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"},
                    {"key": "c", "operator": "In", "values": ["x", "y"]},
                    {"key": "d", "operator": "NotIn", "values": ["1"]}]}}})
        );
        for query in ["fieldSelector=a", "labelSelector=%21", "labelSelector=a%3E1"] {
            assert_eq!(
                asked(&Method::GET, "/api/v1/pods", Some(query)),
                json!({"resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods"}}),
                "{query}"
            );
        }
    }
}
