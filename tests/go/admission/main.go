// Command admission answers with the code with which kube-apiserver calls admission webhooks: what it makes of a
// response, how it applies a patch, and which review it sends.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	webhookrequest "k8s.io/apiserver/pkg/admission/plugin/webhook/request"
	"k8s.io/apiserver/pkg/authentication/user"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Of is "patch", "response" or "request".
	Of string `json:"of"`

	// Of a patch: a patch and the document that it changes. The document is encoded before as an object is.
	Patch    []byte          `json:"patch"`
	Document json.RawMessage `json:"document"`

	// Of a response: the version of the review, whether the webhook may mutate, the UID of the review, and the response.
	Version     string `json:"version"`
	Mutating    bool   `json:"mutating"`
	UID         string `json:"uid"`
	Status      int    `json:"status"`
	ContentType string `json:"contentType"`
	Body        []byte `json:"body"`

	// Of a request, with the version from above.
	Attributes *attributes `json:"attributes"`
}

type attributes struct {
	Operation   string                      `json:"operation"`
	Kind        metav1.GroupVersionKind     `json:"kind"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	Subresource string                      `json:"subresource"`
	Name        string                      `json:"name"`
	Namespace   string                      `json:"namespace"`
	Username    string                      `json:"username"`
	UserUID     string                      `json:"userUID"`
	Groups      []string                    `json:"groups"`
	Extra       map[string][]string         `json:"extra"`
	DryRun      bool                        `json:"dryRun"`
	Options     map[string]any              `json:"options"`
	Object      map[string]any              `json:"object"`
	OldObject   map[string]any              `json:"oldObject"`
}

type answer struct {
	// Panic is the text of a panic.
	Panic string `json:"panic,omitempty"`
	// Error is empty if there is none.
	Error string `json:"error"`
	// Code is the code that metrics show for a call that fails.
	Code int32 `json:"code,omitempty"`
	// Document is the document with the patch applied; Operations the patch as the audit log shows it.
	Document   []byte `json:"document,omitempty"`
	Operations []byte `json:"operations,omitempty"`
	Empty      bool   `json:"empty,omitempty"`

	Response *webhookrequest.AdmissionResponse `json:"response,omitempty"`
	// Result is the status of the response, as clients see it.
	Result *metav1.Status `json:"result,omitempty"`

	Body []byte `json:"body,omitempty"`
}

type server struct {
	client  *rest.RESTClient
	current question
	body    []byte
}

func newServer() (*server, error) {
	s := &server{}
	listener := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := new(bytes.Buffer)
		if _, err := body.ReadFrom(r.Body); err != nil {
			panic(err)
		}
		s.body = body.Bytes()
		// An empty entry: Go's server guesses no type.
		w.Header()["Content-Type"] = nil
		if s.current.ContentType != "" {
			w.Header().Set("Content-Type", s.current.ContentType)
		}
		w.WriteHeader(s.current.Status)
		if s.current.Status != http.StatusNoContent {
			_, _ = w.Write(s.current.Body)
		}
	}))
	manager, err := webhookutil.NewClientManager(
		[]schema.GroupVersion{admissionv1beta1.SchemeGroupVersion, admissionv1.SchemeGroupVersion},
		admissionv1beta1.AddToScheme,
		admissionv1.AddToScheme,
	)
	if err != nil {
		return nil, err
	}
	resolver, err := webhookutil.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		return nil, err
	}
	manager.SetAuthenticationInfoResolver(resolver)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: listener.Certificate().Raw})
	s.client, err = manager.HookClient(webhookutil.ClientConfig{Name: "w", URL: listener.URL, CABundle: certificate})
	return s, err
}

func apply(q question) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{Panic: fmt.Sprint(r)}
		}
	}()
	patch, err := jsonpatch.DecodePatch(q.Patch)
	if err != nil {
		return answer{Error: "decode: " + err.Error()}
	}
	if len(patch) == 0 {
		return answer{Empty: true}
	}
	// As an object is encoded before a patch is applied.
	var document any
	if err := utiljson.Unmarshal(q.Document, &document); err != nil {
		panic(err)
	}
	encoded := new(bytes.Buffer)
	if err := json.NewEncoder(encoded).Encode(document); err != nil {
		panic(err)
	}
	patched, err := patch.Apply(encoded.Bytes())
	if err != nil {
		return answer{Error: "apply: " + err.Error()}
	}
	operations, err := utiljson.Marshal(patch)
	if err != nil {
		return answer{Error: "marshal: " + err.Error()}
	}
	return answer{Document: patched, Operations: operations}
}

func (s *server) respond(q question) answer {
	s.current = q
	var request, response runtime.Object = &admissionv1.AdmissionReview{}, &admissionv1.AdmissionReview{}
	if q.Version == "v1beta1" {
		request, response = &admissionv1beta1.AdmissionReview{}, &admissionv1beta1.AdmissionReview{}
	}
	if err := s.client.Post().Body(request).Do(context.Background()).Into(response); err != nil {
		code := int32(http.StatusServiceUnavailable)
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			code = status.ErrStatus.Code
		}
		return answer{Error: fmt.Sprintf("failed to call webhook: %v", err), Code: code}
	}
	result, err := webhookrequest.VerifyAdmissionResponse(types.UID(q.UID), q.Mutating, response)
	if err != nil {
		return answer{Error: fmt.Sprintf("received invalid webhook response: %v", err), Code: 503}
	}
	return answer{Response: result, Result: result.Result}
}

func (s *server) request(q question) answer {
	s.current = question{Status: http.StatusOK, Body: []byte("{}")}
	a := q.Attributes
	object := func(content map[string]any) runtime.Object {
		if content == nil {
			return nil
		}
		return &unstructured.Unstructured{Object: content}
	}
	kind := schema.GroupVersionKind{Group: a.Kind.Group, Version: a.Kind.Version, Kind: a.Kind.Kind}
	resource := schema.GroupVersionResource{Group: a.Resource.Group, Version: a.Resource.Version, Resource: a.Resource.Resource}
	record := admission.NewAttributesRecord(
		object(a.Object), object(a.OldObject), kind, a.Namespace, a.Name, resource, a.Subresource,
		admission.Operation(a.Operation), object(a.Options), a.DryRun,
		&user.DefaultInfo{Name: a.Username, UID: a.UserUID, Groups: a.Groups, Extra: a.Extra},
	)
	accessor := webhook.NewMutatingWebhookAccessor("w", "c", &registrationv1.MutatingWebhook{
		Name: "w", AdmissionReviewVersions: []string{q.Version},
	})
	invocation := &generic.WebhookInvocation{
		Webhook: accessor, Resource: resource, Subresource: a.Subresource, Kind: kind,
	}
	versioned := &admission.VersionedAttributes{
		Attributes: record, VersionedKind: kind,
		VersionedObject: admission.NewLazyObject(object(a.Object)), VersionedOldObject: admission.NewLazyObject(object(a.OldObject)),
	}
	_, request, response, err := webhookrequest.CreateAdmissionObjects(versioned, invocation)
	if err != nil {
		return answer{Error: err.Error()}
	}
	_ = s.client.Post().Body(request).Do(context.Background()).Into(response)
	return answer{Body: s.body}
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(new(bytes.Buffer))
	// The default of kube-apiserver.
	jsonpatch.AccumulatedCopySizeLimit = 3 * 1024 * 1024
	server, err := newServer()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines.Each(func(q question) any {
		switch q.Of {
		case "patch":
			return apply(q)
		case "response":
			return server.respond(q)
		default:
			return server.request(q)
		}
	})
}
