package data_test

import (
	"bytes"
	"encoding/binary"
	"os"
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

func TestTokensRefuses(t *testing.T) {
	write := func(content []byte) string {
		path := filepath.Join(t.TempDir(), "a.bin")
		writeFile(t, path, content)
		return path
	}
	small := tokenBytes[uint16](1, 2, 3, 4)
	for name, row := range map[string]struct {
		path    string
		options data.Options
		want    []string
	}{
		"missing":    {filepath.Join(t.TempDir(), "no"), data.Options{}, []string{"no such file", "name a file, or a directory with train.bin and val.bin or test.bin, with --data-dir"}},
		"odd":        {write([]byte{1, 2, 3}), data.Options{Window: 1}, []string{"a.bin: 3 bytes are no whole number of tokens of 2 bytes; want uint16"}},
		"short":      {write(small), data.Options{Window: 4}, []string{"4 tokens; want at least 5 for one sample"}},
		"one sample": {write(small), data.Options{Window: 2}, []string{"1 samples; want at least 2", "a.bin, of 3 tokens each"}},
		"type":       {write(tokenBytes[uint32](1, 1<<30, 1, 1)), data.Options{Window: 1, TokenBytes: 4}, []string{"token 1 is 1073741824; want below 1048576: type is another"}},
		"width":      {write(small), data.Options{TokenBytes: 3}, []string{"TokenBytes is 3; want 2 for uint16, or 4 for uint32"}},
		"window":     {write(small), data.Options{Window: -1}, []string{"Window is -1; want at least 1"}},
		"classes":    {write(small), data.Options{Classes: -1}, []string{"Classes is -1; want at least 0"}},
		"holdout":    {directoryOf(t, map[string][]byte{"train.bin": small, "test.bin": small}), data.Options{Window: 1, Holdout: 0.5}, []string{"test.bin is there to test with"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := data.Open("tokens", row.path, row.options)
			wantError(t, err, append(row.want, "data: tokens: ")...)
		})
	}
	path := write(small)
	train, _, err := data.Open("tokens", path, data.Options{Window: 1, Classes: 2})
	if err != nil {
		t.Fatal(err)
	}
	var b data.Batch
	wantError(t, train.Fill(&b, []int{0}), path+": token 1 is 2; want 0 to 1: more classes, or another type")
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	wantError(t, train.Fill(&b, []int{0}), path+": tokens 0 to 1: EOF; the file was longer when it was opened")
}
