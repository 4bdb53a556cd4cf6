#!/usr/bin/env bash
# k8s.io/apimachinery v0.36.3 (Kubernetes 1.36), Go 1.26.
#
# A query parameter of a port-forward may carry several ports: kube-apiserver converts `ports` of PodPortForwardOptions with
# Convert_Slice_string_To_Slice_int32, which splits each value at commas. `ports=80,081` are the two ports 80 and 81, as
# `ports=80&ports=81` are, and an empty part is an error. A program in front of an API server that takes one parameter for one port
# sees a value that is no number.
#
# Seen:
#   ["80" "81"]     [80 81]
#   ["80,081"]      [80 81]
#   ["80,81" "9"]   [80 81 9]
#   ["65535"]       [65535]
#   ["80,"]         cannot convert to []int32: strconv.ParseUint: parsing "": invalid syntax
#   ["65536"]       cannot convert to []int32: strconv.ParseUint: parsing "65536": value out of range
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'END'
module example.com/ports

go 1.26
END
cat >main.go <<'END'
package main

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func main() {
	for _, values := range [][]string{{"80", "81"}, {"80,081"}, {"80,81", "9"}, {"65535"}, {"80,"}, {"65536"}} {
		var ports []int32
		if err := metav1.Convert_Slice_string_To_Slice_int32(&values, &ports, nil); err != nil {
			fmt.Printf("%q %v\n", values, err)
			continue
		}
		fmt.Printf("%q %v\n", values, ports)
	}
}
END
cat >expected <<'END'
["80" "81"] [80 81]
["80,081"] [80 81]
["80,81" "9"] [80 81 9]
["65535"] [65535]
["80,"] cannot convert to []int32: strconv.ParseUint: parsing "": invalid syntax
["65536"] cannot convert to []int32: strconv.ParseUint: parsing "65536": value out of range
END

export GOFLAGS=-mod=mod GOWORK=off
go get k8s.io/apimachinery@v0.36.3 >/dev/null 2>&1
go run . >seen
diff -u expected seen
echo 'as described'
