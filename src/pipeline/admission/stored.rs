//! The stored object, read as the user. Who may change or delete an object may not always read it: the roles of many controllers say
//! so. Then another request that the user may make shows it.
//!
//! | the user may | the object is read by |
//! |---|---|
//! | `get` | a GET of the object |
//! | `list` | a list that its name selects |
//! | `patch`, in a patch | a dry run of a patch that changes nothing |
// kubernetes: plugin/pkg/auth/authorizer/rbac/bootstrappolicy/controller_policy.go

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use portcullis_go::url::path_segment;
use serde_json::Value;

use super::collection::{items, name_selector};
use super::document::metadata;
use super::reviewer::{Reviewer, Stop};
use super::subject::Action;
use crate::pipeline::forward::{Rehearsal, rewritten_target};
use crate::pipeline::stages::{Authorized, ReviewedWrite};

const MERGE_PATCH: HeaderValue = HeaderValue::from_static("application/merge-patch+json");

impl Reviewer<'_> {
    /// The stored object: a scale is read where it is written, and other subresources show the whole object.
    pub(super) async fn read_stored(
        &self,
        authorized: &Authorized,
        with_subresource: bool,
    ) -> Result<Option<Value>, Stop> {
        let path = authorized.request().uri().path();
        let path = match path.trim_end_matches('/').rsplit_once('/') {
            Some((parent, _)) if !self.subject.subresource.is_empty() && !with_subresource => parent,
            _ => path,
        };
        let target: PathAndQuery =
            path.parse().map_err(|_| Stop::Unreadable("the path of the object is not valid".to_owned()))?;
        let read = self.rehearse(authorized, || Some(Rehearsal::read(target.clone()))).await;
        match read {
            Ok(response) => Ok(Some(response.object()?)),
            Err(Stop::Response(response)) if response.status == StatusCode::NOT_FOUND => Ok(None),
            Err(Stop::Response(refused)) if refused.status == StatusCode::FORBIDDEN && !with_subresource => {
                self.read_by_another_right(authorized, path).await?.ok_or(Stop::Response(refused))
            }
            Err(stop) => Err(stop),
        }
    }

    /// Reads an object that the user may not `get`; `None` if the user may not read it otherwise either.
    async fn read_by_another_right(
        &self,
        authorized: &Authorized,
        path: &str,
    ) -> Result<Option<Option<Value>>, Stop> {
        if let Some(found) = allowed(self.list_one(authorized, path).await)? {
            return Ok(Some(found));
        }
        match self.subject.action {
            // A dry run that stores nothing for certain.
            Action::Patch(_) if self.require_dry_run(authorized).await.is_ok() => {
                match self.patch_nothing(authorized).await {
                    Err(Stop::Response(response)) if response.status == StatusCode::NOT_FOUND => {
                        Ok(Some(None))
                    }
                    patched => Ok(allowed(patched)?.map(Some)),
                }
            }
            _ => Ok(None),
        }
    }

    pub(super) async fn list_one(&self, authorized: &Authorized, path: &str) -> Result<Option<Value>, Stop> {
        let target = collection_with(path, &self.subject.name);
        let response = self.rehearse(authorized, || target.clone().map(Rehearsal::read)).await?;
        only_item(response.object()?, &self.subject.name)
    }

    async fn patch_nothing(&self, authorized: &Authorized) -> Result<Value, Stop> {
        let nothing = || {
            let target = Some(rewritten_target(authorized)?);
            let body = Bytes::from_static(b"{}");
            let write =
                ReviewedWrite { target, content_type: Some(MERGE_PATCH), body, ..ReviewedWrite::default() };
            Rehearsal::dry_run_of_write(authorized, &write)
        };
        self.rehearse(authorized, nothing).await?.object()
    }
}

/// `None` if the user may not make the request.
fn allowed<T>(read: Result<T, Stop>) -> Result<Option<T>, Stop> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(Stop::Response(response)) if response.status == StatusCode::FORBIDDEN => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// The collection of the object at this path, with a selector for its name.
fn collection_with(path: &str, name: &str) -> Option<PathAndQuery> {
    let (collection, last) = path.trim_end_matches('/').rsplit_once('/')?;
    // The last part is the object's name, as the client has written it.
    (path_segment(name).ok()? == last).then_some(())?;
    format!("{collection}?{}", name_selector(name)).parse().ok()
}

/// The only object of a list, if it has this name.
fn only_item(mut list: Value, name: &str) -> Result<Option<Value>, Stop> {
    let mut items = items(&mut list)?;
    let item = if items.len() == 1 { items.pop() } else { None };
    Ok(item.filter(|item| metadata(item, "name") == name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_collection_of_an_object_is_selected_by_its_name() {
        let target = |path, name| collection_with(path, name).map(|target| target.to_string());
        assert_eq!(
            target("/api/v1/namespaces/n/pods/p.1", "p.1").as_deref(),
            Some("/api/v1/namespaces/n/pods?fieldSelector=metadata%2Ename%3Dp%2E1")
        );
        assert_eq!(
            target("/api/v1/nodes/n/", "n").as_deref(),
            Some("/api/v1/nodes?fieldSelector=metadata%2Ename%3Dn")
        );
        // Another spelling of the name, and no object.
        assert_eq!(target("/api/v1/nodes/%6e", "n"), None);
        assert_eq!(target("/api/v1/nodes", "n"), None);
    }

    #[test]
    fn the_object_of_a_list_has_its_kind() {
        let list = |items| json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items});
        let pod = json!({"metadata": {"name": "p"}});
        let only_item = |list, name| only_item(list, name).ok().flatten();
        assert_eq!(
            only_item(list(json!([pod])), "p"),
            Some(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}))
        );
        assert_eq!(only_item(list(json!([pod])), "q"), None);
        assert_eq!(only_item(list(json!([pod, pod])), "p"), None);
        assert_eq!(only_item(list(Value::Null), "p"), None);
    }
}
