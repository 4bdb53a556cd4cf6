// Command idtokens authenticates ID tokens with kube-apiserver's authenticator and a given key set of the issuer.
//
// It reads one JSON object per line from standard input. The first one is the configuration: {"issuer", "keys",
// "authenticators"}; each authenticator has a username claim and optionally groups, audiences and expressions. All
// others are tokens: {"authenticator", "token"}. It writes one result per line, in the same order.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	oidcclient "github.com/coreos/go-oidc"
	jose "gopkg.in/go-jose/go-jose.v2"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/klog/v2"

	"portcullis.dev/tests/go/lines"
)

type authenticator struct {
	Audiences []string `json:"audiences"`
	Username  string   `json:"username"`
	Groups    string   `json:"groups"`
	Rule      string   `json:"rule"`
}

type line struct {
	Issuer         string          `json:"issuer"`
	Keys           json.RawMessage `json:"keys"`
	Authenticators []authenticator `json:"authenticators"`

	Authenticator int    `json:"authenticator"`
	Token         string `json:"token"`
}

type answer struct {
	Error    string              `json:"error"`
	Known    bool                `json:"known"`
	Username string              `json:"username"`
	UID      string              `json:"uid"`
	Groups   []string            `json:"groups"`
	Extra    map[string][]string `json:"extra"`
}

// keySet verifies like go-oidc's remoteKeySet, without fetching keys.
type keySet []jose.JSONWebKey

func (keys keySet) VerifySignature(_ context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSigned(token)
	if err != nil {
		return nil, err
	}
	keyID := ""
	for _, signature := range jws.Signatures {
		keyID = signature.Header.KeyID
		break
	}
	for _, key := range keys {
		if keyID == "" || key.KeyID == keyID {
			if payload, err := jws.Verify(&key); err == nil {
				return payload, nil
			}
		}
	}
	return nil, errors.New("failed to verify id token signature")
}

// nowhere is a transport that fails every request.
type nowhere struct{}

func (nowhere) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("it cannot be fetched")
}

var _ oidcclient.KeySet = keySet{}

func build(configuration line) []oidc.AuthenticatorTokenWithHealthCheck {
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(configuration.Keys, &keys); err != nil {
		panic(err)
	}
	var built []oidc.AuthenticatorTokenWithHealthCheck
	for _, a := range configuration.Authenticators {
		none := ""
		settings := apiserver.JWTAuthenticator{
			Issuer: apiserver.Issuer{URL: configuration.Issuer, Audiences: a.Audiences},
			ClaimMappings: apiserver.ClaimMappings{
				Username: apiserver.PrefixedClaimOrExpression{Claim: a.Username, Prefix: &none},
			},
		}
		if len(a.Audiences) > 1 {
			settings.Issuer.AudienceMatchPolicy = apiserver.AudienceMatchPolicyMatchAny
		}
		if a.Groups != "" {
			settings.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: a.Groups, Prefix: &none}
		}
		if a.Rule != "" {
			settings.ClaimValidationRules = []apiserver.ClaimValidationRule{{Expression: a.Rule}}
		}
		one, err := oidc.New(context.Background(), oidc.Options{
			JWTAuthenticator:     settings,
			KeySet:               keySet(keys.Keys),
			SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
			Client:               &http.Client{Transport: nowhere{}},
		})
		if err != nil {
			panic(err)
		}
		built = append(built, one)
	}
	return built
}

func judge(one oidc.AuthenticatorTokenWithHealthCheck, token string) answer {
	response, known, err := one.AuthenticateToken(context.Background(), token)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if !known {
		return answer{}
	}
	user := response.User
	return answer{Known: true, Username: user.GetName(), UID: user.GetUID(), Groups: user.GetGroups(), Extra: user.GetExtra()}
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	var built []oidc.AuthenticatorTokenWithHealthCheck
	lines.Each(func(l line) any {
		if l.Issuer != "" {
			built = build(l)
			return answer{}
		}
		return judge(built[l.Authenticator], l.Token)
	})
}
