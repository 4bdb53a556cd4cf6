// Command kubeconfigs reads kubeconfigs as kube-apiserver reads those of its webhooks, and client-go any.
//
// It reads one JSON object per line from standard input: {"file"}, the path of a kubeconfig. It writes one result per line, in the
// same order: the server, the token and the number of certificates with which a client would connect, or an error.
package main

import (
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
	found := answer{Server: config.Host, ServerName: config.ServerName, Token: config.BearerToken}
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
