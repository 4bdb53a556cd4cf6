// Command webhook is the admission webhook of Kubernetes' own end-to-end tests, unmodified.
package main

import (
	"os"

	"k8s.io/kubernetes/test/images/agnhost/webhook"
)

func main() {
	if err := webhook.CmdWebhook.Execute(); err != nil {
		os.Exit(1)
	}
}
