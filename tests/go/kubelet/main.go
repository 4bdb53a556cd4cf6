// A kubelet whose containers and mounts are not real: kubemark's hollow node. It registers its node, and writes the volumes of its pods
// below a directory in /tmp, which it names in its log.
//
//	kubelet --morph=kubelet --kubeconfig=FILE --name=NODE --use-host-image-service=false [--feature-gates=NAME=true]
package main

import (
	"os"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kubemark/app"
)

func main() {
	command := app.NewHollowNodeCommand()
	utilfeature.DefaultMutableFeatureGate.AddFlag(command.Flags())
	os.Exit(cli.Run(command))
}
