//! Deletions of collections, one object after the other, as kube-apiserver deletes them: each is reviewed and deleted before the next
//! one, and the first refusal ends the request. The client gets the list of the objects, as they were.
//!
//! The dry run shows the objects. Each is deleted by the deletion of the collection with a selector for its name, which needs no
//! other right than the client's request, and with preconditions of its UID and `resourceVersion`. An object that has changed is
//! reviewed again, one that is gone is no failure. An object of a group that kube-apiserver does not serve itself is deleted by its
//! own path: another server may read no selectors.
// apiserver: pkg/registry/generic/registry/store.go, DeleteCollection; pkg/endpoints/handlers/delete.go, DeleteCollection

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Response, StatusCode};
use portcullis_admission::review::internal_error;
use portcullis_go::url::{escape, path_segment, query};
use portcullis_http::body::Body;
use serde_json::{Map, Value};
use tokio::task::yield_now;

use super::document::metadata;
use super::options::{delete_options_of_query, pinned_options};
use super::reviewer::{Reviewer, Stop, unexpressible};
use super::written::accepts_json;
use crate::backend::sharing::extension_group;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::stages::{Admitted, Authorized, JSON, ReviewedWrite};

/// How often the deletion of an object that changes is tried.
const MAX_TRIES: usize = 8;

/// What has become of an object.
enum Deleted {
    Gone,
    Changed,
    /// The API server refuses the deletion: its response is the client's.
    Refused(Box<Response<Body>>),
}

impl Reviewer<'_> {
    /// Reviews and deletes the objects of a collection; the client's response.
    // threat: unreviewed-write
    pub(super) async fn delete_collection(
        &self,
        authorized: &Authorized,
        body: &Bytes,
    ) -> Result<Response<Body>, Stop> {
        let raw = authorized.query().unwrap_or_default();
        let request = self.delete_request(authorized, body).await?;
        let mut response = self.dry_run_of_delete(authorized, &request).await?;
        let mut list = self.decode(&response.body).await?;
        if !accepts_json(authorized) {
            response = self.dry_run_in_encoding_of_client(authorized, &request).await?;
        }
        let options = request.given.unwrap_or_else(|| delete_options_of_query(raw));
        for item in items(&mut list)? {
            // Of a dry run, nothing else may wait for anything.
            yield_now().await;
            let mut next = Some(item);
            let mut tries = 0;
            while let Some(item) = next.take() {
                tries += 1;
                let name = metadata(&item, "name").to_owned();
                match self.review_and_delete(authorized, &options, item).await? {
                    Deleted::Gone => {}
                    Deleted::Refused(response) => return Ok(*response),
                    Deleted::Changed if tries < MAX_TRIES && !is_extension(authorized) => {
                        next = self.read_item(authorized, &name).await?;
                    }
                    Deleted::Changed => return Err(Stop::Again),
                }
            }
        }
        Ok(response.into_response())
    }

    /// Reviews an object, and deletes it unless the client asks for a dry run.
    async fn review_and_delete(
        &self,
        authorized: &Authorized,
        options: &Map<String, Value>,
        item: Value,
    ) -> Result<Deleted, Stop> {
        let old = match Box::pin(self.unless_revoked(self.review_delete(authorized, options, item))).await? {
            // A webhook sees it in another version, in which it has changed.
            Err(Stop::Again) => return Ok(Deleted::Changed),
            reviewed => reviewed?,
        };
        if options.get("dryRun").and_then(Value::as_array).is_some_and(|stages| !stages.is_empty()) {
            return Ok(Deleted::Gone);
        }
        let name = metadata(&old, "name");
        let options = pinned_options(options.clone(), &old).ok_or_else(|| unexpressible("options"))?;
        let target =
            if is_extension(authorized) { own(authorized, name) } else { selecting(authorized, name) };
        let target = target.ok_or_else(|| unexpressible("name"))?;
        let write = ReviewedWrite {
            target: Some(target),
            content_type: Some(JSON),
            body: options,
            ..ReviewedWrite::default()
        };
        let admitted = Admitted::reviewed(authorized, write);
        let response = self.gateway.forward(admitted, self.connection, self.scope).await?;
        Ok(match response.status() {
            StatusCode::NOT_FOUND => Deleted::Gone,
            StatusCode::CONFLICT => Deleted::Changed,
            status if status.is_success() => Deleted::Gone,
            _ => Deleted::Refused(Box::new(response)),
        })
    }

    /// The object of this name as it is now, if it is still in the collection.
    async fn read_item(&self, authorized: &Authorized, name: &str) -> Result<Option<Value>, Stop> {
        let target = selecting(authorized, name).ok_or_else(|| unexpressible("name"))?;
        let response = self.dry_run_at(authorized, &target).await?;
        let mut list = self.decode(&response.body).await?;
        Ok(items(&mut list)?.into_iter().next())
    }
}

/// Takes the objects out of a list, each with its kind.
pub(super) fn items(list: &mut Value) -> Result<Vec<Value>, Stop> {
    let text = |field: &str| list.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let of_items = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
    let (Some(kind), Some(items)) = (of_items, list.get_mut("items")) else {
        let error = internal_error("the gateway cannot read the objects of the collection");
        return Err(Stop::Refused(Refusal::NotAdmitted(error)));
    };
    let Value::Array(mut items) = items.take() else { return Ok(Vec::new()) };
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.entry("apiVersion").or_insert_with(|| api_version.clone().into());
        item.entry("kind").or_insert_with(|| kind.into());
    }
    Ok(items)
}

fn is_extension(authorized: &Authorized) -> bool {
    extension_group(authorized.info().path()).is_some()
}

/// The path of an object of the collection.
fn own(authorized: &Authorized, name: &str) -> Option<PathAndQuery> {
    let collection = authorized.request().uri().path().trim_end_matches('/');
    format!("{collection}/{}", path_segment(name).ok()?).parse().ok()
}

/// The query that selects the object of this name.
pub(super) fn name_selector(name: &str) -> String {
    // apimachinery: pkg/fields/selector.go, EscapeValue
    let value = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    format!("fieldSelector={}", escaped(&format!("metadata.name={value}")))
}

fn escaped(text: &str) -> String {
    escape(text.as_bytes(), |byte| byte.is_ascii_alphanumeric())
}

/// The collection with a selector for one name, and the client's labels.
fn selecting(authorized: &Authorized, name: &str) -> Option<PathAndQuery> {
    let mut query = name_selector(name);
    if let Some(labels) = query::first(authorized.query().unwrap_or_default(), "labelSelector") {
        query = format!("{query}&labelSelector={}", escaped(&labels));
    }
    format!("{}?{query}", authorized.request().uri().path()).parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_of_a_list_have_their_kind() {
        let mut list = json!({"kind": "WidgetList", "apiVersion": "g/v1", "items": [
            {"metadata": {"name": "a"}}, {"kind": "Widget", "apiVersion": "g/v1", "metadata": {"name": "b"}}]});
        let found = items(&mut list).ok().unwrap();
        assert!(
            found.iter().all(|item| item["kind"] == "Widget" && item["apiVersion"] == "g/v1"),
            "{found:?}"
        );
        let mut empty = json!({"kind": "WidgetList", "apiVersion": "g/v1", "items": null});
        assert_eq!(items(&mut empty).ok(), Some(Vec::new()));
        for other in [json!({"kind": "Status", "items": []}), json!({"kind": "List"}), json!([])] {
            assert!(items(&mut other.clone()).is_err(), "{other}");
        }
    }
}
