// Command sessionstreams runs sessions of exec and port-forward between client-go's clients and servers of the library that
// the kubelet's and kube-apiserver's are made of, and writes the bytes that they sent.
//
// A question names the protocol and the content; the answer has the bytes after the HTTP headers in their order.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"time"

	apihttpstream "k8s.io/apimachinery/pkg/util/httpstream"
	upgrades "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	client "k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Protocol is spdy, websocket, portforward or tunnel.
	Protocol string `json:"protocol"`
	Stdin    []byte `json:"stdin"`
	Stdout   []byte `json:"stdout"`
	Stderr   []byte `json:"stderr"`
	// Status is what the server writes to the error channel.
	Status string `json:"status"`
	// Sizes are those of a terminal, by columns and rows; without one there is no terminal.
	Sizes [][2]uint16 `json:"sizes"`
	// Connections is the number of forwarded connections, each of which sends Stdin and gets it back.
	Connections int `json:"connections"`
}

type sent struct {
	Client bool   `json:"client"`
	Bytes  []byte `json:"bytes"`
}

type answer struct {
	Error   string `json:"error"`
	Version string `json:"version"`
	Upgrade string `json:"upgrade"`
	Sent    []sent `json:"sent"`
	// Stdout is what the client got.
	Stdout []byte `json:"stdout"`
}

// recorder keeps what the connections of a server carry.
type recorder struct {
	net.Listener
	lock  sync.Mutex
	sent  []sent
	heads map[bool]*bytes.Buffer
}

type recorded struct {
	net.Conn
	recorder *recorder
}

func (r *recorder) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &recorded{conn, r}, nil
}

// record keeps bytes after the first HTTP head of their side.
func (r *recorder) record(client bool, content []byte) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if head := r.heads[client]; head != nil {
		head.Write(content)
		_, rest, complete := bytes.Cut(head.Bytes(), []byte("\r\n\r\n"))
		if !complete {
			return
		}
		content = rest
		delete(r.heads, client)
	}
	if len(content) > 0 {
		r.sent = append(r.sent, sent{client, bytes.Clone(content)})
	}
}

func (c *recorded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.recorder.record(true, b[:n])
	return n, err
}

func (c *recorded) Write(b []byte) (int, error) {
	c.recorder.record(false, b)
	return c.Conn.Write(b)
}

type sizes struct{ left [][2]uint16 }

func (s *sizes) Next() *client.TerminalSize {
	if len(s.left) == 0 {
		return nil
	}
	size := s.left[0]
	s.left = s.left[1:]
	return &client.TerminalSize{Width: size[0], Height: size[1]}
}

// serveSPDY serves one session of exec.
func (q *question) serveSPDY(w http.ResponseWriter, req *http.Request) {
	if _, err := httpstream.Handshake(req, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		panic(err)
	}
	// With a terminal there is a stream for its size in the place of standard error.
	const expected = 4
	streams := make(chan httpstream.Stream, expected)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			streams <- stream
		}()
		return nil
	})
	defer conn.Close()
	byType := map[string]httpstream.Stream{}
	for len(byType) < expected {
		stream := <-streams
		byType[stream.Headers().Get("streamType")] = stream
	}
	q.serve(byType["stdin"], byType["stdout"], byType["stderr"], byType["error"], byType["resize"])
}

// serveWebSocket serves one session of exec.
func (q *question) serveWebSocket(w http.ResponseWriter, req *http.Request) {
	channels := []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
	})
	_, streams, err := conn.Open(w, req)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	q.serve(streams[0], streams[1], streams[2], streams[3], streams[4])
}

func (q *question) serve(stdin io.Reader, stdout, stderr, status io.WriteCloser, resize io.Reader) {
	// The channels of a WebSocket wait for each other.
	var resized sync.WaitGroup
	if len(q.Sizes) > 0 {
		resized.Go(func() {
			decoder := json.NewDecoder(resize)
			for range q.Sizes {
				var size client.TerminalSize
				if err := decoder.Decode(&size); err != nil {
					panic(err)
				}
			}
		})
	}
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		panic(err)
	}
	resized.Wait()
	// In pieces, as a process writes.
	for piece := range chunks(q.Stdout) {
		stdout.Write(piece)
	}
	if len(q.Sizes) == 0 {
		for piece := range chunks(q.Stderr) {
			stderr.Write(piece)
		}
	}
	io.WriteString(status, q.Status)
}

func chunks(content []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(content) > 0 {
			size := min(len(content), 1000)
			if !yield(content[:size]) {
				return
			}
			content = content[size:]
		}
	}
}

// servePorts sends back what each connection gets.
func servePorts(w http.ResponseWriter, req *http.Request) {
	if _, err := httpstream.Handshake(req, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		panic(err)
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			if stream.Headers().Get("streamType") == "data" {
				io.Copy(stream, stream)
			}
			stream.Close()
		}()
		return nil
	})
	<-conn.CloseChan()
}

func (q *question) exec(executor client.Executor, a *answer) error {
	var stdout, stderr bytes.Buffer
	options := client.StreamOptions{Stdin: bytes.NewReader(q.Stdin), Stdout: &stdout, Stderr: &stderr}
	if len(q.Sizes) > 0 {
		options.Tty, options.Stderr, options.TerminalSizeQueue = true, nil, &sizes{q.Sizes}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := executor.StreamWithContext(ctx, options)
	a.Stdout = stdout.Bytes()
	return err
}

func (q *question) forward(dialer apihttpstream.Dialer, a *answer) error {
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case err := <-done:
		return err
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	for range q.Connections {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			return err
		}
		go func() {
			conn.Write(q.Stdin)
			conn.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil {
			return err
		}
		a.Stdout = append(a.Stdout, got...)
		conn.Close()
	}
	close(stop)
	return <-done
}

func (q *question) run() (a answer) {
	// As kube-apiserver does: the tunnel ends there, and the kubelet speaks SPDY.
	kubelet := httptest.NewServer(http.HandlerFunc(servePorts))
	defer kubelet.Close()
	location, _ := url.Parse(kubelet.URL)
	tunnel := proxy.NewTunnelingHandler(upgrades.NewUpgradeAwareHandler(location, http.DefaultTransport, false, true, nil))
	record := &recorder{heads: map[bool]*bytes.Buffer{true: {}, false: {}}}
	handler := map[string]http.Handler{
		"spdy":        http.HandlerFunc(q.serveSPDY),
		"websocket":   http.HandlerFunc(q.serveWebSocket),
		"portforward": http.HandlerFunc(servePorts),
		"tunnel":      tunnel,
	}[q.Protocol]
	server := httptest.NewUnstartedServer(handler)
	record.Listener = server.Listener
	server.Listener = record
	server.Start()
	defer server.Close()
	address, _ := url.Parse(server.URL)
	config := &rest.Config{Host: server.URL}
	a.Upgrade, a.Version = "websocket", remotecommand.StreamProtocolV5Name
	var err error
	switch q.Protocol {
	case "spdy":
		a.Upgrade, a.Version = "SPDY/3.1", remotecommand.StreamProtocolV4Name
		var executor client.Executor
		if executor, err = client.NewSPDYExecutor(config, "POST", address); err == nil {
			err = q.exec(executor, &a)
		}
	case "websocket":
		var executor client.Executor
		if executor, err = client.NewWebSocketExecutor(config, "GET", server.URL); err == nil {
			err = q.exec(executor, &a)
		}
	case "portforward":
		a.Upgrade, a.Version = "SPDY/3.1", portforward.PortForwardProtocolV1Name
		var transport http.RoundTripper
		var upgrader clientspdy.Upgrader
		if transport, upgrader, err = clientspdy.RoundTripperFor(config); err == nil {
			err = q.forward(clientspdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", address), &a)
		}
	case "tunnel":
		a.Version = "SPDY/3.1+" + portforward.PortForwardProtocolV1Name
		var dialer apihttpstream.Dialer
		if dialer, err = portforward.NewSPDYOverWebsocketDialer(address, config); err == nil {
			err = q.forward(dialer, &a)
		}
	default:
		err = fmt.Errorf("unknown protocol %q", q.Protocol)
	}
	if err != nil && !strings.HasPrefix(err.Error(), "command terminated") {
		a.Error = err.Error()
	}
	server.CloseClientConnections()
	kubelet.CloseClientConnections()
	record.lock.Lock()
	defer record.lock.Unlock()
	a.Sent = record.sent
	return a
}

func main() {
	lines.Each(func(q question) any { return q.run() })
}
