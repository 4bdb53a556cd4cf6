#!/usr/bin/env bash
# k8s.io/apimachinery 0.37.2, pkg/api/resource, with which Kubernetes and its clients read and print quantities. Go 1.26.
#
# By its documentation a quantity is at most 2^63-1, and a larger number is capped. Numbers with a binary suffix are. Those with a
# decimal suffix or an exponent are kept as they are, beyond 2^63-1 too (999E is about a hundred times as much). From 10^21 on, the
# canonical form of a number with a decimal suffix needs one beyond E (10^18). There is none, and nothing is printed in its place:
# 1000E is 10^21 in comparisons, and 1 in JSON; who reads that gets one. In exponential form the same number survives.
#
# Seen:
#   999E: printed 999E, read again: equal
#   1000E: printed 1, read again: less
#   2000000E: printed 2, read again: less
#   1e21: printed 1e21, read again: equal
#   1023Ei: printed 9223372036854775807, read again: equal
#   1024Ei: printed 9223372036854775807, read again: equal
set -euo pipefail

script="$(realpath "$0")"
folder="$(mktemp -d)"
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"

cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	for _, text := range []string{"999E", "1000E", "2000000E", "1e21", "1023Ei", "1024Ei"} {
		read, err := resource.ParseQuantity(text)
		if err != nil {
			panic(err)
		}
		// Comparisons and sums use the value; JSON has the printed text.
		printed, err := json.Marshal(struct{ Q resource.Quantity }{read})
		if err != nil {
			panic(err)
		}
		var again struct{ Q resource.Quantity }
		if err := json.Unmarshal(printed, &again); err != nil {
			panic(err)
		}
		order := map[int]string{-1: "less", 0: "equal", 1: "more"}[again.Q.Cmp(read)]
		fmt.Printf("%s: printed %s, read again: %s\n", text, read.String(), order)
	}
}
GO
export GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
go mod init quantities >/dev/null 2>&1
go get k8s.io/apimachinery@v0.37.2 >/dev/null 2>&1
go run . | tee seen
sed -n 's/^#   \([0-9].*: printed .*\)/\1/p' "$script" | diff - seen
