// Command crls reads certificate revocation lists with Go.
//
// It reads one question per line as JSON and writes one line for each: the content of the list as
// x509.ParseRevocationList reads it, and whether CheckSignatureFrom accepts the CA. With -make it prints questions
// instead, with lists that x509.CreateRevocationList has made.
package main

import (
	"bufio"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"log"
	"math/big"
	"os"
	"time"
)

// question is a list and a CA; byte slices are encoded in base64.
type question struct {
	Name string `json:"name,omitempty"`
	CRL  []byte `json:"crl"`
	CA   []byte `json:"ca"`
}

type entry struct {
	// Serial is in hexadecimal, with a sign.
	Serial string `json:"serial"`
	Time   int64  `json:"time"`
	Reason int    `json:"reason"`
}

type answer struct {
	// Parse is the error of ParseRevocationList; the other fields are empty then.
	Parse string `json:"parse"`
	// Signature is the error of CheckSignatureFrom.
	Signature  string  `json:"signature"`
	Issuer     string  `json:"issuer"`
	Number     string  `json:"number"`
	ThisUpdate int64   `json:"thisUpdate"`
	NextUpdate int64   `json:"nextUpdate"`
	Entries    []entry `json:"entries"`
}

func main() {
	log.SetFlags(0)
	out := json.NewEncoder(os.Stdout)
	if len(os.Args) > 1 && os.Args[1] == "-make" {
		for _, q := range made() {
			if err := out.Encode(q); err != nil {
				log.Fatal(err)
			}
		}
		return
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(read(q)); err != nil {
			log.Fatal(err)
		}
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
}

func read(q question) answer {
	list, err := x509.ParseRevocationList(q.CRL)
	if err != nil {
		return answer{Parse: err.Error()}
	}
	a := answer{
		Issuer:     hex.EncodeToString(list.RawIssuer),
		ThisUpdate: list.ThisUpdate.Unix(),
		Entries:    []entry{},
	}
	if !list.NextUpdate.IsZero() {
		a.NextUpdate = list.NextUpdate.Unix()
	}
	if list.Number != nil {
		a.Number = list.Number.String()
	}
	for _, e := range list.RevokedCertificateEntries {
		a.Entries = append(a.Entries, entry{e.SerialNumber.Text(16), e.RevocationTime.Unix(), e.ReasonCode})
	}
	ca, err := x509.ParseCertificate(q.CA)
	if err != nil {
		log.Fatal(err)
	}
	if err := list.CheckSignatureFrom(ca); err != nil {
		a.Signature = err.Error()
	}
	return a
}

// made creates lists with every kind of key.
func made() []question {
	ec := func(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	keys := []struct {
		name string
		key  crypto.Signer
		algo x509.SignatureAlgorithm
	}{
		{"p256", ec(elliptic.P256()), 0},
		{"p384", ec(elliptic.P384()), 0},
		{"p521", ec(elliptic.P521()), 0},
		{"ed25519", edKey, 0},
		{"rsa", rsaKey, 0},
		{"rsa-sha512", rsaKey, x509.SHA512WithRSA},
		{"rsa-pss", rsaKey, x509.SHA256WithRSAPSS},
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var questions []question
	for _, k := range keys {
		template := &x509.Certificate{
			SerialNumber:          big.NewInt(1),
			Subject:               pkix.Name{CommonName: "CA with " + k.name, Organization: []string{"Example, Inc."}},
			NotBefore:             start,
			NotAfter:              start.AddDate(60, 0, 0),
			IsCA:                  true,
			BasicConstraintsValid: true,
			KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
			SubjectKeyId:          []byte{1, 2, 3},
		}
		der := must(x509.CreateCertificate(rand.Reader, template, template, k.key.Public(), k.key))
		ca := must(x509.ParseCertificate(der))
		for _, count := range []int{0, 1, 20} {
			list := &x509.RevocationList{
				SignatureAlgorithm: k.algo,
				Number:             new(big.Int).Lsh(big.NewInt(int64(count+1)), 130),
				ThisUpdate:         start,
				// Both forms of a time.
				NextUpdate: start.AddDate(1+count*2, 0, 0),
			}
			for i := range count {
				list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{
					SerialNumber:   new(big.Int).Lsh(big.NewInt(int64(i+1)), uint(i*7)),
					RevocationTime: start.AddDate(i*2, 0, i),
					ReasonCode:     []int{0, 1, 3, 4, 5, 6, 9, 10}[i%8],
				})
			}
			crl := must(x509.CreateRevocationList(rand.Reader, list, ca, k.key))
			questions = append(questions, question{Name: k.name, CRL: crl, CA: der})
		}
	}
	return questions
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
