package disk

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of the costs of reading a file. A file above a bound is refused.
const (
	MaxJSON    = 64 << 20         // bytes of JSON: a hundred times the largest checkpoint's state or plan
	MaxFlags   = 64 << 10         // bytes of a file of flags, and so the depth of its arrays
	MaxText    = 4 << 30          // bytes of text or tables
	MaxArray   = 64 << 30         // bytes of numbers that are read whole
	MaxHeader  = 1 << 16          // bytes of an array's header
	MaxUnzip   = 1 << 28          // bytes of a compressed file after it is unpacked
	MaxPixels  = 1 << 26          // pixels of a picture
	MaxTokens  = 1 << 20          // tokens in a vocabulary, four times the largest ones
	MaxTensors = 1 << 18          // tensors in a file
	MaxSamples = 1 << 26          // samples that are generated
	MaxSearch  = 10 * time.Second // time of a search for the next match of a pattern
	MaxPattern = 1 << 20          // bytes of a pattern
	MaxEcho    = 1 << 10          // bytes of an error, which may quote its file
)

// Short returns err, with the middle of its text left out if it is longer than MaxEcho.
func Short(err error) error {
	if err == nil || len(err.Error()) <= MaxEcho {
		return err
	}
	return shortError{err}
}

type shortError struct{ error }

func (e shortError) Error() string {
	text := e.error.Error()
	return strings.ToValidUTF8(text[:MaxEcho/2]+" ... "+text[len(text)-MaxEcho/2:], "")
}

func (e shortError) Unwrap() error { return e.error }

// CheckUTF8 returns an error with the place of the first byte that is not UTF-8.
func CheckUTF8(text []byte) error {
	low, high := []byte{0xff, 0xfe}, []byte{0xfe, 0xff} // marks of UTF-16
	if bytes.HasPrefix(text, low) || bytes.HasPrefix(text, high) {
		return errors.New("it is UTF-16; want text in UTF-8, as iconv -f UTF-16 -t UTF-8 makes it")
	}
	if utf8.Valid(text) {
		return nil
	}
	at := 0
	for r, n := utf8.DecodeRune(text); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(text[at:]) {
		at += n
	}
	return fmt.Errorf("%s: byte 0x%02x is not UTF-8; want text in UTF-8, as iconv makes it",
		Place(string(text[:at])), text[at])
}

// Place describes the position after a text.
func Place(before string) string {
	line := strings.LastIndexByte(before, '\n') + 1
	return fmt.Sprintf("line %d, column %d", 1+strings.Count(before, "\n"),
		1+utf8.RuneCountInString(before[line:]))
}
