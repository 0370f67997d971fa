package data_test

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
)

func tokenBytes[T uint16 | uint32](tokens ...T) []byte {
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, tokens)
	return b.Bytes()
}

// A sample is window tokens and those that follow each; the last samples are to test with.
func TestTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.bin")
	rapid.Check(t, func(r *rapid.T) {
		window := rapid.IntRange(1, 5).Draw(r, "window")
		all := rapid.SliceOfN(rapid.Uint32Range(0, 60000), 2*(window+1), 60).Draw(r, "tokens")
		o := data.Options{Window: window, Holdout: 0.3, TokenBytes: rapid.SampledFrom([]int{0, 2, 4}).Draw(r, "width")}
		content := tokenBytes(all...)
		if o.TokenBytes != 4 {
			var narrow []uint16
			for _, x := range all {
				narrow = append(narrow, uint16(x))
			}
			content = tokenBytes(narrow...)
		}
		writeFile(t, path, content)
		train, test, err := data.Open("tokens", path, o)
		if err != nil {
			r.Fatal(err)
		}
		if train.Len()+test.Len() != len(all)/(window+1) || train.Info().Task() != data.NextToken || train.Info().Classes != int(slices.Max(all))+1 {
			r.Fatalf("%d and %d samples of %+v", train.Len(), test.Len(), train.Info())
		}
		for i := range train.Len() + test.Len() {
			set, k := train, i
			if i >= train.Len() {
				set, k = test, i-train.Len()
			}
			b := fill(t, set, k)
			for j := range window {
				if at := i*(window+1) + j; b.Input.Int64[j] != int64(all[at]) || b.Target.Int64[j] != int64(all[at+1]) {
					r.Fatalf("sample %d: %v, %v", i, b.Input.Int64, b.Target.Int64)
				}
			}
		}
	})
	directory := directoryOf(t, map[string][]byte{"train.bin": tokenBytes[uint16](1, 2, 3, 4), "val.bin": tokenBytes[uint16](5, 6)})
	train, test, err := data.Open("tokens", directory, data.Options{Window: 1})
	if err != nil || train.Len() != 2 || test.Len() != 1 || train.Info().Classes != 7 || test.Info().Classes != 7 {
		t.Errorf("train.bin and val.bin: %v, %v, %v", train, test, err)
	}
}
