//! Long-running requests and protocol upgrades: watches, exec, attach, logs, proxied subresources.

use crate::case::{Case, H1, case, get};

const POD: &str = "/api/v1/namespaces/twin-fixed/pods/placed";
const IDLE: &str = "/api/v1/namespaces/twin-fixed/pods/idle";
const MAPS: &str = "/api/v1/namespaces/twin-fixed/configmaps";

fn watches() -> Vec<Case> {
    let alice = |name: &str, target: &str| get("watch", name, target).cert("alice");
    let initial = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    vec![
        alice(
            "initial events and bookmark",
            &format!("{MAPS}?watch=1&labelSelector=parity%3Deven&{initial}"),
        )
        .lines(4)
        .answers(200)
        .contains("initial-events-end"),
        alice("initial events as table", &format!("{MAPS}?watch=1&labelSelector=parity%3Deven&{initial}"))
            .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .lines(4)
            .answers(200)
            .contains("Table"),
        // The version is of this case: how far back the history of a kind goes depends on when the server first listed it.
        case("watch", "from an old version", "POST", "/api/v1/namespaces/twin/configmaps")
            .cert("alice")
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"}}"#)
            .answers(201)
            .then("DELETE", "/api/v1/namespaces/twin/configmaps/{unique}")
            .answers(200)
            .then(
                "GET",
                "/api/v1/namespaces/twin/configmaps?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3D{unique}",
            )
            .lines(1)
            .answers(200)
            .contains("DELETED"),
        alice("of one object", &format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Dalpha"))
            .lines(1)
            .answers(200),
        alice(
            "that ends by itself",
            &format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha"),
        )
        .answers(200)
        .contains("ADDED"),
        alice("as yaml", &format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha"))
            .header("Accept", "application/yaml")
            .answers(406),
        alice("as html", &format!("{MAPS}?watch=1")).header("Accept", "text/html").answers(406),
        alice("forbidden", "/api/v1/configmaps?watch=1").answers(403),
        get("watch", "unauthorized", &format!("{MAPS}?watch=1")).bearer("tok-none").unauthorized(),
        alice("of an unknown field", &format!("{MAPS}?watch=1&fieldSelector=spec.x%3Dy")).answers(400),
        alice("invalid initial events", &format!("{MAPS}?watch=1&sendInitialEvents=true")).answers(422),
        alice(
            "over WebSocket",
            &format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha"),
        )
        .header("Origin", "https://{addr}")
        .websocket("", &[])
        .answers(101)
        .contains("ADDED"),
        alice("over WebSocket without origin", &format!("{MAPS}?watch=1&timeoutSeconds=1"))
            .websocket("", &[])
            .answers(403),
        alice("over WebSocket, forbidden", "/api/v1/configmaps?watch=1").websocket("", &[]).answers(403),
        alice(
            "gzip is not for watches",
            &format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dlarge"),
        )
        .header("Accept-Encoding", "gzip")
        .answers(200),
    ]
}

fn pods() -> Vec<Case> {
    let alice = |name: &str, target: &str| get("streams", name, target).cert("alice");
    let exec = |name: &str, query: &str| {
        alice(name, &format!("{POD}/exec?command=echo&command=hello&stdout=true{query}"))
    };
    vec![
        exec("exec v4", "").websocket("v4.channel.k8s.io", &[]).answers(101).contains("ran echo hello"),
        exec("exec v5", "").websocket("v5.channel.k8s.io", &[]).answers(101).contains("ran echo hello"),
        exec("exec v5 with input", "&stdin=true")
            .websocket("v5.channel.k8s.io", &[(0, b"typed\n"), (255, &[0])])
            .answers(101)
            .contains("typed"),
        exec("exec v4 with input", "&stdin=true")
            .websocket("v4.channel.k8s.io", &[(0, b"typed\n")])
            .answers(101)
            .contains("typed"),
        exec("exec of several protocols", "")
            .websocket("v5.channel.k8s.io, v4.channel.k8s.io", &[])
            .answers(101),
        exec("exec of an unknown protocol", "").websocket("v9.channel.k8s.io", &[]).answers(101),
        alice("exec that fails", &format!("{POD}/exec?command=fail&stdout=true"))
            .websocket("v5.channel.k8s.io", &[])
            .answers(101)
            .contains("exit code 7"),
        alice("exec that is redirected, v4", &format!("{POD}/exec?command=redirect&stdout=true"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(500),
        exec("exec without upgrade", "").answers(400),
        case(
            "streams",
            "exec by POST without upgrade",
            "POST",
            &format!("{POD}/exec?command=true&stdout=true"),
        )
        .cert("alice")
        .answers(400),
        alice("exec without streams", &format!("{POD}/exec?command=true"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(101),
        alice("exec without command", &format!("{POD}/exec?stdout=true"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(101),
        alice("exec in an unknown container", &format!("{POD}/exec?command=true&stdout=true&container=none"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(400),
        alice("exec in a pod without node", &format!("{IDLE}/exec?command=true&stdout=true"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(400)
            .contains("does not have a host assigned"),
        alice(
            "exec in a missing pod",
            "/api/v1/namespaces/twin-fixed/pods/none/exec?command=true&stdout=true",
        )
        .websocket("v4.channel.k8s.io", &[])
        .answers(404),
        exec("exec forbidden", "").cert("nobody").websocket("v4.channel.k8s.io", &[]).answers(403),
        exec("exec unauthorized", "").cert("expired").websocket("v4.channel.k8s.io", &[]).unauthorized(),
        exec("exec by SPDY, forbidden", "")
            .only(H1)
            .cert("viewer")
            .header("Connection", "Upgrade")
            .header("Upgrade", "SPDY/3.1")
            .answers(403),
        exec("exec by SPDY without protocol version", "")
            .only(H1)
            .header("Connection", "Upgrade")
            .header("Upgrade", "SPDY/3.1")
            .cert("nobody")
            .answers(403),
        alice("attach", &format!("{POD}/attach?stdout=true"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(101),
        alice("port forward to a pod without node", &format!("{IDLE}/portforward?ports=80"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(400),
        alice("logs", &format!("{POD}/log")).answers(200).contains("second line"),
        alice("logs followed", &format!("{POD}/log?follow=true")).answers(200).contains("second line"),
        alice("logs with options", &format!("{POD}/log?tailLines=5&timestamps=true&container=main"))
            .answers(200),
        alice("logs with an invalid option", &format!("{POD}/log?tailLines=-1")).answers(422),
        alice("logs of a pod without node", &format!("{IDLE}/log")).answers(204),
        alice("logs of a missing pod", "/api/v1/namespaces/twin-fixed/pods/none/log").answers(404),
        alice("logs forbidden", &format!("{POD}/log")).cert("nobody").answers(403),
        alice("proxy to a pod without address", &format!("{IDLE}/proxy/")).answers(400),
        alice("proxy to a missing service", "/api/v1/namespaces/twin-fixed/services/none/proxy/a/b?c=d")
            .answers(503),
        alice("proxy forbidden", &format!("{POD}/proxy/x")).cert("nobody").answers(403),
        get("streams", "proxy to a node at the loopback address", "/api/v1/nodes/twin-node/proxy/healthz")
            .cert("admin")
            .answers(400),
        alice("upgrade of a plain resource", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .only(H1)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .answers(200),
        alice("upgrade to h2c", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .only(H1)
            .header("Connection", "Upgrade, HTTP2-Settings")
            .header("Upgrade", "h2c")
            .header("HTTP2-Settings", "AAMAAABkAAQAAP__")
            .answers(200),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [watches(), pods()].concat()
}
