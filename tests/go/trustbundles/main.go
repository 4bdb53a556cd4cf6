// Command trustbundles shows what a pod reads of ClusterTrustBundles, by the kubelet's own code.
//
// Each question has the objects of a cluster, a signer, and certificates. The answer has the trust anchors that the
// kubelet projects for the signer, as crypto/x509 parses them, and whether each certificate verifies with them alone.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"sort"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/kubelet/clustertrustbundle"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Bundles      []*certificatesv1.ClusterTrustBundle `json:"bundles"`
	Signer       string                               `json:"signer"`
	Certificates []string                             `json:"certificates"`
}

type answer struct {
	Error string `json:"error"`
	// Anchors are the SHA-256 of the projected certificates, sorted.
	Anchors []string `json:"anchors"`
	// Verified has the error of each certificate; empty if it verifies.
	Verified []string `json:"verified"`
}

func main() {
	lines.Each(func(q question) any { return answered(q) })
}

func answered(q question) answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var objects []runtime.Object
	for _, bundle := range q.Bundles {
		objects = append(objects, bundle)
	}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	manager, err := clustertrustbundle.NewGAInformerManager(ctx, factory, 16, time.Minute)
	if err != nil {
		return answer{Error: err.Error()}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	text, err := manager.GetTrustAnchorsBySigner(ctx, q.Signer, &metav1.LabelSelector{}, false)
	if err != nil {
		return answer{Error: err.Error()}
	}
	result := answer{}
	roots := x509.NewCertPool()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return answer{Error: err.Error()}
		}
		roots.AddCert(certificate)
		sum := sha256.Sum256(certificate.Raw)
		result.Anchors = append(result.Anchors, hex.EncodeToString(sum[:]))
	}
	sort.Strings(result.Anchors)
	for _, text := range q.Certificates {
		result.Verified = append(result.Verified, verified(text, roots))
	}
	return result
}

func verified(text string, roots *x509.CertPool) string {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return "no PEM"
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err.Error()
	}
	_, err = certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return err.Error()
	}
	return ""
}
