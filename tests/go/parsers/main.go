// Command parsers parses input of clients with the code of Go and kube-apiserver.
//
// It reads one question per line as JSON and writes one line for each. Texts are encoded in base64, because they need
// not be UTF-8.
package main

import (
	"bufio"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"sort"

	"github.com/go-logr/logr"
	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Kind is "pem", "csr", "extra", "target" or "url".
	Kind string `json:"kind"`
	Data []byte `json:"data"`
	// Method is the HTTP method, for the kind "target".
	Method string `json:"method"`
}

func main() {
	log.SetFlags(0)
	// RequestInfo logs selectors that it cannot parse.
	klog.SetLogger(logr.Discard())
	lines.Each(answer)
}

func answer(q question) any {
	switch q.Kind {
	case "pem":
		return blocks(q.Data)
	case "csr":
		return certificateRequest(q.Data)
	case "extra":
		return extra(q.Data)
	case "target":
		return target(q.Method, q.Data)
	case "url":
		return wholeURL(string(q.Data))
	}
	log.Fatalf("no such kind: %q", q.Kind)
	return nil
}

type parsedURL struct {
	Error string `json:"error"`
	// The parts of the URL that validation uses, and the URL as Go formats it.
	Scheme   string `json:"scheme"`
	User     bool   `json:"user"`
	Host     []byte `json:"host"`
	Query    string `json:"query"`
	Fragment bool   `json:"fragment"`
	Text     []byte `json:"text"`
}

func wholeURL(text string) parsedURL {
	u, err := url.Parse(text)
	if err != nil {
		return parsedURL{Error: err.Error()}
	}
	return parsedURL{
		Scheme: u.Scheme, User: u.User != nil, Host: []byte(u.Host), Query: u.RawQuery,
		Fragment: u.Fragment != "", Text: []byte(u.String()),
	}
}

type block struct {
	Type    []byte `json:"type"`
	Headers bool   `json:"headers"`
	Bytes   []byte `json:"bytes"`
	// Rest is the number of bytes after the block.
	Rest int `json:"rest"`
}

func blocks(data []byte) []block {
	found := []block{}
	for {
		one, rest := pem.Decode(data)
		if one == nil {
			return found
		}
		found = append(found, block{[]byte(one.Type), len(one.Headers) > 0, one.Bytes, len(rest)})
		data = rest
	}
}

type names struct {
	// Stage is the step that rejects the request, "pem", "parse" or "signature", or "ok".
	Stage  string   `json:"stage"`
	Error  string   `json:"error"`
	CN     []byte   `json:"cn"`
	O      [][]byte `json:"o"`
	DNS    [][]byte `json:"dns"`
	Emails [][]byte `json:"emails"`
	// IPs have 16 bytes each.
	IPs  [][]byte `json:"ips"`
	URIs [][]byte `json:"uris"`
}

// certificateRequest follows ParseCSR of k8s.io/kubernetes/pkg/apis/certificates, and verifies the signature as
// kube-apiserver and kube-controller-manager do.
func certificateRequest(data []byte) names {
	one, _ := pem.Decode(data)
	if one == nil || one.Type != "CERTIFICATE REQUEST" {
		return names{Stage: "pem"}
	}
	csr, err := x509.ParseCertificateRequest(one.Bytes)
	if err != nil {
		return names{Stage: "parse", Error: err.Error()}
	}
	if err := csr.CheckSignature(); err != nil {
		return names{Stage: "signature", Error: err.Error()}
	}
	n := names{Stage: "ok", CN: []byte(csr.Subject.CommonName), O: octets(csr.Subject.Organization)}
	n.DNS, n.Emails = octets(csr.DNSNames), octets(csr.EmailAddresses)
	for _, ip := range csr.IPAddresses {
		n.IPs = append(n.IPs, ip.To16())
	}
	for _, uri := range csr.URIs {
		n.URIs = append(n.URIs, []byte(uri.String()))
	}
	return n
}

func octets(texts []string) [][]byte {
	var all [][]byte
	for _, text := range texts {
		all = append(all, []byte(text))
	}
	return all
}

type extraKeys struct {
	Error string   `json:"error"`
	Keys  [][]byte `json:"keys"`
}

// extraKeysOf returns the extra keys of the identity that a front proxy forwards, sorted.
func extraKeysOf(r *http.Request) ([][]byte, error) {
	response, ok, err := frontProxy.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, fmt.Errorf("not authenticated: %v", err)
	}
	var keys []string
	for key := range response.User.GetExtra() {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return octets(keys), nil
}

var frontProxy = headerrequest.NewDynamic(
	headerrequest.StaticStringSlice{"X-Remote-User"}, headerrequest.StaticStringSlice{"X-Remote-Uid"},
	headerrequest.StaticStringSlice{"X-Remote-Group"}, headerrequest.StaticStringSlice{"X-Remote-Extra-"})

// extra parses a request with one extra header, whose name ends in data.
func extra(data []byte) extraKeys {
	text := "GET / HTTP/1.1\r\nHost: a\r\nX-Remote-User: u\r\nX-Remote-Extra-" + string(data) + ": v\r\n\r\n"
	r, err := read(text)
	if err != nil {
		return extraKeys{Error: err.Error()}
	}
	keys, err := extraKeysOf(r)
	if err != nil {
		return extraKeys{Error: err.Error()}
	}
	return extraKeys{Keys: keys}
}

// read processes a request like net/http's server before it calls the handler.
func read(text string) (*http.Request, error) {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewBufferString(text)))
	if err != nil {
		return nil, err
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("invalid header name")
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("invalid header value")
			}
		}
	}
	return r, nil
}

type readTarget struct {
	Error    string `json:"error"`
	Path     []byte `json:"path"`
	RawQuery []byte `json:"rawQuery"`
	// Query has the pairs of the query sorted by key, with values in order.
	Query [][2][]byte `json:"query"`
	// InfoError is the error of the request info.
	InfoError string `json:"infoError"`
	// Info has the fields of the request info as texts.
	Info       []string `json:"info"`
	IsResource bool     `json:"isResource"`
}

var infoFactory = &request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

func target(method string, data []byte) readTarget {
	r, err := read(method + " " + string(data) + " HTTP/1.1\r\nHost: a\r\n\r\n")
	if err != nil {
		return readTarget{Error: err.Error()}
	}
	t := readTarget{Path: []byte(r.URL.Path), RawQuery: []byte(r.URL.RawQuery), Query: pairs(r.URL)}
	info, err := infoFactory.NewRequestInfo(r)
	if err != nil {
		t.InfoError = err.Error()
		return t
	}
	t.IsResource = info.IsResourceRequest
	t.Info = []string{
		info.Verb, info.Path, info.APIPrefix, info.APIGroup, info.APIVersion, info.Namespace, info.Resource,
		info.Subresource, info.Name, info.FieldSelector, info.LabelSelector,
	}
	t.Info = append(t.Info, info.Parts...)
	return t
}

// pairs returns the query sorted by key; the values of a key keep their order.
func pairs(u *url.URL) [][2][]byte {
	query := u.Query()
	var keys []string
	for key := range query {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	found := [][2][]byte{}
	for _, key := range keys {
		for _, value := range query[key] {
			found = append(found, [2][]byte{[]byte(key), []byte(value)})
		}
	}
	return found
}
