// Command patterns evaluates regular expressions and parses numbers with Go's regexp and strconv.
//
// It reads one question per line as JSON from standard input and writes one result per line, in the same order.
package main

import (
	"math"
	"regexp"
	"regexp/syntax"
	"strconv"
	"unicode"

	"portcullis.dev/tests/go/lines"
)

type question struct {
	// Pattern is the regular expression to search for in Texts.
	Pattern string   `json:"pattern"`
	Texts   []string `json:"texts"`
	// Characters requests the characters that Pattern matches, which must match a single character.
	Characters bool `json:"characters"`
	// Number is parsed as a float64.
	Number *string `json:"number"`
	// Names requests all names of categories and scripts, and their aliases.
	Names bool `json:"names"`
}

type answer struct {
	Error      string     `json:"error"`
	Matches    [][]string `json:"matches"`
	Characters []rune     `json:"characters"`
	// Bits is the bit pattern of a float64, as text because JSON numbers cannot represent it.
	Bits  string   `json:"bits"`
	Names []string `json:"names"`
}

// characters returns the characters of a class as pairs: the first and last of each range.
func characters(pattern string) ([]rune, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	switch parsed.Op {
	case syntax.OpNoMatch:
		return []rune{}, nil
	case syntax.OpCharClass:
		return parsed.Rune, nil
	case syntax.OpAnyChar:
		return []rune{0, unicode.MaxRune}, nil
	case syntax.OpLiteral:
		first := parsed.Rune[0]
		if len(parsed.Rune) > 1 {
			panic(pattern)
		}
		found := []rune{first, first}
		if parsed.Flags&syntax.FoldCase != 0 {
			for other := unicode.SimpleFold(first); other != first; other = unicode.SimpleFold(other) {
				found = append(found, other, other)
			}
		}
		return found, nil
	default:
		panic(pattern)
	}
}

func names() []string {
	found := []string{"Any", "ASCII", "Assigned"}
	for name := range unicode.Categories {
		found = append(found, name)
	}
	for name := range unicode.CategoryAliases {
		found = append(found, name)
	}
	for name := range unicode.Scripts {
		found = append(found, name)
	}
	return found
}

func judge(q question) answer {
	if q.Names {
		return answer{Names: names()}
	}
	if q.Number != nil {
		value, err := strconv.ParseFloat(*q.Number, 64)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return answer{Bits: strconv.FormatUint(math.Float64bits(value), 10)}
	}
	if q.Characters {
		found, err := characters(q.Pattern)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return answer{Characters: found}
	}
	compiled, err := regexp.Compile(q.Pattern)
	if err != nil {
		return answer{Error: err.Error()}
	}
	matches := [][]string{}
	for _, text := range q.Texts {
		found := compiled.FindAllString(text, -1)
		if found == nil {
			found = []string{}
		}
		matches = append(matches, found)
	}
	return answer{Matches: matches}
}

func main() {
	lines.Each(func(q question) any { return judge(q) })
}
