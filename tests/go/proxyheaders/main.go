// Command proxyheaders reads PROXY protocol headers with github.com/pires/go-proxyproto.
//
// It reads one question per line as JSON and writes one line for each.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net"
	"os"

	"github.com/pires/go-proxyproto"
)

type question struct {
	// Data is the beginning of a connection.
	Data []byte `json:"data"`
}

type answer struct {
	// Error is the reason of a refusal.
	Error string `json:"error"`
	// Client is the address of the client, or empty if the peer of the connection counts.
	Client string `json:"client"`
	// Length is the number of bytes of the header.
	Length int `json:"length"`
}

func main() {
	log.SetFlags(0)
	questions := json.NewDecoder(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		var q question
		switch err := questions.Decode(&q); {
		case err == io.EOF:
			return
		case err != nil:
			log.Fatal(err)
		}
		if err := answers.Encode(read(q.Data)); err != nil {
			log.Fatal(err)
		}
	}
}

func read(data []byte) answer {
	reader := bufio.NewReaderSize(bytes.NewReader(data), len(data)+16)
	header, err := proxyproto.Read(reader)
	if err != nil {
		return answer{Error: err.Error()}
	}
	found := answer{Length: len(data) - reader.Buffered()}
	if _, err := header.TLVs(); header.Command.IsProxy() && header.Version == 2 && !header.TransportProtocol.IsUnspec() && err != nil {
		return answer{Error: err.Error()}
	}
	if client, ok := header.SourceAddr.(*net.TCPAddr); ok && header.Command.IsProxy() && client != nil {
		found.Client = client.AddrPort().String()
	}
	return found
}
