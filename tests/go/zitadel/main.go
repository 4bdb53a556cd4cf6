// Command zitadel is an OpenID provider: the library of ZITADEL with its example's pages and storage, over TLS. With a URL it
// is a browser, in which a user logs in there.
package main

import (
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

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

const (
	user     = "alice"
	password = "verysecure"
)

// users is a storage.UserStore with one user.
type users struct{}

func (users) GetUserByID(id string) *storage.User {
	if id != "id-of-alice" {
		return nil
	}
	return &storage.User{ID: id, Username: user, Password: password, Email: "alice@example.com", EmailVerified: true}
}

func (u users) GetUserByUsername(name string) *storage.User {
	if name != user {
		return nil
	}
	return u.GetUserByID("id-of-alice")
}

func (users) ExampleClientID() string { return storage.ServiceUserID }

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
	return errors.New("usage: zitadel serve CERTIFICATE KEY | zitadel browse URL")
}

// serve prints the issuers, of which it is one, and ends with its standard input.
func serve(certificate, key string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	issuer := fmt.Sprintf("https://localhost:%d", listener.Addr().(*net.TCPAddr).Port)
	storage.RegisterClients(storage.NativeClient("kubernetes", "http://127.0.0.1/callback"))
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	server := &http.Server{Handler: exampleop.SetupServer(issuer, storage.NewStorage(users{}), logger, false)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if err := json.NewEncoder(os.Stdout).Encode(map[string][]string{"issuers": {issuer}}); err != nil {
		return err
	}
	return server.ServeTLS(listener, certificate, key)
}

// browse opens a URL, logs in, and follows the redirect to the callback.
func browse(target string) error {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	client := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	page, err := client.Get(target)
	if err != nil {
		return err
	}
	_ = page.Body.Close()
	login := page.Request.URL
	if login.Path != "/login/username" {
		return fmt.Errorf("no login page but %s: %s", login, page.Status)
	}
	form := url.Values{"id": {login.Query().Get("authRequestID")}, "username": {user}, "password": {password}}
	end, err := client.PostForm(login.String(), form)
	if err != nil {
		return err
	}
	defer end.Body.Close()
	if end.Request.URL.Path != "/callback" || end.StatusCode != http.StatusOK {
		return fmt.Errorf("the login ends at %s: %s", end.Request.URL, end.Status)
	}
	return nil
}
