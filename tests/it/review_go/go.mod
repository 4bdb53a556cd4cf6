module review

go 1.26

require golang.org/x/net v0.49.0
