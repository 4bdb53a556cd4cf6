// Its presence lets main.go declare functions without a body (go:linkname).
