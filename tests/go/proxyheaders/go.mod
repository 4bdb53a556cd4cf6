// A module of its own, so that its dependency does not make the real servers be built again. See ../README.md.
module portcullis.dev/tests/go/proxyheaders

go 1.26.0

require github.com/pires/go-proxyproto v0.15.0
