// Command kubeconfigs reads kubeconfigs as kube-apiserver reads those of its webhooks, and client-go any.
//
// It reads one JSON object per line from standard input: {"file"}, the path of a kubeconfig. It writes one result per line, in the
// same order: the server, the token and the number of certificates with which a client would connect, or an error.
package main

import (
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	File string `json:"file"`
}

type answer struct {
	Error        string `json:"error"`
	Server       string `json:"server"`
	ServerName   string `json:"serverName"`
	Token        string `json:"token"`
	Certificates int    `json:"certificates"`
	HasRoots     bool   `json:"hasRoots"`
}

// recorder keeps the credential of a request.
type recorder struct{ authorization string }

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	r.authorization = request.Header.Get("Authorization")
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func load(q question) any {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: q.File}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return answer{Error: err.Error()}
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return answer{Error: err.Error()}
	}
	sent := &recorder{}
	transport, err := rest.HTTPWrappersForConfig(config, sent)
	if err != nil {
		return answer{Error: err.Error()}
	}
	request, err := http.NewRequest(http.MethodGet, "https://server.test", nil)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if _, err := transport.RoundTrip(request); err != nil {
		return answer{Error: err.Error()}
	}
	token := strings.TrimPrefix(sent.authorization, "Bearer ")
	found := answer{Server: config.Host, ServerName: config.ServerName, Token: token}
	if tls != nil {
		found.HasRoots = tls.RootCAs != nil
		if tls.GetClientCertificate != nil {
			certificate, err := tls.GetClientCertificate(nil)
			if err != nil {
				return answer{Error: err.Error()}
			}
			found.Certificates = len(certificate.Certificate)
		}
	}
	return found
}

func main() {
	lines.Each(load)
}
