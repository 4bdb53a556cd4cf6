#!/usr/bin/env bash
# k8s.io/kubernetes v1.36.3, Go 1.26.
#
# A mutating webhook whose rules name autoscaling/v1 (matchPolicy: Equivalent) sees a HorizontalPodAutoscaler of v2 as v1: metrics other
# than the utilization of CPU stand in an annotation. If the webhook changes anything, kube-apiserver converts its object back into the
# object of the request, which still has them, instead of into a new one. The conversion appends, so each such metric is there twice. One
# for CPU is not doubled, but it comes last. Whoever puts a webhook before v2 clients writes its rules for v2.
#
# Seen (before; converted back into the same object; into a new one):
#   [memory] [memory memory] [memory]
#   [cpu memory] [memory cpu] [memory cpu]
set -euo pipefail

folder="$(mktemp -d)"
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'END'
module example.com/scaler

go 1.26
END
cat >main.go <<'END'
package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	"k8s.io/kubernetes/pkg/apis/core"
)

func metric(name core.ResourceName) autoscaling.MetricSpec {
	percent := int32(70)
	target := autoscaling.MetricTarget{Type: autoscaling.UtilizationMetricType, AverageUtilization: &percent}
	source := &autoscaling.ResourceMetricSource{Name: name, Target: target}
	return autoscaling.MetricSpec{Type: autoscaling.ResourceMetricSourceType, Resource: source}
}

func names(scaler *autoscaling.HorizontalPodAutoscaler) (names []core.ResourceName) {
	for _, metric := range scaler.Spec.Metrics {
		names = append(names, metric.Resource.Name)
	}
	return names
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	v1 := schema.GroupVersion{Group: "autoscaling", Version: "v1"}
	for _, metrics := range [][]autoscaling.MetricSpec{{metric("memory")}, {metric("cpu"), metric("memory")}} {
		spec := autoscaling.HorizontalPodAutoscalerSpec{MaxReplicas: 3, Metrics: metrics}
		scaler, fresh := &autoscaling.HorizontalPodAutoscaler{Spec: spec}, &autoscaling.HorizontalPodAutoscaler{}
		before := names(scaler)
		shown, err := legacyscheme.Scheme.ConvertToVersion(scaler, v1)
		must(err)
		// As the dispatcher of mutating webhooks does it (apiserver, pkg/admission/plugin/webhook/mutating/dispatcher.go).
		must(legacyscheme.Scheme.Convert(shown, scaler, nil))
		must(legacyscheme.Scheme.Convert(shown, fresh, nil))
		fmt.Println(before, names(scaler), names(fresh))
	}
}
END
cat >expected <<'END'
[memory] [memory memory] [memory]
[cpu memory] [memory cpu] [memory cpu]
END

export GOFLAGS=-mod=mod GOWORK=off
# Its own go.mod has the modules of its repository by folders.
kubernetes="$(go mod download -json k8s.io/kubernetes@v1.36.3 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')"
sed -n 's#^[[:space:]]*\(replace \)\{0,1\}\(k8s.io/[a-z-]*\) => ./staging.*#replace \2 => \2 v0.36.3#p' "$kubernetes" >>go.mod
go get k8s.io/kubernetes@v1.36.3 >/dev/null 2>&1
go run . >seen
diff -u expected seen
echo 'as described'
