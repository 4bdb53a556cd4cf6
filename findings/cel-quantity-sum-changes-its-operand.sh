#!/usr/bin/env bash
# k8s.io/apiserver v0.36.3 and v0.37.2 (the CEL library of kube-apiserver 1.36 and 1.37), each with the cel-go that it requires, Go 1.26.
#
# `add` and `sub` of a quantity give a new quantity. In 1.36 they also change the one that they are called on, if that is held as a
# decimal of arbitrary precision, as 1.5Gi is: the copy of the struct shares the decimal behind its pointer. A quantity that is held as an
# integer, such as 2Gi, stays as it is. So the same comparison is true before a sum is made in an expression, and false after it.
# 1.37 copies the decimal.
#
# Seen, of `[quantity(Q)].all(q, [q.add(quantity('1Gi'))].size() == 1 && q.compareTo(quantity(Q)) == 0)`:
#   v0.36.3   Q = '2Gi' true    Q = '1.5Gi' false
#   v0.37.2   Q = '2Gi' true    Q = '1.5Gi' true
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat >main.go <<'END'
package main

import (
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

const expression = `[quantity(Q)].all(q, [q.add(quantity('1Gi'))].size() == 1 && q.compareTo(quantity(Q)) == 0)`

func main() {
	environment, err := cel.NewEnv(library.Quantity())
	if err != nil {
		panic(err)
	}
	for _, quantity := range []string{"'2Gi'", "'1.5Gi'"} {
		ast, issues := environment.Compile(strings.ReplaceAll(expression, "Q", quantity))
		if issues.Err() != nil {
			panic(issues.Err())
		}
		program, err := environment.Program(ast)
		if err != nil {
			panic(err)
		}
		value, _, err := program.Eval(map[string]any{})
		if err != nil {
			panic(err)
		}
		fmt.Println(quantity, value.Value())
	}
}
END

export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
# What a release of k8s.io/apiserver prints.
run() {
  printf 'module example.com/quantities\n\ngo 1.26.0\n' >go.mod
  rm -f go.sum
  go get "k8s.io/apiserver@$1" >/dev/null 2>&1
  go mod tidy >/dev/null 2>&1
  printf '%s ' "$1" "$(go list -m -f '{{.Version}}' github.com/google/cel-go)"
  go run . | tr '\n' ' '
  printf '\n'
}
{
  run v0.36.3
  run v0.37.2
} >printed
cat >expected <<'END'
v0.36.3 v0.26.0 '2Gi' true '1.5Gi' false 
v0.37.2 v0.29.2 '2Gi' true '1.5Gi' true 
END
diff -u expected printed
echo 'as described'
