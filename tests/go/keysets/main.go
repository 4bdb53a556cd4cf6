// Command keysets verifies tokens with key sets of issuers as kube-apiserver does.
//
// It reads one JSON object per line from standard input: {"keys", "token"}; keys is the text of the key set. It writes one result
// per line, in the same order: whether the key set can be read, and whether one of its keys verifies the token.
package main

import (
	"encoding/json"

	jose "gopkg.in/go-jose/go-jose.v2"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Keys  string `json:"keys"`
	Token string `json:"token"`
}

type answer struct {
	Error    string `json:"error"`
	Verified bool   `json:"verified"`
}

// judge verifies like go-oidc's remoteKeySet.
func judge(q question) any {
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(q.Keys), &keys); err != nil {
		return answer{Error: err.Error()}
	}
	token, err := jose.ParseSigned(q.Token)
	if err != nil {
		return answer{Error: err.Error()}
	}
	keyID := token.Signatures[0].Header.KeyID
	for _, key := range keys.Keys {
		if keyID == "" || key.KeyID == keyID {
			if _, err := token.Verify(&key); err == nil {
				return answer{Verified: true}
			}
		}
	}
	return answer{}
}

func main() {
	lines.Each(judge)
}
