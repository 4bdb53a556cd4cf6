// Package lines implements the protocol of these programs: JSON values on standard input, one line of output for each.
package lines

import (
	"bufio"
	"encoding/json"
	"os"
)

// Each calls answer for every question on standard input and prints the results in order.
func Each[Q any](answer func(Q) any) {
	in := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	encoder := json.NewEncoder(out)
	for in.More() {
		var question Q
		if err := in.Decode(&question); err != nil {
			panic(err)
		}
		if err := encoder.Encode(answer(question)); err != nil {
			panic(err)
		}
	}
	if err := out.Flush(); err != nil {
		panic(err)
	}
}
