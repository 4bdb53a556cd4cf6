#!/usr/bin/env bash
# k8s.io/kubernetes v1.37.2, Go 1.26.
#
# A MutatingAdmissionPolicy whose rules name autoscaling/v2 (matchPolicy: Equivalent, the default) also matches a HorizontalPodAutoscaler
# that a client writes in autoscaling/v1, and sees it in v2. What it has changed is then converted to the version of the request, straight
# from one version to the other; the scheme only converts to and from its internal version. So the policy fails, and with
# failurePolicy: Fail every write in the other version is refused, while a webhook with the same rules works. Whoever writes such a policy
# names all versions of a built-in resource that clients may write.
#
# Seen (version of the request; result of the policy's dispatcher):
#   v2: maxReplicas 9
#   v1: policy 'p' with binding 'b' denied request: converting (v2.HorizontalPodAutoscaler) to (v1.HorizontalPodAutoscaler): unknown conversion
set -euo pipefail

folder="$(mktemp -d)"
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'END'
module example.com/versions

go 1.26
END
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"io"

	registration "k8s.io/api/admissionregistration/v1"
	"k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
)

// nine is the mutation of the policy, without an expression.
type nine struct{}

func (nine) Patch(_ context.Context, r patch.Request, _ int64) (runtime.Object, error) {
	scaler := r.VersionedAttributes.VersionedObject.Object().DeepCopyObject().(*v2.HorizontalPodAutoscaler)
	scaler.Spec.MaxReplicas = 9
	return scaler, nil
}

// types has the schemas of all kinds.
type types struct{}

func (types) Run(context.Context) {}

func (types) GetTypeConverter(schema.GroupVersionKind) managedfields.TypeConverter {
	return managedfields.NewDeducedTypeConverter()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	rule := registration.RuleWithOperations{Operations: []registration.OperationType{"*"},
		Rule: registration.Rule{APIGroups: []string{"autoscaling"}, APIVersions: []string{"v2"}, Resources: []string{"*"}}}
	equivalent := registration.Equivalent
	policy := &mutating.Policy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	policy.Spec.MatchConstraints = &registration.MatchResources{MatchPolicy: &equivalent,
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		ResourceRules: []registration.NamedRuleWithOperations{{RuleWithOperations: rule}}}
	policy.Spec.Mutations = make([]registration.Mutation, 1)
	binding := &mutating.PolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: registration.MutatingAdmissionPolicyBindingSpec{PolicyName: "p"}}
	hook := mutating.PolicyHook{Policy: policy, Bindings: []*mutating.PolicyBinding{binding},
		Evaluator: mutating.PolicyEvaluator{Mutators: []patch.Patcher{nine{}}}}
	client := fake.NewSimpleClientset()
	namespaces := informers.NewSharedInformerFactory(client, 0).Core().V1().Namespaces()
	must(namespaces.Informer().GetStore().Add(namespace()))
	dispatcher := mutating.NewDispatcher(nil, matching.NewMatcher(namespaces.Lister(), client), types{})

	scheme := legacyscheme.Scheme
	mapper := runtime.NewEquivalentResourceRegistry()
	of := func(version string) (schema.GroupVersionResource, schema.GroupVersionKind) {
		group := schema.GroupVersion{Group: "autoscaling", Version: version}
		return group.WithResource("horizontalpodautoscalers"), group.WithKind("HorizontalPodAutoscaler")
	}
	for _, version := range []string{"v1", "v2"} {
		resource, kind := of(version)
		mapper.RegisterKindFor(resource, "", kind)
	}
	interfaces := &admission.RuntimeObjectInterfaces{ObjectCreater: scheme, ObjectTyper: scheme, ObjectDefaulter: scheme,
		ObjectConvertor: scheme, EquivalentResourceMapper: mapper}
	for _, version := range []string{"v2", "v1"} {
		resource, kind := of(version)
		object := &autoscaling.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}}
		object.Spec.MaxReplicas = 3
		attributes := admission.NewAttributesRecord(object, nil, kind, "default", "s", resource, "", admission.Create,
			&metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "u"})
		if err := dispatcher.Dispatch(context.Background(), attributes, interfaces, []mutating.PolicyHook{hook}); err != nil {
			fmt.Printf("%s: %v\n", version, err)
		} else {
			fmt.Printf("%s: maxReplicas %d\n", version, object.Spec.MaxReplicas)
		}
	}
}
END
cat >namespace.go <<'END'
package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
}
END
cat >expected <<'END'
v2: maxReplicas 9
v1: policy 'p' with binding 'b' denied request: converting (v2.HorizontalPodAutoscaler) to (v1.HorizontalPodAutoscaler): unknown conversion
END

export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
# Its own go.mod has the modules of its repository by folders.
kubernetes="$(go mod download -json k8s.io/kubernetes@v1.37.2 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')"
sed -n 's#^[[:space:]]*\(replace \)\{0,1\}\(k8s.io/[a-z-]*\) => ./staging.*#replace \2 => \2 v0.37.2#p' "$kubernetes" >>go.mod
go get k8s.io/kubernetes@v1.37.2 >/dev/null 2>&1
go run . >seen
diff -u expected seen
echo 'as described'
