//! The kube-rs client, with its own TLS and HTTP stack: lists, writes, and watches through a reflector, like
//! controllers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Config};
use libtest_mimic::Failed;

use crate::kubectl;
use crate::run::{Compared, unique};
use crate::servers::{Side, TwinServers};

/// The client's results on one side, which must be equal on both.
#[derive(Debug, PartialEq, Eq)]
struct Observations {
    version: String,
    listed: Vec<String>,
    created_by: Option<String>,
    watched: Vec<String>,
    refused: u16,
}

/// Runs the client on the reference and on the subject.
pub(crate) async fn run(servers: &TwinServers, side: Side) -> Result<Compared, Failed> {
    let reference = drive(servers, Side::Reference).await?;
    let subject = drive(servers, side).await?;
    let same = reference == subject;
    let differences =
        if same { vec![] } else { vec![format!("reference {reference:#?}\nsubject {subject:#?}")] };
    Ok(Compared { differences, last: 0 })
}

async fn client(kubeconfig: &Path) -> Result<Client, Failed> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A client of a side, as alice.
pub(crate) async fn client_of(servers: &TwinServers, side: Side) -> Result<Client, Failed> {
    client(&kubectl::kubeconfig_of_alice(servers, side)?).await
}

async fn drive(servers: &TwinServers, side: Side) -> Result<Observations, Failed> {
    let client = client_of(servers, side).await?;
    let fixed: Api<ConfigMap> = Api::namespaced(client.clone(), "twin-fixed");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "twin");
    let listed = fixed.list(&ListParams::default().labels("parity=even")).await?;
    let listed = listed.items.into_iter().filter_map(|map| map.metadata.name).collect();

    let name = unique();
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(watcher::watcher(maps.clone(), only));
    let mut watched = Vec::new();
    let mut created_by = None;
    while let Some(event) = tokio::time::timeout(Duration::from_mins(1), events.next()).await? {
        let value = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("step").cloned());
        match event? {
            Event::Init => watched.push("init".to_owned()),
            Event::InitApply(_) => watched.push("init apply".to_owned()),
            Event::InitDone => {
                watched.push("init done".to_owned());
                let mut map = ConfigMap::default();
                map.metadata.name = Some(name.clone());
                map.data = Some(BTreeMap::from([("step".to_owned(), "one".to_owned())]));
                let created = maps.create(&PostParams::default(), &map).await?;
                created_by =
                    created.metadata.managed_fields.and_then(|fields| fields.into_iter().next()?.manager);
            }
            Event::Apply(map) => {
                watched.push(format!("apply {:?}", value(&map)));
                if value(&map).as_deref() == Some("one") {
                    let patch = serde_json::json!({"data": {"step": "two"}});
                    maps.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
                } else {
                    maps.delete(&name, &kube::api::DeleteParams::default()).await?;
                }
            }
            Event::Delete(_) => {
                watched.push("delete".to_owned());
                break;
            }
        }
    }
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    let refused = match nodes.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => return Err(error.into()),
        Ok(_) => 200,
    };
    let version = client.apiserver_version().await?.git_version;
    Ok(Observations { version, listed, created_by, watched, refused })
}
