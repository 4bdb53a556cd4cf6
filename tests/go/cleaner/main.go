// Command cleaner runs kube-controller-manager's cleaner of certificate requests once.
//
// It reads a JSON list of requests from standard input and prints the names of those that the cleaner deletes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	informers "k8s.io/client-go/informers/certificates/v1"
	client "k8s.io/client-go/kubernetes/typed/certificates/v1"
	listers "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
)

// The cleaner processes a list in order: it is finished when it deletes this request.
const last = "the last of all"

// requests implements the informer, the lister and the client.
type requests struct {
	informers.CertificateSigningRequestInformer
	all  []*certificatesv1.CertificateSigningRequest
	done context.CancelFunc
}

type lister struct {
	listers.CertificateSigningRequestLister
	*requests
}

type deleter struct {
	client.CertificateSigningRequestInterface
	*requests
}

func (r *requests) Lister() listers.CertificateSigningRequestLister { return lister{requests: r} }

func (l lister) List(labels.Selector) ([]*certificatesv1.CertificateSigningRequest, error) {
	return l.all, nil
}

func (d deleter) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	if name == last {
		d.done()
		return nil
	}
	_, err := fmt.Println(name)
	return err
}

func main() {
	ctx, done := context.WithCancel(context.Background())
	r := &requests{done: done}
	if err := json.NewDecoder(os.Stdin).Decode(&r.all); err != nil {
		log.Fatal(err)
	}
	end := &certificatesv1.CertificateSigningRequest{}
	end.Name = last
	end.CreationTimestamp = metav1.Unix(0, 0)
	r.all = append(r.all, end)
	cleaner.NewCSRCleanerController(deleter{requests: r}, r).Run(ctx, 1)
}
