// Command configurations loads and validates configuration files with the code of kube-apiserver.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/admission/plugin/webhook/manifest/loader"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Kind is the kind of file: Authorization, Admission, Mutating, Validating or Server.
	Kind string `json:"kind"`
	// Data is the content of the file; a kubeconfig for Server.
	Data []byte `json:"data"`
	// URL is that of a webhook, for Server.
	URL string `json:"url"`
}

type answer struct {
	// Error is empty if the file is valid.
	Error string `json:"error"`
	// Errors are the parts of an aggregate; Error is then the text before them.
	Errors []string `json:"errors,omitempty"`
	// Configurations are those of a valid manifest, with defaults.
	Configurations any `json:"configurations,omitempty"`
	// Token and Requested are the credential for a server and the URL of requests.
	Token     string `json:"token,omitempty"`
	Requested string `json:"requested,omitempty"`
}

func failed(err error) answer {
	var aggregate utilerrors.Aggregate
	if !errors.As(err, &aggregate) {
		return answer{Error: err.Error()}
	}
	found := answer{Error: strings.TrimSuffix(err.Error(), aggregate.Error())}
	for _, one := range aggregate.Errors() {
		found.Errors = append(found.Errors, one.Error())
	}
	return found
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// manifest loads a folder with one file.
func manifest(kind, folder string, data []byte) answer {
	check(os.WriteFile(filepath.Join(folder, "a.yaml"), data, 0o600))
	if kind == "Mutating" {
		loaded, err := loader.LoadMutatingManifests(folder)
		if err != nil {
			return failed(err)
		}
		return answer{Configurations: loaded.Configurations}
	}
	loaded, err := loader.LoadValidatingManifests(folder)
	if err != nil {
		return failed(err)
	}
	return answer{Configurations: loaded.Configurations}
}

// plugins loads an AdmissionConfiguration and the configurations of all plugins.
func plugins(scheme *runtime.Scheme, folder string, data []byte) answer {
	file := filepath.Join(folder, "admission.yaml")
	check(os.WriteFile(file, data, 0o600))
	provider, err := admission.ReadAdmissionConfiguration(nil, file, scheme)
	if err != nil {
		return answer{Error: "failed to read plugin config: " + err.Error()}
	}
	for _, name := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"} {
		reader, err := provider.ConfigFor(name)
		check(err)
		switch name {
		case "MutatingAdmissionPolicy":
			_, err = policyconfig.LoadMutatingConfig(reader)
		case "ValidatingAdmissionPolicy":
			_, err = policyconfig.LoadValidatingConfig(reader)
		default:
			_, err = config.LoadConfig(reader)
		}
		if err != nil {
			return answer{Error: "couldn't init admission plugin \"" + name + "\": " + err.Error()}
		}
	}
	return answer{}
}

// server looks up the credential of a webhook, and the URL of its requests.
func server(folder string, data []byte, url string) answer {
	file := filepath.Join(folder, "kubeconfig")
	check(os.WriteFile(file, data, 0o600))
	resolver, err := webhook.NewDefaultAuthenticationInfoResolver(file)
	if err != nil {
		return failed(err)
	}
	var token string
	manager, err := webhook.NewClientManager(nil)
	check(err)
	manager.SetAuthenticationInfoResolver(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			found, err := resolver.ClientConfigFor(hostPort)
			if err == nil {
				token = found.BearerToken
			}
			return found, err
		},
	})
	client, err := manager.HookClient(webhook.ClientConfig{Name: "a", URL: url})
	if err != nil {
		return failed(err)
	}
	return answer{Token: token, Requested: client.Post().URL().String()}
}

func main() {
	check(utilfeature.DefaultMutableFeatureGate.Set("ManifestBasedAdmissionControlConfig=true"))
	compiler := authorizationcel.NewDefaultCompiler()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	folder, err := os.MkdirTemp("", "configurations")
	check(err)
	defer os.RemoveAll(folder)
	manifests := filepath.Join(folder, "manifests")
	check(os.Mkdir(manifests, 0o700))
	respond := func(q question) answer {
		data := bytes.ReplaceAll(q.Data, []byte("FOLDER"), []byte(manifests))
		switch q.Kind {
		case "Mutating", "Validating":
			return manifest(q.Kind, manifests, q.Data)
		case "Admission":
			return plugins(scheme, folder, data)
		case "Server":
			return server(folder, q.Data, q.URL)
		}
		if _, err := authorizer.LoadAndValidateData(q.Data, compiler, nil); err != nil {
			return answer{Error: err.Error()}
		}
		return answer{}
	}

	lines.Each(func(q question) any {
		found := respond(q)
		found.Error = strings.ReplaceAll(found.Error, manifests, "FOLDER")
		return found
	})
}
