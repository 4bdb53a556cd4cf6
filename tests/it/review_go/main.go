package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/http2"
)

// Serves as pkg/server/secure_serving.go does: args are certificate and key; prints its address.
func main() {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		if r.URL.Query().Get("watch") == "true" {
			for {
				fmt.Fprintln(w, "{}")
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		fmt.Fprintln(w, "ok")
	})
	s := &http.Server{Handler: h, MaxHeaderBytes: 1 << 20, TLSConfig: &tls.Config{NextProtos: []string{"h2", "http/1.1"}}}
	http2.ConfigureServer(s, &http2.Server{MaxUploadBufferPerStream: 256 * 1024, MaxReadFrameSize: 256 * 1024, MaxConcurrentStreams: 100})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	panic(s.ServeTLS(l, os.Args[1], os.Args[2]))
}
