// Command accounttokens authenticates service account tokens with kube-apiserver's authenticators, legacy and bound, in
// kube-apiserver's order. Its getter finds the objects in caches; the API server behind the caches is empty.
//
// It reads one JSON object per line from standard input. The first one is the configuration: {"keys", "objects",
// "authenticators"}; each authenticator has issuers, audiences and a flag for the lookup of legacy tokens. All others
// are tokens: {"authenticator", "token", "stored", "audiences"}, where "stored" is the token in the secrets, and
// "audiences" are the requested audiences, if any. It writes one result per line, in the same order.
package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"

	getters "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"portcullis.dev/tests/go/lines"
)

type object struct {
	Kind      string            `json:"kind"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid"`
	Deleted   int64             `json:"deleted"`
	Labels    map[string]string `json:"labels"`
}

type configured struct {
	Issuers   []string `json:"issuers"`
	Audiences []string `json:"audiences"`
	Lookup    bool     `json:"lookup"`
}

type line struct {
	Keys           string       `json:"keys"`
	Objects        []object     `json:"objects"`
	Authenticators []configured `json:"authenticators"`

	Authenticator int      `json:"authenticator"`
	Token         string   `json:"token"`
	Stored        string   `json:"stored"`
	Audiences     []string `json:"audiences"`
}

type answer struct {
	Error     string              `json:"error"`
	Known     bool                `json:"known"`
	Username  string              `json:"username"`
	UID       string              `json:"uid"`
	Groups    []string            `json:"groups"`
	Extra     map[string][]string `json:"extra"`
	Audiences []string            `json:"audiences"`
}

// empty is an API server without objects that accepts every patch: the date label of a used secret.
type empty struct{}

func (empty) RoundTrip(request *http.Request) (*http.Response, error) {
	code, body := http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	if request.Method == http.MethodPatch {
		code, body = http.StatusOK, `{"kind":"Secret","apiVersion":"v1"}`
	}
	return &http.Response{
		StatusCode: code,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(strings.NewReader(body)),
		Request:    request,
	}, nil
}

// cluster has the authenticators of a configuration.
type cluster struct {
	authenticators []authenticator.Token
	secrets        []*v1.Secret
}

func build(configuration line) cluster {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://empty.example", Transport: empty{}, QPS: -1})
	if err != nil {
		panic(err)
	}
	indexer := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	}
	accounts, secrets, pods, nodes := indexer(), indexer(), indexer(), indexer()
	var built cluster
	for _, o := range configuration.Objects {
		meta := metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.UID), Labels: o.Labels}
		if o.Deleted != 0 {
			meta.DeletionTimestamp = &metav1.Time{Time: time.Unix(o.Deleted, 0)}
		}
		switch o.Kind {
		case "serviceaccount":
			accounts.Add(&v1.ServiceAccount{ObjectMeta: meta})
		case "secret":
			secret := &v1.Secret{ObjectMeta: meta, Data: map[string][]byte{}}
			built.secrets = append(built.secrets, secret)
			secrets.Add(secret)
		case "pod":
			pods.Add(&v1.Pod{ObjectMeta: meta})
		case "node":
			nodes.Add(&v1.Node{ObjectMeta: meta})
		default:
			panic(o.Kind)
		}
	}
	getter := getters.NewGetterFromClient(client, listers.NewSecretLister(secrets), listers.NewServiceAccountLister(accounts),
		listers.NewPodLister(pods), listers.NewNodeLister(nodes),
		// Asked with the feature gate for tokens that are bound to a webhook configuration alone.
		nil, nil)
	parsed, err := keyutil.ParsePublicKeysPEM([]byte(configuration.Keys))
	if err != nil {
		panic(err)
	}
	keys, err := serviceaccount.StaticPublicKeysGetter(parsed)
	if err != nil {
		panic(err)
	}
	for _, a := range configuration.Authenticators {
		validator, err := serviceaccount.NewLegacyValidator(a.Lookup, getter, client.CoreV1())
		if err != nil {
			panic(err)
		}
		legacy := serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, a.Audiences, validator)
		bound := serviceaccount.JWTTokenAuthenticator(a.Issuers, keys, a.Audiences, serviceaccount.NewValidator(getter))
		built.authenticators = append(built.authenticators, union.New(legacy, bound))
	}
	return built
}

func (c cluster) judge(l line) answer {
	for _, secret := range c.secrets {
		secret.Data[v1.ServiceAccountTokenKey] = []byte(l.Stored)
	}
	ctx := context.Background()
	if len(l.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, l.Audiences)
	}
	response, known, err := c.authenticators[l.Authenticator].AuthenticateToken(ctx, l.Token)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if !known {
		return answer{}
	}
	user := response.User
	return answer{
		Known: true, Username: user.GetName(), UID: user.GetUID(), Groups: user.GetGroups(), Extra: user.GetExtra(),
		Audiences: response.Audiences,
	}
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	var built cluster
	lines.Each(func(l line) any {
		if l.Keys != "" {
			built = build(l)
			return answer{}
		}
		return built.judge(l)
	})
}
