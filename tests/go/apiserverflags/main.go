// Command apiserverflags lists the flags of kube-apiserver.
//
// It answers each line of input with the list.
package main

import (
	"github.com/spf13/pflag"
	// The flags of JSON logs, as in kube-apiserver's own main package.
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	"portcullis.dev/tests/go/lines"
)

type flag struct {
	Name string `json:"name"`
	// IsSwitch is whether the flag needs no value, so that the next word is not its value.
	IsSwitch bool `json:"isSwitch"`
}

func main() {
	lines.Each(func(any) any {
		flags := []flag{}
		app.NewAPIServerCommand().Flags().VisitAll(func(found *pflag.Flag) {
			flags = append(flags, flag{Name: found.Name, IsSwitch: found.NoOptDefVal != ""})
		})
		return flags
	})
}
