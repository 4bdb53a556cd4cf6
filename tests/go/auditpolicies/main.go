// Command auditpolicies answers what kube-apiserver's own code reads in an audit policy, and what the policy says of
// requests.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"sort"

	"k8s.io/apiserver/pkg/apis/audit/install"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Policy   string    `json:"policy"`
	Requests []request `json:"requests"`
}

type request struct {
	// User is nil for a request without one.
	User      *string  `json:"user"`
	Groups    []string `json:"groups"`
	Verb      string   `json:"verb"`
	Path      string   `json:"path"`
	Resource  bool     `json:"isResource"`
	Group     string   `json:"apiGroup"`
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	Kind      string   `json:"resource"`
	Sub       string   `json:"subresource"`
}

type answer struct {
	Refused   string     `json:"refused,omitempty"`
	Decisions []decision `json:"decisions"`
}

type decision struct {
	Level             string   `json:"level"`
	Omitted           []string `json:"omitted"`
	OmitManagedFields bool     `json:"omitManagedFields"`
}

func main() {
	install.Install(audit.Scheme)
	lines.Each(func(q question) any {
		loaded, err := policy.LoadPolicyFromBytes([]byte(q.Policy))
		if err != nil {
			return answer{Refused: err.Error()}
		}
		evaluator := policy.NewPolicyRuleEvaluator(loaded)
		var a answer
		for _, r := range q.Requests {
			of := authorizer.AttributesRecord{
				Verb: r.Verb, Path: r.Path, ResourceRequest: r.Resource, APIGroup: r.Group, Name: r.Name,
				Namespace: r.Namespace, Resource: r.Kind, Subresource: r.Sub,
			}
			if r.User != nil {
				of.User = &user.DefaultInfo{Name: *r.User, Groups: r.Groups}
			}
			found := evaluator.EvaluatePolicyRule(of)
			omitted := map[string]bool{}
			for _, stage := range found.OmitStages {
				omitted[string(stage)] = true
			}
			stages := []string{}
			for stage := range omitted {
				stages = append(stages, stage)
			}
			sort.Strings(stages)
			a.Decisions = append(a.Decisions, decision{string(found.Level), stages, found.OmitManagedFields})
		}
		return a
	})
}
