// Command execplugin sends requests with credentials of an exec plugin, as kubectl does, with the code of client-go.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/pkg/apis/clientauthentication"
	"k8s.io/client-go/plugin/pkg/client/auth/exec"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// The exec stanza of a kubeconfig.
	Command         string           `json:"command"`
	Args            []string         `json:"args"`
	Env             []api.ExecEnvVar `json:"env"`
	APIVersion      string           `json:"apiVersion"`
	InteractiveMode string           `json:"interactiveMode"`
	ClusterInfo     bool             `json:"provideClusterInfo"`
	InstallHint     string           `json:"installHint"`
	// StdinUnavailable is set by commands that read standard input themselves.
	StdinUnavailable bool `json:"stdinUnavailable"`
	// Config is the extension client.authentication.k8s.io/exec of the cluster.
	Config json.RawMessage `json:"config"`
	// RotatedFile is written when the server gets the first request, which it answers with 401.
	RotatedFile string `json:"rotatedFile"`
	// RotatedToken is its content.
	RotatedToken string `json:"rotatedToken"`
}

type answer struct {
	// Error is that of client-go.
	Error string `json:"error"`
	// Authorizations are the headers of the requests.
	Authorizations []string `json:"authorizations"`
	// Printed is what the plugin has written to standard error.
	Printed string `json:"printed"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func ask(q question) any {
	found := answer{Authorizations: []string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found.Authorizations = append(found.Authorizations, r.Header.Get("Authorization"))
		if q.RotatedFile != "" && len(found.Authorizations) == 1 {
			check(os.WriteFile(q.RotatedFile, []byte(q.RotatedToken), 0o600))
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	printed, err := os.CreateTemp("", "execplugin")
	check(err)
	defer os.Remove(printed.Name())
	// The plugin gets the standard error of the time at which it is made.
	stderr := os.Stderr
	os.Stderr = printed
	defer func() { os.Stderr = stderr }()
	config := &api.ExecConfig{
		Command: q.Command, Args: q.Args, Env: q.Env, APIVersion: q.APIVersion, InstallHint: q.InstallHint,
		InteractiveMode: api.ExecInteractiveMode(q.InteractiveMode), ProvideClusterInfo: q.ClusterInfo,
		StdinUnavailable: q.StdinUnavailable, StdinUnavailableMessage: "used by stdin",
	}
	cluster := &clientauthentication.Cluster{
		Server: server.URL, TLSServerName: "server.test", InsecureSkipTLSVerify: true,
		CertificateAuthorityData: []byte("CA"), ProxyURL: "http://proxy.test", DisableCompression: true,
	}
	if len(q.Config) > 0 {
		cluster.Config = &runtime.Unknown{Raw: q.Config, ContentType: runtime.ContentTypeJSON}
	}
	authenticator, err := exec.GetAuthenticator(config, cluster)
	if err != nil {
		found.Error = err.Error()
		return found
	}
	var options transport.Config
	check(authenticator.UpdateTransportConfig(&options))
	tripper, err := transport.New(&options)
	check(err)
	requests := 1
	if q.RotatedFile != "" {
		requests = 2
	}
	for range requests {
		request, err := http.NewRequest(http.MethodGet, server.URL, nil)
		check(err)
		response, err := tripper.RoundTrip(request)
		if err != nil {
			found.Error = err.Error()
			break
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	text, err := os.ReadFile(printed.Name())
	check(err)
	found.Printed = string(text)
	return found
}

func main() {
	lines.Each(ask)
}
