// The part of the kubelet that requests certificates for pods, with a clock that passes the time of the renewal at once. It prints a key
// with its certificates, then those that replaced them.
//
//	podcertificates KUBECONFIG NODE NAMESPACE POD
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/podcertificate"
	testclock "k8s.io/utils/clock/testing"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "podcertificates KUBECONFIG NODE NAMESPACE POD")
		os.Exit(2)
	}
	if err := renew(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// onePod is all pods of the node.
type onePod struct{ *corev1.Pod }

func (p onePod) GetPods() []*corev1.Pod { return []*corev1.Pod{p.Pod} }

func (p onePod) GetPodByUID(uid types.UID) (*corev1.Pod, bool) { return p.Pod, uid == p.UID }

func renew(ctx context.Context, kubeconfig, node, namespace, name string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	of := func(field string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(field, node).String()
		}))
	}
	requests, nodes := of("spec.nodeName"), of(metav1.ObjectNameField)
	clock := testclock.NewFakeClock(time.Now())
	manager := podcertificate.NewIssuingManager(client, onePod{pod}, &record.FakeRecorder{},
		requests.Certificates().V1().PodCertificateRequests(), nodes.Core().V1().Nodes(), types.NodeName(node), clock)
	requests.Start(ctx.Done())
	nodes.Start(ctx.Done())
	go manager.Run(ctx)

	volume := pod.Spec.Volumes[0].Name
	var last string
	for range 2 {
		manager.TrackPod(ctx, pod)
		for {
			key, chain, err := manager.GetPodCertificateCredentialBundle(ctx, namespace, name, string(pod.UID), volume, 0)
			if err == nil && string(key) != last {
				last = string(key)
				fmt.Printf("%s%s", key, chain)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		clock.Step(23 * time.Hour)
	}
	return nil
}
