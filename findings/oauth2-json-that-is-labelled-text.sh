#!/usr/bin/env bash
# golang.org/x/oauth2 v0.37.0, Go 1.26.
#
# The token endpoint and the device authorization endpoint of one provider, both with JSON that is labelled text/plain, as a proxy or a
# hand-written provider sends it: the library reads the device's answer, and takes the token's for a form, in which it finds no token. It
# finds no error code there either: RetrieveError.ErrorCode is empty for {"error":"authorization_pending"}, so DeviceAccessToken, which
# waits while the code is authorization_pending or slow_down, ends at its first poll. Labelled application/json, all is well.
#
# Seen:
#   text/plain device: ABCD
#   text/plain token: oauth2: server response missing access_token
#   text/plain error: code ""
#   text/plain poll: ends after 1
#   application/json device: ABCD
#   application/json token: a
#   application/json error: code "authorization_pending"
#   application/json poll: a after 2
set -euo pipefail

folder="$(mktemp -d)"
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'END'
module example.com/labelled

go 1.26

require golang.org/x/oauth2 v0.37.0
END
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"golang.org/x/oauth2"
)

const token = `{"access_token":"a","token_type":"Bearer"}`

func main() {
	for _, kind := range []string{"text/plain", "application/json"} {
		polls := 0
		reply := func(writer http.ResponseWriter, code int, body string) {
			writer.Header().Set("Content-Type", kind)
			writer.WriteHeader(code)
			fmt.Fprint(writer, body)
		}
		mux := http.NewServeMux()
		mux.HandleFunc("/device", func(writer http.ResponseWriter, _ *http.Request) {
			reply(writer, 200, `{"device_code":"d","user_code":"ABCD","verification_uri":"https://p.test","expires_in":60,"interval":1}`)
		})
		mux.HandleFunc("/token", func(writer http.ResponseWriter, request *http.Request) {
			if request.FormValue("grant_type") == "authorization_code" && request.FormValue("code") == "good" {
				reply(writer, 200, token)
				return
			}
			if polls++; polls == 2 {
				reply(writer, 200, token)
				return
			}
			reply(writer, 400, `{"error":"authorization_pending"}`)
		})
		server := httptest.NewServer(mux)
		config := oauth2.Config{ClientID: "c", Endpoint: oauth2.Endpoint{
			TokenURL: server.URL + "/token", DeviceAuthURL: server.URL + "/device", AuthStyle: oauth2.AuthStyleInParams,
		}}
		ctx := context.Background()
		device, err := config.DeviceAuth(ctx)
		if err != nil {
			fmt.Println(kind, "device:", err)
			return
		}
		fmt.Println(kind, "device:", device.UserCode)
		if found, err := config.Exchange(ctx, "good"); err != nil {
			fmt.Println(kind, "token:", err)
		} else {
			fmt.Println(kind, "token:", found.AccessToken)
		}
		_, err = config.Exchange(ctx, "other")
		var refused *oauth2.RetrieveError
		errors.As(err, &refused)
		fmt.Printf("%s error: code %q\n", kind, refused.ErrorCode)
		polls = 0
		if found, err := config.DeviceAccessToken(ctx, device); err != nil {
			fmt.Println(kind, "poll: ends after", polls)
		} else {
			fmt.Println(kind, "poll:", found.AccessToken, "after", polls)
		}
		server.Close()
	}
}
END
GOFLAGS=-mod=mod go mod tidy >/dev/null 2>&1
go run . >seen

cat >expected <<'END'
text/plain device: ABCD
text/plain token: oauth2: server response missing access_token
text/plain error: code ""
text/plain poll: ends after 1
application/json device: ABCD
application/json token: a
application/json error: code "authorization_pending"
application/json poll: a after 2
END
diff expected seen && cat seen
