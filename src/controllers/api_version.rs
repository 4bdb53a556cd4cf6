//! The versions of `certificates.k8s.io`, and which of them an API server serves a resource in.

use serde::Deserialize;

use super::ControllerContext;

/// A version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiVersion {
    V1,
    V1Beta1,
}

#[derive(Debug, Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Debug, Deserialize)]
struct Resource {
    name: String,
}

impl ApiVersion {
    /// The versions, the preferred one first.
    const ALL: [Self; 2] = [Self::V1, Self::V1Beta1];

    /// The `apiVersion` of objects.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V1 => "certificates.k8s.io/v1",
            Self::V1Beta1 => "certificates.k8s.io/v1beta1",
        }
    }

    pub(super) fn path(self) -> String {
        format!("/apis/{}", self.name())
    }

    /// The path of the objects of a resource, those of all namespaces.
    pub(super) fn collection(self, resource: &str) -> String {
        format!("{}/{resource}", self.path())
    }

    /// The path of those in a namespace, whose name is a segment of a path.
    pub(super) fn in_namespace(self, namespace: &str, resource: &str) -> String {
        format!("{}/namespaces/{namespace}/{resource}", self.path())
    }

    /// The preferred one of the versions in which the API server serves a resource.
    pub(super) async fn serving(context: &ControllerContext, resource: &str) -> kube::Result<Option<Self>> {
        for version in Self::ALL {
            let request = http::Request::get(version.path()).body(Vec::new());
            let request = request.map_err(|error| {
                kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error))
            })?;
            match context.client.request::<ResourceList>(request).await {
                Ok(list) if list.resources.iter().any(|served| served.name == resource) => {
                    return Ok(Some(version));
                }
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
