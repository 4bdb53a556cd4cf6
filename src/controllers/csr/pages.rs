//! Lists of certificate signing requests, page by page: what nobody needs of them is not kept, and a page whose objects
//! are large is asked for in smaller parts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::controllers::client::is_too_large;

/// Where requests are.
pub(super) const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// How many objects are asked for at once, at most.
const MAX_OBJECTS: u32 = 500;

/// What a list answers with. Fields that `T` does not have are passed over as they are read.
#[derive(Debug, Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

/// A list that is read page by page.
#[derive(Debug)]
pub(super) struct Pages {
    selector: Option<String>,
    limit: u32,
    /// Where the next page begins; `None` once there is none.
    next: Option<String>,
    /// The version of the list.
    version: String,
}

impl Pages {
    /// All requests that a field selector selects.
    pub(super) fn new(selector: Option<String>) -> Self {
        Self { selector, limit: MAX_OBJECTS, next: Some(String::new()), version: String::new() }
    }

    /// The version from which a watch goes on.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The objects of the next page; `None` after the last.
    pub(super) async fn next<T: DeserializeOwned>(
        &mut self,
        client: &Client,
    ) -> kube::Result<Option<Vec<T>>> {
        let Some(token) = self.next.clone() else { return Ok(None) };
        loop {
            let mut params = ListParams::default().limit(self.limit);
            if !token.is_empty() {
                params = params.continue_token(&token);
            }
            if let Some(selector) = &self.selector {
                params = params.fields(selector);
            }
            let request = Request::new(PATH).list(&params).map_err(kube::Error::BuildRequest)?;
            match client.request::<Page<T>>(request).await {
                Ok(page) => {
                    self.limit = (self.limit * 2).min(MAX_OBJECTS);
                    self.next = page.metadata.continue_.filter(|token| !token.is_empty());
                    self.version = page.metadata.resource_version.unwrap_or_default();
                    return Ok(Some(page.items));
                }
                Err(error) if self.limit > 1 && is_too_large(&error) => {
                    self.limit = (self.limit / 8).max(1);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
