package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// The byte alphabet of GPT-2 has a visible character for each byte: those that are visible in
// Latin-1 stand for themselves, the others are U+0100 and those that follow, so that a space is Ġ.
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
