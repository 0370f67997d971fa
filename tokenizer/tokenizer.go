// Package tokenizer encodes text as tokens of language models by byte-pair encoding (Sennrich et al. 2016,
// over bytes: Radford et al. 2019), and decodes it. It reads files of Hugging Face's tokenizers:
// tokenizer.json, or vocab.json and merges.txt.
//
//	t, err := tokenizer.Open("gpt2") // the directory of a model's files
//	ids, err := t.Encode([]byte("Hello, world"))
//	text, err := t.Decode(ids)
//
// Vocabularies of SentencePiece, such as Llama 2's, have characters in place of bytes, and a
// metaspace, ▁, for each space. Characters that the vocabulary lacks become the tokens of their
// bytes, or an unknown token.
//
// Encode returns the same tokens as Hugging Face's tokenizers without special tokens around the text. Open
// refuses a file with features that this package lacks. There is no training.
//
// A text becomes tokens in four steps:
//
//	"A café<|eot|>"    added tokens are separated                  "A café"  <|eot|>
//	"A café"           text is normalised and split into pieces    "A"  " café"
//	" café"            the bytes of a piece become characters      Ġ c a f Ã ©
//	Ġ c a f Ã ©        pairs are merged, the earliest merge first  Ġc af Ã©
package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"

	"penstock.example/internal/disk"
)

// Tokenizer encodes and decodes text. It is safe for concurrent use. Open makes one.
type Tokenizer struct {
	added     map[string]int32
	anyAdded  *regexp.Regexp // matches added tokens; nil without any
	form      *norm.Form     // Unicode normalisation; may be nil
	metaspace bool           // spaces become metaspaces
	lead      lead           // when a space is put in front of a text between added tokens
	splits    []split
	byteLevel bool // bytes become characters of the byte alphabet
	model     model
	tokens    []string // by number; "" for a number without a token

	begin, end []int32 // special tokens around a text
}

type lead uint8

const (
	leadMissing lead = iota + 1 // if the text begins with no space
	leadStart                   // if it begins with no space and is the start of the whole text
	leadAlways
)

// Len returns the greatest number of a token plus 1, the number of rows of a model's embedding.
func (t *Tokenizer) Len() int { return len(t.tokens) }

// Template returns the special tokens that Hugging Face's tokenizers put before and after a text, such as
// Llama's <|begin_of_text|>. They are in the TemplateProcessing of a tokenizer.json.
func (t *Tokenizer) Template() (begin, end []int32) { return t.begin, t.end }

// Encode returns the numbers of the text's tokens, without special tokens. It returns an error, with line
// and column, for a byte that is not UTF-8 and a character that is not in the vocabulary.
func (t *Tokenizer) Encode(text []byte) (ids []int32, err error) {
	err = t.EncodeParts(text, func(part []int32, _ int) error {
		ids = append(ids, part...)
		return nil
	})
	return ids, err
}

// EncodeParts is Encode in parts. It calls yield with some thousands of tokens at a time, and the
// approximate number of bytes encoded. yield must not keep the slice. EncodeParts returns yield's error.
func (t *Tokenizer) EncodeParts(text []byte, yield func(ids []int32, done int) error) error {
	if err := disk.CheckUTF8(text); err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	e := encoder{Tokenizer: t, known: map[string][]int32{}, yield: yield}
	whole, from := string(text), 0
	if t.anyAdded != nil {
		for _, m := range t.anyAdded.FindAllStringIndex(whole, -1) {
			if err := e.segment(whole, from, m[0]); err != nil {
				return err
			}
			e.ids = append(e.ids, t.added[whole[m[0]:m[1]]])
			from = m[1]
		}
	}
	if err := e.segment(whole, from, len(whole)); err != nil {
		return err
	}
	return yield(e.ids, len(whole))
}

// Decode returns the text of tokens: the encoded text after normalisation, perhaps with a leading space. It
// returns an error for an unknown number.
func (t *Tokenizer) Decode(ids []int32) ([]byte, error) {
	var out bytes.Buffer
	for i, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
			return nil, fmt.Errorf("tokenizer: token %d of %d is %d; want the number of a token, from 0 to "+
				"%d: it may be of another tokenizer", i+1, len(ids), id, len(t.tokens)-1)
		}
		token := t.tokens[id]
		_, added := t.added[token]
		if b, ok := t.model.byteOfToken(token); ok && !added {
			out.WriteByte(b)
		} else if t.byteLevel && !added {
			out.Write(fromByteLevel(token))
		} else if t.metaspace && !added {
			out.WriteString(strings.ReplaceAll(token, metaspace, " "))
		} else {
			out.WriteString(token)
		}
	}
	return out.Bytes(), nil
}

// encoder is the state of an EncodeParts.
type encoder struct {
	*Tokenizer
	ids   []int32 // not yet yielded
	yield func(ids []int32, done int) error
	known map[string][]int32 // tokens of earlier pieces
}

const (
	mostKnown = 1 << 16 // pieces in encoder.known
	partSize  = 1 << 14 // approximate number of tokens yielded at a time
)

// segment encodes the text between two added tokens.
func (e *encoder) segment(whole string, from, to int) error {
	text := whole[from:to]
	if text == "" {
		return nil
	}
	if e.form != nil {
		text = e.form.String(text)
	}
	space, prefix := " ", 0 // prefix is the number of bytes put in front
	if e.metaspace {
		space, text = metaspace, strings.ReplaceAll(text, " ", metaspace)
	}
	lacksSpace := !strings.HasPrefix(text, space) && (e.lead != leadStart || from == 0)
	if e.lead == leadAlways || e.lead != 0 && lacksSpace {
		text, prefix = space+text, len(space)
	}
	return e.pieces(text, 0, e.splits, func(piece string, at int) error {
		ids, ok := e.known[piece]
		if !ok {
			word := piece
			if e.byteLevel {
				word = toByteLevel(piece)
			}
			var missing rune
			if ids, missing = e.model.encode(word); missing >= 0 {
				return fmt.Errorf("tokenizer: %s: in the piece %.40q, %q (%U) is not in the vocabulary; "+
					"want a text without it, or a tokenizer that was made for such text",
					disk.Place(whole[:from]+text[prefix:max(prefix, at)]), piece, missing, missing)
			}
			if len(e.known) < mostKnown {
				e.known[piece] = ids
			}
		}
		if e.ids = append(e.ids, ids...); len(e.ids) < partSize {
			return nil
		}
		err := e.yield(e.ids, from+min(at, to-from)) // normalised text may be longer
		e.ids = e.ids[:0]
		return err
	})
}

// pieces yields the pieces of a text. at is its offset in the segment.
func (e *encoder) pieces(text string, at int, splits []split, yield func(piece string, at int) error) error {
	if len(splits) == 0 {
		return yield(text, at)
	}
	return splits[0].each(text, func(piece string, offset int) error {
		return e.pieces(piece, at+offset, splits[1:], yield)
	})
}

// Sum returns the SHA-256, in hex, of the tokens by number and the merges in order. It does not depend on
// the format of the files, and does not cover splitting and normalisation.
func (t *Tokenizer) Sum() string {
	h := sha256.New()
	for id, token := range t.tokens {
		fmt.Fprintf(h, "%d %q\n", id, token)
	}
	byRank := func(a, b [2]int32) int { return t.model.merges[a].rank - t.model.merges[b].rank }
	for _, pair := range slices.SortedFunc(maps.Keys(t.model.merges), byRank) {
		fmt.Fprintf(h, "%d %d\n", pair[0], pair[1])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// GPT-2's byte alphabet has for a byte its visible Latin-1 character, or one from U+0100 on. A space is Ġ.
var (
	charOf [256]rune
	byteOf = map[rune]byte{}
)

func init() {
	next := rune(256)
	for b := range rune(256) {
		char := b
		if !('!' <= b && b <= '~' || '¡' <= b && b <= '¬' || '®' <= b && b <= 'ÿ') {
			char = next
			next++
		}
		charOf[b], byteOf[char] = char, byte(b)
	}
}

func toByteLevel(text string) string {
	var out strings.Builder
	for i := range len(text) {
		out.WriteRune(charOf[text[i]])
	}
	return out.String()
}

// fromByteLevel returns the bytes of a token. It keeps characters outside the byte alphabet.
func fromByteLevel(token string) (out []byte) {
	for _, r := range token {
		if b, ok := byteOf[r]; ok {
			out = append(out, b)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

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
