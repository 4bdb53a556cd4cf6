// A module of its own, so that its dependency does not make the real servers be built again. See ../README.md.
module portcullis.dev/tests/go/tlog

go 1.26.0

require golang.org/x/mod v0.43.0
