// Command proxies finds the proxy of a URL as Go's HTTP clients do.
//
// It reads one JSON object per line from standard input: the variables of an environment, and a URL. It writes one result
// per line, in the same order: the proxy, empty if there is none.
package main

import (
	"net"
	"net/url"

	"golang.org/x/net/http/httpproxy"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	HTTPS string `json:"https"`
	HTTP  string `json:"http"`
	No    string `json:"no"`
	URL   string `json:"url"`
}

type answer struct {
	Proxy    string `json:"proxy"`
	User     string `json:"user"`
	Password string `json:"password"`
	Error    string `json:"error"`
}

var ports = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

func judge(q question) any {
	target, err := url.Parse(q.URL)
	if err != nil {
		return answer{Error: err.Error()}
	}
	config := httpproxy.Config{HTTPSProxy: q.HTTPS, HTTPProxy: q.HTTP, NoProxy: q.No}
	proxy, err := config.ProxyFunc()(target)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if proxy == nil {
		return answer{}
	}
	port := proxy.Port()
	if port == "" {
		port = ports[proxy.Scheme]
	}
	password, _ := proxy.User.Password()
	address := proxy.Scheme + "://" + net.JoinHostPort(proxy.Hostname(), port)
	return answer{Proxy: address, User: proxy.User.Username(), Password: password}
}

func main() {
	lines.Each(judge)
}
