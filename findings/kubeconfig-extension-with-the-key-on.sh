#!/usr/bin/env bash
# kube-client 5.0.0 with serde-saphyr 2.0.0, Rust 1.95; k8s.io/client-go v0.36.3, Go 1.26.
#
# An extension of a kubeconfig is any object. A key that is a boolean in YAML 1.1 (`on`, `y`, `no`) is another one for each reader:
# kube keeps it, client-go names it "true" or "false", and each `kubectl config` command that writes the file makes that permanent. In
# a field of a context that kube does not know, which it keeps as well, the same key makes kube refuse the whole kubeconfig, and
# client-go leaves the field out. In quotes all is well. Programs that keep settings of their own there quote such keys, or choose others.
#
# Seen:
#   kube on: {"on":"push"}; in a context: invalid type: boolean `true`, expected a string key
#   kube "on": {"on":"push"}; in a context: read
#   client-go on: {"true":"push"}
#   client-go "on": {"on":"push"}
set -euo pipefail

folder="$(mktemp -d)"
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
cd "$folder"

mkdir -p rust/src go
cat >rust/Cargo.toml <<'END'
[package]
name = "extension"
version = "0.1.0"
edition = "2024"

[dependencies]
kube-client = { version = "=5.0.0", default-features = false, features = ["config"] }
k8s-openapi = { version = "=0.29.0", features = ["v1_36"] }
serde-saphyr = { version = "=2.0.0", default-features = false }

[workspace]
END
cat >rust/src/main.rs <<'END'
use kube_client::config::Kubeconfig;

fn main() {
    for key in ["on", "\"on\""] {
        let head = "apiVersion: v1\nkind: Config\n";
        let extension = format!("{head}extensions:\n- name: a\n  extension:\n    {key}: push\n");
        let read = Kubeconfig::from_yaml(&extension).unwrap().extensions.unwrap();
        let context = format!("{head}contexts:\n- name: c\n  context:\n    cluster: c\n    mine:\n      {key}: push\n");
        let in_context = match Kubeconfig::from_yaml(&context) {
            Ok(_) => "read".to_owned(),
            Err(error) => {
                let text = error.to_string();
                let at = text.find("invalid type").unwrap_or_default();
                text[at..].lines().next().unwrap_or_default().to_owned()
            }
        };
        println!("kube {key}: {}; in a context: {in_context}", read[0].extension);
    }
}
END
cat >go/go.mod <<'END'
module example.com/extension

go 1.26
END
cat >go/main.go <<'END'
package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	for _, key := range []string{"on", `"on"`} {
		text := "apiVersion: v1\nkind: Config\nextensions:\n- name: a\n  extension:\n    " + key + ": push\n"
		config, err := clientcmd.Load([]byte(text))
		if err != nil {
			panic(err)
		}
		fmt.Printf("client-go %s: %s\n", key, config.Extensions["a"].(*runtime.Unknown).Raw)
	}
}
END
(cd rust && cargo run -q --target-dir "$folder/target") >seen
(cd go && go get k8s.io/client-go@v0.36.3 >/dev/null 2>&1 && go mod tidy >/dev/null 2>&1 && go run .) >>seen
cat seen
diff - seen <<'END'
kube on: {"on":"push"}; in a context: invalid type: boolean `true`, expected a string key
kube "on": {"on":"push"}; in a context: read
client-go on: {"true":"push"}
client-go "on": {"on":"push"}
END
