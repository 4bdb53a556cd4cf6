// Command podidentities reads PodIdentity extensions with Go's encoding/asn1, which defines their form.
//
// It reads one question per line as JSON and writes one line for each. With -make it prints questions instead, with
// extensions that asn1.Marshal has made.
package main

import (
	"encoding/asn1"
	"encoding/json"
	"log"
	"os"
	"strings"

	"portcullis.dev/tests/go/lines"
)

// question is the content of an extension, in base64.
type question struct {
	Content []byte `json:"content"`
}

type answer struct {
	// Parse is the error of asn1.Unmarshal; the other fields are empty then.
	Parse string `json:"parse"`
	// Parts are in the order of the encoding.
	Parts []string `json:"parts"`
	// Rest is the number of octets after the sequence.
	Rest int `json:"rest"`
}

// podIdentity is the structure of KEP-4317.
type podIdentity struct {
	Namespace          string `asn1:"utf8,tag:0"`
	NamespaceUID       string `asn1:"utf8,tag:1"`
	ServiceAccountName string `asn1:"utf8,tag:2"`
	ServiceAccountUID  string `asn1:"utf8,tag:3"`
	PodName            string `asn1:"utf8,tag:4"`
	PodUID             string `asn1:"utf8,tag:5"`
	NodeName           string `asn1:"utf8,tag:6"`
	NodeUID            string `asn1:"utf8,tag:7"`
}

func (p podIdentity) parts() []string {
	return []string{
		p.Namespace, p.NamespaceUID, p.ServiceAccountName, p.ServiceAccountUID,
		p.PodName, p.PodUID, p.NodeName, p.NodeUID,
	}
}

func main() {
	log.SetFlags(0)
	out := json.NewEncoder(os.Stdout)
	if len(os.Args) > 1 && os.Args[1] == "-make" {
		for _, p := range made() {
			content, err := asn1.Marshal(p)
			if err != nil {
				log.Fatal(err)
			}
			if err := out.Encode(question{content}); err != nil {
				log.Fatal(err)
			}
		}
		return
	}
	lines.Each(func(q question) any { return read(q.Content) })
}

func read(content []byte) answer {
	var p podIdentity
	rest, err := asn1.Unmarshal(content, &p)
	if err != nil {
		return answer{Parse: err.Error()}
	}
	return answer{Parts: p.parts(), Rest: len(rest)}
}

// made has parts of many lengths: those of a header of two to four octets.
func made() []podIdentity {
	var all []podIdentity
	for _, n := range []int{0, 1, 36, 63, 127, 128, 253, 255, 256, 70000} {
		text := strings.Repeat("a", n)
		all = append(all,
			podIdentity{text, "1", "web", "2", "web-0", "3", "n1", "4"},
			podIdentity{"a", "1", "web", "2", text, "3", "n1", text})
	}
	return append(all, podIdentity{"ü", "1", "web", "2", "web-0", "3", "n1", "4"})
}
