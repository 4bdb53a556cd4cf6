#!/usr/bin/env bash
# k8s.io/kubernetes v1.37.2, Go 1.26.
#
# kube-controller-manager checks the types of the expressions of a ValidatingAdmissionPolicy by the published schemas, and writes what it
# finds into status.typeChecking. A part of a schema that has no `type` makes no field: quantities, which may be a string or a number, and
# what is made of them. So the field that most policies are about, `resources.limits`, is "undefined", and the policy, which the API server
# compiles and evaluates without fault, has a warning for ever. `authorizer.requestResource` is a variable of its own in
# the API server, and an unknown type here. Whoever alerts on typeChecking leaves these out.
#
# Seen (expression; warning):
#   has(object.spec.replicas): none
#   has(object.spec.replica): undefined field 'replica'
#   object.spec.template.spec.containers.all(c, has(c.resources.limits)): undefined field 'limits'
#   authorizer.requestResource.check('get').allowed(): unexpected failed resolution of 'kubernetes.authorization.Authorizer'
set -euo pipefail

folder="$(mktemp -d)"
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'END'
module example.com/types

go 1.26
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"io"
	"regexp"

	registration "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// deployments knows one resource.
type deployments struct{ meta.RESTMapper }

func (deployments) KindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return []schema.GroupVersionKind{r.GroupVersion().WithKind("Deployment")}, nil
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	checker := &validating.TypeChecker{RestMapper: deployments{},
		SchemaResolver: resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, scheme.Scheme)}
	rule := registration.RuleWithOperations{Operations: []registration.OperationType{"*"},
		Rule: registration.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}}}
	reason := regexp.MustCompile(`ERROR: <input>:\d+:\d+: ([^\n]*)`)
	for _, expression := range []string{
		"has(object.spec.replicas)",
		"has(object.spec.replica)",
		"object.spec.template.spec.containers.all(c, has(c.resources.limits))",
		"authorizer.requestResource.check('get').allowed()",
	} {
		policy := &registration.ValidatingAdmissionPolicy{}
		policy.Spec.MatchConstraints = &registration.MatchResources{
			ResourceRules: []registration.NamedRuleWithOperations{{RuleWithOperations: rule}}}
		policy.Spec.Validations = []registration.Validation{{Expression: expression}}
		found := "none"
		for _, warning := range checker.Check(policy) {
			found = reason.FindStringSubmatch(warning.Warning)[1]
		}
		fmt.Printf("%s: %s\n", expression, found)
	}
}
END
cat >expected <<'END'
has(object.spec.replicas): none
has(object.spec.replica): undefined field 'replica'
object.spec.template.spec.containers.all(c, has(c.resources.limits)): undefined field 'limits'
authorizer.requestResource.check('get').allowed(): unexpected failed resolution of 'kubernetes.authorization.Authorizer'
END

export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
# Its own go.mod has the modules of its repository by folders.
kubernetes="$(go mod download -json k8s.io/kubernetes@v1.37.2 | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')"
sed -n 's#^[[:space:]]*\(replace \)\{0,1\}\(k8s.io/[a-z-]*\) => ./staging.*#replace \2 => \2 v0.37.2#p' "$kubernetes" >>go.mod
go get k8s.io/kubernetes@v1.37.2 >/dev/null 2>&1
go run . >seen
diff -u expected seen
echo 'as described'
