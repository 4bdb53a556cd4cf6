// Command maxinflight answers requests as kube-apiserver does while all places for requests in flight are taken.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	fcmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Method string   `json:"method"`
	Target string   `json:"target"`
	Groups []string `json:"groups"`
}

type answer struct {
	Code   int                 `json:"code"`
	Header map[string][]string `json:"header"`
	Body   string              `json:"body"`
}

// handler has one place for reads and one for writes, with the filters of kube-apiserver that write to a refusal. A
// request to /hold returns when release is closed.
func handler(held *sync.WaitGroup, release chan struct{}) http.Handler {
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			held.Done()
			<-release
		}
	})
	longRunning := filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	h = filters.WithMaxInFlightLimit(h, 1, 1, longRunning)
	h = withUser(h)
	h = apifilters.WithCacheControl(h)
	h = apifilters.WithRequestInfo(h, server.NewRequestInfoResolver(&server.Config{
		LegacyAPIGroupPrefixes: sets.NewString(server.DefaultLegacyAPIPrefix),
	}))
	return apifilters.WithAuditInit(h)
}

func withUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := &user.DefaultInfo{Name: "somebody", Groups: r.Header["Groups"]}
		next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), u)))
	})
}

func main() {
	log.SetFlags(0)
	fcmetrics.Register()
	var held sync.WaitGroup
	release := make(chan struct{})
	s := httptest.NewServer(handler(&held, release))
	held.Add(2)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		go send(s.URL, question{Method: method, Target: "/hold"})
	}
	held.Wait()
	lines.Each(func(q question) any { return send(s.URL, q) })
	close(release)
	s.Close()
}

func send(url string, q question) answer {
	r, err := http.NewRequest(q.Method, url+q.Target, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, group := range q.Groups {
		r.Header.Add("Groups", group)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	return answer{Code: response.StatusCode, Header: response.Header, Body: string(body)}
}
