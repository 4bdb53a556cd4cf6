// Command auditoptions validates flags of audit with the code of kube-apiserver.
//
// It reads one list of flags per line as JSON and writes one line for each.
package main

import (
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/options"

	"portcullis.dev/tests/go/lines"
)

type answer struct {
	// Unread is the error of a flag whose value has another type.
	Unread string `json:"unread,omitempty"`
	// Errors are empty if the flags are valid.
	Errors []string `json:"errors"`
}

func main() {
	lines.Each(func(flags []string) any {
		audit := options.NewAuditOptions()
		set := pflag.NewFlagSet("audit", pflag.ContinueOnError)
		audit.AddFlags(set)
		if err := set.Parse(flags); err != nil {
			return answer{Unread: err.Error(), Errors: []string{}}
		}
		found := answer{Errors: []string{}}
		for _, err := range audit.Validate() {
			found.Errors = append(found.Errors, err.Error())
		}
		return found
	})
}
