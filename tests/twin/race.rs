//! Writers behind the gateway with admission webhooks, and writers beside it, on the same objects at once: every version that a write
//! through the gateway stores is one that the validating webhook has seen in exactly that form.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{join_all, try_join, try_join_all};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use testkit::random::Rng;

use crate::authenticators::Setting;
use crate::outside::RACE_LABEL;
use crate::run::{Compared, unique};
use crate::rust_client;
use crate::servers::{Side, TwinServers};

const OBJECTS: usize = 30;
const WRITERS: usize = 10;
const WRITES: usize = 250;
/// The patches of one object at once.
const TOGETHER: usize = 20;

/// The counts of one kind of writers.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicUsize,
    /// Writes with a `resourceVersion` that was old, or of an object that was there or not there.
    conflicts: AtomicUsize,
    /// Other writes that were refused.
    refused: AtomicUsize,
}

/// What is compared of a version: everything that writers and webhooks change.
fn form(object: &Value) -> String {
    json!([
        object["metadata"]["name"],
        object["metadata"]["labels"],
        object["metadata"]["annotations"],
        object["data"]
    ])
    .to_string()
}

pub(crate) async fn run(servers: &TwinServers, side: Side) -> Result<Compared, Failed> {
    let race = unique();
    let direct =
        Api::<ConfigMap>::namespaced(rust_client::client_of(servers, Side::Reference).await?, "twin");
    let through = Api::<ConfigMap>::namespaced(rust_client::client_of(servers, side).await?, "twin");
    let from = direct.list(&kube::api::ListParams::default().limit(1)).await.map_err(text)?;
    let from = from.metadata.resource_version.unwrap_or_default();

    let (reviewed, beside) = (Counts::default(), Counts::default());
    let writers = (0..WRITERS).flat_map(|number| {
        [(format!("g{number}"), &through, &reviewed), (format!("d{number}"), &direct, &beside)]
    });
    let writing =
        writers.enumerate().map(|(seed, (name, api, counts))| write(api, name, &race, seed, counts));
    let end = format!("{race}-end");
    let writing = async {
        try_join_all(writing).await?;
        let last = json!({"metadata": {"name": end, "labels": {RACE_LABEL: race}}});
        let last = serde_json::from_value(last).expect("a config map");
        direct.create(&PostParams::default(), &last).await.map_err(text)
    };
    // At the same time: the server keeps only the last versions.
    let (_, versions) = try_join(writing, versions(&direct, &race, &from, &end)).await?;
    let seen = servers.outside.admission.take(&race);
    let seen: BTreeSet<String> = seen.iter().map(|(_, review)| form(&review["request"]["object"])).collect();
    let mut differences = Vec::new();
    let of_gateway: Vec<&Value> = versions
        .iter()
        .filter(|version| version["data"]["writer"].as_str().is_some_and(|name| name.starts_with('g')))
        .collect();
    differences.extend(
        of_gateway
            .iter()
            .filter(|version| !seen.contains(&form(version)))
            .map(|version| format!("not reviewed: {version}")),
    );
    let written = reviewed.written.load(Ordering::SeqCst);
    // The second version of a write has other managers alone.
    let stored: BTreeSet<&str> =
        of_gateway.iter().filter_map(|version| version["data"]["writer"].as_str()).collect();
    if stored.len() != written {
        differences.push(format!("{written} writes succeeded, and {} are stored", stored.len()));
    }
    if written < WRITERS * WRITES / 3 || beside.written.load(Ordering::SeqCst) < WRITERS * WRITES / 3 {
        differences.push(format!("too few writes succeeded: {reviewed:?} {beside:?}"));
    }
    if reviewed.refused.load(Ordering::SeqCst) > 0 {
        differences.push(format!("writes were refused: {reviewed:?} {beside:?}"));
    }
    differences.truncate(5);
    Ok(Compared { differences, last: 0 })
}

/// Patches of one object at once succeed, in each form.
pub(crate) async fn patch_together(servers: &TwinServers, side: Side) -> Result<Compared, Failed> {
    let mut differences = Vec::new();
    for side in [Side::Reference.with(Setting::Admission), side] {
        let api = Api::<ConfigMap>::namespaced(rust_client::client_of(servers, side).await?, "twin");
        let name = unique();
        let object = json!({"metadata": {"name": name, "annotations": {"asks": "m1=label;"}}});
        let object = serde_json::from_value(object).expect("a config map");
        api.create(&PostParams::default(), &object).await.map_err(text)?;
        let patches = (0..TOGETHER).map(async |number: usize| {
            let key = format!("k{number}");
            let data = json!({"data": {key.as_str(): "x"}});
            let parameters = PatchParams::default();
            match number % 4 {
                0 => api.patch(&name, &parameters, &Patch::Merge(data)).await,
                1 => api.patch(&name, &parameters, &Patch::Strategic(data)).await,
                2 => {
                    let operations =
                        json!([{"op": "add", "path": format!("/metadata/annotations/{key}"), "value": "x"}]);
                    let patch = serde_json::from_value(operations).expect("a patch");
                    api.patch(&name, &parameters, &Patch::<()>::Json(patch)).await
                }
                _ => {
                    let mut object = data;
                    (object["apiVersion"], object["kind"]) = (json!("v1"), json!("ConfigMap"));
                    api.patch(&name, &PatchParams::apply(&key), &Patch::Apply(object)).await
                }
            }
        });
        for outcome in join_all(patches).await {
            if let Err(error) = outcome {
                differences.push(format!("{}: {error}", side.name()));
            }
        }
        let object = api.get(&name).await.map_err(text)?;
        let annotations = object.metadata.annotations.unwrap_or_default();
        let kept = object.data.unwrap_or_default().len() + annotations.len();
        if kept != TOGETHER + 1 {
            differences.push(format!("{}: {kept} changes are stored", side.name()));
        }
    }
    Ok(Compared { differences, last: 0 })
}

/// Writes to random objects in random ways.
async fn write(
    api: &Api<ConfigMap>,
    writer: String,
    race: &str,
    seed: usize,
    counts: &Counts,
) -> Result<(), Failed> {
    let mut random = Rng(u64::try_from(seed).expect("small"));
    for number in 0..WRITES {
        let name = format!("{race}-{}", random.below(OBJECTS));
        let mark = format!("{writer}-{number}");
        let data =
            BTreeMap::from([("writer".to_owned(), mark.clone()), (writer.clone(), number.to_string())]);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {RACE_LABEL: race}, "annotations": {"asks": "m4=label;"}}, "data": data});
        let merge = Patch::Merge(json!({"data": data}));
        let outcome = match random.below(8) {
            0 => {
                let object = serde_json::from_value(object).expect("a config map");
                api.create(&PostParams::default(), &object).await.map(|_| ())
            }
            1 => api.delete(&name, &DeleteParams::default()).await.map(|_| ()).and(Err(gone())),
            2 => match api.get(&name).await {
                Ok(mut object) => {
                    object.data.get_or_insert_default().extend(data);
                    api.replace(&name, &PostParams::default(), &object).await.map(|_| ())
                }
                Err(error) => Err(error),
            },
            3 => {
                let operations = json!([{"op": "add", "path": "/data/writer", "value": mark}]);
                let patch = serde_json::from_value(operations).expect("a patch");
                api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch)).await.map(|_| ())
            }
            4 => api
                .patch(&name, &PatchParams::apply(&writer).force(), &Patch::Apply(object))
                .await
                .map(|_| ()),
            5 => api
                .patch(&name, &PatchParams::default(), &Patch::Strategic(json!({"data": data})))
                .await
                .map(|_| ()),
            _ => api.patch(&name, &PatchParams::default(), &merge).await.map(|_| ()),
        };
        match outcome {
            Ok(()) => counts.written.fetch_add(1, Ordering::SeqCst),
            // Absent, present, or changed meanwhile.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 410) => {
                counts.conflicts.fetch_add(1, Ordering::SeqCst)
            }
            Err(kube::Error::Api(status)) => {
                eprintln!("{writer} on {name}: {} {}", status.code, status.message);
                counts.refused.fetch_add(1, Ordering::SeqCst)
            }
            Err(error) => return Err(text(error)),
        };
    }
    Ok(())
}

/// A deletion stores no version.
fn gone() -> kube::Error {
    kube::Error::Api(Box::new(kube::core::Status { code: 410, ..Default::default() }))
}

/// Every version of the objects that is stored before the object `end`, except deletions. A watch that ends by its time-out
/// is begun again where it ended.
async fn versions(api: &Api<ConfigMap>, race: &str, from: &str, end: &str) -> Result<Vec<Value>, Failed> {
    let watch = WatchParams::default().labels(&format!("{RACE_LABEL}={race}")).timeout(290);
    let mut last = from.to_owned();
    let mut versions = Vec::new();
    loop {
        let mut events = api.watch(&watch, &last).await.map_err(text)?.boxed();
        while let Some(event) = events.try_next().await.map_err(text)? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    if object.name_any() == end {
                        return Ok(versions);
                    }
                    last = object.resource_version().ok_or("an object without a version")?;
                    versions.push(serde_json::to_value(object).map_err(text)?);
                }
                WatchEvent::Deleted(object) => {
                    last = object.resource_version().ok_or("an object without a version")?;
                }
                WatchEvent::Bookmark(bookmark) => last = bookmark.metadata.resource_version,
                WatchEvent::Error(error) => return Err(format!("the watch failed: {error:?}").into()),
            }
        }
    }
}

fn text(error: impl std::fmt::Display) -> Failed {
    error.to_string().into()
}
