// Command tlog reads logs with Go's golang.org/x/mod/sumdb/{tlog,note}.
//
// A question names the directory of a log and its verifier key. The answer has what the checkpoint states, the root, the
// tiles and the proofs that Go computes from the entries alone, and whether each proof in the question holds. With notes
// that Go signs it answers, too.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type question struct {
	Directory string `json:"directory"`
	Verifier  string `json:"verifier"`
	// Records are places whose proofs are computed, and Trees older sizes.
	Records []int64 `json:"records"`
	Trees   []int64 `json:"trees"`
	// Proofs of the same places and sizes, to be checked.
	RecordProofs [][]string `json:"recordProofs"`
	TreeProofs   [][]string `json:"treeProofs"`
	// Text is signed with a new key.
	Text string `json:"text"`
}

type answer struct {
	Error        string            `json:"error"`
	Size         int64             `json:"size"`
	Root         string            `json:"root"`
	Tiles        map[string]string `json:"tiles"`
	RecordProofs [][]string        `json:"recordProofs"`
	TreeProofs   [][]string        `json:"treeProofs"`
	// Refused are the errors of the proofs in the question.
	Refused []string `json:"refused"`
	// Note and Key are what Go signs, and the verifier key.
	Note string `json:"note"`
	Key  string `json:"key"`
}

func main() {
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	out := json.NewEncoder(os.Stdout)
	for in.More() {
		var q question
		if err := in.Decode(&q); err != nil {
			panic(err)
		}
		var a answer
		if err := a.fill(q); err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			panic(err)
		}
	}
}

// stored are the hashes of a tree in the order of tlog.StoredHashIndex.
type stored []tlog.Hash

func (s stored) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	var found []tlog.Hash
	for _, index := range indexes {
		if index >= int64(len(s)) {
			return nil, fmt.Errorf("no hash %d", index)
		}
		found = append(found, s[index])
	}
	return found, nil
}

func (a *answer) fill(q question) error {
	if q.Text != "" {
		return a.sign(q.Text)
	}
	verifier, err := note.NewVerifier(q.Verifier)
	if err != nil {
		return err
	}
	signed, err := os.ReadFile(filepath.Join(q.Directory, "checkpoint"))
	if err != nil {
		return err
	}
	opened, err := note.Open(signed, note.VerifierList(verifier))
	if err != nil {
		return err
	}
	var origin, root string
	if _, err := fmt.Sscanf(opened.Text, "%s\n%d\n%s\n", &origin, &a.Size, &root); err != nil {
		return err
	}
	if origin != verifier.Name() {
		return fmt.Errorf("origin %q", origin)
	}
	hashes, err := a.read(q.Directory)
	if err != nil {
		return err
	}
	found, err := tlog.TreeHash(a.Size, hashes)
	if err != nil {
		return err
	}
	a.Root = encoded(found)
	if a.Root != root {
		return fmt.Errorf("the root is %s, the checkpoint has %s", a.Root, root)
	}
	a.Tiles = map[string]string{}
	for _, tile := range tlog.NewTiles(8, 0, a.Size) {
		content, err := tlog.ReadTileData(tile, hashes)
		if err != nil {
			return err
		}
		// The specification has no height in the path.
		path := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
		a.Tiles[path] = base64.StdEncoding.EncodeToString(content)
	}
	return a.prove(q, hashes, found)
}

func (a *answer) prove(q question, hashes stored, root tlog.Hash) error {
	for at, index := range q.Records {
		proof, err := tlog.ProveRecord(a.Size, index, hashes)
		if err != nil {
			return err
		}
		a.RecordProofs = append(a.RecordProofs, encodedAll(proof))
		leaf := hashes[tlog.StoredHashIndex(0, index)]
		a.check(tlog.CheckRecord(decodedAll(q.RecordProofs[at]), a.Size, root, index, leaf))
	}
	for at, size := range q.Trees {
		old, err := tlog.TreeHash(size, hashes)
		if err != nil {
			return err
		}
		proof, err := tlog.ProveTree(a.Size, size, hashes)
		if err != nil {
			return err
		}
		a.TreeProofs = append(a.TreeProofs, encodedAll(proof))
		a.check(tlog.CheckTree(decodedAll(q.TreeProofs[at]), a.Size, root, size, old))
	}
	return nil
}

func (a *answer) check(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	a.Refused = append(a.Refused, text)
}

// read computes all hashes from the entries.
func (a *answer) read(directory string) (stored, error) {
	var hashes stored
	for first := int64(0); first < a.Size; first += 256 {
		tile := tlog.Tile{H: 8, L: -1, N: first / 256, W: int(min(256, a.Size-first))}
		path := strings.Replace(tile.Path(), "tile/8/data/", "tile/entries/", 1)
		content, err := os.ReadFile(filepath.Join(directory, path))
		if err != nil {
			return nil, err
		}
		reader := bytes.NewReader(content)
		for place := first; place < first+int64(tile.W); place++ {
			var length uint16
			if err := binary.Read(reader, binary.BigEndian, &length); err != nil {
				return nil, err
			}
			entry := make([]byte, length)
			if _, err := reader.Read(entry); err != nil && length > 0 {
				return nil, err
			}
			more, err := tlog.StoredHashes(place, entry, hashes)
			if err != nil {
				return nil, err
			}
			hashes = append(hashes, more...)
		}
		if reader.Len() != 0 {
			return nil, fmt.Errorf("%s: more than %d entries", path, tile.W)
		}
	}
	return hashes, nil
}

func (a *answer) sign(text string) error {
	private, public, err := note.GenerateKey(rand.Reader, "example.com/go")
	if err != nil {
		return err
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		return err
	}
	signed, err := note.Sign(&note.Note{Text: text}, signer)
	a.Note, a.Key = string(signed), public
	return err
}

func encoded(hash tlog.Hash) string {
	return base64.StdEncoding.EncodeToString(hash[:])
}

func encodedAll(hashes []tlog.Hash) []string {
	texts := []string{}
	for _, hash := range hashes {
		texts = append(texts, encoded(hash))
	}
	return texts
}

func decodedAll(texts []string) []tlog.Hash {
	var hashes []tlog.Hash
	for _, text := range texts {
		var hash tlog.Hash
		content, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(content) != len(hash) {
			panic("not a hash: " + text)
		}
		copy(hash[:], content)
		hashes = append(hashes, hash)
	}
	return hashes
}
