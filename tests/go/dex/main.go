// Command dex is two OpenID providers over TLS: Dex with its pages, and Dex with refresh tokens that have expired when they are
// used. With a URL it is a browser, in which a user logs in there.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/server/signer"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"golang.org/x/crypto/bcrypt"
)

const (
	email    = "alice@example.com"
	password = "verysecure"

	idTokenLifetime = time.Hour
	// More pages than a login has.
	maxPages = 5
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "serve":
		return serve(arguments[1], arguments[2])
	case len(arguments) == 2 && arguments[0] == "browse":
		return browse(arguments[1])
	}
	return errors.New("usage: dex serve CERTIFICATE KEY | dex browse URL")
}

// serve prints the issuers, and ends with its standard input.
func serve(certificate, key string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// An absolute lifetime of "" has no end.
	providers := []struct{ name, lifetime string }{{"/dex", ""}, {"/expiring", "1ns"}}
	handler := http.NewServeMux()
	var issuers []string
	for _, provider := range providers {
		issuer := fmt.Sprintf("https://localhost:%d%s", listener.Addr().(*net.TCPAddr).Port, provider.name)
		dex, err := newDex(issuer, provider.lifetime, logger)
		if err != nil {
			return err
		}
		handler.Handle(provider.name+"/", dex)
		issuers = append(issuers, issuer)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := json.NewEncoder(os.Stdout).Encode(map[string][]string{"issuers": issuers}); err != nil {
		return err
	}
	return (&http.Server{Handler: handler}).ServeTLS(listener, certificate, key)
}

// newDex has one user, and one public client without redirect URIs: Dex accepts any port of a loopback address for it. Refresh
// tokens are replaced with each use, and the approval page is shown only to clients that ask for it.
func newDex(issuer, refreshTokenLifetime string, logger *slog.Logger) (http.Handler, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return nil, err
	}
	users := []storage.Password{{Email: email, Hash: hash, Username: "alice", UserID: "id-of-alice", Groups: []string{"developers"}}}
	kept := storage.WithStaticPasswords(memory.New(logger), users, logger)
	kept = storage.WithStaticClients(kept, []storage.Client{{ID: "kubernetes", Name: "Kubernetes", Public: true}})
	kept = storage.WithStaticConnectors(kept, []storage.Connector{{ID: "local", Name: "Email", Type: server.LocalConnector}})
	const keepRefreshTokens = false
	policy, err := server.NewRefreshTokenPolicy(logger, keepRefreshTokens, "", refreshTokenLifetime, "")
	if err != nil {
		return nil, err
	}
	keys := signer.LocalConfig{KeysRotationPeriod: "6h"}
	tokens, err := keys.Open(context.Background(), kept, idTokenLifetime, time.Now, logger)
	if err != nil {
		return nil, err
	}
	return server.NewServer(context.Background(), server.Config{
		Issuer:             issuer,
		Storage:            kept,
		SkipApprovalScreen: true,
		IDTokensValidFor:   idTokenLifetime,
		RefreshTokenPolicy: policy,
		Logger:             logger,
		Signer:             tokens,
	})
}

// browse opens a URL and fills in the forms until the login has ended: at the callback of the client, or of the device flow.
func browse(target string) error {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	client := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	page, err := client.Get(target)
	for range maxPages {
		if err != nil {
			return err
		}
		_ = page.Body.Close()
		address := page.Request.URL
		if page.StatusCode == http.StatusOK && path.Base(address.Path) == "callback" {
			return nil
		}
		form, action := form(address)
		if page.StatusCode != http.StatusOK || form == nil {
			break
		}
		page, err = client.PostForm(action.String(), form)
	}
	if err != nil {
		return err
	}
	_ = page.Body.Close()
	return fmt.Errorf("the login ends at %s: %s", page.Request.URL, page.Status)
}

// form is what the user enters on a page, and where it is sent.
func form(page *url.URL) (url.Values, *url.URL) {
	switch {
	case strings.HasSuffix(page.Path, "/device"):
		return url.Values{"user_code": {page.Query().Get("user_code")}}, page.JoinPath("auth", "verify_code")
	case strings.HasSuffix(page.Path, "/login"):
		return url.Values{"login": {email}, "password": {password}}, page
	}
	return nil, nil
}
