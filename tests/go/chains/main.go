// Command chains verifies certificates of clients and servers with Go and kube-apiserver's code.
//
// It reads one question per line as JSON and writes one line for each: whether Go's TLS stack accepts the certificates,
// whether Certificate.Verify accepts the chain with kube-apiserver's options, and the resulting user. A question with a
// host is about the chain of a server, and the answer is that of a TLS client. With -tls it prints what Go's TLS client
// offers by default. With -make it prints questions instead, with certificates that the Rust side cannot sign.
package main

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"math/big"
	"net"
	"os"
	"strings"
	"time"
)

// question is a chain and a CA bundle; byte slices are encoded in base64.
type question struct {
	Name  string   `json:"name,omitempty"`
	Roots [][]byte `json:"roots"`
	Chain [][]byte `json:"chain"`
	// Unix time in seconds and nanoseconds.
	Time  int64 `json:"time"`
	Nanos int64 `json:"nanos"`
	// Host, if present, makes it the chain of a server.
	Host string `json:"host,omitempty"`
	// Pem, if present, is a bundle to parse; the other fields are ignored then.
	Pem []byte `json:"pem,omitempty"`
}

type answer struct {
	// Verdict is "roots" or "parse" for certificates that do not parse, "refused", "ok", or "server" for one of a
	// server.
	Verdict string `json:"verdict"`
	Error   string `json:"error"`
	// Handshake is whether the leaf parses and its key is usable in a TLS handshake.
	Handshake bool     `json:"handshake"`
	CN        string   `json:"cn"`
	Orgs      []string `json:"orgs"`
	UID       string   `json:"uid"`
	UIDError  string   `json:"uidError"`
	// Serial is the serial number of the leaf.
	Serial string `json:"serial"`
	// Count is the number of certificates in a PEM bundle, -1 if it is rejected.
	Count int `json:"count"`
}

func main() {
	log.SetFlags(0)
	out := json.NewEncoder(os.Stdout)
	if len(os.Args) > 1 && os.Args[1] == "-make" {
		for _, q := range unsignable() {
			if err := out.Encode(q); err != nil {
				log.Fatal(err)
			}
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "-tls" {
		if err := out.Encode(offered()); err != nil {
			log.Fatal(err)
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
		if err := out.Encode(judge(q)); err != nil {
			log.Fatal(err)
		}
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
}

func judge(q question) answer {
	if q.Pem != nil {
		return answer{Count: countBundle(q.Pem)}
	}
	roots := x509.NewCertPool()
	for _, der := range q.Roots {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			return answer{Verdict: "roots", Error: err.Error()}
		}
		roots.AddCert(root)
	}
	if q.Host != "" {
		return judgeServer(q, roots)
	}
	var a answer
	var chain []*x509.Certificate
	for i, der := range q.Chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			a.Verdict, a.Error = "parse", err.Error()
			return a
		}
		if i == 0 {
			a.Handshake = usable(cert)
		}
		chain = append(chain, cert)
	}
	leaf := chain[0]
	a.Serial = leaf.SerialNumber.String()
	opts := x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: time.Unix(q.Time, q.Nanos).UTC(),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(chain) > 1 {
		opts.Intermediates = x509.NewCertPool()
		for _, cert := range chain[1:] {
			opts.Intermediates.AddCert(cert)
		}
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		a.Verdict, a.Error = "refused", err.Error()
		return a
	}
	for _, one := range chains {
		if !bytes.Equal(one[0].Raw, leaf.Raw) {
			log.Fatal("a chain begins with another certificate")
		}
	}
	a.Verdict = "ok"
	a.CN = leaf.Subject.CommonName
	a.Orgs = leaf.Subject.Organization
	a.UID, err = uid(leaf)
	if err != nil {
		a.UIDError = err.Error()
	}
	return a
}

// offer is what a TLS client offers.
type offer struct {
	Suites  []uint16              `json:"suites"`
	Groups  []tls.CurveID         `json:"groups"`
	Schemes []tls.SignatureScheme `json:"schemes"`
}

// offered is what a client with client-go's settings offers.
func offered() offer {
	client, server := net.Pipe()
	go func() {
		// It fails: the server has read what it needs.
		_ = tls.Client(client, &tls.Config{ServerName: "a.example", MinVersion: tls.VersionTLS12}).Handshake()
	}()
	var found offer
	_ = tls.Server(server, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		found = offer{Suites: hello.CipherSuites, Groups: hello.SupportedCurves, Schemes: hello.SignatureSchemes}
		return nil, errors.New("no more is needed")
	}}).Handshake()
	return found
}

// judgeServer follows verifyServerCertificate of crypto/tls.
func judgeServer(q question, roots *x509.CertPool) answer {
	refused := func(format string, args ...any) answer {
		return answer{Verdict: "refused", Error: fmt.Sprintf(format, args...), Handshake: true}
	}
	var chain []*x509.Certificate
	for _, der := range q.Chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return answer{Verdict: "parse", Error: err.Error(), Handshake: true}
		}
		if key, ok := cert.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > 8192 {
			return refused("tls: server sent certificate containing RSA key larger than %d bits", 8192)
		}
		chain = append(chain, cert)
	}
	opts := x509.VerifyOptions{
		Roots:         roots,
		CurrentTime:   time.Unix(q.Time, q.Nanos).UTC(),
		DNSName:       q.Host,
		Intermediates: x509.NewCertPool(),
	}
	for _, cert := range chain[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return refused("%s", (&tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}).Error())
	}
	switch chain[0].PublicKey.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
		return answer{Verdict: "server", Handshake: true}
	}
	return refused("tls: server's certificate contains an unsupported type of public key")
}

// usable follows the TLS server's check of the leaf's key.
func usable(leaf *x509.Certificate) bool {
	switch key := leaf.PublicKey.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() <= 8192
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// uid follows parseUIDFromCert of kube-apiserver's x509 authenticator.
func uid(leaf *x509.Certificate) (string, error) {
	kind := asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
	var found []string
	for _, name := range leaf.Subject.Names {
		if !name.Type.Equal(kind) {
			continue
		}
		value, ok := name.Value.(string)
		if !ok {
			return "", errors.New("unable to parse UID into a string")
		}
		found = append(found, value)
	}
	switch {
	case len(found) == 0:
		return "", nil
	case len(found) > 1:
		return "", fmt.Errorf("expected 1 UID, but found multiple: %v", found)
	case found[0] == "":
		return "", errors.New("UID cannot be an empty string")
	}
	return found[0], nil
}

// countBundle parses a bundle like client-go's ParseCertsPEM.
func countBundle(data []byte) int {
	count := 0
	for len(data) > 0 {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return -1
		}
		count++
	}
	if count == 0 {
		return -1
	}
	return count
}

// unsignable creates chains with keys and signature algorithms that aws-lc-rs cannot sign with.
func unsignable() []question {
	ec := func(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }
	rsaKey := func(bits int) crypto.Signer { return must(rsa.GenerateKey(rand.Reader, bits)) }
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	p224, p256, p384, p521 := ec(elliptic.P224()), ec(elliptic.P256()), ec(elliptic.P384()), ec(elliptic.P521())
	r1024, r2048, r3072 := rsaKey(1024), rsaKey(2048), rsaKey(3072)
	cases := []struct {
		name string
		ca   crypto.Signer
		leaf crypto.Signer
		algo x509.SignatureAlgorithm
	}{
		{"p256-sha256", p256, p384, x509.ECDSAWithSHA256},
		{"p256-sha384", p256, p384, x509.ECDSAWithSHA384},
		{"p256-sha512", p256, p384, x509.ECDSAWithSHA512},
		{"p256-sha1", p256, p384, x509.ECDSAWithSHA1},
		{"p384-sha256", p384, p256, x509.ECDSAWithSHA256},
		{"p384-sha384", p384, p256, x509.ECDSAWithSHA384},
		{"p384-sha512", p384, p256, x509.ECDSAWithSHA512},
		{"p521-sha256", p521, p256, x509.ECDSAWithSHA256},
		{"p521-sha384", p521, p256, x509.ECDSAWithSHA384},
		{"p521-sha512", p521, p256, x509.ECDSAWithSHA512},
		{"p224-ca", p224, p256, x509.ECDSAWithSHA256},
		{"p224-leaf", p256, p224, x509.ECDSAWithSHA256},
		{"rsa1024-ca", r1024, p256, x509.SHA256WithRSA},
		{"rsa1024-leaf", r2048, r1024, x509.SHA256WithRSA},
		{"rsa2048-sha1", r2048, p256, x509.SHA1WithRSA},
		{"rsa2048-sha384", r2048, p256, x509.SHA384WithRSA},
		{"rsa2048-pss256", r2048, p256, x509.SHA256WithRSAPSS},
		{"rsa3072-sha512", r3072, r2048, x509.SHA512WithRSA},
		{"rsa3072-pss512", r3072, r3072, x509.SHA512WithRSAPSS},
		{"ed25519", edKey, p256, x509.PureEd25519},
		{"ed25519-leaf", p256, edKey, x509.ECDSAWithSHA256},
	}
	var questions []question
	for i, c := range cases {
		start := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
		ca := &x509.Certificate{
			SerialNumber:          big.NewInt(1),
			Subject:               pkix.Name{CommonName: c.name},
			NotBefore:             start,
			NotAfter:              start.AddDate(80, 0, 0),
			IsCA:                  true,
			BasicConstraintsValid: true,
			KeyUsage:              x509.KeyUsageCertSign,
		}
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 2)),
			Subject:      pkix.Name{CommonName: "user of " + c.name, Organization: []string{"b", "a", "b"}},
			NotBefore:    start,
			NotAfter:     start.AddDate(80, 0, 0),
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			DNSNames:     []string{"a.example"},
		}
		caTemplate := *ca
		if !strings.Contains(c.name, "sha1") {
			caTemplate.SignatureAlgorithm = c.algo
		}
		root := must(x509.CreateCertificate(rand.Reader, &caTemplate, ca, c.ca.Public(), c.ca))
		leaf.SignatureAlgorithm = c.algo
		parent := must(x509.ParseCertificate(root))
		der := must(x509.CreateCertificate(rand.Reader, leaf, parent, c.leaf.Public(), c.ca))
		questions = append(questions, question{
			Name: c.name, Roots: [][]byte{root}, Chain: [][]byte{der}, Time: start.AddDate(6, 0, 0).Unix(),
		})
	}
	return questions
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
