#!/usr/bin/env bash
# gopkg.in/evanphx/json-patch.v4 v4.13.0, which kube-apiserver 1.36 applies JSON merge patches with, Go 1.26.
#
# RFC 7396 replaces a list as a whole: `{"l":[{"a":null,"b":1}]}` sets l to a list with that object, null and all. This library takes
# the nulls out of the objects in the list, and keeps those that are items themselves. A merge patch can therefore not say a list with
# an object that has a null; a JSON patch can, also one that replaces the whole document by the path "".
#
# Seen:
#   merge {"l":[{"a":null,"b":1}]}        {"l":[{"b":1}]}
#   merge {"l":[null,{"c":{"a":null}}]}   {"l":[null,{"c":{}}]}
#   replace "/l" by the first list        {"l":[{"a":null,"b":1}]}
#   replace "" by the first document      {"l":[{"a":null,"b":1}]}
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'END'
module example.com/patches

go 1.26
END
cat >main.go <<'END'
package main

import (
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

func main() {
	document := []byte(`{"l":[]}`)
	for _, patch := range []string{`{"l":[{"a":null,"b":1}]}`, `{"l":[null,{"c":{"a":null}}]}`} {
		merged, err := jsonpatch.MergePatch(document, []byte(patch))
		fmt.Println(string(merged), err)
	}
	for _, patch := range []string{
		`[{"op":"replace","path":"/l","value":[{"a":null,"b":1}]}]`,
		`[{"op":"replace","path":"","value":{"l":[{"a":null,"b":1}]}}]`,
	} {
		decoded, err := jsonpatch.DecodePatch([]byte(patch))
		if err != nil {
			panic(err)
		}
		patched, err := decoded.Apply(document)
		fmt.Println(string(patched), err)
	}
}
END
cat >expected <<'END'
{"l":[{"b":1}]} <nil>
{"l":[null,{"c":{}}]} <nil>
{"l":[{"a":null,"b":1}]} <nil>
{"l":[{"a":null,"b":1}]} <nil>
END

export GOFLAGS=-mod=mod GOWORK=off
go get gopkg.in/evanphx/json-patch.v4@v4.13.0 >/dev/null 2>&1
go run . >seen
diff -u expected seen
echo 'as described'
