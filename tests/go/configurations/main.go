// Command configurations loads and validates configuration files with the code of kube-apiserver.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Data is the content of a file with an AuthorizationConfiguration.
	Data []byte `json:"data"`
}

type answer struct {
	// Error is empty if the file is valid.
	Error string `json:"error"`
}

func main() {
	compiler := authorizationcel.NewDefaultCompiler()
	lines.Each(func(q question) any {
		if _, err := authorizer.LoadAndValidateData(q.Data, compiler, nil); err != nil {
			return answer{Error: err.Error()}
		}
		return answer{}
	})
}
