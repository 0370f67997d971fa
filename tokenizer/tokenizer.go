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

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is a vocabulary and the rules by which a text becomes its tokens. It does not change, so
// that several goroutines may use it. Open makes one.
type Tokenizer struct {
	added      map[string]int32
	anyAdded   *regexp.Regexp // nil without added tokens
	form       *norm.Form     // that text is brought into; nil leaves it as it is
	spaceFirst bool           // a text that begins with no space gets one
	splits     []split
	byteLevel  bool // bytes become characters of the byte alphabet
	model      model
	tokens     []string // by number; "" for a number without a token
}

// Len is one more than the greatest number of a token: the rows that a model's embedding needs.
func (t *Tokenizer) Len() int { return len(t.tokens) }

// Encode returns the numbers of the text's tokens. It adds no special tokens.
// The error says the line and the column, from 1, of a byte that is not UTF-8, or of a piece with a
// character that the vocabulary lacks: a token for the unknown is not used.
func (t *Tokenizer) Encode(text []byte) (ids []int32, err error) {
	err = t.EncodeParts(text, func(part []int32, _ int) error {
		ids = append(ids, part...)
		return nil
	})
	return ids, err
}

// EncodeParts is Encode in parts: yield is given the tokens in order, some thousands at a time, with the
// approximate number of bytes that are done. The slice is yield's until it returns;
// an error that it returns ends the encoding, and is returned.
func (t *Tokenizer) EncodeParts(text []byte, yield func(ids []int32, done int) error) error {
	if !utf8.Valid(text) {
		at := 0
		for r, n := utf8.DecodeRune(text); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(text[at:]) {
			at += n
		}
		return fmt.Errorf("tokenizer: %s: byte 0x%02x is not UTF-8; want text in UTF-8, as iconv makes it",
			place(string(text[:at])), text[at])
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

// Decode returns the text of tokens: the encoded text, except for normalisation, and a space in
// front. The error names a number that is no token's.
func (t *Tokenizer) Decode(ids []int32) ([]byte, error) {
	var out bytes.Buffer
	for i, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
			return nil, fmt.Errorf("tokenizer: token %d of %d is %d; want the number of a token, from 0 to "+
				"%d: it may be of another tokenizer", i+1, len(ids), id, len(t.tokens)-1)
		}
		token := t.tokens[id]
		_, added := t.added[token]
		if t.byteLevel && !added {
			out.Write(fromByteLevel(token))
		} else {
			out.WriteString(token)
		}
	}
	return out.Bytes(), nil
}

// encoder is an Encode under way.
type encoder struct {
	*Tokenizer
	ids   []int32 // that yield was not given yet
	yield func(ids []int32, done int) error
	known map[string][]int32 // tokens of pieces that were met before
}

const (
	mostKnown = 1 << 16 // pieces that an encoder remembers: frequent words come early
	partSize  = 1 << 14 // tokens that yield is given at a time, about
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
	space := 0
	if e.spaceFirst && !strings.HasPrefix(text, " ") {
		text, space = " "+text, 1
	}
	return e.pieces(text, 0, e.splits, func(piece string, at int) error {
		ids, ok := e.known[piece]
		if !ok {
			word := piece
			if e.byteLevel {
				word = toByteLevel(piece)
			}
			var lacking rune
			if ids, lacking = e.model.encode(word); lacking >= 0 {
				return fmt.Errorf("tokenizer: %s: in the piece %.40q, %q (%U) is not in the vocabulary; "+
					"want a text without it, or a tokenizer that was made for such text",
					place(whole[:from]+text[space:max(space, at)]), piece, lacking, lacking)
			}
			if len(e.known) < mostKnown {
				e.known[piece] = ids
			}
		}
		if e.ids = append(e.ids, ids...); len(e.ids) < partSize {
			return nil
		}
		err := e.yield(e.ids, from+min(at, to-from)) // normalising may have made the text longer
		e.ids = e.ids[:0]
		return err
	})
}

// pieces yields the pieces of a text that begins at byte at of its segment.
func (e *encoder) pieces(text string, at int, splits []split, yield func(piece string, at int) error) error {
	if len(splits) == 0 {
		return yield(text, at)
	}
	return splits[0].each(text, func(piece string, offset int) error {
		return e.pieces(piece, at+offset, splits[1:], yield)
	})
}

// place says where a text ends.
func place(before string) string {
	line := strings.LastIndexByte(before, '\n') + 1
	return fmt.Sprintf("line %d, column %d", 1+strings.Count(before, "\n"),
		1+utf8.RuneCountInString(before[line:]))
}

// Sum returns the SHA-256 of the vocabulary and the merges as 64 hexadecimal digits: the tokens by their
// numbers, and the merges in their order. It is the same for a tokenizer.json and for the vocab.json and
// merges.txt of the same tokenizer. How text is split and normalised is not in it.
func (t *Tokenizer) Sum() string {
	h := sha256.New()
	for id, token := range t.tokens {
		fmt.Fprintf(h, "%d %q\n", id, token)
	}
	merges := t.model.merges
	byRank := func(a, b [2]int32) int { return merges[a].rank - merges[b].rank }
	for _, pair := range slices.SortedFunc(maps.Keys(merges), byRank) {
		fmt.Fprintf(h, "%d %d\n", pair[0], pair[1])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// The byte alphabet of GPT-2 has a visible character for each byte. Bytes that are visible in Latin-1
// stand for themselves. The others are U+0100 and up, so that a space is Ġ.
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

// toByteLevel writes each byte of a text as its character.
func toByteLevel(text string) string {
	var out strings.Builder
	for i := range len(text) {
		out.WriteRune(charOf[text[i]])
	}
	return out.String()
}

// fromByteLevel is the bytes of a token; characters of no byte stand for themselves.
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
