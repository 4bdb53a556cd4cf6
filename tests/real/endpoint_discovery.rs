//! A kube-apiserver writes the `EndpointSlice` `default/kubernetes` itself, and the gateway finds it there, with the
//! permissions of `deploy/rbac.yaml`.

use std::net::SocketAddr;

use http::StatusCode;
use libtest_mimic::Trial;
use serde_json::Value;
use testkit::text;

use crate::Test;
use crate::servers::{FRONT_PROXY, HeaderFlags, REVIEW, REVIEWS, RealServers, post};

const RBAC: &str = include_str!("../../deploy/rbac.yaml");
/// A server cannot publish a loopback address. TCP connects to no multicast address, so that no packet is sent.
// Linux: net/ipv4/tcp_ipv4.c, tcp_v4_connect
const PUBLISHED: &str = "239.255.0.1";
const SYSTEM: &str = "/api/v1/namespaces/kube-system";
const DEFAULT: &str = "/api/v1/namespaces/default";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    vec![trial("a server that publishes itself is found", Box::new(published_servers_are_found))]
}

/// The published address accepts no connections, so that requests go on at the configured one.
fn published_servers_are_found(servers: &RealServers) -> Result<(), String> {
    let advertise = format!("--advertise-address={PUBLISHED}");
    let flags = ["--endpoint-reconciler-type=lease", &advertise];
    let server = servers.own_server_with(HeaderFlags::Good, "publishing", &flags)?;
    let runtime = servers.runtime();
    runtime.block_on(async {
        for path in [SYSTEM, DEFAULT, SLICE] {
            testkit::real::eventually(path, async || servers.exists(server.address, path).await).await?;
        }
        create(servers, server.address, "portcullis-authentication-reader").await
    })?;
    let discovery = ["--backend-endpoint-discovery=kubernetes".to_owned()];
    let gateway = servers.gateway_with("publishing", server.address, &FRONT_PROXY, &discovery)?;
    gateway.line_with(&["endpoint discovery failed", "endpointslices", "deploy/rbac.yaml"])?;
    let reviewed = || {
        runtime.block_on(async {
            let mut client = gateway.client().http1(Some(servers.alice())).await;
            let response = client.send(post(REVIEWS, REVIEW)).await.map_err(|error| error.to_string())?;
            if response.status() == StatusCode::CREATED { Ok(()) } else { Err(text(response).await) }
        })
    };
    reviewed()?;
    runtime.block_on(create(servers, server.address, "portcullis-endpoints"))?;
    gateway.line_with(&["endpoint discovery works again"])?;
    let port = server.address.port();
    gateway.line_with(&["the endpoints have changed", &format!("{PUBLISHED}:{port},{}", server.address)])?;
    // It is checked as any other, and not used until it passes.
    gateway.line_with(&["self-check failed", PUBLISHED])?;
    reviewed()
}

/// Creates the objects of this name in `deploy/rbac.yaml`.
async fn create(servers: &RealServers, server: SocketAddr, name: &str) -> Result<(), String> {
    let documents = serde_saphyr::from_multiple::<Value>(RBAC).map_err(|error| error.to_string())?;
    for object in documents.iter().filter(|object| object["metadata"]["name"] == name) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap();
        let resource = if object["kind"] == "Role" { "roles" } else { "rolebindings" };
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{resource}");
        servers.create(server, &path, &object.to_string()).await?;
    }
    Ok(())
}
