package tokenizer

import (
	"regexp"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// gpt2Pattern is what GPT-2 splits text by; contractions, words, numbers, the rest, and spaces.
const gpt2Pattern = `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// split cuts a text where a pattern matches. Go's own regexp cannot look ahead. These patterns
// do, to give the last of several spaces to the next word.
type split struct {
	pattern       *regexp2.Regexp
	matches, gaps bool // which of the two become pieces
	window        int  // bytes that are searched at a time at first; 0 is all
}

// Of a longer text a window is searched at a time, as searching takes four bytes a character and
// more. A match is taken if it ends well before the window does, so that the window has the text that
// the pattern looks ahead at. Searching the whole text would find the same match.
const (
	usualWindow = 1 << 20
	lookahead   = 1 << 8
)

// looksBack finds in a pattern what depends on text before the place where a search begins.
var looksBack = regexp.MustCompile(`\(\?<[=!]|\\[bBAG]|(^|[^\[\\])\^`)

func newSplit(pattern string, matches, gaps bool) (split, error) {
	compiled, err := regexp2.Compile(pattern, regexp2.None)
	s := split{pattern: compiled, matches: matches, gaps: gaps, window: usualWindow}
	if looksBack.MatchString(pattern) {
		s.window = 0
	}
	return s, err
}

// each calls yield with each piece of the text and the byte where it begins, in order, until yield
// returns an error.
func (s split) each(text string, yield func(piece string, at int) error) error {
	give := func(from, to int, wanted bool) (err error) {
		if from < to && wanted {
			err = yield(text[from:to], from)
		}
		return err
	}
	done, size := 0, s.window
	for done < len(text) {
		end := len(text)
		if size > 0 && done+size < end {
			for end = done + size; !utf8.RuneStart(text[end]); end-- {
			}
		}
		matches, err := s.pattern.FindAllStringIndex(text[done:end], -1)
		if err != nil {
			return err
		}
		start, taken := done, done
		for _, m := range matches {
			from, to := start+m[0], start+m[1]
			if end < len(text) && to > end-lookahead*utf8.UTFMax {
				break
			}
			if err := give(taken, from, s.gaps); err != nil {
				return err
			}
			if err := give(from, to, s.matches); err != nil {
				return err
			}
			taken = to
		}
		switch {
		case end == len(text):
			return give(taken, end, s.gaps)
		case taken == done:
			size *= 2 // a match, or a gap, that is longer than the window
		default:
			done, size = taken, s.window
		}
	}
	return nil
}
