package tokenizer

import (
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"

	"penstock.example/internal/disk"
)

// gpt2Pattern is GPT-2's: contractions, words, numbers, other characters, and spaces.
const gpt2Pattern = `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// split splits a text into the matches of a pattern and the gaps between them. Patterns look ahead to give
// the last of several spaces to the next word, which Go's regexp cannot do.
type split struct {
	pattern       *regexp2.Regexp
	matches, gaps bool // whether matches and gaps become pieces
	window        int  // bytes searched at first; 0 is all
}

// A long text is searched one window at a time, because a search takes four or more bytes of memory a
// character. A match is accepted only if it ends far enough before the end of the window for the
// pattern to look ahead. So the matches are those of the whole text.
const (
	usualWindow = 1 << 20
	lookahead   = 1 << 8
)

// looksBack matches patterns that depend on text before the start of a search.
var looksBack = regexp.MustCompile(`\(\?<[=!]|\\[bBAG]|(^|[^\[\\])\^`)

func newSplit(pattern string, matches, gaps bool) (split, error) {
	compiled, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return split{}, err
	}
	compiled.MatchTimeout = disk.MaxSearch
	s := split{pattern: compiled, matches: matches, gaps: gaps, window: usualWindow}
	if looksBack.MatchString(pattern) {
		s.window = 0
	}
	return s, nil
}

// each calls yield with each piece and its offset in the text, until yield returns an error.
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
			return disk.Short(fmt.Errorf("tokenizer: the pattern %q: %w; want one that needs less time",
				s.pattern, err))
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
			size *= 2 // a match or a gap is longer than the window
		default:
			done, size = taken, s.window
		}
	}
	return nil
}
