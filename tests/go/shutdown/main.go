// Command shutdown answers requests as a kube-apiserver that shuts down refuses them: by the filters that count requests
// in progress, or with --shutdown-send-retry-after.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	apifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	Method         string `json:"method"`
	Target         string `json:"target"`
	Http2          bool   `json:"http2"`
	SendRetryAfter bool   `json:"sendRetryAfter"`
}

type answer struct {
	Code   int                 `json:"code"`
	Proto  string              `json:"proto"`
	Header map[string][]string `json:"header"`
	Body   string              `json:"body"`
	// Whether the request has passed the filters.
	Handled bool `json:"handled"`
}

type closed chan struct{}

func (c closed) ShuttingDown() <-chan struct{} { return c }

// handler has the filters of kube-apiserver from the one that counts requests outwards, after the shutdown delay.
func handler(sendRetryAfter bool, handled *atomic.Bool) http.Handler {
	var h http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Store(true) })
	var requests, watches waitgroup.SafeWaitGroup
	requests.Wait()
	watches.Wait()
	signal := make(closed)
	close(signal)
	longRunning := filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	h = filters.WithWaitGroup(h, longRunning, &requests)
	h = filters.WithWatchTerminationDuringShutdown(h, signal, &watches)
	h = apifilters.WithCacheControl(h)
	h = filters.WithHSTS(h, []string{"max-age=31536000"})
	if sendRetryAfter {
		h = filters.WithRetryAfter(h, signal)
	}
	h = filters.WithHTTPLogging(h)
	h = apifilters.WithLatencyTrackers(h)
	h = apifilters.WithRequestInfo(h, server.NewRequestInfoResolver(&server.Config{
		LegacyAPIGroupPrefixes: sets.NewString(server.DefaultLegacyAPIPrefix),
	}))
	return apifilters.WithAuditInit(h)
}

func ask(q question) any {
	var handled atomic.Bool
	s := httptest.NewUnstartedServer(handler(q.SendRetryAfter, &handled))
	s.EnableHTTP2 = q.Http2
	s.StartTLS()
	defer s.Close()
	request, err := http.NewRequest(q.Method, s.URL+q.Target, nil)
	if err != nil {
		log.Fatal(err)
	}
	response, err := s.Client().Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	return answer{response.StatusCode, response.Proto, response.Header, string(body), handled.Load()}
}

func main() {
	log.SetFlags(0)
	lines.Each(func(q question) any { return ask(q) })
}
