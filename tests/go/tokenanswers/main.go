// Command tokenanswers reads the answers of OpenID providers as kubectl's login plugins in Go do: tokens with
// golang.org/x/oauth2, discovery documents with go-oidc.
//
// It reads one JSON object per line from standard input: {"status", "contentType", "body"} for an answer of a token endpoint, or
// {"issuer", "document"} for a discovery document. It writes one result per line, in the same order.
package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	oidc "github.com/coreos/go-oidc"
	"golang.org/x/oauth2"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Status      int    `json:"status"`
	ContentType string `json:"contentType"`
	Body        string `json:"body"`
	Issuer      string `json:"issuer"`
	Document    string `json:"document"`
}

type answer struct {
	Error string `json:"error"`
	// The error code of the provider, if the answer is an error.
	Code    string `json:"code"`
	Refused bool   `json:"refused"`

	AccessToken  string `json:"accessToken"`
	RefreshToken string `json:"refreshToken"`
	IDToken      string `json:"idToken"`
	ExpiresIn    int64  `json:"expiresIn"`

	AuthorizationEndpoint string `json:"authorizationEndpoint"`
	TokenEndpoint         string `json:"tokenEndpoint"`
	KeysURL               string `json:"jwksURI"`
}

// canned answers every request alike.
type canned struct {
	status      int
	contentType string
	body        string
}

func (c canned) RoundTrip(request *http.Request) (*http.Response, error) {
	header := http.Header{}
	if c.contentType != "" {
		header.Set("Content-Type", c.contentType)
	}
	return &http.Response{
		Status:     http.StatusText(c.status),
		StatusCode: c.status,
		Header:     header,
		Body:       io.NopCloser(strings.NewReader(c.body)),
		Request:    request,
	}, nil
}

func tokens(q question) answer {
	client := &http.Client{Transport: canned{q.Status, q.ContentType, q.Body}}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, client)
	endpoint := oauth2.Endpoint{TokenURL: "https://issuer.test/token", AuthStyle: oauth2.AuthStyleInParams}
	config := oauth2.Config{ClientID: "kubernetes", Endpoint: endpoint}
	token, err := config.Exchange(ctx, "code")
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) {
		return answer{Error: err.Error(), Refused: true, Code: refused.ErrorCode}
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	idToken, _ := token.Extra("id_token").(string)
	var expiresIn int64
	if !token.Expiry.IsZero() {
		expiresIn = int64(math.Round(time.Until(token.Expiry).Seconds()))
	}
	return answer{
		AccessToken:  token.AccessToken,
		RefreshToken: token.RefreshToken,
		IDToken:      idToken,
		ExpiresIn:    expiresIn,
	}
}

func document(q question) answer {
	client := &http.Client{Transport: canned{http.StatusOK, "application/json", q.Document}}
	ctx := oidc.ClientContext(context.Background(), client)
	provider, err := oidc.NewProvider(ctx, q.Issuer)
	if err != nil {
		return answer{Error: err.Error()}
	}
	var found struct {
		KeysURL string `json:"jwks_uri"`
	}
	if err := provider.Claims(&found); err != nil {
		return answer{Error: err.Error()}
	}
	endpoint := provider.Endpoint()
	return answer{AuthorizationEndpoint: endpoint.AuthURL, TokenEndpoint: endpoint.TokenURL, KeysURL: found.KeysURL}
}

func main() {
	lines.Each(func(q question) any {
		if q.Issuer != "" {
			return document(q)
		}
		return tokens(q)
	})
}
